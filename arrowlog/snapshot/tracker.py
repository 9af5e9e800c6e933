"""The newest snapshot of one table, kept current with as few store requests as possible.

On a local disk a stat costs next to nothing: a refresh stats the last known commit and probes for
its successors. Over a network a refresh is one listing that starts at the last known commit. It
shows both whether that commit is still the same object (a table may be dropped and created again)
and which commits follow it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec
from weakref import WeakSet

from arrowlog.clock import COUNTS_SUSPENSION, boottime
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogError, InvalidRequest, LogCorrupt
from arrowlog.fork_safety import ForkSafeLock
from arrowlog.formats import CommitFile
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.log_lines import REFRESHED, STATE_LOADED
from arrowlog.metering import metrics_of
from arrowlog.snapshot.listing import (
    OBSERVATION_TRUST_SECONDS,
    LogObservation,
    TipListing,
    check_not_retired,
    find_commit,
    list_from_tip,
    list_log,
    list_retired,
    open_log,
    read_pointer,
    without_failed_states,
    without_retired,
)
from arrowlog.snapshot.log_segment import missing_file_error, plan_segment
from arrowlog.snapshot.time_travel import check_version, earliest_readable_version, find_version_at
from arrowlog.snapshot.tracked_state import LogTip, ReadBase, SnapshotCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from arrowlog.config import Config
    from arrowlog.formats import Format, LogListing, Metadata
    from arrowlog.metering import Metrics
    from arrowlog.snapshot.description import TableDescription
    from arrowlog.snapshot.disk_cache import SnapshotDiskCache
    from arrowlog.snapshot.read_options import ReadOptions
    from arrowlog.snapshot.snapshot import BypassedCheckpoint, Snapshot
    from arrowlog.snapshot.tracked_state import CacheStats, HitCounter
    from arrowlog.storage import ObjectStat, Store

_Args = ParamSpec("_Args")
CachePart = Literal["protocol", "metadata", "versions", "files", "listing"]
# What can be invalidated by itself.
CACHE_PARTS: tuple[CachePart, ...] = ("protocol", "metadata", "versions", "files", "listing")

# Commits that a refresh probes for one by one before it lists the log instead.
_PROBES_MAX = 16
# Commits read since the last save that make rewriting the snapshot's disk copy worthwhile.
_SAVE_AFTER_COMMITS = 64
# File system times are coarse: a folder modified less than this before it was listed may change
# again without a new modification time, so its tag identifies nothing.
_FOLDER_SETTLED_MS = 2000
# For how long after the log was last observed a probe for the next version is conclusive: cleanup
# deletes no commit younger than this.
PROBE_TRUST_SECONDS = 30.0


def open_trackers() -> list[SnapshotTracker]:
    """Return the trackers of all tables that are open in this process."""
    return list(_OPEN)


class SnapshotTracker:
    """Holds the newest snapshot of a table and decides whether it is still current.

    What it knows is one immutable `ReadBase`, which is replaced as a whole. Refreshes are
    serialised by a lock; reading the base takes none.
    """

    def __init__(
        self,
        store: Store,
        read_options: ReadOptions,
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """List the log, or restore the snapshot from the disk cache.

        The format in `read_options` is replaced by that of the log. `options` are the caller's
        options; if given, the table's own properties apply beneath them. Raises `TableNotFound` if
        there is no log.
        """
        self.store = store
        self.read_options = read_options
        self._options = options
        self._configured_by: Metadata | None = None  # whose properties `config` already includes
        self._base = ReadBase()
        self._lock = ForkSafeLock(self._after_torn_fork)
        # Held while the base is replaced, never during I/O: a commit must not wait for a refresh.
        self._base_lock = ForkSafeLock(self._after_torn_fork)
        self._cache = SnapshotCache()
        self._refreshing: Thread | None = None
        self._description: tuple[TableDescription, LogTip] | None = None
        self._first_observation: LogObservation | None = None  # the first load uses it up
        self._listed_ahead: TipListing | None = None  # the catch-up after a load uses it up
        self._told: set[BypassedCheckpoint] = set()  # what was logged and warned of already
        if not self._restore_copy():
            self._first_observation = self._observe_log()
        self.metrics.add("opens")
        _OPEN.add(self)

    @property
    def metrics(self) -> Metrics:
        """What the reads of this tracker count in."""
        return metrics_of(self.store)

    @property
    def base(self) -> ReadBase:
        """What was last read, as one consistent value."""
        return self._base

    @property
    def last_read(self) -> Snapshot | None:
        """The newest snapshot read so far."""
        return self._base.snapshot

    def note_own_commit(self) -> None:
        """Take note of a commit of this process, which the next answer must include."""
        self._replace_base(ReadBase.after_own_commit)

    def _replace_base(
        self,
        transition: Callable[Concatenate[ReadBase, _Args], ReadBase],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> ReadBase:
        """Replace the base by the result of a transition, and return it."""
        with self._base_lock:
            self._base = transition(self._base, *args, **kwargs)
            return self._base

    @property
    def config(self) -> Config:
        """The settings, including the table's own properties once they were read."""
        return self.read_options.config

    @property
    def format(self) -> Format:
        """The format of the table, chosen when its log was listed."""
        return self.read_options.format

    @property
    def _copies(self) -> SnapshotDiskCache | None:
        config = self.config
        if config.snapshot_cache_path is None or not config.cache_enabled:
            return None
        from arrowlog.snapshot.disk_cache import SnapshotDiskCache

        return SnapshotDiskCache(config.snapshot_cache_path, config.snapshot_cache_max_size)

    def _restore_copy(self) -> bool:
        """Start from the disk copy of another process, if the log confirms it.

        On a local disk, an unchanged folder tag means that no file was added or deleted, and the
        last commit identifies the log: commits are immutable, and a table that was created again
        has a different one. Otherwise the log is listed and later commits are read. Returns False
        if there is no copy or the log contradicts it.
        """
        copies = self._copies
        external = self.read_options.allow_external_paths
        copy = copies and copies.read_copy(self.store.root, allow_external_paths=external)
        if not copy:
            return False
        started_at, folder_tag = self._observe_folder()
        self._replace_base(ReadBase.after_restore, copy.snapshot, copy.tip, folder_tag)
        folder_unchanged = copy.folder is not None and copy.folder == folder_tag
        if (folder_unchanged and self.unchanged()) or self._catch_up():
            self._replace_base(ReadBase.after_confirmation, started_at)
            self._report_load(copy.snapshot)
            return True
        self._replace_base(ReadBase.invalidated)
        return False

    def _save_copy(self) -> None:
        """Write the disk copy if it is enabled and enough commits were read since the last one.

        A snapshot of another format than IndexTables is not saved: that format is assumed when a
        copy is restored.
        """
        if self.format != INDEXTABLES:
            return
        copies, base = self._copies, self._base
        if copies is None or not base.is_worth_saving(_SAVE_AFTER_COMMITS):
            return
        assert base.snapshot is not None
        assert base.tip is not None
        from arrowlog.snapshot.disk_cache import SavedSnapshot

        self._replace_base(ReadBase.after_save)
        copy = SavedSnapshot(base.snapshot, base.tip, base.folder_tag)
        external = self.read_options.allow_external_paths
        copies.save(self.store.root, copy, allow_external_paths=external)

    def _observe_folder(self) -> tuple[float, str | None]:
        """Return the time and the log folder's tag. Must precede the listing they describe."""
        started_at = boottime()
        wanted = self._copies is not None and self.store.cheap_stat
        stat = self.store.stat(self.format.log_folder) if wanted else None
        settled = stat is not None and time.time() * 1000 - stat.mtime_ms > _FOLDER_SETTLED_MS
        return started_at, stat.tag if stat is not None and settled else None

    def _observe_log(self) -> LogObservation:
        started_at, folder_tag = self._observe_folder()
        listing = open_log(self.store)
        self.read_options = replace(self.read_options, format=listing.format)
        return LogObservation(listing, started_at, folder_tag)

    @property
    def stats(self) -> CacheStats:
        """Hit rates of the in-memory cache."""
        return self._cache.stats

    @property
    def hit_counters(self) -> tuple[HitCounter, ...]:
        """Requests and hits: protocol, metadata, version, files, listing."""
        cache = self._cache
        return (cache.protocol, cache.metadata, cache.version, cache.files, cache.listing)

    @property
    def version(self) -> int:
        """The newest version, as the store has it now."""
        with self._lock:
            if self.last_read is not None:
                return self.latest().version
            version = self._version_since_opened()
            if version is not None:
                return version
            return plan_segment(list_log(self.store, self.format), None).version

    def _version_since_opened(self) -> int | None:
        """Return the newest version by what follows the tip that opening the table has shown.

        Over a network that is one listing of a few names. Returns None if it does not tell.
        """
        observation = self._first_observation
        if observation is None or self.store.cheap_stat:
            return None
        listing = observation.listing
        try:
            tip = listing.commit_file(plan_segment(listing, None).version)
        except LogCorrupt:  # files below the listing's start may be needed
            return None
        known = tip and LogTip(*tip, listing.stats.get(tip.name))
        found = known and self._list_commits(known, known.version, None)
        if not known or not found:
            return None
        return found[0][-1].version if found[0] else known.version

    def describe(self) -> TableDescription | Snapshot:
        """Return protocol, metadata and schema of the newest version.

        If no snapshot was read so far, none is loaded, where the log tells without.
        """
        if self.last_read is not None or self.format != INDEXTABLES:
            return self.latest()
        from arrowlog.snapshot.description import describe_table

        for _ in range(2):  # a concurrent cleanup may delete a file: list again
            with suppress(FileNotFoundError):
                listing = open_log(self.store)
                described = self._described(listing) or describe_table(
                    self.store, listing, self.read_options
                )
                if described is None:
                    break
                tip = listing.tip_file(described.version)
                if tip is not None and self.store.cheap_stat:
                    self._description = described, LogTip(*tip, self.store.stat(tip.key))
                return described
        return self.latest()

    def _described(self, listing: LogListing) -> TableDescription | None:
        """Return the last description if the log has not changed since, where that is cheap."""
        if self._description is None:
            return None
        described, tip = self._description
        unchanged = listing.newest == described.version and self.is_same_object(tip)
        return described if unchanged else None

    @property
    def earliest_version(self) -> int:
        """The lowest version from which on every version can be rebuilt."""
        listing = list_log(self.store, self.format)
        newest = plan_segment(listing, None).version
        return earliest_readable_version(self.store, listing, self.config, newest)

    def version_at(self, millis: int) -> int:
        """Return the last version committed at or before a time, in milliseconds since 1970.

        Raises `InvalidRequest` if the history begins later, `LogCorrupt` if a commit that was
        listed twice cannot be found.
        """
        for last_attempt in (False, True):
            listing = list_log(self.store, self.format)
            newest = plan_segment(listing, None).version
            first = earliest_readable_version(self.store, listing, self.config, newest)
            since = self._commit_times_declared_since()
            try:
                version = find_version_at(
                    self.store, listing, self.config, first, newest, millis, declared_since=since
                )
                commits = listing.commit_files()
                observed = listing.observed if self._is_recent(listing.observed) else float("-inf")
                check_not_retired(self.store, self.format, commits, observed)
            except FileNotFoundError as error:  # possibly a concurrent cleanup: list again
                if last_attempt:
                    raise missing_file_error(error) from None
            else:
                return version
        raise AssertionError  # the loop either returns or raises

    def _commit_times_declared_since(self) -> int | None:
        """The first version that declares its time, where that depends on the table's metadata."""
        if not self.format.monotonic_file_times:
            return 0
        return self.format.commit_times_declared_since(self.latest().metadata)

    def at_version(self, version: int, *, strict: bool | None = None) -> Snapshot:
        """Return the snapshot of a version, from the cache if the log is still the same.

        Raises `InvalidRequest` if the version does not exist or was cleaned up, `LogCorrupt` if it
        cannot be rebuilt.
        """
        version = check_version(version)
        now = boottime()
        with self._lock:
            cached = self._cached_version(version, now)
            self._cache.version.note(hit=cached is not None)
            self._count_cache("versions", hit=cached is not None)
        if cached is not None:
            return cached
        listing = list_log(self.store, self.format)
        snapshot = self._load(listing, version, strict=strict)
        commit = listing.tip_file(version)
        with self._lock:
            if self.last_read is None and commit is not None and self.config.cache_enabled:
                self._replace_base(ReadBase.with_tip, LogTip(*commit, self.store.stat(commit.key)))
            if self._cache_seconds > 0:
                config = self.config
                self._cache.put(snapshot, now, config.cache_max_versions, config.cache_max_size)
        return snapshot

    def _cached_version(self, version: int, now: float) -> Snapshot | None:
        """Return a cached version, unless the table was replaced since it was read."""
        latest = self.last_read
        snapshot = self._cache.get(version, now, self._cache_seconds)
        if latest is not None and latest.version == version:
            snapshot = latest
        if snapshot is None or not self.config.cache_enabled:
            return None
        tip = self._base.tip
        if tip is None or self.store.stat(tip.key) != tip.stat:
            self._cache.clear()  # every entry belongs to the table that was there before
            return None
        return snapshot

    def latest(self, *, strict: bool | None = None, max_staleness: float | None = None) -> Snapshot:
        """Return the newest snapshot.

        With `max_staleness`, an answer at most that many seconds old may be returned without asking
        the store, unless this process has committed since.
        """
        served = self._served(max_staleness or 0.0)
        if served is not None:
            return served
        started = time.perf_counter()
        with self._lock:
            started_at = boottime()  # whatever the store answers from here on was not true earlier
            self._listed_ahead = None  # by a load that no catch-up followed
            own_commits, before = self._base.own_commits, self._base.snapshot
            self._cache.listing.note(hit=False)
            current = (
                self._base.may_be_refreshed(strict=self._with_strict(strict).strict)
                and self.config.cache_enabled
                and self._catch_up()
            )
            self._cache.count_state_request(hit=current)
            self._count_cache("state", hit=current)
            if not current:
                self._cache.clear()  # it may be another table, even one with the same id
                listed_before = self._first_observation is not None
                self._reload(strict=strict)
                if not self._catch_up() and listed_before:
                    self._reload(strict=strict)  # the constructor's listing was out of date
            base = self._replace_base(ReadBase.after_refresh, started_at, own_commits)
            assert base.snapshot is not None
            self._apply_table_properties(base.snapshot.metadata)
            self._save_copy()
            self._report_refresh(before if current else None, base.snapshot, started)
            return base.snapshot

    def _report_refresh(self, before: Snapshot | None, after: Snapshot, started: float) -> None:
        """Log and count an answer to a request for the newest version.

        `before` is the snapshot that it was built on; None if it was loaded, which was reported.
        """
        milliseconds = (time.perf_counter() - started) * 1000
        self.metrics.add("refreshes")
        self.metrics.observe("refresh_ms", milliseconds)
        if before is None:
            return
        commits = after.version - before.version
        if commits:
            self.metrics.add("commits_read", commits)
        version = after.version
        REFRESHED.log(table=self.store.root, version=version, commits=commits, ms=milliseconds)

    def _report_load(self, snapshot: Snapshot) -> None:
        """Log and count a snapshot that was loaded; warn of checkpoints that could not be used."""
        report = snapshot.report
        self.metrics.add("loads", 1, report.source)
        self.metrics.observe("load_ms", report.milliseconds, report.source)
        if report.commits_read:
            self.metrics.add("commits_read", report.commits_read)
        STATE_LOADED.log(
            table=self.store.root,
            version=report.version,
            source=report.source,
            checkpoint=report.checkpoint,
            commits=report.commits_read,
            bytes=report.bytes_read,
            ms=report.milliseconds,
        )
        for item in report.bypassed:
            if item not in self._told:
                from arrowlog.snapshot.deferred_files import report_bypass

                self._told.add(item)
                report_bypass(self.store.root, self.metrics, item)

    def _count_cache(self, cache: str, *, hit: bool) -> None:
        self.metrics.add("cache_requests", 1, cache)
        if hit:
            self.metrics.add("cache_hits", 1, cache)

    def _served(self, max_staleness: float) -> Snapshot | None:
        """Return the last answer if it is recent enough.

        Takes no lock: the thread that holds it may be waiting for the store. Past half the allowed
        age, a background refresh starts, so that a steady reader never waits.
        """
        base, now = self._base, boottime()
        max_age = min(max_staleness, self._cache_seconds)
        if not base.may_be_served(now, max_age):
            return None
        self._cache.listing.note(hit=True)
        self._cache.count_state_request(hit=True)
        self._count_cache("state", hit=True)
        if now - base.observed_at > max_age / 2:
            self._refresh_soon()
        return base.snapshot

    def _apply_table_properties(self, metadata: Metadata) -> None:
        """Resolve the settings again with the table's own properties, if they changed."""
        if self._options is None or metadata is self._configured_by:
            return
        self._configured_by = metadata
        try:
            config = resolve(self._options, table=metadata.configuration)
        except InvalidRequest:  # an invalid table property must not make the table unreadable
            config = resolve(self._options)
        self.read_options = replace(self.read_options, config=config)

    @property
    def _cache_seconds(self) -> float:
        return self.config.cache_expiration_seconds if self.config.cache_enabled else 0

    def _fresh_seconds(self) -> float:
        """For how long cleanup cannot have deleted the commits after the last snapshot."""
        return min(PROBE_TRUST_SECONDS, self.config.log_retention_ms / 2000)

    def _refresh_soon(self) -> None:
        """Refresh in a background thread, unless one is already running."""
        if self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = Thread(target=self._refresh_quietly, daemon=True)
            self._refreshing.start()

    def _refresh_quietly(self) -> None:
        with suppress(ArrowlogError):  # the next caller that accepts no stale answer gets the error
            self.latest()

    def _after_torn_fork(self) -> None:
        """Discard everything if the process was forked while another thread held a lock."""
        self._base = self._base.after_torn_fork()
        self._cache.clear()

    def invalidate(self, parts: Collection[str] = CACHE_PARTS) -> None:
        """Drop what is cached, by default everything; what is needed is read from the log again.

        `protocol` and `metadata` are those of the newest version; they, its `files` and the
        `listing` that it rests on are one snapshot, which is dropped together with its disk copy.
        `versions` are the snapshots of earlier versions, and decoded manifests.
        """
        with self._lock:
            if "versions" in parts:
                self._cache.clear()
                self.read_options.manifests.clear()
            if set(parts) <= {"versions"}:
                return
            self._replace_base(ReadBase.invalidated)
            self._first_observation = self._listed_ahead = None
            self._configured_by = None
            if self._copies is not None:
                external = self.read_options.allow_external_paths
                self._copies.drop(self.store.root, allow_external_paths=external)

    def apply_own_commits(self, version: int) -> Snapshot:
        """Read the commits up to `version`, which is known to follow the last snapshot read.

        For versions that this process committed itself: neither the tip nor the time of the last
        answer changes, so the next `latest` still asks the store.
        """
        with self._lock:
            snapshot = self.last_read
            assert snapshot is not None
            commits = [self.format.commit_file(v) for v in range(snapshot.version + 1, version + 1)]
            if commits:
                from arrowlog.snapshot.loader import apply_commits

                snapshot = apply_commits(self.store, self.read_options, snapshot, commits)
                self._replace_base(ReadBase.with_own_commits, snapshot)
                self.metrics.add("commits_read", len(commits))
            return snapshot

    def tip_of(self, version: int, name: str) -> LogTip:
        """Return a commit's `LogTip`; asks the store for its stat only where that is cheap."""
        commit = CommitFile(version, self.format.key(name))
        return LogTip(*commit, self.store.stat(commit.key) if self.store.cheap_stat else None)

    def is_same_object(self, tip: LogTip) -> bool:
        """Whether a commit is still the same object; True where a stat is not cheap."""
        if not self.store.cheap_stat:
            return True
        return self.store.stat(tip.key) == tip.stat

    def unchanged(self) -> bool:
        """Whether the last known commit still stands; not checked where a stat is not cheap."""
        tip = self._base.tip
        return tip is not None and self.is_same_object(tip)

    def _is_recent(self, observed: float) -> bool:
        """Whether no version can have been committed and deleted since a `boottime`."""
        trusted = COUNTS_SUSPENSION and self.config.commit_verify != "always"
        return trusted and boottime() - observed <= OBSERVATION_TRUST_SECONDS

    def dropped(self) -> bool:
        """Whether the last known commit is gone or replaced, other than by cleanup."""
        tip = self._base.tip
        if tip is None or self.is_same_object(tip):
            return False
        if tip.is_state:  # cleanup records the commits that it deletes, and no states
            return not self._is_same_table()
        return tip.version not in list_retired(self.store, self.format)

    def _is_same_table(self) -> bool:
        """Whether the log is that of the table last read, by the table's id; reads the log."""
        from arrowlog.snapshot.loader import load_snapshot

        snapshot = self._base.snapshot
        try:
            newest = load_snapshot(self.store, list_log(self.store, self.format), self.read_options)
        except (ArrowlogError, FileNotFoundError):
            return False
        return snapshot is not None and newest.metadata.id == snapshot.metadata.id

    def overtaken(self, version: int) -> bool:
        """Whether the commits after a version may have been deleted; False if not cheap to tell.

        If so, the next version may be missing although the log continues. Other programs delete
        commits without recording it, so a pointer to a later checkpoint counts as well.
        """
        if not self.store.cheap_stat:
            return False
        return self._is_next_retired(version) or self.pointer_names_later(version)

    def _is_next_retired(self, version: int) -> bool:
        return self.store.cheap_stat and version + 1 in list_retired(self.store, self.format)

    def pointer_names_later(self, version: int) -> bool:
        """Whether `_last_checkpoint` names a later version; one stat if the file is unchanged."""
        stat = self.store.stat(self.format.key(self.format.pointer_name))
        if stat == self._base.stale_pointer:
            return False
        named = read_pointer(self.store, self.format)
        if named > version:
            return True
        if named >= 0 or stat is None:  # else reading it may have failed: read it again next time
            self._replace_base(ReadBase.with_stale_pointer, stat)
        return False

    def _load(
        self,
        listing: LogListing,
        version: int | None,
        *,
        strict: bool | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Snapshot:
        """Load a snapshot; if a concurrent cleanup deleted a file, list again and retry once."""
        from arrowlog.snapshot.loader import load_snapshot

        options = self._with_strict(strict)
        for last_attempt in (False, True):
            try:
                snapshot = load_snapshot(self.store, listing, options, version, meanwhile=meanwhile)
            except FileNotFoundError as error:
                if last_attempt:
                    raise missing_file_error(error) from None
                listing = list_log(self.store, self.format)
            else:
                self._report_load(snapshot)
                return snapshot
        raise AssertionError  # the loop either returns or raises

    def _with_strict(self, strict: bool | None) -> ReadOptions:  # noqa: FBT001 -- passed through
        """Return the options for one request, which may override `strict`."""
        return self.read_options if strict is None else replace(self.read_options, strict=strict)

    def _reload(self, *, strict: bool | None) -> None:
        """Load the newest snapshot from the log."""
        observation = self._first_observation or self._observe_log()
        self._first_observation = self._listed_ahead = None
        listing = observation.listing
        known_before = self.store.cheap_stat or self._copies is not None
        stat_before = self._stat_of(listing, listing.newest) if known_before else None
        snapshot = self._load(
            listing, None, strict=strict, meanwhile=lambda: self._list_ahead(listing)
        )
        commit = listing.tip_file(snapshot.version)
        # A network store's listing tells what was there before the commit was read.
        listed = commit and listing.stats.get(commit.name)
        stat = listed if listed and not known_before else self._stat_of(listing, snapshot.version)
        # If the last commit was replaced during the load, the stat may not describe what was read.
        unsaved = _SAVE_AFTER_COMMITS if stat_before == stat else 0
        if known_before and snapshot.version == listing.newest:
            stat = stat_before
        usual_length = {len(self.format.commit_file(0).key)}
        self._replace_base(
            ReadBase.after_load,
            snapshot,
            None if commit is None else LogTip(*commit, stat),
            observation.started_at,
            # The file of a state lands in a folder of its own, which the log folder's tag misses.
            folder_tag=None if snapshot.has_states else observation.folder_tag,
            has_nonstandard_names=not set(map(len, listing.commits.values())) <= usual_length,
            unsaved_commits=unsaved,
        )

    def _list_ahead(self, listing: LogListing) -> None:
        """List what follows the tip of a listing that is being loaded, for the catch-up."""
        self._listed_ahead = None
        with suppress(ArrowlogError):  # the catch-up lists by itself then
            self._listed_ahead = list_from_tip(self.store, listing)

    def _stat_of(self, listing: LogListing, version: int) -> ObjectStat | None:
        commit = listing.tip_file(version)
        return None if commit is None else self.store.stat(commit.key)

    def _catch_up(self) -> bool:
        """Apply the commits after the last snapshot; False if the log does not contain it now."""
        base, started = self._base, boottime()
        tip, latest = base.tip, base.snapshot
        ahead, self._listed_ahead = self._listed_ahead, None
        if tip is None or latest is None:
            return False
        ahead = ahead if ahead is not None and ahead.key == tip.key else None
        started = started if ahead is None else ahead.started_at
        probe = self.store.cheap_stat and boottime() - base.observed_at < self._fresh_seconds()
        probe = probe and not self.overtaken(latest.version)
        if probe:
            new_commits = self._probe_commits(tip, latest.version)
        else:
            new_commits = self._list_commits(tip, latest.version, ahead)
        if new_commits is None:
            return False
        commits, stat = new_commits
        if not commits and not probe and self._is_next_retired(latest.version):
            return False  # a complete listing tells whether the log continues behind a checkpoint
        if commits:
            from arrowlog.snapshot.loader import apply_commits

            try:
                snapshot = apply_commits(
                    self.store, self.read_options, latest, commits, observed=started
                )
            except FileNotFoundError:
                return False
            tip = LogTip(*commits[-1], stat)
            self._replace_base(ReadBase.after_commits, snapshot, tip, len(commits))
        return True

    def _probe_commits(
        self, tip: LogTip, base: int
    ) -> tuple[list[CommitFile], ObjectStat | None] | None:
        """Find the commits after `base` with one stat each.

        Returns the commits and the stat of the last one (of the tip if there are none), or None if
        the tip was replaced or a gap appeared.
        """
        if self.store.stat(tip.key) != tip.stat:
            return None
        commits: list[CommitFile] = []
        stat = tip.stat
        for version in range(base + 1, base + 1 + _PROBES_MAX):
            commit, commit_stat = find_commit(self.store, self.format, version, tip.name)
            if commit_stat is None:
                if self._has_new_gap(version, tip.name) or self._has_state(version):
                    return None
                return commits, stat
            commits.append(commit)
            stat = commit_stat
        commits = list_log(self.store, self.format).commits_after(base)
        return (commits, self.store.stat(commits[-1].key)) if commits else None

    def _has_new_gap(self, version: int, like: str) -> bool:
        """Whether a commit is missing, its successor exists, and no report has said so yet.

        The missing commit is looked for again after its successor was seen: both may have landed
        since the first probe.
        """
        assert self.last_read is not None
        gap = self.last_read.report.gap
        if gap is not None and gap.missing == version:
            return False
        where = self.store, self.format
        _, successor = find_commit(*where, version + 1, like)
        return successor is not None and find_commit(*where, version, like)[1] is None

    def _has_state(self, version: int) -> bool:
        """Whether the log continues with a table state that has no commit."""
        snapshot = self.last_read
        if snapshot is None or not snapshot.has_states:
            return False
        name = self.format.state_name(version)
        return bool(name) and self.store.stat(self.format.key(name)) is not None

    def _list_commits(
        self, tip: LogTip, base: int, ahead: TipListing | None
    ) -> tuple[list[CommitFile], ObjectStat | None] | None:
        """Find the commits after `base` with one listing that starts at the tip, or with `ahead`.

        Returns what `_probe_commits` returns, or None if the tip was replaced, or the log continues
        where `base` does not lead: behind a checkpoint or a gap.
        """
        # Names of another width sort elsewhere.
        usual = tip.is_state or tip.key == self.format.commit_file(tip.version).key
        start = self.format.commit_name(tip.version) if tip.is_state else tip.name
        entries = self._entries(tip, start if usual else "") if ahead is None else ahead.entries
        tip_stat = self.store.stat(tip.key) if tip.is_state else entries.get(tip.name)
        if tip_stat != tip.stat or tip_stat is None:
            return None
        listing = without_failed_states(self.store, self.format.classify(sorted(entries)), base)
        if base + 1 in listing.commits and not self._is_recent(self._base.observed_at):
            # The version was empty when the log was last observed. It may have been committed and
            # deleted since, and the file may be a stalled writer's, which does not count
            # (decision 17).
            listing = without_retired(self.store, listing, entries)
            if any(version > base for version in listing.dead):
                return None  # the log continues behind a checkpoint
        commits = listing.commits_after(base)
        reached = commits[-1] if commits else CommitFile(base, tip.key)
        if listing.newest > reached.version:  # those in between were cleaned up, or are missing
            return None
        return commits, entries[reached.name] if commits else tip_stat

    def _entries(self, tip: LogTip, start: str) -> dict[str, ObjectStat | None]:
        """List the log from a name on, with stats.

        A network store's listing includes them. On a local disk only the tip and the last commit
        are statted; the others are None.
        """
        if not self.store.cheap_stat:
            return dict(self.store.stats_from(self.format.log_folder, start))
        entries: dict[str, ObjectStat | None] = dict.fromkeys(
            self.store.list_from(self.format.log_folder, start)
        )
        commits = self.format.classify(sorted(entries)).commits_after(tip.version)
        commits = [CommitFile(tip.version, tip.key), *commits[-1:]]
        for commit in commits[tip.is_state :]:
            entries[commit.name] = self.store.stat(commit.key)
        return entries


_OPEN: WeakSet[SnapshotTracker] = WeakSet()
