"""The file names of a Delta log: commits, checkpoints in all forms, compacted commits. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SIDECAR_FOLDER = "_sidecars"

_VERSION = re.compile(r"[0-9]{20}\.")
_PART = re.compile(r"\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet")
_UUID = re.compile(
    r"\.checkpoint"
    r"\.[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"\.(?:parquet|json)"
)
_COMPACTED = re.compile(r"\.([0-9]{20})\.compacted\.json")
_VERSION_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CheckpointForm:
    """One form of a checkpoint: the files that together hold one state.

    `kind` is `classic`, `parts` or `uuid`. A classic checkpoint may have the content of V2.
    """

    kind: str
    names: tuple[str, ...]

    @property
    def is_json(self) -> bool:
        """Whether the checkpoint is a file of JSON lines."""
        return self.names[0].endswith(".json")


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a Delta log, as their names tell.

    `commits` has the name of each version's commit. `checkpoints` has the complete forms of each
    version's checkpoint, the best one first. `compactions` has the names of compacted commits by
    their first and last version, `checksums` the version checksum files.
    """

    commits: dict[int, str] = field(default_factory=dict)
    checkpoints: dict[int, tuple[CheckpointForm, ...]] = field(default_factory=dict)
    compactions: dict[tuple[int, int], str] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)


def classify_delta_names(names: Iterable[str]) -> DeltaFiles:
    """Classify the names in `_delta_log/`. Anything that is not part of a table is ignored.

    Versions have exactly 20 digits. A multi-part checkpoint counts only if all its parts exist.

    >>> found = classify_delta_names(
    ...     [f"{7:020d}.json", "8.json", f"{7:020d}.checkpoint.{1:010d}.{2:010d}.parquet"]
    ... )
    >>> list(found.commits), found.checkpoints
    ([7], {})
    """
    files = DeltaFiles()
    forms: dict[int, list[CheckpointForm]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        version = int(name[:20]) if _VERSION.match(name) else _VERSION_MAX + 1
        if version > _VERSION_MAX:
            continue
        rest = name[20:]
        if rest == ".json":
            files.commits[version] = name
        elif rest == ".crc":
            files.checksums[version] = name
        elif rest == ".checkpoint.parquet":
            forms.setdefault(version, []).append(CheckpointForm("classic", (name,)))
        elif _UUID.fullmatch(rest):
            forms.setdefault(version, []).append(CheckpointForm("uuid", (name,)))
        elif match := _PART.fullmatch(rest):
            parts.setdefault((version, int(match[2])), {})[int(match[1])] = name
        elif match := _COMPACTED.fullmatch(rest):
            files.compactions[version, int(match[1])] = name
    _add_complete_parts(forms, parts)
    for version, found in forms.items():
        files.checkpoints[version] = tuple(sorted(found, key=_preference))
    return files


def _add_complete_parts(
    forms: dict[int, list[CheckpointForm]], parts: dict[tuple[int, int], dict[int, str]]
) -> None:
    """Add the multi-part checkpoints of which all parts exist."""
    for (version, count), found in parts.items():
        if count and sorted(found) == list(range(1, count + 1)):
            in_order = tuple(found[number] for number in range(1, count + 1))
            forms.setdefault(version, []).append(CheckpointForm("parts", in_order))


def _preference(form: CheckpointForm) -> tuple[bool, int, tuple[str, ...]]:
    """Order the forms of one version: Parquet before JSON, fewer files first, then by name."""
    return form.is_json, len(form.names), form.names
