"""What a handle keeps of the past it was asked about."""

from __future__ import annotations

import os
from threading import RLock, local
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import require_polars
from arrowlog.log.names import LOG, commit_name
from arrowlog.log.segment import earliest, plan
from arrowlog.sql import sheets
from arrowlog.sql.past import Past
from arrowlog.sql.sheets import COMMITS
from arrowlog.state.listing import list_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.log.names import Listing
    from arrowlog.sql.views import Asked, Sources
    from arrowlog.state.follow import Follower

    Progress = Callable[[int, int], None]


class Asking:
    """The past of one table, read once as long as nothing new is in the log."""

    def __init__(self, follower: Follower) -> None:
        """Nothing is read yet."""
        self.follower = follower
        self._start()

    def _start(self) -> None:
        """Know nothing yet. A child begins anew: connections and locks are its parent's."""
        self._process = os.getpid()
        self._lock = RLock()
        self._known: tuple[object, Sources] | None = None
        self._mine = local()

    def _newest(self) -> tuple[int, Listing | None]:
        """The newest version; the log is listed where no snapshot is at hand to follow."""
        if self.follower.latest is not None:
            return self.follower.newest().version, None
        listing = list_log(self.follower.store)
        segment = plan(listing, None)
        if segment.checkpoint is not None or segment.gap is not None:
            return self.follower.newest().version, None  # which is cheap, or has a warning to give
        return segment.version, listing

    def past(self, version: int, listing: Listing | None) -> Past:
        """The past up to a version, as it is in the log now."""
        follower = self.follower
        found = list_log(follower.store) if listing is None else listing
        return Past(follower.store, found, follower.config, earliest(found, version), version)

    def sources(self) -> Sources:
        """What the views are made of; the same as before if there is nothing new."""
        from arrowlog.sql.views import Sources

        require_polars("The history of a table")
        if self._process != os.getpid():
            self._start()
        follower = self.follower
        with self._lock:
            version, listing = self._newest()
            known = listing or (self._known and self._known[1].past.listing)
            name = known.commits.get(version) if known else None
            name = name or commit_name(version)
            mark = version, follower.store.stat(f"{LOG}/{name}")
            if self._known is None or self._known[0] != mark:
                past = self.past(version, listing)
                name = past.listing.commits.get(version, name)
                mark = version, follower.store.stat(f"{LOG}/{name}")
                loaded = follower.latest is not None
                self._known = mark, Sources(past, follower.at, loaded=loaded)
            return self._known[1]

    def asked(self) -> Asked:
        """The connection that `sql` asks: one for each thread, since DuckDB refuses to share."""
        from arrowlog.sql.views import Asked

        sources = self.sources()
        mine: Asked | None = getattr(self._mine, "asked", None)
        if mine is None or mine.sources is not sources:
            mine = self._mine.asked = Asked(sources)
        return mine

    def sql(self, query: str) -> Any:
        """The answer to a query, as a relation."""
        return self.asked().sql(query)

    def query(self, query: str, progress: Progress | None = None) -> pa.Table:
        """The answer to a query, worked out now."""
        return self._whatever_goes(lambda: self._query(query, progress))

    def _query(self, query: str, progress: Progress | None) -> pa.Table:
        import duckdb

        from arrowlog.sql.views import explained

        asked = self.asked()
        past = asked.sources.past
        past.watch = progress
        try:
            found = asked.sql(query)
            return pa.table({}) if found is None else found.to_arrow_table()
        except duckdb.Error as error:
            told = explained(error, asked.sources)
            raise told from told.__cause__
        finally:
            past.watch = None

    def _whatever_goes(self, ask: Callable[[], pa.Table]) -> pa.Table:
        """Ask; if a clean-up takes away what was listed meanwhile, look anew and ask once more."""
        try:
            return ask()
        except LogCorrupt as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        with self._lock:
            self._known = None
        return ask()

    def connect(self) -> Any:
        """A connection with the views that nobody else has."""
        from arrowlog.sql.views import Asked

        return Asked(self.sources()).whole().connection

    def note(self) -> str:
        """What is not known of the past, in a sentence; empty if all is."""
        return self.past(*self._newest()).note()

    def history(self, limit: int | None, progress: Progress | None = None) -> pa.Table:
        """One row a commit, newest first."""
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
        ):
            raise InvalidRequest(f"{limit!r} is not a number of commits.", next="Give 0, 1, 2, …")
        return self._whatever_goes(lambda: self._history(limit, progress))

    def _history(self, limit: int | None, progress: Progress | None) -> pa.Table:
        require_polars("The history of a table")
        past = self.sources().past if limit is None else self.past(*self._newest())
        past.watch = progress
        pieces = past.pieces() if limit is None else past.recent(limit)
        try:
            tables = [sheets.commits(piece, COMMITS.names, past.written) for piece in pieces]
        finally:
            past.watch = None
        whole = pa.concat_tables([COMMITS.empty_table(), *tables])
        return whole.sort_by([("version", "descending")])
