"""Avro object containers: header, blocks and codecs, read and written. Pure.

`read_container` returns the records of a file as one buffer of uncompressed blocks. It verifies
all that is outside the records: magic bytes, header, codec, block lengths and sync markers.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats.avro_schema import (
    AvroType,
    SchemaError,
    ValueDamaged,
    parse_schema,
    read_bytes,
    read_item_count,
    read_long,
    read_string,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
MAX_BYTES = (1 << 31) - (1 << 16)  # positions in the uncompressed data have 32 bits
CODECS = ("null", "deflate", "snappy", "zstandard")
_HEADER_MAP = AvroType("map", items=AvroType("bytes"))
_MAX_HEADER_KEYS = 1000
_RAW_DEFLATE_WBITS = -15  # no header, the largest window
# fastavro leaves most of zlib's checksum behind the stream.
_CHECKSUM_REST_BYTES = 3
_SNAPPY_CRC_BYTES = 4
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Bytes that the zstd stream is asked for at a time, if its frame does not give the size.
_STREAM_PIECE_BYTES = 1 << 20
_ZSTD_LEVEL = 3  # what other writers of the format use
_RESTORE = "Restore the file from a backup, or read an earlier version."
_NEWER = "Read it with the program that wrote it, or with a newer arrowlog."


class Container(msgspec.Struct, frozen=True):
    """A container file whose blocks are not yet decompressed.

    Block i has the bytes `blocks[i]` and says that it has `counts[i]` records. All blocks together
    may have `limit` bytes uncompressed.
    """

    schema: AvroType
    codec: str
    blocks: list[memoryview]
    counts: list[int]
    metadata: Mapping[str, bytes]
    file: str
    limit: int

    @property
    def num_records(self) -> int:
        """The number of records, by the blocks' own counts."""
        return sum(self.counts)

    def unpack(self, start: int, stop: int, used: int = 0) -> Iterator[Any]:
        """Decompress some blocks, one after another.

        `used` is the uncompressed size of the blocks before them. Raises `LogCorrupt` if a block is
        damaged, has fewer bytes than its records need, or exceeds the limit.
        """
        unpack = _UNPACKERS[self.codec]
        for body, count in zip(self.blocks[start:stop], self.counts[start:stop], strict=True):
            try:
                piece = unpack(body, self.limit - used)
            except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
                reason = str(error).splitlines()[0] if str(error) else self.codec
                raise damaged(self.file, f"a block cannot be decompressed ({reason})") from None
            if piece is None:
                raise LogCorrupt(
                    f"it holds more than {self.limit} bytes when decompressed.",
                    next="If that size is expected, raise transaction.maxDecompressedBytes.",
                    file=self.file,
                )
            if count * self.schema.min_size > len(piece) or (count == 0 and len(piece)):
                raise damaged(self.file, "a block does not have the number of records that it says")
            yield piece
            used += len(piece)


def damaged(file: str, what: str) -> LogCorrupt:
    """Return the error for a container whose bytes are wrong."""
    return LogCorrupt(f"the Avro file is damaged: {what}.", next=_RESTORE, file=file)


def unsupported(file: str, what: str) -> UnsupportedProtocol:
    """Return the error for a container that may be right but cannot be read."""
    return UnsupportedProtocol(f"{what}.", next=_NEWER, file=file)


def read_container(data: bytes, file: str, limit: int) -> Container:
    """Read the header and find the blocks of a container file.

    `limit` is the number of bytes that the blocks may have uncompressed, all together. Raises
    `LogCorrupt` naming `file` if the file is damaged, and `UnsupportedProtocol` if its codec or its
    schema is not known.
    """
    try:
        metadata, at = _read_header(data)
    except ValueDamaged as error:
        raise damaged(file, str(error)) from None
    codec = metadata.get("avro.codec", b"null").decode("latin-1")
    if codec not in CODECS:
        raise unsupported(file, f"the Avro file has the codec {codec!r}")
    if "avro.schema" not in metadata:
        raise damaged(file, "the header has no schema")
    try:
        schema = parse_schema(metadata["avro.schema"])
    except SchemaError as error:
        raise unsupported(file, f"the schema of the Avro file cannot be read: {error}") from None
    if schema.kind != "record" or schema.min_size == 0:
        raise unsupported(file, "the schema of the Avro file is not a record with fields")
    counts, blocks = _find_blocks(data, at, file)
    return Container(schema, codec, blocks, counts, metadata, file, min(limit, MAX_BYTES))


def _read_header(data: bytes) -> tuple[dict[str, bytes], int]:
    if data[: len(MAGIC)] != MAGIC:
        raise ValueDamaged("it does not begin like an Avro container")
    at = len(MAGIC)
    metadata: dict[str, bytes] = {}
    while True:
        count, stop, at = read_item_count(_HEADER_MAP, data, at)
        if count == 0:
            break
        if count + len(metadata) > _MAX_HEADER_KEYS:
            raise ValueDamaged("the header has too many entries")
        for _ in range(count):
            key, at = read_string(data, at)
            metadata[key], at = read_bytes(data, at)
        if stop not in (None, at):
            raise ValueDamaged("the header does not have the size it gives")
    if at + SYNC_BYTES > len(data):
        raise ValueDamaged("the header is cut off")
    return metadata, at + SYNC_BYTES


