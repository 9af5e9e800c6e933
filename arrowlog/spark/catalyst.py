"""Spark's own filters as trees that files can be pruned by. Pure: JSON in, a tree out.

Spark applies its filters to the rows again, so a part that has no equal here prunes nothing and is
no mistake. What has one must mean the same: both sides of a comparison have the column's own type,
and nothing is converted.
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.scan.tree import NULL, Call, Column, Foreign, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.scan.tree import Node

    Look = Callable[[int, str], Any]

_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
_TWO = {
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
_INTEGERS = ("byte", "short", "integer", "long")
_MOMENTS = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def tree_of(text: str, schema: pa.Schema, look: Look) -> Node:
    """A tree from the JSON of a Catalyst expression over a table's columns.

    `look(number, what)` gives what the JSON leaves out of the expression's node of that number: the
    `value` of a literal, or the `values` of a set.
    """
    nodes = json.loads(text)
    node, _ = _node(nodes, 0, schema, look)
    return node if node is not None else _beyond()


def _beyond() -> Foreign:
    return Foreign("a condition of Spark's", frozenset())


def _node(
    nodes: list[dict[str, Any]], at: int, schema: pa.Schema, look: Look
) -> tuple[Node | None, int]:
    """The node that begins at a place, None if it has no equal; and the place behind it."""
    found = nodes[at]
    name = str(found["class"]).removeprefix(_PACKAGE)
    args: list[Node | None] = []
    after = at + 1
    for _ in range(found["num-children"]):
        arg, after = _node(nodes, after, schema, look)
        args.append(arg)
    if name == "AttributeReference":
        return _column(found, schema), after
    if name == "Literal":
        return _literal(found, at, look), after
    return _call(name, args, at, nodes, look), after


def _call(
    name: str, args: list[Node | None], at: int, nodes: list[dict[str, Any]], look: Look
) -> Node | None:
    if name in ("And", "Or", "Not"):
        parts = tuple(_beyond() if arg is None else arg for arg in args)
        return Call(name.lower(), parts)
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if name in _TWO:
        return Call(_TWO[name], tuple(known)) if _comparable(known) else None
    if name == "IsNull":
        return Call("is null", tuple(known)) if isinstance(known[0], Column) else None
    if name == "IsNotNull":
        inner = Call("is null", tuple(known))
        return Call("not", (inner,)) if isinstance(known[0], Column) else None
    if name == "In":
        return Call("in", tuple(known)) if _comparable(known) else None
    if name == "InSet" and isinstance(known[0], Column):
        kind = nodes[at + 1]["dataType"]
        values = [_value(value, kind) for value in look(at, "values") or ()]
        if not values or any(value is None for value in values):
            return None
        return Call("in", (known[0], *(value for value in values if value is not None)))
    return None


def _comparable(args: list[Node]) -> bool:
    """A column and values: two columns say nothing about a file."""
    return sum(isinstance(arg, Column) for arg in args) == 1 and all(
        isinstance(arg, (Column, Literal)) for arg in args
    )


def _column(found: dict[str, Any], schema: pa.Schema) -> Column | None:
    """A column of the table, if Spark has it in the type that the log's bounds are in."""
    name, kind = found["name"], found["dataType"]
    if schema.get_field_index(name) < 0 or not isinstance(kind, str):
        return None
    return Column(name) if _same(kind, schema.field(name).type) else None


def _same(kind: str, arrow: pa.DataType) -> bool:
    if kind in _INTEGERS:
        return bool(arrow == (pa.int8(), pa.int16(), pa.int32(), pa.int64())[_INTEGERS.index(kind)])
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


def _literal(found: dict[str, Any], at: int, look: Look) -> Literal | None:
    kind, text = found["dataType"], found.get("value")
    if text is None:
        return NULL
    if not isinstance(kind, str):
        return None
    # Java shows days and moments in the zone of its machine.
    return _value(look(at, "value") if kind in _MOMENTS else text, kind)


def _value(value: Any, kind: str) -> Literal | None:
    """A value of one of Spark's types as a literal; None if there is none."""
    if value is None:
        return NULL
    text = str(value)
    if kind in _INTEGERS:
        return Literal(int(text), "int")
    if kind in _MOMENTS:
        return Literal(int(text), _MOMENTS[kind])
    if kind == "string":
        return Literal(text, "text")
    if kind == "boolean":
        return Literal(text.lower() == "true", "bool")
    if kind in ("float", "double"):
        number = float(text)
        if kind == "float" and math.isfinite(number):
            number = float(struct.unpack("f", struct.pack("f", number))[0])
        return Literal(number, "double") if math.isfinite(number) else None
    if _DECIMAL.fullmatch(kind):
        return Literal(Decimal(text), "decimal")
    return None
