"""Build Arrow arrays and scalars from Python values without importing pandas.

`pyarrow.array` of a list, `pyarrow.scalar`, and compute functions with a plain Python argument
import pandas, where it is installed, to check for its types; the first time, that takes a third of
a second. polars builds arrays from lists without that check, and an item of an array is a scalar.
"""

from __future__ import annotations

from array import array as array_of
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl, polars_is_stranded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# jemalloc keeps peak memory lower than Arrow's default allocator for large loads. The default is
# better for small ones: it reuses freed memory, where fresh memory costs page faults.
LOW_PEAK_POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else None
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1  # of an int64
_LOW_BITS = (1 << 32) - 1
DECIMAL_DIGITS_MAX = 38  # of a decimal128
# The range of Python's datetime as epoch seconds: from the year 1, before the year 10000.
_DATETIME_SECONDS = (-62_135_596_800, 253_402_300_800)
_DATETIME_DAYS = (_DATETIME_SECONDS[0] // 86_400, _DATETIME_SECONDS[1] // 86_400)
_TICKS_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}
_ARRAY_CODES: dict[pa.DataType, str] = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d"}
_ARRAY_CODES |= {pa.int8(): "b", pa.uint8(): "B"}
# The names of Arrow's types that have another name in numpy.
_NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
# The names of polars' types: polars is imported only where a series has to be made.
_POLARS_TYPES: dict[pa.DataType, str] = {
    pa.string(): "String",
    pa.binary(): "Binary",
    pa.int64(): "Int64",
    pa.int32(): "Int32",
    pa.int8(): "Int8",
    pa.uint8(): "UInt8",
    pa.float64(): "Float64",
    pa.bool_(): "Boolean",
}


