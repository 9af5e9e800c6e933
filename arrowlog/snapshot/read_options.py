"""How a log is read: settings, the table's format, and decoded manifests that reads share."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from arrowlog.formats.indextables import INDEXTABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import Format

# Decoded manifests that are kept: 50,000 entries with all fields take about 25 MB, and most
# questions need a few fields.
_CACHE_BYTES_MAX = 1 << 28


class ManifestCache:
    """Decoded manifests by table and path. They never change, so that no version invalidates them.

    The least recently used ones are dropped. Pickles empty.
    """

    def __init__(self, limit: int = _CACHE_BYTES_MAX) -> None:
        """Keep up to `limit` bytes of decoded columns."""
        self._limit = limit
        self._size = 0
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], dict[frozenset[str], pa.Table]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty cache."""
        return ManifestCache, (self._limit,)

    def get(self, table_id: str, path: str, fields: frozenset[str]) -> pa.Table | None:
        """Return a manifest that was decoded with these fields, or with more."""
        key = (table_id, path)
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return find_superset(self._kept[key], fields)

    def put(self, table_id: str, path: str, fields: frozenset[str], entries: pa.Table) -> None:
        """Keep a decoded manifest, if it is small enough to be one of several."""
        if entries.nbytes > self._limit // 2:
            return
        with self._lock:
            known = self._kept.setdefault((table_id, path), {})
            for other in [other for other in known if other <= fields]:
                self._size -= known.pop(other).nbytes
            known[fields] = entries
            self._size += entries.nbytes
            self._kept.move_to_end((table_id, path))
            while self._size > self._limit:
                _, dropped = self._kept.popitem(last=False)
                self._size -= sum(table.nbytes for table in dropped.values())

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept.clear()
            self._size = 0


def find_superset(
    tables: dict[frozenset[str], pa.Table], fields: frozenset[str]
) -> pa.Table | None:
    """Return a table that was decoded with these fields, or with more."""
    exact = tables.get(fields)
    if exact is not None:
        return exact
    return next((table for known, table in list(tables.items()) if known > fields), None)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a log is read.

    `allow_external_paths` admits data files outside the table's root. `strict` makes a gap in the
    log an error instead of a warning. `format` is that of the log. `manifests` holds decoded
    manifests of table states; it is shared by all reads with options that were made from these.
    """

    config: Config
    allow_external_paths: bool = False
    strict: bool = False
    format: Format = INDEXTABLES
    manifests: ManifestCache = field(default_factory=ManifestCache, compare=False)
