"""A checkpoint of any version of any log changes no snapshot of any version."""

import json
import os
import random
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import log_model, small_table
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import LineBuffer, decoder
from arrowlog.formats.indextables import ADD_FIELDS, classify_names, commit_encoder, commit_name
from arrowlog.formats.indextables.commit_encoder import (
    encode_add_objects,
    join_add_objects,
    quote_json_strings,
)
from arrowlog.formats.indextables.compression import CODEC_BYTES
from arrowlog.snapshot.log_replay import replay_actions

FORMATS = ["json"]  # the Parquet form has its own: it writes paths relative to the table
SEEDS = cases(16)
BATCH = 8
VERSIONS = 7


@pytest.fixture(params=[1, 48], ids=["columnar", "mixed"])
def threshold(request, monkeypatch):
    """Small logs are decoded line by line; force them through the columnar decoder as well."""
    monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", request.param)


def log_of(root):
    return f"{root}/_transaction_log"


def checkpoint_at(root, version, **options):
    """Write the checkpoint of a version while its commit is the last."""
    folder = log_of(root)
    later = [n for n in os.listdir(folder) if n[:20].isdigit() or n[:18].isdigit()]
    later = [n for n in later if int(n.partition(".")[0]) > version and n.count(".") == 1]
    for name in later:
        os.rename(f"{folder}/{name}", f"{folder}/{name}.later")
    try:
        return arrowlog.Table(root, options=options).checkpoint()
    finally:
        for name in later:
            os.rename(f"{folder}/{name}.later", f"{folder}/{name}")


def facts(snapshot):
    """All content of a snapshot in a canonical order: typed files, and every add as JSON."""
    files = snapshot.files.sort_by("path")
    adds = [meaning(json.loads(text)) for text in objects(snapshot)]
    adds.sort(key=lambda add: add["path"])
    state = snapshot.state
    return files, adds, state.metadata, state.protocol, state.timestamp, dict(state.txns)


def objects(snapshot):
    return encode_add_objects(snapshot.state.adds, path="path").to_pylist()


def meaning(add):
    """An add without unset fields, empty maps and null bounds."""
    found = {name: value for name, value in add.items() if value is not None and name in ADD_FIELDS}
    for name in ("minValues", "maxValues", "partitionValues"):
        told = {k: v for k, v in (found.pop(name, None) or {}).items() if v is not None}
        found |= {name: told} if told else {}
    return found


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, pa.Table):
            assert one.schema.equals(other.schema)
            assert one.to_pylist() == other.to_pylist()
        else:
            assert one == other


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_checkpoint_changes_no_version(batch, form, tmp_path, threshold):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=VERSIONS)
        rng = history.rng
        before = [facts(arrowlog.Table(root).snapshot(version=v)) for v in range(VERSIONS)]
        for (_, adds, *_), state in zip(before, history.states, strict=True):
            expected = [meaning(add) for add in state.values()]
            assert adds == sorted(expected, key=lambda add: add["path"])
        made = sorted(rng.sample(range(VERSIONS), 2))  # the second is written from the first
        for version in made:
            options = {
                "checkpoint.format": form,
                "transaction.compression.codec": rng.choice(["none", *CODEC_BYTES]),
                "checkpoint.maxFileSize": rng.choice([1, 500, 2000, 1 << 20]),
                "checkpoint.compression.enabled": rng.random() < 0.8,
            }
            result = checkpoint_at(root, version, **options)
            assert (result.version, result.format) == (version, form)
        table = arrowlog.Table(root)
        for version, expected in enumerate(before):
            snapshot = table.snapshot(version=version)
            assert_same(facts(snapshot), expected)
            assert snapshot.report.warnings == ()
            assert snapshot.report.checkpoint == max(
                (v for v in made if v <= version), default=None
            )


