"""A predicate as a tree: columns, literals, calls. Every form a user writes ends up as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from decimal import Decimal

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
CONDITIONS = frozenset(
    {*COMPARISONS, "<=>", "and", "or", "not", "is null", "in", "between", "is true", "is false"}
    | {"like", "ilike", "glob", "starts_with", "isnan", "~"}
)
ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "||", "negative", "interval", "list"})
_EPOCH_DAY = 719_468  # days from 0000-03-01 to 1970-01-01, for the calendar below
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, or a field inside one."""

    name: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Literal:
    """A value. Dates are days and timestamps microseconds since 1970, so that no zone gets in.

    Kinds: null, bool, int, decimal, float, double, text, date, timestamp, timestamptz, blob. A
    float has 32 bits: what is compared with it is rounded.
    """

    value: bool | int | float | str | bytes | Decimal | None
    kind: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function. `detail` is the type of a cast, or the unit of an interval."""

    op: str
    args: tuple[Node, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A part of a polars or pyarrow expression that has no equal here: a condition, or a value.

    It is never pruned by. `source` is the expression of that part alone, which its own engine
    evaluates; None if no engine here can.
    """

    text: str
    columns: frozenset[str]
    source: Any = field(default=None, repr=False, compare=False)


Node = Column | Literal | Call | Foreign
TRUE = Literal(True, "bool")
FALSE = Literal(False, "bool")
NULL = Literal(None, "null")


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def columns_of(node: Node) -> frozenset[str]:
    """Every column a node mentions; a field inside a column counts as the column."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, Column):
            found.add(part.name)
        elif isinstance(part, Foreign):
            found |= part.columns
    return frozenset(found)


def conjuncts(node: Node) -> list[Node]:
    """The parts that must all be true."""
    if isinstance(node, Call) and node.op == "and":
        return [part for arg in node.args for part in conjuncts(arg)]
    return [node]


def joined(op: str, parts: Iterable[Node]) -> Node:
    """The AND or OR of parts; one inside another of its kind is the same as one alone."""
    flat: list[Node] = []
    for part in parts:
        flat += part.args if isinstance(part, Call) and part.op == op else (part,)
    return flat[0] if len(flat) == 1 else Call(op, tuple(flat))


def describe(node: Node) -> str:  # noqa: C901, PLR0912 -- one line a case
    """A node as text a person can read; not for any engine."""
    if isinstance(node, Column):
        return ".".join(_name(part) for part in (node.name, *node.path))
    if isinstance(node, Literal):
        return _literal(node)
    if isinstance(node, Foreign):
        return node.text
    args = [_inner(arg) for arg in node.args]
    if node.op in ("and", "or"):
        return f" {node.op.upper()} ".join(args)
    if node.op == "not":
        return _negated(node.args[0], args[0])
    if node.op == "between":
        return f"{args[0]} BETWEEN {args[1]} AND {args[2]}"
    if node.op == "in":
        shown = args[1:] if len(args) <= 9 else [*args[1:8], f"… {len(args) - 8} more"]
        return f"{args[0]} IN ({', '.join(shown)})"
    if node.op in ("is null", "is true", "is false"):
        return f"{args[0]} {node.op.upper()}"
    if node.op in ("cast", "try_cast"):
        return f"{node.op.upper()}({args[0]} AS {node.detail})"
    if node.op in ("like", "ilike"):
        escape = f" ESCAPE {args[2]}" if len(args) > 2 else ""
        return f"{args[0]} {node.op.upper()} {args[1]}{escape}"
    if node.op == "interval":
        return f"INTERVAL {args[0]} {node.detail.upper()}"
    if node.op == "negative":
        return f"-{args[0]}"
    if len(args) == 2 and not node.op[0].isalpha():
        return f"{args[0]} {node.op} {args[1]}"
    return f"{node.op}({', '.join(args)})"


def _inner(node: Node) -> str:
    text = describe(node)
    bare = not isinstance(node, Call) or node.op[0].isalpha()
    bare = bare and not (isinstance(node, Call) and node.op in CONDITIONS | {"interval"})
    return text if bare else f"({text})"


def _negated(node: Node, text: str) -> str:
    if isinstance(node, Call):
        words = {"is null": (" IS NULL", " IS NOT NULL"), "in": (" IN (", " NOT IN (")}
        words |= {"like": (" LIKE ", " NOT LIKE "), "ilike": (" ILIKE ", " NOT ILIKE ")}
        if node.op in words:
            return describe(node).replace(*words[node.op], 1)
    return f"NOT {text}"


def _name(name: str) -> str:
    if name.isidentifier():
        return name
    return '"' + name.replace('"', '""') + '"'


def _literal(node: Literal) -> str:
    if node.value is None:
        return "NULL"
    if node.kind == "date":
        return f"DATE '{day_text(int(node.value))}'"
    if node.kind in ("timestamp", "timestamptz"):
        days, micros = divmod(int(node.value), _DAY_MICROS)
        seconds, part = divmod(micros, 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        clock += f".{part:06d}" if part else ""
        zone = "+00" if node.kind == "timestamptz" else ""
        return f"{node.kind.upper()} '{day_text(days)} {clock}{zone}'"
    if node.kind == "text":
        text = str(node.value)
        shown = text if len(text) <= 60 else text[:59] + "…"
        return "'" + shown.replace("'", "''") + "'"
    if node.kind == "bool":
        return "TRUE" if node.value else "FALSE"
    return str(node.value)


def day_text(days: int) -> str:
    """A day, counted from 1970, in ISO form. Without a calendar library: years have no limit.

    >>> day_text(19723), day_text(-1), day_text(-719529)
    ('2024-01-01', '1969-12-31', '-001-12-31')
    """
    era, day = divmod(days + _EPOCH_DAY, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    rest = day - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    number = rest - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{year + era * 400 + (month <= 2):04d}-{month:02d}-{number:02d}"


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date; the way back from `day_text`.

    >>> days_of(2024, 1, 1), days_of(1969, 12, 31)
    (19723, -1)
    """
    year -= month <= 2
    era, rest = divmod(year, 400)
    spring = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + rest * 365 + rest // 4 - rest // 100 + spring - _EPOCH_DAY
