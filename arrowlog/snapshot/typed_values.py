"""Partition values and statistics: text in the log to types of the schema and back; sound bounds.

The type comes from the schema, never from how the text looks. Text that is not a value of its type
becomes null, which for a bound means unknown; `partition_values` tells an unreadable partition
value from a real NULL. Casts run over whole columns; the slow path runs only for columns in which
the plain cast fails.

Bounds are for data skipping: no row of a file is below its low bound or above its high bound.
Bounds that real writers truncate or round are widened until that holds, or become null, which means
unknown. Pure: no I/O, no clock.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    DECIMAL_DIGITS_MAX,
    FALSE,
    INT_MAX,
    INT_MIN,
    TRUE,
    concat_bytes,
    make_array,
    make_int64,
    make_scalar,
    null_scalar,
)
from arrowlog.config import is_text
from arrowlog.decode import concat_column_bytes
from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.snapshot.file_table import FileStats

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
TRUNCATION_MARK = " [TRUNCATED]"
# From so many rows on, partition values that repeat so often are cast once per distinct value.
_ENCODED_ROWS_MIN = 1000
_ENCODED_REPEATS_MIN = 4
_INTEGER = r"^-?0*[0-9]{1,19}$"
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SPECIAL_FLOAT = rf"{_FLOAT}|^(?i:[+-]?(?:inf|infinity)|nan)$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"
# Longer text is treated as unknown, so that its digits fit a decimal256, which has 76.
_DECIMAL_TEXT_MAX = 60
_DATE = r"^-?[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = (
    r"^(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ]"
    r"(?P<hour>[0-9]{2}:[0-9]{2})(?:(?P<second>:[0-9]{2})(?P<part>\.[0-9]{1,9})?)?"
    r"(?P<zone>Z|[+-](?:0[0-9]|1[0-8])(?::?[0-5][0-9])?)?$"
)
# Integers are read as epoch days only below 10^6 (the year 4707), and as epoch microseconds only
# from 10^14 on (1973): other values could be in another unit.
EPOCH_DAYS_MAX = 10**6
EPOCH_MICROS_MIN = 10**14


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of this type can have minimum and maximum bounds."""
    spans = pa.types.is_interval(kind) or pa.types.is_duration(kind)
    return not (
        pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind) or spans
    )


def cast_text(text: pa.ChunkedArray, kind: pa.DataType, *, upper: bool = False) -> pa.ChunkedArray:
    """Cast text to a type; null where the text is not a value of it.

    `upper` is for maxima: digits below a microsecond round up; for minima they round down.
    """
    if text.null_count == len(text) or pa.types.is_null(kind) or pa.types.is_nested(kind):
        return pa.chunked_array([pa.nulls(len(text), kind)])
    if pa.types.is_interval(kind) or pa.types.is_duration(
        kind
    ):  # writers do not agree on a text format
        return pa.chunked_array([pa.nulls(len(text), kind)])
    if pa.types.is_binary(kind):
        return pc.cast(text, kind)
    if pa.types.is_string(kind):
        return _strip_truncation_mark(text)
    if pa.types.is_timestamp(kind):
        return _timestamps(text, kind, upper=upper)
    if pa.types.is_date(kind):
        return _dates(text)
    if pa.types.is_floating(kind):
        return _finite(_numbers(text, kind, _FLOAT))
    if pa.types.is_boolean(kind):
        return _booleans(text)
    return _numbers(text, kind, _DECIMAL if pa.types.is_decimal(kind) else _INTEGER)


def cast_integers(texts: Sequence[pa.ChunkedArray], kind: pa.DataType) -> list[pa.ChunkedArray]:
    """Cast columns of equal length to an integer type as `cast_text` does, with one call for all.

    In hundreds of columns of few rows, calls take most of the time. If a text is not plainly an
    integer, each column is cast by itself.
    """
    count = len(texts[0])
    together = pa.chunked_array([pa.concat_arrays([c for text in texts for c in text.chunks])])
    if not _has_letters(together):
        try:
            numbers = pc.cast(together, kind)
            return [numbers.slice(start, count) for start in range(0, len(numbers), count)]
        except pa.ArrowInvalid:
            pass
    return [cast_text(text, kind) for text in texts]


def _numbers(text: pa.ChunkedArray, kind: pa.DataType, pattern: str) -> pa.ChunkedArray:
    """Cast the whole column; if that fails, only texts that match the pattern."""
    if pa.types.is_decimal(kind):
        return _decimals(text, kind)
    if not _has_letters(text) or not _has_hexadecimal(text):
        try:
            return pc.cast(text, kind)
        except pa.ArrowInvalid:
            pass
    return _cast_each(_only_matching(text, pattern), kind)


