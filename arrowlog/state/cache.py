"""What is kept in memory between questions, for how long, and how often that helped."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrowlog.state.snapshot import Snapshot

_VERSIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hit rates from 0 to 1; 0 for what was never asked for."""

    protocol_hit_rate: float
    metadata_hit_rate: float
    version_hit_rate: float
    files_hit_rate: float
    versions_list_hit_rate: float


@dataclass(slots=True)
class Tally:
    """How often something was asked for, and how often it was at hand."""

    asked: int = 0
    found: int = 0

    def note(self, *, hit: bool) -> None:
        """One question more."""
        self.asked += 1
        self.found += hit

    @property
    def rate(self) -> float:
        """Hits by questions."""
        return self.found / self.asked if self.asked else 0.0


@dataclass(slots=True)
class Cache:
    """Earlier versions that were read, and the five tallies.

    A version never changes, so it is kept until it is too old or others push it out.
    """

    seconds: float
    protocol: Tally = field(default_factory=Tally)
    metadata: Tally = field(default_factory=Tally)
    version: Tally = field(default_factory=Tally)
    files: Tally = field(default_factory=Tally)
    listing: Tally = field(default_factory=Tally)
    _kept: OrderedDict[int, tuple[float, Snapshot]] = field(default_factory=OrderedDict)

    def get(self, version: int, now: float) -> Snapshot | None:
        """A version, if it is at hand and not too old."""
        found = self._kept.get(version)
        fresh = found is not None and now - found[0] <= self.seconds
        if found is None or not fresh:
            return None
        self._kept.move_to_end(version)
        return found[1]

    def put(self, snapshot: Snapshot, now: float) -> None:
        """Keep a version."""
        if self.seconds <= 0:
            return
        self._kept[snapshot.version] = (now, snapshot)
        while len(self._kept) > _VERSIONS_MAX:
            self._kept.popitem(last=False)

    def answered(self, *, hit: bool) -> None:
        """The newest state was asked for: was it at hand, or read from the beginning."""
        for tally in (self.protocol, self.metadata, self.files):
            tally.note(hit=hit)

    def clear(self) -> None:
        """Forget what was read; the tallies stay."""
        self._kept.clear()

    @property
    def stats(self) -> CacheStats:
        """The hit rates now."""
        return CacheStats(
            self.protocol.rate,
            self.metadata.rate,
            self.version.rate,
            self.files.rate,
            self.listing.rate,
        )
