"""Text to types: partition values and statistics, as the table's schema has them.

The schema says what a value is, never the look of its text. What cannot be read as its type is
null, for a bound "unknown"; a partition value that cannot be read is told apart from a real NULL by
`partition_values`. Casts run over whole columns; the slow path runs only over a column that has
something odd in it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl
from arrowlog.log.arrays import array_of, null, scalar
from arrowlog.log.match import octets_of

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
TRUNCATED = " [TRUNCATED]"
_INTEGER = r"^-?0*[0-9]{1,19}$"
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"
_DECIMAL_TEXT_MAX = 60
_DATE = r"^-?[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = (
    r"^(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ]"
    r"(?P<hour>[0-9]{2}:[0-9]{2})(?:(?P<second>:[0-9]{2})(?P<part>\.[0-9]{1,9})?)?"
    r"(?P<zone>Z|[+-](?:0[0-9]|1[0-8])(?::?[0-5][0-9])?)?$"
)
EPOCH_DAYS_MAX = 10**6
EPOCH_MICROS_MIN = 10**14


def has_bounds(kind: pa.DataType) -> bool:
    """Whether a column of this type can have statistics that compare."""
    spans = pa.types.is_interval(kind) or pa.types.is_duration(kind)
    return not (
        pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind) or spans
    )


def cast_text(text: pa.ChunkedArray, kind: pa.DataType, *, upper: bool = False) -> pa.ChunkedArray:
    """Text as values of a type; null where it is not one.

    `upper` is for maxima: digits below a microsecond are rounded up, for minima down.
    """
    if text.null_count == len(text) or pa.types.is_null(kind) or pa.types.is_nested(kind):
        return pa.chunked_array([pa.nulls(len(text), kind)])
    if pa.types.is_interval(kind) or pa.types.is_duration(kind):  # there is no one way to write it
        return pa.chunked_array([pa.nulls(len(text), kind)])
    if pa.types.is_binary(kind):
        return pc.cast(text, kind)
    if pa.types.is_string(kind):
        return _without_mark(text)
    if pa.types.is_timestamp(kind):
        return _timestamps(text, kind, upper=upper)
    if pa.types.is_date(kind):
        return _dates(text)
    if pa.types.is_floating(kind):
        return _finite(_numbers(text, kind, _FLOAT))
    if pa.types.is_boolean(kind):
        return _booleans(text)
    return _numbers(text, kind, _DECIMAL if pa.types.is_decimal(kind) else _INTEGER)


def _numbers(text: pa.ChunkedArray, kind: pa.DataType, pattern: str) -> pa.ChunkedArray:
    """Cast all at once; if that fails, what matches the pattern, one by one where it must be."""
    if pa.types.is_decimal(kind):
        return _decimals(text, kind)
    if not _has_letters(text) or not _has_hexadecimal(text):
        try:
            return pc.cast(text, kind)
        except pa.ArrowInvalid:
            pass
    return _cast_each(_only(text, pattern), kind)


def _has_letters(text: pa.ChunkedArray) -> bool:
    """Whether there may be letters: looks at the bytes as a whole, which costs next to nothing."""
    highest = pc.max(octets_of([text])).as_py()
    return highest is not None and highest > ord("9")


def _has_hexadecimal(text: pa.ChunkedArray) -> bool:
    """0x10 casts to 16, and is no number here."""
    return any(pc.any(pc.match_substring(text, letter)).as_py() for letter in "xX")


def _decimals(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Exactly, or not at all. What is too large for 128 bits would wrap, so 256 are used first."""
    plain = _only(text, _DECIMAL)
    short = pc.less_equal(pc.utf8_length(plain), scalar(_DECIMAL_TEXT_MAX, pa.int32()))
    wide = pa.decimal256(76, kind.scale)
    return _cast_each(pc.if_else(short, plain, null(plain.type)), kind, wide)


