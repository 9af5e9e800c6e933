"""Merge the rows of several Parquet files into one, streaming, with exact statistics.

Rows keep their order. The columns are those of the table, null where a file lacks one; as in every
reader, a column that a file spells in another case is found. Columns of a file that the table does
not know are kept. Page checksums are verified, and the row counts of
the log, of the footers and of the new file are compared. A file that fails a check raises
`UnreadableFile`; a store that does not answer raises StoreUnavailable, which says nothing about the
file.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.scan import find_column_problem, map_column_case
from arrowlog.snapshot import has_bounds
from arrowlog.storage import RangeReader, stat_object
from arrowlog.transaction import Add, DataFileStats, compute_stats, struct_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.maintenance.compaction import CompactionGroup, SourceFile
    from arrowlog.snapshot import StatsTruncation
    from arrowlog.storage import Store

_MAX_BATCH_BYTES = 8 << 20  # 8 MiB, uncompressed, decoded at a time
_MAX_BATCH_ROWS = 1 << 16
_SINGLE_READ_BYTES = 16 << 20  # a file of up to 16 MiB is read with one request
_ROW_GROUP_BYTES = 32 << 20  # a row group is written once it has 32 MiB in memory,
_ROW_GROUP_ROWS = 1 << 20  # or this many rows
_FOOTER_THREADS = 8


class UnreadableFile(Exception):
    """A file that cannot be merged, with the reason."""

    def __init__(self, key: str, reason: str) -> None:
        """`key` is the file's path in the table, `reason` a phrase such as `it is not there`."""
        super().__init__(key, reason)
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Everything needed to rewrite a group, in this process or on a Spark worker (picklable)."""

    group: CompactionGroup
    schema: pa.Schema  # of the data files: without partition columns
    cut: StatsTruncation
    new_id: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open Parquet file and its columns under the table's names."""

    parquet: Any
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """The number of rows by the footer."""
        return int(self.parquet.metadata.num_rows)


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """The add of a file that holds the rows of a group, and their number."""

    add: Add
    rows: int

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.add.size or 0


@dataclass(slots=True)
class _StatsAccumulator:
    """Statistics of rows seen so far.

    Instead of the rows it keeps the few values per column and batch that determine the statistics.
    """

    names: list[str]
    rows: int = 0
    nulls: dict[tuple[str, ...], int] = field(default_factory=dict)
    nans: dict[tuple[str, ...], int] = field(default_factory=dict)
    extremes: dict[tuple[str, ...], list[pa.Array]] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Take rows into account."""
        self.rows += rows.num_rows
        for name in self.names:
            column = rows[name]
            if pa.types.is_struct(column.type):
                for leaf, values in struct_columns(name, column):
                    self._add_column(leaf.path, values)
            else:
                self._add_column((name,), column)

    def _add_column(self, path: tuple[str, ...], column: pa.ChunkedArray) -> None:
        self.nulls[path] = self.nulls.get(path, 0) + column.null_count
        min_max = pc.min_max(column)
        extremes = self.extremes.setdefault(path, [])
        extremes += [pa.repeat(min_max[side], 1) for side in ("min", "max")]
        if pa.types.is_floating(column.type):
            # `min_max` ignores NaN, but its presence decides whether a maximum may be written.
            nans = column.filter(pc.is_nan(column))
            self.nans[path] = self.nans.get(path, 0) + len(nans)
            extremes.append(nans.slice(0, 1).combine_chunks())

    def stats(self, truncation: StatsTruncation) -> DataFileStats:
        """Return the statistics of all rows, by the same rules as for any written file."""
        total = DataFileStats(self.rows)
        for path, extremes in self.extremes.items():
            column = compute_stats(pa.table({"": pa.chunked_array(extremes)}), [""], truncation)
            column.nulls[""] = self.nulls[path]
            if path in self.nans:
                column.nans[""] = self.nans[path]
            total.put_leaf(path, column, "")
        return total


def rewrite(store: Store, task: RewriteTask) -> RewrittenFile:
    """Write the rows of a group to a new file, which no commit references yet.

    The file is written to a local temporary file first, then stored. Raises UnreadableFile naming a
    file that cannot be merged, StoreUnavailable, and OSError if the temporary file fails.
    """
    import tempfile

    import pyarrow.parquet as pq

    group = task.group
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        files = list(pool.map(lambda source: _open(store, source, task.schema), group.sources))
    schema = _merged_schema(task.schema, group.keys, [file.schema for file in files])
    expected = sum(file.num_rows for file in files)
    accumulator = _StatsAccumulator(
        [i.name for i in task.schema if has_bounds(i.type) or pa.types.is_struct(i.type)]
    )
    with tempfile.TemporaryFile() as draft:
        with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            for rows in _pieces(group.sources, files, schema):
                accumulator.add(rows)
                writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        size = draft.seek(0, os.SEEK_END)
        _check_row_counts(draft, accumulator.rows, expected)
        folder = group.keys[0].rpartition("/")[0]
        path = f"{folder}/" * bool(folder) + f"part-{task.new_id}.zstd.parquet"
        store.replace_from(path, draft)
    return RewrittenFile(_make_add(task, path, size, accumulator.stats(task.cut)), accumulator.rows)


def _check_row_counts(draft: BinaryIO, written: int, expected: int) -> None:
    import pyarrow.parquet as pq

    stored = pq.read_metadata(draft).num_rows
    if not stored == written == expected:
        raise AssertionError(f"{expected} rows were read, {stored} written")


def _make_add(task: RewriteTask, path: str, size: int, stats: DataFileStats) -> Add:
    group = task.group
    fields: dict[str, Any] = {"numMergeOps": max(s.merges for s in group.sources) + 1}
    tags = group.tags()
    if tags:
        fields["tags"] = tags
    return Add(
        path,
        dict(group.partition),
        size,
        task.now_ms,
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
        fields,
        stats.nans,
    )


def _open(store: Store, source: SourceFile, table: pa.Schema) -> _OpenFile:
    """Open a Parquet file and check its footer. Raises UnreadableFile."""
    import pyarrow.parquet as pq

    stat = stat_object(store, source.key)
    if stat is None:
        raise UnreadableFile(source.key, "it is not there")
    try:
        ranges = pa.PythonFile(RangeReader(store, source.key, stat.size), "r")
        file = pq.ParquetFile(ranges, page_checksum_verification=True, pre_buffer=True)
        names = file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFile(source.key, _first_line(error)) from None
    logged = source.num_records
    if logged is not None and logged != file.metadata.num_rows:
        reason = f"it has {file.metadata.num_rows} rows, but the log says {logged}"
        raise UnreadableFile(source.key, reason)
    if len(set(names)) < len(names):
        raise UnreadableFile(source.key, "it has two columns of the same name")
    return _OpenFile(file, _rename_to_table(source.key, file.schema_arrow, table))


def _rename_to_table(key: str, stored: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return a file's schema with the table's spelling of its columns. Raises UnreadableFile."""
    try:
        spellings = map_column_case(stored.names, table.names, key)
    except InvalidRequest as error:
        raise UnreadableFile(key, _first_line(error)) from None
    table_names = {other: name for name, other in spellings.items()}
    renamed = pa.schema([item.with_name(table_names.get(item.name, item.name)) for item in stored])
    problem = find_column_problem(renamed, table)
    if problem is not None:
        raise UnreadableFile(key, problem)
    return renamed


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__


