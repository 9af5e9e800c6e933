"""Row filters for engines that read the rows themselves: Arrow expressions and Spark columns. Pure.

DuckDB defines what a predicate means. Other engines agree with it on conditions on one column, with
values that the column's type represents exactly; anything else raises Untranslatable.

Arrow skips the row groups of a Parquet file by bounds that ignore NaN, and thereby loses NaN rows
for which a condition is true, however the expression treats NaN. So a condition on floats is pushed
down to Arrow only if no NaN can satisfy it. In Spark, as in DuckDB, NaN is greater than every
number and equal to itself.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import null_scalar
from arrowlog.predicate.ast import (
    COMPARISON_FUNCTIONS,
    COMPARISON_OPS,
    NULL,
    Call,
    Column,
    Literal,
    NodeVisitor,
    Untranslatable,
    ValueSet,
    handles,
    split_conjuncts,
    walk_nodes,
)
from arrowlog.predicate.literals import (
    DAY_MICROS,
    enclose_literal,
    literal_from_scalar,
    may_have_nan,
)
from arrowlog.predicate.rewrites import (
    LIKE_WILDCARDS,
    coerce_literals,
    literal_kinds,
    merge_equalities,
    put_column_first,
    split_between,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.predicate.ast import Node

_Condition = TypeVar("_Condition")
# Comparisons with a number that are FALSE for NaN, which is greater than every number.
_FALSE_FOR_NAN = ("=", "<", "<=", "in", "<=>")
# Longer IN lists become a hash lookup instead of a disjunction of equalities.
_EQUALITIES_MAX = 100
# Arrow rebuilds chains of ANDs and ORs, however they were nested, and walks them recursively: a few
# thousand conditions crash the process. So many do not help to skip row groups either.
_ARROW_CONDITIONS_MAX = 500
# Spark traverses expressions recursively, on thread stacks of half a megabyte.
_SPARK_CALLS_MAX = 500
# Each value of an IN list is an expression of Spark's; more of them are a join.
_SPARK_VALUES_MAX = 10_000
# Days since the epoch, from 0001-01-01 to 9999-12-31: the range of Python's datetime.
_SPARK_DAYS = (-719_162, 2_932_896)


class _ConditionEmitter(NodeVisitor[_Condition], ABC):
    """Emits the conditions of one engine on the columns of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        """`schema` gives the types of the columns."""
        self.schema = schema

    @abstractmethod
    def emit_constant(self, value: Any) -> _Condition:
        """True, False or None, which is NULL."""

    @abstractmethod
    def emit_column(self, name: str) -> _Condition:
        """A boolean column."""

    @abstractmethod
    def emit_comparison(
        self, op: str, name: str, values: Sequence[Node], kind: pa.DataType
    ) -> _Condition:
        """A comparison, `<=>` or IN of a column of type `kind`."""

    @abstractmethod
    def emit_membership(self, name: str, members: ValueSet, kind: pa.DataType) -> _Condition:
        """An IN with a value set."""

    @abstractmethod
    def emit_prefix(self, name: str, prefix: str) -> _Condition:
        """A test whether the text in a column starts with a prefix."""

    @abstractmethod
    def check_kinds(self, column: Node, values: Sequence[Node]) -> None:
        """Raise if DuckDB would coerce the values of an IN or BETWEEN to a common type first.

        Single comparisons would not be coerced.
        """

    def visit_literal(self, node: Literal) -> _Condition:
        """A boolean constant."""
        if node.kind not in ("bool", "null"):
            raise Untranslatable(node)
        return self.emit_constant(node.value)

    def visit_column(self, node: Column) -> _Condition:
        """A boolean column as a condition."""
        name = _column_name(node)
        if not pa.types.is_boolean(self.schema.field(name).type):
            raise Untranslatable(node)
        return self.emit_column(name)

    @handles("between")
    def _between(self, node: Call) -> _Condition:
        self.check_kinds(node.args[0], node.args[1:])
        return self.visit(split_between(node))

    @handles(*COMPARISON_OPS, "<=>", "in", "like", "starts_with")
    def _column_condition(self, node: Call) -> _Condition:
        op, (column, *values) = put_column_first(node)
        name = _column_name(column)
        kind = self.schema.field(name).type
        if op in ("like", "starts_with"):
            if len(values) != 1 or not pa.types.is_string(kind):
                raise Untranslatable(node)
            return self.emit_prefix(name, _prefix(op, values[0]))
        if op == "in" and isinstance(values[0], ValueSet):
            return self.emit_membership(name, values[0], kind)
        if op == "in":
            self.check_kinds(column, values)
        return self.emit_comparison(op, name, values, kind)


def _column_name(node: Node) -> str:
    """The name of a column; raises for anything else, struct fields included."""
    if not isinstance(node, Column) or node.path:
        raise Untranslatable(node)
    return node.name


