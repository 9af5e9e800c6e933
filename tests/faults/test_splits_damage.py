"""Damaged splits raise typed errors or return the rows, and write nothing outside the cache."""

import json
import os
import random
import re
import struct
import zlib

import pyarrow as pa
import pytest
from support.case_count import cases
from support.split_bundles import MAGIC, bundle, field, make_files, make_split, seal
from support.split_cases import (
    FIELDS,
    NESTED_FIELDS,
    NESTED_SCHEMA,
    SCHEMA,
    make_rows,
    open_split,
    read_rows,
)

from arrowlog.errors import DataFileError
from arrowlog.splits import SplitSearch

ID = pa.schema([("id", pa.int64()), ("t", pa.string())])


@pytest.fixture(scope="module")
def inner():
    return make_files({"id": field("i64"), "t": field("text")}, [[{"id": 1, "t": "x"}]])


def everything_beside(folder):
    return sorted(
        os.path.join(place, name)
        for place, folders, names in os.walk(folder)
        for name in (*names, *folders)
        if "/cache" not in os.path.join(place, name) and "/table" not in os.path.join(place, name)
    )


def refuse(tmp_path, data, message, **more):
    with (
        open_split(tmp_path, data, **more) as files,
        pytest.raises(DataFileError, match=message) as raised,
    ):
        read_rows(files, ID)
    assert raised.value.path == "a.split"
    assert raised.value.next
    assert everything_beside(tmp_path) == []


@pytest.mark.promise("splits.damage_is_found")
@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "..",
        "a/b",
        "/etc/x",
        "a\\b",
        "",
        "a..b",
        ".hidden",
        "x" * 300,
        "a\0b",
        "a b",
        "é",
    ],
)
def test_inner_file_names_that_are_paths_are_refused(tmp_path, inner, name):
    refuse(tmp_path, bundle({**inner, name: b"evil"}), "not a name of an inner file")


def test_overlapping_or_out_of_bounds_ranges_are_refused(tmp_path, inner):
    body = b"".join(inner.values())
    directory, at = {}, 0
    for name, data in inner.items():
        directory[name] = {"start": at, "end": at + len(data)}
        at += len(data)
    for change, message in (
        ({"start": 0, "end": 10}, "overlap"),
        ({"start": 0, "end": len(body) + 1}, "outside"),
        ({"start": -1, "end": 5}, "outside"),
        ({"start": 9, "end": 5}, "outside"),
        ({"start": 1.5, "end": 5}, "outside"),
        ({"start": True, "end": 5}, "outside"),
        ({"start": 1}, "outside"),
        ([], "outside"),
    ):
        files = {**directory, "extra": change}
        refuse(tmp_path, seal(body, {"files": files}), message)


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ({}, "lists no files"),
        ({"files": []}, "lists no files"),
        ([1], "lists no files"),
        ({"files": {"x": {"start": 0, "end": 1}}}, "no meta.json"),
        (b"not json", "not JSON"),
        (b'{"files": {"x": ', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_invalid_bundle_directories_are_refused(tmp_path, directory, message):
    refuse(tmp_path, seal(b"payload", directory), message)


def test_lengths_magic_and_versions_are_checked(tmp_path, inner):
    data = bundle(inner)
    (hot,) = struct.unpack("<I", data[-4:])
    at = len(data) - 4 - hot - 4
    (length,) = struct.unpack("<I", data[at : at + 4])
    meta = at - length
    refuse(tmp_path, data[:-4] + struct.pack("<I", 1 << 31), "hot cache")
    refuse(tmp_path, data[:at] + struct.pack("<I", 1 << 31) + data[at + 4 :], "its directory, ")
    refuse(tmp_path, data[:at] + struct.pack("<I", length - 4) + data[at + 4 :], "no directory")
    refuse(tmp_path, data.replace(MAGIC, b"\0" * 8), "no directory of a split")
    newer = data[:meta] + MAGIC[:4] + struct.pack("<I", 2) + data[meta + 8 :]
    refuse(tmp_path, newer, "bundle version 2; version 1 is supported")
    refuse(tmp_path, b"", "only 0 bytes")
    refuse(tmp_path, data, "bytes, not 5 as in the log", size=5)


def test_newer_index_formats_are_refused_with_their_number(tmp_path, inner):
    newer = {
        name: re.sub(rb'("index_format_version":)7', rb"\g<1>8", data)
        for name, data in inner.items()
    }
    refuse(tmp_path, bundle(newer), "index format 8; formats 6 to 7 are supported")


def test_unsupported_document_store_version_or_codec_is_refused(tmp_path, inner):
    (name,) = (name for name in inner if name.endswith(".store"))
    footer, _ = struct.unpack("<II", inner[name][-8:])
    body = inner[name][: -8 - footer]
    for change, message in (
        (body[:-28] + struct.pack("<I", 3) + body[-24:], "document store of version 3"),
        (body[:-16] + b"\4" + body[-15:], "codec other than lz4"),
        (body[:-24] + struct.pack("<Q", 1 << 40) + body[-16:], "outside the file"),
        (b"", "cut off"),
    ):
        text = json.dumps({"version": {"index_format_version": 7}, "crc": zlib.crc32(change)})
        data = change + text.encode() + struct.pack("<II", len(text), 1337)
        refuse(tmp_path, bundle({**inner, name: data}), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.pop("segments"), "meta.json cannot be parsed"),
        (lambda meta: meta["segments"][0].update(segment_id="../../x"), "cannot be parsed"),
        (lambda meta: meta["segments"][0].update(max_doc=-1), "cannot be parsed"),
        (lambda meta: meta["segments"][0].update(max_doc=2), "has 1 documents, not 2"),
        (lambda meta: meta["segments"].append(meta["segments"][0]), "same id"),
        (lambda meta: meta["schema"].append(meta["schema"][0]), "same name"),
        (lambda meta: meta["schema"][0].update(type=5), "cannot be parsed"),
        (
            lambda meta: meta["segments"][0].update(deletes={"num_deleted_docs": 1, "opstamp": 3}),
            "lacks the file",
        ),
    ],
)
def test_metadata_that_contradicts_the_files_is_refused(tmp_path, inner, change, message):
    meta = json.loads(inner["meta.json"])
    change(meta)
    refuse(tmp_path, bundle({**inner, "meta.json": json.dumps(meta).encode()}), message)


