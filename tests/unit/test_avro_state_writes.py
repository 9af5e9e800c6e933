"""Commits on tables of protocol 4: a commit, a state and the pointer, valid for all readers."""

import json
import os
import shutil

import fastavro
import pyarrow as pa
import pytest
from support import state_tables as st

import arrowlog
from arrowlog import testing
from arrowlog.errors import (
    ArrowlogWarning,
    CommitConflict,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.formats.indextables import FILE_ENTRY_FIELDS
from arrowlog.storage.local import LocalStore

INSIST = {"avroState.allowStateOnly": True}


def paths(table):
    return sorted(table.snapshot().files["path"].to_pylist())


def new(path, p="x"):
    return arrowlog.add_file(path, partition_values={"p": p}, size=10)


@pytest.fixture
def table(root):
    """A table of protocol 4 with the file `a`."""
    opened = arrowlog.Table.create(root, st.SCHEMA, st.PARTITIONS)
    opened.append([new("a")])
    opened.upgrade_protocol(reader=4, writer=4)
    return opened


def check_all_readers(root, expected):
    assert paths(arrowlog.Table(root)) == sorted(expected)
    assert st.as_states_only(root) == sorted(expected)
    assert st.as_pointer_and_commits(root) == sorted(expected)


def test_upgrade_writes_a_first_state_and_the_pointer(root, table):
    assert table.version == 2
    check_all_readers(root, ["a"])
    record = st.read_record(root, 2)
    assert record["formatVersion"] == 1
    assert record["protocolVersion"] == 4
    assert json.loads(record["metadata"])["metaData"]["id"] == table.snapshot().metadata.id
    (item,) = record["manifests"]
    assert (item["minAddedAtVersion"], item["maxAddedAtVersion"]) == (2, 2)
    with open(st.log_file(root, item["path"]), "rb") as file:
        reader = fastavro.reader(file)
        assert [field["name"] for field in reader.writer_schema["fields"]] == list(
            FILE_ENTRY_FIELDS
        )
        assert reader.codec == "zstandard"


@pytest.mark.promise("commit.exactly_once")
def test_every_commit_writes_a_state_that_reuses_manifests(root, table):
    for number in range(4):
        table.append([new(f"f{number}")])
        assert st.state_versions(root)[-1] == table.version
        check_all_readers(root, ["a", *(f"f{i}" for i in range(number + 1))])
    assert len(st.read_record(root, table.version)["manifests"]) == 5
    assert [line["add"]["path"] for line in st.json_lines(root, 6) if "add" in line] == ["f3"]


def test_removal_leaves_a_tombstone_in_a_large_table(root, table):
    table.append([new(f"f{number}") for number in range(40)])
    table.remove(["f3"])
    record = st.read_record(root, table.version)
    assert record["tombstones"] == ["f3"]
    assert record["numFiles"] == 40
    check_all_readers(root, ["a", *(f"f{i}" for i in range(40) if i != 3)])


def test_readded_file_is_not_hidden_by_its_tombstone(root, table):
    everything = ["a", *(f"f{number}" for number in range(40))]
    table.append([new(path) for path in everything[1:]])
    version = table.version
    table.remove(["f3"])
    table.append([new("f3")])
    record = st.read_record(root, table.version)
    assert record["tombstones"] == []
    assert len(record["manifests"]) == 1
    check_all_readers(root, everything)
    table.remove(["f4"])
    table.restore(version)
    check_all_readers(root, everything)


def test_file_added_again_is_live_once(root, table):
    table.append([new(f"f{number}") for number in range(40)])
    table.append([new("f3")])
    check_all_readers(root, ["a", *(f"f{i}" for i in range(40))])


def test_many_tombstones_or_manifests_cause_a_rewrite(root, table):
    table.append([new(f"f{number}") for number in range(10)])
    table.remove([f"f{number}" for number in range(5)])
    assert st.read_record(root, table.version)["tombstones"] == []
    live = ["a", *(f"f{number}" for number in range(5, 10))]
    for number in range(25):
        table.append([new(f"g{number}")])
    assert len(st.read_record(root, table.version)["manifests"]) <= 20
    check_all_readers(root, [*live, *(f"g{number}" for number in range(25))])
    names = os.listdir(st.log_file(root, ""))
    assert not [name for name in names if "checkpoint." in name]


def test_commit_lines_have_no_nulls_and_a_common_codec(root):
    table = arrowlog.Table.create(root, st.SCHEMA, st.PARTITIONS, {"compression.codec": "zstd"})
    table.upgrade_protocol(reader=4, writer=4)
    table.append([arrowlog.add_file("n", partition_values={"p": None}, size=1)])
    (line,) = [line for line in st.json_lines(root, 2) if "add" in line]
    assert line["add"]["partitionValues"] == {}
    assert arrowlog.Table(root).snapshot().files["partition.p"].to_pylist() == [None]


def test_application_transactions_survive_in_states(root, table):
    first = table.commit(adds=[new("t")], txn=("app", 7))
    table.append([new("u")])
    for version in range(1, table.version):
        os.remove(st.log_file(root, f"{version:020d}.json"))
    again = arrowlog.Table(root).commit(adds=[new("t2")], txn=("app", 7))
    assert again.duplicate
    assert again.version == first.version


def test_transactions_of_commits_below_a_foreign_state_are_found(root):
    st.first_commit(root)
    info = testing.commit_info(st.CREATED, txnId="x", txn={"appId": "app", "version": 3})
    testing.write_commit(root, 1, [info, st.add("a", "x")])
    st.write_state(root, 1, [[st.add("a", "x")]])
    assert arrowlog.Table(root).commit(adds=[new("b")], txn=("app", 3)).duplicate
    assert not arrowlog.Table(root).commit(adds=[new("b")], txn=("app", 4)).duplicate
    check_all_readers(root, ["a", "b"])


@pytest.fixture
def states_only(root):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("a", "x"), st.add("b", "y")]])
    return root


