"""Killed committers: acknowledged commits are in the log, and every commit is complete."""

import os

import pytest
from support import kill_committers, killable_children
from support.case_count import cases, first_seed
from support.faulty_store import Log

import arrowlog
from arrowlog.formats.indextables import LOG_FOLDER, classify_names

KILLS = 40  # per table: a short log allows more kills per second


@pytest.mark.promise("commit.acknowledged_is_durable")
@pytest.mark.fork
def test_killed_committers_leave_whole_commits_and_no_gap(tmp_path):
    seed = first_seed()
    roots = [tmp_path / f"table{number}" for number in range(cases(25))]
    for root in roots:
        arrowlog.Table.create(root, kill_committers.SCHEMA, ["p"])
    told = killable_children.run(kill_committers.__file__, seed, KILLS, roots)
    for root, commits in zip(roots, told, strict=True):
        check(root, commits)
    count = sum(map(len, told))
    print(f"{len(roots) * KILLS} kills, {count} commits acknowledged")
    assert count > len(roots)


def check(root, told):
    log = Log()
    names = sorted(os.listdir(root / LOG_FOLDER))
    found = {commit.name for commit in classify_names(names).commit_files()}
    assert set(names) == found, "debris"
    log.absorb({f"{LOG_FOLDER}/{name}": (root / LOG_FOLDER / name).read_bytes() for name in names})
    for version, txn_id in told:
        assert log.at[txn_id] == version
    snapshot = arrowlog.Table(root, strict=True).snapshot()
    assert snapshot.version == log.version
    assert sorted(snapshot.files["path"].to_pylist()) == sorted(log.live)
    table = arrowlog.Table(root, strict=True)
    last = table.append([arrowlog.add_file("last", {"p": None}, size=1, modification_time=1)])
    assert last.version == log.version + 1
