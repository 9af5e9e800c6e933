"""Processes and threads that race for one table on a local disk."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import table_races
from support.case_count import cases
from support.faulty_store import Log

import arrowlog
from arrowlog.errors import CommitConflict, InvalidRequest
from arrowlog.formats.indextables.format import LOG_FOLDER


def log_of(root):
    log = Log()
    folder = Path(root) / LOG_FOLDER
    paths = [path for path in folder.iterdir() if path.is_file()]
    log.absorb({f"{LOG_FOLDER}/{path.name}": path.read_bytes() for path in paths})
    return log


def assert_same(root, log):
    snapshot = arrowlog.Table(root, strict=True).snapshot()
    assert snapshot.version == log.version
    assert sorted(snapshot.files["path"].to_pylist()) == sorted(log.live)


@pytest.mark.promise("commit.exactly_once")
@pytest.mark.parametrize(("processes", "rounds"), [(2, 60), (6, 20)])
def test_concurrent_appends_of_processes_land_once(root, processes, rounds):
    arrowlog.Table.create(root, table_races.SCHEMA, ["p"])
    told = table_races.race("append", root, processes, rounds)
    assert sorted(item["version"] for item in told) == list(range(1, processes * rounds + 1))
    log = log_of(root)
    assert len(log.at) == log.version == processes * rounds
    for item in told:
        assert log.at[item["txn"]] == item["version"]
        assert list(log.commits[item["version"]].adds) == item["adds"]
    assert_same(root, log)


@pytest.mark.promise("commit.serializable")
def test_overwrites_and_appends_of_two_processes_are_serializable(root):
    arrowlog.Table.create(root, table_races.SCHEMA, ["p"])
    told = table_races.race("mix", root, 2, cases(60))
    log = log_of(root)
    done = [item for item in told if "version" in item]
    assert sorted(item["version"] for item in done) == list(range(1, log.version + 1))
    for item in done:
        commit = log.commits[item["version"]]
        assert log.at[item["txn"]] == item["version"]
        if item["kind"] == "overwrite":
            assert list(commit.after) == [item["name"]]
        if item["kind"] == "where":
            part = commit.adds[item["name"]]["partitionValues"]
            same = [name for name, add in commit.after.items() if add["partitionValues"] == part]
            assert same == [item["name"]]
    assert_same(root, log)


def test_one_of_several_concurrent_creates_wins(tmp_path):
    rounds = cases(50)
    told = table_races.race("create", tmp_path, 8, rounds)
    for number in range(rounds):
        made = [item for item in told if item["round"] == number and item["made"]]
        assert len(made) == 1
        log = log_of(tmp_path / str(number))  # asserts one protocol and one metaData
        assert log.version == 0
        assert log.live == {}
        assert log.commits[0].metadata["configuration"] == {"made.by": str(made[0]["me"])}
        assert log.commits[0].protocol == {"minReaderVersion": 2, "minWriterVersion": 2}


@pytest.mark.promise("commit.serializable")
def test_threads_commit_through_one_table_handle(root):
    table = arrowlog.Table.create(root, table_races.SCHEMA, ["p"])

    def work(me):
        done = []
        for number in range(15):
            if me == 0 and number % 5 == 0:
                done.append(table.set_properties({f"k{number}": "v"}))
            else:
                done.append(table.append([table_races.add(f"{me}-{number}")]))
        return done

    with ThreadPoolExecutor(4) as pool:
        results = [result for done in pool.map(work, range(4)) for result in done]
    log = log_of(root)
    assert sorted(result.version for result in results) == list(range(1, 61))
    assert {result.txn_id: result.version for result in results} == log.at
    assert set(log.commits[-1].metadata["configuration"]) == {"k0", "k5", "k10"}
    assert_same(root, log)
    assert table.snapshot().num_files == len(log.live)


def test_threads_sharing_one_table_remove_a_file_once(root):
    table = arrowlog.Table.create(root, table_races.SCHEMA, ["p"])
    for number in range(20):
        table.append([table_races.add(f"f{number}")])

    def remove(number):
        try:
            return table.remove([f"f{number // 2}"])
        except (CommitConflict, InvalidRequest):
            return None

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(remove, range(40)))
    assert_same(root, log_of(root))  # asserts that no file is removed twice
    assert sum(result is not None for result in results) == 20
