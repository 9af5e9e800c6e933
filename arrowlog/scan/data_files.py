"""Data files as they are: their columns compared with the table's, and why one cannot be read.

Spark treats `ID` and `id` as the same column. Arrow treats them as different ones and would read
the column as NULL.

Readers cast a file's values to the table's type, and a cast may fail for some values only. So there
are three answers: every value can be read, no file of that type is accepted, or it depends on the
values. Casts between families of types (text to number, timestamp to number) are refused although
Arrow has some of them: other engines that read the same file do not.

Engines report a failed read in their own exceptions, often without the file: a decompression error
names no path. Only after a read has failed are the files checked one by one and the log searched
for the commit that added the file.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_scalar
from arrowlog.config import resolve
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import ArrowlogError, DataFileError, InvalidRequest, StoreUnavailable
from arrowlog.snapshot import (
    ReadOptions,
    list_log,
    open_log,
    read_verified_actions,
    with_file_keys,
)
from arrowlog.storage import find_secrets, open_store, store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.decode import ActionBatch
    from arrowlog.storage import Store

    Check = Callable[[Any], str | Exception | None]

_THREADS = 16  # concurrent reads of footers
_COMMITS_PER_READ = 256
_REASON_MAX = 300  # characters of an engine's message
# Failures of the store, which say nothing about the content of a file.
_STORE_ERRORS = (PermissionError, ConnectionError, TimeoutError)
# Families of types: types of one family hold the same kind of values.
_TYPE_FAMILIES = {
    "null": (pa.types.is_null,),
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view),
    "struct": (pa.types.is_struct,),
    "map": (pa.types.is_map,),
}
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


def type_family(kind: pa.DataType) -> str:
    """The family of a type: integer, float, decimal, text, ...; its own name if it has none."""
    for family, members in _TYPE_FAMILIES.items():
        if any(is_member(kind) for is_member in members):
            return family
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


@lru_cache(maxsize=1024)
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


@lru_cache(maxsize=1024)
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


def build_data_file_error(store: Store, key: str, reason: str, version: int) -> DataFileError:
    """The error for an unreadable file of `version`; it names the version that added the file."""
    added_version, origin = _find_added_version(store, key, version)
    return DataFileError(
        f"{reason.rstrip('.')} ({origin}).",
        next=f"Restore the file from a backup{_removal(store, key)}; table.doctor() checks all"
        " files.",
        file=key,
        version=added_version,
    )


def _removal(store: Store, key: str) -> str:
    """How to give the rows of a file up; empty if the format of the table is read-only."""
    try:
        writable = open_log(store).format.writable
    except (ArrowlogError, OSError):
        writable = True
    return f", or give its rows up with table.remove([{key!r}])" if writable else ""


def name_added_version(store: Store, error: DataFileError, version: int) -> DataFileError:
    """The same error with the version that added the file, if it names a file and no version."""
    if error.file is None or error.version is not None:
        return error
    added_version, origin = _find_added_version(store, error.file, version)
    return DataFileError(
        f"{error.what.rstrip('.')} ({origin}).",
        next=error.next,
        file=error.file,
        version=added_version,
    )


def _find_added_version(store: Store, key: str, version: int) -> tuple[int | None, str]:
    """The latest version up to `version` that added a file, or None, and a phrase for it."""
    oldest_read = version + 1
    try:
        for lowest, actions in _read_commits_backwards(store, version):
            adds, _ = with_file_keys(actions, "add", store.root)
            paths = actions.format.paths_of(adds["key"])
            matching = adds.filter(pc.equal(paths, make_scalar(key, pa.string())))
            if matching.num_rows:
                added_version = actions.versions[pc.max(matching["seq"]).as_py() >> SEQ_LINE_BITS]
                return added_version, f"added by version {added_version}"
            oldest_read = lowest
    except (ArrowlogError, OSError):
        return None, "the version that added it is unknown"
    return None, f"added before version {oldest_read}, by a commit that is no longer in the log"


def _read_commits_backwards(store: Store, version: int) -> Iterator[tuple[int, ActionBatch]]:
    """Batches of commits up to `version`, newest first, each with its lowest version."""
    table_format = open_log(store).format
    commits = list_log(store, table_format).commit_files()
    commits = [commit for commit in commits if commit.version <= version]
    options = ReadOptions(resolve(), format=table_format)
    for stop in range(len(commits), 0, -_COMMITS_PER_READ):
        batch = commits[max(0, stop - _COMMITS_PER_READ) : stop]
        yield batch[0].version, read_verified_actions(store, options, batch)


class ReadErrorTranslator:
    """Translates errors that engines raise while reading rows into arrowlog's errors.

    `version` is the table version being read.
    """

    def __init__(
        self,
        root: str,
        options: Mapping[str, Any],
        version: int,
        schema: pa.Schema,
        partition_columns: Sequence[str],
    ) -> None:
        """No file is opened before a read has failed."""
        self._root = root
        self._options = options
        self._version = version
        stored = [item for item in schema if item.name not in set(partition_columns)]
        self._schema = pa.schema(stored)

    def translate_read_error(self, error: Exception, fragments: Mapping[str, Any]) -> Exception:
        """The error to raise instead of `error`. `fragments` are the files by key.

        DataFileError if a file is at fault, StoreUnavailable if Arrow or the operating system
        failed although every file is readable. Errors of arrowlog, MemoryError and unrelated
        exceptions are returned unchanged.
        """
        if isinstance(error, ArrowlogError):
            return error
        for key, reason in self._find_problems(error, fragments):
            return self.file_error(key, reason)
        if isinstance(error, MemoryError) or not isinstance(error, (pa.ArrowException, OSError)):
            return error
        return StoreUnavailable(
            f"The rows of version {self._version} could not be read: {self._message_of(error)}."
            f" Each of the {len(fragments)} files is readable on its own.",
            next="Try again.",
        )

    def file_error(self, key: str, reason: str) -> DataFileError:
        """The error for one file, naming the version that added it."""
        store = open_store(self._root, self._options)
        return build_data_file_error(store, key, self._mask_secrets(reason), self._version)

    def _find_problems(
        self, error: Exception, fragments: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Unreadable files and the reasons; files that the error names come first."""
        message = str(error)
        named = {key: each for key, each in fragments.items() if each.path in message}
        yield from self._check_each(_footer_problem, named)
        yield from self._check_each(_footer_problem, fragments)
        for key, fragment in {**named, **fragments}.items():
            try:
                reason = self._content_problem(fragment)
            # ValueError: a column name is not UTF-8.
            except (pa.ArrowException, OSError, ValueError) as damage:
                reason = f"the data file is damaged: {self._message_of(damage)}"
            if reason is not None:
                yield key, reason

    def _check_each(self, check: Check, fragments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Run a check on all files concurrently and yield its findings in file order."""
        if not fragments:
            return
        with ThreadPoolExecutor(min(_THREADS, len(fragments))) as pool:
            results = pool.map(check, map(_without_footer, fragments.values()))
            for key, reason in zip(fragments, results, strict=True):
                if isinstance(reason, Exception):
                    raise store_error("read", key, reason, self._mask_secrets)
                if reason is not None:
                    yield key, reason

    def _content_problem(self, fragment: Any) -> str | None:
        """Why the rows of a file cannot be read in the table's types; None if they can."""
        fragment = _without_footer(fragment)
        stored = fragment.physical_schema
        nanosecond_column = find_nanosecond_column(stored, self._schema)
        wanted = [name for name in self._schema.names if stored.get_field_index(name) >= 0]
        problem = find_column_problem(stored, self._schema)
        if problem is not None:
            return problem
        if self._fails(fragment, wanted) is None:
            return None
        for name in wanted:
            error = self._fails(fragment, [name])
            if error is None:
                continue
            if name == nanosecond_column and "lose data" in str(error):
                problem = "has nanosecond values that the table's type cannot represent"
                return f"the column {name!r} {problem}"
            stored_type, table_type = stored.field(name).type, self._schema.field(name).type
            if stored_type == table_type:
                return f"the column {name!r} cannot be read: {self._message_of(error)}"
            return (
                f"the column {name!r} is {stored_type} and cannot be read as {table_type}:"
                f" {self._message_of(error)}"
            )
        return "the file cannot be read"

    def _fails(self, fragment: Any, names: list[str]) -> Exception | None:
        """The exception that reading some columns of a file raises; None if it succeeds."""
        import pyarrow.dataset as ds

        dataset = ds.FileSystemDataset(
            [fragment], self._schema, fragment.format, filesystem=fragment.filesystem
        )
        try:
            for _ in dataset.scanner(columns=names, use_threads=False).to_batches():
                pass
        except Exception as error:  # noqa: BLE001 -- depends on the damage and the store
            return error
        return None

    def _message_of(self, error: Exception) -> str:
        """The first line of an engine's message, without credentials."""
        reason = str(error).split("\n", 1)[0].strip().rstrip(".")[:_REASON_MAX]
        return self._mask_secrets(reason) or type(error).__name__

    def _mask_secrets(self, text: str) -> str:
        """Replace the credentials in the storage options by asterisks."""
        for secret in find_secrets(self._options):
            text = text.replace(secret, "***") if len(secret) > 3 else text
        return text


def _without_footer(fragment: Any) -> Any:
    """The same file without its cached footer, which must be read again."""
    return fragment.format.make_fragment(fragment.path, fragment.filesystem)


def _footer_problem(fragment: Any) -> str | Exception | None:
    """What is wrong with a file according to the store and its footer; None if nothing.

    Returns the exception if the store failed, since that says nothing about the file.
    """
    from pyarrow import fs

    try:
        info = fragment.filesystem.get_file_info(fragment.path)
    except Exception as error:  # noqa: BLE001 -- depends on the store
        return error
    if info.type == fs.FileType.NotFound:
        return "the data file is missing"
    if info.type != fs.FileType.File:
        return "there is a directory in the place of the data file"
    if info.size == 0:
        return "the data file is empty"
    try:
        fragment.physical_schema  # noqa: B018 -- read on access
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, _STORE_ERRORS):
            return error
        message = str(error).split("\n", 1)[0].rpartition("': ")[2].strip().rstrip(".")
        return f"the data file is damaged: {message[:_REASON_MAX]}"
    except Exception as error:  # noqa: BLE001 -- depends on the store
        return error
    return None