def _has_letters(text: pa.ChunkedArray) -> bool:
    """Whether any text may contain a letter: one maximum over all bytes, which is cheap."""
    octets = (np.frombuffer(concat_bytes(chunk), np.uint8) for chunk in text.chunks)
    return any(len(part) and part.max() > ord("9") for part in octets)


def _has_hexadecimal(text: pa.ChunkedArray) -> bool:
    """Whether a text may be hexadecimal: Arrow casts `0x10` to 16, but it is not a number here."""
    return any(pc.any(pc.match_substring(text, letter)).as_py() for letter in "xX")


def _decimals(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast exactly or to null. Through 256 bits, because a cast to 128 bits would wrap around."""
    decimal = _only_matching(text, _DECIMAL)
    short = pc.less_equal(pc.utf8_length(decimal), make_scalar(_DECIMAL_TEXT_MAX, pa.int32()))
    wide = pa.decimal256(76, kind.scale)
    return _cast_each(pc.if_else(short, decimal, null_scalar(decimal.type)), kind, wide)


def _only_matching(text: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    """Null the texts that do not match a pattern."""
    return pc.if_else(pc.match_substring_regex(text, pattern), text, null_scalar(text.type))


def _cast_each(
    text: pa.ChunkedArray, kind: pa.DataType, through: pa.DataType | None = None
) -> pa.ChunkedArray:
    """Cast, nulling texts that are out of range; those are found by casting distinct texts singly.

    `through` is a type to cast through.
    """
    try:
        return pc.cast(pc.cast(text, through or kind), kind)
    except pa.ArrowInvalid:
        pass
    codes = text.combine_chunks().dictionary_encode()
    values = pa.concat_arrays(
        [_cast_one(value, kind, through or kind) for value in codes.dictionary]
    )
    return pa.chunked_array([values.take(codes.indices)], kind)


def _cast_one(value: pa.Scalar, kind: pa.DataType, through: pa.DataType) -> pa.Array:
    try:
        return pc.cast(pc.cast(make_array([value.as_py()], pa.string()), through), kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null NaN and infinities: as bounds they say nothing."""
    finite = pc.is_finite(values)
    if pc.all(finite).as_py() is not False:
        return values
    return pc.if_else(finite, values, null_scalar(values.type))


def _booleans(text: pa.ChunkedArray) -> pa.ChunkedArray:
    lower = pc.ascii_lower(text)
    known = pc.is_in(lower, make_array(["true", "false"], pa.string()))
    return pc.if_else(
        known, pc.equal(lower, make_scalar("true", lower.type)), null_scalar(pa.bool_())
    )


def _strip_truncation_mark(text: pa.ChunkedArray) -> pa.ChunkedArray:
    marked = pc.ends_with(text, TRUNCATION_MARK)
    if not pc.any(marked).as_py():
        return text
    return pc.if_else(marked, pc.utf8_slice_codeunits(text, 0, -len(TRUNCATION_MARK)), text)


def _dates(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast ISO dates, or integers that can only be epoch days."""
    try:
        return pc.cast(text, pa.date32())
    except pa.ArrowInvalid:
        pass
    iso = _cast_each(_only_matching(text, _DATE), pa.date32())
    number = _cast_each(_only_matching(text, _INTEGER), pa.int64())
    near = pc.and_(
        pc.less(number, make_scalar(EPOCH_DAYS_MAX, pa.int64())),
        pc.greater(number, make_scalar(-EPOCH_DAYS_MAX, pa.int64())),
    )
    days = pc.if_else(near, number, null_scalar(pa.int64()))
    return pc.coalesce(iso, pc.cast(pc.cast(days, pa.int32()), pa.date32()))


def _timestamps(text: pa.ChunkedArray, kind: pa.DataType, *, upper: bool) -> pa.ChunkedArray:
    """Cast ISO-8601 times, UTC without a zone, or integers that can only be epoch microseconds."""
    shortest = pc.min(pc.binary_length(text)).as_py()
    if shortest >= len("2024-01-01T00:00"):  # a bare date is not a timestamp
        for written in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return pc.cast(pc.cast(pc.cast(text, written), pa.int64()), kind)
            except pa.ArrowInvalid:
                continue
    return pc.cast(_slow_micros(text, upper=upper), kind)


def dates_to_midnights(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Replace bare dates by their midnights if a column has timestamps without a zone.

    For formats in which such a column may have been one of dates: older files have dates then.
    """
    if not pa.types.is_timestamp(kind) or kind.tz is not None:
        return text
    dated = pc.match_substring_regex(text, _DATE)
    if not pc.any(dated).as_py():
        return text
    midnights = pc.binary_join_element_wise(text, *make_array(["T00:00", ""], pa.string()))
    return pc.if_else(dated, midnights, text)


def _slow_micros(text: pa.ChunkedArray, *, upper: bool) -> pa.ChunkedArray:
    """Parse any mix of timestamp formats to epoch microseconds."""
    texts = pl.Series("text", pl.from_arrow(text), dtype=pl.String)
    parts = texts.to_frame().select("text", groups=pl.col("text").str.extract_groups(_TIMESTAMP))
    clock = pl.concat_str("day", pl.lit("T"), "hour", pl.col("second").fill_null(":00"))
    nanos = pl.col("part").fill_null(".").str.slice(1).str.pad_end(9, "0").cast(pl.Int64)
    zone = pl.col("zone").fill_null("Z").str.replace(":", "")
    sign = pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
    hours = zone.str.slice(1, 2).cast(pl.Int64, strict=False).fill_null(0)
    minutes = zone.str.slice(3, 2).cast(pl.Int64, strict=False).fill_null(0)
    moment = clock.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="us")
    iso = (
        moment.dt.epoch("us")
        + (nanos + (999 if upper else 0)) // 1000
        - sign * (hours * 60 + minutes) * 60_000_000
    )
    number = pl.col("text").str.extract("^(-?[0-9]{1,19})$").cast(pl.Int64, strict=False)
    micros = pl.when((number >= EPOCH_MICROS_MIN) | (number <= -EPOCH_MICROS_MIN)).then(number)
    values = parts.unnest("groups").select(pl.coalesce(iso, micros)).to_series()
    return pa.chunked_array([values.to_arrow()])


def partition_values(
    text: pa.ChunkedArray,
    kind: pa.DataType,
    *,
    empty_is_null: bool = False,
    hive_is_null: bool = True,
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the partition values of a column, and which of them are unreadable.

    JSON null, absence, and empty text for a type other than text are NULL. So are empty text for
    every type if `empty_is_null`, and Hive's marker if `hive_is_null`.
    """
    if len(text) >= _ENCODED_ROWS_MIN and not pa.types.is_string(kind):
        codes = text.combine_chunks().dictionary_encode()
        if len(codes.dictionary) * _ENCODED_REPEATS_MIN <= len(text):
            distinct = pa.chunked_array([codes.dictionary])
            found = partition_values(
                distinct, kind, empty_is_null=empty_is_null, hive_is_null=hive_is_null
            )
            values, unreadable = (column.take(codes.indices) for column in found)
            return values, pc.fill_null(unreadable, FALSE)
    nulls = [HIVE_NULL] if hive_is_null else []
    if empty_is_null or not pa.types.is_string(kind):
        nulls.append("")
    for marker in nulls:
        absent = pc.equal(text, make_scalar(marker, text.type))
        if pc.any(absent).as_py():
            text = pc.if_else(absent, null_scalar(text.type), text)
    values = text if pa.types.is_string(kind) else _partition_values(text, kind)
    return values, pc.and_(pc.is_valid(text), pc.is_null(values))


def _partition_values(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast like `cast_text`, except that NaN and infinities are values."""
    if not pa.types.is_floating(kind) or text.null_count == len(text):
        return cast_text(text, kind)
    return _numbers(text, kind, _SPECIAL_FLOAT)


def to_log_text(value: object, kind: pa.DataType) -> str | None:
    """Return the log text of a value of a column, or None for null.

    Text is returned unchanged: it may come from a log. Raises `ValueError` with the reason if the
    value has no such text.

    >>> to_log_text(dt.date(2024, 1, 31), pa.date32()), to_log_text(True, pa.bool_())
    ('2024-01-31', 'true')
    """
    if value is None or isinstance(value, str):
        return None if value is None else _checked(str.__str__(value))  # numpy has a subclass
    if isinstance(value, pa.Scalar):
        return to_log_text(value.as_py(), kind)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))  # numpy has subclasses of float
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return _timestamp_text(value, kind)
    if isinstance(value, dt.date):
        return value.isoformat()
    if hasattr(value, "item"):  # a numpy scalar
        return to_log_text(_plain_value(value), kind)
    raise ValueError(f"values of type {type(value).__name__} cannot be stored in a log")


