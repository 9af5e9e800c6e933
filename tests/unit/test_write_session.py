"""Write sessions: cached state, detected changes, and requests to the store."""

import inspect
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faulty_store import FakeClock, FaultyStore, Log, outdate, table_on

import arrowlog
from arrowlog import add_file, testing
from arrowlog.config import Config
from arrowlog.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    MetadataChanged,
    StoreUnavailable,
    TableExists,
)
from arrowlog.formats.base import Metadata, Protocol
from arrowlog.formats.indextables.format import LAST_CHECKPOINT, LOG_FOLDER, commit_name
from arrowlog.formats.table_schema import format_spark_schema
from arrowlog.snapshot.stats_truncation import StatsTruncation
from arrowlog.transaction import table_metadata, write_session
from arrowlog.transaction.conflict_checker import ReadSet, TableHead, WinningCommit, check_conflict
from arrowlog.transaction.parquet_files import read_footer_stats
from arrowlog.transaction.write_session import _GAP_PROBES

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def file(name, part="x"):
    return add_file(name, {"p": part}, size=1, modification_time=1)


def write(store, version, actions):
    store.objects[f"{LOG_FOLDER}/{commit_name(version)}"] = testing.lines(actions)


def fresh(*, cheap_stat=True, commits=3, id="one"):  # noqa: A002 -- the name on disk
    """A store with a table of some commits."""
    store = FaultyStore(cheap_stat=cheap_stat)
    write(store, 0, [testing.protocol(), testing.metadata(SCHEMA, ["p"], id=id)])
    for version in range(1, commits + 1):
        write(store, version, [testing.add(f"f{version}", {"p": "x"}, size=len(id))])
    return store


def wait(table):
    table._session.clock.sleep(31)
    outdate(table)


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("commits", [0, 3, 9])
def test_recreated_table_is_detected_by_its_id(cheap, commits):
    store = fresh(cheap_stat=cheap)
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    store.objects.clear()
    store.objects.update(fresh(commits=commits, id="other").objects)
    wait(table)
    with pytest.raises(MetadataChanged, match="no longer the table"):
        table.remove(["f1"])
    assert table.overwrite([file("new")]).version == commits + 1
    Log().absorb(store.objects)


def test_restored_backup_gets_no_gap():
    """A backup replaced the table: the same id, fewer versions."""
    store = fresh(cheap_stat=False)
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    for version in (2, 3):
        del store.objects[f"{LOG_FOLDER}/{commit_name(version)}"]
    wait(table)
    with pytest.raises(MetadataChanged):
        table.remove(["f3"])
    assert table.append([file("new")]).version == 2
    Log().absorb(store.objects)


def test_stale_listing_is_not_taken_for_another_table():
    store = fresh(cheap_stat=False)
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    wait(table)
    store.lag = 2
    assert table.remove(["f3"]).version == 4
    Log().absorb(store.objects)


@pytest.mark.promise("commit.no_gap")
def test_concurrent_commits_leave_no_gap():
    store = fresh()
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    write(store, 4, [testing.add("theirs", {"p": "x"})])
    write(store, 5, [testing.add("more", {"p": "x"})])
    assert table.append([file("new")]).version == 6


@pytest.mark.promise("commit.outcome_is_true")
@pytest.mark.parametrize("later", range(5), ids=["records", "pointer", "tip", "mark", "tip again"])
def test_landed_commit_is_reported_if_the_store_fails_afterwards(later):
    store = fresh()
    table = table_on(store, FakeClock("a"))
    table.append([file("first")])
    # Before the put: the tip, the records, the pointer, possible later commits. After it: the
    # records, the pointer, the previous commit, then the new tip and that commit again.
    store.reads = [*[False] * (3 + _GAP_PROBES + later), True]
    assert table.append([file("second")]).version == 5
    assert not store.reads
    assert table.append([file("third")]).version == 6
    Log().absorb(store.objects)


def test_without_the_guard_a_landed_commit_is_denied(monkeypatch):
    source = inspect.getsource(write_session)
    guard = "except StoreUnavailable:  #"
    assert source.count(guard) == 1
    names = dict(vars(write_session))
    exec(source.replace(guard, "except ZeroDivisionError:  #"), names)
    bare = names["WriteSession"]._observe_own_commit
    monkeypatch.setattr(write_session.WriteSession, "_observe_own_commit", bare)
    with pytest.raises(StoreUnavailable):
        test_landed_commit_is_reported_if_the_store_fails_afterwards(3)


