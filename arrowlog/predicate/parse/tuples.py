"""Parse predicates given as tuples, in the form known from pyarrow and PyIceberg filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.config import is_text
from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    TRUE,
    Call,
    Literal,
    join_nodes,
    resolve_column,
    resolve_struct_path,
)
from arrowlog.predicate.literals import make_in, to_arrow_array, to_literal
from arrowlog.predicate.searches import SEARCH_OP, make_search
from arrowlog.splits import ALL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.predicate.ast import Column, Node

_TUPLE_HINT = 'A condition is ("column", "op", value); a list of them is AND, a list of lists OR.'
_COMPARISONS = {
    "=": "=",
    "==": "=",
    "!=": "<>",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_COMPARISONS |= {"<=>": "<=>"}
_OPERATOR_NAMES = (
    "=, !=, <, <=, >, >=, <=>, in, not in, between, like, not like, is null, is not null,"
    " indexquery"
)


def parse_tuples(conditions: Sequence[Any], schema: pa.Schema) -> Node:
    """Parse a list of tuples (their AND), or a list of lists of tuples (an OR of ANDs).

    A single tuple is one condition. An empty list is true for every row. Raises InvalidRequest for
    anything else, for an unknown column and for an unknown operator.
    """
    if isinstance(conditions, tuple) and any(isinstance(part, str) for part in conditions[:2]):
        return _condition(conditions, schema)
    if not conditions:
        return TRUE
    if all(isinstance(part, list) for part in conditions):
        if not all(conditions):
            raise InvalidRequest("One of the lists of conditions is empty.", next=_TUPLE_HINT)
        return join_nodes("or", [parse_tuples(part, schema) for part in conditions])
    return join_nodes("and", [_condition(part, schema) for part in conditions])


def _condition(condition: Any, schema: pa.Schema) -> Node:
    if (
        not isinstance(condition, tuple)
        or len(condition) not in (2, 3)
        or not _is_name(condition[0])
    ):
        raise InvalidRequest(f"{condition!r} is not a condition.", next=_TUPLE_HINT)
    op = " ".join(str(condition[1]).lower().split()) if isinstance(condition[1], str) else ""
    negated = op.startswith("not ")
    op = op.removeprefix("not ")
    searches_all = op == SEARCH_OP and condition[0] == ALL_FIELDS not in schema.names
    column: Node = Literal(ALL_FIELDS, "text") if searches_all else _resolve(condition[0], schema)
    where = f"The condition on {condition[0]!r}"
    value = condition[2] if len(condition) == 3 else None
    is_test = op in ("is null", "is not null") or (op in ("is", "is not") and value is None)
    if is_test and not negated:
        node: Node = Call("is null", (column,))
        negated = "not" in op
    elif len(condition) == 2:
        raise InvalidRequest(f"{condition!r} has no value to compare with.", next=_TUPLE_HINT)
    elif op in ("in", "between"):
        node = _in_or_between(column, op, value, where, schema)
    elif op == SEARCH_OP:
        node = make_search(column, to_literal(value, where))
    elif op in ("like", "ilike", "starts_with"):
        node = Call(op, (column, to_literal(value, where)))
    elif op in _COMPARISONS and not negated:
        node = Call(_COMPARISONS[op], (column, to_literal(value, where)))
    else:
        raise InvalidRequest(
            f"{condition[1]!r} is not an operator.", next=f"Use one of {_OPERATOR_NAMES}."
        )
    return Call("not", (node,)) if negated else node


def _is_name(name: Any) -> bool:
    """Whether a value names a column, or a struct field as the tuple of names on the way to it."""
    is_path = isinstance(name, tuple) and bool(name)
    return is_text(name) or (is_path and all(map(is_text, name)))


def _resolve(name: str | tuple[str, ...], schema: pa.Schema) -> Column:
    """A column or struct field. A column whose name contains dots wins over a path."""
    if isinstance(name, tuple):
        return resolve_struct_path(resolve_column(name[0], schema).name, name[1:], schema)
    root, *path = name.split(".")
    index = schema.get_field_index(root)
    is_path = bool(path) and index >= 0 and pa.types.is_struct(schema.field(index).type)
    if is_path and schema.get_field_index(name) < 0:
        return resolve_struct_path(root, path, schema)
    return resolve_column(name, schema)


def _in_or_between(column: Node, op: str, value: Any, where: str, schema: pa.Schema) -> Node:
    members = to_arrow_array(value) if op == "in" else None
    condition = None if members is None else make_in(column, members, schema)
    if condition is not None:
        return condition
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidRequest(f"{where}: {op.upper()} needs a list of values.", next=_TUPLE_HINT)
    values = [to_literal(item, where) for item in value]
    if op == "between":
        if len(values) != 2:
            raise InvalidRequest(f"{where}: BETWEEN needs two values.", next=_TUPLE_HINT)
        return Call("between", (column, *values))
    return Call("in", (column, *values)) if values else Literal(False, "bool")
