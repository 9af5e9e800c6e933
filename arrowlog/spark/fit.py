"""Check that the rows of a DataFrame fit a table, before any file is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.types import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Casts that lose no information.
_LOSSLESS_CASTS = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}


def check_fit(given: StructType, table: StructType, required: Iterable[str] = ()) -> list[str]:
    """Return the table's columns that rows of this schema have, in the table's order.

    Raises `InvalidRequest` for a column that the table lacks, for a type that cannot be cast to the
    table's without loss, and if a `required` column is missing.
    """
    names = list(given.names)
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InvalidRequest(
            f"The rows have the column {duplicates[0]!r} twice.", next="Rename one of them."
        )
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise InvalidRequest(
            f"The rows have a column {unknown[0]!r}, which the table lacks.",
            next=f"Its columns are {', '.join(table.names)}. Use add_columns to add a column.",
        )
    missing = [name for name in required if name not in names]
    if missing:
        raise InvalidRequest(
            f"The rows have no column {missing[0]!r}, which is not nullable in the table.",
            next="Add it to the rows.",
        )
    for item in to_spark_schema(given.json()):
        if not _casts_without_loss(item.dataType, table[item.name].dataType):
            raise InvalidRequest(
                f"Column {item.name!r} of the rows is {item.dataType.simpleString()}, but the"
                f" table has {table[item.name].dataType.simpleString()}.",
                next="Cast it before writing.",
            )
    return [name for name in table.names if name in names]


def cast_for_insert(
    rows: DataFrame, table: StructType, columns: tuple[str, ...] | None, *, by_name: bool
) -> DataFrame:
    """Return the rows of an `INSERT` statement with the names and types of the table.

    Values belong to columns by position, or to `columns` in their order, or `by_name`. Numbers are
    cast as Spark casts them in such a statement: with ANSI rules, under which a number that does
    not fit is an error. Raises `InvalidRequest` if the number of columns differs.
    """
    names = list(rows.columns) if by_name else list(table.names if columns is None else columns)
    if len(names) != len(rows.columns):
        raise InvalidRequest(
            f"The query has {len(rows.columns)} columns, but {len(names)} are to be inserted.",
            next=f"The columns are {', '.join(names)}.",
        )
    by_lower = {name.lower(): name for name in table.names}
    if len(by_lower) == len(table.names):  # else names that differ in case only are distinct
        names = [by_lower.get(name.lower(), name) for name in names]
    renamed = rows.toDF(*names)
    is_ansi = rows.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
    result = []
    for name, item in zip(names, renamed.schema, strict=True):
        column = renamed["`" + name.replace("`", "``") + "`"]
        target = table[name].dataType if name in table.names else item.dataType
        if is_ansi and _is_number(item.dataType) and _is_number(target):
            column = column.cast(target).alias(name)
        result.append(column)
    return renamed.select(*result)


def _is_number(kind: Any) -> bool:
    from pyspark.sql.types import NumericType

    return isinstance(kind, NumericType)


def _casts_without_loss(given: Any, target: Any) -> bool:
    source_name, target_name = given.simpleString(), target.simpleString()
    if given == target or source_name == "void":
        return True
    if target_name in _LOSSLESS_CASTS.get(source_name, ()):
        return True
    if source_name.startswith("decimal(") and target_name.startswith("decimal("):
        whole_digits_fit = target.precision - target.scale >= given.precision - given.scale
        return bool(whole_digits_fit and target.scale >= given.scale)
    return False
