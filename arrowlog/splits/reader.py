"""Read the rows of a split as Arrow, in batches.

Rows are numbered by segment and document, deleted documents included, so that a search and a read
mean the same rows. Plain values are decoded by columns from the document store, numbers alone from
fast fields. A split with nested values is read document by document through tantivy.

A column is read from the stored documents, or from a fast field if it is a number or a boolean. A
column that the split does not have is NULL. A column that the split has in a form from which its
values cannot be rebuilt raises DataFileError: never NULL instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrowlog.arrays import make_array
from arrowlog.fork_safety import OnFirstUse
from arrowlog.splits.bundle import damaged, unsupported
from arrowlog.splits.doc_store import DocStore, format_ip_addresses, several_values
from arrowlog.splits.split_files import open_searcher, require_tantivy, translate_panics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.splits.bundle import IndexMeta, SplitField

_FAST_KINDS = ("i64", "f64", "bool")
_DAY_NANOS = 86_400_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The key under which an older writer wraps the items of an array.
_OLD_ARRAY_KEY = "_values"


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of the table and the field it is read from; None if the split lacks it."""

    column: pa.Field
    field: SplitField | None

    @property
    def is_fast(self) -> bool:
        """Whether a fast field has the values."""
        return self.field is not None and self.field.fast and self.field.kind in _FAST_KINDS

    @property
    def is_stored(self) -> bool:
        """Whether the documents have the values."""
        return self.field is not None and self.field.stored

    @property
    def is_nested(self) -> bool:
        """Whether the values are JSON, which only tantivy reads."""
        return self.field is not None and self.field.kind == "json_object"


def resolve_columns(meta: IndexMeta, columns: pa.Schema, key: str) -> list[ColumnSource]:
    """Find the field of every column. Raises DataFileError if a column cannot be rebuilt."""
    sources = []
    for column in columns:
        field = meta.field(column.name)
        source = ColumnSource(column, field)
        if field is not None and not pa.types.is_null(column.type):
            if field.kind not in _field_kinds(column.type):
                raise unsupported(
                    key,
                    f"Column {column.name!r} has type {column.type} in the table, but its field in"
                    f" the split has type {field.kind}, from which it cannot be rebuilt.",
                    "Read the other columns, or read the table with IndexTables.",
                )
            if not source.is_stored and not source.is_fast:
                raise unsupported(
                    key,
                    f"The values of column {column.name!r} are indexed in the split, but not"
                    " stored.",
                    "Read the other columns, or read the table with IndexTables.",
                )
        sources.append(source)
    return sources


def _field_kinds(kind: pa.DataType) -> tuple[str, ...]:
    """The types of fields from which a column of a type can be rebuilt."""
    types = pa.types
    if types.is_signed_integer(kind):
        return ("i64",)
    if types.is_float32(kind) or types.is_float64(kind):
        return ("f64",)
    if types.is_boolean(kind):
        return ("bool",)
    if types.is_string(kind):
        return ("text", "ip_addr", "json_object")
    if types.is_binary(kind):
        return ("bytes",)
    if types.is_date32(kind) or types.is_timestamp(kind):
        return ("date",)
    if types.is_list(kind) or types.is_struct(kind) or types.is_map(kind):
        return ("json_object",)
    return ()


def type_column(values: pa.Array, source: ColumnSource, key: str) -> pa.Array:
    """Convert the decoded values of a field to the type of its column."""
    column, field = source.column, source.field
    assert field is not None
    if field.kind == "ip_addr":
        return format_ip_addresses(values) if pa.types.is_fixed_size_binary(values.type) else values
    if field.kind == "date":
        return _type_instants(values, column.type)
    if values.type == column.type:
        return values
    try:
        return values.cast(column.type, safe=not pa.types.is_floating(column.type))
    except pa.ArrowInvalid as error:
        raise unsupported(
            key,
            f"A value of column {column.name!r} is outside the range of type {column.type}.",
            "Read the other columns, or correct the type of the column.",
        ) from error


