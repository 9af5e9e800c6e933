"""The predicate AST: columns, literals and calls. Every predicate form is parsed into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from decimal import Decimal

# Days from 0000-03-01 to 1970-01-01. Years that start in March put the leap day last.
_EPOCH_DAY = 719_468
DAY_MICROS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, or with `path` a field inside a struct column."""

    name: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant value.

    Kinds: null, bool, int, decimal, float, double, text, date, timestamp, timestamptz, blob. A date
    is days and a timestamp microseconds since 1970 (UTC), so that no local time zone is involved.
    `float` is a 32-bit float: values compared with it are rounded to 32 bits.
    """

    value: bool | int | float | str | bytes | Decimal | None
    kind: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function call. `detail` is the type of a cast or the unit of an interval."""

    op: str
    args: tuple[Node, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ForeignExpr:
    """A part of a polars or pyarrow expression that the AST cannot represent.

    It may be a condition or a value, and never skips files. `source` is the expression of that part
    alone, to be evaluated by its own engine; None if no engine here can evaluate it.
    """

    text: str
    columns: frozenset[str]
    source: Any = field(default=None, repr=False, compare=False)


Node = Column | Literal | Call | ForeignExpr
TRUE = Literal(True, "bool")
FALSE = Literal(False, "bool")
NULL = Literal(None, "null")


class Untranslatable(Exception):
    """A part of a predicate has no equivalent on the other side, be it the AST or an engine.

    Parsers turn it into a `ForeignExpr` node, emitters into None or InvalidRequest.
    """

    def __init__(self, part: Any = None) -> None:
        """`part` is the node or expression without an equivalent, where that is known."""
        super().__init__(part)
        self.part = part


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk_nodes(arg)


def referenced_columns(node: Node) -> frozenset[str]:
    """The columns a node references; a struct field counts as its top-level column."""
    names: set[str] = set()
    for part in walk_nodes(node):
        if isinstance(part, Column):
            names.add(part.name)
        elif isinstance(part, ForeignExpr):
            names |= part.columns
    return frozenset(names)


def split_conjuncts(node: Node) -> list[Node]:
    """Split a node at its top-level ANDs."""
    if isinstance(node, Call) and node.op == "and":
        return [part for arg in node.args for part in split_conjuncts(arg)]
    return [node]


def join_nodes(op: str, parts: Iterable[Node]) -> Node:
    """The AND or OR of nodes, with nested calls of the same operator flattened."""
    flat: list[Node] = []
    for part in parts:
        flat += part.args if isinstance(part, Call) and part.op == op else (part,)
    return flat[0] if len(flat) == 1 else Call(op, tuple(flat))


def format_day(days: int) -> str:
    """Format days since 1970 as an ISO date. No calendar library, so that years have no limit.

    >>> format_day(19723), format_day(-1), format_day(-719529)
    ('2024-01-01', '1969-12-31', '-001-12-31')
    """
    era, day = divmod(days + _EPOCH_DAY, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{year + era * 400 + (month <= 2):04d}-{month:02d}-{day_of_month:02d}"


def days_from_date(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date; the inverse of `format_day`.

    >>> days_from_date(2024, 1, 1), days_from_date(1969, 12, 31)
    (19723, -1)
    """
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return (
        era * 146_097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - _EPOCH_DAY
    )
