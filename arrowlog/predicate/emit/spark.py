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

from arrowlog.predicate.ast import DAY_MICROS, Call, Literal, Untranslatable, walk_nodes
from arrowlog.predicate.emit.conditions import ConditionEmitter, column_name, exact_value
from arrowlog.predicate.rewrites import coerce_literals
from arrowlog.predicate.visitor import handles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.predicate.ast import Node

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
        return _ColumnEmitter(schema).visit(node)
    except Untranslatable:
        return None


class _ColumnEmitter(ConditionEmitter[Any]):
    """Emits Spark columns. pyspark, which is optional, is imported on use."""

    def emit_constant(self, value: Any) -> Any:
        from pyspark.sql import functions

        return functions.lit(value).cast("boolean")

    def emit_column(self, name: str) -> Any:
        from pyspark.sql import functions

        return functions.col("`" + name.replace("`", "``") + "`")

    @handles("and", "or")
    def _connective(self, node: Call) -> Any:
        return reduce(operator.and_ if node.op == "and" else operator.or_, self.visit_args(node))

    @handles("not")
    def _not(self, node: Call) -> Any:
        return ~self.visit(node.args[0])

    @handles("is true", "is false")
    def _is(self, node: Call) -> Any:
        return self.visit(node.args[0]).eqNullSafe(self.emit_constant(node.op == "is true"))

    @handles("is null")
    def _is_null(self, node: Call) -> Any:
        subject = node.args[0]
        if isinstance(subject, Call):
            return self.visit(subject).isNull()
        return self.emit_column(column_name(subject)).isNull()

    def check_kinds(self, column: Node, values: Sequence[Node]) -> None:
        literals = [value for value in values if isinstance(value, Literal)]
        kind = self.schema.field(column_name(column)).type
        if len(literals) < len(values) or coerce_literals(literals, kind) != literals:
            raise Untranslatable(column)

    def emit_comparison(self, op: str, name: str, values: Sequence[Node], kind: pa.DataType) -> Any:
        column = self.emit_column(name)
        literals = [_typed(exact_value(value, kind), kind) for value in values]
        if op == "in":
            return column.isin(*literals)
        if op == "<=>":
            return column.eqNullSafe(literals[0])
        return _OPERATORS[op](column, literals[0])

    def emit_prefix(self, name: str, prefix: str) -> Any:
        text = _typed(exact_value(Literal(prefix, "text"), pa.string()), pa.string())
        return self.emit_column(name).startswith(text)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A value of a column's type as a Spark literal of that type; NULL has no type."""
    from pyspark.sql import functions

    if value is None or pa.types.is_boolean(kind):
        return functions.lit(value)
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
