"""Log replay: which files are live at a version, as columns."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use
from arrowlog.snapshot.checkpoint.json import (
    CheckpointResult,
    WrittenCheckpoint,
    json_checkpoint_name,
    write_json_form,
    write_pointer,
)
from arrowlog.snapshot.checkpoint.parquet import (
    build_layout,
    open_parquet_checkpoint,
    put_manifest,
    put_part,
    write_parquet_form,
)
from arrowlog.snapshot.checkpoint.parts import (
    CheckpointManifest,
    CheckpointPart,
    CheckpointPartReader,
    with_chunk_checksums,
)
from arrowlog.snapshot.checkpoint.rows import (
    RebuildRecipe,
    build_row_group_index,
    choose_sort_columns,
    flatten_all_maps,
    from_checkpoint_rows,
    storage_order,
    storage_sort_keys,
    to_checkpoint_rows,
)
from arrowlog.snapshot.file_table import FileStats, files_column_name, files_table
from arrowlog.snapshot.listing import (
    OBSERVATION_TRUST_SECONDS,
    decode_pointer,
    find_other_log,
    has_data_files,
    list_log,
    list_retired,
    open_log,
    pointed_version,
    read_pointer,
    without_failed_states,
    without_retired,
)
from arrowlog.snapshot.loader import (
    ReadOptions,
    apply_commits,
    load_snapshot,
    read_verified_actions,
    stream_actions,
    verify_checkpoint,
    with_state_files,
)
from arrowlog.snapshot.log_replay import (
    check_readable,
    commit_timestamps,
    parse_table_schema,
    read_transactions,
    replay_actions,
    validate_commit_integrity,
    with_checkpoint_keys,
    with_file_keys,
)
from arrowlog.snapshot.log_segment import (
    LogSegment,
    VersionGap,
    checkpoint_versions,
    earliest_rebuildable_version,
    plan_segment,
    retired_record_error,
)
from arrowlog.snapshot.reconciliation import paths_leading_out
from arrowlog.snapshot.snapshot import (
    FileSource,
    InMemoryFiles,
    Report,
    Snapshot,
    State,
    is_state_table,
)
from arrowlog.snapshot.stats_truncation import StatsTruncation, truncate_add_fields, truncate_adds
from arrowlog.snapshot.time_travel import (
    CLOCK_TOLERANCE_MS,
    PeriodLike,
    TimestampLike,
    format_epoch_millis,
    to_epoch_millis,
    to_period,
    unreadable_states,
)
from arrowlog.snapshot.tracked_state import CacheStats, LogTip, ReadBase
from arrowlog.snapshot.tracker import SnapshotTracker, open_trackers
from arrowlog.snapshot.typed_values import (
    HIVE_NULL,
    TRUNCATION_MARK,
    all_null_files,
    cast_text,
    comparison_type,
    has_bounds,
    has_only_ordered_text,
    high_bounds,
    low_bounds,
    may_lose_digits,
    partition_values,
    to_comparable,
    to_log_text,
    widen_bounds,
)

if TYPE_CHECKING:
    from arrowlog.snapshot.checkpoint.state import StateWriter, WrittenState

__all__ = [
    "CLOCK_TOLERANCE_MS",
    "HIVE_NULL",
    "OBSERVATION_TRUST_SECONDS",
    "TRUNCATION_MARK",
    "CacheStats",
    "CheckpointManifest",
    "CheckpointPart",
    "CheckpointPartReader",
    "CheckpointResult",
    "FileSource",
    "FileStats",
    "InMemoryFiles",
    "LogSegment",
    "LogTip",
    "PeriodLike",
    "ReadBase",
    "ReadOptions",
    "RebuildRecipe",
    "Report",
    "Snapshot",
    "SnapshotTracker",
    "State",
    "StateWriter",
    "StatsTruncation",
    "TimestampLike",
    "VersionGap",
    "WrittenCheckpoint",
    "WrittenState",
    "all_null_files",
    "apply_commits",
    "build_layout",
    "build_row_group_index",
    "cast_text",
    "check_readable",
    "checkpoint_versions",
    "choose_sort_columns",
    "commit_timestamps",
    "comparison_type",
    "decode_pointer",
    "earliest_rebuildable_version",
    "files_column_name",
    "files_table",
    "find_other_log",
    "flatten_all_maps",
    "format_epoch_millis",
    "from_checkpoint_rows",
    "has_bounds",
    "has_data_files",
    "has_only_ordered_text",
    "high_bounds",
    "is_state_table",
    "json_checkpoint_name",
    "list_log",
    "list_retired",
    "load_snapshot",
    "low_bounds",
    "may_lose_digits",
    "open_log",
    "open_parquet_checkpoint",
    "open_trackers",
    "parse_table_schema",
    "partition_values",
    "paths_leading_out",
    "plan_segment",
    "pointed_version",
    "put_manifest",
    "put_part",
    "read_pointer",
    "read_transactions",
    "read_verified_actions",
    "replay_actions",
    "retired_record_error",
    "storage_order",
    "storage_sort_keys",
    "stream_actions",
    "to_checkpoint_rows",
    "to_comparable",
    "to_epoch_millis",
    "to_log_text",
    "to_period",
    "truncate_add_fields",
    "truncate_adds",
    "unreadable_states",
    "validate_commit_integrity",
    "verify_checkpoint",
    "widen_bounds",
    "with_checkpoint_keys",
    "with_chunk_checksums",
    "with_file_keys",
    "with_state_files",
    "without_failed_states",
    "without_retired",
    "write_json_form",
    "write_parquet_form",
    "write_pointer",
]

if not TYPE_CHECKING:  # most tables have no table states
    __getattr__ = import_on_first_use(
        __name__, {"checkpoint.state": ("StateWriter", "WrittenState")}
    )
