"""Rows to data files: partitioned Parquet with exact statistics, one add each.

Rows come as a stream and are held per partition until a file's worth is there; when all of them
together are too many, the largest partition is written out. Files that a failed write leaves behind
are in no commit: vacuum finds them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import Add
from arrowlog.commit.stats import of_table
from arrowlog.commit.text import text_of
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl, polars_is_stranded, require_polars
from arrowlog.log.arrays import array_of
from arrowlog.state.typed import HIVE_NULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrowlog.commit.pace import Clock
    from arrowlog.log.store import Store
    from arrowlog.state.truncation import Truncation

FILE_BYTES = 128 << 20  # of rows in memory; about half of it on disk
HELD_BYTES = 512 << 20
_GROUP_ROWS = 1 << 20
_NAME_MAX = 120
_SAFE = " !$&'()+,;@[]^`{}~"  # with letters, digits and _.-: what a folder's name may have
_SIMPLE = (pa.types.is_nested, pa.types.is_null, pa.types.is_binary)


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and what they have to be."""

    store: Store
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    cut: Truncation
    clock: Clock
    file_bytes: int = FILE_BYTES
    held_bytes: int = HELD_BYTES


@dataclass(slots=True)
class _Held:
    """Rows of one partition that are not in a file yet."""

    values: tuple[Any, ...]
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0


def write_rows(data: object, target: Target) -> list[Add]:
    """Write rows into new data files; returns the adds for them."""
    adds: list[Add] = []
    held: dict[tuple[Any, ...], _Held] = {}
    total = 0
    for batch in _pieces(read_rows(data, target.schema), target.file_bytes):
        for values, rows in _split(batch, target.partition_columns):
            place = held.setdefault(values, _Held(values))
            place.tables.append(rows)
            place.size += rows.nbytes
            total += rows.nbytes
            if place.size >= target.file_bytes:
                total -= place.size
                adds.append(_flush(held.pop(values), target))
        while total > target.held_bytes:
            largest = max(held.values(), key=lambda place: place.size)
            total -= largest.size
            adds.append(_flush(held.pop(largest.values), target))
    adds.extend(_flush(place, target) for place in held.values())
    return adds


def _pieces(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows, no table of which is much larger than a file should be."""
    for table in tables:
        step = max(1, table.num_rows * size // max(table.nbytes, 1))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step)


def read_rows(data: object, schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows in the table's own columns and types, some at a time."""
    reader = _reader(data)
    _check_columns(reader.schema, schema)
    for batch in reader:
        if batch.num_rows:
            yield _conform(pa.Table.from_batches([batch]), schema)


def _reader(data: object) -> Any:
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return table.to_reader()
    if isinstance(data, pl.LazyFrame):
        require_polars("Collecting a lazy frame")
        data = data.collect()
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data).to_reader()  # a stream would have the index too
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    raise InvalidRequest(
        f"A {type(data).__name__} cannot be written.",
        next="Give a pyarrow table or reader, a polars or pandas frame, or anything with"
        " __arrow_c_stream__.",
    )


