"""Files whose columns are spelled in other letters than the table's: `ID` where it says `id`.

Spark takes them for the same column. Arrow takes them for another one, and the rows for NULL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_THREADS = 16


def spelled(names: Sequence[str], columns: Iterable[str], path: str) -> dict[str, str]:
    """For columns of a table the name a file has for them, where it is not the same.

    `InvalidRequest` if a file has two that may be meant.

    >>> spelled(["ID", "name"], ["id", "name", "later"], "a.parquet")
    {'id': 'ID'}
    """
    wanted = list(columns)
    there, known = set(names), set(wanted)
    missing = [name for name in wanted if name not in there]
    if not missing or there <= known:
        return {}
    found: dict[str, str] = {}
    for name in missing:
        near = [other for other in names if other.lower() == name.lower() and other not in known]
        if len(near) > 1:
            raise InvalidRequest(
                f"{path}: the column {name!r} of the table may be any of {', '.join(near)} there.",
                next="Write the file anew with the names of the table's schema.",
            )
        if near:
            found[name] = near[0]
    return found


def finer(file: pa.Schema, table: pa.Schema) -> str | None:
    """The first column of a file that counts time in nanoseconds where the table does not."""
    for field in table:
        index = file.get_field_index(field.name)
        if index < 0 or not pa.types.is_timestamp(field.type) or field.type.unit == "ns":
            continue
        kind = file.field(index).type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            return str(field.name)
    return None


class Spellings:
    """How files spell the columns of a table; each file is asked once."""

    def __init__(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Partition columns are not read from files."""
        self._schema = schema
        self._columns = [name for name in schema.names if name not in set(partition_columns)]
        self._known: dict[str, dict[str, str]] = {}

    def of(self, fragment: Any) -> Mapping[str, str]:
        """The odd names of a file, by those of the table. Its footer is kept, and read once."""
        path = fragment.path
        if path not in self._known:
            self._known[path] = spelled(fragment.physical_schema.names, self._columns, path)
        return self._known[path]

    def any(self, fragments: Sequence[Any]) -> bool:
        """Whether there is a file with odd names. Reads every footer that is not known."""
        with ThreadPoolExecutor(_THREADS) as threads:
            return any([bool(odd) for odd in threads.map(self.of, fragments)])  # noqa: C419 -- all

    def tables(self, fragment: Any) -> Iterator[pa.Table]:
        """All rows of a file with odd names, under the right ones."""
        import pyarrow.dataset as ds

        odd = self.of(fragment)
        fields = [field.with_name(odd.get(field.name, field.name)) for field in self._schema]
        whole = ds.FileSystemDataset(
            [fragment], pa.schema(fields), fragment.format, filesystem=fragment.filesystem
        )
        for batch in whole.to_batches():
            yield pa.Table.from_batches([batch]).rename_columns(self._schema.names)
