"""The history of a table over time: growth, churn and operations, aggregated by columns. Pure.

Commits are in the order of their versions, and their times should be, too. Where a clock was wrong,
they are not. A chart over time needs both orders to agree, so times that break the order are not
trusted: as few of them as possible, and all that lie in the future.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.fork_safety import pl
from arrowlog.report.facts import ChurnBucket, GrowthPoint, OperationFacts, TimelineFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

_GROWTH_POINTS_MAX = 180
_BUCKETS_MAX = 60
_OPERATIONS_MAX = 30
_DAY_MS = 86_400_000
# The times that Python's datetime and a calendar can represent: the years 1 to 9999.
_TIME_MIN_MS, _TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Unit(NamedTuple):
    """A length of churn buckets: its name, as polars spells it, and about how long it is."""

    name: str
    every: str
    length_ms: int


_UNITS = (
    _Unit("second", "1s", 1000),
    _Unit("10 seconds", "10s", 10_000),
    _Unit("minute", "1m", 60_000),
    _Unit("5 minutes", "5m", 300_000),
    _Unit("15 minutes", "15m", 900_000),
    _Unit("hour", "1h", 3_600_000),
    _Unit("4 hours", "4h", 14_400_000),
    _Unit("12 hours", "12h", 43_200_000),
    _Unit("day", "1d", _DAY_MS),
    _Unit("week", "1w", 7 * _DAY_MS),
    _Unit("month", "1mo", 30 * _DAY_MS),
    _Unit("quarter", "3mo", 91 * _DAY_MS),
    _Unit("year", "1y", 365 * _DAY_MS),
    _Unit("10 years", "10y", 3652 * _DAY_MS),
    _Unit("200 years", "200y", 73_048 * _DAY_MS),
)


def to_datetime(millis: int | None) -> datetime | None:
    """Return a time in UTC; None if it is unknown or beyond the years 1 to 9999.

    >>> to_datetime(86_400_000), to_datetime(1 << 60)
    (datetime.datetime(1970, 1, 2, 0, 0, tzinfo=datetime.timezone.utc), None)
    """
    if millis is None or not _TIME_MIN_MS <= millis <= _TIME_MAX_MS:
        return None
    return _EPOCH + timedelta(milliseconds=millis)


def order_times(times: Sequence[int | None], latest_ms: int) -> tuple[list[int], int]:
    """Return times that never decrease, and the number of those that had to be moved.

    The times of a longest run that is in order are trusted; each other time becomes that of the
    trusted commit before it, or else after it. Times after `latest_ms` are not trusted, unless all
    are: then the clock of this machine is wrong. Without any time, the list is empty.

    >>> order_times([1, 2, 90, 3, None, 4], latest_ms=50)
    ([1, 2, 2, 3, 3, 4], 1)
    >>> order_times([5, 6, 1, 7], latest_ms=50)
    ([5, 6, 6, 7], 1)
    """
    valid = [t if t is not None and _TIME_MIN_MS <= t <= _TIME_MAX_MS else None for t in times]
    if any(t is not None and t <= latest_ms for t in valid):
        candidates = [t if t is not None and t <= latest_ms else None for t in valid]
    else:
        candidates = valid
    trusted = _longest_ordered_run(candidates)
    if not trusted:
        return [], 0
    ordered: list[int] = []
    last = candidates[trusted[0]]
    assert last is not None
    kept = set(trusted)
    for number, time in enumerate(candidates):
        if number in kept and time is not None:
            last = time
        ordered.append(last)
    declared = sum(t is not None for t in times)
    return ordered, declared - len(trusted)


def _longest_ordered_run(times: Sequence[int | None]) -> list[int]:
    """Return the positions of a longest subsequence that never decreases, nulls left out."""
    tails: list[int] = []  # by length - 1, the lowest time with which such a run ends
    ends: list[int] = []  # its position
    before: list[int] = [-1] * len(times)
    for number, time in enumerate(times):
        if time is None:
            continue
        length = bisect_right(tails, time)
        before[number] = ends[length - 1] if length else -1
        if length == len(tails):
            tails.append(time)
            ends.append(number)
        else:
            tails[length], ends[length] = time, number
    run = []
    at = ends[-1] if ends else -1
    while at >= 0:
        run.append(at)
        at = before[at]
    return run[::-1]


def describe_timeline(
    commits: pl.DataFrame, moves: pl.DataFrame, latest_ms: int, note: str = ""
) -> TimelineFacts | None:
    """Return growth, churn and operations; None if no commit has a time.

    `commits` has one row per version: version, time_ms, operation. `moves` has rows of version,
    way (1 added, -1 removed), again (the file was live before and after), known (false for files of
    unknown age, at the first version), files, bytes. Times after `latest_ms` are in the future.
    """
    num_commits = commits.height
    # Versions whose commits are gone have files, from a checkpoint, and no time of their own.
    bare = moves.select("version").unique().join(commits, on="version", how="anti")
    commits = pl.concat([commits, bare], how="diagonal").sort("version")
    times, num_moved = order_times(commits["time_ms"].to_list(), latest_ms)
    if not times:
        return None
    way = pl.col("way")
    change = moves.group_by("version").agg(
        files=(way * pl.col("files")).sum(), bytes=(way * pl.col("bytes")).sum()
    )
    fresh = moves.filter(pl.col("known") & ~pl.col("again"))
    added = pl.when(way > 0)
    removed = pl.when(way < 0)
    churn = fresh.group_by("version").agg(
        files_added=added.then(pl.col("files")).sum(),
        files_removed=removed.then(pl.col("files")).sum(),
        bytes_added=added.then(pl.col("bytes")).sum(),
        bytes_removed=removed.then(pl.col("bytes")).sum(),
    )
    frame = (
        commits.with_columns(at=pl.Series(times, dtype=pl.Int64))
        .join(change, on="version", how="left", maintain_order="left")
        .join(churn, on="version", how="left", maintain_order="left")
        .fill_null(0)  # of numbers; an operation that is not known stays null
    )
    unit = _choose_unit(times[-1] - times[0])
    operations, num_operations = _operations(frame)
    return TimelineFacts(
        int(commits["version"][0]),
        int(commits["version"][-1]),
        num_commits,
        unit.name,
        _growth(frame),
        _churn(frame, unit),
        operations,
        num_operations,
        num_moved,
        note,
    )


def _choose_unit(span_ms: int) -> _Unit:
    return next((u for u in _UNITS if span_ms <= _BUCKETS_MAX * u.length_ms), _UNITS[-1])


def _growth(frame: pl.DataFrame) -> tuple[GrowthPoint, ...]:
    """Return the live files over time: the last version of each of equal periods."""
    live = frame.select(
        "version", "at", files=pl.col("files").cum_sum(), bytes=pl.col("bytes").cum_sum()
    )
    first, last = int(live["at"][0]), int(live["at"][-1])
    step = max(1, -(-(last - first) // _GROWTH_POINTS_MAX))
    period = ((pl.col("at") - first) // step).alias("period")
    # The first version stays, so that the curve begins where the history does.
    points = live.group_by(period, maintain_order=True).last()
    rows = pl.concat([live.head(1), points.select(live.columns)]).unique(
        "version", keep="first", maintain_order=True
    )
    return tuple(
        GrowthPoint(_EPOCH + timedelta(milliseconds=at), version, int(files), int(size))
        for version, at, files, size in rows.iter_rows()
    )


def _churn(frame: pl.DataFrame, unit: _Unit) -> tuple[ChurnBucket, ...]:
    start = pl.col("at").cast(pl.Datetime("ms")).dt.truncate(unit.every)
    sums = ("files_added", "files_removed", "bytes_added", "bytes_removed")
    buckets = (
        frame.group_by(start=start)
        .agg(commits=pl.len(), **{name: pl.col(name).sum() for name in sums})
        .sort("start")
        .with_columns(end=pl.col("start").dt.offset_by(unit.every))
        .with_columns(pl.col("start", "end").cast(pl.Int64))
    )
    return tuple(
        ChurnBucket(
            _clipped(row["start"]),
            _clipped(row["end"]),
            int(row["commits"]),
            *(int(row[name]) for name in sums),
        )
        for row in buckets.iter_rows(named=True)
    )


def _clipped(millis: int) -> datetime:
    """Return a time in UTC; a bucket can begin before the year 1 or end after 9999."""
    return _EPOCH + timedelta(milliseconds=min(max(millis, _TIME_MIN_MS), _TIME_MAX_MS))


def _operations(frame: pl.DataFrame) -> tuple[tuple[OperationFacts, ...], int]:
    """Return the most frequent operations, and how many there are."""
    sums = ("files_added", "files_removed", "bytes_added", "bytes_removed")
    grouped = frame.group_by("operation").agg(
        commits=pl.len(),
        last=pl.col("at").max(),
        **{name: pl.col(name).sum() for name in sums},
    )
    ordered = grouped.sort(["commits", "operation"], descending=[True, False])
    return (
        tuple(
            OperationFacts(
                row["operation"],
                int(row["commits"]),
                **{name: int(row[name]) for name in sums},
                last=to_datetime(row["last"]),
            )
            for row in ordered.head(_OPERATIONS_MAX).iter_rows(named=True)
        ),
        grouped.height,
    )
