"""Processes that write, compact, truncate and vacuum a table, and are killed at random moments.

See `killable_children`.
"""

import os
import random
import struct

import pyarrow as pa

import arrowlog
from arrowlog.clock import SystemClock
from support.killable_children import Killing

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
RECORD = struct.Struct("<q")  # the row


def maintain_until_killed(root, seed, out):
    """Write rows, report each that was acknowledged, and maintain the table in between."""
    SystemClock.sleep = lambda *_: None  # there are no other writers to wait for
    table = arrowlog.Table(root, options={"checkpoint.enabled": False})
    rng = random.Random(seed)
    for number in range(10**6):
        act = rng.choice(["write", "write", "write", "compact", "compact", "vacuum", "truncate"])
        if act == "write":
            row = (seed << 20) + number
            table.write(pa.table({"p": [rng.choice("ab")], "id": [row]}, schema=SCHEMA))
            os.write(out, RECORD.pack(row))
        elif act == "compact":
            table.compact(max_files_per_group=rng.choice([2, 3, None]))
        elif act == "truncate":
            table.truncate_history()
        else:  # no file is too young to be deleted: there are no other writers
            table.vacuum("0s", force=True)


if __name__ == "__main__":
    Killing(maintain_until_killed, RECORD, seconds=0.08).main()
