"""The columns of each history view, built from decoded commits.

The row functions (`adds`, `removes`, `skips`, `infos`, `commits`) take a `CommitBatch` and the
names of the columns a query needs, and return a table with exactly these columns. No other column
is parsed or typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, make_scalar, null_scalar
from arrowlog.decode import SEQ_LINE_BITS, flatten_map_columns
from arrowlog.fork_safety import OnFirstUse, pl
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
_INFO_TEXT_FIELDS = (
    "operation",
    "txnId",
    "engineInfo",
    "userMetadata",
    "operationParameters",
    "operationMetrics",
    "txn",
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
    wanted = set(names)
    frame = pl.DataFrame(
        {
            "file_number": pl.int_range(len(piece.names), eager=True),
            "version": pl.Series(pl.from_arrow(piece.versions), dtype=pl.Int64),
            "file": pl.Series(piece.names, dtype=pl.String),
        }
    )
    for action, count, sums in (
        ("add", "adds", {"bytes": "size_bytes", "rows": "num_records"}),
        ("remove", "removes", {"bytes_removed": "size"}),
        ("mergeskip", "skips", {}),
    ):
        if wanted & {count, *sums}:
            wanted_sums = {new: old for new, old in sums.items() if new in wanted}
            counts = _action_counts(piece, action, count, wanted_sums)
            # Without such an action all its sums are 0; a null sum means an action lacks the value.
            no_action = pl.col(count).is_null()
            none = None if piece.unknown else 0
            frame = frame.join(counts, on="file_number", how="left").with_columns(
                pl.when(no_action).then(none).otherwise(name).alias(name)
                for name in (count, *wanted_sums)
            )
    if wanted - set(frame.columns):
        frame = frame.join(_commit_infos(piece), on="file_number", how="left")
        frame = _with_txn_actions(frame, piece)
        frame = _with_timestamps(frame, piece, written)
        for name, actions in (
            ("changes_metadata", piece.metadata),
            ("changes_protocol", piece.protocols),
        ):
            files = pl.Series([seq >> SEQ_LINE_BITS for seq, _ in actions], dtype=pl.Int64)
            frame = frame.with_columns(pl.col("file_number").is_in(files.implode()).alias(name))
    table = frame.sort("file_number").to_arrow(compat_level=pl.CompatLevel.oldest())
    columns = {name: table[name] for name in table.column_names if name in wanted}
    return conform_to_view(columns, COMMITS_SCHEMA, names, len(piece.names))


def _action_counts(
    piece: CommitBatch, action: str, count: str, sums: dict[str, str]
) -> pl.DataFrame:
    """Count the actions of one kind per commit and sum up columns.

    `sums` maps a result column to the column that is summed. A sum is null if an action of the
    commit lacks the value.
    """
    table = piece.table(action)
    columns = {"seq": table["seq"]}
    if action == "add":
        untyped = ViewTypes(pa.schema([]), (), piece.format)
        columns |= add_columns(table, untyped, list(sums.values()))
    elif sums:
        size = table["size"] if "size" in table.column_names else pa.nulls(table.num_rows, _INT)
        columns["size"] = size
    frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
    grouped = frame.group_by(file_number=pl.col("seq") // (1 << SEQ_LINE_BITS))
    return grouped.agg(
        pl.len().cast(pl.Int64).alias(count),
        *(
            pl.when(~pl.col(old).is_null().any()).then(pl.col(old).sum()).alias(new)
            for new, old in sums.items()
        ),
    )


def _commit_infos(piece: CommitBatch) -> pl.DataFrame:
    """Return the commitInfo of each commit that has one; of several, the last one counts."""
    table = piece.table("commitInfo")
    columns = {name: table[name] for name in table.column_names}
    for name in ("timestamp", "readVersion"):
        columns.setdefault(name, _nulls(table, _INT))
    for name in _INFO_TEXT_FIELDS:
        columns.setdefault(name, _nulls(table, _TEXT))
    if "inCommitTimestamp" in columns:
        committed = columns.pop("inCommitTimestamp")
        columns["timestamp"] = pc.coalesce(committed, columns["timestamp"])
    transactions = _application_transactions(columns.pop("txn"))
    frame = pl.DataFrame(pl.from_arrow(pa.table({**columns, **transactions})))
    renamed = {name: files_column_name(name) for name in frame.columns if name != "seq"}
    frame = frame.rename(renamed).with_columns(file_number=pl.col("seq") // (1 << SEQ_LINE_BITS))
    # userMetadata is raw JSON here. A JSON string is shown without its quotes and escapes.
    user_metadata = pl.col("user_metadata")
    is_string = user_metadata.str.starts_with('"')
    quoted = frame.select(user_metadata.filter(is_string).unique()).to_series()
    unquoted = pl.Series([msgspec.json.decode(text) for text in quoted], dtype=pl.String)
    frame = frame.with_columns(user_metadata.replace(quoted, unquoted))
    return frame.sort("seq").unique("file_number", keep="last").drop("seq")


def _with_txn_actions(frame: pl.DataFrame, piece: CommitBatch) -> pl.DataFrame:
    """Add application transactions that are actions of their own; of several, the last counts."""
    action = piece.format.txn_action
    table = None if action is None else piece.table(action)
    if table is None or not table.num_rows:
        return frame
    transactions = pl.DataFrame(pl.from_arrow(table.select(["seq", "appId", "version"])))
    transactions = transactions.sort("seq").select(
        file_number=pl.col("seq") // (1 << SEQ_LINE_BITS), app_id="appId", app_version="version"
    )
    transactions = transactions.unique("file_number", keep="last")
    others = frame.drop("app_id", "app_version")
    return others.join(transactions, on="file_number", how="left")


def _nulls(table: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(table.num_rows, kind)])


def _application_transactions(texts: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Parse the `txn` objects; each distinct text is parsed once, since most commits have none."""
    codes = texts.combine_chunks().dictionary_encode()
    parsed = [_application_transaction(text) for text in codes.dictionary.to_pylist()]
    return {
        "appId": make_array([app_id for app_id, _ in parsed], _TEXT).take(codes.indices),
        "appVersion": make_array([version for _, version in parsed], _INT).take(codes.indices),
    }


