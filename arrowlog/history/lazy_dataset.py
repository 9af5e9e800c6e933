"""An Arrow dataset without files that builds its tables when a query scans it.

DuckDB scans any Arrow dataset and passes on the columns a query needs (projection pushdown) and the
filters it has pushed down. `LazyDataset` hands both to a function that builds the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from arrowlog.predicate import parse_pyarrow, referenced_columns
from arrowlog.scan import LazyScanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    BuildTables = Callable[[Sequence[str], Any], Iterator[pa.Table]]

# A fragment needs a format and a file system. Those of `VersionRanges` are never opened.
_UNUSED_FORMAT = ds.IpcFileFormat()
_UNUSED_FILESYSTEM = LocalFileSystem()


class LazyDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset whose tables are built on demand.

    `build` receives column names and the filter (or None) and yields tables with exactly these
    columns. It may leave out rows that the filter drops; the filter is applied here in any case.
    """

    def __init__(
        self,
        schema: pa.Schema,
        build: BuildTables,
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`on_error` receives an exception before it is raised: DuckDB passes on only its text."""
        self._schema = schema
        self._build = build
        self._on_error = on_error

    @property
    def schema(self) -> pa.Schema:
        """The columns of the dataset."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 -- pyarrow's name
        **_: Any,
    ) -> LazyScanner:
        """Return a scan of the given columns over the rows that pass the filter."""
        names = list(self._schema.names if columns is None else columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return LazyScanner(schema, lambda: self._batches(names, filter))

    def _batches(self, names: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        needed = list(names)
        if where is not None:
            filter_only = referenced_columns(parse_pyarrow(where, self._schema)) - set(names)
            needed += [name for name in self._schema.names if name in filter_only]
        try:
            for table in self._build(needed, where):
                matching = table if where is None else table.filter(where)
                yield from matching.select(names).to_batches()
        except Exception as error:
            self._on_error(error)
            raise


class VersionRanges:
    """Version ranges, and which of them a filter can match.

    Each range is a dataset fragment that guarantees low <= version <= high. Arrow's own partition
    pruning then evaluates the filter, so every expression that DuckDB pushes down is understood.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Take (low, high) pairs, both ends included."""
        version = pc.field("version")
        schema = pa.schema([("version", pa.int64())])
        self._count = len(ranges)
        fragments = [
            _UNUSED_FORMAT.make_fragment(
                str(number),
                _UNUSED_FILESYSTEM,
                partition_expression=(version >= low) & (version <= high),
            )
            for number, (low, high) in enumerate(ranges)
        ]
        self._dataset = ds.FileSystemDataset(fragments, schema, _UNUSED_FORMAT, _UNUSED_FILESYSTEM)

    def left(self, where: Any, schema: pa.Schema) -> list[int]:
        """Return the indices of the ranges that may have matching rows; all without a filter."""
        if where is None:
            return list(range(self._count))
        dataset = self._dataset.replace_schema(schema)
        return [int(fragment.path) for fragment in dataset.get_fragments(filter=where)]
