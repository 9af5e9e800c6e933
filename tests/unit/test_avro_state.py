"""Avro states, manifests and pointers of protocol 4: encoding, decoding, refusal of damage."""

import io
import json
import random

import fastavro
import pyarrow as pa
import pytest
from msgspec.structs import replace
from support import naive_avro

from arrowlog.decode import ENTRY_COLUMNS, decode_file_entries
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats.indextables import (
    FILE_ENTRY_FIELDS,
    ManifestInfo,
    StateManifest,
    StatePointer,
    bound_table,
    compute_bounds,
    encode_manifest,
    encode_state,
    encode_state_pointer,
    manifest_bounds,
    new_manifest_path,
    parse_state,
    parse_state_folder,
    parse_state_pointer,
    state_folder_name,
    trusted_bounds,
)
from arrowlog.formats.indextables.avro_state import STATE_SCHEMA

SYNC = b"0123456789abcdef"
LIMIT = 1 << 24
STATE = StateManifest(
    state_version=7,
    created_at=1_775_007_204_776,
    num_files=3,
    total_bytes=1 << 40,
    manifests=(
        ManifestInfo("manifests/manifest-0011223344556677.avro", 2, None, 1, 7),
        ManifestInfo("manifests/m.avro", 1, {"day": ("a", None), "é": (None, "9")}, 0, 0, 1, 0),
    ),
    tombstones=("a.split", "b/c.split"),
    schema_registry={"z7TwwZ-tDWGD-uX5": "[]"},
    metadata='{"id":"x"}',
)


def parse(state, version=7):
    return parse_state(encode_state(state, SYNC), "s.avro", version, LIMIT)


def test_state_round_trips():
    assert parse(STATE) == STATE
    bare = StateManifest(0, 0, 0, 0)
    assert parse(bare, 0) == bare


def test_fastavro_reads_a_state():
    data = encode_state(STATE, SYNC)
    (record,) = fastavro.reader(io.BytesIO(data))
    assert record["stateVersion"] == 7
    assert record["metadata"] == '{"metaData":{"id":"x"}}'
    assert record["manifests"][1]["partitionBounds"] == {
        "day": {"min": "a", "max": None},
        "é": {"min": None, "max": "9"},
    }
    assert record["tombstones"] == ["a.split", "b/c.split"]


def changed(**values):
    """The state with fields that the dataclass cannot have."""
    (record,) = fastavro.reader(io.BytesIO(encode_state(STATE, SYNC)))
    schema = fastavro.parse_schema(json.loads(STATE_SCHEMA))
    out = io.BytesIO()
    fastavro.writer(out, schema, [record | values])
    return out.getvalue()


def test_state_of_another_version_or_format_is_refused():
    with pytest.raises(LogCorrupt, match="version 8 says that it is of 7"):
        parse(STATE, 8)
    with pytest.raises(UnsupportedProtocol, match="format version 2"):
        parse_state(changed(formatVersion=2), "s.avro", 7, LIMIT)
    with pytest.raises(UnsupportedProtocol, match="protocol version 5"):
        parse_state(changed(protocolVersion=5), "s.avro", 7, LIMIT)
    with pytest.raises(LogCorrupt, match="not a JSON object"):
        parse_state(changed(metadata="[]"), "s.avro", 7, LIMIT)


def test_state_has_exactly_one_record():
    (record,) = fastavro.reader(io.BytesIO(encode_state(STATE, SYNC)))
    for records in ([], [record, record]):
        out = io.BytesIO()
        fastavro.writer(out, json.loads(STATE_SCHEMA), records)
        with pytest.raises(LogCorrupt, match=f"one record, and this one {len(records)}"):
            parse_state(out.getvalue(), "s.avro", 7, LIMIT)
    whole = naive_avro.container(
        {"type": "record", "name": "S", "fields": [{"name": "formatVersion", "type": "int"}]},
        [(1, b"\x02\x00")],
    )
    with pytest.raises(LogCorrupt, match="bytes after the record"):
        parse_state(whole, "s.avro", 7, LIMIT)


def test_unwrapped_metadata_and_prefixed_registry_keys_of_old_writers():
    data = changed(metadata='{"id":"y"}', schemaRegistry={"docMappingSchema.r": "[]", "s": "{}"})
    state = parse_state(data, "s.avro", 7, LIMIT)
    assert state.metadata == '{"id":"y"}'
    assert state.schema_registry == {"r": "[]", "s": "{}"}
    assert parse_state(changed(metadata=None), "s.avro", 7, LIMIT).metadata is None


