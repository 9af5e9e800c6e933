"""What a folder of Parquet files says without a log: its data files, partitions and schema.

The same names are hidden as in Spark: those that begin with `.`, and those that begin with `_`
unless they are folders of a partition (`_day=1`). A folder that has a log of any format is a table
of its own.

The schema of the table is one for all files. A column keeps its type if all files agree. Integers
and floats are widened within their family, which every reader does without loss, and a column of
NULLs alone takes the type that other files give it. Every other difference is a conflict: it is
reported with the files and never resolved by a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.fork_safety import pl
from arrowlog.formats import parse_spark_schema
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import LAST_CHECKPOINT, LOG_FOLDER
from arrowlog.scan import is_readable_as
from arrowlog.snapshot import HIVE_NULL, partition_values
from arrowlog.transaction import is_shortened_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Folders of logs, by name: those of arrowlog's formats and that of Hudi.
_LOG_NAMES = rf"(?:{LOG_FOLDER}|{DELTA.log_folder}|\.hoodie)"
_NESTED_TABLE = rf"^((?:[^/]+/)+?){_LOG_NAMES}/"  # captures the folder of the table
_NESTED_ICEBERG = r"^((?:[^/]+/)+?)metadata/[^/]+\.metadata\.json$"
# Folders at the root that are logs, by name or by what is in them: copies, and other formats.
_LOG_BY_NAME = rf"^({LOG_FOLDER}[^/]*|{DELTA.log_folder}[^/]*|\.hoodie)/"
_LOG_BY_CONTENT = rf"^([^/]+)/(?:[0-9]{{18,}}\.json|{LAST_CHECKPOINT})$"
_ICEBERG_LOG = r"^(metadata)/[^/]+\.metadata\.json$"
_TEMPORARY = r"(?i)(?:^|/)_temporary/|\.(?:tmp|temp|inprogress|_copying_)$"
_PARQUET = r"(?i)\.(?:parquet|parq|pq)$"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INT64_RANGE = range(-(1 << 63), 1 << 63)
LEFT_OUT_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("reason", pa.string())]
)


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What is in a folder.

    Attributes:
        data: the Parquet files, as `Store.walk` returns files, sorted by key.
        left_out: the other files with the reason: `log`, `nested table`, `hidden`, `temporary` or
            `not Parquet`.
        other_logs: folders beside the table's log that have a log.
    """

    data: pa.Table = field(repr=False)
    left_out: pa.Table = field(repr=False)
    other_logs: tuple[str, ...]


def classify_folder(walked: pa.Table) -> FolderContent:
    """Tell the Parquet files of a table from everything else that is in its folder."""
    files = pl.DataFrame(pl.from_arrow(walked)).sort("key")
    keys, key = files["key"], pl.col("key")
    nested = _matches(keys, (_NESTED_TABLE, _NESTED_ICEBERG))
    logs = _matches(keys, (_LOG_BY_NAME, _LOG_BY_CONTENT, _ICEBERG_LOG))
    classified = files.with_columns(
        pl.when(_is_below(keys, [f"{name}/" for name in logs]))
        .then(pl.lit("log"))
        .when(_is_below(keys, nested))
        .then(pl.lit("nested table"))
        .when(key.str.contains(_TEMPORARY))
        .then(pl.lit("temporary"))
        .when(_is_hidden(key))
        .then(pl.lit("hidden"))
        .when(~key.str.contains(_PARQUET))
        .then(pl.lit("not Parquet"))
        .alias("reason")
    )
    data = classified.filter(pl.col("reason").is_null()).drop("reason")
    rest = classified.filter(pl.col("reason").is_not_null()).select("key", "size", "reason")
    oldest = pl.CompatLevel.oldest()
    left_out = rest.to_arrow(compat_level=oldest).rename_columns(LEFT_OUT_SCHEMA.names)
    return FolderContent(
        data.to_arrow(compat_level=oldest).cast(walked.schema),
        left_out.cast(LEFT_OUT_SCHEMA),
        tuple(name for name in logs if name != LOG_FOLDER),
    )


def _matches(keys: pl.Series, patterns: Iterable[str]) -> list[str]:
    found = pl.concat([keys.str.extract(pattern) for pattern in patterns])
    return [str(text) for text in found.drop_nulls().unique().sort().to_list()]


