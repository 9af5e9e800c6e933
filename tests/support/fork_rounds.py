"""A program that forks while its threads write, checkpoint, query and read: `TABLE ROUNDS SEED`.

Each child makes one call. A wrong answer, an error other than `ForkedProcess`, a hang or a crash is
printed. Every second child finalizes the interpreter; the others exit at once.
"""

import logging
import random
import sys
import threading
import time
from functools import partial

import pyarrow as pa

import arrowlog
from support.forked_child import in_child

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def rows(count):
    return pa.table({"id": range(count), "day": [str(number % 4) for number in range(count)]})


def add():
    name = f"day=9/{random.random()}"
    return arrowlog.add_file(name, {"day": "9"}, size=1, num_records=0)


CALLS = {
    "version": lambda t: t.version > 0,
    "files": lambda t: t.snapshot().files.num_rows > 0,
    "open": lambda t: arrowlog.Table(t.uri).snapshot().num_files > 0,
    "version 1": lambda t: t.snapshot(1).num_files == 4,
    "scan": lambda t: t.scan("id > 3 AND day = '2'").num_files > 0,
    "rows": lambda t: t.scan("day = '2'").to_arrow_dataset().to_table().num_rows > 0,
    "function": lambda t: t.scan("lower(day) = '2'").to_arrow_dataset().to_table().num_rows > 0,
    "splits": lambda t: any(b.num_rows for s in t.scan("day = '2'").splits() for b in s.batches()),
    "append": lambda t: t.append([add()]).version > 0,
    "write": lambda t: t.write(rows(10)).version > 0,
    "diff": lambda t: t.diff(0, 1).added.num_rows == 4,
    "explain": lambda t: "files to read" in str(t.scan("id > 3").explain()),
    "wait_for_checkpoint": lambda t: t.wait_for_checkpoint(),
    "checkpoint": lambda t: t.checkpoint(),
    "query": lambda t: t.query("SELECT count(*) FROM adds"),
    "history": lambda t: t.history(),
    "polars": lambda t: t.scan().to_polars(),
    "compact": lambda t: t.compact(dry_run=True),
}


def main(root, rounds, seed):
    logging.disable()
    table = arrowlog.Table.create(root, SCHEMA, ["day"], properties={"checkpoint.interval": 5})
    table.write(rows(50))
    table.query("SELECT count(*) FROM commits")
    stop = threading.Event()

    def loop(call):
        while not stop.is_set():
            try:
                call()
            except arrowlog.CommitConflict:
                continue

    def write():
        table.write(rows(20), mode="overwrite" if table.snapshot().num_files > 200 else "append")

    work = [
        write,
        table.checkpoint,
        lambda: table.query("SELECT count(*) FROM commits"),
        lambda: table.scan("lower(day) = '2'").to_arrow_dataset().to_table(),
        lambda: arrowlog.Table(root).snapshot().files,
    ]
    for call in work:
        threading.Thread(target=loop, args=(call,), daemon=True).start()
    chance = random.Random(seed)
    for number in range(rounds):
        time.sleep(chance.random() / 20)
        name = chance.choice(sorted(CALLS))
        said = in_child(partial(CALLS[name], table), orderly=number % 2 == 0)
        if said != "True" and not said.startswith("ForkedProcess: "):
            print(number, name, said)
    stop.set()
    print("rounds", rounds, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    import os

    os._exit(0)
