"""Distributed checkpoints: each task writes a part, the driver writes the manifest.

1. A few runs of the log are sampled, to choose the boundaries between parts: each part is a range
   of the order in which a checkpoint stores files, so that a scan need not read every part.
2. Every run is decoded once. Its adds are converted to stored rows and dealt to parts; the keys of
   all files that it mentions are dealt to buckets by their hash. The run also reports which
   columns it needs and which texts can be rebuilt from typed columns (`RunFacts`). The driver
   merges the reports into a `CheckpointPlan`, as all parts share one set of columns and one recipe.
3. Every bucket of keys tells which adds a later run supersedes, by part.
4. Every part drops those, sorts the rest and writes it.

Rows of files pass through one shuffle, and only keys through the other one. How runs are stored
depends on the table's metadata, which is known for certain only when all runs were decoded. It is
guessed; if a run has other metadata, the runs are decoded again.

The driver handles runs and parts, never files: its memory does not grow with the table.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LOG_FOLDER,
    CheckpointContext,
    decompress,
    encode_action,
    format_checksum,
    metadata_fields,
    protocol_fields,
)
from arrowlog.formats.indextables import encode_json_manifest as json_manifest
from arrowlog.maintenance import choose_form
from arrowlog.snapshot import (
    CheckpointManifest,
    CheckpointResult,
    InMemoryFiles,
    RebuildRecipe,
    State,
    StatsTruncation,
    WrittenCheckpoint,
    encode_stored_schema,
    is_state_table,
    json_checkpoint_name,
    put_manifest,
    write_pointer,
)
from arrowlog.spark.checkpoint_tasks import (
    DEALT_SCHEMA,
    KEY_ROWS,
    STORED_ROWS,
    TABLE_ROWS,
    CheckpointPlan,
    RunFacts,
    TableShape,
    deal_run,
    empty_rows,
    encode_json_part,
    find_dead_rows,
    sample_run,
    write_dealt_part,
    write_part,
)
from arrowlog.spark.checks import is_checkpoint_intact
from arrowlog.spark.ranges import RangeBounds, choose_range_bounds
from arrowlog.spark.read import open_table
from arrowlog.spark.rebuild import (
    DistributedReplay,
    NotDistributable,
    retry_without_damaged,
    shuffle_by_number,
    start_replay,
)
from arrowlog.spark.tasks import deserialize_table
from arrowlog.spark.versions import frame_to_arrow

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.config import Config
    from arrowlog.spark.tasks import LogRun

_SAMPLED_RUNS = 8
_MAX_ATTEMPTS = 3  # the metadata is guessed, then known


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
    shape = _guess_shape(rebuild)
    for _ in range(_MAX_ATTEMPTS):
        cuts = _choose_parts(spark, rebuild, shape)
        guessed = shape
        deal = partial(deal_run, job=rebuild.job, shape=guessed, cuts=cuts)
        dealt = rebuild.map_runs(spark, deal, DEALT_SCHEMA).persist()
        try:
            said = _collect(dealt.filter(f"kind = {TABLE_ROWS}"))
            reports = [pickle.loads(row["data"]) for row in said]  # noqa: S301 -- ours
            state = rebuild.state(actions for actions, _ in reports if actions is not None)
            if is_state_table(state):
                raise InvalidRequest(
                    "The table has table states, and Spark does not write them.",
                    next="Use table.checkpoint().",
                )
            shape = TableShape.of(state.metadata, state.version)
            if shape == guessed:
                facts = [facts for _, facts in reports]
                return _write(spark, dealt, rebuild, state, facts, cuts)
        finally:
            dealt.unpersist()
    raise LogCorrupt("the metadata of the log changes while it is read.", next="Try again.")


def _collect(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame_to_arrow(frame).to_pylist()
    return rows


def _guess_shape(rebuild: DistributedReplay) -> TableShape:
    """Return the shape of the table at the start of the log segment, which is rarely changed."""
    if rebuild.base is not None:
        return TableShape.of(rebuild.base.manifest.metadata, rebuild.segment.version)
    limit = rebuild.job.config.max_decompressed_bytes
    for commit in rebuild.segment.commits[:1]:
        # What is wrong with a commit is reported by the task that decodes it.
        with suppress(LogCorrupt, FileNotFoundError):
            plain = decompress(rebuild.store.get(commit.key), commit.key, limit)
            lines = [line for line in plain.splitlines(True) if b'"metaData"' in line[:64]]
            window = LineBuffer(limit)
            window.append(commit.key, commit.version, b"".join(lines))
            for _, metadata in decode_buffer(window).metadata:
                return TableShape.of(metadata, rebuild.segment.version)
    return TableShape(pa.schema([]))


def _choose_parts(
    spark: SparkSession, rebuild: DistributedReplay, shape: TableShape
) -> RangeBounds:
    """Choose the boundaries between parts from a sample of the runs. They affect only speed."""
    job = rebuild.job
    if job.buckets == 1:
        return RangeBounds()
    step = max(1, -(-len(rebuild.runs) // _SAMPLED_RUNS))

    def sample(run: LogRun) -> pa.RecordBatch:
        found = pa.array([pickle.dumps(sample_run(run, job, shape))], pa.binary())
        return pa.record_batch([found], names=["sample"])

    rows = _collect(rebuild.map_runs(spark, sample, "sample binary", rebuild.runs[::step]))
    samples = [pickle.loads(row["sample"]) for row in rows]  # noqa: S301 -- ours
    return choose_range_bounds([each for each in samples if each is not None], job.buckets)


def _missing_forms(
    spark: SparkSession, rebuild: DistributedReplay, state: State, config: Config
) -> tuple[str, ...]:
    """Return the forms that the settings require and that are missing or damaged."""
    form = choose_form(rebuild.listing, state, config)
    required = ("json", "parquet") if form == "both" else (form,)
    listing, version = rebuild.listing, state.version
    return tuple(
        form
        for form in required
        if listing.checkpoint_form(version, form) is None
        or not is_checkpoint_intact(spark, rebuild, version, form, config)
    )


def _write(
    spark: SparkSession,
    dealt: DataFrame,
    rebuild: DistributedReplay,
    state: State,
    facts: Sequence[RunFacts],
    cuts: RangeBounds,
) -> CheckpointResult:
    """Write the parts of the forms that are missing, then their manifests and the pointer."""
    shape = TableShape.of(state.metadata, state.version)
    config = resolve(rebuild.job.options, table=state.metadata.configuration)
    at_most = _with_count(state, sum(fact.rows for fact in facts))
    forms = _missing_forms(spark, rebuild, at_most, config)
    columns, recipe = merge_facts(facts)
    plan = CheckpointPlan(columns, recipe, shape, cuts, uuid4().hex[:12], forms)
    parts = _write_parts(dealt, plan, rebuild)
    count = sum(part["rows"] for part in parts)
    written = _write_manifests(rebuild, state, plan, parts, config)
    names = tuple(name for form in written for name in form.names)
    size = sum(form.size_bytes for form in written)
    existing = rebuild.listing.checkpoints.get(state.version, ())
    present = {*forms, *(form.kind for form in existing)}
    format_name = "both" if len(present) > 1 else "".join(present)
    if written:
        total = WrittenCheckpoint(names, size, written[-1].checksum)
        num_parts = len(names) - len(written)  # without the manifests
        now = SystemClock().now_ms()
        counted = _with_count(state, count)
        write_pointer(rebuild.store, counted, total, format_name, num_parts, now)
    return CheckpointResult(state.version, count, size, format_name, names)


def _with_count(state: State, count: int) -> State:
    """Return a state with so many files, of which nothing is known: nulls take no memory."""
    return State(
        state.version,
        state.protocol,
        state.metadata,
        state.schema,
        InMemoryFiles(pa.table({"key": pa.nulls(count)})),
    )


def _write_parts(
    dealt: DataFrame, plan: CheckpointPlan, rebuild: DistributedReplay
) -> list[dict[str, Any]]:
    """Find the dead adds and write each range as a part; return `write_part`'s results in order.

    Without a form to write, the results only have the number of rows.
    """
    job, count = rebuild.job, plan.cuts.count
    keys = dealt.filter(f"kind = {KEY_ROWS}")
    dead = shuffle_by_number(keys, "number", job.buckets, find_dead_rows, DEALT_SCHEMA)
    rows = dealt.filter(f"kind = {STORED_ROWS}").unionByName(dead)

    def arrowlog_part(rows: pa.Table) -> pa.Table:
        number = rows["number"][0].as_py()
        result = pickle.dumps(write_dealt_part(rows, plan, job))
        arrays = [pa.array([number], pa.int32()), pa.array([result], pa.binary())]
        return pa.table(arrays, names=["number", "result"])

    schema = "number int, result binary"
    found = _collect(shuffle_by_number(rows, "number", count, arrowlog_part, schema))
    parts = {row["number"]: pickle.loads(row["result"]) for row in found}  # noqa: S301 -- ours
    for number in range(count):  # names of parts have their number, so that none may be missing
        if number not in parts:
            parts[number] = write_part(empty_rows(plan), number, plan, job)
    return [parts[number] for number in range(count)]


def _write_manifests(
    rebuild: DistributedReplay,
    state: State,
    plan: CheckpointPlan,
    parts: list[dict[str, Any]],
    config: Config,
) -> list[WrittenCheckpoint]:
    """Write the manifests of the forms of a plan; return what was written, per form."""
    done: list[WrittenCheckpoint] = []
    now = SystemClock().now_ms()
    if "json" in plan.forms:
        done.append(_write_json_manifest(rebuild, state, parts, plan.own, now))
    if "parquet" in plan.forms:
        index = pa.concat_tables([deserialize_table(part["index"]) for part in parts])
        manifest = CheckpointManifest(
            state.version,
            state.protocol,
            state.metadata,
            sum(part["rows"] for part in parts),
            tuple(part["part"] for part in parts),
            tuple(plan.columns),
            plan.recipe,
            index,
            state.timestamp,
            state.txns,
            state.recent,
            stored_schema=encode_stored_schema(pa.schema(list(plan.columns.items()))),
            truncation=StatsTruncation.of(config).label,
        )
        existing = rebuild.listing.checkpoint_form(state.version, "parquet")
        broken = existing is not None  # `_missing_forms` saw it
        written = put_manifest(rebuild.store, manifest, plan.own, now, broken=broken)
        names_in_log = tuple(f"{CHECKPOINT_FOLDER_NAME}/{name}" for name in written.names)
        done.append(WrittenCheckpoint(names_in_log, written.num_bytes, written.checksum))
    return done


def _write_json_manifest(
    rebuild: DistributedReplay, state: State, parts: list[dict[str, Any]], own: str, now: int
) -> WrittenCheckpoint:
    """Write the first part, with protocol and metadata, and then the manifest of the JSON form."""
    store = rebuild.store
    head = encode_action("protocol", protocol_fields(state.protocol))
    head += encode_action("metaData", metadata_fields(state.metadata))
    first, data, first_checksum = encode_json_part([head], 0, state.version, own, "none", 0)
    store.replace(f"{LOG_FOLDER}/{first}", data)
    filled = [part for part in parts if part["rows"]]
    checksums = {first: first_checksum} | {part["json"]: part["json_sum"] for part in filled}
    beside = CheckpointContext(state.timestamp, state.txns, state.recent)
    manifest = json_manifest(state.version, checksums, own, beside, now)
    name = json_checkpoint_name(state.version)
    if rebuild.listing.checkpoint_form(state.version, "json") is not None:
        store.replace(f"{LOG_FOLDER}/{name}", manifest)  # the existing one is damaged
    else:
        store.put_if_absent(f"{LOG_FOLDER}/{name}", manifest)
    size = len(data) + len(manifest) + sum(part["json_size"] for part in filled)
    return WrittenCheckpoint((name, *checksums), size, format_checksum(manifest))


def merge_facts(facts: Sequence[RunFacts]) -> tuple[dict[str, pa.DataType], RebuildRecipe]:
    """Merge the facts of all runs into common columns and a common recipe.

    A text is rebuilt from a typed column only if every run that has it rebuilds it the same way,
    and no other run has values in that typed column.
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
        # In a run without the text, a typed column would produce texts that never existed.
        safe = source is not None and all(
            name in fact.kept or source[0] not in fact.typed for fact in facts
        )
        if source is not None and safe:
            rebuilt[name] = source
    stored = {name: kind for name, kind in kept.items() if name not in rebuilt}
    return {**stored, **typed}, RebuildRecipe(tuple(typed), rebuilt)
