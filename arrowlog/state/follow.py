"""The newest state of one table, kept up to date with as few requests as the store allows.

On a disk, asking for one file costs next to nothing: the last commit is looked at, and the next.
Over a network, one listing that begins at the last commit tells both whether it is still the same
(a table may be dropped and made anew) and what came after it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING
from weakref import WeakSet

from arrowlog.clock import COUNTS_SUSPENSION, boottime
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.fork_safety import ForkSafeLock
from arrowlog.log.names import LOG, POINTER, commit_name, read_listing
from arrowlog.log.segment import earliest, plan
from arrowlog.state.cache import Cache
from arrowlog.state.checkpoint import read_pointer
from arrowlog.state.copies import Copies, Copy, Mark
from arrowlog.state.listing import (
    TRUST_SECONDS,
    check_current,
    list_log,
    list_recent,
    list_retired,
    without_retired,
)
from arrowlog.state.load import follow, gone, load
from arrowlog.state.travel import version_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Stat, Store
    from arrowlog.state.cache import CacheStats, Tally
    from arrowlog.state.snapshot import Snapshot

_PROBES_MAX = 16
_SAVE_COMMITS = 64  # news that are worth a new copy
_SETTLED_MS = 2000
FRESH_SECONDS = 30.0  # no clean-up takes away what is younger, so what comes next is next to it


def open_followers() -> list[Follower]:
    """Those of the tables that are open in this process."""
    return list(_OPEN)


class Follower:
    """The newest snapshot that was read, and how to find out whether it still is."""

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        strict: bool,
        outside: bool,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Looks at the log once; `TableNotFound` if there is none.

        `options` are those of the call, if the table's own settings are to come beneath them.
        """
        self.store = store
        self.config = config
        self._options = options
        self._settled: Metadata | None = None
        self.strict = strict
        self.outside = outside
        self.latest: Snapshot | None = None
        self.asked = float("-inf")
        self.outdated = False  # whether this program has committed since the last answer
        self.odd = False  # whether others write this log under names of another width
        self.looks = 0  # how often the store was asked for the newest version
        self._mark: Mark | None = None
        self._pointer: Stat | None = None  # one that leads to nothing new
        self._lock = ForkSafeLock(self._after_torn_fork)
        self._cache = Cache(_seconds(config))
        self._refreshing: Thread | None = None
        self._listing: Listing | None = None
        self._unsaved = 0  # commits that were read since a copy was made
        if not self._recall():
            self._list_anew()
        _OPEN.add(self)

    @property
    def _copies(self) -> Copies | None:
        config = self.config
        if config.snapshot_cache_path is None or not config.cache_enabled:
            return None
        return Copies(config.snapshot_cache_path, config.snapshot_cache_max_size)

    def _recall(self) -> bool:
        """Begin with the copy that another process left, if the log bears it out.

        On a disk, a folder that has not changed has no news, and the last commit stands for all:
        nobody changes a commit, and a table that is made anew has another. Else the log is listed,
        and what came after is read.
        """
        copies = self._copies
        copy = copies and copies.recall(self.store.root, outside=self.outside)
        if not copy:
            return False
        self._list_from_now()
        self.latest, self._mark = copy.snapshot, copy.mark
        if copy.folder is not None and copy.folder == self._folder and self.unchanged():
            self.asked = self._listed
            return True
        if self._catch_up():
            self.asked = self._listed
            return True
        self.latest = self._mark = None
        return False

    def _save(self) -> None:
        """Leave a copy for the next process, where one is wanted and tells enough news."""
        copies, latest, mark = self._copies, self.latest, self._mark
        if copies is None or latest is None or mark is None or latest.report.warnings:
            return
        if self._unsaved < _SAVE_COMMITS or mark.version != latest.version:
            return
        self._unsaved = 0
        copies.save(self.store.root, Copy(latest, mark, self._folder), outside=self.outside)

    def _list_from_now(self) -> None:
        """Note when the log was looked at, and what its folder was like, before it is listed."""
        self._listed = boottime()
        wanted = self._copies is not None and self.store.cheap_stat
        found = self.store.stat(LOG) if wanted else None
        # Times are coarse: a folder that has just changed may change again in the same instant.
        settled = found is not None and time.time() * 1000 - found.mtime_ms > _SETTLED_MS
        self._folder = found.tag if found is not None and settled else None

    def _list_anew(self) -> Listing:
        self._list_from_now()
        self._listing = list_recent(self.store)
        return self._listing

    @property
    def stats(self) -> CacheStats:
        """How often answers came from memory."""
        return self._cache.stats

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """How often each kind of answer was asked for, and was at hand."""
        known = self._cache
        return (known.protocol, known.metadata, known.version, known.files, known.listing)

    @property
    def version(self) -> int:
        """The newest version."""
        with self._lock:
            if self.latest is not None:
                return self.newest().version
            return plan(list_log(self.store), None).version

    @property
    def earliest_version(self) -> int:
        """The lowest version from which on every version can be read."""
        listing = list_log(self.store)
        return earliest(listing, plan(listing, None).version)

    def version_at(self, millis: int) -> int:
        """The last version whose commit is not after a moment."""
        for last in (False, True):
            listing = list_log(self.store)
            newest = plan(listing, None).version
            first = earliest(listing, newest)
            try:
                version = version_at(self.store, listing, self.config, first, newest, millis)
                commits = sorted(listing.commits.items())
                observed = listing.observed if self._recent(listing.observed) else float("-inf")
                check_current(self.store, commits, observed)
            except FileNotFoundError as error:  # a clean-up may be at work
                if last:
                    raise gone(error) from None
            else:
                return version
        raise AssertionError  # the loop either returns or raises

    def at(self, version: int, *, strict: bool | None = None) -> Snapshot:
        """The table at a version."""
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise InvalidRequest(f"{version!r} is not a version.", next="Versions are 0, 1, 2, …")
        now = boottime()
        with self._lock:
            found = self._at_hand(version, now)
            self._cache.version.note(hit=found is not None)
        if found is not None:
            return found
        listing = list_log(self.store)
        snapshot = self._load(listing, version, strict=strict)
        name = listing.commits.get(version)
        with self._lock:
            if self.latest is None and name is not None and self.config.cache_enabled:
                self._mark = Mark(version, name, self.store.stat(f"{LOG}/{name}"))
            self._cache.put(snapshot, now)
        return snapshot

    def _at_hand(self, version: int, now: float) -> Snapshot | None:
        """A version that was read before, of the table that is there now."""
        latest = self.latest
        found = self._cache.get(version, now)
        if latest is not None and latest.version == version:
            found = latest
        if found is None or not self.config.cache_enabled:
            return None
        if self._made_anew():
            self._cache.clear()  # all of it is of the table that was there before
            return None
        return found

    def newest(self, *, strict: bool | None = None, max_staleness: float | None = None) -> Snapshot:
        """The newest version; an answer of the last `max_staleness` seconds may be given again."""
        served = self._served(max_staleness or 0.0)
        if served is not None:
            return served
        with self._lock:
            started = boottime()  # what the store says from here on was true no earlier
            self._cache.listing.note(hit=False)
            known = self._whole(strict) and self.config.cache_enabled and self._catch_up()
            self._cache.answered(hit=known)
            if not known:
                self._cache.clear()  # it may be another table, even if it says the same id
                listed_before = self._listing is not None
                self._reload(strict=strict)
                if not self._catch_up() and listed_before:
                    self._reload(strict=strict)  # the constructor's listing is out of date
            assert self.latest is not None
            self._settle(self.latest.metadata)
            self.asked = started
            self.outdated = False
            self.looks += 1
            self._save()
            return self.latest

    def _whole(self, strict: bool | None) -> bool:  # noqa: FBT001 -- what the caller was given
        """Whether there is a state to go on from; one that ends at a gap may be an error."""
        if self.latest is None:
            return False
        return self.latest.report.gap is None or not (self.strict if strict is None else strict)

    def _served(self, staleness: float) -> Snapshot | None:
        """The last answer, if it is young enough. No lock: who refreshes it may wait for long."""
        age, latest = boottime() - self.asked, self.latest
        stale = min(staleness, self._cache.seconds)
        if latest is None or stale <= 0 or age > stale or self.outdated:
            return None
        self._cache.listing.note(hit=True)
        self._cache.answered(hit=True)
        if age > stale / 2:
            self._refresh_soon()
        return latest

    def _settle(self, metadata: Metadata) -> None:
        """Take over what the table's own properties say."""
        if self._options is None or metadata is self._settled:
            return
        self._settled = metadata
        try:
            self.config = resolve(self._options, table=metadata.configuration)
        except InvalidRequest:  # a wrong property does not keep anybody from reading
            self.config = resolve(self._options)
        self._cache.seconds = _seconds(self.config)

    def _fresh(self) -> float:
        """How long nobody can have cleaned up what comes next."""
        return min(FRESH_SECONDS, self.config.log_retention_ms / 2000)

    def _refresh_soon(self) -> None:
        """Bring the answer up to date in the background, so that the next one is fresh."""
        if self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = Thread(target=self._refresh_quietly, daemon=True)
            self._refreshing.start()

    def _refresh_quietly(self) -> None:
        with suppress(ArrowlogError):  # who asks next without patience is told
            self.newest()

    def _after_torn_fork(self) -> None:
        self.latest = self._mark = self._pointer = None
        self._cache.clear()

    def forget(self) -> None:
        """Read everything anew next time."""
        with self._lock:
            self.latest = self._mark = None
            self._cache.clear()
            if self._copies is not None:
                self._copies.drop(self.store.root, outside=self.outside)

    def advance(self, version: int) -> Snapshot:
        """The snapshot at a version that is known to follow the latest one."""
        with self._lock:
            latest = self.latest
            assert latest is not None
            commits = [(v, commit_name(v)) for v in range(latest.version + 1, version + 1)]
            if commits:
                latest = follow(self.store, self.config, latest, commits, outside=self.outside)
                self.latest = latest
            return latest

    def mark_of(self, version: int, name: str) -> Mark:
        """A commit by which to know the log again; asks the store only where that is cheap."""
        stat = self.store.stat(f"{LOG}/{name}") if self.store.cheap_stat else None
        return Mark(version, name, stat)

    def stands(self, mark: Mark) -> bool:
        """Whether a commit is still the one that was marked, where that is cheap to tell."""
        if not self.store.cheap_stat:
            return True
        return self.store.stat(f"{LOG}/{mark.name}") == mark.stat

    def unchanged(self) -> bool:
        """Whether the commit by which the log is known stands, where that is cheap to tell."""
        return self._mark is not None and self.stands(self._mark)

    def _recent(self, observed: float) -> bool:
        """Whether nothing can have been committed and deleted since a moment."""
        trusted = COUNTS_SUSPENSION and self.config.commit_verify != "always"
        return trusted and boottime() - observed <= TRUST_SECONDS

    def dropped(self) -> bool:
        """Whether the commit by which the log is known is gone, and clean-up has not deleted it."""
        mark = self._mark
        if mark is None or self.stands(mark):
            return False
        return mark.version not in list_retired(self.store)

    def overtaken(self, version: int) -> bool:
        """Whether the commits after a version may have been deleted, where that is cheap to tell.

        Then the next version may be missing although the log goes on. Other programs delete commits
        without a record, so a pointer beyond the version counts as well.
        """
        if not self.store.cheap_stat:
            return False
        return version + 1 in list_retired(self.store) or self.pointed_beyond(version)

    def pointed_beyond(self, version: int) -> bool:
        """Whether the pointer names a checkpoint beyond a version; cheap if it has not changed."""
        found = self.store.stat(f"{LOG}/{POINTER}")
        if found == self._pointer:
            return False
        if read_pointer(self.store) > version:
            return True
        self._pointer = found
        return False

    def _made_anew(self) -> bool:
        mark = self._mark
        return mark is None or self.store.stat(f"{LOG}/{mark.name}") != mark.stat

    def _load(self, listing: Listing, version: int | None, *, strict: bool | None) -> Snapshot:
        """Load; a file that a concurrent clean-up took away is looked for once more."""
        how = self.strict if strict is None else strict
        for last in (False, True):
            try:
                return load(
                    self.store, listing, self.config, version, strict=how, outside=self.outside
                )
            except FileNotFoundError as error:
                if last:
                    raise gone(error) from None
                listing = list_log(self.store)
        raise AssertionError  # the loop either returns or raises

    def _reload(self, *, strict: bool | None) -> None:
        listing = self._listing or self._list_anew()
        self._listing = None  # what the constructor saw is used once
        before = self._stat_of(listing, listing.newest) if self._copies else None
        snapshot = self._load(listing, None, strict=strict)
        name = listing.commits.get(snapshot.version)
        stat = self._stat_of(listing, snapshot.version)
        self.odd = bool(set(map(len, listing.commits.values())) - {len(commit_name(0))})
        self.latest = snapshot
        self.asked = self._listed
        # A commit that was put in the place of another meanwhile is not what was read.
        self._unsaved = _SAVE_COMMITS if before == stat else 0
        self._mark = None if name is None else Mark(snapshot.version, name, stat)

    def _stat_of(self, listing: Listing, version: int) -> Stat | None:
        name = listing.commits.get(version)
        return None if name is None else self.store.stat(f"{LOG}/{name}")

    def _catch_up(self) -> bool:
        """Read the commits after the latest snapshot; False if it is no longer part of the log."""
        mark, latest, started = self._mark, self.latest, boottime()
        if mark is None or latest is None:
            return False
        quick = self.store.cheap_stat and boottime() - self.asked < self._fresh()
        if quick and not self.overtaken(latest.version):
            news = self._look(mark, latest.version)
        else:
            news = self._list(mark, latest.version)
        if news is None:
            return False
        commits, stat = news
        if commits:
            try:
                self.latest = follow(
                    self.store,
                    self.config,
                    latest,
                    commits,
                    outside=self.outside,
                    observed=started,
                )
            except FileNotFoundError:
                return False
            version, name = commits[-1]
            self._mark = Mark(version, name, stat)
            self._unsaved += len(commits)
        return True

    def _look(self, mark: Mark, base: int) -> tuple[list[tuple[int, str]], Stat | None] | None:
        """Commits after a version, by asking for each."""
        if self.store.stat(f"{LOG}/{mark.name}") != mark.stat:
            return None
        found: list[tuple[int, str]] = []
        stat = mark.stat
        for version in range(base + 1, base + 1 + _PROBES_MAX):
            hit = self._find(version, mark.name)
            if hit is None:
                return None if self._gapes(version, mark.name) else (found, stat)
            found.append((version, hit[0]))
            stat = hit[1]
        found = _following(list_log(self.store), base)
        return (found, self.store.stat(f"{LOG}/{found[-1][1]}")) if found else None

    def _gapes(self, version: int, like: str) -> bool:
        """Whether a commit is missing and the next one is there, which nobody was told of yet."""
        assert self.latest is not None
        gap = self.latest.report.gap
        if gap is not None and gap.missing == version:
            return False
        return self._find(version + 1, like) is not None and self._find(version, like) is None

    def _find(self, version: int, like: str) -> tuple[str, Stat] | None:
        """A commit if it is there: as we write it, or as wide as the last one is."""
        width = len(like) - len(".json")
        for name in {commit_name(version), f"{version:0{max(width, 1)}d}.json"}:
            stat = self.store.stat(f"{LOG}/{name}")
            if stat is not None:
                return name, stat
        return None

    def _list(self, mark: Mark, base: int) -> tuple[list[tuple[int, str]], Stat | None] | None:
        """Commits after a version, by one listing that begins with the mark."""
        usual = mark.name == commit_name(mark.version)  # other widths sort elsewhere
        entries = self._entries(mark, mark.name if usual else "")
        if entries.get(mark.name) != mark.stat or mark.stat is None:
            return None
        listing = read_listing(sorted(entries))
        if base + 1 in listing.commits and not self._recent(self.asked):
            # It was not there when the log was last read, but may have come and gone since.
            listing = without_retired(self.store, listing, entries)
            if any(version > base for version in listing.dead):
                return None  # the log goes on behind a checkpoint: it does not end here
        commits = _following(listing, base)
        reached, name = commits[-1] if commits else (base, mark.name)
        if listing.newest > reached:  # what lies between was cleaned up, or is missing
            return None
        return commits, entries[name]

    def _entries(self, mark: Mark, start: str) -> dict[str, Stat | None]:
        """What the log has from a name on; where asking is cheap, only what is needed is asked."""
        if not self.store.cheap_stat:
            return dict(self.store.stats_from(LOG, start))
        found: dict[str, Stat | None] = dict.fromkeys(self.store.list_from(LOG, start))
        commits = _following(read_listing(sorted(found)), mark.version)
        for name in (mark.name, *(name for _, name in commits[-1:])):
            found[name] = self.store.stat(f"{LOG}/{name}")
        return found


_OPEN: WeakSet[Follower] = WeakSet()


def _seconds(config: Config) -> float:
    return config.cache_expiration_seconds if config.cache_enabled else 0


def _following(listing: Listing, version: int) -> list[tuple[int, str]]:
    """The commits that follow a version without a gap."""
    found = []
    while version + 1 in listing.commits:
        version += 1
        found.append((version, listing.commits[version]))
    return found
