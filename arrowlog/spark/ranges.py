"""Rows dealt out by ranges of an order that nobody holds as a whole. Pure.

Every bucket says how its own rows lie: some of their sort keys, evenly spaced. From all of these,
cuts are chosen between ranges of about the same size. Where the cuts lie matters for speed alone:
every row belongs to exactly one range, wherever they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLED = 256  # rows a bucket tells of


@dataclass(frozen=True)
class Sample:
    """How the rows of a bucket lie, sorted by these columns; some of their keys, in order."""

    best: tuple[str, ...] = ()
    keys: pl.DataFrame | None = None


@dataclass(frozen=True)
class Cuts:
    """Where ranges end, in order: each at the last key that belongs to it, the last one never."""

    best: tuple[str, ...] = ()
    keys: pl.DataFrame | None = None

    @property
    def count(self) -> int:
        """How many ranges there are."""
        return 1 if self.keys is None else self.keys.height + 1


def sample_of(keys: pl.DataFrame, best: Sequence[str]) -> Sample:
    """Some of the keys of a bucket, evenly spaced in their order, the last among them."""
    ranked = keys.sort(keys.columns, nulls_last=True)
    last = ranked.height - 1
    some = min(_SAMPLED, ranked.height)
    places = sorted({last - last * i // max(some - 1, 1) for i in range(some)})
    return Sample(tuple(best), ranked[places])


def cuts_of(samples: Sequence[Sample], count: int) -> Cuts:
    """Cuts for at most `count` ranges, none of them empty."""
    told = [one for one in samples if one.keys is not None]
    if count < 2 or not told:
        return Cuts()
    best = Counter(one.best for one in told).most_common(1)[0][0]
    frames = [one.keys for one in told if one.best == best and one.keys is not None]
    keys = pl.concat(frames)
    keys = keys.unique().sort(keys.columns, nulls_last=True)
    # The highest of all is above every cut, so that the last range has a row as well.
    places = sorted({keys.height * i // count for i in range(1, count)} - {keys.height - 1})
    return Cuts(best, keys[places]) if places else Cuts(best)


def ranges_of(keys: pl.DataFrame, cuts: Cuts) -> pl.Series:
    """The range that each row belongs to."""
    if cuts.keys is None:
        return pl.repeat(0, keys.height, dtype=pl.Int32, eager=True)
    both = pl.concat([keys.with_columns(cut=0), cuts.keys.with_columns(cut=1)])
    order = both.select(pl.arg_sort_by(both.columns, nulls_last=True)).to_series()
    passed = both["cut"].gather(order).cum_sum().cast(pl.Int32)
    back = pl.DataFrame({"at": order, "range": passed}).sort("at")
    return back["range"].head(keys.height)
