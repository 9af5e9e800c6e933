"""The format of Delta tables: `_delta_log/` with JSON commits and checkpoints. Read-only."""

from typing import TYPE_CHECKING

from arrowlog.formats.delta.format import DELTA, DELTA_LOG_FOLDER
from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.formats.delta.column_mapping import (
        MAPPING_MODE_PROPERTY,
        field_id,
        mapping_mode,
        parse_delta_schema,
        physical_names,
        physical_schema,
        stored_name,
    )
    from arrowlog.formats.delta.commit_times import in_commit_timestamps_since, monotonic_times
    from arrowlog.formats.delta.deletion_vectors import (
        VECTOR_COLUMNS,
        DeletionVector,
        InvalidDeletionVector,
        decode_bitmap_array,
        decode_z85,
        subtract_deleted,
    )
    from arrowlog.formats.delta.features import (
        check_delta_readable,
        check_type_changes,
        uses_column_mapping,
    )
    from arrowlog.formats.delta.file_names import (
        SIDECAR_FOLDER,
        CheckpointForm,
        DeltaFiles,
        classify_delta_names,
    )
    from arrowlog.formats.delta.paths import (
        KEY_SEPARATOR,
        decode_path,
        decode_paths,
        deletion_vector_ids,
        file_keys,
        sidecar_name,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_ON_FIRST_USE = {
    "column_mapping": (
        "MAPPING_MODE_PROPERTY",
        "field_id",
        "mapping_mode",
        "parse_delta_schema",
        "physical_names",
        "physical_schema",
        "stored_name",
    ),
    "commit_times": (
        "in_commit_timestamps_since",
        "monotonic_times",
    ),
    "deletion_vectors": (
        "VECTOR_COLUMNS",
        "DeletionVector",
        "InvalidDeletionVector",
        "decode_bitmap_array",
        "decode_z85",
        "subtract_deleted",
    ),
    "features": (
        "check_delta_readable",
        "check_type_changes",
        "uses_column_mapping",
    ),
    "file_names": (
        "SIDECAR_FOLDER",
        "CheckpointForm",
        "DeltaFiles",
        "classify_delta_names",
    ),
    "paths": (
        "KEY_SEPARATOR",
        "decode_path",
        "decode_paths",
        "deletion_vector_ids",
        "file_keys",
        "sidecar_name",
    ),
}

__all__ = [
    "DELTA",
    "DELTA_LOG_FOLDER",
    "KEY_SEPARATOR",
    "MAPPING_MODE_PROPERTY",
    "SIDECAR_FOLDER",
    "VECTOR_COLUMNS",
    "CheckpointForm",
    "DeletionVector",
    "DeltaFiles",
    "InvalidDeletionVector",
    "check_delta_readable",
    "check_type_changes",
    "classify_delta_names",
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