def _type_instants(nanos: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert nanoseconds since 1970, rounded down, to a date or to microseconds."""
    count = len(nanos)
    validity, data = nanos.buffers()
    raw = np.frombuffer(data, np.int64, count, 8 * nanos.offset) if count else np.empty(0, np.int64)
    if nanos.offset and validity is not None:
        validity = pa.py_buffer(
            np.packbits(
                np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")[
                    nanos.offset : nanos.offset + count
                ],
                bitorder="little",
            )
        )
    if pa.types.is_date32(kind):
        days = (raw // _DAY_NANOS).astype(np.int32)
        return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(days)])
    micros = raw // 1000
    stamps = pa.Array.from_buffers(
        pa.timestamp("us", kind.tz), count, [validity, pa.py_buffer(micros)]
    )
    return stamps if stamps.type == kind else stamps.cast(kind)


def type_python_values(values: Sequence[Any], source: ColumnSource, key: str) -> pa.Array:
    """Convert the values that tantivy returns for a field to a column; None is NULL."""
    column, field = source.column, source.field
    assert field is not None
    if field.kind == "json_object":
        convert = _Nested(column, key)
        return pa.array([convert.value(value) for value in values], column.type)
    if field.kind == "date":
        nanos = [None if value is None else _to_nanos(value) for value in values]
        return type_column(make_array(nanos, pa.int64()), source, key)
    if field.kind == "ip_addr":
        texts = [None if value is None else value.removeprefix("::ffff:") for value in values]
        return make_array(texts, pa.string())
    base = {
        "i64": pa.int64(),
        "f64": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "bytes": pa.binary(),
    }[field.kind]
    return type_column(make_array(values, base), source, key)


def _to_nanos(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1) * 1000


class _Nested:
    """Converts JSON values to the values of an array, struct or map column."""

    def __init__(self, column: pa.Field, key: str) -> None:
        self._column = column
        self._key = key

    def value(self, value: Any) -> Any:
        """Convert the JSON object of one document."""
        kind = self._column.type
        if value is None:
            return None
        if pa.types.is_string(kind):
            return json.dumps(
                value, ensure_ascii=False, separators=(",", ":"), default=_format_instant
            )
        if pa.types.is_list(kind):
            names = (self._column.name, _OLD_ARRAY_KEY)
            value = next((value[name] for name in names if name in value), value)
        return self._convert(value, kind)

    def _convert(self, value: Any, kind: pa.DataType) -> Any:
        types = pa.types
        if value is None:
            return None
        if types.is_list(kind) and isinstance(value, list):
            return [self._convert(item, kind.value_type) for item in value]
        if types.is_struct(kind) and isinstance(value, dict):
            return {
                member.name: self._convert(value.get(member.name), member.type) for member in kind
            }
        if types.is_map(kind) and isinstance(value, dict):
            return [
                (self._key_of(name, kind.key_type), self._convert(item, kind.item_type))
                for name, item in value.items()
            ]
        scalar = self._scalar(value, kind)
        if scalar is None:
            raise self._mismatch(value, kind)
        return scalar

    def _scalar(self, value: Any, kind: pa.DataType) -> Any:
        """Convert a value without members; None if it is not of the type."""
        types = pa.types
        if types.is_string(kind):
            return value if isinstance(value, str) else None
        if types.is_boolean(kind):
            return value if isinstance(value, bool) else None
        if isinstance(value, bool):
            return None
        if types.is_floating(kind):
            return float(value) if isinstance(value, int | float) else None
        if types.is_signed_integer(kind):
            bound = 1 << (kind.bit_width - 1)
            return value if isinstance(value, int) and -bound <= value < bound else None
        if types.is_date32(kind):
            return _to_date(value)
        if types.is_timestamp(kind):
            return _to_timestamp(value, zoned=kind.tz is not None)
        return None

    def _key_of(self, name: str, kind: pa.DataType) -> Any:
        """Parse the key of a map, which JSON has as text."""
        if pa.types.is_string(kind):
            return name
        try:
            if pa.types.is_boolean(kind):
                return {"true": True, "false": False}[name]
            if pa.types.is_signed_integer(kind):
                return self._convert(int(name), kind)
            if pa.types.is_floating(kind):
                return float(name)
        except (ValueError, KeyError):
            pass
        raise self._mismatch(name, kind)

    def _mismatch(self, value: Any, kind: pa.DataType) -> Exception:
        what = "a timestamp" if isinstance(value, datetime) else repr(value)[:60]
        return unsupported(
            self._key,
            f"Column {self._column.name!r} has {what} where its type has {kind}; the original"
            " value is not stored.",
            "Read the other columns, or read the table with IndexTables.",
        )


def _format_instant(value: Any) -> str:
    """Format an instant inside JSON. tantivy stores text of that form as an instant."""
    if not isinstance(value, datetime):
        raise TypeError(f"unexpected {type(value).__name__} in JSON")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _to_date(value: Any) -> date | None:
    """A date is an instant; an older writer stored milliseconds since 1970."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).date()
    if isinstance(value, int):
        return (_EPOCH + timedelta(milliseconds=value)).date()
    return None


def _to_timestamp(value: Any, *, zoned: bool) -> datetime | None:
    """A timestamp is an instant; an older writer stored microseconds since 1970."""
    if isinstance(value, int):
        value = _EPOCH + timedelta(microseconds=value)
    if not isinstance(value, datetime):
        return None
    instant: datetime = value.astimezone(UTC)
    return instant if zoned else instant.replace(tzinfo=None)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from arrowlog.splits.bundle import Segment
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
