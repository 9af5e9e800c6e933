"""A table that is made when a query asks for it: the columns it needs, the rows that may match.

DuckDB takes any Arrow dataset, and tells its scanner which columns a query needs and which filters
it has pushed down. This one has no files: it calls a function that makes the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from arrowlog.scan.dataset import Scan
from arrowlog.scan.expressions import from_arrow
from arrowlog.scan.tree import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Make = Callable[[Sequence[str], Any], Iterator[pa.Table]]

_FORM = ds.IpcFileFormat()
_NOWHERE = LocalFileSystem()


class Lazy(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset whose tables are made on demand.

    `make` gets the names of columns and the filter, and gives tables with just those columns. It
    may leave out rows that the filter drops; the rest of them is dropped here.
    """

    def __init__(
        self,
        schema: pa.Schema,
        make: Make,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`failed` is told of an error: DuckDB hands on no more than its words."""
        self._columns = schema
        self._make = make
        self._failed = failed

    @property
    def schema(self) -> pa.Schema:
        """All columns there are."""
        return self._columns

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 -- pyarrow's name
        **_: Any,
    ) -> Scan:
        """A scan of some columns, without the rows a filter drops."""
        names = list(self._columns.names if columns is None else columns)
        schema = pa.schema([self._columns.field(name) for name in names])
        return Scan(schema, lambda: self._batches(names, filter))

    def _batches(self, names: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        needed = list(names)
        if where is not None:
            mentioned = columns_of(from_arrow(where, self._columns))
            needed += [name for name in self._columns.names if name in mentioned - set(names)]
        try:
            for table in self._make(needed, where):
                found = table if where is None else table.filter(where)
                yield from found.select(names).to_batches()
        except Exception as error:
            self._failed(error)
            raise


class Ranges:
    """Which ranges of versions a filter leaves any row of, by what Arrow knows of guarantees."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Both ends are part of a range."""
        version = pc.field("version")
        schema = pa.schema([("version", pa.int64())])
        self._count = len(ranges)
        fragments = [
            _FORM.make_fragment(
                str(number), _NOWHERE, partition_expression=(version >= low) & (version <= high)
            )
            for number, (low, high) in enumerate(ranges)
        ]
        self._dataset = ds.FileSystemDataset(fragments, schema, _FORM, _NOWHERE)

    def left(self, where: Any, schema: pa.Schema) -> list[int]:
        """The numbers of the ranges that may have rows."""
        if where is None:
            return list(range(self._count))
        dataset = self._dataset.replace_schema(schema)
        return [int(fragment.path) for fragment in dataset.get_fragments(filter=where)]
