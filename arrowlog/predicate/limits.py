"""Limits on predicates: size, depth, and the text that they produce per row.

Predicate trees are traversed recursively, here and in the engines that they are passed to. So the
depth is limited well below what Python's stack holds. Long chains of AND and OR do not count as
deep: they are one node with many operands.

A predicate often comes from elsewhere, and `lpad(s, 2000000000, 'x')` needs two gigabytes for every
row. So the length of all text that a predicate produces is estimated in advance, as `factor * n +
constant` for columns with n characters per row.

A predicate beyond a limit raises InvalidRequest.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import msgspec

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import ARITHMETIC_OPS, BOOLEAN_OPS, Call, Literal, NodeVisitor, handles
from arrowlog.predicate.emit.duckdb import fold_constants
from arrowlog.predicate.emit.text import format_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.predicate.ast import Column, ForeignExpr, Node, ValueSet

PREDICATE_DEPTH_MAX = 150  # levels
PREDICATE_CONDITIONS_MAX = 100_000  # calls in a tree; the values of an IN list do not count
_SIZE_HINT = (
    "Write a list of values as IN (…), and long chains as one AND or OR without parentheses."
)
# Engines need up to 300 bytes of stack per level to serialize an expression.
_STACK_BYTES = 1 << 28
_Result = TypeVar("_Result")
TEXT_FACTOR_MAX = 100  # times the characters of a row
TEXT_LENGTH_MAX = 100_000  # characters per row; DuckDB evaluates 2,048 rows at a time
_SCALAR_LENGTH = 64  # characters; no number, time or hash is longer as text
_FORMAT_EXPANSION = 32  # characters that one character of a strftime format may produce
_LENGTH_HINT = "Compare shorter texts, or filter the rows that the plan returns."
_SCALAR_TYPES = (
    *("BOOL", "TINYINT", "SMALLINT", "INT", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINT"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "REAL", "DECIMAL", "NUMERIC", "DATE", "TIME"),
    *("INTERVAL", "UUID", "LONG", "SHORT", "BYTE"),
)
# Functions that return one of their arguments.
_SELECTING_FUNCTIONS = ("case", "coalesce", "greatest", "least", "if", "ifnull", "nvl", "nullif")


def check_predicate_size(tree: Node) -> None:
    """Raise InvalidRequest for a tree that is too deep or has too many calls."""
    level: list[Node] = [tree]
    depth = conditions = 0
    while level:
        calls = [node for node in level if isinstance(node, Call)]
        conditions += len(calls)
        depth += 1
        if depth > PREDICATE_DEPTH_MAX:
            raise predicate_too_deep_error()
        if conditions > PREDICATE_CONDITIONS_MAX:
            raise predicate_too_long_error()
        level = [arg for call in calls for arg in call.args]


def predicate_too_deep_error() -> InvalidRequest:
    """The error for a predicate with too many levels."""
    return InvalidRequest(
        f"The predicate is nested too deeply: more than {PREDICATE_DEPTH_MAX} levels.",
        next=_SIZE_HINT,
    )


def predicate_too_long_error() -> InvalidRequest:
    """The error for a predicate with too many conditions."""
    return InvalidRequest(
        f"The predicate is too long: more than {PREDICATE_CONDITIONS_MAX:,} conditions.",
        next=_SIZE_HINT,
    )


def run_on_deep_stack(call: Callable[[], _Result]) -> _Result:
    """Run a call in a thread with a large stack and return its result.

    For engine functions that recurse once per level of an expression. With the default stack, some
    ten thousand levels crash the process, and engines cannot report the depth in advance. Falls
    back to the caller's stack if the thread cannot be started.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="arrowlog-predicate")
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:  # not enough memory for the stack
        return call()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class _Length(msgspec.Struct, frozen=True):
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
    _LengthEstimator().visit(node)


class _LengthEstimator(NodeVisitor[_Length]):
    """Computes upper bounds for the text of nodes. Every argument is visited, and so checked."""

    def visit(self, node: Node) -> _Length:
        bound = super().visit(node)
        if isinstance(node, Call):
            too_long = bound.constant > TEXT_LENGTH_MAX and bound.constant > _literal_budget(node)
            if too_long or bound.factor > TEXT_FACTOR_MAX:
                raise InvalidRequest(
                    f"{format_node(node)} may produce a text that is too long.", next=_LENGTH_HINT
                )
        return bound

    def visit_literal(self, node: Literal) -> _Length:
        text = node.value
        return _Length(0, len(text) if isinstance(text, (str, bytes)) else _SCALAR_LENGTH)

    def visit_column(self, node: Column) -> _Length:
        del node
        return _Length(1, 0)

    def visit_foreign(self, node: ForeignExpr) -> _Length:
        del node
        return _Length(1, 0)

    def visit_value_set(self, node: ValueSet) -> _Length:
        del node
        return _ZERO

    def visit_call(self, node: Call) -> _Length:
        return sum(self.visit_args(node), _ZERO)

    @handles(*BOOLEAN_OPS, *ARITHMETIC_OPS, "contains", "negative", "interval")
    def _scalar(self, node: Call) -> _Length:
        self.visit_args(node)
        return _Length(0, _SCALAR_LENGTH)

    @handles("lpad", "rpad")
    def _pad(self, node: Call) -> _Length:
        total = self.visit_call(node)
        return _Length(0, _constant_count(node, node.args[1])) if len(node.args) > 1 else total

    @handles("repeat")
    def _repeat(self, node: Call) -> _Length:
        args = self.visit_args(node)
        if len(args) < 2:
            return sum(args, _ZERO)
        return args[0].times(_constant_count(node, node.args[1]))

    @handles("replace", "regexp_replace")
    def _replace(self, node: Call) -> _Length:
        args = self.visit_args(node)
        if len(args) < 3:
            return sum(args, _ZERO)
        if args[2].factor:
            raise InvalidRequest(
                f"{format_node(node)} may produce a text that is too long: the replacement"
                " depends on the row.",
                next="Use a constant replacement.",
            )
        # One replacement per character and one more, plus the text of group references.
        return args[0].times(1 + args[2].constant) + args[2]

    @handles(*_SELECTING_FUNCTIONS)
    def _select(self, node: Call) -> _Length:
        args = self.visit_args(node)
        factor = max((arg.factor for arg in args), default=0)
        return _Length(factor, sum(arg.constant for arg in args))

    @handles("strftime")
    def _strftime(self, node: Call) -> _Length:
        return self.visit_call(node).times(_FORMAT_EXPANSION)

    @handles("cast", "try_cast")
    def _cast(self, node: Call) -> _Length:
        total = self.visit_call(node)
        if node.detail.upper().startswith(_SCALAR_TYPES):
            return _Length(0, _SCALAR_LENGTH)
        return total.times(4) + _Length(0, _SCALAR_LENGTH)  # a byte as text is \xFF


def _literal_budget(node: Node) -> float:
    """Twice the characters of all literals: long texts that the user wrote out are allowed."""
    if isinstance(node, Literal):
        return 2 * len(node.value) if isinstance(node.value, (str, bytes)) else _SCALAR_LENGTH
    return sum(map(_literal_budget, node.args)) if isinstance(node, Call) else _SCALAR_LENGTH


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
