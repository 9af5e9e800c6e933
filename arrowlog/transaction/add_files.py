"""Data files to be added: constructors for users, and validation before a commit.

Partition values and statistics may be Python values or text as it is stored in the log; the table's
schema determines how they are interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.config import is_text, parse_integer, shorten
from arrowlog.errors import InvalidRequest
from arrowlog.formats import STATS_COUNTS, FieldKind, find_field_type
from arrowlog.formats.indextables import ADD_FIELDS, LOG_FOLDER
from arrowlog.snapshot import (
    cast_text,
    files_column_name,
    has_bounds,
    partition_values,
    to_log_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.formats import Metadata

# Fields of an add by their name in the log and by that name in snake case.
_FIELD_NAMES = {spelled: name for name in ADD_FIELDS for spelled in (name, files_column_name(name))}
# Absolute paths, URLs, and paths with a ".." component.
_OUTSIDE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/|(?:.*/)?\.\.(?:/|$)", re.DOTALL)
_MILLIS_MAX = 253_402_300_799_999  # end of the year 9999, the last that Python represents
_INT64_MAX = (1 << 63) - 1
_USE_ADD_FILE = "Use arrowlog.add_file(path, …) or arrowlog.add_parquet(table, path)."
_MAPS = ("partitionValues", "minValues", "maxValues")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Add:
    """A data file to be added. Create it with `add_file` or `add_parquet`.

    Attributes:
        path: path of the file relative to the table.
        partition_values: value of each partition column.
        size: size in bytes; None lets the commit ask the store.
        modification_time: milliseconds since the epoch; None lets the commit ask the store.
        num_records: number of rows, if known.
        min_values: lower bounds by column; of a struct column, a map by field.
        max_values: upper bounds by column, likewise.
        null_count: number of nulls by column, likewise.
        fields: all other fields of the `add` action by their name in the log.
        nan_count: number of NaNs by floating-point column.
    """

    path: str
    partition_values: Mapping[str, object] = field(default_factory=dict)
    size: int | None = None
    modification_time: int | None = None
    num_records: int | None = None
    min_values: Mapping[str, object] = field(default_factory=dict)
    max_values: Mapping[str, object] = field(default_factory=dict)
    null_count: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    nan_count: Mapping[str, int] = field(default_factory=dict)


def add_file(
    path: str,
    partition_values: Mapping[str, object] | None = None,
    *,
    size: int | None = None,
    modification_time: int | None = None,
    num_records: int | None = None,
    min_values: Mapping[str, object] | None = None,
    max_values: Mapping[str, object] | None = None,
    null_count: Mapping[str, int] | None = None,
    nan_count: Mapping[str, int] | None = None,
    **fields: Any,
) -> Add:
    """Describe a data file for `Table.append`, `overwrite` or `commit`.

    The file is not read: what is given here is what the log will say, and data skipping relies on
    it. `add_parquet` takes it from the footer of a Parquet file instead.

    Args:
        path: path of the file, relative to the table or absolute.
        partition_values: value of each partition column, None for null.
        size: size in bytes. If omitted, the commit asks the store.
        modification_time: milliseconds since the epoch. If omitted, the commit asks the store.
        num_records: number of rows.
        min_values: lower bounds by column; no value of the column may be less. Those of the fields
            of a struct column are a map: `{"a": {"b": 1}}`. So are maxima and counts.
        max_values: upper bounds by column; no value of the column may be greater.
        null_count: number of nulls by column.
        nan_count: number of NaNs by floating-point column. Data skipping relies on a maximum for
            `>`, `>=` and `<>` only where it is 0.
        **fields: further fields of the `add` action, by their name in the log or in snake case:
            `tags={"by": "me"}`, `footerStartOffset=…` or `footer_start_offset=…`.

    Raises:
        InvalidRequest: a field is unknown, given twice, or not a map where one is required. Values
            are checked against the table's schema when they are committed.

    Examples:
        >>> add_file("day=1/a.parquet", {"day": 1}, size=10, num_records=2).path
        'day=1/a.parquet'
    """
    known: dict[str, Any] = {
        "partitionValues": partition_values,
        "size": size,
        "modificationTime": modification_time,
        "numRecords": num_records,
        "minValues": min_values,
        "maxValues": max_values,
        "nullCount": null_count,
        "nanCount": nan_count,
    }
    for spelled, value in fields.items():
        name = _FIELD_NAMES.get(spelled)
        if name is None:
            raise InvalidRequest(
                f"add_file has no field {spelled!r}.",
                next=f"Valid fields: {', '.join(sorted(ADD_FIELDS))}.",
            )
        if known.get(name) is not None:
            raise InvalidRequest(f"add_file got {name} twice.", next="Pass it once.")
        known[name] = value
    return _build_add(path, known, "add_file")


def _build_add(path: Any, known: dict[str, Any], place: str) -> Add:
    """Build an add from fields by their name in the log.

    Fields with an attribute of their own are taken out of `known`; the rest becomes `fields`.
    """
    maps = {name: known.pop(name, None) or {} for name in (*_MAPS, *STATS_COUNTS)}
    for name, value in maps.items():
        if not hasattr(value, "items"):
            raise InvalidRequest(
                f"{place}.{files_column_name(name)} is {shorten(value)}.", next="Pass a map."
            )
    try:
        known = {name: _plain_integers(value) for name, value in known.items()}
        null_count, nan_count = (_plain_integers(maps[name]) for name in STATS_COUNTS)
    except RecursionError:
        raise InvalidRequest(
            f"{place} is nested too deeply.", next="Use text, numbers, and maps of them."
        ) from None
    return Add(
        path,
        dict(maps["partitionValues"]),
        known.pop("size", None),
        known.pop("modificationTime", None),
        known.pop("numRecords", None),
        dict(maps["minValues"]),
        dict(maps["maxValues"]),
        null_count,
        known,
        nan_count,
    )


def _plain_integers(value: Any) -> Any:
    """Return Python's integers for those of numpy, also in maps; other values as they are."""
    if isinstance(value, Mapping):
        return {name: _plain_integers(member) for name, member in value.items()}
    if isinstance(value, SupportsIndex) and not isinstance(value, int):
        with suppress(ValueError):  # an array of numpy is no integer, although it looks like one
            return parse_integer(value)
    return value


