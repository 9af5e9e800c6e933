"""What the emitters have in common that hand row filters to other engines. Pure.

DuckDB defines what a predicate means. Other engines agree with it on conditions on one column, with
values that the column's type represents exactly; anything else raises Untranslatable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from arrowlog.predicate.ast import Column, Literal, Untranslatable
from arrowlog.predicate.literal_bounds import enclose_literal
from arrowlog.predicate.operators import COMPARISON_OPS
from arrowlog.predicate.rewrites import LIKE_WILDCARDS, put_column_first, split_between
from arrowlog.predicate.visitor import NodeVisitor, handles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.predicate.ast import Call, Node

Condition = TypeVar("Condition")


class ConditionEmitter(NodeVisitor[Condition], ABC):
    """Emits the conditions of one engine on the columns of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        """`schema` gives the types of the columns."""
        self.schema = schema

    @abstractmethod
    def emit_constant(self, value: Any) -> Condition:
        """True, False or None, which is NULL."""

    @abstractmethod
    def emit_column(self, name: str) -> Condition:
        """A boolean column."""

    @abstractmethod
    def emit_comparison(
        self, op: str, name: str, values: Sequence[Node], kind: pa.DataType
    ) -> Condition:
        """A comparison, `<=>` or IN of a column of type `kind`."""

    @abstractmethod
    def emit_prefix(self, name: str, prefix: str) -> Condition:
        """A test whether the text in a column starts with a prefix."""

    @abstractmethod
    def check_kinds(self, column: Node, values: Sequence[Node]) -> None:
        """Raise if DuckDB would coerce the values of an IN or BETWEEN to a common type first.

        Single comparisons would not be coerced.
        """

    def visit_literal(self, node: Literal) -> Condition:
        """A boolean constant."""
        if node.kind not in ("bool", "null"):
            raise Untranslatable(node)
        return self.emit_constant(node.value)

    def visit_column(self, node: Column) -> Condition:
        """A boolean column as a condition."""
        name = column_name(node)
        if not pa.types.is_boolean(self.schema.field(name).type):
            raise Untranslatable(node)
        return self.emit_column(name)

    @handles("between")
    def _between(self, node: Call) -> Condition:
        self.check_kinds(node.args[0], node.args[1:])
        return self.visit(split_between(node))

    @handles(*COMPARISON_OPS, "<=>", "in", "like", "starts_with")
    def _column_condition(self, node: Call) -> Condition:
        op, (column, *values) = put_column_first(node)
        name = column_name(column)
        kind = self.schema.field(name).type
        if op in ("like", "starts_with"):
            if len(values) != 1 or not pa.types.is_string(kind):
                raise Untranslatable(node)
            return self.emit_prefix(name, _prefix(op, values[0]))
        if op == "in":
            self.check_kinds(column, values)
        return self.emit_comparison(op, name, values, kind)


def column_name(node: Node) -> str:
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


def exact_value(node: Node, kind: pa.DataType) -> Any:
    """The value of a literal in a column's type, None for NULL; raises if it is not exact there."""
    if not isinstance(node, Literal):
        raise Untranslatable(node)
    if node.value is None:
        return None
    pair = enclose_literal(node, kind)
    if pair is None or pair[0] is None or pair[0] != pair[1]:
        raise Untranslatable(node)
    return bool(pair[0]) if pa.types.is_boolean(kind) else pair[0]
