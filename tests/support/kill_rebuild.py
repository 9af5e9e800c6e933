"""Kill a rebuild before each of its changes of the disk, examine what is left, and run it again.

A program of its own, for the reason given in `killable_children`: `kill_rebuild.py TABLE` prints
how many points there were, and after how many of them there was a table.
"""

import json
import os
import shutil
import signal
import sys

import arrowlog
from arrowlog.errors import TableExists, TableNotFound
from arrowlog.formats.indextables.format import LOG_FOLDER
from support.core_modules import import_core
from support.kill_repair import OPENED, SHUT, UNFINISHED, WRONG, in_a_child, kill_at


def rebuild(root, number):
    """Rebuild until killed at a point; return 0 if the rebuild succeeded before it."""
    kill_at(number)
    arrowlog.rebuild(root)
    return 0


def look_and_repeat(root, count):
    """Check that there is no table or the whole one, and that a second run leads to the latter."""
    code = OPENED
    try:
        if arrowlog.Table(root).snapshot().num_files != count:
            return WRONG
    except TableNotFound:
        code = SHUT
    try:
        arrowlog.rebuild(root)
    except TableExists:
        if code != OPENED:
            return UNFINISHED
    whole = arrowlog.Table(root).snapshot().num_files == count
    return code if whole else UNFINISHED


def main():
    """Kill at one point after the other, until a rebuild finishes."""
    import_core()
    root, count = sys.argv[1], int(sys.argv[2])
    left = []
    for number in range(1, 1000):
        code = in_a_child(lambda number=number: rebuild(root, number))
        if code != 0 and code != -signal.SIGKILL:
            raise SystemExit(f"point {number}: the rebuild failed by itself")
        left.append(in_a_child(lambda: look_and_repeat(root, count)))
        if left[-1] not in (OPENED, SHUT):
            what = {WRONG: "half a table opens", UNFINISHED: "run again, it does not finish"}
            raise SystemExit(f"point {number}: {what.get(left[-1], left[-1])}")
        shutil.rmtree(os.path.join(root, LOG_FOLDER))
        if code == 0:
            break
    print(json.dumps({"points": len(left), "opened": left.count(OPENED)}))


if __name__ == "__main__":
    main()
