"""Children that work until they are killed, and report what was acknowledged before.

A child that is forked from a process whose engines have threads may hang. So the parents are
programs of their own, which import everything and start no engine: `PROGRAM SEED KILLS TABLE …`.
"""

import itertools
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

import arrowlog
from support import programs
from support.core_modules import import_core

if TYPE_CHECKING:
    import struct
    from collections.abc import Callable

FIRST_REPORT_SECONDS_MAX = 300  # against hanging


@dataclass(frozen=True)
class Killing:
    """What children do, and how they are killed.

    `work(root, seed, out)` writes a `record` to `out` for each acknowledged commit. `at_once`
    children run at a time. Each is killed up to `seconds` after a random moment; every
    `sure_every`-th has reported at least once by then, however slow the machine is.
    """

    work: "Callable"
    record: "struct.Struct"
    seconds: float
    at_once: int = 1
    sure_every: int = 1

    def kill_children(self, root, rng, kills):
        """Kill children that work on one table, and return what they had reported."""
        reports, running = [], []
        for kill in range(kills):
            while len(running) < self.at_once:
                running.append(_start(self.work, root, rng.randrange(2**32)))
            child, pipe = running.pop(rng.randrange(self.at_once))
            if kill % self.sure_every == 0:
                select.select([pipe], [], [], FIRST_REPORT_SECONDS_MAX)
            time.sleep(rng.uniform(0, self.seconds))  # a random moment is the point of the test
            reports += self._kill(child, pipe)
        for child, pipe in running:
            reports += self._kill(child, pipe)
        return reports

    def _kill(self, child, pipe):
        """Kill a child and return its complete records."""
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a child ended by itself, with status {status}; its error is above")
        data = b""
        while part := os.read(pipe, 1 << 16):
            data += part
        os.close(pipe)
        return list(self.record.iter_unpack(data[: len(data) - len(data) % self.record.size]))

    def main(self):
        """Run as a program: print the records of each table as a line of JSON."""
        import_core()
        rng = random.Random(int(sys.argv[1]))
        for root in sys.argv[3:]:
            reports = self.kill_children(root, rng, int(sys.argv[2]))
            print(json.dumps(reports, default=bytes.decode), flush=True)


def _start(work, root, seed):
    """Fork a child that works; return its process id and the end of the pipe to read from."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            work(root, seed, theirs)
        except BaseException:  # noqa: BLE001 -- `os._exit` would drop it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)  # it is killed before it gets here
    os.close(theirs)
    return child, ours


def run(program, seed, kills, roots):
    """Run a program of this kind and return the records of each table."""
    return [json.loads(line) for line in programs.run(program, seed, kills, *roots).splitlines()]


def append_until_killed(pipe, uri, options, name):
    """Append one file per commit, and send the path of each that was acknowledged."""
    table = arrowlog.Table(uri, options=options)
    for number in itertools.count():
        path = f"{name}-{number}"
        table.append([arrowlog.add_file(path, {"day": None}, size=1)])
        pipe.send(path)
