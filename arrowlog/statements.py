"""Statements in SQL, done: each becomes a call of a table, and comes back in its own columns."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.commit.drafts import on_partitions
from arrowlog.errors import InvalidRequest
from arrowlog.log.names import LOG, POINTER
from arrowlog.sql.describe import describe_log
from arrowlog.sql.statements import Statement, parse
from arrowlog.state.follow import open_followers
from arrowlog.table import Table
from arrowlog.upkeep.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_DOUBLE = pa.float64()
_HOUR_MS = 3_600_000
_PURGE_MS = 7 * 24 * _HOUR_MS
_STATE = pa.schema(
    [
        ("table_path", _TEXT),
        ("format", _TEXT),
        ("version", _LONG),
        ("num_files", _LONG),
        ("num_manifests", _INT),
        ("num_tombstones", _INT),
        ("tombstone_ratio", _DOUBLE),
        ("total_bytes", _LONG),
        ("needs_compaction", _FLAG),
        ("status", _TEXT),
    ]
)
_CHECKPOINT = pa.schema(
    [
        ("table_path", _TEXT),
        ("status", _TEXT),
        ("checkpoint_version", _LONG),
        ("num_actions", _LONG),
        ("num_files", _LONG),
        ("protocol_version", _LONG),
        ("is_multi_part", _FLAG),
    ]
)
_TRUNCATE = pa.schema(
    [
        ("table_path", _TEXT),
        ("status", _TEXT),
        ("checkpoint_version", _LONG),
        ("versions_deleted", _LONG),
        ("checkpoints_deleted", _LONG),
        ("files_preserved", _LONG),
        ("message", _TEXT),
    ]
)
_DROP = pa.schema(
    [
        ("table_path", _TEXT),
        ("status", _TEXT),
        ("partitions_dropped", _LONG),
        ("splits_removed", _LONG),
        ("total_size_bytes", _LONG),
        ("message", _TEXT),
    ]
)
_PURGED = pa.struct(
    [
        ("status", _TEXT),
        ("orphaned_files_found", _LONG),
        ("orphaned_files_deleted", _LONG),
        ("size_mb_deleted", _DOUBLE),
        ("retention_hours", _LONG),
        ("tx_log_files_deleted", _LONG),
        ("expired_states_found", _LONG),
        ("expired_states_deleted", _LONG),
        ("dry_run", _FLAG),
        ("duration_ms", _LONG),
        ("message", _TEXT),
    ]
)
_PURGE = pa.schema([("table_path", _TEXT), ("metrics", _PURGED)])
_MERGED = pa.struct(
    [
        ("status", _TEXT),
        ("merged_files", _LONG),
        ("merge_groups", _LONG),
        ("original_size_bytes", _LONG),
        ("merged_size_bytes", _LONG),
        ("message", _TEXT),
    ]
)
_MERGE = pa.schema(
    [
        ("table_path", _TEXT),
        ("metrics", _MERGED),
        ("temp_directory_path", _TEXT),
        ("heap_size_bytes", _LONG),
    ]
)
_INVALIDATE = pa.schema(
    [
        ("table_path", _TEXT),
        ("result", _TEXT),
        ("cache_hits_before", _LONG),
        ("cache_misses_before", _LONG),
        ("hit_rate_before", _TEXT),
    ]
)


def sql_statement(
    text: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    spark: Any = None,
) -> pa.Table:
    """Do what a statement says: REPAIR …, DESCRIBE …, CHECKPOINT …, PURGE … and the rest.

    The README has them all, with their columns. What is no such statement is `InvalidRequest`, with
    a caret under the word that does not fit. With `spark`, its workers do what is much work.
    """
    asked = parse(text)
    if asked.kind == "invalidate":
        return _invalidate(asked)
    assert asked.path is not None
    if asked.kind == "repair":
        assert asked.target is not None
        how = {"storage_options": storage_options, "options": options, "spark": spark}
        return repair(asked.path, asked.target, **how)
    settings = dict(options or {})
    if asked.log_retention_ms is not None:
        settings["logRetention.duration"] = asked.log_retention_ms
    table = Table(asked.path, storage_options, options=settings)
    if asked.kind == "merge":
        return _merge(table, asked, spark)
    return _DOING[asked.kind](table, asked)


def _row(schema: pa.Schema, *values: object) -> pa.Table:
    columns = [pa.array([value], item.type) for value, item in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _describe_log(table: Table, asked: Statement) -> pa.Table:
    follower = table._follower  # noqa: SLF001 -- the handle's own store and settings
    return describe_log(follower.store, follower.config, include_all=asked.include_all)


def _describe_state(table: Table, _: Statement) -> pa.Table:
    snapshot = table.snapshot()
    base = snapshot.report.checkpoint
    store, config = table._follower.store, table._follower.config  # noqa: SLF001 -- the same
    gone = 0
    if base is not None and base < snapshot.version:
        later = describe_log(store, config, include_all=False)
        gone = later["action_type"].to_pylist().count("remove")
    data = store.find_many([f"{LOG}/{POINTER}"])[0]
    said = _pointer(data)
    parts = said.get("parts")
    form = "none" if base is None else str(said.get("format", "json"))
    return _row(
        _STATE,
        table.uri,
        form,
        snapshot.version,
        snapshot.num_files,
        0 if base is None else parts if isinstance(parts, int) else 1,
        gone,
        gone / (snapshot.num_files + gone) if gone else 0.0,
        snapshot.size_bytes,
        snapshot.version - (base or 0) >= config.checkpoint_interval,
        "No checkpoint found" if base is None else "OK",
    )


def _pointer(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _checkpoint(table: Table, _: Statement) -> pa.Table:
    done = table.checkpoint()
    protocol = table.snapshot().protocol
    return _row(
        _CHECKPOINT,
        table.uri,
        "SUCCESS",
        done.version,
        done.num_files + 2,
        done.num_files,
        protocol.min_reader_version,
        len(done.names) > 3,  # one JSON file, one Parquet file and its manifest
    )


def _truncate(table: Table, asked: Statement) -> pa.Table:
    done = table.truncate_history(dry_run=asked.dry_run)
    kinds = done.files["kind"].to_pylist()
    commits, checkpoints = kinds.count("commit"), kinds.count("checkpoint")
    snapshot = table.snapshot()
    verb = "Would delete" if asked.dry_run else "Deleted"
    return _row(
        _TRUNCATE,
        table.uri,
        "DRY_RUN" if asked.dry_run else "SUCCESS",
        snapshot.version,
        commits,
        checkpoints,
        snapshot.num_files,
        f"{verb} {commits} commits and {checkpoints} files of checkpoints;"
        f" versions can be read from {done.earliest_version} on.",
    )


def _drop(table: Table, asked: Statement) -> pa.Table:
    snapshot = table.snapshot()
    if not snapshot.partition_columns:
        raise InvalidRequest(
            f"{table.uri} has no partitions to be dropped.",
            next="Take files out with table.remove(paths).",
        )
    on_partitions(asked.where, table._committer.head_of(snapshot))  # noqa: SLF001 -- its own
    files = table.scan(asked.where, version=snapshot.version).files
    if files.num_rows == 0:
        what = f"No partition matches: {asked.where}"
        return _row(_DROP, table.uri, "no_action", 0, 0, 0, what)
    done = table.drop_partitions(asked.where, read_version=snapshot.version)
    columns = [f"partition.{name}" for name in snapshot.partition_columns]
    partitions = files.group_by(columns).aggregate([]).num_rows
    metrics = done.operation_metrics
    removed = int(metrics["numRemovedFiles"])
    what = (
        f"Dropped {partitions} partitions of {removed} files in version {done.version}; the files"
        " go with PURGE INDEXTABLE."
    )
    size = int(metrics["numRemovedBytes"])
    return _row(_DROP, table.uri, "success", partitions, removed, size, what)


def _purge(table: Table, asked: Statement) -> pa.Table:
    started = time.monotonic()
    older = _PURGE_MS if asked.older_than_ms is None else asked.older_than_ms
    cleaned = table.cleanup(dry_run=asked.dry_run)
    found = table.vacuum(older_than=older, dry_run=asked.dry_run)
    status = "DRY_RUN" if asked.dry_run else "PARTIAL_SUCCESS" if found.failures else "SUCCESS"
    states = {file.version for file in cleaned.retention.doomed if file.kind == "checkpoint"}
    commits = cleaned.num_files - sum(
        file.kind == "checkpoint" for file in cleaned.retention.doomed
    )
    gone = 0 if asked.dry_run else found.num_files
    verb = "would go" if asked.dry_run else "went"
    metrics = {
        "status": status,
        "orphaned_files_found": found.counts["orphan"],
        "orphaned_files_deleted": gone,
        "size_mb_deleted": 0.0 if asked.dry_run else found.bytes_freed / (1 << 20),
        "retention_hours": older // _HOUR_MS,
        "tx_log_files_deleted": 0 if asked.dry_run else commits,
        "expired_states_found": len(states),
        "expired_states_deleted": 0 if asked.dry_run else len(states),
        "dry_run": asked.dry_run,
        "duration_ms": int((time.monotonic() - started) * 1000),
        "message": f"{found.num_files} data files and {cleaned.num_files} files of the log {verb}.",
    }
    return _row(_PURGE, table.uri, metrics)


def _merge(table: Table, asked: Statement, spark: Any) -> pa.Table:
    given = {
        "target_size": asked.target_size,
        "where": asked.where,
        "max_groups": asked.max_groups,
        "max_files_per_group": asked.max_files_per_group,
        "spark": spark,
    }
    done = table.compact(**{name: value for name, value in given.items() if value is not None})
    what = f"{done.files_removed} files became {done.files_added}"
    if done.num_conflicts:
        what += f"; {done.num_conflicts} groups were changed by others meanwhile"
    if done.skipped:
        what += f"; {len(done.skipped)} files could not be read and were skipped"
    metrics = {
        "status": "success" if done.num_groups else "no_action",
        "merged_files": done.files_removed,
        "merge_groups": done.num_groups,
        "original_size_bytes": done.bytes_removed,
        "merged_size_bytes": done.bytes_added,
        "message": f"{what}.",
    }
    return _row(_MERGE, table.uri, metrics, None, None)


def _invalidate(asked: Statement) -> pa.Table:
    """Forget what the tables open in this process have read: one of them, or all."""
    root = None if asked.path is None else Table(asked.path).uri
    known = [each for each in open_followers() if root is None or each.store.root == root]
    asks = sum(tally.asked for each in known for tally in each.tallies)
    hits = sum(tally.found for each in known for tally in each.tallies)
    for each in known:
        each.forget()
    rate = f"{100 * hits / asks:.1f}%" if asks else "N/A"
    what = f"Transaction log cache invalidated in {len(known)} open tables"
    return _row(_INVALIDATE, root or "GLOBAL", what, hits, asks - hits, rate)


_DOING: dict[str, Callable[[Table, Statement], pa.Table]] = {
    "describe-log": _describe_log,
    "describe-state": _describe_state,
    "checkpoint": _checkpoint,
    "truncate": _truncate,
    "drop": _drop,
    "purge": _purge,
}
