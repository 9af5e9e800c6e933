"""The IndexTables format: the file names of its log, its actions, fields and features. Pure.

Of file names, every form that any writer has used is accepted, and exactly one is written.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt
from arrowlog.formats import (
    MAX_VERSION,
    RETIRED_FOLDER,
    ActionFields,
    CheckpointForm,
    FieldKind,
    Format,
    LogListing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.formats import Checkpoints, Protocol

LOG_FOLDER = "_transaction_log"
CHECKPOINT_FOLDER_NAME = "_checkpoints"
LAST_CHECKPOINT = "_last_checkpoint"
STATE_FILE_NAME = "_manifest.avro"
RETIRED_PART_SUFFIX = ".retired"  # of a record beside a part of a Parquet checkpoint
STATE_KIND = "avro-state"  # in listings, and `format` of a pointer that names a state
STATE_PROTOCOL_VERSION = 4
# Python refuses to convert longer digit strings to int (4,300 digits by default).
_MAX_DIGITS = 4000
# Longer keys are cut in messages.
_ERROR_KEY_LENGTH = 80
_COMMIT_NAME_LENGTH = len("00000000000000000000.json")

_JSON_PART = re.compile(r"([0-9]+)\.checkpoint\.([0-9a-f]{12})\.([0-9]{5})\.json")
_PARQUET_FILE = re.compile(
    r"([0-9]+)\.checkpoint(?:\.([0-9a-f]{12}))?(?:\.([0-9]{5})-of-([0-9]{5}))?\.parquet"
)
_COMMIT_NAMES = re.compile(r"(?:[0-9]{20}\.json)+")  # names of commits, concatenated
_STATE_FOLDER = re.compile(r"state-v([0-9]{20})")
_MANIFEST = re.compile(r"([0-9]+)\.checkpoint\.json")


def commit_name(version: int) -> str:
    """Return the file name of a commit, as it is written."""
    return f"{version:020d}.json"


def manifest_name(version: int) -> str:
    """Return the file name of a Parquet checkpoint's manifest, within `_checkpoints`."""
    return f"{version:020d}.checkpoint.json"


def state_folder_name(version: int) -> str:
    """Return the name of the folder of a state.

    >>> state_folder_name(5)
    'state-v00000000000000000005'
    """
    return f"state-v{version:020d}"


def parse_state_folder(name: str) -> int | None:
    """Return the version of a state's folder, or None if the name is not one.

    >>> parse_state_folder("state-v00000000000000000005"), parse_state_folder("state-v5")
    (5, None)
    """
    match = _STATE_FOLDER.fullmatch(name)
    version = int(match[1]) if match else -1
    return version if 0 <= version <= MAX_VERSION else None


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


def classify_commits(
    names: Iterable[str], folder: str
) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    """Return the keys of commits, JSON checkpoints and table states in the log folder, by version.

    The key of a state is that of its file, whether it is there or not.
    """
    commits, others = _split_own_names(list(names), folder)
    json_checkpoints: dict[int, str] = {}
    states: dict[int, str] = {}
    for name in others:
        if not name.endswith(".json"):
            version = parse_state_folder(name)
            if version is not None:
                states[version] = f"{folder}/{name}/{STATE_FILE_NAME}"
            continue
        stem = name[:-5]
        if stem.isdigit() and stem.isascii():
            _put_unique(commits, stem, name, folder)
        elif stem.endswith(".checkpoint") and (stem := stem[:-11]).isdigit() and stem.isascii():
            _put_unique(json_checkpoints, stem, name, folder)
    return commits, json_checkpoints, states


def classify_checkpoints(
    json_checkpoints: dict[int, str], checkpoint_names: Iterable[str], folder: str
) -> Checkpoints:
    """Return the forms of each checkpoint: Parquet, which opens faster, before JSON."""
    inner = f"{folder}/{CHECKPOINT_FOLDER_NAME}/"
    checkpoints: Checkpoints = {
        version: (CheckpointForm("parquet", tuple(inner + name for name in names)),)
        for version, names in _group_parquet_files(checkpoint_names, inner).items()
    }
    for version, key in json_checkpoints.items():
        form = CheckpointForm("json", (key,))
        checkpoints[version] = (*checkpoints.get(version, ()), form)
    return checkpoints


