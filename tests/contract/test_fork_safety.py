"""In a forked child every call works or raises at once with a next step; none hangs or crashes."""

import gc
import multiprocessing
import threading
from decimal import Decimal
from functools import cached_property, partial

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from support import fork_rounds, programs
from support.case_count import cases, first_seed
from support.forked_child import in_child
from support.waiting import SECONDS_MAX, wait_until

import arrowlog
from arrowlog import fork_safety
from arrowlog.errors import ForkedProcess
from arrowlog.snapshot import snapshot as snapshots

pytestmark = [
    pytest.mark.fork,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("price", pa.decimal128(9, 2))])


def rows(count, day=None):
    numbers = list(range(count))
    return pa.table(
        {
            "id": numbers,
            "day": [str(number % 4) if day is None else day for number in numbers],
            "price": pa.array([Decimal(number) for number in numbers], pa.decimal128(9, 2)),
        }
    )


def make(root):
    table = arrowlog.Table.create(
        root, SCHEMA, ["day"], properties={"checkpoint.interval": 1000, "cleanup.enabled": False}
    )
    for _ in range(3):
        table.write(rows(100))
    table.write(rows(20, "1"), mode="overwrite", where="day = '1'")
    return table


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A table that this process has written, read and queried, so that every engine runs."""
    table = make(tmp_path_factory.mktemp("forks") / "table")
    table.scan("lower(day) = '2'").to_polars().collect()
    table.query("SELECT count(*) FROM commits")
    table.checkpoint()
    pl.DataFrame({"a": [1, 2]}).group_by("a").len()
    return table


def add(name):
    return arrowlog.add_file(f"day=9/{name}", {"day": "9"}, size=1, num_records=0)


WORKS = {
    "version": lambda t: t.version >= 4,
    "snapshot": lambda t: t.snapshot().num_files > 9,
    "files": lambda t: t.snapshot().files.num_rows > 9,
    "earlier version": lambda t: t.snapshot(1).num_files == 4,
    "timestamp": lambda t: t.snapshot(timestamp="2999-01-01").num_files > 9,
    "refresh": lambda t: t.refresh().num_files > 9,
    "open": lambda t: arrowlog.Table(t.uri).snapshot().num_files > 9,
    "replay": lambda t: arrowlog.Table(t.uri).snapshot(3).num_files == 12,
    "scan": lambda t: t.scan("id > 90 AND day = '2'").num_files == 3,
    "scan of many decimals": lambda t: (
        t.scan(f"price IN ({', '.join(f'{n}.5' for n in range(20))}, 3)").num_files > 0
    ),
    "scan by a polars expression": lambda t: t.scan(pl.col("id") > 1000).num_files <= 9,
    "explain": lambda t: "files to read" in str(t.scan("id > 5").explain()),
    "count": lambda t: t.scan("day = '2'").count() == 75,
    "rows by Arrow": lambda t: (
        t.scan("day = '2' AND id > 5").to_arrow_dataset().to_table().num_rows == 72
    ),
    "rows by a function": lambda t: (
        t.scan("lower(day) = '2'").to_arrow_dataset().to_table().num_rows == 75
    ),
    "rows by splits": lambda t: (
        sum(b.num_rows for s in t.scan("day = '2'").splits() for b in s.batches()) == 75
    ),
    "rows by DuckDB": lambda t: (
        len(t.scan("day = '2'").to_duckdb(duckdb.connect()).fetchall()) == 75
    ),
    "diff": lambda t: t.diff(1, 2).added.num_rows == 4,
    "append": lambda t: t.append([add("x")]).version > 4,
    "write": lambda t: t.write(rows(10)).version > 4,
    "write a frame": lambda t: t.write(pl.DataFrame({"id": [1], "day": ["8"]})).version > 4,
    "overwrite": lambda t: (
        t.refresh() and t.write(rows(4, "3"), mode="overwrite", where="day = '3'").version > 4
    ),
    "remove": lambda t: t.remove([t.append([add("y")]) and "day=9/y"]).version > 4,
    "restore": lambda t: t.refresh() and t.restore(3).version > 4,
    "set properties": lambda t: t.set_properties({"a": "b"}).version > 4,
    "cleanup": lambda t: t.cleanup(dry_run=True) is not None,
    "wait_for_checkpoint": lambda t: t.wait_for_checkpoint(),
}
REFUSED = {
    "rows by polars": lambda t: t.scan("id > 5").to_polars(),
    "rows of a split by polars": lambda t: t.scan("id > 5").splits()[0].to_polars(),
    "write a lazy frame": lambda t: t.write(pl.LazyFrame({"id": [1], "day": ["8"]})),
    "history": lambda t: t.history(),
    "last commit": lambda t: t.history(1),
    "sql": lambda t: t.sql("SELECT 1"),
    "query": lambda t: t.query("SELECT count(*) FROM adds"),
    "connect": lambda t: t.connect(),
    "overview": lambda t: t.overview(),
    "checkpoint": lambda t: t.checkpoint(),
    "compact": lambda t: t.compact(),
    "vacuum": lambda t: t.vacuum(dry_run=True),
    "truncate": lambda t: t.truncate_history(dry_run=True),
    "doctor": lambda t: t.doctor(),
    "doctor of a uri": lambda t: arrowlog.doctor(t.uri),
    "skips": lambda t: t.skips.active(),
    "repair": lambda t: arrowlog.repair(
        f"{t.uri}/_transaction_log", f"{t.uri}-mended/_transaction_log"
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_calls_without_polars_threads_work_in_a_child(used, name):
    assert in_child(partial(WORKS[name], used)) == "True"


@pytest.mark.promise("fork.works_or_says_so")
@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_need_polars_raise_forked_process_with_a_next_step(used, name):
    said = in_child(partial(REFUSED[name], used))
    assert said.startswith("ForkedProcess: "), said
    assert "get_context('spawn')" in said


def test_parent_keeps_working_after_a_fork(used):
    assert not fork_safety.polars_is_stranded()
    assert in_child(lambda: in_child(lambda: used.history().num_rows)).find("ForkedProcess") >= 0
    assert used.history().num_rows > 4
    assert used.scan("day = '2'").to_polars().collect().height > 0


def program(*arguments):
    """Run a Python program that can import the test helpers, and return its output."""
    return programs.run("-W", "ignore", *arguments).strip()


def test_child_of_a_process_without_engines_can_use_all_calls(tmp_path):
    code = """