def _application_transaction(text: str) -> tuple[str | None, int | None]:
    value = msgspec.json.decode(text)
    txn = value if isinstance(value, dict) else {}
    app_id, version = txn.get("appId"), txn.get("version")
    return (
        app_id if isinstance(app_id, str) else None,
        version if isinstance(version, int) and abs(version) < 1 << 63 else None,
    )


def _with_timestamps(
    frame: pl.DataFrame, piece: CommitBatch, written: Callable[[int], int | None]
) -> pl.DataFrame:
    """Add `timestamp` and `timestamp_source`.

    The time is that of the commitInfo or of the table state, else the creation time of the commit's
    metaData, else the time the file was written. Copying a table renews its file times, so a file
    time is clamped to the times its neighbours declare.
    """
    created = {
        seq >> SEQ_LINE_BITS: metadata.created_time
        for seq, metadata in piece.metadata
        if metadata.created_time is not None and piece.format.creation_time_counts
    } | dict(piece.state_times)
    creation_times = pl.DataFrame(
        {"file_number": list(created), "created": list(created.values())},
        schema={"file_number": pl.Int64, "created": pl.Int64},
    )
    frame = frame.join(creation_times, on="file_number", how="left").with_columns(
        declared=pl.coalesce("timestamp", "created")
    )
    undeclared = frame.filter(pl.col("declared").is_null())
    file_times = pl.DataFrame(
        {
            "file_number": undeclared["file_number"],
            "file_time": [written(version) for version in undeclared["version"]],
        },
        schema={"file_number": pl.Int64, "file_time": pl.Int64},
    )
    declared = pl.col("declared")
    states = [number for number, _ in piece.state_times]
    source = (
        pl.when(pl.col("file_number").is_in(states))
        .then(pl.lit("state"))
        .when(declared.is_not_null())
        .then(pl.lit("commit"))
        .otherwise(pl.lit("file"))
    )
    upper = pl.min_horizontal("file_time", declared.backward_fill())
    clamped = pl.max_horizontal(declared.forward_fill(), upper)
    return (
        frame.join(file_times, on="file_number", how="left")
        .sort("file_number")
        .with_columns(timestamp=pl.coalesce("declared", clamped), timestamp_source=source)
    )


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