def _from_pandas(data: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidRequest(
            f"The frame cannot be written: {reason}.", next="Give each column one type and name."
        ) from None


def _check_columns(given: pa.Schema, schema: pa.Schema) -> None:
    twice = sorted({name for name in given.names if given.names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"The rows have the column {twice[0]!r} twice.", next="Rename one.")
    unknown = [name for name in given.names if schema.get_field_index(name) < 0]
    if unknown:
        raise InvalidRequest(
            f"The rows have a column {unknown[0]!r}, and the table has not.",
            next=f"Its columns are {', '.join(schema.names)}; add_columns makes new ones.",
        )
    for item in schema:
        if given.get_field_index(item.name) < 0 and not item.nullable:
            raise InvalidRequest(
                f"The rows have no column {item.name!r}, which may not be null.",
                next="Add it to the rows.",
            )


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns in the table's order and types; what does not fit without loss is refused."""
    columns = []
    for item in schema:
        if rows.schema.get_field_index(item.name) < 0:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, item.type)]))
            continue
        column = rows[item.name]
        try:
            if pa.types.is_dictionary(column.type):
                column = _words(column)
            column = column if column.type == item.type else pc.cast(column, item.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).split("\n", 1)[0]
            raise InvalidRequest(
                f"Column {item.name!r} of the rows is {column.type}, and cannot be {item.type}:"
                f" {reason}.",
                next="Cast it before writing.",
            ) from None
        if column.null_count and not item.nullable:
            raise InvalidRequest(
                f"Column {item.name!r} of the rows has nulls, and may not have any.",
                next="Fill them before writing.",
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def _words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as what they stand for; Arrow takes nothing from a dictionary of views."""
    kind = column.type.value_type
    kind = pa.string() if kind == pa.string_view() else kind
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _split(rows: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Rows by partition, in the order they came; the partition columns are gone from them."""
    if not columns:
        yield (), rows
        return
    keys = rows.select(list(columns))
    _check_partitions(keys)
    groups = _rows_by_key(keys)
    values = _python_values(keys.take(pa.array([at[0].as_py() for at in groups], pa.int64())))
    rest = rows.drop_columns(list(columns))
    for value, at in zip(values, groups, strict=True):
        picked = rest if len(at) == rows.num_rows else rest.take(at)
        yield tuple(value[name] for name in columns), picked


def _rows_by_key(keys: pa.Table) -> list[pa.Array]:
    """The rows of each combination of values there is, in the order in which they first appear."""
    if polars_is_stranded():
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, value in enumerate(_python_values(keys)):
            found.setdefault(tuple(value.values()), []).append(row)
        return [array_of(rows, pa.int64()) for rows in found.values()]
    frame = pl.DataFrame(pl.from_arrow(keys)).with_row_index("\0row")
    groups = frame.group_by(keys.column_names, maintain_order=True).agg(pl.col("\0row"))
    return [rows.to_arrow() for rows in groups["\0row"]]


def _python_values(keys: pa.Table) -> list[dict[str, Any]]:
    try:
        return list(keys.to_pylist())
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(
            f"A partition has a date or a moment that cannot be written down: {error}.",
            next="Use years from 1 to 9999, or null.",
        ) from None


def _check_partitions(keys: pa.Table) -> None:
    """Values that a log could not give back."""
    for name in keys.column_names:
        column = keys[name]
        if any(test(column.type) for test in _SIMPLE):
            raise InvalidRequest(f"{name!r} cannot be a partition column: it is {column.type}.")
        if pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise InvalidRequest(
                f"Partition column {name!r} has a value that is not finite.", next="Use null."
            )
        if pa.types.is_string(column.type) and pc.any(pc.equal(column, HIVE_NULL)).as_py():
            raise InvalidRequest(
                f"Partition column {name!r} has the value {HIVE_NULL!r}, which means null in logs.",
                next="Use null, or another text.",
            )


def _flush(place: _Held, target: Target) -> Add:
    """One file, whole on the store before anybody hears of it."""
    import pyarrow.parquet as pq

    rows = pa.concat_tables(place.tables)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=_GROUP_ROWS)
    data = sink.getvalue()
    partition = dict(zip(target.partition_columns, place.values, strict=True))
    folder = "".join(f"{_folder(name, value, target)}/" for name, value in partition.items())
    path = f"{folder}part-{target.clock.new_id()}.zstd.parquet"
    target.store.replace(path, data.to_pybytes())
    stats = of_table(rows, rows.column_names, target.cut)
    return Add(
        path,
        partition,
        data.size,
        target.clock.now_ms(),
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
    )


def _folder(name: str, value: Any, target: Target) -> str:
    """`column=value`, for people: readers take the value from the log."""
    kind = target.schema.field(name).type
    text = HIVE_NULL if value is None else text_of(value, kind) or HIVE_NULL
    whole = f"{quote(name, safe=_SAFE)}={quote(text, safe=_SAFE)}"
    if len(whole) <= _NAME_MAX:
        return whole
    return f"{whole[:_NAME_MAX]}~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
