"""Measure one case in this process: `python -m benchmarks.measure ENGINE CASE TABLE …` prints JSON.

A case is a function of that name in the engine's module in `peers`. It is called with the table and
the remaining arguments; it imports, prepares, and returns the job, or yields it and cleans up
afterwards. Only the job is timed. The job of a case that is marked `warm` is called with different
query numbers, and the median of these calls counts.

Engines import some of their modules when a job first needs them. The JSON lists the modules that
the job loaded, and `fresh.measure` has the processes that count import them beforehand: imports are
a case of their own (`import`), for all engines alike.
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

ENGINES = {"arrowlog": "ours", "deltalake": "delta", "pyiceberg": "iceberg"}  # modules in `peers`
WARM_CALLS = 15
WARM_MAX_MS = 5000  # after this much time, no further calls are made
PRELOAD = "ARROWLOG_BENCHMARK_PRELOAD"  # modules to import before the job, separated by commas


def measure_call(job):
    """Call the job once: {"ms", "cpu", "answer"}."""
    cpu, started = time.process_time(), time.perf_counter()
    answer = job()
    ms = (time.perf_counter() - started) * 1000
    return {"ms": ms, "cpu": (time.process_time() - cpu) * 1000, "answer": answer}


def measure_with_modules(job):
    """As `measure_call`, after importing the modules in `PRELOAD`; adds "mb" and "loaded"."""
    preload()
    before = set(sys.modules)
    result = measure_call(job)
    return {**result, "mb": peak_mb(), "loaded": sorted(set(sys.modules) - before)}


def preload():
    """Import the modules that an earlier run of the same job loaded."""
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def measure_warm_calls(job):
    """Call the job with query numbers 0, 1, …; the medians of all calls but the first.

    The first call warms up, and its answer is the one that is compared between engines.
    """
    first = measure_call(lambda: job(0))
    if first["ms"] > WARM_MAX_MS:
        return first
    calls = []
    for number in range(1, WARM_CALLS + 1):
        calls.append(measure_call(lambda: job(number)))  # noqa: B023 -- called immediately
        if sum(call["ms"] for call in calls) > WARM_MAX_MS:
            break
    medians = {name: statistics.median(call[name] for call in calls) for name in ("ms", "cpu")}
    return {**medians, "answer": first["answer"]}


def peak_mb():
    """Peak memory of this process. On Linux, `ru_maxrss` starts with the peak of the parent."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        scale = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


@contextlib.contextmanager
def prepared(function, *arguments):
    """The job of a case: what its function returns or yields."""
    if inspect.isgeneratorfunction(function):
        with contextlib.contextmanager(function)(*arguments) as job:
            yield job
    else:
        yield function(*arguments)


def main():
    """Measure the case that the command line names."""
    engine, case, root, *arguments = sys.argv[1:]
    function = getattr(importlib.import_module(f"benchmarks.peers.{ENGINES[engine]}"), case)
    preload()
    with prepared(function, root, *arguments) as job:
        before = set(sys.modules)
        warm = getattr(function, "warm", False)
        result = (measure_warm_calls if warm else measure_call)(job)
        result["mb"] = peak_mb()
        # The first of several calls is not counted, so neither is what it imports.
        result["loaded"] = [] if warm else [name for name in sys.modules if name not in before]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
