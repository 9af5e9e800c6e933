"""What a table tells of its history: the methods of `Table` that read the log.

`Table` inherits them from `HistoryQueries`. What answers them is imported by the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.clock import SystemClock
from arrowlog.fork_safety import OnFirstUse

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb
    import pyarrow as pa

    from arrowlog.history.reports import Diff, Overview
    from arrowlog.history.session import HistorySession
    from arrowlog.snapshot import PeriodLike, SnapshotTracker


class HistoryQueries:
    """Queries about the history of a table, for a class that sets `_tracker`."""

    _tracker: SnapshotTracker

    @OnFirstUse
    def _history_session(self) -> HistorySession:
        from arrowlog.history.session import HistorySession

        return HistorySession(self._tracker)

    def history(
        self, limit: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> pa.Table:
        """Return one row per commit, newest first: time, operation, files, bytes, rows, writer.

        Args:
            limit: read only this many commits.
            progress: called with the number of commits read and their total.

        Raises:
            InvalidRequest: `limit` is not a non-negative integer.
            LogCorrupt: a commit is damaged.
        """
        return self._history_session.history(limit, progress)

    def diff(
        self,
        a: PeriodLike | None = None,
        b: PeriodLike | None = None,
        *,
        since: PeriodLike | None = None,
        until: PeriodLike | None = None,
    ) -> Diff:
        """Return what turns one version into another: two versions, or the changes of a time.

        `diff(3, 9)` compares versions, in either direction. `diff("yesterday")` and
        `diff(date(2024, 10, 1))` are the commits of a day, in UTC, and `diff(since="24h")` those of
        the last 24 hours.

        Args:
            a: a version, or a time as for `since`. One day alone ends with that day.
            b: a version, or a time as for `until`.
            since: include commits from this time on: a datetime, a date, ISO text, a timedelta or
                duration such as `"24h"` before now, `"today"` or `"yesterday"`. A time before the
                table was created includes all commits after the creation.
            until: include commits up to this time, or to the end of this day; by default all.

        Raises:
            InvalidRequest: a version is not there, or those from before the time were cleaned up.
        """
        from arrowlog.history.reports import choose_diff_versions, diff_snapshots

        now_ms = SystemClock().now_ms()
        first, last = choose_diff_versions(
            self._tracker, a, b, since=since, until=until, now_ms=now_ms
        )
        return diff_snapshots(self._tracker.at_version(first), self._tracker.at_version(last))

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a lazy DuckDB relation over the history of the table.

        The views are `commits`, `actions`, `adds`, `removes`, `skips`, `metadata`, `protocols`,
        `checkpoints`, `files`, `file_lifetimes`, `file_bounds`, `file_bounds_by_version` and
        `coverage`; the table functions `files_at(version)` and `file_bounds_at(version)` return the
        live files of a version, and the bounds over which `ScanPlan.sql` runs.

        A query can do what DuckDB can: read and write any file of this user (`read_csv`, `COPY`,
        `ATTACH`), load extensions and use the network. Open the table with
        `options={"history.sandbox": True}` if queries come from an untrusted source.

        Raises:
            InvalidRequest: the query is invalid. An error in the log is raised when the relation is
                executed, as a DuckDB exception with arrowlog's message; `query` raises arrowlog's.
        """
        return self._history_session.sql(query)

    def query(self, query: str, *, progress: Callable[[int, int], None] | None = None) -> pa.Table:
        """Execute a query over the same views as `sql` and return the result as a table.

        Raises arrowlog's exceptions, never DuckDB's. Like `sql`, a query can access any file unless
        `history.sandbox` is set.

        Raises:
            InvalidRequest: the query is invalid.
            LogCorrupt: the log is damaged.
        """
        return self._history_session.query(query, progress)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a new DuckDB connection with the same views over the current log.

        The caller owns it. It can access any file unless `history.sandbox` is set, and raises
        DuckDB's exceptions.
        """
        return self._history_session.connect()

    def overview(self, commits: int = 5) -> Overview:
        """Summarize the newest version on one screen, with its last commits and warnings."""
        from arrowlog.history.reports import summarize_table

        return summarize_table(self._history_session, commits)
