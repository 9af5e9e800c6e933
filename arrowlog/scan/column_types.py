"""Whether a column of a data file can be read as a column of the table. Pure.

Readers cast what a file holds to the table's type, and a cast may fail for some values only. So
there are three answers: every value can be read, no file of that type is accepted, or the values
decide. Casts between kinds (text to numbers, times to numbers) are refused although Arrow has some
of them: other engines that read the same file have not.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
# Kinds a column of the table may be read from, beside its own.
_WIDER = {"float": ("integer",), "decimal": ("integer",), "text": ("bytes",), "bytes": ("text",)}
_EXACT_BITS = {16: 11, 32: 24, 64: 53}  # integers that a float of so many bits has exactly


def kind_of_type(kind: pa.DataType) -> str:  # noqa: C901 -- one line a kind
    """What a type is about: integer, float, decimal, text, bytes, date, timestamp, list …."""
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_decimal(kind):
        return "decimal"
    if any(test(kind) for test in _TEXT):
        return "text"
    if any(test(kind) for test in _BYTES):
        return "bytes"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if any(test(kind) for test in _LISTS):
        return "list"
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        return "map"
    return str(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, which a file may hold as a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@lru_cache(maxsize=1024)
def castable(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether readers have a cast at all; without one, no row of a file can be read."""
    try:
        pc.cast(pa.nulls(0, stored), wanted)
    except (pa.ArrowException, ValueError):
        return False
    return True


def accepted(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether some values of the file's type can be read by every engine as the table's type.

    >>> accepted(pa.int32(), pa.int64()), accepted(pa.string(), pa.int64())
    (True, False)
    """
    if stored == wanted or pa.types.is_null(stored):
        return True
    stored = _plain(stored)
    kind, other = kind_of_type(wanted), kind_of_type(stored)
    if other != kind and other not in _WIDER.get(kind, ()):
        return False
    if kind == other == "float" and stored.bit_width > wanted.bit_width:
        return False  # values would be rounded
    if kind == other == "list":
        return accepted(stored.value_type, wanted.value_type)
    if kind == other == "map":
        pairs = ((stored.key_type, wanted.key_type), (stored.item_type, wanted.item_type))
        return all(accepted(*pair) for pair in pairs)
    if kind == other == "struct":
        known = [item for item in wanted if stored.get_field_index(item.name) >= 0]
        inner = all(accepted(stored.field(item.name).type, item.type) for item in known)
        return inner and castable(stored, wanted)
    return castable(stored, wanted)


def surely(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the file's type can be read as the table's type.

    Text is never sure: no reader of Parquet checks that it is UTF-8.

    >>> surely(pa.int32(), pa.int64()), surely(pa.int64(), pa.int32())
    (True, False)
    """
    stored = _plain(stored)
    kind, other = kind_of_type(wanted), kind_of_type(stored)
    if other == "null" or kind == "bytes":
        return True
    if kind == other == "list":
        return surely(stored.value_type, wanted.value_type)
    if kind == other == "map":
        return surely(stored.key_type, wanted.key_type) and surely(
            stored.item_type, wanted.item_type
        )
    if kind == other == "struct":
        fields = {item.name: item.type for item in stored}
        return stored == wanted and all(surely(fields[i.name], i.type) for i in wanted)
    if other == "integer" and kind in ("integer", "float"):
        low, high = int_range(stored)
        bits = _EXACT_BITS[wanted.bit_width] if kind == "float" else 0
        first, last = (-(1 << bits), 1 << bits) if bits else int_range(wanted)
        return first <= low and high <= last
    if kind == other == "float":
        return bool(stored.bit_width <= wanted.bit_width)
    return bool(stored == wanted) and kind != "text"


def int_range(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