def test_pointer_is_read_again_after_a_failed_read():
    store = fresh()
    tracker = table_on(store)._tracker
    pointer = f"{LOG_FOLDER}/{LAST_CHECKPOINT}"
    store.objects[pointer] = b'{"version":2}'
    store.reads = [False, True]  # the stat, then the pointer itself
    assert not tracker.pointer_names_later(1)
    assert tracker.pointer_names_later(1)
    assert not tracker.pointer_names_later(2)


def test_refusal_after_a_lost_response_is_unknown_but_alone_is_not():
    store = fresh()
    table = table_on(store, FakeClock("a"))
    store.puts = ["lost before", "unavailable"]
    with pytest.raises(CommitStateUnknown):
        table.append([file("first")])
    store.puts = ["unavailable"]
    with pytest.raises(StoreUnavailable):
        table.append([file("first")])
    assert len(store.objects) == 4


def test_max_attempts_limits_races():
    store = fresh()
    table = table_on(store, FakeClock("a"), {"commit.maxAttempts": 1})
    table.snapshot()
    store.window = [lambda: write(store, 4, [testing.add("theirs", {"p": "x"})])]
    with pytest.raises(CommitConflict, match="lost 1 race "):
        table.append([file("new")])
    assert table.append([file("new")]).version == 5


def make(store, **how):
    metadata = table_metadata.build_metadata(SCHEMA, ["p"], None, None, None)
    table_metadata.create_table(store, Config(), metadata, **{"exist_ok": False} | how)
    return metadata.id


def test_create_with_a_lost_response_is_recognized_by_its_id():
    for fault in ("lost after", "retried"):
        store = FaultyStore()
        store.puts = [fault]
        made = make(store)
        assert table_on(store).snapshot().metadata.id == made
        with pytest.raises(TableExists):
            make(store)
        make(store, exist_ok=True)


@pytest.mark.parametrize("first", [testing.protocol(), testing.metadata(SCHEMA)])
def test_concurrent_create_raises_table_exists(first):
    store = FaultyStore()
    store.window = [lambda: write(store, 0, [first])]
    with pytest.raises(TableExists):
        make(store)
    assert len(store.objects) == 1


def test_unwritable_partition_columns_of_other_programs_are_refused(root):
    schema = pa.schema([("b", pa.binary()), ("id", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, ["b"])])
    with pytest.raises(InvalidRequest, match="'b' cannot be a partition column"):
        arrowlog.Table(root).write(pa.table({"b": [b"x"], "id": [1]}))


def test_empty_batches_are_skipped(root):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    none, one = (pa.record_batch([["a"] * n, [1] * n], schema=SCHEMA) for n in (0, 1))
    table.write(pa.RecordBatchReader.from_batches(SCHEMA, [none, one, none]))
    assert table.snapshot().num_records == 1


def test_winning_commit_with_only_a_new_description_does_not_conflict():
    metadata = Metadata("t", format_spark_schema(SCHEMA), ("p",))
    head = TableHead(5, Protocol(2, 2), metadata, SCHEMA)
    rival = WinningCommit(6, "RIVAL", metadata=replace(metadata, description="new"))
    assert check_conflict(ReadSet(), head, rival) is None


def test_bounds_of_unknown_values_are_absent(tmp_path):
    cut = StatsTruncation(max_length=2, strategy="truncate")
    assert cut.shorten("abc", None) == ("ab", None)
    table = pa.table({"f": [float("nan"), float("nan"), 1.0, 2.0]})
    pq.write_table(table, tmp_path / "a", row_group_size=2)
    found = read_footer_stats(pq.read_metadata(tmp_path / "a"), table.schema, cut)
    assert (found.low, found.high, found.nulls) == ({}, {}, {"f": 0})


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("fault", ["lost after", "retried"])
def test_landed_commit_is_never_reported_as_unavailable(fault, cheap):
    """The response to the put is lost, and one of the requests that follow fails."""
    for requests in range(24):
        for appended in (True, False):
            store = fresh(cheap_stat=cheap)
            table = table_on(store, FakeClock("a"))
            table.append([file("first")])
            store.puts = [fault]
            store.reads = [*[False] * requests, True]
            change = table.append if appended else table.overwrite
            denied = False
            try:
                assert change([file("second")]).version == 5
            except CommitStateUnknown:
                pass
            except StoreUnavailable:
                denied = True
            landed = f"{LOG_FOLDER}/{commit_name(5)}" in store.objects
            assert not (denied and landed), requests
