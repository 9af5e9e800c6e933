"""Run measurements in fresh processes, alternating between engines, and compare the answers."""

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.figures import Figure
from benchmarks.measure import PRELOAD

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# {round: seconds}: from that round on, engines whose first run took longer are left out.
SLOW_SECONDS = {4: 5, 2: 12}
SLOW_QUICK = {2: 1.5}
TIMEOUT_SECONDS, BUILD_TIMEOUT_SECONDS = 900, 7200
# Measured processes use compiled modules, as installed packages do. A checkout may be read-only,
# or used with PYTHONDONTWRITEBYTECODE, so they are kept in a folder of their own.
COMPILED = {
    "PYTHONPYCACHEPREFIX": os.path.join(tempfile.gettempdir(), f"arrowlog-compiled-{os.getuid()}"),
    "PYTHONDONTWRITEBYTECODE": "",
}


class Failed(Exception):
    """A measurement failed, or its result cannot be used. The message says why."""


def progress(text):
    """Show on stderr what is being done: on a terminal, one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def python(*arguments, env=None, timeout=TIMEOUT_SECONDS):
    """Run a module of the benchmarks in a fresh process, with compiled modules; its output."""
    command = [sys.executable, "-m", *map(str, arguments)]
    path = os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))
    # The output is parsed, so it must not contain the warnings of a peer.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **COMPILED}
    environment |= env or {}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[2:])} took more than {timeout} s") from None
    if done.returncode:
        raise Failed(f"{' '.join(command[2:])} failed:\n{done.stderr.strip()[-3000:]}")
    return done.stdout


_loaded = {}  # key of a measurement -> modules that its job imports


def without_imports(key, run):
    """Call `run(environment)` such that its job's imports happen before the job is timed.

    The first run of a key imports modules within the job, and reports which; it is not counted.
    """
    if key not in _loaded:
        result = run({PRELOAD: ""})
        _loaded[key] = result["loaded"]
        if not result["loaded"]:
            return result
    return run({PRELOAD: ",".join(_loaded[key])})


def measure(engine, case, root, *arguments, env=None, imports=False):
    """Run one case once, by one engine: {"ms", "cpu", "mb", "answer"}.

    Modules that the job imports are imported beforehand (`without_imports`), unless `imports` says
    that they are part of the measurement.
    """

    def run(preload):
        environment = {**(env or {}), **preload}
        command = ("benchmarks.measure", engine, case, root, *arguments)
        return json.loads(python(*command, env=environment))

    return run({PRELOAD: ""}) if imports else without_imports((engine, case), run)


def in_turn(case, shape, jobs, rounds, *, x=None, slow=SLOW_SECONDS):
    """Measure a row: call each of `jobs` ({engine: function that measures}) once per round.

    Raises `Failed` unless all answers are equal, since the times cannot be compared then.
    """
    runs = {engine: [] for engine in jobs}
    first_seconds = {}
    for number in range(1, rounds + 1):
        progress(f"{case} {shape}: round {number} of {rounds}")
        for engine, job in jobs.items():
            if not too_slow(number, first_seconds.get(engine, 0), slow):
                started = time.monotonic()
                runs[engine].append(job())
                first_seconds.setdefault(engine, time.monotonic() - started)
    progress("")
    answers = {engine: [run["answer"] for run in some] for engine, some in runs.items()}
    check_answers(f"{case} {shape}", answers)
    return [
        Figure(
            case,
            shape,
            engine,
            tuple(round(run["ms"], 4) for run in some),
            max(run["mb"] for run in some),
            x=x,
            cpu=tuple(round(run["cpu"], 4) for run in some),
        )
        for engine, some in runs.items()
    ]


def too_slow(number, seconds, slow=SLOW_SECONDS):
    """Whether an engine whose first run took so many seconds is left out of a round.

    >>> [too_slow(number, 25) for number in (1, 2, 5)]
    [False, True, True]
    >>> [too_slow(number, 7) for number in (3, 4)]
    [False, True]
    """
    return any(number >= first and seconds > limit for first, limit in slow.items())


def check_answers(title, answers):
    """Raise `Failed` unless all answers of all engines ({engine: [answer, …]}) are equal."""
    if len({json.dumps(answer) for some in answers.values() for answer in some}) > 1:
        lines = "\n".join(f"  {engine}: {some}" for engine, some in answers.items())
        raise Failed(
            f"{title}: the answers differ, so the times cannot be compared.\n{lines}\n"
            "If a table was left incomplete, delete the folder of tables and run again."
        )
