"""The format of Delta tables: `_delta_log/` with JSON commits and checkpoints. Read-only."""

from typing import TYPE_CHECKING

from arrowlog.formats.delta.format import (
    DELTA,
    DELTA_LOG_FOLDER,
    SIDECAR_FOLDER,
    check_delta_readable,
    in_commit_timestamps_since,
    monotonic_times,
    uses_column_mapping,
)
from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.formats.delta.column_mapping import (
        MAPPING_MODE_PROPERTY,
        check_type_changes,
        field_id,
        mapping_mode,
        parse_delta_schema,
        physical_names,
        physical_schema,
        stored_name,
    )
    from arrowlog.formats.delta.deletion_vectors import (
        KEY_SEPARATOR,
        VECTOR_COLUMNS,
        DeletionVector,
        InvalidDeletionVector,
        decode_bitmap_array,
        decode_path,
        decode_paths,
        decode_z85,
        deletion_vector_ids,
        file_keys,
        sidecar_name,
        subtract_deleted,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_ON_FIRST_USE = {
    "column_mapping": (
        "MAPPING_MODE_PROPERTY",
        "check_type_changes",
        "field_id",
        "mapping_mode",
        "parse_delta_schema",
        "physical_names",
        "physical_schema",
        "stored_name",
    ),
    "deletion_vectors": (
        "KEY_SEPARATOR",
        "VECTOR_COLUMNS",
        "DeletionVector",
        "InvalidDeletionVector",
        "decode_bitmap_array",
        "decode_path",
        "decode_paths",
        "decode_z85",
        "deletion_vector_ids",
        "file_keys",
        "sidecar_name",
        "subtract_deleted",
    ),
}

__all__ = [
    "DELTA",
    "DELTA_LOG_FOLDER",
    "KEY_SEPARATOR",
    "MAPPING_MODE_PROPERTY",
    "SIDECAR_FOLDER",
    "VECTOR_COLUMNS",
    "DeletionVector",
    "InvalidDeletionVector",
    "check_delta_readable",
    "check_type_changes",
    "decode_bitmap_array",
    "decode_path",
    "decode_paths",
    "decode_z85",
    "deletion_vector_ids",
    "field_id",
    "file_keys",
    "in_commit_timestamps_since",
    "mapping_mode",
    "monotonic_times",
    "parse_delta_schema",
    "physical_names",
    "physical_schema",
    "sidecar_name",
    "stored_name",
    "subtract_deleted",
    "uses_column_mapping",
]

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _ON_FIRST_USE)
