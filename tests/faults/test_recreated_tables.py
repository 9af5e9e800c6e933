"""A table is dropped and recreated in the same place while a process is suspended.

Nothing of the old table may enter the new one, and no invisible commit is acknowledged.
"""

import shutil
import threading
import warnings

import pyarrow as pa
import pytest
from support.faulty_store import FakeClock, FaultyStore, table_on

import arrowlog
from arrowlog.config import Config
from arrowlog.errors import ArrowlogWarning, LogCorrupt, MetadataChanged, TableNotFound
from arrowlog.formats.indextables import LOG_FOLDER, commit_name
from arrowlog.maintenance import checkpointing
from arrowlog.storage import LocalStore
from arrowlog.transaction import build_metadata, create_table

SCHEMA = pa.schema([("id", pa.int64())])
KEEP = {"checkpoint.enabled": False}


def rows(*ids):
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def build(root, first, commits):
    table = arrowlog.Table.create(root, SCHEMA, properties=KEEP)
    for number in range(commits):
        table.write(rows(first + number))
    return table


def ids(root):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrowlogWarning)  # a gap
        found = arrowlog.Table(root).scan().to_arrow_dataset().to_table()["id"].to_pylist()
    return sorted(found)


def before_put(monkeypatch, version, act):
    """Run a function right before the put of a version, as if the writer was suspended there."""
    whole, pending = LocalStore.put_if_absent, [act]

    def put(store, key, data):
        if pending and key == f"{LOG_FOLDER}/{commit_name(version)}":
            pending.pop()()
        return whole(store, key, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", put)


CHANGES = {
    "append": lambda table: table.append([arrowlog.add_file("old", size=1)]),
    "append after own commits": lambda table: table.append([arrowlog.add_file("old", size=1)]),
    "overwrite": lambda table: table.overwrite([arrowlog.add_file("old", size=1)]),
    "remove": lambda table: table.remove(table.snapshot().files["path"].to_pylist()[:1]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("commits", [0, 4, 5, 6, 9])
def test_stalled_commit_does_not_enter_the_recreated_table(root, monkeypatch, commits, change):
    table = build(root, 0, 5)
    if change != "append after own commits":
        table = arrowlog.Table(root)
    if change == "remove":
        table.snapshot()

    def recreate():
        shutil.rmtree(root)
        build(root, 1000, commits)

    before_put(monkeypatch, 6, recreate)
    with pytest.raises(MetadataChanged, match="dropped"):
        CHANGES[change](table)
    assert ids(root) == list(range(1000, 1000 + commits))
    assert arrowlog.Table(root).write(rows(7)).version == commits + 1
    assert table.write(rows(8)).version == commits + 2  # the handle continues with the new table


def test_stalled_commit_to_a_dropped_table_writes_nothing(root, monkeypatch):
    table = build(root, 0, 5)
    before_put(monkeypatch, 6, lambda: shutil.rmtree(root))
    with pytest.raises(TableNotFound):
        table.append([arrowlog.add_file("old", size=1)])
    assert not list(root.rglob("*.json"))


def test_slow_append_over_a_network_detects_the_recreated_table():
    store = FaultyStore(cheap_stat=False)

    def create():
        create_table(store, Config(), build_metadata(SCHEMA, [], KEEP, None, None), exist_ok=False)

    create()
    clock = FakeClock("a")
    table = table_on(store, clock)
    table.append([arrowlog.add_file("f1", size=1)])

    def stall():
        store.objects.clear()
        create()
        table_on(store, FakeClock("b")).append([arrowlog.add_file("new", size=1)])
        clock.sleep(11)

    store.window = [stall]
    with pytest.raises(MetadataChanged, match="dropped"):
        table.append([arrowlog.add_file("f2", size=1)])
    assert table_on(store).snapshot().files["path"].to_pylist() == ["new"]


@pytest.mark.parametrize("refreshed", [False, True])
def test_background_checkpoint_never_mixes_two_tables(root, monkeypatch, refreshed):
    table = arrowlog.Table.create(root, SCHEMA)
    table.refresh()
    whole, pending = checkpointing.list_log, [True]

    def list_log(store):
        if pending and threading.current_thread().name == "arrowlog-checkpoint":
            pending.pop()
            shutil.rmtree(root)
            build(root, 1000, 14)
        return whole(store)

    monkeypatch.setattr(checkpointing, "list_log", list_log)
    for number in range(10):
        table.append([arrowlog.add_file(f"old{number}", size=1)])
        if refreshed and number == 5:
            table.refresh()
    table.wait_for_checkpoint()
    assert not pending
    assert ids(root) == list(range(1000, 1014))


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("left", ["_retired/{:020d}-{:020d}.json", "_last_checkpoint"])
def test_create_refuses_the_remains_of_another_log(cheap, left):
    """After an interrupted drop or a lost log, old retirement records would hide new commits."""
    store = FaultyStore(cheap_stat=cheap)

    def create():
        create_table(store, Config(), build_metadata(SCHEMA, [], KEEP, None, None), exist_ok=False)

    remains = {f"{LOG_FOLDER}/{left.format(5, 1)}": b'{"version": 6}'}
    store.objects = dict(remains)
    with pytest.raises(LogCorrupt, match="delete _transaction_log completely"):
        create()
    assert store.objects == remains  # they may belong to a table that was created meanwhile
    store.objects = {}  # the advice
    create()
    table = table_on(store, FakeClock("b"))
    assert table.append([arrowlog.add_file("new", size=1)]).version == 1
    assert table_on(store).snapshot().files["path"].to_pylist() == ["new"]
