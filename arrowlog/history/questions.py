"""The read-only part of `Table`: history, diff, SQL over the log, overview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.display import format_html_card
from arrowlog.errors import ArrowlogError
from arrowlog.history.diff import diff_snapshots
from arrowlog.history.overview import summarize_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from arrowlog.history.diff import Diff
    from arrowlog.history.overview import Overview
    from arrowlog.history.session import HistorySession


class Questions:
    """Methods that `Table` inherits; none of them changes the table."""

    _history_session: HistorySession

    def history(
        self, limit: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> pa.Table:
        """Return one row per commit, newest first: time, operation, files, bytes, rows, writer.

        The README lists the columns. With `limit`, only that many commits are read. `progress` is
        called with the number of commits read and the total. Raises `InvalidRequest` if `limit` is
        not a non-negative integer, and `LogCorrupt` if a commit is damaged.
        """
        return self._history_session.history(limit, progress)

    def diff(self, a: int, b: int) -> Diff:
        """Return what turns version `a` into version `b`; `a` may be the newer one."""
        follower = self._history_session.tracker
        return diff_snapshots(follower.at(a), follower.at(b))

    def sql(self, query: str) -> Any:
        """Return a lazy DuckDB relation over the history of the table.

        The views are `commits`, `actions`, `adds`, `removes`, `skips`, `metadata`, `protocols`,
        `checkpoints`, `files`, `file_lifetimes` and `coverage`; the table function
        `files_at(version)` returns the live files of a version.

        A query can do what DuckDB can: read and write any file of this user (`read_csv`, `COPY`,
        `ATTACH`), load extensions and use the network. Open the table with
        `options={"history.sandbox": True}` if queries come from an untrusted source.

        Raises `InvalidRequest` for an invalid query. An error in the log is raised when the
        relation is executed, as a DuckDB exception with the message of arrowlog's; `query` raises
        arrowlog's own exception.
        """
        return self._history_session.sql(query)

    def query(self, query: str, *, progress: Callable[[int, int], None] | None = None) -> pa.Table:
        """Execute a query over the same views as `sql` and return the result as a table.

        Raises `InvalidRequest` for an invalid query and `LogCorrupt` for a damaged log, never a
        DuckDB exception. Like `sql`, a query can access any file unless `history.sandbox` is set.
        """
        return self._history_session.query(query, progress)

    def connect(self) -> Any:
        """Return a new DuckDB connection with the same views over the current log.

        The caller owns it. It can access any file unless `history.sandbox` is set, and raises
        DuckDB's exceptions.
        """
        return self._history_session.connect()

    def overview(self, commits: int = 5) -> Overview:
        """Summarize the newest version on one screen, with its last commits and warnings."""
        return summarize_table(self._history_session, commits)

    def _repr_html_(self) -> str:
        """Show the newest snapshot in a notebook, or the error if the log cannot be read."""
        follower = self._history_session.tracker
        uri = follower.store.root
        try:
            return format_html_card(uri, ()) + follower.newest()._repr_html_()
        except ArrowlogError as error:
            return format_html_card(uri, [(type(error).__name__, str(error))])
