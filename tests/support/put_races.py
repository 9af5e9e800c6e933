"""Processes that put the same keys at the same moments."""

import itertools
import multiprocessing
import os
import traceback

import arrowlog
from arrowlog.storage import PutOutcome, open_store

RACERS = 2
_SECONDS = 120
_START = multiprocessing.get_context("spawn")  # obstore does not race in a forked child

QUICK = multiprocessing.get_context("forkserver")  # children of a process that has done nothing yet
QUICK.set_forkserver_preload(["arrowlog", "pytest"])


def commit_on(end, uri, options, name):
    """Append file after file, and say each that is in."""
    table = arrowlog.Table(uri, options=options)
    for number in itertools.count():
        path = f"{name}-{number}"
        table.append([arrowlog.add_file(path, {"day": None}, size=1)])
        end.send(path)


def data_of(racer, number):
    """What a racer puts in a round: bytes that tell who it was, of sizes that differ."""
    return f"{racer}-{number}-".encode() * (1 + (racer + number) % 40)


def key_of(number):
    """The key of a round."""
    return f"_transaction_log/{number:020d}.json"


def race(rounds, uri, options=None, *, naive=False, **how):
    """Outcomes of every racer, round by round. All of them begin each round together."""
    barrier = _START.Barrier(RACERS)
    pipes = [_START.Pipe(duplex=False) for _ in range(RACERS)]
    racers = [
        _START.Process(target=_run, args=(end, barrier, n, rounds, naive, uri, options, how))
        for n, (_, end) in enumerate(pipes)
    ]
    for racer in racers:
        racer.start()
    try:
        said = []
        for (begin, _), racer in zip(pipes, racers, strict=True):
            while not begin.poll(1):
                if not racer.is_alive() and not begin.poll():
                    raise RuntimeError(f"a racer ended with {racer.exitcode}")
            said.append(begin.recv())
    finally:
        for racer in racers:
            racer.join(5)
            racer.kill()
            racer.join()
    for answer in said:
        if isinstance(answer, str):
            raise RuntimeError(answer)
    return [[PutOutcome[name] for name in names] for names in zip(*said, strict=True)]


def _run(end, barrier, racer, rounds, naive, uri, options, how):
    try:
        store = open_store(uri, options, **how)
        put = _naive(store) if naive else store.put_if_absent
        store.find_many(["connect", "first"])
        outcomes = []
        for number in range(rounds):
            key, data = key_of(number), data_of(racer, number)
            barrier.wait(_SECONDS)
            outcomes.append(put(key, data).name)
        end.send(outcomes)
    except BaseException:  # noqa: BLE001 -- the test tells of it
        barrier.abort()
        end.send(traceback.format_exc())


def _naive(store):
    """Look first, then write: what a file system's `create` often is."""

    def put(key, data):
        path = f"{store.root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            return PutOutcome.EXISTS
        with open(path, "wb") as file:
            file.write(data)
        return PutOutcome.DONE

    return put