def _only(text: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    return pc.if_else(pc.match_substring_regex(text, pattern), text, null(text.type))


def _cast_each(
    text: pa.ChunkedArray, kind: pa.DataType, way: pa.DataType | None = None
) -> pa.ChunkedArray:
    """Values that look right may still be out of range; look at the distinct ones one by one."""
    try:
        return pc.cast(pc.cast(text, way or kind), kind)
    except pa.ArrowInvalid:
        pass
    codes = text.combine_chunks().dictionary_encode()
    values = pa.concat_arrays([_cast_one(value, kind, way or kind) for value in codes.dictionary])
    return pa.chunked_array([values.take(codes.indices)], kind)


def _cast_one(value: pa.Scalar, kind: pa.DataType, way: pa.DataType) -> pa.Array:
    try:
        return pc.cast(pc.cast(array_of([value.as_py()], pa.string()), way), kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    finite = pc.is_finite(values)
    return (
        values
        if pc.all(finite).as_py() is not False
        else pc.if_else(finite, values, null(values.type))
    )


def _booleans(text: pa.ChunkedArray) -> pa.ChunkedArray:
    lower = pc.ascii_lower(text)
    known = pc.is_in(lower, array_of(["true", "false"], pa.string()))
    return pc.if_else(known, pc.equal(lower, scalar("true", lower.type)), null(pa.bool_()))


def _without_mark(text: pa.ChunkedArray) -> pa.ChunkedArray:
    marked = pc.ends_with(text, TRUNCATED)
    if not pc.any(marked).as_py():
        return text
    return pc.if_else(marked, pc.utf8_slice_codeunits(text, 0, -len(TRUNCATED)), text)


def _dates(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """ISO dates, or days since 1970 if they can be no other number."""
    try:
        return pc.cast(text, pa.date32())
    except pa.ArrowInvalid:
        pass
    iso = _cast_each(_only(text, _DATE), pa.date32())
    number = _cast_each(_only(text, _INTEGER), pa.int64())
    near = pc.and_(
        pc.less(number, scalar(EPOCH_DAYS_MAX, pa.int64())),
        pc.greater(number, scalar(-EPOCH_DAYS_MAX, pa.int64())),
    )
    days = pc.if_else(near, number, null(pa.int64()))
    return pc.coalesce(iso, pc.cast(pc.cast(days, pa.int32()), pa.date32()))


def _timestamps(text: pa.ChunkedArray, kind: pa.DataType, *, upper: bool) -> pa.ChunkedArray:
    """ISO-8601, without a zone UTC; or microseconds since 1970 if they can be nothing else."""
    shortest = pc.min(pc.binary_length(text)).as_py()
    if shortest >= len("2024-01-01T00:00"):  # a bare date is no moment
        for written in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return pc.cast(pc.cast(pc.cast(text, written), pa.int64()), kind)
            except pa.ArrowInvalid:
                continue
    return pc.cast(_slow_micros(text, upper=upper), kind)


def _slow_micros(text: pa.ChunkedArray, *, upper: bool) -> pa.ChunkedArray:
    """Any mixture of forms, each value by its own."""
    texts = pl.Series("text", pl.from_arrow(text), dtype=pl.String)
    parts = texts.to_frame().select("text", found=pl.col("text").str.extract_groups(_TIMESTAMP))
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
    found = parts.unnest("found").select(pl.coalesce(iso, micros)).to_series()
    return pa.chunked_array([found.to_arrow()])


def partition_values(
    text: pa.ChunkedArray, kind: pa.DataType
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Partition values of a column, and for which files nobody can tell what they are.

    JSON null, absent, empty for a type that is not text, and Hive's marker are NULL.
    """
    absent = pc.equal(text, scalar(HIVE_NULL, text.type))
    if not pa.types.is_string(kind):
        absent = pc.or_(absent, pc.equal(text, scalar("", text.type)))
    if pc.any(absent).as_py():
        text = pc.if_else(absent, null(text.type), text)
    values = text if pa.types.is_string(kind) else cast_text(text, kind)
    return values, pc.and_(pc.is_valid(text), pc.is_null(values))
