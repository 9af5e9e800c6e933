"""Parquet checkpoints in detail: content, concurrent writers, and what is read of them."""

import json
import os
import pickle
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import parquet_checkpoints
from support.small_table import OPENING, SCHEMA, paths

import arrowlog
from arrowlog import testing
from arrowlog.config import resolve
from arrowlog.snapshot.checkpoint import parquet, parts
from arrowlog.snapshot.checkpoint_files import CheckpointFiles
from arrowlog.snapshot.listing import list_log
from arrowlog.storage import PutOutcome

NAME = "00000000000000000001.checkpoint"
TEXTS = pa.schema([("p", pa.string()), ("s", pa.string())])


def texts(root, highs, **fields):
    """A table of files in one row group with these texts as maxima."""
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(TEXTS, ["p"])])
    adds = [
        testing.add(f"f{i}", {"p": "x"}, minValues={"s": "a"}, maxValues={"s": high}, **fields)
        for i, high in enumerate(highs)
    ]
    testing.write_commit(root, 1, adds)
    parquet_checkpoints.write(root, 1)
    return arrowlog.Table(root)


@pytest.mark.parametrize("value", ["abd", "ab", "abz", "abcz", "ac"])
def test_row_group_bound_covers_its_shortest_truncated_text(root, value):
    """ab may be truncated from abd, although abc is the higher bound."""
    table = texts(root, ["ab", "abc", "aa"])
    found = table.scan(f"s = '{value}'").paths
    assert found == {"ac": []}.get(value, found)
    assert ("f0" in found) == value.startswith("ab")


def test_index_has_the_widest_bound(root):
    table = texts(root, ["ab", "abc"])
    index = table.snapshot().state.source.rows.parts.manifest.index
    assert index["high.s"].to_pylist() == ["ab"]


COUNTED = [
    ("b IS NULL", "12"),
    ("b IS NOT NULL", "02"),
    ("k IS NULL", "12"),
    ("k IS NOT NULL", "02"),
    ("k.n = 1 AND b IS NULL", "12"),
]


@pytest.mark.parametrize(("where", "found"), COUNTED)
@pytest.mark.parametrize("rows", [1, 1000])
def test_null_counts_of_unordered_types_survive_in_a_checkpoint(
    root, monkeypatch, where, found, rows
):
    parquet_checkpoints.small_groups(monkeypatch, rows)
    schema = pa.schema([("b", pa.binary()), ("k", pa.struct([("n", pa.int64())]))])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    adds = []
    for number, nulls in enumerate([0, 5, 3]):
        counts = {"numRecords": 5, "nullCount": {"b": nulls, "k": nulls}}
        adds.append(testing.add(f"{number}", stats=json.dumps(counts)))
    testing.write_commit(root, 1, adds)
    assert "".join(sorted(arrowlog.Table(root).scan(where).paths)) == found
    parquet_checkpoints.write(root, 1)
    table = arrowlog.Table(root)
    assert "".join(sorted(table.scan(where).paths)) == found
    assert [add["stats"] for add in table.snapshot().files.sort_by("path").to_pylist()] == [
        add["add"]["stats"] for add in adds
    ]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_nan_counts_survive_in_a_checkpoint(root, monkeypatch, rows):
    parquet_checkpoints.small_groups(monkeypatch, rows)
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    adds = []
    for number, nans in enumerate([0, 2, None, 0, 0, 0]):
        bounds = {"minValues": {"x": f"{number}.0"}, "maxValues": {"x": f"{number}.5"}}
        stats = {"numRecords": 5} | ({} if nans is None else {"nanCount": {"x": nans}})
        adds.append(testing.add(f"{number}", stats=json.dumps(stats), **bounds))
    testing.write_commit(root, 1, adds)
    answers = {"x > 4.7": "125", "x >= 9": "12", "x <> 3": "012345", "x < 1": "0"}
    for checkpointed in (False, True):
        if checkpointed:
            parquet_checkpoints.write(root, 1)
        table = arrowlog.Table(root)
        for where, found in answers.items():
            assert "".join(sorted(table.scan(where).paths)) == found, (where, checkpointed)
        assert [add["stats"] for add in table.snapshot().files.sort_by("path").to_pylist()] == [
            add["add"]["stats"] for add in adds
        ]


