"""The time of a commit: in-commit timestamps, else the modification times of its file. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENABLED = "delta.enableInCommitTimestamps"
_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"


def in_commit_timestamps_since(configuration: Mapping[str, str]) -> int | None:
    """Return the first version whose commit carries its time; None if no commit does.

    >>> in_commit_timestamps_since({"delta.enableInCommitTimestamps": "true"})
    0
    """
    if configuration.get(_ENABLED, "false").lower() != "true":
        return None
    version = configuration.get(_ENABLEMENT_VERSION, "0")
    return int(version) if version.isascii() and version.isdigit() else 0


def monotonic_times(file_times: Sequence[int]) -> list[int]:
    """Return the times of consecutive commits from the modification times of their files.

    Files may be copied or clocks may go back, but a later commit must have a later time: where the
    time of a file is not above that of the commit before, it becomes one millisecond more.

    >>> monotonic_times([5, 3, 9])
    [5, 6, 9]
    """
    times: list[int] = []
    for time in file_times:
        times.append(max(time, times[-1] + 1) if times else time)
    return times
