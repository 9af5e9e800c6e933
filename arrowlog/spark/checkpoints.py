"""Distributed checkpoints: each task writes a part, the driver writes the manifest.

1. Distributed replay leaves the live adds in buckets by the hash of the file key.
2. All parts of a Parquet checkpoint share one set of columns and one recipe for texts that are
   rebuilt from typed columns. Tasks first report what their bucket needs (`BucketFacts`); the
   driver merges the reports into a `CheckpointPlan`.
3. A scan of hash buckets would have to read every part. The adds are therefore shuffled again, so
   that each part is a range of the order in which a checkpoint stores files.

The driver handles buckets and parts, never files: its memory does not grow with the table.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    CHECKSUM_PREFIX,
    LOG_FOLDER,
    CheckpointContext,
    StreamCompressor,
    encode_action,
    encode_add_objects,
    format_checksum,
    metadata_fields,
    parquet_names,
    protocol_fields,
)
from arrowlog.formats.indextables import encode_json_manifest as json_manifest
from arrowlog.maintenance import PARQUET_CHECKPOINT_FEATURE
from arrowlog.snapshot import (
    CheckpointManifest,
    CheckpointResult,
    FileStats,
    InMemoryFiles,
    RebuildRecipe,
    State,
    StatsTruncation,
    WrittenCheckpoint,
    build_layout,
    choose_sort_columns,
    encode_stored_schema,
    flatten_all_maps,
    is_state_table,
    json_checkpoint_name,
    put_manifest,
    put_part,
    storage_order,
    storage_sort_keys,
    to_checkpoint_rows,
    truncate_adds,
    write_pointer,
)
from arrowlog.spark.checks import is_checkpoint_intact
from arrowlog.spark.ranges import (
    KeySample,
    RangeBounds,
    assign_ranges,
    choose_range_bounds,
    sample_keys,
)
from arrowlog.spark.read import open_table
from arrowlog.spark.rebuild import (
    DistributedReplay,
    NotDistributable,
    collect_table_actions,
    retry_without_damaged,
    shuffle_by_number,
    start_replay,
)
from arrowlog.spark.tasks import (
    POSITION_COLUMN,
    RUN_COLUMN,
    TABLE_BUCKET,
    deserialize_table,
    serialize_table,
)
from arrowlog.spark.versions import frame_to_arrow

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.config import Config
    from arrowlog.spark.tasks import ReplayJob


@dataclass(frozen=True)
class BucketFacts:
    """What a bucket needs: types of its columns, rebuildable texts, and a sample of sort keys."""

    kept: Mapping[str, pa.DataType]  # fields of adds, rebuildable ones included
    typed: Mapping[str, pa.DataType]  # typed copies of partition values and bounds
    rebuilt: Mapping[str, tuple[str, str]]  # as in `RebuildRecipe`
    order: KeySample = field(default_factory=KeySample)


@dataclass(frozen=True)
class CheckpointPlan:
    """What all parts have in common. It is pickled with every task."""

    columns: Mapping[str, pa.DataType]
    recipe: RebuildRecipe
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    cuts: RangeBounds
    own: str  # unique id of this checkpoint, part of the names of its parts
    forms: tuple[str, ...]  # "json", "parquet" or both
    properties: Mapping[str, str]

    def short(self, adds: pa.Table, job: ReplayJob) -> pa.Table:
        """Apply the table's statistics truncation to adds, whichever writer made them."""
        config = resolve(job.options, table=self.properties)
        return truncate_adds(adds, self.partition_columns, config, self.schema)


def checkpoint(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    buckets: int | None = None,
) -> CheckpointResult:
    """Write a checkpoint of the latest version with Spark tasks, in at most `buckets` parts.

    For tables whose live files, or whose commits since the last checkpoint, do not fit into one
    process. Forms of the checkpoint that exist and are undamaged are not written again. Raises
    `LogCorrupt` if the log has a gap.
    """
    arguments = (spark, uri, None, storage_options, options, buckets)
    try:
        return retry_without_damaged(
            lambda damaged: start_replay(*arguments, damaged),
            lambda rebuild: _checkpoint(spark, rebuild),
        )
    except NotDistributable:
        return open_table(spark, uri, storage_options, options).checkpoint()


