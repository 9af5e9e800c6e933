"""The manifest of a Parquet checkpoint: makes its parts one checkpoint. Pure.

A JSON file that is written last. Its checksums identify every part, and every column chunk of every
row group, as the bytes that were written; its own last field is the CRC-32 of everything before it.
It holds the whole state except the files, which are read from the parts on demand.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.decode import parse_metadata, parse_protocol
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import (
    CHECKSUM_PREFIX,
    RecentCommits,
    format_checksum,
    is_parquet_part,
    metadata_fields,
    no_recent_commits,
    protocol_fields,
    recent_commits_field,
)
from arrowlog.snapshot.checkpoint.rows import RebuildRecipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.formats.indextables import Metadata, Protocol

DAMAGED_CHECKPOINT_NEXT = (
    "Delete it if the commits up to its version exist; the table can be read without it."
)
# The manifest ends with its checksum: these bytes, the checksum, `_END`.
_CHECKSUM_FIELD = b',"checksum":"'
_END = b'"}'
_BROKEN = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    ValueError,
    KeyError,
    binascii.Error,
    pa.ArrowException,
)


class CheckpointPart(msgspec.Struct, frozen=True):
    """A part file of a checkpoint, with the sizes and checksums that identify it."""

    name: str
    sizeInBytes: int  # noqa: N815 -- the names on disk
    numFiles: int  # noqa: N815
    rowGroups: int  # noqa: N815
    checksum: str
    footerOffset: int  # noqa: N815
    footerChecksum: str  # noqa: N815


class _Document(msgspec.Struct):
    """The JSON document of a manifest that arrowlog wrote."""

    version: int
    format: str
    parts: list[CheckpointPart]
    protocol: msgspec.Raw
    metaData: msgspec.Raw  # noqa: N815
    numFiles: int  # noqa: N815
    columns: list[str]
    typed: list[str]
    rebuilt: dict[str, tuple[str, str]]
    index: str
    timestamp: int | None = None
    txns: dict[str, tuple[int, int]] = {}
    recentCommits: tuple[int, list[str | None]] | None = None  # noqa: N815
    checkpointId: str = ""  # noqa: N815
    createdTime: int | None = None  # noqa: N815


class _Header(msgspec.Struct):
    """The fields by which manifests of other programs are recognised."""

    version: int | None = None
    format: str | None = None


_DECODER = msgspec.json.Decoder(_Document)
_HEADER_DECODER = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A checkpoint without its rows.

    `index` has one row per row group, in the order of the parts: the group's statistics (see
    `groups`), and in `sums` the CRC-32 of each of its column chunks, in the order of `columns`.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    num_files: int
    parts: tuple[CheckpointPart, ...]
    columns: tuple[str, ...]
    recipe: RebuildRecipe
    index: pa.Table
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)


def encode_manifest(
    manifest: CheckpointManifest, checkpoint_id: str, now_ms: int, engine: str
) -> bytes:
    """Encode a manifest as JSON, ending with its checksum."""
    document = {
        "version": manifest.version,
        "format": "parquet",
        "checkpointId": checkpoint_id,
        "createdTime": now_ms,
        "engineInfo": engine,
        "numFiles": manifest.num_files,
        "size": manifest.num_files + 2,
        "sizeInBytes": sum(part.sizeInBytes for part in manifest.parts),
        "parts": manifest.parts,
        "protocol": _without_nulls(protocol_fields(manifest.protocol)),
        "metaData": _without_nulls(metadata_fields(manifest.metadata)),
        "timestamp": manifest.timestamp,
        "txns": dict(manifest.txns),
        "recentCommits": recent_commits_field(manifest.recent),
        "columns": manifest.columns,
        "typed": manifest.recipe.typed,
        "rebuilt": dict(manifest.recipe.rebuilt),
        "index": _encode_index(manifest.index),
    }
    body = msgspec.json.encode(document)[:-1]
    return body + _CHECKSUM_FIELD + format_checksum(body).encode() + _END


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def decode_manifest(data: bytes, version: int, file: str) -> CheckpointManifest | None:
    """Decode and verify a manifest; None for one of another program, which has no checksums.

    Raises `LogCorrupt` if it is damaged, or belongs to another version.
    """
    try:
        header = _HEADER_DECODER.decode(data)
    except _BROKEN:
        raise LogCorrupt(
            "the manifest is not JSON.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        ) from None
    if header.version is not None and header.version != version:
        raise LogCorrupt(
            f"it is the manifest of version {header.version}.",
            next=DAMAGED_CHECKPOINT_NEXT,
            file=file,
        )
    body, field_start, rest = data.rpartition(_CHECKSUM_FIELD)
    if not field_start or not rest.startswith(CHECKSUM_PREFIX.encode()):
        if header.format is not None:  # only ours have it
            raise LogCorrupt(
                "the manifest is incomplete.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=file,
                code="checkpoint-partial",
            )
        return None
    if rest != format_checksum(body).encode() + _END:
        raise LogCorrupt(
            "the manifest was changed after it was written: its checksum does not match.",
            next=DAMAGED_CHECKPOINT_NEXT,
            file=file,
        )
    try:
        return _to_manifest(_DECODER.decode(data), version, file)
    except _BROKEN as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(
            f"the manifest cannot be read: {why}.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        ) from None


def _to_manifest(document: _Document, version: int, file: str) -> CheckpointManifest:
    for part in document.parts:
        if not is_parquet_part(part.name, version):  # a name may otherwise lead anywhere
            raise LogCorrupt(
                f"the manifest names {part.name!r} as a part.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=file,
            )
    index = _decode_index(document.index)
    row_groups = sum(part.rowGroups for part in document.parts)
    if document.format != "parquet" or row_groups != index.num_rows:
        raise LogCorrupt(
            "the manifest contradicts itself.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        )
    return CheckpointManifest(
        version,
        parse_protocol(document.protocol),
        parse_metadata(document.metaData),
        document.numFiles,
        tuple(document.parts),
        tuple(document.columns),
        RebuildRecipe(tuple(document.typed), document.rebuilt),
        index,
        document.timestamp,
        document.txns,
        _recent_commits(document, version),
    )


def _recent_commits(document: _Document, version: int) -> RecentCommits:
    """Return the ids of the last commits; unknown if they do not end at the checkpoint."""
    first, ids = document.recentCommits or (version + 1, [])
    recent = RecentCommits(first, tuple(ids))
    return recent if recent.last == version else no_recent_commits(version)


def _encode_index(index: pa.Table) -> str:
    """Encode the index as an Arrow IPC stream in base64."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, index.schema, options=options) as out:
        out.write_table(index)
    return base64.b64encode(sink.getvalue()).decode()


def _decode_index(text: str) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text, validate=True))) as source:
        return source.read_all().combine_chunks()


def with_chunk_checksums(index: pa.Table, sums: Sequence[int], columns: int) -> pa.Table:
    """Add the CRC-32 of all column chunks, given row group by row group, to an index."""
    values = pa.Array.from_buffers(pa.uint32(), len(sums), [None, _uint32_buffer(sums)])
    lists = pa.FixedSizeListArray.from_arrays(values, columns)
    return index.append_column("sums", lists)


def _uint32_buffer(sums: Sequence[int]) -> pa.Buffer:
    """Convert without `pa.array`, which imports pandas when it is given a list."""
    from array import array

    return pa.py_buffer(array("I", sums))