def _plain_value(scalar: Any) -> object:
    """Return the Python value of a numpy scalar. Raises `ValueError` if there is none."""
    plain = scalar.item()
    if getattr(getattr(scalar, "dtype", None), "kind", "") not in ("m", "M"):
        return plain
    if isinstance(plain, int):  # numpy's count, where Python has no such time or too coarse a one
        rounded = scalar.astype(f"{scalar.dtype.kind}8[us]")
        plain = rounded.item()
        if isinstance(plain, int) or rounded.astype(scalar.dtype) != scalar:
            raise ValueError("it is outside the years 1 to 9999 or has fractions of microseconds")
    return plain


def _checked(text: str) -> str:
    if not is_text(text):
        raise ValueError("it contains an unpaired surrogate")
    return text


def _timestamp_text(value: dt.datetime, kind: pa.DataType) -> str:
    """Return ISO-8601 with microseconds: in UTC with `Z` if the column has a zone, else without."""
    if pa.types.is_date(kind):
        raise ValueError("the column holds dates")
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    if value.tzinfo is not None:
        try:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        except OverflowError:
            raise ValueError("it is outside the years 1 to 9999 in UTC") from None
    return value.isoformat(timespec="microseconds") + ("Z" if zoned else "")


_TRUNCATED_MICROS_MAX = 999  # lost at most when a time is truncated to milliseconds
# A decimal of more digits may lose some when a writer records it as a double: delta-rs does.
_EXACT_DOUBLE_DIGITS = 15
# Bound on the relative error of such a double, which has several roundings of 1.1e-16 behind it.
_DOUBLE_ERROR = Decimal("1e-14")
_E000_FIRST_BYTE = 0xEE  # the first UTF-8 byte of U+E000; later characters begin no lower


