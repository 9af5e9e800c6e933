"""Bound the amount of text that a predicate produces per row.

A predicate often comes from elsewhere, and `lpad(s, 2000000000, 'x')` needs two gigabytes for every
row. So the length of all text that a predicate produces is estimated in advance, as `factor * n +
constant` for columns with n characters per row. A predicate whose text may become too long raises
InvalidRequest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import Call, Literal, format_node
from arrowlog.predicate.emit.duckdb import fold_constants

if TYPE_CHECKING:
    from arrowlog.predicate.ast import Node

TEXT_FACTOR_MAX = 100  # times the characters of a row
TEXT_LENGTH_MAX = 100_000  # characters per row; DuckDB evaluates 2,048 rows at a time
_SCALAR_LENGTH = 64  # characters; no number, time or hash is longer as text
_FORMAT_EXPANSION = 32  # characters that one character of a strftime format may produce
_HINT = "Compare shorter texts, or filter the rows that the plan returns."
_SCALAR_TYPES = (
    *("BOOL", "TINYINT", "SMALLINT", "INT", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINT"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "REAL", "DECIMAL", "NUMERIC", "DATE", "TIME"),
    *("INTERVAL", "UUID", "LONG", "SHORT", "BYTE"),
)
_ARITHMETIC_OPS = frozenset({"+", "-", "*", "/", "//", "%", "negative", "interval"})
# Functions that return one of their arguments.
_SELECTING_FUNCTIONS = frozenset(
    {"case", "coalesce", "greatest", "least", "if", "ifnull", "nvl", "nullif"}
)
_BOOLEAN_OPS = frozenset(
    {"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>"}
)
_BOOLEAN_OPS |= {
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "like",
    "ilike",
    "glob",
    "starts_with",
    "contains",
}


@dataclass(frozen=True, slots=True)
class _Length:
    """An upper bound: `factor` times the characters of a row's columns, plus `constant`."""

    factor: float
    constant: float

    def __add__(self, other: _Length) -> _Length:
        return _Length(self.factor + other.factor, self.constant + other.constant)

    def times(self, count: float) -> _Length:
        """The bound of `count` repetitions."""
        return _Length(self.factor * count, self.constant * count)


_ZERO = _Length(0, 0)


def check_text_growth(node: Node) -> None:
    """Raise InvalidRequest for a predicate that may produce too much text per row."""
    _bound_length(node)


def _bound_length(node: Node) -> _Length:
    """Upper bound for the text of a node."""
    if isinstance(node, Literal):
        text = node.value
        return _Length(0, len(text) if isinstance(text, (str, bytes)) else _SCALAR_LENGTH)
    if not isinstance(node, Call):
        return _Length(1, 0)
    args = [_bound_length(arg) for arg in node.args]
    if node.op in _BOOLEAN_OPS or node.op in _ARITHMETIC_OPS:
        return _Length(0, _SCALAR_LENGTH)
    bound = _bound_call(node, args)
    too_long = bound.constant > TEXT_LENGTH_MAX and bound.constant > _literal_budget(node)
    if too_long or bound.factor > TEXT_FACTOR_MAX:
        raise InvalidRequest(
            f"{format_node(node)} may produce a text that is too long.", next=_HINT
        )
    return bound


def _literal_budget(node: Node) -> float:
    """Twice the characters of all literals: long texts that the user wrote out are allowed."""
    if isinstance(node, Literal):
        return 2 * len(node.value) if isinstance(node.value, (str, bytes)) else _SCALAR_LENGTH
    return sum(map(_literal_budget, node.args)) if isinstance(node, Call) else _SCALAR_LENGTH


def _bound_call(node: Call, args: list[_Length]) -> _Length:
    """Upper bound for the text of a function call."""
    total = sum(args, _ZERO)
    if node.op in ("lpad", "rpad") and len(args) > 1:
        return _Length(0, _constant_count(node, node.args[1]))
    if node.op == "repeat" and len(args) > 1:
        return args[0].times(_constant_count(node, node.args[1]))
    if node.op in ("replace", "regexp_replace") and len(args) > 2:
        if args[2].factor:
            raise InvalidRequest(
                f"{format_node(node)} may produce a text that is too long: the replacement"
                " depends on the row.",
                next="Use a constant replacement.",
            )
        # One replacement per character and one more, plus the text of group references.
        return args[0].times(1 + args[2].constant) + args[2]
    if node.op in _SELECTING_FUNCTIONS:
        return _Length(
            max((arg.factor for arg in args), default=0), sum(arg.constant for arg in args)
        )
    if node.op == "strftime":
        return total.times(_FORMAT_EXPANSION)
    if node.op in ("cast", "try_cast"):
        if str(node.detail).upper().startswith(_SCALAR_TYPES):
            return _Length(0, _SCALAR_LENGTH)
        return total.times(4) + _Length(0, _SCALAR_LENGTH)  # a byte as text is \xFF
    return total


def _constant_count(node: Call, arg: Node) -> float:
    """The value of a count argument, which must be the same for all rows."""
    count = fold_constants(arg)
    if isinstance(count, Literal) and (
        count.value is None or isinstance(count.value, (int, float))
    ):
        return max(0.0, float(count.value or 0))
    raise InvalidRequest(
        f"{format_node(node)} may produce a text that is too long: its length depends on the row.",
        next="Use a constant length.",
    )
