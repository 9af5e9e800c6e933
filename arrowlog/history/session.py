"""The history that a `Table` handle keeps between queries."""

from __future__ import annotations

import os
from threading import RLock, local
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.arrays import empty_table
from arrowlog.config import parse_at_least, shorten
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import require_polars
from arrowlog.history import view_columns
from arrowlog.history.commit_history import CommitHistory
from arrowlog.history.view_columns import COMMITS_SCHEMA
from arrowlog.snapshot import (
    checkpoint_versions,
    earliest_rebuildable_version,
    list_log,
    plan_segment,
    unreadable_states,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import duckdb

    from arrowlog.formats import LogListing
    from arrowlog.history.views import ViewConnection, ViewSources
    from arrowlog.snapshot import SnapshotTracker

    Progress = Callable[[int, int], None]

# Listings in which the newest version may have been truncated since it was looked up.
_ATTEMPTS_MAX = 5


class HistorySession:
    """Answers queries about the history of one table.

    Decoded commits are reused until the newest commit changes. Thread-safe: threads share the
    decoded commits, and each has its own DuckDB connection.
    """

    def __init__(self, tracker: SnapshotTracker) -> None:
        """Read nothing yet."""
        self.tracker = tracker
        self._reset()

    def _reset(self) -> None:
        """Start empty. A forked child does so too: locks and connections belong to its parent."""
        self._process = os.getpid()
        self._lock = RLock()
        # The history, the version and stat of the newest commit for which it is valid, and whether
        # a snapshot was loaded then.
        self._cached: tuple[object, CommitHistory, bool] | None = None
        self._sources: ViewSources | None = None
        self._thread = local()

    def _newest(self) -> tuple[int, LogListing | None]:
        """Return the newest version and, if the log had to be listed, the listing.

        The log is listed if no snapshot is loaded and there is no checkpoint to start from:
        loading a snapshot would then decode every commit, which the query decodes anyway.
        """
        if self.tracker.last_read is not None:
            return self.tracker.latest().version, None
        listing = list_log(self.tracker.store, self.tracker.format)
        segment = plan_segment(listing, None)
        if segment.checkpoint is not None or segment.gap is not None:
            # Cheap with a checkpoint; with a gap, loading the snapshot gives the warning.
            return self.tracker.latest().version, None
        return segment.version, listing

    def past(self, version: int, listing: LogListing | None) -> CommitHistory:
        """Return the history up to a version; lists the log if no listing is given.

        If the version was truncated since it was the newest, the history ends with a newer one.
        """
        tracker = self.tracker
        for _ in range(_ATTEMPTS_MAX):
            if listing is None:
                listing = list_log(tracker.store, tracker.format)
            if version in listing.commits or version in checkpoint_versions(listing):
                first = self._first_version(listing, version)
                return CommitHistory(tracker.store, listing, tracker.read_options, first, version)
            version, listing = self._newest()
        raise LogCorrupt(
            f"version {version} was the newest, but was deleted before it could be listed.",
            next="Another process is truncating the log; try again when it has finished.",
            version=version,
        )

    def _first_version(self, listing: LogListing, newest: int) -> int:
        """Return the version with which the history begins, which has to be readable."""
        first = earliest_rebuildable_version(listing, newest)
        if first == 0:
            return 0
        tracker = self.tracker
        broken = unreadable_states(tracker.store, listing, tracker.config, first, newest)
        while first in broken:
            first = next(v for v in range(first + 1, newest + 1) if listing.tip_file(v))
        return first

    def sources(self) -> ViewSources:
        """Return the datasets of the views; the cached ones if the newest commit is unchanged."""
        from arrowlog.history.views import ViewSources  # imports pyarrow.dataset, hence pandas

        past, loaded = self._newest_past()
        with self._lock:
            if self._sources is None or self._sources.past is not past:
                self._sources = ViewSources(past, self.tracker.at_version, loaded=loaded)
            return self._sources

    def _newest_past(self) -> tuple[CommitHistory, bool]:
        """Return the history; the cached one if the newest commit is unchanged.

        Also returns whether a snapshot was loaded when the history was first asked for.
        """
        require_polars("The history of a table")
        if self._process != os.getpid():
            self._reset()
        tracker = self.tracker
        with self._lock:
            version, listing = self._newest()
            last_listing = listing or (self._cached and self._cached[1].listing)
            commit = last_listing.tip_file(version) if last_listing else None
            commit = commit or tracker.format.commit_file(version)
            newest_commit = version, tracker.store.stat(commit.key)
            if self._cached is None or self._cached[0] != newest_commit:
                past = self.past(version, listing)
                version = past.last
                # The new listing may spell the file's name in another way; stat that name.
                commit = past.listing.tip_file(version) or commit
                newest_commit = version, tracker.store.stat(commit.key)
                self._cached = newest_commit, past, tracker.last_read is not None
            return self._cached[1:]

    def asked(self) -> ViewConnection:
        """Return this thread's connection; DuckDB connections cannot be shared by threads."""
        from arrowlog.history.views import ViewConnection

        sources = self.sources()
        views: ViewConnection | None = getattr(self._thread, "views", None)
        if views is None or views.sources is not sources:
            views = self._thread.views = ViewConnection(sources)
        return views

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the result of a query as a lazy DuckDB relation."""
        return self.asked().sql(query)

    def query(self, query: str, progress: Progress | None = None) -> pa.Table:
        """Return the result of a query as a table; errors are those of arrowlog, not DuckDB's."""
        return self._retry_after_cleanup(lambda: self._query(query, progress))

    def _query(self, query: str, progress: Progress | None) -> pa.Table:
        import duckdb

        from arrowlog.history.views import translate_duckdb_error

        asked = self.asked()
        past = asked.sources.past
        past.on_progress = progress
        try:
            relation = asked.sql(query)
            return pa.table({}) if relation is None else relation.to_arrow_table()
        except duckdb.Error as error:
            translated = translate_duckdb_error(error, asked.sources)
            raise translated from translated.__cause__
        finally:
            past.on_progress = None

    def _retry_after_cleanup(self, run: Callable[[], pa.Table]) -> pa.Table:
        """Run; if a concurrent cleanup deleted a listed commit, list the log again and rerun once.

        A second failure is raised.
        """
        try:
            return run()
        except LogCorrupt as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        with self._lock:
            self._cached = None
        return run()

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a new connection with all views, owned by the caller."""
        from arrowlog.history.views import ViewConnection

        return ViewConnection(self.sources()).whole().connection

    def note(self) -> str:
        """Describe in one sentence which part of the history is missing; "" if it is complete."""
        return self.past(*self._newest()).note()

    def history(
        self, limit: int | None, progress: Progress | None = None, by: object = None
    ) -> pa.Table:
        """Return one row per commit, newest first; with `limit`, reads only that many commits.

        With `by`, one row per group of these commits. Raises `InvalidRequest` if `limit` is not a
        non-negative integer, or `by` is unknown.
        """
        if limit is not None:
            limit = _check_limit(limit)
        if by is None:
            names = COMMITS_SCHEMA.names
            return self._retry_after_cleanup(lambda: self._commits(limit, names, progress))
        from arrowlog.history.commit_groups import columns_to_group, group_commits, parse_grouping

        keys = parse_grouping(by)
        names = columns_to_group(keys)
        commits = self._retry_after_cleanup(lambda: self._commits(limit, names, progress))
        return group_commits(commits, keys)

    def _commits(
        self, limit: int | None, names: Sequence[str], progress: Progress | None
    ) -> pa.Table:
        """Return columns of the newest commits, newest first; `version` has to be among them."""
        require_polars("The history of a table")
        past = self._newest_past()[0] if limit is None else self.past(*self._newest())
        past.on_progress = progress
        pieces = past.pieces() if limit is None else past.recent(limit)
        try:
            tables = [view_columns.commit_rows(piece, names, past.written) for piece in pieces]
        finally:
            past.on_progress = None
        schema = pa.schema([COMMITS_SCHEMA.field(name) for name in names])
        commits = pa.concat_tables([empty_table(schema), *tables])
        return commits.sort_by([("version", "descending")])


def _check_limit(limit: object) -> int:
    try:
        number = parse_at_least(0)(limit)
    except ValueError:
        shown = shorten(limit)
        raise InvalidRequest(
            f"{shown} is not a number of commits.", next="Give 0, 1, 2, …"
        ) from None
    return number