def parse_add(given: object, place: str) -> Add:
    """Convert an element of `adds`: an `Add`, or a map of the fields of an `add` action.

    `place` names the element in error messages.
    """
    if isinstance(given, Add):
        return given
    if isinstance(given, str):
        raise InvalidRequest(
            f"{place} is a string, {given[:80]!r}.",
            next=_USE_ADD_FILE,
        )
    try:
        raw = dict(given)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{place} is of type {type(given).__name__}, not an add.",
            next=_USE_ADD_FILE,
        ) from None
    if set(raw) == {"add"}:
        return parse_add(raw["add"], place)
    if "path" not in raw:
        raise InvalidRequest(f"{place} has no path.", next="Every add needs a path.")
    named: dict[str, Any] = {
        _FIELD_NAMES.get(str(name), str(name)): value
        for name, value in raw.items()
        if value is not None
    }
    for name in STATS_COUNTS:
        count = named.pop(files_column_name(name), None)
        named[name] = count or named.get(name)
    return _build_add(named.pop("path"), named, place)


def relative_data_path(path: object, root: str, spellings: Sequence[str], place: str) -> str:
    """Return the path of a data file relative to the table.

    Args:
        path: a relative path, or an absolute one that begins with one of `spellings`.
        root: the table's root, for messages.
        spellings: all ways to spell the root.
        place: names the argument in error messages.

    Raises:
        InvalidRequest: the path is outside the table, in its log, or not normalized.
    """
    if not is_text(path) or not path.strip():
        raise InvalidRequest(
            f"{place}.path is {shorten(path)}.", next="Pass the path of a data file."
        )
    for spelled in spellings:
        if path.startswith(f"{spelled}/"):
            path = path[len(spelled) + 1 :]
            break
    if _OUTSIDE.match(path):
        raise InvalidRequest(
            f"{place}.path is {path!r}, outside the table {root}.",
            next="Data files must be in the table's folder; pass their path in it.",
        )
    parts = path.split("/")
    if parts[0] == LOG_FOLDER or "\0" in path or any(part in ("", ".") for part in parts):
        raise InvalidRequest(
            f"{place}.path is {path!r}, not a data file.", next="Pass the path of a data file."
        )
    return path