def _checkpoint(spark: SparkSession, rebuild: DistributedReplay) -> CheckpointResult:
    if rebuild.segment.gap is not None:
        raise LogCorrupt(
            f"{rebuild.segment.gap}.",
            next="Restore the missing file from a backup.",
            version=rebuild.segment.gap.missing,
        )
    reduced = rebuild.reconciled_adds(spark).persist()
    try:
        state = rebuild.state(
            collect_table_actions(_collect(reduced.filter(f"bucket = {TABLE_BUCKET}")))
        )
        if is_state_table(state):
            raise InvalidRequest(
                "The table has table states, and Spark does not write them.",
                next="Use table.checkpoint().",
            )
        config = resolve(rebuild.job.options, table=state.metadata.configuration)
        forms = _missing_forms(spark, rebuild, state, config)
        written, count = _write(reduced.filter(f"bucket <> {TABLE_BUCKET}"), rebuild, state, forms)
    finally:
        reduced.unpersist()
    names = tuple(name for form in written for name in form.names)
    size = sum(form.size_bytes for form in written)
    existing = rebuild.listing.checkpoints.get(state.version, ())
    present = {*forms, *(form.kind for form in existing)}
    format_name = "both" if len(present) > 1 else "".join(present)
    if written:
        counted = State(
            state.version,
            state.protocol,
            state.metadata,
            state.schema,
            # Only the count matters: nulls take no memory.
            InMemoryFiles(pa.table({"key": pa.nulls(count)})),
        )
        total = WrittenCheckpoint(names, size, written[-1].checksum)
        parts = len(names) - len(written)  # without the manifests
        write_pointer(rebuild.store, counted, total, format_name, parts, SystemClock().now_ms())
    return CheckpointResult(state.version, count, size, format_name, names)


