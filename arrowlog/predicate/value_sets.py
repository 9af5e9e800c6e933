"""Value sets: the members of a long IN list as one Arrow array, without an object per value. Pure.

They come from Arrow arrays, polars Series and numpy arrays (the keys of a user's own join, say) and
from long lists of literals. The array has the type of the column that it is compared with, so that
no engine converts either side.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.predicate.ast import FALSE, Call, Column, Literal, Node, ValueSet, column_type
from arrowlog.predicate.literals import literal_from_scalar, may_have_nan

if TYPE_CHECKING:
    from collections.abc import Sequence

# Shorter lists become literals, which every engine can show and compare one by one.
VALUE_SET_MIN = 100
# Literals that a user has written stay visible, one by one, up to this many.
LITERALS_MAX = 1000
# The comparisons with one column that are a list of its values, by the operator between them.
_LISTED_COMPARISONS = {"or": "=", "and": "<>"}
_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def to_arrow_array(values: Any) -> pa.Array | None:
    """Convert a column of values to one Arrow array; None for a list and anything else."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "__arrow_c_stream__"):  # polars
        try:
            return pa.chunked_array(values).combine_chunks()
        except (pa.ArrowException, TypeError, ValueError):
            return None
    is_numpy = type(values).__module__ == "numpy" and getattr(values, "ndim", 0) == 1
    if not is_numpy or values.dtype.kind not in "iufbM":
        return None
    try:
        return pa.array(values)
    except pa.ArrowException:
        return None


def make_in(
    column: Node, values: pa.Array, schema: pa.Schema, *, keep_null: bool = True
) -> Node | None:
    """The condition that a column is IN an array of values; None if they have to be literals.

    A NULL among the values makes the condition NULL instead of FALSE, unless `keep_null` is False.
    """
    has_null = bool(values.null_count) and keep_null
    members = values.drop_null() if values.null_count else values
    if pa.types.is_dictionary(members.type):
        members = members.cast(members.type.value_type)
    if len(members) < VALUE_SET_MIN or not isinstance(column, Column):
        return _literal_in(column, members, has_null=has_null)
    kind = column_type(column, schema)
    typed = None if kind is None else _cast_exactly(members, kind)
    if typed is None:
        return _literal_in(column, members, has_null=has_null)
    return Call("in", (column, ValueSet(typed, has_null)))


def collect_literals(node: Node, schema: pa.Schema) -> Node:
    """Replace long lists of literals by value sets where no engine would convert either side.

    That is so for integers in a column of integers and texts in a column of texts. DuckDB needs
    seconds to bind 100,000 literals, Arrow milliseconds to look them up. `a = 1 OR a = 2 …` and
    `a <> 1 AND a <> 2 …` are lists too.
    """
    if not isinstance(node, Call):
        return node
    if node.op == "in" and len(node.args) > LITERALS_MAX:
        members = _literal_array(node.args[0], node.args[1:], schema)
        return node if members is None else Call("in", (node.args[0], members))
    if node.op in _LISTED_COMPARISONS and len(node.args) > LITERALS_MAX:
        parts = collect_comparisons(node.op, node.args, schema)
    else:
        parts = node.args
    args = tuple(collect_literals(arg, schema) if isinstance(arg, Call) else arg for arg in parts)
    if len(args) == 1 < len(node.args):
        return args[0]
    changed = len(args) < len(node.args) or any(map(operator.is_not, args, node.args))
    return Call(node.op, args, node.detail) if changed else node


def collect_comparisons(op: str, parts: Sequence[Node], schema: pa.Schema) -> Sequence[Node]:
    """Replace comparisons of one column with many literals among the parts of an OR or AND.

    An AND of `<>` is a NOT IN. The new condition stands behind the other parts.
    """
    by_column: dict[Column, list[Node]] = {}
    kept: list[Node] = []
    for part in parts:
        if isinstance(part, Call) and part.op == _LISTED_COMPARISONS[op]:
            column, literal = part.args
            if isinstance(column, Column) and isinstance(literal, Literal):
                by_column.setdefault(column, []).append(literal)
                continue
        kept.append(part)
    for column, literals in by_column.items():
        members = _literal_array(column, literals, schema) if len(literals) > LITERALS_MAX else None
        if members is None:
            kept += [Call(_LISTED_COMPARISONS[op], (column, literal)) for literal in literals]
        else:
            listed = Call("in", (column, members))
            kept.append(listed if op == "or" else Call("not", (listed,)))
    return kept


def _literal_array(column: Node, members: Sequence[Node], schema: pa.Schema) -> ValueSet | None:
    """The literals of an IN as a value set; None if one might be converted in a comparison."""
    kind = column_type(column, schema) if isinstance(column, Column) else None
    if kind is None:
        return None
    if pa.types.is_integer(kind):
        wanted = "int"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        wanted = "text"
    else:
        return None
    literals = [member for member in members if isinstance(member, Literal)]
    kinds = {literal.kind for literal in literals}
    if len(literals) < len(members) or not kinds <= {wanted, "null"}:
        return None
    values = [literal.value for literal in literals if literal.kind == wanted]
    try:
        return ValueSet(pa.array(values, kind), "null" in kinds)
    except (pa.ArrowInvalid, OverflowError, UnicodeError):  # beyond the column's type
        return None


def _literal_in(column: Node, members: pa.Array, *, has_null: bool) -> Node | None:
    literals = [literal_from_scalar(value) for value in members]
    known: list[Node] = [literal for literal in literals if literal is not None]
    if len(known) < len(literals):
        return None
    if has_null:
        known.append(Literal(None, "null"))
    return Call("in", (column, *known)) if known else FALSE


def _cast_exactly(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Convert values to the type of a column; None if that changes one, or is not certain."""
    source = values.type
    if may_have_nan(kind):
        if not may_have_nan(source) or source.bit_width > kind.bit_width:
            return None
        converted = pc.cast(values, kind)
        return None if pc.any(pc.is_nan(converted)).as_py() else converted
    families: Sequence[tuple[Any, Any]] = (
        (pa.types.is_integer, pa.types.is_integer),
        (pa.types.is_decimal, pa.types.is_decimal),
        (pa.types.is_date, pa.types.is_date),
        (pa.types.is_timestamp, pa.types.is_timestamp),
        (pa.types.is_boolean, pa.types.is_boolean),
        (pa.types.is_string, lambda other: any(test(other) for test in _TEXT_TYPES)),
    )
    if not any(is_kind(kind) and is_source(source) for is_kind, is_source in families):
        return None
    try:
        if pa.types.is_timestamp(kind):  # a timestamp without a zone is UTC
            in_unit = pc.cast(values, pa.timestamp(kind.unit, source.tz))
            return pc.cast(pc.cast(in_unit, pa.int64()), kind)
        return pc.cast(values, kind)
    except pa.ArrowInvalid:
        return None


def evaluate_membership(node: Call, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate an IN with a value set for every row: NULL for NULL, and for a miss beside NULL."""
    column, members = node.args
    assert isinstance(column, Column)
    assert isinstance(members, ValueSet)
    values = columns[column.name]
    for part in column.path:
        values = pc.struct_field(values, [values.type.get_field_index(part)])
    if values.type != members.values.type:
        values = pc.cast(values, members.values.type)
    contained = pc.is_in(values, value_set=members.hashed())
    null = pa.scalar(None, pa.bool_())
    if members.has_null:
        return pc.if_else(contained, contained, null)
    return pc.if_else(pc.is_valid(values), contained, null)
