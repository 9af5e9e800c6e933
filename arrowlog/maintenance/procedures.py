"""Maintenance procedures of `Table`: resolve settings, run, warn of failures.

Checkpoint, cleanup, truncation, vacuum and compaction are entry points of the modules that
implement them. The update of statistics is implemented here.
"""

from __future__ import annotations

import json
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.config import parse_argument, parse_duration_ms, parse_names
from arrowlog.errors import (
    ArrowlogWarning,
    CheckpointWriteError,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.formats import struct_leaves
from arrowlog.formats.indextables import INDEXTABLES, STATE_KIND, encode_adds
from arrowlog.log_lines import TRUNCATION_WAITS
from arrowlog.maintenance.adoption import FOOTER_FIELDS
from arrowlog.maintenance.checkpointing import report_checkpoint, write_checkpoint
from arrowlog.maintenance.cleanup import (
    MIN_COMMIT_AGE_SECONDS,
    PARQUET_CHECKPOINT_FEATURE,
    RETAIN_NOTHING,
    CleanupResult,
    cleanup,
    configured_retention,
    describe_failures,
    execute_cleanup,
    plan_cleanup,
    plan_cleanups,
    plan_truncation,
)
from arrowlog.maintenance.compaction import compact as compact_files
from arrowlog.maintenance.compaction import parse_compaction_request
from arrowlog.maintenance.retention import RetentionPlan, RetentionPolicy
from arrowlog.maintenance.vacuum import vacuum as vacuum_files
from arrowlog.metering import metrics_of
from arrowlog.scan import build_data_file_error, mask_splits
from arrowlog.snapshot import (
    CheckpointResult,
    StatsTruncation,
    TimestampLike,
    is_state_table,
    list_log,
    stream_newest_state,
    to_epoch_millis,
    verify_checkpoint,
)
from arrowlog.storage import RangeReader, stat_object
from arrowlog.transaction import compute_stats, describe_parquet_file, operations, upgrade_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from arrowlog.config import Config
    from arrowlog.formats import Protocol
    from arrowlog.maintenance.checkpointing import BackgroundCheckpointer
    from arrowlog.maintenance.compaction import CompactionRequest, CompactResult
    from arrowlog.maintenance.vacuum import Progress, VacuumResult
    from arrowlog.snapshot import Snapshot, State, StreamedState
    from arrowlog.storage import Store
    from arrowlog.transaction import Add, CommitResult, WriteSession

_PARQUET_CHECKPOINT_PROTOCOL = 3  # the lowest reader and writer version with features
__all__ = [
    "checkpoint",
    "clean_up",
    "compact",
    "parse_compaction_request",
    "preview_cleanups",
    "preview_retention",
    "truncate_history",
    "update_statistics",
    "vacuum",
]
_FILE_THREADS = 16


def checkpoint(
    session: WriteSession, checkpointer: BackgroundCheckpointer, *, for_all_readers: bool = False
) -> CheckpointResult:
    """Write a checkpoint of the latest version; `for_all_readers` as in `make_checkpoint`.

    With `checkpoint.format` set to `parquet`, the protocol is upgraded first if necessary: readers
    that do not know the feature could not open the table once its commits are cleaned up.
    """
    before: CheckpointResult | None = None
    streamed = _stream_state(session)
    if streamed is not None:
        with closing(streamed.files):
            state = streamed.state
            if not _needs_upgrade(state.protocol, session.config_of(state.metadata)):
                return _write(session, checkpointer, state, for_all_readers=for_all_readers)
            # The upgrade reads the table, which takes little memory from a checkpoint. Readers that
            # do not know its form replay the commits until then.
            before = _write(session, checkpointer, state, form="parquet")
        session.tracker.invalidate(["listing"])  # it was listed before there was a checkpoint
    snapshot = session.read_latest()
    config = session.config_of(snapshot.metadata)
    if is_state_table(snapshot.state):
        return _write_state(session, snapshot, config)
    if _needs_upgrade(snapshot.state.protocol, config):
        version = _PARQUET_CHECKPOINT_PROTOCOL
        upgrade_protocol(
            session, version, version, [PARQUET_CHECKPOINT_FEATURE], [PARQUET_CHECKPOINT_FEATURE]
        )
        snapshot = session.read_latest()
    result = _write(session, checkpointer, snapshot.state, for_all_readers=for_all_readers)
    return result if before is None else _together(before, result)


def _together(first: CheckpointResult, last: CheckpointResult) -> CheckpointResult:
    """Return the result of two checkpoints that one call wrote."""
    return replace(
        last,
        names=(*first.names, *last.names),
        size_bytes=first.size_bytes + last.size_bytes,
        uncompressed_bytes=first.uncompressed_bytes + last.uncompressed_bytes,
        milliseconds=first.milliseconds + last.milliseconds,
    )


def _needs_upgrade(protocol: Protocol, config: Config) -> bool:
    """Whether readers of the table do not know the only form that its checkpoints shall have."""
    known = PARQUET_CHECKPOINT_FEATURE in protocol.reader_features
    return config.checkpoint_format == "parquet" and not known


def _stream_state(session: WriteSession) -> StreamedState | None:
    """Return the newest state with its files in a temporary file, if they are many.

    None if the handle has read a snapshot: its files are in memory, or in a checkpoint.
    """
    tracker = session.tracker
    if tracker.last_read is not None:
        return None
    with suppress(FileNotFoundError):  # a concurrent cleanup: the snapshot is read as usual
        listing = list_log(session.store)
        return stream_newest_state(
            session.store,
            listing,
            tracker.read_options,
            session.config_of,
        )
    return None


def _write(
    session: WriteSession,
    checkpointer: BackgroundCheckpointer,
    state: State,
    *,
    for_all_readers: bool = False,
    form: str | None = None,
) -> CheckpointResult:
    """Write the checkpoint of a state in the configured forms, or in the given one."""
    listing = list_log(session.store)
    config = session.config_of(state.metadata)
    with _as_checkpoint_error(session, state.version):
        result = write_checkpoint(
            session.store,
            listing,
            state,
            config,
            session.clock,
            for_all_readers=for_all_readers,
            form=form,
        )
    report_checkpoint(session.store, result, background=False)
    checkpointer.made(result.version)
    return result


@contextmanager
def _as_checkpoint_error(session: WriteSession, version: int) -> Iterator[None]:
    """Raise `CheckpointWriteError` where the store fails."""
    try:
        yield
    except StoreUnavailable as error:
        metrics_of(session.store).add("checkpoint_failures")
        raise CheckpointWriteError(
            f"The checkpoint of version {version} was not written: {error.what}",
            next=error.next,
            file=error.file,
            version=version,
        ) from error


def _write_state(session: WriteSession, snapshot: Snapshot, config: Config) -> CheckpointResult:
    """Write a table state of the latest version, without tombstones, unless it has a valid one.

    In any case `_last_checkpoint` points to it afterwards.
    """
    INDEXTABLES.check_writable(snapshot.protocol, session.store.root)
    listing = list_log(session.store)
    version = snapshot.version
    existing = listing.state_file(version)
    names: tuple[str, ...] = ()
    size, started = 0, time.perf_counter()
    broken = existing is not None and bool(
        verify_checkpoint(session.store, listing, version, config, STATE_KIND)
    )
    from arrowlog.snapshot import StateWriter  # loads what decodes Avro

    writer = StateWriter(session.store, config, session.clock.new_id)
    with _as_checkpoint_error(session, version):
        if existing is None or broken:
            written = writer.write(snapshot.state, anew=True, broken=broken)
            names, size = written.names, written.size_bytes
        else:
            writer.point_to(version)
    milliseconds = (time.perf_counter() - started) * 1000
    # How large the manifests would be without compression is not known.
    sizes = size, STATE_KIND, names, size
    result = CheckpointResult(version, snapshot.num_files, *sizes, milliseconds)
    report_checkpoint(session.store, result, background=False)
    return result


def clean_up(session: WriteSession, *, dry_run: bool | None) -> CleanupResult:
    """Delete commits and checkpoints that the table's retention settings release.

    `dry_run` None means the setting `cleanup.dryRun`. Warns of deletions that failed.
    """
    snapshot = session.base_snapshot()
    config = session.config(session.head_of(snapshot))
    dry = config.cleanup_dry_run if dry_run is None else dry_run
    now = session.clock.now_ms()
    result = cleanup(session.store, config, configured_retention(config), now, dry_run=dry)
    if result.failures:
        warnings.warn(
            f"{session.store.root}: {describe_failures(result)}", ArrowlogWarning, stacklevel=3
        )
    return result


def preview_retention(
    session: WriteSession,
    log: str | int | None,
    checkpoints: str | int | None,
    now: TimestampLike | None,
) -> RetentionPlan:
    """Plan a cleanup with the given retention durations, and at the given time.

    Arguments that are None default to the table's settings and to the present. Raises
    InvalidRequest for an invalid duration.
    """
    snapshot = session.base_snapshot()
    config = session.config(session.head_of(snapshot))
    if log is not None:
        config = replace(config, given=config.given | {"log_retention_ms"})
    configured = configured_retention(config)
    policy = RetentionPolicy(
        configured.log_ms
        if log is None
        else parse_argument(parse_duration_ms, log, "log_retention"),
        configured.checkpoint_ms
        if checkpoints is None
        else parse_argument(parse_duration_ms, checkpoints, "checkpoint_retention"),
        configured.commits,
    )
    moment = session.clock.now_ms() if now is None else to_epoch_millis(now)
    return plan_cleanup(session.store, config, policy, moment)


def preview_cleanups(session: WriteSession, moments_ms: Sequence[int]) -> list[RetentionPlan]:
    """Plan cleanups with the table's retention settings at several times, from one listing."""
    config = session.config(session.head_of(session.base_snapshot()))
    return plan_cleanups(session.store, config, configured_retention(config), moments_ms)


def vacuum(
    session: WriteSession,
    older_than: str | int | timedelta,
    *,
    dry_run: bool,
    force: bool,
    ignored_logs: Sequence[str],
    progress: Progress | None,
) -> VacuumResult:
    """Delete orphan files older than `older_than`. Warns of deletions that failed."""
    config = session.config(session.head_of(session.base_snapshot()))
    result = vacuum_files(
        session.store,
        config,
        parse_argument(parse_duration_ms, older_than, "older_than"),
        session.clock.now_ms(),
        dry_run=dry_run,
        force=force,
        ignored_logs=ignored_logs,
        progress=progress,
    )
    if result.failures:
        what = f"{len(result.failures)} deletions failed, the first: {result.failures[0]}"
        warnings.warn(f"{session.store.root}: {what}", ArrowlogWarning, stacklevel=3)
    return result


def compact(
    session: WriteSession,
    request: CompactionRequest,
    *,
    dry_run: bool,
    spark: Any = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactResult:
    """Merge small files, in this process or with `spark` on its workers.

    Tables in memory are always compacted in this process, since workers cannot see them.
    """
    runner = None
    if spark is not None and not session.store.root.startswith("memory:"):
        from arrowlog.spark.compact import make_spark_runner

        runner = make_spark_runner(spark, session, options or {})
    return compact_files(session, request, dry_run=dry_run, runner=runner, progress=progress)


def _wait_for_commit_age(session: WriteSession, retention: RetentionPlan) -> None:
    """Over a network, wait until the commits to delete are `MIN_COMMIT_AGE_SECONDS` old.

    See `cleanup` for the reason. Ages are measured by the store's clock alone: the time of the
    newest file in the log stands for the present.
    """
    times = [file.stat.mtime_ms for file in retention.files_to_delete if file.kind == "commit"]
    if session.store.cheap_stat or not times:
        return
    # A negative time is unknown: assume that the commit is brand new.
    youngest = retention.store_time_ms if min(times) < 0 else max(times)
    seconds_left = MIN_COMMIT_AGE_SECONDS - (retention.store_time_ms - youngest) / 1000
    if seconds_left > 0:
        TRUNCATION_WAITS.log(
            table=session.store.root, wait_seconds=seconds_left, seconds=MIN_COMMIT_AGE_SECONDS
        )
        session.clock.sleep(seconds_left)


def truncate_history(
    session: WriteSession, checkpointer: BackgroundCheckpointer, *, dry_run: bool
) -> CleanupResult:
    """Checkpoint the latest version and delete the commits and checkpoints before it.

    Version 0 and commits with a skip in its cooldown stay. The plan is made before the wait for the
    minimum commit age, so commits that land during the wait are not deleted.
    """
    snapshot = session.read_latest()
    config = session.config(session.head_of(snapshot))
    INDEXTABLES.check_writable(snapshot.protocol, session.store.root)
    now, started = session.clock.now_ms(), time.perf_counter()
    if dry_run:
        plan = plan_truncation(session.store, config, now)
        milliseconds = (time.perf_counter() - started) * 1000
        return CleanupResult(plan, dry_run=True, milliseconds=milliseconds)
    checkpoint(session, checkpointer, for_all_readers=True)
    # A checkpoint of an earlier version that this handle writes in the background would land after
    # the plan, and keep that version readable and its data files from vacuum.
    checkpointer.wait()
    retention = plan_cleanup(session.store, config, RETAIN_NOTHING, now, spare_young=False)
    _wait_for_commit_age(session, retention)
    result = execute_cleanup(session.store, config, retention, started)
    if result.failures:
        warnings.warn(
            f"{session.store.root}: {describe_failures(result)}", ArrowlogWarning, stacklevel=3
        )
    return result


def update_statistics(session: WriteSession, paths: Iterable[str]) -> CommitResult:
    """Read size, row count and bounds of live Parquet files again, and commit them.

    The commit replaces the adds with `dataChange` false; all their other fields are kept.

    Raises InvalidRequest if a path is not that of a live file, DataFileError if a file is missing
    or cannot be read, and CommitConflict if another commit changed one of the files.
    """
    snapshot = session.read_latest()
    live = _choose_parquet_files(snapshot, paths)
    truncation = StatsTruncation.of(session.config(session.head_of(snapshot)))

    def refresh(line: bytes) -> Add:
        return _read_statistics(session.store, snapshot, truncation, json.loads(line)["add"])

    with ThreadPoolExecutor(_FILE_THREADS) as pool:
        adds = list(pool.map(refresh, encode_adds(live)))
    return operations.commit(
        session,
        adds,
        live["key"].to_pylist(),
        operation="STATISTICS",
        data_change=False,
        read_version=snapshot.version,
        where=None,
        txn=None,
        user_metadata=None,
        parameters=None,
    )


def _choose_parquet_files(snapshot: Snapshot, paths: Iterable[str]) -> pa.Table:
    """Return the adds of some live Parquet files. Raises InvalidRequest for any other path."""
    adds = snapshot.state.adds
    given = parse_argument(parse_names, paths, "paths")
    wanted = make_array(sorted(set(given)), pa.string())
    live = adds.filter(pc.is_in(adds["key"], value_set=wanted))
    if live.num_rows < len(wanted):
        raise InvalidRequest(
            f"{len(wanted) - live.num_rows} of the paths are not live files.",
            next="Use paths of snapshot().files.",
        )
    splits = live["key"].filter(mask_splits(live["key"]))
    if len(splits):
        raise InvalidRequest(
            f"{splits[0].as_py()} is a split, whose statistics cannot be read again.",
            next="Leave splits out, or convert the table to Parquet with arrowlog.convert.",
        )
    return live


def _read_statistics(
    store: Store, snapshot: Snapshot, truncation: StatsTruncation, add: dict[str, Any]
) -> Add:
    """Describe a data file anew; fields that the file does not tell are those of `add`."""
    path, columns, schema = add["path"], snapshot.partition_columns, snapshot.state.schema
    values = add.get("partitionValues") or {}
    kept = {name: value for name, value in add.items() if name not in FOOTER_FIELDS}
    try:
        found = describe_parquet_file(store, path, schema, columns, truncation, values, kept)
    except InvalidRequest as error:
        reason = error.what.replace(f"{path}: ", "").replace(path, "the file")
        if stat_object(store, path) is None:
            reason = "the data file is missing"
        raise build_data_file_error(store, path, reason, snapshot.version) from None
    floats = [item.name for item in schema if item.name not in columns and _has_floats(item)]
    try:
        return _with_exact_floats(store, found, schema, floats, truncation)
    except (pa.ArrowException, OSError, ValueError) as error:
        first_line = str(error).split("\n", 1)[0]
        reason = f"its rows cannot be read: {first_line}"
        raise build_data_file_error(store, path, reason, snapshot.version) from None


def _with_exact_floats(
    store: Store, add: Add, schema: pa.Schema, names: list[str], truncation: StatsTruncation
) -> Add:
    """Compute the bounds of floating-point columns from their values.

    Parquet footers do not say whether a column contains NaN, so their bounds are not used. Columns
    that the file lacks, has twice, or has with another type keep what they have.
    """
    import pyarrow.parquet as pq

    if not names or add.size is None:
        return add
    with pq.ParquetFile(pa.PythonFile(RangeReader(store, add.path, add.size), "r")) as file:
        stored = file.schema_arrow
        known = [
            name
            for name in names
            if stored.names.count(name) == 1 and stored.field(name).type == schema.field(name).type
        ]
        exact = compute_stats(file.read(columns=known), known, truncation)
    return replace(
        add,
        min_values=_merge_maps(add.min_values, exact.low),
        max_values=_merge_maps(add.max_values, exact.high),
        nan_count=_merge_maps(add.nan_count, exact.nans),
    )


def _has_floats(item: pa.Field) -> bool:
    """Whether a column has floating-point values, itself or in a field if it is a struct."""
    leaves = struct_leaves(pa.schema([item])).values()
    return any(pa.types.is_floating(kind) for kind in (item.type, *(leaf.type for leaf in leaves)))


def _merge_maps(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge statistics by column, at every level of those of structs; `more` wins."""
    merged = dict(base)
    for name, value in more.items():
        known = merged.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            value = _merge_maps(known, value)  # noqa: PLW2901 -- of a struct
        merged[name] = value
    return merged
