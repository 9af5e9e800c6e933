"""The file names of a log: accept every form that any writer has used, write exactly one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables.retired_versions import RetiredVersions

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG_FOLDER = "_transaction_log"
CHECKPOINT_FOLDER_NAME = "_checkpoints"
LAST_CHECKPOINT = "_last_checkpoint"
MAX_VERSION = (1 << 63) - 1
# Python refuses to convert longer digit strings to int (4,300 digits by default).
_MAX_DIGITS = 4000
_COMMIT_NAME_LENGTH = len("00000000000000000000.json")

_JSON_PART = re.compile(r"([0-9]+)\.checkpoint\.([0-9a-f]{12})\.([0-9]{5})\.json")
_PARQUET_FILE = re.compile(
    r"([0-9]+)\.checkpoint(?:\.([0-9a-f]{12}))?(?:\.([0-9]{5})-of-([0-9]{5}))?\.parquet"
)
_COMMIT_NAMES = re.compile(r"(?:[0-9]{20}\.json)+")  # names of commits, concatenated
_MANIFEST = re.compile(r"([0-9]+)\.checkpoint\.json")


def commit_name(version: int) -> str:
    """Return the file name of a commit, as it is written."""
    return f"{version:020d}.json"


def manifest_name(version: int) -> str:
    """Return the file name of a Parquet checkpoint's manifest, within `_checkpoints`."""
    return f"{version:020d}.checkpoint.json"


def parquet_names(version: int, parts: int, own: str = "") -> list[str]:
    """Return the file names of a Parquet checkpoint's parts, within `_checkpoints`.

    `own`, 12 hexadecimal digits, makes the names unique to one writer.

    >>> parquet_names(7, 1)
    ['00000000000000000007.checkpoint.parquet']
    """
    stem = f"{version:020d}.checkpoint{own and f'.{own}'}"
    if parts == 1:
        return [f"{stem}.parquet"]
    return [f"{stem}.{number:05d}-of-{parts:05d}.parquet" for number in range(1, parts + 1)]


class CommitFile(NamedTuple):
    """A commit in the log: its version, and its file name, which writers spell differently."""

    version: int
    name: str

    @classmethod
    def canonical(cls, version: int) -> CommitFile:
        """Return the commit of a version under the name that arrowlog writes."""
        return cls(version, commit_name(version))

    @property
    def key(self) -> str:
        """The key of the file in the store."""
        return f"{LOG_FOLDER}/{self.name}"


@dataclass(frozen=True, slots=True)
class LogListing:
    """The files of a log, by version, as their names tell.

    `commits` and `json_checkpoints` hold the file name for each version. `parquet_checkpoints`
    holds the names of a Parquet checkpoint's files, including its manifest, within the
    `_checkpoints` folder. Versions below `start` were not listed. `dead` are commit files at
    `retired` versions, which are not part of the log. `observed` is when the listing began, by
    `clock.boottime`.
    """

    commits: dict[int, str] = field(default_factory=dict)
    json_checkpoints: dict[int, str] = field(default_factory=dict)
    parquet_checkpoints: dict[int, tuple[str, ...]] = field(default_factory=dict)
    start: int = 0
    dead: dict[int, str] = field(default_factory=dict)
    retired: RetiredVersions = field(default_factory=RetiredVersions)
    observed: float = field(default=float("-inf"), compare=False)

    def commit_file(self, version: int) -> CommitFile | None:
        """Return the commit of a version; None if there is none."""
        name = self.commits.get(version)
        return None if name is None else CommitFile(version, name)

    def commit_files(self, versions: Iterable[int] | None = None) -> list[CommitFile]:
        """Return the commits of some versions, which must exist; by default all, in log order."""
        chosen = sorted(self.commits) if versions is None else list(versions)
        names = map(self.commits.__getitem__, chosen)
        return list(map(CommitFile._make, zip(chosen, names, strict=True)))

    def without(self, retired: RetiredVersions) -> LogListing:
        """Return the listing with the commits at retired versions moved to `dead`."""
        if not retired:
            return self
        dead = {v: name for v, name in self.commits.items() if v in retired}
        commits = {v: name for v, name in self.commits.items() if v not in dead}
        return replace(self, commits=commits, dead=dead, retired=retired)

    @property
    def overtaken(self) -> bool:
        """Whether the file names were listed before the records of retired versions were written.

        Commits are retired only below a checkpoint. If no listed checkpoint is above all retired
        versions, that checkpoint was written after the names were listed.
        """
        ranges = self.retired.ranges
        newest = max((*self.json_checkpoints, *self.parquet_checkpoints), default=-1)
        return bool(ranges) and ranges[-1][1] >= newest

    @property
    def empty(self) -> bool:
        """Whether there is no log."""
        return not (self.commits or self.json_checkpoints or self.parquet_checkpoints)

    @property
    def newest(self) -> int:
        """The highest version of any commit or checkpoint; -1 if there is none."""
        return max(
            max(versions, default=-1)
            for versions in (self.commits, self.json_checkpoints, self.parquet_checkpoints)
        )


