"""Translate predicate trees to pyarrow filter expressions with the same meaning. Pure.

Arrow skips the row groups of a Parquet file by bounds that ignore NaN, and thereby loses NaN rows
for which a condition is true, however the expression treats NaN. So a condition on floats is pushed
down only if no NaN can satisfy it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import null_scalar
from arrowlog.predicate.ast import Call, Untranslatable, split_conjuncts
from arrowlog.predicate.emit.conditions import ConditionEmitter, column_name, exact_value
from arrowlog.predicate.literal_bounds import may_have_nan
from arrowlog.predicate.rewrites import literal_kinds, merge_equalities
from arrowlog.predicate.visitor import handles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.predicate.ast import Node

_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Comparisons with a number that are FALSE for NaN, which is greater than every number.
_FALSE_FOR_NAN = ("=", "<", "<=", "in", "<=>")
# Longer IN lists become a hash lookup instead of a disjunction of equalities.
_EQUALITIES_MAX = 100
# Arrow rebuilds chains of ANDs and ORs, however they were nested, and walks them recursively: a few
# thousand conditions crash the process. So many do not help to skip row groups either.
_CONDITIONS_MAX = 500


def emit_pyarrow(node: Node, schema: pa.Schema) -> pc.Expression | None:
    """The filter expression of a node; None if Arrow has none with the same meaning."""
    try:
        if _count_conditions(node) > _CONDITIONS_MAX:
            raise Untranslatable
        return _FilterEmitter(schema).visit(node)
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
    budget = _CONDITIONS_MAX
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
    while pending and count <= _CONDITIONS_MAX:
        current = pending.pop()
        if isinstance(current, Call):
            count += 1
            pending += merge_equalities(current) if current.op in ("and", "or") else current.args
    return count


class _FilterEmitter(ConditionEmitter[pc.Expression]):
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
        return pc.field(column_name(node.args[0])).is_null()

    def _with(self, *, positive: bool, null_is_false: bool) -> _FilterEmitter:
        return _FilterEmitter(self.schema, positive=positive, null_is_false=null_is_false)

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
    value = exact_value(node, kind)
    try:
        if value is not None and pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if value is not None and pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError):
        raise Untranslatable(node) from None


def _compare(name: str, op: str, value: pa.Scalar) -> pc.Expression:
    comparison: pc.Expression = _OPERATORS[op](pc.field(name), value)
    return comparison
