"""How much memory this process may have, so that a log that is too large ends in words.

A process that asks for more than its container has is killed, and nobody hears why. So whoever
reads much looks at times how much there is left, and says so before the kernel does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import LogTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGE = 16 << 20  # bytes of a log from which on it is worth a look
_FULL = 0.9  # of what there is
_NONE = 1 << 60  # control groups without a limit say a number as large as they have
_GROUPS = "/sys/fs/cgroup"


def check_room(root: str, read: int, limit: int) -> None:
    """Raise `LogTooLarge` if reading on would be the end; `limit` 0 is what the process may have.

    `read` bytes of the log have been read so far.
    """
    if read < _LARGE:
        return
    allowed = limit or allowed_bytes()
    if allowed is None or used_bytes() < allowed * _FULL:
        return
    pa.default_memory_pool().release_unused()
    used = used_bytes()
    if used < allowed * _FULL:
        return
    raise LogTooLarge(
        f"The log of {root} is too large for this process: after {read >> 20:,} MB of it,"
        f" {used >> 20:,} of {allowed >> 20:,} MB of memory are in use.",
        next="Make a checkpoint on a cluster with arrowlog.spark.checkpoint(spark, uri): plans on"
        " it need little memory. Or give the process more.",
    )


def used_bytes() -> int:
    """What this process has in memory; 0 where nobody can tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def allowed_bytes() -> int | None:
    """What this process may have: of its control groups and of the machine the least."""
    found = [size for size in (*_of_groups(), _of_machine()) if size is not None and size < _NONE]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            told = dict(line.split(":", 1) for line in lines)
        return sum(int(told[name].split()[0]) << 10 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _of_groups() -> Iterator[int | None]:
    """The limits of the groups it is in, of either kind; those above them limit it as well."""
    try:
        with open("/proc/self/cgroup") as lines:
            entries = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return
    for _, kinds, path in (entry for entry in entries if len(entry) == 3):
        if kinds and "memory" not in kinds.split(","):
            continue
        top, name = (
            (f"{_GROUPS}/memory", "memory.limit_in_bytes") if kinds else (_GROUPS, "memory.max")
        )
        steps = [step for step in path.split("/") if step]
        for depth in range(len(steps) + 1):
            yield _number("/".join([top, *steps[:depth], name]))


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # it is not there, or says `max`
        return None
