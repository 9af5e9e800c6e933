"""Snapshot caches: the requests they save, and that they never return wrong results."""

import shutil
import threading

import pytest
from support import faulty_wire, small_table, store_places
from support.s3_servers import BUCKET, Server
from support.waiting import SECONDS_MAX

import arrowlog
from arrowlog import testing
from arrowlog.clock import boottime
from arrowlog.formats.indextables.format import commit_name

ALL = (
    "get",
    "get_range",
    "get_many",
    "find_many",
    "read_into",
    "list_from",
    "stats_from",
    "stat",
    "put_if_absent",
    "replace",
    "delete",
)


class Counting:
    """A store that records its calls."""

    def __init__(self, store):
        self.inner = store
        self.asked = []

    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name not in ALL:
            return found

        def call(*arguments, **how):
            self.asked.append(name)
            return found(*arguments, **how)

        return call


def counted(table):
    store = Counting(table._store)
    table._store = table._tracker.store = store
    return store.asked


def commit(root, version, name):
    testing.write_commit(root, version, [testing.add(name, {"day": None})])


def opened(root, **options):
    table = arrowlog.Table(root, options=options)
    table.snapshot()
    return table, counted(table)


class Time:
    """A clock that tests advance."""

    def __init__(self):
        self.now = boottime()


@pytest.fixture
def clock(monkeypatch):
    clock = Time()
    monkeypatch.setattr("arrowlog.clock._read", lambda: clock.now)
    return clock


def test_snapshot_within_max_staleness_makes_no_request(table, clock):
    handle, asked = opened(table)
    first = handle.snapshot()
    asked.clear()
    commit(table, 2, "b")
    clock.now += 2
    assert handle.snapshot(max_staleness=5.0) is first
    assert handle.scan("id > 3", max_staleness=5.0).total_files == 1
    assert asked == []
    assert handle.snapshot().version == 2
    assert asked != []


def test_snapshot_beyond_max_staleness_is_refreshed(table, clock):
    handle, _ = opened(table)
    handle.snapshot()
    commit(table, 2, "b")
    clock.now += 5.1
    assert handle.snapshot(max_staleness=5.0).version == 2


def test_cache_expiration_limits_max_staleness(table, clock):
    handle, _ = opened(table, **{"transaction.cache.expirationSeconds": 3})
    commit(table, 2, "b")
    clock.now += 1
    assert handle.snapshot(max_staleness=3600).version == 1
    clock.now += 2.5
    assert handle.snapshot(max_staleness=3600).version == 2
    none, _ = opened(table, **{"transaction.cache.expirationSeconds": 0})
    commit(table, 3, "c")
    assert none.snapshot(max_staleness=3600).version == 3


def test_cached_earlier_version_expires(table, clock):
    commit(table, 2, "b")
    handle, asked = opened(table, **{"transaction.cache.expirationSeconds": 3})
    first = handle.snapshot(version=1)
    assert handle.snapshot(version=1) is first
    clock.now += 4
    asked.clear()
    assert handle.snapshot(version=1) is not first
    assert "read_into" in asked


@pytest.mark.parametrize("where", ["call", "table"])
def test_disabled_cache_reads_everything_again(root, where):
    off = {"transaction.cache.enabled": "false"}
    properties = off if where == "table" else {}
    arrowlog.Table.create(root, small_table.SCHEMA, properties=properties)
    handle, asked = opened(root, **(off if where == "call" else {}))
    for question in ({}, {"max_staleness": 3600.0}, {"version": 0}, {"version": 0}):
        asked.clear()
        handle.snapshot(**question)
        assert "read_into" in asked, question
    assert set(vars_of(handle.cache_stats()).values()) == {0.0}


def vars_of(stats):
    return {name: getattr(stats, name) for name in type(stats).__dataclass_fields__}


def test_snapshot_past_half_its_staleness_is_refreshed_in_the_background(table, clock):
    handle, _ = opened(table)
    commit(table, 2, "b")
    clock.now += 3
    old = handle.snapshot(max_staleness=5.0)
    assert old.version == 1
    handle._tracker._refreshing.join(SECONDS_MAX)
    assert handle._tracker.last_read.version == 2
    assert handle.snapshot(max_staleness=5.0).version == 2


def test_readers_do_not_wait_for_a_background_refresh(table, clock):
    handle, _ = opened(table)
    inside, leave = threading.Event(), threading.Event()
    usual = handle._tracker._catch_up

    def slow():
        inside.set()
        assert leave.wait(SECONDS_MAX)
        return usual()

    handle._tracker._catch_up = slow
    clock.now += 3
    first = handle.snapshot(max_staleness=5.0)
    assert inside.wait(SECONDS_MAX)
    done = []
    reader = threading.Thread(target=lambda: done.append(handle.snapshot(max_staleness=5.0)))
    reader.start()
    reader.join(SECONDS_MAX)
    leave.set()
    handle._tracker._refreshing.join(SECONDS_MAX)
    assert done == [first]


def test_own_commit_during_a_refresh_stays_visible(table, clock):
    """The refresh reads the store before the commit lands. A handle always sees its own commits."""
    handle, _ = opened(table)
    answered, leave = threading.Event(), threading.Event()
    usual = handle._tracker._catch_up

    def slow():
        current = usual()
        answered.set()
        assert leave.wait(SECONDS_MAX)
        return current

    handle._tracker._catch_up = slow
    clock.now += 3
    handle.snapshot(max_staleness=5.0)
    assert answered.wait(SECONDS_MAX)
    own = handle.append([arrowlog.add_file("own", {"day": None}, size=1)])
    leave.set()
    handle._tracker._refreshing.join(SECONDS_MAX)
    assert handle.snapshot(max_staleness=5.0).version == own.version


