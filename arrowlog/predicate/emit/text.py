"""Format a tree as SQL-like text for messages and `explain`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.predicate.ast import BOOLEAN_OPS, Call, NodeVisitor, ValueSet, handles
from arrowlog.predicate.literals import DAY_MICROS, format_day

if TYPE_CHECKING:
    from arrowlog.predicate.ast import Column, ForeignExpr, Literal, Node

_VALUES_SHOWN_MAX = 8  # of an IN list
_TEXT_SHOWN_MAX = 60  # characters of a text literal
# Operators that need parentheses around them although they are words.
_ENCLOSED_OPS = BOOLEAN_OPS | {"interval"}
# How NOT is written into a condition instead of before it.
_NEGATIONS = {
    "is null": (" IS NULL", " IS NOT NULL"),
    "in": (" IN (", " NOT IN ("),
    "like": (" LIKE ", " NOT LIKE "),
    "ilike": (" ILIKE ", " NOT ILIKE "),
    "indexquery": (" indexquery ", " NOT indexquery "),
}


def quote_identifier(name: str) -> str:
    """A name in double quotes, as DuckDB and this package's SQL read it."""
    return '"' + name.replace('"', '""') + '"'


def format_node(node: Node) -> str:
    """Format a node.

    Long lists and texts are abbreviated, so the text is not meant to be parsed again.
    """
    return _FORMATTER.visit(node)


class _Formatter(NodeVisitor[str]):
    def visit_column(self, node: Column) -> str:
        return ".".join(
            part if part.isidentifier() else quote_identifier(part)
            for part in (node.name, *node.path)
        )

    def visit_literal(self, node: Literal) -> str:
        if node.value is None:
            return "NULL"
        if node.kind == "date":
            return f"DATE '{format_day(int(node.value))}'"
        if node.kind in ("timestamp", "timestamptz"):
            return _format_timestamp(int(node.value), zoned=node.kind == "timestamptz")
        if node.kind == "text":
            text = str(node.value)
            shown = text if len(text) <= _TEXT_SHOWN_MAX else text[: _TEXT_SHOWN_MAX - 1] + "…"
            return "'" + shown.replace("'", "''") + "'"
        if node.kind == "bool":
            return "TRUE" if node.value else "FALSE"
        return str(node.value)

    def visit_foreign(self, node: ForeignExpr) -> str:
        return node.text

    def visit_call(self, node: Call) -> str:
        args = self._operands(node)
        if len(args) == 2 and not node.op[0].isalpha():
            return f"{args[0]} {node.op} {args[1]}"
        return f"{node.op}({', '.join(args)})"

    def _operands(self, node: Call) -> list[str]:
        return [self._operand(arg) for arg in node.args]

    def _operand(self, node: Node) -> str:
        """Format an operand, in parentheses if it is a condition or an operator."""
        text = self.visit(node)
        if not isinstance(node, Call) or (node.op[0].isalpha() and node.op not in _ENCLOSED_OPS):
            return text
        return f"({text})"

    @handles("and", "or")
    def _connective(self, node: Call) -> str:
        return f" {node.op.upper()} ".join(self._operands(node))

    @handles("not")
    def _not(self, node: Call) -> str:
        negated = node.args[0]
        if isinstance(negated, Call) and negated.op in _NEGATIONS:
            return self.visit(negated).replace(*_NEGATIONS[negated.op], 1)
        return f"NOT {self._operand(negated)}"

    @handles("between")
    def _between(self, node: Call) -> str:
        value, low, high = self._operands(node)
        return f"{value} BETWEEN {low} AND {high}"

    @handles("in")
    def _in(self, node: Call) -> str:
        value, *members = node.args
        if isinstance(members[0], ValueSet):
            count = len(members[0].values)
            null = " and NULL" if members[0].has_null else ""
            return f"{self._operand(value)} IN ({count:,} values{null})"
        shown = members if len(members) <= _VALUES_SHOWN_MAX else members[: _VALUES_SHOWN_MAX - 1]
        texts = [self._operand(member) for member in shown]
        if len(shown) < len(members):
            texts.append(f"… {len(members) - len(shown)} more")
        return f"{self._operand(value)} IN ({', '.join(texts)})"

    @handles("is null", "is true", "is false")
    def _is(self, node: Call) -> str:
        return f"{self._operand(node.args[0])} {node.op.upper()}"

    @handles("cast", "try_cast")
    def _cast(self, node: Call) -> str:
        return f"{node.op.upper()}({self._operand(node.args[0])} AS {node.detail})"

    @handles("like", "ilike")
    def _like(self, node: Call) -> str:
        value, pattern, *escape = self._operands(node)
        ending = f" ESCAPE {escape[0]}" if escape else ""
        return f"{value} {node.op.upper()} {pattern}{ending}"

    @handles("indexquery")
    def _search(self, node: Call) -> str:
        column, query = node.args
        name = self.visit(column).strip("'")  # `_indexall` is a literal
        return f"{name} indexquery {self.visit(query)}"

    @handles("interval")
    def _interval(self, node: Call) -> str:
        return f"INTERVAL {self._operand(node.args[0])} {node.detail.upper()}"

    @handles("negative")
    def _negative(self, node: Call) -> str:
        return f"-{self._operand(node.args[0])}"


def _format_timestamp(micros: int, *, zoned: bool) -> str:
    days, micros = divmod(micros, DAY_MICROS)
    seconds, fraction = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{fraction:06d}" if fraction else ""
    kind, zone = ("TIMESTAMPTZ", "+00") if zoned else ("TIMESTAMP", "")
    return f"{kind} '{format_day(days)} {clock}{zone}'"


_FORMATTER = _Formatter()
