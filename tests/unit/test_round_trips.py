"""Independent requests over a network are sent concurrently."""

import threading

import pyarrow as pa
import pytest
from support.faulty_store import FakeClock, FaultyStore, table_on

from arrowlog import add_file, testing
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.maintenance.checkpointing import BackgroundCheckpointer

SCHEMA = pa.schema([("id", pa.int64())])
TOGETHER_SECONDS = 30  # the timeout of a request that is sent alone


class Wire(FaultyStore):
    """A network store that records requests; those in `together` wait for each other."""

    def __init__(self):
        super().__init__(cheap_stat=False)
        self.asked = []
        self.together = {}
        opening = [testing.protocol(2, 2), testing.metadata(SCHEMA)]
        self.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(opening)

    def note(self, verb, key):
        self.asked.append((verb, key.removeprefix(f"{LOG_FOLDER}/")))
        barrier = self.together.pop((verb, key), None)
        if barrier is not None:
            barrier.wait(TOGETHER_SECONDS)

    def get(self, key):
        self.note("get", key)
        return super().get(key)

    def find_many(self, keys):
        self.note("find", keys[0])
        return super().find_many(keys)

    def stat(self, key):
        self.note("stat", key)
        return super().stat(key)

    def stats_from(self, folder, start=""):
        self.note("list", f"{folder}/{start}")
        return super().stats_from(folder, start)

    def put_if_absent(self, key, data):
        self.note("put", key)
        return super().put_if_absent(key, data)

    def put_or_find(self, key, data):
        self.note("put or find", key)
        return super().put_if_absent(key, data), self.objects.get(key)


def open_table(store, name):
    clock = FakeClock(name)
    table = table_on(store, clock, {"checkpoint.enabled": False})
    table._checkpointer = BackgroundCheckpointer(store, clock, allow_external_paths=False)
    return table


def file(path):
    return [add_file(path, size=1, modification_time=1)]


@pytest.fixture
def wire():
    return Wire()


def fill(wire, *, checkpoint):
    writer = open_table(wire, "w")
    writer.append(file("a"))
    if checkpoint:
        writer.checkpoint()
    for name in "bc":
        writer.append(file(name))
    wire.asked.clear()
    return writer


def expect_together(wire, *requests):
    barrier = threading.Barrier(len(requests))
    wire.together |= {(verb, f"{LOG_FOLDER}/{key}"): barrier for verb, key in requests}


def test_checkpoint_and_later_commits_are_read_concurrently(wire):
    fill(wire, checkpoint=True)
    table = table_on(wire)
    wire.asked.clear()
    manifest = next(key for key in wire.objects if key.endswith("1.checkpoint.json"))
    expect_together(wire, ("get", manifest.removeprefix(f"{LOG_FOLDER}/")), ("get", commit_name(2)))
    assert table.snapshot().version == 3
    assert not wire.together


def test_table_with_a_small_checkpoint_opens_in_two_round_trips(wire):
    writer = fill(wire, checkpoint=False)
    writer.checkpoint()
    (part,) = (key for key in wire.objects if key.endswith(".parquet"))
    manifest = next(key for key in wire.objects if key.endswith("3.checkpoint.json"))
    wire.asked.clear()
    expect_together(wire, ("find", "_last_checkpoint"), ("list", ""), ("list", "_checkpoints/"))
    table = table_on(wire)
    assert not wire.together
    assert len(wire.asked) == 3
    files = [("get", key.removeprefix(f"{LOG_FOLDER}/")) for key in (manifest, part)]
    expect_together(wire, *files, ("list", commit_name(3)))
    assert sorted(table.snapshot().files["path"].to_pylist()) == ["a", "b", "c"]
    assert not wire.together
    assert len(wire.asked) == 6


@pytest.mark.parametrize("checkpoint", [True, False])
def test_retirement_records_and_log_tail_are_listed_concurrently(wire, checkpoint):
    fill(wire, checkpoint=checkpoint)
    table = table_on(wire)
    wire.asked.clear()
    expect_together(wire, ("list", "_retired/"), ("list", commit_name(3)))
    assert table.snapshot().version == 3
    assert not wire.together
    listed = [key for verb, key in wire.asked if verb == "list"]
    assert sorted(listed) == sorted(["_retired/", commit_name(3)])  # once each, after the reads
    assert not [key for verb, key in wire.asked if verb == "stat"]


def test_commit_during_open_is_in_the_snapshot(wire):
    writer = fill(wire, checkpoint=True)
    table = table_on(wire)
    writer.append(file("d"))
    assert table.snapshot().version == 4
    assert sorted(table.snapshot().files["path"].to_pylist()) == ["a", "b", "c", "d"]


def test_version_of_an_opened_table_is_one_listing(wire):
    writer = fill(wire, checkpoint=True)
    table = table_on(wire)
    writer.append(file("d"))
    wire.asked.clear()
    assert table.version == 4
    assert wire.asked == [("list", commit_name(3))]


def test_lost_race_costs_one_round_trip(wire):
    writer, other = fill(wire, checkpoint=False), open_table(wire, "o")
    names = iter("uvwxyz")

    def overtake():
        other.append(file(next(names)))

    # `other` wins each of the next five puts of the writer; its own put comes in between.
    wire.window = [step for _ in range(5) for step in (overtake, lambda: None)]
    wire.asked.clear()
    result = writer.append(file("late"))
    assert result.version == 9
    together = [key for verb, key in wire.asked if verb == "put or find"]
    assert together[-1] == commit_name(9)
    assert len(together) == result.attempts - 2  # two lost races indicate many writers
    assert not {key for verb, key in wire.asked if verb == "find"} & set(together)
    assert sorted(open_table(wire, "r").snapshot().files["path"].to_pylist()) == sorted(
        ["a", "b", "c", "late", *"uvwxy"]
    )
