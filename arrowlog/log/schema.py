"""Table schemas: Spark's schema JSON, as the log has it, to Arrow and back."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

_NAMES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "null": pa.null(),
    "variant": pa.struct([("metadata", pa.binary()), ("value", pa.binary())]),
}
_SPARK = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.null(): "void",
}
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(-?\d+)\s*\))?")
_CHARS = re.compile(r"(?:var)?char\(\s*\d+\s*\)")
_DEPTH_MAX = 100


def from_spark(text: str) -> pa.Schema:
    """An Arrow schema from Spark's schema JSON. `ValueError` says what is wrong with it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the schema is not JSON") from None
    if not isinstance(found, dict) or found.get("type") != "struct":
        raise ValueError("the schema is not a struct")
    return pa.schema(_members(found, "", 0))


def _members(struct: dict[str, Any], where: str, depth: int) -> list[pa.Field]:
    members = struct.get("fields")
    if not isinstance(members, list):
        raise ValueError(f"{where or 'the schema'} has no list of fields")
    fields = []
    for item in members:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ValueError(f"a field of {where or 'the schema'} has no name")
        name = item["name"]
        kind = _type(item.get("type"), f"{where}{name}", depth + 1)
        required = item.get("nullable") is False and not pa.types.is_null(kind)
        fields.append(pa.field(name, kind, nullable=not required))
    names = [item.name for item in fields]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column {twice!r} is there twice")
    return fields


def _type(found: Any, where: str, depth: int) -> pa.DataType:
    if depth > _DEPTH_MAX:
        raise ValueError(f"{where[:60]} is nested too deeply")
    if isinstance(found, str):
        return _simple(found.strip().lower(), where)
    kind = found.get("type") if isinstance(found, dict) else None
    if kind == "struct":
        return pa.struct(_members(found, f"{where}.", depth))
    if kind == "array":
        return pa.list_(_type(found.get("elementType"), f"{where}[]", depth + 1))
    if kind == "map":
        key = _type(found.get("keyType"), f"{where} key", depth + 1)
        if pa.types.is_null(key):
            raise ValueError(f"column {where + ' key'!r} has the impossible type void")
        return pa.map_(key, _type(found.get("valueType"), f"{where} value", depth + 1))
    if kind == "udt":
        return _type(found.get("sqlType"), where, depth + 1)
    raise ValueError(f"column {where!r} has the unknown type {found!r}")


def _simple(name: str, where: str) -> pa.DataType:
    if name in _NAMES:
        return _NAMES[name]
    if _CHARS.fullmatch(name):
        return pa.string()
    if name.startswith("interval"):
        return pa.month_day_nano_interval()
    found = _DECIMAL.fullmatch(name)
    if found is None:
        raise ValueError(f"column {where!r} has the unknown type {name!r}")
    precision, scale = (int(found[1]), int(found[2])) if found[1] else (10, 0)
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise ValueError(f"column {where!r} has the impossible type {name!r}")
    return pa.decimal128(precision, scale)


def to_spark(schema: pa.Schema) -> str:
    """Spark's schema JSON for an Arrow schema. `ValueError` names a column it has no type for."""
    return json.dumps(_struct(schema), separators=(",", ":"), ensure_ascii=False)


def _struct(fields: Any) -> dict[str, Any]:
    items = [
        {"name": f.name, "type": _name(f.type, f.name), "nullable": f.nullable, "metadata": {}}
        for f in fields
    ]
    return {"type": "struct", "fields": items}


def _name(kind: pa.DataType, where: str) -> Any:
    types = pa.types
    if kind in _SPARK:
        return _SPARK[kind]
    if types.is_dictionary(kind):
        return _name(kind.value_type, where)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_struct(kind):
        return _struct([kind.field(i) for i in range(kind.num_fields)])
    if types.is_map(kind):
        key, value = _name(kind.key_type, where), _name(kind.item_type, where)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _name(kind.value_type, where)
        return {"type": "array", "elementType": item, "containsNull": True}
    raise ValueError(f"column {where!r} has type {kind}, which a table cannot hold")