def _is_below(keys: pl.Series, folders: Iterable[str]) -> pl.Series:
    inside = pl.repeat(value=False, n=len(keys), dtype=pl.Boolean, eager=True)
    for folder in folders:
        inside |= keys.str.starts_with(folder)
    return inside


def _is_hidden(key: pl.Expr) -> pl.Expr:
    folder = key.str.contains(r"(?:^|/)\.[^/]*/|(?:^|/)_[^/=]*/")
    return folder | key.str.contains(r"(?:^|/)[._][^/]*$")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """The values in the path of a folder, by column: text, or None for NULL.

    `problem` says why the value of a column is not certain.
    """

    values: Mapping[str, str | None]
    problem: str | None = None


def parse_partition_folder(folder: str) -> PartitionFolder:
    """Return the values in the names `column=value` of a path.

    >>> parse_partition_folder("data/day=2024-01-01/city=S%C3%A3o").values
    {'day': '2024-01-01', 'city': 'São'}
    """
    values: dict[str, str | None] = {}
    problem = None
    for part in folder.split("/"):
        name, equals, text = part.partition("=")
        if not equals or not name:
            continue
        value: str | None = None
        try:
            value = unquote(text, errors="strict")
            name = unquote(name, errors="strict")
        except UnicodeDecodeError:
            problem = f"{part!r} is not percent-encoded UTF-8"
        if name in values:
            problem = f"the column {name!r} is in the path twice"
        if is_shortened_folder(part):
            problem = f"the value of {name!r} was too long for the name of the folder and was cut"
        values[name] = None if value == HIVE_NULL else value
    return PartitionFolder(values, problem)


def infer_partition_type(texts: Iterable[str | None]) -> pa.DataType:
    """Return the type of a partition column from all of its values: int64, date32 or string.

    Numbers with leading zeros are text, because `007` and `7` may be two values.

    >>> infer_partition_type(["1", None, "-20"]), infer_partition_type(["01", "2"])
    (DataType(int64), DataType(string))
    """
    known = {text for text in texts if text is not None}
    if known and all(_INTEGER.fullmatch(text) and int(text) in _INT64_RANGE for text in known):
        return pa.int64()
    if (
        known
        and all(_DATE.fullmatch(text) for text in known)
        and not find_invalid_value(known, pa.date32())
    ):
        return pa.date32()
    return pa.string()


def find_invalid_value(texts: Iterable[str | None], kind: pa.DataType) -> str | None:
    """Return the first of some partition values that is not one of the type; None if all are."""
    known: Sequence[str] = sorted({text for text in texts if text is not None})
    if not known:
        return None
    array = pa.chunked_array([make_array(known, pa.string())])
    _, unknown = partition_values(array, kind)
    position = pc.index(unknown, value=True).as_py()
    return None if position < 0 else known[position]


