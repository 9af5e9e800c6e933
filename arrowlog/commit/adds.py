"""Data files to be added, as users give them, and checked before anything is written.

Values of partitions and statistics may be given as Python values or as the text that stands in the
log; the table's schema says what they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.text import text_of
from arrowlog.errors import InvalidRequest
from arrowlog.log.actions import ADD, Kind
from arrowlog.log.arrays import array_of
from arrowlog.log.names import LOG
from arrowlog.state.files import snake
from arrowlog.state.typed import cast_text, has_bounds, partition_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.log.actions import Metadata

_SPELLED = {spelled: name for name in ADD for spelled in (name, snake(name))}
_OUTSIDE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/|(?:.*/)?\.\.(?:/|$)", re.DOTALL)
_MILLIS_MAX = 253_402_300_799_999  # the end of the year 9999
_SIZE_MAX = (1 << 63) - 1
_MAPS = ("partitionValues", "minValues", "maxValues")


@dataclass(frozen=True, slots=True)
class Add:
    """One file to be added; make it with `add_file` or `add_parquet`.

    `fields` has everything else by its name in the log.
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
    **fields: Any,
) -> Add:
    """A data file to be added to a table, by its path in the table's folder.

    Leave out `size` (bytes) and `modification_time` (milliseconds since 1970) and the commit asks
    the store for them. Further fields of an add by name: `tags={"by": "me"}`,
    `footerStartOffset=…` or `footer_start_offset=…`.

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
    }
    for spelled, value in fields.items():
        name = _SPELLED.get(spelled)
        if name is None:
            raise InvalidRequest(
                f"add_file has no field {spelled!r}.", next=f"Fields are: {', '.join(sorted(ADD))}."
            )
        if known.get(name) is not None:
            raise InvalidRequest(f"add_file has {name} twice.", next="Give it once.")
        known[name] = value
    return _made(path, known, null_count, "add_file")


def _made(path: Any, known: dict[str, Any], null_count: Any, place: str) -> Add:
    """An add from its fields by their names in the log: those that are checked have a place."""
    maps = {name: known.pop(name, None) or {} for name in (*_MAPS, "nullCount")}
    maps["nullCount"] = null_count or maps["nullCount"]
    for name, value in maps.items():
        if not hasattr(value, "items"):
            raise InvalidRequest(f"{place}.{snake(name)} is {value!r}.", next="Give a map.")
    return Add(
        path,
        dict(maps["partitionValues"]),
        known.pop("size", None),
        known.pop("modificationTime", None),
        known.pop("numRecords", None),
        dict(maps["minValues"]),
        dict(maps["maxValues"]),
        dict(maps["nullCount"]),
        known,
    )


def to_add(given: object, place: str) -> Add:
    """An add from what a user gave: an `Add`, or the fields as they stand in the log."""
    if isinstance(given, Add):
        return given
    if isinstance(given, str):
        raise InvalidRequest(
            f"{place} is a text, {given[:80]!r}.",
            next="Make adds with arrowlog.add_file(path, …) or arrowlog.add_parquet(table, path).",
        )
    try:
        raw = dict(given)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{place} is a {type(given).__name__}, not an add.",
            next="Make adds with arrowlog.add_file(path, …) or arrowlog.add_parquet(table, path).",
        ) from None
    if set(raw) == {"add"}:
        return to_add(raw["add"], place)
    if "path" not in raw:
        raise InvalidRequest(f"{place} has no path.", next="Every add needs one.")
    named: dict[str, Any] = {
        _SPELLED.get(str(name), str(name)): value
        for name, value in raw.items()
        if value is not None
    }
    null_count = named.pop("null_count", None)
    return _made(named.pop("path"), named, null_count, place)


def relative(path: object, root: str, spellings: Sequence[str], place: str) -> str:
    """The path of a file in the table's folder; one outside it is refused."""
    if not isinstance(path, str) or not path.strip():
        raise InvalidRequest(f"{place}.path is {path!r}.", next="Give the path of a data file.")
    for spelled in spellings:
        if path.startswith(f"{spelled}/"):
            path = path[len(spelled) + 1 :]
            break
    if _OUTSIDE.match(path):
        raise InvalidRequest(
            f"{place}.path is {path!r}, outside the table {root}.",
            next="Data files lie in the table's folder; give their path in it.",
        )
    parts = path.split("/")
    if parts[0] == LOG or "\0" in path or any(part in ("", ".") for part in parts):
        raise InvalidRequest(f"{place}.path is {path!r}, no data file.", next="Give a data file.")
    return path


