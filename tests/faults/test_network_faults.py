"""Stores on a faulty network: put outcomes are true, reads are right or time out."""

import contextlib
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import faulty_wire, store_places
from support.case_count import cases, first_seed
from support.faulty_wire import ALWAYS, Fault
from support.s3_servers import Server

from arrowlog.errors import InvalidRequest, StoreUnavailable
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.storage import PutOutcome, obstore_s3, open_store, s3

LOG = "_transaction_log"
SILENCE = 0.8
PATIENCE = 300  # against hanging
DONE, EXISTS, NOT_APPLIED, UNKNOWN = PutOutcome
PUTS = {
    # A connection that was used before may be tried again by the client's own HTTP layer.
    "dropped before": (Fault("drop", "PUT"), {UNKNOWN, DONE}),
    "dropped after": (Fault("drop", "PUT", after=True), {UNKNOWN, EXISTS}),
    "500 before": (Fault(500, "PUT"), {UNKNOWN}),
    "500 after": (Fault(500, "PUT", after=True), {UNKNOWN}),
    "503 before": (Fault(503, "PUT"), {UNKNOWN}),
    "503 after": (Fault(503, "PUT", after=True), {UNKNOWN}),
    "409": (Fault(409, "PUT"), {NOT_APPLIED}),
    "hanging before": (Fault("hang", "PUT"), {UNKNOWN}),
    "hanging after": (Fault("hang", "PUT", after=True), {UNKNOWN}),
    "cut": (Fault("cut", "PUT"), {UNKNOWN, EXISTS}),
}
ONCE = {
    "dropped": ("drop", False),
    "dropped after": ("drop", True),
    "500": (500, False),
    "503 after": (503, True),
    "cut": ("cut", True),
    "hanging": ("hang", False),
}
READS = {
    "get": ("GET", lambda store: store.get(f"{LOG}/1")),
    "get_range": ("GET", lambda store: store.get_range(f"{LOG}/1", 10, 60_000)),
    "get_many": ("GET", lambda store: store.get_many([f"{LOG}/1", f"{LOG}/2", f"{LOG}/1"])),
    "find_many": ("GET", lambda store: store.find_many([f"{LOG}/1", "missing", f"{LOG}/2"])),
    "find one": ("GET", lambda store: store.find_many([f"{LOG}/2"])),
    "list_from": ("GET", lambda store: store.list_from(LOG, "1")),
    "stats_from": ("GET", lambda store: {n: s.size for n, s in store.stats_from(LOG).items()}),
    "stat": ("HEAD", lambda store: store.stat(f"{LOG}/1").size),
    "stat of nothing": ("HEAD", lambda store: store.stat("missing")),
}
WRITES = {
    "replace": ("PUT", lambda store: store.replace("pointer", b"new")),
    "delete": ("POST", lambda store: store.delete([f"{LOG}/1"])),
}


@pytest.fixture(scope="module")
def wires(seaweedfs, moto):
    """A fault-injecting proxy for each server."""
    with faulty_wire.before(seaweedfs[0]) as good, faulty_wire.before(moto[0]) as careless:
        yield {"seaweedfs": (good, seaweedfs[1]), "moto": (careless, moto[1])}


@pytest.fixture(params=["s3fs", "obstore"])
def faulty(request, wires):
    """A store behind a proxy, and the proxy; `place.read` and `place.put` bypass it."""
    found, writer = wires["seaweedfs"]
    there = Server("wire", found.url)
    place = store_places.S3(there, accelerate=request.param == "obstore", writer=writer)
    yield place, found
    found.heal()


@pytest.fixture
def hasty(monkeypatch):
    """A store with a short timeout."""

    def make(place, seconds=120.0):
        monkeypatch.setattr(s3, "_READ_SECONDS", SILENCE)
        monkeypatch.setattr(obstore_s3, "_QUICK_SECONDS", SILENCE)
        store = place.shared(f"hasty {seconds}", timeout_seconds=seconds)
        with contextlib.suppress(StoreUnavailable):
            store.find_many(["missing"])  # creating the session must not count towards the timeout
        return store

    return make


def soon(call, *args):
    """The result or error of a call that must not take long."""
    pool = ThreadPoolExecutor(1)
    try:
        future = pool.submit(call, *args)
        return future.exception(timeout=PATIENCE) or future.result()
    finally:
        pool.shutdown(wait=False)


