"""Commit bugs known from other table log writers. None of them may occur here."""

import os
import shutil
import warnings

import pyarrow as pa
import pytest
from support.faulty_store import FakeClock, FaultyStore, Log, outdate, table_on

import arrowlog
from arrowlog import add_file, testing
from arrowlog.errors import (
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    LogCorrupt,
    MetadataChanged,
    StoreUnavailable,
    TableNotFound,
)
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
OPENING = [testing.protocol(), testing.metadata(SCHEMA, ["p"])]


def file(name, part="x"):
    return add_file(name, {"p": part}, size=1, modification_time=1)


OPERATIONS = {
    "append": lambda table: table.append([file("new")]),
    "overwrite": lambda table: table.overwrite([file("new")]),
    "overwrite where": lambda table: table.overwrite([file("new")], "p = 'x'"),
    "remove": lambda table: table.remove(["f1"]),
    "remove where": lambda table: table.remove("p = 'x'"),
    "properties": lambda table: table.set_properties({"a": "b"}),
    "restore": lambda table: table.restore(0),
}
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


def live(table):
    return sorted(table.snapshot().files["path"].to_pylist())


def log_of(root):
    log = Log()
    paths = [path for path in (root / LOG_FOLDER).iterdir() if path.is_file()]
    log.absorb({f"{LOG_FOLDER}/{path.name}": path.read_bytes() for path in paths})
    return log


@pytest.fixture
def faulty():
    store = FaultyStore()
    store.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(OPENING)
    return store


@pytest.fixture
def made(root):
    """A table with files f1 … f5 and a handle that has read a snapshot."""
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    for number in range(1, 6):
        table.append([file(f"f{number}")])
    return root


@pytest.mark.promise("commit.exactly_once")
@pytest.mark.parametrize("fault", ["lost after", "retried", "late 1", "late 3"])
def test_lost_put_response_commits_once(faulty, fault):
    table = table_on(faulty, FakeClock("a"))
    table.append([file("a"), file("b")])
    faulty.puts = [fault]
    merged = table.commit([file("ab")], ["a", "b"], operation="OPTIMIZE", data_change=False)
    assert (merged.version, merged.attempts) == (2, 2 if fault == "late 3" else 1)
    assert live(table_on(faulty)) == ["ab"]
    assert table.append([file("c")]).version == 3
    log = Log()
    log.absorb(faulty.objects)
    assert log.version == 3


@pytest.mark.promise("commit.idempotent_write")
def test_permanently_lost_put_response_raises_and_the_transaction_commits_once(faulty):
    faulty.cheap_stat = False
    table = table_on(faulty, FakeClock("a"))
    table.append([file("first")])
    faulty.puts, faulty.reads = ["lost after"], [True] * 2  # the final read of the log fails, too
    with pytest.raises(CommitStateUnknown) as raised:
        table.append([file("a")], txn=("app", 1))
    assert (raised.value.version, raised.value.txn_id) == (2, "a-1")
    again = table.append([file("a")], txn=("app", 1))
    assert again.duplicate
    assert again.version == 2
    log = Log()
    log.absorb(faulty.objects)
    assert log.version == 2


@pytest.mark.parametrize("fault", ["unavailable", "transient", "lost before"])
def test_failed_put_does_not_advance_the_version(faulty, fault):
    table = table_on(faulty, FakeClock("a"))
    table.append([file("a")])
    faulty.outage = fault
    with pytest.raises((StoreUnavailable, CommitStateUnknown)) as raised:
        table.append([file("b")])
    assert isinstance(raised.value, CommitStateUnknown) == (fault == "lost before")
    faulty.heal()
    assert table.append([file("c")]).version == 2
    log = Log()
    log.absorb(faulty.objects)
    assert sorted(log.live) == ["a", "c"]