def check_adds(adds: Sequence[Add], metadata: Metadata, schema: pa.Schema) -> list[dict[str, Any]]:
    """The adds as they will stand in the log, or `InvalidRequest` naming field and add.

    Paths are relative already, sizes and times filled in.
    """
    seen: set[str] = set()
    for number, add in enumerate(adds):
        place = f"adds[{number}] ({add.path})"
        if add.path in seen:
            raise InvalidRequest(
                f"{place} is there twice.", next="A file can be added once in a commit."
            )
        seen.add(add.path)
        _check_numbers(add, place)
        _check_names(add, metadata, schema, place)
    partitions = _partition_texts(adds, metadata, schema)
    low = _bound_texts(adds, schema, "minValues")
    high = _bound_texts(adds, schema, "maxValues")
    _check_order(adds, schema, low, high)
    return [
        _fields(add, *(_pick(texts, number) for texts in (partitions, low, high)))
        for number, add in enumerate(adds)
    ]


def _pick(texts: Mapping[str, list[str | None]], number: int) -> dict[str, str | None]:
    return {name: column[number] for name, column in texts.items()}


def _fields(
    add: Add,
    partitions: Mapping[str, str | None],
    low: Mapping[str, str | None],
    high: Mapping[str, str | None],
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "path": add.path,
        "partitionValues": partitions,
        "size": add.size,
        "modificationTime": add.modification_time,
        "dataChange": True,
        **{name: value for name, value in add.fields.items() if value is not None},
    }
    if add.null_count and "stats" not in fields:
        counts: dict[str, Any] = {"numRecords": add.num_records, "nullCount": dict(add.null_count)}
        said = {name: value for name, value in counts.items() if value is not None}
        fields["stats"] = msgspec.json.encode(said).decode()
    if add.num_records is not None:
        fields["numRecords"] = add.num_records
    for name, texts in (("minValues", low), ("maxValues", high)):
        present = {column: text for column, text in texts.items() if text is not None}
        if present:
            fields[name] = present
    return fields


def _check_numbers(add: Add, place: str) -> None:
    _check_integer(add.size, f"{place}.size", 1, _SIZE_MAX, "bytes, at least 1")
    _check_integer(
        add.modification_time,
        f"{place}.modification_time",
        0,
        _MILLIS_MAX,
        "milliseconds since 1970, before the year 10000",
    )
    if add.num_records is not None:
        _check_integer(add.num_records, f"{place}.num_records", 0, _SIZE_MAX, "a number of rows")
    for column, count in add.null_count.items():
        _check_integer(count, f"{place}.null_count[{column!r}]", 0, _SIZE_MAX, "a number of rows")
    for name, value in add.fields.items():
        kind = ADD.get(name)
        if value is None:  # the same as left out
            continue
        if kind is Kind.INT:
            _check_integer(value, f"{place}.{name}", -_SIZE_MAX - 1, _SIZE_MAX, "an integer")
        elif kind is Kind.BOOL and not isinstance(value, bool):
            raise InvalidRequest(f"{place}.{name} is {value!r}.", next="It is true or false.")
        elif kind in (Kind.TEXT, Kind.WORD, Kind.STATS) and not isinstance(value, str):
            raise InvalidRequest(f"{place}.{name} is {value!r}.", next="It is a text.")
        elif name == "tags" and not _is_map(value):
            raise InvalidRequest(f"{place}.{name} is {value!r}.", next="It is a map of text.")
        elif kind is Kind.JSON and name != "tags" and not _is_list(value):
            raise InvalidRequest(f"{place}.{name} is {value!r}.", next="It is a list of text.")


