"""Parquet data files as adds: exact column statistics, and what readers can read.

Statistics are exact or omitted. A bound is omitted where it would not be valid for every reader: a
maximum if there are NaNs, which sort above all numbers but are in no maximum; text with characters
that sort differently in UTF-16 (Java) and by code point; timestamps after the year 9999; text that
exceeds the limit for statistics.
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.formats import find_field_type, struct_leaves
from arrowlog.scan import (
    find_member_case_mismatch,
    find_nanosecond_column,
    int_range,
    is_always_readable_as,
    is_readable_as,
    map_column_case,
)
from arrowlog.snapshot import HIVE_NULL, has_bounds, to_log_text
from arrowlog.storage import RangeReader, stat_object
from arrowlog.transaction.add_files import Add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.formats import StructLeaf
    from arrowlog.snapshot import StatsTruncation
    from arrowlog.storage import ObjectStat, Store


# Beyond this code point, UTF-16 code units and code points sort differently.
_MAX_CODE_POINT = 0xD7FF
# Versions of parquet-mr whose maximum is NaN if a column has one. Later versions may count NaNs
# apart, as newer versions of the Parquet format allow.
_MAXIMUM_COVERS_NAN = re.compile(r"parquet-mr version 1\.(?:[0-9]|1[0-7])\.")
_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 16
# Codecs and encodings that all supported readers decode.
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"})
_ENCODINGS = frozenset(
    {"PLAIN", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"}
    | {"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"}
)


def describe_parquet_file(
    store: Store,
    path: str,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    cut: StatsTruncation,
    partition_values: Mapping[str, object] | None = None,
    fields: Mapping[str, Any] | None = None,
    *,
    verify: bool = False,
) -> Add:
    """Return the add for a Parquet file in the table's folder.

    Args:
        store: the table's store.
        path: path of the file, relative to the table.
        schema: the table's schema.
        partition_columns: names of the partition columns.
        cut: truncation of text statistics.
        partition_values: partition values by column; those not given are taken from folders named
            `column=value`.
        fields: further fields of the `add` action.
        verify: also read the columns whose compatibility depends on their values: text, which may
            not be UTF-8, and values that may exceed the table's type.

    Raises:
        InvalidRequest: the file does not exist, is damaged, or cannot be read as rows of the
            table. The message names the column and the reason.
    """
    stat = stat_object(store, path)
    if stat is None:
        raise InvalidRequest(
            f"There is no file {path} in {store.root}.", next="Write it before adding it."
        )
    file_schema = _stored_columns(schema, partition_columns)
    with _open_parquet(store, path, stat.size) as file:
        undecided = _check_columns(file, file_schema, path)
        if verify and undecided:
            _check_values(file, file_schema, undecided, path)
        stats = read_footer_stats(file.metadata, file_schema, cut)
    given = {**_values_from_path(path, partition_columns), **(partition_values or {})}
    return _build_add(path, given, stat, stats, fields or {})


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A Parquet file and the schema of a table that it fits, or why there is none.

    Attributes:
        path: path of the file, relative to the table.
        schema: the table's schema; None if the file is damaged or has unsupported columns.
        add: the add for the file, without partition values.
        damage: why the file cannot be opened.
        misfit: why its columns cannot be read as rows of the table, though it can be opened.
        columns: names of the columns that the file has.
    """

    path: str
    schema: pa.Schema | None = None
    add: Add | None = None
    damage: str | None = None
    misfit: str | None = None
    columns: tuple[str, ...] = ()


