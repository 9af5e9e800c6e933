"""The one handle a user holds. Each method is a few lines that call a room."""

from __future__ import annotations

import time
from threading import RLock
from typing import TYPE_CHECKING, Any

from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.log.names import LOG, commit_name
from arrowlog.log.segment import earliest, plan
from arrowlog.log.store import Stat, open_store
from arrowlog.state.load import follow, list_log, load
from arrowlog.state.travel import Moment, to_millis, version_at

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from arrowlog.log.names import Listing
    from arrowlog.state.snapshot import Snapshot

_PROBES_MAX = 16


class Table:
    """A table in the lake: a folder of data files and its transaction log.

    >>> import arrowlog
    >>> arrowlog.Table("/nowhere")
    Traceback (most recent call last):
    ...
    arrowlog.errors.TableNotFound: There is no table at /nowhere: ...
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, object] | None = None,
        strict: bool = False,
        allow_outside_paths: bool = False,
    ) -> None:
        """Open a table; `TableNotFound` if there is no log.

        `storage_options` go to the store. `options` are settings such as `checkpoint.parallelism`,
        with or without `spark.indextables.`. `strict` makes a gap in the log an error instead of a
        warning. `allow_outside_paths` accepts logs whose data files lie outside the table's folder.
        """
        self._config = resolve(options)
        self._store = open_store(
            uri,
            storage_options,
            parallelism=self._config.checkpoint_parallelism,
            timeout_seconds=self._config.checkpoint_read_timeout_seconds,
        )
        self._strict = strict
        self._outside = allow_outside_paths
        self._lock = RLock()
        self._latest: Snapshot | None = None
        self._name: str | None = None
        self._mark: Stat | None = None
        self._asked = 0.0
        self._listing: Listing | None = list_log(self._store)

    @property
    def uri(self) -> str:
        """Where the table is, without anything secret."""
        return self._store.root

    @property
    def version(self) -> int:
        """The newest version."""
        with self._lock:
            if self._latest is not None:
                return self.refresh().version
            return plan(list_log(self._store), None).version

    @property
    def earliest_version(self) -> int:
        """The lowest version from which on every version can be read."""
        listing = list_log(self._store)
        return earliest(listing, plan(listing, None).version)

    def snapshot(
        self,
        version: int | None = None,
        timestamp: Moment | None = None,
        *,
        max_staleness: float | None = None,
        strict: bool | None = None,
    ) -> Snapshot:
        """The table at its newest version, at a version, or as it was at a moment.

        With `max_staleness` in seconds, an answer not older than that may be given again without
        asking the store.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequest(
                "version and timestamp cannot both be given.", next="Leave one out."
            )
        strict = self._strict if strict is None else strict
        if timestamp is not None:
            version = self._version_at(to_millis(timestamp))
        if version is not None:
            return self._at(version, strict=strict)
        with self._lock:
            fresh = time.monotonic() - self._asked
            if self._latest is not None and max_staleness is not None and fresh <= max_staleness:
                return self._latest
            return self._newest(strict=strict)

    def refresh(self) -> Snapshot:
        """Look for new commits, read only those, and give the newest snapshot."""
        with self._lock:
            return self._newest(strict=self._strict)

    def _version_at(self, millis: int) -> int:
        listing = list_log(self._store)
        newest = plan(listing, None).version
        first = earliest(listing, newest)
        return version_at(self._store, listing, self._config, first, newest, millis)

    def _at(self, version: int, *, strict: bool) -> Snapshot:
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise InvalidRequest(f"{version!r} is not a version.", next="Versions are 0, 1, 2, …")
        listing = list_log(self._store)
        return self._load(listing, version, strict=strict)

    def _load(self, listing: Listing, version: int | None, *, strict: bool) -> Snapshot:
        """Load; a file that a concurrent clean-up took away is looked for once more."""
        for last in (False, True):
            try:
                return load(
                    self._store,
                    listing,
                    self._config,
                    version,
                    strict=strict,
                    outside=self._outside,
                )
            except FileNotFoundError as error:
                if last:
                    raise LogCorrupt(
                        "it was listed, and is gone.",
                        next="Something deletes files of the log; try again when it is done.",
                        file=str(error),
                    ) from None
                listing = list_log(self._store)
        raise AssertionError  # the loop either returns or raises

    def _newest(self, *, strict: bool) -> Snapshot:
        if self._latest is None or self._changed():
            self._reload(strict=strict)
        try:
            self._follow()
        except FileNotFoundError:
            self._reload(strict=strict)
        self._asked = time.monotonic()
        assert self._latest is not None
        return self._latest

    def _changed(self) -> bool:
        """Whether the commit we have come to is no longer the one we read: a table made anew."""
        return self._mark is None or self._store.stat(f"{LOG}/{self._name}") != self._mark

    def _reload(self, *, strict: bool) -> None:
        listing = self._listing or list_log(self._store)
        self._listing = None  # what the constructor saw is used once
        snapshot = self._load(listing, None, strict=strict)
        self._keep(snapshot, listing.commits.get(snapshot.version))

    def _follow(self) -> None:
        """Read the commits after the latest snapshot, if there are any."""
        assert self._latest is not None
        commits = self._next_commits(self._latest.version)
        if commits:
            after = follow(self._store, self._config, self._latest, commits, outside=self._outside)
            self._keep(after, commits[-1][1])

    def _next_commits(self, version: int) -> list[tuple[int, str]]:
        """Commits right after a version: a few by asking for them, more by listing."""
        found: list[tuple[int, str]] = []
        for number in range(version + 1, version + 1 + _PROBES_MAX):
            name = self._find(number)
            if name is None:
                return found
            found.append((number, name))
        commits = list_log(self._store).commits
        number = version + 1
        found = []
        while number in commits:
            found.append((number, commits[number]))
            number += 1
        return found

    def _find(self, version: int) -> str | None:
        """The name of a commit if it is there: as we write it, or as wide as the last one is."""
        width = len(self._name or "") - len(".json")
        for name in {commit_name(version), f"{version:0{max(width, 1)}d}.json"}:
            if self._store.stat(f"{LOG}/{name}") is not None:
                return name
        return None

    def _keep(self, snapshot: Snapshot, name: str | None) -> None:
        self._latest = snapshot
        self._name = name
        self._mark = None if name is None else self._store.stat(f"{LOG}/{name}")

    def __repr__(self) -> str:
        """Where it is, and its newest version if that is known."""
        known = "" if self._latest is None else f", version={self._latest.version}"
        return f"Table({self.uri!r}{known})"