def _collect(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame_to_arrow(frame).to_pylist()
    return rows


def _missing_forms(
    spark: SparkSession, rebuild: DistributedReplay, state: State, config: Config
) -> tuple[str, ...]:
    """Return the forms that the settings require and that are missing or damaged.

    Parquet alone is allowed only if the table's protocol has the reader feature for it.
    """
    form = config.checkpoint_format
    has_feature = PARQUET_CHECKPOINT_FEATURE in state.protocol.reader_features
    required: tuple[str, ...] = ("json", "parquet")
    if form == "json":
        required = ("json",)
    elif form in ("auto", "parquet") and has_feature:
        required = ("parquet",)
    listing, version = rebuild.listing, state.version
    return tuple(
        form
        for form in required
        if listing.checkpoint_form(version, form) is None
        or not is_checkpoint_intact(spark, rebuild, version, form, config)
    )


def _write(
    buckets: DataFrame, rebuild: DistributedReplay, state: State, forms: tuple[str, ...]
) -> tuple[list[WrittenCheckpoint], int]:
    """Collect the facts of all buckets, write the parts, then the manifests.

    Returns what was written, per form, and the number of live files.
    """
    job, names = rebuild.job, (state.schema, state.metadata.partition_columns)
    config = resolve(job.options, table=state.metadata.configuration)
    properties = dict(state.metadata.configuration)
    plan = CheckpointPlan({}, RebuildRecipe((), {}), *names, RangeBounds(), "", forms, properties)
    facts = _map_buckets(buckets, lambda adds: collect_facts(plan.short(adds, job), *names))
    columns, recipe = merge_facts(facts)
    cuts = choose_range_bounds([fact.order for fact in facts], len(facts))
    own = uuid4().hex[:12]
    plan = CheckpointPlan(columns, recipe, *names, cuts, own, forms, properties)
    parts = _write_parts(buckets, plan, job)
    if not parts:  # a table without files has one part without rows
        empty = pa.table({"key": pa.nulls(0, pa.string()), "path": pa.nulls(0, pa.string())})
        parts = [write_part(empty, 0, plan, job)]
    count = sum(part["rows"] for part in parts)
    done: list[WrittenCheckpoint] = []
    now = SystemClock().now_ms()
    if "json" in forms:
        done.append(_write_json_manifest(rebuild, state, parts, own, now))
    if "parquet" in forms:
        index = pa.concat_tables([deserialize_table(part["index"]) for part in parts])
        manifest = CheckpointManifest(
            state.version,
            state.protocol,
            state.metadata,
            count,
            tuple(part["part"] for part in parts),
            tuple(columns),
            recipe,
            index,
            state.timestamp,
            state.txns,
            state.recent,
            stored_schema=encode_stored_schema(pa.schema(list(columns.items()))),
            truncation=StatsTruncation.of(config).label,
        )
        existing = rebuild.listing.checkpoint_form(state.version, "parquet")
        broken = existing is not None  # `_missing_forms` saw it
        written = put_manifest(rebuild.store, manifest, own, now, broken=broken)
        names_in_log = tuple(f"{CHECKPOINT_FOLDER_NAME}/{name}" for name in written.names)
        done.append(WrittenCheckpoint(names_in_log, written.num_bytes, written.checksum))
    return done, count


def _write_json_manifest(
    rebuild: DistributedReplay, state: State, parts: list[dict[str, Any]], own: str, now: int
) -> WrittenCheckpoint:
    """Write the first part, with protocol and metadata, and then the manifest of the JSON form."""
    store = rebuild.store
    head = encode_action("protocol", protocol_fields(state.protocol))
    head += encode_action("metaData", metadata_fields(state.metadata))
    first, data, first_checksum = _encode_json_part(head, 0, state.version, own, "none", 0)
    store.replace(f"{LOG_FOLDER}/{first}", data)
    checksums = {first: first_checksum} | {part["json"]: part["json_sum"] for part in parts}
    beside = CheckpointContext(state.timestamp, state.txns, state.recent)
    manifest = json_manifest(state.version, checksums, own, beside, now)
    name = json_checkpoint_name(state.version)
    if rebuild.listing.checkpoint_form(state.version, "json") is not None:
        store.replace(f"{LOG_FOLDER}/{name}", manifest)  # the existing one is damaged
    else:
        store.put_if_absent(f"{LOG_FOLDER}/{name}", manifest)
    size = len(data) + len(manifest) + sum(part["json_size"] for part in parts)
    return WrittenCheckpoint((name, *checksums), size, format_checksum(manifest))


def _encode_json_part(
    text: bytes, number: int, version: int, own: str, codec: str, level: int | None
) -> tuple[str, bytes, str]:
    """Return the name, the bytes and the checksum of a part of the JSON form."""
    packing = StreamCompressor(codec, level)
    packing.write(text)
    name = f"{version:020d}.checkpoint.{own}.{number + 1:05d}.json"
    part_checksum = f"{CHECKSUM_PREFIX}{packing.sum:08x}"
    return name, packing.finish(), part_checksum


# The rest runs in tasks, or starts them.


def _map_buckets(buckets: DataFrame, work: Callable[[pa.Table], Any]) -> list[Any]:
    """Run `work` on every bucket that is not empty, in tasks; return the results in any order."""

    def arrowlog_bucket(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                adds = deserialize_table(row["adds"]).drop_columns([RUN_COLUMN, POSITION_COLUMN])
                if adds.num_rows:
                    result = pa.array([pickle.dumps(work(adds))], pa.binary())
                    yield pa.record_batch([result], names=["result"])

    rows = _collect(buckets.mapInArrow(arrowlog_bucket, "result binary"))
    return [pickle.loads(row["result"]) for row in rows]  # noqa: S301 -- ours


def _write_parts(buckets: DataFrame, plan: CheckpointPlan, job: ReplayJob) -> list[dict[str, Any]]:
    """Shuffle the adds by range and write each range as a part; return `put`'s results in order."""

    def arrowlog_deal(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                adds = deserialize_table(row["adds"]).drop_columns([RUN_COLUMN, POSITION_COLUMN])
                if adds.num_rows:
                    yield split_by_range(plan.short(adds, job), row["bucket"], plan)

    def arrowlog_part(rows: pa.Table) -> pa.Table:
        # The order in which a shuffle delivers rows varies, and a retried task must write the same
        # bytes.
        rows = rows.sort_by("bucket")
        tables = [deserialize_table(piece) for piece in rows["adds"].to_pylist()]
        adds = pa.concat_tables(tables, promote_options="default")
        number = rows["part"][0].as_py()
        result = pickle.dumps(write_part(adds, number, plan, job))
        arrays = [pa.array([number], pa.int32()), pa.array([result], pa.binary())]
        return pa.table(arrays, names=["part", "result"])

    pieces = buckets.mapInArrow(arrowlog_deal, "part int, bucket int, adds binary")
    count = plan.cuts.count
    rows = _collect(
        shuffle_by_number(pieces, "part", count, arrowlog_part, "part int, result binary")
    )
    rows.sort(key=lambda row: row["part"])
    return [pickle.loads(row["result"]) for row in rows]  # noqa: S301 -- ours


def split_by_range(adds: pa.Table, bucket: int, plan: CheckpointPlan) -> pa.RecordBatch:
    """Cut the adds of a bucket into ranges; one row per range."""
    flat = flatten_all_maps(adds, [*plan.schema.names, *plan.partition_columns])
    columns = _prepared_columns(flat, plan.schema, plan.partition_columns)
    keys = storage_sort_keys(columns, flat["key"], plan.cuts.best)
    ranges = pa.array(assign_ranges(keys, plan.cuts).to_arrow())
    numbers = sorted(pc.unique(ranges).to_pylist())
    pieces = [serialize_table(adds.filter(pc.equal(ranges, number))) for number in numbers]
    arrays = [
        pa.array(numbers, pa.int32()),
        pa.repeat(pa.scalar(bucket, pa.int32()), len(numbers)),
        pa.array(pieces, pa.binary()),
    ]
    return pa.record_batch(arrays, names=["part", "bucket", "adds"])


def _prepared_columns(adds: pa.Table, schema: pa.Schema, partition: tuple[str, ...]) -> FileStats:
    columns = FileStats(adds, schema, partition)
    columns.prepare([*schema.names, *partition])
    return columns


def collect_facts(adds: pa.Table, schema: pa.Schema, partition: tuple[str, ...]) -> BucketFacts:
    """Determine what a bucket needs if it is stored by itself."""
    adds = flatten_all_maps(adds, [*schema.names, *partition])
    columns = _prepared_columns(adds, schema, partition)
    table, recipe = to_checkpoint_rows(columns, adds)
    kinds = {name: _value_type(table.schema.field(name).type) for name in table.column_names}
    kept = {name: kind for name, kind in kinds.items() if name not in recipe.typed}
    kept |= {name: _value_type(adds.schema.field(name).type) for name in recipe.rebuilt}
    best = choose_sort_columns(columns)
    order = sample_keys(storage_sort_keys(columns, adds["key"], best), best)
    return BucketFacts(kept, {name: kinds[name] for name in recipe.typed}, recipe.rebuilt, order)


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def merge_facts(facts: list[BucketFacts]) -> tuple[dict[str, pa.DataType], RebuildRecipe]:
    """Merge the facts of all buckets into common columns and a common recipe.

    A text is rebuilt from a typed column only if every bucket that has it rebuilds it the same way,
    and no other bucket has values in that typed column.
    """
    kept: dict[str, pa.DataType] = {"path": pa.string()}
    typed: dict[str, pa.DataType] = {}
    for fact in facts:
        kept |= {name: kind for name, kind in fact.kept.items() if name not in kept}
        typed |= {name: kind for name, kind in fact.typed.items() if name not in typed}
    rebuilt: dict[str, tuple[str, str]] = {}
    for name in kept:
        sources = {fact.rebuilt.get(name) for fact in facts if name in fact.kept}
        source = sources.pop() if len(sources) == 1 else None
        # In a bucket without the text, a typed column would produce texts that never existed.
        safe = source is not None and all(
            name in fact.kept or source[0] not in fact.typed for fact in facts
        )
        if source is not None and safe:
            rebuilt[name] = source
    stored = {name: kind for name, kind in kept.items() if name not in rebuilt}
    return {**stored, **typed}, RebuildRecipe(tuple(typed), rebuilt)


def write_part(adds: pa.Table, number: int, plan: CheckpointPlan, job: ReplayJob) -> dict[str, Any]:
    """Write a part in all forms of the plan; return what the manifests record about it."""
    config = resolve(job.options, table=plan.properties)
    result: dict[str, Any] = {"rows": adds.num_rows}
    store = job.store
    if "json" in plan.forms:
        objects = encode_add_objects(adds, path="path").to_pylist() if adds.num_rows else []
        text = "".join(f'{{"add":{add}}}\n' for add in objects).encode()
        codec = config.checkpoint_codec
        level = config.checkpoint_gzip_level
        encoded = _encode_json_part(text, number + 1, job.version, plan.own, codec, level)
        name, data, part_checksum = encoded
        store.replace(f"{LOG_FOLDER}/{name}", data)
        result |= {"json": name, "json_sum": part_checksum, "json_size": len(data)}
    if "parquet" in plan.forms:
        adds = flatten_all_maps(adds, [*plan.schema.names, *plan.partition_columns])
        columns = _prepared_columns(adds, plan.schema, plan.partition_columns)
        table, recipe = to_checkpoint_rows(columns, adds)
        table = _with_common_columns(table, recipe, adds, plan)
        order = storage_order(columns, adds["key"], plan.cuts.best)
        of_table = (plan.schema, plan.partition_columns)
        layout = build_layout(job.version, table, order, plan.recipe, of_table, config)
        name = parquet_names(job.version, plan.cuts.count, plan.own)[number]
        part, index = put_part(store, layout, (0, table.num_rows), [name])
        result |= {"part": part, "index": serialize_table(index)}
    return result


def _with_common_columns(
    table: pa.Table, recipe: RebuildRecipe, adds: pa.Table, plan: CheckpointPlan
) -> pa.Table:
    """Bring stored rows into the columns of the plan.

    Texts that only this part could rebuild are stored; columns that it lacks are null.
    """
    arrays = []
    for name, kind in plan.columns.items():
        if name in table.column_names:
            column = table[name]
        elif name in recipe.rebuilt:
            column = adds[name]
        else:
            column = pa.chunked_array([pa.nulls(table.num_rows, kind)])
        arrays.append(column.cast(kind))
    return pa.table(arrays, names=list(plan.columns)).combine_chunks()
