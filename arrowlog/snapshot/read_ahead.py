"""Reads the files of a checkpoint ahead, over a network, before the checkpoint is opened.

Which parts a checkpoint has is in its manifest, and which columns are needed is known when a
question is asked: one round trip after the other. A small checkpoint is cheaper read as a whole
while its manifest is on its way. The code that opens checkpoints does not know: it asks a store,
which may have the answer already.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from arrowlog.errors import ArrowlogError

if TYPE_CHECKING:
    from collections.abc import Collection
    from concurrent.futures import Executor, Future

    from arrowlog.formats import CheckpointForm, LogListing
    from arrowlog.storage import ObjectStat, Store

# Checkpoints of at most this size are read ahead: some ten thousand files, which take about as long
# as one round trip of tens of milliseconds.
_BYTES_MAX = 2 << 20
# Requests for the files of one checkpoint at the same time.
THREADS_MAX = 8
# The kinds of checkpoints that are read in several steps otherwise.
_KINDS = frozenset({"parquet", "delta-parquet"})


def read_checkpoint_ahead(
    store: Store,
    listing: LogListing,
    version: int | None,
    avoid: Collection[CheckpointForm],
    pool: Executor,
) -> Store:
    """Begin to read the checkpoint that a load of a version will probably start from.

    Returns a store that has its files, or `store` if nothing is read ahead. Requires that the files
    were listed before: then what is read is no older than what the load itself would read.
    """
    versions = [v for v in listing.checkpoints if version is None or v <= version]
    if store.cheap_stat or not versions:
        return store
    forms = [form for form in listing.checkpoints[max(versions)] if form not in avoid]
    if not forms or forms[0].kind not in _KINDS:
        return store
    folder = listing.format.key("")
    stats = {key: listing.stats.get(key.removeprefix(folder)) for key in forms[0].keys}
    known = {key: stat for key, stat in stats.items() if stat is not None}
    if len(known) < len(stats) or sum(stat.size for stat in known.values()) > _BYTES_MAX:
        return store
    return cast("Store", _ReadAhead(store, known, pool))


class _ReadAhead:
    """A store some of whose files were read ahead, as listed. What was not is asked of the store.

    Every answer is one that the store gave after the files were listed. Only immutable files may be
    read ahead. A file that could not be read, or that has another size than in the listing, is left
    to the store; one that was asked for as a whole is dropped.
    """

    def __init__(self, store: Store, stats: dict[str, ObjectStat], pool: Executor) -> None:
        self._store = store
        self._stats = stats
        self._files: dict[str, Future[bytes]] = {key: pool.submit(store.get, key) for key in stats}

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the store."""
        if name == "_store":  # while an instance is copied
            raise AttributeError(name)
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        data = self._ahead(key)
        if data is None:
            return self._store.get(key)
        self._files.pop(key, None)
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes of an object from `start` up to, but excluding, `stop`."""
        data = self._ahead(key)
        if data is None:
            return self._store.get_range(key, start, stop)
        if start == 0 and stop >= len(data):
            self._files.pop(key, None)
        return data[start:stop]

    def stat(self, key: str) -> ObjectStat | None:
        """Return the stat of an object."""
        return self._store.stat(key) if self._ahead(key) is None else self._stats[key]

    def _ahead(self, key: str) -> bytes | None:
        """Return a file that was read ahead; None if it was not."""
        future = self._files.get(key)
        if future is None:
            return None
        with suppress(ArrowlogError, OSError):
            data = future.result()
            if len(data) == self._stats[key].size:
                return data
        self._files.pop(key, None)
        return None
