"""Processes that race for one table of protocol 4 and are killed."""

import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from support import state_tables as st
from support import table_races
from support.case_count import first_seed

import arrowlog

NUMBERS = 12
# Appends a file per number, each as one application transaction, so that it can restart.
WRITER = """
import sys
import arrowlog
root, me, numbers = sys.argv[1], sys.argv[2], int(sys.argv[3])
table = arrowlog.Table(root)
print("ready", flush=True)
for number in range(numbers):
    add = arrowlog.add_file(f"{me}-{number}", {"p": me}, size=1, modification_time=1)
    table.append([add], txn=(me, number))
    print(number, flush=True)
"""


def new_table(root):
    table = arrowlog.Table.create(root, table_races.SCHEMA, ["p"])
    table.upgrade_protocol(reader=4, writer=4)


def added_paths(root):
    """The number of adds per path in the commits, read with the standard library."""
    names = sorted(n for n in os.listdir(st.log_file(root, "")) if n.endswith(".json"))
    assert [int(name[:20]) for name in names] == list(range(len(names)))  # no gap
    lines = [line for version in range(len(names)) for line in st.json_lines(root, version)]
    return Counter(line["add"]["path"] for line in lines if "add" in line)


def pointed_version(root):
    with open(st.log_file(root, "_last_checkpoint"), "rb") as file:
        return json.load(file)["version"]


def check_all_readers(root, expected):
    assert added_paths(root) == Counter(expected)
    assert sorted(arrowlog.Table(root).snapshot().files["path"].to_pylist()) == sorted(expected)
    assert st.as_states_only(root) == sorted(expected)
    assert st.as_pointer_and_commits(root) == sorted(expected)


@pytest.mark.promise("commit.exactly_once")
def test_concurrent_appends_are_in_commits_and_states_once(root):
    new_table(root)
    told = table_races.race("append", root, 3, 12)
    assert sorted(item["version"] for item in told) == list(range(2, 38))
    check_all_readers(root, [path for item in told for path in item["adds"]])
    assert pointed_version(root) == max(st.state_versions(root)) == 37


@pytest.mark.slow
@pytest.mark.promise("commit.exactly_once")
def test_killed_and_restarted_writers_commit_once(root):
    seed = first_seed()
    rng = random.Random(seed)
    new_table(root)
    running, finished, newest = {}, set(), 0
    while len(finished) < 2:
        for me in {"a", "b"} - finished - set(running):
            command = [sys.executable, "-c", WRITER, str(root), me, str(NUMBERS)]
            running[me] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert running[me].stdout.readline() == "ready\n"
        me = rng.choice(sorted(running))
        process = running[me]
        # At a random moment after some commits; each is restarted until it finishes.
        for _ in range(rng.randrange(1, NUMBERS)):
            process.stdout.readline()
        process.kill()
        process.wait()
        del running[me]
        process.stdout.close()
        snapshot = arrowlog.Table(root).snapshot()
        assert snapshot.version >= newest
        newest = snapshot.version
        own = [path for path in snapshot.files["path"].to_pylist() if path.startswith(me)]
        if len(own) == NUMBERS:
            finished.add(me)
    for process in running.values():
        process.communicate()
    # The process killed last may have left a commit without its state or pointer.
    arrowlog.Table(root).append([table_races.add("last")])
    expected = [f"{me}-{number}" for me in "ab" for number in range(NUMBERS)]
    check_all_readers(root, [*expected, "last"])
    assert pointed_version(root) == max(st.state_versions(root))
