"""Searches in predicates: `column indexquery 'text'`. Pure.

A search is a call of the operator `indexquery` on a column, or on `_indexall` for every text field.
No engine can evaluate it on rows. Readers of splits ask their index for the rows that match, and
bind the answers: each search becomes a boolean column, and the rest of the predicate is evaluated
as ever. A search is never NULL: a row without a value does not match.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, Self

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import Call, Column, Literal
from arrowlog.splits import ALL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.predicate.ast import Node

SEARCH_OP = "indexquery"
_SIGNS = {"and": " & ", "or": " | "}
_HINT = "Write text indexquery 'spark AND sql', with a column on the left and text on the right."


@dataclass(frozen=True, eq=False, repr=False)
class SearchCondition:
    """A search, or searches combined with other predicates by `&`, `|` and `~`.

    Other operands are predicates of any form: polars and pyarrow expressions, SQL text, tuples.
    pyarrow accepts no other objects on the right of its operators, so a search stands on the left
    of a pyarrow expression: `indexquery("text", "spark") & (pc.field("id") > 5)`.
    """

    op: str
    args: tuple[Any, ...]

    def __and__(self, other: Any) -> SearchCondition:
        """Rows that match both."""
        return SearchCondition("and", (self, other))

    def __or__(self, other: Any) -> SearchCondition:
        """Rows that match either."""
        return SearchCondition("or", (self, other))

    def __rand__(self, other: Any) -> SearchCondition:
        """Rows that match both."""
        return SearchCondition("and", (other, self))

    def __ror__(self, other: Any) -> SearchCondition:
        """Rows that match either."""
        return SearchCondition("or", (other, self))

    def __invert__(self) -> SearchCondition:
        """Rows that do not match."""
        return SearchCondition("not", (self,))

    def __bool__(self) -> bool:
        """Raise TypeError: `and`, `or` and `not` cannot be overloaded."""
        raise TypeError("Combine searches with &, | and ~ instead of and, or and not.")

    def __new__(cls, *_: object) -> Self:
        """Create an object that polars' operators leave to this class, where polars is loaded."""
        chosen: Any = _polars_class() or cls
        new: Self = object.__new__(chosen)
        return new

    def __repr__(self) -> str:
        """The condition and its place: pyarrow's error for a search on the right has this text."""
        return f"<SearchCondition {_condition_text(self)}, to be written left of & and |>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value, whichever class the object has."""
        return SearchCondition, (self.op, self.args)


def _condition_text(condition: object) -> str:
    if not isinstance(condition, SearchCondition):
        return repr(condition)
    parts = [_condition_text(arg) for arg in condition.args]
    if condition.op == SEARCH_OP:
        return f"{SEARCH_OP}({', '.join(parts)})"
    return f"~{parts[0]}" if condition.op == "not" else f"({_SIGNS[condition.op].join(parts)})"


@cache
def _make_polars_class(expr: type) -> type[SearchCondition]:
    """A search that is also a polars expression.

    Python asks the right operand of `expr & search` first only if its class derives from that of
    the left one. polars itself would refuse the search.
    """

    def refuse(_: object) -> NoReturn:
        raise InvalidRequest(
            "A search cannot be a part of a polars expression.",
            next="Combine it with other conditions by &, | and ~, and pass it to Table.scan.",
        )

    # Every method of polars reads this attribute.
    return type("SearchCondition", (SearchCondition, expr), {"_pyexpr": property(refuse)})


def _polars_class() -> type[SearchCondition] | None:
    """The class of searches where polars is loaded; this does not load it."""
    expr = getattr(sys.modules.get("polars"), "Expr", None)
    return None if expr is None else _make_polars_class(expr)


def indexquery(column: str, query: str) -> SearchCondition:
    """A search in the splits of a table, for `table.scan`.

    `column` is the column that terms without a field are searched in, or `_indexall` for every text
    field. Raises InvalidRequest with the position of what is not in the query language.

    >>> indexquery("text", "spark AND NOT sql") & "id > 5"
    <SearchCondition (indexquery('text', 'spark AND NOT sql') & 'id > 5'), to be written left ...>
    """
    if not isinstance(column, str):
        raise InvalidRequest(
            f"The column of indexquery is a name, not {type(column).__name__}.", next=_HINT
        )
    from arrowlog.splits import parse_query

    parse_query(query)
    return SearchCondition(SEARCH_OP, (column, query))


def make_search(column: Node, query: Node) -> Call:
    """The node of a search. Raises InvalidRequest if the operands are not a column and a query."""
    named = isinstance(column, Column) and not column.path
    if not named and column != Literal(ALL_FIELDS, "text"):
        raise InvalidRequest("The left side of indexquery is not a column.", next=_HINT)
    if not isinstance(query, Literal) or query.kind != "text":
        raise InvalidRequest("The right side of indexquery is not a text.", next=_HINT)
    from arrowlog.splits import parse_query

    parse_query(str(query.value))
    return Call(SEARCH_OP, (column, query))


def search_operands(search: Call) -> tuple[str, str]:
    """The column and the query of a search."""
    column, query = search.args
    assert isinstance(query, Literal)
    name = column.name if isinstance(column, Column) else ALL_FIELDS
    return name, str(query.value)


def is_search(node: Node) -> bool:
    """Whether a node is a search."""
    return isinstance(node, Call) and node.op == SEARCH_OP


def find_searches(tree: Node) -> list[Call]:
    """The distinct searches in a tree."""
    if not isinstance(tree, Call):
        return []
    if tree.op == SEARCH_OP:
        return [tree]
    found: dict[Call, None] = {}
    pending = [tree]
    while pending:
        call = pending.pop()
        if call.op == SEARCH_OP:
            found[call] = None
        else:
            # Most arguments are columns and literals; an IN list has thousands.
            pending += [arg for arg in call.args if isinstance(arg, Call)][::-1]
    return list(found)


def bind_searches(tree: Node, names: Mapping[Call, str]) -> Node:
    """Replace searches by boolean columns of their answers."""
    if not isinstance(tree, Call):
        return tree
    if tree in names:
        return Column(names[tree])
    return Call(tree.op, tuple(bind_searches(arg, names) for arg in tree.args), tree.detail)
