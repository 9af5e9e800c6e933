"""Deletion vectors: decoded exactly or refused."""

import random
import struct
import zlib

import pytest
from pyroaring import BitMap64
from support.case_count import cases
from support.delta_model import encode_z85, serialize_bitmap

from arrowlog.formats.delta import (
    DeletionVector,
    InvalidDeletionVector,
    decode_bitmap_array,
    decode_z85,
)

MAGIC = struct.pack("<i", 1681511377)


def random_rows(rng):
    """Row numbers of every kind of container, and at the borders of containers and bitmaps."""
    rows = BitMap64()
    for _ in range(rng.randint(0, 4)):
        base = rng.choice([0, 1 << 16, (1 << 32) - 10, 1 << 32, 7 << 16, rng.randrange(1 << 34)])
        kind = rng.choice(["few", "many", "run", "border"])
        if kind == "few":
            rows |= BitMap64(base + rng.randrange(1 << 17) for _ in range(rng.randint(1, 300)))
        elif kind == "many":
            rows |= BitMap64(base + rng.randrange(1 << 16) for _ in range(6000))
        elif kind == "run":
            start = base + rng.randrange(1 << 17)
            rows |= BitMap64(range(start, start + rng.randint(1, 90_000)))
        else:
            rows |= BitMap64([base, base + 65_535, base + 65_536])
    if rng.random() < 0.5:
        rows.run_optimize()
    return rows


@pytest.mark.parametrize("seed", range(cases(40)))
def test_every_container_kind_equals_pyroaring(seed):
    rows = random_rows(random.Random(seed))
    assert decode_bitmap_array(MAGIC + rows.serialize()).tolist() == list(rows)


@pytest.mark.parametrize("seed", range(cases(20)))
def test_bitmap_generator_of_the_tests_is_readable_by_pyroaring(seed):
    rows = list(random_rows(random.Random(seed)))[:20_000]
    assert list(BitMap64.deserialize(serialize_bitmap(rows)[4:])) == rows
    assert decode_bitmap_array(serialize_bitmap(rows)).tolist() == rows


@pytest.mark.parametrize("seed", range(cases(60)))
def test_damaged_bytes_are_refused_or_are_another_bitmap(seed):
    """Without a checksum, a flipped bit may give another valid bitmap. Nothing else may happen."""
    rng = random.Random(seed)
    rows = random_rows(rng)
    data = bytearray(MAGIC + rows.serialize())
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)]
        elif data:
            data[rng.randrange(min(len(data), 64))] ^= 1 << rng.randrange(8)
    try:
        found = decode_bitmap_array(bytes(data)).tolist()
    except InvalidDeletionVector:
        return
    assert found == sorted(set(found))


def in_file(rows, offset=1):
    data = serialize_bitmap(rows)
    framed = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    vector = DeletionVector("u", "x" * 20, len(data), len(rows), offset)
    return vector, framed


def test_deletion_vector_file_is_validated():
    vector, framed = in_file([0, 5, 70_000])
    assert vector.decode_range(framed).tolist() == [0, 5, 70_000]
    assert vector.file_range == (1, 1 + len(framed))
    with pytest.raises(InvalidDeletionVector, match="checksum"):
        vector.decode_range(framed[:10] + bytes([framed[10] ^ 1]) + framed[11:])
    with pytest.raises(InvalidDeletionVector, match="the log says"):
        vector.decode_range(b"\0\0\0\1" + framed[4:])
    with pytest.raises(InvalidDeletionVector, match="ends 3 bytes before"):
        vector.decode_range(framed[:-3])
    other = DeletionVector("u", "x" * 20, vector.size_in_bytes, 4, 1)
    with pytest.raises(InvalidDeletionVector, match="deletes 3 rows, the log says 4"):
        other.decode_range(framed)


def test_unknown_bitmap_format_is_refused():
    data = b"\0" + serialize_bitmap([1])[1:]
    with pytest.raises(InvalidDeletionVector, match="format"):
        decode_bitmap_array(data)


@pytest.mark.parametrize("rows", [[], [3], list(range(0, 9000, 2))])
def test_inline_vectors_are_padded_z85(rows):
    data = serialize_bitmap(rows)
    text = encode_z85(data)
    vector = DeletionVector("i", text, len(data), len(rows))
    assert vector.file is None
    assert vector.decode_inline().tolist() == rows
    with pytest.raises(InvalidDeletionVector):
        DeletionVector("i", text, len(data) + 8, len(rows)).decode_inline()


def test_deletion_vector_file_name_from_the_descriptor():
    vector = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 36, 2, 4)
    assert vector.file == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert DeletionVector("p", "file:/x/a%20b.bin", 1, 1).file == "/x/a b.bin"
    for broken in (DeletionVector("u", "short", 1, 1), DeletionVector("x", "y" * 20, 1, 1)):
        with pytest.raises(InvalidDeletionVector):
            _ = broken.file


@pytest.mark.parametrize("text", ["abcd", "abcd~", "ab cd", "#####"])
def test_invalid_z85_is_refused(text):
    with pytest.raises(InvalidDeletionVector):
        decode_z85(text)
