"""Arrow datasets of planned files whose methods raise arrowlog's errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    TranslateErrors = Callable[[], AbstractContextManager[None]]


class RowDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A `FileSystemDataset` that raises `DataFileError`, which names the unreadable file.

    A `Scanner` from `scanner()` is Arrow's own and raises Arrow's errors. One that ran Python code
    in Arrow's threads could crash the process if the interpreter exits during an abandoned scan.
    """

    _translate_errors: TranslateErrors

    @classmethod
    def of(cls, dataset: ds.FileSystemDataset, translate_errors: TranslateErrors) -> RowDataset:
        """Wrap the files and filter of a dataset; `translate_errors` surrounds every read."""
        fragments = list(dataset._get_fragments(None))  # noqa: SLF001 -- all of them, unfiltered
        wrapped = cls(fragments, dataset.schema, dataset.format, filesystem=dataset.filesystem)
        wrapped._translate_errors = translate_errors
        filter_ = dataset._scan_options.get("filter")  # noqa: SLF001 -- has no public accessor
        return wrapped if filter_ is None else wrapped.filter(filter_)

    def filter(self, expression: Any) -> RowDataset:
        """Restrict the dataset to rows for which an expression is true."""
        filtered: RowDataset = super().filter(expression)
        filtered._translate_errors = self._translate_errors
        return filtered

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """Read all rows into memory."""
        with self._translate_errors():
            return super().to_table(*args, **options)

    def to_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches."""
        with self._translate_errors():
            batches = iter(super().to_batches(*args, **options))
        return self._translated(batches)

    def _translated(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            with self._translate_errors():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def head(self, *args: Any, **options: Any) -> pa.Table:
        """Read the first rows."""
        with self._translate_errors():
            return super().head(*args, **options)

    def take(self, *args: Any, **options: Any) -> pa.Table:
        """Read rows by index."""
        with self._translate_errors():
            return super().take(*args, **options)

    def count_rows(self, *args: Any, **options: Any) -> int:
        """Count the rows."""
        with self._translate_errors():
            return int(super().count_rows(*args, **options))


class DuckDBDataset(RowDataset):
    """A `RowDataset` for DuckDB, which passes on only the message of an error.

    DuckDB calls `scanner` and reads the batches in its own threads, which wait for each batch:
    here, unlike in `RowDataset`, Python code may run in them.
    """

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 -- pyarrow's name
        **options: Any,
    ) -> LazyScanner:
        """A scan of some columns and of the rows that satisfy `filter`."""
        names = None if columns is None else list(columns)
        inner = super().scanner(columns=names, filter=filter, **options)
        return LazyScanner(
            inner.projected_schema, lambda: self._translated(iter(inner.to_batches()))
        )


@dataclass(frozen=True, slots=True)
class LazyScanner:
    """The part of `pyarrow.dataset.Scanner` that DuckDB uses."""

    projected_schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as a record batch reader."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches())
