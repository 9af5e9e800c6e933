"""The actions of a log as rows: the result of DESCRIBE INDEXTABLES TRANSACTION LOG."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, make_int64, null_scalar, repeat_bool, repeat_value
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.formats.indextables import LOG_FOLDER, encode_json_column
from arrowlog.history import TIMESTAMP_MS, cast_to_view_type, missing_commit_is_corrupt
from arrowlog.snapshot import (
    ReadOptions,
    json_checkpoint_name,
    list_log,
    load_snapshot,
    read_verified_actions,
)

if TYPE_CHECKING:
    from arrowlog.config import Config
    from arrowlog.decode import ActionBatch
    from arrowlog.formats.indextables import Metadata, Protocol
    from arrowlog.snapshot import State
    from arrowlog.storage import Store

_COMMITS_PER_BATCH = 512  # bounds the decoded actions that are held beside the result
_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
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
    commit is damaged or was deleted since it was listed.
    """
    with missing_commit_is_corrupt(store):
        return _describe(store, config, include_all=include_all)


def _describe(store: Store, config: Config, *, include_all: bool) -> pa.Table:
    listing = list_log(store)
    commits = listing.commit_files()
    options = ReadOptions(config, allow_external_paths=True)
    tables: list[pa.Table] = [DESCRIBE_SCHEMA.empty_table()]
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
        return DESCRIBE_SCHEMA.empty_table()
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
