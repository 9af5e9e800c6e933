"""The columnar Avro decoder equals a naive decoder, or raises a typed error where that fails."""

import io
import json
import random
from contextlib import suppress

import fastavro
import pytest
from support import naive_avro, real_tables
from support.case_count import cases

from arrowlog.decode import AvroColumn, AvroKind, decode_columns, decode_file_entries
from arrowlog.decode import avro_columns as columns_module
from arrowlog.decode import avro_records as records_module
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats import read_container
from arrowlog.formats.indextables import parse_state

LIMIT = 1 << 24
CODECS = ("null", "deflate", "snappy", "zstandard", "zstandard-stream")
TEXTS = ("", "a", "part-", "é", "日本", "x" * 70, "😀", "\0", "0" * 9000)
NUMBERS = (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**55, -(2**55), 2**63 - 1, -(2**63))


def random_schema(rng, depth, names):
    kinds = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    kinds += ["record", "enum", "fixed", "array", "map", "union"] if depth else []
    kind = rng.choice(kinds)
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1, names)}
    if kind == "map":
        return {"type": "map", "values": random_schema(rng, depth - 1, names)}
    if kind == "union":
        other = random_schema(rng, 0, names)
        branches = ["null", "long" if other == "null" else other]
        return branches if rng.random() < 0.7 else branches[::-1]
    if kind in ("record", "enum", "fixed"):
        names.append(f"n{len(names)}")
        named = {"type": kind, "name": names[-1]}
        if kind == "fixed":
            return named | {"size": rng.randrange(5)}
        if kind == "enum":
            return named | {"symbols": [f"s{i}" for i in range(rng.randrange(1, 100))]}
        fields = [
            {"name": f"f{i}", "type": random_schema(rng, depth - 1, names)}
            for i in range(rng.randrange(4))
        ]
        return named | {"fields": fields}
    return kind


def random_value(rng, schema):
    if isinstance(schema, list):
        other = next(branch for branch in schema if branch != "null")
        return None if rng.random() < 0.3 else random_value(rng, other)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "int":
        return max(-(2**31), min(2**31 - 1, random_value(rng, "long")))
    if kind == "long":
        return rng.choice(NUMBERS) if rng.random() < 0.4 else rng.randrange(10**6)
    if kind in ("float", "double"):
        return float(rng.randrange(1000))
    if kind == "bytes":
        return rng.randbytes(rng.randrange(20))
    if kind == "string":
        return rng.choice(TEXTS) if rng.random() < 0.3 else f"value {rng.randrange(1000)}"
    if kind == "fixed":
        return rng.randbytes(schema["size"])
    if kind == "enum":
        return rng.choice(schema["symbols"])
    if kind == "record":
        return {item["name"]: random_value(rng, item["type"]) for item in schema["fields"]}
    size = rng.choice((0, 1, 1, 2, 5))
    if kind == "array":
        # the number of items without bytes is arbitrary, and arrowlog does not keep them
        return [random_value(rng, schema["items"]) for _ in range(size)]
    return {f"k{rng.randrange(8)}": random_value(rng, schema["values"]) for _ in range(size)}


WANTED = {
    "path": (AvroKind.TEXT, "string"),
    "number": (AvroKind.INT, ["null", "long"]),
    "small": (AvroKind.INT, "int"),
    "flag": (AvroKind.BOOL, ["boolean", "null"]),
    "word": (AvroKind.WORD, ["null", "string"]),
    "tags": (AvroKind.JSON, ["null", {"type": "array", "items": "string"}]),
    "parts": (AvroKind.TEXT_MAP, {"type": "map", "values": "string"}),
    "lows": (AvroKind.TEXT_MAP, ["null", {"type": "map", "values": "string"}]),
}


def random_file_schema(rng):
    """A record with some of the wanted fields among others of any type."""
    names = []
    wanted = [name for name in WANTED if rng.random() < 0.8]
    fields = [{"name": name, "type": WANTED[name][1]} for name in wanted]
    for index in range(rng.randrange(4)):
        kind = random_schema(rng, 3, names)
        fields.insert(rng.randrange(len(fields) + 1), {"name": f"other{index}", "type": kind})
    rng.shuffle(fields)
    # at least one field with bytes
    fields.append({"name": "last", "type": "long"})
    return {"type": "record", "name": "Entry", "fields": fields}


def decode(data):
    columns = {name: AvroColumn(kind) for name, (kind, _) in WANTED.items()}
    return decode_columns(read_container(data, "file", LIMIT), columns)


def assert_same(table, records, names):
    """Compare decoded columns with records of the reference decoder."""
    assert table.num_rows == len(records)
    raw = table["raw"].to_pylist() if "raw" in table.column_names else [None] * len(records)
    for name in names:
        kind = WANTED[name][0]
        expected = [record[name] for record in records]
        if kind is not AvroKind.TEXT_MAP:
            found = table[name].to_pylist()
            if kind is AvroKind.JSON:
                found = [None if text is None else json.loads(text) for text in found]
            assert found == expected, name
            continue
        flat = {
            column.removeprefix(f"{name}."): table[column].to_pylist()
            for column in table.column_names
            if column.startswith(f"{name}.")
        }
        texts = table[name].to_pylist() if name in table.column_names else None
        for row, value in enumerate(expected):
            if raw[row]:
                found = json.loads(texts[row]) if texts[row] is not None else {}
            else:
                found = {key: cells[row] for key, cells in flat.items() if cells[row] is not None}
            assert found == (value or {}), (name, row)