def inspect_parquet_file(
    store: Store,
    path: str,
    choose_schema: Callable[[pa.Schema, Any], pa.Schema],
    partition_columns: Sequence[str],
    cut: StatsTruncation,
) -> InspectedFile:
    """Describe a Parquet file for a table whose schema may follow from the file.

    Columns whose types differ from the table's so that their values decide are read, but not text:
    whether it is valid UTF-8 is not checked.

    Args:
        store: the table's store.
        path: path of the file, relative to the table.
        choose_schema: returns the table's schema for the columns and the footer of the file. Raises
            `ValueError` with the reason if a table cannot have these columns.
        partition_columns: names of the partition columns, which are not read from files.
        cut: truncation of text statistics.
    """
    stat = stat_object(store, path)
    if stat is None:
        return InspectedFile(path, damage="the file no longer exists")
    try:
        with _open_parquet(store, path, stat.size) as file:
            names = tuple(file.schema_arrow.names)
            try:
                schema = choose_schema(file.schema_arrow, file.metadata)
                stored = _stored_columns(schema, partition_columns)
                undecided = _check_columns(file, stored, path)
                doubtful = [n for n in undecided if not _differs_in_text_only(file, stored, n)]
                if doubtful:
                    _check_values(file, stored, doubtful, path)
                stats = read_footer_stats(file.metadata, stored, cut)
            except InvalidRequest as error:
                return InspectedFile(path, misfit=error.what, columns=names)
            except pa.ArrowException:  # also a ValueError: damage that the footer does not show
                raise
            except ValueError as error:
                return InspectedFile(path, misfit=f"{path}: {error}.", columns=names)
    except InvalidRequest as error:
        return InspectedFile(path, damage=error.what)
    return InspectedFile(path, schema, _build_add(path, {}, stat, stats, {}), columns=names)


def _differs_in_text_only(file: Any, schema: pa.Schema, name: str) -> bool:
    """Whether all values of a column fit the table's type, provided that text is valid UTF-8."""
    kind = _text_to_bytes(file.schema_arrow.field(name).type)
    return is_always_readable_as(kind, _text_to_bytes(schema.field(name).type))


