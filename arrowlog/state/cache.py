"""The in-memory cache of snapshots, and its hit rates."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrowlog.state.snapshot import Snapshot

_VERSIONS_MAX = 8  # snapshots of earlier versions


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hit rates from 0 to 1; 0 for what was never requested."""

    protocol_hit_rate: float
    metadata_hit_rate: float
    version_hit_rate: float
    files_hit_rate: float
    versions_list_hit_rate: float


@dataclass(slots=True)
class Tally:
    """Counts requests and cache hits."""

    asked: int = 0
    found: int = 0

    def note(self, *, hit: bool) -> None:
        """Count one request."""
        self.asked += 1
        self.found += hit

    @property
    def rate(self) -> float:
        """Hits per request."""
        return self.found / self.asked if self.asked else 0.0


@dataclass(slots=True)
class Cache:
    """Snapshots of earlier versions, and a tally per kind of request.

    A version is immutable, so it is kept until it is `seconds` old or evicted by others (LRU).
    """

    seconds: float
    protocol: Tally = field(default_factory=Tally)
    metadata: Tally = field(default_factory=Tally)
    version: Tally = field(default_factory=Tally)
    files: Tally = field(default_factory=Tally)
    listing: Tally = field(default_factory=Tally)
    _kept: OrderedDict[int, tuple[float, Snapshot]] = field(default_factory=OrderedDict)

    def get(self, version: int, now: float) -> Snapshot | None:
        """Return the snapshot of a version, if it is cached and not expired."""
        entry = self._kept.get(version)
        if entry is None or now - entry[0] > self.seconds:
            return None
        self._kept.move_to_end(version)
        return entry[1]

    def put(self, snapshot: Snapshot, now: float) -> None:
        """Cache a snapshot; nothing if the cache is disabled."""
        if self.seconds <= 0:
            return
        self._kept[snapshot.version] = (now, snapshot)
        while len(self._kept) > _VERSIONS_MAX:
            self._kept.popitem(last=False)

    def answered(self, *, hit: bool) -> None:
        """Count one request for the newest state; a miss is a load from the log."""
        for tally in (self.protocol, self.metadata, self.files):
            tally.note(hit=hit)

    def clear(self) -> None:
        """Drop all snapshots; the tallies stay."""
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
