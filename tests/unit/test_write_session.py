"""A handle that writes: what it knows, what it notices, what it asks the store."""

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
def test_another_table_in_its_place_is_known_by_its_id(cheap, commits):
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


def test_an_older_copy_of_the_table_gets_no_gap():
    """Somebody put a backup in its place: the same id, fewer versions."""
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


def test_a_listing_that_lags_behind_what_was_seen_is_no_other_table():
    store = fresh(cheap_stat=False)
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    wait(table)
    store.lag = 2
    assert table.remove(["f3"]).version == 4
    Log().absorb(store.objects)


@pytest.mark.promise("commit.no_gap")
def test_others_that_went_ahead_leave_no_gap():
    store = fresh()
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    write(store, 4, [testing.add("theirs", {"p": "x"})])
    write(store, 5, [testing.add("more", {"p": "x"})])
    assert table.append([file("new")]).version == 6


@pytest.mark.promise("commit.outcome_is_true")
@pytest.mark.parametrize("later", range(5), ids=["records", "pointer", "tip", "mark", "tip again"])
def test_a_commit_that_landed_is_told_though_the_store_fails_right_after(later):
    store = fresh()
    table = table_on(store, FakeClock("a"))
    table.append([file("first")])
    # Before the put: the mark, the records, the pointer, what may lie ahead. After it: the records
    # of retired versions, the pointer, the commit before, then the new mark and that commit again.
    store.reads = [*[False] * (3 + _GAP_PROBES + later), True]
    assert table.append([file("second")]).version == 5
    assert not store.reads
    assert table.append([file("third")]).version == 6
    Log().absorb(store.objects)


def test_without_its_guard_a_commit_that_landed_would_be_denied(monkeypatch):
    source = inspect.getsource(write_session)
    guard = "except StoreUnavailable:  #"
    assert source.count(guard) == 1
    names = dict(vars(write_session))
    exec(source.replace(guard, "except ZeroDivisionError:  #"), names)
    bare = names["WriteSession"]._observe_own_commit
    monkeypatch.setattr(write_session.WriteSession, "_observe_own_commit", bare)
    with pytest.raises(StoreUnavailable):
        test_a_commit_that_landed_is_told_though_the_store_fails_right_after(3)


def test_a_pointer_whose_reading_failed_is_read_again():
    store = fresh()
    tracker = table_on(store)._tracker
    pointer = f"{LOG_FOLDER}/{LAST_CHECKPOINT}"
    store.objects[pointer] = b'{"version":2}'
    store.reads = [False, True]  # the stat, then the pointer itself
    assert not tracker.pointer_names_later(1)
    assert tracker.pointer_names_later(1)
    assert not tracker.pointer_names_later(2)


def test_a_refusal_after_a_lost_answer_is_unknown_and_alone_it_is_not():
    store = fresh()
    table = table_on(store, FakeClock("a"))
    store.puts = ["lost before", "unavailable"]
    with pytest.raises(CommitStateUnknown):
        table.append([file("first")])
    store.puts = ["unavailable"]
    with pytest.raises(StoreUnavailable):
        table.append([file("first")])
    assert len(store.objects) == 4


def test_races_may_be_limited():
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


def test_a_table_whose_making_was_not_answered_is_known_by_its_id():
    for fault in ("lost after", "retried"):
        store = FaultyStore()
        store.puts = [fault]
        made = make(store)
        assert table_on(store).snapshot().metadata.id == made
        with pytest.raises(TableExists):
            make(store)
        make(store, exist_ok=True)


@pytest.mark.parametrize("first", [testing.protocol(), testing.metadata(SCHEMA)])
def test_of_two_that_make_a_table_the_other_was_faster(first):
    store = FaultyStore()
    store.window = [lambda: write(store, 0, [first])]
    with pytest.raises(TableExists):
        make(store)
    assert len(store.objects) == 1


def test_partition_columns_of_others_that_cannot_be_written(root):
    schema = pa.schema([("b", pa.binary()), ("id", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, ["b"])])
    with pytest.raises(InvalidRequest, match="'b' cannot be a partition column"):
        arrowlog.Table(root).write(pa.table({"b": [b"x"], "id": [1]}))


def test_batches_without_rows_are_passed_over(root):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    none, one = (pa.record_batch([["a"] * n, [1] * n], schema=SCHEMA) for n in (0, 1))
    table.write(pa.RecordBatchReader.from_batches(SCHEMA, [none, one, none]))
    assert table.snapshot().num_records == 1


def test_a_rival_that_only_says_what_the_table_is_called():
    metadata = Metadata("t", format_spark_schema(SCHEMA), ("p",))
    head = TableHead(5, Protocol(2, 2), metadata, SCHEMA)
    rival = WinningCommit(6, "RIVAL", metadata=replace(metadata, description="new"))
    assert check_conflict(ReadSet(), head, rival) is None


def test_bounds_of_rows_about_which_nothing_is_known(tmp_path):
    cut = StatsTruncation(max_length=2, strategy="truncate")
    assert cut.shorten("abc", None) == ("ab", None)
    table = pa.table({"f": [float("nan"), float("nan"), 1.0, 2.0]})
    pq.write_table(table, tmp_path / "a", row_group_size=2)
    found = read_footer_stats(pq.read_metadata(tmp_path / "a"), table.schema, cut)
    assert (found.low, found.high, found.nulls) == ({}, {}, {"f": 0})


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("fault", ["lost after", "retried"])
def test_a_commit_that_landed_is_never_reported_as_unavailable(fault, cheap):
    """The answer to the put is lost, and one of the requests that follow fails."""
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
