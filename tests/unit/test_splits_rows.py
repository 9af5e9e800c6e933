"""Rows of splits: types round trip, deleted rows stay out, what cannot be read is named."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from support import real_tables
from support.split_bundles import bundle, field, make_files, make_split
from support.split_cases import (
    FIELDS,
    NESTED_FIELDS,
    NESTED_SCHEMA,
    SCHEMA,
    expected,
    make_rows,
    open_split,
    read_rows,
)

from arrowlog.errors import DataFileError
from arrowlog.splits import RowDecoder, SplitCache, SplitFile, SplitFiles
from arrowlog.storage import LocalStore, open_store


def test_rows_of_every_plain_type_round_trip(tmp_path):
    rows = make_rows(1, 500)
    with open_split(tmp_path, make_split(FIELDS, [rows]), 500) as files:
        assert read_rows(files, SCHEMA) == expected(rows)
    assert not (tmp_path / "cache").exists()  # a local split is read in place


def test_rows_of_nested_types_round_trip(tmp_path):
    rows = make_rows(2, 200, nested=True)
    data = make_split({**FIELDS, **NESTED_FIELDS}, [rows])
    with open_split(tmp_path, data, 200) as files:
        assert read_rows(files, NESTED_SCHEMA) == expected(rows)


@pytest.mark.parametrize("nested", [False, True])
def test_rows_of_all_segments_exclude_deleted_ones(tmp_path, nested):
    rows = make_rows(3, 150, nested=nested)
    fields = {**FIELDS, **NESTED_FIELDS} if nested else FIELDS
    schema = NESTED_SCHEMA if nested else SCHEMA
    data = make_split(fields, [rows[:60], rows[60:61], rows[61:]], delete=("id", 77))
    live = [row for row in rows if row["id"] != 77]
    with open_split(tmp_path, data, 149) as files:
        assert len(files.meta.segments) == 3
        assert files.meta.num_docs == 149
        assert read_rows(files, schema) == expected(live)
        # The same through fast fields.
        numbers = pa.schema([schema.field("id"), schema.field("ratio"), schema.field("flag")])
        assert read_rows(files, numbers) == [
            {name: row[name] for name in numbers.names} for row in live
        ]


def test_chosen_rows_are_read_by_number(tmp_path):
    rows = make_rows(4, 3000)
    data = make_split(FIELDS, [rows[:2000], rows[2000:]], delete=("id", 5))
    with open_split(tmp_path, data) as files:
        by_number = {}
        for numbers, batch in RowDecoder(files, SCHEMA).batches():
            by_number |= dict(zip(numbers.tolist(), batch.to_pylist(), strict=True))
        assert len(by_number) == 2999
        gone = set(range(3000)) - set(by_number)
        chosen = np.array(sorted({0, 1, 999, 1000, 1999, 2000, 2999} | gone))
        wanted = [by_number[n] for n in chosen.tolist() if n in by_number]
        wanted.sort(key=lambda row: row["id"])
        assert read_rows(files, SCHEMA, chosen) == wanted
        assert read_rows(files, SCHEMA, np.empty(0, np.int64)) == []


def test_column_missing_from_the_split_is_null(tmp_path):
    data = make_split({"id": field("i64")}, [[{"id": 1}, {"id": None}]])
    schema = pa.schema([("id", pa.int64()), ("later", pa.string()), ("void", pa.null())])
    with open_split(tmp_path, data) as files:
        found = [
            row for _, batch in RowDecoder(files, schema).batches() for row in batch.to_pylist()
        ]
        assert found == [
            {"id": 1, "later": None, "void": None},
            {"id": None, "later": None, "void": None},
        ]
        nothing = pa.schema([("later", pa.string())])
        assert read_rows(files, nothing) == [{"later": None}] * 2
        assert sum(len(numbers) for numbers, _ in RowDecoder(files, pa.schema([])).batches()) == 2


def test_json_text_round_trips_as_equivalent_json(tmp_path):
    value = {"a": [1, None, "x"], "b": {"c": True}}
    data = make_split({"j": field("json_object")}, [[{"j": value}, {}]])
    with open_split(tmp_path, data) as files:
        texts = [row["j"] for row in read_rows(files, pa.schema([("j", pa.string())]))]
    assert json.loads(texts[0]) == value
    assert texts[1] is None


def test_arrays_of_the_older_writer_are_read(tmp_path):
    data = make_split({"j": field("json_object")}, [[{"j": {"_values": [1, 2]}}]])
    with open_split(tmp_path, data) as files:
        assert read_rows(files, pa.schema([("j", pa.list_(pa.int32()))])) == [{"j": [1, 2]}]


@pytest.mark.parametrize(
    ("fields", "row", "kind", "message"),
    [
        (
            field("i64", stored=False, fast=False),
            1,
            pa.int64(),
            "indexed in the split, but not stored",
        ),
        (field("text", stored=False), "a", pa.string(), "indexed in the split, but not stored"),
        (field("u64"), 1, pa.string(), "type u64, from which it cannot be rebuilt"),
        (field("u64"), 1, pa.int64(), "cannot be rebuilt"),
        (field("text"), "a", pa.int64(), "cannot be rebuilt"),
        (field("f64"), 1.0, pa.decimal128(10, 2), "cannot be rebuilt"),
        (field("i64"), 1 << 20, pa.int16(), "outside the range"),
        (field("json_object"), {"j": ["a"]}, pa.list_(pa.int64()), "'a' where its type has int64"),
        (field("json_object"), {"x": 1}, pa.list_(pa.int64()), "where its type has list"),
        (field("text"), ("a", "b"), pa.string(), "several values"),
        (
            field("json_object"),
            {"j": ["2024-01-01T00:00:00+02:00"]},
            pa.list_(pa.string()),
            "a timestamp where its type has string",
        ),
    ],
)
def test_unreadable_field_raises_with_its_name(tmp_path, fields, row, kind, message):
    other = {"other": field("text")}
    data = make_split({"j": fields, **other}, [[{"j": row, "other": "x"}]])
    with open_split(tmp_path, data) as files:
        with pytest.raises(DataFileError, match=message) as raised:
            read_rows(files, pa.schema([("j", kind), ("other", pa.string())]))
        assert raised.value.path == "a.split"
        assert "'j'" in str(raised.value)
        assert read_rows(files, pa.schema([("other", pa.string())])) == [{"other": "x"}]


def test_fast_only_number_is_read_with_stored_text(tmp_path):
    fields = {"n": field("i64", stored=False), "t": field("text")}
    rows = [{"n": n, "t": f"t{n}"} for n in range(5)]
    with open_split(tmp_path, make_split(fields, [rows])) as files:
        assert read_rows(files, pa.schema([("n", pa.int32()), ("t", pa.string())])) == rows


def test_companion_splits_are_refused(tmp_path):
    files = make_files({"__pq_file_hash": field("u64"), "id": field("i64")}, [[{"id": 1}]])
    with (
        open_split(tmp_path, bundle(files)) as split,
        pytest.raises(DataFileError, match="companion index of Parquet"),
    ):
        split.meta  # noqa: B018
    files = make_files({"id": field("i64")}, [[{"id": 1}]])
    data = bundle({**files, "_parquet_manifest.json": b"{}"})
    with (
        open_split(tmp_path, data) as split,
        pytest.raises(DataFileError, match="companion index of Parquet"),
    ):
        split.meta  # noqa: B018


def test_row_count_that_contradicts_the_log_is_refused(tmp_path):
    data = make_split({"id": field("i64")}, [[{"id": 1}]])
    with (
        open_split(tmp_path, data, num_records=2) as files,
        pytest.raises(DataFileError, match="1 rows, not 2 as in the log"),
    ):
        read_rows(files, pa.schema([("id", pa.int64())]))


def test_missing_split_raises(tmp_path):
    file = SplitFile("gone.split", 10, 0)
    with (
        SplitFiles(LocalStore(str(tmp_path)), file, SplitCache(str(tmp_path / "c"), 1)) as files,
        pytest.raises(DataFileError, match="does not exist"),
    ):
        files.meta  # noqa: B018


class CountingStore:
    """A store that records the requested ranges."""

    def __init__(self, store):
        self._store = store
        self.ranges = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get_range(self, key, start, stop):
        self.ranges.append((start, stop))
        return self._store.get_range(key, start, stop)


def test_remote_split_is_fetched_by_needed_ranges_only(tmp_path, monkeypatch):
    # The files of this small split are adjacent and would be fetched together otherwise.
    monkeypatch.setattr("arrowlog.splits.split_files._COALESCE_BYTES", -1)
    monkeypatch.setattr("arrowlog.splits.split_files._SMALL_BYTES", 0)
    rows = make_rows(5, 2000)
    data = make_split(FIELDS, [rows[:1000], rows[1000:]], delete=("id", 3))
    store = CountingStore(open_store(f"memory://splits-{os.getpid()}"))
    store.put_if_absent("a.split", data)
    cache = SplitCache(str(tmp_path / "cache"), 1 << 30)
    file = SplitFile("a.split", len(data), 7, None, 1999)
    live = expected([row for row in rows if row["id"] != 3])
    with SplitFiles(store, file, cache) as files:
        numbers = pa.schema([SCHEMA.field("id"), SCHEMA.field("score")])
        read_rows(files, numbers)
        documents = [
            found for name, found in files._bundle.files.items() if name.endswith(".store")
        ]
        payload_end = max(found.end for found in files._bundle.files.values())
        # The first requests read the directory. Those that follow read no byte of the documents.
        later = [asked for asked in store.ranges if asked[0] < payload_end]
        assert later
        assert not any(
            asked[0] < found.end and found.start < asked[1]
            for asked in later
            for found in documents
        )
        assert read_rows(files, SCHEMA) == live
    fetched = len(store.ranges)
    with SplitFiles(store, file, cache) as files:
        assert read_rows(files, SCHEMA) == live
    assert len(store.ranges) == fetched  # everything is cached now


def test_small_remote_split_is_fetched_with_one_request(tmp_path):
    rows = make_rows(6, 20)
    data = make_split(FIELDS, [rows])
    store = CountingStore(open_store(f"memory://small-split-{os.getpid()}"))
    store.put_if_absent("a.split", data)
    file = SplitFile("a.split", len(data), 7, None, 20)
    with SplitFiles(store, file, SplitCache(str(tmp_path / "cache"), 1 << 30)) as files:
        assert read_rows(files, SCHEMA) == expected(rows)
    assert store.ranges == [(0, len(data))]


def test_replaced_split_at_the_same_uri_is_not_read_from_the_cache(tmp_path):
    # Each process has its own memory, and all of them share the cache on disk.
    store, cache = open_store(f"memory://same-{os.getpid()}"), SplitCache(str(tmp_path), 1 << 30)
    for word in ("first", "other"):
        parts = make_files({"id": field("i64"), "name": field("text")}, [[{"id": 1, "name": word}]])
        data = bundle(parts, b"h" * (5000 - len(bundle(parts, b""))))
        assert len(data) == 5000
        store.replace("a.split", data)
        schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])
        with SplitFiles(store, SplitFile("a.split", 5000, 7, None, 1), cache) as files:
            assert read_rows(files, schema) == [{"id": 1, "name": word}]


@pytest.mark.parametrize("accelerate", [True, False])
def test_same_bucket_on_another_server_is_another_split(tmp_path, monkeypatch, accelerate):
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    file, cache = SplitFile("a.split", 5000, 7), SplitCache(str(tmp_path), 1 << 30)
    keys = {"key": "k", "secret": "s", "region": "us-east-1"}

    def identity(options):
        store = open_store("s3://bucket/table", {**keys, **options}, accelerate=accelerate)
        return SplitFiles(store, file, cache).identity

    servers = ["http://127.0.0.1:9000", "http://127.0.0.1:9001"]
    found = [identity({"endpoint_url": server}) for server in servers]
    monkeypatch.setenv("AWS_ENDPOINT_URL", servers[0])
    assert identity({}) == found[0] != found[1]


@real_tables.needed
def test_rows_of_real_tables_are_complete(tmp_path):
    real = real_tables.FOLDER
    wanted = json.loads((real / "expected_rows.json").read_text())
    kinds = {"i64": pa.int64(), "f64": pa.float64(), "text": pa.string()}
    cache = SplitCache(str(tmp_path), 1 << 30)
    splits = 0
    for table, rows in wanted.items():
        found = set()
        for path in sorted((real / table).rglob("*.split")):
            key = str(path.relative_to(real / table))
            file = SplitFile(key, path.stat().st_size, 0)
            values = dict(part.split("=") for part in key.split("/")[:-1])
            with SplitFiles(LocalStore(str(real / table)), file, cache) as files:
                schema = pa.schema([(f.name, kinds[f.kind]) for f in files.meta.fields])
                found |= {_frozen({**row, **values}) for row in read_rows(files, schema)}
            splits += 1
        # Splits that were removed from the log are still in the folders.
        assert {_frozen(row) for row in rows} <= found
        if table in ("02_five_appends", "10_large_batch"):
            assert {_frozen(row) for row in rows} == found
    assert splits == 104


def _frozen(row):
    return frozenset((name, str(value)) for name, value in row.items())
