"""Whether this process is a fork in which engines would wait for ever for threads left behind."""

from __future__ import annotations

import os
import re

_TASKS = "/proc/self/task"
_WORKER = re.compile(rb"polars-[0-9]")  # one of its pool; it has others that do no harm
_pools = {"before": False, "left": False}


def left_behind() -> bool:
    """Whether the threads of polars stayed with the parent: work given to them is never done."""
    return _pools["left"]


def _polars_runs() -> bool:
    try:
        tasks = os.listdir(_TASKS)
    except OSError:  # no Linux: nobody can tell
        return True
    for task in tasks:
        try:
            with open(f"{_TASKS}/{task}/comm", "rb") as name:
                if _WORKER.match(name.read()):
                    return True
        except OSError:  # it has ended meanwhile
            continue
    return False


def _before() -> None:
    _pools["before"] = _pools["left"] or _polars_runs()


def _in_child() -> None:
    _pools["left"] = _pools["before"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
