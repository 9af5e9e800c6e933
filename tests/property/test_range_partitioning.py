"""Range partitioning of rows, against sorting all rows in one place."""

import random

import polars as pl
from support.case_count import cases

from arrowlog.spark.ranges import RangeBounds, assign_ranges, choose_range_bounds, sample_keys

SEEDS = cases(150)


def drawn(rng):
    """Buckets of sort keys with nulls, few or many values, and a last column that breaks ties."""
    wide = rng.choice([1, 3, 1000])
    numbers = iter(rng.sample(range(10_000), 2000))

    def frame(rows):
        days = [rng.choice([None, *range(wide)]) for _ in range(rows)]
        lows = [rng.choice([None, rng.randrange(wide) / 7]) for _ in range(rows)]
        ties = [next(numbers) for _ in range(rows)]
        kinds = {"p0": pl.Int32, "b0": pl.Float64, "ties": pl.UInt64}
        return pl.DataFrame({"p0": days, "b0": lows, "ties": ties}, schema=kinds)

    return [frame(rng.randrange(1, rng.choice([3, 60, 400]))) for _ in range(rng.randrange(1, 6))]


def test_ranges_are_ordered_and_not_empty():
    for seed in range(SEEDS):
        print("seed", seed)
        rng = random.Random(seed)
        buckets = drawn(rng)
        count = rng.randrange(1, 8)
        cuts = choose_range_bounds([sample_keys(each, ("b",)) for each in buckets], count)
        assert cuts.count <= count
        pieces = [each.with_columns(range=assign_ranges(each, cuts)) for each in buckets]
        rows = pl.concat(pieces)
        assert rows.height == sum(each.height for each in buckets)
        keys = buckets[0].columns
        ranked = rows.sort(keys, nulls_last=True)
        assert ranked["range"].is_sorted()
        assert sorted(set(rows["range"])) == list(range(cuts.count))


def test_ranges_have_similar_sizes():
    rng = random.Random(3)
    numbers = rng.sample(range(10**6), 40_000)
    frame = pl.DataFrame({"p0": [n % 10 for n in numbers], "ties": numbers})
    buckets = [frame.gather_every(8, offset) for offset in range(8)]
    cuts = choose_range_bounds([sample_keys(each, ()) for each in buckets], 8)
    sizes = pl.concat([assign_ranges(each, cuts) for each in buckets]).value_counts()["count"]
    assert cuts.count == 8
    assert sizes.max() < 1.2 * 5000


def test_buckets_with_other_sort_columns_use_the_majority_order():
    many = pl.DataFrame({"b0": [1, 2, 3, 4], "ties": [1, 2, 3, 4]})
    samples = [sample_keys(many, ("id",)), sample_keys(many, ("id",))]
    cuts = choose_range_bounds([*samples, sample_keys(many.select("ties"), ())], 2)
    assert cuts.best == ("id",)
    assert assign_ranges(many, cuts).to_list() == [0, 0, 1, 1]


def test_one_range_contains_all_rows():
    keys = pl.DataFrame({"ties": [3, 1]})
    assert choose_range_bounds([sample_keys(keys, ())], 1) == RangeBounds()
    assert assign_ranges(keys, RangeBounds()).to_list() == [0, 0]
    assert choose_range_bounds([], 5).count == 1
