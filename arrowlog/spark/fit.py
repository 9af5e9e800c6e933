"""Whether the rows of a DataFrame fit a table; found out before a file is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType

# What Spark widens without loss.
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}


def fitting(given: StructType, table: StructType, required: Iterable[str] = ()) -> list[str]:
    """The table's columns that rows of this schema have, in the table's order.

    Other columns are refused, and types that are neither the table's nor narrower; so are rows
    without a column that may not be null.
    """
    names = list(given.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"The rows have the column {twice[0]!r} twice.", next="Rename one.")
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise InvalidRequest(
            f"The rows have a column {unknown[0]!r}, and the table has not.",
            next=f"Its columns are {', '.join(table.names)}; add_columns makes new ones.",
        )
    missing = [name for name in required if name not in names]
    if missing:
        raise InvalidRequest(
            f"The rows have no column {missing[0]!r}, which may not be null.",
            next="Add it to the rows.",
        )
    plain = spark_schema(given.json())
    for item in plain:
        if not _fits(item.dataType, table[item.name].dataType):
            raise InvalidRequest(
                f"Column {item.name!r} of the rows is {item.dataType.simpleString()}, and the"
                f" table has {table[item.name].dataType.simpleString()}.",
                next="Cast it before writing.",
            )
    return [name for name in table.names if name in names]


def _fits(given: Any, wanted: Any) -> bool:
    one, two = given.simpleString(), wanted.simpleString()
    if given == wanted or one == "void" or two in _WIDER.get(one, ()):
        return True
    if one.startswith("decimal(") and two.startswith("decimal("):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return bool(whole and wanted.scale >= given.scale)
    return False
