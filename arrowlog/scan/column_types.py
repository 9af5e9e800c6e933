"""Whether a column of a data file can be read as a column of the table. Pure.

Readers cast a file's values to the table's type, and a cast may fail for some values only. So there
are three answers: every value can be read, no file of that type is accepted, or it depends on the
values. Casts between families of types (text to number, timestamp to number) are refused although
Arrow has some of them: other engines that read the same file do not.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
# Families from which a column of the table may be read, in addition to its own.
_READABLE_FROM = {
    "float": ("integer",),
    "decimal": ("integer",),
    "text": ("bytes",),
    "bytes": ("text",),
}
# Floats of this width represent all integers up to 2 to this power exactly.
_EXACT_BITS = {16: 11, 32: 24, 64: 53}


def kind_of_type(kind: pa.DataType) -> str:  # noqa: C901 -- one branch per family
    """The family of a type: integer, float, decimal, text, bytes, date, timestamp, list ..."""
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_decimal(kind):
        return "decimal"
    if any(is_member(kind) for is_member in _TEXT_TYPES):
        return "text"
    if any(is_member(kind) for is_member in _BYTES_TYPES):
        return "bytes"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if any(is_member(kind) for is_member in _LIST_TYPES):
        return "list"
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        return "map"
    return str(kind)


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    """The value type of a dictionary-encoded column; any other type unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@lru_cache(maxsize=1024)
def castable(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow has a cast at all; without one, no row of a file can be read."""
    try:
        pc.cast(pa.nulls(0, stored), wanted)
    except (pa.ArrowException, ValueError):
        return False
    return True


def accepted(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every engine can read some values of the file's type as the table's type.

    >>> accepted(pa.int32(), pa.int64()), accepted(pa.string(), pa.int64())
    (True, False)
    """
    if stored == wanted or pa.types.is_null(stored):
        return True
    stored = _decoded_type(stored)
    family, stored_family = kind_of_type(wanted), kind_of_type(stored)
    if stored_family != family and stored_family not in _READABLE_FROM.get(family, ()):
        return False
    if family == stored_family == "float" and stored.bit_width > wanted.bit_width:
        return False  # values would be rounded
    if family == stored_family == "list":
        return accepted(stored.value_type, wanted.value_type)
    if family == stored_family == "map":
        pairs = ((stored.key_type, wanted.key_type), (stored.item_type, wanted.item_type))
        return all(accepted(*pair) for pair in pairs)
    if family == stored_family == "struct":
        common = [item for item in wanted if stored.get_field_index(item.name) >= 0]
        fields_accepted = all(accepted(stored.field(item.name).type, item.type) for item in common)
        return fields_accepted and castable(stored, wanted)
    return castable(stored, wanted)


def surely(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the file's type can be read as the table's type.

    Never for text: no Parquet reader checks that it is valid UTF-8.

    >>> surely(pa.int32(), pa.int64()), surely(pa.int64(), pa.int32())
    (True, False)
    """
    stored = _decoded_type(stored)
    family, stored_family = kind_of_type(wanted), kind_of_type(stored)
    if stored_family == "null" or family == "bytes":
        return True
    if family == stored_family == "list":
        return surely(stored.value_type, wanted.value_type)
    if family == stored_family == "map":
        return surely(stored.key_type, wanted.key_type) and surely(
            stored.item_type, wanted.item_type
        )
    if family == stored_family == "struct":
        fields = {item.name: item.type for item in stored}
        return stored == wanted and all(surely(fields[item.name], item.type) for item in wanted)
    if stored_family == "integer" and family in ("integer", "float"):
        low, high = int_range(stored)
        bits = _EXACT_BITS[wanted.bit_width] if family == "float" else 0
        lowest, highest = (-(1 << bits), 1 << bits) if bits else int_range(wanted)
        return lowest <= low and high <= highest
    if family == stored_family == "float":
        return bool(stored.bit_width <= wanted.bit_width)
    return bool(stored == wanted) and family != "text"


def int_range(kind: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
