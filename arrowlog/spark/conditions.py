"""A predicate as a condition of Spark's that means the same, where there is one.

DuckDB says what a predicate means. A comparison of a column with a value of exactly its own type
means the same to Spark: NaN is above every number and equal to itself in both, NULL is unknown.
Everything else is left to those who read rows in Python.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.scan.bounds import pair_of
from arrowlog.scan.literals import DAY_MICROS
from arrowlog.scan.normal import WILD, alike
from arrowlog.scan.tree import COMPARISONS, Call, Column, Foreign, Literal, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.scan.tree import Node

_TURNED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITIONS_MAX = 500  # Spark walks its expressions by recursion, on stacks of half a megabyte
_DAYS = (-719_162, 2_932_896)  # years 1 to 9999


class _Beyond(Exception):
    """Spark has no equal for a part."""


def to_spark(node: Node, schema: pa.Schema) -> Any | None:
    """The condition; None if Spark would see it differently, or not at all."""
    try:
        if sum(isinstance(part, Call) for part in walk(node)) > _CONDITIONS_MAX:
            raise _Beyond
        return _condition(node, schema)
    except _Beyond:
        return None


def _condition(node: Node, schema: pa.Schema) -> Any:
    from pyspark.sql import functions

    if isinstance(node, Literal):
        if node.kind not in ("bool", "null"):
            raise _Beyond
        return functions.lit(node.value).cast("boolean")
    if isinstance(node, Column):
        if node.path or not pa.types.is_boolean(schema.field(node.name).type):
            raise _Beyond
        return _column(node.name)
    if isinstance(node, Foreign):
        raise _Beyond
    if node.op in ("and", "or"):
        parts = [_condition(arg, schema) for arg in node.args]
        return reduce(operator.and_ if node.op == "and" else operator.or_, parts)
    if node.op == "not":
        return ~_condition(node.args[0], schema)
    if node.op in ("is true", "is false"):
        inner = _condition(node.args[0], schema)
        return inner.eqNullSafe(functions.lit(node.op == "is true"))
    if node.op == "between":
        low, high = Call(">=", node.args[:2]), Call("<=", (node.args[0], node.args[2]))
        _check_alike(node.args[0], node.args[1:], schema)
        return _condition(Call("and", (low, high)), schema)
    return _leaf(node, schema)


def _column(name: str) -> Any:
    from pyspark.sql import functions

    return functions.col("`" + name.replace("`", "``") + "`")


def _leaf(node: Call, schema: pa.Schema) -> Any:
    op, args = node.op, node.args
    if op in _TURNED and isinstance(args[0], Literal):
        op, args = _TURNED[op], (args[1], args[0])
    column = args[0] if args else None
    if not isinstance(column, Column) or column.path:
        if op == "is null" and isinstance(column, Call):
            return _condition(column, schema).isNull()
        raise _Beyond
    found, kind = _column(column.name), schema.field(column.name).type
    if op == "is null":
        return found.isNull()
    if op in COMPARISONS:
        return _SIGNS[op](found, _value(args[1], kind))
    if op == "<=>":
        return found.eqNullSafe(_value(args[1], kind))
    if op == "in":
        _check_alike(column, args[1:], schema)
        return found.isin(*(_value(arg, kind) for arg in args[1:]))
    if op in ("like", "starts_with") and len(args) == 2 and pa.types.is_string(kind):
        return found.startswith(_value(Literal(_prefix(op, args[1]), "text"), kind))
    raise _Beyond


def _check_alike(column: Node, values: Sequence[Node], schema: pa.Schema) -> None:
    """Mixed literals are brought to one type, which single comparisons would not be."""
    literals = [value for value in values if isinstance(value, Literal)]
    if not isinstance(column, Column) or column.path or len(literals) < len(values):
        raise _Beyond
    if alike(literals, schema.field(column.name).type) != literals:
        raise _Beyond


def _prefix(op: str, value: Node) -> str:
    text = value.value if isinstance(value, Literal) else None
    if not isinstance(text, str):
        raise _Beyond
    if op == "like":
        if not text.endswith("%") or any(letter in WILD for letter in text[:-1]):
            raise _Beyond
        return text[:-1]
    return text


def _value(node: Node, kind: pa.DataType) -> Any:
    """A literal as exactly that value of a column's type."""
    from pyspark.sql import functions

    if not isinstance(node, Literal):
        raise _Beyond
    if node.value is None:
        return functions.lit(None)
    pair = pair_of(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise _Beyond
    return _typed(pair[0], kind)


def _typed(value: Any, kind: pa.DataType) -> Any:
    from pyspark.sql import functions

    if pa.types.is_boolean(kind):
        return functions.lit(bool(value))
    if pa.types.is_date(kind) and _DAYS[0] <= value <= _DAYS[1]:
        return functions.date_from_unix_date(functions.lit(value))
    if pa.types.is_timestamp(kind) and _DAYS[0] <= value // DAY_MICROS <= _DAYS[1]:
        if kind.tz is not None:
            return functions.timestamp_micros(functions.lit(value).cast("bigint"))
        text = pa.scalar(value, pa.int64()).cast(pa.timestamp("us")).as_py().isoformat()
        return functions.lit(text).cast("timestamp_ntz")
    if pa.types.is_string(kind):
        return functions.lit(value)
    if pa.types.is_integer(kind):
        return functions.lit(value).cast("bigint")
    if pa.types.is_floating(kind):
        return functions.lit(value).cast("float" if kind == pa.float32() else "double")
    if pa.types.is_decimal(kind) and abs(value) < 10 ** (kind.precision - kind.scale):
        return functions.lit(format(value, "f")).cast(f"decimal({kind.precision},{kind.scale})")
    raise _Beyond