def _split_own_names(names: list[str], folder: str) -> tuple[dict[int, str], list[str]]:
    """Return the keys of the commits with 20-digit names by version, and all other names.

    A fast path over the whole list: one regular expression checks all names, and if sorted, unique
    names are as many as the versions between the first and the last, they are exactly those
    versions. If the fast path does not apply, no commits and all names are returned.
    """
    # Without a step of Python per name: a log may have a hundred thousand commits.
    own = list(compress(names, map(_COMMIT_NAME_LENGTH.__eq__, map(len, names))))
    if not own or _COMMIT_NAMES.fullmatch("".join(own)) is None:
        return {}, names
    own.sort()
    first, last = int(own[0][:20]), int(own[-1][:20])
    versions: Iterable[int] = range(first, last + 1)
    if last > MAX_VERSION or len(set(own)) != len(own):
        return {}, names
    if last - first + 1 != len(own):
        versions = [int(name[:20]) for name in own]
    others = list(compress(names, map(_COMMIT_NAME_LENGTH.__ne__, map(len, names))))
    return dict(zip(versions, map(f"{folder}/".__add__, own), strict=True)), others


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


def _group_parquet_files(names: Iterable[str], inner: str) -> dict[int, tuple[str, ...]]:
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
        version = _parse_version(match[1], inner + name)
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


def is_checkpoint_part(name: str) -> bool:
    """Return whether a file is a part of a checkpoint, of any version and form.

    >>> is_checkpoint_part("00000000000000000007.checkpoint.parquet")
    True
    >>> is_checkpoint_part("00000000000000000007.checkpoint.json")  # a manifest, or all of it
    False
    """
    return (_PARQUET_FILE.fullmatch(name) or _JSON_PART.fullmatch(name)) is not None


def parse_parquet_part(name: str) -> tuple[int, str] | None:
    """Return the version in a part's name and the id of its writer, empty if it has none.

    None if the name is not that of a part.

    >>> parse_parquet_part("00000000000000000007.checkpoint.0123456789ab.parquet")
    (7, '0123456789ab')
    """
    match = _PARQUET_FILE.fullmatch(name)
    return None if match is None else (_parse_version(match[1], name), match[2] or "")


def retired_part_name(name: str) -> str:
    """Return the name of the record that a part is about to be deleted, beside the part."""
    return f"{name}{RETIRED_PART_SUFFIX}"


def _put_unique(files: dict[int, str], stem: str, name: str, folder: str) -> None:
    key = f"{folder}/{name}"
    version = _parse_version(stem, key)
    other = files.setdefault(version, key)
    if other != key:
        raise LogCorrupt(
            f"{name} and {other.rpartition('/')[2]} are both version {version}.",
            next="Move the one that does not belong out of the folder.",
            file=key,
            version=version,
        )


def _parse_version(stem: str, key: str) -> int:
    version = int(stem) if len(stem) < _MAX_DIGITS else MAX_VERSION + 1
    if version > MAX_VERSION:
        raise LogCorrupt(
            "the version number is larger than a log can have.",
            next="Move the file out of the folder if it is not part of the log.",
            file=key[:_ERROR_KEY_LENGTH],
        )
    return version


ADD_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "partitionValues": FieldKind.FLAT,
    "size": FieldKind.INT,
    "modificationTime": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "stats": FieldKind.STATS,
    "tags": FieldKind.JSON,
    "minValues": FieldKind.FLAT,
    "maxValues": FieldKind.FLAT,
    "numRecords": FieldKind.INT,
    "footerStartOffset": FieldKind.INT,
    "footerEndOffset": FieldKind.INT,
    "hotcacheStartOffset": FieldKind.INT,
    "hotcacheLength": FieldKind.INT,
    "hasFooterOffsets": FieldKind.BOOL,
    "timeRangeStart": FieldKind.TEXT,
    "timeRangeEnd": FieldKind.TEXT,
    "splitTags": FieldKind.JSON,
    "deleteOpstamp": FieldKind.INT,
    "numMergeOps": FieldKind.INT,
    "docMappingJson": FieldKind.WORD,
    "uncompressedSizeBytes": FieldKind.INT,
    "docMappingRef": FieldKind.WORD,
    "companionSourceFiles": FieldKind.JSON,
    "companionDeltaVersion": FieldKind.INT,
    "companionFastFieldMode": FieldKind.WORD,
}
REMOVE_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "deletionTimestamp": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "extendedFileMetadata": FieldKind.BOOL,
    "partitionValues": FieldKind.JSON,
    "size": FieldKind.INT,
    "tags": FieldKind.JSON,
}
SKIP_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "skipTimestamp": FieldKind.INT,
    "reason": FieldKind.TEXT,
    "operation": FieldKind.TEXT,
    "partitionValues": FieldKind.JSON,
    "size": FieldKind.INT,
    "retryAfter": FieldKind.INT,
    "skipCount": FieldKind.INT,
}
COMMIT_INFO_FIELDS: dict[str, FieldKind] = {
    "txnId": FieldKind.TEXT,
    "timestamp": FieldKind.INT,
    "operation": FieldKind.TEXT,
    "operationParameters": FieldKind.JSON,
    "operationMetrics": FieldKind.JSON,
    "readVersion": FieldKind.INT,
    "engineInfo": FieldKind.TEXT,
    "userMetadata": FieldKind.JSON,
    "numActions": FieldKind.INT,
    "checksum": FieldKind.TEXT,
    "txn": FieldKind.JSON,
}

