"""Fork programs that write, compact, truncate and vacuum a table, and kill them at any moment.

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
from arrowlog.clock import SystemClock
from support import killable_children

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
WORD = struct.Struct("<q")
SECONDS_MAX = 0.08


def tidy_for_ever(root, seed, out):
    """Write rows, telling of each that was acknowledged, and keep the table tidy."""
    SystemClock.sleep = lambda *_: None  # there are no other writers to wait for
    table = arrowlog.Table(root, options={"checkpoint.enabled": False})
    rng = random.Random(seed)
    for number in range(10**6):
        act = rng.choice(["write", "write", "write", "compact", "compact", "vacuum", "truncate"])
        if act == "write":
            row = (seed << 20) + number
            table.write(pa.table({"p": [rng.choice("ab")], "id": [row]}, schema=SCHEMA))
            os.write(out, WORD.pack(row))
        elif act == "compact":
            table.compact(max_files_per_group=rng.choice([2, 3, None]))
        elif act == "truncate":
            table.truncate_history()
        else:  # nobody else is at it, so nothing is too young
            table.vacuum("0s", force=True)


def main():
    """`tidying.py SEED KILLS TABLE …` prints the acknowledged rows of each table as JSON."""
    rng = random.Random(int(sys.argv[1]))
    for root in sys.argv[3:]:
        told = []
        for _ in range(int(sys.argv[2])):
            child, pipe = killable_children.start(tidy_for_ever, root, rng.randrange(2**32))
            select.select([pipe], [], [], 10)  # it has begun
            time.sleep(rng.uniform(0, SECONDS_MAX))  # any moment: chance is wanted, not order
            told += [row for (row,) in killable_children.end(child, pipe, WORD)]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
