"""Python values to Arrow arrays and scalars, without waking pandas.

`pyarrow.array` of a list and `pyarrow.scalar` import pandas, where it is installed, to ask whether
they were given one of its objects: a third of a second the first time, and so do kernels that get a
plain value. polars makes arrays of lists without asking, and an item of an array is a scalar.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

# Arrow's jemalloc keeps the peak lower than its default allocator when there is much to do; that
# one gives again what it was given back, where fresh memory costs page faults.
THRIFTY = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else None
_SECONDS = (-62_135_596_800, 253_402_300_800)  # from the year 1 on, before the year 10000
_DAYS = (_SECONDS[0] // 86_400, _SECONDS[1] // 86_400)
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}
_TYPES: dict[pa.DataType, Any] = {
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
    """An array of text, bytes, numbers or booleans.

    >>> array_of(["a", None], pa.string()).to_pylist()
    ['a', None]
    """
    dtype = pl.Decimal(38, kind.scale) if pa.types.is_decimal(kind) else _TYPES[kind]
    found = pl.Series(values, dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest())
    return found if found.type == kind else found.cast(kind)


@lru_cache(4096)
def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """One value."""
    return array_of([value], kind)[0]


@cache
def null(kind: pa.DataType) -> pa.Scalar:
    """No value, of a type."""
    return pa.nulls(1, kind)[0]


def number(value: int) -> pa.Scalar:
    """A whole number."""
    return scalar(value, pa.int64())


def same(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """One value, many times."""
    return pa.repeat(scalar(value, kind), count)


def flags(value: bool, count: int) -> pa.Array:  # noqa: FBT001 -- reads as a sentence
    """One truth, many times."""
    return pa.repeat(TRUE if value else FALSE, count)


def octets(data: bytes | bytearray | memoryview) -> pl.Series:
    """The bytes as numbers, without a copy."""
    array = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pl.Series(pl.from_arrow(array))


def span_of(texts: pa.Array) -> tuple[int, int]:
    """Which part of the buffer of bytes is the texts'."""
    if not len(texts):
        return 0, 0
    offsets = memoryview(texts.buffers()[1])[: 4 * (texts.offset + len(texts) + 1)].cast("i")
    return offsets[texts.offset], offsets[-1]


def octets_in(texts: pa.Array) -> memoryview:
    """The bytes of all texts, one after the other."""
    start, stop = span_of(texts)
    return memoryview(texts.buffers()[2] or b"").cast("B")[start:stop]


def python_times(table: pa.Table) -> pa.Table:
    """A table that `to_pylist` takes: times and dates outside the years 1 to 9999 become null.

    Python has no such times and raises OverflowError; a log may hold any 64-bit number.
    """
    for index, item in enumerate(table.schema):
        if pa.types.is_date32(item.type):
            bounds, kind = _DAYS, pa.int32()
        elif pa.types.is_timestamp(item.type) and item.type.unit in _PER_SECOND:
            factor, kind = _PER_SECOND[item.type.unit], pa.int64()
            bounds = (_SECONDS[0] * factor, _SECONDS[1] * factor)
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
