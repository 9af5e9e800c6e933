"""Convert a predicate tree to a Spark `Column` with exactly the same meaning, where there is one.

The meaning of a predicate is defined by DuckDB. Spark agrees on comparisons of a column with a
value of exactly the column's type: in both, NaN is greater than every number and equal to itself,
and comparisons with NULL are NULL. For anything else Python workers read the rows.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.predicate import (
    COMPARISON_OPS,
    DAY_MICROS,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Untranslatable,
    walk_nodes,
)
from arrowlog.scan import LIKE_WILDCARDS, coerce_literals, enclose_literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.predicate import Node

# Comparisons with exchanged operands.
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Spark traverses expressions recursively, on thread stacks of half a megabyte.
_MAX_CALLS = 500
# Days since the epoch, from 0001-01-01 to 9999-12-31: the range of Python's datetime.
_DAYS = (-719_162, 2_932_896)


def emit_spark(node: Node, schema: pa.Schema) -> Any | None:
    """Convert a predicate; None if Spark evaluates it differently or cannot express it."""
    try:
        if sum(isinstance(part, Call) for part in walk_nodes(node)) > _MAX_CALLS:
            raise Untranslatable
        return _condition(node, schema)
    except Untranslatable:
        return None


def _condition(node: Node, schema: pa.Schema) -> Any:
    from pyspark.sql import functions

    if isinstance(node, Literal):
        if node.kind not in ("bool", "null"):
            raise Untranslatable
        return functions.lit(node.value).cast("boolean")
    if isinstance(node, Column):
        if node.path or not pa.types.is_boolean(schema.field(node.name).type):
            raise Untranslatable
        return _column(node.name)
    if isinstance(node, ForeignExpr):
        raise Untranslatable
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
        _check_same_type(node.args[0], node.args[1:], schema)
        return _condition(Call("and", (low, high)), schema)
    return _leaf(node, schema)


def _column(name: str) -> Any:
    from pyspark.sql import functions

    return functions.col("`" + name.replace("`", "``") + "`")


def _leaf(node: Call, schema: pa.Schema) -> Any:
    op, args = node.op, node.args
    if op in _MIRRORED and isinstance(args[0], Literal):
        op, args = _MIRRORED[op], (args[1], args[0])
    subject = args[0] if args else None
    if not isinstance(subject, Column) or subject.path:
        if op == "is null" and isinstance(subject, Call):
            return _condition(subject, schema).isNull()
        raise Untranslatable
    column, kind = _column(subject.name), schema.field(subject.name).type
    if op == "is null":
        return column.isNull()
    if op in COMPARISON_OPS:
        return _OPERATORS[op](column, _value(args[1], kind))
    if op == "<=>":
        return column.eqNullSafe(_value(args[1], kind))
    if op == "in":
        _check_same_type(subject, args[1:], schema)
        return column.isin(*(_value(arg, kind) for arg in args[1:]))
    if op in ("like", "starts_with") and len(args) == 2 and pa.types.is_string(kind):
        return column.startswith(_value(Literal(_prefix(op, args[1]), "text"), kind))
    raise Untranslatable


def _check_same_type(column: Node, values: Sequence[Node], schema: pa.Schema) -> None:
    """Raise if DuckDB would first convert the literals of an IN or BETWEEN to a common type.

    Single comparisons would not do that.
    """
    literals = [value for value in values if isinstance(value, Literal)]
    if not isinstance(column, Column) or column.path or len(literals) < len(values):
        raise Untranslatable
    if coerce_literals(literals, schema.field(column.name).type) != literals:
        raise Untranslatable


def _prefix(op: str, value: Node) -> str:
    """Return the prefix that a `starts_with` or a LIKE 'prefix%' tests for."""
    text = value.value if isinstance(value, Literal) else None
    if not isinstance(text, str):
        raise Untranslatable
    if op == "like":
        if not text.endswith("%") or any(letter in LIKE_WILDCARDS for letter in text[:-1]):
            raise Untranslatable
        return text[:-1]
    return text


def _value(node: Node, kind: pa.DataType) -> Any:
    """Convert a literal to a Spark literal of the column's type, if its value is exact there."""
    from pyspark.sql import functions

    if not isinstance(node, Literal):
        raise Untranslatable
    if node.value is None:
        return functions.lit(None)
    pair = enclose_literal(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise Untranslatable
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
    raise Untranslatable
