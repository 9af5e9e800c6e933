"""Avro: schemas, single values, and object containers, read and written. Pure.

`read_container` returns the records of a file as one buffer of uncompressed blocks. It verifies
all that is outside the records: magic bytes, header, codec, block lengths and sync markers.

`read_value` reads values of any type one by one. It serves files of few records, and it is the
reference for what the columnar decoder (`arrowlog.decode.avro_columns`) accepts: both refuse the
same bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.errors import LogCorrupt, UnsupportedProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# A schema of IndexTables is three levels deep. The limits keep a hostile one from exhausting the
# stack, and one whose types multiply from taking forever.
MAX_SCHEMA_DEPTH = 32
MAX_VALUE_DEPTH = 64  # of values whose type contains itself
MAX_MIN_SIZE = 1 << 16  # bytes of the smallest value of a type
_VARINT_BYTES = 10  # at most, for 64 bits
_WORD = 1 << 64


class SchemaError(ValueError):
    """A text is not an Avro schema, or one beyond the limits of this module."""


class ValueDamaged(ValueError):
    """Bytes are not a value of their type."""


class AvroType(msgspec.Struct, eq=False):
    """A type of a schema. Types are compared by identity: a type may contain itself.

    `fields` are those of a record, `items` the type of an array's items or a map's values,
    `branches` those of a union; `size` is the length of a fixed, or the number of an enum's
    symbols. `min_size` is the length in bytes of the shortest value; a type with 0 has only values
    without bytes.
    """

    kind: str
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    size: int = 0
    min_size: int = 1

    @property
    def value_type(self) -> AvroType | None:
        """The type itself, or the other branch of a union of null and one type, else None."""
        if self.kind != "union":
            return self
        others = [branch for branch in self.branches if branch.kind != "null"]
        return others[0] if len(others) == 1 else None


class AvroField(msgspec.Struct, eq=False):
    """A field of a record."""

    name: str
    type: AvroType


class _Parser(msgspec.Struct):
    named: dict[str, AvroType] = msgspec.field(default_factory=dict)

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError("the schema is nested too deeply")
        if isinstance(schema, str):
            return self._named_type(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise SchemaError("a type is neither a name, a list nor an object")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, namespace, depth)
        if kind == "array":
            return AvroType("array", items=self.parse(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return AvroType("map", items=self.parse(schema.get("values"), namespace, depth + 1))
        return self.parse(kind, namespace, depth + 1)

    def _named_type(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, min_size=_PRIMITIVE_SIZES.get(name, 1))
        for full_name in (name if "." in name else f"{namespace}.{name}", name):
            if full_name in self.named:
                return self.named[full_name]
        raise SchemaError(f"the type {name!r} is not defined")

    def _union(self, schemas: list[Any], namespace: str, depth: int) -> AvroType:
        if not schemas:
            raise SchemaError("a union has no branches")
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in schemas)
        smallest = min(branch.min_size for branch in branches)
        return AvroType("union", branches=branches, min_size=1 + smallest)

    def _definition(self, kind: str, schema: Any, namespace: str, depth: int) -> AvroType:
        name = schema.get("name")
        if not isinstance(name, str):
            raise SchemaError(f"a type {kind} has no name")
        own = schema.get("namespace", namespace)
        space = name.rpartition(".")[0] if "." in name else own if isinstance(own, str) else ""
        full_name = name if "." in name else f"{space}.{name}"
        if full_name in self.named:
            raise SchemaError(f"the type {name!r} is defined twice")
        defined = AvroType("record" if kind == "error" else kind)
        self.named[full_name] = defined
        if kind == "fixed":
            defined.size = defined.min_size = _length(schema.get("size"))
            return defined
        if kind == "enum":
            defined.size = len(_list(schema.get("symbols")))
            return defined
        defined.fields = tuple(
            self._field(item, space, depth) for item in _list(schema.get("fields"))
        )
        names = [item.name for item in defined.fields]
        if len(set(names)) < len(names):
            raise SchemaError(f"two fields of {name!r} have the same name")
        defined.min_size = sum(item.type.min_size for item in defined.fields)
        if defined.min_size > MAX_MIN_SIZE:
            raise SchemaError(f"the type {name!r} has too many fields")
        if _contains(defined, defined, set()):
            raise SchemaError(f"a value of the type {name!r} would have no end")
        return defined

    def _field(self, item: Any, namespace: str, depth: int) -> AvroField:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise SchemaError("a field of a record has no name")
        return AvroField(item["name"], self.parse(item.get("type"), namespace, depth + 1))


_PRIMITIVE_SIZES = {"null": 0, "float": 4, "double": 8}


def _contains(kind: AvroType, wanted: AvroType, seen: set[int]) -> bool:
    """Return whether every value of a record contains a value of the type `wanted`."""
    for item in kind.fields:
        if item.type is wanted:
            return True
        if id(item.type) not in seen:
            seen.add(id(item.type))
            if _contains(item.type, wanted, seen):
                return True
    return False


def _length(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_MIN_SIZE:
        raise SchemaError("the size of a fixed is not a small number")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError("fields or symbols are not a list")
    return value


def parse_schema(text: bytes | str) -> AvroType:
    """Parse the JSON text of a schema. Raises `SchemaError` if it is none, or beyond the limits."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise SchemaError(f"the schema is not JSON ({error})") from None
    return _Parser().parse(parsed, "", 0)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint; returns the value and the position after it."""
    bits = shift = 0
    for step in range(_VARINT_BYTES):
        if at + step >= len(data):
            raise ValueDamaged("a number is cut off")
        octet = data[at + step]
        bits |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            if bits >= _WORD:
                break
            return (bits >> 1) ^ -(bits & 1), at + step + 1
    raise ValueDamaged("a number has more than 64 bits")


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 32 bits."""
    value, at = read_long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueDamaged("an int has more than 32 bits")
    return value, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read bytes with their length before them."""
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueDamaged("a text or bytes value does not end within its block")
    return bytes(data[at : at + length]), at + length


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a text with its length before it."""
    value, at = read_bytes(data, at)
    try:
        return value.decode(), at
    except UnicodeDecodeError:
        raise ValueDamaged("a text is not UTF-8") from None


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if at >= len(data) or data[at] > 1:
        raise ValueDamaged("a boolean is neither 0 nor 1")
    return bool(data[at]), at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack("<f", _take(data, at, 4))[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack("<d", _take(data, at, 8))[0], at + 8


def _take(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueDamaged("a value is cut off")
    return bytes(data[at : at + length])


_READERS: Mapping[str, Callable[[bytes, int], tuple[Any, int]]] = {
    "boolean": _read_boolean,
    "int": read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def read_value(kind: AvroType, data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """Read a value; returns it and the position after it.

    Records and maps are dictionaries, an enum is the index of its symbol. Of equal keys in a map
    the last one counts. A value without bytes is None, and items without bytes are left out.
    Raises `ValueDamaged` if the bytes are not a value of the type.
    """
    if depth > MAX_VALUE_DEPTH:
        raise ValueDamaged("values are nested too deeply")
    if kind.min_size == 0:
        return None, at
    simple = _READERS.get(kind.kind)
    if simple is not None:
        return simple(data, at)
    if kind.kind == "record":
        values = {}
        for item in kind.fields:
            values[item.name], at = read_value(item.type, data, at, depth + 1)
        return values, at
    if kind.kind in ("union", "enum"):
        index, at = read_int(data, at)
        if not 0 <= index < (len(kind.branches) if kind.kind == "union" else kind.size):
            raise ValueDamaged(f"the index of a {kind.kind} is out of range")
        return (
            read_value(kind.branches[index], data, at, depth + 1)
            if kind.kind == "union"
            else (index, at)
        )
    if kind.kind == "fixed":
        return _take(data, at, kind.size), at + kind.size
    return _read_collection(kind, data, at, depth)


def _read_collection(kind: AvroType, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Read an array or a map: blocks of items, each with its number before it."""
    assert kind.items is not None
    pairs: dict[str, Any] = {}
    items: list[Any] = []
    while True:
        count, stop, at = read_item_count(kind, data, at)
        if count == 0:
            return (pairs if kind.kind == "map" else items), at
        if kind.kind == "array" and kind.items.min_size == 0:
            continue  # items without bytes may be any number: they are left out
        for _ in range(count):
            if kind.kind == "map":
                key, at = read_string(data, at)
                pairs[key], at = read_value(kind.items, data, at, depth + 1)
            else:
                value, at = read_value(kind.items, data, at, depth + 1)
                items.append(value)
        if stop not in (None, at):
            raise ValueDamaged("a block of items does not have the size it gives")


def read_item_count(kind: AvroType, data: bytes, at: int) -> tuple[int, int | None, int]:
    """Read the head of a block of items: number, end if the block has it, position after it."""
    assert kind.items is not None
    count, at = read_long(data, at)
    stop = None
    if count < 0:  # the size in bytes follows, for readers that skip
        size, at = read_long(data, at)
        count, stop = -count, at + size
    smallest = kind.items.min_size + (kind.kind == "map")
    if smallest and count > len(data) - at:
        raise ValueDamaged("an array or map has more items than its block has bytes")
    return count, stop, at


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
