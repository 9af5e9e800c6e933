"""Sound bounds of a column per file, for data skipping. Pure.

No row of a file is below its low bound or above its high bound. Bounds that real writers truncate
or round are widened until that holds, or become null, which means unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    DECIMAL_DIGITS_MAX,
    FALSE,
    INT_MAX,
    INT_MIN,
    TRUE,
    make_int64,
    null_scalar,
)

if TYPE_CHECKING:
    from arrowlog.snapshot.file_table import FileStats

_TRUNCATED_MICROS_MAX = 999  # lost at most when a time is truncated to milliseconds
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
        kind = columns.schema.field(name).type
        low = widen_bounds(columns.low(name), kind, upper=False)
        high = widen_bounds(columns.high(name), kind, upper=True)
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


def _strip_tie_breakers(texts: pa.Array) -> pa.Array:
    """Remove the characters that writers append to a truncated maximum to keep it a maximum.

    What is left is a prefix, and values that start with a high bound may lie above it.
    """
    marked = pc.or_(pc.ends_with(texts, "\U0010ffff"), pc.ends_with(texts, "\ufffd"))
    if not marked.true_count:
        return texts
    return pc.replace_substring_regex(texts, "[\\x{FFFD}\\x{10FFFF}]+$", "")


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
        nulls = columns.null_count(name)
        known = None
        if nulls.null_count < len(nulls):
            equal = pc.equal(nulls, columns.stored_records())
            unbounded = pc.and_(pc.is_null(columns.low(name)), pc.is_null(columns.high(name)))
            every = pc.fill_null(pc.and_(equal, unbounded), FALSE)
            known = every if every.true_count else None
        columns.derived["all null", name] = known
    return columns.derived["all null", name]
