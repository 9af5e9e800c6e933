"""The Delta format: `_delta_log/`, its file names, actions, protocol and commit times. Pure.

Every table that is opened loads this module, to see which of all formats it has. So it imports
nothing that a Delta table alone needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from arrowlog.errors import UnsupportedProtocol
from arrowlog.formats import (
    MAX_VERSION,
    UPGRADE,
    ActionFields,
    CheckpointForm,
    FieldKind,
    Format,
    LogListing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.formats import Metadata, Protocol

READER_VERSION_MAX = 3
READER_VERSION_COLUMN_MAPPING = 2
READER_VERSION_FEATURES = 3

READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "variantType",
        "variantType-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)


def check_delta_readable(reader_version: int, reader_features: Sequence[str], where: str) -> None:
    """Raise `UnsupportedProtocol`, naming everything unknown, unless the table can be read.

    Feature names are compared exactly. `where` names the table or file for the error.
    """
    unknown = sorted(set(reader_features) - READER_FEATURES)
    if reader_version <= READER_VERSION_MAX and not unknown:
        return
    needs = []
    if reader_version > READER_VERSION_MAX:
        needs.append(f"Delta reader version {reader_version}")
    if unknown:
        needs.append(f"the Delta reader feature{'s' * (len(unknown) > 1)} {', '.join(unknown)}")
    raise UnsupportedProtocol(
        f"{where}: the table needs {' and '.join(needs)}; this arrowlog reads Delta tables up to"
        f" reader version {READER_VERSION_MAX} with the features"
        f" {', '.join(sorted(READER_FEATURES))}.",
        next=UPGRADE,
    )


def uses_column_mapping(reader_version: int, reader_features: Sequence[str]) -> bool:
    """Whether the protocol lets `delta.columnMapping.mode` take effect."""
    if reader_version == READER_VERSION_COLUMN_MAPPING:
        return True
    return reader_version >= READER_VERSION_FEATURES and "columnMapping" in reader_features


_ENABLED = "delta.enableInCommitTimestamps"
_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"


def in_commit_timestamps_since(configuration: Mapping[str, str]) -> int | None:
    """Return the first version whose commit carries its time; None if no commit does.

    >>> in_commit_timestamps_since({"delta.enableInCommitTimestamps": "true"})
    0
    """
    if configuration.get(_ENABLED, "false").lower() != "true":
        return None
    version = configuration.get(_ENABLEMENT_VERSION, "0")
    return int(version) if version.isascii() and version.isdigit() else 0


def monotonic_times(file_times: Sequence[int]) -> list[int]:
    """Return the times of consecutive commits from the modification times of their files.

    Files may be copied or clocks may go back, but a later commit must have a later time: where the
    time of a file is not above that of the commit before, it becomes one millisecond more.

    >>> monotonic_times([5, 3, 9])
    [5, 6, 9]
    """
    times: list[int] = []
    for time in file_times:
        times.append(max(time, times[-1] + 1) if times else time)
    return times


SIDECAR_FOLDER = "_sidecars"

# Patterns of what follows the 20 digits of the version. As text: a table of another format does not
# compile them.
_PART = r"\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet"
_UUID = (
    r"\.checkpoint"
    r"\.[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"\.(?:parquet|json)"
)
_COMPACTED = r"\.([0-9]{20})\.compacted\.json"


def _split_version(name: str) -> tuple[int, str] | None:
    """Divide a file name into its version, of exactly 20 digits, and the rest; None without one."""
    digits, rest = name[:20], name[20:]
    if not (rest.startswith(".") and len(digits) == 20 and digits.isascii() and digits.isdigit()):
        return None
    version = int(digits)
    return (version, rest) if version <= MAX_VERSION else None


def _preference(names: tuple[str, ...]) -> tuple[bool, int, tuple[str, ...]]:
    """Order the forms of one checkpoint: Parquet before JSON, fewer files first, then by name."""
    return names[0].endswith(".json"), len(names), names


DELTA_LOG_FOLDER = "_delta_log"
ADD_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "partitionValues": FieldKind.FLAT,
    "size": FieldKind.INT,
    "modificationTime": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "stats": FieldKind.STATS,
    "tags": FieldKind.JSON,
    "deletionVector": FieldKind.JSON,
    "baseRowId": FieldKind.INT,
    "defaultRowCommitVersion": FieldKind.INT,
    "clusteringProvider": FieldKind.TEXT,
}
REMOVE_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "deletionTimestamp": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "extendedFileMetadata": FieldKind.BOOL,
    "partitionValues": FieldKind.JSON,
    "size": FieldKind.INT,
    "tags": FieldKind.JSON,
    "deletionVector": FieldKind.JSON,
}
TXN_FIELDS: dict[str, FieldKind] = {
    "appId": FieldKind.TEXT,
    "version": FieldKind.INT,
    "lastUpdated": FieldKind.INT,
}
SIDECAR_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "sizeInBytes": FieldKind.INT,
    "modificationTime": FieldKind.INT,
}
COMMIT_INFO_FIELDS: dict[str, FieldKind] = {
    "txnId": FieldKind.TEXT,
    "timestamp": FieldKind.INT,
    "inCommitTimestamp": FieldKind.INT,
    "operation": FieldKind.TEXT,
    "operationParameters": FieldKind.JSON,
    "operationMetrics": FieldKind.JSON,
    "readVersion": FieldKind.INT,
    "engineInfo": FieldKind.TEXT,
    "userMetadata": FieldKind.JSON,
}
ACTIONS = ActionFields(
    {
        "add": ADD_FIELDS,
        "remove": REMOVE_FIELDS,
        "txn": TXN_FIELDS,
        "sidecar": SIDECAR_FIELDS,
        "commitInfo": COMMIT_INFO_FIELDS,
    },
    {
        "add": ("path", "size", "modificationTime"),
        "remove": ("path",),
        "txn": ("appId", "version"),
        "sidecar": ("path",),
        "commitInfo": (),
    },
    partial_metadata=True,
)


class Delta(Format):
    """The format of Delta tables, which arrowlog reads."""

    def commit_name(self, version: int) -> str:
        """Return the file name of a commit."""
        return f"{version:020d}.json"

    def classify(
        self, names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
    ) -> LogListing:
        """Classify the names in `_delta_log/`. Anything that is not part of a table is ignored.

        Versions have exactly 20 digits. A multi-part checkpoint counts only if all its parts exist.

        >>> part = f"{7:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
        >>> listing = DELTA.classify([f"{7:020d}.json", "8.json", part])
        >>> list(listing.commits), listing.checkpoints
        ([7], {})
        """
        del checkpoint_names
        commits: dict[int, str] = {}
        compactions: dict[tuple[int, int], str] = {}
        forms: dict[int, list[tuple[str, ...]]] = {}
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for name in names:
            version, rest = _split_version(name) or (0, "")
            if rest == ".json":
                commits[version] = self.key(name)
            elif rest.startswith(".checkpoint."):
                if rest == ".checkpoint.parquet" or re.fullmatch(_UUID, rest):
                    forms.setdefault(version, []).append((name,))
                elif match := re.fullmatch(_PART, rest):
                    parts.setdefault((version, int(match[2])), {})[int(match[1])] = name
            elif rest.endswith(".compacted.json") and (match := re.fullmatch(_COMPACTED, rest)):
                compactions[version, int(match[1])] = self.key(name)
        for (version, count), numbered in parts.items():
            if count and sorted(numbered) == list(range(1, count + 1)):
                in_order = tuple(numbered[number] for number in range(1, count + 1))
                forms.setdefault(version, []).append(in_order)
        checkpoints = {
            version: tuple(map(self._checkpoint_form, sorted(found, key=_preference)))
            for version, found in forms.items()
        }
        return LogListing(self, commits, checkpoints, start, compactions=compactions)

    def _checkpoint_form(self, names: tuple[str, ...]) -> CheckpointForm:
        kind = "delta-json" if names[0].endswith(".json") else "delta-parquet"
        return CheckpointForm(kind, tuple(map(self.key, names)))

    def check_readable(self, protocol: Protocol, where: str) -> None:
        """Raise `UnsupportedProtocol` unless this version of arrowlog can read the table."""
        check_delta_readable(protocol.min_reader_version, protocol.reader_features, where)

    def table_schema(self, metadata: Metadata, protocol: Protocol) -> pa.Schema:
        """Return the schema of a table, with physical names and field ids as metadata."""
        from arrowlog.formats.delta.column_mapping import parse_delta_schema

        mapped = uses_column_mapping(protocol.min_reader_version, protocol.reader_features)
        return parse_delta_schema(
            metadata.schema_string,
            metadata.configuration,
            self.log_folder,
            mapping_enabled=mapped,
        )

    def normalized_files(self, actions: pa.Table) -> pa.Table:
        """Return actions with decoded paths, and deletion vectors as columns of their own."""
        from arrowlog.formats.delta.deletion_vectors import decode_paths, with_vector_columns

        paths = decode_paths(actions["path"])
        if paths is not actions["path"]:
            actions = actions.set_column(actions.column_names.index("path"), "path", paths)
        return with_vector_columns(actions)

    def file_keys(self, actions: pa.Table, paths: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the path and, where there is one, the id of the deletion vector."""
        if "deletionVector.storageType" not in actions.column_names:
            return paths
        from arrowlog.formats.delta.deletion_vectors import deletion_vector_ids, file_keys

        parts = ("storageType", "pathOrInlineDv", "offset")
        ids = deletion_vector_ids(*(actions[f"deletionVector.{name}"] for name in parts))
        return file_keys(paths, ids)

    def commit_times_declared_since(self, metadata: Metadata) -> int | None:
        """Return the version that enabled in-commit timestamps; None if they are not enabled."""
        return in_commit_timestamps_since(metadata.configuration)

    def live_records(self, records: pa.ChunkedArray, adds: pa.Table) -> pa.ChunkedArray:
        """Return how many rows of each file its deletion vector leaves."""
        from arrowlog.formats.delta.deletion_vectors import subtract_deleted

        name = "deletionVector.cardinality"
        return subtract_deleted(records, adds[name] if name in adds.column_names else None)

    def auxiliary_paths(self, adds: pa.Table) -> Sequence[str]:
        """Return the paths of deletion vectors that are not directly in the table's folder."""
        from arrowlog.formats.delta.deletion_vectors import vector_paths

        return vector_paths(adds)

    def inexact_bounds(self, adds: pa.Table) -> pa.ChunkedArray | None:
        """Return which files have a deletion vector, or statistics that say so."""
        from arrowlog.formats.delta.deletion_vectors import find_wide_bounds

        return find_wide_bounds(adds)

    def paths_of(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the paths that are part of keys."""
        from arrowlog.formats.delta.deletion_vectors import paths_of_keys

        return paths_of_keys(keys)


DELTA = Delta(
    name="delta",
    log_folder=DELTA_LOG_FOLDER,
    actions=ACTIONS,
    reader_versions=range(1, READER_VERSION_MAX + 1),
    features=READER_FEATURES,
    protocol_required=True,
    gap_is_error=True,
    txn_action="txn",
    highest_txn_counts=False,
    commit_time_field="inCommitTimestamp",
    creation_time_counts=False,
    monotonic_file_times=True,
    empty_partition_is_null=True,
    hive_partition_is_null=False,
    dates_become_timestamps=True,
    rounded_decimals=True,
    stats_text_listed=False,
)
