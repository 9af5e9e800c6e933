"""Rewrite parts of trees to equivalent ones that statistics and engines can answer. Pure.

Casts of a column are removed, CASE is divided into its branches, comparisons of literals are
folded, bounds that others imply are dropped, and many equalities become one IN. What an engine may
see differently from DuckDB becomes a `ForeignExpr`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.predicate.ast import (
    COMPARISON_FUNCTIONS,
    COMPARISON_OPS,
    FALSE,
    NULL,
    SWAPPED_COMPARISONS,
    TRUE,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Node,
    ValueSet,
    column_type,
    referenced_columns,
)
from arrowlog.predicate.emit.text import format_node
from arrowlog.predicate.literals import (
    DAY_MICROS,
    enclose_literal,
    may_have_nan,
    parse_date,
    parse_timestamp,
    to_double,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_DATE_FUNCTIONS = ("date", "to_date")
_TIMESTAMP_TYPES = ("TIMESTAMP", "TIMESTAMPTZ")
_DAYS_MAX = 10**8  # 64-bit microseconds end at about 1.07e8 days
# Operators under which a lossless cast of the column can be dropped.
_UNWRAPPABLE_OPS = frozenset({*COMPARISON_OPS, "<=>", "in", "between", "is null"})
# Operators whose operands are conditions.
_CONNECTIVES = frozenset({"and", "or", "not", "is true", "is false"})
# Operators on which engines agree if they compare one column with literals.
_COLUMN_CONDITIONS = frozenset(
    {*COMPARISON_OPS, "<=>", "in", "between", "is null", "isnan", "like", "starts_with"}
)
# From how many conjuncts on it pays to look for bounds that others imply; their operators, and the
# kinds of literals that Python orders as engines do.
_IMPLIED_PARTS_MIN = 8
_RANGE_OPS = frozenset({"<", "<=", ">", ">="})
_ORDERED_KINDS = frozenset({"int", "double"})
# Up to this many equalities on one column, single comparisons are as fast as one IN.
_MERGE_ABOVE = 8
# Literal kinds that engines bring to a common type when a list mixes them.
_COERCIBLE_KINDS = frozenset({"int", "decimal", "double", "date", "timestamp", "timestamptz"})
# Characters that end the literal prefix of a LIKE pattern. The backslash is the default escape
# character in Spark; DuckDB has no default.
LIKE_WILDCARDS = "%_\\"


def put_column_first(node: Call) -> tuple[str, tuple[Node, ...]]:
    """Operator and operands of a call; a comparison with a literal on its left is turned around."""
    if node.op in SWAPPED_COMPARISONS and isinstance(node.args[0], Literal):
        return SWAPPED_COMPARISONS[node.op], (node.args[1], node.args[0])
    return node.op, node.args


def split_between(node: Call) -> Call:
    """BETWEEN as the AND of two comparisons; see `coerce_literals` for when that is the same."""
    value, low, high = node.args
    return Call("and", (Call(">=", (value, low)), Call("<=", (value, high))))


def literal_kinds(nodes: Iterable[Node]) -> set[str]:
    """The kinds of the literals among some nodes, without NULL.

    Engines coerce a list of several kinds to a common type; separate comparisons are not coerced.
    """
    return {node.kind for node in nodes if isinstance(node, Literal) and node.value is not None}


def unwrap_cast(node: Call, schema: pa.Schema) -> Call:
    """Remove a cast of the column if the condition keeps its meaning, else return it unchanged.

    A widened integer compares as before, and so does a number that is compared with doubles: that
    alone makes it a double. A date cast to a timestamp compares as its midnight. A
    timestamp cast to a date becomes a range from midnight to midnight.
    """
    op, args = put_column_first(node)
    operand = args[0] if args else None
    if op not in _UNWRAPPABLE_OPS or not isinstance(operand, Call) or len(operand.args) != 1:
        return node
    column = operand.args[0]
    kind = column_type(column, schema) if isinstance(column, Column) else None
    if not isinstance(column, Column) or kind is None:
        return node
    if operand.op == "cast" and _is_widening(kind, operand.detail):
        return Call(op, (column, *args[1:]))
    if operand.op == "cast" and operand.detail in _TIMESTAMP_TYPES and pa.types.is_date32(kind):
        literals = [_as_timestamp(value, operand.detail) for value in args[1:]]
        known = [literal for literal in literals if literal is not None]
        return Call(op, (column, *known)) if len(known) == len(literals) else node
    if operand.op == "cast" and operand.detail == "DOUBLE" and _is_exact_number(kind):
        return Call(op, (column, *args[1:])) if literal_kinds(args[1:]) <= {"double"} else node
    to_date = operand.op in _DATE_FUNCTIONS or (operand.op == "cast" and operand.detail == "DATE")
    if to_date and pa.types.is_timestamp(kind):
        return _on_days(op, column, args[1:], kind) or node
    return node


def _as_timestamp(value: Node, target: str) -> Node | None:
    """Text as the timestamp that it is compared as; None if it has a zone or is not a timestamp.

    Compared with the date column itself, text would be read as a date and lose its time. Other
    values are returned unchanged.
    """
    if not isinstance(value, Literal) or not isinstance(value.value, str):
        return value
    moment = parse_timestamp(value.value)
    return None if moment is None or moment[1] else Literal(moment[0], target.lower())


def _is_widening(kind: pa.DataType, target: str) -> bool:
    return bool(pa.types.is_signed_integer(kind) and kind.bit_width <= _BITS.get(target, 0))


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _on_days(op: str, column: Column, literals: tuple[Node, ...], kind: pa.DataType) -> Call | None:
    """Rewrite a condition on the date of a timestamp; None if a literal is not a date."""
    if op == "is null":
        return Call(op, (column,))
    days = [_as_day(value) for value in literals]
    known = [day for day in days if day is not None]
    if len(known) < len(days) or op == "<=>":
        return None
    literal_kind = "timestamp" if kind.tz is None else "timestamptz"

    def compare(sign: str, day: int) -> Call:
        """Compare the column with the midnight at which a day starts."""
        return Call(sign, (column, Literal(day * DAY_MICROS, literal_kind)))

    if op == "between":
        return Call("and", (compare(">=", known[0]), compare("<", known[1] + 1)))
    if op in ("=", "in"):
        ranges = [Call("and", (compare(">=", day), compare("<", day + 1))) for day in known]
        return ranges[0] if len(ranges) == 1 else Call("or", tuple(ranges))
    day = known[0]
    if op == "<>":
        return Call("or", (compare("<", day), compare(">=", day + 1)))
    sign, days_later = {"<": ("<", 0), "<=": ("<", 1), ">": (">=", 1), ">=": (">=", 0)}[op]
    return compare(sign, day + days_later)


def _as_day(value: Node) -> int | None:
    """Days since 1970 of a date literal or ISO date text; None for anything else."""
    if not isinstance(value, Literal):
        return None
    days = value.value if value.kind == "date" else None
    if value.kind == "text" and isinstance(value.value, str):
        days = parse_date(value.value)
    return days if isinstance(days, int) and abs(days) < _DAYS_MAX else None


def drop_implied(
    parts: tuple[Node, ...], type_of: Callable[[Column], pa.DataType | None]
) -> tuple[Node, ...]:
    """The conjuncts without bounds of a number that another one with the same operator implies.

    `type_of` tells the type of a column. Generated predicates repeat bounds, and so do views on top
    of views.
    """
    if len(parts) < _IMPLIED_PARTS_MIN:
        return parts
    strongest: dict[tuple[str, str, str], tuple[Any, Node]] = {}
    kept: list[Node] = []
    for part in parts:
        if isinstance(part, Call) and part.op in _RANGE_OPS:
            column, literal = part.args
            if isinstance(column, Column) and isinstance(literal, Literal) and not column.path:
                value: Any = literal.value
                is_ordered = isinstance(value, int) or (
                    isinstance(value, float) and not math.isnan(value)
                )
                if is_ordered and literal.kind in _ORDERED_KINDS:
                    key = column.name, part.op, literal.kind
                    end = strongest[key][0] if key in strongest else value
                    if (value <= end) if part.op[0] == "<" else (value >= end):
                        strongest[key] = value, part
                    continue
        kept.append(part)
    for name in {name for name, _, _ in strongest}:
        kind = type_of(Column(name))
        if kind is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return parts
    return (*kept, *(part for _, part in strongest.values()))


def merge_equalities(node: Call) -> tuple[Node, ...]:
    """The parts of an AND or OR, with many (in)equalities on one column merged into one [NOT] IN.

    Literals of different kinds are not merged: a mixed list would be coerced to a common type.
    """
    op = "=" if node.op == "or" else "<>"
    if sum(isinstance(part, Call) and part.op == op for part in node.args) <= _MERGE_ABOVE:
        return node.args
    values_by_column: dict[tuple[str, str], list[Node]] = {}
    rest: list[Node] = []
    for part in node.args:
        column, value = part.args if isinstance(part, Call) and part.op == op else (part, NULL)
        if isinstance(column, Literal):
            column, value = value, column
        known_value = isinstance(value, Literal) and value.value is not None
        if isinstance(column, Column) and not column.path and known_value:
            assert isinstance(value, Literal)
            values_by_column.setdefault((column.name, value.kind), []).append(value)
        else:
            rest.append(part)
    if all(len(values) <= _MERGE_ABOVE for values in values_by_column.values()):
        return node.args
    for (name, _), values in values_by_column.items():
        in_list = Call("in", (Column(name), *values))
        rest.append(in_list if op == "=" else Call("not", (in_list,)))
    return tuple(rest)


def coerce_literals(literals: list[Literal], kind: pa.DataType) -> list[Literal] | None:
    """Coerce literals to the type in which an engine compares a mixed list; None if uncertain.

    In `n IN (9007199254740993, 1e0)` all values are compared as doubles, the large integer rounded.
    In `name IN ('10', 10)` all are compared as integers, so '010' is in the list.
    """
    kinds = literal_kinds(literals)
    if len(kinds) < 2:
        return literals
    if pa.types.is_string(kind) or not kinds <= _COERCIBLE_KINDS:
        return None
    numeric = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    return [to_double(literal) for literal in literals] if numeric else literals


def relax_condition(
    node: Node, schema: pa.Schema, *, nan_ordered: bool, negated: bool = False
) -> Node:
    """Replace the parts of a condition on whose meaning an engine may not agree with DuckDB.

    They become `ForeignExpr` nodes, which skip no file. What remains are comparisons of one column
    with literals. Without `nan_ordered`, comparisons of floats are FALSE for NaN, and Arrow's IN
    tells -0.0 from 0.0. The rows that match are a subset of DuckDB's then, but under a NOT
    (`negated`) they may be others.
    """
    if isinstance(node, Call) and node.op in _CONNECTIVES:
        inner = negated is not (node.op in ("not", "is false"))
        args = (
            relax_condition(arg, schema, nan_ordered=nan_ordered, negated=inner)
            for arg in node.args
        )
        return Call(node.op, tuple(args))
    if isinstance(node, (Literal, Column)):
        return node
    if isinstance(node, Call) and node.op in _COLUMN_CONDITIONS:
        unwrapped = unwrap_cast(node, schema)
        if unwrapped is not node and unwrapped != node:
            return relax_condition(unwrapped, schema, nan_ordered=nan_ordered, negated=negated)
        columns = [arg for arg in node.args if isinstance(arg, Column)]
        literals = [arg for arg in node.args if isinstance(arg, (Literal, ValueSet))]
        plain = len(columns) == 1 and len(literals) == len(node.args) - 1
        if plain and (nan_ordered or not negated or not _is_float(columns[0], schema)):
            return node
    return ForeignExpr(format_node(node), referenced_columns(node))


def _is_float(column: Column, schema: pa.Schema) -> bool:
    kind = column_type(column, schema)
    return kind is None or may_have_nan(kind)


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
    return TRUE if COMPARISON_FUNCTIONS[node.op](value, known[0]) else FALSE


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
