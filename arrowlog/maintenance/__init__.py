"""Checkpoints, retention, compaction, vacuum and skips."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.maintenance import (
        procedures,
    )
    from arrowlog.maintenance.adoption import (
        AdoptResult,
        adopt,
    )
    from arrowlog.maintenance.checkpointing import (
        BackgroundCheckpointer,
        choose_form,
        make_checkpoint,
    )
    from arrowlog.maintenance.cleanup import (
        MIN_COMMIT_AGE_SECONDS,
        PARQUET_CHECKPOINT_FEATURE,
        CleanupResult,
        retry_after_cleanup,
    )
    from arrowlog.maintenance.compaction import (
        CompactResult,
        RewriteAttempt,
        find_changed_file,
        try_rewrite,
    )
    from arrowlog.maintenance.file_rewriter import (
        RewriteTask,
    )
    from arrowlog.maintenance.other_logs import (
        OtherLog,
        OtherLogs,
        read_adds,
        read_other_log,
        read_other_logs,
    )
    from arrowlog.maintenance.procedures import (
        update_statistics,
    )
    from arrowlog.maintenance.retention import (
        RetentionPlan,
        classify_files,
    )
    from arrowlog.maintenance.skips import (
        Skips,
        read_skips,
    )
    from arrowlog.maintenance.vacuum import (
        ReferencedFiles,
        VacuumResult,
        classify_table_files,
        find_all_referenced_files,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "": ("procedures",),
    "adoption": (
        "AdoptResult",
        "adopt",
    ),
    "checkpointing": (
        "BackgroundCheckpointer",
        "choose_form",
        "make_checkpoint",
    ),
    "cleanup": (
        "MIN_COMMIT_AGE_SECONDS",
        "PARQUET_CHECKPOINT_FEATURE",
        "CleanupResult",
        "retry_after_cleanup",
    ),
    "compaction": ("CompactResult", "RewriteAttempt", "find_changed_file", "try_rewrite"),
    "file_rewriter": ("RewriteTask",),
    "other_logs": ("OtherLog", "OtherLogs", "read_adds", "read_other_log", "read_other_logs"),
    "procedures": ("update_statistics",),
    "retention": ("RetentionPlan", "classify_files"),
    "skips": ("Skips", "read_skips"),
    "vacuum": (
        "ReferencedFiles",
        "VacuumResult",
        "classify_table_files",
        "find_all_referenced_files",
    ),
}

__all__ = [
    "MIN_COMMIT_AGE_SECONDS",
    "PARQUET_CHECKPOINT_FEATURE",
    "AdoptResult",
    "BackgroundCheckpointer",
    "CleanupResult",
    "CompactResult",
    "OtherLog",
    "OtherLogs",
    "ReferencedFiles",
    "RetentionPlan",
    "RewriteAttempt",
    "RewriteTask",
    "Skips",
    "VacuumResult",
    "adopt",
    "choose_form",
    "classify_files",
    "classify_table_files",
    "find_all_referenced_files",
    "find_changed_file",
    "make_checkpoint",
    "procedures",
    "read_adds",
    "read_other_log",
    "read_other_logs",
    "read_skips",
    "retry_after_cleanup",
    "try_rewrite",
    "update_statistics",
]

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