def _find_blocks(data: bytes, at: int, file: str) -> tuple[list[int], list[memoryview]]:
    """Return the number of records and the bytes of each block, after checking its sync marker."""
    view, sync = memoryview(data), data[at - SYNC_BYTES : at]
    counts, blocks = [], []
    while at < len(data):
        try:
            count, at = read_long(data, at)
            size, at = read_long(data, at)
        except ValueDamaged as error:
            raise damaged(file, str(error)) from None
        if count < 0 or not 0 <= size <= len(data) - at - SYNC_BYTES:
            raise damaged(file, "a block does not end within the file")
        if data[at + size : at + size + SYNC_BYTES] != sync:
            raise damaged(file, "a sync marker is missing after a block")
        counts.append(count)
        blocks.append(view[at : at + size])
        at += size + SYNC_BYTES
    return counts, blocks


def _unpack_null(body: memoryview, limit: int) -> Any:
    return body if len(body) <= limit else None


def _unpack_deflate(body: memoryview, limit: int) -> Any:
    stream = zlib.decompressobj(_RAW_DEFLATE_WBITS)
    # A limit of 0 would mean no limit; one byte more than allowed tells that there is more.
    data = stream.decompress(body, limit + 1)
    if len(data) > limit:
        return None
    rest = zlib.adler32(data).to_bytes(4, "big")[:_CHECKSUM_REST_BYTES]
    if not stream.eof or stream.unused_data not in (b"", rest):
        raise ValueDamaged("a deflate stream does not end with its block")
    return data


def _unpack_snappy(body: memoryview, limit: int) -> Any:
    if len(body) <= _SNAPPY_CRC_BYTES:
        raise ValueDamaged("a snappy block has no checksum")
    packed = body[:-_SNAPPY_CRC_BYTES]
    size = shift = 0
    for octet in packed[:5]:  # the uncompressed length: a varint of 32 bits, not zigzag
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    if size > limit:
        return None
    data: Any = pa.Codec("snappy").decompress(pa.py_buffer(packed), size)
    if zlib.crc32(data) != int.from_bytes(body[-_SNAPPY_CRC_BYTES:], "big"):
        raise ValueDamaged("the checksum of a snappy block does not match")
    return data


def _unpack_zstandard(body: memoryview, limit: int) -> Any:
    size = _zstd_content_size(body)
    if size is not None and size <= limit:
        return pa.Codec("zstd").decompress(pa.py_buffer(body), size)
    pieces, total = [], 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd") as stream:
        while piece := stream.read(min(_STREAM_PIECE_BYTES, limit - total + 1)):
            pieces.append(piece)
            total += len(piece)
            if total > limit:
                return None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _zstd_content_size(body: memoryview) -> int | None:
    """Return the uncompressed size that the header of a zstd frame gives, if it gives one.

    The frame may be followed by others, or lie: decompressing to exactly this size then fails.
    """
    if len(body) < 6 or bytes(body[:4]) != _ZSTD_MAGIC:
        raise ValueDamaged("a block does not begin like a zstd frame")
    descriptor = body[4]
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    if not size_bytes:
        return None
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(body[at : at + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size


_UNPACKERS: Mapping[str, Callable[[memoryview, int], Any]] = {
    "null": _unpack_null,
    "deflate": _unpack_deflate,
    "snappy": _unpack_snappy,
    "zstandard": _unpack_zstandard,
}


def encode_long(value: int) -> bytes:
    """Encode a 64-bit integer as a zigzag varint.

    >>> encode_long(-1).hex(), encode_long(64).hex()
    ('01', '8001')
    """
    bits = (value << 1) ^ (value >> 63)
    octets = bytearray()
    while bits > 0x7F:
        octets.append(bits & 0x7F | 0x80)
        bits >>= 7
    octets.append(bits)
    return bytes(octets)


def encode_bytes(value: bytes) -> bytes:
    """Encode bytes, or a text as UTF-8, with the length before them."""
    return encode_long(len(value)) + value


def write_container(
    schema: str,
    blocks: Iterable[tuple[int, Any]],
    sync: bytes,
    codec: str = "zstandard",
    further: Mapping[str, bytes] | None = None,
) -> bytes:
    """Write a container file from blocks of encoded records, each with its number of records.

    `further` are entries of the header that readers ignore unless they know them.
    """
    header = {"avro.schema": schema.encode(), "avro.codec": codec.encode(), **(further or {})}
    pieces = [MAGIC, encode_long(len(header))]
    pieces += [encode_bytes(key.encode()) + encode_bytes(text) for key, text in header.items()]
    pieces += [b"\x00", sync]
    for count, body in blocks:
        packed = _PACKERS[codec](body)
        pieces += [encode_long(count), encode_long(len(packed)), packed, sync]
    return b"".join(pieces)


def _pack_deflate(body: Any) -> bytes:
    stream = zlib.compressobj(6, zlib.DEFLATED, _RAW_DEFLATE_WBITS)
    return stream.compress(body) + stream.flush()


def _pack_snappy(body: Any) -> bytes:
    packed: Any = pa.Codec("snappy").compress(body, asbytes=True)
    return bytes(packed) + zlib.crc32(body).to_bytes(_SNAPPY_CRC_BYTES, "big")


def _pack_zstandard(body: Any) -> Any:
    return pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(body, asbytes=True)


_PACKERS: Mapping[str, Callable[[Any], Any]] = {
    "null": bytes,
    "deflate": _pack_deflate,
    "snappy": _pack_snappy,
    "zstandard": _pack_zstandard,
}