def test_bound_that_contradicts_a_count_keeps_the_file_in_a_checkpoint(root):
    schema = pa.schema([("b", pa.binary())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    stats = json.dumps({"numRecords": 5, "nullCount": {"b": 5}})
    testing.write_commit(root, 1, [testing.add("f", stats=stats, minValues={"b": "x"})])
    assert arrowlog.Table(root).scan("b IS NOT NULL").paths == ["f"]
    parquet_checkpoints.write(root, 1)
    assert arrowlog.Table(root).scan("b IS NOT NULL").paths == ["f"]


def test_plan_reads_the_index_of_its_own_columns_only(root):
    table = texts(root, ["ab", "abc"])
    table.scan("s = 'q'")
    snapshot = table.snapshot()
    groups = snapshot.state.source.row_group_stats(snapshot.schema, snapshot.partition_columns)
    asked = {name for _, name in groups.derived}
    assert asked == {"s"}


def test_parts_have_the_names_of_the_protocol(table):
    written = parquet_checkpoints.write(table, 1)
    assert written.names == (f"{NAME}.parquet", f"{NAME}.json")
    assert sorted(os.listdir(parquet_checkpoints.folder(table))) == sorted(written.names)
    sizes = [
        os.path.getsize(f"{parquet_checkpoints.folder(table)}/{name}") for name in written.names
    ]
    assert written.num_bytes == sum(sizes)
    assert written.num_files == 1
    with open(f"{parquet_checkpoints.folder(table)}/{NAME}.json", "rb") as source:
        manifest = json.load(source)
    assert manifest["version"] == 1
    assert manifest["format"] == "parquet"
    assert manifest["numFiles"] == 1
    assert manifest["sizeInBytes"] == sizes[0]
    assert manifest["parts"][0]["name"] == f"{NAME}.parquet"


def test_checkpoint_parts_are_plain_parquet(table):
    parquet_checkpoints.write(table, 1)
    found = pq.read_table(f"{parquet_checkpoints.folder(table)}/{NAME}.parquet").to_pylist()
    assert found[0]["path"] == "good.parquet"
    assert str(found[0]["partition.day"]) == "2024-01-01"


def test_second_writer_keeps_the_existing_checkpoint(table):
    first = parquet_checkpoints.write(table, 1)
    second = parquet_checkpoints.write(table, 1, own="ffffffffffff", checkpoint_compression="zstd")
    assert not second.made
    assert (second.names, second.checksum) == (first.names, first.checksum)
    assert sorted(os.listdir(parquet_checkpoints.folder(table))) == sorted(first.names)
    store = arrowlog.Table(table)._store
    assert parquet.verify_parquet_checkpoint(store, 1, parquet_checkpoints.keys(first.names)) == []


def test_part_left_by_another_writer_is_not_overwritten(table):
    """That writer was killed before its manifest, or is still writing."""
    first = parquet_checkpoints.write(table, 1, checkpoint_compression="zstd")
    manifest = f"{parquet_checkpoints.folder(table)}/{NAME}.json"
    os.remove(manifest)
    assert arrowlog.Table(table).snapshot().report.checkpoint is None
    second = parquet_checkpoints.write(table, 1, own="ffffffffffff")
    assert second.made
    assert second.names == (f"{NAME}.ffffffffffff.parquet", f"{NAME}.json")
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.report.checkpoint == 1
    assert paths(snapshot) == ["good.parquet"]
    assert os.path.exists(f"{parquet_checkpoints.folder(table)}/{first.names[0]}")


def test_identical_part_of_another_writer_is_reused(table):
    first = parquet_checkpoints.write(table, 1)
    os.remove(f"{parquet_checkpoints.folder(table)}/{NAME}.json")
    second = parquet_checkpoints.write(table, 1, own="ffffffffffff")
    assert second.names == first.names


class Lossy:
    """A store that loses the responses to puts."""

    def __init__(self, store, outcomes):
        self._store = store
        self._outcomes = outcomes

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put_if_absent(self, key, data):
        outcome = self._outcomes.pop(0) if self._outcomes else PutOutcome.DONE
        if outcome is not PutOutcome.NOT_APPLIED:
            self._store.put_if_absent(key, data)
        return outcome


@pytest.mark.parametrize("outcome", [PutOutcome.UNKNOWN, PutOutcome.EXISTS, PutOutcome.NOT_APPLIED])
def test_lost_put_response_is_not_a_failure(table, outcome):
    handle = arrowlog.Table(table)
    store = Lossy(handle._store, [outcome, PutOutcome.DONE, outcome])
    state = handle.snapshot().state
    written = parquet.write_parquet_form(store, state, resolve(), now_ms=1, new_id="0123456789ab")
    assert written.made
    keys = parquet_checkpoints.keys(written.names)
    assert parquet.verify_parquet_checkpoint(handle._store, 1, keys) == []


def test_store_that_refuses_all_puts_raises(table):
    handle = arrowlog.Table(table)
    store = Lossy(handle._store, [PutOutcome.NOT_APPLIED] * 20)
    with pytest.raises(arrowlog.StoreUnavailable, match="Could not write"):
        parquet.write_parquet_form(
            store, handle.snapshot().state, resolve(), now_ms=1, new_id="0123456789ab"
        )
    assert not os.path.exists(parquet_checkpoints.folder(table))


def test_foreign_checkpoint_is_read_with_a_warning(table):
    """One flat row per action, as in the design document."""
    text = pa.map_(pa.string(), pa.string())
    meta = OPENING[1]["metaData"]
    rows = [
        {
            "actionType": "add",
            "path": "a",
            "partitionValues": [("day", "2024-01-05")],
            "size": 7,
            "numRecords": 3,
            "minValues": [("id", "5")],
            "maxValues": [("id", "9")],
        },
        {"actionType": "add", "path": f"{table}/b", "partitionValues": [("day", None)], "size": 8},
        {"actionType": "remove", "path": "gone"},
        {
            "actionType": "metadata",
            "metadataId": "m",
            "schemaString": meta["schemaString"],
            "partitionColumns": ["day"],
            "format": [("provider", "tantivy4spark")],
        },
    ]
    kinds = dict.fromkeys(("actionType", "path", "metadataId", "schemaString"), pa.string())
    kinds |= dict.fromkeys(("partitionValues", "minValues", "maxValues", "format"), text)
    kinds |= dict.fromkeys(("size", "numRecords"), pa.int64())
    schema = pa.schema([*kinds.items(), ("partitionColumns", pa.list_(pa.string()))])
    os.makedirs(parquet_checkpoints.folder(table))
    pq.write_table(
        pa.Table.from_pylist(rows, schema), f"{parquet_checkpoints.folder(table)}/{NAME}.parquet"
    )
    testing.write_commit(table, 2, [testing.add("c", {"day": "2024-01-06"})])
    for told in (None, {"version": 1, "size": 2, "createdTime": 5}):
        if told is not None:
            testing.write_file(table, f"_checkpoints/{NAME}.json", json.dumps(told).encode())
        snapshot = arrowlog.Table(table).snapshot()
        assert snapshot.report.checkpoint == 1
        assert "unverified" in snapshot.report.warnings[0]
        assert snapshot.metadata.id == "m"
        assert snapshot.metadata.format_provider == "tantivy4spark"
        assert snapshot.partition_columns == ("day",)
        assert snapshot.schema == SCHEMA
        found = {row["path"]: row for row in snapshot.files.to_pylist()}
        assert set(found) == {"a", f"{table}/b", "c"}
        assert (found["a"]["min.id"], found["a"]["max.id"], found["a"]["num_records"]) == (5, 9, 3)
        assert arrowlog.Table(table).scan("id = 4").num_files == 2
    store = arrowlog.Table(table)._store
    form = list_log(store).checkpoint_form(1, "parquet")
    assert parquet.verify_parquet_checkpoint(store, 1, form.keys)
    testing.write_file(table, f"_checkpoints/{NAME}.json", b'{"version": 0}')
    assert arrowlog.Table(table).snapshot().report.checkpoint is None


@pytest.mark.parametrize(
    "rows",
    [
        {"path": ["a"], "size": [1]},
        {"actionType": ["add"], "path": ["a"], "size": [1]},
        {"actionType": ["add", "metadata"], "path": ["a", None], "schemaString": [None, "{}"]},
        {"actionType": ["metadata"], "schemaString": ["nonsense"]},
    ],
)
def test_invalid_checkpoint_file_is_ignored(table, rows):
    os.makedirs(parquet_checkpoints.folder(table))
    pq.write_table(pa.table(rows), f"{parquet_checkpoints.folder(table)}/{NAME}.parquet")
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.report.checkpoint is None
    assert "checkpoint 1 was not used" in snapshot.report.warnings[0]
    assert paths(snapshot) == ["good.parquet"]


def test_checkpoint_of_a_checkpoint_restores_no_removed_file(table):
    parquet_checkpoints.write(table, 1)
    testing.write_commit(table, 2, [testing.remove("good.parquet"), testing.add("b", {})])
    parquet_checkpoints.write(table, 2)
    testing.write_commit(table, 3, [testing.add("good.parquet", {}, size=9)])
    parquet_checkpoints.write(table, 3)
    for version in (0, 1, 2, 3):
        os.remove(f"{table}/_transaction_log/{version:020d}.json")
    handle = arrowlog.Table(table)
    assert paths(handle.snapshot(version=1)) == ["good.parquet"]
    assert paths(handle.snapshot(version=2)) == ["b"]
    assert paths(handle.snapshot()) == ["b", "good.parquet"]
    assert handle.snapshot().size_bytes == 1009


def test_changed_schema_retypes_the_files(table):
    parquet_checkpoints.write(table, 1)
    wider = pa.schema([*SCHEMA, ("name", pa.string())])
    testing.write_commit(table, 2, [testing.metadata(wider, ["day"])])
    snapshot = arrowlog.Table(table).snapshot()
    assert isinstance(snapshot.state.source, CheckpointFiles)
    assert "min.name" in snapshot.files.column_names
    assert arrowlog.Table(table).scan("name = 'x'").paths == ["good.parquet"]


def test_plan_can_be_pickled(table):
    parquet_checkpoints.write(table, 1)
    plan = pickle.loads(pickle.dumps(arrowlog.Table(table).scan("day = '2024-01-01'")))
    assert plan.paths == ["good.parquet"]
    assert plan.explain().files_kept == 1
    snapshot = pickle.loads(pickle.dumps(arrowlog.Table(table).snapshot()))
    assert paths(snapshot) == ["good.parquet"]


class Counting:
    """A store that records its requests."""

    def __init__(self, store):
        self._store = store
        self.asked = []

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name not in ("get", "get_range", "get_many", "read_into"):
            return found

        def noted(*args):
            self.asked.append((name, *args[:1]))
            return found(*args)

        return noted


@pytest.mark.thorough
def test_selective_plan_needs_few_requests(monkeypatch):
    """The manifest, the footer, and one range per run of columns."""
    parquet_checkpoints.small_groups(monkeypatch, 500)
    uri = "memory://parquet-requests"
    table = arrowlog.Table.create(uri, SCHEMA, ["day"], exist_ok=True)
    adds = [
        arrowlog.add_file(f"f{i:05d}", {"day": f"2024-01-{1 + i // 500:02d}"}, size=1)
        for i in range(10_000)
    ]
    table.append(adds)
    written = parquet.write_parquet_form(
        table._store, table.snapshot().state, resolve(), now_ms=1, new_id="0123456789ab"
    )
    table = arrowlog.Table(uri)
    store = Counting(table._store)
    table._tracker.store = store
    plan = table.scan("day = '2024-01-07'")
    assert len(plan.paths) == 500
    assert plan.num_files == 500
    size = table._store.stat(f"_transaction_log/_checkpoints/{written.names[0]}").size
    assert len(store.asked) <= 5
    assert plan.snapshot.state.source.rows.parts.bytes_read < size // 3
    assert plan.total_files == 10_000
    assert plan.snapshot.num_files == 10_000


def test_all_fields_of_an_add_survive_in_a_checkpoint(root):
    """Unusual values, keys outside the schema, numbers in place of text, every other field."""
    moment = pa.timestamp("us", "UTC")
    kinds = {"p": moment, "f": pa.float64(), "t": moment, "c": pa.decimal128(10, 2)}
    schema = pa.schema([*kinds.items(), ("b", pa.bool_()), ("d", pa.date32())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, ["p", "gone"])])
    fields = [
        {"minValues": {"f": "1.0", "t": "2024-01-01T00:00:00Z", "c": "1.50", "b": "true"}},
        {"minValues": {"f": "1e5", "t": "2024-01-01 00:00:00.123", "c": "1.5", "d": "19000"}},
        {"minValues": {"f": "NaN", "t": "1704067200000000", "z": "outside"}, "maxValues": {}},
        {"minValues": {"f": 2.5, "t": None, "c": {"deep": 1}}, "stats": '{"minValues":{"f":1}}'},
        {"stats": '{"numRecords":5,"nullCount":{"f":1,"y":2}}', "tags": {"k": "v"}},
        {"numRecords": 4, "splitTags": ["a"], "docMappingJson": "{}", "hasFooterOffsets": True},
        {"companionSourceFiles": ["x"], "companionDeltaVersion": 3, "docMappingRef": "r"},
    ]
    parts = ["2024-01-01T00:00:00Z", "", None, "__HIVE_DEFAULT_PARTITION__", "odd", "2024-01-01"]
    adds = [
        testing.add(f"f{i}-{j}", {"p": part, "gone": "g"}, **field)
        for i, field in enumerate(fields)
        for j, part in enumerate(parts)
    ]
    testing.write_commit(root, 1, adds)
    before = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    parquet_checkpoints.write(root, 1)
    again = arrowlog.Table(root).snapshot()
    assert again.report.checkpoint == 1
    after = parquet_checkpoints.said(again)
    assert repr(after.pop("files")) == repr(before.pop("files"))
    assert after == before
    given = sorted(
        (parquet_checkpoints.without_nulls(a["add"]) for a in adds), key=lambda a: a["path"]
    )
    assert after["adds"] == given


def test_arrow_threads_hold_no_reference_to_a_part_after_reading(monkeypatch):
    """A thread that releases them during interpreter exit would abort the process."""
    data = bytes(1000)
    threads = []

    def read(reader):
        def hold(buffer):
            time.sleep(0.3)  # a worker that releases its reader late
            del buffer

        threads.append(threading.Thread(target=hold, args=reader))
        threads[0].start()
        reader.clear()
        return "table"

    monkeypatch.setattr(parts, "_reader", lambda source, *_, **__: [source])
    before = sys.getrefcount(data)
    assert parts._read(data, None, read) == "table"
    assert sys.getrefcount(data) == before
    threads[0].join()
