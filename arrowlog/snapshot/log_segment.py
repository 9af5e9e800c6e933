"""Log segments: choose the checkpoint and the commits that make up a version. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.formats import CommitFile

if TYPE_CHECKING:
    from collections.abc import Collection

    from arrowlog.formats import LogListing


@dataclass(frozen=True, slots=True)
class VersionGap:
    """A version that is missing although a later version exists."""

    missing: int
    next: int

    def __str__(self) -> str:
        """Describe the gap and its consequence, for warnings."""
        return f"{self.what}; the table is read as of version {self.missing - 1}"

    @property
    def what(self) -> str:
        """What is missing, for errors."""
        return f"version {self.missing} is missing although version {self.next} is there"


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A log segment: the files that, replayed in order, give one version.

    Invariants:

    1. `commits` are contiguous and ascending. A compacted commit, which stands for missing ones,
       has the last of their versions.
    2. They start right after `checkpoint`, or at version 0 if there is no checkpoint.
    3. The last commit, or else the checkpoint, is at `version`.
    4. `gap` is where replay has to stop; the segment contains nothing after it.
    """

    version: int
    checkpoint: int | None
    commits: tuple[CommitFile, ...]
    gap: VersionGap | None = None


def checkpoint_versions(listing: LogListing) -> list[int]:
    """Return the versions that have a checkpoint of any form, newest first."""
    return sorted(listing.checkpoints, reverse=True)


def plan_segment(
    listing: LogListing, version: int | None, unusable: Collection[int] = ()
) -> LogSegment:
    """Choose the segment for `version` (None: the newest) without the checkpoints in `unusable`.

    Stops at a gap and records it in the segment. An unusable checkpoint must not make a table look
    older than it is: if the commits below it are gone, `LogCorrupt` is raised instead of recording
    a gap. `LogCorrupt` is also raised if there is nothing to start from, and if the segment needs a
    commit below a table state that has no commit of its own: whether it was applied is unknown.
    """
    checkpoints = [v for v in checkpoint_versions(listing) if version is None or v <= version]
    usable = [v for v in checkpoints if v not in unusable]
    base = usable[0] if usable else None
    commits, gap = _contiguous_commits(listing, -1 if base is None else base, version)
    reached = commits[-1].version if commits else base
    lost = [v for v in checkpoints if v in unusable and (reached is None or v > reached)]
    if lost or reached is None:
        raise _no_base_error(listing, base, lost)
    shadow = listing.state_only_version
    shadowed = next((commit for commit in commits if 0 < commit.version < shadow), None)
    if shadowed is not None:
        raise _shadowed_error(listing, shadowed)
    if version is None and gap is not None and gap.missing in listing.retired:
        raise _lost_checkpoint_error(listing, gap)
    return LogSegment(reached, base, commits, gap)


def _contiguous_commits(
    listing: LogListing, base: int, stop: int | None
) -> tuple[tuple[CommitFile, ...], VersionGap | None]:
    """Return the commits right after `base` up to `stop`, the end of the log, or a gap."""
    later = sorted(listing.commits)
    if later and (later[0] <= base or (stop is not None and later[-1] > stop)):
        later = [v for v in later if v > base and (stop is None or v <= stop)]
    num_contiguous = len(later)
    if later and later[-1] - base != len(later):
        num_contiguous = next(i for i, v in enumerate(later) if v != base + 1 + i)
    versions = later[:num_contiguous]
    commits = tuple(listing.commit_files(versions))
    gap = None
    if num_contiguous < len(later):
        gap = VersionGap(base + 1 + num_contiguous, later[num_contiguous])
    end = stop if stop is not None else max(later, default=base)
    if listing.compactions and (commits[-1].version if commits else base) < end:
        return _with_compactions(listing, base, end)
    return commits, gap


def _with_compactions(
    listing: LogListing, base: int, end: int
) -> tuple[tuple[CommitFile, ...], VersionGap | None]:
    """Return the commits after `base` up to `end`, compacted ones in place of missing ones.

    Commits that exist are preferred: a compacted commit says nothing about the versions in it.
    """
    chosen: list[tuple[int, CommitFile]] = []  # with the first version that each stands for
    version = base + 1
    while version <= end:
        commit = listing.commit_file(version)
        if commit is not None:
            chosen.append((version, commit))
            version += 1
            continue
        spans = [
            (last, first)
            for first, last in listing.compactions
            # It may replace whole files only: those before it, or commits that it contains.
            if base < first <= version <= last <= end
            and not any(start < first <= file.version for start, file in chosen)
        ]
        if not spans:
            break
        last, first = max(spans)
        chosen = [(start, file) for start, file in chosen if file.version < first]
        chosen.append((first, CommitFile(last, listing.compactions[first, last])))
        version = last + 1
    commits = tuple(file for _, file in chosen)
    later = [v for v in listing.commits if version < v <= end]
    return commits, VersionGap(version, min(later)) if later else None


