"""The manifest of a Parquet checkpoint: what makes its parts one whole. Pure.

It is JSON, written last. What it says of the parts is enough to tell whether a part, or a column of
a row group in it, is the very one that was written; its own last field is the CRC-32 of all that
stands before it. It holds all of a state but the files: those are read when somebody needs them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.log.checkpoint import said_of
from arrowlog.log.encode import CHECKSUM, checksum, metadata_fields, protocol_fields
from arrowlog.log.lines import read_metadata, read_protocol
from arrowlog.log.names import is_parquet_part
from arrowlog.log.recent import RecentCommits, unknown_before
from arrowlog.state.stored import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.log.actions import Metadata, Protocol

NEXT = "Delete it if the commits it stands for are there; reading goes on without it."
_MARK = b',"checksum":"'
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


class Part(msgspec.Struct, frozen=True):
    """A file of a checkpoint, and by what it is known again."""

    name: str
    sizeInBytes: int  # noqa: N815 -- the names on disk
    numFiles: int  # noqa: N815
    rowGroups: int  # noqa: N815
    checksum: str
    footerOffset: int  # noqa: N815
    footerChecksum: str  # noqa: N815


class _Document(msgspec.Struct):
    version: int
    format: str
    parts: list[Part]
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


class _Foreign(msgspec.Struct):
    """What another program's manifest says: at least which version it is of."""

    version: int | None = None
    format: str | None = None


_DECODER = msgspec.json.Decoder(_Document)
_FOREIGN = msgspec.json.Decoder(_Foreign)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint, without its rows.

    `index` has a row for each row group, in the order of the parts: what holds for the group, and
    in `sums` the checksum of each of its columns, in the order of `columns`.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    num_files: int
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    recipe: Recipe
    index: pa.Table
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)


def encode(manifest: Manifest, checkpoint_id: str, now_ms: int, engine: str) -> bytes:
    """The bytes of a manifest."""
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
        "protocol": _said(protocol_fields(manifest.protocol)),
        "metaData": _said(metadata_fields(manifest.metadata)),
        "timestamp": manifest.timestamp,
        "txns": dict(manifest.txns),
        "recentCommits": said_of(manifest.recent),
        "columns": manifest.columns,
        "typed": manifest.recipe.typed,
        "rebuilt": dict(manifest.recipe.rebuilt),
        "index": _index_text(manifest.index),
    }
    body = msgspec.json.encode(document)[:-1]
    return body + _MARK + checksum(body).encode() + _END


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def decode(data: bytes, version: int, file: str) -> Manifest | None:
    """What a manifest says; None for one of another program, which vouches for nothing.

    `LogCorrupt` if it is damaged, or of another version.
    """
    try:
        said = _FOREIGN.decode(data)
    except _BROKEN:
        raise LogCorrupt("its manifest is not JSON.", next=NEXT, file=file) from None
    if said.version is not None and said.version != version:
        raise LogCorrupt(f"it is the manifest of version {said.version}.", next=NEXT, file=file)
    body, mark, rest = data.rpartition(_MARK)
    if not mark or not rest.startswith(CHECKSUM.encode()):
        if said.format is not None:
            raise LogCorrupt("its manifest is not whole.", next=NEXT, file=file)
        return None
    if rest != checksum(body).encode() + _END:
        raise LogCorrupt("its manifest is not as it was written.", next=NEXT, file=file)
    try:
        return _manifest(_DECODER.decode(data), version, file)
    except _BROKEN as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(f"its manifest cannot be read: {why}.", next=NEXT, file=file) from None


def _manifest(found: _Document, version: int, file: str) -> Manifest:
    for part in found.parts:
        if not is_parquet_part(part.name, version):
            raise LogCorrupt(f"its manifest names {part.name!r} as a part.", next=NEXT, file=file)
    index = _index_of(found.index)
    if found.format != "parquet" or sum(part.rowGroups for part in found.parts) != index.num_rows:
        raise LogCorrupt("its manifest contradicts itself.", next=NEXT, file=file)
    return Manifest(
        version,
        read_protocol(found.protocol),
        read_metadata(found.metaData),
        found.numFiles,
        tuple(found.parts),
        tuple(found.columns),
        Recipe(tuple(found.typed), found.rebuilt),
        index,
        found.timestamp,
        found.txns,
        _recent(found, version),
    )


def _recent(found: _Document, version: int) -> RecentCommits:
    """The ids of the last commits, as far as they lead up to the checkpoint's version."""
    first, ids = found.recentCommits or (version + 1, [])
    recent = RecentCommits(first, tuple(ids))
    return recent if recent.last == version else unknown_before(version)


def _index_text(index: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    how = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, index.schema, options=how) as out:
        out.write_table(index)
    return base64.b64encode(sink.getvalue()).decode()


def _index_of(text: str) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text, validate=True))) as source:
        return source.read_all().combine_chunks()


def with_sums(index: pa.Table, sums: Sequence[int], columns: int) -> pa.Table:
    """The index with the checksum of each column of each group."""
    values = pa.Array.from_buffers(pa.uint32(), len(sums), [None, _packed(sums)])
    lists = pa.FixedSizeListArray.from_arrays(values, columns)
    return index.append_column("sums", lists)


def _packed(sums: Sequence[int]) -> pa.Buffer:
    from array import array

    return pa.py_buffer(array("I", sums))
