"""Literals from Python, numpy and Arrow values, and ISO text of dates and timestamps."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    DAY_MICROS,
    FALSE,
    NULL,
    TRUE,
    Literal,
    days_from_date,
    format_day,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_ISO_DATE = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})\s*")
_ISO_TIMESTAMP = re.compile(
    r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r"\s*(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?\s*"
)
_NANOS_PER_UNIT = {
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 1000,
    "ns": 1,
}
# Ranges of Arrow and DuckDB: 32-bit days and 64-bit microseconds.
_DAYS_MAX, _MICROS_MAX = 1 << 31, 1 << 63
_INT_MAX = 10**308  # larger integers do not even fit a double
_PANDAS_NULLS = ("NaTType", "NAType")  # names of pandas types
_PYTHON_KINDS: tuple[tuple[Any, str], ...] = (
    (int, "int"),
    (float, "double"),
    (str, "text"),
    (bytes, "blob"),
)
_ARROW_KINDS: Mapping[str, str] = {
    "date32[day]": "date",
    "bool": "bool",
    "string": "text",
    "large_string": "text",
    "string_view": "text",
    "float": "float",
    "double": "double",
    "binary": "blob",
    "large_binary": "blob",
    "binary_view": "blob",
}


def parse_date(text: str) -> int | None:
    """Days since 1970 of an ISO date; None if the text is anything else."""
    match = _ISO_DATE.fullmatch(text)
    return None if match is None else _days(*(int(part) for part in match.groups()))


def parse_timestamp(text: str) -> tuple[int, bool] | None:
    """Microseconds since 1970 of an ISO timestamp, and whether the text has a zone; else None.

    A bare date is its midnight.
    """
    days = parse_date(text)
    if days is not None:
        return days * DAY_MICROS, False
    match = _ISO_TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(int(year), int(month), int(day))
    clock = (int(hour), int(minute), int(second or 0))
    if days is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2]
    micros = days * DAY_MICROS + seconds * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    if zone is None or zone in ("Z", "UTC"):
        return micros, zone is not None
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000_000
    return micros + (offset if zone[0] == "-" else -offset), True


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None if there is no such date."""
    if not (1 <= month <= 12 and 1 <= day <= 31 and year >= 1):
        return None
    days = days_from_date(year, month, day)
    return days if format_day(days) == f"{year:04d}-{month:02d}-{day:02d}" else None


def to_double(node: Any) -> Any:
    """An integer or decimal literal as a double; any other node unchanged."""
    value = node.value if getattr(node, "kind", "") in ("int", "decimal") else None
    if isinstance(value, (int, Decimal)):
        try:
            return Literal(float(value), "double")
        except OverflowError:
            return Literal(math.copysign(math.inf, value), "double")
    return node


def to_literal(value: Any, where: str) -> Literal:  # noqa: C901 -- one branch per type
    """Convert a Python, numpy or Arrow value to a literal.

    Raises InvalidRequest, starting with `where`, if the value cannot be compared with a column.
    """
    if value is None or type(value).__name__ in _PANDAS_NULLS:
        return NULL
    if isinstance(value, Literal):
        return value
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return _numpy(value, where)
    for kind, name in _PYTHON_KINDS:
        if isinstance(value, kind):  # members of StrEnum and IntEnum too
            return Literal(str.__str__(value) if kind is str else kind(value), name)
    if isinstance(value, Decimal):
        if value.is_finite():
            return Literal(value, "decimal")
    elif isinstance(value, pa.Scalar):
        return _scalar(value, where)
    elif hasattr(value, "isoformat") and hasattr(value, "year"):
        return _date_or_datetime(value)
    raise InvalidRequest(
        f"{where}: {value!r} ({type(value).__name__}) is not a value to compare with.",
        next="Use text, numbers, booleans, dates, datetimes, decimals or None.",
    )


