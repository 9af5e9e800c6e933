"""Writers that append and overwrite, and are killed at random moments; see `killable_children`."""

import os
import random
import struct

import pyarrow as pa

import arrowlog
from support.killable_children import Killing

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
RECORD = struct.Struct("<q36s")  # version and transaction id


def commit_until_killed(root, seed, out):
    """Append and overwrite; report every acknowledged commit before the next one."""
    table = arrowlog.Table(root, options={"checkpoint.enabled": False})
    rng = random.Random(seed)
    for number in range(10**6):
        adds = [
            arrowlog.add_file(f"{seed}-{number}-{n}", {"p": "x"}, size=1, modification_time=1)
            for n in range(rng.randrange(1, 30))
        ]
        result = table.overwrite(adds) if rng.random() < 0.2 else table.append(adds)
        os.write(out, RECORD.pack(result.version, result.txn_id.encode()))


if __name__ == "__main__":
    Killing(commit_until_killed, RECORD, seconds=0.02, at_once=2, sure_every=10).main()
