"""Write rows to partitioned Parquet files with exact statistics, one add per file.

Rows arrive as a stream and are buffered per partition until they fill a file. When all buffers
together exceed a limit, the largest one is flushed. A failed write leaves orphan files: they are in
no commit, and vacuum deletes them.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import DECIMAL_DIGITS_MAX, make_array
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl, polars_is_stranded, require_polars
from arrowlog.snapshot import HIVE_NULL, to_log_text
from arrowlog.transaction.add_files import Add
from arrowlog.transaction.parquet_files import compute_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrowlog.snapshot import StatsTruncation
    from arrowlog.storage import Store
    from arrowlog.transaction.version_race import Clock

# Arrow bytes per file, measured in memory; a file has about half of it on disk.
DEFAULT_FILE_BYTES = 128 << 20
# Arrow bytes buffered for all partitions together.
DEFAULT_BUFFER_BYTES = 512 << 20
_ROW_GROUP_ROWS = 1 << 20
_INTEGER_DIGITS_MAX = 20  # of an unsigned one with 64 bits
# Longer folder names are cut and completed with a hash. File systems allow 255 bytes.
_FOLDER_NAME_MAX = 120
_SHORTENED_FOLDER = re.compile(rf".{{{_FOLDER_NAME_MAX}}}~[0-9a-f]{{8}}")
# Characters that partition folders keep unescaped, besides letters, digits and "_.-~".
_SAFE = " !$&'()+,;@[]^`{}~"
_UNSUPPORTED_PARTITION_TYPES = (pa.types.is_nested, pa.types.is_null, pa.types.is_binary)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where rows are written, and the schema they must have.

    Attributes:
        store: the table's store.
        schema: the table's schema.
        partition_columns: names of the partition columns.
        cut: truncation of text statistics.
        clock: source of file names and modification times.
        file_bytes: size of a file, in Arrow bytes.
        held_bytes: maximum size of all buffers together, in Arrow bytes.
    """

    store: Store
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    cut: StatsTruncation
    clock: Clock
    file_bytes: int = DEFAULT_FILE_BYTES
    held_bytes: int = DEFAULT_BUFFER_BYTES


@dataclass(slots=True)
class _PartitionBuffer:
    """Rows of one partition that are not yet in a file."""

    values: tuple[Any, ...]
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0


def write_rows(data: object, target: WriteTarget) -> list[Add]:
    """Write rows into new data files and return their adds.

    Raises `InvalidRequest` if the rows do not fit the table's schema.
    """
    adds: list[Add] = []
    buffers: dict[tuple[Any, ...], _PartitionBuffer] = {}
    total = 0
    for batch in _slices(conform_rows(data, target.schema), target.file_bytes):
        for values, rows in _split_by_partition(batch, target.partition_columns):
            buffer = buffers.setdefault(values, _PartitionBuffer(values))
            buffer.tables.append(rows)
            buffer.size += rows.nbytes
            total += rows.nbytes
            if buffer.size >= target.file_bytes:
                total -= buffer.size
                adds.append(_flush(buffers.pop(values), target))
        while total > target.held_bytes:
            largest = max(buffers.values(), key=lambda buffer: buffer.size)
            total -= largest.size
            adds.append(_flush(buffers.pop(largest.values), target))
    adds.extend(_flush(buffer, target) for buffer in buffers.values())
    return adds