def check_literal(literal: Literal) -> None:
    """Raise InvalidRequest for a value that cannot be compared with a column of any type."""
    value, kind = literal.value, literal.kind
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{value[:60]!a} contains an unpaired surrogate and is not valid Unicode text.",
                next="Compare with text that can be encoded.",
            ) from None
        return
    limit = _DAYS_MAX if kind == "date" else _MICROS_MAX if kind.startswith("time") else _INT_MAX
    if isinstance(value, int) and not -limit <= value < limit:
        what = f"A {kind} of {len(str(abs(value)))} digits" if kind == "int" else f"The {kind}"
        raise InvalidRequest(
            f"{what} is outside the range of every column type.",
            next="Remove the condition.",
        )


def _numpy(value: Any, where: str) -> Literal:
    """Convert a numpy scalar; datetimes have a unit of their own."""
    if value.dtype.kind == "M":
        return _numpy_datetime(value, where)
    plain = value if value.dtype.kind == "m" else value.item()
    if plain is value:
        raise InvalidRequest(
            f"{where}: {value!r} is a duration, and columns cannot have that type.",
            next="Compare with a date or a timestamp.",
        )
    return to_literal(float(plain) if value.dtype.kind == "f" else plain, where)


def _numpy_datetime(value: Any, where: str) -> Literal:
    """Convert a numpy datetime64, a count of some unit since 1970; NaT is NULL."""
    unit, step = str(value.dtype).removeprefix("datetime64").strip("[]"), 1
    if str(value) == "NaT":
        return NULL
    digits = unit.rstrip("abcdefghijklmnopqrstuvwxyzYMWD")
    unit, step = unit[len(digits) :], int(digits or 1)
    ticks = int(value.astype("int64")) * step
    if unit in ("Y", "M"):
        year, month = divmod(ticks * (12 if unit == "Y" else 1), 12)
        return Literal(days_from_date(1970 + year, month + 1, 1), "date")
    if unit in ("D", "W"):
        return Literal(ticks * (7 if unit == "W" else 1), "date")
    micros, remainder = divmod(ticks * _NANOS_PER_UNIT.get(unit, 0), 1000)
    if unit not in _NANOS_PER_UNIT or remainder:
        raise InvalidRequest(
            f"{where}: {value!r} is not a whole number of microseconds.",
            next="Round it to microseconds.",
        )
    return Literal(micros, "timestamp")


def _date_or_datetime(value: Any) -> Literal:
    """Convert a date or datetime; one with a UTC offset becomes a timestamptz."""
    days = days_from_date(value.year, value.month, value.day)
    if not hasattr(value, "hour"):
        return Literal(days, "date")
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    micros = days * DAY_MICROS + seconds * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    if offset is None:
        return Literal(micros, "timestamp")
    offset_micros = (offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds
    return Literal(micros - offset_micros, "timestamptz")


def _scalar(value: pa.Scalar, where: str) -> Literal:
    literal = literal_from_scalar(value)
    if literal is None:
        raise InvalidRequest(
            f"{where}: cannot compare with a value of type {value.type}.",
            next="Use text, numbers, booleans, dates, timestamps or decimals.",
        )
    return literal


def literal_from_scalar(value: pa.Scalar) -> Literal | None:
    """Convert an Arrow scalar; None if literals have no kind for its type."""
    kind = value.type
    if not value.is_valid:
        return NULL
    if pa.types.is_dictionary(kind):
        return literal_from_scalar(value.value.dictionary[value.value.index.as_py()])
    if str(kind) in _ARROW_KINDS:
        name = _ARROW_KINDS[str(kind)]
        return Literal(value.value if name == "date" else value.as_py(), name)
    if pa.types.is_integer(kind):
        return Literal(value.as_py(), "int")
    if pa.types.is_decimal(kind):
        return Literal(value.as_py(), "decimal")
    if pa.types.is_date64(kind):
        return Literal(value.value // 86_400_000, "date")
    if pa.types.is_timestamp(kind):
        return _arrow_timestamp(value)
    return None


def _arrow_timestamp(value: pa.Scalar) -> Literal | None:
    """Convert to microseconds; None if nanoseconds would be lost."""
    ticks = value.value
    scale = {"s": 1_000_000, "ms": 1000, "us": 1}.get(value.type.unit)
    if scale is None:
        if ticks % 1000:
            return None
        ticks //= 1000
    name = "timestamp" if value.type.tz is None else "timestamptz"
    return Literal(ticks * (scale or 1), name)