def test_writing_a_states_only_table_requires_allow_state_only(states_only):
    with pytest.raises(InvalidRequest, match=r"avroState\.allowStateOnly"):
        arrowlog.Table(states_only).append([new("c")])
    assert os.path.exists(st.log_file(states_only, f"{0:020d}.json"))
    assert not os.path.exists(st.log_file(states_only, f"{2:020d}.json"))
    table = arrowlog.Table(states_only, options=INSIST)
    assert table.append([new("c")]).version == 2
    check_all_readers(states_only, ["a", "b", "c"])
    arrowlog.Table(states_only).append([new("d")])  # the newest version has a commit now
    check_all_readers(states_only, ["a", "b", "c", "d"])


def test_concurrent_state_is_read_and_the_commit_follows_it(states_only):
    table = arrowlog.Table(states_only, options=INSIST)
    assert table.append([new("c")]).version == 2
    st.write_state(states_only, 3, [[st.add("z", "x")]])
    assert table.append([new("d")]).version == 4
    check_all_readers(states_only, ["z", "d"])
    table.snapshot()
    st.write_state(states_only, 5, [[st.add("q", "x")]])
    with pytest.raises(CommitConflict, match="cannot be checked"):
        table.remove(["d"])


class _Racing(LocalStore):
    """A store in which another writer puts a state right after a commit."""

    def put_if_absent(self, key, data):
        outcome = super().put_if_absent(key, data)
        if key.endswith(".json") and self.paths is not None:
            version = int(key.rpartition("/")[2][:20])
            st.write_state(self.root, version, [[st.add(path, "x") for path in self.paths]])
        return outcome


@pytest.mark.parametrize("same", [True, False])
def test_concurrent_state_of_the_same_version(root, table, same, monkeypatch):
    monkeypatch.setattr(_Racing, "paths", ["a", "b"] if same else ["other"], raising=False)
    monkeypatch.setattr(table._store, "__class__", _Racing)
    if same:
        table.append([new("b")])
        assert paths(arrowlog.Table(root)) == ["a", "b"]
    else:
        with pytest.raises(CommitConflict, match="table states are the commits"):
            table.append([new("b")])
    assert os.path.exists(st.log_file(root, f"{3:020d}.json"))


