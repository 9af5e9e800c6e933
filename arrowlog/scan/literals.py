"""Values a user gives, as literals: Python and Arrow values, and ISO text of dates and times."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.tree import FALSE, NULL, TRUE, Literal, day_text, days_of

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_MICROS = 86_400_000_000
_DATE = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})\s*")
_MOMENT = re.compile(
    r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r"\s*(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?\s*"
)
_NANOS = {"h": 3_600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_DAYS_MAX, _MICROS_MAX = 1 << 31, 1 << 63  # as Arrow and DuckDB count them
_INT_MAX = 10**308  # beyond it there is not even a double
_NOTHING = ("NaTType", "NAType")  # how pandas says that there is no value
_KINDS: tuple[tuple[Any, str], ...] = (
    (int, "int"),
    (float, "double"),
    (str, "text"),
    (bytes, "blob"),
)
_BY_TYPE: Mapping[str, str] = {
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


def read_date(text: str) -> int | None:
    """Days since 1970, if the text is an ISO date and nothing else."""
    found = _DATE.fullmatch(text)
    return None if found is None else _days(*(int(part) for part in found.groups()))


def read_moment(text: str) -> tuple[int, bool] | None:
    """Microseconds since 1970 and whether the text names a zone; a bare date is its midnight."""
    days = read_date(text)
    if days is not None:
        return days * DAY_MICROS, False
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, part, zone = found.groups()
    days = _days(int(year), int(month), int(day))
    clock = (int(hour), int(minute), int(second or 0))
    if days is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2]
    micros = days * DAY_MICROS + seconds * 1_000_000 + int((part or "0").ljust(6, "0"))
    if zone is None or zone in ("Z", "UTC"):
        return micros, zone is not None
    digits = zone[1:].replace(":", "").ljust(4, "0")
    shift = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000_000
    return micros + (shift if zone[0] == "-" else -shift), True


def _days(year: int, month: int, day: int) -> int | None:
    if not (1 <= month <= 12 and 1 <= day <= 31 and year >= 1):
        return None
    days = days_of(year, month, day)
    return days if day_text(days) == f"{year:04d}-{month:02d}-{day:02d}" else None


def double_of(node: Any) -> Any:
    """A whole number or a decimal as a double; anything else as it is."""
    value = node.value if getattr(node, "kind", "") in ("int", "decimal") else None
    if isinstance(value, (int, Decimal)):
        try:
            return Literal(float(value), "double")
        except OverflowError:
            return Literal(math.copysign(math.inf, value), "double")
    return node


def literal_of(value: Any, where: str) -> Literal:  # noqa: C901 -- one line a case
    """A Python, numpy or Arrow value as a literal; `InvalidRequest` names what cannot be one."""
    if value is None or type(value).__name__ in _NOTHING:
        return NULL
    if isinstance(value, Literal):
        return value
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return _numpy(value, where)
    for kind, name in _KINDS:
        if isinstance(value, kind):  # an enumeration of texts or numbers is one of these too
            return Literal(str.__str__(value) if kind is str else kind(value), name)
    if isinstance(value, Decimal):
        if value.is_finite():
            return Literal(value, "decimal")
    elif isinstance(value, pa.Scalar):
        return _scalar(value, where)
    elif hasattr(value, "isoformat") and hasattr(value, "year"):
        return _temporal(value)
    raise InvalidRequest(
        f"{where}: {value!r} ({type(value).__name__}) is not a value to compare with.",
        next="Use text, numbers, booleans, dates, datetimes, decimals or None.",
    )


def check_literal(literal: Literal) -> None:
    """Raise `InvalidRequest` for a value that no column of any type could be compared with."""
    value, kind = literal.value, literal.kind
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{value[:60]!a} has half of a surrogate pair, and is no Unicode text.",
                next="Compare with text that can be encoded.",
            ) from None
        return
    most = _DAYS_MAX if kind == "date" else _MICROS_MAX if kind.startswith("time") else _INT_MAX
    if isinstance(value, int) and not -most <= value < most:
        what = f"A {kind} of {len(str(abs(value)))} digits" if kind == "int" else f"The {kind}"
        raise InvalidRequest(
            f"{what} is beyond every column's type.", next="Leave the condition out."
        )


def _numpy(value: Any, where: str) -> Literal:
    """A numpy scalar; times have their own units there, which Arrow knows to read."""
    if value.dtype.kind == "M":
        return _moment(value, where)
    plain = value if value.dtype.kind == "m" else value.item()
    if plain is value:
        raise InvalidRequest(f"{where}: {value!r} is a span of time, which no column has.")
    return literal_of(float(plain) if value.dtype.kind == "f" else plain, where)


def _moment(value: Any, where: str) -> Literal:
    """A numpy time: a whole number of some unit, whose least one is "there is none"."""
    unit, step = str(value.dtype).removeprefix("datetime64").strip("[]"), 1
    if str(value) == "NaT":
        return NULL
    digits = unit.rstrip("abcdefghijklmnopqrstuvwxyzYMWD")
    unit, step = unit[len(digits) :], int(digits or 1)
    ticks = int(value.astype("int64")) * step
    if unit in ("Y", "M"):
        year, month = divmod(ticks * (12 if unit == "Y" else 1), 12)
        return Literal(days_of(1970 + year, month + 1, 1), "date")
    if unit in ("D", "W"):
        return Literal(ticks * (7 if unit == "W" else 1), "date")
    micros, left = divmod(ticks * _NANOS.get(unit, 0), 1000)
    if unit not in _NANOS or left:
        raise InvalidRequest(f"{where}: {value!r} is not a whole number of microseconds.")
    return Literal(micros, "timestamp")


def _temporal(value: Any) -> Literal:
    """A date or a datetime."""
    days = days_of(value.year, value.month, value.day)
    if not hasattr(value, "hour"):
        return Literal(days, "date")
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    micros = days * DAY_MICROS + seconds * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    if offset is None:
        return Literal(micros, "timestamp")
    shift = (offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds
    return Literal(micros - shift, "timestamptz")


def _scalar(value: pa.Scalar, where: str) -> Literal:
    found = scalar_literal(value)
    if found is None:
        raise InvalidRequest(f"{where}: a value of type {value.type} cannot be compared with.")
    return found


def scalar_literal(value: pa.Scalar) -> Literal | None:
    """An Arrow scalar as a literal; None if it has a type that literals do not have."""
    kind = value.type
    if not value.is_valid:
        return NULL
    if pa.types.is_dictionary(kind):
        return scalar_literal(value.value.dictionary[value.value.index.as_py()])
    if str(kind) in _BY_TYPE:
        name = _BY_TYPE[str(kind)]
        return Literal(value.value if name == "date" else value.as_py(), name)
    if pa.types.is_integer(kind):
        return Literal(value.as_py(), "int")
    if pa.types.is_decimal(kind):
        return Literal(value.as_py(), "decimal")
    if pa.types.is_date64(kind):
        return Literal(value.value // 86_400_000, "date")
    if pa.types.is_timestamp(kind):
        return _timestamp(value)
    return None


def _timestamp(value: pa.Scalar) -> Literal | None:
    """Microseconds; a value between two of them is none of ours."""
    ticks = value.value
    scale = {"s": 1_000_000, "ms": 1000, "us": 1}.get(value.type.unit)
    if scale is None:
        if ticks % 1000:
            return None
        ticks //= 1000
    name = "timestamp" if value.type.tz is None else "timestamptz"
    return Literal(ticks * (scale or 1), name)
