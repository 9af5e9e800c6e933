"""Range partitioning by sampled sort keys: no process ever has all rows. Pure.

Every bucket reports a sample of its sort keys, evenly spaced in sorted order. From all samples,
boundaries between ranges of about the same size are chosen. Their position affects only speed:
wherever they are, every row belongs to exactly one range.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLE_ROWS = 256  # per bucket


@dataclass(frozen=True)
class KeySample:
    """Sampled sort keys of a bucket, in order; `best` are the columns that it is sorted by."""

    best: tuple[str, ...] = ()
    keys: pl.DataFrame | None = None
    rows: int = 1  # that the sample stands for


@dataclass(frozen=True)
class RangeBounds:
    """Inclusive upper bounds of all ranges but the last, in order. Without keys: one range.

    `best` are the columns that all rows are sorted by; None if each range may choose its own.
    """

    best: tuple[str, ...] | None = None
    keys: pl.DataFrame | None = None

    @property
    def count(self) -> int:
        """The number of ranges."""
        return 1 if self.keys is None else self.keys.height + 1


def sample_keys(keys: pl.DataFrame, best: Sequence[str], rows: int | None = None) -> KeySample:
    """Sample sort keys, evenly spaced in sorted order, including the last key.

    `rows` is the number of rows that the sample stands for, by default that of the keys.
    """
    ranked = keys.sort(keys.columns, nulls_last=True)
    last = ranked.height - 1
    size = min(_SAMPLE_ROWS, ranked.height)
    positions = sorted({last - last * i // max(size - 1, 1) for i in range(size)})
    return KeySample(tuple(best), ranked[positions], keys.height if rows is None else rows)


def choose_range_bounds(samples: Sequence[KeySample], count: int) -> RangeBounds:
    """Choose boundaries for at most `count` ranges of about the same size, none of them empty.

    Samples may prefer different sort columns; the choice that stands for most rows is taken for
    all.
    """
    usable = [sample for sample in samples if sample.keys is not None]
    if count < 2 or not usable:
        return RangeBounds()
    rows_by_choice: Counter[tuple[str, ...]] = Counter()
    for sample in usable:
        rows_by_choice[sample.best] += sample.rows
    best = rows_by_choice.most_common(1)[0][0]
    frames = [
        sample.keys.with_columns(rows=pl.lit(sample.rows / sample.keys.height))
        for sample in usable
        if sample.best == best and sample.keys is not None
    ]
    keys = pl.concat(frames)
    names = [name for name in keys.columns if name != "rows"]
    keys = keys.group_by(names).agg(pl.col("rows").sum()).sort(names, nulls_last=True)
    passed = keys["rows"].cum_sum()
    wanted = [passed[-1] * i / count for i in range(1, count)]
    # The highest key is no boundary, so that the last range is not empty.
    positions = {int(passed.search_sorted(rows)) for rows in wanted} - {keys.height - 1}
    bounds = keys.select(names)[sorted(positions)]
    return RangeBounds(best, bounds) if positions else RangeBounds(best)


def assign_ranges(keys: pl.DataFrame, cuts: RangeBounds) -> pl.Series:
    """Return the number of the range that each row belongs to."""
    if cuts.keys is None:
        return pl.repeat(0, keys.height, dtype=pl.Int32, eager=True)
    # Sort rows and cuts together, a cut after the rows equal to it; the number of cuts before a
    # row is its range.
    both = pl.concat([keys.with_columns(cut=0), cuts.keys.with_columns(cut=1)])
    order = both.select(pl.arg_sort_by(both.columns, nulls_last=True)).to_series()
    passed = both["cut"].gather(order).cum_sum().cast(pl.Int32)
    restored = pl.DataFrame({"position": order, "range": passed}).sort("position")
    return restored["range"].head(keys.height)
