"""Processes that race for one table; prints what each was told, as JSON lines.

A program of its own, which forks before any engine has begun: see `mortal`.
"""

import json
import os
import random
import sys
import traceback

import pyarrow as pa

import arrowlog
from arrowlog.errors import CommitConflict, TableExists

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def add(name, part="x"):
    return arrowlog.add_file(name, {"p": part}, size=1, modification_time=1)


def append(root, me, rounds):
    """Nothing but appends: all of them go together."""
    table = arrowlog.Table(root)
    for number in range(rounds):
        result = table.append([add(f"{me}-{number}")])
        yield {"version": result.version, "txn": result.txn_id, "adds": [f"{me}-{number}"]}


def mix(root, me, rounds):
    """Appends, overwrites of all and of a part, removes: what does not go together is told."""
    table = arrowlog.Table(root)
    rng = random.Random(me)
    part = "xy"[me % 2]
    for number in range(rounds):
        name = f"{me}-{number}"
        kind = rng.choice(["append", "append", "overwrite", "where", "remove"])
        try:
            if kind == "append":
                result = table.append([add(name, part)])
            elif kind == "overwrite":
                result = table.overwrite([add(name, part)])
            elif kind == "where":
                result = table.overwrite([add(name, part)], f"p = '{part}'")
            else:
                paths = table.snapshot().files["path"].to_pylist()
                result = table.remove([rng.choice(paths)]) if paths else table.append([add(name)])
        except CommitConflict as error:
            yield {"conflict": type(error).__name__}
            continue
        yield {"version": result.version, "txn": result.txn_id, "kind": kind, "name": name}


def create(root, me, rounds):
    """Tables made by everybody at the same time."""
    for number in range(rounds):
        try:
            arrowlog.Table.create(f"{root}/{number}", SCHEMA, ["p"], {"made.by": f"{me}"})
        except TableExists:
            yield {"round": number, "made": False}
        else:
            yield {"round": number, "made": True, "me": me}


JOBS = {"append": append, "mix": mix, "create": create}


def main():
    """`racing.py JOB ROOT PROCESSES ROUNDS`."""
    job, root, processes, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    gate, open_gate = os.pipe()
    children = []
    for me in range(processes):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(open_gate)
                os.read(gate, 1)  # until the parent has closed its end
                with os.fdopen(theirs, "w") as out:
                    for told in JOBS[job](root, me, rounds):
                        out.write(json.dumps(told) + "\n")
            except BaseException:  # noqa: BLE001 -- a child must not go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(theirs)
        children.append((child, ours))
    os.close(open_gate)
    for child, pipe in children:
        with os.fdopen(pipe) as told:
            print(told.read(), end="")
        if os.waitpid(child, 0)[1]:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
