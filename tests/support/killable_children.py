"""Children that are forked to be killed, and the programs that fork them.

A child forked from a process whose engines have threads may hang, so such a program imports
everything and begins nothing.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import arrowlog


def start(work, *given):
    """A child that does `work(*given, out)` and tells by `out`; its number, and the other end."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            work(*given, theirs)
        finally:
            os._exit(1)  # it is killed before it gets here
    os.close(theirs)
    return child, ours


def end(child, pipe, word):
    """Kill a child; the whole words it had told before."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("a child died by itself; see above")
    data = b""
    while part := os.read(pipe, 1 << 16):
        data += part
    os.close(pipe)
    return list(word.iter_unpack(data[: len(data) - len(data) % word.size]))


def run(program, seed, kills, roots):
    """What a program, `PROGRAM SEED KILLS TABLE …`, says of each table."""
    path = os.pathsep.join(filter(None, [str(Path(arrowlog.__file__).parents[1]), *sys.path]))
    done = subprocess.run(
        [sys.executable, program, str(seed), str(kills), *map(str, roots)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return [json.loads(text) for text in done.stdout.splitlines()]
