"""The schema of a Delta table: column mapping, and columns whose type was widened. Pure.

The physical name and the field id of a column are metadata of its Arrow field, at every level of
nesting, and the mode is metadata of the schema. So a schema says where its values are stored,
wherever it is passed on; users see its logical names.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import UnsupportedProtocol
from arrowlog.formats import PHYSICAL_NAME_KEY, UPGRADE, parse_spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

MAPPING_MODE_PROPERTY = "delta.columnMapping.mode"
_ID, _NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
# The names that pyarrow gives to the ids in Parquet files.
_FIELD_ID = b"PARQUET:field_id"
_MODE = b"arrowlog.columnMapping"
_MODES = ("none", "name", "id")


def parse_delta_schema(
    text: str, configuration: Mapping[str, str], where: str, *, mapping_enabled: bool
) -> pa.Schema:
    """Convert the schema of a Delta table to Arrow, with its column mapping as metadata.

    `mapping_enabled` says whether the protocol has column mapping; without it the property has no
    effect. Raises `ValueError` saying what is wrong, and `UnsupportedProtocol` for a change of a
    column's type that cannot be read.
    """
    stored_mode = configuration.get(MAPPING_MODE_PROPERTY, "none") if mapping_enabled else "none"
    mode = stored_mode.lower()  # as Spark reads it
    if mode not in _MODES:
        raise ValueError(f"{MAPPING_MODE_PROPERTY} has the unknown value {stored_mode!r}")
    schema = parse_spark_schema(text, None if mode == "none" else _stored_as)
    if "delta.typeChanges" in text:
        check_type_changes(json.loads(text), where)
    return schema if mode == "none" else schema.with_metadata({_MODE: mode.encode()})


def _stored_as(item: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of an Arrow field: the physical name and the id of a column.

    Raises `ValueError` if the column has none: its values could not be found.
    """
    metadata = item.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, number = metadata.get(_NAME), metadata.get(_ID)
    if not isinstance(name, str) or isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"column {item['name']!r} has no {_NAME} or no {_ID}")
    return {PHYSICAL_NAME_KEY.decode(): name, _FIELD_ID.decode(): str(number)}


def mapping_mode(schema: pa.Schema) -> str:
    """Return the mode of column mapping that a schema was parsed with: `none`, `name` or `id`."""
    mode: bytes = (schema.metadata or {}).get(_MODE, b"none")
    return mode.decode()


def stored_name(item: pa.Field) -> str:
    """Return the name under which the log and data files store a column.

    >>> stored_name(pa.field("a", pa.int64()))
    'a'
    """
    name: bytes = (item.metadata or {}).get(PHYSICAL_NAME_KEY) or item.name.encode()
    return name.decode()


def field_id(item: pa.Field) -> int | None:
    """Return the id of a column, of the table or of a Parquet file; None if it has none."""
    text = (item.metadata or {}).get(_FIELD_ID)
    return int(text) if text is not None and text.lstrip(b"-").isdigit() else None


def physical_names(schema: pa.Schema) -> dict[str, str]:
    """Return the physical name of each column of a schema."""
    return {item.name: stored_name(item) for item in schema}


def physical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with physical names at every level."""
    return pa.schema([_to_physical(item) for item in schema])


def _to_physical(item: pa.Field) -> pa.Field:
    return pa.field(stored_name(item), _physical_type(item.type), item.nullable)


def _physical_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_to_physical(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_physical_type(kind.key_type), _physical_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_physical_type(kind.value_type))
    return kind


# Changes of a column's type that a reader may find, from the type in old files to the one in new.
_INTEGERS = ("byte", "short", "integer", "long")
_WIDENINGS = (
    {(a, b) for i, a in enumerate(_INTEGERS) for b in _INTEGERS[i + 1 :]}
    | {("float", "double"), ("date", "timestamp_ntz")}
    | {(name, "double") for name in ("byte", "short", "integer")}
)
# Digits before the decimal point that an integer type needs to fit a decimal.
_DECIMAL_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def is_supported_widening(old: str, new: str) -> bool:
    """Whether values of an old type of a column can be read as the new one.

    >>> is_supported_widening("integer", "long"), is_supported_widening("string", "integer")
    (True, False)
    >>> is_supported_widening("decimal(10,2)", "decimal(12,4)")
    True
    """
    if old == new or (old, new) in _WIDENINGS:
        return True
    target = _parse_decimal(new)
    if target is None:
        return False
    if old in _DECIMAL_DIGITS:
        return target[0] - target[1] >= _DECIMAL_DIGITS[old]
    source = _parse_decimal(old)
    if source is None:
        return False
    return target[1] >= source[1] and target[0] - target[1] >= source[0] - source[1]


def _parse_decimal(name: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"decimal\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)", name)
    return None if match is None else (int(match[1]), int(match[2]))


def check_type_changes(schema: dict[str, Any], where: str) -> None:
    """Raise `UnsupportedProtocol` if a column has changed its type in a way that is not supported.

    `schema` is Spark's schema as parsed JSON; the error names the column.
    """
    for column, change in _type_changes(schema, ""):
        old, new = change.get("fromType"), change.get("toType")
        if not (isinstance(old, str) and isinstance(new, str) and is_supported_widening(old, new)):
            raise UnsupportedProtocol(
                f"{where}: the column {column!r} has changed its type from {old} to {new} (table"
                " feature typeWidening), which this arrowlog cannot read.",
                next=UPGRADE,
            )


def _type_changes(struct: Any, prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the recorded type changes of all columns, with their names."""
    found: list[tuple[str, dict[str, Any]]] = []
    if not isinstance(struct, dict):
        return found
    for field in struct.get("fields") or ():
        if not isinstance(field, dict):
            continue
        name = f"{prefix}{field.get('name')}"
        metadata = field.get("metadata")
        changes = metadata.get("delta.typeChanges") if isinstance(metadata, dict) else None
        found += [(name, change) for change in changes or () if isinstance(change, dict)]
        found += _type_changes(_inner_struct(field.get("type")), f"{name}.")
    return found


def _inner_struct(kind: Any) -> Any:
    """Return a struct with the structs inside a type as fields, through arrays and maps."""
    if not isinstance(kind, dict):
        return None
    if kind.get("type") == "struct":
        return kind
    inner = [
        {"name": name, "type": kind[key]}
        for key, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value"))
        if isinstance(kind.get(key), dict)
    ]
    return {"fields": inner}
