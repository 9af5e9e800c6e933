"""Literals and value sets: built from values and ISO text, located among a type's values. Pure.

`enclose_literal` returns a pair `(down, up)` of values of the type that enclose the literal. They
are equal if the type represents the literal exactly; None on a side means that the type has no
value there. Compare the pair only with sound bounds: those of `arrowlog.snapshot`.

A value set holds the members of a long IN list as one Arrow array, without an object per value.
They come from Arrow arrays, polars Series and numpy arrays (the keys of a user's own join, say) and
from long lists of literals. The array has the type of the column that it is compared with, so that
no engine converts either side.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import DECIMAL_DIGITS_MAX, INT_MAX, INT_MIN
from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    FALSE,
    NULL,
    TRUE,
    Call,
    Column,
    Literal,
    Node,
    ValueSet,
    column_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LiteralBounds = tuple[Any, Any]
# Days from 0000-03-01 to 1970-01-01. Years that start in March put the leap day last.
_EPOCH_DAY = 719_468
DAY_MICROS = 86_400_000_000
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
# Integers below these limits are exact as a double, or as a 32-bit float.
_EXACT_DOUBLE, _EXACT_FLOAT = 1 << 53, 1 << 24
_DOUBLE_DIGITS = 15  # decimals with at most so many digits keep their order as doubles
# From here on JVM writers, which compare UTF-16, sort differently from code point order.
_FIRST_SURROGATE = 0xD800
_EXACT_CONTEXT = Context(prec=100)  # digits; enough for every decimal below
_NUMERIC_TEXT = re.compile(r"\s*-?[0-9]{1,30}(?:\.[0-9]{0,30})?\s*")


def format_day(days: int) -> str:
    """Format days since 1970 as an ISO date. No calendar library, so that years have no limit.

    >>> format_day(19723), format_day(-1), format_day(-719529)
    ('2024-01-01', '1969-12-31', '-001-12-31')
    """
    year, month, day = civil_from_days(days)
    return f"{year:04d}-{month:02d}-{day:02d}"


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of the month of days since 1970; the inverse of `days_from_date`."""
    era, day = divmod(days + _EPOCH_DAY, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day_of_month


def days_from_date(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date; the inverse of `civil_from_days`.

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
    if not isinstance(value, (str, int)):
        return
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
    if not -limit <= value < limit:
        what = (
            "integer" if kind == "int" else kind
        )  # which may have more digits than Python formats
        raise InvalidRequest(
            f"The {what} is outside the range of every column type.",
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


def may_have_nan(kind: pa.DataType) -> bool:
    """Whether values may be NaN, which sorts above every number but is in no writer's maximum."""
    return bool(pa.types.is_floating(kind))


def enclose_literal(literal: Literal, kind: pa.DataType) -> LiteralBounds | None:
    """Enclose a literal in values of a type; None if the comparison is not certain.

    Engines convert one side or the other, sometimes with rounding. The pair holds whichever side
    they convert.
    """
    return choose_encloser(kind)(literal)


def choose_encloser(kind: pa.DataType) -> Callable[[Literal], LiteralBounds | None]:
    """Return `enclose_literal` for one type, which is looked at once for many literals."""
    if pa.types.is_integer(kind):
        return _enclose_in_integers
    if pa.types.is_floating(kind):
        floats = partial(_enclose_in_floats, single=bool(pa.types.is_float32(kind)))
        return partial(_enclose_number, enclose=floats)
    if pa.types.is_decimal(kind):
        return partial(_enclose_number, enclose=partial(_enclose_in_decimals, kind=kind))
    if pa.types.is_date32(kind):
        return _enclose_in_dates
    if pa.types.is_timestamp(kind):
        return partial(_enclose_in_timestamps, zoned=kind.tz is not None)
    if pa.types.is_boolean(kind):
        return _enclose_in_booleans
    return _enclose_in_texts if pa.types.is_string(kind) else lambda _: None


def _enclose_number(
    literal: Literal, enclose: Callable[[Literal], LiteralBounds | None]
) -> LiteralBounds | None:
    """Enclose a literal, or the number that a text is."""
    if isinstance(literal.value, str):
        if not _NUMERIC_TEXT.fullmatch(literal.value):
            return None
        literal = Literal(Decimal(literal.value.strip()), "decimal")
    return enclose(literal)


def _enclose_in_booleans(literal: Literal) -> LiteralBounds | None:
    truth = int(bool(literal.value))
    return (truth, truth) if literal.kind == "bool" else None


def _enclose_in_texts(literal: Literal) -> LiteralBounds | None:
    value = literal.value
    if not isinstance(value, str):
        return None
    comparable = all(ord(character) < _FIRST_SURROGATE for character in value)
    return (value, value) if comparable else None


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
        rounded = round_to_float32(nearest)
        down, up = min(down, rounded), max(up, rounded)
    return down, up


def round_to_float32(value: float) -> float:
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


# Shorter lists become literals, which every engine can show and compare one by one.
VALUE_SET_MIN = 100
# Literals that a user has written stay visible, one by one, up to this many.
LITERALS_MAX = 1000
# The comparisons with one column that are a list of its values, by the operator between them.
_LISTED_COMPARISONS = {"or": "=", "and": "<>"}
_PLAIN_TYPES = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def to_arrow_array(values: Any) -> pa.Array | None:
    """Convert a column of values to one Arrow array; None for a list and anything else."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "__arrow_c_stream__"):  # polars
        try:
            return pa.chunked_array(values).combine_chunks()
        except (pa.ArrowException, TypeError, ValueError):
            return None
    is_numpy = type(values).__module__ == "numpy" and getattr(values, "ndim", 0) == 1
    if not is_numpy or values.dtype.kind not in "iufbM":
        return None
    try:
        return pa.array(values)
    except pa.ArrowException:
        return None


def make_in(
    column: Node, values: pa.Array, schema: pa.Schema, *, keep_null: bool = True
) -> Node | None:
    """The condition that a column is IN an array of values; None if they have to be literals.

    A NULL among the values makes the condition NULL instead of FALSE, unless `keep_null` is False.
    """
    values = _decode(values)
    has_null = bool(values.null_count) and keep_null
    members = values.drop_null() if values.null_count else values
    if len(members) < VALUE_SET_MIN or not isinstance(column, Column):
        return _literal_in(column, members, has_null=has_null)
    kind = column_type(column, schema)
    typed = None if kind is None else _cast_exactly(members, kind)
    if typed is None:
        return _literal_in(column, members, has_null=has_null)
    return Call("in", (column, ValueSet(typed, has_null)))


def make_null_safe_in(column: Node, values: pa.Array, schema: pa.Schema) -> Node | None:
    """The condition that a column is among values of which NULL is one; it is never NULL.

    None if it has to be evaluated in another way.
    """
    values = _decode(values)
    contained = make_in(column, values, schema, keep_null=False)
    if contained is None:
        return None
    condition: Node = Call("is true", (contained,))
    if values.null_count == len(values):
        condition = Literal(False, "bool")
    if values.null_count:
        condition = Call("or", (condition, Call("is null", (column,))))
    return condition


def _decode(values: pa.Array) -> pa.Array:
    """Return values without a dictionary, which may hide NULLs, and without views.

    Arrow neither filters views nor decodes dictionaries of them. polars hands over both.
    """
    if pa.types.is_dictionary(values.type):
        return _decode(values.dictionary).take(values.indices)
    plain = _PLAIN_TYPES.get(values.type)
    return values if plain is None else pc.cast(values, plain)


def collect_literals(node: Node, schema: pa.Schema) -> Node:
    """Replace long lists of literals by value sets where no engine would convert either side.

    That is so for integers in a column of integers and texts in a column of texts. DuckDB needs
    seconds to bind 100,000 literals, Arrow milliseconds to look them up. `a = 1 OR a = 2 …` and
    `a <> 1 AND a <> 2 …` are lists too.
    """
    if not isinstance(node, Call):
        return node
    if node.op == "in" and len(node.args) > LITERALS_MAX:
        members = _literal_array(node.args[0], node.args[1:], schema)
        return node if members is None else Call("in", (node.args[0], members))
    if node.op in _LISTED_COMPARISONS and len(node.args) > LITERALS_MAX:
        parts = collect_comparisons(node.op, node.args, schema)
    else:
        parts = node.args
    args = tuple(collect_literals(arg, schema) if isinstance(arg, Call) else arg for arg in parts)
    if len(args) == 1 < len(node.args):
        return args[0]
    changed = len(args) < len(node.args) or any(map(operator.is_not, args, node.args))
    return Call(node.op, args, node.detail) if changed else node


def collect_comparisons(op: str, parts: Sequence[Node], schema: pa.Schema) -> Sequence[Node]:
    """Replace comparisons of one column with many literals among the parts of an OR or AND.

    An AND of `<>` is a NOT IN. The new condition stands behind the other parts.
    """
    by_column: dict[Column, list[Node]] = {}
    kept: list[Node] = []
    for part in parts:
        if isinstance(part, Call) and part.op == _LISTED_COMPARISONS[op]:
            column, literal = part.args
            if isinstance(column, Column) and isinstance(literal, Literal):
                by_column.setdefault(column, []).append(literal)
                continue
        kept.append(part)
    for column, literals in by_column.items():
        members = _literal_array(column, literals, schema) if len(literals) > LITERALS_MAX else None
        if members is None:
            kept += [Call(_LISTED_COMPARISONS[op], (column, literal)) for literal in literals]
        else:
            listed = Call("in", (column, members))
            kept.append(listed if op == "or" else Call("not", (listed,)))
    return kept


def _literal_array(column: Node, members: Sequence[Node], schema: pa.Schema) -> ValueSet | None:
    """The literals of an IN as a value set; None if one might be converted in a comparison."""
    kind = column_type(column, schema) if isinstance(column, Column) else None
    if kind is None:
        return None
    if pa.types.is_integer(kind):
        wanted = "int"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        wanted = "text"
    else:
        return None
    literals = [member for member in members if isinstance(member, Literal)]
    kinds = {literal.kind for literal in literals}
    if len(literals) < len(members) or not kinds <= {wanted, "null"}:
        return None
    values = [literal.value for literal in literals if literal.kind == wanted]
    try:
        return ValueSet(pa.array(values, kind), "null" in kinds)
    except (pa.ArrowInvalid, OverflowError, UnicodeError):  # beyond the column's type
        return None


def _literal_in(column: Node, members: pa.Array, *, has_null: bool) -> Node | None:
    literals = [literal_from_scalar(value) for value in members]
    known: list[Node] = [literal for literal in literals if literal is not None]
    if len(known) < len(literals):
        return None
    if has_null:
        known.append(Literal(None, "null"))
    return Call("in", (column, *known)) if known else FALSE


def _cast_exactly(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Convert values to the type of a column; None if that changes one, or is not certain."""
    source = values.type
    if may_have_nan(kind):
        if not may_have_nan(source) or source.bit_width > kind.bit_width:
            return None
        converted = pc.cast(values, kind)
        return None if pc.any(pc.is_nan(converted)).as_py() else converted
    families: Sequence[tuple[Any, Any]] = (
        (pa.types.is_integer, pa.types.is_integer),
        (pa.types.is_decimal, pa.types.is_decimal),
        (pa.types.is_date, pa.types.is_date),
        (pa.types.is_timestamp, pa.types.is_timestamp),
        (pa.types.is_boolean, pa.types.is_boolean),
        (pa.types.is_string, lambda other: any(test(other) for test in _TEXT_TYPES)),
    )
    if not any(is_kind(kind) and is_source(source) for is_kind, is_source in families):
        return None
    try:
        if pa.types.is_timestamp(kind):  # a timestamp without a zone is UTC
            in_unit = pc.cast(values, pa.timestamp(kind.unit, source.tz))
            return pc.cast(pc.cast(in_unit, pa.int64()), kind)
        return pc.cast(values, kind)
    except pa.ArrowInvalid:
        return None


def evaluate_membership(node: Call, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate an IN with a value set for every row: NULL for NULL, and for a miss beside NULL."""
    column, members = node.args
    assert isinstance(column, Column)
    assert isinstance(members, ValueSet)
    values = columns[column.name]
    for part in column.path:
        values = pc.struct_field(values, [values.type.get_field_index(part)])
    if values.type != members.values.type:
        values = pc.cast(values, members.values.type)
    contained = pc.is_in(values, value_set=members.hashed())
    null = pa.scalar(None, pa.bool_())
    if members.has_null:
        return pc.if_else(contained, contained, null)
    return pc.if_else(pc.is_valid(values), contained, null)
