"""Stores in forked children: threads stay in the parent, so clients must not wait for them."""

import threading

import polars as pl
import pyarrow as pa
import pytest
from support.forked_child import in_child
from support.waiting import SECONDS_MAX

import arrowlog
from arrowlog.fork_safety import polars_is_stranded
from arrowlog.predicate.ast import Call, Literal
from arrowlog.predicate.emit import duckdb
from arrowlog.storage import PutOutcome

pytestmark = [
    pytest.mark.fork,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def use(store, name):
    """Every operation once."""
    outcome = store.put_if_absent(f"log/{name}", b"1")
    again = store.put_if_absent(f"log/{name}", b"2")
    store.replace(f"pointer-{name}", b"3")
    found = store.find_many([f"log/{name}", "missing", f"pointer-{name}"])
    many = store.get_many([f"log/{name}"] * 3)
    many += [*store.get_many([f"log/{name}"] * 9), store.get_range(f"log/{name}", 0, 1)]
    listed = store.list_from("log", name)
    size = store.stat(f"log/{name}").size
    store.delete([f"pointer-{name}"])
    gone = store.stat(f"pointer-{name}")
    return outcome, again, store.get(f"log/{name}"), found, many, name in listed, size, gone


USED = (PutOutcome.DONE, PutOutcome.EXISTS, b"1", [b"1", None, b"3"], [b"1"] * 13, True, 1, None)


@pytest.mark.promise("fork.works_or_says_so")
def test_store_used_before_a_fork_works_in_child_and_parent(place):
    assert use(place.store, "parent") == USED
    assert in_child(lambda: use(place.store, "child")) == repr(USED)
    assert use(place.store, "after") == USED


def test_store_works_in_a_grandchild(place):
    assert use(place.store, "parent") == USED
    assert in_child(lambda: in_child(lambda: use(place.store, "grandchild"))) == repr(repr(USED))


def test_child_opens_its_own_store(place):
    assert use(place.store, "parent") == USED
    assert in_child(lambda: use(place.again(), "child")) == repr(USED)


def test_fork_while_other_threads_use_the_store(place):
    """A lock held at that moment would stay held in the child."""
    stop = threading.Event()

    def busy(number):
        count = 0
        while not stop.is_set():
            place.store.put_if_absent(f"busy/{number}-{count}", b"1")
            place.store.find_many([f"busy/{number}-{count}", "missing"])
            count += 1

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        said = [in_child(lambda n=n: use(place.store, f"child{n}")) for n in range(2)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert said == [repr(USED)] * 2


def test_predicate_is_evaluated_in_a_child_forked_during_an_evaluation():
    sure = Call("upper", (Literal("a", "text"),))
    busy, done = threading.Event(), threading.Event()

    def evaluating():
        with duckdb._LOCK:
            busy.set()
            done.wait(SECONDS_MAX)

    thread = threading.Thread(target=evaluating)
    thread.start()
    busy.wait(SECONDS_MAX)
    threading.Timer(0.2, done.set).start()
    assert in_child(lambda: duckdb.evaluate_constant(sure).value) == "'A'"
    thread.join()
    assert duckdb.evaluate_constant(sure).value == "A"


def test_child_with_stranded_polars_pool_commits_without_checkpoints(root):
    """The pool of polars stays in the parent: a checkpoint in the child would never finish."""
    schema = pa.schema([("id", pa.int64())])
    arrowlog.Table.create(root, schema, properties={"checkpoint.interval": 1})

    def append():
        added = arrowlog.Table(root).append([arrowlog.add_file("a", size=1)])
        return added.version, polars_is_stranded()

    pl.Series(range(100_000)).sort()  # the pool is running now
    assert in_child(append) == "(1, True)"
    assert not polars_is_stranded()
    assert not list((root / "_transaction_log").glob("*.checkpoint.*"))
    table = arrowlog.Table(root)
    table.append([arrowlog.add_file("b", size=1)])
    assert table.wait_for_checkpoint(SECONDS_MAX)
    assert list((root / "_transaction_log").glob("*.checkpoint.*"))