def _slices(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Slice tables so that none is much larger than `size` bytes."""
    for table in tables:
        step = max(1, table.num_rows * size // max(table.nbytes, 1))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step)


def conform_rows(data: object, schema: pa.Schema) -> Iterator[pa.Table]:
    """Iterate over rows as tables with exactly the columns and types of `schema`.

    Accepts what `Table.write` accepts. Raises `InvalidRequest` for unknown or duplicate columns,
    and for values that cannot be cast without loss.
    """
    reader = _open_reader(data)
    _check_columns(reader.schema, schema)
    for batch in reader:
        if batch.num_rows:
            yield _conform(pa.Table.from_batches([batch]), schema)


def _open_reader(data: object) -> Any:
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return table.to_reader()
    if isinstance(data, pl.LazyFrame):
        require_polars("Collecting a lazy frame")
        data = data.collect()
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        # Its Arrow stream would include the index as a column.
        return _from_pandas(data).to_reader()
    with suppress(pa.ArrowInvalid):  # a column: it has rows without names
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    raise InvalidRequest(
        f"Data of type {type(data).__name__} cannot be written.",
        next="Pass a pyarrow table or reader, a polars or pandas frame, or anything with"
        " __arrow_c_stream__.",
    )


def _from_pandas(data: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidRequest(
            f"The frame cannot be written: {reason}.",
            next="Give each column a single type and a unique name.",
        ) from None


def _check_columns(given: pa.Schema, schema: pa.Schema) -> None:
    repeated = sorted({name for name in given.names if given.names.count(name) > 1})
    if repeated:
        raise InvalidRequest(f"The rows have the column {repeated[0]!r} twice.", next="Rename one.")
    unknown = [name for name in given.names if schema.get_field_index(name) < 0]
    if unknown:
        raise InvalidRequest(
            f"The rows have a column {unknown[0]!r} that the table does not have.",
            next=f"Columns of the table: {', '.join(schema.names)}; add_columns adds others.",
        )
    for item in schema:
        if given.get_field_index(item.name) < 0 and not item.nullable:
            raise InvalidRequest(
                f"The rows have no column {item.name!r}, which is not nullable.",
                next="Add it to the rows.",
            )


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Order and cast columns as in the schema. Raises `InvalidRequest` if a cast loses values."""
    columns = []
    for item in schema:
        if rows.schema.get_field_index(item.name) < 0:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, item.type)]))
            continue
        column = rows[item.name]
        try:
            if pa.types.is_run_end_encoded(column.type):
                column = pc.run_end_decode(column)
            if pa.types.is_dictionary(column.type):
                column = _decode_dictionary(column)
            if pa.types.is_integer(column.type) and pa.types.is_decimal(item.type):
                column = _widen_integers(column, item.type)
            column = column if column.type == item.type else pc.cast(column, item.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).split("\n", 1)[0]
            raise InvalidRequest(
                f"Column {item.name!r} of the rows has type {column.type} and cannot be cast to"
                f" {item.type}: {reason}.",
                next="Cast it before writing.",
            ) from None
        if column.null_count and not item.nullable:
            raise InvalidRequest(
                f"Column {item.name!r} of the rows has nulls, but is not nullable.",
                next="Fill them before writing.",
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def _widen_integers(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert integers to decimals of a scale; Arrow demands room for the largest integer."""
    digits = _INTEGER_DIGITS_MAX + kind.scale
    wide = pa.decimal128 if digits <= DECIMAL_DIGITS_MAX else pa.decimal256
    return pc.cast(column, wide(digits, kind.scale))


def _decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a dictionary column. Arrow's own cast does not support dictionaries of views."""
    kind = column.type.value_type
    kind = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _split_by_partition(
    rows: pa.Table, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Iterate over partitions: their values, and their rows in order without those columns."""
    if not columns:
        yield (), rows
        return
    keys = rows.select(list(columns))
    _check_partitions(keys)
    groups = _rows_by_key(keys)
    first_rows = pa.array([indices[0].as_py() for indices in groups], pa.int64())
    values = _python_values(keys.take(first_rows))
    rest = rows.drop_columns(list(columns))
    for value, indices in zip(values, groups, strict=True):
        partition = rest if len(indices) == rows.num_rows else rest.take(indices)
        yield tuple(value[name] for name in columns), partition


def _rows_by_key(keys: pa.Table) -> list[pa.Array]:
    """Return the row numbers of each distinct key, in order of first appearance."""
    if polars_is_stranded():
        rows_by_key: dict[tuple[Any, ...], list[int]] = {}
        for row, value in enumerate(_python_values(keys)):
            rows_by_key.setdefault(tuple(value.values()), []).append(row)
        return [make_array(rows, pa.int64()) for rows in rows_by_key.values()]
    frame = pl.DataFrame(pl.from_arrow(keys)).with_row_index("\0row")
    groups = frame.group_by(keys.column_names, maintain_order=True).agg(pl.col("\0row"))
    return [rows.to_arrow() for rows in groups["\0row"]]


def _python_values(keys: pa.Table) -> list[dict[str, Any]]:
    try:
        return list(keys.to_pylist())
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(
            f"A partition has a date or timestamp that cannot be represented: {error}.",
            next="Use years from 1 to 9999, or null.",
        ) from None


def _check_partitions(keys: pa.Table) -> None:
    """Raise `InvalidRequest` for partition values that do not survive a round trip in the log."""
    for name in keys.column_names:
        column = keys[name]
        if any(test(column.type) for test in _UNSUPPORTED_PARTITION_TYPES):
            raise InvalidRequest(
                f"{name!r} cannot be a partition column: it has type {column.type}."
            )
        if pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise InvalidRequest(
                f"Partition column {name!r} has a value that is not finite.", next="Use null."
            )
        if pa.types.is_string(column.type) and pc.any(pc.equal(column, HIVE_NULL)).as_py():
            raise InvalidRequest(
                f"Partition column {name!r} has the value {HIVE_NULL!r}, which means null in logs.",
                next="Use null, or another text.",
            )


def _flush(buffer: _PartitionBuffer, target: WriteTarget) -> Add:
    """Write a buffer to one Parquet file and return its add. The file is complete on return."""
    import pyarrow.parquet as pq

    rows = pa.concat_tables(buffer.tables)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
    data = sink.getvalue()
    partition = dict(zip(target.partition_columns, buffer.values, strict=True))
    folder = "".join(f"{_folder_name(name, value, target)}/" for name, value in partition.items())
    path = f"{folder}part-{target.clock.new_id()}.zstd.parquet"
    target.store.replace(path, data.to_pybytes())
    stats = compute_stats(rows, rows.column_names, target.cut)
    return Add(
        path,
        partition,
        data.size,
        target.clock.now_ms(),
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
        nan_count=stats.nans,
    )


def _folder_name(name: str, value: Any, target: WriteTarget) -> str:
    """Return `column=value`. arrowlog takes the value from the log, unless the log is lost."""
    kind = target.schema.field(name).type
    text = HIVE_NULL if value is None else to_log_text(value, kind)
    assert text is not None
    folder = f"{quote(name, safe=_SAFE)}={quote(text, safe=_SAFE)}"
    if len(folder) <= _FOLDER_NAME_MAX:
        return folder
    digest = hashlib.sha256(folder.encode()).hexdigest()[:8]
    return f"{folder[:_FOLDER_NAME_MAX]}~{digest}"


def is_shortened_folder(name: str) -> bool:
    """Whether a partition folder was named by `write_rows` without its complete value."""
    return _SHORTENED_FOLDER.fullmatch(name) is not None
