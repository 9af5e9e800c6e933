"""Automatic checkpoints: at each interval, once, without delaying a commit."""

import contextlib
import logging
import os
import random
import subprocess
import threading
import time

import pytest
from support import programs, small_table
from support.case_count import cases, first_seed
from support.killable_children import append_until_killed
from support.racing_processes import FORKSERVER
from support.waiting import SECONDS_MAX, wait_until

import arrowlog
from arrowlog import storage as store_module
from arrowlog import testing
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import classify_names
from arrowlog.maintenance import checkpointing
from arrowlog.maintenance.checkpointing import is_checkpoint_due

FORMATS = ["json", "both"]


def made(root):
    """The versions that have a checkpoint."""
    listing = classify_names(os.listdir(f"{root}/_transaction_log"))
    return sorted(v for v in listing.checkpoints if listing.checkpoint_form(v, "json"))


def create(root, form="json", properties=None, **options):
    properties = {"checkpoint.format": form, **(properties or {})}
    return arrowlog.Table.create(root, small_table.SCHEMA, ["day"], properties, options=options)


def append(table, name):
    return table.append([arrowlog.add_file(str(name), {"day": None}, size=1)])


def append_many(table, count):
    for number in range(count):
        append(table, f"{time.monotonic_ns()}-{number}")
        table.wait_for_checkpoint()


@pytest.mark.promise("checkpoint.one_per_interval")
@pytest.mark.parametrize("form", FORMATS)
def test_every_tenth_version_has_a_checkpoint(root, form):
    table = create(root, form)
    append_many(table, 31)
    assert made(root) == [10, 20, 30]
    assert arrowlog.Table(root).snapshot().report.checkpoint == 30


def test_interval_option_overrides_table_property_overrides_default(root):
    table = create(root, properties={"spark.indextables.checkpoint.interval": "4"})
    append_many(table, 5)
    assert made(root) == [4]
    call = arrowlog.Table(root, options={"checkpoint.interval": 3})
    append_many(call, 5)
    assert made(root) == [4, 7, 10]  # three commits after the last one
    table.set_properties({"spark.indextables.checkpoint.interval": "2"})
    append_many(table, 2)
    assert made(root) == [4, 7, 10, 12]


def test_disabled_checkpoints_are_not_written(root):
    append_many(create(root, **{"checkpoint.enabled": False}), 25)
    assert made(root) == []
    table = arrowlog.Table(root)
    table.set_properties({"checkpoint.enabled": "false"})
    append_many(table, 5)
    assert made(root) == []
    assert table.checkpoint().version == 31  # explicitly at any time
    assert made(root) == [31]


