"""A tree as a pyarrow expression that means the same, where there is one. Pure.

Arrow skips row groups of a Parquet file by bounds that know nothing of NaN, and so loses NaN rows
that a condition is true for, whatever is said about them in the expression. A condition on floats
goes to Arrow only if no NaN can make it true.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import null
from arrowlog.scan.bounds import pair_of
from arrowlog.scan.casts import TURNED
from arrowlog.scan.normal import WILD, gathered
from arrowlog.scan.tree import COMPARISONS, Call, Column, Foreign, Literal, conjuncts
from arrowlog.state.safe import has_nan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.scan.tree import Node

_SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_VALUES_MAX = 100  # above that, a set to look values up in
# Arrow makes chains of ANDs and ORs again, whatever they came as, and walks them by recursion: some
# thousand conditions end the process. So many are no help in skipping row groups either.
_CONDITIONS_MAX = 500


class _Beyond(Exception):
    """Arrow has no equal for a part."""


def to_arrow(node: Node, schema: pa.Schema) -> pc.Expression | None:
    """The expression; None if Arrow would see it differently, or not at all."""
    try:
        if _length(node) > _CONDITIONS_MAX:
            raise _Beyond
        return _expression(node, schema, sure=True)
    except _Beyond:
        return None


def pushed_down(node: Node, schema: pa.Schema) -> tuple[list[pc.Expression], list[Node]]:
    """Expressions for the conjuncts that Arrow can apply, and the conjuncts that are left."""
    parts: Sequence[Node] = conjuncts(node)
    if len(parts) > 1:
        parts = gathered(Call("and", tuple(parts)))
    found: list[pc.Expression] = []
    rest: list[Node] = []
    room = _CONDITIONS_MAX
    for part in parts:
        length = _length(part)
        said = to_arrow(part, schema) if length <= room else None
        if said is None:
            rest.append(part)
        else:
            found.append(said)
            room -= length
    return found, rest


def _length(node: Node) -> int:
    """How many conditions are left when equalities with one column are one set."""
    todo, count = [node], 0
    while todo and count <= _CONDITIONS_MAX:
        found = todo.pop()
        if isinstance(found, Call):
            count += 1
            todo += gathered(found) if found.op in ("and", "or") else found.args
    return count


def _expression(node: Node, schema: pa.Schema, *, sure: bool) -> pc.Expression:  # noqa: C901
    """`sure` is false under a NOT, where what is not true of a NaN becomes true."""
    if isinstance(node, Literal):
        if node.kind not in ("bool", "null"):
            raise _Beyond
        return pc.scalar(pa.scalar(node.value, pa.bool_()))
    if isinstance(node, Column):
        if node.path or not pa.types.is_boolean(schema.field(node.name).type):
            raise _Beyond
        return pc.field(node.name)
    if isinstance(node, Foreign):
        raise _Beyond
    if node.op in ("and", "or"):
        parts = [_expression(arg, schema, sure=sure) for arg in gathered(node)]
        return _joined(operator.and_ if node.op == "and" else operator.or_, parts)
    if node.op == "not":
        return ~_expression(node.args[0], schema, sure=not sure)
    if node.op in ("is true", "is false"):
        true = node.op == "is true"
        inner = _expression(node.args[0], schema, sure=sure is true)
        return pc.coalesce(inner if true else ~inner, pc.scalar(False))
    if node.op in ("between", "in") and not _one_kind(node.args[1:]):
        raise _Beyond
    if node.op == "between":
        low, high = Call(">=", node.args[:2]), Call("<=", (node.args[0], node.args[2]))
        return _expression(Call("and", (low, high)), schema, sure=sure)
    return _leaf(node, schema, sure=sure)


def _joined(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: list[pc.Expression]
) -> pc.Expression:
    """Pairs of pairs: a thousand parts are ten deep, where a chain could be too deep for Arrow."""
    while len(parts) > 1:
        pairs = [join(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = pairs if len(parts) % 2 == 0 else [*pairs, parts[-1]]
    return parts[0]


def _one_kind(nodes: tuple[Node, ...]) -> bool:
    """Mixed literals are brought to one type, which single comparisons would not be."""
    kinds = {node.kind for node in nodes if isinstance(node, Literal) and node.value is not None}
    return len(kinds) < 2


def _leaf(node: Call, schema: pa.Schema, *, sure: bool) -> pc.Expression:
    op, args = node.op, node.args
    if op in TURNED and isinstance(args[0], Literal):
        op, args = TURNED[op], (args[1], args[0])
    column = args[0] if args else None
    if not isinstance(column, Column) or column.path:
        raise _Beyond
    if op == "is null":
        return pc.field(column.name).is_null()
    kind = schema.field(column.name).type
    if has_nan(kind) and not (sure and op in ("=", "<", "<=", "in", "<=>")):
        raise _Beyond
    if op in COMPARISONS:
        return _compare(column.name, op, _value(args[1], kind))
    if op == "<=>":
        if args[1] == Literal(None, "null"):
            return pc.field(column.name).is_null()
        same = _compare(column.name, "=", _value(args[1], kind))
        return pc.coalesce(same, pc.scalar(False))
    if op == "in":
        return _among(column.name, [_value(arg, kind) for arg in args[1:]], kind, sure=sure)
    if op in ("like", "starts_with") and len(args) == 2 and pa.types.is_string(kind):
        return _begins(column.name, op, args[1])
    raise _Beyond


def _among(name: str, values: list[pa.Scalar], kind: pa.DataType, *, sure: bool) -> pc.Expression:
    """Whether a value is in a set. To Arrow NULL is not in it; to us that is unknown."""
    if len(values) <= _VALUES_MAX:
        return _joined(operator.or_, [_compare(name, "=", value) for value in values])
    known = [value for value in values if value.is_valid]
    if not sure and len(known) < len(values):
        raise _Beyond
    if pa.types.is_floating(kind) and any(value.as_py() == 0 for value in known):
        known += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]  # equal, and yet two to a hash
    inside = pc.field(name).isin(pa.array(known, kind))
    return inside if sure else pc.if_else(pc.field(name).is_valid(), inside, null(pa.bool_()))


def _begins(name: str, op: str, value: Node) -> pc.Expression:
    text = value.value if isinstance(value, Literal) else None
    if not isinstance(text, str):
        raise _Beyond
    if op == "like":
        if not text.endswith("%") or any(letter in WILD for letter in text[:-1]):
            raise _Beyond
        text = text[:-1]
    return pc.starts_with(pc.field(name), text)


def _value(node: Node, kind: pa.DataType) -> pa.Scalar:
    """A literal as exactly that value of a column's type."""
    if not isinstance(node, Literal):
        raise _Beyond
    if node.value is None:
        return pa.scalar(None, kind)
    pair = pair_of(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise _Beyond
    value: Any = bool(pair[0]) if pa.types.is_boolean(kind) else pair[0]
    try:
        if pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError):
        raise _Beyond from None


def _compare(name: str, op: str, value: pa.Scalar) -> pc.Expression:
    found: pc.Expression = _SIGNS[op](pc.field(name), value)
    return found