def validate_adds(
    adds: Sequence[Add], metadata: Metadata, schema: pa.Schema
) -> list[dict[str, Any]]:
    """Validate adds against a table and return their fields as written to the log.

    Paths must be relative, sizes and times present. Raises `InvalidRequest` naming the add and the
    field.
    """
    seen: set[str] = set()
    for number, add in enumerate(adds):
        place = f"adds[{number}] ({add.path})"
        if add.path in seen:
            raise InvalidRequest(
                f"{place} is a duplicate.", next="A file can be added only once per commit."
            )
        seen.add(add.path)
        _check_numbers(add, place)
        _check_names(add, metadata, schema, place)
    partitions = _partition_texts(adds, metadata, schema)
    low = _bound_texts(adds, schema, "minValues")
    high = _bound_texts(adds, schema, "maxValues")
    _check_order(adds, schema, low, high)
    return [
        _log_fields(
            add,
            _row(partitions, number),
            _row(low, number),
            _row(high, number),
            _struct_bounds(add, schema, f"adds[{number}] ({add.path})"),
        )
        for number, add in enumerate(adds)
    ]


def _row(texts: Mapping[str, list[str | None]], number: int) -> dict[str, str | None]:
    return {name: column[number] for name, column in texts.items()}


def _log_fields(
    add: Add,
    partitions: Mapping[str, str | None],
    low: Mapping[str, str | None],
    high: Mapping[str, str | None],
    struct_bounds: Mapping[str, Any],
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "path": add.path,
        "partitionValues": partitions,
        "size": add.size,
        "modificationTime": add.modification_time,
        "dataChange": True,
        **{name: value for name, value in add.fields.items() if value is not None},
    }
    if (add.null_count or add.nan_count or struct_bounds) and "stats" not in fields:
        counts: dict[str, Any] = {
            "numRecords": add.num_records,
            **struct_bounds,
            "nullCount": dict(add.null_count) or None,
            "nanCount": dict(add.nan_count) or None,
        }
        known = {name: value for name, value in counts.items() if value is not None}
        fields["stats"] = msgspec.json.encode(known).decode()
    if add.num_records is not None:
        fields["numRecords"] = add.num_records
    for name, texts in (("minValues", low), ("maxValues", high)):
        present = {column: text for column, text in texts.items() if text is not None}
        if present:
            fields[name] = present
    return fields


def _check_numbers(add: Add, place: str) -> None:
    _check_integer(add.size, f"{place}.size", 1, _INT64_MAX, "bytes, at least 1")
    _check_integer(
        add.modification_time,
        f"{place}.modification_time",
        0,
        _MILLIS_MAX,
        "milliseconds since the epoch, before the year 10000",
    )
    if add.num_records is not None:
        _check_integer(add.num_records, f"{place}.num_records", 0, _INT64_MAX, "a number of rows")
    for name, counts in (("null_count", add.null_count), ("nan_count", add.nan_count)):
        for path, count in _walk_map(counts):
            where = "".join(f"[{part!r}]" for part in path)
            _check_integer(count, f"{place}.{name}{where}", 0, _INT64_MAX, "a number of rows")
    _check_fields(add, place)


