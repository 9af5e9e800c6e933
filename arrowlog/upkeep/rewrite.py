"""Rows of several Parquet files into one: in their order, a piece at a time, with exact statistics.

Columns are those of the table; where a file has none, they are null. What a file has beside them is
kept too, for who may ask for it one day. Nothing is trusted: page checksums, the rows that the log
speaks of, and the rows that were written are all compared. A file that is not what it should be is
`Unreadable`; a store that does not answer is not the file's fault.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import Add
from arrowlog.commit.stats import Stats, of_table
from arrowlog.log.store.base import stat_object
from arrowlog.log.store.ranges import RangeFile
from arrowlog.state.typed import has_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.log.store import Store
    from arrowlog.state.truncation import Truncation
    from arrowlog.upkeep.bins import Group, Source

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
_WHOLE_BYTES = 16 << 20  # a file as small as that is read at once
_HELD_BYTES = 32 << 20  # a row group has about so many, before it is encoded
_HELD_ROWS = 1 << 20
_FOOTERS_AT_ONCE = 8


class Unreadable(Exception):
    """A file that cannot be merged, and why."""

    def __init__(self, key: str, reason: str) -> None:
        """`reason` in words."""
        super().__init__(key, reason)
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Task:
    """What has to be known to rewrite a group, wherever that is done."""

    group: Group
    schema: pa.Schema  # of the rows in files: without partition columns
    cut: Truncation
    new_id: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file that holds the rows of a group."""

    add: Add
    rows: int

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return self.add.size or 0


@dataclass(slots=True)
class _Tally:
    """What is known of the rows so far: as few values of each column as tell its statistics."""

    names: list[str]
    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    told: dict[str, list[pa.Array]] = field(default_factory=dict)

    def count(self, rows: pa.Table) -> None:
        """Take some rows into account."""
        self.rows += rows.num_rows
        for name in self.names:
            column = rows[name]
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            ends = pc.min_max(column)
            told = self.told.setdefault(name, [])
            told += [pa.repeat(ends[side], 1) for side in ("min", "max")]
            if pa.types.is_floating(column.type):  # NaN is in no maximum, and must be known of
                told.append(column.filter(pc.is_nan(column)).slice(0, 1).combine_chunks())

    def stats(self, cut: Truncation) -> Stats:
        """The statistics of all rows, by the rules of every other writer."""
        found: dict[str, Any] = {}
        for name, told in self.told.items():
            few = of_table(pa.table({name: pa.chunked_array(told)}), [name], cut)
            found[name] = few
        return Stats(
            self.rows,
            {name: few.low[name] for name, few in found.items() if name in few.low},
            {name: few.high[name] for name, few in found.items() if name in few.high},
            self.nulls,
        )


def rewrite(store: Store, task: Task) -> Rewritten:
    """Put the rows of a group into a new file, which is in no commit yet."""
    import tempfile

    import pyarrow.parquet as pq

    group = task.group
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        files = list(pool.map(lambda source: _open(store, source), group.sources))
    schema = _schema(task.schema, group.keys, [file.schema_arrow for file in files])
    expected = sum(file.metadata.num_rows for file in files)
    tally = _Tally([item.name for item in task.schema if has_bounds(item.type)])
    with tempfile.TemporaryFile() as draft:
        with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            for rows in _pieces(group.sources, files, schema):
                tally.count(rows)
                writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        size = draft.seek(0, os.SEEK_END)
        _check(draft, tally.rows, expected)
        folder = group.keys[0].rpartition("/")[0]
        path = f"{folder}/" * bool(folder) + f"part-{task.new_id}.zstd.parquet"
        store.replace_from(path, draft)
    return Rewritten(_add(task, path, size, tally.stats(task.cut)), tally.rows)


def _check(draft: BinaryIO, written: int, expected: int) -> None:
    import pyarrow.parquet as pq

    found = pq.read_metadata(draft).num_rows
    if not found == written == expected:
        raise AssertionError(f"{expected} rows were read, {found} written")


def _add(task: Task, path: str, size: int, stats: Stats) -> Add:
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
    )


def _open(store: Store, source: Source) -> Any:
    """A file whose footer is read."""
    import pyarrow.parquet as pq

    found = stat_object(store, source.key)
    if found is None:
        raise Unreadable(source.key, "it is not there")
    try:
        whole = pa.PythonFile(RangeFile(store, source.key, found.size), "r")
        file = pq.ParquetFile(whole, page_checksum_verification=True, pre_buffer=True)
        names = file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(source.key, _reason(error)) from None
    said = source.num_records
    if said is not None and said != file.metadata.num_rows:
        what = f"it has {file.metadata.num_rows} rows, and the log says {said}"
        raise Unreadable(source.key, what)
    if len(set(names)) < len(names):
        raise Unreadable(source.key, "it has two columns of one name")
    return file


def _reason(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__


def _schema(table: pa.Schema, keys: Sequence[str], stored: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of the table, then what else the files have."""
    fields = {item.name: item.with_metadata(None) for item in table}
    for key, found in zip(keys, stored, strict=True):
        for item in found:
            known = fields.setdefault(item.name, item.with_metadata(None))
            if item.name not in table.names and known.type != item.type:
                what = f"its column {item.name!r} is {item.type}, in other files {known.type}"
                raise Unreadable(key, what)
    for name, item in fields.items():
        may = any(s.get_field_index(name) < 0 or s.field(name).nullable for s in stored)
        fields[name] = item.with_nullable(may)
    return pa.schema(list(fields.values()))


def _pieces(sources: Sequence[Source], files: list[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all files in order, some megabytes at a time."""
    held: list[pa.Table] = []
    size = rows = 0
    for number, source in enumerate(sources):
        file, files[number] = files[number], None  # what a reader holds is let go with it
        for batch in _batches(source, file):
            held.append(_conform(source.key, batch, schema))
            size += held[-1].nbytes
            rows += held[-1].num_rows
            if size >= _HELD_BYTES or rows >= _HELD_ROWS:
                yield pa.concat_tables(held)
                held, size, rows = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _batches(source: Source, file: Any) -> Iterator[pa.RecordBatch]:
    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    plain = sum(metadata.row_group(number).total_byte_size for number in groups)
    each = max(plain // max(metadata.num_rows, 1), 1)
    at_once = max(1, min(_BATCH_ROWS, _BATCH_BYTES // each))
    # What is asked for together is read with one request, and held until it is decoded.
    runs = [None] if source.size <= _WHOLE_BYTES else [[number] for number in groups]
    try:
        for run in runs:
            yield from file.iter_batches(batch_size=at_once, row_groups=run)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(source.key, _reason(error)) from None


def _conform(key: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
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
            what = f"its column {item.name!r} is {column.type}, and cannot be {item.type}"
            raise Unreadable(key, f"{what}: {_reason(error)}") from None
    return pa.Table.from_arrays(columns, schema=schema)
