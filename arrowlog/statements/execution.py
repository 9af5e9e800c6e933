"""Execution of the IndexTables SQL statements.

Each statement becomes one or two calls of `Table`. The result has the columns that IndexTables
returns for it. DESCRIBE TRANSACTION LOG returns the actions of the log as rows.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    empty_table,
    int64_or_none,
    make_array,
    make_int64,
    null_scalar,
    repeat_bool,
    repeat_value,
)
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables import LAST_CHECKPOINT, LOG_FOLDER, encode_json_column
from arrowlog.history import TIMESTAMP_MS, cast_to_view_type
from arrowlog.recovery import repair
from arrowlog.snapshot import (
    ReadOptions,
    decode_pointer,
    json_checkpoint_name,
    list_log,
    load_snapshot,
    missing_file_error,
    open_trackers,
    read_verified_actions,
)
from arrowlog.statements.parser import Statement, parse_statement
from arrowlog.table import Table
from arrowlog.transaction import parse_partition_predicate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arrowlog.config import Config
    from arrowlog.decode import ActionBatch
    from arrowlog.formats import Metadata, Protocol
    from arrowlog.snapshot import State
    from arrowlog.storage import Store

_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_DOUBLE = pa.float64()
_HOUR_MS = 3_600_000
_DEFAULT_PURGE_AGE_MS = 7 * 24 * _HOUR_MS  # as `Table.vacuum`
_STATE_COLUMNS = pa.schema(
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
_CHECKPOINT_COLUMNS = pa.schema(
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
_TRUNCATE_COLUMNS = pa.schema(
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
_DROP_COLUMNS = pa.schema(
    [
        ("table_path", _TEXT),
        ("status", _TEXT),
        ("partitions_dropped", _LONG),
        ("splits_removed", _LONG),
        ("total_size_bytes", _LONG),
        ("message", _TEXT),
    ]
)
_PURGE_METRICS = pa.struct(
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
_PURGE_COLUMNS = pa.schema([("table_path", _TEXT), ("metrics", _PURGE_METRICS)])
_MERGE_METRICS = pa.struct(
    [
        ("status", _TEXT),
        ("merged_files", _LONG),
        ("merge_groups", _LONG),
        ("original_size_bytes", _LONG),
        ("merged_size_bytes", _LONG),
        ("message", _TEXT),
    ]
)
_MERGE_COLUMNS = pa.schema(
    [
        ("table_path", _TEXT),
        ("metrics", _MERGE_METRICS),
        ("temp_directory_path", _TEXT),
        ("heap_size_bytes", _LONG),
    ]
)
_INVALIDATE_COLUMNS = pa.schema(
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
    """Execute an IndexTables statement: REPAIR, DESCRIBE, CHECKPOINT, TRUNCATE, DROP, PURGE, ….

    `docs/reference/statements.md` lists the statements. Returns a table in the columns of the
    statement. Raises `InvalidRequest` with a caret under the offending word if the text is not a
    valid statement, and the errors of the `Table` method that the statement calls. With `spark`,
    REPAIR and MERGE SPLITS use its workers.
    """
    statement = parse_statement(text)
    if statement.kind == "invalidate":
        root = None
        if statement.path is not None:
            root = Table(statement.path, storage_options, options=options).uri
        return _invalidate(root)
    assert statement.path is not None
    if statement.kind == "repair":
        assert statement.target is not None
        how = {"storage_options": storage_options, "options": options, "spark": spark}
        return repair(statement.path, statement.target, **how)
    settings = dict(options or {})
    if statement.log_retention_ms is not None:
        settings["logRetention.duration"] = statement.log_retention_ms
    table = Table(statement.path, storage_options, options=settings)
    if statement.kind == "merge":
        return _merge(table, statement, spark)
    return _EXECUTORS[statement.kind](table, statement)


def _row(schema: pa.Schema, *values: object) -> pa.Table:
    columns = [pa.array([value], item.type) for value, item in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _describe_log(table: Table, statement: Statement) -> pa.Table:
    tracker = table._tracker  # noqa: SLF001 -- the handle's own store and settings
    return describe_log(tracker.store, tracker.config, include_all=statement.include_all)


def _describe_state(table: Table, _: Statement) -> pa.Table:
    snapshot = table.snapshot()
    checkpoint = snapshot.report.checkpoint
    store, config = table._tracker.store, table._tracker.config  # noqa: SLF001 -- the same
    tombstones = 0  # removes since the checkpoint
    if checkpoint is not None and checkpoint < snapshot.version:
        actions = describe_log(store, config, include_all=False)
        tombstones = actions["action_type"].to_pylist().count("remove")
    pointer = decode_pointer(store.find_many([f"{LOG_FOLDER}/{LAST_CHECKPOINT}"])[0])
    parts = pointer.get("parts")
    form = "none" if checkpoint is None else str(pointer.get("format", "json"))
    return _row(
        _STATE_COLUMNS,
        table.uri,
        form,
        snapshot.version,
        snapshot.num_files,
        0 if checkpoint is None else parts if isinstance(parts, int) else 1,
        tombstones,
        tombstones / (snapshot.num_files + tombstones) if tombstones else 0.0,
        int64_or_none(snapshot.size_bytes),
        snapshot.version - (checkpoint or 0) >= config.checkpoint_interval,
        "No checkpoint found" if checkpoint is None else "OK",
    )


def _checkpoint(table: Table, _: Statement) -> pa.Table:
    done = table.checkpoint()
    protocol = table.snapshot().protocol
    return _row(
        _CHECKPOINT_COLUMNS,
        table.uri,
        "SUCCESS",
        done.version,
        done.num_files + 2,  # the adds, one protocol, one metaData
        done.num_files,
        protocol.min_reader_version,
        len(done.names) > 3,  # one JSON file, one Parquet file and its manifest
    )


def _truncate(table: Table, statement: Statement) -> pa.Table:
    done = table.truncate_history(dry_run=statement.dry_run)
    kinds = done.files["kind"].to_pylist()
    commits, checkpoints = kinds.count("commit"), kinds.count("checkpoint")
    snapshot = table.snapshot()
    verb = "Would delete" if statement.dry_run else "Deleted"
    return _row(
        _TRUNCATE_COLUMNS,
        table.uri,
        "DRY_RUN" if statement.dry_run else "SUCCESS",
        snapshot.version,
        commits,
        checkpoints,
        snapshot.num_files,
        f"{verb} {commits} commits and {checkpoints} checkpoint files;"
        f" the earliest readable version is {done.earliest_version}.",
    )


def _drop(table: Table, statement: Statement) -> pa.Table:
    snapshot = table.snapshot()
    if not snapshot.partition_columns:
        raise InvalidRequest(
            f"{table.uri} is not partitioned.",
            next="Remove files with table.remove(paths).",
        )
    # Refuses a predicate on other columns even if no file matches it.
    parse_partition_predicate(statement.where, table._session.head_of(snapshot))  # noqa: SLF001 -- its own
    files = table.scan(statement.where, version=snapshot.version).files
    if files.num_rows == 0:
        message = f"No partition matches: {statement.where}"
        return _row(_DROP_COLUMNS, table.uri, "no_action", 0, 0, 0, message)
    done = table.drop_partitions(statement.where, read_version=snapshot.version)
    columns = [f"partition.{name}" for name in snapshot.partition_columns]
    partitions = files.group_by(columns).aggregate([]).num_rows
    metrics = done.operation_metrics
    removed = int(metrics["numRemovedFiles"])
    message = (
        f"Dropped {partitions} partitions with {removed} files in version {done.version};"
        " PURGE INDEXTABLE deletes the files."
    )
    size = int64_or_none(int(metrics["numRemovedBytes"]))
    return _row(_DROP_COLUMNS, table.uri, "success", partitions, removed, size, message)


def _purge(table: Table, statement: Statement) -> pa.Table:
    started = time.monotonic()
    older_than = (
        _DEFAULT_PURGE_AGE_MS if statement.older_than_ms is None else statement.older_than_ms
    )
    cleaned = table.cleanup(dry_run=statement.dry_run)
    vacuumed = table.vacuum(older_than=older_than, dry_run=statement.dry_run)
    failed = cleaned.failures or vacuumed.failures
    status = "DRY_RUN" if statement.dry_run else "PARTIAL_SUCCESS" if failed else "SUCCESS"
    expired, states = (
        {file.version for file in files if file.is_base}
        for files in (cleaned.retention.files_to_delete, cleaned.log_files)
    )
    commits = sum(file.kind == "commit" for file in cleaned.log_files)
    deleted = 0 if statement.dry_run else vacuumed.num_files
    verb = "would be deleted" if statement.dry_run else "were deleted"
    metrics = {
        "status": status,
        "orphaned_files_found": vacuumed.counts["orphan"],
        "orphaned_files_deleted": deleted,
        "size_mb_deleted": 0.0 if statement.dry_run else vacuumed.bytes_freed / (1 << 20),
        "retention_hours": older_than // _HOUR_MS,
        "tx_log_files_deleted": 0 if statement.dry_run else commits,
        "expired_states_found": len(expired),
        "expired_states_deleted": 0 if statement.dry_run else len(states),
        "dry_run": statement.dry_run,
        "duration_ms": int((time.monotonic() - started) * 1000),
        "message": f"{vacuumed.num_files} data files and {cleaned.num_files} log files {verb}.",
    }
    return _row(_PURGE_COLUMNS, table.uri, metrics)


def _merge(table: Table, statement: Statement, spark: Any) -> pa.Table:
    options = {
        "target_size": statement.target_size,
        "where": statement.where,
        "max_groups": statement.max_groups,
        "max_files_per_group": statement.max_files_per_group,
        "spark": spark,
    }
    done = table.compact(**{name: value for name, value in options.items() if value is not None})
    message = f"{done.files_removed} files were merged into {done.files_added}"
    if done.num_conflicts:
        message += f"; {done.num_conflicts} groups conflicted with a concurrent commit"
    if done.skipped:
        message += f"; {len(done.skipped)} files could not be read and were skipped"
    metrics = {
        "status": "success" if done.num_groups else "no_action",
        "merged_files": done.files_removed,
        "merge_groups": done.num_groups,
        "original_size_bytes": done.bytes_removed,
        "merged_size_bytes": done.bytes_added,
        "message": f"{message}.",
    }
    return _row(_MERGE_COLUMNS, table.uri, metrics, None, None)


def _invalidate(root: str | None) -> pa.Table:
    """Invalidate the caches of the tables open in this process: of one root, or of all."""
    trackers = [each for each in open_trackers() if root is None or each.store.root == root]
    lookups = sum(counter.requests for each in trackers for counter in each.hit_counters)
    hits = sum(counter.hits for each in trackers for counter in each.hit_counters)
    for each in trackers:
        each.invalidate()
    rate = f"{100 * hits / lookups:.1f}%" if lookups else "N/A"
    message = f"Transaction log cache invalidated in {len(trackers)} open tables"
    return _row(_INVALIDATE_COLUMNS, root or "GLOBAL", message, hits, lookups - hits, rate)


_EXECUTORS: dict[str, Callable[[Table, Statement], pa.Table]] = {
    "describe-log": _describe_log,
    "describe-state": _describe_state,
    "checkpoint": _checkpoint,
    "truncate": _truncate,
    "drop": _drop,
    "purge": _purge,
}


_COMMITS_PER_BATCH = 512  # bounds the decoded actions that are held beside the result
_TIME = pa.timestamp("us", "UTC")
_MILLIS_FIELD = pa.field("time", TIMESTAMP_MS)
DESCRIBE_SCHEMA = pa.schema(
    [
        ("version", _LONG),
        ("log_file_path", _TEXT),
        ("action_type", _TEXT),
        ("path", _TEXT),
        ("partition_values", _TEXT),
        ("size", _LONG),
        ("data_change", _FLAG),
        ("tags", _TEXT),
        ("modification_time", _TIME),
        ("stats", _TEXT),
        ("min_values", _TEXT),
        ("max_values", _TEXT),
        ("num_records", _LONG),
        ("footer_start_offset", _LONG),
        ("footer_end_offset", _LONG),
        ("hotcache_start_offset", _LONG),
        ("hotcache_length", _LONG),
        ("has_footer_offsets", _FLAG),
        ("time_range_start", _TEXT),
        ("time_range_end", _TEXT),
        ("split_tags", _TEXT),
        ("delete_opstamp", _LONG),
        ("num_merge_ops", _INT),
        ("doc_mapping_json", _TEXT),
        ("doc_mapping_ref", _TEXT),
        ("uncompressed_size_bytes", _LONG),
        ("deletion_timestamp", _TIME),
        ("extended_file_metadata", _FLAG),
        ("skip_timestamp", _TIME),
        ("skip_reason", _TEXT),
        ("skip_operation", _TEXT),
        ("skip_retry_after", _TIME),
        ("skip_count", _INT),
        ("protocol_min_reader_version", _INT),
        ("protocol_min_writer_version", _INT),
        ("protocol_reader_features", _TEXT),
        ("protocol_writer_features", _TEXT),
        ("metadata_id", _TEXT),
        ("metadata_name", _TEXT),
        ("metadata_description", _TEXT),
        ("metadata_format_provider", _TEXT),
        ("metadata_format_options", _TEXT),
        ("metadata_schema_string", _TEXT),
        ("metadata_partition_columns", _TEXT),
        ("metadata_configuration", _TEXT),
        ("metadata_created_time", _TIME),
        ("is_checkpoint", _FLAG),
    ]
)
# The fields of an add: path … uncompressed_size_bytes.
_ADD_COLUMNS = DESCRIBE_SCHEMA.names[3:26]
_SKIP_FIELDS = {
    "skip_timestamp": "skipTimestamp",
    "skip_reason": "reason",
    "skip_operation": "operation",
    "skip_retry_after": "retryAfter",
    "skip_count": "skipCount",
}
_ACTION_TYPES = {"add": "add", "remove": "remove", "mergeskip": "skip"}
_MAP_FIELDS = ("partitionValues", "minValues", "maxValues", "tags", "splitTags")


def describe_log(store: Store, config: Config, *, include_all: bool) -> pa.Table:
    """Return one row per action, with the columns of `SCHEMA`, in log order.

    The rows begin with the state of the newest readable checkpoint. With `include_all` they are
    the actions of every commit in the log, and checkpoints are ignored. Raises `LogCorrupt` if a
    file that is needed is damaged or gone.
    """
    for last_attempt in (False, True):
        try:
            return _describe(store, config, include_all=include_all)
        except FileNotFoundError as error:  # possibly a concurrent cleanup: list again
            if last_attempt:
                raise missing_file_error(error) from None
    raise AssertionError  # the loop either returns or raises


def _describe(store: Store, config: Config, *, include_all: bool) -> pa.Table:
    listing = list_log(store)
    commits = listing.commit_files()
    options = ReadOptions(config, allow_external_paths=True)
    tables: list[pa.Table] = [empty_table(DESCRIBE_SCHEMA)]
    checkpoint = None
    if not include_all:
        # The checkpoint that loading used, which may be older than a newer one that is damaged.
        checkpoint = load_snapshot(store, listing, options).report.checkpoint
    if checkpoint is not None:
        state = load_snapshot(store, listing, options, checkpoint).state
        table_state = listing.state_file(checkpoint)
        key = f"{LOG_FOLDER}/{json_checkpoint_name(checkpoint)}"
        if table_state is not None:
            key = table_state.key
        tables += _checkpoint_rows(state, f"{store.root}/{key}")
        commits = [commit for commit in commits if commit.version > checkpoint]
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        actions = read_verified_actions(store, options, commits[start : start + _COMMITS_PER_BATCH])
        tables.append(_commit_rows(actions, store.root))
    return pa.concat_tables(tables)


def _checkpoint_rows(state: State, file: str) -> list[pa.Table]:
    count = state.num_files
    tables = [
        _single_row("protocol", _protocol_columns(state.protocol)),
        _single_row("metadata", _metadata_columns(state.metadata)),
    ]
    if count:
        tables.append(_rows("add", _add_columns(state.adds), count))
    return [
        _with_positions(
            table,
            repeat_value(state.version, _LONG, table.num_rows),
            repeat_value(file, _TEXT, table.num_rows),
            checkpoint=True,
        )
        for table in tables
    ]


def _commit_rows(actions: ActionBatch, root: str) -> pa.Table:
    """Return the actions of some commits in log order."""
    parts: list[tuple[pa.Array, pa.Table]] = []
    for action, action_type in _ACTION_TYPES.items():
        table = actions.table(action)
        if table.num_rows:
            columns = _add_columns(table) if action == "add" else _other_columns(table, action)
            seq = table["seq"].combine_chunks()
            parts.append((seq, _rows(action_type, columns, table.num_rows)))
    for seq, protocol in actions.protocols:
        row = _single_row("protocol", _protocol_columns(protocol))
        parts.append((make_array([seq], _LONG), row))
    for seq, metadata in actions.metadata:
        row = _single_row("metadata", _metadata_columns(metadata))
        parts.append((make_array([seq], _LONG), row))
    if not parts:
        return empty_table(DESCRIBE_SCHEMA)
    seqs = pa.concat_arrays([seq for seq, _ in parts])
    order = pc.sort_indices(seqs)
    file_numbers = pc.shift_right(seqs.take(order), make_int64(SEQ_LINE_BITS))
    versions = make_array(actions.versions, _LONG).take(file_numbers)
    files = make_array([f"{root}/{name}" for name in actions.names], _TEXT).take(file_numbers)
    table = pa.concat_tables([part for _, part in parts]).take(order)
    return _with_positions(table, versions, files, checkpoint=False)


def _with_positions(
    table: pa.Table, versions: pa.Array, files: pa.Array, *, checkpoint: bool
) -> pa.Table:
    """Fill the columns that say where an action comes from."""
    for name, column in (
        ("version", versions),
        ("log_file_path", files),
        ("is_checkpoint", repeat_bool(checkpoint, table.num_rows)),
    ):
        table = table.set_column(
            DESCRIBE_SCHEMA.get_field_index(name), DESCRIBE_SCHEMA.field(name), column
        )
    return table


def _rows(action_type: str, columns: dict[str, Any], count: int) -> pa.Table:
    """Return a table with all columns of `SCHEMA`; columns that are missing are null."""
    columns["action_type"] = repeat_value(action_type, _TEXT, count)
    arrays = [
        _cast(columns[item.name], item.type) if item.name in columns else pa.nulls(count, item.type)
        for item in DESCRIBE_SCHEMA
    ]
    return pa.table(arrays, schema=DESCRIBE_SCHEMA)


def _cast(column: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return pc.cast(cast_to_view_type(column, _MILLIS_FIELD), kind)
    if kind == _INT:
        column = pc.cast(column, _LONG)
        fits = pc.equal(pc.cast(pc.cast(column, _INT, safe=False), _LONG), column)
        column = pc.if_else(fits, column, null_scalar(_LONG))
    return pc.cast(column, kind)


def _add_columns(adds: pa.Table) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in _ADD_COLUMNS:
        field = _camel_case(name)
        if field in _MAP_FIELDS:
            columns[name] = encode_json_column(adds, field)
        elif field in adds.column_names:
            columns[name] = adds[field]
    # An add without `dataChange` changes data.
    default = repeat_bool(True, adds.num_rows)
    columns["data_change"] = pc.fill_null(columns.get("data_change", default), default[0])
    return columns


def _other_columns(table: pa.Table, action: str) -> dict[str, Any]:
    """Return the columns of removes or mergeskips."""
    names = {"path": "path", "partition_values": "partitionValues", "size": "size"}
    if action == "mergeskip":
        names |= _SKIP_FIELDS
    else:
        same_name = ("data_change", "tags", "deletion_timestamp", "extended_file_metadata")
        names |= {name: _camel_case(name) for name in same_name}
    return {name: table[field] for name, field in names.items() if field in table.column_names}


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _single_row(action_type: str, values: dict[str, Any]) -> pa.Table:
    columns = {
        name: pa.array([value], _LONG if DESCRIBE_SCHEMA.field(name).type == _TIME else None)
        for name, value in values.items()
        if value is not None
    }
    return _rows(action_type, columns, 1)


def _protocol_columns(protocol: Protocol) -> dict[str, Any]:
    return {
        "protocol_min_reader_version": protocol.min_reader_version,
        "protocol_min_writer_version": protocol.min_writer_version,
        "protocol_reader_features": _compact_json(list(protocol.reader_features) or None),
        "protocol_writer_features": _compact_json(list(protocol.writer_features) or None),
    }


def _metadata_columns(metadata: Metadata) -> dict[str, Any]:
    return {
        "metadata_id": metadata.id,
        "metadata_name": metadata.name,
        "metadata_description": metadata.description,
        "metadata_format_provider": metadata.format_provider,
        "metadata_format_options": _compact_json(dict(metadata.format_options)),
        "metadata_schema_string": metadata.schema_string,
        "metadata_partition_columns": _compact_json(list(metadata.partition_columns)),
        "metadata_configuration": _compact_json(dict(metadata.configuration)),
        "metadata_created_time": metadata.created_time,
    }


def _compact_json(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