@pytest.mark.promise("splits.damage_is_found")
def test_any_flipped_bit_in_the_documents_is_detected(tmp_path):
    rows = make_rows(1, 50)
    files = make_files(FIELDS, [rows])
    (name,) = (name for name in files if name.endswith(".store"))
    footer, _ = struct.unpack("<II", files[name][-8:])
    chance = random.Random(3)
    for _ in range(cases(60)):
        data = bytearray(files[name])
        data[chance.randrange(len(data) - 8 - footer)] ^= 1 << chance.randrange(8)
        with (
            open_split(tmp_path, bundle({**files, name: bytes(data)})) as split,
            pytest.raises(DataFileError),
        ):
            read_rows(split, SCHEMA)


@pytest.mark.promise("splits.damage_is_found")
@pytest.mark.parametrize("nested", [False, True])
def test_random_damage_raises_a_typed_error_or_returns_the_rows(tmp_path, nested):
    """Truncated, flipped and moved bytes, some of them with valid checksums around them."""
    rows = make_rows(2, 80, nested=nested)
    schema = NESTED_SCHEMA if nested else SCHEMA
    fields = {**FIELDS, **NESTED_FIELDS} if nested else FIELDS
    data = make_split(fields, [rows[:40], rows[40:]], delete=("id", 9))
    refused = 0
    for seed in range(cases(150)):
        chance = random.Random(seed)
        print("seed", seed)
        hurt = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(hurt))
            kind = chance.random()
            if kind < 0.3:
                del hurt[at:]
                hurt += b"x"
            elif kind < 0.6:
                hurt[at] ^= 1 << chance.randrange(8)
            elif kind < 0.8:
                del hurt[at : at + chance.randrange(20)]
            else:
                hurt[at:at] = chance.randbytes(chance.randrange(20))
        with open_split(tmp_path, bytes(hurt), num_records=79) as split:
            try:
                found = read_rows(split, schema)
                SplitSearch(split).rows("body", "spark")
            except DataFileError:
                refused += 1
            else:
                assert len(found) == 79
        assert everything_beside(tmp_path) == []
    assert refused > cases(150) // 2


def test_split_truncated_during_reading_raises(tmp_path):
    rows = make_rows(6, 3000)
    data = make_split(FIELDS, [rows])
    with open_split(tmp_path, data) as split:
        assert len(read_rows(split, SCHEMA)) == 3000  # its checksums are verified now
        os.truncate(tmp_path / "table" / "a.split", len(data) // 10)
        with pytest.raises(DataFileError, match="ends before byte"):
            read_rows(split, SCHEMA)


def test_invalid_documents_with_valid_checksums_are_refused(tmp_path):
    """Content that passes the checksum is still bounds-checked: no length leaves its document."""
    from arrowlog.splits.bundle import ByteView
    from arrowlog.splits.doc_store import DocStore, NestedValues

    rows = make_rows(4, 60)
    files = make_files(FIELDS, [rows])
    (name,) = (name for name in files if name.endswith(".store"))
    footer, _ = struct.unpack("<II", files[name][-8:])
    body = files[name][: -8 - footer]
    kinds = [kind for kind, _ in FIELDS.values()]
    wanted = dict(enumerate(FIELDS))
    intact = DocStore.open(ByteView.of(body), 60, "x")
    # A document that declares one value fewer ends before its last byte.
    documents = intact.documents(intact.blocks)
    short = bytearray(documents.buffer)
    short[int(documents.starts[7])] -= 1
    with pytest.raises(DataFileError, match="cannot be decoded"):
        type(documents)(bytes(short), documents.starts, documents.ends, "x").columns(kinds, wanted)
    for seed in range(cases(400)):
        print("seed", seed)
        chance = random.Random(seed)
        documents = intact.documents(intact.blocks)
        wild = bytearray(documents.buffer)
        for _ in range(chance.randrange(1, 5)):
            wild[chance.randrange(len(wild) - 32)] = chance.randrange(256)
        documents = type(documents)(bytes(wild), documents.starts, documents.ends, "x")
        try:
            columns = documents.columns(kinds, wanted)
        except (DataFileError, NestedValues):
            continue
        assert {len(column) for column in columns.values()} == {60}
        for column in columns.values():
            column.validate(full=True)
