"""Build Arrow arrays and scalars from Python values without importing pandas.

`pyarrow.array` of a list, `pyarrow.scalar`, and compute functions with a plain Python argument
import pandas, where it is installed, to check for its types; the first time, that takes a third of
a second. polars builds arrays from lists without that check, and an item of an array is a scalar.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

# jemalloc keeps peak memory lower than Arrow's default allocator for large loads. The default is
# better for small ones: it reuses freed memory, where fresh memory costs page faults.
THRIFTY = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else None
# The range of Python's datetime as epoch seconds: from the year 1, before the year 10000.
_DATETIME_SECONDS = (-62_135_596_800, 253_402_300_800)
_DATETIME_DAYS = (_DATETIME_SECONDS[0] // 86_400, _DATETIME_SECONDS[1] // 86_400)
_TICKS_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}
_POLARS_TYPES: dict[pa.DataType, Any] = {
    pa.string(): pl.String,
    pa.binary(): pl.Binary,
    pa.int64(): pl.Int64,
    pa.int32(): pl.Int32,
    pa.int8(): pl.Int8,
    pa.uint8(): pl.UInt8,
    pa.float64(): pl.Float64,
    pa.bool_(): pl.Boolean,
}


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of strings, bytes, numbers or booleans of type `kind`.

    >>> array_of(["a", None], pa.string()).to_pylist()
    ['a', None]
    """
    dtype = pl.Decimal(38, kind.scale) if pa.types.is_decimal(kind) else _POLARS_TYPES[kind]
    # The oldest level gives large strings instead of string views; they are cast to `kind`.
    array = pl.Series(values, dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest())
    return array if array.type == kind else array.cast(kind)


@lru_cache(4096)
def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return one value as a scalar; cached."""
    return array_of([value], kind)[0]


@cache
def null(kind: pa.DataType) -> pa.Scalar:
    """Return the null scalar of a type."""
    return pa.nulls(1, kind)[0]


def number(value: int) -> pa.Scalar:
    """Return an int64 scalar."""
    return scalar(value, pa.int64())


def same(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array that repeats one value."""
    return pa.repeat(scalar(value, kind), count)


def flags(value: bool, count: int) -> pa.Array:  # noqa: FBT001 -- reads as a sentence
    """Return an array that repeats one boolean."""
    return pa.repeat(TRUE if value else FALSE, count)


def octets(data: bytes | bytearray | memoryview) -> pl.Series:
    """Return the bytes as a uint8 series, without a copy."""
    array = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pl.Series(pl.from_arrow(array))


def span_of(texts: pa.Array) -> tuple[int, int]:
    """Return start and stop of the array's bytes in its data buffer; 32-bit offsets only."""
    if not len(texts):
        return 0, 0
    offsets = memoryview(texts.buffers()[1])[: 4 * (texts.offset + len(texts) + 1)].cast("i")
    return offsets[texts.offset], offsets[-1]


def octets_in(texts: pa.Array) -> memoryview:
    """Return the concatenated bytes of a string or binary array, without a copy."""
    start, stop = span_of(texts)
    return memoryview(texts.buffers()[2] or b"").cast("B")[start:stop]


def python_times(table: pa.Table) -> pa.Table:
    """Replace timestamps and dates outside the years 1 to 9999 by null, for `to_pylist`.

    Python cannot represent them and raises `OverflowError`, but a log may hold any 64-bit number.
    """
    for index, item in enumerate(table.schema):
        if pa.types.is_date32(item.type):
            bounds, kind = _DATETIME_DAYS, pa.int32()
        elif pa.types.is_timestamp(item.type) and item.type.unit in _TICKS_PER_SECOND:
            factor, kind = _TICKS_PER_SECOND[item.type.unit], pa.int64()
            bounds = (_DATETIME_SECONDS[0] * factor, _DATETIME_SECONDS[1] * factor)
        else:
            continue
        column = table.column(index)
        ticks = pc.cast(column, kind)
        inside = pc.and_(
            pc.greater_equal(ticks, scalar(bounds[0], kind)),
            pc.less(ticks, scalar(bounds[1], kind)),
        )
        if pc.any(pc.invert(inside)).as_py():
            column = pc.if_else(inside, column, null(item.type))
            table = table.set_column(index, item, column)
    return table


TRUE, FALSE = array_of([True, False], pa.bool_())
