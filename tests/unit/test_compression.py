"""Compression of log files: round trips, and refusal of any damage."""

import gzip
import io
import tracemalloc
import zlib

import pytest

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables.compression import (
    CODEC_BYTES,
    check_plain_size,
    compress,
    decompress,
    is_compressed,
)

FILE = "_transaction_log/00000000000000000001.json"
PLAIN = b'{"add":{"path":"a=1/x.split","size":10,"note":"\xc3\xa9 \xe2\x80\xa8"}}\n' * 5
LIMIT = 1 << 20
PACKED = sorted(CODEC_BYTES)


def whole(codec):
    return gzip.compress(PLAIN, mtime=0) if codec == "bare" else compress(PLAIN, codec)


def refused(data, limit=LIMIT):
    with pytest.raises(LogCorrupt) as caught:
        decompress(data, FILE, limit)
    assert caught.value.file == FILE
    assert str(caught.value).startswith(f"{FILE}: ")
    return str(caught.value)


@pytest.mark.parametrize("codec", [*PACKED, "none"])
@pytest.mark.parametrize("data", [b"{}", PLAIN, PLAIN * 1000, bytes(100_000)], ids=len)
def test_compressed_data_round_trips(codec, data):
    assert decompress(compress(data, codec), FILE, LIMIT) == data


@pytest.mark.parametrize(("codec", "head"), sorted(CODEC_BYTES.items()))
def test_first_two_bytes_name_the_codec(codec, head):
    data = compress(PLAIN, codec)
    assert data[:2] == bytes((1, head))
    assert is_compressed(data, 0, len(data))


@pytest.mark.parametrize("level", range(10))
def test_every_gzip_level_can_be_read(level):
    assert decompress(compress(PLAIN, "gzip", level), FILE, LIMIT) == PLAIN


def test_gzip_is_the_default():
    data = compress(PLAIN)
    assert data[:4] == b"\x01\x01\x1f\x8b"
    assert gzip.decompress(data[2:]) == PLAIN


def test_bare_gzip_stream_is_read():
    data = gzip.compress(PLAIN)
    assert data[:2] == b"\x1f\x8b"
    assert is_compressed(data, 0, len(data))
    assert decompress(data, FILE, LIMIT) == PLAIN


def test_gzip_stream_with_a_file_name_in_its_header_is_read():
    sink = io.BytesIO()
    with gzip.GzipFile("commit.json", "wb", fileobj=sink) as out:
        out.write(PLAIN)
    assert decompress(b"\x01\x01" + sink.getvalue(), FILE, LIMIT) == PLAIN


@pytest.mark.parametrize(
    "data",
    [PLAIN, b"{", b"x", b"\n", b"\x00", b"\x02\x01", b"\xef\xbb\xbf{}", b"\xff", b"{\x01\x01"],
    ids=repr,
)
def test_uncompressed_data_is_returned_unchanged(data):
    assert decompress(data, FILE, LIMIT) == data
    assert not is_compressed(data, 0, len(data))


@pytest.mark.parametrize("codec", [*PACKED, "bare"])
def test_every_truncation_is_refused(codec):
    data = whole(codec)
    for length in range(2 if codec == "bare" else 1, len(data)):
        refused(data[:length])


@pytest.mark.parametrize("codec", [*PACKED, "bare"])
def test_every_truncation_of_a_larger_file_with_many_blocks_is_refused(codec):
    plain = bytes(i * i % 251 for i in range(3000))
    data = gzip.compress(plain, mtime=0) if codec == "bare" else compress(plain, codec)
    for length in range(2, len(data), 7):
        refused(data[:length])


@pytest.mark.parametrize("codec", [*PACKED, "bare"])
@pytest.mark.parametrize("more", [b"\x00", b"\n", b"zz", b"{}\n", bytes(100)], ids=repr)
def test_bytes_after_the_stream_are_refused(codec, more):
    refused(whole(codec) + more)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "bare"])
def test_second_stream_after_the_first_is_refused(codec):
    data = whole(codec)
    refused(data + (data if codec == "bare" else data[2:]))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_concatenated_frames_are_read_where_the_format_allows_them(codec):
    data = whole(codec)
    once = decompress(data, "file", 1 << 20)
    assert decompress(data + data[2:], "file", 1 << 20) == once + once


@pytest.mark.parametrize("codec", ["gzip", "bare"])
def test_flipped_bit_in_the_gzip_checksum_is_refused(codec):
    data = bytearray(whole(codec))
    data[-6] ^= 1
    assert "damaged" in refused(bytes(data))


@pytest.mark.parametrize("codec", PACKED)
def test_garbage_after_a_known_codec_byte_is_refused(codec):
    refused(
        bytes((1, CODEC_BYTES[codec]))
        + b"this is not a stream of any codec, whatever the head says"
    )


@pytest.mark.parametrize("code", [0, 5, 6, 0x1F, 0x7B, 0x80, 0xFF])
def test_unknown_codec_byte_raises_with_its_value(code):
    assert f"0x{code:02x}" in refused(bytes((1, code)) + PLAIN)


def test_missing_codec_byte_is_refused():
    assert "missing" in refused(b"\x01")


def test_empty_file_is_refused():
    assert "empty" in refused(b"")
    with pytest.raises(LogCorrupt, match="empty"):
        check_plain_size(0, FILE, LIMIT)


@pytest.mark.parametrize("codec", [*PACKED, "bare"])
def test_empty_compressed_stream_is_refused(codec):
    refused(gzip.compress(b"") if codec == "bare" else compress(b"", codec))


@pytest.mark.parametrize("codec", [*PACKED, "none", "bare"])
def test_size_limit_is_exact(codec):
    data = whole(codec)
    assert decompress(data, FILE, len(PLAIN)) == PLAIN
    message = refused(data, len(PLAIN) - 1)
    assert f"more than {len(PLAIN) - 1} bytes" in message
    assert "maxDecompressedBytes" in message


@pytest.mark.parametrize("codec", [*PACKED, "bare"])
def test_decompression_bomb_is_refused_without_decompressing_it(codec):
    size, cap = 64 << 20, 1 << 20
    if codec == "snappy":  # a wrong length without data
        bomb = bytes((1, CODEC_BYTES[codec])) + b"\xff\xff\xff\xff\x0f"
    elif codec in ("gzip", "bare"):
        squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
        body = b"".join(squeeze.compress(bytes(1 << 20)) for _ in range(size >> 20))
        bomb = (b"" if codec == "bare" else b"\x01\x01") + body + squeeze.flush()
    else:
        bomb = compress(bytes(16 << 20), codec)
    tracemalloc.start()
    try:
        assert "more than" in refused(bomb, cap)
        assert tracemalloc.get_traced_memory()[1] < 8 * cap
    finally:
        tracemalloc.stop()


def test_is_compressed_reads_only_the_given_range():
    data = b"{}\x01\x01"
    assert not is_compressed(data, 0, 2)
    assert is_compressed(data, 2, 2)
    assert not is_compressed(data, 2, 0)
    assert not is_compressed(b"", 0, 0)
