"""Processes that race for one table, and their outcomes."""

import random

import pyarrow as pa

import arrowlog
from arrowlog.errors import CommitConflict, TableExists
from support import racing_processes

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def add(name, part="x"):
    """Return the add of a file that does not exist."""
    return arrowlog.add_file(name, {"p": part}, size=1, modification_time=1)


def append(me, wait, root, rounds):
    """Append only: appends never conflict."""
    table = arrowlog.Table(root)
    for number in range(rounds):
        result = table.append([add(f"{me}-{number}")])
        yield {"version": result.version, "txn": result.txn_id, "adds": [f"{me}-{number}"]}


def mix(me, wait, root, rounds):
    """Append, overwrite all or a part, and remove; report conflicts."""
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


def create(me, wait, root, rounds):
    """Create tables that all racers create at the same time."""
    for number in range(rounds):
        wait()
        try:
            arrowlog.Table.create(f"{root}/{number}", SCHEMA, ["p"], {"made.by": f"{me}"})
        except TableExists:
            yield {"round": number, "made": False}
        else:
            yield {"round": number, "made": True, "me": me}


JOBS = {"append": append, "mix": mix, "create": create}


def race(job, root, processes, rounds):
    """Run a job in several processes that begin together; return their outcomes."""
    reports = racing_processes.race(
        racing_processes.FORKSERVER, processes, _report, job, str(root), rounds
    )
    return [each for report in reports for each in report]


def _report(racer, wait, job, root, rounds):
    wait()
    return list(JOBS[job](racer, wait, root, rounds))
