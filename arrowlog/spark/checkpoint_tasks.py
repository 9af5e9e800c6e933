"""The tasks of a distributed checkpoint: deal adds to parts, find dead ones, write the parts."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import empty_table, from_numpy
from arrowlog.config import resolve
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import (
    CHECKSUM_PREFIX,
    LOG_FOLDER,
    StreamCompressor,
    decompress,
    join_add_objects,
    parquet_names,
)
from arrowlog.snapshot import (
    FileStats,
    RebuildRecipe,
    StoredFileStats,
    build_layout,
    choose_sort_columns,
    flatten_all_maps,
    from_checkpoint_rows,
    parse_table_schema,
    put_part,
    storage_order,
    storage_sort_keys,
    to_checkpoint_rows,
    truncate_adds,
    with_file_keys,
)
from arrowlog.spark.ranges import KeySample, RangeBounds, assign_ranges, sample_keys
from arrowlog.spark.tasks import (
    DamagedPart,
    TableActions,
    bucket_numbers,
    deserialize_table,
    read_part_adds,
    read_run,
    serialize_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from arrowlog.formats import Metadata
    from arrowlog.spark.tasks import LogRun, ReplayJob

# Rows between tasks. `number` is that of a bucket for keys, and of a part for rows and dead rows.
DEALT_SCHEMA = "kind int, number int, run int, data binary"
TABLE_ROWS, KEY_ROWS, STORED_ROWS, DEAD_ROWS = range(4)
_POSITION_COLUMN = "@at"  # of stored rows: the position in the run; no field of an add begins so
_RECIPE = b"arrowlog.recipe"  # key in the metadata of the schema of stored rows
_JSON_ROWS = 16_384  # adds that are encoded as JSON at a time
# Sort keys of a run are sampled from a few of its commits, and from pieces spread over each.
_SAMPLED_COMMITS, _SAMPLED_PIECES, _PIECE_BYTES = 4, 16, 32 << 10


@dataclass(frozen=True)
class TableShape:
    """What decides how adds are stored: the table's schema, partition columns and properties."""

    schema: pa.Schema
    partition_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] | None = None

    @classmethod
    def of(cls, metadata: Metadata, version: int) -> TableShape:
        """Return the shape that a metaData action describes."""
        schema = parse_table_schema(metadata, version)
        return cls(schema, tuple(metadata.partition_columns), dict(metadata.configuration))

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*self.schema.names, *self.partition_columns]


@dataclass(frozen=True)
class RunFacts:
    """What the adds of a run need to be stored: their number, columns, and rebuildable texts."""

    rows: int
    kept: Mapping[str, pa.DataType]  # fields of adds, rebuildable ones included
    typed: Mapping[str, pa.DataType]  # typed copies of partition values and bounds
    rebuilt: Mapping[str, tuple[str, str]]  # as in `RebuildRecipe`


@dataclass(frozen=True)
class CheckpointPlan:
    """What all parts have in common. It is pickled with every task."""

    columns: Mapping[str, pa.DataType]
    recipe: RebuildRecipe
    shape: TableShape
    cuts: RangeBounds
    own: str  # unique id of this checkpoint, part of the names of its parts
    forms: tuple[str, ...]  # "json", "parquet" or both


# Before the parts: sort keys of some adds, from which the boundaries of parts are chosen.


def sample_run(run: LogRun, job: ReplayJob, shape: TableShape) -> KeySample | None:
    """Sample the sort keys of some adds of a run; None if it has none.

    A run that cannot be read has no sample either: the task that deals it reports why.
    """
    try:
        if run.part is not None:
            adds, share = read_part_adds(run, job), 1.0
        else:
            adds, share = _some_adds(run, job)
    except (LogCorrupt, FileNotFoundError):
        return None
    if not adds.num_rows:
        return None
    adds = flatten_all_maps(_with_short_stats(adds, shape, job), shape.names)
    columns = _typed_columns(adds, shape)
    best = choose_sort_columns(columns)
    rows = round(adds.num_rows / share)
    return sample_keys(storage_sort_keys(columns, adds["key"], best), best, rows)


