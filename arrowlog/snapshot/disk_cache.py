"""The disk cache: copies of the newest snapshots on the local disk, for the next process.

A copy is never trusted over the log (decision 15): the caller must find that the log still has the
very commit that the copy ends with, and read what follows it. A copy that is damaged, of another
table, or in another format is ignored; so is a failure to write one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from arrowlog.decode import parse_metadata, parse_protocol
from arrowlog.errors import LogCorrupt
from arrowlog.formats import RecentCommits
from arrowlog.formats.indextables import crc32, metadata_fields, protocol_fields
from arrowlog.snapshot.log_replay import check_readable, parse_table_schema
from arrowlog.snapshot.snapshot import InMemoryFiles, Report, Snapshot, State
from arrowlog.snapshot.tracked_state import LogTip
from arrowlog.storage import ObjectStat

if TYPE_CHECKING:
    from collections.abc import Mapping


# To be changed with the format of the copy, or with what the decoder produces.
_MAGIC = b"arrowlog copy 4 "
# Magic, CRC-32 and length, padded so that the Arrow data behind it is aligned.
_HEADER_BYTES = 64
# One IPC file holds two tables: the decoded adds and the typed files.
_TABLE_PREFIXES = ("adds.", "files.")
_BROKEN = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """A saved snapshot, its last commit, and the log folder's tag from before it was listed.

    `folder` is None if the tag is unknown or not conclusive.
    """

    snapshot: Snapshot
    tip: LogTip
    folder: str | None


class _Header(msgspec.Struct):
    """The state besides its columns, as JSON in the metadata of the Arrow schema."""

    root: str
    version: int
    protocol: msgspec.Raw
    metaData: msgspec.Raw  # noqa: N815 -- as in the log
    timestamp: int | None
    txns: dict[str, tuple[int, int]]
    recent: tuple[int, list[str | None]]
    key: str
    size: int
    tag: str
    folder: str | None


@dataclass(frozen=True, slots=True)
class SnapshotDiskCache:
    """The copies in a folder: at most one per table, each of at most `limit` bytes."""

    folder: str
    limit: int

    def path(self, root: str, *, allow_external_paths: bool) -> str:
        """Return the path of a table's copy.

        `allow_external_paths` is part of its name: a copy read with it may hold paths that are
        refused without.
        """
        name = sha256(f"{root}\n{allow_external_paths}".encode()).hexdigest()
        return os.path.join(self.folder, f"{name[:32]}.arrow")

    def save(self, root: str, copy: SavedSnapshot, *, allow_external_paths: bool) -> bool:
        """Replace the copy of a table; returns whether it was written.

        Not written are snapshots that rest on a Parquet checkpoint, which opens as fast, and those
        above the size limit.
        """
        state, stat = copy.snapshot.state, copy.tip.stat
        if state.source.checkpoint is not None or stat is None:
            return False
        adds, files = state.adds, copy.snapshot.files
        if adds.nbytes + files.nbytes > self.limit:
            return False
        header = _Header(
            root,
            state.version,
            msgspec.Raw(msgspec.json.encode(protocol_fields(state.protocol))),
            msgspec.Raw(msgspec.json.encode(metadata_fields(state.metadata))),
            state.timestamp,
            dict(state.txns),
            (state.recent.first, list(state.recent.txn_ids)),
            copy.tip.key,
            stat.size,
            stat.tag,
            copy.folder,
        )
        try:
            path = self.path(root, allow_external_paths=allow_external_paths)
            _write(path, _encode(adds, files, header))
        except OSError:
            return False
        return True

    def read_copy(self, root: str, *, allow_external_paths: bool) -> SavedSnapshot | None:
        """Return the copy of a table; None if there is none, or it is damaged or not usable."""
        try:
            path = self.path(root, allow_external_paths=allow_external_paths)
            return _decode(pa.memory_map(path).read_buffer(), root)
        except (*_BROKEN, LogCorrupt):
            return None

    def drop(self, root: str, *, allow_external_paths: bool) -> None:
        """Delete the copy of a table."""
        with suppress(OSError):
            os.unlink(self.path(root, allow_external_paths=allow_external_paths))


def _encode(adds: pa.Table, files: pa.Table, header: _Header) -> pa.Buffer:
    """Encode both tables as an Arrow IPC file, each column in one chunk, ready to be mapped."""
    tables: Mapping[str, pa.Table] = dict(zip(_TABLE_PREFIXES, (adds, files), strict=True))
    columns: dict[str, Any] = {
        prefix + name: table[name]
        for prefix, table in tables.items()
        for name in table.column_names
    }
    combined = pa.table(columns).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, combined.schema.with_metadata({"said": msgspec.json.encode(header)})
    ) as out:
        out.write_table(combined)
    return sink.getvalue()


def _write(path: str, body: pa.Buffer) -> None:
    """Write to a temporary file, then rename it into place.

    Only the owner may read it: access to the log itself may be restricted.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    prefix = _MAGIC + f"{crc32(body):08x} {len(body):020d}\n".encode()
    temporary = f"{path}.{uuid4().hex}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(prefix.ljust(_HEADER_BYTES))
            out.write(body)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _decode(buffer: pa.Buffer, root: str) -> SavedSnapshot | None:
    """Decode a copy; None if its checksum is wrong or it belongs to another table."""
    body = buffer.slice(_HEADER_BYTES)
    prefix = _MAGIC + f"{crc32(body):08x} {len(body):020d}\n".encode()
    if bytes(buffer.slice(0, _HEADER_BYTES)) != prefix.ljust(_HEADER_BYTES):
        return None
    combined = pa.ipc.open_file(body).read_all()
    header = msgspec.json.decode(combined.schema.metadata[b"said"], type=_Header)
    if header.root != root:
        return None
    adds, files = (_select_prefixed(combined, prefix) for prefix in _TABLE_PREFIXES)
    protocol, metadata = parse_protocol(header.protocol), parse_metadata(header.metaData)
    check_readable(protocol, root)
    state = State(
        header.version,
        protocol,
        metadata,
        parse_table_schema(metadata, header.version),
        InMemoryFiles(adds),
        header.timestamp,
        header.txns,
        RecentCommits(header.recent[0], tuple(header.recent[1])),
    )
    tip = LogTip(header.version, header.key, ObjectStat(header.size, -1, header.tag))
    return SavedSnapshot(Snapshot(state, Report(header.version, "copy"), files), tip, header.folder)


def _select_prefixed(table: pa.Table, prefix: str) -> pa.Table:
    """Return the columns whose names begin with a prefix, without the prefix."""
    names = [name for name in table.column_names if name.startswith(prefix)]
    selected = table.select(names).rename_columns([name[len(prefix) :] for name in names])
    return selected.replace_schema_metadata()
