"""A bound on how much text a predicate makes for one row.

A predicate is often text from somewhere else, and `lpad(s, 2000000000, 'x')` needs two gigabytes
for every row. So the length of all text that a predicate makes is worked out beforehand, as
`factor * n + constant` for columns of n characters, and what may become too long is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.scan.engine import folded
from arrowlog.scan.tree import Call, Literal, describe

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

FACTOR_MAX = 100  # times the text of a row
LENGTH_MAX = 100_000  # characters; DuckDB computes 2,048 rows at a time
_PLAIN = 64  # the text of a number, a time or a hash is not longer
_FORMATTED = 32  # characters that one of a format may become
_NEXT = "Compare shorter texts, or filter the rows that a plan finds."
_PLAIN_TYPES = (
    *("BOOL", "TINYINT", "SMALLINT", "INT", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINT"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "REAL", "DECIMAL", "NUMERIC", "DATE", "TIME"),
    *("INTERVAL", "UUID", "LONG", "SHORT", "BYTE"),
)
_NUMBERS = frozenset({"+", "-", "*", "/", "//", "%", "negative", "interval"})
_ONE_OF = frozenset({"case", "coalesce", "greatest", "least", "if", "ifnull", "nvl", "nullif"})
_TRUTH = frozenset({"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>"})
_TRUTH |= {"=", "<>", "<", "<=", ">", ">=", "like", "ilike", "glob", "starts_with", "contains"}


@dataclass(frozen=True, slots=True)
class _Length:
    """At most `factor` times the characters of a row's columns, and `constant` more."""

    factor: float
    constant: float

    def __add__(self, other: _Length) -> _Length:
        return _Length(self.factor + other.factor, self.constant + other.constant)

    def times(self, count: float) -> _Length:
        """As often."""
        return _Length(self.factor * count, self.constant * count)


_NONE = _Length(0, 0)


def check_cost(node: Node) -> None:
    """Raise `InvalidRequest` for a predicate that may need very much memory for a row."""
    _length(node)


def _length(node: Node) -> _Length:
    if isinstance(node, Literal):
        text = node.value
        return _Length(0, len(text) if isinstance(text, (str, bytes)) else _PLAIN)
    if not isinstance(node, Call):
        return _Length(1, 0)
    args = [_length(arg) for arg in node.args]
    if node.op in _TRUTH or node.op in _NUMBERS:
        return _Length(0, _PLAIN)
    made = _made(node, args)
    long = made.constant > LENGTH_MAX and made.constant > _given(node)
    if long or made.factor > FACTOR_MAX:
        raise InvalidRequest(f"{describe(node)} may become too long a text.", next=_NEXT)
    return made


def _given(node: Node) -> float:
    """Twice the characters of all literals: long texts that a user wrote out are no surprise."""
    if isinstance(node, Literal):
        return 2 * len(node.value) if isinstance(node.value, (str, bytes)) else _PLAIN
    return sum(map(_given, node.args)) if isinstance(node, Call) else _PLAIN


def _made(node: Call, args: list[_Length]) -> _Length:
    whole = sum(args, _NONE)
    if node.op in ("lpad", "rpad") and len(args) > 1:
        return _Length(0, _count(node, node.args[1]))
    if node.op == "repeat" and len(args) > 1:
        return args[0].times(_count(node, node.args[1]))
    if node.op in ("replace", "regexp_replace") and len(args) > 2:
        if args[2].factor:
            raise InvalidRequest(
                f"{describe(node)} may become too long a text: its replacement is of the row.",
                next="Replace with a text that is the same for all rows.",
            )
        # Once for each character and once more, and what a reference to a group brings back.
        return args[0].times(1 + args[2].constant) + args[2]
    if node.op in _ONE_OF:
        return _Length(max((a.factor for a in args), default=0), sum(a.constant for a in args))
    if node.op == "strftime":
        return whole.times(_FORMATTED)
    if node.op in ("cast", "try_cast"):
        if str(node.detail).upper().startswith(_PLAIN_TYPES):
            return _Length(0, _PLAIN)
        return whole.times(4) + _Length(0, _PLAIN)  # bytes as text are \xFF
    return whole


def _count(node: Call, arg: Node) -> float:
    """A number that is the same for all rows."""
    found = folded(arg)
    if isinstance(found, Literal) and (
        found.value is None or isinstance(found.value, (int, float))
    ):
        return max(0.0, float(found.value or 0))
    raise InvalidRequest(
        f"{describe(node)} may become too long a text: its length is of the row.",
        next="Give the length as a number.",
    )
