"""Avro schemas: parse a writer's schema, and read values of any type one by one. Pure.

The reader of single values serves files of few records, and it is the reference for what the
columnar decoder (`arrowlog.decode.avro_columns`) accepts: both refuse the same bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# A schema of IndexTables is three levels deep. The limits keep a hostile one from exhausting the
# stack, and one whose types multiply from taking forever.
MAX_SCHEMA_DEPTH = 32
MAX_VALUE_DEPTH = 64  # of values whose type contains itself
MAX_MIN_SIZE = 1 << 16  # bytes of the smallest value of a type
_VARINT_BYTES = 10  # at most, for 64 bits
_WORD = 1 << 64


class SchemaError(ValueError):
    """A text is not an Avro schema, or one beyond the limits of this module."""


class ValueDamaged(ValueError):
    """Bytes are not a value of their type."""


class AvroType(msgspec.Struct, eq=False):
    """A type of a schema. Types are compared by identity: a type may contain itself.

    `fields` are those of a record, `items` the type of an array's items or a map's values,
    `branches` those of a union; `size` is the length of a fixed, or the number of an enum's
    symbols. `min_size` is the length in bytes of the shortest value; a type with 0 has only values
    without bytes.
    """

    kind: str
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    size: int = 0
    min_size: int = 1

    @property
    def value_type(self) -> AvroType | None:
        """The type itself, or the other branch of a union of null and one type, else None."""
        if self.kind != "union":
            return self
        others = [branch for branch in self.branches if branch.kind != "null"]
        return others[0] if len(others) == 1 else None


class AvroField(msgspec.Struct, eq=False):
    """A field of a record."""

    name: str
    type: AvroType


class _Parser(msgspec.Struct):
    named: dict[str, AvroType] = msgspec.field(default_factory=dict)

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError("the schema is nested too deeply")
        if isinstance(schema, str):
            return self._named_type(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise SchemaError("a type is neither a name, a list nor an object")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, namespace, depth)
        if kind == "array":
            return AvroType("array", items=self.parse(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return AvroType("map", items=self.parse(schema.get("values"), namespace, depth + 1))
        return self.parse(kind, namespace, depth + 1)

    def _named_type(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, min_size=_PRIMITIVE_SIZES.get(name, 1))
        for full_name in (name if "." in name else f"{namespace}.{name}", name):
            if full_name in self.named:
                return self.named[full_name]
        raise SchemaError(f"the type {name!r} is not defined")

    def _union(self, schemas: list[Any], namespace: str, depth: int) -> AvroType:
        if not schemas:
            raise SchemaError("a union has no branches")
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in schemas)
        smallest = min(branch.min_size for branch in branches)
        return AvroType("union", branches=branches, min_size=1 + smallest)

    def _definition(self, kind: str, schema: Any, namespace: str, depth: int) -> AvroType:
        name = schema.get("name")
        if not isinstance(name, str):
            raise SchemaError(f"a type {kind} has no name")
        own = schema.get("namespace", namespace)
        space = name.rpartition(".")[0] if "." in name else own if isinstance(own, str) else ""
        full_name = name if "." in name else f"{space}.{name}"
        if full_name in self.named:
            raise SchemaError(f"the type {name!r} is defined twice")
        defined = AvroType("record" if kind == "error" else kind)
        self.named[full_name] = defined
        if kind == "fixed":
            defined.size = defined.min_size = _length(schema.get("size"))
            return defined
        if kind == "enum":
            defined.size = len(_list(schema.get("symbols")))
            return defined
        defined.fields = tuple(
            self._field(item, space, depth) for item in _list(schema.get("fields"))
        )
        names = [item.name for item in defined.fields]
        if len(set(names)) < len(names):
            raise SchemaError(f"two fields of {name!r} have the same name")
        defined.min_size = sum(item.type.min_size for item in defined.fields)
        if defined.min_size > MAX_MIN_SIZE:
            raise SchemaError(f"the type {name!r} has too many fields")
        if _contains(defined, defined, set()):
            raise SchemaError(f"a value of the type {name!r} would have no end")
        return defined

    def _field(self, item: Any, namespace: str, depth: int) -> AvroField:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise SchemaError("a field of a record has no name")
        return AvroField(item["name"], self.parse(item.get("type"), namespace, depth + 1))


_PRIMITIVE_SIZES = {"null": 0, "float": 4, "double": 8}


def _contains(kind: AvroType, wanted: AvroType, seen: set[int]) -> bool:
    """Return whether every value of a record contains a value of the type `wanted`."""
    for item in kind.fields:
        if item.type is wanted:
            return True
        if id(item.type) not in seen:
            seen.add(id(item.type))
            if _contains(item.type, wanted, seen):
                return True
    return False


def _length(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_MIN_SIZE:
        raise SchemaError("the size of a fixed is not a small number")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError("fields or symbols are not a list")
    return value


def parse_schema(text: bytes | str) -> AvroType:
    """Parse the JSON text of a schema. Raises `SchemaError` if it is none, or beyond the limits."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise SchemaError(f"the schema is not JSON ({error})") from None
    return _Parser().parse(parsed, "", 0)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint; returns the value and the position after it."""
    bits = shift = 0
    for step in range(_VARINT_BYTES):
        if at + step >= len(data):
            raise ValueDamaged("a number is cut off")
        octet = data[at + step]
        bits |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            if bits >= _WORD:
                break
            return (bits >> 1) ^ -(bits & 1), at + step + 1
    raise ValueDamaged("a number has more than 64 bits")


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 32 bits."""
    value, at = read_long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueDamaged("an int has more than 32 bits")
    return value, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read bytes with their length before them."""
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueDamaged("a text or bytes value does not end within its block")
    return bytes(data[at : at + length]), at + length


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a text with its length before it."""
    value, at = read_bytes(data, at)
    try:
        return value.decode(), at
    except UnicodeDecodeError:
        raise ValueDamaged("a text is not UTF-8") from None


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if at >= len(data) or data[at] > 1:
        raise ValueDamaged("a boolean is neither 0 nor 1")
    return bool(data[at]), at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack("<f", _take(data, at, 4))[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack("<d", _take(data, at, 8))[0], at + 8


def _take(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueDamaged("a value is cut off")
    return bytes(data[at : at + length])


_READERS: Mapping[str, Callable[[bytes, int], tuple[Any, int]]] = {
    "boolean": _read_boolean,
    "int": read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def read_value(kind: AvroType, data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """Read a value; returns it and the position after it.

    Records and maps are dictionaries, an enum is the index of its symbol. Of equal keys in a map
    the last one counts. A value without bytes is None, and items without bytes are left out.
    Raises `ValueDamaged` if the bytes are not a value of the type.
    """
    if depth > MAX_VALUE_DEPTH:
        raise ValueDamaged("values are nested too deeply")
    if kind.min_size == 0:
        return None, at
    simple = _READERS.get(kind.kind)
    if simple is not None:
        return simple(data, at)
    if kind.kind == "record":
        values = {}
        for item in kind.fields:
            values[item.name], at = read_value(item.type, data, at, depth + 1)
        return values, at
    if kind.kind in ("union", "enum"):
        index, at = read_int(data, at)
        if not 0 <= index < (len(kind.branches) if kind.kind == "union" else kind.size):
            raise ValueDamaged(f"the index of a {kind.kind} is out of range")
        return (
            read_value(kind.branches[index], data, at, depth + 1)
            if kind.kind == "union"
            else (index, at)
        )
    if kind.kind == "fixed":
        return _take(data, at, kind.size), at + kind.size
    return _read_collection(kind, data, at, depth)


def _read_collection(kind: AvroType, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Read an array or a map: blocks of items, each with its number before it."""
    assert kind.items is not None
    pairs: dict[str, Any] = {}
    items: list[Any] = []
    while True:
        count, stop, at = read_item_count(kind, data, at)
        if count == 0:
            return (pairs if kind.kind == "map" else items), at
        if kind.kind == "array" and kind.items.min_size == 0:
            continue  # items without bytes may be any number: they are left out
        for _ in range(count):
            if kind.kind == "map":
                key, at = read_string(data, at)
                pairs[key], at = read_value(kind.items, data, at, depth + 1)
            else:
                value, at = read_value(kind.items, data, at, depth + 1)
                items.append(value)
        if stop not in (None, at):
            raise ValueDamaged("a block of items does not have the size it gives")


def read_item_count(kind: AvroType, data: bytes, at: int) -> tuple[int, int | None, int]:
    """Read the head of a block of items: number, end if the block has it, position after it."""
    assert kind.items is not None
    count, at = read_long(data, at)
    stop = None
    if count < 0:  # the size in bytes follows, for readers that skip
        size, at = read_long(data, at)
        count, stop = -count, at + size
    smallest = kind.items.min_size + (kind.kind == "map")
    if smallest and count > len(data) - at:
        raise ValueDamaged("an array or map has more items than its block has bytes")
    return count, stop, at