ACTION_FIELDS: dict[str, dict[str, FieldKind]] = {
    "add": ADD_FIELDS,
    "remove": REMOVE_FIELDS,
    "mergeskip": SKIP_FIELDS,
    "commitInfo": COMMIT_INFO_FIELDS,
}
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "add": ("path", "size", "modificationTime"),
    "remove": ("path",),
    "mergeskip": ("path", "skipTimestamp", "reason", "operation"),
    "commitInfo": (),
}
ACTION_ALIASES = {"skip": "mergeskip"}  # some writers use the short name


ACTIONS = ActionFields(ACTION_FIELDS, REQUIRED_FIELDS, ACTION_ALIASES)
ADD_MAP_FIELDS = ACTIONS.add_map_fields

SUPPORTED_FEATURES = frozenset(
    {
        "avroState",
        "checkpoint",
        "checkpoints",
        "conditionalWrites",
        "extendedMetadata",
        "footerOffsets",
        "multiPartCheckpoint",
        "optimizeWrite",
        "parquetCheckpoint",
        "schemaDeduplication",
        "skippedFiles",
        "tantivy4java",
    }
)


class IndexTables(Format):
    """The format of IndexTables4Spark, which arrowlog reads and writes."""

    def check_writable(self, protocol: Protocol, where: str) -> None:
        """Raise unless this version of arrowlog can read and write the table.

        A table state has one protocol version for readers and writers: a table that requires it of
        readers requires it of writers, too.
        """
        if protocol.min_reader_version >= STATE_PROTOCOL_VERSION:
            needed = max(protocol.min_reader_version, protocol.min_writer_version)
            protocol = replace(protocol, min_writer_version=needed)
        super().check_writable(protocol, where)

    def commit_name(self, version: int) -> str:
        """Return the file name of a commit, as it is written."""
        return commit_name(version)

    def state_name(self, version: int) -> str:
        """Return the name of a version's table state inside the log."""
        return f"{state_folder_name(version)}/{STATE_FILE_NAME}"

    def commit_name_candidates(self, version: int, like: str) -> tuple[str, ...]:
        """Return the usual name, and one as wide as `like`: other programs pad differently."""
        if not like.endswith(".json"):
            return (commit_name(version),)
        width = max(len(like) - len(".json"), 1)
        usual, other = commit_name(version), f"{version:0{width}d}.json"
        return (usual,) if usual == other else (usual, other)

    def classify(
        self, names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
    ) -> LogListing:
        """Classify the file names of the log folder and of its `_checkpoints` folder.

        A state is a form of checkpoint, and it is read before others of its version. Its folder
        counts even if it is empty; `arrowlog.snapshot.listing` leaves failed writes out.

        Other names are ignored, including temporary files. Raises `LogCorrupt` if two names stand
        for the same version or a version exceeds `MAX_VERSION`.
        """
        commits, json_checkpoints, states = classify_commits(names, self.log_folder)
        checkpoints = classify_checkpoints(json_checkpoints, checkpoint_names, self.log_folder)
        if 0 in commits or start > 0:
            # Some writers put the current state of the table into the folder of version 0, so that
            # the commit of version 0 counts.
            states.pop(0, None)
        for version, key in states.items():
            form = CheckpointForm(STATE_KIND, (key,))
            checkpoints[version] = (form, *checkpoints.get(version, ()))
        return LogListing(self, commits, checkpoints, start)


INDEXTABLES = IndexTables(
    name="indextables",
    log_folder=LOG_FOLDER,
    checkpoint_folder=CHECKPOINT_FOLDER_NAME,
    retired_folder=RETIRED_FOLDER,
    pointer_name=LAST_CHECKPOINT,
    actions=ACTIONS,
    state_kinds=frozenset({STATE_KIND}),
    reader_versions=range(1, 5),
    writer_versions=range(1, 5),
    features=SUPPORTED_FEATURES,
    lost_checkpoint_is_error=True,
    compressed_commits=True,
    verified_commits=True,
    default_provider="indextables",
)


def classify_names(
    names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
) -> LogListing:
    """Classify the file names of a log in its usual folder; see `IndexTables.classify`."""
    return INDEXTABLES.classify(names, checkpoint_names, start)
