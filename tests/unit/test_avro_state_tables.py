"""Opening tables of protocol 4: states as commits, states with commits, and damaged states."""

import json
import os
import pickle
import shutil

import pyarrow as pa
import pytest
from support import state_tables as st

import arrowlog
from arrowlog import testing
from arrowlog.errors import InvalidRequest, LogCorrupt, UnsupportedProtocol
from arrowlog.snapshot.avro_state_files import AvroStateFiles


def paths(table, **which):
    return sorted(table.snapshot(**which).files["path"].to_pylist())


@pytest.fixture
def scala(root):
    """Versions 0 to 3 with a state each that reuses manifests; file 2 is removed in version 3."""
    st.first_commit(root)
    (first,) = st.write_state(root, 1, [[st.add("a", "x", 1), st.add("b", "y", 2)]])
    path = st.manifest(root, "two", [st.add("c", "z", 3)])
    second = st.info(path, 1, st.bounds_of([st.add("c", "z", 3)]))
    st.put_state(root, 2, [first, second])
    st.put_state(root, 3, [first, second], tombstones=["b"])
    return root


def test_newest_state_is_read_without_a_pointer(scala):
    table = arrowlog.Table(scala)
    snapshot = table.snapshot()
    assert snapshot.version == 3
    assert isinstance(snapshot.state.source, AvroStateFiles)
    assert paths(table) == ["a", "c"]
    assert snapshot.schema == st.SCHEMA
    assert snapshot.partition_columns == ("p",)
    assert snapshot.files["partition.p"].to_pylist() == ["x", "z"]
    assert snapshot.files["min.id"].to_pylist() == [1, 3]


def test_stale_or_dangling_pointer_changes_nothing(scala):
    for version in (1, 3, 9):
        st.pointer(scala, version)
        assert arrowlog.Table(scala).snapshot().version == 3


def test_every_version_can_be_read_by_number_and_by_time(scala):
    table = arrowlog.Table(scala)
    assert table.earliest_version == 0
    assert [paths(table, version=v) for v in range(4)] == [
        [],
        ["a", "b"],
        ["a", "b", "c"],
        ["a", "c"],
    ]
    assert paths(table, timestamp=st.CREATED + 1999) == ["a", "b"]
    assert table.snapshot(timestamp=st.CREATED + 2000).version == 2
    with pytest.raises(InvalidRequest):
        table.snapshot(version=4)


def test_inconsistent_state_of_version_0_is_not_used(scala):
    st.write_state(scala, 0, [[st.add("lie")]], createdAt=st.CREATED + 10_000)
    table = arrowlog.Table(scala)
    assert paths(table, version=0) == []
    os.remove(st.log_file(scala, f"{0:020d}.json"))
    st.put_state(
        scala,
        4,
        [],
        metadata='{"id":"t","schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[]}"}',
    )
    table = arrowlog.Table(scala)
    assert table.version == 4
    with pytest.raises(LogCorrupt, match="written after that of version 1"):
        table.snapshot(version=0)


def test_state_folder_without_its_file_is_ignored(scala):
    os.makedirs(st.log_file(scala, "state-v00000000000000000009"))
    table = arrowlog.Table(scala)
    assert table.snapshot().version == 3
    assert table.version == 3
    assert not table.snapshot().report.warnings


def test_later_commits_apply_to_the_state_and_readd_files(scala):
    testing.write_commit(scala, 4, [st.add("b", "y", 9), testing.remove("a")])
    table = arrowlog.Table(scala)
    assert table.snapshot().version == 4
    assert paths(table) == ["b", "c"]
    assert isinstance(table.snapshot().state.source, AvroStateFiles)


def test_commits_below_a_state_are_not_applied(scala):
    testing.write_commit(scala, 1, [st.add("stray")])
    table = arrowlog.Table(scala)
    assert paths(table) == ["a", "c"]
    assert paths(table, version=1) == ["a", "b"]
    shutil.rmtree(st.log_file(scala, "state-v00000000000000000001"))
    with pytest.raises(LogCorrupt, match="may not be part of the table"):
        arrowlog.Table(scala).snapshot(version=1)


def test_entry_in_the_later_manifest_wins(root):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("a", "x", 1), st.add("b", "x", 2)], [st.add("a", "x", 7)]])
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.files["path"].to_pylist() == ["b", "a"]
    assert snapshot.files["min.id"].to_pylist() == [2, 7]
    assert "says that it has 3 files" in " ".join(snapshot.report.warnings)


