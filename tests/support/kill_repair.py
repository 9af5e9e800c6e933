"""Kill a repair before each of its changes of the disk, examine what is left, and run it again.

A program of its own, for the reason given in `killable_children`: `kill_repair.py SOURCE TARGET`
prints how many points there were, and how many of the logs that were left behind could be opened.
"""

import json
import os
import shutil
import signal
import sys

import arrowlog
from arrowlog.errors import ArrowlogError
from arrowlog.formats.indextables.format import LOG_FOLDER
from support.core_modules import import_core

CHANGES = ("mkdir", "fsync", "link", "replace", "rename", "unlink")
OPENED, SHUT, WRONG, UNFINISHED = 10, 11, 12, 13


def kill_at(number):
    """Make this process kill itself right before its change of the disk with that number."""
    left = [number]

    def watched(change):
        def call(*args, **how):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **how)

        return call

    for name in CHANGES:
        setattr(os, name, watched(getattr(os, name)))


def in_a_child(work):
    """Run `work` in a forked child and return its exit code, negative if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def repair(source, target, number):
    """Repair until killed at a point; return 0 if the repair succeeded before it."""
    kill_at(number)
    result = arrowlog.repair(f"{source}/{LOG_FOLDER}", f"{target}/{LOG_FOLDER}").to_pylist()[0]
    return 0 if result["status"] == "SUCCESS" else 1


def files(root):
    """Return the live files of a table."""
    return sorted(arrowlog.Table(root).snapshot().files["path"].to_pylist())


def look_and_repeat(source, target):
    """Check that what was left cannot be opened or is complete, and that a second run finishes."""
    expected, code = files(source), OPENED
    try:
        if files(target) != expected:
            return WRONG
    except ArrowlogError:
        code = SHUT
    result = arrowlog.repair(f"{source}/{LOG_FOLDER}", f"{target}/{LOG_FOLDER}").to_pylist()[0]
    done = result["status"] == "SUCCESS" or "is not empty" in result["status"]
    snapshot = arrowlog.Table(target, strict=True).snapshot()
    whole = files(target) == expected and snapshot.report.checkpoint == 1
    there = os.path.exists(f"{target}/{LOG_FOLDER}/_last_checkpoint")
    return code if done and whole and there else UNFINISHED


def main():
    """Kill at one point after the other, until a repair finishes."""
    import_core()
    source, target = sys.argv[1:]
    left = []
    for number in range(1, 1000):
        code = in_a_child(lambda number=number: repair(source, target, number))
        if code != 0 and code != -signal.SIGKILL:
            raise SystemExit(f"point {number}: the repair failed by itself")
        left.append(in_a_child(lambda: look_and_repeat(source, target)))
        if left[-1] not in (OPENED, SHUT):
            what = {WRONG: "a half log opens", UNFINISHED: "run again, it does not finish"}
            raise SystemExit(f"point {number}: {what.get(left[-1], left[-1])}")
        shutil.rmtree(target)
        if code == 0:
            break
    print(json.dumps({"points": len(left), "opened": left.count(OPENED)}))


if __name__ == "__main__":
    main()
