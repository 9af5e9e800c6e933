"""Avro containers: every damage is detected, every codec is read, allocation is bounded."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from support import naive_avro

from arrowlog.decode import AvroColumn, AvroKind, decode_columns
from arrowlog.decode import avro_columns as columns_module
from arrowlog.decode.avro_records import PADDING, BlockMemory, RecordWalk
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats import (
    SchemaError,
    ValueDamaged,
    parse_schema,
    read_container,
    read_value,
)

SYNC = b"0123456789abcdef"
LIMIT = 1 << 20
TEXT_MAP = {"type": "map", "values": "string"}
COLUMNS = {"path": AvroColumn(AvroKind.TEXT, required=True), "size": AvroColumn(AvroKind.INT)}


def record(*fields):
    names = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "Entry", "fields": names}


ENTRY = record(("path", "string"), ("size", "long"))


def entry(path="a", size=1):
    return naive_avro.text_bytes(path) + naive_avro.long_bytes(size)


def decode(data, columns=None, limit=LIMIT):
    return decode_columns(read_container(data, "m.avro", limit), columns or COLUMNS)


def rows(data, columns=None):
    return decode(data, columns).to_pylist()


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "zstandard-stream"])
def test_every_codec_is_read(codec):
    data = naive_avro.container(ENTRY, [(2, entry() + entry("b", -70)), (1, entry("c"))], codec)
    assert rows(data) == [
        {"path": "a", "size": 1},
        {"path": "b", "size": -70},
        {"path": "c", "size": 1},
    ]


def test_file_without_blocks_has_no_rows():
    table = decode(naive_avro.container(ENTRY, []))
    assert table.num_rows == 0
    assert table.schema.names == ["path", "size"]


def test_blocks_without_records_are_skipped():
    data = naive_avro.container(ENTRY, [(0, b""), (1, entry()), (0, b"")])
    assert len(rows(data)) == 1


def corrupt(data, match, columns=None, limit=LIMIT):
    with pytest.raises(LogCorrupt, match=match) as raised:
        decode(data, columns, limit)
    assert raised.value.file == "m.avro"


def test_damage_outside_the_records_is_detected():
    good = naive_avro.container(ENTRY, [(1, entry()), (1, entry())])
    corrupt(b"", "begin like an Avro container")
    corrupt(b"Obj\x02" + good[4:], "begin like an Avro container")
    corrupt(good[:-1], "does not end within the file")
    corrupt(good + b"\x02", "a number is cut off")
    corrupt(good[:-16] + SYNC[::-1], "sync marker")
    first = good.index(SYNC, good.index(SYNC) + 1)
    corrupt(good[:first] + SYNC[::-1] + good[first + 16 :], "sync marker")
    corrupt(good[: good.index(SYNC) + 8], "header is cut off")
    corrupt(b"Obj\x01" + naive_avro.long_bytes(1 << 60), "more items than")
    corrupt(b"Obj\x01\x00" + SYNC, "no schema")


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 40, -1])
def test_wrong_number_of_records_is_detected(count):
    data = naive_avro.container(ENTRY, [(count, entry() + entry())])
    corrupt(data, "number of records|does not end with")


def test_record_across_two_blocks_is_detected():
    """The bytes would be right without the block boundary."""
    both = entry("abcdefgh") + entry("ijklmnop")
    data = naive_avro.container(ENTRY, [(1, both[:14]), (1, both[14:])])
    corrupt(data, "number of records|does not end with")


def test_guessed_record_boundaries_must_be_contiguous():
    group = BlockMemory().join([bytes(6), bytes(4)], [3, 1], "m.avro")
    right = np.array([0, 2, 4, 6]), np.array([2, 4, 6, 10])
    assert group.is_proven(*right)
    assert not group.is_proven(np.array([0, 3, 4, 6]), right[1])
    assert not group.is_proven(right[0], np.array([2, 5, 6, 10]))
    assert not group.is_proven(right[0], np.array([2, 4, 6, 9]))
    assert not group.is_proven(np.array([0, 2, 6]), np.array([2, 6, 10]))
    assert not group.is_proven(np.array([0, 2, 4, 5]), np.array([2, 4, 5, 10]))


def test_bytes_after_the_last_record_are_detected():
    corrupt(naive_avro.container(ENTRY, [(1, entry() + b"\0")]), "does not end|number of records")


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "zstandard-stream"])
def test_decompression_bombs_are_refused(codec):
    body = entry("x" * 100_000)
    data = naive_avro.container(ENTRY, [(1, body)], codec)
    assert len(rows(data)) == 1
    corrupt(data, "more than 50000 bytes when decompressed", limit=50_000)
    many = naive_avro.container(ENTRY, [(1, body)] * 5, codec)
    corrupt(many, "more than 250000 bytes when decompressed", limit=250_000)


def test_plain_blocks_count_towards_the_limit():
    data = naive_avro.container(ENTRY, [(1, entry("x" * 1000))] * 3)
    corrupt(data, "more than 2500 bytes", limit=2500)


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "zstandard-stream"])
def test_damaged_compressed_streams_are_detected(codec):
    packed = naive_avro.pack(codec, entry("x" * 50) * 20)
    name = codec.partition("-")[0].encode()

    def with_body(body):
        head = naive_avro.container(ENTRY, [], codec, header={"avro.codec": name})
        return head + naive_avro.long_bytes(20) + naive_avro.text_bytes(body) + SYNC

    assert len(rows(with_body(packed))) == 20
    for body in (b"", packed[:3], packed[:-1], packed + b"xyz", packed[:-4] + b"\0\0\0\0"):
        corrupt(with_body(body), "Avro file is damaged")


def test_snappy_checksum_is_verified():
    packed = naive_avro.pack("snappy", entry())
    wrong = packed[:-1] + bytes([packed[-1] ^ 1])
    head = naive_avro.container(ENTRY, [], "snappy")
    corrupt(head + b"\x02" + naive_avro.text_bytes(wrong) + SYNC, "checksum")


def unsupported(data, match, columns=None):
    with pytest.raises(UnsupportedProtocol, match=match) as raised:
        decode(data, columns)
    assert raised.value.file == "m.avro"


def test_features_of_newer_writers_raise_unsupported():
    unsupported(
        naive_avro.container(ENTRY, [], header={"avro.codec": b"bzip2"}), "the codec 'bzip2'"
    )
    unsupported(naive_avro.container("long", []), "not a record")
    unsupported(naive_avro.container(record(), []), "not a record with fields")
    unsupported(
        naive_avro.container(ENTRY, [], header={"avro.schema": b"{"}), "schema .* cannot be read"
    )
    unsupported(naive_avro.container(record(("path", "string?")), []), "'string.' is not defined")
    unsupported(naive_avro.container(record(("size", "long")), []), "lacks 'path'")
    unsupported(
        naive_avro.container(record(("path", "long")), []), "'path' .* has an unexpected type"
    )
    many = record(("path", ["null", "string", "long"]))
    unsupported(naive_avro.container(many, []), "unexpected type")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        '{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}',
        '{"type":"record","name":"A","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":"fixed","name":"F","size":99999999999}',
        '{"type":"enum","name":"E"}',
        '{"type":"record","fields":[]}',
        "[" * 40 + '"null"' + "]" * 40,
        '{"type":"array"}',
    ],
)
def test_invalid_schemas_are_refused(text):
    with pytest.raises(SchemaError):
        parse_schema(text)


def test_exponentially_nested_schema_is_refused():
    """Each type contains two of the previous: a value of the last one would have 2**40 bytes."""
    kind = {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, 20):
        first = {"name": "a", "type": kind}
        second = {"name": "b", "type": f"T{level - 1}"}
        kind = {"type": "record", "name": f"T{level}", "fields": [first, second]}
    with pytest.raises(SchemaError, match="too many fields"):
        parse_schema(json.dumps(kind))


def test_namespaces_are_resolved():
    inner = {"type": "enum", "name": "E", "symbols": ["x"]}
    schema = record(("path", "string"), ("e", inner), ("f", "a.b.E"), ("g", "E"))
    schema |= {"namespace": "a.b"}
    assert [item.type.kind for item in parse_schema(json.dumps(schema)).fields[1:]] == ["enum"] * 3


def test_int_is_read_as_long_and_missing_columns_are_omitted():
    schema = record(("more", "double"), ("path", "string"), ("size", "int"))
    body = bytes(8) + entry("a", -5)
    columns = COLUMNS | {"absent": AvroColumn(AvroKind.TEXT_MAP)}
    assert rows(naive_avro.container(schema, [(1, body)]), columns) == [{"path": "a", "size": -5}]


def test_int_of_more_than_32_bits_is_detected():
    schema = record(("path", "string"), ("size", "int"))
    corrupt(naive_avro.container(schema, [(1, entry("a", 1 << 31))]), "cannot be read")


@pytest.mark.parametrize("copies", [1, 300])
def test_null_path_is_detected(copies):
    schema = record(("path", ["null", "string"]), ("size", "long"))
    body = (b"\x02" + entry()) * copies + b"\x00\x02"
    corrupt(naive_avro.container(schema, [(copies + 1, body)]), "'path' is null")


@pytest.mark.parametrize("copies", [0, 300])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", b"\x03"),
        ("string", naive_avro.long_bytes(1 << 62)),
        ("string", b"\xff" * 9 + b"\x7f"),
        ("string", b"\xff" * 11),
        ("long", b"\xff" * 9 + b"\x02"),
        ("boolean", b"\x02"),
        (["null", "long"], b"\x04\x00"),
        (["null", "long"], b"\x01\x00"),
        ({"type": "array", "items": "long"}, naive_avro.long_bytes(1 << 61)),
        ({"type": "array", "items": "long"}, b"\x01\x03\x00\x00"),
        ({"type": "array", "items": "long"}, b"\x01\x04\x00\x00"),
        ({"type": "array", "items": "long"}, naive_avro.long_bytes(-(1 << 63)) + b"\x00\x00"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, b"\x02"),
        (TEXT_MAP, b"\x02\x02a\x05\x00"),
    ],
)
def test_damaged_values_are_detected_in_wanted_and_skipped_fields(kind, value, copies):
    """In a file of many records, among valid ones."""
    good = {"string": b"\x02x", "boolean": b"\x01"}.get(kind if isinstance(kind, str) else "")
    good = good or b"\x00"
    schema = record(("path", "string"), ("size", "long"), ("more", kind))
    body = (entry() + good) * copies + entry() + value + (entry() + good) * copies
    data = naive_avro.container(schema, [(2 * copies + 1, body)])
    corrupt(data, "damaged")
    same = [(30, (entry() + value) * 30)] * 10  # the same damage in many blocks
    corrupt(naive_avro.container(schema, same), "damaged")
    wanted = {"string": AvroKind.TEXT, "boolean": AvroKind.BOOL}.get(str(kind))
    if wanted:
        corrupt(data, "damaged", COLUMNS | {"more": AvroColumn(wanted)})
    fine = naive_avro.container(schema, [(2, (entry() + good) * 2)])
    assert len(rows(fine)) == 2


def test_vectorized_walk_checks_the_sizes_of_item_blocks():
    """Without the reader of single values, which also refuses them."""
    kind = parse_schema('{"type":"array","items":"long"}')
    starts = np.arange(20) * 4
    right = RecordWalk(b"\x01\x02\x00\x00" * 20 + bytes(PADDING))
    assert (right.skip(kind, starts) == starts + 4).all()
    for wrong in (b"\x01\x03\x00\x00", b"\x01\x04\x00\x00"):
        walk = RecordWalk(wrong * 20 + bytes(PADDING))
        assert (walk.skip(kind, starts) > walk.size).all()


def test_number_of_more_than_64_bits_is_refused():
    kind = parse_schema('"long"')
    assert read_value(kind, b"\xff" * 9 + b"\x01", 0) == (-(1 << 63), 10)
    for octets in (b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x00", b"\xff" * 3):
        with pytest.raises(ValueDamaged):
            read_value(kind, octets, 0)


@pytest.mark.parametrize("copies", [1, 300])
def test_arrays_of_zero_byte_items_may_have_any_length(copies):
    """A loop over the items would never end."""
    schema = record(
        ("path", "string"), ("size", "long"), ("more", {"type": "array", "items": "null"})
    )
    body = (entry() + naive_avro.long_bytes(1 << 60) + b"\0") * copies
    assert len(rows(naive_avro.container(schema, [(copies, body)]))) == copies


def test_recursive_type_is_skipped_up_to_a_depth_limit():
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    schema = record(("path", "string"), ("size", "long"), ("more", node))
    shallow = entry() + b"\x02" * 5 + b"\x00"
    for copies in (1, 300):
        assert len(rows(naive_avro.container(schema, [(copies, shallow * copies)]))) == copies
        deep = (entry() + b"\x02" * 5000 + b"\x00") * copies
        corrupt(naive_avro.container(schema, [(copies, deep)]), "damaged", limit=1 << 24)


def test_invalid_utf_8_is_detected():
    for copies in (1, 300):
        body = entry() * copies + naive_avro.text_bytes(b"\xff") + b"\x02"
        corrupt(naive_avro.container(ENTRY, [(copies + 1, body)]), "not UTF-8")


def test_character_split_across_two_strings_is_detected():
    body = naive_avro.text_bytes(b"\xc3") + b"\x02" + naive_avro.text_bytes(b"\xa9") + b"\x02"
    corrupt(naive_avro.container(ENTRY, [(2, body)]), "not UTF-8")


MAPS = record(("path", "string"), ("size", "long"), ("low", ["null", TEXT_MAP]))
MAP_COLUMNS = COLUMNS | {"low": AvroColumn(AvroKind.TEXT_MAP)}


def maps(values):
    rng = random.Random(0)
    bodies = [entry() + naive_avro.write(["null", TEXT_MAP], value, rng) for value in values]
    return naive_avro.container(MAPS, [(len(bodies), b"".join(bodies))])


@pytest.mark.parametrize("copies", [1, 100])
def test_maps_become_columns_and_the_last_duplicate_key_wins(copies):
    values = [[("a", "1"), ("b", "2"), ("a", "3")], None, [], [("", "x"), ("timestamp_b", "y")]]
    values += [[("timestamp_a", "z"), ("a\0", "n")]]
    table = decode(maps(values * copies), MAP_COLUMNS)
    assert "raw" not in table.column_names
    assert table["low.a"].to_pylist() == ["3", None, None, None, None] * copies
    assert table["low.b"].to_pylist() == ["2", None, None, None, None] * copies
    assert table["low."].to_pylist() == [None, None, None, "x", None] * copies
    assert table["low.timestamp_b"].to_pylist() == [None, None, None, "y", None] * copies
    assert table["low.timestamp_a"].to_pylist() == [None, None, None, None, "z"] * copies
    assert table["low.a\0"].to_pylist() == [None, None, None, None, "n"] * copies


@pytest.mark.parametrize(
    "values",
    [
        [[("a", "1"), ("timestamp_b", "2")], [("a", "3"), ("timestamp_b", "")]],
        [[("a", "1"), ("timestamp_b", "2")], None, [("a", "3")], []],
        [[("a", "1"), ("b", "2")], [("b", "3"), ("a", "4")]],
        [[("a", "1"), ("b", "2")], [("a", "3"), ("a", "4")]],
        [[("a", "1")], [("a", "3"), ("a", "4")]],
        [[("timestamp_a", "1")], [("timestamp_b", "4")]],
        [[("", "1")], [("", "2")]],
    ],
)
@pytest.mark.parametrize("copies", [1, 100])
def test_maps_of_similar_records(values, copies):
    table = decode(maps(values * copies), MAP_COLUMNS)
    keys = {key for value in values for key, _ in value or ()}
    assert {*table.column_names} == {"path", "size", *(f"low.{key}" for key in keys)}
    for row, value in enumerate(values * copies):
        found = {key: table[f"low.{key}"][row].as_py() for key in keys}
        assert {k: text for k, text in found.items() if text is not None} == dict(value or ())


def test_map_key_limit_counts_keys_of_all_blocks(monkeypatch):
    monkeypatch.setattr(columns_module, "_RECORDS_PER_STEP", 1)
    monkeypatch.setattr(columns_module, "_RECORDS_PER_SLOW_STEP", 1)
    monkeypatch.setattr(columns_module, "MAX_MAP_COLUMNS", 3)
    rng = random.Random(0)
    bodies = [entry() + naive_avro.write(["null", TEXT_MAP], {f"k{n}": "x"}, rng) for n in range(5)]
    table = decode(naive_avro.container(MAPS, [(1, body) for body in bodies]), MAP_COLUMNS)
    assert table["raw"].to_pylist() == [None] * 3 + [True] * 2
    assert table["low"].to_pylist() == [None] * 3 + ['{"k3":"x"}', '{"k4":"x"}']


def test_reused_memory_does_not_expose_old_bytes():
    memory = BlockMemory()
    long = memory.join([b"\xff" * 1000], [1], "m.avro")
    assert long.size == 1000
    short = memory.join([b"", b"abc", b"de"], [0, 2, 1], "m.avro")
    assert short.data.tobytes() == b"abcde" + bytes(PADDING)
    assert short.starts.tolist() == [0, 3]
    assert short.counts.tolist() == [2, 1]
    assert memory.join([], [], "m.avro").size == 0


@pytest.mark.parametrize("seed", range(20))
def test_skip_ends_where_read_ends(seed):
    rng = random.Random(seed)
    sizes = rng.choice([(6,), (6, 13, 20), (6, 30, 62), (63,)])
    numbers = [rng.getrandbits(rng.choice(sizes)) * rng.choice((1, -1)) for _ in range(200)]
    starts, data = [], b""
    for number in numbers:
        starts.append(len(data))
        data += naive_avro.long_bytes(number)
    for damaged in (False, True):
        octets = rng.randbytes(len(data)) if damaged else data
        walk = RecordWalk(octets + bytes(PADDING))
        values, after = walk.longs(np.array(starts))
        assert walk.skip_longs(np.array(starts)).tolist() == after.tolist()
        assert damaged or values.tolist() == numbers
        _, _, behind = walk.texts(np.array(starts))
        assert walk.skip_texts(np.array(starts)).tolist() == behind.tolist()


@pytest.mark.parametrize("key", ["k" * 300, None])
def test_long_or_many_keys_are_kept_as_json_text(key):
    values = [{key or f"k{i}": str(i)} for i in range(columns_module.MAX_MAP_COLUMNS + 2)]
    table = decode(maps([*values, None]), MAP_COLUMNS)
    assert table["raw"].to_pylist() == [True] * table.num_rows
    texts = table["low"].to_pylist()
    assert [json.loads(text) for text in texts[:-1]] == values
    assert texts[-1] is None


def test_map_key_with_invalid_utf_8_is_detected():
    body = entry() + b"\x02\x02" + naive_avro.text_bytes(b"\xff") + b"\x02x\x00"
    corrupt(naive_avro.container(MAPS, [(1, body)]), "key of a map is not UTF-8", MAP_COLUMNS)


def test_maps_stay_json_text_in_rows_with_raw_statistics():
    """Statistics are looked up in rows with `raw` set, whose maps are text as well."""
    schema = record(("path", "string"), ("stats", ["null", "string"]), ("low", TEXT_MAP))
    head = naive_avro.text_bytes("a")
    body = head + b"\x02" + naive_avro.text_bytes("{}") + b"\x02\x02a\x02b\x00"
    body += head + b"\x00" + b"\x00"
    columns = {
        "path": AvroColumn(AvroKind.TEXT),
        "stats": AvroColumn(AvroKind.STATS),
        "low": AvroColumn(AvroKind.TEXT_MAP),
    }
    table = decode(naive_avro.container(schema, [(2, body)]), columns)
    assert table.to_pylist() == [
        {"path": "a", "stats": "{}", "low": '{"a":"b"}', "raw": True},
        {"path": "a", "stats": None, "low": "{}", "raw": True},
    ]


def test_columns_have_the_types_of_adds():
    schema = record(("w", ["null", "string"]), ("b", "boolean"), ("j", ["null", "string"]))
    columns = {
        "w": AvroColumn(AvroKind.WORD),
        "b": AvroColumn(AvroKind.BOOL),
        "j": AvroColumn(AvroKind.TEXT),
    }
    data = naive_avro.container(schema, [(2, b"\x02\x02x\x01\x00" * 2)])
    table = decode(data, columns)
    assert table.schema.types == [
        pa.dictionary(pa.int32(), pa.string()),
        pa.bool_(),
        pa.string(),
    ]
    assert table.to_pylist() == [{"w": "x", "b": True, "j": None}] * 2