def _retired_hint(listing: LogListing) -> str:
    """Return a further step for logs in which commits exist at retired versions."""
    if not listing.dead:
        return ""
    records = listing.format.key(listing.format.retired_folder)
    return f" Restored commits are ignored until {records} is deleted as well."


def _no_base_error(listing: LogListing, base: int | None, lost: list[int]) -> LogCorrupt:
    """Return the error for a log that cannot be replayed, as commits or checkpoints are missing."""
    first = 0 if base is None else base + 1
    missing = next(
        v for v in range(first, first + len(listing.commits) + 1) if v not in listing.commits
    )
    if lost:
        return LogCorrupt(
            f"the checkpoint of version {lost[0]} cannot be read, and the commit of version"
            f" {missing}, which is needed instead, is gone.",
            next="Restore the checkpoint or the missing commits from a backup."
            + _retired_hint(listing),
            file=listing.format.commit_file(missing).key,
            version=missing,
        )
    return LogCorrupt(
        f"version {missing} is missing and there is no checkpoint to start from.",
        next="Restore the file from a backup.",
        file=listing.format.commit_file(missing).key,
        version=missing,
    )


def retired_record_error(listing: LogListing) -> LogCorrupt:
    """Return the error for a listing that shows no checkpoint above the retired versions.

    Commits are retired only below a checkpoint. Believing such a record would hide commits.
    """
    first, last = listing.retired.ranges[-1]
    return LogCorrupt(
        f"versions {first} to {last} are recorded as cleaned up, but there is no checkpoint above"
        " them: it is gone, or the record is wrong.",
        next="Restore the checkpoint from a backup, or delete the record if no cleanup wrote it."
        + _retired_hint(listing),
        file=listing.format.key(listing.format.retired_folder, f"{last:020d}-*.json"),
        version=last,
    )


def with_cause(error: LogCorrupt, damaged: LogCorrupt) -> LogCorrupt:
    """Return the error of a log that cannot be replayed, with what is wrong with its checkpoint."""
    where = f"{damaged.file}: " if damaged.file else ""
    return LogCorrupt(
        f"{error.what} What is wrong with the checkpoint: {where}{damaged.what}",
        next=error.next,
        file=error.file,
        version=error.version,
        code=error.code,
    )


def no_longer_available_error(version: int | None, first: int) -> InvalidRequest:
    """Return the error for a version below `first`, the earliest that cleanup has left."""
    return InvalidRequest(
        f"Version {version} is no longer available: the log was cleaned up to version {first}.",
        next=f"Read version {first} or a later one.",
        version=version,
    )


def missing_file_error(error: FileNotFoundError) -> LogCorrupt:
    """Return the error for a file that two listings showed and that cannot be read."""
    if isinstance(error.__cause__, LogCorrupt):
        return error.__cause__
    return LogCorrupt(
        "it was listed, but it is gone.",
        next="Another program is deleting files of the log; try again when it has finished.",
        file=str(error),
    )


def _lost_checkpoint_error(listing: LogListing, gap: VersionGap) -> LogCorrupt:
    """Return the error for commits that cleanup deleted below a checkpoint that is gone."""
    return LogCorrupt(
        f"version {gap.missing} was cleaned up, and the checkpoint that replaced it is gone.",
        next="Restore the checkpoint or the commits from a backup." + _retired_hint(listing),
        file=listing.format.commit_file(gap.missing).key,
        version=gap.missing,
    )


def _shadowed_error(listing: LogListing, commit: CommitFile) -> LogCorrupt:
    """Return the error for a version that only a commit below a state without a commit describes.

    Writers for which the states are the commits do not read it: it may not be part of the table.
    """
    return LogCorrupt(
        f"the commit of version {commit.version} may not be part of the table: the table state of"
        f" version {listing.state_only_version} has no commit, so that its writer ignores commits.",
        next="Read a version that has a table state; table.doctor() lists such commits.",
        file=commit.key,
        version=commit.version,
    )


def earliest_rebuildable_version(
    listing: LogListing, newest: int, broken: Collection[int] = ()
) -> int:
    """Return the lowest version from which every version up to `newest` can be rebuilt.

    `broken` are versions whose checkpoints cannot be used.
    """
    checkpoints = set(checkpoint_versions(listing)).difference(broken)
    commits = listing.applied_commits()
    low = newest  # invariant: every version after `low` has a commit or a checkpoint
    while low >= 0 and (low in commits or low in checkpoints):
        low -= 1
    if low < 0 and 0 in listing.commits:
        return 0
    return min(v for v in (*checkpoints, newest) if low < v <= newest)


def states_without_commits(listing: LogListing, first: int, newest: int) -> list[int]:
    """Return the versions from `first` to `newest` that only a table state can give, ascending.

    The first version counts if it has a state: the commits below it may be gone.
    """
    if not listing.format.state_kinds:
        return []
    applied = listing.applied_commits()
    return [
        version
        for version in sorted(listing.checkpoints)
        if first <= version <= newest
        and (version not in applied or version == first)
        and listing.state_file(version) is not None
    ]
