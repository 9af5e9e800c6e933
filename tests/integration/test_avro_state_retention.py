"""Cleanup and truncation of tables with Avro states delete nothing that a state needs."""

import json
import os
import shutil
import time

import pyarrow as pa
import pytest
from support import state_tables as st

import arrowlog
from arrowlog import testing
from arrowlog.errors import InvalidRequest

DAY = 86_400
ALL = {"checkpoint.retention": "0"}  # no commit is kept by number


def paths(root, version=None):
    return sorted(arrowlog.Table(root).snapshot(version=version).files["path"].to_pylist())


def log_files(root):
    """The files of the log, relative to its folder."""
    folder = st.log_file(root, "")
    return {
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    }


def make_older(root, days, only=""):
    """Make files of the log older."""
    when = time.time() - days * DAY
    for name in log_files(root):
        if name.startswith(only):
            os.utime(st.log_file(root, name), (when, when))


def named_manifests(root):
    return {
        item["path"]
        for version in st.state_versions(root)
        for item in st.read_record(root, version)["manifests"]
    }


def new(path):
    return arrowlog.add_file(path, partition_values={"p": "x"}, size=1)


@pytest.fixture
def own(root):
    """A table that arrowlog wrote: 12 files, then a rewritten state, then two more."""
    table = arrowlog.Table.create(root, st.SCHEMA, st.PARTITIONS, properties=ALL)
    table.upgrade_protocol(reader=4, writer=4)
    for number in range(12):
        table.append([new(f"f{number}")])
    table.remove([f"f{number}" for number in range(6)])
    table.append([new("g0")])
    table.append([new("g1")])
    return root


@pytest.fixture
def states_only(root):
    """A table whose states are the commits, with metadata in the commit of version 0 only."""
    st.first_commit(root, configuration=ALL)
    adds = []
    for version in range(1, 7):
        adds.append(st.add(f"f{version}", "x"))
        st.write_state(root, version, [adds])
    st.pointer(root, 4)
    return root


@pytest.mark.promise("cleanup.keeps_what_it_promises")
def test_cleanup_deletes_old_commits_states_and_manifests(own):
    expected = paths(own)
    make_older(own, 40)
    table = arrowlog.Table(own)
    planned = table.cleanup(dry_run=True)
    assert table.retention().files == planned.files
    before = log_files(own)
    done = table.cleanup()
    assert done.files == planned.files
    assert before - log_files(own) == {
        name.removeprefix("_transaction_log/") for name in done.files["path"].to_pylist()
    }
    assert set(done.files["kind"].to_pylist()) == {"commit", "state", "manifest"}
    assert done.earliest_version == arrowlog.Table(own).earliest_version == 16
    assert st.state_versions(own) == [16]
    assert named_manifests(own) == {f for f in log_files(own) if f.startswith("manifests/")}
    assert not [
        n for n in os.listdir(st.log_file(own, "")) if n.startswith("state-v") and "16" not in n
    ]
    assert paths(own) == expected == st.as_states_only(own) == st.as_pointer_and_commits(own)
    with pytest.raises(InvalidRequest, match="no longer available"):
        paths(own, 9)
    table.append([new("later")])
    assert paths(own) == sorted([*expected, "later"])


@pytest.mark.promise("cleanup.keeps_what_it_promises")
@pytest.mark.parametrize("option", ["", "cleanup.enabled", "checkpoint.enabled"])
def test_commit_runs_cleanup_if_enabled(own, option, caplog):
    expected = [*paths(own), "x"]
    make_older(own, 40)
    options = {"checkpoint.interval": 17, **({option: False} if option else {})}
    table = arrowlog.Table(own, options=options)
    assert table.append([new("x")]).version == 17
    assert table.wait_for_checkpoint()
    assert (st.state_versions(own) == [17]) == (not option)
    if not option:
        assert named_manifests(own) == {f for f in log_files(own) if f.startswith("manifests/")}
        assert f"{16:020d}.json" not in log_files(own)
    assert paths(own) == expected == st.as_states_only(own) == st.as_pointer_and_commits(own)
    assert caplog.records == []


def test_handle_runs_cleanup_once_per_interval(own, monkeypatch):
    from arrowlog.maintenance import checkpointing

    asked = []
    monkeypatch.setattr(checkpointing, "has_expired_files", lambda *_: asked.append(newest))
    table = arrowlog.Table(own, options={"checkpoint.interval": 4})
    for newest in range(17, 27):
        table.append([new(f"h{newest}")])
        assert table.wait_for_checkpoint()
    assert asked == [20, 24]
    # Versions that are multiples of the interval may all be those of other writers.
    table = arrowlog.Table(own, options={"checkpoint.interval": 3})
    for newest in range(28, 42, 2):
        arrowlog.Table(own).append([new(f"h{newest - 1}")])
        table.append([new(f"h{newest}")])
        assert table.wait_for_checkpoint()
    assert asked[2:] == [30, 34, 36, 40]


