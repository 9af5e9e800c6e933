"""How the columns of a data file map to those of the table: names that differ in case, and types.

Spark treats `ID` and `id` as the same column. Arrow treats them as different ones and would read
the column as NULL.

Readers cast a file's values to the table's type, and a cast may fail for some values only. So there
are three answers: every value can be read, no file of that type is accepted, or it depends on the
values. Casts between families of types (text to number, timestamp to number) are refused although
Arrow has some of them: other engines that read the same file do not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_THREADS = 16  # concurrent footer reads


def map_column_case(names: Sequence[str], columns: Iterable[str], path: str) -> dict[str, str]:
    """Map columns of the table to their names in a file, where these differ in case only.

    Raises InvalidRequest if several columns of the file are candidates for one column.

    >>> map_column_case(["ID", "name"], ["id", "name", "later"], "a.parquet")
    {'id': 'ID'}
    """
    table_columns = list(columns)
    in_file, in_table = set(names), set(table_columns)
    missing = [name for name in table_columns if name not in in_file]
    if not missing or in_file <= in_table:
        return {}
    spellings: dict[str, str] = {}
    for name in missing:
        candidates = [
            other for other in names if other.lower() == name.lower() and other not in in_table
        ]
        if len(candidates) > 1:
            raise InvalidRequest(
                f"{path}: the column {name!r} of the table may be any of {', '.join(candidates)}.",
                next="Rewrite the file with the column names of the table's schema.",
            )
        if candidates:
            spellings[name] = candidates[0]
    return spellings


def find_member_case_mismatch(stored: pa.DataType, wanted: pa.DataType) -> str | None:
    """The first struct member that a file's type spells in another case than the table's; or None.

    Arrow looks members up by their exact names and reads NULL for one that it does not find.
    """
    stored, wanted = _decoded_type(stored), _decoded_type(wanted)
    family = type_family(wanted)
    if family != type_family(stored) or family not in ("struct", "list", "map"):
        return None
    if family == "list":
        return find_member_case_mismatch(stored.value_type, wanted.value_type)
    if family == "map":
        return find_member_case_mismatch(
            stored.key_type, wanted.key_type
        ) or find_member_case_mismatch(stored.item_type, wanted.item_type)
    names = [item.name for item in stored]
    known = {item.name for item in wanted}
    for item in wanted:
        if item.name in names:
            inner = find_member_case_mismatch(stored.field(item.name).type, item.type)
            if inner is not None:
                return f"{item.name}.{inner}"
        elif any(n.lower() == item.name.lower() and n not in known for n in names):
            return str(item.name)
    return None


def find_column_problem(stored: pa.Schema, table: pa.Schema) -> str | None:
    """Why the columns of a file cannot be read as the table's, as far as its footer tells; or None.

    Names are compared exactly. Without this check the answer would depend on the query: Arrow reads
    a timestamp as an integer, or the first of two columns of one name, but not under a filter.
    """
    for item in table:
        indices = stored.get_all_field_indices(item.name)
        if len(indices) > 1:
            return f"the file has the column {item.name!r} more than once"
        if not indices:
            continue
        kind = stored.field(indices[0]).type
        families = {type_family(_decoded_type(kind)), type_family(item.type)}
        mixed = families & _TEMPORAL_FAMILIES and families & _NUMBER_FAMILIES
        if mixed or not is_castable(kind, item.type):
            return f"the column {item.name!r} is {kind} and cannot be read as {item.type}"
        member = find_member_case_mismatch(kind, item.type)
        if member is not None:
            return f"the file spells the member {member!r} of the column {item.name!r} differently"
    return None


def find_nanosecond_column(file: pa.Schema, table: pa.Schema) -> str | None:
    """The first timestamp column in nanoseconds in the file, but not in the table; or None."""
    for field in table:
        index = file.get_field_index(field.name)
        if index < 0 or not pa.types.is_timestamp(field.type) or field.type.unit == "ns":
            continue
        file_type = file.field(index).type
        if pa.types.is_timestamp(file_type) and file_type.unit == "ns":
            return str(field.name)
    return None


class ColumnCaseResolver:
    """How files spell the columns of a table, cached per file."""

    def __init__(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Partition columns are ignored: they are not read from files."""
        self._schema = schema
        self._columns = [name for name in schema.names if name not in set(partition_columns)]
        self._stored_schema = pa.schema([schema.field(name) for name in self._columns])
        self._known: dict[str, dict[str, str]] = {}
        self._last_readable: pa.Schema | None = None  # files mostly share one schema

    def of(self, fragment: Any) -> Mapping[str, str]:
        """Names in a file that differ, by name in the table. Reads its footer if necessary.

        Raises ArrowInvalid if the columns of the file cannot be read as the table's.
        """
        path = fragment.path
        if path not in self._known:
            stored = fragment.physical_schema
            file_names = map_column_case(stored.names, self._columns, path)
            self._check(stored, file_names, path)
            self._known[path] = file_names
        return self._known[path]

    def _check(self, stored: pa.Schema, file_names: Mapping[str, str], path: str) -> None:
        if self._last_readable is not None and stored.equals(self._last_readable):
            return
        table_names = {other: name for name, other in file_names.items()}
        renamed = [item.with_name(table_names.get(item.name, item.name)) for item in stored]
        problem = find_column_problem(pa.schema(renamed), self._stored_schema)
        if problem is not None:
            raise pa.ArrowInvalid(f"{path}: {problem}")
        self._last_readable = stored

    def any(self, fragments: Sequence[Any]) -> bool:
        """Whether any file has differing names. Reads every footer that is not cached."""
        with ThreadPoolExecutor(_THREADS) as threads:
            # A list: all footers are read, none is left to a later scan.
            return any([bool(names) for names in threads.map(self.of, fragments)])  # noqa: C419

    def tables(self, fragment: Any) -> Iterator[pa.Table]:
        """All rows of a file with differing names, under the names of the table."""
        import pyarrow.dataset as ds

        file_names = self.of(fragment)
        fields = [field.with_name(file_names.get(field.name, field.name)) for field in self._schema]
        dataset = ds.FileSystemDataset(
            [fragment], pa.schema(fields), fragment.format, filesystem=fragment.filesystem
        )
        for batch in dataset.to_batches():
            yield pa.Table.from_batches([batch]).rename_columns(self._schema.names)


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
_TEMPORAL_FAMILIES = {"date", "timestamp"}
_NUMBER_FAMILIES = {"integer", "float", "decimal"}
# Families from which a column of the table may be read, in addition to its own.
_READABLE_FROM = {
    "float": ("integer",),
    "decimal": ("integer",),
    "text": ("bytes",),
    "bytes": ("text",),
}
# Floats of this width represent all integers up to 2 to this power exactly.
_EXACT_BITS = {16: 11, 32: 24, 64: 53}


