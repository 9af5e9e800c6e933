"""The Delta format: `_delta_log/`, its actions and fields, versions and features. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.formats import ActionFields, CheckpointForm, FieldKind, Format, LogListing
from arrowlog.formats.delta.commit_times import in_commit_timestamps_since
from arrowlog.formats.delta.features import (
    READER_FEATURES,
    READER_VERSION_MAX,
    check_delta_readable,
    uses_column_mapping,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from arrowlog.formats import Metadata, Protocol

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
    """The format of Delta tables, which arrowlog reads.

    What reads names and actions is imported by the first use: a table is opened to see which of
    all formats it has.
    """

    def commit_name(self, version: int) -> str:
        """Return the file name of a commit."""
        return f"{version:020d}.json"

    def classify(
        self, names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
    ) -> LogListing:
        """Classify the names in `_delta_log/`."""
        from arrowlog.formats.delta.file_names import classify_delta_names

        del checkpoint_names
        files = classify_delta_names(names)
        return LogListing(
            self,
            {version: self.key(name) for version, name in files.commits.items()},
            {
                version: tuple(
                    CheckpointForm(
                        "delta-json" if form.is_json else "delta-parquet",
                        tuple(map(self.key, form.names)),
                    )
                    for form in forms
                )
                for version, forms in files.checkpoints.items()
            },
            start,
            compactions={span: self.key(name) for span, name in files.compactions.items()},
        )

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
        from arrowlog.formats.delta.deletion_vectors import with_vector_columns
        from arrowlog.formats.delta.paths import decode_paths

        paths = decode_paths(actions["path"])
        if paths is not actions["path"]:
            actions = actions.set_column(actions.column_names.index("path"), "path", paths)
        return with_vector_columns(actions)

    def file_keys(self, actions: pa.Table, paths: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the path and, where there is one, the id of the deletion vector."""
        if "deletionVector.storageType" not in actions.column_names:
            return paths
        from arrowlog.formats.delta.paths import deletion_vector_ids, file_keys

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
        from arrowlog.formats.delta.paths import paths_of_keys

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