def test_commit_reads_no_manifest_when_nothing_has_expired(own, monkeypatch):
    from arrowlog.maintenance import checkpointing

    monkeypatch.setattr(checkpointing, "cleanup", None)
    before = log_files(own)
    table = arrowlog.Table(own, options={"checkpoint.interval": 1})
    table.append([new("x")])
    assert table.wait_for_checkpoint()
    assert before < log_files(own)


def test_files_within_their_retention_are_kept(own):
    make_older(own, 20)
    before = log_files(own)
    assert arrowlog.Table(own).cleanup().num_files == 0
    assert log_files(own) == before
    assert arrowlog.Table(own).retention("10d").num_files > 0


def test_young_manifests_are_kept_after_a_truncation(own):
    expected = paths(own)
    manifests = {name for name in log_files(own) if name.startswith("manifests/")}
    planned = arrowlog.Table(own).truncate_history(dry_run=True).files
    assert arrowlog.Table(own).truncate_history().files == planned
    assert {name for name in log_files(own) if name.startswith("manifests/")} == manifests
    assert st.state_versions(own) == [16]
    assert paths(own) == expected
    make_older(own, 2, "manifests/")
    unnamed = manifests - named_manifests(own)
    assert unnamed
    deleted = arrowlog.Table(own).cleanup().files
    assert set(deleted["path"].to_pylist()) == {f"_transaction_log/{name}" for name in unnamed}
    assert deleted["version"].null_count == len(unnamed)
    assert paths(own) == expected


def test_manifest_of_a_retained_state_is_kept_at_any_age(own):
    make_older(own, 40, "manifests/")
    make_older(own, 40, "0000")
    versions = {version: paths(own, version) for version in range(2, 17)}
    arrowlog.Table(own).cleanup()
    for version, expected in versions.items():
        assert paths(own, version) == expected


def test_cleanup_of_a_table_with_states_only(states_only):
    make_older(states_only, 40)
    expected = {version: paths(states_only, version) for version in (4, 6)}
    table = arrowlog.Table(states_only)
    done = table.cleanup()
    assert st.state_versions(states_only) == [4, 6]  # that of the pointer, and the newest
    assert os.path.exists(st.log_file(states_only, f"{0:020d}.json"))
    assert done.retention.versions == (0, 4, 6)
    for version, files in expected.items():
        assert paths(states_only, version) == files


def test_handle_continues_after_its_state_was_deleted(states_only):
    make_older(states_only, 40)
    st.pointer(states_only, 6)
    options = {"avroState.allowStateOnly": True, "checkpoint.interval": 1}
    table = arrowlog.Table(states_only, options=options)
    assert table.snapshot().version == 6  # the version exists only as a state
    for number in range(3):
        table.append([new(f"n{number}")])
        assert table.wait_for_checkpoint()
    assert 6 not in st.state_versions(states_only)
    table.remove(["n1"])
    assert paths(states_only) == ["f1", "f2", "f3", "f4", "f5", "f6", "n0", "n2"]


def test_commit_to_a_recreated_table_of_states_raises(states_only):
    table = arrowlog.Table(states_only, options={"avroState.allowStateOnly": True})
    assert table.snapshot().version == 6
    assert table.snapshot().files.num_rows == 6
    shutil.rmtree(st.log_file(states_only, ""))
    arrowlog.Table.create(states_only, st.SCHEMA, st.PARTITIONS).append([new("f1")])
    with pytest.raises(arrowlog.MetadataChanged):
        table.remove(["f1"])
    shutil.rmtree(st.log_file(states_only, ""))
    with pytest.raises(arrowlog.ArrowlogError):
        table.remove(["f1"])


def test_highest_commit_and_unapplied_commits_are_kept(states_only):
    testing.write_commit(states_only, 1, [st.add("stray", "x")])
    testing.write_commit(states_only, 2, [st.add("stray2", "x")])
    make_older(states_only, 40)
    expected = paths(states_only)
    arrowlog.Table(states_only).cleanup()
    names = log_files(states_only)
    assert f"{2:020d}.json" in names  # other writers number after it
    assert f"{1:020d}.json" not in names
    assert paths(states_only) == expected
    with pytest.raises(InvalidRequest):
        paths(states_only, 2)


