"""Of many writers of a key one wins, in every round, and its bytes are what is there."""

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
    "s3fs-moto": 200,  # 5 ms a put, whoever asks
    "obstore-moto": 200,
}


def judge(outcomes, found):
    """The rounds without exactly one winner, and those that do not hold what the winner wrote."""
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
    """The objects of all rounds, in pieces: a store has a deadline per call."""
    keys = [put_races.key_of(number) for number in range(count)]
    pieces = (store.find_many(keys[start : start + 100]) for start in range(0, count, 100))
    return [data for piece in pieces for data in piece]


@pytest.mark.promise("storage.one_winner")
@pytest.mark.parametrize(("kind", "rounds"), ROUNDS.items(), ids=ROUNDS)
def test_of_two_processes_one_wins_every_round(kind, rounds, request):
    place, rounds = store_places.make(kind, request), cases(rounds)
    accelerate = getattr(place, "accelerate", True)
    outcomes = put_races.race(rounds, place.uri, place.options, accelerate=accelerate)
    found = read_back(place.store, rounds)
    assert judge(outcomes, found) == []
    wins = Counter(names.index(PutOutcome.DONE) for names in outcomes)
    assert min(wins[0], wins[1]) > 0, wins  # else it was no race
    names = [put_races.key_of(number).rpartition("/")[2] for number in range(rounds)]
    assert place.store.list_from("_transaction_log") == names


def test_the_race_would_find_out_a_put_that_looks_first(tmp_path):
    """The same race with a put that is not atomic has rounds with two winners."""
    place = store_places.Local(tmp_path / "table")
    outcomes = put_races.race(NAIVE_ROUNDS, place.uri, naive=True)
    found = place.store.find_many([put_races.key_of(number) for number in range(NAIVE_ROUNDS)])
    wrong = judge(outcomes, found)
    print(len(wrong), f"of {NAIVE_ROUNDS} rounds went wrong, as they should")
    assert wrong


def test_two_processes_race_without_nameless_files_too(tmp_path, monkeypatch):
    """Threads here: a process of its own would not know of the change."""
    monkeypatch.setattr(local, "_O_TMPFILE", None)
    place = store_places.Local(tmp_path / "table")
    assert thread_race(place, 4, cases(300)) == []
    names = [put_races.key_of(number).rpartition("/")[2] for number in range(cases(300))]
    assert place.store.list_from("_transaction_log") == names


def thread_race(place, threads, keys):
    """The rounds that went wrong with so many threads on so many keys."""
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
def test_of_many_threads_one_wins_in_memory():
    assert thread_race(store_places.Memory(), THREADS, cases(500)) == []


def test_the_race_would_find_out_a_memory_without_its_lock(monkeypatch):
    monkeypatch.setattr(fsspec_store, "_LOCK", nullcontext())
    usual = MemoryFileSystem.exists
    all_have_looked = threading.Barrier(THREADS)

    def exists(self, path, **how):
        found = usual(self, path, **how)
        all_have_looked.wait(SECONDS_MAX)  # before any of them writes
        return found

    monkeypatch.setattr(MemoryFileSystem, "exists", exists)
    assert len(thread_race(store_places.Memory(), THREADS, 5)) == 5