def test_tombstone_applies_to_every_manifest(root):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("a")], [st.add("a"), st.add("b")]], tombstones=["a"])
    assert paths(arrowlog.Table(root)) == ["b"]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
@pytest.mark.parametrize("fields", [21, 25])
def test_every_codec_and_both_field_sets(root, codec, fields):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("a", "x", 1, numRecords=5)]], codec=codec, fields=fields)
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.num_files, snapshot.num_records) == (1, 5)


def test_metadata_precedence_is_state_commits_other_states(root):
    other = pa.schema([("other", pa.int32())])
    st.first_commit(root)
    text = testing.lines([testing.metadata(other)]).decode()
    st.write_state(root, 1, [[st.add("a")]], metadata=text)
    assert arrowlog.Table(root).snapshot().schema == other
    st.write_state(root, 2, [[st.add("a")]])
    assert arrowlog.Table(root).snapshot().schema == st.SCHEMA
    os.remove(st.log_file(root, f"{0:020d}.json"))
    assert arrowlog.Table(root).snapshot().schema == other
    shutil.rmtree(st.log_file(root, "state-v00000000000000000001"))
    with pytest.raises(LogCorrupt, match="metadata of the table"):
        arrowlog.Table(root).snapshot()


def test_doc_mappings_are_resolved_under_both_spellings(root):
    st.first_commit(root, configuration={"docMappingSchema.three": "[3]"})
    adds = [st.add(f"f{ref}", docMappingRef=ref) for ref in ("one", "two", "three", "nowhere")]
    registry = {"one": "[1]", "docMappingSchema.two": "[2]"}
    st.write_state(root, 1, [adds], schemaRegistry=registry)
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.files["doc_mapping_json"].to_pylist() == ["[1]", "[2]", "[3]", None]
    assert "the doc mapping nowhere" in " ".join(snapshot.report.warnings)


def test_damaged_newest_state_raises_instead_of_an_older_version(scala):
    st.flip(st.log_file(scala, st.state_path(3)))
    with pytest.raises(LogCorrupt, match="state-v00000000000000000003"):
        arrowlog.Table(scala).snapshot()
    assert paths(arrowlog.Table(scala), version=2) == ["a", "b", "c"]


def test_missing_manifest_raises_with_its_name(scala):
    os.remove(st.log_file(scala, "manifests/manifest-two.avro"))
    table = arrowlog.Table(scala)
    with pytest.raises(LogCorrupt, match="manifest-two"):
        table.snapshot().files  # noqa: B018 -- the property reads
    assert paths(table, version=1) == ["a", "b"]


@pytest.mark.parametrize("what", ["state", "manifest"])
def test_commits_bridge_a_damaged_state(root, what):
    st.first_commit(root)
    testing.write_commit(root, 1, [st.add("a")])
    st.write_state(root, 1, [[st.add("a")]])
    testing.write_commit(root, 2, [st.add("b")])
    (item,) = st.write_state(root, 2, [[st.add("a"), st.add("b")]])
    st.flip(st.log_file(root, st.state_path(2) if what == "state" else item["path"]))
    table = arrowlog.Table(root)
    if what == "manifest":
        with pytest.warns(arrowlog.ArrowlogWarning, match="was not used"):
            assert paths(table) == ["a", "b"]
    else:
        assert paths(table) == ["a", "b"]
    assert table.version == 2
    assert "was not used" in " ".join(table.snapshot().report.warnings)


def test_newer_format_or_protocol_is_refused(scala):
    for changed in ({"formatVersion": 2}, {"protocolVersion": 5}):
        st.put_state(scala, 4, [], **changed)
        with pytest.raises(UnsupportedProtocol):
            arrowlog.Table(scala).snapshot()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.avro", "s3://b/x.avro", "a/../../x.avro"])
def test_manifests_outside_the_log_are_refused(scala, path):
    st.put_state(scala, 4, [st.info(path, 1)])
    with pytest.raises(LogCorrupt, match="not a path inside the log"):
        arrowlog.Table(scala).snapshot()


def test_data_files_outside_the_table_are_refused(root):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("../a")]])
    with pytest.raises(LogCorrupt, match="leads out"):
        arrowlog.Table(root).snapshot().files  # noqa: B018 -- the property reads
    assert paths(arrowlog.Table(root, allow_outside_paths=True)) == ["../a"]


def test_bare_manifest_names_resolve_to_the_state_folder(root):
    st.first_commit(root)
    data = st.container(st.entry_schema(), [st.entry(st.add("a"))])
    testing.write_file(root, "state-v00000000000000000001/part.avro", data)
    st.put_state(root, 1, [st.info("part.avro", 1)])
    assert paths(arrowlog.Table(root)) == ["a"]


