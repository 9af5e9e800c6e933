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
from arrowlog.predicate import (
    COMPARISON_OPS,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Untranslatable,
    split_conjuncts,
)
from arrowlog.scan.literal_bounds import SWAPPED_COMPARISONS, enclose_literal
from arrowlog.scan.stats_predicate import LIKE_WILDCARDS, merge_equalities
from arrowlog.snapshot import may_have_nan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.predicate import Node

_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
        return _expression(node, schema, positive=True)
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


def _expression(node: Node, schema: pa.Schema, *, positive: bool) -> pc.Expression:  # noqa: C901
    """Translate a condition. `positive` is False under an odd number of NOT and IS FALSE.

    There, a comparison that is FALSE for NaN becomes TRUE for it.
    """
    if isinstance(node, Literal):
        if node.kind not in ("bool", "null"):
            raise Untranslatable
        return pc.scalar(pa.scalar(node.value, pa.bool_()))
    if isinstance(node, Column):
        if node.path or not pa.types.is_boolean(schema.field(node.name).type):
            raise Untranslatable
        return pc.field(node.name)
    if isinstance(node, ForeignExpr):
        raise Untranslatable
    if node.op in ("and", "or"):
        parts = [_expression(arg, schema, positive=positive) for arg in merge_equalities(node)]
        return _combine_balanced(operator.and_ if node.op == "and" else operator.or_, parts)
    if node.op == "not":
        return ~_expression(node.args[0], schema, positive=not positive)
    if node.op in ("is true", "is false"):
        true = node.op == "is true"
        inner = _expression(node.args[0], schema, positive=positive is true)
        return pc.coalesce(inner if true else ~inner, pc.scalar(False))
    if node.op in ("between", "in") and not _same_kind(node.args[1:]):
        raise Untranslatable
    if node.op == "between":
        low, high = Call(">=", node.args[:2]), Call("<=", (node.args[0], node.args[2]))
        return _expression(Call("and", (low, high)), schema, positive=positive)
    return _column_condition(node, schema, positive=positive)


def _combine_balanced(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: list[pc.Expression]
) -> pc.Expression:
    """Combine as a balanced tree: a linear chain could be too deep for Arrow's recursion."""
    while len(parts) > 1:
        pairs = [join(*parts[index : index + 2]) for index in range(0, len(parts) - 1, 2)]
        parts = pairs if len(parts) % 2 == 0 else [*pairs, parts[-1]]
    return parts[0]


def _same_kind(nodes: tuple[Node, ...]) -> bool:
    """Whether all literals that are not NULL have one kind.

    Engines coerce a mixed list to a common type; separate comparisons would not be.
    """
    kinds = {node.kind for node in nodes if isinstance(node, Literal) and node.value is not None}
    return len(kinds) < 2


def _column_condition(node: Call, schema: pa.Schema, *, positive: bool) -> pc.Expression:
    """Translate a condition on one column."""
    op, args = node.op, node.args
    if op in SWAPPED_COMPARISONS and isinstance(args[0], Literal):
        op, args = SWAPPED_COMPARISONS[op], (args[1], args[0])
    column = args[0] if args else None
    if not isinstance(column, Column) or column.path:
        raise Untranslatable
    if op == "is null":
        return pc.field(column.name).is_null()
    kind = schema.field(column.name).type
    if may_have_nan(kind) and not (positive and op in ("=", "<", "<=", "in", "<=>")):
        raise Untranslatable
    if op in COMPARISON_OPS:
        return _compare(column.name, op, _exact_scalar(args[1], kind))
    if op == "<=>":
        if args[1] == Literal(None, "null"):
            return pc.field(column.name).is_null()
        same = _compare(column.name, "=", _exact_scalar(args[1], kind))
        return pc.coalesce(same, pc.scalar(False))
    if op == "in":
        return _is_in(
            column.name, [_exact_scalar(arg, kind) for arg in args[1:]], kind, positive=positive
        )
    if op in ("like", "starts_with") and len(args) == 2 and pa.types.is_string(kind):
        return _starts_with(column.name, op, args[1])
    raise Untranslatable


def _is_in(
    name: str, values: list[pa.Scalar], kind: pa.DataType, *, positive: bool
) -> pc.Expression:
    """IN. Arrow's `isin` is FALSE for NULL, where SQL gives NULL: under NOT that matters."""
    if len(values) <= _EQUALITIES_MAX:
        return _combine_balanced(operator.or_, [_compare(name, "=", value) for value in values])
    members = [value for value in values if value.is_valid]
    if not positive and len(members) < len(values):
        raise Untranslatable
    if pa.types.is_floating(kind) and any(value.as_py() == 0 for value in members):
        members += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]  # equal, but hashed as two values
    contained = pc.field(name).isin(pa.array(members, kind))
    if positive:
        return contained
    return pc.if_else(pc.field(name).is_valid(), contained, null_scalar(pa.bool_()))


def _starts_with(name: str, op: str, value: Node) -> pc.Expression:
    """A prefix test: starts_with, or LIKE with a pattern that ends in its only wildcard."""
    prefix = value.value if isinstance(value, Literal) else None
    if not isinstance(prefix, str):
        raise Untranslatable
    if op == "like":
        if not prefix.endswith("%") or any(
            character in LIKE_WILDCARDS for character in prefix[:-1]
        ):
            raise Untranslatable
        prefix = prefix[:-1]
    return pc.starts_with(pc.field(name), prefix)


def _exact_scalar(node: Node, kind: pa.DataType) -> pa.Scalar:
    """A literal as a scalar of the column's type, if that represents it exactly."""
    if not isinstance(node, Literal):
        raise Untranslatable
    if node.value is None:
        return pa.scalar(None, kind)
    pair = enclose_literal(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise Untranslatable
    value: Any = bool(pair[0]) if pa.types.is_boolean(kind) else pair[0]
    try:
        if pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError):
        raise Untranslatable from None


def _compare(name: str, op: str, value: pa.Scalar) -> pc.Expression:
    comparison: pc.Expression = _OPERATORS[op](pc.field(name), value)
    return comparison
