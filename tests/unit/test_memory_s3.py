"""The benchmark's S3 server in memory answers as S3 does, and delays."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from arrowlog.storage import PutOutcome, open_store
from benchmarks.memory_s3 import MemoryS3

pytest.importorskip("obstore")


def options(server):
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": server.url}


@pytest.fixture
def server():
    with MemoryS3() as running:
        yield running


def test_it_answers_as_s3_does(server):
    store = open_store("s3://bucket/a table", options(server))
    store.check_writable("log")
    keys = [f"log/{number:05d}&<.json" for number in range(2100)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda key: store.put_if_absent(key, key.encode()), keys))
    assert set(outcomes) == {PutOutcome.DONE}
    assert store.put_if_absent(keys[0], b"other") is PutOutcome.EXISTS
    names = [key.removeprefix("log/") for key in keys]
    assert store.list_from("log") == names
    assert store.list_from("log", names[1500]) == names[1500:]
    assert store.list_from("") == ["log"]
    assert store.get_many(keys[:50]) == [key.encode() for key in keys[:50]]
    assert store.get_range(keys[7], 2, 5) == keys[7].encode()[2:5]
    assert store.stat(keys[7]).size == len(keys[7])
    assert store.stat("log/no") is None
    assert store.find_many(["log/no", keys[3]]) == [None, keys[3].encode()]
    store.replace(keys[3], b"x" * 3_000_000)
    assert store.get(keys[3]) == b"x" * 3_000_000
    store.delete(keys[:2000])
    assert store.walk()["key"].to_pylist() == keys[2000:]


def test_one_of_many_puts_wins(server):
    store = open_store("s3://bucket/t", options(server))
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda n: store.put_if_absent("k", b"%d" % n), range(64)))
    assert outcomes.count(PutOutcome.DONE) == 1


def test_the_delay_and_the_counts(server):
    store = open_store("s3://bucket/t", options(server))
    store.put_if_absent("k", b"v")
    server.counts.clear()
    server.round_trip = 0.05
    started = time.monotonic()
    assert store.get("k") == b"v"
    assert time.monotonic() - started >= 0.05
    assert server.counts == {"GET": 1}