@pytest.mark.promise("checkpoint.one_per_interval")
def test_concurrent_writers_write_each_checkpoint_once(root, monkeypatch):
    puts = []

    class Counting(store_module.LocalStore):
        def put_if_absent(self, key, data):
            if ".checkpoint." in key:
                puts.append(key)
            return super().put_if_absent(key, data)

    create(root)
    monkeypatch.setattr(store_module, "LocalStore", Counting)
    tables = [arrowlog.Table(root) for _ in range(4)]

    def run(number):
        for step in range(15):
            append(tables[number], f"{number}-{step}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(table.wait_for_checkpoint(SECONDS_MAX) for table in tables)
    assert len(puts) == len(set(puts))
    assert arrowlog.Table(root).snapshot().num_files == 60
    append_many(tables[0], 20)
    assert len(puts) == len(set(puts))
    assert (
        made(root)[-1] > 80 - 10
    )  # a later commit writes a checkpoint the concurrent writers missed


def test_only_one_handle_of_a_process_writes_a_checkpoint_at_a_time(root, monkeypatch):
    puts, released = [], threading.Event()

    class Waiting(store_module.LocalStore):
        def put_if_absent(self, key, data):
            if ".checkpoint." in key:
                puts.append(key)
                assert released.wait(SECONDS_MAX)
            return super().put_if_absent(key, data)

    create(root)
    monkeypatch.setattr(store_module, "LocalStore", Waiting)
    first, second = arrowlog.Table(root), arrowlog.Table(root)
    try:
        for number in range(10):
            append(first, number)
        wait_until(lambda: puts, "the checkpoint of version 10")
        for number in range(10, 19):
            append(second, number)
        assert second._checkpointer._thread is None  # it would have been due at 11, 12, 14 and 18
        append(second, 19)
        wait_until(lambda: len(puts) == 2, "version 20: the first may hang")
    finally:
        released.set()
    assert first.wait_for_checkpoint(SECONDS_MAX)
    assert second.wait_for_checkpoint(SECONDS_MAX)
    assert made(root) == [10, 20]


def test_truncation_deletes_the_checkpoint_that_its_handle_is_writing(root, monkeypatch):
    held, release = threading.Event(), threading.Event()
    write, wait = checkpointing.write_checkpoint, checkpointing.BackgroundCheckpointer.wait

    def write_late(*args, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            held.set()
            release.wait(SECONDS_MAX)
        return write(*args, **kwargs)

    def release_and_wait(self, *args):
        release.set()
        return wait(self, *args)

    monkeypatch.setattr(checkpointing, "write_checkpoint", write_late)
    monkeypatch.setattr(checkpointing.BackgroundCheckpointer, "wait", release_and_wait)
    table = create(root, **{"checkpoint.interval": 2})
    for number in range(3):
        append(table, number)
    assert held.wait(SECONDS_MAX)
    table.truncate_history()
    table.wait_for_checkpoint()
    assert table.earliest_version == table.version == 3


@pytest.mark.parametrize(
    ("version", "last", "tried", "due"),
    [
        (10, 0, 0, True),
        (9, 0, 0, False),
        (11, 0, 0, True),  # the writer of 10 is still writing it, or was killed
        (12, 0, 0, True),
        (13, 0, 0, False),
        (14, 0, 0, True),
        (15, 0, 0, False),
        (18, 0, 0, True),
        (19, 0, 0, False),
        (20, 0, 0, True),
        (23, 0, 0, True),  # long overdue: any writer
        (24, 0, 23, False),  # it failed: no retry at every commit
        (30, 0, 23, False),
        (33, 0, 23, True),
        (16, 7, 0, False),
        (17, 7, 0, True),  # an interval after the last one, not at a round number
        (27, 7, 0, True),
    ],
)
def test_checkpoint_is_due_at_the_interval(version, last, tried, due):
    assert is_checkpoint_due(version, last, tried, 10) is due


@pytest.mark.parametrize(("version", "due"), [(9, False), (10, True), (13, True), (15, True)])
def test_first_commit_of_a_handle_writes_an_overdue_checkpoint(version, due):
    assert is_checkpoint_due(version, 0, 0, 10, first=True) is due


class Broken(store_module.LocalStore):
    """A store that accepts commits but fails for checkpoints."""

    hanging = threading.Event()
    seconds = 0.0

    def put_if_absent(self, key, data):
        if ".checkpoint." in key:
            Broken.hanging.wait(self.seconds)
            raise StoreUnavailable("The disk is full.")
        return super().put_if_absent(key, data)


@pytest.mark.promise("checkpoint.never_fails_a_commit")
def test_failed_checkpoint_fails_no_commit(root, monkeypatch, caplog):
    create(root, properties={"checkpoint.interval": "5"})
    monkeypatch.setattr(store_module, "LocalStore", Broken)
    table = arrowlog.Table(root)
    with caplog.at_level(logging.WARNING, "arrowlog"):
        append_many(table, 9)
        said = [record for record in caplog.records if record.name == "arrowlog.checkpoint"]
        assert len(said) == 1
        assert "the checkpoint of version 5 failed: The disk is full." in said[0].getMessage()
        append_many(table, 6)
    assert len(caplog.records) == 3  # one per interval, not one per commit
    assert made(root) == []
    assert arrowlog.Table(root).snapshot().num_files == 15


@pytest.mark.promise("checkpoint.never_fails_a_commit")
def test_hanging_checkpoint_delays_no_commit(root, monkeypatch, caplog):
    create(root, properties={"checkpoint.interval": "2"})
    monkeypatch.setattr(store_module, "LocalStore", Broken)
    monkeypatch.setattr(Broken, "seconds", 600)
    Broken.hanging.clear()
    table = arrowlog.Table(root)
    try:
        with caplog.at_level(logging.WARNING, "arrowlog"):
            for number in range(12):
                assert append(table, number).version == number + 1
            assert not table.wait_for_checkpoint(0.01)  # it still hangs
    finally:
        Broken.hanging.set()
    assert table.wait_for_checkpoint(SECONDS_MAX)
    Broken.hanging.clear()
    assert len(caplog.records) == 1
    assert arrowlog.Table(root).snapshot().num_files == 12


def test_commit_succeeds_when_no_checkpoint_thread_can_start(root, monkeypatch, caplog):
    table = create(root, properties={"checkpoint.interval": "1"})

    def start(thread, usual=threading.Thread.start):
        if thread.name == "arrowlog-checkpoint":
            raise RuntimeError("can't start new thread")
        usual(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with caplog.at_level(logging.WARNING, "arrowlog"):
        assert append(table, "a").version == 1
    assert "was not started: can't start new thread" in caplog.text


LAST_WORDS = """
import sys, arrowlog
table = arrowlog.Table(sys.argv[1], options={"checkpoint.interval": 1})
print(table.append([arrowlog.add_file("last", {"day": None}, size=1)]).version)
"""


def test_checkpoint_finishes_when_the_program_ends_after_its_commit(root):
    """A large one, written by many threads: at interpreter exit, thread pools accept no work."""
    create(root)
    for version in (1, 2):
        adds = [testing.add(f"{version}/part-{n:06d}.parquet") for n in range(50_000)]
        testing.write_commit(root, version, adds)
    done = subprocess.run(
        programs.command("-c", LAST_WORDS, root),
        capture_output=True,
        check=False,
        env=programs.environment(),
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"3", b"")
    assert made(root) == [3]
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.report.checkpoint, snapshot.report.commits_read) == (3, 0)
    assert snapshot.num_files == 100_001


def drain(pipe, received):
    """Receive what a child has sent, up to a message truncated by its death."""
    with contextlib.suppress(EOFError, OSError):
        while pipe.poll():
            received.add(pipe.recv())


@pytest.mark.parametrize("form", FORMATS)
def test_killed_checkpoint_and_cleanup_leave_the_table_readable(root, form):
    """A checkpoint and a cleanup after every commit. Acknowledged files are in the table."""
    seed = first_seed()
    rng = random.Random(seed)
    create(root, form)
    acknowledged = set()
    for cycle in range(cases(24)):
        options = {
            "checkpoint.interval": 1,
            "checkpoint.maxFileSize": rng.choice([1, 2_000, 1 << 20]),
            "logRetention.duration": 0,
            "checkpointRetention.duration": 0,
        }
        begin, end = FORKSERVER.Pipe(duplex=False)
        child = FORKSERVER.Process(
            target=append_until_killed, args=(end, str(root), options, cycle)
        )
        child.start()
        end.close()
        for _ in range(rng.randrange(1, 6)):
            acknowledged.add(begin.recv())
        if cycle == 0:  # waits until the child writes a checkpoint, on a machine of any speed
            wait_until(lambda pipe=begin: drain(pipe, acknowledged) or made(root), "a checkpoint")
        time.sleep(rng.uniform(0, 0.03))  # a random moment is the point of the test
        child.kill()
        child.join()
        drain(begin, acknowledged)
        snapshot = arrowlog.Table(root).snapshot()
        assert snapshot.report.warnings == ()
        assert acknowledged <= set(snapshot.files["path"].to_pylist())
    assert made(root)
