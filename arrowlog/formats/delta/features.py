"""The protocol of a Delta table: which tables this release reads, and which it refuses. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import UnsupportedProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

READER_VERSION_MAX = 3
READER_VERSION_COLUMN_MAPPING = 2
READER_VERSION_FEATURES = 3

READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "variantType",
        "variantType-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_NEXT = "Read the table with the program that wrote it, or upgrade arrowlog."


def check_delta_readable(reader_version: int, reader_features: Sequence[str], where: str) -> None:
    """Raise `UnsupportedProtocol`, naming everything unknown, unless the table can be read.

    Feature names are compared exactly. `where` names the table or file for the error.
    """
    unknown = sorted(set(reader_features) - READER_FEATURES)
    if reader_version <= READER_VERSION_MAX and not unknown:
        return
    needs = []
    if reader_version > READER_VERSION_MAX:
        needs.append(f"Delta reader version {reader_version}")
    if unknown:
        needs.append(f"the Delta reader feature{'s' * (len(unknown) > 1)} {', '.join(unknown)}")
    raise UnsupportedProtocol(
        f"{where}: the table needs {' and '.join(needs)}; this arrowlog reads Delta tables up to"
        f" reader version {READER_VERSION_MAX} with the features"
        f" {', '.join(sorted(READER_FEATURES))}.",
        next=_NEXT,
    )


def uses_column_mapping(reader_version: int, reader_features: Sequence[str]) -> bool:
    """Whether the protocol lets `delta.columnMapping.mode` take effect."""
    if reader_version == READER_VERSION_COLUMN_MAPPING:
        return True
    return reader_version >= READER_VERSION_FEATURES and "columnMapping" in reader_features


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
    import re

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
                next=_NEXT,
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
