"""Which files make up a version of a table. Pure: names in, a plan out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt
from arrowlog.log.names import LOG, commit_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from arrowlog.log.names import Listing


@dataclass(frozen=True, slots=True)
class Gap:
    """A version is missing although later ones are there."""

    missing: int
    next: int

    def __str__(self) -> str:
        """Say it in words."""
        return (
            f"version {self.missing} is missing although version {self.next} is there;"
            f" the table is read as of version {self.missing - 1}"
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """The files that, read in order, give one version.

    1. `commits` are contiguous and ascend.
    2. They begin right after `checkpoint`, or at version 0 without one.
    3. The last of them, or the checkpoint, is `version`.
    4. A `gap` is where reading had to stop; nothing behind it is in the segment.
    """

    version: int
    checkpoint: int | None
    commits: tuple[tuple[int, str], ...]
    gap: Gap | None = None


def checkpoint_versions(listing: Listing) -> list[int]:
    """Versions that have a checkpoint of any form, newest first."""
    return sorted({*listing.json_checkpoints, *listing.parquet_checkpoints}, reverse=True)


def plan(listing: Listing, version: int | None, unusable: Collection[int] = ()) -> Segment:
    """The segment for `version` (None: the newest), not building on checkpoints in `unusable`.

    A checkpoint that turned out bad must not make a table look older than it is: if the commits
    under it are gone, that is an error, not a gap.
    """
    bases = [v for v in checkpoint_versions(listing) if version is None or v <= version]
    usable = [v for v in bases if v not in unusable]
    base = usable[0] if usable else None
    commits, gap = _follow(listing, -1 if base is None else base, version)
    reached = commits[-1][0] if commits else base
    lost = [v for v in bases if v in unusable and (reached is None or v > reached)]
    if lost or reached is None:
        raise _unreachable(listing, base, lost)
    if version is None and gap is not None and gap.missing in listing.retired:
        raise _no_checkpoint(listing, gap)
    return Segment(reached, base, commits, gap)


def _follow(
    listing: Listing, base: int, stop: int | None
) -> tuple[tuple[tuple[int, str], ...], Gap | None]:
    """Commits right after `base`, until `stop`, the end, or a gap."""
    later = sorted(listing.commits)
    if later and (later[0] <= base or (stop is not None and later[-1] > stop)):
        later = [v for v in later if v > base and (stop is None or v <= stop)]
    contiguous = len(later)
    if later and later[-1] - base != len(later):
        contiguous = next(i for i, v in enumerate(later) if v != base + 1 + i)
    found = later[:contiguous]
    commits = tuple(zip(found, map(listing.commits.__getitem__, found), strict=True))
    gap = Gap(base + 1 + contiguous, later[contiguous]) if contiguous < len(later) else None
    return commits, gap


def _unreachable(listing: Listing, base: int | None, lost: list[int]) -> LogCorrupt:
    first = 0 if base is None else base + 1
    missing = next(
        v for v in range(first, first + len(listing.commits) + 1) if v not in listing.commits
    )
    backup = "Restore the checkpoint or the missing commits from a backup."
    if listing.dead:
        backup += f" Commits that were restored count once {LOG}/_retired is deleted as well."
    if lost:
        return LogCorrupt(
            f"the checkpoint of version {lost[0]} cannot be read, and without it version"
            f" {missing} is needed, which is gone.",
            next=backup,
            file=f"{LOG}/{commit_name(missing)}",
            version=missing,
        )
    return LogCorrupt(
        f"version {missing} is missing and there is no checkpoint to start from.",
        next="Restore the file from a backup.",
        file=f"{LOG}/{commit_name(missing)}",
        version=missing,
    )


def _no_checkpoint(listing: Listing, gap: Gap) -> LogCorrupt:
    """Commits were deleted because a checkpoint stood for them, and the checkpoint is gone."""
    backup = "Restore the checkpoint from a backup, or the commits."
    if listing.dead:
        backup += f" Commits that were restored count once {LOG}/_retired is deleted as well."
    return LogCorrupt(
        f"version {gap.missing} was cleaned up, and the checkpoint that stood for it is gone.",
        next=backup,
        file=f"{LOG}/{commit_name(gap.missing)}",
        version=gap.missing,
    )


def earliest(listing: Listing, newest: int) -> int:
    """The lowest version from which on every version up to `newest` can be rebuilt."""
    bases = set(checkpoint_versions(listing))
    low = newest  # every version after `low` has its commit, or a checkpoint instead
    while low >= 0 and (low in listing.commits or low in bases):
        low -= 1
    if low < 0 and 0 in listing.commits:
        return 0
    return min(v for v in (*bases, newest) if low < v <= newest)