def test_handle_refreshes_over_states_and_commits(scala):
    table = arrowlog.Table(scala)
    assert table.snapshot().version == 3
    assert table.snapshot() is table.snapshot()
    st.write_state(scala, 4, [[st.add("d")]])
    assert paths(table) == ["d"]
    testing.write_commit(scala, 5, [st.add("e")])
    assert paths(table) == ["d", "e"]
    st.write_state(scala, 5, [[st.add("d"), st.add("e")]])
    assert table.refresh().version == 5
    st.write_state(scala, 6, [[st.add("f")]])
    assert paths(table) == ["f"]


def test_recreated_table_is_detected(scala):
    table = arrowlog.Table(scala)
    assert paths(table) == ["a", "c"]
    shutil.rmtree(scala)
    st.first_commit(scala)
    for version in (1, 2, 3):
        st.write_state(scala, version, [[st.add("new")]])
    assert paths(table) == ["new"]


def test_snapshots_pickle_without_the_store(scala):
    snapshot = arrowlog.Table(scala).snapshot()
    data = pickle.dumps(snapshot)
    shutil.rmtree(scala)
    assert pickle.loads(data).files["path"].to_pylist() == ["a", "c"]


def test_time_travel_below_a_purged_state(scala):
    shutil.rmtree(st.log_file(scala, "state-v00000000000000000002"))
    table = arrowlog.Table(scala)
    assert table.earliest_version == 3
    with pytest.raises((InvalidRequest, LogCorrupt)):
        table.snapshot(version=2)
    assert paths(table, version=1) == ["a", "b"]


def codes(root):
    return {finding.code: finding for finding in arrowlog.doctor(root, data_files=False)}


def test_doctor_reports_problems_of_states(scala):
    st.pointer(scala, 3)
    assert not {code for code in codes(scala) if code.startswith(("state", "manifest", "commit"))}
    st.write_state(scala, 0, [[st.add("lie")]], createdAt=st.CREATED + 10_000)
    testing.write_commit(scala, 1, [st.add("stray"), st.add("a", "x", 1)])
    found = codes(scala)
    assert found["state-lies"].severity == "info"
    assert found["commit-ignored"].count == 1
    assert found["commit-ignored"].files.to_pylist() == ["stray"]
    shutil.copytree(
        st.log_file(scala, "state-v00000000000000000002"),
        st.log_file(scala, "state-v00000000000000000001"),
        dirs_exist_ok=True,
    )
    assert codes(scala)["state-misnumbered"].version == 1
    os.remove(st.log_file(scala, "manifests/manifest-two.avro"))
    found = codes(scala)
    assert found["manifest-missing"].severity == "error"
    assert "manifest-two" in found["manifest-missing"].where


def test_doctor_compares_counts_and_times_of_states(root):
    st.first_commit(root)
    st.write_state(root, 1, [[st.add("a"), st.add("b")]], numFiles=7)
    st.write_state(root, 2, [[st.add("a"), st.add("b")]], numFiles=7, createdAt=5)
    found = codes(root)
    assert "has 2" in found["state-count"].what
    assert found["state-times"].version == 2
    st.flip(st.log_file(root, st.state_path(2)))
    found = codes(root)
    assert found["state-broken"].severity == "error"


def test_disk_cache_hides_no_newer_state(scala, tmp_path):
    options = {"snapshotCache.path": str(tmp_path / "copies")}
    assert paths(arrowlog.Table(scala, options=options)) == ["a", "c"]
    testing.write_commit(scala, 4, [st.add("e")])
    assert paths(arrowlog.Table(scala, options=options)) == ["a", "c", "e"]
    st.write_state(scala, 5, [[st.add("d")]])
    assert paths(arrowlog.Table(scala, options=options)) == ["d"]


@pytest.fixture
def purged(root):
    """States are the commits; manifests of versions 2 and 3 were deleted by their writer."""
    st.first_commit(root)
    for version in range(1, 7):
        adds = [st.add(f"f{number}", "x", number) for number in range(version)]
        st.write_state(root, version, [adds])
    for version in (2, 3):
        os.remove(st.log_file(root, f"manifests/manifest-{version:04x}0000.avro"))
    return root


