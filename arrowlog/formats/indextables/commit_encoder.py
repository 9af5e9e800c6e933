"""Encode actions as the bytes of a commit: JSON lines, the commitInfo first.

`commitInfo.numActions` is the number of lines after it and `commitInfo.checksum` the CRC-32 of
their bytes, so that every reader detects a commit that lost a line or has a flipped bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from arrowlog.formats.indextables.compression import crc32
from arrowlog.formats.indextables.json_text import encode_add_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from arrowlog.formats import Metadata, Protocol

CHECKSUM_PREFIX = "crc32:"


def encode_action(action: str, fields: Mapping[str, Any]) -> bytes:
    """Encode one action as a line. Fields whose value is None are omitted."""
    present = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({action: present}) + b"\n"


def encode_commit(info: Mapping[str, Any], lines: Sequence[bytes]) -> bytes:
    """Encode a commit after version 0: `info` with the action count and checksum, then `lines`."""
    body = b"".join(lines)
    full_info = {**info, "numActions": len(lines), "checksum": format_checksum(body)}
    return encode_action("commitInfo", full_info) + body


def encode_first_commit(protocol: Protocol, metadata: Metadata) -> bytes:
    """Encode version 0: exactly one protocol and one metaData."""
    return encode_action("protocol", protocol_fields(protocol)) + encode_action(
        "metaData", metadata_fields(metadata)
    )


def format_checksum(body: bytes | memoryview) -> str:
    """Return the checksum of some bytes as text: `crc32:` and eight hexadecimal digits."""
    return f"{CHECKSUM_PREFIX}{crc32(body):08x}"


def protocol_fields(protocol: Protocol) -> dict[str, Any]:
    """Return the fields of a `protocol` action."""
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": list(protocol.reader_features) or None,
        "writerFeatures": list(protocol.writer_features) or None,
    }


def metadata_fields(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of a `metaData` action."""
    return {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {
            "provider": metadata.format_provider,
            "options": dict(metadata.format_options),
        },
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }


def encode_adds(adds: pa.Table, **changed: Any) -> list[bytes]:
    """Encode decoded adds as lines, with every field that was read; `changed` overrides fields."""
    return [
        b'{"add":%b}\n' % text.encode() for text in encode_add_objects(adds, changed).to_pylist()
    ]


def encode_removes(adds: pa.Table, millis: int, *, data_change: bool) -> list[bytes]:
    """Encode a remove for each decoded add, identified by the `key` of its file.

    The removes carry the extended file metadata: partition values and size.
    """
    columns = [name for name in adds.column_names if name.startswith("partitionValues.")]
    names = ["key", "size", *columns]
    names += [name for name in ("partitionValues", "raw") if name in adds.column_names]
    lines = []
    for row in adds.select(names).to_pylist():
        if row.get("raw"):
            text = row.get("partitionValues")
            partition: Any = None if text is None else msgspec.Raw(text.encode())
        else:
            partition = {name.partition(".")[2]: row[name] for name in columns}
        fields = {
            "path": row["key"],
            "deletionTimestamp": millis,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": partition,
            "size": row["size"],
        }
        lines.append(encode_action("remove", fields))
    return lines