def release_unused_memory() -> None:
    """Return memory that allocators keep for later to the system: Arrow's, and the C library's."""
    for pool in (pa.default_memory_pool(), LOW_PEAK_POOL):
        if pool is not None:
            pool.release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function that releases what numpy and Python have freed; None without glibc.

    Once a large array was freed, glibc takes the next ones from a heap that only shrinks at its
    end: after many arrays of growing size, the gaps are as large as what is in use.
    """
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # another system, or another C library
        return None


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. `Schema.empty_table` would import pandas, if it is installed.

    >>> empty_table(pa.schema([("id", pa.int64())])).num_rows
    0
    """
    return pa.Table.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def make_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of strings, bytes, numbers or booleans of type `kind`.

    >>> make_array(["a", None], pa.string()).to_pylist()
    ['a', None]
    """
    array = _from_buffers(values, kind)
    if array is not None:
        return array
    is_decimal = pa.types.is_decimal(kind)
    dtype = pl.Decimal(38, kind.scale) if is_decimal else getattr(pl, _POLARS_TYPES[kind])
    # The oldest level gives large strings instead of string views; they are cast to `kind`.
    array = pl.Series(values, dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest())
    return array if array.type == kind else array.cast(kind)


def _from_buffers(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Build an array from its buffers; None for a type or values that polars has to convert.

    For the few values of most calls, a series of polars takes twenty times as long.
    """
    count, validity = len(values), None
    try:
        if None in values:
            validity = _to_bits([value is not None for value in values])
            missing: Any = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(kind, 0)
            values = [missing if value is None else value for value in values]
        if kind in _ARRAY_CODES:
            numbers = array_of(_ARRAY_CODES[kind], values)
            return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(numbers)])
        if kind == pa.bool_():
            return pa.Array.from_buffers(kind, count, [validity, _to_bits(values)])
        if kind == pa.string():
            values = [text.encode() for text in values]
        elif kind != pa.binary():
            return None
        offsets = array_of("i", accumulate(map(len, values), initial=0))
        data = b"".join(values)
    except (AttributeError, TypeError, OverflowError, UnicodeEncodeError):  # odd, or too large
        return None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _to_bits(flags: Sequence[Any]) -> pa.Buffer:
    """Pack flags into a bitmap. Raises TypeError if one is not a boolean."""
    bits = bytearray((len(flags) + 7) // 8)
    for index, flag in enumerate(flags):
        if flag is True:
            bits[index >> 3] |= 1 << (index & 7)
        elif flag is not False:
            raise TypeError
    return pa.py_buffer(bytes(bits))


@lru_cache(4096)
def make_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return one value as a scalar; cached."""
    return make_array([value], kind)[0]


def to_numpy(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return numbers or booleans without nulls as a numpy array; numbers share their memory.

    `Array.to_numpy` would import pandas, if it is installed, and `DataType.to_pandas_dtype` did so
    before version 26.

    >>> to_numpy(make_array([1, 2], pa.int64())).tolist()
    [1, 2]
    """
    import numpy as np

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_boolean(values.type):
        return to_numpy(pc.cast(values, pa.uint8())).astype(np.bool_)
    name = str(values.type)
    kind = np.dtype(_NUMPY_NAMES.get(name, name))
    data = values.buffers()[1]
    if not len(values):
        return np.empty(0, kind)
    return np.frombuffer(data, kind, len(values), values.offset * kind.itemsize)


def from_numpy(values: Any) -> pa.Array:
    """Return a numpy array of numbers or booleans as an Arrow array; numbers share their memory.

    >>> from_numpy(to_numpy(make_array([True, False], pa.bool_()))).to_pylist()
    [True, False]
    """
    import numpy as np

    kind = pa.from_numpy_dtype(values.dtype)
    if pa.types.is_boolean(kind):
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(kind, len(values), [None, bits])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@cache
def null_scalar(kind: pa.DataType) -> pa.Scalar:
    """Return the null scalar of a type."""
    return pa.nulls(1, kind)[0]


def make_int64(value: int) -> pa.Scalar:
    """Return an int64 scalar."""
    return make_scalar(value, pa.int64())


def repeat_value(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array that repeats one value."""
    return pa.repeat(make_scalar(value, kind), count)


def repeat_bool(value: bool, count: int) -> pa.Array:  # noqa: FBT001 -- reads as a sentence
    """Return an array that repeats one boolean."""
    return pa.repeat(TRUE if value else FALSE, count)


def number_combinations(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, pa.Array]:
    """Number the distinct combinations of the values that `count` rows have in some columns.

    Returns the number of each row's combination and, by number, the first row that has it. Null is
    a value here. Values are told apart by their bits: 0.0 and -0.0 are two.
    """
    codes = repeat_value(0, pa.int64(), count)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        # Encoding again after every column keeps the codes dense, so the product cannot overflow.
        shifted = pc.multiply(codes, make_int64(len(encoded.dictionary) + 1))
        combined = pc.add(shifted, pc.cast(encoded.indices, pa.int64())).dictionary_encode()
        codes = pc.cast(combined.indices, pa.int64())
    rows = pc.indices_nonzero(repeat_bool(True, count))
    first = pa.table({"code": codes, "row": rows}).group_by("code").aggregate([("row", "min")])
    return codes, first.sort_by("code")["row_min"].combine_chunks()


def sum_exactly(numbers: pa.Array | pa.ChunkedArray) -> int:
    """Return the sum of int64 numbers, which may exceed 64 bits; nulls are left out.

    Arrow's own sum wraps around. Less than 2^31 numbers.

    >>> sum_exactly(make_array([INT_MAX, INT_MAX, None], pa.int64())) == 2 * INT_MAX
    True
    """
    if _cannot_overflow(numbers):
        return int(pc.sum(numbers).as_py() or 0)
    high = pc.sum(pc.shift_right(numbers, make_int64(32))).as_py()
    low = pc.sum(pc.bit_wise_and(numbers, make_int64(_LOW_BITS))).as_py()
    return (int(high) << 32) + int(low)


def sum_slices(numbers: pa.Array, starts: Any) -> tuple[Any, Any]:
    """Sum up int64 numbers without nulls from each start to the next: the sums, and which fit.

    Both are numpy arrays. A sum that does not fit in 64 bits is wrong. Less than 2^31 numbers.
    """
    import numpy as np

    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    values = to_numpy(numbers)
    sums = np.add.reduceat(values, starts)
    if _cannot_overflow(numbers):
        return sums, np.ones(len(starts), np.bool_)
    carry = np.add.reduceat(values & _LOW_BITS, starts) >> 32
    high = np.add.reduceat(values >> 32, starts) + carry
    return sums, (high >= -(1 << 31)) & (high < 1 << 31)


def _cannot_overflow(numbers: pa.Array | pa.ChunkedArray) -> bool:
    """Whether no sum of some of these numbers can exceed 64 bits."""
    ends = pc.min_max(numbers)
    largest = max(-(ends["min"].as_py() or 0), ends["max"].as_py() or 0)
    return largest * len(numbers) <= INT_MAX


def int64_or_none(number: int | None) -> int | None:
    """Return a number for a column of int64: None, which is unknown, if it does not fit.

    >>> int64_or_none(INT_MAX) == INT_MAX, int64_or_none(INT_MAX + 1)
    (True, None)
    """
    return number if number is not None and INT_MIN <= number <= INT_MAX else None


def search_sorted(
    values: pa.Array, bounds: pa.Array, side: Literal["left", "right"] = "left"
) -> pa.Array:
    """Insertion points of bounds in sorted values; null for an unknown bound."""
    # Arrow has the function since version 25, and not for decimals.
    if hasattr(pc, "search_sorted") and not pa.types.is_decimal(values.type):
        return pc.search_sorted(values, bounds, side=side)
    if polars_is_stranded():
        return _search_each(values.to_pylist(), bounds.to_pylist(), side)
    series = pl.Series(pl.from_arrow(values))
    positions = series.search_sorted(pl.Series(pl.from_arrow(bounds)), side=side).to_arrow()
    return pc.if_else(pc.is_valid(bounds), positions, null_scalar(positions.type))


def _search_each(values: list[Any], bounds: list[Any], side: str) -> pa.Array:
    """`search_sorted` without polars, which hangs in a forked child."""
    search = bisect_left if side == "left" else bisect_right
    positions = [None if bound is None else search(values, bound) for bound in bounds]
    return make_array(positions, pa.int64())


def bytes_to_array(data: bytes | bytearray | memoryview) -> pa.Array:
    """Return the bytes as a uint8 array, without a copy."""
    return pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])


def data_span(texts: pa.Array) -> tuple[int, int]:
    """Return start and stop of the array's bytes in its data buffer; 32-bit offsets only."""
    if not len(texts):
        return 0, 0
    offsets = memoryview(texts.buffers()[1])[: 4 * (texts.offset + len(texts) + 1)].cast("i")
    return offsets[texts.offset], offsets[-1]


def concat_bytes(texts: pa.Array) -> memoryview:
    """Return the concatenated bytes of a string or binary array, without a copy."""
    start, stop = data_span(texts)
    return memoryview(texts.buffers()[2] or b"").cast("B")[start:stop]


def concat_typed_arrays(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Concatenate arrays of type `kind`; no arrays give an empty array."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([*arrays, pa.nulls(0, kind)])


def clip_to_datetime_range(table: pa.Table) -> pa.Table:
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
            pc.greater_equal(ticks, make_scalar(bounds[0], kind)),
            pc.less(ticks, make_scalar(bounds[1], kind)),
        )
        if pc.any(pc.invert(inside)).as_py():
            column = pc.if_else(inside, column, null_scalar(item.type))
            table = table.set_column(index, item, column)
    return table


TRUE, FALSE = make_array([True, False], pa.bool_())