def test_history_after_a_purge_names_unreadable_versions(purged):
    table = arrowlog.Table(purged)
    history = table.history().select(["version", "adds", "removes"]).to_pylist()
    known = {row["version"]: (row["adds"], row["removes"]) for row in history}
    unknown = (None, None)
    assert known == {
        6: (1, 0),
        5: (1, 0),
        4: unknown,
        3: unknown,
        2: unknown,
        1: (1, 0),
        0: (0, 0),
    }
    assert table.history()["timestamp"].null_count == 0
    assert table.history(2)["adds"].to_pylist() == [1, 1]
    (group,) = table.history(by="operation").to_pylist()
    assert (group["commits"], group["adds"], group["last_version"]) == (7, None, 6)
    assert table.history(2, by="operation")["adds"].to_pylist() == [2]
    lives = table.query("SELECT path, begin_version FROM file_lifetimes ORDER BY path").to_pylist()
    assert [row["path"] for row in lives if row["path"] in ("f4", "f5")] == ["f4", "f5"]
    assert {row["path"] for row in lives} == {f"f{number}" for number in range(6)}
    adds = table.query("SELECT version, path FROM adds ORDER BY ALL").to_pylist()
    assert [(row["version"], row["path"]) for row in adds] == [(1, "f0"), (5, "f4"), (6, "f5")]
    note = table.query("SELECT note FROM coverage")["note"][0].as_py()
    assert "versions 2, 3 cannot be read" in note
    assert table.earliest_version == 4


def test_purged_versions_raise_with_their_number(purged):
    table = arrowlog.Table(purged)
    for version in (2, 3):
        with pytest.raises(LogCorrupt, match=f"state of version {version}") as raised:
            table.snapshot(version=version).files  # noqa: B018 -- reads the manifests
        assert raised.value.version == version
        with pytest.raises(LogCorrupt, match=f"state of version {version}"):
            table.diff(version, 5).to_arrow()
    assert table.diff(4, 6).added.num_rows == 2
    assert table.diff(1, 6).added.num_rows == 5


def test_vacuum_and_cleanup_of_a_purged_table(purged):
    for name in ("f0", "f1", "f5", "stray"):
        (purged / f"{name}.parquet").write_bytes(b"x")
    done = arrowlog.Table(purged, options={"logRetention.duration": "0s"}).cleanup()
    assert done.retention.versions == (0, 6)
    assert arrowlog.Table(purged).history()["version"].to_pylist() == [6]


def test_history_starts_with_a_readable_version(purged):
    os.remove(st.log_file(purged, f"{0:020d}.json"))
    fields = testing.metadata(st.SCHEMA, st.PARTITIONS)
    shutil.rmtree(os.path.dirname(st.log_file(purged, st.state_path(1))))
    st.write_state(
        purged,
        7,
        [[st.add(f"f{number}", "x", number) for number in range(7)]],
        metadata=json.dumps(fields),
    )
    table = arrowlog.Table(purged)
    assert table.history()["version"].to_pylist() == [7, 6, 5, 4]
    assert table.earliest_version == 4
    assert table.query("SELECT count(*) AS n FROM file_lifetimes")["n"][0].as_py() == 7


def test_doc_mappings_of_later_commits_are_resolved(root):
    configuration = {"docMappingSchema.ref2": '["two"]'}
    st.first_commit(root, configuration=configuration)
    st.write_state(
        root, 1, [[st.add("a", docMappingRef="ref1")]], schemaRegistry={"ref1": '["one"]'}
    )
    testing.write_commit(
        root,
        2,
        [st.add("b", docMappingRef="ref2"), st.add("c", docMappingRef="ref1"), st.add("d")],
    )
    files = arrowlog.Table(root).snapshot().files
    found = dict(zip(files["path"].to_pylist(), files["doc_mapping_json"].to_pylist(), strict=True))
    assert found == {"a": '["one"]', "b": '["two"]', "c": '["one"]', "d": None}


def test_doctor_fixes_for_states_correct_the_pointer_or_suggest_repair(scala):
    st.pointer(scala, 1)
    found = {item.code: item for item in arrowlog.doctor(scala, data_files=False)}
    assert found["pointer-stale"].fix.startswith("table.checkpoint()")
    arrowlog.Table(scala).checkpoint()
    assert "pointer-stale" not in {i.code for i in arrowlog.doctor(scala, data_files=False)}
    with open(st.log_file(scala, "_last_checkpoint"), "rb") as file:
        assert json.load(file)["stateDir"] == "state-v" + f"{3:020d}"
    os.remove(st.log_file(scala, "manifests/manifest-two.avro"))
    found = {item.code: item for item in arrowlog.doctor(scala, data_files=False)}
    for code in ("manifest-missing", "checkpoint-broken"):
        assert found[code].fix.startswith("arrowlog.repair("), code