def type_family(kind: pa.DataType) -> str:  # noqa: C901 -- one branch per family
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
def is_castable(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow has a cast at all; without one, no row of a file can be read."""
    try:
        pc.cast(pa.nulls(0, stored), wanted)
    except (pa.ArrowException, ValueError):
        return False
    return True


def is_readable_as(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every engine can read some values of the file's type as the table's type.

    >>> is_readable_as(pa.int32(), pa.int64()), is_readable_as(pa.string(), pa.int64())
    (True, False)
    """
    if stored == wanted or pa.types.is_null(stored):
        return True
    stored = _decoded_type(stored)
    family, stored_family = type_family(wanted), type_family(stored)
    if stored_family != family and stored_family not in _READABLE_FROM.get(family, ()):
        return False
    if family == stored_family == "float" and stored.bit_width > wanted.bit_width:
        return False  # values would be rounded
    if family == stored_family == "list":
        return is_readable_as(stored.value_type, wanted.value_type)
    if family == stored_family == "map":
        pairs = ((stored.key_type, wanted.key_type), (stored.item_type, wanted.item_type))
        return all(is_readable_as(*pair) for pair in pairs)
    if family == stored_family == "struct":
        common = [item for item in wanted if stored.get_field_index(item.name) >= 0]
        fields_accepted = all(
            is_readable_as(stored.field(item.name).type, item.type) for item in common
        )
        return fields_accepted and is_castable(stored, wanted)
    return is_castable(stored, wanted)


def is_always_readable_as(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the file's type can be read as the table's type.

    Never for text: no Parquet reader checks that it is valid UTF-8.

    >>> is_always_readable_as(pa.int32(), pa.int64()), is_always_readable_as(pa.int64(), pa.int32())
    (True, False)
    """
    stored = _decoded_type(stored)
    family, stored_family = type_family(wanted), type_family(stored)
    if stored_family == "null" or family == "bytes":
        return True
    if family == stored_family == "list":
        return is_always_readable_as(stored.value_type, wanted.value_type)
    if family == stored_family == "map":
        return is_always_readable_as(stored.key_type, wanted.key_type) and is_always_readable_as(
            stored.item_type, wanted.item_type
        )
    if family == stored_family == "struct":
        fields = {item.name: item.type for item in stored}
        return stored == wanted and all(
            is_always_readable_as(fields[item.name], item.type) for item in wanted
        )
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
