"""Measures of a table, aggregated by columns: file sizes, partitions, pruning, history. Pure.

How well a column prunes is the cost of a point lookup. A lookup `column = x` reads a file unless
its bounds exclude x, or all its rows are NULL. With files sorted along the values of a column, a
lookup of x reads the files that have begun and not yet ended at x, and those of unknown bounds. One
sort gives their number for every bound x.

Commits are in the order of their versions, and their times should be, too. Where a clock was wrong,
they are not. A chart over time needs both orders to agree, so times that break the order are not
trusted: as few of them as possible, and all that lie in the future.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_int64, null_scalar, sum_exactly
from arrowlog.fork_safety import pl
from arrowlog.report.facts import (
    ChurnBucket,
    ColumnFacts,
    FileSizeFacts,
    GrowthPoint,
    OperationFacts,
    PartitionFacts,
    PartitionsFacts,
    SizeBucket,
    TimelineFacts,
)
from arrowlog.snapshot import (
    all_null_files,
    comparison_type,
    high_bounds,
    low_bounds,
    to_comparable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.snapshot import FileStats

SMALL_FILE_BYTES = 16 << 20
_LARGEST_PARTITIONS = 60  # by bytes, and as many by files
_SIZE_MAX = 1 << 62  # larger sizes are wrong, and would overflow a sum


def measure_file_sizes(sizes: pl.Series) -> FileSizeFacts | None:
    """Return the distribution of file sizes, by powers of two; None without files.

    A size that is missing or negative counts as 0.
    """
    if not sizes.len():
        return None
    size = pl.col("size")
    frame = pl.DataFrame({"size": sizes.cast(pl.Int64).fill_null(0)}).with_columns(
        size.clip(0, _SIZE_MAX)
    )
    # The exponent of the power of two below, exactly: a logarithm would round.
    frame = frame.with_columns(
        exponent=pl.when(size == 0).then(-1).otherwise(63 - size.bitwise_leading_zeros())
    )
    grouped = (
        frame.group_by("exponent")
        .agg(files=pl.len(), bytes=size.cast(pl.Float64).sum())
        .sort("exponent")
    )
    counted = {row[0]: row[1:] for row in grouped.iter_rows()}
    steps = range(min(counted), max(counted) + 1)
    # Zero is a bucket of its own; without empty files, there is none.
    buckets = tuple(
        SizeBucket(
            0 if step < 0 else 1 << step,
            1 if step < 0 else 1 << (step + 1),
            int(counted.get(step, (0, 0))[0]),
            int(counted.get(step, (0, 0))[1]),
        )
        for step in steps
    )
    small = frame.filter(size < SMALL_FILE_BYTES)
    numbers = frame.select(
        minimum=size.min(),
        median=size.quantile(0.5, "lower"),
        p90=size.quantile(0.9, "lower"),
        maximum=size.max(),
        mean=size.mean(),
    ).row(0, named=True)
    return FileSizeFacts(
        buckets,
        int(numbers["minimum"]),
        int(numbers["median"]),
        int(numbers["p90"]),
        int(numbers["maximum"]),
        int(numbers["mean"]),
        SMALL_FILE_BYTES,
        small.height,
        int(small["size"].cast(pl.Float64).sum()),
    )


def measure_partitions(
    columns: Sequence[str], values: Sequence[pl.Series], sizes: pl.Series, rows: pl.Series
) -> PartitionsFacts | None:
    """Return how files and bytes spread over the partitions; None without files.

    `values` are the partition values of the files, one series per column.
    """
    if not sizes.len():
        return None
    keys = [f"p{number}" for number in range(len(values))]
    frame = pl.DataFrame(
        {
            **{key: value.cast(pl.String) for key, value in zip(keys, values, strict=True)},
            "bytes": sizes.cast(pl.Float64).fill_null(0.0),
            "rows": rows.cast(pl.Float64),
        }
    )
    grouped = frame.group_by(keys).agg(
        files=pl.len(),
        bytes=pl.col("bytes").sum(),
        rows=pl.when(pl.col("rows").is_null().any()).then(None).otherwise(pl.col("rows").sum()),
    )
    by_bytes = grouped.sort(["bytes", *keys], descending=[True, *(False for _ in keys)])
    by_files = grouped.sort(["files", *keys], descending=[True, *(False for _ in keys)])
    largest = pl.concat([by_bytes.head(_LARGEST_PARTITIONS), by_files.head(_LARGEST_PARTITIONS)])
    largest = largest.unique(keys, keep="first", maintain_order=True)
    total_bytes = float(grouped["bytes"].sum())
    tenth = by_bytes.head(-(-grouped.height // 10))["bytes"].sum()
    numbers = grouped.select(
        median_bytes=pl.col("bytes").quantile(0.5, "lower"),
        max_bytes=pl.col("bytes").max(),
        median_files=pl.col("files").quantile(0.5, "lower"),
        max_files=pl.col("files").max(),
        single_file=(pl.col("files") == 1).sum(),
    ).row(0, named=True)
    return PartitionsFacts(
        tuple(columns),
        grouped.height,
        int(numbers["median_bytes"]),
        int(numbers["max_bytes"]),
        int(numbers["median_files"]),
        int(numbers["max_files"]),
        int(numbers["single_file"]),
        float(tenth) / total_bytes if total_bytes > 0 else 0.0,
        tuple(
            PartitionFacts(
                tuple(row[key] for key in keys),
                int(row["files"]),
                int(row["bytes"]),
                None if row["rows"] is None else int(row["rows"]),
            )
            for row in largest.iter_rows(named=True)
        ),
    )


# Values that start with a text maximum may lie above it. U+E000 sorts after every character that a
# usable bound contains.
_END_OF_PREFIX = "\ue000"
# Shares of the other files that a lookup reads, up to which a column prunes, and prunes partly.
_PRUNES_MAX, _PARTLY_MAX = 0.1, 0.5


class LookupCost(NamedTuple):
    """The files that a lookup reads: on average over the bounds in the log, and at most."""

    mean: float
    maximum: int


def measure_lookups(
    low: pa.Array, high: pa.Array, never_read: pa.Array | None, *, prefixes: bool
) -> LookupCost | None:
    """Return the cost of lookups for the values that are bounds; None if there are no bounds.

    Null bounds are unknown. Files in `never_read` match no lookup. With `prefixes`, a high bound
    also covers all texts that begin with it.
    """
    if low.null_count == len(low) and high.null_count == len(high):
        return None
    bounds = pl.DataFrame(
        {"low": pl.Series(pl.from_arrow(low)), "high": pl.Series(pl.from_arrow(high))}
    )
    if never_read is not None:
        bounds = bounds.filter(~pl.Series(pl.from_arrow(never_read)).fill_null(False))
    if bounds["low"].dtype == pl.Float64:
        bounds = bounds + 0.0  # a negative zero is equal to zero
    begins = bounds.select(x=pl.col("low")).drop_nulls()
    ends = bounds.select(x=pl.col("high")).drop_nulls()
    if not begins.height and not ends.height:
        return None
    past = ends.select(pl.concat_str("x", pl.lit(_END_OF_PREFIX))) if prefixes else ends
    one, zero = pl.lit(1, pl.Int64), pl.lit(0, pl.Int64)
    events = pl.concat(
        [
            begins.with_columns(begun=one, ended=zero, lookups=one),
            ends.with_columns(begun=zero, ended=zero, lookups=one),
            past.with_columns(begun=zero, ended=one, lookups=zero),
        ]
    )
    sweep = events.group_by("x").agg(pl.col("begun", "ended", "lookups").sum()).sort("x")
    not_begun = begins.height - pl.col("begun").cum_sum()
    already_ended = pl.col("ended").cum_sum() - pl.col("ended")
    read = sweep.with_columns(read=bounds.height - not_begun - already_ended)
    asked = read.filter(pl.col("lookups") > 0)
    read_in_all, lookups, maximum = asked.select(
        (pl.col("read") * pl.col("lookups")).sum(),
        pl.col("lookups").sum(),
        maximum=pl.col("read").max(),
    ).row(0)
    return LookupCost(read_in_all / lookups, maximum)


def judge(cost: LookupCost | None, num_files: int) -> str:
    """Return the verdict on a column that can have bounds; see `ColumnFacts`.

    >>> judge(LookupCost(1.0, 1), 10), judge(LookupCost(5.0, 9), 10), judge(LookupCost(9.0, 10), 10)
    ('prunes', 'partly', 'poor')
    """
    if cost is None:
        return "none"
    if num_files < 2:
        return "single"
    others = (cost.mean - 1) / (num_files - 1)
    return "prunes" if others <= _PRUNES_MAX else "partly" if others <= _PARTLY_MAX else "poor"


def measure_column(stats: FileStats, name: str) -> ColumnFacts:
    """Return the facts of a data column, or of a struct field by the name of its statistics."""
    kind = stats.type_of(name)
    if comparison_type(kind) is None:
        return ColumnFacts(name, str(kind), False, 0, 0, 0, 0, 0, 0, None, None, "unsupported")
    low, high = low_bounds(stats, name), high_bounds(stats, name)
    both = pc.and_(pc.is_valid(low), pc.is_valid(high))
    nulls = stats.usable_null_count(name)
    cost = measure_lookups(
        low, high, all_null_files(stats, name), prefixes=pa.types.is_string(kind)
    )
    count = stats.num_rows
    return ColumnFacts(
        name,
        str(kind),
        False,
        count - low.null_count,
        count - high.null_count,
        both.true_count,
        count - nulls.null_count,
        *_count_nulls(nulls, stats.stored_records()),
        None if cost is None else cost.mean,
        None if cost is None else cost.maximum,
        judge(cost, count),
    )


def measure_partition_column(stats: FileStats, name: str) -> ColumnFacts:
    """Return the same for a partition column, whose value is known for every row."""
    kind = stats.type_of(name)
    values, unreadable = stats.partition(name), stats.unreadable(name)
    never = pc.and_not(pc.is_null(values), unreadable)
    cost = None
    if comparison_type(kind) is not None:
        comparable = to_comparable(values, kind)
        cost = measure_lookups(comparable, comparable, never, prefixes=False)
    count = stats.num_rows
    known = count - unreadable.true_count
    records = stats.stored_records()
    nulls = pc.if_else(never, records, make_int64(0))
    nulls = pc.if_else(unreadable, null_scalar(pa.int64()), nulls)
    return ColumnFacts(
        name,
        str(kind),
        True,
        known,
        known,
        known,
        known,
        *_count_nulls(nulls, records),
        None if cost is None else cost.mean,
        None if cost is None else cost.maximum,
        "unsupported" if comparison_type(kind) is None else judge(cost, count),
    )


def _count_nulls(nulls: pa.Array, records: pa.Array) -> tuple[int, int]:
    """Return the NULLs, and the rows, of the files that tell both numbers."""
    both = pc.and_(pc.is_valid(nulls), pc.is_valid(records))
    return tuple(sum_exactly(each.filter(both)) for each in (nulls, records))  # type: ignore[return-value]


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
