"""A long log is listed in several concurrent slices without missing a name."""

import random
from threading import Lock

import pytest

from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot import listing
from arrowlog.storage import ObjectStat


class Paged:
    """A store with pages of 10 names. `between` is called before each page that follows others."""

    cheap_stat = False
    root = "s3://bucket/table"

    def __init__(self, names, between=lambda: None):
        self.names, self.between = set(names), between
        self.pages, self.listings = 0, 0
        self.lock = Lock()

    def page_from(self, folder, start=""):
        with self.lock:
            if self.pages:
                self.between()
            self.pages += 1
            found = sorted(name for name in self.names if name >= start)
            return {name: ObjectStat(1, 1, name) for name in found[:10]}, len(found) <= 10

    def stats_from(self, folder, start=""):
        self.listings += 1
        return {name: ObjectStat(1, 1, name) for name in sorted(self.names) if name >= start}


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(listing, "_SLICE_VERSIONS", 9)


def commits(first, last, table_format=INDEXTABLES):
    return {table_format.commit_name(version) for version in range(first, last + 1)}


@pytest.mark.parametrize("table_format", [INDEXTABLES, DELTA], ids=["indextables", "delta"])
@pytest.mark.parametrize("last", [0, 8, 9, 10, 26, 27, 28, 99, 640])
def test_slices_cover_the_whole_log(last, table_format):
    names = commits(0, last, table_format) | {"_last_checkpoint", "_retired", ".probe-1"}
    store = Paged(names)
    assert listing._list_folder(store, table_format)[0] == sorted(names)
    assert store.listings == 0
    assert store.pages <= 2 + 3 * last // 9


def test_slices_from_a_start_name_with_other_names_in_between():
    rng = random.Random(7)
    for _ in range(60):
        first = rng.randrange(50)
        last = first + rng.randrange(200)
        names = commits(first, last)
        names |= {f"{rng.randrange(250):020d}.checkpoint.json" for _ in range(rng.randrange(30))}
        names |= {f"_{rng.random()}" for _ in range(rng.randrange(30))}
        names |= {f"{rng.randrange(900, 999):08d}.json" for _ in range(rng.choice([0, 0, 5, 40]))}
        names -= {INDEXTABLES.commit_name(rng.randrange(250)) for _ in range(rng.choice([0, 0, 3]))}
        start = rng.choice(["", INDEXTABLES.first_name(rng.randrange(250))])
        store = Paged(names)
        expected = sorted(name for name in names if name >= start)
        assert listing._list_folder(store, INDEXTABLES, start)[0] == expected
        assert store.pages < 150


@pytest.mark.thorough
def test_concurrent_commits_and_cleanup_during_a_sliced_listing():
    """Names that exist all the time are listed, and versions are contiguous as in one listing."""
    rng = random.Random(11)
    relisted = 0
    for _ in range(80):
        log = Changing(rng, rng.randrange(40, 200))
        before = log.last
        found = listing._list_folder(log, INDEXTABLES)[0]
        relisted += log.listings
        listed = sorted(INDEXTABLES.classify(found).commits)
        assert set(range(log.floor, before + 1)) <= set(listed)
        if log.listings == 0:
            assert len(listed) == listed[-1] - listed[0] + 1
    assert 0 < relisted < 80


class Changing(Paged):
    """A log that is written to and cleaned up while it is listed."""

    def __init__(self, rng, last):
        super().__init__(commits(0, last), self.change)
        self.rng, self.last, self.floor = rng, last, 0

    def change(self):
        for _ in range(self.rng.choice([0, 0, 0, 1, 5, 30])):
            self.last += 1
            self.names.add(INDEXTABLES.commit_name(self.last))
        if self.rng.random() < 0.05:  # a checkpoint, and the commits below it are deleted
            self.floor = self.rng.randrange(self.floor, self.last + 1)
            self.names.add(f"{self.floor:020d}.checkpoint.json")
            self.names -= commits(0, self.floor - 1)


def test_many_names_after_the_commits_end_the_slicing():
    names = commits(0, 100) | {f"_{number}" for number in range(500)}
    store = Paged(names)
    assert listing._list_folder(store, INDEXTABLES)[0] == sorted(names)
    assert store.listings == 1
    assert store.pages < 40
