"""Run a measurement in a process of its own, in turn with the peers', and compare the answers."""

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.figures import Figure
from benchmarks.measure import PRELOAD

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Who takes so long for a process does not come to that round; in a hurry, sooner.
SLOW_SECONDS = {4: 5, 2: 12}
SLOW_QUICK = {2: 1.5}
LATE_SECONDS, LATE_BUILD = 900, 7200
# Where measured processes keep compiled modules: installed packages have them, a checkout may not.
COMPILED = {
    "PYTHONPYCACHEPREFIX": os.path.join(tempfile.gettempdir(), f"arrowlog-compiled-{os.getuid()}"),
    "PYTHONDONTWRITEBYTECODE": "",
}


class Failed(Exception):
    """A measurement could not be made, or is worth nothing. The text says why."""


def progress(text):
    """What is being done, on stderr: one line that is written over on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def python(*arguments, env=None, late=LATE_SECONDS):
    """Run a module of the benchmarks in a fresh process with compiled modules; what it printed."""
    command = [sys.executable, "-m", *map(str, arguments)]
    path = os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))
    # Warnings of a peer are not our business, and its output is ours alone.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **COMPILED}
    environment |= env or {}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=late,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[2:])} took more than {late} s") from None
    if done.returncode:
        raise Failed(f"{' '.join(command[2:])} failed:\n{done.stderr.strip()[-3000:]}")
    return done.stdout


_loaded = {}  # what is measured -> modules that its job imports


def without_imports(key, run):
    """One run of `run(environment)`, with what its job loads imported before it is timed.

    The first run of a key imports modules within the job, and tells which; it is not counted.
    """
    if key not in _loaded:
        found = run({PRELOAD: ""})
        _loaded[key] = found["loaded"]
        if not found["loaded"]:
            return found
    return run({PRELOAD: ",".join(_loaded[key])})


def measure(who, case, root, *arguments, env=None, imports=False):
    """One run of one case by one engine: {"ms", "cpu", "mb", "answer"}.

    Modules that the job imports are imported beforehand (`without_imports`). With `imports` they
    count, as where imports are what is measured.
    """

    def run(preload):
        environment = {**(env or {}), **preload}
        command = ("benchmarks.measure", who, case, root, *arguments)
        return json.loads(python(*command, env=environment))

    return run({PRELOAD: ""}) if imports else without_imports((who, case), run)


def in_turn(case, shape, jobs, rounds, *, x=None, slow=SLOW_SECONDS):
    """A row: each job (`{who: function → measure's dict}`) in turn, `rounds` times.

    The answers must be the same, of all and every time, or nothing that was measured is of use.
    """
    found = {who: [] for who in jobs}
    took = {}
    for number in range(1, rounds + 1):
        progress(f"{case} {shape}: round {number} of {rounds}")
        for who, job in jobs.items():
            if not too_slow(number, took.get(who, 0), slow):
                started = time.monotonic()
                found[who].append(job())
                took.setdefault(who, time.monotonic() - started)
    progress("")
    same(f"{case} {shape}", {who: [run["answer"] for run in runs] for who, runs in found.items()})
    return [
        Figure(
            case,
            shape,
            who,
            tuple(round(run["ms"], 4) for run in runs),
            max(run["mb"] for run in runs),
            x=x,
            cpu=tuple(round(run["cpu"], 4) for run in runs),
        )
        for who, runs in found.items()
    ]


def too_slow(number, seconds, slow=SLOW_SECONDS):
    """Whether the first run took so long that a round is left out.

    >>> [too_slow(number, 25) for number in (1, 2, 5)]
    [False, True, True]
    >>> [too_slow(number, 7) for number in (3, 4)]
    [False, True]
    """
    return any(number >= first and seconds > most for first, most in slow.items())


def same(what, answers):
    """Stop if the answers of who took part are not the same."""
    if len({json.dumps(answer) for some in answers.values() for answer in some}) > 1:
        told = "\n".join(f"  {who}: {some}" for who, some in answers.items())
        raise Failed(
            f"{what}: the answers differ, so the times say nothing.\n{told}\n"
            "If a table was left half built, delete the folder of tables and run again."
        )
