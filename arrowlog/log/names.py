"""File names of a log: read every spelling anyone ever wrote, write one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = "_transaction_log"
CHECKPOINTS = "_checkpoints"
POINTER = "_last_checkpoint"
VERSION_MAX = (1 << 63) - 1
_USUAL = len("00000000000000000000.json")

_JSON_PART = re.compile(r"([0-9]+)\.checkpoint\.([0-9a-f]{12})\.([0-9]{5})\.json")
_PARQUET = re.compile(r"([0-9]+)\.checkpoint(?:\.([0-9]{5})-of-([0-9]{5}))?\.parquet")


def commit_name(version: int) -> str:
    """The name a commit is written under."""
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class Listing:
    """What the names in a log folder say, by version.

    `commits` and `json_checkpoints` hold the file name for each version. `parquet_checkpoints`
    holds the names of a Parquet checkpoint's files, inside the `_checkpoints` folder.
    """

    commits: dict[int, str] = field(default_factory=dict)
    json_checkpoints: dict[int, str] = field(default_factory=dict)
    parquet_checkpoints: dict[int, tuple[str, ...]] = field(default_factory=dict)

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


def read_listing(names: Iterable[str], checkpoint_names: Iterable[str] = ()) -> Listing:
    """Sort the names of the log folder, and of `_checkpoints` in it, by what they are.

    What is none of these names is ignored, temporary files included.
    """
    listing = Listing()
    commits = listing.commits
    for name in names:
        if not name.endswith(".json"):
            continue
        if len(name) == _USUAL and name[:20].isdigit() and name.isascii():
            version = int(name[:20])
            if version <= VERSION_MAX and commits.setdefault(version, name) is name:
                continue
        stem = name[:-5]
        if stem.isdigit() and stem.isascii():
            _put(listing.commits, stem, name)
        elif stem.endswith(".checkpoint") and (stem := stem[:-11]).isdigit() and stem.isascii():
            _put(listing.json_checkpoints, stem, name)
    parquet: dict[int, list[str]] = {}
    for name in checkpoint_names:
        found = _PARQUET.fullmatch(name)
        if found is not None:
            parquet.setdefault(_version(found[1], name), []).append(name)
    listing.parquet_checkpoints.update({v: tuple(sorted(n)) for v, n in parquet.items()})
    return listing


def is_part(name: str, version: int) -> bool:
    """Whether `name` may be named as a part by the manifest of checkpoint `version`."""
    found = _JSON_PART.fullmatch(name)
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
    version = int(stem) if len(stem) < 4000 else VERSION_MAX + 1
    if version > VERSION_MAX:
        raise LogCorrupt(
            "the version number is larger than a log can have.",
            next="Move the file out of the folder if it is not part of the log.",
            file=f"{LOG}/{name[:60]}",
        )
    return version
