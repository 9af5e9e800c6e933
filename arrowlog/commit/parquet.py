"""A Parquet file that is there already, as an add: size, rows and bounds from its footer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import Add
from arrowlog.commit.stats import of_footer
from arrowlog.errors import InvalidRequest
from arrowlog.log.store.base import stat_object
from arrowlog.log.store.ranges import RangeFile
from arrowlog.scan.column_types import accepted, int_range, surely
from arrowlog.scan.spelling import finer, spelled
from arrowlog.state.typed import HIVE_NULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrowlog.log.store import Store
    from arrowlog.state.truncation import Truncation

_ROWS_AT_ONCE = 1 << 16
_BUFFER_BYTES = 1 << 16
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"})
_ENCODINGS = frozenset(
    {"PLAIN", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"}
    | {"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"}
)


def add_of(
    store: Store,
    path: str,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    cut: Truncation,
    partition_values: Mapping[str, object] | None = None,
    fields: Mapping[str, Any] | None = None,
    *,
    verify: bool = False,
) -> Add:
    """The add for a file in the table's folder.

    Partition values that are not given are taken from folders named `column=value`. A file that
    cannot be read as the table's rows is refused by its footer. With `verify`, columns for which
    the values decide are read too: text, which may not be UTF-8, and what may not fit into the
    table's type. `InvalidRequest` names the column and the reason.
    """
    found = stat_object(store, path)
    if found is None:
        raise InvalidRequest(
            f"There is no file {path} in {store.root}.", next="Put it there before adding it."
        )
    rest = pa.schema([item for item in schema if item.name not in partition_columns])
    with _opened(store, path, found.size) as file:
        footer = file.metadata
        open_questions = _check_columns(file, rest, path)
        if verify and open_questions:
            _check_values(file, rest, open_questions, path)
        stats = of_footer(footer, rest, cut)
    given = {**_from_path(path, partition_columns), **(partition_values or {})}
    return Add(
        path,
        given,
        found.size,
        max(found.mtime_ms, 0),
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
        dict(fields or {}),
    )


@contextmanager
def _opened(store: Store, path: str, size: int) -> Iterator[Any]:
    """A Parquet file whose footer and schema can be read; what is damaged is `InvalidRequest`."""
    import pyarrow.parquet as pq

    try:
        source = pa.PythonFile(RangeFile(store, path, size), "r")
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES)
        file.schema_arrow.names  # noqa: B018 -- some schemas cannot be converted
        _check_footer(file)
        with file:
            yield file
    except InvalidRequest:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{path} is no Parquet file that can be read: {_reason(error)}.", next="Is it whole?"
        ) from None


def _check_footer(file: Any) -> None:
    """Raise for damage that would end the process when statistics are asked for.

    pyarrow (26.0.1) lets exceptions of C++ through where it looks into a column's part of the
    footer. Reading a row raises a Python error for the same damage; a type that is not that of the
    schema has to be looked for.
    """
    footer = file.metadata
    kinds = [footer.schema.column(at).physical_type for at in range(footer.num_columns)]
    for group in range(file.num_row_groups):
        next(file.iter_batches(1, row_groups=[group]), None)
        parts = footer.row_group(group)
        if [parts.column(at).physical_type for at in range(parts.num_columns)] != kinds:
            raise ValueError("its footer contradicts itself")


def _reason(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__


def _check_columns(file: Any, schema: pa.Schema, path: str) -> list[str]:
    """Refuse columns that readers would not find, or not be able to read.

    Returns the columns of which only the values tell whether they can be read.
    """
    there, footer = file.schema_arrow, file.metadata
    for name, other in spelled(there.names, schema.names, path).items():
        raise InvalidRequest(
            f"{path} spells the column {name!r} as {other!r}; most readers would find no values"
            " there.",
            next="Write the file anew with the names of the table's schema.",
        )
    fine = finer(there, schema)
    if fine is not None and _has_nanos(footer, fine):
        raise InvalidRequest(
            f"{path}: {fine} has times between two microseconds, which the table's type does not"
            " have.",
            next="Write the file anew with microseconds.",
        )
    undecided = []
    for item in schema:
        near = [name for name in there.names if name.lower() == item.name.lower()]
        # Spark takes names that differ by case for one column, unless they are two of the table's.
        if len(near) > 1 and (near.count(item.name) > 1 or not set(near) <= set(schema.names)):
            what = " and ".join(repr(name) for name in near)
            raise _unreadable(path, f"it has the column {item.name!r} twice, as {what}")
        if item.name not in near:
            continue
        stored = there.field(item.name).type
        if not accepted(stored, item.type):
            raise _unreadable(
                path, f"its column {item.name!r} is {stored}, and the table's is {item.type}"
            )
        _check_encoding(footer, item.name, path)
        if not surely(stored, item.type) and not _in_range(footer, item, stored, path):
            undecided.append(item.name)
    return undecided


def _unreadable(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path} cannot be read as rows of the table: {what}.",
        next="Write the file anew with the types of the table's schema.",
    )


def _chunks(footer: Any, name: str) -> Iterator[Any]:
    """The chunks of a column, those of its fields included."""
    for group in range(footer.num_row_groups):
        parts = footer.row_group(group)
        for part in (parts.column(index) for index in range(parts.num_columns)):
            if part.path_in_schema == name or part.path_in_schema.startswith(f"{name}."):
                yield part


def _check_encoding(footer: Any, name: str, path: str) -> None:
    """Refuse what no reader here can decode; footers say how each chunk was written."""
    for part in _chunks(footer, name):
        odd = sorted(set(part.encodings) - _ENCODINGS)
        if part.compression not in _CODECS or odd:
            how = odd[0] if odd else part.compression
            raise _unreadable(path, f"its column {name!r} is stored as {how}, which is not known")


def _in_range(footer: Any, item: pa.Field, stored: pa.DataType, path: str) -> bool:
    """Whether the footer shows that all integers of a column fit into the table's type.

    If it shows that one does not, the file is refused.
    """
    if not (pa.types.is_integer(stored) and pa.types.is_integer(item.type)):
        return False
    low, high = int_range(item.type)
    for part in _chunks(footer, item.name):
        stats = part.statistics
        if stats is None or not stats.has_min_max:
            if part.num_values and not (
                stats is not None and stats.has_null_count and stats.null_count == part.num_values
            ):
                return False
            continue
        if not low <= stats.min <= stats.max <= high:
            what = f"its column {item.name!r} has {stats.min} to {stats.max}"
            raise _unreadable(path, f"{what}, and the table's is {item.type}")
    return True


def _check_values(file: Any, schema: pa.Schema, names: list[str], path: str) -> None:
    """Read some columns the way every reader does, some thousand rows at a time."""
    nested = any("." in name for name in names)  # which Arrow would take for a field of a struct
    name = names[0]
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=None if nested else names):
            for name in names:
                column = pc.cast(batch[name], schema.field(name).type)
                column.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        kind = file.schema_arrow.field(name).type
        what = f"its column {name!r} ({kind}) has values that are no {schema.field(name).type}"
        raise _unreadable(path, f"{what}: {_reason(error)}") from None


def _has_nanos(footer: Any, name: str) -> bool:
    """Whether a bound of a column shows that there are times between two microseconds."""
    for group in range(footer.num_row_groups):
        parts = footer.row_group(group)
        for part in (parts.column(index) for index in range(parts.num_columns)):
            stats = part.statistics if part.path_in_schema == name else None
            if stats is None or not stats.has_min_max or part.physical_type != "INT64":
                continue
            if stats.min_raw % 1000 or stats.max_raw % 1000:
                return True
    return False


def _from_path(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and unquote(name) in columns:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found
