"""Fork committers and kill them at random moments; say what they were told.

A program of its own: see `mortal`.
"""

import json
import os
import random
import select
import struct
import sys
import time

import pyarrow as pa

import arrowlog
from support import killable_children

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
WORD = struct.Struct("<q36s")
AT_ONCE = 2
SECONDS_MAX = 0.02


def commit_for_ever(root, seed, out):
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


def end(child, pipe):
    """Kill a child; what it had told before."""
    told = killable_children.end(child, pipe, WORD)
    return [(version, txn.decode()) for version, txn in told]


def kill_some(root, rng, kills):
    """Kill committers of one table."""
    told, running = [], []
    for kill in range(kills):
        while len(running) < AT_ONCE:
            running.append(killable_children.start(commit_for_ever, root, rng.randrange(2**32)))
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
