"""What the log knows of a column in each file, made safe to compare with. Pure.

A bound here is a promise: no row of the file is below its low or above its high. What real
writers leave is widened until that holds, or is null, which means unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import FALSE, TRUE, null, scalar

if TYPE_CHECKING:
    from arrowlog.state.files import Columns

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
DIGITS_MAX = 38
_MILLI = 999  # what a time cut to milliseconds may lack, in microseconds
_HIGH_BYTE = 0xEE  # UTF-8 begins characters from U+E000 on with this byte or a higher one


def comparable(kind: pa.DataType) -> pa.DataType | None:
    """The type in which bounds of a column are compared; None if they are not."""
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(DIGITS_MAX, kind.scale)
    return pa.string() if pa.types.is_string(kind) else None


def has_nan(kind: pa.DataType) -> bool:
    """Whether rows may be NaN: above every number, and in no writer's maximum."""
    return bool(pa.types.is_floating(kind))


def low_of(columns: Columns, name: str) -> pa.Array:
    """Below this no row of the file is."""
    return _both(columns, name)[0]


def high_of(columns: Columns, name: str) -> pa.Array:
    """Above this no row of the file is, NaN aside. A text may be longer, and begin like this."""
    return _both(columns, name)[1]


def _both(columns: Columns, name: str) -> tuple[pa.Array, pa.Array]:
    if ("bounds", name) not in columns.derived:
        kind = columns.schema.field(name).type
        low = safe(columns.low(name), kind, upper=False)
        high = safe(columns.high(name), kind, upper=True)
        crossed = pc.greater(low, high)
        if crossed.true_count:  # a minimum above its maximum: neither is to be believed
            believed = pc.fill_null(pc.invert(crossed), TRUE)
            low, high = (pc.if_else(believed, side, null(side.type)) for side in (low, high))
        columns.derived["bounds", name] = (low, high)
    found: tuple[pa.Array, pa.Array] = columns.derived["bounds", name]
    return found


def safe(values: pa.Array, kind: pa.DataType, *, upper: bool) -> pa.Array:
    """Values as bounds of a type that hold, in the type they are compared in; null is unknown."""
    if pa.types.is_timestamp(kind):
        return _whole_millis(pc.cast(values, pa.int64()), upper=upper)
    if pa.types.is_string(kind):
        return _without_odd(values)
    return plain(values, kind)


def plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values in the type they are compared in."""
    if pa.types.is_date32(kind):
        values = pc.cast(values, pa.int32())
    target = comparable(kind)
    return values if values.type == target else pc.cast(values, target)


def number(value: int) -> pa.Scalar:
    """A whole number."""
    return scalar(value, pa.int64())


def _whole_millis(micros: pa.Array, *, upper: bool) -> pa.Array:
    """A time that has no microseconds may have lost them: up to 999 are given back.

    Before 1970 cutting off may have gone up, so minima there are lowered likewise.
    """
    milli = number(1000)
    cut = pc.equal(pc.multiply(pc.divide(micros, milli), milli), micros)
    if upper:
        room = pc.and_(cut, pc.less(micros, number(INT_MAX - _MILLI)))
        return pc.if_else(room, pc.add(micros, number(_MILLI)), micros)
    room = pc.and_(
        cut, pc.and_(pc.less_equal(micros, number(0)), pc.greater(micros, number(INT_MIN + _MILLI)))
    )
    return pc.if_else(room, pc.subtract(micros, number(_MILLI)), micros)


def _without_odd(texts: pa.Array) -> pa.Array:
    """Without bounds that have characters in them which the JVM sorts in another place."""
    data = texts.buffers()[2]
    if data is None or len(texts) == texts.null_count:
        return texts
    octets = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
    highest = pc.max(octets).as_py()
    if highest is None or highest < _HIGH_BYTE:
        return texts
    odd = pc.match_substring_regex(texts, r"[\x{E000}-\x{10FFFF}]")
    return pc.if_else(odd, null(texts.type), texts)


def all_null(columns: Columns, name: str) -> pa.Array | None:
    """Files in which a column is NULL in every row; None if there is none known.

    Only where counts say so and no bound says otherwise.
    """
    if ("all null", name) not in columns.derived:
        nulls = columns.null_count(name)
        found = None
        if nulls.null_count < len(nulls):
            equal = pc.equal(nulls, columns.num_records())
            unbounded = pc.and_(pc.is_null(columns.low(name)), pc.is_null(columns.high(name)))
            every = pc.fill_null(pc.and_(equal, unbounded), FALSE)
            found = every if every.true_count else None
        columns.derived["all null", name] = found
    return columns.derived["all null", name]
