"""Processes that put the same keys at the same moments."""

import os
import time

from arrowlog.storage import PutOutcome, open_store
from support import racing_processes

RACERS = 2
_HEAD_STARTS = 20  # rounds in which one racer is late on purpose
_LATE_SECONDS = 0.02
_NAIVE_SECONDS = 0.002


def data_of(racer, number):
    """Return what a racer puts in a round: it tells the racers apart, in size too."""
    return f"{racer}-{number}-".encode() * (1 + (racer + number) % 40)


def key_of(number):
    """Return the key of a round."""
    return f"_transaction_log/{number:020d}.json"


def race(rounds, uri, options=None, *, naive=False, **how):
    """Return the outcomes of all racers, round by round. They begin each round together.

    In a few rounds one racer or the other is late, so that both win some, however the machine
    schedules them.
    """
    names = racing_processes.race(
        racing_processes.SPAWN, RACERS, _put_all, rounds, naive, uri, options, how
    )
    return [[PutOutcome[name] for name in each] for each in zip(*names, strict=True)]


def _put_all(racer, wait, rounds, naive, uri, options, how):
    store = open_store(uri, options, **how)
    put = _naive(store) if naive else store.put_if_absent
    store.find_many(["connect", "first"])
    spacing = max(1, rounds // _HEAD_STARTS)
    outcomes = []
    for number in range(rounds):
        key, data = key_of(number), data_of(racer, number)
        wait()
        if not naive and number % spacing == 0 and number // spacing % RACERS == racer:
            time.sleep(_LATE_SECONDS)
        outcomes.append(put(key, data).name)
    return outcomes


def _naive(store):
    """Return a put that looks first and writes later, as a file system's `create` often does."""

    def put(key, data):
        path = f"{store.root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            return PutOutcome.EXISTS
        time.sleep(_NAIVE_SECONDS)  # gives the other racer the time to look, however slow it is
        with open(path, "wb") as file:
            file.write(data)
        return PutOutcome.DONE

    return put
