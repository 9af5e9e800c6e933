"""JSON checkpoints: convert every known form to JSON lines for the decoder, and write one. Pure.

The forms are:

- one object `{"protocol": …, "metaData": …, "add": [ … ]}` (the form that is written);
- JSON lines, like a commit;
- `{"actions": [ … ]}`;
- a manifest `{"version": …, "checkpointId": …, "parts": [names]}` whose parts are any of the above.

Checkpoints that arrowlog writes also hold their `version`, the `timestamp` of the last commit, the
application transactions (`txns`) and the ids of the last commits (`recentCommits`), and end with a
`checksum` of all bytes before it.

The pointer `_last_checkpoint` is only a hint, and a listing tells more; it is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from arrowlog.errors import LogCorrupt
from arrowlog.formats import RecentCommits
from arrowlog.formats.indextables.commit_encoder import (
    metadata_fields,
    protocol_fields,
)
from arrowlog.formats.indextables.compression import CHECKSUM_PREFIX, format_checksum
from arrowlog.formats.indextables.format import is_json_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from arrowlog.formats import Metadata, Protocol

_NEXT_STEP = "If the commits that it covers still exist, delete it: reading works without it."
_CHECKSUM_MEMBER = b',"checksum":"crc32:'
_CHECKSUM_LENGTH = len(_CHECKSUM_MEMBER) + 10  # eight hexadecimal digits and `"}`
# Whitespace between tokens may contain line breaks, which would split a line.
_TO_SPACES = bytes.maketrans(b"\r\n\t", b"   ")


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
_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


@dataclass(frozen=True, slots=True)
class CheckpointContext:
    """The content of a checkpoint beside its actions.

    `txns` maps an application id to the version of its last transaction and the table version that
    holds it. `summed` tells whether a checksum verified the whole file.
    """

    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits | None = None
    summed: bool = False


@dataclass(frozen=True, slots=True)
class JsonManifest:
    """The manifest of a checkpoint in parts, all required; `checksums` if arrowlog wrote it."""

    parts: tuple[str, ...]
    checksums: tuple[str, ...] = ()

    def check(self, number: int, data: bytes, file: str) -> None:
        """Raise `LogCorrupt` if part `number` does not have the checksum in the manifest."""
        if self.checksums and self.checksums[number] != format_checksum(data):
            raise LogCorrupt(
                f"the part has the checksum {format_checksum(data)}, but the manifest declares"
                f" {self.checksums[number]}.",
                next=_NEXT_STEP,
                file=file,
            )


def checkpoint_to_lines(
    data: bytes, version: int, file: str
) -> tuple[bytes | bytearray | JsonManifest, CheckpointContext]:
    """Convert a checkpoint file to JSON lines, or return the manifest of its parts.

    Raises `LogCorrupt` naming `file` if the checksum does not match, or is missing although
    arrowlog wrote the file, if the checkpoint declares another version, or if its manifest is not
    valid. A file that is not one JSON document is returned as it is: the decoder treats it as JSON
    lines.
    """
    checksum_verified = _verify_checksum(data, file)
    try:
        document = _DOCUMENT.decode(data)
    except _JSON_ERRORS:
        return (
            data,
            CheckpointContext(),
        )  # JSON lines, or damaged: the row decoder reports which, and where
    if document.txns is not None and not checksum_verified:
        # Only arrowlog writes `txns`, always together with a checksum at the end.
        raise LogCorrupt(
            "the checksum at the end of the file is missing.", next=_NEXT_STEP, file=file
        )
    recent = _recent_commits(document, version)
    beside = CheckpointContext(
        document.timestamp, document.txns or {}, recent, summed=checksum_verified
    )
    if document.version not in (None, version):
        what = "manifest" if document.parts is not None else "checkpoint"
        raise LogCorrupt(
            f"it is the {what} of version {document.version}.", next=_NEXT_STEP, file=file
        )
    if document.parts is not None:
        return _to_manifest(document, version, file), beside
    if document.add is None and document.actions is None:
        return data, beside
    # One line at a time: a list of all lines would take more memory than their bytes.
    lines = bytearray()
    has_breaks = any(space in data for space in (b"\n", b"\r", b"\t"))
    for form, items in (
        (b'{"protocol":%b}', [document.protocol]),
        (b'{"metaData":%b}', [document.metaData]),
        (b'{"add":%b}', document.add or ()),
        (b"%b", document.actions or ()),
    ):
        for line in _to_lines(form, items, has_breaks=has_breaks):
            lines += line
    return lines, beside


def _to_lines(form: bytes, items: Iterable[msgspec.Raw], *, has_breaks: bool) -> Iterator[bytes]:
    """Yield each item in a form, as a line; `has_breaks` if there may be line breaks in it."""
    if not has_breaks:
        form += b"\n"
        return (form % item for item in items)
    return ((form % item).translate(_TO_SPACES) + b"\n" for item in items)


def _verify_checksum(data: bytes, file: str) -> bool:
    """Return whether the file ends with a checksum of all bytes before it.

    Raises `LogCorrupt` if it does and the bytes have another checksum.
    """
    start = data.rfind(_CHECKSUM_MEMBER)
    if not data.endswith(b'"}') or start < 0 or start < len(data) - _CHECKSUM_LENGTH:
        return False
    declared = data[start + len(_CHECKSUM_MEMBER) - len(CHECKSUM_PREFIX) : -2].decode(
        errors="replace"
    )
    actual = format_checksum(memoryview(data)[:start])
    if declared != actual:
        raise LogCorrupt(
            f"it declares the checksum {declared}, but its content has {actual}.",
            next=_NEXT_STEP,
            file=file,
        )
    return True


def encode_checkpoint_start(
    version: int, protocol: Protocol, metadata: Metadata, beside: CheckpointContext
) -> bytes:
    """Return the start of a checkpoint as one object.

    The JSON objects of the adds follow, separated by commas, then `]` and the
    result of `encode_checkpoint_end`.
    """
    head = {
        "version": version,
        "timestamp": beside.timestamp,
        "txns": beside.txns,
        "recentCommits": recent_commits_field(beside.recent),
        "protocol": _without_none(protocol_fields(protocol)),
        "metaData": _without_none(metadata_fields(metadata)),
    }
    return msgspec.json.encode(head)[:-1] + b',"add":['


def encode_checkpoint_end(total: int) -> bytes:
    """Return the end of a checkpoint; `total` is the CRC-32 of all bytes before it."""
    return b'%b%08x"}' % (_CHECKSUM_MEMBER, total)


def encode_json_manifest(
    version: int,
    parts: Mapping[str, str],
    checkpoint_id: str,
    beside: CheckpointContext,
    now_ms: int,
) -> bytes:
    """Encode the manifest of a checkpoint in parts; `parts` maps file names to checksums."""
    head = {
        "version": version,
        "checkpointId": checkpoint_id,
        "parts": list(parts),
        "checksums": list(parts.values()),
        "createdTime": now_ms,
        "format": "json",
        "timestamp": beside.timestamp,
        "txns": beside.txns,
        "recentCommits": recent_commits_field(beside.recent),
    }
    plain = msgspec.json.encode(head)[:-1]
    return plain + b'%b%b"}' % (
        _CHECKSUM_MEMBER,
        format_checksum(plain)[len(CHECKSUM_PREFIX) :].encode(),
    )


def recent_commits_field(recent: RecentCommits | None) -> tuple[int, tuple[str | None, ...]] | None:
    """Return the value of `recentCommits`: the first version and the ids from there on."""
    return None if recent is None else (recent.first, recent.txn_ids)


def _recent_commits(document: _Document, version: int) -> RecentCommits | None:
    """Return the ids of the last commits, if the last id is that of the checkpoint's version."""
    if document.recentCommits is None:
        return None
    recent = RecentCommits(document.recentCommits[0], tuple(document.recentCommits[1]))
    return recent if recent.last == version else None


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _to_manifest(document: _Document, version: int, file: str) -> JsonManifest:
    """Validate a manifest. A part must have the name of a part of this very checkpoint."""
    names = document.parts or []
    if not names or len(set(names)) != len(names):
        raise LogCorrupt(
            "the manifest lists no parts, or lists one twice.", next=_NEXT_STEP, file=file
        )
    for name in names:
        if not is_json_part(name, version):
            raise LogCorrupt(
                f"the manifest lists {name!r}, which is not a part of version {version}.",
                next=_NEXT_STEP,
                file=file,
            )
    checksums = tuple(document.checksums or ())
    if checksums and len(checksums) != len(names):
        raise LogCorrupt(
            f"the manifest has {len(checksums)} checksums for {len(names)} parts.",
            next=_NEXT_STEP,
            file=file,
        )
    return JsonManifest(tuple(names), checksums)
