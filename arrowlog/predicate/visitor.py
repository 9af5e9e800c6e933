"""The visitor of predicate trees, on which every emitter is built. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from arrowlog.predicate.ast import Call, Column, Literal, Untranslatable

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.predicate.ast import ForeignExpr, Node

Result = TypeVar("Result")
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")


def handles(*ops: str) -> Callable[[_Handler], _Handler]:
    """Register a method of a `NodeVisitor` for the calls of these operators or functions."""

    def register(method: _Handler) -> _Handler:
        method.ops = ops  # type: ignore[attr-defined]
        return method

    return register


class NodeVisitor(Generic[Result]):
    """Computes a result from a tree, by the type of each node and the operator of each call.

    A subclass overrides `visit_column`, `visit_literal`, `visit_foreign` and `visit_call`, and
    marks methods for single operators with `handles`. Whatever it leaves out raises Untranslatable.
    """

    _handlers: ClassVar[dict[str, Callable[[Any, Call], Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the methods that are marked with `handles`."""
        super().__init_subclass__()
        own = {op: method for method in vars(cls).values() for op in getattr(method, "ops", ())}
        cls._handlers = {**cls._handlers, **own}

    def visit(self, node: Node) -> Result:
        """The result of a node."""
        if isinstance(node, Literal):
            return self.visit_literal(node)
        if isinstance(node, Column):
            return self.visit_column(node)
        if not isinstance(node, Call):
            return self.visit_foreign(node)
        handler = self._handlers.get(node.op)
        result: Result = self.visit_call(node) if handler is None else handler(self, node)
        return result

    def visit_args(self, node: Call) -> list[Result]:
        """The results of a call's arguments."""
        return [self.visit(arg) for arg in node.args]

    def visit_column(self, node: Column) -> Result:
        """The result of a column or struct field."""
        raise Untranslatable(node)

    def visit_literal(self, node: Literal) -> Result:
        """The result of a constant."""
        raise Untranslatable(node)

    def visit_foreign(self, node: ForeignExpr) -> Result:
        """The result of a part that only its own engine can evaluate."""
        raise Untranslatable(node)

    def visit_call(self, node: Call) -> Result:
        """The result of a call of any operator or function without a method of its own."""
        raise Untranslatable(node)
