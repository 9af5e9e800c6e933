"""Rewrite conditions on a cast column to equivalent conditions on the column. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.scan.literals import DAY_MICROS, read_date, read_moment
from arrowlog.scan.tree import COMPARISONS, Call, Column, Literal

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

# Operators with their operands swapped.
TURNED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_DATE_FUNCTIONS = ("date", "to_date")
_TIMESTAMP_TYPES = ("TIMESTAMP", "TIMESTAMPTZ")
_DAYS_MAX = 10**8  # 64-bit microseconds end at about 1.07e8 days
# Operators under which a lossless cast of the column can be dropped.
_UNWRAPPABLE_OPS = frozenset({*COMPARISONS, "<=>", "in", "between", "is null"})


def uncast(node: Call, schema: pa.Schema) -> Call:
    """Remove a cast of the column if the condition keeps its meaning, else return it unchanged.

    A widened integer compares as before. A date cast to a timestamp compares as its midnight. A
    timestamp cast to a date becomes a range from midnight to midnight.
    """
    op, args = node.op, node.args
    if op in TURNED and isinstance(args[0], Literal):
        op, args = TURNED[op], (args[1], args[0])
    operand = args[0] if args else None
    if op not in _UNWRAPPABLE_OPS or not isinstance(operand, Call) or len(operand.args) != 1:
        return node
    column = operand.args[0]
    if not isinstance(column, Column) or column.path:
        return node
    kind = schema.field(column.name).type
    if operand.op == "cast" and _is_widening(kind, operand.detail):
        return Call(op, (column, *args[1:]))
    if operand.op == "cast" and operand.detail in _TIMESTAMP_TYPES and pa.types.is_date32(kind):
        literals = [_as_timestamp(value, operand.detail) for value in args[1:]]
        known = [literal for literal in literals if literal is not None]
        return Call(op, (column, *known)) if len(known) == len(literals) else node
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
    moment = read_moment(value.value)
    return None if moment is None or moment[1] else Literal(moment[0], target.lower())


def _is_widening(kind: pa.DataType, target: str) -> bool:
    return bool(pa.types.is_signed_integer(kind) and kind.bit_width <= _BITS.get(target, 0))


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
        days = read_date(value.value)
    return days if isinstance(days, int) and abs(days) < _DAYS_MAX else None
