"""Timestamps out of range and non-regular files in the log folder raise at most typed errors."""

import os
import subprocess
import sys
import warnings

import pyarrow as pa
import pytest

import arrowlog
from arrowlog import testing

SCHEMA = pa.schema([("id", pa.int64()), ("d", pa.date32())])
FAR = [2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_800_001, 2**63 // 1000]
VIEWS = ("commits", "adds", "removes", "files", "metadata", "file_lifetimes", "checkpoints")


def build(root, millis):
    metadata = testing.metadata(SCHEMA)
    metadata["metaData"]["createdTime"] = millis
    days = {"minValues": {"d": "2147483647"}, "maxValues": {"d": "9999-12-31"}}
    testing.write_commit(root, 0, [testing.protocol(), metadata])
    testing.write_commit(root, 1, [testing.add("a", {}, modificationTime=millis, **days)])
    remove = {"path": "a", "deletionTimestamp": millis, "dataChange": True}
    added = testing.add("b", {}, modificationTime=millis)
    testing.write_commit(root, 2, [{"remove": remove}, added])


def describe(root, more=""):
    return arrowlog.sql_statement(f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}' {more}")


def calls(root):
    """Every call that reads a log."""

    def table():
        return arrowlog.Table(root)

    return {
        "snapshot": lambda: table().snapshot().files,
        "shown": lambda: (repr(table().snapshot()), table()._repr_html_(), str(table().overview())),
        "scan": lambda: (table().scan("id > 1").files, table().scan().explain().to_arrow()),
        "history": lambda: table().history(),
        "views": lambda: [table().query(f"FROM {view}") for view in VIEWS],
        "diff": lambda: (str(table().diff(0, 2)), table().diff(2, 0).to_arrow()),
        "doctor": lambda: str(table().doctor()),
        "doctor from outside": lambda: str(arrowlog.doctor(root)),
        "vacuum": lambda: table().vacuum(dry_run=True),
        "cleanup": lambda: table().cleanup(dry_run=True),
        "retention": lambda: table().retention("1h", "1h"),
        "truncate": lambda: table().truncate_history(dry_run=True),
        "compact": lambda: table().compact(dry_run=True),
        "earliest": lambda: table().earliest_version,
        "by time": lambda: table().snapshot(timestamp="2024-01-01T00:00:00Z"),
        "describe": lambda: describe(root),
        "describe all": lambda: describe(root, "INCLUDE ALL"),
        "skips": lambda: (table().skips.active(), table().skips.history()),
        "repair": lambda: arrowlog.repair(
            f"{root}/_transaction_log", f"{root}-mended/_transaction_log"
        ),
        "append": lambda: table().append([arrowlog.add_file("c", {}, size=1)]),
        "checkpoint": lambda: table().checkpoint(),
        "after it": lambda: (table().snapshot().files, describe(root)),
    }


@pytest.mark.parametrize("millis", FAR)
def test_out_of_range_timestamps_do_not_prevent_reading(root, millis):
    build(root, millis)
    for name, call in calls(root).items():
        if name == "by time":
            continue
        call()
    found = describe(root, "INCLUDE ALL")
    assert found.num_rows == 6
    inside = abs(millis) <= 8_000_000_000_000_000
    adds = found.filter(pa.compute.equal(found["action_type"], "add"))
    assert adds["modification_time"].null_count == (0 if inside else adds.num_rows - 1)


@pytest.mark.parametrize("millis", FAR)
def test_command_line_accepts_out_of_range_timestamps(root, millis):
    build(root, millis)
    for command, form in (("info", "text"), ("files", "json"), ("history", "text")):
        done = subprocess.run(
            [sys.executable, "-m", "arrowlog", command, root, "--output", form],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, bool(done.stdout)) == (0, True), (command, form, done.stderr)


def dangling(path):
    os.symlink("/nowhere/at/all", path)


def loop(path):
    os.symlink(path, path)


NAMES = [
    *(f"{version:020d}.json" for version in range(4)),
    "_last_checkpoint",
    f"{2:020d}.checkpoint.json",
    "checkpoints",
    "junk",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("put", [dangling, loop, os.mkdir])
def test_non_regular_log_file_is_read_or_raises_a_typed_error(root, put, name):
    build(root, 1_700_000_000_000)
    path = root / "_transaction_log" / name
    path.unlink(missing_ok=True)
    put(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", arrowlog.ArrowlogWarning)
        for call in calls(root).values():
            try:
                call()
            except arrowlog.ArrowlogError:
                continue


def test_dangling_symbolic_link_raises_with_its_name(root):
    build(root, 1_700_000_000_000)
    path = root / "_transaction_log" / f"{1:020d}.json"
    path.unlink()
    dangling(path)
    with pytest.raises(arrowlog.LogCorrupt, match=path.name):
        describe(root, "INCLUDE ALL")


def test_file_with_a_nul_character_in_its_name_is_missing(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA)])
    testing.write_commit(root, 1, [testing.add("a\0b")])
    table = arrowlog.Table(root)
    assert "data-missing" in table.doctor(data_files=True).codes
    assert table.report().facts.health.errors == 1
    for call in (table.to_arrow, lambda: table.update_statistics(["a\0b"])):
        with pytest.raises(arrowlog.ArrowlogError):
            call()
    table.remove(["a\0b"])
    assert table.snapshot().num_files == 0
    assert table.restore(1).operation_metrics["numAddedFiles"] == 1


@pytest.mark.parametrize("path", ["a//b", "./a", " ", "a/", "a\0b"])
def test_live_file_with_a_path_that_no_new_file_may_have_can_be_removed(root, path):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA)])
    testing.write_commit(root, 1, [testing.add(path), testing.add("other")])
    table = arrowlog.Table(root)
    with pytest.raises(arrowlog.InvalidRequest):
        table.remove([path, "x/./y"])
    table.remove([path, f"{root}/other"])
    assert arrowlog.Table(root).snapshot().num_files == 0
    with pytest.raises(arrowlog.InvalidRequest):
        table.append([arrowlog.add_file(path, size=1)])
