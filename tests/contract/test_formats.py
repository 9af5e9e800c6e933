"""Every format implements the whole contract, and a format unknown to all modules can be read."""

import dataclasses
import inspect
import json
import os
import pickle
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import (
    InvalidRequest,
    LogCorrupt,
    TableExists,
    TableNotFound,
    UnsupportedProtocol,
)
from arrowlog.formats import (
    PHYSICAL_NAME_KEY,
    ActionFields,
    CheckpointForm,
    CommitFile,
    FieldKind,
    Format,
    LogListing,
    Metadata,
    Protocol,
    parse_spark_schema,
)
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot import listing as listing_module
from arrowlog.snapshot import loader

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("day", "string"))
        ],
    }
)
LEDGER_ACTIONS = ActionFields(
    {
        "add": {
            "path": FieldKind.TEXT,
            "slot": FieldKind.TEXT,
            "partitionValues": FieldKind.FLAT,
            "size": FieldKind.INT,
            "modificationTime": FieldKind.INT,
            "dataChange": FieldKind.BOOL,
            "stats": FieldKind.STATS,
        },
        "remove": {"path": FieldKind.TEXT, "slot": FieldKind.TEXT},
        "commitInfo": {"timestamp": FieldKind.INT, "operation": FieldKind.TEXT},
        "txn": {"appId": FieldKind.TEXT, "version": FieldKind.INT},
    },
    {"add": ("path",), "remove": ("path",), "txn": ("appId", "version")},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger(Format):
    """A read-only format that differs from IndexTables in every method, known only to this test."""

    def commit_name(self, version):
        return f"c-{version:08d}.jsonl"

    def first_name(self, version):
        return f"c-{version:08d}"

    def classify(self, names, checkpoint_names=(), start=0):
        del checkpoint_names
        commits, checkpoints = {}, {}
        for name in names:
            if match := re.fullmatch(r"c-([0-9]{8})\.jsonl", name):
                commits[int(match[1])] = self.key(name)
            elif match := re.fullmatch(r"s-([0-9]{8})\.json", name):
                form = CheckpointForm("ledger-sum", (self.key(name),))
                checkpoints[int(match[1])] = (form,)
        return LogListing(self, commits, checkpoints, start)

    def table_schema(self, metadata, protocol):
        del protocol
        schema = parse_spark_schema(metadata.schema_string)
        fields = [item.with_metadata({PHYSICAL_NAME_KEY: f"p.{item.name}"}) for item in schema]
        return pa.schema(fields)

    def normalized_files(self, actions):
        path = pc.replace_substring(actions["path"], "%20", " ")
        return actions.set_column(actions.column_names.index("path"), "path", path)

    def file_keys(self, actions, paths):
        if "slot" not in actions.column_names:
            return paths
        slot = pc.fill_null(actions["slot"], "")
        return pc.binary_join_element_wise(paths, slot, "#")

    def paths_of(self, keys):
        return pc.replace_substring_regex(keys, "#.*", "")


LEDGER = Ledger(
    name="ledger",
    log_folder="_ledger",
    actions=LEDGER_ACTIONS,
    reader_versions=range(1, 3),
    features=frozenset({"slots"}),
    protocol_required=True,
    gap_is_error=True,
    txn_action="txn",
    highest_txn_counts=False,
    creation_time_counts=False,
    empty_partition_is_null=True,
    hive_partition_is_null=False,
)
FORMATS = (*listing_module.FORMATS, LEDGER)


@pytest.fixture
def ledger(monkeypatch):
    """Register the format where formats are chosen."""
    monkeypatch.setattr(listing_module, "FORMATS", FORMATS)


def protocol(reader=1, features=()):
    return {
        "protocol": {"minReaderVersion": reader, "minWriterVersion": 9, "readerFeatures": features}
    }


def metadata(**more):
    return {"metaData": {"id": "m", "schemaString": SCHEMA, "partitionColumns": ["day"], **more}}


def add(path, low, day="mon", slot="a"):
    stats = {"numRecords": 5, "minValues": {"p.id": low}, "maxValues": {"p.id": low + 4}}
    stats["nullCount"] = {"p.id": 0}
    fields = {"path": path, "slot": slot, "partitionValues": {"p.day": day}, "size": 10}
    return {"add": {**fields, "modificationTime": 1, "stats": json.dumps(stats)}}


def remove(path, slot="a"):
    return {"remove": {"path": path, "slot": slot}}


def txn(app, version):
    return {"txn": {"appId": app, "version": version}}


def write(root, version, *actions):
    os.makedirs(f"{root}/_ledger", exist_ok=True)
    info = {"commitInfo": {"timestamp": 1_000 * (version + 1), "operation": f"OP {version}"}}
    # This format does not declare an action count or checksum.
    info["commitInfo"] |= {"numActions": 99, "checksum": "crc32:00000000"}
    text = "\n".join(json.dumps(action) for action in (info, *actions))
    with open(f"{root}/_ledger/c-{version:08d}.jsonl", "w") as out:
        out.write(text + "\n")


@pytest.fixture
def table(tmp_path, ledger):
    write(tmp_path, 0, metadata(createdTime=77_000), protocol(2, ["slots"]))
    write(tmp_path, 1, *(add(f"f{n}", 10 * n) for n in range(60)), txn("app", 7))
    write(tmp_path, 2, remove("f0"), add("f0", 0, "", "b"), add("a%20b", 700), txn("app", 5))
    return tmp_path


@pytest.mark.parametrize("table_format", FORMATS, ids=lambda item: item.name)
def test_every_format_implements_the_contract(table_format):
    assert not inspect.isabstract(type(table_format))
    assert hash(table_format) == hash(dataclasses.replace(table_format))
    copy = pickle.loads(pickle.dumps(table_format))  # as Spark's workers get it
    assert copy == table_format
    assert copy.actions is table_format.actions  # decoders are cached by identity
    for version in (0, 7, 10_000_000):
        commit = table_format.commit_file(version)
        assert commit == CommitFile(version, table_format.key(commit.name))
        assert commit.name in table_format.commit_name_candidates(version, commit.name)
        assert table_format.first_name(version) <= commit.name
        listing = table_format.classify([commit.name, "other.tmp", table_format.pointer_name])
        assert listing.commit_files() == [commit]
        assert listing.format == table_format
    moved = table_format.relocated("elsewhere/log")
    assert moved.commit_file(3).key == f"elsewhere/log/{table_format.commit_name(3)}"
    listing = moved.classify([table_format.commit_name(3)])
    assert listing.commit_files() == [moved.commit_file(3)]
    assert {"add", "remove", "commitInfo"} <= table_format.actions.fields.keys()
    for action, names in table_format.actions.required.items():
        assert set(names) <= table_format.actions.fields[action].keys()
    assert set(table_format.actions.aliases.values()) <= table_format.actions.fields.keys()
    schema = table_format.table_schema(Metadata("m", SCHEMA), Protocol())
    assert schema.names == ["id", "day"]
    files = pa.table({"path": pa.chunked_array([["a", "b/c"]])})
    keys = table_format.file_keys(table_format.normalized_files(files), files["path"])
    assert table_format.paths_of(keys).to_pylist() == ["a", "b/c"]


@pytest.mark.parametrize("table_format", FORMATS, ids=lambda item: item.name)
def test_every_format_refuses_unknown_versions_and_features(table_format):
    highest = table_format.reader_versions[-1]
    table_format.check_readable(Protocol(highest, 1, tuple(table_format.features)), "t")
    with pytest.raises(UnsupportedProtocol, match=f"reader version {highest + 1}"):
        table_format.check_readable(Protocol(highest + 1), "t")
    with pytest.raises(UnsupportedProtocol, match="odd, strange"):
        table_format.check_readable(Protocol(highest, 1, ("strange", "odd")), "t")
    if table_format.writable:
        table_format.check_writable(Protocol(), "t")
    else:
        with pytest.raises(InvalidRequest, match=f"only reads tables in the {table_format.name}"):
            table_format.check_writable(Protocol(), "t")


@pytest.mark.parametrize("table_format", FORMATS, ids=lambda item: item.name)
@pytest.mark.parametrize("columnar", [True, False])
def test_every_format_decodes_its_declared_fields(table_format, columnar):
    fields = table_format.actions
    samples = {FieldKind.INT: 5, FieldKind.BOOL: True, FieldKind.FLAT: {"k": "v"}}
    samples |= {FieldKind.JSON: {"a": [1]}, FieldKind.STATS: '{"numRecords":3}'}
    lines = []
    for action, kinds in fields.fields.items():
        values = {name: samples.get(kind, "text") for name, kind in kinds.items()}
        values |= {"txn": None} if "txn" in kinds else {}
        lines += [json.dumps({action: values})] * 60
    window = LineBuffer(1 << 20, table_format=table_format)
    window.append("f", 0, "\n".join([*lines, '{"unknown":{"x":1}}', ""]).encode())
    actions = decode_buffer(window, columnar=columnar)
    assert actions.format is table_format
    for action, kinds in fields.fields.items():
        found = actions.table(action)
        assert found.num_rows == 60, action
        expected = set(kinds) - {"txn"}
        assert expected <= {name.partition(".")[0] for name in found.column_names}, action


def test_table_of_a_new_format_is_opened_replayed_and_scanned(table):
    handle = arrowlog.Table(table)
    snapshot = handle.snapshot()
    assert (handle.format, snapshot.version, snapshot.num_files) == ("ledger", 2, 61)
    assert snapshot.state.txns == {"app": (5, 2)}  # the last one wins, not the highest
    files = {row["path"]: row for row in snapshot.files.to_pylist()}
    assert set(files) == {*(f"f{n}" for n in range(60)), "a b"}
    assert files["f0"]["slot"] == "b"
    assert files["f0"]["partition.day"] is None  # empty text
    assert (files["f3"]["min.id"], files["f3"]["max.id"], files["f3"]["num_records"]) == (30, 34, 5)
    assert handle.scan("id = 31").num_files == 1
    assert handle.scan("day IS NULL").num_files == 1
    assert handle.snapshot(1).num_files == 60
    assert handle.snapshot(timestamp=2_500).version == 1


def test_refresh_finds_new_commits(table):
    handle = arrowlog.Table(table)
    assert handle.snapshot().num_files == 61
    write(table, 3, add("late", 1))
    assert (handle.refresh().version, handle.snapshot().num_files) == (3, 62)


def test_history_of_a_new_format(table):
    handle = arrowlog.Table(table)
    assert handle.history()["operation"].to_pylist() == ["OP 2", "OP 1", "OP 0"]
    assert handle.sql("SELECT max(version), sum(adds) FROM commits").fetchall() == [(2, 62)]
    assert handle.sql("SELECT count(*) FROM files").fetchall() == [(61,)]


def test_read_only_format_refuses_writes(table):
    before = sorted(os.walk(table))
    handle = arrowlog.Table(table)
    changes = [
        lambda: handle.append([arrowlog.add_file("x", {"day": "a"}, size=1)]),
        lambda: handle.remove(["f1"]),
        lambda: handle.write(pa.table({"id": [1], "day": ["a"]})),
        lambda: handle.set_properties({"a": "b"}),
        lambda: handle.restore(1),
        handle.checkpoint,
        handle.cleanup,
        handle.vacuum,
        handle.compact,
        handle.truncate_history,
    ]
    for change in changes:
        with pytest.raises(InvalidRequest, match="only reads tables in the ledger format"):
            change()
    assert sorted(os.walk(table)) == before


def test_doctor_refuses_an_unsupported_format(table):
    with pytest.raises(InvalidRequest, match="the ledger format"):
        arrowlog.Table(table).doctor()


def test_gap_raises_with_the_missing_file(table):
    write(table, 4, add("late", 1))
    with pytest.raises(LogCorrupt, match="version 3 is missing") as caught:
        arrowlog.Table(table).snapshot()
    assert caught.value.file == "_ledger/c-00000003.jsonl"


def test_damage_raises_with_the_format_s_file_name(table):
    with open(table / "_ledger/c-00000001.jsonl", "a") as out:
        out.write('{"add":{"path":7}}\n')
    with pytest.raises(LogCorrupt) as caught:
        arrowlog.Table(table).snapshot()
    assert caught.value.file == "_ledger/c-00000001.jsonl"


def test_log_without_a_protocol_is_refused(tmp_path, ledger):
    write(tmp_path, 0, metadata())
    with pytest.raises(LogCorrupt, match="no protocol"):
        arrowlog.Table(tmp_path).snapshot()


def test_compressed_commit_is_refused_by_a_format_without_compression(table):
    with open(table / "_ledger/c-00000003.jsonl", "wb") as out:
        out.write(bytes.fromhex("1f8b") + b"no gzip here\n")
    with pytest.raises(LogCorrupt, match=r"not a valid action|UTF-8"):
        arrowlog.Table(table).snapshot()


def test_new_checkpoint_form_needs_one_reader(table, monkeypatch):
    read = []

    def read_sum(work, version, form):
        read.append(form.keys)
        first = work.options.format.classify([f"c-{v:08d}.jsonl" for v in range(version + 1)])
        return loader.load_snapshot(work.store, first, work.options, version).state

    reader = loader.CheckpointReader(read_sum, lambda *_: None)
    monkeypatch.setitem(loader.CHECKPOINT_READERS, "ledger-sum", reader)
    (table / "_ledger/s-00000001.json").touch()
    snapshot = arrowlog.Table(table).snapshot()
    assert (snapshot.num_files, snapshot.report.checkpoint) == (61, 1)
    assert read == [("_ledger/s-00000001.json",)]


def test_first_registered_format_wins_when_two_logs_exist(tmp_path, ledger):
    write(tmp_path, 0, metadata(), protocol())
    with pytest.raises(TableNotFound, match=r"_transaction_log/ nor .*_ledger/ has commits"):
        arrowlog.Table(tmp_path / "elsewhere")
    assert arrowlog.Table(tmp_path).format == "ledger"
    (tmp_path / "_ledger").rename(tmp_path / "aside")
    table = arrowlog.Table.create(tmp_path, pa.schema([("id", pa.int64())]))
    (tmp_path / "aside").rename(tmp_path / "_ledger")
    with pytest.warns(arrowlog.errors.ArrowlogWarning, match="_ledger/ is not"):
        table = arrowlog.Table(tmp_path)
    assert table.format == INDEXTABLES.name == "indextables"
    assert table.append([arrowlog.add_file("x", size=1)]).version == 1


@pytest.mark.parametrize("exist_ok", [False, True])
def test_create_refuses_a_folder_with_a_table_of_another_format(table, exist_ok):
    before = sorted(os.walk(table))
    with pytest.raises(TableExists, match="in the ledger format") as caught:
        arrowlog.Table.create(table, pa.schema([("id", pa.int64())]), exist_ok=exist_ok)
    assert "_ledger/" in str(caught.value)
    assert sorted(os.walk(table)) == before
    assert arrowlog.Table(table).format == "ledger"


def test_empty_log_folder_of_another_format_allows_create(tmp_path, ledger):
    (tmp_path / "_ledger").mkdir()
    (tmp_path / "_ledger/c-1.tmp").touch()
    table = arrowlog.Table.create(tmp_path, pa.schema([("id", pa.int64())]))
    assert table.append([arrowlog.add_file("x", size=1)]).version == 1
