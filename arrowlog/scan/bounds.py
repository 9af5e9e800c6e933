"""Where a literal lies among the values of a column's type. Pure.

It is a pair `(down, up)` in the order of the type, equal if the type has exactly that value; None
on a side is no limit there. Bounds to compare it with are those of `arrowlog.state.safe`.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa

from arrowlog.scan.literals import DAY_MICROS, read_date, read_moment
from arrowlog.scan.tree import Literal
from arrowlog.state.safe import DIGITS_MAX, INT_MAX, INT_MIN

Pair = tuple[Any, Any]
_EXACT_DOUBLE, _EXACT_FLOAT = 1 << 53, 1 << 24
_DOUBLE_DIGITS = 15  # decimals of so many digits keep their order as doubles
_SURROGATES = 0xD800
_WIDE = Context(prec=100)
_NUMBER = re.compile(r"\s*-?[0-9]{1,30}(?:\.[0-9]{0,30})?\s*")


def pair_of(literal: Literal, kind: pa.DataType) -> Pair | None:
    """A literal among the values of a type; None if they do not surely compare.

    Engines convert one side or the other, by rounding at times; a pair holds whatever they do.
    """
    value = literal.value
    numeric = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric and isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return None
        literal = Literal(Decimal(value.strip()), "decimal")
    if pa.types.is_integer(kind):
        return _among_integers(literal)
    if pa.types.is_floating(kind):
        return _among_floats(literal, single=bool(pa.types.is_float32(kind)))
    if pa.types.is_decimal(kind):
        return _among_decimals(literal, kind)
    if pa.types.is_date32(kind):
        return _among_dates(literal)
    if pa.types.is_timestamp(kind):
        return _among_moments(literal, zoned=kind.tz is not None)
    if pa.types.is_boolean(kind) and literal.kind == "bool":
        return int(bool(value)), int(bool(value))
    if pa.types.is_string(kind) and isinstance(value, str):
        return (value, value) if all(ord(letter) < _SURROGATES for letter in value) else None
    return None


def _among_integers(literal: Literal) -> Pair | None:
    value = literal.value
    if literal.kind == "text" and isinstance(value, str):
        text = value.strip()
        if not (text.isascii() and text.lstrip("-").isdigit() and text.count("-") <= 1):
            return None
        return _in_range(int(text)) if len(text) <= 20 else None
    if literal.kind == "int" and isinstance(value, int):
        return _in_range(value)
    if not isinstance(value, (float, Decimal)):
        return None
    # Where a number is compared as a double, or as a float, larger ones are rounded.
    exact = _EXACT_FLOAT if literal.kind == "float" else _EXACT_DOUBLE
    if not math.isfinite(value) or not -exact < value < exact:
        return None
    return math.floor(value), math.ceil(value)


def beside(op: str, literal: Literal, kind: pa.DataType) -> tuple[str, int, int] | None:
    """A comparison of integers with a number between two of them, as one with its neighbour.

    Only if it is between them as a double too: in whichever way an engine compares, `n >= 1.5` is
    `n >= 2` then.
    """
    value = literal.value
    if not pa.types.is_integer(kind) or not isinstance(value, (float, Decimal)):
        return None
    if _among_integers(literal) is None or op in ("=", "<>"):
        return None
    down, up = math.floor(value), math.ceil(value)
    if down == up or (math.floor(float(value)), math.ceil(float(value))) != (down, up):
        return None
    return (">=", up, up) if op in (">", ">=") else ("<=", down, down)


def _in_range(value: int) -> Pair:
    if value > INT_MAX:
        return INT_MAX, None
    return (None, INT_MIN) if value < INT_MIN else (value, value)


def _among_floats(literal: Literal, *, single: bool) -> Pair | None:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        near = float(value)
    except OverflowError:
        return None
    if math.isnan(near):
        return None
    down, up = near, near
    if near != value:
        down, up = math.nextafter(near, -math.inf), math.nextafter(near, math.inf)
    if single:
        rounded = _single(near)
        down, up = min(down, rounded), max(up, rounded)
    return down, up


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _among_decimals(literal: Literal, kind: pa.DataType) -> Pair | None:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    if literal.kind == "float":
        return None  # every decimal would be rounded to one
    if isinstance(value, float) and (kind.precision > _DOUBLE_DIGITS or not math.isfinite(value)):
        return None
    exact = Decimal(value)
    if abs(exact) >= 10**DIGITS_MAX or (not isinstance(value, float) and not _fits(exact, kind)):
        return None
    step = Decimal(1).scaleb(-kind.scale)
    down = exact.quantize(step, ROUND_FLOOR, _WIDE)
    up = exact.quantize(step, ROUND_CEILING, _WIDE)
    limit = Decimal(10) ** (DIGITS_MAX - kind.scale)
    return (down, up) if -limit < down and up < limit else None


def _fits(value: Decimal, kind: pa.DataType) -> bool:
    """Whether column and literal have a common exact type, so that nobody compares doubles."""
    whole = max(value.adjusted() + 1, 1)
    exponent = value.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    digits = max(whole, kind.precision - kind.scale) + max(scale, kind.scale)
    return bool(digits <= DIGITS_MAX)


def _among_dates(literal: Literal) -> Pair | None:
    value = literal.value
    if literal.kind == "date":
        return value, value
    if literal.kind in ("timestamp", "timestamptz") and isinstance(value, int):
        return value // DAY_MICROS, -(-value // DAY_MICROS)
    if literal.kind == "text" and isinstance(value, str):
        days = read_date(value)
        if days is not None:
            return days, days
        moment = read_moment(value)
        if moment is not None and not moment[1]:
            return moment[0] // DAY_MICROS, -(-moment[0] // DAY_MICROS)
    return None


def _among_moments(literal: Literal, *, zoned: bool) -> Pair | None:
    value = literal.value
    if literal.kind in ("timestamp", "timestamptz"):  # the zone of times without one is UTC
        return value, value
    if literal.kind == "date" and isinstance(value, int):
        return value * DAY_MICROS, value * DAY_MICROS
    if literal.kind == "text" and isinstance(value, str):
        moment = read_moment(value)
        if moment is not None and (zoned or not moment[1]):
            return moment[0], moment[0]
    return None
