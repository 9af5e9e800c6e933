"""Check of the timestamps of commits: commits from the future, written with a clock ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.recovery.findings import Finding
from arrowlog.snapshot import CLOCK_TOLERANCE_MS, format_epoch_millis

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIX = "# Set the clock of the machine that wrote these versions (NTP). The log needs no change."
# Unit of a duration and its length in seconds, the longest first.
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def check_commit_times(
    timestamps: Mapping[int, int], commits: Mapping[int, str], now_ms: int
) -> list[Finding]:
    """Report commits whose timestamps are later than now, all in one finding.

    `timestamps` are those of the commits by version, `commits` the keys of their files.
    """
    ahead = {v: time for v, time in timestamps.items() if time > now_ms + CLOCK_TOLERANCE_MS}
    if not ahead:
        return []
    first, last = min(ahead), max(ahead)
    contiguous = last - first + 1 == len(ahead)
    span = f"versions {first} to {last} are" if contiguous else f"{len(ahead):,} versions are"
    subject = span if len(ahead) > 1 else f"version {first} is"
    farthest = max(ahead.values())
    what = (
        f"{subject} dated in the future, up to {format_duration((farthest - now_ms) // 1000)} ahead"
        f" ({format_epoch_millis(farthest)}): the clock of a writer was wrong. Writers keep"
        " timestamps in order, so later versions may be dated after it, too. Until that time,"
        " snapshot(timestamp=…) uses the modification times of these commit files instead."
    )
    return [
        Finding("commit-in-future", "warning", what, commits[first], _FIX, len(ahead), None, first)
    ]


def format_duration(seconds: int) -> str:
    """Format a duration in its largest unit, rounded down.

    >>> format_duration(90_000), format_duration(7_199), format_duration(61)
    ('1 day', '1 hour', '1 minute')
    """
    unit, length = next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])
    count = seconds // length
    return f"{count:,} {unit}{'s' if count != 1 else ''}"