def classify_names(
    names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
) -> LogListing:
    """Classify the file names of the log folder and of its `_checkpoints` folder.

    Other names are ignored, including temporary files. Raises `LogCorrupt` if two names stand for
    the same version or a version exceeds `MAX_VERSION`.
    """
    commits, others = _split_own_names(list(names))
    listing = LogListing(commits, start=start)
    for name in others:
        if not name.endswith(".json"):
            continue
        stem = name[:-5]
        if stem.isdigit() and stem.isascii():
            _put_unique(listing.commits, stem, name)
        elif stem.endswith(".checkpoint") and (stem := stem[:-11]).isdigit() and stem.isascii():
            _put_unique(listing.json_checkpoints, stem, name)
    listing.parquet_checkpoints.update(_group_parquet_files(checkpoint_names))
    return listing


def _split_own_names(names: list[str]) -> tuple[dict[int, str], list[str]]:
    """Return the commits with 20-digit names by version, and all other names.

    A fast path over the whole list: one regular expression checks all names, and if sorted, unique
    names are as many as the versions between the first and the last, they are exactly those
    versions. If the fast path does not apply, no commits and all names are returned.
    """
    own = [name for name in names if len(name) == _COMMIT_NAME_LENGTH]
    if not own or _COMMIT_NAMES.fullmatch("".join(own)) is None:
        return {}, names
    own.sort()
    first, last = int(own[0][:20]), int(own[-1][:20])
    versions: Iterable[int] = range(first, last + 1)
    if last > MAX_VERSION or len(set(own)) != len(own):
        return {}, names
    if last - first + 1 != len(own):
        versions = [int(name[:20]) for name in own]
    others = [name for name in names if len(name) != _COMMIT_NAME_LENGTH]
    return dict(zip(versions, own, strict=True)), others


def classify_log_file(name: str) -> tuple[str, int] | None:
    """Return `("commit", version)` or `("checkpoint", version)`; None for any other file."""
    stem, _, rest = name.partition(".")
    if not (stem.isdigit() and stem.isascii()) or len(stem) > _MAX_DIGITS:
        return None
    if rest == "json":
        return "commit", int(stem)
    if rest.startswith("checkpoint.") and rest.endswith((".json", ".parquet")):
        return "checkpoint", int(stem)
    return None


def _group_parquet_files(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Group the files of Parquet checkpoints by version.

    Parts with names unique to a writer count only if a manifest exists for their version: without
    one, their writer has not finished.
    """
    files: dict[int, list[str]] = {}
    usable: set[int] = set()
    for name in names:
        match = _MANIFEST.fullmatch(name) or _PARQUET_FILE.fullmatch(name)
        if match is None:
            continue
        version = _parse_version(match[1], name)
        files.setdefault(version, []).append(name)
        if name.endswith(".json") or match[2] is None:
            usable.add(version)
    return {version: tuple(sorted(files[version])) for version in usable}


def is_json_part(name: str, version: int) -> bool:
    """Return whether the manifest of JSON checkpoint `version` may list `name` as a part."""
    match = _JSON_PART.fullmatch(name)
    return match is not None and _parse_version(match[1], name) == version


def is_parquet_part(name: str, version: int) -> bool:
    """Return whether the manifest of Parquet checkpoint `version` may list `name` as a part."""
    match = _PARQUET_FILE.fullmatch(name)
    return match is not None and _parse_version(match[1], name) == version


def _put_unique(files: dict[int, str], stem: str, name: str) -> None:
    version = _parse_version(stem, name)
    other = files.setdefault(version, name)
    if other != name:
        raise LogCorrupt(
            f"{name} and {other} are both version {version}.",
            next="Move the one that does not belong out of the folder.",
            file=f"{LOG_FOLDER}/{name}",
            version=version,
        )


def _parse_version(stem: str, name: str) -> int:
    version = int(stem) if len(stem) < _MAX_DIGITS else MAX_VERSION + 1
    if version > MAX_VERSION:
        raise LogCorrupt(
            "the version number is larger than a log can have.",
            next="Move the file out of the folder if it is not part of the log.",
            file=f"{LOG_FOLDER}/{name[:60]}",
        )
    return version
