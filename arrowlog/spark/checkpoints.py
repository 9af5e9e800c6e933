"""A checkpoint made on a cluster: each task writes a part, the driver the manifest.

All parts of a Parquet checkpoint have the same columns, and one recipe holds for all their rows. So
the tasks first say what their rows would take, and write when it is settled. A replay leaves files
in buckets by the hash of their names, and whoever plans would have to look into every one of them;
so they are dealt out again, each part a range of the order that files are stored in.

The driver hears of buckets and parts, never of files: its memory does not grow with the table.
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
from arrowlog.errors import LogCorrupt
from arrowlog.log.checkpoint import Beside
from arrowlog.log.checkpoint import manifest as json_manifest
from arrowlog.log.encode import CHECKSUM, checksum, line, metadata_fields, protocol_fields
from arrowlog.log.envelope import Packing
from arrowlog.log.names import CHECKPOINTS, LOG, parquet_names
from arrowlog.log.texts import add_objects
from arrowlog.spark.checks import is_whole
from arrowlog.spark.ranges import Cuts, Sample, cuts_of, ranges_of, sample_of
from arrowlog.spark.read import open_table
from arrowlog.spark.rebuild import Rebuild, Unparted, begun, gathered, said_in, sound
from arrowlog.spark.tasks import AT, RUN, SAID, packed, unpacked
from arrowlog.state.checkpoint import CheckpointResult, Written, json_name, write_pointer
from arrowlog.state.files import Columns
from arrowlog.state.groups import best_of, index_of, order_of, sort_keys
from arrowlog.state.manifest import Manifest, with_sums
from arrowlog.state.parquet import layout_of, put_manifest, put_part
from arrowlog.state.snapshot import State
from arrowlog.state.stored import Recipe, pack, settle
from arrowlog.state.truncation import truncate_adds
from arrowlog.upkeep.checkpoints import FEATURE

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.config import Config
    from arrowlog.spark.tasks import Job


@dataclass(frozen=True)
class Facts:
    """What the rows of a bucket would take: types of columns, and how texts can be made again."""

    kept: Mapping[str, pa.DataType]
    typed: Mapping[str, pa.DataType]
    rebuilt: Mapping[str, tuple[str, str]]
    order: Sample = field(default_factory=Sample)


@dataclass(frozen=True)
class Plan:
    """What all parts have in common."""

    columns: Mapping[str, pa.DataType]
    recipe: Recipe
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    cuts: Cuts
    own: str
    forms: tuple[str, ...]
    properties: Mapping[str, str]

    def short(self, adds: pa.Table, job: Job) -> pa.Table:
        """Adds without statistics that are too long for the log, whoever wrote them."""
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
    """Write the newest version down as a whole, by Spark's tasks, in as many parts as buckets.

    For tables whose files, or whose commits since the last checkpoint, one process cannot hold:
    this one hears of parts, not of files.
    """
    given = (spark, uri, None, storage_options, options, buckets)
    try:
        return sound(
            lambda damaged: begun(*given, damaged), lambda rebuild: _checkpoint(spark, rebuild)
        )
    except Unparted:
        return open_table(spark, uri, storage_options, options).checkpoint()


def _checkpoint(spark: SparkSession, rebuild: Rebuild) -> CheckpointResult:
    if rebuild.segment.gap is not None:
        raise LogCorrupt(
            f"{rebuild.segment.gap}.",
            next="Restore the missing file from a backup.",
            version=rebuild.segment.gap.missing,
        )
    reduced = rebuild.reduced(spark).persist()
    try:
        state = rebuild.state(said_in(_rows(reduced.filter(f"bucket = {SAID}"))))
        config = resolve(rebuild.job.options, table=state.metadata.configuration)
        forms = _missing(spark, rebuild, state, config)
        done, count = _write(reduced.filter(f"bucket <> {SAID}"), rebuild, state, forms)
    finally:
        reduced.unpersist()
    names = tuple(name for each in done for name in each.names)
    size = sum(each.size_bytes for each in done)
    shown = "both" if len(forms) > 1 else "".join(forms) or config.checkpoint_format
    if done:
        counted = State(
            state.version,
            state.protocol,
            state.metadata,
            state.schema,
            pa.table({"key": pa.nulls(count)}),  # so many, and none of them in memory
        )
        total = Written(names, size, done[-1].checksum)
        parts = len(names) - len(done)
        write_pointer(rebuild.store, counted, total, shown, parts, SystemClock().now_ms())
    return CheckpointResult(state.version, count, size, shown, names)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def _missing(
    spark: SparkSession, rebuild: Rebuild, state: State, config: Config
) -> tuple[str, ...]:
    """The forms that the settings ask for and that are not there, whole."""
    form = config.checkpoint_format
    told = FEATURE in state.protocol.reader_features
    wanted = (form,) if form == "json" or (form == "parquet" and told) else ("json", "parquet")
    listing, version = rebuild.listing, state.version
    there = {"json": set(listing.json_checkpoints), "parquet": set(listing.parquet_checkpoints)}
    return tuple(
        form
        for form in wanted
        if version not in there[form] or not is_whole(spark, rebuild, version, form, config)
    )


def _write(
    buckets: DataFrame, rebuild: Rebuild, state: State, forms: tuple[str, ...]
) -> tuple[list[Written], int]:
    """Facts of all buckets, then their parts, then the manifests."""
    job, names = rebuild.job, (state.schema, state.metadata.partition_columns)
    properties = dict(state.metadata.configuration)
    plan = Plan({}, Recipe((), {}), *names, Cuts(), "", forms, properties)
    facts = _each(buckets, lambda adds: facts_of(plan.short(adds, job), *names))
    columns, recipe = settled(facts)
    cuts = cuts_of([fact.order for fact in facts], len(facts))
    own = uuid4().hex[:12]
    plan = Plan(columns, recipe, *names, cuts, own, forms, properties)
    parts = _put_all(buckets, plan, job)
    if not parts:  # a table without files has a part without rows
        empty = pa.table({"key": pa.nulls(0, pa.string()), "path": pa.nulls(0, pa.string())})
        parts = [put(empty, 0, plan, job)]
    count = sum(part["rows"] for part in parts)
    done: list[Written] = []
    now = SystemClock().now_ms()
    if "json" in forms:
        done.append(_json(rebuild, state, parts, own, now))
    if "parquet" in forms:
        index = pa.concat_tables([unpacked(part["index"]) for part in parts])
        sums = [one for part in parts for one in part["sums"]]
        manifest = Manifest(
            state.version,
            state.protocol,
            state.metadata,
            count,
            tuple(part["part"] for part in parts),
            tuple(columns),
            recipe,
            with_sums(index, sums, len(columns)),
            state.timestamp,
            state.txns,
            state.recent,
        )
        broken = state.version in rebuild.listing.parquet_checkpoints
        written = put_manifest(rebuild.store, manifest, own, now, broken=broken)
        inner = tuple(f"{CHECKPOINTS}/{name}" for name in written.names)
        done.append(Written(inner, written.num_bytes, written.checksum))
    return done, count


def _json(
    rebuild: Rebuild, state: State, parts: list[dict[str, Any]], own: str, now: int
) -> Written:
    """The manifest of the JSON form, and a first part with what is said of the table."""
    store = rebuild.store
    head = line("protocol", protocol_fields(state.protocol))
    head += line("metaData", metadata_fields(state.metadata))
    first, data, said = _packed(head, 0, state.version, own, "none", 0)
    store.replace(f"{LOG}/{first}", data)
    named = {first: said} | {part["json"]: part["json_sum"] for part in parts}
    beside = Beside(state.timestamp, state.txns, state.recent)
    whole = json_manifest(state.version, named, own, beside, now)
    name = json_name(state.version)
    if state.version in rebuild.listing.json_checkpoints:
        store.replace(f"{LOG}/{name}", whole)  # a damaged one was there
    else:
        store.put_new(f"{LOG}/{name}", whole)
    size = len(data) + len(whole) + sum(part["json_size"] for part in parts)
    return Written((name, *named), size, checksum(whole))


def _packed(
    text: bytes, number: int, version: int, own: str, codec: str, level: int
) -> tuple[str, bytes, str]:
    packing = Packing(codec, level)
    packing.write(text)
    name = f"{version:020d}.checkpoint.{own}.{number + 1:05d}.json"
    said = f"{CHECKSUM}{packing.sum:08x}"
    return name, packing.finish(), said


# What tasks do.


def _each(buckets: DataFrame, work: Callable[[pa.Table], Any]) -> list[Any]:
    """The work done for each bucket where it is, and what came of it, in no order."""

    def arrowlog_bucket(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                adds = unpacked(row["adds"]).drop_columns([RUN, AT])
                if adds.num_rows:
                    found = pa.array([pickle.dumps(work(adds))], pa.binary())
                    yield pa.record_batch([found], names=["found"])

    rows = _rows(buckets.mapInArrow(arrowlog_bucket, "found binary"))
    return [pickle.loads(row["found"]) for row in rows]  # noqa: S301 -- ours


def _put_all(buckets: DataFrame, plan: Plan, job: Job) -> list[dict[str, Any]]:
    """Deal out the rows of all buckets by ranges, and write each range as a part; in order."""

    def arrowlog_deal(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                adds = unpacked(row["adds"]).drop_columns([RUN, AT])
                if adds.num_rows:
                    yield dealt(plan.short(adds, job), row["bucket"], plan)

    def arrowlog_part(rows: pa.Table) -> pa.Table:
        # In the same order however the shuffle brought them: a task that is tried again must
        # write the same bytes.
        rows = rows.sort_by("bucket")
        tables = [unpacked(each) for each in rows["adds"].to_pylist()]
        adds = pa.concat_tables(tables, promote_options="default")
        number = rows["part"][0].as_py()
        found = pickle.dumps(put(adds, number, plan, job))
        arrays = [pa.array([number], pa.int32()), pa.array([found], pa.binary())]
        return pa.table(arrays, names=["part", "found"])

    found = buckets.mapInArrow(arrowlog_deal, "part int, bucket int, adds binary")
    count = plan.cuts.count
    rows = _rows(gathered(found, "part", count, arrowlog_part, "part int, found binary"))
    rows.sort(key=lambda row: row["part"])
    return [pickle.loads(row["found"]) for row in rows]  # noqa: S301 -- ours


def dealt(adds: pa.Table, bucket: int, plan: Plan) -> pa.RecordBatch:
    """The rows of a bucket by the range they belong to."""
    flat = settle(adds, [*plan.schema.names, *plan.partition_columns])
    columns = _columns(flat, plan.schema, plan.partition_columns)
    keys = sort_keys(columns, flat["key"], plan.cuts.best)
    where = pa.array(ranges_of(keys, plan.cuts).to_arrow())
    numbers = sorted(pc.unique(where).to_pylist())
    pieces = [packed(adds.filter(pc.equal(where, number))) for number in numbers]
    arrays = [
        pa.array(numbers, pa.int32()),
        pa.repeat(pa.scalar(bucket, pa.int32()), len(numbers)),
        pa.array(pieces, pa.binary()),
    ]
    return pa.record_batch(arrays, names=["part", "bucket", "adds"])


def _columns(adds: pa.Table, schema: pa.Schema, partition: tuple[str, ...]) -> Columns:
    columns = Columns(adds, schema, partition)
    columns.prepare([*schema.names, *partition])
    return columns


def facts_of(adds: pa.Table, schema: pa.Schema, partition: tuple[str, ...]) -> Facts:
    """What a bucket would take by itself."""
    adds = settle(adds, [*schema.names, *partition])
    columns = _columns(adds, schema, partition)
    table, recipe = pack(columns, adds)
    kinds = {name: _plain(table.schema.field(name).type) for name in table.column_names}
    kept = {name: kind for name, kind in kinds.items() if name not in recipe.typed}
    kept |= {name: _plain(adds.schema.field(name).type) for name in recipe.rebuilt}
    best = best_of(columns)
    order = sample_of(sort_keys(columns, adds["key"], best), best)
    return Facts(kept, {name: kinds[name] for name in recipe.typed}, recipe.rebuilt, order)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def settled(facts: list[Facts]) -> tuple[dict[str, pa.DataType], Recipe]:
    """Columns for all buckets, and the texts that can be made again in each of them."""
    kept: dict[str, pa.DataType] = {"path": pa.string()}
    typed: dict[str, pa.DataType] = {}
    for fact in facts:
        kept |= {name: kind for name, kind in fact.kept.items() if name not in kept}
        typed |= {name: kind for name, kind in fact.typed.items() if name not in typed}
    rebuilt: dict[str, tuple[str, str]] = {}
    for name in kept:
        ways = {fact.rebuilt.get(name) for fact in facts if name in fact.kept}
        way = ways.pop() if len(ways) == 1 else None
        # Where a bucket has no such text, its typed column must not make any up.
        silent = way is not None and all(
            name in fact.kept or way[0] not in fact.typed for fact in facts
        )
        if way is not None and silent:
            rebuilt[name] = way
    stored = {name: kind for name, kind in kept.items() if name not in rebuilt}
    return {**stored, **typed}, Recipe(tuple(typed), rebuilt)


def put(adds: pa.Table, number: int, plan: Plan, job: Job) -> dict[str, Any]:
    """Write a part; what the manifests have to say of it."""
    config = resolve(job.options, table=plan.properties)
    found: dict[str, Any] = {"rows": adds.num_rows}
    store = job.store
    if "json" in plan.forms:
        texts = add_objects(adds, path="path").to_pylist() if adds.num_rows else []
        text = "".join(f'{{"add":{each}}}\n' for each in texts).encode()
        codec = config.compression_codec if config.checkpoint_compression_enabled else "none"
        level = config.compression_gzip_level
        name, data, said = _packed(text, number + 1, job.version, plan.own, codec, level)
        store.replace(f"{LOG}/{name}", data)
        found |= {"json": name, "json_sum": said, "json_size": len(data)}
    if "parquet" in plan.forms:
        adds = settle(adds, [*plan.schema.names, *plan.partition_columns])
        columns = _columns(adds, plan.schema, plan.partition_columns)
        table, recipe = pack(columns, adds)
        table = _conformed(table, recipe, adds, plan)
        order = order_of(columns, adds["key"], plan.cuts.best)
        index = index_of(columns, order)
        layout = layout_of(job.version, table, order, plan.recipe, index, config)
        special = parquet_names(job.version, plan.cuts.count, plan.own)[number]
        part, sums = put_part(store, layout, (0, table.num_rows), [special])
        found |= {"part": part, "sums": sums, "index": packed(index)}
    return found


def _conformed(table: pa.Table, recipe: Recipe, adds: pa.Table, plan: Plan) -> pa.Table:
    """Rows in the columns that all parts have."""
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
