"""The columns of each history view, built from decoded commits.

The row functions (`adds`, `removes`, `skips`, `infos`, `commits`) take a `CommitBatch` and the
names of the columns a query needs, and return a table with exactly these columns. No other column
is parsed or typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, make_array, make_scalar, null_scalar, sum_slices, to_numpy
from arrowlog.decode import SEQ_LINE_BITS, flatten_map_columns
from arrowlog.fork_safety import OnFirstUse
from arrowlog.formats import FieldKind, physical_name
from arrowlog.formats.indextables import INDEXTABLES, SKIP_FIELDS, encode_add_objects
from arrowlog.history.commit_history import line_numbers
from arrowlog.snapshot import FileStats, files_column_name, files_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from arrowlog.formats import Format, Metadata, Protocol
    from arrowlog.history.commit_history import CommitBatch

TIMESTAMP_MS: pa.DataType = pa.timestamp("ms", "UTC")
_INT, _TEXT, _BOOL = pa.int64(), pa.string(), pa.bool_()
_TEXT_LIST, _TEXT_MAP = pa.list_(_TEXT), pa.map_(_TEXT, _TEXT)
# DuckDB counts timestamps in 64-bit microseconds, so milliseconds beyond about 9.2e15 overflow it.
_MAX_TIMESTAMP_MS = 8_000_000_000_000_000
_TIMESTAMP_FIELDS = ("deletionTimestamp", "skipTimestamp", "retryAfter")

COMMITS_SCHEMA = pa.schema(
    [
        ("version", _INT),
        ("timestamp", TIMESTAMP_MS),
        ("operation", _TEXT),
        ("adds", _INT),
        ("removes", _INT),
        ("bytes", _INT),
        ("bytes_removed", _INT),
        ("rows", _INT),
        ("txn_id", _TEXT),
        ("read_version", _INT),
        ("user_metadata", _TEXT),
        ("engine_info", _TEXT),
        ("operation_parameters", _TEXT),
        ("operation_metrics", _TEXT),
        ("skips", _INT),
        ("app_id", _TEXT),
        ("app_version", _INT),
        ("changes_metadata", _BOOL),
        ("changes_protocol", _BOOL),
        ("timestamp_source", _TEXT),
        ("file", _TEXT),
    ]
)
METADATA_SCHEMA = pa.schema(
    [
        ("version", _INT),
        ("line", _INT),
        ("id", _TEXT),
        ("name", _TEXT),
        ("description", _TEXT),
        ("schema_string", _TEXT),
        ("partition_columns", _TEXT_LIST),
        ("configuration", _TEXT_MAP),
        ("format_provider", _TEXT),
        ("created_time", TIMESTAMP_MS),
    ]
)
PROTOCOLS_SCHEMA = pa.schema(
    [
        ("version", _INT),
        ("line", _INT),
        ("min_reader_version", _INT),
        ("min_writer_version", _INT),
        ("reader_features", _TEXT_LIST),
        ("writer_features", _TEXT_LIST),
    ]
)
_POSITION = [("version", _INT), ("line", _INT)]
COMMIT_INFO_SCHEMA = pa.schema(_POSITION)


_SHARED_REMOVE_FIELDS = {"size": FieldKind.INT, "dataChange": FieldKind.BOOL}


@dataclass(frozen=True)
class ViewTypes:
    """The schema that types partition values and statistics, the same for every version.

    `format` is that of the log; it declares the fields of the actions.
    """

    schema: pa.Schema
    partition_columns: tuple[str, ...]
    format: Format = INDEXTABLES

    @OnFirstUse
    def typed_schema(self) -> pa.Schema:
        """The schema with the partition columns that it lacks, as text."""
        return FileStats(pa.table({}), self.schema, self.partition_columns).schema

    @OnFirstUse
    def files(self) -> pa.Schema:
        """The columns of the view `files`: those of `Snapshot.files`, not dictionary-encoded."""
        fields = files_table(
            pa.table({}), self.typed_schema, self.partition_columns, table_format=self.format
        ).schema
        return pa.schema([field.with_type(_without_dictionary(field.type)) for field in fields])

    @OnFirstUse
    def adds(self) -> pa.Schema:
        """The columns of the view `adds`."""
        return pa.schema([*_POSITION, *self.files, ("key", _TEXT), ("json", _TEXT)])

    @OnFirstUse
    def partitions(self) -> list[pa.Field]:
        """The `partition.*` columns."""
        return [field for field in self.files if field.name.startswith("partition.")]

    @OnFirstUse
    def removes(self) -> pa.Schema:
        """The columns of the view `removes`; those that `actions` needs exist in every format."""
        fields = {**_SHARED_REMOVE_FIELDS, **self.format.actions.fields["remove"]}
        return _action_schema(fields, self.partitions)

    @OnFirstUse
    def skips(self) -> pa.Schema:
        """The columns of the view `skips`."""
        return _action_schema(SKIP_FIELDS, self.partitions)

    @staticmethod
    def of(
        newest: tuple[pa.Schema, Sequence[str]],
        *older: tuple[pa.Schema, Sequence[str]],
        table_format: Format = INDEXTABLES,
    ) -> ViewTypes:
        """Merge (schema, partition columns) pairs; if a column differs, the newest type wins."""
        schema, partitions = newest[0], dict.fromkeys(newest[1])
        for other, names in older:
            missing = [field for field in other if schema.get_field_index(field.name) < 0]
            schema = pa.schema([*schema, *missing])
            partitions |= dict.fromkeys(names)
        return ViewTypes(schema, tuple(partitions), table_format)


def _action_schema(fields: Mapping[str, FieldKind], partitions: Sequence[pa.Field]) -> pa.Schema:
    columns: list[Any] = [*_POSITION]
    for name, kind in fields.items():
        if name == "partitionValues":
            columns += partitions
        else:
            columns.append(
                (
                    files_column_name(name),
                    TIMESTAMP_MS if name in _TIMESTAMP_FIELDS else _without_dictionary(kind.type),
                )
            )
    return pa.schema([*columns, ("key", _TEXT)])


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def add_columns(table: pa.Table, types: ViewTypes, names: Collection[str]) -> dict[str, Any]:
    """Return the requested columns of decoded adds, typed; unknown names are left out."""
    wanted = [name for name in names if types.files.get_field_index(name) >= 0]
    columns: dict[str, Any] = {}
    if wanted:
        typed = files_table(
            table, types.schema, types.partition_columns, wanted, table_format=types.format
        )
        columns = {name: typed[name] for name in wanted}
    if "key" in names:
        columns["key"] = table["key"]
    if "json" in names:
        columns["json"] = encode_add_objects(table, path="path")
    return columns


def add_rows(piece: CommitBatch, types: ViewTypes, names: Collection[str]) -> pa.Table:
    """Return one row per add action."""
    table = piece.table("add")
    columns = _positions(piece, table, names) | add_columns(table, types, names)
    return conform_to_view(columns, types.adds, names, table.num_rows)


def remove_rows(piece: CommitBatch, types: ViewTypes, names: Collection[str]) -> pa.Table:
    """Return one row per remove action."""
    fields = types.format.actions.fields["remove"]
    return _action_rows(piece, "remove", fields, types.removes, types, names)


def skip_rows(piece: CommitBatch, types: ViewTypes, names: Collection[str]) -> pa.Table:
    """Return one row per mergeskip action: a file that compaction skipped."""
    return _action_rows(piece, "mergeskip", SKIP_FIELDS, types.skips, types, names)


def commit_info_rows(piece: CommitBatch, names: Collection[str]) -> pa.Table:
    """Return the position of every commitInfo action."""
    table = piece.table("commitInfo")
    return conform_to_view(
        _positions(piece, table, names), COMMIT_INFO_SCHEMA, names, table.num_rows
    )


def _action_rows(
    piece: CommitBatch,
    action: str,
    fields: Mapping[str, FieldKind],
    schema: pa.Schema,
    types: ViewTypes,
    names: Collection[str],
) -> pa.Table:
    table = piece.table(action)
    columns = _positions(piece, table, names)
    action_fields = {files_column_name(name): name for name in (*fields, "key")}
    for name in names:
        source = action_fields.get(name)
        if source in table.column_names:
            columns[name] = table[source]
        elif f"{source}.storageType" in table.column_names:
            columns[name] = files_table(
                table, types.schema, types.partition_columns, [name], table_format=types.format
            )[name]
    wanted = [name for name in names if name.startswith("partition.")]
    if wanted and "partitionValues" in table.column_names:
        columns |= _partition_columns(table["partitionValues"], types, wanted)
    return conform_to_view(columns, schema, names, table.num_rows)


def _partition_columns(
    texts: pa.ChunkedArray, types: ViewTypes, wanted: list[str]
) -> dict[str, Any]:
    """Parse partition values from JSON text; each distinct text is parsed once."""
    codes = texts.combine_chunks().dictionary_encode()
    # `raw` marks rows whose values are still JSON text; `flatten` parses exactly these.
    raw = pa.repeat(make_scalar(True, _BOOL), len(codes.dictionary))
    distinct = pa.table({"partitionValues": codes.dictionary, "raw": raw})
    typed = files_table(
        flatten_map_columns(
            distinct, [physical_name(types.schema, name) for name in types.partition_columns]
        ),
        types.schema,
        types.partition_columns,
        wanted,
        types.format,
    )
    return {name: typed[name].take(codes.indices) for name in wanted}


def _positions(piece: CommitBatch, table: pa.Table, names: Collection[str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "version" in names:
        columns["version"] = piece.version_of(table["seq"])
    if "line" in names:
        columns["line"] = line_numbers(table["seq"])
    return columns


def commit_rows(
    piece: CommitBatch, names: Collection[str], written: Callable[[int], int | None]
) -> pa.Table:
    """Return one row per commit.

    `written` returns the time at which the file of a version was written, in milliseconds by the
    store's clock. It is called only for commits that have no time of their own.
    """
    wanted, count = set(names), len(piece.names)
    columns: dict[str, Any] = {"version": piece.versions}
    if "file" in wanted:
        columns["file"] = make_array(piece.names, _TEXT)
    for action, total, sums in (
        ("add", "adds", {"bytes": "size_bytes", "rows": "num_records"}),
        ("remove", "removes", {"bytes_removed": "size"}),
        ("mergeskip", "skips", {}),
    ):
        if wanted & {total, *sums}:
            wanted_sums = {new: old for new, old in sums.items() if new in wanted}
            columns |= _action_counts(piece, action, total, wanted_sums)
    for name, actions in (
        ("changes_metadata", piece.metadata),
        ("changes_protocol", piece.protocols),
    ):
        if name in wanted:
            files = {seq >> SEQ_LINE_BITS for seq, _ in actions}
            columns[name] = make_array([number in files for number in range(count)], _BOOL)
    if wanted - set(columns):
        infos = _commit_infos(piece, wanted)
        if wanted & {"app_id", "app_version"}:
            infos |= _txn_actions(piece)
        if wanted & {"timestamp", "timestamp_source"}:
            infos |= _timestamps(piece, infos["timestamp"], written)
        columns |= infos
    return conform_to_view(columns, COMMITS_SCHEMA, names, count)


def _action_counts(
    piece: CommitBatch, action: str, count: str, sums: dict[str, str]
) -> dict[str, pa.Array]:
    """Count the actions of one kind per commit and sum up columns.

    `sums` maps a result column to the column that is summed. A sum is null if an action of the
    commit lacks the value, or if it exceeds 64 bits; without such an action it is 0. Everything is
    null if the actions are unknown.
    """
    num_files = len(piece.names)
    if piece.unknown:
        return {name: pa.nulls(num_files, _INT) for name in (count, *sums)}
    table = piece.table(action)
    columns: Any = {}
    if action == "add" and sums:
        wanted = list(sums.values())
        columns = files_table(table, pa.schema([]), (), wanted, table_format=piece.format)
    elif sums:
        size = table["size"] if "size" in table.column_names else pa.nulls(table.num_rows, _INT)
        columns["size"] = size
    files, order = _file_numbers(table), None
    if (files[1:] < files[:-1]).any():
        order = np.argsort(files, kind="stable")
        files = files[order]
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    found, lengths = files[starts], np.diff(starts, append=len(files))
    counted = {count: _scatter(found, lengths, num_files)}
    for new, old in sums.items():
        values = _one_array(columns[old])
        lacking = to_numpy(pc.cast(pc.is_null(values), pa.int64()))
        numbers = to_numpy(pc.fill_null(pc.cast(values, _INT), make_scalar(0, _INT)))
        if order is not None:
            lacking, numbers = lacking[order], numbers[order]
        total, fits = sum_slices(from_numpy(numbers), starts)
        missing = sum_slices(from_numpy(lacking), starts)[0] + ~fits
        unknown = pc.greater(_scatter(found, missing, num_files), make_scalar(0, _INT))
        counted[new] = pc.if_else(unknown, null_scalar(_INT), _scatter(found, total, num_files))
    return counted


def _file_numbers(table: pa.Table) -> Any:
    """Return the number of the file that each action is from, as a numpy array."""
    return to_numpy(_one_array(table["seq"])) >> SEQ_LINE_BITS


def _scatter(rows: Any, values: Any, count: int) -> pa.Array:
    """Return an array of `count` numbers: `values` at `rows`, and 0 elsewhere."""
    scattered = np.zeros(count, np.int64)
    scattered[rows] = values
    return from_numpy(scattered)


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _last_rows(table: pa.Table, count: int) -> pa.Array:
    """Return for each of `count` files the row of its last action; null for a file without one."""
    rows = np.full(count, -1, np.int64)
    order = np.argsort(to_numpy(_one_array(table["seq"])), kind="stable")
    rows[_file_numbers(table)[order]] = order  # of several values for one index, the last is kept
    positions = from_numpy(rows)
    none = make_scalar(0, _INT)
    return pc.if_else(pc.less(positions, none), null_scalar(_INT), positions)


def _commit_infos(piece: CommitBatch, wanted: set[str]) -> dict[str, Any]:
    """Return columns of the commitInfo of each commit; of several in one commit, the last counts.

    The time is always among them. Columns that no commitInfo has are left out.
    """
    table = piece.table("commitInfo")
    last = _last_rows(table, len(piece.names))
    columns: dict[str, Any] = {"timestamp": pa.nulls(len(last), _INT)}
    for name in table.column_names:
        column = files_column_name(name)
        if column in wanted or name in ("timestamp", "txn", "inCommitTimestamp"):
            columns[column] = _one_array(table[name]).take(last)
    if "in_commit_timestamp" in columns:
        committed = columns.pop("in_commit_timestamp")
        columns["timestamp"] = pc.coalesce(committed, columns["timestamp"])
    if "user_metadata" in columns:
        columns["user_metadata"] = _unquoted(columns["user_metadata"])
    txn = columns.pop("txn", None)
    if txn is not None and wanted & {"app_id", "app_version"}:
        columns |= _application_transactions(txn)
    return columns


def _unquoted(texts: pa.Array) -> pa.Array:
    """Return raw JSON with strings shown without their quotes and escapes."""
    codes = texts.dictionary_encode()
    shown = [
        msgspec.json.decode(text) if text.startswith('"') else text
        for text in codes.dictionary.to_pylist()
    ]
    return make_array(shown, _TEXT).take(codes.indices)


def _txn_actions(piece: CommitBatch) -> dict[str, Any]:
    """Return application transactions that are actions of their own; of several, the last counts.

    They replace those of commitInfos if there is at least one.
    """
    action = piece.format.txn_action
    table = None if action is None else piece.table(action)
    if table is None or not table.num_rows:
        return {}
    last = _last_rows(table, len(piece.names))
    return {
        "app_id": _one_array(table["appId"]).take(last),
        "app_version": _one_array(table["version"]).take(last),
    }


def _application_transactions(texts: pa.Array) -> dict[str, pa.Array]:
    """Parse the `txn` objects; each distinct text is parsed once, since most commits have none."""
    codes = texts.dictionary_encode()
    parsed = [_application_transaction(text) for text in codes.dictionary.to_pylist()]
    return {
        "app_id": make_array([app_id for app_id, _ in parsed], _TEXT).take(codes.indices),
        "app_version": make_array([version for _, version in parsed], _INT).take(codes.indices),
    }


def _application_transaction(text: str) -> tuple[str | None, int | None]:
    value = msgspec.json.decode(text)
    txn = value if isinstance(value, dict) else {}
    app_id, version = txn.get("appId"), txn.get("version")
    return (
        app_id if isinstance(app_id, str) else None,
        version if isinstance(version, int) and abs(version) < 1 << 63 else None,
    )


def _timestamps(
    piece: CommitBatch, declared: pa.Array, written: Callable[[int], int | None]
) -> dict[str, pa.Array]:
    """Return `timestamp` and `timestamp_source`; `declared` are the times of the commitInfos.

    The time is that of the commitInfo or of the table state, else the creation time of the commit's
    metaData, else the time the file was written. Copying a table renews its file times, so a file
    time is clamped to the times its neighbours declare.
    """
    created = {
        seq >> SEQ_LINE_BITS: metadata.created_time
        for seq, metadata in piece.metadata
        if metadata.created_time is not None and piece.format.creation_time_counts
    } | dict(piece.state_times)
    numbers = range(len(declared))
    if created:
        creation_times = make_array([created.get(number) for number in numbers], _INT)
        declared = pc.coalesce(declared, creation_times)
    times, source = declared, pa.repeat(make_scalar("commit", _TEXT), len(declared))
    if declared.null_count:
        undeclared = pc.is_null(declared)
        versions = piece.versions.filter(undeclared).to_pylist()
        file_times = pc.replace_with_mask(
            declared, undeclared, make_array([written(version) for version in versions], _INT)
        )
        before, after = pc.fill_null_forward(declared), pc.fill_null_backward(declared)
        clamped = pc.max_element_wise(before, pc.min_element_wise(file_times, after))
        times = pc.coalesce(declared, clamped)
        source = pc.if_else(undeclared, make_scalar("file", _TEXT), source)
    if piece.state_times:
        states = {number for number, _ in piece.state_times}
        is_state = make_array([number in states for number in numbers], _BOOL)
        source = pc.if_else(is_state, make_scalar("state", _TEXT), source)
    return {"timestamp": times, "timestamp_source": source}


def metadata_rows(rows: Sequence[tuple[int, int | None, Metadata]]) -> pa.Table:
    """Return rows of the view `metadata`; the line is None for metadata of a checkpoint."""
    return _table_of_rows(
        METADATA_SCHEMA,
        [
            (
                version,
                line,
                metadata.id,
                metadata.name,
                metadata.description,
                metadata.schema_string,
                list(metadata.partition_columns),
                list(metadata.configuration.items()),
                metadata.format_provider,
                metadata.created_time,
            )
            for version, line, metadata in rows
        ],
    )


def protocol_rows(rows: Sequence[tuple[int, int | None, Protocol]]) -> pa.Table:
    """Return rows of the view `protocols`; the line is None for a protocol of a checkpoint."""
    return _table_of_rows(
        PROTOCOLS_SCHEMA,
        [
            (
                version,
                line,
                protocol.min_reader_version,
                protocol.min_writer_version,
                list(protocol.reader_features),
                list(protocol.writer_features),
            )
            for version, line, protocol in rows
        ],
    )


def _table_of_rows(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    return pa.table(
        {
            field.name: cast_to_view_type(
                pa.chunked_array([pa.array(list(column), _storage_type(field.type))]), field
            )
            for field, column in zip(schema, columns, strict=True)
        }
    )


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return _INT if pa.types.is_timestamp(kind) else kind


def conform_to_view(
    columns: dict[str, Any], schema: pa.Schema, names: Collection[str], rows: int
) -> pa.Table:
    """Return the columns `names`, cast to the view's schema; columns that are missing are null."""
    cast = {}
    for name in names:
        field = schema.field(name)
        column = columns.get(name)
        cast[name] = (
            pa.nulls(rows, field.type) if column is None else cast_to_view_type(column, field)
        )
    return pa.table(cast)


