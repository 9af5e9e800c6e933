"""Time travel: finds the version that was current at a time.

Our commits carry a timestamp that strictly increases with the version, so a binary search finds the
version. A commit of another writer may lack one; then the modification time of its file is used. It
is less reliable, since copying a table changes it, so it is clamped between the timestamps of the
neighbouring commits. The time of a version with a table state is that of its state.

Clocks of writers may be wrong. A timestamp later than now (by more than `CLOCK_TOLERANCE_MS`) is
that of no commit that exists; and where timestamps contradict the order of versions, the fewest
possible are wrong: a commit from the future, followed by commits with right clocks, is one of them.
Both count as missing, so that the modification time is used, and no later commit is hidden. The
doctor reports such commits (`commit-in-future`). Delta has rules of its own for its commit times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, SupportsIndex

from arrowlog.clock import SystemClock
from arrowlog.config import parse_at_least, parse_duration_ms, parse_integer, shorten
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.snapshot.log_segment import earliest_rebuildable_version, states_without_commits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile, LogListing
    from arrowlog.storage import Store

TimestampLike = str | int | datetime | date
PeriodLike = TimestampLike | timedelta
# Clocks of machines that are synchronized differ by less.
CLOCK_TOLERANCE_MS = 60_000
# Commits on both sides of the version that a search finds whose timestamps are verified.
_VERIFIED_NEIGHBOURS = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000
_MILLIS_MIN, _MILLIS_MAX = -(1 << 63), (1 << 63) - 1
_DAYS_AGO = {"today": 0, "yesterday": 1}
_ALLOWED = "Give ISO-8601 text, a datetime, a date, or milliseconds since 1970 as an integer."
_ALLOWED_PERIODS = (
    "Give ISO-8601 text, a datetime or date, a timedelta or duration such as 24h (before now),"
    ' "today" or "yesterday".'
)


def check_version(version: object) -> int:
    """Return a user's version as an integer; raises `InvalidRequest` if it cannot be a version.

    >>> check_version(7)
    7
    """
    try:
        return parse_at_least(0)(version)
    except ValueError:
        shown = shorten(version)
        raise InvalidRequest(f"{shown} is not a version.", next="Versions are 0, 1, 2, …") from None


def to_epoch_millis(moment: TimestampLike) -> int:
    """Convert a user's timestamp to milliseconds since 1970; without a time zone it is UTC.

    A `date` is the last millisecond of that day in UTC; text without a time is midnight. Raises
    `InvalidRequest` if it is none of the accepted types.

    >>> to_epoch_millis("2024-10-01T00:00:00Z"), to_epoch_millis(date(2024, 10, 1))
    (1727740800000, 1727827199999)
    """
    if isinstance(moment, date) and not isinstance(moment, datetime):
        return _start_of_day(moment) + _DAY_MS - 1
    try:
        if isinstance(moment, SupportsIndex):
            # Beyond 64 bits, a time is as far in the past or the future as any.
            return min(max(parse_integer(moment), _MILLIS_MIN), _MILLIS_MAX)
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        zoned = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        return (zoned - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise InvalidRequest(f"{shorten(moment)} is not a timestamp.", next=_ALLOWED) from None


def to_period(value: PeriodLike, now_ms: int) -> tuple[int, int]:
    """Return the first and last millisecond of a day in UTC, or twice those of a moment.

    A day is a date, as `date` or ISO text, `"today"` or `"yesterday"`. A `timedelta`, or a duration
    such as `"24h"`, is the moment that long before now. Raises `InvalidRequest` for anything else.

    >>> to_period("1970-01-02", now_ms=0), to_period("yesterday", now_ms=90_000_000)
    ((86400000, 172799999), (0, 86399999))
    >>> to_period("1h", now_ms=3_600_500)
    (500, 500)
    """
    if isinstance(value, timedelta):
        moment = now_ms - value // timedelta(milliseconds=1)
        return moment, moment
    day = _parse_day(value, now_ms)
    if day is not None:
        return day, day + _DAY_MS - 1
    try:
        if isinstance(value, str) and not value.strip().isdecimal():
            moment = now_ms - parse_duration_ms(value)
            return moment, moment
    except ValueError:
        pass
    try:
        moment = to_epoch_millis(value)
    except InvalidRequest:
        raise InvalidRequest(f"{shorten(value)} is not a time.", next=_ALLOWED_PERIODS) from None
    return moment, moment


def _parse_day(value: PeriodLike, now_ms: int) -> int | None:
    """Return the first millisecond of a day; None if the value is not a day."""
    if isinstance(value, str) and value.strip().lower() in _DAYS_AGO:
        return (now_ms // _DAY_MS - _DAYS_AGO[value.strip().lower()]) * _DAY_MS
    if isinstance(value, str):
        try:
            return _start_of_day(date.fromisoformat(value.strip()))
        except ValueError:
            return None
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return _start_of_day(value) if is_day and isinstance(value, date) else None


def _start_of_day(day: date) -> int:
    return (day - _EPOCH.date()).days * _DAY_MS


def format_epoch_millis(millis: int) -> str:
    """Format a time for messages."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms since 1970"