def _text_to_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in the place of text, at any depth."""
    if pa.types.is_dictionary(kind):
        return _text_to_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _text_to_bytes(item.type)) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(_text_to_bytes(kind.key_type), _text_to_bytes(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_text_to_bytes(kind.value_type))
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return pa.binary() if any(test(kind) for test in texts) else kind


def _stored_columns(schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    return pa.schema([item for item in schema if item.name not in partition_columns])


def _build_add(
    path: str,
    partition_values: Mapping[str, object],
    stat: ObjectStat,
    stats: DataFileStats,
    fields: Mapping[str, Any],
) -> Add:
    return Add(
        path,
        partition_values,
        stat.size,
        max(stat.mtime_ms, 0),
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
        dict(fields),
        stats.nans,
    )


@contextmanager
def _open_parquet(store: Store, path: str, size: int) -> Iterator[Any]:
    """Open a Parquet file by range requests. Raises `InvalidRequest` if it is damaged."""
    import pyarrow.parquet as pq

    try:
        source = pa.PythonFile(RangeReader(store, path, size), "r")
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES)
        file.schema_arrow.names  # noqa: B018 -- raises for schemas that Arrow cannot convert
        _check_footer(file)
        with file:
            yield file
    except InvalidRequest:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{path} is not a readable Parquet file: {_reason(error)}.",
            next="Check that it is complete, or write it again.",
        ) from None


def _check_footer(file: Any) -> None:
    """Raise for damage in the footer that would abort the process when statistics are read.

    pyarrow 26.0.1 does not catch C++ exceptions where it reads the column metadata of a footer.
    Reading a row raises a Python error for the same damage. A physical type that contradicts the
    schema is not detected that way and is compared here.
    """
    footer = file.metadata
    types = [footer.schema.column(at).physical_type for at in range(footer.num_columns)]
    for group in range(file.num_row_groups):
        next(file.iter_batches(1, row_groups=[group]), None)
        parts = footer.row_group(group)
        if [parts.column(at).physical_type for at in range(parts.num_columns)] != types:
            raise ValueError("its footer is inconsistent")


def _reason(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__


def _check_columns(file: Any, schema: pa.Schema, path: str) -> list[str]:
    """Raise `InvalidRequest` for columns that some reader would not find or could not read.

    Returns the columns whose compatibility depends on their values.
    """
    stored_schema, footer = file.schema_arrow, file.metadata
    for name, other in map_column_case(stored_schema.names, schema.names, path).items():
        raise InvalidRequest(
            f"{path} spells the column {name!r} as {other!r}; most readers would return nulls for"
            " it.",
            next="Rewrite the file with the column names of the table's schema.",
        )
    nanosecond_column = find_nanosecond_column(stored_schema, schema)
    if nanosecond_column is not None and _has_nanoseconds(footer, nanosecond_column):
        raise InvalidRequest(
            f"{path}: {nanosecond_column} has timestamps with nanoseconds, but the table's type has"
            " microseconds.",
            next="Rewrite the file with microseconds.",
        )
    undecided = []
    positions = _leaf_positions(footer)
    similar_names: dict[str, list[str]] = {}
    for name in stored_schema.names:
        similar_names.setdefault(name.lower(), []).append(name)
    for item in schema:
        similar = similar_names.get(item.name.lower(), [])
        # Spark does not distinguish names by case, unless the table has both columns.
        if len(similar) > 1 and (
            similar.count(item.name) > 1 or not set(similar) <= set(schema.names)
        ):
            names = " and ".join(repr(name) for name in similar)
            raise _unreadable(path, f"it has the column {item.name!r} twice, as {names}")
        if item.name not in similar:
            continue
        stored = stored_schema.field(item.name).type
        member = find_member_case_mismatch(stored, item.type)
        if member is not None:
            raise _unreadable(
                path,
                f"it spells the member {member!r} of the column {item.name!r} in another case",
            )
        if not is_readable_as(stored, item.type):
            raise _unreadable(
                path, f"its column {item.name!r} has type {stored}, the table's {item.type}"
            )
        chunks = _column_chunks(footer, positions.get(item.name, []))
        _check_encoding(chunks, item.name, path)
        if not is_always_readable_as(stored, item.type) and not _fits_integers(
            chunks, item, stored, path
        ):
            undecided.append(item.name)
    return undecided


def _unreadable(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path} cannot be read as rows of the table: {what}.",
        next="Rewrite the file with the types of the table's schema.",
    )


def _leaf_positions(footer: Any) -> dict[str, list[int]]:
    """Return the positions of the leaf columns of every column, by name.

    A dot may separate the members of a struct or be part of a name, so leaves count for both.
    """
    positions: dict[str, list[int]] = {}
    for number in range(footer.num_columns):
        parts = footer.schema.column(number).path.split(".")
        for length in range(1, len(parts) + 1):
            positions.setdefault(".".join(parts[:length]), []).append(number)
    return positions


def _column_chunks(footer: Any, positions: Sequence[int]) -> list[Any]:
    """Return the column chunks at some positions, of all row groups."""
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return [group.column(position) for group in groups for position in positions]


def _check_encoding(chunks: Iterable[Any], name: str, path: str) -> None:
    """Raise `InvalidRequest` for codecs and encodings that some reader does not support."""
    for chunk in chunks:
        unknown = sorted(set(chunk.encodings) - _ENCODINGS)
        if chunk.compression not in _CODECS or unknown:
            scheme = unknown[0] if unknown else chunk.compression
            raise _unreadable(
                path, f"its column {name!r} is stored as {scheme}, which is not supported"
            )


def _fits_integers(chunks: Iterable[Any], item: pa.Field, stored: pa.DataType, path: str) -> bool:
    """Whether the footer proves that all integers of a column fit into the table's type.

    Raises `InvalidRequest` if it proves that one does not.
    """
    if not (pa.types.is_integer(stored) and pa.types.is_integer(item.type)):
        return False
    low, high = int_range(item.type)
    for chunk in chunks:
        stats = chunk.statistics
        if stats is None or not stats.has_min_max:
            if chunk.num_values and not (
                stats is not None and stats.has_null_count and stats.null_count == chunk.num_values
            ):
                return False
            continue
        if not low <= stats.min <= stats.max <= high:
            values = f"its column {item.name!r} has values from {stats.min} to {stats.max}"
            raise _unreadable(path, f"{values}, but the table's type is {item.type}")
    return True


def _check_values(file: Any, schema: pa.Schema, names: list[str], path: str) -> None:
    """Read columns as readers do. Raises `InvalidRequest` for values that do not fit the schema."""
    # Arrow takes a dot in a column name for a struct field: read all columns then.
    dotted = any("." in name for name in names)
    name = names[0]
    try:
        for batch in file.iter_batches(_BATCH_ROWS, columns=None if dotted else names):
            for name in names:
                column = pc.cast(batch[name], schema.field(name).type)
                column.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        kind = file.schema_arrow.field(name).type
        values = f"its column {name!r} ({kind}) has values that do not fit"
        raise _unreadable(path, f"{values} {schema.field(name).type}: {_reason(error)}") from None


def _has_nanoseconds(footer: Any, name: str) -> bool:
    """Whether a bound of a column is not a whole number of microseconds."""
    for group in range(footer.num_row_groups):
        parts = footer.row_group(group)
        for part in (parts.column(index) for index in range(parts.num_columns)):
            stats = part.statistics if part.path_in_schema == name else None
            if stats is None or not stats.has_min_max or part.physical_type != "INT64":
                continue
            if stats.min_raw % 1000 or stats.max_raw % 1000:
                return True
    return False


def _values_from_path(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return the partition values in folders named `column=value`."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and unquote(name) in columns:
            values[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return values


@dataclass(frozen=True, slots=True)
class DataFileStats:
    """Statistics of one file: row count, and by column bounds as log text, null and NaN counts.

    Those of the fields of a struct column are a map by field, as deep as the struct.
    """

    num_records: int
    low: dict[str, Any] = field(default_factory=dict)
    high: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, Any] = field(default_factory=dict)
    nans: dict[str, Any] = field(default_factory=dict)

    def put_leaf(self, path: Sequence[str], stats: DataFileStats, name: str) -> None:
        """Take over the statistics that a struct field has as the column `name` of `stats`."""
        for target, source in (
            (self.low, stats.low),
            (self.high, stats.high),
            (self.nulls, stats.nulls),
            (self.nans, stats.nans),
        ):
            if name in source:
                for part in path[:-1]:
                    target = target.setdefault(part, {})  # noqa: PLW2901 -- descends
                target[path[-1]] = source[name]


def compute_stats(table: pa.Table, names: Iterable[str], cut: StatsTruncation) -> DataFileStats:
    """Compute the statistics of rows in memory."""
    stats = DataFileStats(table.num_rows)
    for name in names:
        column = table[name]
        if has_bounds(column.type):
            _add_column_stats(stats, name, column, cut)
        elif pa.types.is_struct(column.type):
            for leaf, values in struct_columns(name, column):
                field_stats = DataFileStats(table.num_rows)
                _add_column_stats(field_stats, leaf.name, values, cut)
                stats.put_leaf(leaf.path, field_stats, leaf.name)
    return stats


def struct_columns(
    name: str, column: pa.ChunkedArray
) -> Iterator[tuple[StructLeaf, pa.ChunkedArray]]:
    """Iterate over the fields of a struct column that can have bounds, with their values.

    A field is NULL where the struct is.
    """
    for leaf in struct_leaves(pa.schema([(name, column.type)])).values():
        if has_bounds(leaf.type):
            values = column
            for part in leaf.path[1:]:
                values = pc.struct_field(values, [values.type.get_field_index(part)])
            yield leaf, values


def _add_column_stats(
    stats: DataFileStats, name: str, column: pa.ChunkedArray, cut: StatsTruncation
) -> None:
    kind = column.type
    stats.nulls[name] = column.null_count
    if pa.types.is_floating(kind):
        stats.nans[name] = pc.sum(pc.is_nan(column)).as_py() or 0
    if column.null_count < len(column):
        _add_bounds(name, kind, *_extremes(column), cut, stats.low, stats.high)


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return minimum and maximum; None for one that is not valid."""
    extremes = pc.min_max(column)
    least, most = _python_value(extremes["min"]), _python_value(extremes["max"])
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return (None if least is None or math.isnan(least) else least), None
    return least, most


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # a timestamp outside Python's range
        return None


