"""How logs are read over a network: commits in runs, many objects at once, checkpoints ahead."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.faulty_store import FaultyStore

from arrowlog import testing
from arrowlog.config import Config
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import INDEXTABLES, commit_name, manifest_name
from arrowlog.snapshot import commit_reader
from arrowlog.snapshot.commit_reader import CommitReader
from arrowlog.snapshot.read_ahead import read_checkpoint_ahead
from arrowlog.storage import ObjectStat, obstore_s3, open_store
from benchmarks.memory_s3 import MemoryS3

MANIFEST = INDEXTABLES.key("_checkpoints", manifest_name(3))
PART = INDEXTABLES.key("_checkpoints", "00000000000000000003.checkpoint.parquet")


class Counted(FaultyStore):
    """A network store that reads as many files as it is given, and records the calls."""

    def __init__(self, commits=0):
        super().__init__(cheap_stat=False)
        self.calls = []
        for version in range(commits):
            line = testing.lines([testing.add(f"f{version}", {"day": None})])
            self.objects[INDEXTABLES.key(commit_name(version))] = line

    def read_into(self, window, keys, versions, enough):
        self.calls.append(len(keys))
        return super().read_into(window, keys, versions, enough)

    def get(self, key):
        self.calls.append(key)
        return super().get(key)


def read_runs(store, sizes):
    """The numbers of commits that are asked for, if a listing has told the sizes of some."""
    commits = [INDEXTABLES.commit_file(version) for version in range(len(store.objects))]
    stats = {commit_name(version): ObjectStat(size, 0) for version, size in sizes.items()}
    runs = list(CommitReader(store, INDEXTABLES, Config(), stats=stats).runs(commits))
    assert sum(run.commits for run in runs) == len(commits)
    paths = [path for run in runs for path in run.actions.table("add")["path"].to_pylist()]
    assert paths == [f"f{version}" for version in range(len(commits))]
    return [call for call in store.calls if isinstance(call, int)]


def test_runs_over_a_network_are_as_large_as_the_listing_says(monkeypatch):
    monkeypatch.setattr(commit_reader, "_NETWORK_RUN_BYTES_MAX", 100)
    sizes = dict(enumerate([40, 60, 1, 99, 500, 1, 1]))
    assert read_runs(Counted(7), sizes) == [2, 2, 1, 2]


def test_commits_of_unknown_size_are_left_to_the_estimate_of_the_store(monkeypatch):
    monkeypatch.setattr(commit_reader, "_NETWORK_RUN_BYTES_MAX", 100)
    assert read_runs(Counted(5), {}) == [5]
    assert read_runs(Counted(5), {0: 60, 1: 40, 3: 1}) == [2, 3]


def test_calls_of_few_readers_are_short():
    store = open_store("memory://network-reads/t", parallelism=2)
    keys = [f"k{number}" for number in range(300)]
    for key in keys:
        store.replace(key, b"{}\n")
    read = []

    class Buffer:
        size = 1

        def fill(self, names, versions, raws):
            read.extend(names)

    count, _ = store.read_into(Buffer(), keys, range(300), 1 << 40)
    assert count == 128
    assert read == keys[:128]


@pytest.fixture
def many():
    """A store on S3 with 300 objects, the keys of these, and one key without an object."""
    pytest.importorskip("obstore")
    with MemoryS3() as server:
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        store = open_store("s3://bucket/t", {**keys, "AWS_ENDPOINT_URL": server.url})
        names = [f"log/{number}" for number in range(300)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.replace(name, name.encode()), names))
        server.counts.clear()
        yield store, names, server


def test_many_objects_are_read_once_and_in_order(many):
    store, names, server = many
    before = store.metrics.totals("store_requests").get(("s3", "read"), 0)
    found = store.find_many([*names, "log/none", *names[:5]])
    assert found == [name.encode() for name in names] + [None] + [n.encode() for n in names[:5]]
    assert server.counts == {"GET": 306}
    assert store.metrics.totals("store_requests")[("s3", "read")] == before + 306
    with pytest.raises(FileNotFoundError, match="log/none"):
        store.get_many([*names, "log/none"])


@pytest.mark.parametrize("allowed", [0, 1, 7])
def test_objects_are_read_by_as_many_threads_as_may_be_started(many, allowed, monkeypatch):
    store, names, _ = many
    store.get(names[0])
    real, started = threading.Thread.start, []

    def start(thread):
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert store.get_many(names) == [name.encode() for name in names]


def test_after_a_failure_no_further_objects_are_read(many, monkeypatch):
    store, names, server = many
    monkeypatch.setattr(obstore_s3, "_concurrent_reads", lambda: 4)

    def fail(key):
        raise StoreUnavailable(f"{key} cannot be read")

    obstore = pytest.importorskip("obstore")
    real = obstore.get
    monkeypatch.setattr(store, "find", fail)
    monkeypatch.setattr(
        obstore, "get", lambda client, key: real(client, key) if key != names[9] else 1 // 0
    )
    with pytest.raises(StoreUnavailable, match=f"{names[9]} cannot"):
        store.get_many(names)
    for thread in threading.enumerate():
        if thread.name.startswith("arrowlog-read"):
            thread.join()
    assert server.counts["GET"] < 150


@pytest.fixture
def checkpoint():
    """A store with a checkpoint of two files, and a function that returns its listing."""
    store = Counted()
    store.objects |= {MANIFEST: b"{}", PART: b"0123456789"}

    def listed(*, part_size=10, known=True):
        sizes = {MANIFEST: 2, PART: part_size}
        names = [key.rpartition("/")[2] for key in sizes]
        stats = {key.partition("/")[2]: ObjectStat(size, 0) for key, size in sizes.items()}
        return replace(INDEXTABLES.classify([], names), stats=stats if known else {})

    return store, listed


def read_all(store, listing, version=None, avoid=()):
    with ThreadPoolExecutor(4) as pool:
        return read_checkpoint_ahead(store, listing, version, avoid, pool)


def test_a_small_checkpoint_is_read_ahead_once(checkpoint):
    store, listed = checkpoint
    found = read_all(store, listed())
    assert sorted(store.calls) == sorted([MANIFEST, PART])
    assert found.get(MANIFEST) == b"{}"
    assert found.stat(PART).size == 10
    assert found.get_range(PART, 8, 10) == b"89"
    assert found.get_range(PART, 0, 11) == b"0123456789"
    assert len(store.calls) == 2
    store.objects[PART] = b"another"  # whoever asks again is told what is there now
    assert found.get_range(PART, 0, 11) == b"another"
    del store.objects[MANIFEST]
    with pytest.raises(FileNotFoundError):
        found.get(MANIFEST)


def test_a_file_that_is_gone_or_not_as_listed_is_left_to_the_store(checkpoint):
    store, listed = checkpoint
    del store.objects[MANIFEST]
    found = read_all(store, listed(part_size=9))
    store.objects[MANIFEST] = b"later"
    assert found.get(MANIFEST) == b"later"
    assert found.get_range(PART, 0, 5) == b"01234"
    assert store.calls.count(PART) == 2
    store.reads = [True]
    with pytest.raises(StoreUnavailable):
        found.get(PART)


@pytest.mark.parametrize(
    ("size", "known", "version", "avoided"),
    [
        (1 << 30, True, None, False),
        (10, False, None, False),
        (10, True, 2, False),
        (10, True, None, True),
    ],
    ids=["large", "unknown size", "later version", "damaged"],
)
def test_a_checkpoint_is_not_read_ahead(checkpoint, size, known, version, avoided):
    store, listed = checkpoint
    listing = listed(part_size=size, known=known)
    avoid = listing.checkpoints[3] if avoided else ()
    assert read_all(store, listing, version, avoid) is store
    assert store.calls == []


def test_nothing_is_read_ahead_where_requests_cost_nothing(checkpoint):
    store, listed = checkpoint
    store.cheap_stat = True
    assert read_all(store, listed()) is store