def earliest_readable_version(
    store: Store, listing: LogListing, config: Config, newest: int
) -> int:
    """Return the lowest version from which every version up to `newest` can be read.

    Where only table states give a version, they are looked at: manifests may have been deleted.
    """
    broken: set[int] = set()
    first = earliest_rebuildable_version(listing, newest)
    while found := unreadable_states(store, listing, config, first, newest) - broken:
        broken |= found
        first = earliest_rebuildable_version(listing, newest, broken)
    return first


def unreadable_states(
    store: Store, listing: LogListing, config: Config, first: int, newest: int
) -> set[int]:
    """Return the versions from `first` on that only a table state gives, and that it cannot.

    The newest version is not looked at: reading it raises what is wrong.
    """
    versions = [v for v in states_without_commits(listing, first, newest) if v != newest]
    if not versions:
        return set()
    from arrowlog.snapshot.state_reader import find_broken_states  # loads what decodes Avro

    return find_broken_states(store, listing, config, versions)


def find_version_at(
    store: Store,
    listing: LogListing,
    config: Config,
    earliest: int,
    newest: int,
    millis: int,
    *,
    now_ms: int | None = None,
    declared_since: int | None = 0,
) -> int:
    """Return the last version from `earliest` to `newest` committed at or before a time.

    `now_ms` is the time beyond which timestamps are wrong, by default that of the clock. Where
    commits have the times of their files, `declared_since` is the first version that declares its
    time; None if none does. Raises `InvalidRequest` if there is no such version, `LogCorrupt` if a
    commit lacks a time that it must declare, and `FileNotFoundError` if a listed commit is gone.
    """
    known = listing.commits.keys() | {v for v in listing.checkpoints if listing.state_file(v)}
    versions = [v for v in range(earliest, newest + 1) if v in known]
    times = _CommitTimes(store, listing, config)
    if listing.format.monotonic_file_times:
        position: int | None = _search_file_times(times, versions, millis, declared_since)
    else:
        now_ms = SystemClock().now_ms() if now_ms is None else now_ms
        position = _verified_search(times, versions, millis, now_ms)
    if position is None:
        position = _linear_scan(times, versions, millis, now_ms)
    if position >= 0:
        return versions[position]
    first = times.timestamp(versions[0]) if versions else None
    since = "" if first is None else f" of {format_epoch_millis(first)}"
    raise InvalidRequest(
        f"At {format_epoch_millis(millis)} the table had no version that can still be read: its"
        f" history begins with version {versions[0] if versions else earliest}{since}.",
        next="Ask for a later time.",
    )


class _CommitTimes:
    """Commit timestamps, read on demand and kept."""

    def __init__(self, store: Store, listing: LogListing, config: Config) -> None:
        self._store = store
        self._listing = listing
        self._limit = config.max_decompressed_bytes
        self._seen: dict[int, int | None] = {}

    def timestamp(self, version: int) -> int | None:
        """Return the timestamp that a commit carries; None if it has none."""
        return self.timestamps([version])[0]

    def timestamps(self, versions: Sequence[int]) -> list[int | None]:
        """Return the timestamps that several commits carry, or their table states if they have any.

        None for a state that is damaged.
        """
        unseen = [v for v in versions if v not in self._seen]
        states = [self._listing.state_file(version) for version in unseen]
        files = [
            state or self._listing.commit_files([version])[0]
            for version, state in zip(unseen, states, strict=True)
        ]
        contents = self._store.get_many([file.key for file in files])
        for file, state, data in zip(files, states, contents, strict=True):
            if state is not None:
                self._seen[file.version] = self._created_at(data, state)
            else:
                from arrowlog.decode import read_commit_time  # loads the decoder

                plain = self._plain(data, file.key)
                self._seen[file.version] = read_commit_time(plain, self._listing.format)
        return [self._seen[v] for v in versions]

    def _created_at(self, data: bytes, state: CommitFile) -> int | None:
        """Return the time of a state; None if it is damaged."""
        from arrowlog.formats.indextables import parse_state  # loads what decodes Avro

        try:
            return parse_state(data, state.key, state.version, self._limit).created_at
        except LogCorrupt:
            return None

    def _plain(self, data: bytes, key: str) -> bytes:
        if not self._listing.format.compressed_commits:
            return data
        from arrowlog.formats.indextables import decompress

        return decompress(data, key, self._limit)

    def file_of(self, version: int) -> str:
        """Return the key of a commit."""
        return self._listing.commit_files([version])[0].key

    def file_times(self, versions: Sequence[int]) -> list[int]:
        """Return the modification times of commits' files, from one listing.

        Raises `FileNotFoundError` if a commit is gone.
        """
        stats = self._store.stats_from(self._listing.format.log_folder)
        commits = self._listing.commit_files(versions)
        for commit in commits:
            if commit.name not in stats:
                raise FileNotFoundError(commit.key)
        return [stats[commit.name].mtime_ms for commit in commits]

    def file_time(self, version: int) -> int | None:
        """Return the modification time of a commit's file; None if the store has none."""
        file = self._listing.tip_file(version)
        stat = None if file is None else self._store.stat(file.key)
        return None if stat is None or stat.mtime_ms < 0 else stat.mtime_ms


