"""The actions of a log as rows, in the columns that DESCRIBE … TRANSACTION LOG has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import array_of, flags, number, same
from arrowlog.log.names import LOG
from arrowlog.log.texts import json_column
from arrowlog.log.window import LINE_BITS
from arrowlog.sql.past import gone_is_corrupt
from arrowlog.sql.sheets import MILLIS, sane
from arrowlog.state.checkpoint import json_name
from arrowlog.state.listing import list_log
from arrowlog.state.load import load, read_commits

if TYPE_CHECKING:
    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata, Protocol
    from arrowlog.log.decode import Actions
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import State

_AT_ONCE = 512
_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_TIME = pa.timestamp("us", "UTC")
_MILLIS = pa.field("time", MILLIS)
SCHEMA = pa.schema(
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
_SKIP = {
    "skip_timestamp": "skipTimestamp",
    "skip_reason": "reason",
    "skip_operation": "operation",
    "skip_retry_after": "retryAfter",
    "skip_count": "skipCount",
}
_KINDS = {"add": "add", "remove": "remove", "mergeskip": "skip"}
_MAPS = ("partitionValues", "minValues", "maxValues", "tags", "splitTags")


def describe_log(store: Store, config: Config, *, include_all: bool) -> pa.Table:
    """All actions from the newest checkpoint on, or with `include_all` of every commit there is."""
    with gone_is_corrupt(store):
        return _described(store, config, include_all=include_all)


def _described(store: Store, config: Config, *, include_all: bool) -> pa.Table:
    listing = list_log(store)
    commits = sorted(listing.commits.items())
    found: list[pa.Table] = [SCHEMA.empty_table()]
    base = None
    if not include_all:
        base = load(store, listing, config, outside=True).report.checkpoint
    if base is not None:
        state = load(store, listing, config, base, outside=True).state
        found += _checkpoint(state, f"{store.root}/{LOG}/{json_name(base)}")
        commits = [(version, name) for version, name in commits if version > base]
    for start in range(0, len(commits), _AT_ONCE):
        actions = read_commits(store, config, commits[start : start + _AT_ONCE])
        found.append(_commits(actions, store.root))
    return pa.concat_tables(found)


def _checkpoint(state: State, file: str) -> list[pa.Table]:
    count = state.num_files
    tables = [
        _single("protocol", _protocol(state.protocol)),
        _single("metadata", _metadata(state.metadata)),
    ]
    if count:
        tables.append(_rows("add", _adds(state.adds), count))
    return [
        _placed(
            table,
            same(state.version, _LONG, table.num_rows),
            same(file, _TEXT, table.num_rows),
            checkpoint=True,
        )
        for table in tables
    ]


def _commits(actions: Actions, root: str) -> pa.Table:
    """The actions of some commits, in the order in which they stand there."""
    parts: list[tuple[pa.Array, pa.Table]] = []
    for kind, shown in _KINDS.items():
        table = actions.table(kind)
        if table.num_rows:
            columns = _adds(table) if kind == "add" else _others(table, kind)
            seq = table["seq"].combine_chunks()
            parts.append((seq, _rows(shown, columns, table.num_rows)))
    for seq, protocol in actions.protocols:
        parts.append((array_of([seq], _LONG), _single("protocol", _protocol(protocol))))
    for seq, metadata in actions.metadata:
        parts.append((array_of([seq], _LONG), _single("metadata", _metadata(metadata))))
    if not parts:
        return SCHEMA.empty_table()
    seqs = pa.concat_arrays([seq for seq, _ in parts])
    order = pc.sort_indices(seqs)
    numbers = pc.shift_right(seqs.take(order), number(LINE_BITS))
    versions = array_of(actions.versions, _LONG).take(numbers)
    files = array_of([f"{root}/{name}" for name in actions.names], _TEXT).take(numbers)
    table = pa.concat_tables([part for _, part in parts]).take(order)
    return _placed(table, versions, files, checkpoint=False)


def _placed(table: pa.Table, versions: pa.Array, files: pa.Array, *, checkpoint: bool) -> pa.Table:
    """Rows with where they were found."""
    for name, column in (
        ("version", versions),
        ("log_file_path", files),
        ("is_checkpoint", flags(checkpoint, table.num_rows)),
    ):
        table = table.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
    return table


def _rows(action: str, columns: dict[str, Any], count: int) -> pa.Table:
    """A table in all columns, nulls where an action has none."""
    columns["action_type"] = same(action, _TEXT, count)
    made = [
        _cast(columns[item.name], item.type) if item.name in columns else pa.nulls(count, item.type)
        for item in SCHEMA
    ]
    return pa.table(made, schema=SCHEMA)


def _cast(column: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return pc.cast(sane(column, _MILLIS), kind)
    return pc.cast(column, kind)


def _adds(adds: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SCHEMA.names[3:26]:
        field = _camel(name)
        if field in _MAPS:
            found[name] = json_column(adds, field)
        elif field in adds.column_names:
            found[name] = adds[field]
    absent = flags(True, adds.num_rows)
    found["data_change"] = pc.fill_null(found.get("data_change", absent), absent[0])
    return found


def _others(table: pa.Table, kind: str) -> dict[str, Any]:
    """Removes and skips."""
    names = {"path": "path", "partition_values": "partitionValues", "size": "size"}
    if kind == "mergeskip":
        names |= _SKIP
    else:
        plain = ("data_change", "tags", "deletion_timestamp", "extended_file_metadata")
        names |= {name: _camel(name) for name in plain}
    return {name: table[field] for name, field in names.items() if field in table.column_names}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _single(action: str, values: dict[str, Any]) -> pa.Table:
    columns = {
        name: pa.array([value], _LONG if SCHEMA.field(name).type == _TIME else None)
        for name, value in values.items()
        if value is not None
    }
    return _rows(action, columns, 1)


def _protocol(protocol: Protocol) -> dict[str, Any]:
    return {
        "protocol_min_reader_version": protocol.min_reader_version,
        "protocol_min_writer_version": protocol.min_writer_version,
        "protocol_reader_features": _json(list(protocol.reader_features) or None),
        "protocol_writer_features": _json(list(protocol.writer_features) or None),
    }


def _metadata(metadata: Metadata) -> dict[str, Any]:
    return {
        "metadata_id": metadata.id,
        "metadata_name": metadata.name,
        "metadata_description": metadata.description,
        "metadata_format_provider": metadata.format_provider,
        "metadata_format_options": _json(dict(metadata.format_options)),
        "metadata_schema_string": metadata.schema_string,
        "metadata_partition_columns": _json(list(metadata.partition_columns)),
        "metadata_configuration": _json(dict(metadata.configuration)),
        "metadata_created_time": metadata.created_time,
    }


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
