"""A copy of the last snapshot in a folder of this machine, so that the next process need not read.

It is never trusted over the log: whoever recalls it must find that the log still has the very
commit it ends with, and read what came after. A copy that is damaged, of another table or of
another arrowlog is none; so is one that cannot be written.
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

from arrowlog.errors import LogCorrupt
from arrowlog.log.encode import metadata_fields, protocol_fields
from arrowlog.log.envelope import crc32
from arrowlog.log.lines import read_metadata, read_protocol
from arrowlog.log.recent import RecentCommits
from arrowlog.log.store import Stat
from arrowlog.state.apply import check_readable, schema_of
from arrowlog.state.deferred import Deferred
from arrowlog.state.snapshot import Report, Snapshot, State

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAGIC = b"arrowlog copy 2 "  # changes with the form of the copy or of what is decoded
_HEAD = 64  # so that what follows is aligned for Arrow
_PREFIXES = ("adds.", "files.")
_BROKEN = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Mark:
    """A commit by which a log is known again: its name, and what the store said of it."""

    version: int
    name: str
    stat: Stat | None


@dataclass(frozen=True, slots=True)
class Copy:
    """A snapshot, the commit it ends with, and the tag of the log's folder when it was listed."""

    snapshot: Snapshot
    mark: Mark
    folder: str | None


class _Said(msgspec.Struct):
    """What stands beside the columns."""

    root: str
    version: int
    protocol: msgspec.Raw
    metaData: msgspec.Raw  # noqa: N815 -- as in the log
    timestamp: int | None
    txns: dict[str, tuple[int, int]]
    recent: tuple[int, list[str | None]]
    name: str
    size: int
    tag: str
    folder: str | None


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies in a folder, at most one of each table, none above `limit` bytes."""

    folder: str
    limit: int

    def path(self, root: str, *, outside: bool) -> str:
        """Where the copy of a table is."""
        name = sha256(f"{root}\n{outside}".encode()).hexdigest()
        return os.path.join(self.folder, f"{name[:32]}.arrow")

    def save(self, root: str, copy: Copy, *, outside: bool) -> bool:
        """Put a copy in the place of the one before; whether that could be done."""
        state, stat = copy.snapshot.state, copy.mark.stat
        if isinstance(state.source, Deferred) or stat is None:
            return False  # what rests on a checkpoint is quickly read, and need not be whole here
        adds, files = state.source, copy.snapshot.files
        if adds.nbytes + files.nbytes > self.limit:
            return False
        said = _Said(
            root,
            state.version,
            msgspec.Raw(msgspec.json.encode(protocol_fields(state.protocol))),
            msgspec.Raw(msgspec.json.encode(metadata_fields(state.metadata))),
            state.timestamp,
            dict(state.txns),
            (state.recent.first, list(state.recent.txn_ids)),
            copy.mark.name,
            stat.size,
            stat.tag,
            copy.folder,
        )
        try:
            _write(self.path(root, outside=outside), _packed(adds, files, said))
        except OSError:
            return False
        return True

    def recall(self, root: str, *, outside: bool) -> Copy | None:
        """The copy of a table, if there is one that is whole."""
        try:
            buffer = pa.memory_map(self.path(root, outside=outside)).read_buffer()
            return _read(buffer, root)
        except (*_BROKEN, LogCorrupt):
            return None

    def drop(self, root: str, *, outside: bool) -> None:
        """Delete the copy of a table."""
        with suppress(OSError):
            os.unlink(self.path(root, outside=outside))


def _packed(adds: pa.Table, files: pa.Table, said: _Said) -> pa.Buffer:
    """The columns in one piece each, as they will be mapped."""
    both: Mapping[str, pa.Table] = dict(zip(_PREFIXES, (adds, files), strict=True))
    columns: dict[str, Any] = {
        prefix + name: table[name] for prefix, table in both.items() for name in table.column_names
    }
    whole = pa.table(columns).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, whole.schema.with_metadata({"said": _json(said)})) as out:
        out.write_table(whole)
    return sink.getvalue()


def _json(said: _Said) -> bytes:
    return msgspec.json.encode(said)


def _write(path: str, body: pa.Buffer) -> None:
    """Beside its place, then into it; nobody else may read it, for nobody else may read the log."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    head = _MAGIC + f"{crc32(body):08x} {len(body):020d}\n".encode()
    draft = f"{path}.{uuid4().hex}.tmp"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(head.ljust(_HEAD))
            out.write(body)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _read(buffer: pa.Buffer, root: str) -> Copy | None:
    body = buffer.slice(_HEAD)
    head = _MAGIC + f"{crc32(body):08x} {len(body):020d}\n".encode()
    if bytes(buffer.slice(0, _HEAD)) != head.ljust(_HEAD):
        return None
    whole = pa.ipc.open_file(body).read_all()
    said = msgspec.json.decode(whole.schema.metadata[b"said"], type=_Said)
    if said.root != root:
        return None
    adds, files = (
        whole.select([name for name in whole.column_names if name.startswith(prefix)])
        .rename_columns([n[len(prefix) :] for n in whole.column_names if n.startswith(prefix)])
        .replace_schema_metadata()
        for prefix in _PREFIXES
    )
    protocol, metadata = read_protocol(said.protocol), read_metadata(said.metaData)
    check_readable(protocol, root)
    state = State(
        said.version,
        protocol,
        metadata,
        schema_of(metadata, said.version),
        adds,
        said.timestamp,
        said.txns,
        RecentCommits(said.recent[0], tuple(said.recent[1])),
    )
    mark = Mark(said.version, said.name, Stat(said.size, -1, said.tag))
    return Copy(Snapshot(state, Report(said.version, "copy"), files), mark, said.folder)