def _binary_search(times: _CommitTimes, versions: Sequence[int], millis: int) -> int | None:
    """Return the position of the last version at or before a time, -1 if there is none.

    None if a commit on the way carries no timestamp.
    """
    low, high = -1, len(versions)
    while high - low > 1:
        middle = (low + high) // 2
        time = times.timestamp(versions[middle])
        if time is None:
            return None
        low, high = (middle, high) if time <= millis else (low, middle)
    return low


def _verified_search(
    times: _CommitTimes, versions: Sequence[int], millis: int, now_ms: int
) -> int | None:
    """Return the position of the last version at or before a time, -1 if there is none.

    None if the binary search may have been misled: if a commit that it looked at, the newest one or
    one next to the result has no timestamp, one that is later than now, or one that contradicts the
    order. A wrong timestamp that leads the search astray is next to its result.
    """
    position = _binary_search(times, versions, millis)
    if position is None or not versions:
        return position
    first, stop = position - _VERIFIED_NEIGHBOURS, position + 2 + _VERIFIED_NEIGHBOURS
    checked = [*versions[max(first, 0) : max(stop, 0)], versions[-1]]
    timestamps = times.timestamps(checked)
    known = [time for time in timestamps if time is not None]
    if len(known) < len(timestamps) or max(known) > now_ms + CLOCK_TOLERANCE_MS:
        return None
    return position if known == sorted(known) else None


def _without_wrong(timestamps: Sequence[int | None], now_ms: int) -> list[int | None]:
    """Return the timestamps with None for those that are wrong.

    Wrong are timestamps later than now, and the fewest possible of the others so that the rest does
    not decrease. Of several such choices, the later timestamps are wrong.

    >>> _without_wrong([1, 99, 2, 3, 0, 4], 50), _without_wrong([1, 9, 2], 50)
    ([1, None, 2, 3, None, 4], [1, None, 2])
    """
    # Patience sorting. `tails[n]` is the position of the smallest timestamp that ends a
    # non-decreasing sequence of n + 1 timestamps; `previous` leads back through each sequence.
    values: list[int] = []
    tails: list[int] = []
    previous: dict[int, int] = {}
    for at, time in enumerate(timestamps):
        if time is None or time > now_ms + CLOCK_TOLERANCE_MS:
            continue
        length = bisect_right(values, time)
        values[length : length + 1] = [time]
        tails[length : length + 1] = [at]
        if length:
            previous[at] = tails[length - 1]
    kept: set[int] = set()
    last = tails[-1] if tails else None
    while last is not None:
        kept.add(last)
        last = previous.get(last)
    return [time if at in kept else None for at, time in enumerate(timestamps)]


def _search_file_times(
    times: _CommitTimes, versions: Sequence[int], millis: int, declared_since: int | None
) -> int:
    """Return the position of the last version at or before a time, -1 if there is none.

    From `declared_since` on, commits declare their times. The times of the commits before it are
    the modification times of their files, made strictly increasing, whatever the commits declare.
    """
    first = len(versions) if declared_since is None else bisect_left(versions, declared_since)
    found = _binary_search(times, versions[first:], millis)
    if found is None:
        missing = next(v for v in versions[first:] if times.timestamp(v) is None)
        raise LogCorrupt(
            "the commit has no inCommitTimestamp although the table has them since version"
            f" {declared_since}, so the version at a time is unknown.",
            next="Ask for a version by its number.",
            file=times.file_of(missing),
            version=missing,
        )
    if found >= 0:
        return first + found
    from arrowlog.formats.delta import monotonic_times

    return bisect_right(monotonic_times(times.file_times(versions[:first])), millis) - 1


def _linear_scan(
    times: _CommitTimes, versions: Sequence[int], millis: int, now_ms: int | None
) -> int:
    """Return the position of the last version at or before a time, -1 if there is none.

    A commit without a timestamp, or with a wrong one, gets its file's time, at most the next
    commit's timestamp; then times are made non-decreasing. In plain Python, because it also runs in
    forked processes, where polars may hang; reading the commits costs far more.
    """
    timestamps = times.timestamps(versions)
    if now_ms is not None:
        timestamps = _without_wrong(timestamps, now_ms)
    upper_limits, following = list(timestamps), None
    for at in range(len(timestamps) - 1, -1, -1):
        following = upper_limits[at] = following if timestamps[at] is None else timestamps[at]
    count, latest = 0, None
    for version, timestamp, limit in zip(versions, timestamps, upper_limits, strict=True):
        candidates = [timestamp] if timestamp is not None else [times.file_time(version), limit]
        known = [time for time in candidates if time is not None]
        if known and timestamp is None and now_ms is not None:
            known.append(now_ms)  # the commit exists, whatever the clock of the store says
        if known:
            latest = min(known) if latest is None else max(latest, min(known))
        count += latest is not None and latest <= millis
    return count - 1
