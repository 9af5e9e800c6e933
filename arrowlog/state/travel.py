"""Which version was current at a moment.

Our commits carry a timestamp that strictly increases with the version, so a few probes find the
version. A commit without one, from another writer, has only the time its file was written, which is
worth less: a copied table has new file times. Such times are kept between their neighbours.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.log.envelope import unwrap
from arrowlog.log.infos import commit_time
from arrowlog.log.names import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

Moment = str | int | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_millis(moment: Moment) -> int:
    """Milliseconds since 1970 of a moment as users give it; without a zone it is UTC.

    >>> to_millis("2024-10-01T00:00:00Z")
    1727740800000
    """
    if isinstance(moment, bool):
        raise InvalidRequest(f"{moment!r} is not a timestamp.", next=_ALLOWED)
    if isinstance(moment, int):
        return moment
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return (zoned - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise InvalidRequest(f"{moment!r} is not a timestamp.", next=_ALLOWED) from None


_ALLOWED = "Give ISO-8601 text, a datetime, or milliseconds since 1970 as an integer."


def to_text(millis: int) -> str:
    """A moment for people."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms since 1970"


def version_at(
    store: Store, listing: Listing, config: Config, earliest: int, newest: int, millis: int
) -> int:
    """The last version whose commit is not after the moment."""
    versions = [v for v in range(earliest, newest + 1) if v in listing.commits]
    clock = _Clock(store, listing, config)
    found = _by_probes(clock, versions, millis)
    if found is None:
        found = _by_scan(clock, versions, millis)
    if found >= 0:
        return versions[found]
    first = clock.known(versions[0]) if versions else None
    since = "" if first is None else f" of {to_text(first)}"
    raise InvalidRequest(
        f"At {to_text(millis)} the table had no version that can still be read: its history begins"
        f" with version {versions[0] if versions else earliest}{since}.",
        next="Ask for a later moment.",
    )


class _Clock:
    """Commit times, read when asked for."""

    def __init__(self, store: Store, listing: Listing, config: Config) -> None:
        self._store = store
        self._listing = listing
        self._limit = config.max_decompressed_bytes
        self._seen: dict[int, int | None] = {}

    def known(self, version: int) -> int | None:
        """The time in the commit itself."""
        return self.many([version])[0]

    def many(self, versions: Sequence[int]) -> list[int | None]:
        """Times of several commits."""
        unseen = [v for v in versions if v not in self._seen]
        keys = [f"{LOG}/{self._listing.commits[v]}" for v in unseen]
        for version, key, data in zip(unseen, keys, self._store.get_many(keys), strict=True):
            self._seen[version] = commit_time(unwrap(data, key, self._limit))
        return [self._seen[v] for v in versions]

    def written(self, version: int) -> int | None:
        """The time the store has for the commit's file."""
        found = self._store.stat(f"{LOG}/{self._listing.commits[version]}")
        return None if found is None or found.mtime_ms < 0 else found.mtime_ms


def _by_probes(clock: _Clock, versions: Sequence[int], millis: int) -> int | None:
    """Binary search; None if a commit on the way does not know its time."""
    low, high = -1, len(versions)
    while high - low > 1:
        middle = (low + high) // 2
        time = clock.known(versions[middle])
        if time is None:
            return None
        low, high = (middle, high) if time <= millis else (low, middle)
    return low


def _by_scan(clock: _Clock, versions: Sequence[int], millis: int) -> int:
    """Times that do not go backwards; a commit without one has its file's, at most the next one's.

    In plain Python: it also runs in forked processes, where polars may not, and reading the commits
    costs far more.
    """
    known = clock.many(versions)
    limits, following = list(known), None
    for at in range(len(known) - 1, -1, -1):
        following = limits[at] = following if known[at] is None else known[at]
    past, latest = 0, None
    for version, time, limit in zip(versions, known, limits, strict=True):
        own = [time] if time is not None else [clock.written(version), limit]
        told = [one for one in own if one is not None]
        if told:
            latest = min(told) if latest is None else max(latest, min(told))
        past += latest is not None and latest <= millis
    return past - 1
