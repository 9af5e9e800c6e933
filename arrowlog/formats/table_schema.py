"""Table schemas: Spark's schema JSON to Arrow and back, DDL text, and fields of structs. Pure.

Statistics of struct fields are nested JSON objects in `stats`, in every format:
`{"minValues":{"a":{"b":1}}}` is the minimum of the field `b` of the column `a`. So a column whose
name contains a dot is never mistaken for a field. The fields of lists and maps have no statistics.

DDL text such as `id bigint not null, day string` has the type names of Spark SQL.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    # Returns what to keep of a field's metadata, given the field as parsed JSON.
    FieldMetadata = Callable[[dict[str, Any]], dict[str, str]]

# Metadata of a field in a table's schema: its name in data files, statistics and partition values.
PHYSICAL_NAME_KEY = b"arrowlog.physicalName"
# Every type name that is read, including the SQL names that some writers use.
_ARROW_TYPES: dict[str, pa.DataType] = {
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
# The type names that are written; types with parameters are handled in `_type_name`.
_SPARK_NAMES = {
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
_CHAR_TYPE = re.compile(r"(?:var)?char\(\s*\d+\s*\)")
_MAX_DEPTH = 100  # levels of nesting; keeps the recursion far from Python's limit


def parse_spark_schema(text: str, field_metadata: FieldMetadata | None = None) -> pa.Schema:
    """Convert Spark's schema JSON to an Arrow schema.

    `field_metadata` chooses the metadata of each field, nested ones included; without it, fields
    have none. Raises `ValueError` saying what is wrong and in which column.
    """
    try:
        struct = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the schema is not JSON") from None
    if not isinstance(struct, dict) or struct.get("type") != "struct":
        raise ValueError("the schema is not a struct")
    return pa.schema(_to_fields(struct, "", 0, field_metadata))


def _to_fields(
    struct: dict[str, Any], where: str, depth: int, field_metadata: FieldMetadata | None
) -> list[pa.Field]:
    """Convert the members of a struct; `where` is the path of the struct, for errors."""
    members = struct.get("fields")
    if not isinstance(members, list):
        raise ValueError(f"{where or 'the schema'} has no list of fields")
    fields = []
    for item in members:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ValueError(f"a field of {where or 'the schema'} has no name")
        name = item["name"]
        kind = _to_type(item.get("type"), f"{where}{name}", depth + 1, field_metadata)
        # Arrow has no non-nullable null type.
        required = item.get("nullable") is False and not pa.types.is_null(kind)
        metadata = field_metadata(item) if field_metadata is not None else None
        fields.append(pa.field(name, kind, nullable=not required, metadata=metadata or None))
    names = [item.name for item in fields]
    if len(set(names)) != len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column {duplicate!r} appears twice")
    return fields


def _to_type(
    spark_type: Any, where: str, depth: int, field_metadata: FieldMetadata | None
) -> pa.DataType:
    """Convert a Spark type; `where` is the path of its column, for errors."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where[:60]} is nested too deeply")
    if isinstance(spark_type, str):
        return _to_simple_type(spark_type.strip().lower(), where)
    kind = spark_type.get("type") if isinstance(spark_type, dict) else None
    if kind == "struct":
        return pa.struct(_to_fields(spark_type, f"{where}.", depth, field_metadata))
    if kind == "array":
        element = spark_type.get("elementType")
        return pa.list_(_to_type(element, f"{where}[]", depth + 1, field_metadata))
    if kind == "map":
        key = _to_type(spark_type.get("keyType"), f"{where} key", depth + 1, field_metadata)
        if pa.types.is_null(key):
            raise ValueError(f"column {where + ' key'!r} has the invalid type void")
        value = spark_type.get("valueType")
        return pa.map_(key, _to_type(value, f"{where} value", depth + 1, field_metadata))
    if kind == "udt":
        return _to_type(spark_type.get("sqlType"), where, depth + 1, field_metadata)
    raise ValueError(f"column {where!r} has the unknown type {spark_type!r}")


def _to_simple_type(name: str, where: str) -> pa.DataType:
    if name in _ARROW_TYPES:
        return _ARROW_TYPES[name]
    if _CHAR_TYPE.fullmatch(name):
        return pa.string()
    if name.startswith("interval"):
        return pa.month_day_nano_interval()
    match = _DECIMAL.fullmatch(name)
    if match is None:
        raise ValueError(f"column {where!r} has the unknown type {name!r}")
    # Spark's default for a decimal without parameters is decimal(10, 0).
    precision, scale = (int(match[1]), int(match[2])) if match[1] else (10, 0)
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise ValueError(f"column {where!r} has the invalid type {name!r}")
    return pa.decimal128(precision, scale)


