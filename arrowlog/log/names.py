"""File names of a log: read every spelling anyone ever wrote, write one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt
from arrowlog.log.retired import RetiredVersions

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = "_transaction_log"
CHECKPOINTS = "_checkpoints"
POINTER = "_last_checkpoint"
VERSION_MAX = (1 << 63) - 1
_DIGITS_MAX = 4000
_USUAL = len("00000000000000000000.json")

_JSON_PART = re.compile(r"([0-9]+)\.checkpoint\.([0-9a-f]{12})\.([0-9]{5})\.json")
_PARQUET = re.compile(
    r"([0-9]+)\.checkpoint(?:\.([0-9a-f]{12}))?(?:\.([0-9]{5})-of-([0-9]{5}))?\.parquet"
)
_USUAL_NAMES = re.compile(r"(?:[0-9]{20}\.json)+")
_MANIFEST = re.compile(r"([0-9]+)\.checkpoint\.json")


def commit_name(version: int) -> str:
    """The name a commit is written under."""
    return f"{version:020d}.json"


def manifest_name(version: int) -> str:
    """The name of a Parquet checkpoint's manifest, in its folder."""
    return f"{version:020d}.checkpoint.json"


def parquet_names(version: int, parts: int, own: str = "") -> list[str]:
    """The names of a Parquet checkpoint's parts; with `own`, 12 hex digits, nobody else's.

    >>> parquet_names(7, 1)
    ['00000000000000000007.checkpoint.parquet']
    """
    stem = f"{version:020d}.checkpoint{own and f'.{own}'}"
    if parts == 1:
        return [f"{stem}.parquet"]
    return [f"{stem}.{number:05d}-of-{parts:05d}.parquet" for number in range(1, parts + 1)]


@dataclass(frozen=True, slots=True)
class Listing:
    """What the names in a log folder say, by version.

    `commits` and `json_checkpoints` hold the file name for each version. `parquet_checkpoints`
    holds the names of a Parquet checkpoint's files, its manifest among them, inside the
    `_checkpoints` folder. Names below version `start` were not listed. `dead` are commit files at
    `retired` versions, which do not count. `observed` is when the listing began, by
    `clock.boottime`.
    """

    commits: dict[int, str] = field(default_factory=dict)
    json_checkpoints: dict[int, str] = field(default_factory=dict)
    parquet_checkpoints: dict[int, tuple[str, ...]] = field(default_factory=dict)
    start: int = 0
    dead: dict[int, str] = field(default_factory=dict)
    retired: RetiredVersions = field(default_factory=RetiredVersions)
    observed: float = field(default=float("-inf"), compare=False)

    def without(self, retired: RetiredVersions) -> Listing:
        """The same without the commits at retired versions."""
        if not retired:
            return self
        dead = {v: name for v, name in self.commits.items() if v in retired}
        commits = {v: name for v, name in self.commits.items() if v not in dead}
        return replace(self, commits=commits, dead=dead, retired=retired)

    @property
    def overtaken(self) -> bool:
        """Whether the names are older than the records of retired versions.

        Commits are retired below a checkpoint; if none of the listed ones is above them all, it was
        made after the names were listed.
        """
        ranges = self.retired.ranges
        newest = max((*self.json_checkpoints, *self.parquet_checkpoints), default=-1)
        return bool(ranges) and ranges[-1][1] >= newest

    @property
    def empty(self) -> bool:
        """Whether there is no log at all."""
        return not (self.commits or self.json_checkpoints or self.parquet_checkpoints)

    @property
    def newest(self) -> int:
        """The highest version any file name speaks of; -1 without one."""
        return max(
            max(versions, default=-1)
            for versions in (self.commits, self.json_checkpoints, self.parquet_checkpoints)
        )


def read_listing(
    names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
) -> Listing:
    """Sort the names of the log folder, and of `_checkpoints` in it, by what they are.

    What is none of these names is ignored, temporary files included.
    """
    commits, others = _usual(list(names))
    listing = Listing(commits, start=start)
    for name in others:
        if not name.endswith(".json"):
            continue
        stem = name[:-5]
        if stem.isdigit() and stem.isascii():
            _put(listing.commits, stem, name)
        elif stem.endswith(".checkpoint") and (stem := stem[:-11]).isdigit() and stem.isascii():
            _put(listing.json_checkpoints, stem, name)
    listing.parquet_checkpoints.update(_parquet(checkpoint_names))
    return listing


def _usual(names: list[str]) -> tuple[dict[int, str], list[str]]:
    """The commits by version if they are named as we do, and all other names.

    Told for all at once: names of twenty digits in a row, none twice, are the versions between the
    first and the last if there are as many of them.
    """
    own = [name for name in names if len(name) == _USUAL]
    if not own or _USUAL_NAMES.fullmatch("".join(own)) is None:
        return {}, names
    own.sort()
    first, last = int(own[0][:20]), int(own[-1][:20])
    versions: Iterable[int] = range(first, last + 1)
    if last > VERSION_MAX or len(set(own)) != len(own):
        return {}, names
    if last - first + 1 != len(own):
        versions = [int(name[:20]) for name in own]
    return dict(zip(versions, own, strict=True)), [n for n in names if len(n) != _USUAL]


def part_of(name: str) -> tuple[str, int] | None:
    """Whether a file is a `commit` or part of a `checkpoint`, and of which version; else None."""
    stem, _, rest = name.partition(".")
    if not (stem.isdigit() and stem.isascii()) or len(stem) > _DIGITS_MAX:
        return None
    if rest == "json":
        return "commit", int(stem)
    if rest.startswith("checkpoint.") and rest.endswith((".json", ".parquet")):
        return "checkpoint", int(stem)
    return None


def _parquet(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Files by version. Parts under a writer's own names are nothing without the manifest."""
    found: dict[int, list[str]] = {}
    whole: set[int] = set()
    for name in names:
        match = _MANIFEST.fullmatch(name) or _PARQUET.fullmatch(name)
        if match is None:
            continue
        version = _version(match[1], name)
        found.setdefault(version, []).append(name)
        if name.endswith(".json") or match[2] is None:
            whole.add(version)
    return {version: tuple(sorted(found[version])) for version in whole}


def is_part(name: str, version: int) -> bool:
    """Whether `name` may be named as a part by the manifest of checkpoint `version`."""
    found = _JSON_PART.fullmatch(name)
    return found is not None and int(found[1]) == version


def is_parquet_part(name: str, version: int) -> bool:
    """Whether `name` may be named as a part by the manifest of Parquet checkpoint `version`."""
    found = _PARQUET.fullmatch(name)
    return found is not None and int(found[1]) == version


def _put(into: dict[int, str], stem: str, name: str) -> None:
    version = _version(stem, name)
    other = into.setdefault(version, name)
    if other != name:
        raise LogCorrupt(
            f"{name} and {other} are both version {version}.",
            next="Move the one that does not belong out of the folder.",
            file=f"{LOG}/{name}",
            version=version,
        )


def _version(stem: str, name: str) -> int:
    version = int(stem) if len(stem) < _DIGITS_MAX else VERSION_MAX + 1
    if version > VERSION_MAX:
        raise LogCorrupt(
            "the version number is larger than a log can have.",
            next="Move the file out of the folder if it is not part of the log.",
            file=f"{LOG}/{name[:60]}",
        )
    return version
