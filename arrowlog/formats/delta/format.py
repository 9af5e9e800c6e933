"""The Delta format: `_delta_log/`, its actions and fields, versions and features. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, null_scalar
from arrowlog.errors import LogCorrupt
from arrowlog.formats import ActionFields, CheckpointForm, FieldKind, Format, LogListing
from arrowlog.formats.delta.column_mapping import parse_delta_schema
from arrowlog.formats.delta.commit_times import in_commit_timestamps_since
from arrowlog.formats.delta.deletion_vectors import UUID_CHARS
from arrowlog.formats.delta.features import (
    READER_FEATURES,
    READER_VERSION_MAX,
    check_delta_readable,
    uses_column_mapping,
)
from arrowlog.formats.delta.file_names import DELTA_LOG_FOLDER, classify_delta_names
from arrowlog.formats.delta.paths import (
    KEY_SEPARATOR,
    decode_path,
    decode_paths,
    deletion_vector_ids,
    file_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrowlog.formats import Metadata, Protocol

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
# The columns of a deletion vector's descriptor in a table of adds, and their types.
VECTOR_COLUMNS: dict[str, pa.DataType] = {
    "storageType": pa.string(),
    "pathOrInlineDv": pa.string(),
    "offset": pa.int64(),
    "sizeInBytes": pa.int64(),
    "cardinality": pa.int64(),
}


_WIDE_BOUNDS = r'"tightBounds"\s*:\s*false'
_AFTER_PATH = f"(?s){KEY_SEPARATOR}.*"


class _Descriptor(msgspec.Struct, gc=False):
    """A descriptor as it is in the log."""

    storageType: str  # noqa: N815 -- the name on disk
    pathOrInlineDv: str  # noqa: N815
    sizeInBytes: int  # noqa: N815
    cardinality: int
    offset: int | None = None


_DESCRIPTOR = msgspec.json.Decoder(_Descriptor)
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Delta(Format):
    """The format of Delta tables, which arrowlog reads."""

    def commit_name(self, version: int) -> str:
        """Return the file name of a commit."""
        return f"{version:020d}.json"

    def classify(
        self, names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
    ) -> LogListing:
        """Classify the names in `_delta_log/`."""
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
        mapped = uses_column_mapping(protocol.min_reader_version, protocol.reader_features)
        return parse_delta_schema(
            metadata.schema_string,
            metadata.configuration,
            self.log_folder,
            mapping_enabled=mapped,
        )

    def normalized_files(self, actions: pa.Table) -> pa.Table:
        """Return actions with decoded paths, and deletion vectors as columns of their own."""
        paths = decode_paths(actions["path"])
        if paths is not actions["path"]:
            actions = actions.set_column(actions.column_names.index("path"), "path", paths)
        return with_vector_columns(actions)

    def file_keys(self, actions: pa.Table, paths: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the path and, where there is one, the id of the deletion vector."""
        if "deletionVector.storageType" not in actions.column_names:
            return paths
        parts = ("storageType", "pathOrInlineDv", "offset")
        ids = deletion_vector_ids(*(actions[f"deletionVector.{name}"] for name in parts))
        return file_keys(paths, ids)

    def commit_times_declared_since(self, metadata: Metadata) -> int | None:
        """Return the version that enabled in-commit timestamps; None if they are not enabled."""
        return in_commit_timestamps_since(metadata.configuration)

    def live_records(self, records: pa.ChunkedArray, adds: pa.Table) -> pa.ChunkedArray:
        """Return how many rows of each file its deletion vector leaves."""
        name = "deletionVector.cardinality"
        return subtract_deleted(records, adds[name] if name in adds.column_names else None)

    def auxiliary_paths(self, adds: pa.Table) -> Sequence[str]:
        """Return the paths of deletion vectors that are not directly in the table's folder."""
        if "deletionVector.storageType" not in adds.column_names:
            return ()
        vectors = adds.select(["deletionVector.storageType", "deletionVector.pathOrInlineDv"])
        vectors = vectors.filter(pc.is_valid(vectors.column(0)))
        paths = [
            decode_path(text) if kind == "p" else f"{text[:-UUID_CHARS]}/"
            for kind, text in zip(*(column.to_pylist() for column in vectors.columns), strict=True)
            if kind == "p" or (kind == "u" and len(text) > UUID_CHARS)
        ]
        return list(dict.fromkeys(paths))

    def inexact_bounds(self, adds: pa.Table) -> pa.ChunkedArray | None:
        """Return which files have a deletion vector, or statistics that say so."""
        masks = []
        if "deletionVector.storageType" in adds.column_names:
            masks.append(pc.is_valid(adds["deletionVector.storageType"]))
        if "stats" in adds.column_names:
            wide = pc.match_substring_regex(adds["stats"], _WIDE_BOUNDS)
            masks.append(pc.fill_null(wide, make_array([False], pa.bool_())[0]))
        inexact = reduce(pc.or_, masks) if masks else None
        return inexact if inexact is not None and pc.any(inexact).as_py() else None

    def paths_of(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the paths that are part of keys."""
        if not pc.any(pc.match_substring(keys, KEY_SEPARATOR)).as_py():
            return keys
        return pc.replace_substring_regex(keys, _AFTER_PATH, "")


def subtract_deleted(records: pa.ChunkedArray, deleted: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return how many rows are left; null where there would be less than none."""
    none = make_array([0], pa.int64())[0]
    if deleted is not None:
        records = pc.subtract(records, pc.fill_null(deleted, none))
    possible = pc.greater_equal(records, none)
    if pc.all(possible).as_py() is not False:
        return records
    return pc.if_else(possible, records, null_scalar(records.type))


def with_vector_columns(actions: pa.Table) -> pa.Table:
    """Replace the JSON text of deletion vectors by columns `deletionVector.<field>`.

    Raises `LogCorrupt` for a descriptor that is not valid: the rows of its file are unknown.
    """
    if "deletionVector" not in actions.column_names:
        return actions
    texts = actions["deletionVector"]
    actions = actions.drop_columns(["deletionVector"])
    if texts.null_count == len(texts):
        return actions
    vectors = [_parse_descriptor(text) for text in texts.to_pylist()]
    for name, kind in VECTOR_COLUMNS.items():
        values = [None if vector is None else getattr(vector, name) for vector in vectors]
        column = f"deletionVector.{name}"
        actions = actions.append_column(column, pa.chunked_array([make_array(values, kind)]))
    return actions


def _parse_descriptor(text: str | None) -> _Descriptor | None:
    if text is None:
        return None
    try:
        return _DESCRIPTOR.decode(text)
    except _INVALID as error:
        raise LogCorrupt(
            f"a deletion vector has an invalid descriptor ({error}), so the rows of its file are"
            " unknown.",
            next="Restore the commit from a backup, or read an earlier version.",
        ) from None


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