def test_hit_rates_count_cached_results(table):
    commit(table, 2, "b")
    handle = arrowlog.Table(table)
    assert set(vars_of(handle.cache_stats()).values()) == {0.0}
    handle.snapshot()  # read
    handle.snapshot()  # cached, after a refresh
    handle.snapshot(max_staleness=60)  # cached, without a request
    handle.snapshot(max_staleness=60)
    stats = handle.cache_stats()
    assert stats.protocol_hit_rate == stats.metadata_hit_rate == stats.files_hit_rate == 0.75
    assert stats.versions_list_hit_rate == 0.5
    for version in (1, 1, 2, 0):  # read, cached, latest is cached, read
        handle.snapshot(version=version)
    assert handle.cache_stats().version_hit_rate == 0.5


def test_time_travel_only_handle_caches_versions(table):
    handle = arrowlog.Table(table)
    assert handle.snapshot(version=0) is handle.snapshot(version=0)
    assert handle.cache_stats().version_hit_rate == 0.5


def test_least_recent_versions_are_evicted(root):
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 20):
        commit(root, version, f"f{version}")
    handle = arrowlog.Table(root, options={"transaction.cache.maxVersions": 8})
    handle.snapshot()
    for version in range(15):
        handle.snapshot(version=version)
    assert list(handle._tracker._cache._kept) == list(range(7, 15))


def test_invalidated_cache_is_read_again(table):
    handle, asked = opened(table)
    handle.snapshot(version=0)
    handle.invalidate_cache()
    asked.clear()
    assert handle.snapshot(max_staleness=3600).version == 1
    assert "read_into" in asked
    asked.clear()
    handle.snapshot(version=0)
    assert "read_into" in asked


def opening(kind):
    """The same table id, as when a table is copied over another, or a new one."""
    ids = {} if kind == "same id" else {"id": "11111111-0000-4000-8000-000000000000"}
    return [testing.protocol(), testing.metadata(small_table.SCHEMA, ["day"], **ids)]


def put(place, version, actions):
    place.put(f"_transaction_log/{commit_name(version)}", testing.lines(actions))


def drop(place):
    if isinstance(place, store_places.S3):
        found = place.writer.list_objects_v2(Bucket=BUCKET, Prefix=place.prefix)
        for item in found.get("Contents", ()):
            place.writer.delete_object(Bucket=BUCKET, Key=item["Key"])
    elif isinstance(place, store_places.Memory):
        place.store.fs.rm(place.store.path(""), recursive=True)
    else:
        shutil.rmtree(place.uri)


@pytest.mark.promise("snapshot.caches_change_nothing")
@pytest.mark.parametrize("longer", [0, 2])
@pytest.mark.parametrize("kind", ["same id", "new id"])
@pytest.mark.parametrize("where", ["local", "memory", "s3fs-moto", "obstore-moto"])
def test_recreated_table_is_never_served_from_the_cache(where, kind, longer, request):
    place = store_places.make(where, request)
    put(place, 0, opening("same id"))
    for version in (1, 2):
        put(place, version, [testing.add(f"old{version}", {"day": None})])
    options = {"store.accelerate": where.startswith("obstore")}
    handle = arrowlog.Table(place.uri, place.options, options=options)
    assert small_table.paths(handle.snapshot()) == ["old1", "old2"]
    assert small_table.paths(handle.snapshot(version=1)) == ["old1"]
    drop(place)
    put(place, 0, opening(kind))
    for version in range(1, 3 + longer):
        put(place, version, [testing.add(f"new{version}", {"day": None})])
    if not longer:
        assert small_table.paths(handle.snapshot(version=1)) == ["new1"]
    assert small_table.paths(handle.snapshot()) == [f"new{v}" for v in range(1, 3 + longer)]
    assert small_table.paths(handle.snapshot(version=1)) == ["new1"]
    assert small_table.paths(handle.snapshot(version=2)) == ["new1", "new2"]


@pytest.fixture(scope="module")
def line(moto):
    with faulty_wire.before(moto[0]) as found:
        yield found, moto[1]


@pytest.mark.parametrize("accelerate", [True, False], ids=["obstore", "s3fs"])
def test_refresh_without_new_commits_is_one_request(line, accelerate):
    found, writer = line
    place = store_places.S3(Server("wire", found.url), accelerate=accelerate, writer=writer)
    options = {"store.accelerate": accelerate, "checkpoint.format": "json"}
    handle = arrowlog.Table.create(
        place.uri, small_table.SCHEMA, storage_options=place.options, options=options
    )
    handle.refresh()

    def requests(call):
        found.asked.clear()
        call()
        return list(found.asked)

    assert [method for method, _ in requests(handle.refresh)] == ["GET"]
    for number in range(3):
        handle.append([arrowlog.add_file(f"f{number}", size=1)])
        own = requests(handle.refresh)  # the listing, and the commit itself
        assert len(own) == 2, own
        assert len(requests(handle.refresh)) == 1
    put(place, 4, [testing.add("theirs")])
    assert len(requests(handle.refresh)) == 2
    assert handle.snapshot().num_files == 4
    handle.checkpoint()
    assert len(requests(handle.refresh)) == 1
    assert requests(lambda: handle.snapshot(max_staleness=60)) == []