def copy(fault, **changed):
    """A copy of a fault that has not been triggered."""
    names = ("kind", "method", "match", "after", "times", "skip")
    return Fault(**{name: getattr(fault, name) for name in names} | changed)


def check(place, key, data, outcome, before=None):
    """Check an outcome against the object on the server."""
    found = place.read(key)
    assert outcome in PutOutcome
    assert found in ((None, data) if before is None else (before,))
    if outcome is DONE:
        assert before is None
        assert found == data
    if outcome is NOT_APPLIED:
        assert found == before
    if outcome is EXISTS:
        assert found is not None


@pytest.mark.promise("storage.outcome_is_true")
@pytest.mark.parametrize("warm", [False, True], ids=["new", "used"])
@pytest.mark.parametrize(("fault", "allowed"), PUTS.values(), ids=PUTS)
def test_put_outcome_is_true_after_one_fault(faulty, hasty, fault, allowed, warm):
    place, found = faulty
    store = hasty(place) if fault.kind == "hang" else place.store
    if warm:
        store.put_if_absent("warm", b"1")
    found.faults = [copy(fault, match=f"{place.prefix}/k")]
    outcome = soon(store.put_if_absent, "k", b"mine")
    assert found.faults[0].times == 0
    assert outcome in allowed
    check(place, "k", b"mine", outcome)
    there = place.read("k")
    assert place.store.put_if_absent("k", b"again") is (DONE if there is None else EXISTS)
    assert place.read("k") == (there or b"again")


@pytest.mark.parametrize(("fault", "_"), PUTS.values(), ids=PUTS)
def test_faulty_put_neither_overwrites_nor_claims_an_existing_object(faulty, hasty, fault, _):
    place, found = faulty
    place.put("k", b"theirs")
    store = hasty(place) if fault.kind == "hang" else place.store
    found.faults = [copy(fault, match=place.prefix)]
    outcome = soon(store.put_if_absent, "k", b"mine")
    assert found.faults[0].times == 0
    check(place, "k", b"mine", outcome, before=b"theirs")


@pytest.mark.promise("storage.outcome_is_true")
def test_put_outcomes_are_true_under_random_faults(faulty):
    """Puts to a few keys by two stores, with random faults."""
    place, found = faulty
    seed = first_seed()
    rng = random.Random(seed)
    stores = [place.store, place.again()]
    kinds = [fault for fault, _ in PUTS.values() if fault.kind != "hang"]
    there = {}
    for number in range(cases(120)):
        key, data = (
            f"k{rng.randrange(number // 2 + 1)}",
            f"{number}".encode() * rng.choice([1, 9000]),
        )
        found.faults = [copy(rng.choice(kinds), match=place.prefix)] if rng.random() < 0.7 else []
        outcome = rng.choice(stores).put_if_absent(key, data)
        check(place, key, data, outcome, before=there.get(key))
        if (now := place.read(key)) is not None:
            there[key] = now
    assert len(there) > 10
    assert all(place.read(key) == data for key, data in there.items())


@pytest.mark.parametrize(("kind", "after"), ONCE.values(), ids=ONCE)
@pytest.mark.parametrize(("method", "call"), READS.values(), ids=READS)
def test_read_is_right_after_one_fault(faulty, hasty, method, call, kind, after):
    place, found = faulty
    place.put(f"{LOG}/1", b"x" * 70_000)
    place.put(f"{LOG}/2", b"22")
    wanted = call(place.store)
    store = hasty(place) if kind == "hang" else place.store
    found.faults = [Fault(kind, method, place.prefix, after=after)]
    assert soon(call, store) == wanted
    assert found.faults[0].times == 0


@pytest.mark.parametrize(("kind", "after"), ONCE.values(), ids=ONCE)
@pytest.mark.parametrize(("method", "call"), WRITES.values(), ids=WRITES)
def test_idempotent_requests_are_retried(faulty, hasty, method, call, kind, after):
    place, found = faulty
    place.put(f"{LOG}/1", b"1")
    place.put("pointer", b"old")
    store = hasty(place) if kind == "hang" else place.store
    found.faults = [Fault(kind, method, after=after)]
    assert soon(call, store) is None
    assert found.faults[0].times == 0
    assert (place.read("pointer") == b"new") == (method == "PUT")
    assert (place.read(f"{LOG}/1") is None) == (method == "POST")


