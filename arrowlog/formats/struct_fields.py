"""Fields of struct columns: their types, the names of their statistics, and where these are. Pure.

Statistics of struct fields are nested JSON objects in `stats`, in every format:
`{"minValues":{"a":{"b":1}}}` is the minimum of the field `b` of the column `a`. So a column whose
name contains a dot is never mistaken for a field. The fields of lists and maps have no statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from arrowlog.formats.base import PHYSICAL_NAME_KEY, physical_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
            for path, keys, kind in _walk(item):
                name = leaf_name(schema, path)
                if name is not None:
                    found[name] = StructLeaf(name, path, keys, kind)
    return found


def _walk(item: pa.Field) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], pa.DataType]]:
    """Yield path, physical path and type of every field below a field, or of the field itself."""
    stored: bytes = (item.metadata or {}).get(PHYSICAL_NAME_KEY) or item.name.encode()
    if not pa.types.is_struct(item.type):
        yield (item.name,), (stored.decode(),), item.type
        return
    for index in range(item.type.num_fields):
        inner = item.type.field(index)
        if item.type.get_field_index(inner.name) >= 0:  # a name that occurs once
            for path, keys, kind in _walk(inner):
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
