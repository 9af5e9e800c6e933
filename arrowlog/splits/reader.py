"""Read the rows of a split as Arrow, in batches.

Rows are numbered by segment and document, deleted documents included, so that a search and a read
mean the same rows. Plain values are decoded by columns from the document store, numbers alone from
fast fields. A split with nested values is read document by document through tantivy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrowlog.arrays import make_array
from arrowlog.fork_safety import OnFirstUse
from arrowlog.splits.bundle import damaged
from arrowlog.splits.doc_store import DocStore, several_values
from arrowlog.splits.schema import resolve_columns, type_column, type_python_values
from arrowlog.splits.tantivy_index import open_searcher, require_tantivy, translate_panics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from arrowlog.splits.bundle import Segment
    from arrowlog.splits.schema import ColumnSource
    from arrowlog.splits.split_files import SplitFiles

    Rows = npt.NDArray[np.int64]

BATCH_ROWS = 1 << 16
_BATCH_BYTES = 32 << 20  # documents per batch
_FAST_TYPES = {"i64": pa.int64(), "f64": pa.float64(), "bool": pa.bool_()}


class SplitRows(NamedTuple):
    """A batch of rows: their numbers in the split, and their columns."""

    numbers: Rows
    columns: pa.RecordBatch


class RowDecoder:
    """Decodes columns of a split. `columns` has no partition columns: they are in the log."""

    def __init__(self, files: SplitFiles, columns: pa.Schema) -> None:
        """Raises DataFileError if a column of the split cannot be rebuilt."""
        self._files = files
        self._key = files.key
        self._schema = columns
        self._sources = resolve_columns(files.meta, columns, files.key)
        self._searchers: dict[tuple[str, str], Any] = {}

    def batches(self, rows: Rows | None = None) -> Iterator[SplitRows]:
        """Yield all rows, or those with the given increasing numbers, without deleted ones."""
        base = 0
        for segment in self._files.meta.segments:
            docs = self._choose(segment, base, rows)
            if docs is None or len(docs):
                for found, arrays in self._read(segment, docs):
                    batch = pa.RecordBatch.from_arrays(
                        self._complete(found, arrays), schema=self._schema
                    )
                    yield SplitRows(found + base, batch)
            base += segment.max_doc

    def prefetch(self) -> None:
        """Fetch what `batches` reads of a remote split, so that others can be read meanwhile."""
        for segment in self._files.meta.segments:
            method = self._choose_method()
            if method == self._read_store:
                self._files.body(segment.file_name("store"))
            elif self._present:
                self._searcher("fast" if method == self._read_fast else "documents", segment)

    @OnFirstUse
    def _present(self) -> list[ColumnSource]:
        """The columns that the split has."""
        return [
            source
            for source in self._sources
            if source.field is not None and not pa.types.is_null(source.column.type)
        ]

    def _complete(self, docs: Rows, arrays: dict[str, pa.Array]) -> list[pa.Array]:
        """Add NULL for the columns that the split lacks."""
        return [
            arrays[column.name] if column.name in arrays else pa.nulls(len(docs), column.type)
            for column in self._schema
        ]

    def _choose(self, segment: Segment, base: int, rows: Rows | None) -> Rows | None:
        """The documents of a segment to read; None for all of them."""
        docs: Rows | None = None
        if rows is not None:
            low, high = np.searchsorted(rows, [base, base + segment.max_doc])
            docs = rows[low:high] - base
        if segment.delete_file is not None:
            alive = self._read_alive(segment, segment.delete_file)
            docs = np.flatnonzero(alive) if docs is None else docs[alive[docs]]
        return docs

    def _read_alive(self, segment: Segment, name: str) -> npt.NDArray[np.bool_]:
        """Read which documents are not deleted: a u32 count, then one bit per document."""
        body = self._files.body(name)[:]
        words = -(-segment.max_doc // 64)
        if len(body) != 4 + 8 * words or int.from_bytes(body[:4], "little") != segment.max_doc:
            raise damaged(self._key, f"{name} has another number of documents")
        bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=4), bitorder="little")
        alive = bits[: segment.max_doc].astype(bool)
        if int(alive.sum()) != segment.max_doc - segment.num_deleted:
            raise damaged(self._key, f"{name} has another number of deleted documents")
        return alive

    def _read(
        self, segment: Segment, docs: Rows | None
    ) -> Iterator[tuple[Rows, dict[str, pa.Array]]]:
        return self._choose_method()(segment, docs)

    def _choose_method(
        self,
    ) -> Callable[[Segment, Rows | None], Iterator[tuple[Rows, dict[str, pa.Array]]]]:
        """How the rows are read: the cheapest way that has all columns."""
        fields = self._files.meta.fields
        if all(source.is_fast for source in self._present):
            return self._read_fast
        if any(field.kind in ("json_object", "facet") and field.stored for field in fields):
            return self._read_documents
        return self._read_store

    # Fast fields ------------------------------------------------------------------------------

    def _read_fast(
        self, segment: Segment, docs: Rows | None
    ) -> Iterator[tuple[Rows, dict[str, pa.Array]]]:
        for part in _slices(docs, segment.max_doc):
            yield part, self._fast_columns(segment, part, self._present)

    def _fast_columns(
        self, segment: Segment, docs: Rows, sources: Sequence[ColumnSource]
    ) -> dict[str, pa.Array]:
        if not sources:
            return {}
        searcher = self._searcher("fast", segment)
        address = require_tantivy().DocAddress
        addresses = [address(0, doc) for doc in docs.tolist()]
        columns: dict[str, pa.Array] = {}
        for source in sources:
            assert source.field is not None
            with translate_panics(self._key):
                values = searcher.fast_field_values(source.field.name, addresses)
            array = make_array(values, _FAST_TYPES[source.field.kind])
            columns[source.column.name] = type_column(array, source, self._key)
        return columns

    def _searcher(self, kind: Any, segment: Segment) -> Any:
        found = self._searchers.get((kind, segment.id))
        if found is None:
            found = open_searcher(self._files.index_folder(kind, segment.id), self._key)
            self._searchers[kind, segment.id] = found
        return found

    # The document store -----------------------------------------------------------------------

    def _read_store(
        self, segment: Segment, docs: Rows | None
    ) -> Iterator[tuple[Rows, dict[str, pa.Array]]]:
        body = self._files.body(segment.file_name("store"))
        store = DocStore.open(body, segment.max_doc, self._key)
        kinds = [field.kind for field in self._files.meta.fields]
        stored = [source for source in self._present if source.is_stored]
        fast = [source for source in self._present if not source.is_stored]
        wanted = {
            source.field.number: source.field.name for source in stored if source.field is not None
        }
        for blocks in store.batches(BATCH_ROWS, _BATCH_BYTES, docs):
            documents = store.documents(blocks)
            numbers = np.concatenate(
                [np.arange(block.first_doc, block.end_doc, dtype=np.int64) for block in blocks]
            )
            if docs is not None:
                low, high = np.searchsorted(docs, [numbers[0], numbers[-1] + 1])
                chosen = np.searchsorted(numbers, docs[low:high])
                documents, numbers = documents.select(chosen), docs[low:high]
            decoded = documents.columns(kinds, wanted)
            columns = self._fast_columns(segment, numbers, fast)
            for source in stored:
                assert source.field is not None
                array = decoded[source.field.number]
                columns[source.column.name] = type_column(array, source, self._key)
            yield numbers, columns

    # Documents through tantivy ----------------------------------------------------------------

    def _read_documents(
        self, segment: Segment, docs: Rows | None
    ) -> Iterator[tuple[Rows, dict[str, pa.Array]]]:
        searcher = self._searcher("documents", segment)
        address = require_tantivy().DocAddress
        stored = [source for source in self._present if source.is_stored]
        fast = [source for source in self._present if not source.is_stored]
        for part in _slices(docs, segment.max_doc):
            values: list[list[Any]] = [[] for _ in stored]
            names = [source.field.name for source in stored if source.field is not None]
            with translate_panics(self._key):
                for doc in part.tolist():
                    document = searcher.doc(address(0, doc)).to_dict()
                    for name, column in zip(names, values, strict=True):
                        found = document.get(name)
                        if found is not None and len(found) > 1:
                            raise several_values(self._key, name)
                        column.append(found[0] if found else None)
            columns = self._fast_columns(segment, part, fast)
            for source, column in zip(stored, values, strict=True):
                columns[source.column.name] = type_python_values(column, source, self._key)
            yield part, columns


def mask_members(numbers: Rows, found: Rows) -> pa.Array:
    """Which row numbers are among others; both are increasing."""
    values = np.isin(numbers, found, assume_unique=True)
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def _slices(docs: Rows | None, max_doc: int) -> Iterator[Rows]:
    """Divide documents into batches."""
    count = max_doc if docs is None else len(docs)
    for start, stop in pairwise([*range(0, count, BATCH_ROWS), count]):
        yield np.arange(start, stop, dtype=np.int64) if docs is None else docs[start:stop]
