"""A memory guard: raises `LogTooLarge` before the process runs out of memory.

The kernel kills a process that exceeds its container's limit, without a message. So code that reads
much data checks its memory use against the limit now and then.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import LogTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below this many bytes read, a log cannot be the reason, and no check is needed.
CHECK_FROM_BYTES = 16 << 20
# The share of the limit at which reading stops.
_USED_SHARE_MAX = 0.9
# Control groups (version 1) without a limit report a huge number instead.
_UNLIMITED_BYTES = 1 << 60
_CGROUP_ROOT = "/sys/fs/cgroup"


def check_memory(root: str, read: int, limit: int) -> None:
    """Raise `LogTooLarge` if the process is about to exceed its memory limit.

    `read` is the number of bytes of the log read so far. `limit` is in bytes; 0 means the limit of
    the process, see `memory_limit_bytes`.
    """
    if read < CHECK_FROM_BYTES:
        return
    allowed = limit or memory_limit_bytes()
    if allowed is None or used_memory_bytes() < allowed * _USED_SHARE_MAX:
        return
    pa.default_memory_pool().release_unused()  # Arrow may hold memory that it no longer uses
    used = used_memory_bytes()
    if used < allowed * _USED_SHARE_MAX:
        return
    raise LogTooLarge(
        f"The log of {root} is too large for this process: after {read >> 20:,} MB of it,"
        f" {used >> 20:,} of {allowed >> 20:,} MB of memory are in use.",
        next="Write a checkpoint on a cluster with arrowlog.spark.checkpoint(spark, uri): planning"
        " on it needs little memory. Or give the process more memory.",
    )


def used_memory_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_limit_bytes() -> int | None:
    """Return the smallest memory limit in bytes: of the control groups and the machine.

    None where none is known.
    """
    limits = [
        size
        for size in (*_cgroup_limits(), _machine_bytes())
        if size is not None and size < _UNLIMITED_BYTES
    ]
    return min(limits, default=None)


def _machine_bytes() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return sum(int(fields[name].split()[0]) << 10 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _cgroup_limits() -> Iterator[int | None]:
    """Yield the limits of this process's control groups (version 1 or 2) and all their parents."""
    try:
        with open("/proc/self/cgroup") as lines:
            entries = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        if controllers:
            root, file = f"{_CGROUP_ROOT}/memory", "memory.limit_in_bytes"
        else:  # version 2 has one hierarchy and lists no controllers
            root, file = _CGROUP_ROOT, "memory.max"
        names = [name for name in path.split("/") if name]
        for depth in range(len(names) + 1):
            yield _read_limit("/".join([root, *names[:depth], file]))


def _read_limit(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # it does not exist, or says `max`
        return None