def _some_adds(run: LogRun, job: ReplayJob) -> tuple[pa.Table, float]:
    """Return adds from all over a run of commits, and which share of the run was read."""
    store, limit = job.store, job.config.max_decompressed_bytes
    commits = run.commits[:: max(1, -(-len(run.commits) // _SAMPLED_COMMITS))]
    window, share = LineBuffer(limit), 0.0
    for commit in commits:
        plain = decompress(store.get(commit.key), commit.key, limit)
        text = spread_lines(plain, _SAMPLED_PIECES, _PIECE_BYTES)
        window.append(commit.key, commit.version, text)
        share += len(text) / len(plain) / len(run.commits)
    adds, _ = with_file_keys(decode_buffer(window), "add", store.root)
    return adds, share


def spread_lines(text: bytes, pieces: int, size: int) -> bytes:
    r"""Return whole lines from pieces of about `size` bytes, evenly spread; a short text as it is.

    >>> spread_lines(b"a\nb\nc\nd\ne\nf\n", 2, 3)
    b'a\nd\n'
    """
    if len(text) <= pieces * size:
        return text
    found = []
    for number in range(pieces):
        start = len(text) * number // pieces
        start = text.rfind(b"\n", 0, start) + 1
        stop = text.rfind(b"\n", start, start + size) + 1 or text.find(b"\n", start) + 1
        found.append(text[start : stop or len(text)])
    return b"".join(found)


# First stage: decode a run and deal its adds to parts, and their keys to buckets.


def deal_run(run: LogRun, job: ReplayJob, shape: TableShape, cuts: RangeBounds) -> pa.RecordBatch:
    """Decode a run; return its adds as stored rows by part, and all keys it mentions by bucket.

    The row of kind `TABLE_ROWS` has the table-level actions and the facts of the run. If a part of
    the checkpoint below cannot be read, it says so, and there is no other row.
    """
    try:
        found = read_run(run, job)
    except DamagedPart as error:
        failure = TableActions(run.number, None, None, None, {}, damaged=str(error))
        return _batch([(TABLE_ROWS, 0, run.number, pickle.dumps((failure, None)))])
    adds = flatten_all_maps(_with_short_stats(found.adds, shape, job), shape.names)
    columns = _typed_columns(adds, shape)
    stored, recipe = to_checkpoint_rows(columns, adds)
    parts = pl.repeat(0, adds.num_rows, dtype=pl.Int32, eager=True)
    if cuts.count > 1:
        parts = assign_ranges(storage_sort_keys(columns, adds["key"], cuts.best or ()), cuts)
    facts = collect_facts(adds, stored, recipe)
    rows = [(TABLE_ROWS, 0, run.number, pickle.dumps((found.actions, facts)))]
    positions = pl.int_range(adds.num_rows, dtype=pl.Int32, eager=True)
    keys = pa.table(
        {"key": adds["key"], "position": positions.to_arrow(), "part": parts.to_arrow()}
    )
    if found.others is not None:  # files that the run removes: at no position
        nowhere = pa.repeat(pa.scalar(-1, pa.int32()), len(found.others))
        gone = pa.table({"key": found.others, "position": nowhere, "part": nowhere})
        keys = pa.concat_tables([keys, gone])
    for bucket, some in _cut(keys, bucket_numbers(keys["key"], job)):
        rows.append((KEY_ROWS, bucket, run.number, serialize_table(some)))
    stored = stored.append_column(_POSITION_COLUMN, positions.to_arrow())
    stored = stored.replace_schema_metadata({_RECIPE: pickle.dumps(recipe)})
    for part, some in _cut(stored, parts):
        rows.append((STORED_ROWS, part, run.number, serialize_table(some)))
    return _batch(rows)


def _with_short_stats(adds: pa.Table, shape: TableShape, job: ReplayJob) -> pa.Table:
    """Apply the table's statistics truncation to adds, whichever writer made them."""
    config = resolve(job.options, table=shape.properties or {})
    return truncate_adds(adds, shape.partition_columns, config, shape.schema)


def _typed_columns(adds: pa.Table, shape: TableShape) -> FileStats:
    columns = FileStats(adds, shape.schema, shape.partition_columns)
    columns.prepare(shape.names)
    return columns


def collect_facts(adds: pa.Table, stored: pa.Table, recipe: RebuildRecipe) -> RunFacts:
    """Return the facts of adds that were converted to stored rows."""
    kinds = {name: _value_type(stored.schema.field(name).type) for name in stored.column_names}
    kept = {name: kind for name, kind in kinds.items() if name not in recipe.typed}
    kept |= {name: _value_type(adds.schema.field(name).type) for name in recipe.rebuilt}
    typed = {name: kinds[name] for name in recipe.typed}
    return RunFacts(adds.num_rows, kept, typed, recipe.rebuilt)


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _cut(rows: pa.Table, numbers: pl.Series) -> Iterator[tuple[int, pa.Table]]:
    """Cut a table into those with the same number; rows keep their order."""
    if not rows.num_rows:
        return
    low, high = numbers.min(), numbers.max()
    if low == high:
        yield int(low), rows  # type: ignore[arg-type]
        return
    import numpy as np

    values = numbers.to_numpy()
    if int(high) < 1 << 15:  # type: ignore[arg-type]
        values = values.astype(np.int16)  # numpy has a radix sort for these
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    rows = rows.combine_chunks().take(from_numpy(order))
    for start, stop in pairwise(starts):
        yield int(ordered[start]), rows.slice(start, stop - start)


def _batch(rows: list[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = (pa.int32(), pa.int32(), pa.int32(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names=["kind", "number", "run", "data"])


# Second stage: which of the dealt adds a later run supersedes.


def find_dead_rows(rows: pa.Table) -> pa.Table:
    """Return the adds of a bucket of keys that are not live, by part: their runs and positions.

    An add is live if no later run mentions its file.
    """
    frames = []
    for data, run in zip(rows["data"].to_pylist(), rows["run"].to_pylist(), strict=True):
        keys = pl.DataFrame(pl.from_arrow(deserialize_table(data)))
        frames.append(keys.with_columns(run=pl.lit(run, pl.Int32)))
    mentioned = pl.concat(frames)
    # A collision of hashes only makes more rows be compared.
    mentioned = mentioned.filter(mentioned["key"].hash(0).is_duplicated())
    dead = mentioned.filter(
        pl.col("position") >= 0, pl.col("run") < pl.col("run").max().over("key")
    ).sort("part", "run", "position")
    bucket = rows["number"][0].as_py()
    found = pa.table(dead.select("run", "position").to_arrow())
    batch = [
        (DEAD_ROWS, part, bucket, serialize_table(some)) for part, some in _cut(found, dead["part"])
    ]
    return pa.Table.from_batches([_batch(batch)])


# Third stage: write a part.


def write_dealt_part(rows: pa.Table, plan: CheckpointPlan, job: ReplayJob) -> dict[str, Any]:
    """Write the part that rows of the kinds `STORED_ROWS` and `DEAD_ROWS` make.

    A shuffle delivers rows in any order. A retried task has to write the same bytes, so that they
    are put into the order of the runs first.
    """
    number = rows["number"][0].as_py()
    is_dead = pc.equal(rows["kind"], DEAD_ROWS)
    dead: dict[int, pa.Array] = {}
    lists = [deserialize_table(data) for data in rows["data"].filter(is_dead).to_pylist()]
    if lists:
        found = pl.DataFrame(pl.from_arrow(pa.concat_tables(lists)))
        for (run,), some in found.group_by("run"):
            dead[int(run)] = some["position"].to_arrow()
    pieces = rows.filter(pc.invert(is_dead)).sort_by("run")
    tables = []
    for data, run in zip(pieces["data"].to_pylist(), pieces["run"].to_pylist(), strict=True):
        piece = deserialize_table(data)
        if run in dead:
            live = pc.invert(pc.is_in(piece[_POSITION_COLUMN], value_set=dead[run]))
            piece = piece.filter(live)
        tables.append(with_plan_columns(piece, plan))
    return write_part(pa.concat_tables(tables), number, plan, job)


def empty_rows(plan: CheckpointPlan) -> pa.Table:
    """Return stored rows of a part without files."""
    return empty_table(pa.schema(list(plan.columns.items())))


def with_plan_columns(piece: pa.Table, plan: CheckpointPlan) -> pa.Table:
    """Bring stored rows of a run into the columns of the plan.

    Texts that only this run could rebuild are rebuilt and stored; columns that it lacks are null.
    """
    recipe: RebuildRecipe = pickle.loads(piece.schema.metadata[_RECIPE])  # noqa: S301 -- ours
    arrays, adds = [], None
    for name, kind in plan.columns.items():
        if name in piece.column_names:
            column = piece[name]
        elif name in recipe.rebuilt:
            adds = from_checkpoint_rows(piece, recipe) if adds is None else adds
            column = adds[name]
        else:
            column = pa.chunked_array([pa.nulls(piece.num_rows, kind)])
        arrays.append(column if column.type == kind else column.cast(kind))
    return pa.table(arrays, names=list(plan.columns))


def write_part(
    table: pa.Table, number: int, plan: CheckpointPlan, job: ReplayJob
) -> dict[str, Any]:
    """Write a part in all forms of the plan; return what the manifests record about it."""
    shape = plan.shape
    config = resolve(job.options, table=shape.properties or {})
    result: dict[str, Any] = {"rows": table.num_rows}
    store, table = job.store, table.combine_chunks()
    if "json" in plan.forms and table.num_rows:  # readers refuse an empty part
        adds = from_checkpoint_rows(table, plan.recipe)
        lines = (
            join_add_objects(some, path="path", before='{"add":', after="}\n")
            for some in (adds.slice(at, _JSON_ROWS) for at in range(0, adds.num_rows, _JSON_ROWS))
        )
        codec, level = config.checkpoint_codec, config.checkpoint_gzip_level
        encoded = encode_json_part(lines, number + 1, job.version, plan.own, codec, level)
        name, data, part_checksum = encoded
        store.replace(f"{LOG_FOLDER}/{name}", data)
        result |= {"json": name, "json_sum": part_checksum, "json_size": len(data)}
    if "parquet" in plan.forms:
        columns = StoredFileStats(table, shape.schema, shape.partition_columns)
        order = storage_order(columns, table["path"], plan.cuts.best)
        of_table = (shape.schema, shape.partition_columns)
        layout = build_layout(job.version, table, order, plan.recipe, of_table, config)
        name = parquet_names(job.version, plan.cuts.count, plan.own)[number]
        part, index = put_part(store, layout, (0, table.num_rows), [name])
        result |= {"part": part, "index": serialize_table(index)}
    return result


def encode_json_part(
    lines: Iterable[bytes | memoryview],
    number: int,
    version: int,
    own: str,
    codec: str,
    level: int | None,
) -> tuple[str, bytes, str]:
    """Return the name, the bytes and the checksum of a part of the JSON form."""
    packing = StreamCompressor(codec, level)
    for some in lines:
        packing.write(some)
    name = f"{version:020d}.checkpoint.{own}.{number + 1:05d}.json"
    part_checksum = f"{CHECKSUM_PREFIX}{packing.sum:08x}"
    return name, packing.finish(), part_checksum