def all_at_once(calls, store):
    """The result or error of each call."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return dict(
            zip(calls, pool.map(lambda call: soon(call, store), calls.values()), strict=True)
        )


@pytest.mark.promise("storage.gives_up_in_time")
@pytest.mark.parametrize("kind", ["drop", 503, "cut", "hang"])
def test_permanently_failing_store_raises_in_time(faulty, hasty, kind):
    place, found = faulty
    place.put(f"{LOG}/1", b"x" * 70_000)
    place.put(f"{LOG}/2", b"22")
    store = hasty(place, 0.5)
    found.faults = [
        Fault(kind, method, times=ALWAYS) for method in ("GET", "HEAD", "PUT", "POST", "DELETE")
    ]
    calls = {name: call for name, (_, call) in (READS | WRITES).items()}
    for name, error in all_at_once(calls, store).items():
        assert isinstance(error, StoreUnavailable), (name, error)
        assert error.next.startswith(("Try again", "Check the address", "Check the network")), name
        assert "Generic" not in str(error)


@pytest.mark.parametrize("accelerate", [False, True], ids=["s3fs", "obstore"])
def test_refused_connection_raises_in_time(accelerate):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = Server("nobody", f"http://127.0.0.1:{port}").options
    store = open_store("s3://bucket/t", options, timeout_seconds=0.5, accelerate=accelerate)
    calls = {name: call for name, (_, call) in (READS | WRITES).items()}
    for name, error in all_at_once(calls, store).items():
        assert isinstance(error, StoreUnavailable), (name, error)
    assert store.put_if_absent("k", b"1") is UNKNOWN
    with pytest.raises(StoreUnavailable, match="answers were lost"):
        store.check_writable(LOG_FOLDER)


@pytest.mark.parametrize("accelerate", [False, True], ids=["s3fs", "obstore"])
def test_large_put_to_a_server_that_reads_nothing_times_out(accelerate):
    """The body exceeds the socket buffers: the client waits to write, not for a response."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = Server("silent", f"http://127.0.0.1:{silent.getsockname()[1]}").options
        store = open_store("s3://bucket/t", options, timeout_seconds=0.2, accelerate=accelerate)
        assert soon(store.put_if_absent, "k", b"x" * 20_000_000) is UNKNOWN


@pytest.fixture(params=["s3fs", "obstore"])
def careless(request, wires):
    """A server that ignores `If-None-Match`: the proxy drops it (SeaweedFS would notice)."""
    found, writer = wires["moto"]
    there = Server("wire", found.url)
    found.strip = {"if-none-match"}
    yield store_places.S3(there, accelerate=request.param == "obstore", writer=writer), found
    found.heal()


@pytest.fixture(autouse=True)
def unproven(monkeypatch):
    """No bucket has been probed before."""
    for module in (s3, obstore_s3):
        monkeypatch.setattr(module, "PROBED_BUCKETS", set())


def test_server_that_ignores_if_none_match_is_refused(careless):
    place, _ = careless
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="If-None-Match"):
            place.store.check_writable(LOG_FOLDER)
    assert place.store.list_from(LOG) == []


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("fault", [f for f, _ in PUTS.values() if f.kind != "hang"], ids=str)
def test_lost_probe_response_does_not_approve_a_server_without_conditions(careless, fault, skip):
    place, found = careless
    found.faults = [copy(fault, match=f"{place.prefix}/{LOG}/.probe", skip=skip)]
    with pytest.raises(InvalidRequest, match="If-None-Match"):
        place.store.check_writable(LOG_FOLDER)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("fault", [f for f, _ in PUTS.values() if f.kind != "hang"], ids=str)
def test_lost_probe_response_does_not_refuse_a_conforming_server(faulty, fault, skip):
    place, found = faulty
    found.faults = [copy(fault, match=f"{place.prefix}/{LOG}/.probe", skip=skip)]
    place.store.check_writable(LOG_FOLDER)
    asked = len(found.asked)
    place.store.check_writable(LOG_FOLDER)
    assert len(found.asked) == asked  # once is enough
    assert place.store.list_from(LOG) == []


def test_server_whose_responses_are_all_lost_is_not_written_to(faulty):
    place, found = faulty
    found.faults = [Fault(500, "PUT", after=True, times=ALWAYS)]
    with pytest.raises(StoreUnavailable, match="answers were lost"):
        place.store.check_writable(LOG_FOLDER)
    found.heal()
    place.store.check_writable(LOG_FOLDER)