@pytest.mark.parametrize("form", FORMATS)
def test_removed_files_stay_removed_in_a_checkpoint_of_a_checkpoint(root, form):
    options = {"checkpoint.format": form}
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add("a"), testing.add("b")])
    assert arrowlog.Table(root, options=options).checkpoint().num_files == 2
    testing.write_commit(root, 2, [testing.remove("a"), testing.add("c")])
    assert arrowlog.Table(root, options=options).checkpoint().version == 2
    testing.write_commit(root, 3, [testing.remove("c"), testing.add("c", size=7)])
    arrowlog.Table(root, options=options).checkpoint()
    for version in (1, 2):
        os.remove(f"{log_of(root)}/{commit_name(version)}")
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.report.checkpoint == 3
    assert small_table.paths(snapshot) == ["b", "c"]
    assert snapshot.size_bytes == 1007


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("codec", ["none", *CODEC_BYTES])
@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_transactions_and_timestamps_survive_in_every_codec_and_size(root, form, codec, size):
    options = {
        "checkpoint.format": form,
        "transaction.compression.codec": codec,
        "checkpoint.maxFileSize": size,
    }
    table = arrowlog.Table.create(root, small_table.SCHEMA, ["day"], options=options)
    for step in range(3):
        adds = [arrowlog.add_file(f"{step}-{n}", {"day": None}, size=n + 1) for n in range(5)]
        table.append(adds, txn=(f"app {step % 2}", step))
    state = table.snapshot().state
    result = table.checkpoint()
    names = os.listdir(log_of(root))
    parts = [name for name in names if ".checkpoint." in name]
    if form == "json":
        assert sorted(result.names) == sorted(parts)
        assert {1: len(parts) == 16, 700: len(parts) > 1 or codec == "gzip"}.get(
            size, len(parts) == 1
        )
    for version in range(1, 4):
        os.remove(f"{log_of(root)}/{commit_name(version)}")
    again = arrowlog.Table(root)
    assert again.snapshot().state.txns == state.txns == {"app 0": (2, 3), "app 1": (1, 2)}
    assert again.snapshot().state.timestamp == state.timestamp
    add = arrowlog.add_file("x", {"day": None}, size=1)
    assert again.append([add], txn=("app 0", 2)).duplicate
    after = again.append([add], txn=("app 0", 3))
    assert after.timestamp > state.timestamp


def test_highly_compressible_checkpoint_stays_below_the_decompression_limit(root):
    """A part small when compressed may exceed the reader's limit: it is split before that."""
    options = {"checkpoint.format": "json", "transaction.maxDecompressedBytes": 40_000}
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 5):
        adds = [testing.add(f"{version}-{n:04d}" + "x" * 80) for n in range(100)]
        testing.write_commit(root, version, adds)
    arrowlog.Table(root, options=options | {"checkpoint.maxFileSize": 20_000}).checkpoint()
    snapshot = arrowlog.Table(root, options=options).snapshot()
    assert (snapshot.report.checkpoint, snapshot.report.warnings) == (4, ())
    assert snapshot.num_files == 400


def test_number_of_parts_is_limited(monkeypatch, root):
    monkeypatch.setattr("arrowlog.snapshot.checkpoint.json._PARTS_MAX", 3)
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add(f"{n}") for n in range(20)])
    options = {"checkpoint.format": "json", "checkpoint.maxFileSize": 1}
    assert len(arrowlog.Table(root, options=options).checkpoint().names) == 1 + 3
    assert arrowlog.Table(root).snapshot().num_files == 20


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "\x00", '"', "\\", '\\"', "\u2028", "\u2029", "😀", "\x7f", "\t\n\r"]),
)
MAPS = st.dictionaries(TEXTS, st.one_of(st.none(), TEXTS), max_size=3)
JSON = st.one_of(MAPS, st.lists(TEXTS, max_size=3), TEXTS)
_KINDS = {"TEXT": TEXTS, "WORD": TEXTS, "FLAT": MAPS, "JSON": JSON, "STATS": TEXTS}
_KINDS |= {"INT": st.integers(-(2**63), 2**63 - 1), "BOOL": st.booleans()}
FIELDS = {name: st.one_of(st.none(), _KINDS[kind.name]) for name, kind in ADD_FIELDS.items()}
REQUIRED = {"size": _KINDS["INT"], "modificationTime": _KINDS["INT"]}
OPTIONAL = {k: v for k, v in FIELDS.items() if k != "path" and k not in REQUIRED}
ADDS = st.fixed_dictionaries(REQUIRED, optional=OPTIONAL)


def decoded(adds):
    window = LineBuffer(1 << 24)
    window.append("x", 0, testing.lines([*small_table.OPENING, *({"add": add} for add in adds)]))
    return replay_actions(
        None, decoder.decode_buffer(window), 0, "/t", allow_external_paths=True
    ).state.adds


def as_read(name, value):
    """A JSON field may be stored as a string that contains JSON, which is equivalent."""
    if ADD_FIELDS[name].name == "JSON" and isinstance(value, str):
        try:
            told = json.loads(value)
        except ValueError:
            return value
        return value if told is None else told
    return value


