"""Data files whose column names differ in case from the table's: `ID` instead of `id`.

Spark treats these as the same column. Arrow treats them as different ones and reads the column as
NULL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_THREADS = 16  # concurrent footer reads


def spelled(names: Sequence[str], columns: Iterable[str], path: str) -> dict[str, str]:
    """Map columns of the table to their names in a file, where these differ in case only.

    Raises InvalidRequest if several columns of the file are candidates for one column.

    >>> spelled(["ID", "name"], ["id", "name", "later"], "a.parquet")
    {'id': 'ID'}
    """
    table_columns = list(columns)
    in_file, in_table = set(names), set(table_columns)
    missing = [name for name in table_columns if name not in in_file]
    if not missing or in_file <= in_table:
        return {}
    spellings: dict[str, str] = {}
    for name in missing:
        candidates = [
            other for other in names if other.lower() == name.lower() and other not in in_table
        ]
        if len(candidates) > 1:
            raise InvalidRequest(
                f"{path}: the column {name!r} of the table may be any of {', '.join(candidates)}.",
                next="Rewrite the file with the column names of the table's schema.",
            )
        if candidates:
            spellings[name] = candidates[0]
    return spellings


def finer(file: pa.Schema, table: pa.Schema) -> str | None:
    """The first timestamp column in nanoseconds in the file, but not in the table; or None."""
    for field in table:
        index = file.get_field_index(field.name)
        if index < 0 or not pa.types.is_timestamp(field.type) or field.type.unit == "ns":
            continue
        file_type = file.field(index).type
        if pa.types.is_timestamp(file_type) and file_type.unit == "ns":
            return str(field.name)
    return None


class Spellings:
    """How files spell the columns of a table, cached per file."""

    def __init__(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Partition columns are ignored: they are not read from files."""
        self._schema = schema
        self._columns = [name for name in schema.names if name not in set(partition_columns)]
        self._known: dict[str, dict[str, str]] = {}

    def of(self, fragment: Any) -> Mapping[str, str]:
        """Names in a file that differ, by name in the table. Reads its footer if necessary."""
        path = fragment.path
        if path not in self._known:
            self._known[path] = spelled(fragment.physical_schema.names, self._columns, path)
        return self._known[path]

    def any(self, fragments: Sequence[Any]) -> bool:
        """Whether any file has differing names. Reads every footer that is not cached."""
        with ThreadPoolExecutor(_THREADS) as threads:
            # A list: all footers are read, none is left to a later scan.
            return any([bool(names) for names in threads.map(self.of, fragments)])  # noqa: C419

    def tables(self, fragment: Any) -> Iterator[pa.Table]:
        """All rows of a file with differing names, under the names of the table."""
        import pyarrow.dataset as ds

        file_names = self.of(fragment)
        fields = [field.with_name(file_names.get(field.name, field.name)) for field in self._schema]
        dataset = ds.FileSystemDataset(
            [fragment], pa.schema(fields), fragment.format, filesystem=fragment.filesystem
        )
        for batch in dataset.to_batches():
            yield pa.Table.from_batches([batch]).rename_columns(self._schema.names)
