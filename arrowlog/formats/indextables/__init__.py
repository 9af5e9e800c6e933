"""The format of IndexTables4Spark: `_transaction_log/` with JSON commits and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.formats import (
    MAX_RECENT_COMMITS,
    MAX_VERSION,
    RETIRED_FOLDER,
    STATS_MAPS,
    CommitFile,
    FieldKind,
    LogListing,
    Metadata,
    Protocol,
    RecentCommits,
    RetiredVersions,
    no_recent_commits,
    parse_retired_records,
    retired_record_name,
    superseded_records,
)
from arrowlog.formats.indextables.commit_encoder import (
    CHECKSUM_PREFIX,
    encode_action,
    encode_add_objects,
    encode_adds,
    encode_commit,
    encode_first_commit,
    encode_json_column,
    encode_removes,
    format_checksum,
    metadata_fields,
    protocol_fields,
)
from arrowlog.formats.indextables.compression import (
    COMPRESSED_FIRST_BYTES,
    StreamCompressor,
    check_plain_size,
    compress,
    crc32,
    decompress,
    is_compressed,
)
from arrowlog.formats.indextables.file_names import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    STATE_FILE_NAME,
    classify_log_file,
    commit_name,
    is_json_part,
    is_parquet_part,
    manifest_name,
    parquet_names,
    parse_state_folder,
    state_folder_name,
)
from arrowlog.formats.indextables.format import (
    ACTION_ALIASES,
    ACTION_FIELDS,
    ACTIONS,
    ADD_FIELDS,
    ADD_MAP_FIELDS,
    COMMIT_INFO_FIELDS,
    INDEXTABLES,
    REMOVE_FIELDS,
    REQUIRED_FIELDS,
    SKIP_FIELDS,
    SUPPORTED_FEATURES,
    classify_names,
)
from arrowlog.formats.indextables.json_checkpoint import (
    CheckpointContext,
    JsonManifest,
    checkpoint_to_lines,
    encode_checkpoint_end,
    encode_checkpoint_start,
    encode_json_manifest,
    recent_commits_field,
)

if TYPE_CHECKING:
    from arrowlog.formats.indextables.avro_encoder import encode_manifest, manifest_bounds
    from arrowlog.formats.indextables.avro_state import (
        ENTRIES_PER_MANIFEST,
        FILE_ENTRY_FIELDS,
        MANIFEST_FOLDER,
        ManifestInfo,
        StateManifest,
        StatePointer,
        encode_state,
        encode_state_pointer,
        new_manifest_path,
        parse_state,
        parse_state_pointer,
    )
    from arrowlog.formats.indextables.partition_bounds import (
        PartitionBounds,
        bound_table,
        compute_bounds,
        trusted_bounds,
    )

# Loaded on first use: most tables have no Avro files.
_ON_FIRST_USE = {
    "avro_encoder": ("encode_manifest", "manifest_bounds"),
    "avro_state": (
        "ENTRIES_PER_MANIFEST",
        "FILE_ENTRY_FIELDS",
        "MANIFEST_FOLDER",
        "ManifestInfo",
        "StateManifest",
        "StatePointer",
        "encode_state",
        "encode_state_pointer",
        "new_manifest_path",
        "parse_state",
        "parse_state_pointer",
    ),
    "partition_bounds": ("PartitionBounds", "bound_table", "compute_bounds", "trusted_bounds"),
}

__all__ = [
    "ACTIONS",
    "ACTION_ALIASES",
    "ACTION_FIELDS",
    "ADD_FIELDS",
    "ADD_MAP_FIELDS",
    "CHECKPOINT_FOLDER_NAME",
    "CHECKSUM_PREFIX",
    "COMMIT_INFO_FIELDS",
    "COMPRESSED_FIRST_BYTES",
    "ENTRIES_PER_MANIFEST",
    "FILE_ENTRY_FIELDS",
    "INDEXTABLES",
    "LAST_CHECKPOINT",
    "LOG_FOLDER",
    "MANIFEST_FOLDER",
    "MAX_RECENT_COMMITS",
    "MAX_VERSION",
    "REMOVE_FIELDS",
    "REQUIRED_FIELDS",
    "RETIRED_FOLDER",
    "SKIP_FIELDS",
    "STATE_FILE_NAME",
    "STATS_MAPS",
    "SUPPORTED_FEATURES",
    "CheckpointContext",
    "CommitFile",
    "FieldKind",
    "JsonManifest",
    "LogListing",
    "ManifestInfo",
    "Metadata",
    "PartitionBounds",
    "Protocol",
    "RecentCommits",
    "RetiredVersions",
    "StateManifest",
    "StatePointer",
    "StreamCompressor",
    "bound_table",
    "check_plain_size",
    "checkpoint_to_lines",
    "classify_log_file",
    "classify_names",
    "commit_name",
    "compress",
    "compute_bounds",
    "crc32",
    "decompress",
    "encode_action",
    "encode_add_objects",
    "encode_adds",
    "encode_checkpoint_end",
    "encode_checkpoint_start",
    "encode_commit",
    "encode_first_commit",
    "encode_json_column",
    "encode_json_manifest",
    "encode_manifest",
    "encode_removes",
    "encode_state",
    "encode_state_pointer",
    "format_checksum",
    "is_compressed",
    "is_json_part",
    "is_parquet_part",
    "manifest_bounds",
    "manifest_name",
    "metadata_fields",
    "new_manifest_path",
    "no_recent_commits",
    "parquet_names",
    "parse_retired_records",
    "parse_state",
    "parse_state_folder",
    "parse_state_pointer",
    "protocol_fields",
    "recent_commits_field",
    "retired_record_name",
    "state_folder_name",
    "superseded_records",
    "trusted_bounds",
]


if not TYPE_CHECKING:  # to a type checker, it would turn every misspelt name into Any

    def __getattr__(name: str) -> Any:
        """Import a name on first use."""
        from importlib import import_module

        for home, names in _ON_FIRST_USE.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