def _prefix(op: str, value: Node) -> str:
    """The prefix of starts_with, or of a LIKE pattern that ends in its only wildcard."""
    text = value.value if isinstance(value, Literal) else None
    if not isinstance(text, str):
        raise Untranslatable(value)
    if op == "starts_with":
        return text
    if not text.endswith("%") or any(character in LIKE_WILDCARDS for character in text[:-1]):
        raise Untranslatable(value)
    return text[:-1]


def _exact_value(node: Node, kind: pa.DataType) -> Any:
    """The value of a literal in a column's type, None for NULL; raises if it is not exact there."""
    if not isinstance(node, Literal):
        raise Untranslatable(node)
    if node.value is None:
        return None
    pair = enclose_literal(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise Untranslatable(node)
    return bool(pair[0]) if pa.types.is_boolean(kind) else pair[0]


def emit_pyarrow(node: Node, schema: pa.Schema) -> pc.Expression | None:
    """The filter expression of a node; None if Arrow has none with the same meaning."""
    try:
        if _count_conditions(node) > _ARROW_CONDITIONS_MAX:
            raise Untranslatable
        return _ArrowEmitter(schema).visit(node)
    except Untranslatable:
        return None


def split_pushdown(node: Node, schema: pa.Schema) -> tuple[list[pc.Expression], list[Node]]:
    """Split a predicate for pushdown.

    Returns filter expressions for the conjuncts that Arrow can apply, and the remaining conjuncts.
    """
    parts: Sequence[Node] = split_conjuncts(node)
    if len(parts) > 1:
        parts = merge_equalities(Call("and", tuple(parts)))
    filters: list[pc.Expression] = []
    remaining: list[Node] = []
    budget = _ARROW_CONDITIONS_MAX
    for part in parts:
        length = _count_conditions(part)
        expression = emit_pyarrow(part, schema) if length <= budget else None
        if expression is None:
            remaining.append(part)
        else:
            filters.append(expression)
            budget -= length
    return filters, remaining


def _count_conditions(node: Node) -> int:
    """Number of conditions after equalities with one column are merged; stops at the limit."""
    pending, count = [node], 0
    while pending and count <= _ARROW_CONDITIONS_MAX:
        current = pending.pop()
        if isinstance(current, Call):
            count += 1
            pending += merge_equalities(current) if current.op in ("and", "or") else current.args
    return count


class _ArrowEmitter(_ConditionEmitter[pc.Expression]):
    """Emits filter expressions.

    `positive` is False under an odd number of NOT and IS FALSE: there, a comparison that is FALSE
    for NaN becomes TRUE for it. `null_is_false` is whether FALSE may stand for NULL: a filter keeps
    the rows that are TRUE, but any NOT or IS FALSE around the condition tells the two apart.
    """

    def __init__(
        self, schema: pa.Schema, *, positive: bool = True, null_is_false: bool = True
    ) -> None:
        super().__init__(schema)
        self._positive = positive
        self._null_is_false = null_is_false

    def emit_constant(self, value: Any) -> pc.Expression:
        return pc.scalar(pa.scalar(value, pa.bool_()))

    def emit_column(self, name: str) -> pc.Expression:
        return pc.field(name)

    @handles("and", "or")
    def _connective(self, node: Call) -> pc.Expression:
        parts = [self.visit(arg) for arg in merge_equalities(node)]
        return _combine_balanced(operator.and_ if node.op == "and" else operator.or_, parts)

    @handles("not")
    def _not(self, node: Call) -> pc.Expression:
        inner = self._with(positive=not self._positive, null_is_false=False)
        return ~inner.visit(node.args[0])

    @handles("is true", "is false")
    def _is(self, node: Call) -> pc.Expression:
        true = node.op == "is true"
        emitter = self._with(positive=self._positive is true, null_is_false=true)
        inner = emitter.visit(node.args[0])
        return pc.coalesce(inner if true else ~inner, pc.scalar(False))

    @handles("is null")
    def _is_null(self, node: Call) -> pc.Expression:
        return pc.field(_column_name(node.args[0])).is_null()

    def _with(self, *, positive: bool, null_is_false: bool) -> _ArrowEmitter:
        return _ArrowEmitter(self.schema, positive=positive, null_is_false=null_is_false)

    def check_kinds(self, column: Node, values: Sequence[Node]) -> None:
        if len(literal_kinds(values)) > 1:
            raise Untranslatable(column)

    def emit_comparison(
        self, op: str, name: str, values: Sequence[Node], kind: pa.DataType
    ) -> pc.Expression:
        if may_have_nan(kind) and not (self._positive and op in _FALSE_FOR_NAN):
            raise Untranslatable
        scalars = [_exact_scalar(value, kind) for value in values]
        if op == "in":
            return _is_in(name, scalars, kind, null_is_false=self._null_is_false)
        if op == "<=>":
            if not scalars[0].is_valid:
                return pc.field(name).is_null()
            return pc.coalesce(_compare(name, "=", scalars[0]), pc.scalar(False))
        return _compare(name, op, scalars[0])

    def emit_membership(self, name: str, members: ValueSet, kind: pa.DataType) -> pc.Expression:
        unequal = may_have_nan(kind) and not self._positive
        if unequal or (members.has_null and not self._null_is_false):
            raise Untranslatable(members)
        contained = pc.field(name).isin(members.hashed())
        if self._null_is_false:
            return contained
        return pc.if_else(pc.field(name).is_valid(), contained, null_scalar(pa.bool_()))

    def emit_prefix(self, name: str, prefix: str) -> pc.Expression:
        return pc.starts_with(pc.field(name), prefix)


def _combine_balanced(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: list[pc.Expression]
) -> pc.Expression:
    """Combine as a balanced tree: a linear chain could be too deep for Arrow's recursion."""
    while len(parts) > 1:
        pairs = [join(*parts[index : index + 2]) for index in range(0, len(parts) - 1, 2)]
        parts = pairs if len(parts) % 2 == 0 else [*pairs, parts[-1]]
    return parts[0]


def _is_in(
    name: str, values: list[pa.Scalar], kind: pa.DataType, *, null_is_false: bool
) -> pc.Expression:
    """IN. Arrow's `isin` is FALSE for NULL, and for a miss in a list with NULL; SQL gives NULL."""
    if len(values) <= _EQUALITIES_MAX:
        return _combine_balanced(operator.or_, [_compare(name, "=", value) for value in values])
    members = [value for value in values if value.is_valid]
    if not null_is_false and len(members) < len(values):
        raise Untranslatable
    if pa.types.is_floating(kind) and any(value.as_py() == 0 for value in members):
        members += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]  # equal, but hashed as two values
    contained = pc.field(name).isin(pa.array(members, kind))
    if null_is_false:
        return contained
    return pc.if_else(pc.field(name).is_valid(), contained, null_scalar(pa.bool_()))