class _Failing(LocalStore):
    """A store that accepts only commits."""

    def put_if_absent(self, key, data):
        if key.endswith(".avro"):
            raise StoreUnavailable("it is full.")
        return super().put_if_absent(key, data)


def test_commit_without_its_state_is_covered_by_the_next_state(root, table, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(table._store, "__class__", _Failing)
        with pytest.warns(ArrowlogWarning, match="has no table state"):
            assert table.append([new("b")]).version == 3
    assert paths(arrowlog.Table(root)) == ["a", "b"]
    assert st.state_versions(root)[-1] == 2
    table.append([new("c")])
    check_all_readers(root, ["a", "b", "c"])


def test_alternating_writers_see_each_others_commits(root, table):
    other = arrowlog.Table(root)
    for number in range(6):
        (table if number % 2 else other).append([new(f"f{number}")])
    check_all_readers(root, ["a", *(f"f{number}" for number in range(6))])
    found = arrowlog.doctor(root, data_files=False)
    assert {finding.severity for finding in found} <= {"info"}


def test_checkpoint_writes_a_state_and_replaces_a_damaged_one(root, table):
    table.append([new("b")])
    assert table.checkpoint().format == "avro-state"
    st.flip(st.log_file(root, st.state_path(3)))
    result = arrowlog.Table(root).checkpoint()
    assert result.names
    check_all_readers(root, ["a", "b"])


def test_doc_mappings_become_references(root, table):
    mapping = '[{"name":"b","type":"text"},{"name":"a","type":"text"}]'
    table.append(
        [arrowlog.add_file("m", partition_values={"p": "x"}, size=1, docMappingJson=mapping)]
    )
    record = st.read_record(root, table.version)
    (entry,) = [item for item in st.entries_of(root, record) if item["path"] == "m"]
    assert entry["docMappingJson"] is None
    assert record["schemaRegistry"][entry["docMappingRef"]] == mapping
    key = f"docMappingSchema.{entry['docMappingRef']}"
    fields = json.loads(record["metadata"])["metaData"]
    assert fields["configuration"][key] == mapping  # where other programs read it
    assert key not in arrowlog.Table(root).snapshot().metadata.configuration
    files = arrowlog.Table(root).snapshot().files
    assert mapping in files["doc_mapping_json"].to_pylist()
    table.remove(["a"])
    assert mapping in arrowlog.Table(root).snapshot().files["doc_mapping_json"].to_pylist()


def test_repair_writes_a_log_without_states(root, table):
    table.write(pa.table({"p": ["x"], "id": [1]}))
    table.remove(["a"])
    log = st.log_file(root, "")[:-1]
    arrowlog.repair(log, f"{log}_repaired")
    shutil.move(log, f"{log}_old")
    shutil.move(f"{log}_repaired", log)
    back = arrowlog.Table(root)
    assert back.snapshot().protocol.min_reader_version < 4
    assert back.snapshot().num_files == 1
    back.write(pa.table({"p": ["x"], "id": [2]}))
    assert not st.state_versions(root)


def test_upgrade_raises_reader_and_writer_versions_together(root):
    table = arrowlog.Table.create(root, st.SCHEMA, st.PARTITIONS)
    table.upgrade_protocol(reader=4)
    protocol = arrowlog.Table(root).snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (4, 4)


def test_repair_of_a_states_only_table(states_only):
    for path in ("a", "b"):
        (states_only / path).write_bytes(b"x")
    log = st.log_file(states_only, "")[:-1]
    result = arrowlog.repair(log, f"{log}_repaired").to_pylist()[0]
    assert (result["source_version"], result["valid_splits"], result["status"]) == (1, 2, "SUCCESS")
    shutil.move(log, f"{log}_old")
    shutil.move(f"{log}_repaired", log)
    assert paths(arrowlog.Table(states_only)) == ["a", "b"]


def test_numbers_beyond_32_bits_are_refused_before_the_commit(root, table):
    big = arrowlog.add_file("m", partition_values={"p": "x"}, size=1, numMergeOps=1 << 31)
    with pytest.raises(InvalidRequest, match="32 bits"):
        table.append([big])
    assert table.version == 2
