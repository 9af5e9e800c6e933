"""Whose commits the last versions are. Pure.

A writer that cannot tell whether its commit counts asks the log: the newest state says which
`txnId` stands at each of the last thousand versions. Checkpoints carry the ids, so the answer
outlives the commit files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A stalled writer that is further behind is told CommitStateUnknown. 1,000 random ids are 36 KB in
# a checkpoint, and cover 10 seconds at 100 commits a second.
RECENT_MAX = 1000


@dataclass(frozen=True, slots=True)
class RecentCommits:
    """The `txnId` of each version from `first` on, None for a commit without one.

    Versions below `first` are unknown, which is not the same as None.
    """

    first: int = 0
    txn_ids: tuple[str | None, ...] = ()

    @property
    def last(self) -> int:
        """The newest version that is known."""
        return self.first + len(self.txn_ids) - 1

    def knows(self, version: int) -> bool:
        """Whether it is known whose commit a version is."""
        return self.first <= version <= self.last

    def txn_id(self, version: int) -> str | None:
        """The id of the commit at a version that `knows`; None if the commit has none."""
        return self.txn_ids[version - self.first]

    def version_of(self, txn_id: str) -> int | None:
        """The version that a commit has become; None if it is not among these."""
        if txn_id not in self.txn_ids:
            return None
        return self.first + self.txn_ids.index(txn_id)

    def extended(self, txn_ids: Sequence[str | None]) -> RecentCommits:
        """These and the versions that follow, cut to the last `RECENT_MAX`."""
        ids = (*self.txn_ids, *txn_ids)
        cut = max(len(ids) - RECENT_MAX, 0)
        return RecentCommits(self.first + cut, ids[cut:])

    def followed_by(self, later: RecentCommits) -> RecentCommits:
        """These and later ones, which begin right behind or leave out some in between."""
        if not later.txn_ids or later.first > self.last + 1:
            return later if later.txn_ids else self
        return self.extended(later.txn_ids)


def unknown_before(version: int) -> RecentCommits:
    """What is known after a checkpoint that does not say: nothing up to its version."""
    return RecentCommits(version + 1)
