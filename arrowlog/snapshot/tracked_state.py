"""What a tracker keeps: how its log is read, the newest snapshot and its tip, and caches. Pure.

`ReadBase` is a value: a tracker never changes it but replaces it by the result of a transition.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from arrowlog.formats import CommitFile
from arrowlog.formats.indextables import INDEXTABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import Format
    from arrowlog.snapshot.snapshot import Snapshot
    from arrowlog.storage import ObjectStat

# What a cached snapshot takes besides its columns.
_SNAPSHOT_BYTES = 1 << 12
# Decoded manifests that are kept: 50,000 entries with all fields take about 25 MB, and most
# questions need a few fields.
_MANIFEST_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class LogTip:
    """The last commit of a snapshot, or its table state if that is all that the version has.

    Its key, and the stat that identifies the object. A log that still has this very object is the
    same log; a table that was dropped and created again has another one. `stat` is None if it was
    not asked for.
    """

    version: int
    key: str
    stat: ObjectStat | None

    @property
    def is_state(self) -> bool:
        """Whether it is a table state, which is in a folder of its own, and not a commit."""
        return not self.key.endswith(".json")

    @property
    def name(self) -> str:
        """The file name of the commit."""
        return CommitFile(self.version, self.key).name


@dataclass(frozen=True, slots=True)
class ReadBase:
    """The newest snapshot that a tracker has read, and what is known about its place in the log.

    Attributes:
        snapshot: the newest snapshot read so far; None before the first read.
        tip: the last commit of the snapshot, or an earlier one. While this object stands, the log
            is the one that was read.
        observed_at: a `boottime` at which the log had no commit that the snapshot lacks.
        generation: how often the store was asked for the newest version.
        own_commits: commits of this process that the tracker was told of.
        covered_commits: how many of them had been made when the store was last asked.
        has_nonstandard_names: some commit names are not 20 digits wide: another program writes
            here.
        stale_pointer: a `_last_checkpoint` that was read and named no later version.
        unsaved_commits: commits read since the disk copy was written.
        folder_tag: the tag of the log folder from before the log was listed; None if it is unknown
            or not conclusive.
    """

    snapshot: Snapshot | None = None
    tip: LogTip | None = None
    observed_at: float = float("-inf")
    generation: int = 0
    own_commits: int = 0
    covered_commits: int = 0
    has_nonstandard_names: bool = False
    stale_pointer: ObjectStat | None = None
    unsaved_commits: int = 0
    folder_tag: str | None = None

    def after_restore(self, snapshot: Snapshot, tip: LogTip, folder_tag: str | None) -> ReadBase:
        """Start from a disk copy, which the log has yet to confirm: it was never observed."""
        return replace(self, snapshot=snapshot, tip=tip, folder_tag=folder_tag)

    def after_load(
        self,
        snapshot: Snapshot,
        tip: LogTip | None,
        observed_at: float,
        *,
        folder_tag: str | None,
        has_nonstandard_names: bool,
        unsaved_commits: int,
    ) -> ReadBase:
        """Replace the snapshot by one that was loaded from a listing begun at `observed_at`."""
        return replace(
            self,
            snapshot=snapshot,
            tip=tip,
            observed_at=observed_at,
            folder_tag=folder_tag,
            has_nonstandard_names=has_nonstandard_names,
            unsaved_commits=unsaved_commits,
        )

    def after_commits(self, snapshot: Snapshot, tip: LogTip, count: int) -> ReadBase:
        """Advance past `count` commits that were found in the log, the last of which is the tip."""
        return replace(
            self, snapshot=snapshot, tip=tip, unsaved_commits=self.unsaved_commits + count
        )

    def with_own_commits(self, snapshot: Snapshot) -> ReadBase:
        """Advance past commits of this process. The log was not asked: tip and time stay."""
        return replace(self, snapshot=snapshot)

    def after_own_commit(self) -> ReadBase:
        """Note that this process has committed: the snapshot may not be served any more."""
        return replace(self, own_commits=self.own_commits + 1)

    def after_confirmation(self, observed_at: float) -> ReadBase:
        """Note that the log confirmed the snapshot, without a request for the newest version."""
        return replace(self, observed_at=observed_at)

    def after_refresh(self, started_at: float, covered_commits: int) -> ReadBase:
        """Note a complete answer of the store.

        `covered_commits` is the value of `own_commits` when the refresh began. Commits made while
        it ran may be missing from the answer.
        """
        return replace(
            self,
            observed_at=started_at,
            generation=self.generation + 1,
            covered_commits=covered_commits,
        )

    def with_tip(self, tip: LogTip) -> ReadBase:
        """Remember a commit to recognise the log by, before any snapshot of it was kept."""
        return replace(self, tip=tip) if self.snapshot is None else self

    def with_stale_pointer(self, pointer: ObjectStat | None) -> ReadBase:
        """Remember a checkpoint pointer, so that it is not read again while it is unchanged."""
        return replace(self, stale_pointer=pointer)

    def after_save(self) -> ReadBase:
        """Note that the snapshot is on the local disk."""
        return replace(self, unsaved_commits=0)

    def invalidated(self) -> ReadBase:
        """Forget the snapshot and its tip."""
        return replace(self, snapshot=None, tip=None)

    def after_torn_fork(self) -> ReadBase:
        """Forget everything that was read: another thread was in the middle of a refresh."""
        return replace(self, snapshot=None, tip=None, stale_pointer=None)

    def may_be_served(self, now: float, max_age: float) -> bool:
        """Whether the snapshot answers a request that accepts one of at most `max_age` seconds.

        It does not if this process has committed since: a program sees its own commits.
        """
        if self.snapshot is None or max_age <= 0 or now - self.observed_at > max_age:
            return False
        return self.own_commits == self.covered_commits

    def may_be_refreshed(self, *, strict: bool) -> bool:
        """Whether the snapshot may be built on; not if it ends at a gap and gaps are errors."""
        return self.snapshot is not None and (self.snapshot.report.gap is None or not strict)

    def is_worth_saving(self, min_commits: int) -> bool:
        """Whether a disk copy of the snapshot is of use to other processes.

        A snapshot with warnings is not saved, so that every process reports them.
        """
        if self.snapshot is None or self.tip is None or self.snapshot.report.warnings:
            return False
        return self.unsaved_commits >= min_commits and self.tip.version == self.snapshot.version


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hit rates from 0 to 1; 0 for what was never requested."""

    protocol_hit_rate: float
    metadata_hit_rate: float
    version_hit_rate: float
    files_hit_rate: float
    versions_list_hit_rate: float