def test_fields_are_found_by_name_and_may_be_absent():
    """Fields in another order, int for long, and no optional fields."""
    kind = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "numEntries", "type": "int"}, {"name": "path", "type": "string"}],
    }
    schema = {
        "type": "record",
        "name": "S",
        "fields": [
            {"name": "new", "type": "double"},
            {"name": "manifests", "type": {"type": "array", "items": kind}},
            {"name": "createdAt", "type": "int"},
            {"name": "stateVersion", "type": "int"},
            {"name": "formatVersion", "type": "int"},
        ],
    }
    value = {
        "new": 1.0,
        "manifests": [{"numEntries": 4, "path": "m"}],
        "createdAt": 5,
        "stateVersion": 7,
        "formatVersion": 1,
    }
    data = naive_avro.encode(schema, [value], random.Random(0))
    state = parse_state(data, "s.avro", 7, LIMIT)
    assert state.manifests == (ManifestInfo("state-v00000000000000000007/m", 4),)
    assert (state.tombstones, state.protocol_version, state.metadata) == ((), 4, None)
    del schema["fields"][3]
    with pytest.raises(UnsupportedProtocol, match="'stateVersion'"):
        parse_state(naive_avro.encode(schema, [value], random.Random(0)), "s.avro", 7, LIMIT)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x.avro",
        "manifests/../../x",
        "a//b",
        "./a",
        "a/.",
        "s3://b/x",
        "file:x",
        "C:/x",
        "a\\b",
        "a\0b",
        "manifests/",
        "a/\n",
    ],
)
def test_manifests_outside_the_log_are_refused(path):
    state = replace(STATE, manifests=(ManifestInfo(path, 1),))
    with pytest.raises(LogCorrupt, match="not a path inside the log") as raised:
        parse(state)
    assert raised.value.file == "s.avro"


def test_negative_number_of_entries_is_refused():
    with pytest.raises(LogCorrupt, match="negative"):
        parse(replace(STATE, manifests=(ManifestInfo("m/m", -1),)))


def test_state_folder_and_manifest_names():
    assert state_folder_name(12) == "state-v00000000000000000012"
    assert parse_state_folder(state_folder_name(12)) == 12
    for name in ("state-v12", "state-v" + "9" * 20, "xstate-v" + "0" * 20, "state-v" + "0" * 21):
        assert parse_state_folder(name) is None
    assert new_manifest_path("0123456789abcdef") == "manifests/manifest-0123456789abcdef.avro"
    with pytest.raises(ValueError, match="16 hexadecimal"):
        new_manifest_path("../../x")


def test_state_pointer_round_trips():
    pointer = StatePointer(5, 10, 58566, 3)
    data = encode_state_pointer(pointer)
    assert json.loads(data)["stateDir"] == "state-v00000000000000000005"
    assert json.loads(data)["size"] == 10
    assert parse_state_pointer(data) == pointer
    written_by_scala = json.loads(data) | {"parts": None, "checkpointId": None}
    assert parse_state_pointer(json.dumps(written_by_scala).encode()) == pointer
    for change in (
        {"format": "parquet"},
        {"version": -1},
        {"version": "5"},
        {"version": True},
        {"stateDir": "../x"},
        {"stateDir": "state-v00000000000000000006"},
    ):
        assert parse_state_pointer(json.dumps(json.loads(data) | change).encode()) is None
    assert parse_state_pointer(b"{") is None
    assert parse_state_pointer(b"[]") is None


DAY, TIME = pa.date32(), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        (pa.int64(), "9", "10", ("9", "10")),
        (pa.int32(), "-5", "7", ("-5", "7")),
        (pa.int64(), "10", "9", None),
        (pa.int64(), "1", "1a", None),
        (pa.int64(), "1", "99999999999999999999", None),
        (pa.int64(), "1.5", "2", None),
        (pa.float64(), "1", "1e3", ("1", "1e3")),
        (pa.float64(), "1", "NaN", None),
        (pa.float64(), "1", "1e999", None),
        (pa.decimal128(20, 2), "0.25", "123456789012345", ("0.25", "123456789012345")),
        (pa.decimal128(20, 2), "0.25", "1234567890123456", None),
        (DAY, "2024-01-01", "2024-02-01", ("2024-01-01", "2024-02-01")),
        (DAY, "19000", "2024-02-01", None),
        (DAY, "2024-01-01", "2024-02-31", None),
        (
            TIME,
            "2024-01-02 10:00:00",
            "2024-01-03T00:00:00Z",
            ("2024-01-01T00:00:00Z", "2024-01-05T00:00:00Z"),
        ),
        (TIME, "x", "2024-01-03T00:00:00Z", None),
        (TIME, "9999-12-31T00:00:00Z", "9999-12-31T00:00:00Z", None),
        (pa.string(), "a", "b", ("a", "b")),
        (pa.string(), "A", "é", ("A", "é")),
        (pa.string(), "9", "b", None),
        (pa.string(), "-", "b", None),
        (pa.string(), "a", "\ue000", None),
        (pa.string(), "a", "😀", None),
        (pa.string(), "b", "a", None),
        (pa.string(), "nan", "zeta", None),
        (pa.string(), "alpha", "Infinity", None),
        (pa.string(), "alpha", "inf", None),
        (pa.bool_(), "false", "true", None),
        (pa.string(), None, "b", None),
        (pa.string(), "a", None, None),
    ],
)
def test_trusted_manifest_bounds(kind, low, high, expected):
    assert trusted_bounds((low, high), kind) == expected


