"""The history of a table: SQL views over the log, diff, overview."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.history.commit_groups import (
        Grouping,
    )
    from arrowlog.history.reports import (
        Diff,
        Overview,
        choose_diff_versions,
        diff_snapshots,
        summarize_table,
    )
    from arrowlog.history.session import (
        HistorySession,
    )
    from arrowlog.history.view_columns import (
        TIMESTAMP_MS,
        cast_to_view_type,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "commit_groups": ("Grouping",),
    "reports": ("Diff", "Overview", "choose_diff_versions", "diff_snapshots", "summarize_table"),
    "session": ("HistorySession",),
    "view_columns": ("TIMESTAMP_MS", "cast_to_view_type"),
}

__all__ = [
    "TIMESTAMP_MS",
    "Diff",
    "Grouping",
    "HistorySession",
    "Overview",
    "cast_to_view_type",
    "choose_diff_versions",
    "diff_snapshots",
    "summarize_table",
]

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