def _merged_schema(table: pa.Schema, keys: Sequence[str], stored: Sequence[pa.Schema]) -> pa.Schema:
    """Return the table's columns, then further columns of the files.

    A column is nullable if a file lacks it or has it nullable. Raises UnreadableFile if files
    disagree about the type of a column that the table does not know.
    """
    fields = {item.name: item.with_metadata(None) for item in table}
    for key, schema in zip(keys, stored, strict=True):
        for item in schema:
            known = fields.setdefault(item.name, item.with_metadata(None))
            if item.name not in table.names and known.type != item.type:
                reason = f"its column {item.name!r} is {item.type}, in other files {known.type}"
                raise UnreadableFile(key, reason)
    for name, item in fields.items():
        nullable = any(s.get_field_index(name) < 0 or s.field(name).nullable for s in stored)
        fields[name] = item.with_nullable(nullable)
    return pa.schema(list(fields.values()))


def _pieces(
    sources: Sequence[SourceFile], files: list[_OpenFile], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of all files in order, one row group of the new file at a time.

    Empties `files`, so that the buffers of each reader are freed when it is exhausted.
    """
    files.reverse()
    held: list[pa.Table] = []
    size = rows = 0
    for source in sources:
        for batch in _batches(source, files.pop()):
            held.append(_conform(source.key, batch, schema))
            size += held[-1].nbytes
            rows += held[-1].num_rows
            if size >= _ROW_GROUP_BYTES or rows >= _ROW_GROUP_ROWS:
                yield pa.concat_tables(held)
                held, size, rows = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _batches(source: SourceFile, file: _OpenFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches of bounded size. Raises UnreadableFile."""
    metadata = file.parquet.metadata
    row_groups = range(metadata.num_row_groups)
    uncompressed = sum(metadata.row_group(number).total_byte_size for number in row_groups)
    bytes_per_row = max(uncompressed // max(metadata.num_rows, 1), 1)
    batch_rows = max(1, min(_MAX_BATCH_ROWS, _MAX_BATCH_BYTES // bytes_per_row))
    # Row groups that are requested together are read with one request, but also held in memory
    # together until they are decoded. None requests all of them.
    runs = [None] if source.size <= _SINGLE_READ_BYTES else [[number] for number in row_groups]
    try:
        for run in runs:
            for batch in file.parquet.iter_batches(batch_size=batch_rows, row_groups=run):
                yield batch.rename_columns(file.schema.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFile(source.key, _first_line(error)) from None


def _conform(key: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Cast a batch to the schema, with nulls for missing columns. Raises UnreadableFile."""
    columns = []
    for item in schema:
        if batch.schema.get_field_index(item.name) < 0:
            columns.append(pa.nulls(batch.num_rows, item.type))
            continue
        column = batch[item.name]
        try:
            if pa.types.is_dictionary(column.type) and column.type != item.type:
                column = pc.cast(column, column.type.value_type)
            columns.append(column if column.type == item.type else pc.cast(column, item.type))
        except (pa.ArrowException, ValueError) as error:
            reason = f"its column {item.name!r} is {column.type} and cannot be cast to {item.type}"
            raise UnreadableFile(key, f"{reason}: {_first_line(error)}") from None
    return pa.Table.from_arrays(columns, schema=schema)
