"""Parts of expressions for data skipping: branches, spellings, constants of one kind. Pure."""

from __future__ import annotations

import operator
from typing import Any

import pyarrow as pa

from arrowlog.predicate import (
    FALSE,
    NULL,
    TRUE,
    Call,
    Literal,
    Node,
    enclose_literal,
    literal_kinds,
)

_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


# Characters beyond ASCII whose lower or upper case is an ASCII letter.
_FOLDED = {"lower": {"i": "\u0130", "k": "\u212a"}, "upper": {"I": "\u0131", "S": "\u017f"}}


# Spellings of a prefix in which upper and lower case are equal; a longer prefix is cut.
_SPELLINGS_MAX = 64


def fold_comparison(node: Call) -> Node:
    """The value of a comparison of literals of one kind; other calls unchanged."""
    first, *others = node.args
    literals = [arg for arg in others if isinstance(arg, Literal)]
    if not isinstance(first, Literal) or len(literals) < len(others):
        return node
    known = [literal.value for literal in literals if literal.value is not None]
    if first.value is None or (node.op != "in" and not known):
        return NULL
    value: Any = first.value
    values: list[Any] = [value, *known]
    if len(literal_kinds(node.args)) > 1 or any(each != each for each in values):  # noqa: PLR0124 -- NaN
        return node
    if node.op == "in":
        missed = FALSE if len(known) == len(literals) else NULL
        return TRUE if value in known else missed
    return TRUE if _OPERATORS[node.op](value, known[0]) else FALSE


def case_branches(node: Call) -> list[tuple[Node, Node]] | None:
    """Conditions and results of a CASE, or of a function that is one; None if it is malformed."""
    args = node.args
    if node.op == "case" or (node.op == "if" and len(args) == 3):
        pairs = list(zip(args[:-1:2], args[1:-1:2], strict=True))
        return [*pairs, (TRUE, args[-1])]
    if node.op == "nullif" and len(args) == 2:
        return [(Call("=", args), NULL), (TRUE, args[0])]
    if node.op in ("coalesce", "ifnull", "nvl") and len(args) > 1:
        is_known = [Call("not", (Call("is null", (arg,)),)) for arg in args[:-1]]
        return [*zip(is_known, args[:-1], strict=True), (TRUE, args[-1])]
    return None


def is_natural(kind: pa.DataType, literal_kind: str) -> bool:
    """Whether a literal is of the type of a column, so that neither is converted."""
    if pa.types.is_timestamp(kind):
        return literal_kind == ("timestamp" if kind.tz is None else "timestamptz")
    tests = {
        "int": pa.types.is_integer,
        "text": pa.types.is_string,
        "double": pa.types.is_float64,
        "date": pa.types.is_date32,
        "bool": pa.types.is_boolean,
    }
    return literal_kind in tests and bool(tests[literal_kind](kind))


def natural_values(literals: list[Literal], kind: pa.DataType) -> tuple[Any, ...] | None:
    """The sorted values of literals of a column's own type; None if one may need conversion."""
    kinds = {literal.kind for literal in literals}
    if len(kinds) > 1 or "double" in kinds or not is_natural(kind, *kinds):
        return None
    values = sorted({literal.value for literal in literals})  # type: ignore[type-var]
    if isinstance(values[0], str):
        usable = enclose_literal(Literal("".join(map(str, values)), "text"), kind)
        return None if usable is None else tuple(values)
    ends = (enclose_literal(Literal(value, *kinds), kind) for value in (values[0], values[-1]))
    inside = all(pair is not None and pair[0] is not None and pair[0] == pair[1] for pair in ends)
    return tuple(values) if inside and not pa.types.is_boolean(kind) else None


def case_spellings(prefix: str, fold: str) -> list[str]:
    """The beginnings of all texts that begin with a prefix once they are folded.

    Only ASCII letters are looked up; a character beyond them ends the prefix. No spelling is left
    if folding cannot produce a letter.
    """
    found = [""]
    for letter in prefix:
        if not letter.isascii():
            break
        if letter != (letter.lower() if fold == "lower" else letter.upper()):
            return []
        options = {letter, letter.swapcase()} | set(_FOLDED[fold].get(letter, ""))
        if len(found) * len(options) > _SPELLINGS_MAX:
            break
        found = [start + option for start in found for option in sorted(options)]
    return found
