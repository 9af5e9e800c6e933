"""The schema of a table from its Parquet files: types of each file, and one schema for all.

A column keeps its type if all files agree. Integers and floats are widened within their family,
which every reader does without loss, and a column of NULLs alone takes the type that other files
give it. Every other difference is a conflict: it is reported with the files and never resolved by
a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.formats import parse_spark_schema
from arrowlog.scan import is_readable_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