def conform_bounds(
    columns: dict[str, Any], schema: pa.Schema, names: Collection[str], rows: int
) -> pa.Table:
    """Return columns of `file_bounds_by_version`, cast to the schema of the view.

    Where a column has another type at this version, and not all its values fit the view's, the
    bounds are unknown and the partition values unreadable.
    """
    cast = dict(columns)
    for name in names:
        if name not in columns or columns[name].type == schema.field(name).type:
            continue
        try:
            cast[name] = pc.cast(columns[name], schema.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            del cast[name]
            if name.startswith("partition."):
                cast[f"unreadable{name.removeprefix('partition')}"] = pa.repeat(
                    make_scalar(True, _BOOL), rows
                )
    return conform_to_view(cast, schema, names, rows)


def cast_to_view_type(column: Any, field: pa.Field) -> Any:
    """Cast a column to the field's type; timestamps outside DuckDB's range become null."""
    if pa.types.is_timestamp(field.type) and field.type.unit == "ms":
        millis = pc.cast(column, _INT)
        low, high = make_scalar(-_MAX_TIMESTAMP_MS, _INT), make_scalar(_MAX_TIMESTAMP_MS, _INT)
        out_of_range = pc.or_(pc.greater(millis, high), pc.less(millis, low))
        if pc.any(out_of_range).as_py():
            millis = pc.if_else(out_of_range, null_scalar(_INT), millis)
        return pc.cast(millis, field.type)
    return column if column.type == field.type else pc.cast(column, field.type)