def assert_joined_like(table, texts):
    """The adds in one piece, also from the middle of a table, are those encoded one by one."""
    for start in {0, 1, table.num_rows // 2}:
        some = join_add_objects(table.slice(start), before="<", after=">\n")
        assert bytes(some).decode() == "".join(f"<{text}>\n" for text in texts[start:])


@pytest.mark.parametrize("many", [1, 256], ids=["all bytes at once", "text by text"])
@pytest.mark.parametrize("lines", [1, 48], ids=["columnar", "by line"])
@settings(max_examples=cases(40))
@given(st.lists(ADDS, min_size=1, max_size=12))
def test_encoded_adds_equal_json(lines, many, adds):
    with mock.patch.object(commit_encoder, "_MANY_TEXTS", many):
        check_encoded_adds(lines, adds)


def check_encoded_adds(lines, adds):
    adds = [{"path": f"f{number}", **add} for number, add in enumerate(adds)]
    before = decoder.COLUMNAR_MIN_LINES
    decoder.COLUMNAR_MIN_LINES = lines
    try:
        table = decoded(adds)
    finally:
        decoder.COLUMNAR_MIN_LINES = before
    encoded = encode_add_objects(table).to_pylist()
    assert_joined_like(table, encoded)
    texts = {json.loads(text)["path"]: text for text in encoded}
    assert len(texts) == len(adds)
    for add in adds:
        text = texts[add["path"]]
        assert "\n" not in text
        found = {name: as_read(name, value) for name, value in meaning(json.loads(text)).items()}
        expected = {name: as_read(name, value) for name, value in meaning(add).items()}
        assert found == json.loads(json.dumps(expected))
    # They are also read the same. Python spells some numbers differently, such as 1e100.
    known = {path: json.loads(text) for path, text in texts.items()}
    again = map(json.loads, encode_add_objects(decoded([*known.values()])).to_pylist())
    assert {add["path"]: add for add in again} == known


def test_thousands_of_similar_adds_are_encoded_columnar():
    rng = random.Random(7)
    odd = ["", "\x00", '"', "\\", "\u2028", "😀", "ü", "\x1f", "\x7f", "a,b", "{", "null", "\t"]
    adds = []
    for number in range(cases(4000)):
        low, high = (rng.choice(odd) + rng.choice(odd) for _ in range(2))
        bounds = {"minValues": {"name": low}, "maxValues": {"name": high}}
        adds.append(testing.add(f"f{number}{rng.choice(odd)}", {"day": low}, **bounds)["add"])
    table = decoded(adds)
    encoded = encode_add_objects(table).to_pylist()
    assert_joined_like(table, encoded)
    told = list(map(json.loads, encoded))
    key = lambda add: add["path"]  # noqa: E731
    assert sorted(map(meaning, told), key=key) == sorted(map(meaning, adds), key=key)


@settings(max_examples=cases(300))
@given(st.lists(st.one_of(st.none(), TEXTS), max_size=8))
def test_strings_are_quoted_as_json(texts):
    found = quote_json_strings(pa.array(texts, pa.string())).to_pylist()
    assert [None if text is None else json.loads(text) for text in found] == texts


def test_json_checkpoint_is_one_object_as_in_the_protocol(root):
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add("a"), {"mergeskip": SKIP}, testing.remove("a")])
    testing.write_commit(root, 2, [testing.add("b", tags={"x": "y"})])
    options = {"checkpoint.format": "json", "transaction.compression.codec": "none"}
    result = arrowlog.Table(root, options=options).checkpoint()
    with open(f"{log_of(root)}/{result.names[0]}") as file:
        document = json.load(file)
    assert document["protocol"] == small_table.OPENING[0]["protocol"]
    assert document["metaData"]["id"] == small_table.OPENING[1]["metaData"]["id"]
    assert [add["path"] for add in document["add"]] == ["b"]
    assert document["add"][0]["partitionValues"] == {}
    with open(f"{log_of(root)}/_last_checkpoint") as file:
        pointer = json.load(file)
    told = {"version": 2, "size": 3, "numFiles": 1, "sizeInBytes": result.size_bytes}
    assert told.items() <= pointer.items()
    assert {"createdTime", "format", "checksum"} <= pointer.keys()
    listing = classify_names(os.listdir(log_of(root)))
    assert {v: form.names for v, (form,) in listing.checkpoints.items()} == {2: result.names[:1]}


SKIP = {"path": "x", "skipTimestamp": 1, "reason": "r", "operation": "merge"}


def test_plain_text_in_json_fields_stays_readable(root):
    """Some writers put text where an object belongs. The checkpoint must remain valid JSON."""
    texts = ["plain", "{broken", "[1,", "null", "", '"', "\n", '{"a":"b"}', "7"]
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add(f"f{n}", tags=t) for n, t in enumerate(texts)])
    before = arrowlog.Table(root).snapshot()
    arrowlog.Table(root, options={"checkpoint.format": "json"}).checkpoint()
    after = arrowlog.Table(root).snapshot()
    assert (after.report.checkpoint, after.report.warnings) == (1, ())
    assert after.state.adds["tags"].to_pylist() == before.state.adds["tags"].to_pylist() == texts


@pytest.mark.parametrize("count", [1, 100], ids=["by line", "columnar"])
def test_partition_values_are_always_written(count):
    """Other readers may require the field, even when it is empty."""
    adds = [testing.add(f"f{number}")["add"] for number in range(count)]
    for add in adds[count // 2 :]:
        del add["partitionValues"]
    texts = encode_add_objects(decoded(adds)).to_pylist()
    assert [json.loads(text)["partitionValues"] for text in texts] == [{}] * count
