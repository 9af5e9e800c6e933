"""Which files of a log may go, by the rules of the protocol. Pure: names and times in, a plan out.

A commit may go if it is older than `logRetention.duration`, below a verified checkpoint, below the
current version, and not version 0. A checkpoint may go if it is older than
`checkpointRetention.duration` and a newer one is verified. The checkpoint on which the commits rest
that stay goes last: without it nobody could read what the commits were kept for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.log.names import CHECKPOINTS, LOG, Listing, part_of, read_listing
from arrowlog.log.segment import earliest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from arrowlog.log.store.base import Stat

_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("version", pa.int64()),
        ("size_bytes", pa.int64()),
        ("modification_time", pa.timestamp("ms", "UTC")),
    ]
)

_UNKNOWN = 1 << 62  # later than any moment: what has no time never gets old


@dataclass(frozen=True, slots=True)
class Policy:
    """How long files are kept, in milliseconds; `commits` is how many behind a checkpoint stay."""

    log_ms: int
    checkpoint_ms: int
    commits: int = 0


@dataclass(frozen=True, slots=True)
class File:
    """A file of a log."""

    key: str
    kind: str
    version: int
    stat: Stat


@dataclass(frozen=True, slots=True)
class Retention:
    """What clean-up does: the files that go, and the versions that can be read afterwards."""

    doomed: tuple[File, ...] = field(repr=False)
    version: int
    checkpoint: int | None
    earliest_version: int
    versions: tuple[int, ...] = field(repr=False)
    starts: tuple[int, ...] = field(repr=False, default=())  # checkpoints they cannot do without
    store_time_ms: int = field(repr=False, default=0)  # of the newest file, by the store's clock
    num_too_young: int = field(repr=False, default=0)  # commits that stay for some seconds more

    @property
    def num_files(self) -> int:
        """How many files go."""
        return len(self.doomed)

    @property
    def num_commits(self) -> int:
        """How many of them are commits."""
        return sum(file.kind == "commit" for file in self.doomed)

    @property
    def bytes_freed(self) -> int:
        """How many bytes they have."""
        return sum(file.stat.size for file in self.doomed)

    @property
    def files(self) -> pa.Table:
        """The files that go: path, kind, version, size_bytes, modification_time."""
        columns = {
            "path": [file.key for file in self.doomed],
            "kind": [file.kind for file in self.doomed],
            "version": [file.version for file in self.doomed],
            "size_bytes": [file.stat.size for file in self.doomed],
            "modification_time": [file.stat.mtime_ms for file in self.doomed],
        }
        return pa.table(columns, schema=_FILES)


def sort_files(log: Mapping[str, Stat], inner: Mapping[str, Stat]) -> list[File]:
    """The files of a log by what they are; what is none of a log's names is left out."""
    found = []
    for folder, entries in ((LOG, log), (f"{LOG}/{CHECKPOINTS}", inner)):
        for name, stat in entries.items():
            part = part_of(name)
            if part is not None and (part[0] == "checkpoint" or folder == LOG):
                found.append(File(f"{folder}/{name}", part[0], part[1], stat))
    return sorted(found, key=lambda file: (file.version, file.key))


def decide(
    files: Sequence[File],
    version: int,
    verified: int | None,
    policy: Policy,
    now_ms: int,
    bad: Collection[int] = (),
    held: Collection[int] = (),
    dead: Collection[int] = (),
) -> Retention:
    """What may go at a moment, given the current version and the newest verified checkpoint.

    Nothing is promised on checkpoints that are known to be `bad`. Commits that are `held` stay.
    Commit files at retired versions are `dead`: they go whatever their age, and promise nothing.
    """
    written = _written(files)
    doomed = tuple(
        file
        for file in files
        if verified is not None
        and (
            (file.kind == "commit" and file.version in dead)
            or (
                not (file.kind == "commit" and file.version in held)
                and _may_go(
                    file, now_ms - written[file.kind, file.version], version, verified, policy
                )
            )
        )
    )
    aged = [file for file in files if file.kind != "commit" or file.version not in held]
    pillar = _pillar(aged, {file.key for file in doomed}, version, bad)
    doomed = tuple(file for file in doomed if (file.kind, file.version) != ("checkpoint", pillar))
    gone = {file.key for file in doomed}
    left = [
        file.key
        for file in files
        if file.key not in gone and file.version not in (dead if file.kind == "commit" else bad)
    ]
    listing = _listing(left)
    versions = readable(listing, version)
    starts = starts_of(listing, versions)
    first = version if listing.empty else earliest(listing, version)
    latest = max((file.stat.mtime_ms for file in files), default=0)
    return Retention(doomed, version, verified, first, versions, starts, latest)


def _pillar(
    files: Sequence[File], gone: Collection[str], version: int, bad: Collection[int]
) -> int | None:
    """The lowest checkpoint from which on the commits that stay lead to the current version."""
    commits = {file.version for file in files if file.kind == "commit" and file.key not in gone}
    low = version
    while low - 1 in commits:
        low -= 1
    if low == 0:
        return None  # they rest on themselves
    known = {file.version for file in files if file.kind == "checkpoint"} - set(bad)
    base = low if low in known else low - 1  # the first commit is worth as much by itself
    return min((c for c in known if base <= c <= version), default=None)


def _written(files: Sequence[File]) -> dict[tuple[str, int], int]:
    """When each commit and checkpoint was written. One in parts goes as a whole, or not at all."""
    written: dict[tuple[str, int], int] = {}
    for file in files:
        name, when = (file.kind, file.version), file.stat.mtime_ms
        when = _UNKNOWN if when < 0 else when
        written[name] = max(when, written.get(name, when))
    return written


def _may_go(file: File, age: int, version: int, verified: int, policy: Policy) -> bool:
    if file.kind == "checkpoint":
        return file.version < verified and age > policy.checkpoint_ms
    below = verified - policy.commits
    return file.version < below and 0 < file.version < version and age > policy.log_ms


def _listing(keys: Sequence[str]) -> Listing:
    inner = f"{LOG}/{CHECKPOINTS}/"
    names = [key[len(LOG) + 1 :] for key in keys if not key.startswith(inner)]
    return read_listing(names, [key[len(inner) :] for key in keys if key.startswith(inner)])


def starts_of(listing: Listing, versions: Sequence[int]) -> tuple[int, ...]:
    """Of versions that can be rebuilt, those for which nothing but a checkpoint does it."""
    known = set(versions)
    follow = known & listing.commits.keys()
    return tuple(v for v in versions if v and (v not in follow or v - 1 not in known))


def readable(listing: Listing, newest: int) -> tuple[int, ...]:
    """Every version that can be rebuilt from what a listing has."""
    bases = {*listing.json_checkpoints, *listing.parquet_checkpoints}
    known = sorted(v for v in {*listing.commits, *bases} if v <= newest)
    found: list[int] = []
    for v in known:
        follows = v in listing.commits and (v == 0 or (bool(found) and found[-1] == v - 1))
        if v in bases or follows:
            found.append(v)
    return tuple(found)
