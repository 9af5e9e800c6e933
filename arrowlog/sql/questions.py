"""What a table can be asked about its past and itself: the part of `Table` that only looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import ArrowlogError
from arrowlog.look import html_card
from arrowlog.sql.diff import diff
from arrowlog.sql.overview import overview

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from arrowlog.sql.ask import Asking
    from arrowlog.sql.diff import Diff
    from arrowlog.sql.overview import Overview


class Questions:
    """Each method is a question; `Table` inherits them."""

    _asking: Asking

    def history(
        self, limit: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> pa.Table:
        """One row a commit, newest first: when, what, by whom, how many files, bytes and rows.

        With `limit` only so many commits are read. See the README for the columns. `progress` is
        told how many commits are read, of how many.
        """
        return self._asking.history(limit, progress)

    def diff(self, a: int, b: int) -> Diff:
        """What is different at version `b` from version `a`, in either direction."""
        follower = self._asking.follower
        return diff(follower.at(a), follower.at(b))

    def sql(self, query: str) -> Any:
        """Ask the log: a DuckDB relation over its past, worked out when it is looked at.

        There are the views `commits`, `actions`, `adds`, `removes`, `skips`, `metadata`,
        `protocols`, `checkpoints`, `files`, `file_lifetimes`, `coverage`, and `files_at(version)`.

        A query can do what DuckDB can: read and write any file of this user (`read_csv`, `COPY`,
        `ATTACH`), load extensions and reach the network. Open the table with
        `options={"history.sandbox": True}` where queries come from elsewhere. What is wrong with a
        query raises here; what is wrong with the log raises when the relation is looked at, as
        DuckDB's exception with the words of ours. `query` raises ours.
        """
        return self._asking.sql(query)

    def query(self, query: str, *, progress: Callable[[int, int], None] | None = None) -> pa.Table:
        """The same, worked out now. What is wrong with the query or the log is an error of ours.

        As `sql`, it reaches any file unless `history.sandbox` is set.
        """
        return self._asking.query(query, progress)

    def connect(self) -> Any:
        """A DuckDB connection of your own with the same views, as the log is now.

        It reaches any file unless `history.sandbox` is set, and raises DuckDB's exceptions.
        """
        return self._asking.connect()

    def overview(self, commits: int = 5) -> Overview:
        """Is the table healthy, and what is in it: the newest version on one screen."""
        return overview(self._asking, commits)

    def _repr_html_(self) -> str:
        """The newest version, for notebooks; a log that cannot be read says why."""
        follower = self._asking.follower
        uri = follower.store.root
        try:
            return html_card(uri, ()) + follower.newest()._repr_html_()
        except ArrowlogError as error:
            return html_card(uri, [(type(error).__name__, str(error))])
