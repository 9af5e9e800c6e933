"""The IndexTables format: `_transaction_log/`, its actions, fields and features. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrowlog.formats import (
    RETIRED_FOLDER,
    ActionFields,
    CheckpointForm,
    FieldKind,
    Format,
    LogListing,
)
from arrowlog.formats.indextables.file_names import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    STATE_FILE_NAME,
    STATE_KIND,
    STATE_PROTOCOL_VERSION,
    classify_checkpoints,
    classify_commits,
    commit_name,
    state_folder_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.formats import Protocol

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


@dataclass(frozen=True, kw_only=True)
class IndexTables(Format):
    """The format of IndexTables4Spark, which arrowlog reads and writes."""

    def check_writable(self, protocol: Protocol, where: str) -> None:
        """Raise unless this version of arrowlog can read and write the table.

        A table state has one version for readers and writers: whoever writes to a table that needs
        a reader of it has to know it, too.
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
