"""JSON checkpoints: every form anyone wrote, made into JSON lines for the one decoder.

- one object `{"protocol": …, "metaData": …, "add": [ … ]}` (what is written);
- JSON lines, like a commit;
- `{"actions": [ … ]}`;
- a manifest `{"version": …, "checkpointId": …, "parts": [names]}` whose parts are any of the above.

Ours also say their `version`, the `timestamp` of the last commit and the `txns` of applications,
the ids of the last commits (`recentCommits`),
and end with a `checksum` of all bytes before it. Pure.

The pointer `_last_checkpoint` is only a hint, and a listing says more; it is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from arrowlog.errors import LogCorrupt
from arrowlog.log.encode import CHECKSUM, checksum, metadata_fields, protocol_fields
from arrowlog.log.names import is_part
from arrowlog.log.recent import RecentCommits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.log.actions import Metadata, Protocol

_NEXT = "Delete it if the commits it stands for are there; reading goes on without it."
_SUM = b',"checksum":"crc32:'
_SUM_LENGTH = len(_SUM) + 10
_LINE_BREAKS = bytes.maketrans(b"\r\n\t", b"   ")


class _Document(msgspec.Struct, gc=False):
    protocol: msgspec.Raw = msgspec.Raw(b"null")
    metaData: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 -- the name on disk
    add: list[msgspec.Raw] | None = None
    actions: list[msgspec.Raw] | None = None
    parts: list[str] | None = None
    version: int | None = None
    timestamp: int | None = None
    txns: dict[str, tuple[int, int]] | None = None
    recentCommits: tuple[int, list[str | None]] | None = None  # noqa: N815
    checksums: list[str] | None = None


_DOCUMENT = msgspec.json.Decoder(_Document)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a state needs beside the actions; `summed` if a checksum vouches for all of it."""

    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits | None = None
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint in parts; all of them make it whole. Ours have checksums, too."""

    parts: tuple[str, ...]
    checksums: tuple[str, ...] = ()

    def check(self, number: int, data: bytes, file: str) -> None:
        """Refuse a part that is not the one the manifest speaks of."""
        if self.checksums and self.checksums[number] != checksum(data):
            raise LogCorrupt(
                f"it is a part with the checksum {checksum(data)}, and the manifest speaks of"
                f" {self.checksums[number]}.",
                next=_NEXT,
                file=file,
            )


def to_lines(data: bytes, version: int, file: str) -> tuple[bytes | Manifest, Beside]:
    """The checkpoint's actions as JSON lines, or the manifest that says where they are."""
    summed = _check_sum(data, file)
    try:
        found = _DOCUMENT.decode(data)
    except _BROKEN:
        return data, Beside()  # JSON lines, or damaged: the line decoder tells which, and where
    if found.txns is not None and not summed:  # only ours have those, and end with a checksum
        raise LogCorrupt("its checksum is not where it should be.", next=_NEXT, file=file)
    beside = Beside(found.timestamp, found.txns or {}, _recent(found, version), summed=summed)
    if found.version not in (None, version):
        what = "manifest" if found.parts is not None else "checkpoint"
        raise LogCorrupt(f"it is the {what} of version {found.version}.", next=_NEXT, file=file)
    if found.parts is not None:
        return _manifest(found, version, file), beside
    if found.add is None and found.actions is None:
        return data, beside
    lines: list[Any] = [b'{"protocol":%b}' % found.protocol, b'{"metaData":%b}' % found.metaData]
    lines += [b'{"add":%b}' % bytes(item) for item in found.add or ()]
    lines += [bytes(item) for item in found.actions or ()]
    if b"\n" in data or b"\r" in data or b"\t" in data:
        lines = [line.translate(_LINE_BREAKS) for line in lines]
    return b"\n".join(lines) + b"\n", beside


def _check_sum(data: bytes, file: str) -> bool:
    """The last member of ours is the checksum of all bytes before it; whether there is one."""
    start = data.rfind(_SUM)
    if not data.endswith(b'"}') or start < 0 or start < len(data) - _SUM_LENGTH:
        return False
    said = data[start + len(_SUM) - len(CHECKSUM) : -2].decode(errors="replace")
    if said != checksum(memoryview(data)[:start]):
        raise LogCorrupt(
            f"its bytes do not have the checksum {said} that it says.", next=_NEXT, file=file
        )
    return True


def opening(version: int, protocol: Protocol, metadata: Metadata, beside: Beside) -> bytes:
    """How a checkpoint as one object begins; adds follow, with commas between, then `closing`."""
    head = {
        "version": version,
        "timestamp": beside.timestamp,
        "txns": beside.txns,
        "recentCommits": said_of(beside.recent),
        "protocol": _said(protocol_fields(protocol)),
        "metaData": _said(metadata_fields(metadata)),
    }
    return msgspec.json.encode(head)[:-1] + b',"add":['


def closing(total: int) -> bytes:
    """How it ends, given the CRC-32 of everything up to the end of the list."""
    return b'%b%08x"}' % (_SUM, total)


def manifest(
    version: int, parts: Mapping[str, str], checkpoint_id: str, beside: Beside, now_ms: int
) -> bytes:
    """The manifest of a checkpoint in parts, given by name with their checksums."""
    head = {
        "version": version,
        "checkpointId": checkpoint_id,
        "parts": list(parts),
        "checksums": list(parts.values()),
        "createdTime": now_ms,
        "format": "json",
        "timestamp": beside.timestamp,
        "txns": beside.txns,
        "recentCommits": said_of(beside.recent),
    }
    plain = msgspec.json.encode(head)[:-1]
    return plain + b'%b%b"}' % (_SUM, checksum(plain)[len(CHECKSUM) :].encode())


def said_of(recent: RecentCommits | None) -> tuple[int, tuple[str | None, ...]] | None:
    """The ids of the last commits as they are written: the first version, then the ids."""
    return None if recent is None else (recent.first, recent.txn_ids)


def _recent(found: _Document, version: int) -> RecentCommits | None:
    """The ids that a checkpoint gives, if they lead up to its version."""
    if found.recentCommits is None:
        return None
    recent = RecentCommits(found.recentCommits[0], tuple(found.recentCommits[1]))
    return recent if recent.last == version else None


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _manifest(found: _Document, version: int, file: str) -> Manifest:
    names = found.parts or []
    if not names or len(set(names)) != len(names):
        raise LogCorrupt("its manifest names no parts, or one twice.", next=_NEXT, file=file)
    for name in names:
        if not is_part(name, version):
            raise LogCorrupt(f"its manifest names {name!r} as a part.", next=_NEXT, file=file)
    checksums = tuple(found.checksums or ())
    if checksums and len(checksums) != len(names):
        raise LogCorrupt("its manifest has not a checksum for each part.", next=_NEXT, file=file)
    return Manifest(tuple(names), checksums)
