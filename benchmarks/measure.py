"""One measurement in a fresh process: `python -m benchmarks.measure WHO CASE TABLE …`; prints JSON.

A case is a function of that name in the module of the engine, in `peers`: called with the table and
the arguments it imports, prepares, and returns the job, or yields it and tidies up afterwards. Only
the job is measured. A case that is marked `warm` returns a job that is asked several questions of
the same kind, and the middle counts.

Engines import parts of themselves when a job first needs them. A job tells which modules it loaded,
and `fresh.measure` has the measured processes import them beforehand: imports are a case of their
own (`import`), for all engines alike.
"""

import contextlib
import importlib
import inspect
import json
import os
import resource
import statistics
import sys
import time

ENGINES = {"arrowlog": "ours", "deltalake": "delta", "pyiceberg": "iceberg"}
QUESTIONS = 15
ENOUGH_MS = 5000
PRELOAD = "ARROWLOG_BENCHMARK_PRELOAD"  # modules to import before the job, with commas


def once(job):
    cpu, started = time.process_time(), time.perf_counter()
    answer = job()
    spent = (time.perf_counter() - started) * 1000
    return {"ms": spent, "cpu": (time.process_time() - cpu) * 1000, "answer": answer}


def once_loading(job):
    """As `once`, with the modules in `PRELOAD` imported before; and the modules the job loaded."""
    preload()
    before = set(sys.modules)
    found = once(job)
    return {**found, "mb": peak_mb(), "loaded": sorted(set(sys.modules) - before)}


def preload():
    """Import the modules that an earlier run of the same job has loaded."""
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


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
    preload()
    with prepared(function, root, *arguments) as job:
        before = set(sys.modules)
        warm = getattr(function, "warm", False)
        found = (several if warm else once)(job)
        found["mb"] = peak_mb()
        # The first of several questions is not counted, and what it imports neither.
        found["loaded"] = [] if warm else [name for name in sys.modules if name not in before]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
