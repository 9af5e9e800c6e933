"""Locate a literal among the values of a column's type. Pure.

The result is a pair `(down, up)` of values of the type that enclose the literal. They are equal if
the type represents the literal exactly; None on a side means that the type has no value there.
Compare the pair only with sound bounds: those of `arrowlog.snapshot`.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa

from arrowlog.arrays import DECIMAL_DIGITS_MAX, INT_MAX, INT_MIN
from arrowlog.predicate.ast import DAY_MICROS, Literal
from arrowlog.predicate.literals import parse_date, parse_timestamp

LiteralBounds = tuple[Any, Any]
# Integers below these limits are exact as a double, or as a 32-bit float.
_EXACT_DOUBLE, _EXACT_FLOAT = 1 << 53, 1 << 24
_DOUBLE_DIGITS = 15  # decimals with at most so many digits keep their order as doubles
# From here on JVM writers, which compare UTF-16, sort differently from code point order.
_FIRST_SURROGATE = 0xD800
_EXACT_CONTEXT = Context(prec=100)  # digits; enough for every decimal below
_NUMERIC_TEXT = re.compile(r"\s*-?[0-9]{1,30}(?:\.[0-9]{0,30})?\s*")


def may_have_nan(kind: pa.DataType) -> bool:
    """Whether values may be NaN, which sorts above every number but is in no writer's maximum."""
    return bool(pa.types.is_floating(kind))


def enclose_literal(literal: Literal, kind: pa.DataType) -> LiteralBounds | None:
    """Enclose a literal in values of a type; None if the comparison is not certain.

    Engines convert one side or the other, sometimes with rounding. The pair holds whichever side
    they convert.
    """
    value = literal.value
    numeric = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric and isinstance(value, str):
        if not _NUMERIC_TEXT.fullmatch(value):
            return None
        literal = Literal(Decimal(value.strip()), "decimal")
    if pa.types.is_integer(kind):
        return _enclose_in_integers(literal)
    if pa.types.is_floating(kind):
        return _enclose_in_floats(literal, single=bool(pa.types.is_float32(kind)))
    if pa.types.is_decimal(kind):
        return _enclose_in_decimals(literal, kind)
    if pa.types.is_date32(kind):
        return _enclose_in_dates(literal)
    if pa.types.is_timestamp(kind):
        return _enclose_in_timestamps(literal, zoned=kind.tz is not None)
    if pa.types.is_boolean(kind) and literal.kind == "bool":
        return int(bool(value)), int(bool(value))
    if pa.types.is_string(kind) and isinstance(value, str):
        comparable = all(ord(character) < _FIRST_SURROGATE for character in value)
        return (value, value) if comparable else None
    return None


def _enclose_in_integers(literal: Literal) -> LiteralBounds | None:
    value = literal.value
    if literal.kind == "text" and isinstance(value, str):
        text = value.strip()
        if not (text.isascii() and text.lstrip("-").isdigit() and text.count("-") <= 1):
            return None
        return _clamp_to_int64(int(text)) if len(text) <= 20 else None
    if literal.kind == "int" and isinstance(value, int):
        return _clamp_to_int64(value)
    if not isinstance(value, (float, Decimal)):
        return None
    # Engines may compare as double (or float), where larger integers are rounded.
    exact = _EXACT_FLOAT if literal.kind == "float" else _EXACT_DOUBLE
    if not math.isfinite(value) or not -exact < value < exact:
        return None
    return math.floor(value), math.ceil(value)


def snap_to_integer(op: str, literal: Literal, kind: pa.DataType) -> tuple[str, int, int] | None:
    """Rewrite a comparison of integers with a fraction: `n >= 1.5` becomes `n >= 2`.

    Only if the literal lies between the same two integers as a double, so that the rewrite holds
    however an engine compares. Returns the operator and the pair, or None.
    """
    value = literal.value
    if not pa.types.is_integer(kind) or not isinstance(value, (float, Decimal)):
        return None
    if _enclose_in_integers(literal) is None or op in ("=", "<>"):
        return None
    down, up = math.floor(value), math.ceil(value)
    if down == up or (math.floor(float(value)), math.ceil(float(value))) != (down, up):
        return None
    return (">=", up, up) if op in (">", ">=") else ("<=", down, down)


def _clamp_to_int64(value: int) -> LiteralBounds:
    """An integer as a pair; beyond 64 bits only one side exists."""
    if value > INT_MAX:
        return INT_MAX, None
    return (None, INT_MIN) if value < INT_MIN else (value, value)


def _enclose_in_floats(literal: Literal, *, single: bool) -> LiteralBounds | None:
    """A pair that also covers rounding to double and, with `single`, to 32 bits."""
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        nearest = float(value)
    except OverflowError:
        return None
    if math.isnan(nearest):
        return None
    down, up = nearest, nearest
    if nearest != value:
        down, up = math.nextafter(nearest, -math.inf), math.nextafter(nearest, math.inf)
    if single:
        rounded = _round_to_float32(nearest)
        down, up = min(down, rounded), max(up, rounded)
    return down, up


def _round_to_float32(value: float) -> float:
    """A double rounded to 32 bits, infinite if it does not fit."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _enclose_in_decimals(literal: Literal, kind: pa.DataType) -> LiteralBounds | None:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    if literal.kind == "float":
        return None  # engines would round every decimal of the column to 32 bits
    if isinstance(value, float) and (kind.precision > _DOUBLE_DIGITS or not math.isfinite(value)):
        return None
    exact = Decimal(value)
    if abs(exact) >= 10**DECIMAL_DIGITS_MAX or (
        not isinstance(value, float) and not _has_common_decimal(exact, kind)
    ):
        return None
    step = Decimal(1).scaleb(-kind.scale)
    down = exact.quantize(step, ROUND_FLOOR, _EXACT_CONTEXT)
    up = exact.quantize(step, ROUND_CEILING, _EXACT_CONTEXT)
    limit = Decimal(10) ** (DECIMAL_DIGITS_MAX - kind.scale)
    return (down, up) if -limit < down and up < limit else None


def _has_common_decimal(value: Decimal, kind: pa.DataType) -> bool:
    """Whether one decimal type holds column and literal; else engines compare as doubles."""
    integer_digits = max(value.adjusted() + 1, 1)
    exponent = value.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    digits = max(integer_digits, kind.precision - kind.scale) + max(scale, kind.scale)
    return bool(digits <= DECIMAL_DIGITS_MAX)


def _enclose_in_dates(literal: Literal) -> LiteralBounds | None:
    value = literal.value
    if literal.kind == "date":
        return value, value
    if literal.kind in ("timestamp", "timestamptz") and isinstance(value, int):
        return value // DAY_MICROS, -(-value // DAY_MICROS)
    if literal.kind == "text" and isinstance(value, str):
        days = parse_date(value)
        if days is not None:
            return days, days
        moment = parse_timestamp(value)
        if moment is not None and not moment[1]:
            return moment[0] // DAY_MICROS, -(-moment[0] // DAY_MICROS)
    return None


def _enclose_in_timestamps(literal: Literal, *, zoned: bool) -> LiteralBounds | None:
    value = literal.value
    if literal.kind in ("timestamp", "timestamptz"):  # a timestamp without zone is UTC
        return value, value
    if literal.kind == "date" and isinstance(value, int):
        return value * DAY_MICROS, value * DAY_MICROS
    if literal.kind == "text" and isinstance(value, str):
        moment = parse_timestamp(value)
        if moment is not None and (zoned or not moment[1]):
            return moment[0], moment[0]
    return None