@pytest.mark.parametrize("seed", range(cases(150)))
def test_random_schemas_decode_as_the_reference_decoder(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(columns_module, "_RECORDS_PER_STEP", rng.choice((64, 256, 1 << 14)))
    monkeypatch.setattr(records_module, "_GUESS_MIN_RECORDS", rng.choice((0, 64)))
    monkeypatch.setattr(columns_module, "MAX_MAP_COLUMNS", rng.choice((5, 256, 256)))
    schema = random_file_schema(rng)
    records = [random_value(rng, schema) for _ in range(rng.choice((0, 1, 7, 100, 600)))]
    codec = rng.choice(CODECS)
    data = naive_avro.encode(
        schema, records, rng, codec=codec, per_block=rng.choice((1, 3, 40, 1000))
    )
    names = [item["name"] for item in schema["fields"] if item["name"] in WANTED]
    judged = naive_avro.decode(data)
    assert judged == records
    assert_same(decode(data), records, names)
    if not codec.endswith("stream"):
        # fastavro reads an empty array as the reference decoder does; compare the wanted fields.
        further = list(fastavro.reader(io.BytesIO(data)))
        assert [[r[n] for n in names] for r in further] == [[r[n] for n in names] for r in records]


def damage(rng, data):
    """Change some bytes of a file."""
    data = bytearray(data)
    kind = rng.randrange(5)
    at = rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + rng.randrange(1, 5)]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 5))
    else:
        data[at : at + 2] = b"\xff\xff"
    return bytes(data)


@pytest.mark.parametrize("seed", range(cases(40)))
def test_damaged_files_give_the_reference_rows_or_a_typed_error(seed):
    rng = random.Random(seed)
    schema = random_file_schema(rng)
    names = [item["name"] for item in schema["fields"] if item["name"] in WANTED]
    records = [random_value(rng, schema) for _ in range(rng.choice((3, 120)))]
    codec = rng.choice(CODECS)
    whole = naive_avro.encode(schema, records, rng, codec=codec, per_block=40)
    head = whole.index(b"0123456789abcdef")
    for _ in range(12):
        # mostly within the blocks: another test covers damaged schemas
        cut = head if rng.random() < 0.8 else 0
        data = whole[:cut] + damage(rng, whole[cut:])
        try:
            judged = naive_avro.decode(data)
        except ValueError:
            judged = None
        table = None
        with suppress(LogCorrupt, UnsupportedProtocol):
            table = decode(data)
        if table is None:
            assert judged is None or cut == 0, "a file that can be read was refused"
        elif judged is not None and cut:
            assert_same(table, judged, names)
        elif cut:
            # The reference decoder reads every string, arrowlog only those of wanted fields.
            assert table.num_rows == len(naive_rows(data)), "rows of a file that cannot be read"


def naive_rows(data):
    """Decode with strings of arbitrary bytes, as a reader that skips them does."""
    return naive_avro.decode(data.replace(b'"string"', b' "bytes"'))


def test_record_separator_pattern_inside_strings_is_not_a_boundary():
    """Strings that contain the bytes between two records are not record boundaries."""
    rng = random.Random(1)
    schema = {
        "type": "record",
        "name": "Entry",
        "fields": [
            {"name": "path", "type": "string"},
            {"name": "small", "type": "int"},
            {"name": "flag", "type": ["boolean", "null"]},
        ],
    }
    plain = naive_avro.write(schema, {"path": "part-0", "small": 7, "flag": None}, rng)
    trap = (plain * 3).decode()
    records = [
        {"path": trap if i % 5 == 0 else "part-0", "small": 7, "flag": None} for i in range(2000)
    ]
    table = decode(naive_avro.encode(schema, records, rng, per_block=90))
    assert_same(table, records, ("path", "small", "flag"))


def test_records_without_a_common_pattern_are_decoded():
    rng = random.Random(2)
    schema = {
        "type": "record",
        "name": "Entry",
        "fields": [{"name": "path", "type": "string"}, {"name": "number", "type": "long"}],
    }
    records = [
        {"path": rng.randbytes(rng.randrange(1, 9)).hex(), "number": rng.getrandbits(62)}
        for _ in range(3000)
    ]
    table = decode(naive_avro.encode(schema, records, rng, per_block=150))
    assert_same(table, records, ("path", "number"))


@real_tables.needed
def test_manifests_and_states_of_real_tables_decode():
    manifests = sorted(real_tables.FOLDER.glob("*/_transaction_log/manifests/*.avro"))
    states = sorted(real_tables.FOLDER.glob("*/_transaction_log/state-v*/_manifest.avro"))
    assert manifests
    assert states
    for path in manifests:
        data = path.read_bytes()
        entries = naive_avro.decode(data)
        table = decode_file_entries(data, str(path), LIMIT, num_entries=len(entries))
        for name in ("path", "size", "modificationTime", "numRecords", "docMappingRef"):
            assert table[name].to_pylist() == [entry[name] for entry in entries]
        for name in ("partitionValues", "minValues", "maxValues"):
            flat = [c for c in table.column_names if c.startswith(f"{name}.")]
            for row, entry in enumerate(entries):
                cells = {c[len(name) + 1 :]: table[c][row].as_py() for c in flat}
                found = {key: cell for key, cell in cells.items() if cell is not None}
                assert found == (entry[name] or {})
    for path in states:
        version = int(path.parent.name.removeprefix("state-v"))
        (record,) = naive_avro.decode(path.read_bytes())
        state = parse_state(path.read_bytes(), str(path), version, LIMIT)
        assert state.state_version == record["stateVersion"]
        assert [m.num_entries for m in state.manifests] == [
            m["numEntries"] for m in record["manifests"]
        ]
        for info in state.manifests:
            assert (path.parents[1] / info.path).is_file()
