"""The transaction ids of the last versions. Pure.

A writer that cannot tell whether its commit is part of the log looks it up: the newest snapshot
holds the `txnId` of each of the last thousand versions. Checkpoints contain the ids, so that the
answer survives the deletion of the commit files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
