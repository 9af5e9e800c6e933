"""Retired versions: commits that clean-up or truncation may have deleted. Pure.

Before a commit file is deleted, its version is recorded in `_retired/<last>-<first>.json`. The
record is what makes deletion safe beside stalled writers. A writer that was suspended between
reading the end of the log and its put may find the version it wants empty *because it was deleted*;
its put then succeeds, but the file does not count. Whoever finds a commit file at a retired version
ignores it, and a writer whose version is retired must ask the log whose commit stood there.

All information is in the names, so one listing tells everything. A record is deleted only after one
that covers it and sorts behind it exists: a listing in ascending order cannot miss both.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = "_retired"
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.json")


def record_name(first: int, last: int) -> str:
    """The name of the record of versions `first` to `last`.

    >>> record_name(1, 480)
    '00000000000000000480-00000000000000000001.json'
    """
    return f"{last:020d}-{first:020d}.json"


@dataclass(frozen=True, slots=True)
class RetiredVersions:
    """A set of versions as disjoint ascending ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, version: object) -> bool:
        if not self.ranges or not isinstance(version, int):
            return False
        place = bisect_right(self.ranges, (version, version)) - 1
        return self._covers(place, version) or self._covers(place + 1, version)

    def _covers(self, place: int, version: int) -> bool:
        if not 0 <= place < len(self.ranges):
            return False
        first, last = self.ranges[place]
        return first <= version <= last

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any version from `first` to `last` is retired."""
        return any(low <= last and first <= high for low, high in self.ranges)

    def union(self, versions: Iterable[int]) -> RetiredVersions:
        """This set and some versions more."""
        return _merged([*self.ranges, *((version, version) for version in versions)])


def read_records(names: Iterable[str]) -> RetiredVersions:
    """The versions that the records in a `_retired` folder cover; other names are ignored."""
    found = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return _merged([(int(match[2]), int(match[1])) for match in found])


def _merged(ranges: Iterable[tuple[int, int]]) -> RetiredVersions:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return RetiredVersions(tuple(merged))


def superseded(names: Iterable[str], ranges: Iterable[tuple[int, int]]) -> list[str]:
    """The records that one of `ranges`, all of them recorded, covers and sorts behind."""
    found = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    records = [(int(match[2]), int(match[1]), match[0]) for match in found]
    covers = list(ranges)
    return [
        name
        for first, last, name in records
        if any(low <= first and last < high for low, high in covers)
    ]
