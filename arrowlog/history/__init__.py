"""The history of a table: SQL views over the log, diff, overview."""

from arrowlog.history.commit_history import missing_commit_is_corrupt
from arrowlog.history.queries import HistoryQueries
from arrowlog.history.reports import Diff, Overview
from arrowlog.history.session import HistorySession
from arrowlog.history.view_columns import TIMESTAMP_MS, cast_to_view_type

__all__ = [
    "TIMESTAMP_MS",
    "Diff",
    "HistoryQueries",
    "HistorySession",
    "Overview",
    "cast_to_view_type",
    "missing_commit_is_corrupt",
]