def _is_map(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(text, str | None) for key, text in value.items()
    )


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _check_integer(value: object, name: str, low: int, high: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value!r}.", next=f"It is {what}.")


def _check_names(add: Add, metadata: Metadata, schema: pa.Schema, place: str) -> None:
    wanted = metadata.partition_columns
    missing = [name for name in wanted if name not in add.partition_values]
    if missing:
        raise InvalidRequest(
            f"{place}.partition_values has no {missing[0]!r}.",
            next=f"The table is partitioned by {', '.join(wanted)}; give a value, or None, for"
            " each.",
        )
    unknown = [name for name in add.partition_values if name not in wanted]
    if unknown:
        has = f"It has {', '.join(wanted)}." if wanted else "The table is not partitioned."
        raise InvalidRequest(
            f"{place}.partition_values has {unknown[0]!r}, which is no partition column.", next=has
        )
    for field_name in ("min_values", "max_values", "null_count"):
        for column in getattr(add, field_name):
            if schema.get_field_index(column) < 0:
                raise InvalidRequest(
                    f"{place}.{field_name} has {column!r}, which is no column of the table.",
                    next=f"Its columns are {', '.join(schema.names)}.",
                )


def _partition_texts(
    adds: Sequence[Add], metadata: Metadata, schema: pa.Schema
) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for column in metadata.partition_columns:
        index = schema.get_field_index(column)
        kind = pa.string() if index < 0 else schema.field(index).type
        texts = [
            _text(
                add.partition_values[column],
                kind,
                f"adds[{n}] ({add.path}).partition_values",
                column,
            )
            for n, add in enumerate(adds)
        ]
        values, unknown = partition_values(pa.chunked_array([array_of(texts, pa.string())]), kind)
        if pc.any(unknown).as_py():
            number = pc.index(unknown, True).as_py()
            raise InvalidRequest(
                f"adds[{number}] ({adds[number].path}).partition_values[{column!r}] is"
                f" {texts[number]!r}, which is no {kind}.",
                next="Give a value of the column's type, or None.",
            )
        null = pc.is_null(values).to_pylist()
        found[column] = [None if gone else text for text, gone in zip(texts, null, strict=True)]
    return found


def _text(value: object, kind: pa.DataType, place: str, column: str) -> str | None:
    try:
        return text_of(value, kind)
    except ValueError as error:
        raise InvalidRequest(
            f"{place}[{column!r}] is {value!r}: {error}.",
            next="Give a value of the column's type, or None.",
        ) from None


def _bound_texts(
    adds: Sequence[Add], schema: pa.Schema, field_name: str
) -> dict[str, list[str | None]]:
    attribute = snake(field_name)
    columns = sorted({column for add in adds for column in getattr(add, attribute)})
    found: dict[str, list[str | None]] = {}
    for column in columns:
        kind = schema.field(column).type
        texts = [
            _text(
                getattr(add, attribute).get(column),
                kind,
                f"adds[{n}] ({add.path}).{attribute}",
                column,
            )
            for n, add in enumerate(adds)
        ]
        found[column] = texts
        if not has_bounds(kind):
            continue
        array = pa.chunked_array([array_of(texts, pa.string())])
        bad = pc.and_(pc.is_valid(array), pc.is_null(cast_text(array, kind)))
        if not pa.types.is_floating(kind) and pc.any(bad).as_py():
            number = pc.index(bad, True).as_py()
            raise InvalidRequest(
                f"adds[{number}] ({adds[number].path}).{attribute}[{column!r}] is"
                f" {texts[number]!r}, which is no {kind}.",
                next="Give a value of the column's type, or leave it out.",
            )
    return found


def _check_order(
    adds: Sequence[Add],
    schema: pa.Schema,
    low: Mapping[str, list[str | None]],
    high: Mapping[str, list[str | None]],
) -> None:
    """Bounds that are swapped would hide rows."""
    for column in low.keys() & high.keys():
        kind = schema.field(column).type
        if not has_bounds(kind):
            continue
        first, last = (
            cast_text(pa.chunked_array([array_of(texts[column], pa.string())]), kind)
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
