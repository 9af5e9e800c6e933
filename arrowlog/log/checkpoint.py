"""JSON checkpoints: every form anyone wrote, made into JSON lines for the one decoder.

- one object `{"protocol": …, "metaData": …, "add": [ … ]}` (what is written);
- JSON lines, like a commit;
- `{"actions": [ … ]}`;
- a manifest `{"version": …, "checkpointId": …, "parts": [names]}` whose parts are any of the above.

The pointer `_last_checkpoint` is only a hint, and a listing says more; it is not read. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from arrowlog.errors import LogCorrupt
from arrowlog.log.names import is_part

_NEXT = "Delete it if the commits it stands for are there; reading goes on without it."
_LINE_BREAKS = bytes.maketrans(b"\r\n\t", b"   ")


class _Document(msgspec.Struct, gc=False):
    protocol: msgspec.Raw = msgspec.Raw(b"null")
    metaData: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 -- the name on disk
    add: list[msgspec.Raw] | None = None
    actions: list[msgspec.Raw] | None = None
    parts: list[str] | None = None
    version: int | None = None


_DOCUMENT = msgspec.json.Decoder(_Document)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint in parts; all of them make it whole."""

    parts: tuple[str, ...]


def to_lines(data: bytes, version: int, file: str) -> bytes | Manifest:
    """The checkpoint's actions as JSON lines, or the manifest that says where they are."""
    try:
        found = _DOCUMENT.decode(data)
    except _BROKEN:
        return data  # JSON lines, or damaged: the line decoder tells which, and where
    if found.parts is not None:
        return _manifest(found, version, file)
    if found.add is None and found.actions is None:
        return data
    lines: list[Any] = [b'{"protocol":%b}' % found.protocol, b'{"metaData":%b}' % found.metaData]
    lines += [b'{"add":%b}' % bytes(item) for item in found.add or ()]
    lines += [bytes(item) for item in found.actions or ()]
    if b"\n" in data or b"\r" in data or b"\t" in data:
        lines = [line.translate(_LINE_BREAKS) for line in lines]
    return b"\n".join(lines) + b"\n"


def _manifest(found: _Document, version: int, file: str) -> Manifest:
    names = found.parts or []
    if found.version not in (None, version):
        raise LogCorrupt(f"it is the manifest of version {found.version}.", next=_NEXT, file=file)
    if not names or len(set(names)) != len(names):
        raise LogCorrupt("its manifest names no parts, or one twice.", next=_NEXT, file=file)
    for name in names:
        if not is_part(name, version):
            raise LogCorrupt(f"its manifest names {name!r} as a part.", next=_NEXT, file=file)
    return Manifest(tuple(names))