def test_state_that_supersedes_a_commit_is_kept_with_it(states_only):
    testing.write_commit(states_only, 1, [st.add("stray", "x")])
    table = arrowlog.Table(states_only, options={"avroState.allowStateOnly": True})
    table.append([new("mine")])
    table.append([new("more")])
    expected = paths(states_only)
    make_older(states_only, 40, "state-v")
    table.cleanup()
    assert 6 in st.state_versions(states_only)
    assert paths(states_only) == expected
    for version in (1, 2):
        with pytest.raises((InvalidRequest, arrowlog.LogCorrupt)):
            paths(states_only, version)


def test_commit_with_the_metadata_of_a_state_is_kept(root):
    st.first_commit(root, configuration=ALL)
    wide = st.SCHEMA.append(pa.field("extra", pa.int64()))
    for version in range(1, 7):
        actions = [st.add(f"f{version}", "x")]
        if version == 3:
            actions.append(testing.metadata(wide, st.PARTITIONS, configuration=ALL))
        testing.write_commit(root, version, actions)
        st.write_state(root, version, [[st.add(f"f{v}", "x") for v in range(1, version + 1)]])
    make_older(root, 40)
    assert arrowlog.Table(root).schema.names == ["p", "id", "extra"]
    arrowlog.Table(root).cleanup()
    assert f"{3:020d}.json" in log_files(root)
    assert arrowlog.Table(root).schema.names == ["p", "id", "extra"]


def test_state_with_the_metadata_of_another_is_kept(root):
    fields = testing.metadata(st.SCHEMA, st.PARTITIONS, configuration=ALL)
    for version in range(3, 9):
        more = {"metadata": json.dumps(fields)} if version == 3 else {}
        st.write_state(root, version, [[st.add(f"f{version}", "x")]], **more)
    make_older(root, 40)
    expected = paths(root)
    arrowlog.Table(root).cleanup()
    assert st.state_versions(root) == [3, 8]
    assert paths(root) == expected


def test_application_transactions_survive_their_commits(root):
    table = arrowlog.Table.create(root, st.SCHEMA, st.PARTITIONS, properties=ALL)
    table.upgrade_protocol(reader=4, writer=4)
    table.append([new("a")], txn=("app", 7))
    table.append([new("b")])
    # Another program commits, and writes a state that has no application transactions.
    testing.write_commit(root, 4, [st.add("c", "x")])
    st.write_state(root, 4, [[st.add("a", "x"), st.add("b", "x"), st.add("c", "x")]])
    make_older(root, 40)
    arrowlog.Table(root).cleanup()
    assert arrowlog.Table(root).append([new("a2")], txn=("app", 7)).duplicate
    assert paths(root) == ["a", "b", "c"]


def test_damaged_newest_state_prevents_deleting_older_ones(own):
    st.flip(st.log_file(own, st.state_path(16)))
    make_older(own, 40)
    expected = paths(own)
    arrowlog.Table(own).cleanup()
    assert {15, 16} <= set(st.state_versions(own))
    assert paths(own) == expected


def test_manifests_are_kept_while_a_state_is_unreadable(own):
    make_older(own, 40)
    with open(st.log_file(own, st.state_path(10)), "wb") as file:  # now a young file
        file.write(b"Obj\x01 damaged")
    before = {name for name in log_files(own) if name.startswith("manifests/")}
    arrowlog.Table(own).cleanup()
    assert {name for name in log_files(own) if name.startswith("manifests/")} == before


def test_state_written_during_cleanup_keeps_its_manifests(own, monkeypatch):
    from arrowlog.maintenance import cleanup

    make_older(own, 40)
    victim = min(
        {item["path"] for item in st.read_record(own, 12)["manifests"]}
        - {item["path"] for item in st.read_record(own, 16)["manifests"]}
    )
    retire = cleanup._retire

    def late_state(*args):
        st.put_state(own, 17, [st.info(victim, 1)])
        return retire(*args)

    monkeypatch.setattr(cleanup, "_retire", late_state)
    done = arrowlog.Table(own).cleanup()
    assert victim in log_files(own)
    assert f"_transaction_log/{victim}" not in done.files["path"].to_pylist()


def test_empty_state_folder_is_ignored(own):
    make_older(own, 40)
    arrowlog.Table(own).cleanup()
    os.mkdir(st.log_file(own, "state-v" + f"{7:020d}"))
    table = arrowlog.Table(own)
    assert table.earliest_version == 16
    with pytest.raises(InvalidRequest, match="no longer available"):
        table.snapshot(version=7)
    assert table.cleanup().num_files == 0
