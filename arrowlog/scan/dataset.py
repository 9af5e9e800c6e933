"""Planned files as a dataset of Arrow whose methods raise errors of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    Explained = Callable[[], AbstractContextManager[None]]


class RowDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A `FileSystemDataset` like any other, but for its errors: `DataFileError` names the file.

    A `Scanner` from `scanner()` is Arrow's own and raises what Arrow raises: one that runs Python
    in Arrow's threads can end the process when the interpreter exits while a scan is abandoned.
    """

    _explained: Explained

    @classmethod
    def of(cls, dataset: ds.FileSystemDataset, explained: Explained) -> RowDataset:
        """The files and the filter of a dataset; `explained` is put around every read."""
        fragments = list(dataset._get_fragments(None))  # noqa: SLF001 -- without the filter
        made = cls(fragments, dataset.schema, dataset.format, filesystem=dataset.filesystem)
        made._explained = explained
        filter_ = dataset._scan_options.get("filter")  # noqa: SLF001 -- there is no other way
        return made if filter_ is None else made.filter(filter_)

    def filter(self, expression: Any) -> RowDataset:
        """The rows for which an expression is true as well."""
        found: RowDataset = super().filter(expression)
        found._explained = self._explained
        return found

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """All rows, in memory."""
        with self._explained():
            return super().to_table(*args, **options)

    def to_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time."""
        with self._explained():
            batches = iter(super().to_batches(*args, **options))
        return self._each(batches)

    def _each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            with self._explained():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def head(self, *args: Any, **options: Any) -> pa.Table:
        """The first rows."""
        with self._explained():
            return super().head(*args, **options)

    def take(self, *args: Any, **options: Any) -> pa.Table:
        """Rows by their numbers."""
        with self._explained():
            return super().take(*args, **options)

    def count_rows(self, *args: Any, **options: Any) -> int:
        """How many rows there are."""
        with self._explained():
            return int(super().count_rows(*args, **options))


class DuckRows(RowDataset):
    """The same for DuckDB, which hands on no more than the words of an error.

    DuckDB calls `scanner` and reads what it gives in its own threads, which wait for each batch.
    """

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 -- pyarrow's name
        **options: Any,
    ) -> Scan:
        """A scan of some columns, without the rows that a filter drops."""
        names = None if columns is None else list(columns)
        inner = super().scanner(columns=names, filter=filter, **options)
        return Scan(inner.projected_schema, lambda: self._each(iter(inner.to_batches())))


@dataclass(frozen=True, slots=True)
class Scan:
    """What DuckDB asks of a scanner."""

    projected_schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, a batch at a time."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches())
