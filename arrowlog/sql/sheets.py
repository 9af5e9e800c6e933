"""What each view has in its rows: columns of some decoded commits, and only those asked for.

Every function takes a piece of the past and the names of columns, and gives a table that has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl
from arrowlog.log.actions import REMOVE, SKIP, Kind
from arrowlog.log.arrays import array_of, null, scalar
from arrowlog.log.lines import flatten
from arrowlog.log.texts import add_objects
from arrowlog.log.window import LINE_BITS
from arrowlog.sql.past import line_of
from arrowlog.state.files import Columns, files_table, snake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from arrowlog.log.actions import Metadata, Protocol
    from arrowlog.sql.past import Piece

MILLIS = pa.timestamp("ms", "UTC")
_INT, _TEXT, _BOOL = pa.int64(), pa.string(), pa.bool_()
_WORDS, _PAIRS = pa.list_(_TEXT), pa.map_(_TEXT, _TEXT)
_FAR = 8_000_000_000_000_000  # milliseconds DuckDB can still count in microseconds
_TIMES = ("deletionTimestamp", "skipTimestamp", "retryAfter")

COMMITS = pa.schema(
    [
        ("version", _INT),
        ("timestamp", MILLIS),
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
METADATA = pa.schema(
    [
        ("version", _INT),
        ("line", _INT),
        ("id", _TEXT),
        ("name", _TEXT),
        ("description", _TEXT),
        ("schema_string", _TEXT),
        ("partition_columns", _WORDS),
        ("configuration", _PAIRS),
        ("format_provider", _TEXT),
        ("created_time", MILLIS),
    ]
)
PROTOCOLS = pa.schema(
    [
        ("version", _INT),
        ("line", _INT),
        ("min_reader_version", _INT),
        ("min_writer_version", _INT),
        ("reader_features", _WORDS),
        ("writer_features", _WORDS),
    ]
)
_WORDS_OF_INFO = (
    "operation",
    "txnId",
    "engineInfo",
    "userMetadata",
    "operationParameters",
    "operationMetrics",
    "txn",
)
_WHERE = [("version", _INT), ("line", _INT)]
INFOS = pa.schema(_WHERE)


@dataclass(frozen=True)
class Types:
    """By which schema partition values and statistics are typed, in every version alike."""

    schema: pa.Schema
    partition_columns: tuple[str, ...]

    @cached_property
    def files(self) -> pa.Schema:
        """The columns of a file, as `Snapshot.files` has them."""
        names = Columns(pa.table({}), self.schema, self.partition_columns).schema
        found = files_table(pa.table({}), names, self.partition_columns).schema
        return pa.schema([field.with_type(_decoded(field.type)) for field in found])

    @cached_property
    def adds(self) -> pa.Schema:
        """The columns of the view of adds."""
        return pa.schema([*_WHERE, *self.files, ("key", _TEXT), ("json", _TEXT)])

    @cached_property
    def partitions(self) -> list[pa.Field]:
        """The columns of partition values."""
        return [field for field in self.files if field.name.startswith("partition.")]

    @cached_property
    def removes(self) -> pa.Schema:
        """The columns of the view of removes."""
        return _schema(REMOVE, self.partitions)

    @cached_property
    def skips(self) -> pa.Schema:
        """The columns of the view of skips."""
        return _schema(SKIP, self.partitions)

    @staticmethod
    def of(
        newest: tuple[pa.Schema, Sequence[str]], *older: tuple[pa.Schema, Sequence[str]]
    ) -> Types:
        """The types of several metadata; where they differ, those of the first hold."""
        schema, partitions = newest[0], dict.fromkeys(newest[1])
        for other, names in older:
            missing = [field for field in other if schema.get_field_index(field.name) < 0]
            schema = pa.schema([*schema, *missing])
            partitions |= dict.fromkeys(name for name in names)
        return Types(schema, tuple(partitions))


_UNTYPED = Types(pa.schema([]), ())  # sizes and counts are the same in every schema


def _schema(fields: dict[str, Kind], partitions: Sequence[pa.Field]) -> pa.Schema:
    columns: list[Any] = [*_WHERE]
    for name, kind in fields.items():
        if name == "partitionValues":
            columns += partitions
        else:
            columns.append((snake(name), MILLIS if name in _TIMES else _decoded(kind.type)))
    return pa.schema([*columns, ("key", _TEXT)])


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def add_columns(table: pa.Table, types: Types, names: Collection[str]) -> dict[str, Any]:
    """Columns of decoded adds, typed."""
    wanted = [name for name in names if types.files.get_field_index(name) >= 0]
    found: dict[str, Any] = {}
    if wanted:
        typed = files_table(table, types.schema, types.partition_columns, wanted)
        found = {name: typed[name] for name in wanted}
    if "key" in names:
        found["key"] = table["key"]
    if "json" in names:
        found["json"] = add_objects(table, path="path")
    return found


def adds(piece: Piece, types: Types, names: Collection[str]) -> pa.Table:
    """Files that were added."""
    table = piece.table("add")
    found = _places(piece, table, names) | add_columns(table, types, names)
    return fitted(found, types.adds, names, table.num_rows)


def removes(piece: Piece, types: Types, names: Collection[str]) -> pa.Table:
    """Files that were removed."""
    return _plain(piece, "remove", REMOVE, types.removes, types, names)


def skips(piece: Piece, types: Types, names: Collection[str]) -> pa.Table:
    """Files that a merge passed over."""
    return _plain(piece, "mergeskip", SKIP, types.skips, types, names)


def infos(piece: Piece, names: Collection[str]) -> pa.Table:
    """Where commits speak of themselves."""
    table = piece.table("commitInfo")
    return fitted(_places(piece, table, names), INFOS, names, table.num_rows)


def _plain(
    piece: Piece,
    action: str,
    fields: dict[str, Kind],
    schema: pa.Schema,
    types: Types,
    names: Collection[str],
) -> pa.Table:
    table = piece.table(action)
    found = _places(piece, table, names)
    known = {snake(name): name for name in (*fields, "key")}
    for name in names:
        source = known.get(name)
        if source in table.column_names:
            found[name] = table[source]
    wanted = [name for name in names if name.startswith("partition.")]
    if wanted and "partitionValues" in table.column_names:
        found |= _partitions(table["partitionValues"], types, wanted)
    return fitted(found, schema, names, table.num_rows)


def _partitions(texts: pa.ChunkedArray, types: Types, wanted: list[str]) -> dict[str, Any]:
    """Partition values out of JSON text; each distinct text is read once."""
    codes = texts.combine_chunks().dictionary_encode()
    raw = pa.repeat(scalar(True, _BOOL), len(codes.dictionary))
    distinct = pa.table({"partitionValues": codes.dictionary, "raw": raw})
    typed = files_table(
        flatten(distinct, types.partition_columns), types.schema, types.partition_columns, wanted
    )
    return {name: typed[name].take(codes.indices) for name in wanted}


def _places(piece: Piece, table: pa.Table, names: Collection[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "version" in names:
        found["version"] = piece.version_of(table["seq"])
    if "line" in names:
        found["line"] = line_of(table["seq"])
    return found


def commits(piece: Piece, names: Collection[str], written: Callable[[int], int | None]) -> pa.Table:
    """One row a commit. `written` tells when the file of a version was written."""
    wanted = set(names)
    frame = pl.DataFrame(
        {
            "at": pl.int_range(len(piece.names), eager=True),
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
            asked = {new: old for new, old in sums.items() if new in wanted}
            counted = _counted(piece, action, count, asked)
            none = pl.col(count).is_null()
            frame = frame.join(counted, on="at", how="left").with_columns(
                pl.when(none).then(0).otherwise(name).alias(name) for name in (count, *asked)
            )
    if wanted - set(frame.columns):
        frame = frame.join(_infos(piece), on="at", how="left")
        frame = _timed(frame, piece, written)
        for name, actions in (
            ("changes_metadata", piece.metadata),
            ("changes_protocol", piece.protocols),
        ):
            at = pl.Series([seq >> LINE_BITS for seq, _ in actions], dtype=pl.Int64)
            frame = frame.with_columns(pl.col("at").is_in(at.implode()).alias(name))
    table = frame.sort("at").to_arrow(compat_level=pl.CompatLevel.oldest())
    found = {name: table[name] for name in table.column_names if name in wanted}
    return fitted(found, COMMITS, names, len(piece.names))


def _counted(piece: Piece, action: str, count: str, sums: dict[str, str]) -> pl.DataFrame:
    """How many actions of a kind each commit has, and what they sum up to, as far as they say."""
    table = piece.table(action)
    columns = {"seq": table["seq"]}
    if action == "add":
        columns |= add_columns(table, _UNTYPED, list(sums.values()))
    elif sums:
        size = table["size"] if "size" in table.column_names else pa.nulls(table.num_rows, _INT)
        columns["size"] = size
    frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
    grouped = frame.group_by(at=pl.col("seq") // (1 << LINE_BITS))
    return grouped.agg(
        pl.len().cast(pl.Int64).alias(count),
        *(
            pl.when(~pl.col(old).is_null().any()).then(pl.col(old).sum()).alias(new)
            for new, old in sums.items()
        ),
    )


def _infos(piece: Piece) -> pl.DataFrame:
    """What the commits say of themselves."""
    table = piece.table("commitInfo")
    columns = {name: table[name] for name in table.column_names}
    for name in ("timestamp", "readVersion"):
        columns.setdefault(name, _none(table, _INT))
    for name in _WORDS_OF_INFO:
        columns.setdefault(name, _none(table, _TEXT))
    steps = _steps(columns.pop("txn"))
    frame = pl.DataFrame(pl.from_arrow(pa.table({**columns, **steps})))
    renamed = {name: snake(name) for name in frame.columns if name != "seq"}
    frame = frame.rename(renamed).with_columns(at=pl.col("seq") // (1 << LINE_BITS))
    note = pl.col("user_metadata")
    quoted = frame.select(note.filter(note.str.starts_with('"')).unique()).to_series()
    plain = pl.Series([msgspec.json.decode(text) for text in quoted], dtype=pl.String)
    frame = frame.with_columns(note.replace(quoted, plain))
    return frame.sort("seq").unique("at", keep="last").drop("seq")


def _none(table: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(table.num_rows, kind)])


def _steps(texts: pa.ChunkedArray) -> dict[str, pa.Array]:
    """The steps of applications; most commits are none."""
    codes = texts.combine_chunks().dictionary_encode()
    found = [_step(text) for text in codes.dictionary.to_pylist()]
    return {
        "appId": array_of([step[0] for step in found], _TEXT).take(codes.indices),
        "appVersion": array_of([step[1] for step in found], _INT).take(codes.indices),
    }


def _step(text: str) -> tuple[str | None, int | None]:
    found = msgspec.json.decode(text)
    found = found if isinstance(found, dict) else {}
    name, count = found.get("appId"), found.get("version")
    return (
        name if isinstance(name, str) else None,
        count if isinstance(count, int) and abs(count) < 1 << 63 else None,
    )


def _timed(frame: pl.DataFrame, piece: Piece, written: Callable[[int], int | None]) -> pl.DataFrame:
    """When each commit was made: by its own words, a new table's metadata, or the store's clock.

    A copied table has new file times, so those are kept between what the neighbours say.
    """
    created = {
        seq >> LINE_BITS: found.created_time
        for seq, found in piece.metadata
        if found.created_time is not None
    }
    made = pl.DataFrame(
        {"at": list(created), "created": list(created.values())},
        schema={"at": pl.Int64, "created": pl.Int64},
    )
    frame = frame.join(made, on="at", how="left").with_columns(
        said=pl.coalesce("timestamp", "created")
    )
    silent = frame.filter(pl.col("said").is_null())
    times = pl.DataFrame(
        {"at": silent["at"], "clock": [written(version) for version in silent["version"]]},
        schema={"at": pl.Int64, "clock": pl.Int64},
    )
    source = pl.when(pl.col("said").is_not_null()).then(pl.lit("commit")).otherwise(pl.lit("file"))
    before, after = pl.col("said").forward_fill(), pl.col("said").backward_fill()
    between = pl.max_horizontal(before, pl.min_horizontal("clock", after))
    return (
        frame.join(times, on="at", how="left")
        .sort("at")
        .with_columns(timestamp=pl.coalesce("said", between), timestamp_source=source)
    )


def metadata_rows(rows: Sequence[tuple[int, int | None, Metadata]]) -> pa.Table:
    """Metadata as rows: version, line (None where a checkpoint says it), and what it is."""
    return _rows(
        METADATA,
        [
            (
                version,
                line,
                found.id,
                found.name,
                found.description,
                found.schema_string,
                list(found.partition_columns),
                list(found.configuration.items()),
                found.format_provider,
                found.created_time,
            )
            for version, line, found in rows
        ],
    )


def protocol_rows(rows: Sequence[tuple[int, int | None, Protocol]]) -> pa.Table:
    """Protocols as rows: version, line (None where a checkpoint says it), and what it asks for."""
    return _rows(
        PROTOCOLS,
        [
            (
                version,
                line,
                found.min_reader_version,
                found.min_writer_version,
                list(found.reader_features),
                list(found.writer_features),
            )
            for version, line, found in rows
        ],
    )


def _rows(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    return pa.table(
        {
            field.name: sane(pa.chunked_array([pa.array(list(column), _number(field.type))]), field)
            for field, column in zip(schema, columns, strict=True)
        }
    )


def _number(kind: pa.DataType) -> pa.DataType:
    return _INT if pa.types.is_timestamp(kind) else kind


def fitted(found: dict[str, Any], schema: pa.Schema, names: Collection[str], rows: int) -> pa.Table:
    """The columns asked for, of the types the view has; what nothing was found for is null."""
    columns = {}
    for name in names:
        field = schema.field(name)
        column = found.get(name)
        columns[name] = pa.nulls(rows, field.type) if column is None else sane(column, field)
    return pa.table(columns)


def sane(column: Any, field: pa.Field) -> Any:
    """A column of the view's type. A time beyond what DuckDB can count is unknown."""
    if pa.types.is_timestamp(field.type) and field.type.unit == "ms":
        millis = pc.cast(column, _INT)
        low, high = scalar(-_FAR, _INT), scalar(_FAR, _INT)
        far = pc.or_(pc.greater(millis, high), pc.less(millis, low))
        if pc.any(far).as_py():
            millis = pc.if_else(far, null(_INT), millis)
        return pc.cast(millis, field.type)
    return column if column.type == field.type else pc.cast(column, field.type)
