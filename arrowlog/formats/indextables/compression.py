"""Compression and checksums of the files of a log; the first bytes of a file name the codec.

`01 01` is gzip, `01 02` zstd, `01 03` lz4, `01 04` snappy, `1f 8b` a gzip stream without a prefix;
anything else is plain UTF-8 JSON. The decompressed size is limited. A truncated stream and bytes
after its end are errors; zstd and lz4 files may consist of several frames, as those formats allow.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.log_lines import UNSUPPORTED_CODEC

_fast_zlib: Any = zlib
with suppress(ImportError):  # twice as fast as zlib; optional, not every platform has a wheel
    from isal import isal_zlib as _fast_zlib

crc32 = _fast_zlib.crc32
CHECKSUM_PREFIX = "crc32:"
BytesLike = bytes | bytearray | memoryview
CODEC_MAGIC = 0x01
CODEC_BYTES = {"gzip": 1, "zstd": 2, "lz4": 3, "snappy": 4}
_CODEC_NAMES = {number: name for name, number in CODEC_BYTES.items()}
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31  # 15 for the largest window, 16 for a gzip header
COMPRESSED_FIRST_BYTES = (CODEC_MAGIC, _GZIP_MAGIC[0])  # the first byte of a compressed file
_RESTORE = "Restore the file from a backup, or read an earlier version."


def format_checksum(body: bytes | memoryview) -> str:
    """Return the checksum of some bytes as text: `crc32:` and eight hexadecimal digits."""
    return f"{CHECKSUM_PREFIX}{crc32(body):08x}"


def compress(data: bytes, codec: str = "gzip", level: int = 6) -> bytes:
    """Compress JSON bytes for the log. `codec` is one of `CODEC_BYTES` or `none`."""
    if codec == "none":
        return data
    head = bytes((CODEC_MAGIC, CODEC_BYTES[codec]))
    if codec == "gzip":
        stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return head + stream.compress(data) + stream.flush()
    if codec == "snappy":
        return head + bytes(pa.Codec("snappy").compress(data, asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(data)
    return head + bytes(sink.getvalue())


class StreamCompressor:
    """Compresses JSON bytes piece by piece, so that a large checkpoint is never in memory as text.

    That holds for gzip; the other codecs compress the whole text in `finish`. `sum` is the CRC-32
    of the uncompressed bytes, `uncompressed_size` their number.
    """

    def __init__(self, codec: str, level: int | None = None) -> None:
        """Start a stream. `codec` is one of `CODEC_BYTES` or `none`.

        `level` is the level of gzip. None lets the fast library choose, which has levels of its
        own: about as small as level 6, and several times faster.
        """
        self.sum = 0
        self.uncompressed_size = 0
        self._pending = 0  # uncompressed bytes that the stream may still hold back
        self._codec = codec
        self._pieces: list[BytesLike] = []
        self._gzip: Any = None
        if codec == "gzip":
            self._pieces.append(bytes((CODEC_MAGIC, CODEC_BYTES[codec])))
            if level is None:
                level = 6 if _fast_zlib is zlib else 3
                self._gzip = _fast_zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
            else:
                self._gzip = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)

    @property
    def size_max(self) -> int:
        """What the file would have at most if it were finished now.

        Exact for plain text, and a bound for codecs that compress in `finish`.
        """
        held_back = 0 if self._gzip is None else _gzip_size_max(self._pending)
        return sum(map(len, self._pieces)) + held_back

    def fits(self, more: int, limit: int) -> bool:
        """Whether `more` uncompressed bytes can be written and the file stays within `limit`."""
        expected = more if self._gzip is None else _gzip_size_max(more)
        if self.size_max + expected <= limit:
            return True
        if self._gzip is None or not self._pending:
            return False
        self._pieces.append(self._gzip.flush(zlib.Z_SYNC_FLUSH))
        self._pending = 0
        return self.size_max + expected <= limit

    def write(self, data: BytesLike) -> None:
        """Append uncompressed bytes."""
        self.sum = crc32(data, self.sum)
        self.uncompressed_size += len(data)
        self._pending += len(data)
        self._pieces.append(data if self._gzip is None else self._gzip.compress(data))

    def finish(self) -> bytes:
        """Return the complete file."""
        if self._gzip is not None:
            self._pieces.append(self._gzip.flush())
        whole = b"".join(self._pieces)
        return whole if self._codec in ("none", "gzip") else compress(whole, self._codec)


def _gzip_size_max(length: int) -> int:
    """Return a bound of the size of compressed bytes: stored blocks, and the end of the stream."""
    return length + length // 1024 + 64


def detect_codec(data: BytesLike) -> str:
    """Return the codec of a log file by its first bytes; `none` if it is plain or not known.

    >>> detect_codec(compress(b"{}")), detect_codec(b"{}")
    ('gzip', 'none')
    """
    if bytes(data[:2]) == _GZIP_MAGIC:
        return "gzip"
    has_codec = len(data) > 1 and data[0] == CODEC_MAGIC
    return _CODEC_NAMES.get(data[1], "none") if has_codec else "none"


def is_compressed(data: BytesLike, start: int, length: int) -> bool:
    """Return whether the file of `length` bytes at `start` is compressed, by its first byte."""
    return length > 0 and data[start] in COMPRESSED_FIRST_BYTES


def check_plain_size(length: int, file: str, limit: int) -> None:
    """Raise `LogCorrupt` if an uncompressed file is empty or larger than `limit`."""
    if length == 0:
        raise LogCorrupt("the file is empty.", next=_RESTORE, file=file)
    if length > limit:
        raise _too_large(file, limit)


def decompress(data: bytes, file: str, limit: int) -> bytes:
    """Return the JSON bytes of a log file, decompressed if necessary.

    Raises `LogCorrupt` naming `file` if it is empty, its codec is unknown, its stream is damaged,
    truncated or followed by other bytes, or it decompresses to more than `limit` bytes.
    """
    first = data[0] if data else 0
    if data[:2] == _GZIP_MAGIC:
        return _gunzip(data, file, limit)
    if first != CODEC_MAGIC:
        check_plain_size(len(data), file, limit)
        return data
    name = _CODEC_NAMES.get(data[1]) if len(data) > 1 else None
    if name is None:
        code = f"0x{data[1]:02x}" if len(data) > 1 else "missing"
        # Logged as well as raised: a reader may go on without the file, as with a checkpoint.
        UNSUPPORTED_CODEC.log(path=file, codec=code)
        raise LogCorrupt(
            f"the compression codec byte is {code}; the known codecs are 0x01 (gzip), 0x02 (zstd),"
            " 0x03 (lz4) and 0x04 (snappy).",
            next="Read it with the program that wrote it, or with a newer arrowlog.",
            file=file,
        )
    body = memoryview(data)[2:]
    return _gunzip(body, file, limit) if name == "gzip" else _decompress(name, body, file, limit)


def _require_content(plain: bytes, file: str) -> bytes:
    if not plain:
        raise LogCorrupt("the decompressed file is empty.", next=_RESTORE, file=file)
    return plain


def _gunzip(body: bytes | memoryview, file: str, limit: int) -> bytes:
    stream = _fast_zlib.decompressobj(_GZIP_WBITS)
    try:
        data: bytes = stream.decompress(body, limit + 1)
    except (zlib.error, _fast_zlib.error) as error:
        raise LogCorrupt(
            f"the gzip stream is damaged ({error}).", next=_RESTORE, file=file
        ) from None
    if len(data) > limit:
        raise _too_large(file, limit)
    if not stream.eof:
        raise LogCorrupt("the gzip stream is truncated.", next=_RESTORE, file=file)
    if stream.unused_data:
        raise LogCorrupt("there are bytes after the gzip stream.", next=_RESTORE, file=file)
    return _require_content(data, file)


def _decompress(name: str, body: memoryview, file: str, limit: int) -> bytes:
    try:
        if name == "snappy":
            return _decompress_snappy(body, file, limit)
        return _decompress_stream(name, body, file, limit)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LogCorrupt(
            f"the {name} stream is damaged ({str(error).splitlines()[0]}).",
            next=_RESTORE,
            file=file,
        ) from None


def _decompress_stream(name: str, body: memoryview, file: str, limit: int) -> bytes:
    reader = pa.BufferReader(pa.py_buffer(body))
    with pa.CompressedInputStream(reader, name) as stream:
        data: bytes = stream.read(limit + 1)
    if len(data) > limit:
        raise _too_large(file, limit)
    return _require_content(data, file)


def _decompress_snappy(body: memoryview, file: str, limit: int) -> bytes:
    # A raw snappy block starts with the decompressed length as a varint. Reading it first keeps a
    # damaged or hostile length from allocating memory beyond the limit.
    size, shift = 0, 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > limit:
        raise _too_large(file, limit)
    plain: Any = pa.Codec("snappy").decompress(pa.py_buffer(body), size, asbytes=True)
    return _require_content(bytes(plain), file)


def _too_large(file: str, limit: int) -> LogCorrupt:
    return LogCorrupt(
        f"it holds more than {limit} bytes when decompressed.",
        next="If that size is expected, raise transaction.maxDecompressedBytes.",
        file=file,
    )
