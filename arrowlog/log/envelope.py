"""The first bytes of a commit or JSON checkpoint say how the rest is packed.

`01 01` gzip, `01 02` zstd, `01 03` lz4, `01 04` snappy, `1f 8b` a bare gzip stream, anything else
plain UTF-8 JSON. Unpacking is capped, and a stream that is cut off or followed by anything else is
an error; frames of zstd and lz4 may follow one another, as those formats say.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

import pyarrow as pa

from arrowlog.errors import LogCorrupt

_inflate: Any = zlib
with suppress(ImportError):  # twice the speed of zlib, where its wheel exists
    from isal import isal_zlib as _inflate

crc32 = _inflate.crc32
Octets = bytes | bytearray | memoryview
MAGIC = 0x01
CODECS = {"gzip": 1, "zstd": 2, "lz4": 3, "snappy": 4}
_NAMES = {number: name for name, number in CODECS.items()}
_GZIP = b"\x1f\x8b"
_GZIP_WBITS = 31
MAGICS = (MAGIC, _GZIP[0])  # with which a file begins that is in an envelope
_RESTORE = "Restore the file from a backup, or read an earlier version."


def wrap(data: bytes, codec: str = "gzip", level: int = 6) -> bytes:
    """Pack JSON bytes for the log. `codec` is one of `CODECS` or `none`."""
    if codec == "none":
        return data
    head = bytes((MAGIC, CODECS[codec]))
    if codec == "gzip":
        squeeze = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return head + squeeze.compress(data) + squeeze.flush()
    if codec == "snappy":
        return head + bytes(pa.Codec("snappy").compress(data, asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(data)
    return head + bytes(sink.getvalue())


class Packing:
    """Packs JSON bytes that come in pieces, so that a large checkpoint is never whole in memory.

    gzip of many bytes takes the fast library's nearest level: the same format, a little larger.
    """

    def __init__(self, codec: str, level: int = 6) -> None:
        """`codec` is one of `CODECS` or `none`."""
        self.sum = 0
        self.plain_size = 0
        self._codec = codec
        self._pieces: list[bytes] = []
        self._gzip: Any = None
        if codec == "gzip":
            self._pieces.append(bytes((MAGIC, CODECS[codec])))
            near = level if _inflate is zlib else min(level // 2, 3)
            self._gzip = _inflate.compressobj(near, zlib.DEFLATED, _GZIP_WBITS)

    @property
    def size(self) -> int:
        """Bytes so far, packed."""
        return sum(map(len, self._pieces))

    def write(self, data: bytes) -> None:
        """Go on with these bytes."""
        self.sum = crc32(data, self.sum)
        self.plain_size += len(data)
        self._pieces.append(data if self._gzip is None else self._gzip.compress(data))

    def finish(self) -> bytes:
        """All of it, in its envelope."""
        if self._gzip is not None:
            self._pieces.append(self._gzip.flush())
        whole = b"".join(self._pieces)
        return whole if self._codec in ("none", "gzip") else wrap(whole, self._codec)


def packed(data: Octets, start: int, length: int) -> bool:
    """Whether the file at `start` is in an envelope, whole or not."""
    return length > 0 and data[start] in MAGICS


def check_plain(length: int, file: str, limit: int) -> None:
    """What can be wrong with a file that is in no envelope."""
    if length == 0:
        raise LogCorrupt("the file is empty.", next=_RESTORE, file=file)
    if length > limit:
        raise _too_large(file, limit)


def unwrap(data: bytes, file: str, limit: int) -> bytes:
    """The JSON bytes of a log file; `LogCorrupt` naming `file` if they cannot be had."""
    first = data[0] if data else 0
    if data[:2] == _GZIP:
        return _gunzip(data, file, limit)
    if first != MAGIC:
        check_plain(len(data), file, limit)
        return data
    name = _NAMES.get(data[1]) if len(data) > 1 else None
    if name is None:
        code = f"0x{data[1]:02x}" if len(data) > 1 else "missing"
        raise LogCorrupt(
            f"the compression codec byte is {code}; known are 0x01 gzip to 0x04 snappy.",
            next="Read it with the program that wrote it, or a newer arrowlog.",
            file=file,
        )
    body = memoryview(data)[2:]
    return _gunzip(body, file, limit) if name == "gzip" else _unpack(name, body, file, limit)


def _not_empty(plain: bytes, file: str) -> bytes:
    if not plain:
        raise LogCorrupt("there is nothing in it.", next=_RESTORE, file=file)
    return plain


def _gunzip(body: bytes | memoryview, file: str, limit: int) -> bytes:
    stream = _inflate.decompressobj(_GZIP_WBITS)
    try:
        data: bytes = stream.decompress(body, limit + 1)
    except (zlib.error, _inflate.error) as error:
        raise LogCorrupt(
            f"the gzip stream is damaged ({error}).", next=_RESTORE, file=file
        ) from None
    if len(data) > limit:
        raise _too_large(file, limit)
    if not stream.eof:
        raise LogCorrupt("the gzip stream is cut off.", next=_RESTORE, file=file)
    if stream.unused_data:
        raise LogCorrupt("there are bytes after the gzip stream.", next=_RESTORE, file=file)
    return _not_empty(data, file)


def _unpack(name: str, body: memoryview, file: str, limit: int) -> bytes:
    try:
        return _snappy(body, file, limit) if name == "snappy" else _stream(name, body, file, limit)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LogCorrupt(
            f"the {name} stream is damaged ({str(error).splitlines()[0]}).",
            next=_RESTORE,
            file=file,
        ) from None


def _stream(name: str, body: memoryview, file: str, limit: int) -> bytes:
    reader = pa.BufferReader(pa.py_buffer(body))
    with pa.CompressedInputStream(reader, name) as stream:
        data: bytes = stream.read(limit + 1)
    if len(data) > limit:
        raise _too_large(file, limit)
    return _not_empty(data, file)


def _snappy(body: memoryview, file: str, limit: int) -> bytes:
    size, shift = 0, 0
    for byte in body[:5]:  # the length of the plain bytes stands first, 7 bits a byte
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > limit:
        raise _too_large(file, limit)
    plain: Any = pa.Codec("snappy").decompress(pa.py_buffer(body), size, asbytes=True)
    return _not_empty(bytes(plain), file)


def _too_large(file: str, limit: int) -> LogCorrupt:
    return LogCorrupt(
        f"it holds more than {limit} bytes when unpacked.",
        next="If that is right, raise transaction.maxDecompressedBytes.",
        file=file,
    )
