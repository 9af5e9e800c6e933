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


@dataclass(frozen=True)
class RangeBounds:
    """Inclusive upper bounds of all ranges but the last, in order. Without keys: one range."""

    best: tuple[str, ...] = ()
    keys: pl.DataFrame | None = None

    @property
    def count(self) -> int:
        """The number of ranges."""
        return 1 if self.keys is None else self.keys.height + 1


def sample_keys(keys: pl.DataFrame, best: Sequence[str]) -> KeySample:
    """Sample the sort keys of a bucket, evenly spaced in sorted order, including the last key."""
    ranked = keys.sort(keys.columns, nulls_last=True)
    last = ranked.height - 1
    size = min(_SAMPLE_ROWS, ranked.height)
    positions = sorted({last - last * i // max(size - 1, 1) for i in range(size)})
    return KeySample(tuple(best), ranked[positions])


def choose_range_bounds(samples: Sequence[KeySample], count: int) -> RangeBounds:
    """Choose boundaries for at most `count` ranges, none of them empty.

    Buckets may prefer different sort columns; the most common choice is taken for all.
    """
    usable = [sample for sample in samples if sample.keys is not None]
    if count < 2 or not usable:
        return RangeBounds()
    best = Counter(sample.best for sample in usable).most_common(1)[0][0]
    frames = [s.keys for s in usable if s.best == best and s.keys is not None]
    keys = pl.concat(frames)
    keys = keys.unique().sort(keys.columns, nulls_last=True)
    # The highest key is no boundary, so that the last range is not empty.
    positions = sorted({keys.height * i // count for i in range(1, count)} - {keys.height - 1})
    return RangeBounds(best, keys[positions]) if positions else RangeBounds(best)


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
