"""How well the statistics of a column prune: the cost of a point lookup, swept from bounds. Pure.

A lookup `column = x` reads a file unless its bounds exclude x, or all its rows are NULL. With files
sorted along the values of a column, a lookup of x reads the files that have begun and not yet ended
at x, and those of unknown bounds. One sort gives their number for every bound x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_int64, null_scalar
from arrowlog.fork_safety import pl
from arrowlog.report.facts import ColumnFacts
from arrowlog.snapshot import (
    all_null_files,
    comparison_type,
    high_bounds,
    low_bounds,
    to_comparable,
)

if TYPE_CHECKING:
    from arrowlog.snapshot import FileStats

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
    return tuple(int(pc.sum(each.filter(both)).as_py() or 0) for each in (nulls, records))  # type: ignore[return-value]