@pytest.mark.promise("commit.no_gap")
@every_operation
@pytest.mark.parametrize("when", ["before the handle", "under the handle"])
def test_writing_to_a_log_with_a_gap_raises(made, operation, when):
    table = arrowlog.Table(made)
    if when == "under the handle":
        table.snapshot()
        testing.write_commit(made, 7, [testing.add("f7")])
    else:
        os.unlink(made / LOG_FOLDER / commit_name(4))
    before = sorted(os.listdir(made / LOG_FOLDER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        with pytest.raises((LogCorrupt, InvalidRequest), match=r"missing|not a live file"):
            OPERATIONS[operation](table)
        with pytest.raises(LogCorrupt, match="missing"):
            OPERATIONS["append"](table)
    assert sorted(os.listdir(made / LOG_FOLDER)) == before


@every_operation
@pytest.mark.parametrize("later", [0, 9])
@pytest.mark.parametrize("wrote", [False, True])
def test_commit_to_a_recreated_table_leaves_no_gap(made, operation, later, wrote):
    table = arrowlog.Table(made)
    table.snapshot()
    if wrote:
        table.append([file("f6")])
    shutil.rmtree(made)
    other = arrowlog.Table.create(made, SCHEMA, ["p"])
    for number in range(later):
        other.append([file(f"other{number}")])
    if operation == "append":  # no conflict if the schema is the same
        assert OPERATIONS[operation](table).version == later + 1
    else:
        with pytest.raises(MetadataChanged):
            OPERATIONS[operation](table)
        assert log_of(made).version == later
        assert table.overwrite([file("mine")]).version == later + 1
        assert live(arrowlog.Table(made)) == ["mine"]
    log_of(made)


def test_handle_continues_with_a_recreated_table_after_a_snapshot(made):
    table = arrowlog.Table(made)
    for number in range(3):
        table.append([file(f"g{number}")])
    shutil.rmtree(made)
    arrowlog.Table.create(made, SCHEMA, ["p"])
    assert table.snapshot().version == 0
    assert table.overwrite([file("new")], "p = 'x'").version == 1
    assert live(arrowlog.Table(made)) == ["new"]


@every_operation
def test_commit_to_a_dropped_table_raises_and_writes_nothing(made, operation):
    table = arrowlog.Table(made)
    table.snapshot()
    shutil.rmtree(made)
    with pytest.raises((TableNotFound, LogCorrupt, MetadataChanged)):
        OPERATIONS[operation](table)
    assert not made.exists()


@every_operation
@pytest.mark.parametrize("seen", [0, 2, 5])
def test_handle_opened_before_cleanup_commits_above_the_checkpoint(made, operation, seen):
    """Commits below a checkpoint are deleted: a put there succeeds, but no reader sees it."""
    newest = log_of(made)
    keep = {v: (made / LOG_FOLDER / commit_name(v)).read_bytes() for v in range(seen + 1, 6)}
    for version in keep:
        os.unlink(made / LOG_FOLDER / commit_name(version))
    table = arrowlog.Table(made)
    assert table.snapshot().version == seen
    for version, data in keep.items():
        testing.write_file(made, commit_name(version), data)
    for number in range(6, 9):
        arrowlog.Table(made).append([file(f"f{number}")])
    newest = log_of(made)
    adds = [{"add": add} for add in newest.live.values()]
    metadata = {"metaData": newest.commits[0].metadata}
    testing.write_checkpoint(made, 7, [testing.protocol(), metadata, *adds[:-1]])
    for version in range(1, 7):
        os.unlink(made / LOG_FOLDER / commit_name(version))
    outdate(table)  # cleanup keeps objects younger than 30 seconds
    try:
        result = OPERATIONS[operation](table)
    except (CommitConflict, InvalidRequest):
        assert not os.path.exists(made / LOG_FOLDER / commit_name(9))
    else:
        assert result.version == 9
        assert arrowlog.Table(made, strict=True).snapshot().version == 9
    assert not os.path.exists(made / LOG_FOLDER / commit_name(seen + 1 if seen < 5 else 6))
    assert table.append([file("visible")]).version in (9, 10)
    assert "visible" in live(arrowlog.Table(made, strict=True))


def test_pointer_to_a_missing_version_stops_writers(made):
    testing.write_pointer(made, {"version": 9})
    with pytest.raises(LogCorrupt, match="pointer names version 9"):
        arrowlog.Table(made).append([file("new")])
    testing.write_pointer(made, {"version": 5})
    assert arrowlog.Table(made).append([file("new")]).version == 6
    for nonsense in (b"", b"[]", b'{"version": true}', b'{"version": "9"}'):
        testing.write_pointer(made, nonsense)
        arrowlog.Table(made).append([file("new")])


def test_own_commits_belong_to_the_read_set_after_concurrent_commits(root):
    """An overwrite replaces files the handle itself added; it cannot remove a file twice."""
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.append([file("old")])
    table.snapshot()
    arrowlog.Table(root).append([file("theirs", "y")])
    table.append([file("mine")])
    table.overwrite([file("new")], "p = 'x'")
    assert live(arrowlog.Table(root)) == ["new", "theirs"]
    arrowlog.Table(root).append([file("more", "y")])
    table.remove(["new"])
    with pytest.raises((CommitConflict, InvalidRequest)):
        table.remove(["new"])
    log_of(root)


def test_commit_with_read_version_conflicts_with_own_later_commits(root):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.append([file("a"), file("b")])
    version = table.version
    table.remove(["a"])
    with pytest.raises(CommitConflict):
        table.commit([file("ab")], ["a", "b"], data_change=False, read_version=version)
    table.set_properties({"x": "1"})
    with pytest.raises(CommitConflict):
        table.commit([file("c")], read_version=version)
    assert live(arrowlog.Table(root)) == ["b"]


def test_internal_refresh_does_not_extend_the_read_set(root):
    """A handle that refreshed only to append has not read the files that others added."""
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.append([file("seen")])
    table.snapshot()
    arrowlog.Table(root).append([file("unseen")])
    outdate(table, forget_head=True)
    table.append([file("mine", "y")])
    with pytest.raises(arrowlog.errors.ConcurrentAppend, match="unseen"):
        table.overwrite([file("new")], "p = 'x'")
    table.snapshot()
    table.overwrite([file("new")], "p = 'x'")
    assert live(arrowlog.Table(root)) == ["mine", "new"]