def test_absent_bounds_are_unknown():
    assert trusted_bounds(None, pa.int64()) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["9", "10", "-3"], ("-3", "10")),
        (["9", "10.5"], ("9", "10.5")),
        (["9", "1a"], None),
        (["1a", "2b"], ("1a", "2b")),
        (["2024-01-02", "2024-01-01"], ("2024-01-01", "2024-01-02")),
        (["a", None], None),
        (["a", ""], None),
        ([], None),
        (["a", "NaN"], None),
        (["1d", "2"], None),
        (["a", " 1"], None),
        (["a", "\ue000"], None),
        (["a", "0x1"], None),
    ],
)
def test_computed_manifest_bounds(values, expected):
    assert compute_bounds(values) == expected


def pairwise_less(left, right):
    """The order of other writers: integers, then floating-point numbers, then text."""
    for convert in (int, float):
        try:
            return convert(left) < convert(right)
        except ValueError:
            continue
    return left < right


def test_computed_bounds_follow_the_pairwise_order():
    """In any order of the values, as other writers compute them."""
    rng = random.Random(3)
    words = ["1", "9", "10", "-2", "1.5", "a", "b9", "2024-01-01", "z", "1e2"]
    for _ in range(300):
        values = rng.sample(words, rng.randrange(1, 6))
        found = compute_bounds(values)
        if found is None:
            continue
        low = high = values[0]
        for value in values[1:]:
            low = value if pairwise_less(value, low) else low
            high = value if pairwise_less(high, value) else high
        assert found == (low, high)


def test_excluded_texts_get_their_own_bound_rows():
    manifests = [{"region": ("eu", "us"), "n": ("1", "5")}, None]
    table = bound_table(manifests, {"region": pa.string(), "n": pa.int64()})
    first, *others, last = table.to_pylist()
    assert first == {
        "manifest": 0,
        "low.region": "eu",
        "high.region": "us",
        "low.n": "1",
        "high.n": "5",
    }
    assert last == {"manifest": 1} | dict.fromkeys(table.column_names[1:])
    ranges = [(row["low.region"], row["high.region"]) for row in others]
    assert all(row == first | {k: row[k] for k in ("low.region", "high.region")} for row in others)
    left_out = ["", "nan", "NaN", "NAN", "inf", "Infinity", "INFINITY", "+inf", "-Infinity", "-NaN"]
    for text in left_out:
        assert any(low <= text <= high for low, high in ranges), text
    for text in ("eu", "us", "info", "nano", "a", "zz"):
        assert not any(low <= text <= high for low, high in ranges), text


def test_two_text_columns_with_excluded_values():
    kinds = {"a": pa.string(), "b": pa.string()}
    table = bound_table([{"a": ("c", "d"), "b": ("e", "f")}], kinds)
    first, *others = table.to_pylist()
    assert (first["low.a"], first["high.b"]) == ("c", "f")
    for row in others:
        assert (row["low.a"] is None) != (row["low.b"] is None)


def adds(**columns):
    rows = len(next(iter(columns.values())))
    base = {
        "path": pa.array([f"p{i}" for i in range(rows)]),
        "size": pa.array(range(rows), pa.int64()),
        "modificationTime": pa.array([1 << 40] * rows, pa.int64()),
    }
    return pa.table(base | columns)


def entries(table, **options):
    options = {"version": 3, "timestamp": 9, "sync": SYNC, "path": "path"} | options
    return naive_avro.decode(encode_manifest(table, **options))


def test_manifest_has_all_fields_in_order():
    (record,) = entries(adds(numRecords=pa.array([5], pa.int64())))
    assert list(record) == list(FILE_ENTRY_FIELDS)
    assert len(record) == 25
    assert record["addedAtVersion"] == 3
    assert record["addedAtTimestamp"] == 9
    assert (record["dataChange"], record["hasFooterOffsets"]) == (True, False)
    assert record["numRecords"] == 5
    assert record["partitionValues"] == {}
    assert record["minValues"] is None