def comparison_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which bounds of a column type are compared; None if they are not."""
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale)
    return pa.string() if pa.types.is_string(kind) else None


def low_bounds(columns: FileStats, name: str) -> pa.Array:
    """Return the low bound of a column per file; null is unknown."""
    return _bounds(columns, name)[0]


def high_bounds(columns: FileStats, name: str) -> pa.Array:
    """Return the high bound of a column per file; null is unknown.

    NaN is not covered. A text bound may be a prefix: values that start with it may lie above.
    """
    return _bounds(columns, name)[1]


def _bounds(columns: FileStats, name: str) -> tuple[pa.Array, pa.Array]:
    if ("bounds", name) not in columns.derived:
        kind = columns.type_of(name)
        low = widen_bounds(columns.low(name), kind, upper=False)
        high = widen_bounds(columns.high(name), kind, upper=True)
        if columns.rounded_decimals and may_lose_digits(kind):
            low = _widen_rounded(_drop_saturated(low, upper=False), upper=False)
            high = _widen_rounded(_drop_saturated(high, upper=True), upper=True)
        crossed = pc.greater(low, high)
        if crossed.true_count:  # a minimum above its maximum: neither can be trusted
            trusted = pc.fill_null(pc.invert(crossed), TRUE)
            low, high = (pc.if_else(trusted, side, null_scalar(side.type)) for side in (low, high))
        columns.derived["bounds", name] = (low, high)
    bounds: tuple[pa.Array, pa.Array] = columns.derived["bounds", name]
    return bounds


def widen_bounds(values: pa.Array, kind: pa.DataType, *, upper: bool) -> pa.Array:
    """Widen logged bounds until they are sound, in the type they are compared in; null: unknown."""
    if pa.types.is_timestamp(kind):
        return _widen_truncated_millis(pc.cast(values, pa.int64()), upper=upper)
    if pa.types.is_string(kind):
        return _drop_utf16_reordered(_strip_tie_breakers(values) if upper else values)
    return to_comparable(values, kind)


def to_comparable(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values to the type they are compared in, without widening."""
    if pa.types.is_date32(kind):
        values = pc.cast(values, pa.int32())
    target = comparison_type(kind)
    return values if values.type == target else pc.cast(values, target)


def _widen_truncated_millis(micros: pa.Array, *, upper: bool) -> pa.Array:
    """Widen times that may have been truncated to milliseconds by up to 999 microseconds.

    Truncation lowers times after 1970 and raises times before it, so minima before 1970 are
    widened as well. Times too close to the end of the int64 range stay as they are.
    """
    milli = make_int64(1000)
    truncated = pc.equal(pc.multiply(pc.divide(micros, milli), milli), micros)
    if upper:
        widen = pc.and_(truncated, pc.less(micros, make_int64(INT_MAX - _TRUNCATED_MICROS_MAX)))
        return pc.if_else(widen, pc.add(micros, make_int64(_TRUNCATED_MICROS_MAX)), micros)
    widen = pc.and_(
        truncated,
        pc.and_(
            pc.less_equal(micros, make_int64(0)),
            pc.greater(micros, make_int64(INT_MIN + _TRUNCATED_MICROS_MAX)),
        ),
    )
    return pc.if_else(widen, pc.subtract(micros, make_int64(_TRUNCATED_MICROS_MAX)), micros)