def _add_bounds(
    name: str,
    kind: pa.DataType,
    least: Any,
    most: Any,
    cut: StatsTruncation,
    low: dict[str, str],
    high: dict[str, str],
) -> None:
    """Add the bounds of a column to `low` and `high`, if they are valid for every reader."""
    first, last = _bound_text(least, kind), _bound_text(most, kind)
    if pa.types.is_string(kind):
        first, last = cut.shorten(first, last)
    if first is not None:
        low[name] = first
    if last is not None:
        high[name] = last


def _bound_text(value: Any, kind: pa.DataType) -> str | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    text = to_log_text(value, kind)
    if (
        text is not None
        and pa.types.is_string(kind)
        and any(ord(c) > _MAX_CODE_POINT for c in text)
    ):
        return None
    return text


def read_footer_stats(footer: Any, schema: pa.Schema, cut: StatsTruncation) -> DataFileStats:
    """Read the statistics of the table's columns from a Parquet footer.

    Bounds are taken only from columns that the file stores in the table's own type. Maxima of
    floating point columns are omitted unless parquet-mr (Java) wrote the file: it writes NaN as the
    maximum if there is one, which is then omitted because it is not finite. A finite maximum proves
    that there is none. Footers of other writers do not tell whether there are NaNs.
    """
    with_nan = _MAXIMUM_COVERS_NAN.match(str(footer.created_by)) is not None
    stored = footer.schema.to_arrow_schema()
    paths: dict[str, int | None] = {}
    for number in range(footer.num_columns):  # None marks an ambiguous path
        path = footer.schema.column(number).path
        paths[path] = None if path in paths else number
    groups = [footer.row_group(g) for g in range(footer.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    stats = DataFileStats(footer.num_rows)

    def add(target: DataFileStats, name: str, kind: pa.DataType, path: Sequence[str]) -> None:
        # A path that is ambiguous, because names contain dots, is not used.
        index = paths.get(".".join(path))
        stored_type = find_field_type(stored, path)
        if index is None or stored_type is None or not has_bounds(kind):
            return
        chunks = [group.column(index).statistics for group in groups]
        if any(chunk is None for chunk in chunks) or not chunks:
            return
        if all(chunk.has_null_count for chunk in chunks):
            target.nulls[name] = sum(chunk.null_count for chunk in chunks)
        if _is_same_type(stored_type, kind):
            least, most = _footer_bounds(chunks, groups, kind, with_nan=with_nan)
            _add_bounds(name, kind, least, most, cut, target.low, target.high)
            if pa.types.is_floating(kind) and name in target.high:
                target.nans[name] = 0

    for item in schema:
        add(stats, item.name, item.type, (item.name,))
    for leaf in struct_leaves(schema).values():
        field_stats = DataFileStats(footer.num_rows)
        add(field_stats, leaf.name, leaf.type, leaf.path)
        stats.put_leaf(leaf.path, field_stats, leaf.name)
    return stats


def _footer_bounds(
    chunks: list[Any], groups: list[Any], kind: pa.DataType, *, with_nan: bool
) -> tuple[Any, Any]:
    """Return the bounds over all row groups; None for those that are not known."""
    pairs = []
    for stats, group in zip(chunks, groups, strict=True):
        if stats.has_min_max:
            try:
                pairs.append((stats.min, stats.max))
            except (OverflowError, ValueError):  # a timestamp outside Python's range
                return None, None
        elif not (stats.has_null_count and stats.null_count == group.num_rows):
            return None, None  # this row group has values but no bounds
    if not pairs:
        return None, None
    lows, highs = ([pair[side] for pair in pairs] for side in (0, 1))
    if not pa.types.is_floating(kind):
        return min(lows), max(highs)
    # One NaN makes a bound unknown: `min` and `max` would overlook it, depending on the order.
    least = None if any(map(math.isnan, lows)) else min(lows)
    return least, max(highs) if with_nan and not any(map(math.isnan, highs)) else None


def _is_same_type(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of the stored type are values of the table's type without conversion."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if pa.types.is_string(kind):
        return any(test(stored) for test in texts)
    if pa.types.is_integer(kind) and pa.types.is_integer(stored):
        return True
    return bool(stored == kind)