def format_spark_schema(schema: pa.Schema) -> str:
    """Convert an Arrow schema to Spark's schema JSON.

    Raises `ValueError` naming the column whose type a table cannot hold.
    """
    return json.dumps(_to_struct(schema), separators=(",", ":"), ensure_ascii=False)


def _to_struct(fields: Any) -> dict[str, Any]:
    items = [
        {"name": f.name, "type": _type_name(f.type, f.name), "nullable": f.nullable, "metadata": {}}
        for f in fields
    ]
    return {"type": "struct", "fields": items}


def _type_name(kind: pa.DataType, where: str) -> Any:
    """Return the Spark type of an Arrow type: a name, or a nested object."""
    types = pa.types
    if kind in _SPARK_NAMES:
        return _SPARK_NAMES[kind]
    if types.is_dictionary(kind):
        return _type_name(kind.value_type, where)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_struct(kind):
        return _to_struct([kind.field(i) for i in range(kind.num_fields)])
    if types.is_map(kind):
        key, value = _type_name(kind.key_type, where), _type_name(kind.item_type, where)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _type_name(kind.value_type, where)
        return {"type": "array", "elementType": item, "containsNull": True}
    raise ValueError(f"column {where!r} has type {kind}, which a table cannot hold")


def physical_name(schema: pa.Schema, name: str) -> str:
    """Return the name of a column in data files, statistics and partition values."""
    index = schema.get_field_index(name)
    metadata = schema.field(index).metadata if index >= 0 else None
    if not metadata or PHYSICAL_NAME_KEY not in metadata:
        return name
    text: bytes = metadata[PHYSICAL_NAME_KEY]
    return text.decode()


class StructLeaf(NamedTuple):
    """A field inside a struct column that is not a struct itself.

    `name` is the name of its statistics, `path` leads to it from the top-level column, and `keys`
    are the physical names on that path, under which data files and the log store it.
    """

    name: str
    path: tuple[str, ...]
    keys: tuple[str, ...]
    type: pa.DataType


def find_field_type(schema: pa.Schema, path: Sequence[str]) -> pa.DataType | None:
    """Return the type of a column or struct field; None if there is none, or more than one."""
    kind: pa.DataType | None = None
    for depth, name in enumerate(path):
        if depth and (kind is None or not pa.types.is_struct(kind)):
            return None
        fields: pa.Schema | pa.StructType = kind if depth else schema
        index = fields.get_field_index(name)
        if index < 0:
            return None
        kind = fields.field(index).type
    return kind


def leaf_name(schema: pa.Schema, path: Sequence[str]) -> str | None:
    """Return the name of a struct field's statistics; None if no name is free.

    It is the path, joined by dots. Names that contain a dot are quoted, and so are all names if
    the table has a column with the name that they make.

    >>> struct = pa.struct([("b", pa.int64()), ("c.d", pa.int64())])
    >>> leaf_name(pa.schema([("a", struct)]), ("a", "c.d"))
    'a.`c.d`'
    >>> leaf_name(pa.schema([("a", struct), ("a.b", pa.int64())]), ("a", "b"))
    '`a`.`b`'
    """
    quoted = [f"`{part.replace('`', '``')}`" for part in path]
    plain = [
        q if "." in part or "`" in part else part for part, q in zip(path, quoted, strict=True)
    ]
    for name in (".".join(plain), ".".join(quoted)):
        if name not in schema.names:
            return name
    return None


def struct_leaves(schema: pa.Schema) -> Mapping[str, StructLeaf]:
    """Return the fields inside the struct columns of a schema, by the name of their statistics."""
    found: dict[str, StructLeaf] = {}
    for item in schema:
        if pa.types.is_struct(item.type) and schema.get_field_index(item.name) >= 0:
            for path, keys, kind in _walk_leaves(item):
                name = leaf_name(schema, path)
                if name is not None:
                    found[name] = StructLeaf(name, path, keys, kind)
    return found


def _walk_leaves(item: pa.Field) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], pa.DataType]]:
    """Yield path, physical path and type of every field below a field, or of the field itself."""
    stored: bytes = (item.metadata or {}).get(PHYSICAL_NAME_KEY) or item.name.encode()
    if not pa.types.is_struct(item.type):
        yield (item.name,), (stored.decode(),), item.type
        return
    for index in range(item.type.num_fields):
        inner = item.type.field(index)
        if item.type.get_field_index(inner.name) >= 0:  # a name that occurs once
            for path, keys, kind in _walk_leaves(inner):
                yield (item.name, *path), (stored.decode(), *keys), kind