def may_lose_digits(kind: pa.DataType) -> bool:
    """Whether a type has decimals, or structs of them, that a double does not represent."""
    if pa.types.is_struct(kind):
        return any(may_lose_digits(item.type) for item in kind.fields)
    return bool(pa.types.is_decimal(kind) and kind.precision > _EXACT_DOUBLE_DIGITS)


def _drop_saturated(bounds: pa.Array, *, upper: bool) -> pa.Array:
    """Make decimal bounds unknown that a writer may have cut to the range of 64-bit integers.

    delta-rs does that with decimals without a fraction.
    """
    end = Decimal(INT_MAX if upper else INT_MIN)
    if bounds.type.scale:
        return bounds
    saturated = pc.equal(bounds, make_scalar(end, bounds.type))
    return pc.if_else(saturated, null_scalar(bounds.type), bounds)


def _widen_rounded(bounds: pa.Array, *, upper: bool) -> pa.Array:
    """Widen decimals that may have been rounded to doubles, up to the limits of their type.

    The margin is cut to the scale of the column, so that it is zero for less than 15 digits.
    """
    scale, digits = bounds.type.scale, DECIMAL_DIGITS_MAX
    wide = pc.cast(bounds, pa.decimal256(digits, scale))
    error = make_scalar(_DOUBLE_ERROR, pa.decimal256(14, 14))
    exact_margins = pc.multiply(pc.abs(wide), error)
    margins = pc.cast(exact_margins, pa.decimal256(digits, scale), safe=False)
    widened = (pc.add if upper else pc.subtract)(wide, margins)
    end = Decimal((int(not upper), (9,) * digits, -scale))
    limit = make_scalar(end, widened.type)
    choose = pc.min_element_wise if upper else pc.max_element_wise
    return pc.cast(choose(widened, limit, skip_nulls=False), bounds.type)


def _strip_tie_breakers(texts: pa.Array) -> pa.Array:
    """Remove the characters that writers append to a truncated maximum to keep it a maximum.

    What is left is a prefix, and values that start with a high bound may lie above it.
    """
    marked = pc.or_(pc.ends_with(texts, "\U0010ffff"), pc.ends_with(texts, "\ufffd"))
    if not marked.true_count:
        return texts
    return pc.replace_substring_regex(texts, "[\\x{FFFD}\\x{10FFFF}]+$", "")


def has_only_ordered_text(texts: pa.Array) -> bool:
    """Whether all texts sort by code point as they do in UTF-16, in which JVM writers compare.

    Checked by bytes: no text may have a character from U+D000 on.
    """
    highest = pc.max(concat_column_bytes([pa.chunked_array([texts])])).as_py()
    return highest is None or highest < _E000_FIRST_BYTE - 1


def _drop_utf16_reordered(texts: pa.Array) -> pa.Array:
    """Make bounds unknown that contain a character from U+E000 on.

    JVM writers compare UTF-16 code units, in which surrogate pairs sort below U+E000.
    """
    data = texts.buffers()[2]
    if data is None or len(texts) == texts.null_count:
        return texts
    octets = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
    highest = pc.max(octets).as_py()
    if highest is None or highest < _E000_FIRST_BYTE:
        return texts
    reordered = pc.match_substring_regex(texts, r"[\x{E000}-\x{10FFFF}]")
    return pc.if_else(reordered, null_scalar(texts.type), texts)


def all_null_files(columns: FileStats, name: str) -> pa.Array | None:
    """Return which files are known to have only NULLs in a column; None if none is.

    Requires that the null count equals the row count and that no bound contradicts it.
    """
    if ("all null", name) not in columns.derived:
        columns.derived["all null", name] = _find_all_null(columns, name)
    return columns.derived["all null", name]


def _find_all_null(columns: FileStats, name: str) -> pa.Array | None:
    low, high = columns.low(name), columns.high(name)
    if not (low.null_count and high.null_count):
        return None  # and counts, which may have to be read, are not needed
    unbounded = pc.and_(pc.is_null(low), pc.is_null(high))
    if not unbounded.true_count:
        return None
    nulls = columns.null_count(name)
    if nulls.null_count == len(nulls):
        return None
    every = pc.fill_null(pc.and_(pc.equal(nulls, columns.stored_records()), unbounded), FALSE)
    return every if every.true_count else None