import sys, pyarrow as pa
import arrowlog
from support.forked_child import in_child
root = sys.argv[1]
schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
arrowlog.Table.create(root, schema, ["day"])
def work():
    table = arrowlog.Table(root)
    table.write(pa.table({"id": [1, 2], "day": ["a", "b"]}))
    table.checkpoint()
    return table.history().num_rows, table.scan("id > 1").to_polars().collect().height
print(in_child(work), in_child(work, orderly=True))
"""
    assert program("-c", code, tmp_path / "table") == "(2, 1) (3, 2)"


def test_fork_is_detected_before_arrowlog_has_loaded_an_engine(used):
    """`import arrowlog` registers the hooks, although it loads neither polars nor pyarrow."""
    code = """
import sys, arrowlog
assert "polars" not in sys.modules
import polars
from support.forked_child import in_child
polars.DataFrame({"a": [1, 2]}).group_by("a").len()
print(in_child(lambda: arrowlog.Table(sys.argv[1]).history()))
"""
    assert program("-c", code, used.uri).startswith("ForkedProcess: The history of a table")


def test_fork_waits_until_another_thread_has_loaded_a_public_name(used):
    """The thread is inside a half-imported module of arrowlog, whose lock a child inherits."""
    code = """
import dataclasses, sys, threading, arrowlog
from support.forked_child import in_child
inside, release, dataclass = threading.Event(), threading.Event(), dataclasses.dataclass
def slowly(*args, **options):
    inside.set()
    release.wait(300)
    return dataclass(*args, **options)
dataclasses.dataclass = slowly
thread = threading.Thread(target=lambda: arrowlog.Table)
thread.start()
inside.wait(300)
threading.Timer(0.2, release.set).start()
print(in_child(lambda: arrowlog.Table(sys.argv[1]).version > 0))
thread.join()
"""
    assert program("-c", code, used.uri) == "True"


def test_child_queries_on_its_own_connection(tmp_path):
    # A separate table: a longer log would make the parent start polars' pool.
    table = make(tmp_path / "table")
    code = """
import sys, arrowlog
from support.forked_child import in_child
table = arrowlog.Table(sys.argv[1])
table.sql("SELECT count(*) FROM adds").fetchall()
mine = table._history_session.asked().connection
assert not arrowlog.fork_safety._pool_runs()
def ask():
    found = table.sql("SELECT count(*) FROM adds").fetchall()[0][0] > 0
    return found and table._history_session.asked().connection is not mine
print(in_child(ask), in_child(ask, orderly=True))
"""
    assert program("-c", code, table.uri) == "True True"


def _read(split):
    return sum(batch.num_rows for batch in split.batches())


def test_forked_pool_workers_read_splits(used):
    splits = used.scan("day = '2'").splits(target_size=1000)
    assert len(splits) > 2
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert sum(pool.map_async(_read, splits).get(SECONDS_MAX)) == used.scan("day = '2'").count()


def test_forked_server_workers_share_a_table_and_exit_cleanly(used):
    """The parent has opened and queried it. Each worker reads, commits and finalizes Python."""
    code = """
import sys, arrowlog
from support.forked_child import in_child
table = arrowlog.Table(sys.argv[1])
relation = table.sql("SELECT count(*) FROM adds")
relation.fetchall()
table.scan("lower(day) = '2'").to_polars().collect()
def serve():
    global relation
    relation = None
    found = table.scan("lower(day) = '2'").to_arrow_dataset().to_table().num_rows > 0
    adds = [arrowlog.add_file("day=9/served", {"day": "9"}, size=1, num_records=0)]
    return found and table.append(adds).version > 0
