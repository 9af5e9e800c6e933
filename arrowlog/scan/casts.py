"""Conditions on a cast column as conditions on the column, where they mean the same. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.scan.literals import DAY_MICROS, read_date, read_moment
from arrowlog.scan.tree import COMPARISONS, Call, Column, Literal

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

TURNED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_DAYS = ("date", "to_date")
_MOMENTS = ("TIMESTAMP", "TIMESTAMPTZ")
_DAYS_MAX = 10**8  # further away no timestamp is
_LIKE_BARE = frozenset({*COMPARISONS, "<=>", "in", "between", "is null"})


def uncast(node: Call, schema: pa.Schema) -> Call:
    """The condition without a cast that changes nothing, or the same one if it has none.

    An integer made wider compares as before, and a day as its midnight. A time made a day lies
    from midnight to midnight.
    """
    op, args = node.op, node.args
    if op in TURNED and isinstance(args[0], Literal):
        op, args = TURNED[op], (args[1], args[0])
    first = args[0] if args else None
    if op not in _LIKE_BARE or not isinstance(first, Call) or len(first.args) != 1:
        return node
    column = first.args[0]
    if not isinstance(column, Column) or column.path:
        return node
    kind = schema.field(column.name).type
    if first.op == "cast" and _widens(kind, first.detail):
        return Call(op, (column, *args[1:]))
    if first.op == "cast" and first.detail in _MOMENTS and pa.types.is_date32(kind):
        moments = [_moment(value, first.detail) for value in args[1:]]
        return node if None in moments else Call(op, (column, *(m for m in moments if m)))
    day = first.op in _DAYS or (first.op == "cast" and first.detail == "DATE")
    if day and pa.types.is_timestamp(kind):
        return _by_day(op, column, args[1:], kind) or node
    return node


def _moment(value: Node, target: str) -> Node | None:
    """What a text means beside a time; beside a day it would lose its hours."""
    if not isinstance(value, Literal) or not isinstance(value.value, str):
        return value
    found = read_moment(value.value)
    return None if found is None or found[1] else Literal(found[0], target.lower())


def _widens(kind: pa.DataType, target: str) -> bool:
    return bool(pa.types.is_signed_integer(kind) and kind.bit_width <= _BITS.get(target, 0))


def _by_day(op: str, column: Column, given: tuple[Node, ...], kind: pa.DataType) -> Call | None:
    """A condition on the day of a time; None if it is not about days alone."""
    if op == "is null":
        return Call(op, (column,))
    days = [_day(value) for value in given]
    known = [day for day in days if day is not None]
    if len(known) < len(days) or op == "<=>":
        return None
    name = "timestamp" if kind.tz is None else "timestamptz"

    def compare(sign: str, day: int) -> Call:
        """A comparison with a midnight."""
        return Call(sign, (column, Literal(day * DAY_MICROS, name)))

    if op == "between":
        return Call("and", (compare(">=", known[0]), compare("<", known[1] + 1)))
    if op in ("=", "in"):
        each = [Call("and", (compare(">=", day), compare("<", day + 1))) for day in known]
        return each[0] if len(each) == 1 else Call("or", tuple(each))
    day = known[0]
    if op == "<>":
        return Call("or", (compare("<", day), compare(">=", day + 1)))
    sign, later = {"<": ("<", 0), "<=": ("<", 1), ">": (">=", 1), ">=": (">=", 0)}[op]
    return compare(sign, day + later)


def _day(value: Node) -> int | None:
    if not isinstance(value, Literal):
        return None
    found = value.value if value.kind == "date" else None
    if value.kind == "text" and isinstance(value.value, str):
        found = read_date(value.value)
    return found if isinstance(found, int) and abs(found) < _DAYS_MAX else None
