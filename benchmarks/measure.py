"""One measurement in a fresh process: `python -m benchmarks.measure WHO CASE TABLE …`; prints JSON.

A case is a function of that name in the module of the engine, in `peers`: called with the table and
the arguments it imports, prepares, and returns the job, or yields it and tidies up afterwards. Only
the job is measured. A case that is marked `warm` returns a job that is asked several questions of
the same kind, and the middle counts.
"""

import contextlib
import importlib
import inspect
import json
import resource
import statistics
import sys
import time

ENGINES = {"arrowlog": "ours", "deltalake": "delta", "pyiceberg": "iceberg"}
QUESTIONS = 15
ENOUGH_MS = 5000


def once(job):
    cpu, started = time.process_time(), time.perf_counter()
    answer = job()
    spent = (time.perf_counter() - started) * 1000
    return {"ms": spent, "cpu": (time.process_time() - cpu) * 1000, "answer": answer}


def several(job):
    """The first question warms up and gives the answer to compare; the others are new ones."""
    first = once(lambda: job(0))
    if first["ms"] > ENOUGH_MS:
        return first
    spent = []
    for number in range(1, QUESTIONS + 1):
        spent.append(once(lambda: job(number)))  # noqa: B023 -- asked at once
        if sum(run["ms"] for run in spent) > ENOUGH_MS:
            break
    middle = {name: statistics.median(run[name] for run in spent) for name in ("ms", "cpu")}
    return {**middle, "answer": first["answer"]}


def peak_mb():
    """Of this process alone: Linux lets a child begin with its parent's peak in `ru_maxrss`."""
    try:
        with open("/proc/self/status") as status:
            told = next(line for line in status if line.startswith("VmHWM"))
        return int(told.split()[1]) / 1024
    except (OSError, StopIteration):
        scale = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


@contextlib.contextmanager
def prepared(function, *arguments):
    if inspect.isgeneratorfunction(function):
        with contextlib.contextmanager(function)(*arguments) as job:
            yield job
    else:
        yield function(*arguments)


def main():
    who, case, root, *arguments = sys.argv[1:]
    function = getattr(importlib.import_module(f"benchmarks.peers.{ENGINES[who]}"), case)
    with prepared(function, root, *arguments) as job:
        found = (several if getattr(function, "warm", False) else once)(job)
        found["mb"] = peak_mb()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