print([in_child(serve, orderly=True) for _ in range(3)])
"""
    assert program("-c", code, used.uri) == str(["True"] * 3)


def test_parent_connections_are_not_destroyed_in_a_child(used):
    """DuckDB would join threads that do not exist in the child: SIGSEGV."""
    held = {"relation": used.sql("SELECT count(*) FROM adds")}

    def forget():
        held.clear()
        used._history_session._thread.__dict__.clear()
        used._history_session._cached = None
        gc.collect()
        return True

    assert in_child(forget) == "True"
    assert held["relation"].fetchall()[0][0] > 0


def test_thread_local_connections_are_not_destroyed_in_a_child(used):
    """Objects only a thread refers to are destroyed in the child before any hook runs."""
    asked, done = threading.Event(), threading.Event()

    def ask():
        used.query("SELECT count(*) FROM adds")
        asked.set()
        done.wait(SECONDS_MAX)

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait(SECONDS_MAX)
    try:
        assert in_child(lambda: used.version > 0) == "True"
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("lock", ["_tracker", "_session", "_checkpointer"])
def test_lock_held_by_another_thread_is_free_in_a_child(used, lock):
    owner = getattr(used, lock)
    held, done = threading.Event(), threading.Event()

    def hold():
        with owner._lock:
            held.set()
            done.wait(SECONDS_MAX)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(SECONDS_MAX)
    try:
        assert in_child(lambda: used.append([add("torn")]).version == used.version) == "True"
        assert in_child(lambda: used._tracker.last_read is None) == str(lock == "_tracker")
    finally:
        done.set()
        thread.join()


def test_lock_held_by_the_forking_thread_stays_held(used):
    with used._tracker._lock:
        assert in_child(lambda: used._tracker.last_read is not None and used.version > 0) == "True"


def test_cached_property_in_progress_is_computed_in_a_child(used, monkeypatch):
    computing, done = threading.Event(), threading.Event()

    def slow(_):
        computing.set()
        done.wait(SECONDS_MAX)
        return 1

    found = cached_property(slow)
    found.__set_name__(snapshots.Snapshot, "slow")
    monkeypatch.setattr(snapshots.Snapshot, "slow", found, raising=False)
    snapshot = used.snapshot()
    thread = threading.Thread(target=lambda: snapshot.slow)
    thread.start()
    computing.wait(SECONDS_MAX)

    def again():
        done.set()
        return snapshot.slow

    try:
        assert in_child(again) == "1"
    finally:
        done.set()
        thread.join()


def test_fork_waits_for_imports_in_other_threads(tmp_path, monkeypatch):
    """A module half imported at the fork stays so in the child, with its lock held."""
    waiting = threading.Event()
    monkeypatch.setattr(fork_safety, "waiting", waiting, raising=False)
    code = "from arrowlog import fork_safety; fork_safety.waiting.wait(300); found = 5"
    (tmp_path / "slowly.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ours = {}
    exec(compile("def call(): import slowly", arrowlog.__file__, "exec"), ours)
    assert not fork_safety._others_import()
    thread = threading.Thread(target=ours["call"])
    thread.start()
    wait_until(fork_safety._others_import, "the import")
    usual = fork_safety._others_import

    def others_import():
        found = usual()
        waiting.set()  # the import ends once the fork waits for it, not before
        return found

    monkeypatch.setattr(fork_safety, "_others_import", others_import)
    assert in_child(lambda: __import__("slowly").found) == "5"
    thread.join()


def test_thread_inside_polars_counts_as_a_started_pool(monkeypatch):
    monkeypatch.setattr(fork_safety, "_pool_runs", lambda: False)
    inside, done = threading.Event(), threading.Event()

    def hook(_):
        inside.set()
        done.wait(SECONDS_MAX)
        return 1

    thread = threading.Thread(target=lambda: pl.Series([1]).map_elements(hook, pl.Int64))
    assert in_child(fork_safety.polars_is_stranded) == "False"
    thread.start()
    inside.wait(SECONDS_MAX)
    try:
        assert in_child(fork_safety.polars_is_stranded) == "True"
    finally:
        done.set()
        thread.join()


@pytest.mark.promise("fork.works_or_says_so")
def test_forks_while_threads_write_checkpoint_and_query(tmp_path):
    """Set ARROWLOG_CASES for more rounds."""
    seed = first_seed()
    rounds = cases(12)
    said = program(fork_rounds.__file__, tmp_path / "busy", rounds, seed)
    assert said == f"rounds {rounds}"


def test_polars_guard_allows_arrays_and_refuses_frames(monkeypatch):
    monkeypatch.setattr(fork_safety._Stranded, "now", True)
    array = pa.array([1, 2])
    assert fork_safety.pl.Series(fork_safety.pl.from_arrow(array)).to_list() == [1, 2]
    assert fork_safety.pl.concat([pl.Series([1]), pl.Series([2])]).len() == 2
    for call in (
        lambda: fork_safety.pl.DataFrame({"a": [1]}),
        lambda: fork_safety.pl.from_arrow(pa.table({"a": array})),
        lambda: fork_safety.pl.concat([pl.DataFrame({"a": [1]})]),
        lambda: fork_safety.pl.select(1),
    ):
        with pytest.raises(ForkedProcess):
            call()
