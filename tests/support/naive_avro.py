"""A second Avro decoder and encoder, as plain as possible: the judge of arrowlog's own.

It shares no code with arrowlog. `decode` raises `ValueError` for whatever is not a valid container.
"""

import io
import json
import struct
import zlib

import pyarrow as pa

try:
    from compression import zstd  # since Python 3.14
except ImportError:
    from backports import zstd

PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


class Source:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError("cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def long(self, bits=64):
        value = shift = 0
        while True:
            octet = self.take(1)[0]
            value |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
            if shift >= 70:
                raise ValueError("varint")
        if value >> 64:
            raise ValueError("varint")
        value = (value >> 1) ^ -(value & 1)
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise ValueError("range")
        return value


def names_of(schema, found):
    """Collect named types; no namespaces."""
    if isinstance(schema, list):
        for branch in schema:
            names_of(branch, found)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "enum", "fixed"):
            found[schema["name"]] = schema
        for item in schema.get("fields", []):
            names_of(item["type"], found)
        for key in ("items", "values"):
            if key in schema:
                names_of(schema[key], found)
    return found


def read(schema, source, named):
    if isinstance(schema, list):
        index = source.long(32)
        if not 0 <= index < len(schema):
            raise ValueError("branch")
        return read(schema[index], source, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in named:
        return read(named[kind], source, named)
    if isinstance(kind, (dict, list)):
        return read(kind, source, named)
    if kind == "null":
        return None
    if kind == "boolean":
        octet = source.take(1)[0]
        if octet > 1:
            raise ValueError("boolean")
        return bool(octet)
    if kind in ("int", "long"):
        return source.long(32 if kind == "int" else 64)
    if kind == "float":
        return struct.unpack("<f", source.take(4))[0]
    if kind == "double":
        return struct.unpack("<d", source.take(8))[0]
    if kind == "bytes":
        return source.take(source.long())
    if kind == "string":
        return source.take(source.long()).decode()
    if kind == "fixed":
        return source.take(schema["size"])
    if kind == "enum":
        index = source.long(32)
        if not 0 <= index < len(schema["symbols"]):
            raise ValueError("symbol")
        return schema["symbols"][index]
    if kind == "record":
        return {item["name"]: read(item["type"], source, named) for item in schema["fields"]}
    items, pairs = [], {}
    while count := source.long():
        stop = None
        if count < 0:
            count = -count
            size = source.long()
            stop = source.at + size
        if count > len(source.data):
            raise ValueError("count")
        for _ in range(count):
            if kind == "array":
                items.append(read(schema["items"], source, named))
            else:
                key = source.take(source.long()).decode()
                pairs[key] = read(schema["values"], source, named)
        if stop not in (None, source.at):
            raise ValueError("block size")
    return items if kind == "array" else pairs


def unpack(codec, body):
    if codec == "null":
        return body
    if codec == "deflate":
        stream = zlib.decompressobj(-15)
        data = stream.decompress(body)
        if not stream.eof or stream.unused_data:
            raise ValueError("deflate")
        return data
    if codec == "zstandard":
        try:
            return zstd.decompress(body)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from None
    if codec == "snappy":
        size = shift = 0
        for octet in body[:5]:
            size |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
        if size > 1 << 26:
            raise ValueError("snappy size")
        try:
            data = pa.Codec("snappy").decompress(body[:-4], size, asbytes=True)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from None
        if zlib.crc32(data) != int.from_bytes(body[-4:], "big"):
            raise ValueError("checksum")
        return data
    raise ValueError("codec")


def decode(data):
    """Return all records of a container as dictionaries."""
    try:
        return _decode(data)
    except (UnicodeDecodeError, zlib.error, KeyError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _decode(data):
    source = Source(data)
    if source.take(4) != b"Obj\x01":
        raise ValueError("magic")
    header = read({"type": "map", "values": "bytes"}, source, {})
    schema = json.loads(header["avro.schema"])
    codec = header.get("avro.codec", b"null").decode()
    named = names_of(schema, {})
    sync = source.take(16)
    records = []
    while source.at < len(data):
        count, size = source.long(), source.long()
        if count < 0:
            raise ValueError("negative count")
        block = Source(unpack(codec, source.take(size)))
        if count > len(block.data):
            raise ValueError("count")
        if source.take(16) != sync:
            raise ValueError("sync")
        records += [read(schema, block, named) for _ in range(count)]
        if block.at != len(block.data):
            raise ValueError("left over")
    return records


def long_bytes(value):
    bits = (value << 1) ^ (value >> 63)
    out = b""
    while bits > 127:
        out += bytes([bits & 127 | 128])
        bits >>= 7
    return out + bytes([bits])


def text_bytes(value):
    octets = value if isinstance(value, bytes) else value.encode()
    return long_bytes(len(octets)) + octets


def write(schema, value, rng):
    """Encode a value. Arrays and maps are split into blocks at random, some with their size."""
    if isinstance(schema, list):
        for index, branch in enumerate(schema):
            if (value is None) == (branch == "null"):
                return long_bytes(index) + write(branch, value, rng)
        raise TypeError(schema)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return long_bytes(value)
    if kind == "float":
        return struct.pack("<f", value)
    if kind == "double":
        return struct.pack("<d", value)
    if kind in ("bytes", "string"):
        return text_bytes(value)
    if kind == "fixed":
        return value
    if kind == "enum":
        return long_bytes(schema["symbols"].index(value))
    if kind == "record":
        return b"".join(write(item["type"], value[item["name"]], rng) for item in schema["fields"])
    if kind == "array":
        items = [write(schema["items"], item, rng) for item in value]
    else:
        pairs = value.items() if isinstance(value, dict) else value
        items = [text_bytes(key) + write(schema["values"], item, rng) for key, item in pairs]
    out = b""
    while items:
        count = rng.randint(1, len(items)) if rng.random() < 0.2 else len(items)
        body = b"".join(items[:count])
        items = items[count:]
        sized = rng.random() < 0.2
        out += long_bytes(-count) + long_bytes(len(body)) if sized else long_bytes(count)
        out += body
    return out + b"\0"


def pack(codec, body):
    if codec == "deflate":
        stream = zlib.compressobj(6, zlib.DEFLATED, -15)
        return stream.compress(body) + stream.flush()
    if codec == "zstandard":
        return zstd.compress(body)
    if codec == "zstandard-stream":  # without the content size, as Java writes it
        out = io.BytesIO()
        with zstd.ZstdFile(out, "wb") as stream:
            stream.write(body)
        return out.getvalue()
    if codec == "snappy":
        packed = pa.Codec("snappy").compress(body, asbytes=True)
        return packed + zlib.crc32(body).to_bytes(4, "big")
    return body


def container(schema, blocks, codec="null", sync=b"0123456789abcdef", header=None):
    """Build a container from (count, encoded records) pairs."""
    name = codec.partition("-")[0]
    entries = {"avro.schema": json.dumps(schema).encode(), "avro.codec": name.encode()}
    if codec == "null":
        del entries["avro.codec"]
    entries |= header or {}
    out = b"Obj\x01" + long_bytes(len(entries))
    out += b"".join(text_bytes(key) + text_bytes(value) for key, value in entries.items())
    out += b"\0" + sync
    for count, body in blocks:
        packed = pack(codec, body)
        out += long_bytes(count) + long_bytes(len(packed)) + packed + sync
    return out


def encode(schema, records, rng, *, codec="null", per_block=100):
    """Build a container of records, `per_block` in a block."""
    blocks = []
    for at in range(0, len(records), per_block):
        part = records[at : at + per_block]
        blocks.append((len(part), b"".join(write(schema, record, rng) for record in part)))
    return container(schema, blocks, codec)