def _exact_scalar(node: Node, kind: pa.DataType) -> pa.Scalar:
    """A literal as a scalar of the column's type, if that represents it exactly."""
    value = _exact_value(node, kind)
    try:
        if value is not None and pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if value is not None and pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError):
        raise Untranslatable(node) from None


def _compare(name: str, op: str, value: pa.Scalar) -> pc.Expression:
    comparison: pc.Expression = COMPARISON_FUNCTIONS[op](pc.field(name), value)
    return comparison


def emit_spark(node: Node, schema: pa.Schema) -> Any | None:
    """Convert a predicate; None if Spark evaluates it differently or cannot express it."""
    try:
        if sum(isinstance(part, Call) for part in walk_nodes(node)) > _SPARK_CALLS_MAX:
            raise Untranslatable
        return _SparkEmitter(schema).visit(node)
    except Untranslatable:
        return None


class _SparkEmitter(_ConditionEmitter[Any]):
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
        return self.emit_column(_column_name(subject)).isNull()

    def check_kinds(self, column: Node, values: Sequence[Node]) -> None:
        literals = [value for value in values if isinstance(value, Literal)]
        kind = self.schema.field(_column_name(column)).type
        if len(literals) < len(values) or coerce_literals(literals, kind) != literals:
            raise Untranslatable(column)

    def emit_comparison(self, op: str, name: str, values: Sequence[Node], kind: pa.DataType) -> Any:
        column = self.emit_column(name)
        literals = [_spark_literal(_exact_value(value, kind), kind) for value in values]
        if op == "in":
            return column.isin(*literals)
        if op == "<=>":
            return column.eqNullSafe(literals[0])
        return COMPARISON_FUNCTIONS[op](column, literals[0])

    def emit_membership(self, name: str, members: ValueSet, kind: pa.DataType) -> Any:
        if len(members.values) > _SPARK_VALUES_MAX:
            raise Untranslatable(members)
        literals = [literal_from_scalar(value) for value in members.values]
        values: list[Node] = [literal for literal in literals if literal is not None]
        values += [NULL] if members.has_null else []
        return self.emit_comparison("in", name, values, kind)

    def emit_prefix(self, name: str, prefix: str) -> Any:
        text = _spark_literal(_exact_value(Literal(prefix, "text"), pa.string()), pa.string())
        return self.emit_column(name).startswith(text)


def _spark_literal(value: Any, kind: pa.DataType) -> Any:
    """A value of a column's type as a Spark literal of that type; NULL has no type."""
    from pyspark.sql import functions

    if value is None or pa.types.is_boolean(kind):
        return functions.lit(value)
    if pa.types.is_date(kind) and _SPARK_DAYS[0] <= value <= _SPARK_DAYS[1]:
        return functions.date_from_unix_date(functions.lit(value))
    if pa.types.is_timestamp(kind) and _SPARK_DAYS[0] <= value // DAY_MICROS <= _SPARK_DAYS[1]:
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
