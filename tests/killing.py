"""Fork committers and kill them at random moments; say what they were told.

A program of its own: a child forked from a process whose engines have threads may hang, so the
parent imports everything and begins nothing.
"""

import json
import os
import random
import select
import signal
import struct
import sys
import time

import pyarrow as pa

import arrowlog

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
WORD = struct.Struct("<q36s")
AT_ONCE = 2
SECONDS_MAX = 0.02


def commit_for_ever(root, out, seed):
    """Append and overwrite; tell of every commit that was acknowledged, before the next."""
    table = arrowlog.Table(root, options={"checkpoint.enabled": False})
    rng = random.Random(seed)
    for number in range(10**6):
        adds = [
            arrowlog.add_file(f"{seed}-{number}-{n}", {"p": "x"}, size=1, modification_time=1)
            for n in range(rng.randrange(1, 30))
        ]
        result = table.overwrite(adds) if rng.random() < 0.2 else table.append(adds)
        os.write(out, WORD.pack(result.version, result.txn_id.encode()))


def start(root, seed):
    """A child with everything imported and nothing begun."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            commit_for_ever(root, theirs, seed)
        finally:
            os._exit(1)  # it is killed before it gets here
    os.close(theirs)
    return child, ours


def end(child, pipe):
    """Kill a child; what it had told before."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("a committer died by itself; see above")
    data = b""
    while part := os.read(pipe, 1 << 16):
        data += part
    os.close(pipe)
    whole = len(data) - len(data) % WORD.size
    return [(version, txn.decode()) for version, txn in WORD.iter_unpack(data[:whole])]


def kill_some(root, rng, kills):
    """Kill committers of one table."""
    told, running = [], []
    for kill in range(kills):
        while len(running) < AT_ONCE:
            running.append(start(root, rng.randrange(2**32)))
        child, pipe = running.pop(rng.randrange(AT_ONCE))
        if kill % 10 == 0:  # now and then one that has surely committed
            select.select([pipe], [], [], 10)
        time.sleep(rng.uniform(0, SECONDS_MAX))  # any moment: chance is wanted, not order
        told += end(child, pipe)
    for child, pipe in running:
        told += end(child, pipe)
    return told


def main():
    """`killing.py SEED KILLS TABLE …` prints what was told for each table as JSON."""
    rng = random.Random(int(sys.argv[1]))
    for root in sys.argv[3:]:
        print(json.dumps(kill_some(root, rng, int(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
