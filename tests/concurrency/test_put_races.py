"""Of several concurrent puts to a key exactly one wins, and the object has its bytes."""

import sys
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support import put_races, store_places
from support.case_count import cases
from support.waiting import SECONDS_MAX

from arrowlog.storage import PutOutcome, fsspec_store, local

THREADS = 16
NAIVE_ROUNDS = 500
ROUNDS = {
    "local": 2_000,
    "s3fs-seaweedfs": 2_000,
    "obstore-seaweedfs": 2_000,
    "s3fs-moto": 200,  # 5 ms per put on this backend
    "obstore-moto": 200,
}


def judge(outcomes, found):
    """The rounds without exactly one winner, or without the winner's bytes."""
    wrong = []
    for number, (names, there) in enumerate(zip(outcomes, found, strict=True)):
        winners = [racer for racer, name in enumerate(names) if name is PutOutcome.DONE]
        losers = [racer for racer, name in enumerate(names) if name is PutOutcome.EXISTS]
        if len(winners) != 1 or len(winners) + len(losers) != len(names):
            wrong.append((number, names))
        elif there != put_races.data_of(winners[0], number):
            wrong.append((number, there[:20]))
    return wrong


def read_back(store, count):
    """The objects of all rounds, in batches: a store has a deadline per call."""
    keys = [put_races.key_of(number) for number in range(count)]
    pieces = (store.find_many(keys[start : start + 100]) for start in range(0, count, 100))
    return [data for piece in pieces for data in piece]


@pytest.mark.promise("storage.one_winner")
@pytest.mark.parametrize(("kind", "rounds"), ROUNDS.items(), ids=ROUNDS)
def test_one_of_two_processes_wins_every_round(kind, rounds, request):
    place, rounds = store_places.make(kind, request), cases(rounds)
    accelerate = getattr(place, "accelerate", True)
    outcomes = put_races.race(rounds, place.uri, place.options, accelerate=accelerate)
    found = read_back(place.store, rounds)
    assert judge(outcomes, found) == []
    wins = Counter(names.index(PutOutcome.DONE) for names in outcomes)
    assert min(wins[0], wins[1]) > 0, wins  # otherwise there was no race
    names = [put_races.key_of(number).rpartition("/")[2] for number in range(rounds)]
    assert place.store.list_from("_transaction_log") == names


def test_race_detects_a_put_that_checks_before_writing(tmp_path):
    """The same race with a non-atomic put has rounds with two winners."""
    place = store_places.Local(tmp_path / "table")
    outcomes = put_races.race(NAIVE_ROUNDS, place.uri, naive=True)
    found = place.store.find_many([put_races.key_of(number) for number in range(NAIVE_ROUNDS)])
    wrong = judge(outcomes, found)
    print(len(wrong), f"of {NAIVE_ROUNDS} rounds went wrong, as they should")
    assert wrong


def test_one_of_several_threads_wins_without_o_tmpfile(tmp_path, monkeypatch):
    """Threads, because another process would not have the patched attribute."""
    monkeypatch.setattr(local, "_O_TMPFILE", None)
    place = store_places.Local(tmp_path / "table")
    assert thread_race(place, 4, cases(300)) == []
    names = [put_races.key_of(number).rpartition("/")[2] for number in range(cases(300))]
    assert place.store.list_from("_transaction_log") == names


def thread_race(place, threads, keys):
    """The failed rounds of a race of threads."""
    barrier = threading.Barrier(threads)
    outcomes = [[None] * threads for _ in range(keys)]

    def run(racer):
        store = place.again()
        for number in range(keys):
            barrier.wait()
            data = put_races.data_of(racer, number)
            outcomes[number][racer] = store.put_if_absent(put_races.key_of(number), data)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=run, args=(racer,)) for racer in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    return judge(outcomes, place.store.find_many([put_races.key_of(n) for n in range(keys)]))


@pytest.mark.promise("storage.one_winner")
def test_one_of_several_threads_wins_in_memory():
    assert thread_race(store_places.Memory(), THREADS, cases(500)) == []


def test_race_detects_a_memory_store_without_its_lock(monkeypatch):
    monkeypatch.setattr(fsspec_store, "_LOCK", nullcontext())
    usual = MemoryFileSystem.exists
    all_have_looked = threading.Barrier(THREADS)

    def exists(self, path, **how):
        found = usual(self, path, **how)
        all_have_looked.wait(SECONDS_MAX)  # before any of them writes
        return found

    monkeypatch.setattr(MemoryFileSystem, "exists", exists)
    assert len(thread_race(store_places.Memory(), THREADS, 5)) == 5