@dataclass(slots=True)
class HitCounter:
    """Counts requests and cache hits."""

    requests: int = 0
    hits: int = 0

    def note(self, *, hit: bool) -> None:
        """Count one request."""
        self.requests += 1
        self.hits += hit

    @property
    def rate(self) -> float:
        """Hits per request."""
        return self.hits / self.requests if self.requests else 0.0


class _CachedVersion(NamedTuple):
    """A snapshot, and when it was read."""

    read_at: float
    snapshot: Snapshot


@dataclass(slots=True)
class SnapshotCache:
    """Snapshots of earlier versions, and a counter per kind of request.

    A version is immutable, so it is kept until it expires or is evicted by others (LRU): there are
    limits on their number and on their memory.
    """

    protocol: HitCounter = field(default_factory=HitCounter)
    metadata: HitCounter = field(default_factory=HitCounter)
    version: HitCounter = field(default_factory=HitCounter)
    files: HitCounter = field(default_factory=HitCounter)
    listing: HitCounter = field(default_factory=HitCounter)
    _kept: OrderedDict[int, _CachedVersion] = field(default_factory=OrderedDict)

    def get(self, version: int, now: float, max_age: float) -> Snapshot | None:
        """Return the snapshot of a version, if one of at most `max_age` seconds is cached."""
        entry = self._kept.get(version)
        if entry is None or now - entry.read_at > max_age:
            return None
        self._kept.move_to_end(version)
        return entry.snapshot

    def put(self, snapshot: Snapshot, now: float, max_versions: int, max_bytes: int) -> None:
        """Cache a snapshot that was read at a time, within the limits.

        Snapshots grow when their columns are used, so all of them are measured again.
        """
        self._kept[snapshot.version] = _CachedVersion(now, snapshot)
        self._kept.move_to_end(snapshot.version)
        size = sum(_SNAPSHOT_BYTES + kept.snapshot.held_bytes for kept in self._kept.values())
        while self._kept and (len(self._kept) > max_versions or size > max_bytes):
            _, oldest = self._kept.popitem(last=False)
            size -= _SNAPSHOT_BYTES + oldest.snapshot.held_bytes

    def count_state_request(self, *, hit: bool) -> None:
        """Count one request for the newest state; a miss is a load from the log."""
        for counter in (self.protocol, self.metadata, self.files):
            counter.note(hit=hit)

    def clear(self) -> None:
        """Drop all snapshots; the counters stay."""
        self._kept.clear()

    @property
    def stats(self) -> CacheStats:
        """The current hit rates."""
        return CacheStats(
            self.protocol.rate,
            self.metadata.rate,
            self.version.rate,
            self.files.rate,
            self.listing.rate,
        )


class ManifestCache:
    """Decoded manifests by table and path. They never change, so that no version invalidates them.

    The least recently used ones are dropped. Pickles empty.
    """

    def __init__(self, limit: int = _MANIFEST_BYTES_MAX) -> None:
        """Keep up to `limit` bytes of decoded columns."""
        self._limit = limit
        self._size = 0
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], dict[frozenset[str], pa.Table]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty cache."""
        return ManifestCache, (self._limit,)

    def get(self, table_id: str, path: str, fields: frozenset[str]) -> pa.Table | None:
        """Return a manifest that was decoded with these fields, or with more."""
        key = (table_id, path)
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return find_superset(self._kept[key], fields)

    def put(self, table_id: str, path: str, fields: frozenset[str], entries: pa.Table) -> None:
        """Keep a decoded manifest, if it is small enough to be one of several."""
        if entries.nbytes > self._limit // 2:
            return
        with self._lock:
            known = self._kept.setdefault((table_id, path), {})
            for other in [other for other in known if other <= fields]:
                self._size -= known.pop(other).nbytes
            known[fields] = entries
            self._size += entries.nbytes
            self._kept.move_to_end((table_id, path))
            while self._size > self._limit:
                _, dropped = self._kept.popitem(last=False)
                self._size -= sum(table.nbytes for table in dropped.values())

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept.clear()
            self._size = 0


def find_superset(
    tables: dict[frozenset[str], pa.Table], fields: frozenset[str]
) -> pa.Table | None:
    """Return a table that was decoded with these fields, or with more."""
    exact = tables.get(fields)
    if exact is not None:
        return exact
    return next((table for known, table in list(tables.items()) if known > fields), None)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a log is read.

    `allow_external_paths` admits data files outside the table's root. `strict` makes a gap in the
    log an error instead of a warning. `format` is that of the log. `manifests` holds decoded
    manifests of table states; it is shared by all reads with options that were made from these.
    """

    config: Config
    allow_external_paths: bool = False
    strict: bool = False
    format: Format = INDEXTABLES
    manifests: ManifestCache = field(default_factory=ManifestCache, compare=False)