def random_adds(rng, rows):
    def column(make, kind, nulls=0.3):
        values = [None if rng.random() < nulls else make() for _ in range(rows)]
        return pa.array(values, kind)

    def text():
        return rng.choice(["", "a", "é", "x" * 70, "y" * 9000]) + str(rng.randrange(99))

    def number():
        return rng.choice([0, -1, 63, 64, 2**40, 2**63 - 1, -(2**63), rng.randrange(10**6)])

    columns = {
        "path": column(text, pa.string(), 0),
        "size": column(number, pa.int64(), 0),
        "modificationTime": column(number, pa.int64(), 0),
        "dataChange": column(lambda: rng.random() < 0.5, pa.bool_(), 0),
        "hasFooterOffsets": column(lambda: rng.random() < 0.5, pa.bool_(), 0),
    }
    for name in ("numRecords", "footerStartOffset", "deleteOpstamp", "companionDeltaVersion"):
        columns[name] = column(number, pa.int64(), rng.choice((0, 0.5, 1)))
    columns["numMergeOps"] = column(lambda: rng.randrange(9), pa.int64())
    for name in ("docMappingRef", "companionFastFieldMode"):
        columns[name] = column(text, pa.string()).dictionary_encode()
    columns["timeRangeStart"] = column(text, pa.string())
    columns["splitTags"] = column(lambda: rng.choice(["[]", '["a","é"]']), pa.string())
    for name in ("partitionValues", "minValues", "maxValues"):
        for key in rng.sample(["a", "é", "", "k" * 70], rng.randrange(4)):
            columns[f"{name}.{key}"] = column(text, pa.string(), rng.choice((0, 0.5)))
    return pa.table(columns)


@pytest.mark.parametrize("seed", range(30))
def test_manifests_round_trip(seed):
    rng = random.Random(seed)
    table = random_adds(rng, rng.choice((1, 2, 50, 400)))
    codec = rng.choice(("null", "deflate", "snappy", "zstandard"))
    data = encode_manifest(table, version=1, timestamp=2, sync=SYNC, path="path", codec=codec)
    found = decode_file_entries(data, "m.avro", LIMIT, num_entries=table.num_rows)
    for name in table.column_names:
        if table[name].null_count < table.num_rows:
            assert found[name].to_pylist() == table[name].to_pylist(), name
    extra = set(found.column_names) - set(table.column_names)
    assert all(found[name].null_count == table.num_rows for name in extra)
    assert len(naive_avro.decode(data)) == table.num_rows
    assert len(list(fastavro.reader(io.BytesIO(data)))) == table.num_rows


def test_table_slice_is_encoded():
    table = random_adds(random.Random(5), 60)
    for part in (table.slice(7, 20), pa.concat_tables([table.slice(7, 9), table.slice(16, 11)])):
        assert [e["path"] for e in entries(part)] == table["path"].to_pylist()[7:27]


def test_maps_in_raw_rows_are_encoded_from_their_text():
    table = adds(
        **{
            "raw": pa.array([True, None, True]),
            "minValues": pa.array(['{"a":"1","b":null,"c":2.50}', None, None]),
            "minValues.a": pa.array([None, "7", None]),
            "partitionValues": pa.array(['{"d":"x"}', None, "{}"]),
        }
    )
    found = entries(table)
    assert [entry["minValues"] for entry in found] == [{"a": "1", "c": "2.50"}, {"a": "7"}, None]
    assert [entry["partitionValues"] for entry in found] == [{"d": "x"}, {}, {}]


def test_unrepresentable_adds_are_refused():
    with pytest.raises(ValueError, match="size is null"):
        entries(adds(size=pa.array([1, None], pa.int64())))
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        entries(adds(numMergeOps=pa.array([1 << 31], pa.int64())))


def test_empty_manifest():
    table = adds(numRecords=pa.array([5], pa.int64())).slice(0, 0)
    assert entries(table) == []


def test_manifest_bounds():
    table = adds(
        **{
            "partitionValues.n": pa.array(["9", "10"]),
            "partitionValues.gap": pa.array(["a", None]),
        }
    )
    assert manifest_bounds(table, ["n", "gap", "absent"]) == {"n": ("9", "10")}
    assert manifest_bounds(table, ["gap"]) is None


def test_wrong_number_of_entries_is_detected():
    data = encode_manifest(
        adds(numRecords=pa.array([5], pa.int64())), version=1, timestamp=2, sync=SYNC, path="path"
    )
    assert decode_file_entries(data, "m.avro", LIMIT, num_entries=1).num_rows == 1
    with pytest.raises(LogCorrupt, match="has 1 entries, and its state says 2"):
        decode_file_entries(data, "m.avro", LIMIT, num_entries=2)


def test_only_requested_fields_are_decoded():
    table = random_adds(random.Random(1), 20)
    data = encode_manifest(table, version=1, timestamp=2, sync=SYNC, path="path")
    found = decode_file_entries(data, "m.avro", LIMIT, fields=["size", "path"])
    assert found.column_names == ["size", "path"]
    assert "addedAtVersion" not in ENTRY_COLUMNS
