"""Ranges of versions: the transaction ids of recent commits, and retired versions. Pure.

Recent commits: a writer that cannot tell whether its commit is part of the log looks it up. The
newest snapshot holds the `txnId` of each of the last thousand versions. Checkpoints contain the
ids, so that the answer survives the deletion of the commit files.

Retired versions: commits that clean-up or truncation may have deleted. Before a commit file is
deleted, its version is recorded in `_retired/<last>-<first>.json`. The record makes deletion safe
in the presence of stalled writers. A writer that was suspended between reading the end of the log
and its put may find its version free *because the commit there was deleted*. Its put then succeeds,
but the file is not part of the log: readers ignore commit files at retired versions, and a writer
whose version is retired must look up in the log whose commit that version was.

All information is in the file names, so one listing is enough. A record is deleted only after a
record exists that covers it and sorts after it: a listing in ascending order cannot miss both.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A stalled writer that is further behind gets CommitStateUnknown. 1,000 random ids take 36 KB in a
# checkpoint and cover 10 seconds at 100 commits per second.
MAX_RECENT_COMMITS = 1000


@dataclass(frozen=True, slots=True)
class RecentCommits:
    """The `txnId` of each version from `first` on; None for a commit without one.

    Versions below `first` are unknown, which is different from None.
    """

    first: int = 0
    txn_ids: tuple[str | None, ...] = ()

    @property
    def last(self) -> int:
        """The newest version that is known; `first - 1` if none is."""
        return self.first + len(self.txn_ids) - 1

    def knows(self, version: int) -> bool:
        """Return whether the id of a version is known, including a known absence."""
        return self.first <= version <= self.last

    def txn_id(self, version: int) -> str | None:
        """Return the id of the commit at a known version; None if the commit has no id."""
        return self.txn_ids[version - self.first]

    def version_of(self, txn_id: str) -> int | None:
        """Return the version of the commit with this id; None if it is not among them."""
        if txn_id not in self.txn_ids:
            return None
        return self.first + self.txn_ids.index(txn_id)

    def extended(self, txn_ids: Sequence[str | None]) -> RecentCommits:
        """Return these ids followed by more, limited to the last `MAX_RECENT_COMMITS`."""
        ids = (*self.txn_ids, *txn_ids)
        num_dropped = max(len(ids) - MAX_RECENT_COMMITS, 0)
        return RecentCommits(self.first + num_dropped, ids[num_dropped:])

    def followed_by(self, later: RecentCommits) -> RecentCommits:
        """Return these ids and later ones; only the later ones if versions between are unknown."""
        if not later.txn_ids or later.first > self.last + 1:
            return later if later.txn_ids else self
        return self.extended(later.txn_ids)


def no_recent_commits(version: int) -> RecentCommits:
    """Return an empty `RecentCommits` for a checkpoint at `version` that holds no ids."""
    return RecentCommits(version + 1)


RETIRED_FOLDER = "_retired"
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.json")


def retired_record_name(first: int, last: int) -> str:
    """Return the file name of the record of versions `first` to `last`.

    >>> retired_record_name(1, 480)
    '00000000000000000480-00000000000000000001.json'
    """
    return f"{last:020d}-{first:020d}.json"


@dataclass(frozen=True, slots=True)
class RetiredVersions:
    """A set of versions as disjoint ascending ranges, both ends inclusive."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, version: object) -> bool:
        if not self.ranges or not isinstance(version, int):
            return False
        index = bisect_right(self.ranges, (version, version)) - 1
        # A range that starts at `version` and ends later sorts after (version, version).
        return self._covers(index, version) or self._covers(index + 1, version)

    def _covers(self, index: int, version: int) -> bool:
        if not 0 <= index < len(self.ranges):
            return False
        first, last = self.ranges[index]
        return first <= version <= last

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any version from `first` to `last` is retired."""
        return any(low <= last and first <= high for low, high in self.ranges)

    def union(self, versions: Iterable[int]) -> RetiredVersions:
        """Return this set with further versions."""
        return _merge_ranges([*self.ranges, *((version, version) for version in versions)])


def parse_retired_records(names: Iterable[str]) -> RetiredVersions:
    """Return the versions that the records in a `_retired` folder cover; ignore other names."""
    return _merge_ranges([(first, last) for first, last, _ in _parse_records(names)])


def _parse_records(names: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return first version, last version and name of each record."""
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return [(int(match[2]), int(match[1]), match[0]) for match in matches]


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> RetiredVersions:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return RetiredVersions(tuple(merged))


def superseded_records(names: Iterable[str], ranges: Iterable[tuple[int, int]]) -> list[str]:
    """Return the records that may be deleted, given `ranges` that are recorded already.

    A record may be deleted if one of the ranges covers it and the range's record sorts after it.
    """
    recorded = list(ranges)
    return [
        name
        for first, last, name in _parse_records(names)
        if any(low <= first and last < high for low, high in recorded)
    ]