# Spark stores the schema of a DataFrame in the footer, with types that Parquet does not tell apart.
_SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_KEPT_TYPES = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.bool_(), pa.date32(), pa.string(), pa.binary(), pa.null()),
)
# Types in a file without parameters, and those of the table's column.
_PLAIN_TYPES = {
    **{kind: kind for kind in _KEPT_TYPES},
    # Tables have no unsigned integers; those of 64 bits are accepted if their values fit 63.
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_DECIMAL_DIGITS_MAX = 38


def choose_table_schema(stored: pa.Schema, footer: Any) -> pa.Schema:
    """Return the schema of a table that has the columns of a file, whatever they are called.

    Types that Spark has written into the footer are preferred where the file can be read so. Raises
    `ValueError` naming a column that a table cannot have.
    """
    spark = _read_spark_schema(footer)
    int96 = {
        column.path
        for column in map(footer.schema.column, range(footer.num_columns))
        if column.physical_type == "INT96"
    }
    fields = []
    for item in stored:
        if stored.names.count(item.name) > 1:
            raise ValueError(f"it has the column {item.name!r} twice")
        kind = spark.get(item.name)
        if kind is None or not is_readable_as(item.type, kind):
            kind = to_table_type(item.type, item.name)
        if item.name in int96:  # an instant, whatever Arrow takes it for
            kind = pa.timestamp("us", "UTC")
        fields.append(pa.field(item.name, kind, item.nullable))
    return pa.schema(fields)


def _read_spark_schema(footer: Any) -> dict[str, pa.DataType]:
    """Return the types that Spark has written into a footer, by column; {} without such types."""
    text = (footer.metadata or {}).get(_SPARK_SCHEMA_KEY)
    if text is None:
        return {}
    try:
        schema = parse_spark_schema(text.decode())
    except ValueError:  # of a later version, or damaged: the Parquet types decide
        return {}
    return {item.name: item.type for item in schema}


def to_table_type(kind: pa.DataType, where: str) -> pa.DataType:
    """Return the type of a table's column for a type in a file.

    Raises `ValueError` naming the column, `where`, if a table cannot hold such values.

    >>> to_table_type(pa.uint16(), "n"), to_table_type(pa.timestamp("ns"), "t")
    (DataType(int32), TimestampType(timestamp[us]))
    """
    types = pa.types
    if types.is_dictionary(kind):
        return to_table_type(kind.value_type, where)
    if types.is_struct(kind):
        members = [(item.name, to_table_type(item.type, f"{where}.{item.name}")) for item in kind]
        return pa.struct(members)
    if types.is_map(kind):
        key = to_table_type(kind.key_type, f"{where} key")
        return pa.map_(key, to_table_type(kind.item_type, f"{where} value"))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(to_table_type(kind.value_type, f"{where}[]"))
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    plain = _PLAIN_TYPES.get(kind)
    if plain is None:
        raise ValueError(f"its column {where!r} has type {kind}, which a table cannot hold")
    return plain


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """A column about which files disagree.

    `variants` are what they say, as text, each with the positions of the schemas that say so; the
    first one is that of the first file.
    """

    column: str
    variants: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class UnifiedSchema:
    """The schema of all files. If there are conflicts, their columns have the first file's type."""

    schema: pa.Schema
    conflicts: tuple[SchemaConflict, ...] = ()


@dataclass(slots=True)
class _Column:
    """A column, its types in the order in which they appear, and which schemas have which."""

    name: str
    nullable: bool = False
    schemas: dict[pa.DataType, list[int]] = field(default_factory=dict)
    spellings: dict[str, list[int]] = field(default_factory=dict)


def unify_schemas(schemas: Sequence[pa.Schema], leave_out: Iterable[str] = ()) -> UnifiedSchema:
    """Return one schema for files with these schemas, in the order of the first file.

    Columns that only later files have follow, nullable. Conflicts in the columns `leave_out`, whose
    values are not read from files, do not count.
    """
    columns: dict[str, _Column] = {}
    for number, schema in enumerate(schemas):
        for item in schema:
            # Names that differ in case only are one column to Spark.
            column = columns.setdefault(item.name.lower(), _Column(item.name))
            column.nullable |= item.nullable or pa.types.is_null(item.type)
            column.schemas.setdefault(item.type, []).append(number)
            column.spellings.setdefault(item.name, []).append(number)
    fields, conflicts, ignored = [], [], set(leave_out)
    for column in columns.values():
        kind = widest_type(list(column.schemas))
        if column.name not in ignored:
            if len(column.spellings) > 1:
                conflicts.append(_conflict(column.name, column.spellings))
            if kind is None:
                conflicts.append(_conflict(column.name, column.schemas))
        in_all = sum(map(len, column.spellings.values())) == len(schemas)
        first = next(iter(column.schemas))
        fields.append(pa.field(column.name, kind or first, column.nullable or not in_all))
    return UnifiedSchema(pa.schema(fields), tuple(conflicts))


def _conflict(name: str, variants: dict[Any, list[int]]) -> SchemaConflict:
    return SchemaConflict(name, tuple((str(what), tuple(at)) for what, at in variants.items()))


def widest_type(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds the values of all types; None if there is none.

    >>> widest_type([pa.int32(), pa.null(), pa.int64()]), widest_type([pa.int64(), pa.string()])
    (DataType(int64), None)
    """
    known = [kind for kind in kinds if not pa.types.is_null(kind)]
    if not known:
        return kinds[0]
    for family in (pa.types.is_integer, pa.types.is_floating):
        if all(family(kind) for kind in known):
            return max(known, key=lambda kind: kind.bit_width)
    return known[0] if all(kind == known[0] for kind in known) else None
