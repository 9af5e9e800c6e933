"""Convert Spark's filters, Catalyst expressions as JSON, to trees for data skipping. Pure.

Spark applies its filters to the rows again, so an expression without an equivalent is safe: it
prunes nothing. A converted expression must have exactly the same meaning. Both sides of a
comparison therefore have the column's own type, and no value is converted to another type.
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.formats import find_field_type
from arrowlog.predicate.ast import NULL, Call, Column, ForeignExpr, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.predicate.ast import Node

    # (node number, "value" or "values") -> what the JSON does not contain; see `parse_catalyst`
    Look = Callable[[int, str], Any]

_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
_BINARY = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "And": "and",
    "Or": "or",
    "StartsWith": "starts_with",
}
_INTEGERS = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
_TEMPORAL = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def parse_catalyst(text: str, schema: pa.Schema, look: Look) -> Node:
    """Convert the JSON of a Catalyst expression over a table's columns to a predicate tree.

    The JSON is a list of nodes in prefix order. `look(number, what)` returns what it does not
    contain of the node with that number: the `value` of a literal, or the `values` of an `InSet`
    (None to give up on it).
    """
    nodes = json.loads(text)
    node, _ = _convert(nodes, 0, schema, look)
    return node if node is not None else _unconvertible()


def _unconvertible() -> ForeignExpr:
    return ForeignExpr("a condition of Spark's", frozenset())


def _convert(
    nodes: list[dict[str, Any]], start: int, schema: pa.Schema, look: Look
) -> tuple[Node | None, int]:
    """Convert the subtree at `start`; return None if it has no equivalent, and where it ends."""
    fields = nodes[start]
    name = str(fields["class"]).removeprefix(_PACKAGE)
    args: list[Node | None] = []
    end = start + 1
    for _ in range(fields["num-children"]):
        arg, end = _convert(nodes, end, schema, look)
        args.append(arg)
    if name == "AttributeReference":
        return _column(fields, schema), end
    if name == "GetStructField":
        return _struct_field(nodes, start, schema), end
    if name == "Literal":
        return _literal(fields, start, look), end
    return _call(name, args, start, nodes, look), end


def _call(
    name: str, args: list[Node | None], start: int, nodes: list[dict[str, Any]], look: Look
) -> Node | None:
    if name in ("And", "Or", "Not"):
        operands = tuple(_unconvertible() if arg is None else arg for arg in args)
        return Call(name.lower(), operands)
    converted = [arg for arg in args if arg is not None]
    if len(converted) < len(args):
        return None
    if name in _BINARY:
        return Call(_BINARY[name], tuple(converted)) if _comparable(converted) else None
    if name == "IsNull":
        return Call("is null", tuple(converted)) if isinstance(converted[0], Column) else None
    if name == "IsNotNull":
        is_null = Call("is null", tuple(converted))
        return Call("not", (is_null,)) if isinstance(converted[0], Column) else None
    if name == "In":
        return Call("in", tuple(converted)) if _comparable(converted) else None
    if name == "InSet" and isinstance(converted[0], Column):
        kind = _path_and_type(nodes, start + 1)[1]
        values = [_value(value, kind) for value in look(start, "values") or ()]
        if not values or any(value is None for value in values):
            return None
        return Call("in", (converted[0], *(value for value in values if value is not None)))
    return None


def _comparable(args: list[Node]) -> bool:
    """Whether these are one column and otherwise literals.

    A comparison of two columns cannot be decided from file statistics.
    """
    return sum(isinstance(arg, Column) for arg in args) == 1 and all(
        isinstance(arg, (Column, Literal)) for arg in args
    )


def _column(fields: dict[str, Any], schema: pa.Schema) -> Column | None:
    """Convert a column reference if its type in Spark is the type of the log's bounds."""
    name, kind = fields["name"], fields["dataType"]
    if schema.get_field_index(name) < 0 or not isinstance(kind, str):
        return None
    return Column(name) if _same_type(kind, schema.field(name).type) else None


def _struct_field(nodes: list[dict[str, Any]], start: int, schema: pa.Schema) -> Column | None:
    """Convert a field of a struct column if its type in Spark is the type of the log's bounds."""
    path, kind = _path_and_type(nodes, start)
    arrow = find_field_type(schema, path) if path else None
    if arrow is None or not isinstance(kind, str) or not _same_type(kind, arrow):
        return None
    return Column(path[0], tuple(path[1:]))


def _path_and_type(nodes: list[dict[str, Any]], start: int) -> tuple[list[str], Any]:
    """Return the path of a column or of a field in it, and its type in Spark.

    The JSON has the positions of the fields. The type of the column, at the end of the chain, has
    their names. The path is empty if the chain does not end with a column.
    """
    ordinals: list[int] = []
    while str(nodes[start]["class"]).removeprefix(_PACKAGE) == "GetStructField":
        ordinals.append(nodes[start]["ordinal"])
        start += 1
    column = nodes[start]
    if str(column["class"]).removeprefix(_PACKAGE) != "AttributeReference":
        return [], None
    kind: Any = column["dataType"]
    path = [column["name"]]
    for ordinal in reversed(ordinals):
        if not isinstance(kind, dict) or kind.get("type") != "struct":
            return [], None
        item = kind["fields"][ordinal]
        path.append(item["name"])
        kind = item["type"]
    return path, kind


def _same_type(kind: str, arrow: pa.DataType) -> bool:
    if kind in _INTEGERS:
        return bool(arrow == _INTEGERS[kind])
    if kind == "string":
        return bool(pa.types.is_string(arrow))
    if kind == "boolean":
        return bool(pa.types.is_boolean(arrow))
    if kind == "float":
        return bool(arrow == pa.float32())
    if kind == "double":
        return bool(arrow == pa.float64())
    if kind == "date":
        return bool(arrow == pa.date32())
    if kind == "timestamp":
        return bool(pa.types.is_timestamp(arrow) and arrow.tz is not None)
    if kind == "timestamp_ntz":
        return bool(pa.types.is_timestamp(arrow) and arrow.tz is None)
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None or not pa.types.is_decimal(arrow):
        return False
    return (int(decimal[1]), int(decimal[2])) == (arrow.precision, arrow.scale)


def _literal(fields: dict[str, Any], number: int, look: Look) -> Literal | None:
    kind, text = fields["dataType"], fields.get("value")
    if text is None:
        return NULL
    if not isinstance(kind, str):
        return None
    # The JSON has dates and timestamps as text in the JVM's time zone, not as their internal value.
    return _value(look(number, "value") if kind in _TEMPORAL else text, kind)


def _value(value: Any, kind: str) -> Literal | None:
    """Convert a value of a Spark type to a literal; None if there is no exact equivalent."""
    if value is None:
        return NULL
    text = str(value)
    if kind in _INTEGERS:
        return Literal(int(text), "int")
    if kind in _TEMPORAL:  # days or microseconds since the epoch
        return Literal(int(text), _TEMPORAL[kind])
    if kind == "string":
        return Literal(text, "text")
    if kind == "boolean":
        return Literal(text.lower() == "true", "bool")
    if kind in ("float", "double"):
        number = float(text)
        if kind == "float" and math.isfinite(number):  # the double with the value of the float
            number = float(struct.unpack("f", struct.pack("f", number))[0])
        return Literal(number, "double") if math.isfinite(number) else None
    if _DECIMAL.fullmatch(kind):
        return Literal(Decimal(text), "decimal")
    return None