def stats_type(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column or struct field by the name of its statistics; else text."""
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index).type
    leaf = struct_leaves(schema).get(name)
    return pa.string() if leaf is None else leaf.type


def stats_keys(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Return the keys that lead to a column or struct field inside a map of `stats`."""
    if name not in schema.names:
        leaf = struct_leaves(schema).get(name)
        if leaf is not None:
            return leaf.keys
    return (physical_name(schema, name),)


_DDL_PATTERN = r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))"  # compiled by the first use
_DDL_TYPES = {
    "boolean": "boolean",
    "bool": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "varchar": "string",
    "text": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_DDL_EXAMPLE = "Write columns as: id bigint not null, day string, amount decimal(10,2)."
_DDL_MAX_DEPTH = 50  # nested types


def parse_ddl(text: str) -> str:
    """Convert DDL text to Spark's schema JSON. Raises `InvalidRequest` if it is not DDL.

    >>> parse_ddl("id bigint not null")
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":false,"metadata":{}}]}'
    """
    parser = _DdlParser(text)
    schema = {"type": "struct", "fields": parser.fields("")}
    return json.dumps(schema, separators=(",", ":"))


class _DdlParser:
    """A recursive descent over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []  # kind and text: quoted, word or sign
        self._position = 0
        self._depth = 0
        token = re.compile(_DDL_PATTERN)
        at, end = 0, len(text.rstrip())
        while at < end:
            match = token.match(text, at)
            if match is None:
                raise _invalid_ddl(f"{text[at:].strip()[:20]!r} is not expected")
            quoted, word, sign = match.groups()
            if quoted is not None:
                self._tokens.append(("quoted", quoted.replace("``", "`")))
            else:
                self._tokens.append(("word", word) if word is not None else ("sign", sign))
            at = match.end()

    def fields(self, end: str) -> list[dict[str, Any]]:
        """Parse columns up to the sign `end`, or to the end of the text if it is empty."""
        found = [self._field()]
        while self._accept(","):
            found.append(self._field())
        if end:
            self._expect(end)
        elif self._position < len(self._tokens):
            raise _invalid_ddl(f"{self._tokens[self._position][1]!r} is not expected")
        return found

    def _field(self) -> dict[str, Any]:
        kind, name = self._next("the name of a column")
        if kind == "sign":
            raise _invalid_ddl(f"{name!r} is not the name of a column")
        self._accept(":")
        data_type = self._type()
        nullable = True
        if self._accept_word("not"):
            if not self._accept_word("null"):
                raise _invalid_ddl("NOT is not followed by NULL")
            nullable = False
        else:
            self._accept_word("null")
        return {"name": name, "type": data_type, "nullable": nullable, "metadata": {}}

    def _type(self) -> Any:
        self._depth += 1
        if self._depth > _DDL_MAX_DEPTH:
            raise _invalid_ddl(f"types are nested more than {_DDL_MAX_DEPTH} deep")
        kind, text = self._next("a type")
        name = text.lower()
        result: Any = _DDL_TYPES.get(name) if kind == "word" else None
        if kind == "word" and name in ("decimal", "numeric"):
            result = f"decimal({self._precision()})"
        elif kind == "word" and name == "array":
            self._expect("<")
            result = {"type": "array", "elementType": self._type(), "containsNull": True}
            self._expect(">")
        elif kind == "word" and name == "map":
            self._expect("<")
            result = {"type": "map", "keyType": self._type()}
            self._expect(",")
            result |= {"valueType": self._type(), "valueContainsNull": True}
            self._expect(">")
        elif kind == "word" and name == "struct":
            self._expect("<")
            result = {"type": "struct", "fields": self.fields(">")}
        if result is None:
            raise _invalid_ddl(f"{text!r} is not a type")
        if name == "varchar" and self._accept("("):
            self._next("a length")
            self._expect(")")
        self._depth -= 1
        return result

    def _precision(self) -> str:
        if not self._accept("("):
            return "10,0"
        precision, scale = self._next("a precision")[1], "0"
        if self._accept(","):
            scale = self._next("a scale")[1]
        self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal()):
            raise _invalid_ddl(f"decimal({precision},{scale}) is not a type")
        return f"{int(precision)},{int(scale)}"

    def _next(self, what: str) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            raise _invalid_ddl(f"{what} is missing at the end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _accept(self, sign: str) -> bool:
        found = self._tokens[self._position : self._position + 1] == [("sign", sign)]
        self._position += found
        return found

    def _accept_word(self, word: str) -> bool:
        kind, text = (*self._tokens, ("", ""))[self._position]
        found = kind == "word" and text.lower() == word
        self._position += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise _invalid_ddl(f"{sign!r} is missing")


def _invalid_ddl(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The schema is not valid: {reason}.", next=_DDL_EXAMPLE)
