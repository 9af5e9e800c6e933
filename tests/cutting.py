"""Kill a repair at every point where it changes the disk; look at what is left; run it again.

A program of its own: a child forked from a process whose engines have threads may hang, so the
parent imports everything and begins nothing. `cutting.py SOURCE TARGET` prints how many points there
were, and how many of the logs that were left behind could be opened.
"""

import json
import os
import shutil
import signal
import sys

import arrowlog
from arrowlog.errors import ArrowlogError
from arrowlog.log.names import LOG

CHANGES = ("mkdir", "fsync", "link", "replace", "rename", "unlink")
OPENED, SHUT, WRONG = 10, 11, 12


def kill_at(number):
    """Have this process killed just before its change of the disk with a number."""
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
    """Do something in a process of its own; its exit code, negative if it was killed."""
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
    """Repair, being killed at a point; 0 if it came to its end before that."""
    kill_at(number)
    result = arrowlog.repair(f"{source}/{LOG}", f"{target}/{LOG}").to_pylist()[0]
    return 0 if result["status"] == "SUCCESS" else 1


def files(root):
    """The live files of a table."""
    return sorted(arrowlog.Table(root).snapshot().files["path"].to_pylist())


def look(source, target):
    """Whether what was left behind can be opened; if so, it has to be all of it."""
    try:
        found = files(target)
    except ArrowlogError:
        return SHUT
    return OPENED if found == files(source) else WRONG


def again(source, target):
    """Run the repair again; it has to finish."""
    result = arrowlog.repair(f"{source}/{LOG}", f"{target}/{LOG}").to_pylist()[0]
    done = result["status"] == "SUCCESS" or "is not empty" in result["status"]
    snapshot = arrowlog.Table(target, strict=True).snapshot()
    good = done and files(target) == files(source) and snapshot.report.checkpoint == 1
    return 0 if good and os.path.exists(f"{target}/{LOG}/_last_checkpoint") else 1


def main():
    """Point after point, until the repair comes to its end."""
    source, target = sys.argv[1:]
    left = []
    for number in range(1, 1000):
        code = in_a_child(lambda number=number: repair(source, target, number))
        if code != 0 and code != -signal.SIGKILL:
            raise SystemExit(f"point {number}: the repair failed by itself")
        left.append(in_a_child(lambda: look(source, target)))
        if left[-1] not in (OPENED, SHUT):
            raise SystemExit(f"point {number}: a half log can be opened ({left[-1]})")
        if in_a_child(lambda: again(source, target)) != 0:
            raise SystemExit(f"point {number}: run again, it does not finish")
        shutil.rmtree(target)
        if code == 0:
            break
    print(json.dumps({"points": len(left), "opened": left.count(OPENED)}))


if __name__ == "__main__":
    main()