def _walk_map(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each member; those of structs are maps themselves."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from (((name, *path), inner) for path, inner in _walk_map(value))
        else:
            yield (name,), value


def _struct_bounds(add: Add, schema: pa.Schema, place: str) -> dict[str, Any]:
    """Return the bounds of struct fields as maps for `stats`: `{"minValues": {"a": {"b": 1}}}`.

    Raises `InvalidRequest` for a field that the schema lacks, a value that is not of its type, and
    a minimum above its maximum.
    """
    bounds: dict[str, dict[tuple[str, ...], pa.Scalar]] = {}
    maps: dict[str, Any] = {}
    for side, given in (("minValues", add.min_values), ("maxValues", add.max_values)):
        attribute = files_column_name(side)
        for path, value in _walk_map(given):
            if len(path) == 1 or value is None:
                continue
            kind = find_field_type(schema, path)
            where = f"{place}.{attribute}"
            if kind is None or not has_bounds(kind):
                raise InvalidRequest(
                    f"{where} has {'.'.join(path)!r}, which is not a struct field with bounds.",
                    next="Leave it out.",
                )
            text = _log_text(value, kind, where, ".".join(path))
            typed = cast_text(pa.chunked_array([make_array([text], pa.string())]), kind)[0]
            if not typed.is_valid:
                if pa.types.is_floating(kind):  # NaN and infinity are no bounds
                    continue
                raise InvalidRequest(
                    f"{where}[{'.'.join(path)!r}] is {shorten(value)}, which is not a valid"
                    f" {kind}.",
                    next="Pass a value of the field's type, or leave it out.",
                )
            bounds.setdefault(side, {})[path] = typed
            inner = maps.setdefault(side, {})
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = _json_value(text or "", kind)
    for path, low in bounds.get("minValues", {}).items():
        high = bounds.get("maxValues", {}).get(path)
        if high is not None and pc.greater(low, high).as_py():
            raise InvalidRequest(
                f"{place}.min_values[{'.'.join(path)!r}] is {low}, above its maximum {high}.",
                next="Are they swapped?",
            )
    return maps


def _json_value(text: str, kind: pa.DataType) -> Any:
    """Return the log text of a bound as a JSON value: a number with all its digits, or text."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return msgspec.Raw(text.encode()) if is_number and _JSON_NUMBER.fullmatch(text) else text


def _check_fields(add: Add, place: str) -> None:
    for name, value in add.fields.items():
        kind = ADD_FIELDS.get(name)
        if value is None:  # the same as an omitted field
            continue
        if kind is FieldKind.INT:
            _check_integer(value, f"{place}.{name}", -_INT64_MAX - 1, _INT64_MAX, "an integer")
        elif kind is FieldKind.BOOL and not isinstance(value, bool):
            raise InvalidRequest(
                f"{place}.{name} is {shorten(value)}.", next="Must be true or false."
            )
        elif kind in (FieldKind.TEXT, FieldKind.WORD, FieldKind.STATS) and not isinstance(
            value, str
        ):
            raise InvalidRequest(f"{place}.{name} is {shorten(value)}.", next="Must be text.")
        elif name == "tags" and not _is_text_map(value):
            raise InvalidRequest(
                f"{place}.{name} is {shorten(value)}.", next="Must be a map of text."
            )
        elif kind is FieldKind.JSON and name != "tags" and not _is_text_list(value):
            raise InvalidRequest(
                f"{place}.{name} is {shorten(value)}.", next="Must be a list of text."
            )


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(text, str | None) for key, text in value.items()
    )


def _is_text_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _check_integer(value: object, name: str, low: int, high: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {shorten(value)}.", next=f"Must be {what}.")


def _check_names(add: Add, metadata: Metadata, schema: pa.Schema, place: str) -> None:
    wanted = metadata.partition_columns
    missing = [name for name in wanted if name not in add.partition_values]
    if missing:
        raise InvalidRequest(
            f"{place}.partition_values has no {missing[0]!r}.",
            next=f"The table is partitioned by {', '.join(wanted)}; pass a value, or None, for"
            " each.",
        )
    unknown = [name for name in add.partition_values if name not in wanted]
    if unknown:
        raise InvalidRequest(
            f"{place}.partition_values has {unknown[0]!r}, which is not a partition column.",
            next=f"Partition columns: {', '.join(wanted)}."
            if wanted
            else "The table is not partitioned.",
        )
    for field_name in ("min_values", "max_values", "null_count", "nan_count"):
        for column in getattr(add, field_name):
            if not is_text(column) or schema.get_field_index(column) < 0:
                raise InvalidRequest(
                    f"{place}.{field_name} has {column!r}, which is not a column of the table.",
                    next=f"Columns: {', '.join(schema.names)}.",
                )


def _partition_texts(
    adds: Sequence[Add], metadata: Metadata, schema: pa.Schema
) -> dict[str, list[str | None]]:
    """Return the partition values as log text, by column; values that mean null become None."""
    texts_by_column: dict[str, list[str | None]] = {}
    for column in metadata.partition_columns:
        index = schema.get_field_index(column)
        kind = pa.string() if index < 0 else schema.field(index).type
        texts = [
            _log_text(
                add.partition_values[column],
                kind,
                f"adds[{n}] ({add.path}).partition_values",
                column,
            )
            for n, add in enumerate(adds)
        ]
        values, unknown = partition_values(pa.chunked_array([make_array(texts, pa.string())]), kind)
        if pc.any(unknown).as_py():
            number = pc.index(unknown, True).as_py()
            raise InvalidRequest(
                f"adds[{number}] ({adds[number].path}).partition_values[{column!r}] is"
                f" {texts[number]!r}, which is not a valid {kind}.",
                next="Pass a value of the column's type, or None.",
            )
        null = pc.is_null(values).to_pylist()
        texts_by_column[column] = [
            None if is_null else text for text, is_null in zip(texts, null, strict=True)
        ]
    return texts_by_column


def _log_text(value: object, kind: pa.DataType, place: str, column: str) -> str | None:
    try:
        return to_log_text(value, kind)
    except ValueError as error:
        raise InvalidRequest(
            f"{place}[{column!r}] is {shorten(value)}: {error}.",
            next="Pass a value of the column's type, or None.",
        ) from None


def _bound_texts(
    adds: Sequence[Add], schema: pa.Schema, field_name: str
) -> dict[str, list[str | None]]:
    """Return lower or upper bounds as log text, by column."""
    attribute = files_column_name(field_name)
    columns = sorted(
        {
            column
            for add in adds
            for column, value in getattr(add, attribute).items()
            if not isinstance(value, Mapping)  # of a struct; see `_struct_bounds`
        }
    )
    texts_by_column: dict[str, list[str | None]] = {}
    for column in columns:
        kind = schema.field(column).type
        texts = [
            _log_text(
                getattr(add, attribute).get(column),
                kind,
                f"adds[{n}] ({add.path}).{attribute}",
                column,
            )
            for n, add in enumerate(adds)
        ]
        texts_by_column[column] = texts
        if not has_bounds(kind):
            continue
        array = pa.chunked_array([make_array(texts, pa.string())])
        invalid = pc.and_(pc.is_valid(array), pc.is_null(cast_text(array, kind)))
        # Bounds of floating point columns may be NaN or infinite, which `cast_text` rejects.
        if not pa.types.is_floating(kind) and pc.any(invalid).as_py():
            number = pc.index(invalid, True).as_py()
            raise InvalidRequest(
                f"adds[{number}] ({adds[number].path}).{attribute}[{column!r}] is"
                f" {texts[number]!r}, which is not a valid {kind}.",
                next="Pass a value of the column's type, or leave it out.",
            )
    return texts_by_column


def _check_order(
    adds: Sequence[Add],
    schema: pa.Schema,
    low: Mapping[str, list[str | None]],
    high: Mapping[str, list[str | None]],
) -> None:
    """Raise `InvalidRequest` for a minimum above its maximum: data skipping would lose rows."""
    for column in low.keys() & high.keys():
        kind = schema.field(column).type
        if not has_bounds(kind):
            continue
        first, last = (
            cast_text(pa.chunked_array([make_array(texts[column], pa.string())]), kind)
            for texts in (low, high)
        )
        swapped = pc.greater(first, last)
        if pc.any(swapped).as_py():
            number = pc.index(swapped, True).as_py()
            raise InvalidRequest(
                f"adds[{number}] ({adds[number].path}).min_values[{column!r}] is"
                f" {low[column][number]!r}, above its maximum {high[column][number]!r}.",
                next="Are they swapped?",
            )
