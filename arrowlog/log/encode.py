"""Actions to the bytes of a commit: JSON lines, the commitInfo first, counted and summed up.

`commitInfo.numActions` is the number of lines after it, `commitInfo.checksum` the CRC-32 of their
bytes, so that a commit which lost a line, or a bit, is found out by whoever reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from arrowlog.log.envelope import crc32
from arrowlog.log.texts import add_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from arrowlog.log.actions import Metadata, Protocol

CHECKSUM = "crc32:"


def line(action: str, fields: Mapping[str, Any]) -> bytes:
    """One action as a line. A field without a value is left out."""
    said = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({action: said}) + b"\n"


def commit(info: Mapping[str, Any], lines: Sequence[bytes]) -> bytes:
    """A commit after version 0."""
    body = b"".join(lines)
    whole = {**info, "numActions": len(lines), "checksum": checksum(body)}
    return line("commitInfo", whole) + body


def first_commit(protocol: Protocol, metadata: Metadata) -> bytes:
    """Version 0: exactly the protocol and the metadata."""
    return line("protocol", protocol_fields(protocol)) + line("metaData", metadata_fields(metadata))


def checksum(body: bytes | memoryview) -> str:
    """What a commitInfo says of the lines after it."""
    return f"{CHECKSUM}{crc32(body):08x}"


def protocol_fields(protocol: Protocol) -> dict[str, Any]:
    """A protocol as it stands in the log."""
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": list(protocol.reader_features) or None,
        "writerFeatures": list(protocol.writer_features) or None,
    }


def metadata_fields(metadata: Metadata) -> dict[str, Any]:
    """Metadata as it stands in the log."""
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


def add_lines(adds: pa.Table, **changed: Any) -> list[bytes]:
    """Decoded adds as lines again, every field that was read in them; `changed` fields anew."""
    return [b'{"add":%b}\n' % text.encode() for text in add_objects(adds, changed).to_pylist()]


def remove_lines(adds: pa.Table, millis: int, *, data_change: bool) -> list[bytes]:
    """Removes for decoded adds, by the key of their file, with what their readers like to know."""
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
        lines.append(line("remove", fields))
    return lines
