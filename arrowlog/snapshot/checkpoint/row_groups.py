"""Row groups of a checkpoint: the order of its rows, and statistics per row group. Pure.

The index has one row per row group. For each column, partition columns included, `low.<col>` and
`high.<col>` are bounds that hold for every row of every file in the group, null if one of them is
unknown; `nulls.<col>` is the number of NULLs, null if unknown (for a partition column: the number
of files whose value is NULL); `none.<col>` is true where every value is NULL. `nans.<col>` is the
number of NaNs in a floating-point column, null if unknown.

A text bound may be truncated, so a high bound covers everything that starts with it. The maximum of
several high bounds is therefore not enough: of `ab` and `abc`, `ab` covers more. The shortest bound
that is a prefix of the maximum covers as much as all of them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_int64
from arrowlog.fork_safety import pl
from arrowlog.snapshot.checkpoint.rows import (
    bounded_columns,
    trusted_null_counts,
    unbounded_columns,
)
from arrowlog.snapshot.file_table import FileStats
from arrowlog.snapshot.stats_bounds import (
    all_null_files,
    comparison_type,
    high_bounds,
    low_bounds,
    widen_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Files per row group: the unit in which planning skips, reads and verifies a checkpoint.
ROW_GROUP_FILES = 1 << 14
_SORT_COLUMNS_MAX = 2
# A column is worth sorting by if the range of an average file is less than this share of the whole
# range, and at most this share of its bounds is unknown.
_SORT_SHARE_MAX = 0.5


class RowGroupStats(FileStats):
    """The index as statistics for data skipping.

    Each row group looks like a file of an unpartitioned table, with wide bounds, so that the same
    code prunes both.
    """

    def __init__(self, index: pa.Table, schema: pa.Schema) -> None:
        """Take an index that `build_row_group_index` made."""
        super().__init__(index, schema, ())
        self._indexed = frozenset(index.column_names)

    def prepare(self, names: Iterable[str]) -> None:
        """Load the bounds of these columns. A column that is not prepared has no bounds.

        Explicit, because a table may have thousands of columns.
        """
        for name in names:
            if ("bounds", name) in self.derived:
                continue
            self.derived["bounds", name] = (
                self._statistic("low", name),
                self._statistic("high", name),
            )
            none = self._statistic("none", name, pa.bool_())
            self.derived["all null", name] = none if none.true_count else None

    def _statistic(self, statistic: str, name: str, kind: pa.DataType | None = None) -> pa.Array:
        """Return a column of the index; nulls if it is not there."""
        column = f"{statistic}.{name}"
        if column in self._indexed:
            return self._adds[column].combine_chunks()
        return self._unknown(name) if kind is None else pa.nulls(self.num_rows, kind)

    def _unknown(self, name: str) -> pa.Array:
        kind = comparison_type(self.schema.field(name).type)
        return pa.nulls(self.num_rows, pa.null() if kind is None else kind)

    def null_count(self, name: str) -> pa.Array:
        """Return the number of NULLs in a column per row group; null is unknown."""
        return self._statistic("nulls", name, pa.int64())

    def nan_count(self, name: str) -> pa.Array:
        """Return the number of NaNs in a column per row group; null is unknown."""
        return self._statistic("nans", name, pa.int64())


def storage_order(
    columns: FileStats, keys: pa.ChunkedArray, best: Sequence[str] | None = None
) -> pa.Array:
    """Return the order in which files are stored: by partition, then by the best sort columns.

    `best` are the columns to sort by; by default `choose_sort_columns` chooses them.
    """
    table = storage_sort_keys(columns, keys, choose_sort_columns(columns) if best is None else best)
    order = table.select(pl.arg_sort_by(table.columns, nulls_last=True)).to_series()
    return order.cast(pl.Int64).to_arrow()


def storage_sort_keys(
    columns: FileStats, keys: pa.ChunkedArray, best: Sequence[str]
) -> pl.DataFrame:
    """Return the sort keys of the files, the most significant column first."""
    frame = {f"p{i}": columns.partition(name) for i, name in enumerate(columns.partition_columns)}
    frame |= {f"b{i}": low_bounds(columns, name) for i, name in enumerate(best)}
    series = [pl.Series(name, pl.from_arrow(array)) for name, array in frame.items()]
    ties = pl.Series("ties", pl.from_arrow(keys), dtype=pl.String)
    # With sort columns few files tie, and any deterministic order of those will do. Hashes sort
    # faster than paths.
    return pl.DataFrame([*series, ties.hash(0) if best else ties])


def choose_sort_columns(columns: FileStats) -> list[str]:
    """Return the columns worth sorting by, those with the narrowest files first."""
    candidates: list[tuple[float, str]] = []
    for name in bounded_columns(columns):
        low, high = low_bounds(columns, name), high_bounds(columns, name)
        if len(low) == 0 or low.null_count + high.null_count > len(low) * _SORT_SHARE_MAX:
            continue
        if pa.types.is_string(low.type):
            continue
        lows, highs = (pc.cast(side, pa.float64(), safe=False) for side in (low, high))
        full_range = (pc.max(highs).as_py() or 0) - (pc.min(lows).as_py() or 0)
        mean_range = pc.mean(pc.subtract(highs, lows)).as_py()
        share = 1.0 if not full_range or mean_range is None else mean_range / full_range
        if share < _SORT_SHARE_MAX:
            candidates.append((share, name))
    return [name for _, name in sorted(candidates)[:_SORT_COLUMNS_MAX]]


def build_row_group_index(columns: FileStats, order: pa.Array) -> pa.Table:
    """Return the index: statistics for each `ROW_GROUP_FILES` files in the given order."""
    count = len(order)
    group = pl.int_range(count, eager=True) // ROW_GROUP_FILES
    sizes = pl.DataFrame({"group": group}).group_by("group", maintain_order=True).len()
    index = {"rows": sizes["len"].cast(pl.Int64).to_arrow()}
    for name in (*columns.partition_columns, *bounded_columns(columns)):
        if columns.schema.get_field_index(name) < 0:
            continue
        if comparison_type(columns.schema.field(name).type) is None:
            continue
        per_file = _partition_stats if name in columns.partition_columns else _bounded_stats
        stats = [array.take(order) for array in per_file(columns, name)]
        index |= _aggregate(name, stats, group)
        if per_file is _bounded_stats and pa.types.is_floating(columns.schema.field(name).type):
            index[f"nans.{name}"] = _sum_nans(columns.nan_count(name).take(order), stats[3], group)
    for name in unbounded_columns(columns):
        stats = [array.take(order) for array in _unbounded_stats(columns, name)]
        aggregated = _aggregate(name, stats, group)
        index |= {key: aggregated[key] for key in (f"nulls.{name}", f"none.{name}")}
    return pa.table(index)


def _bounded_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return per file: low bound, high bound, number of NULLs, whether every value is NULL."""
    known = all_null_files(columns, name)
    none = pa.repeat(FALSE, columns.num_rows) if known is None else known
    return low_bounds(columns, name), high_bounds(columns, name), columns.null_count(name), none


def _unbounded_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return what `_bounded_stats` returns, for a column without an order."""
    nulls, no_bounds = trusted_null_counts(columns, name), pa.nulls(columns.num_rows, pa.int64())
    none = pc.fill_null(pc.equal(nulls, columns.num_records()), FALSE)
    return no_bounds, no_bounds, nulls, none


def _partition_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return what `_bounded_stats` returns, for a partition column: NULLs are files, not rows."""
    kind = columns.schema.field(name).type
    values, unreadable = columns.partition(name), columns.unreadable(name)
    none = pc.and_not(pc.is_null(values), unreadable)
    nulls = pc.if_else(unreadable, pa.nulls(1, pa.int64())[0], pc.cast(none, pa.int64()))
    return (
        widen_bounds(values, kind, upper=False),
        widen_bounds(values, kind, upper=True),
        nulls,
        none,
    )


def _aggregate(name: str, stats: Sequence[pa.Array], group: pl.Series) -> dict[str, pa.Array]:
    """Aggregate per-file statistics to row groups; `group` is the row group of each file."""
    names = ("low", "high", "nulls", "none")
    series = [pl.Series(n, pl.from_arrow(array)) for n, array in zip(names, stats, strict=True)]
    frame = pl.DataFrame([group.alias("group"), *series]).lazy()
    is_text = pa.types.is_string(stats[1].type)
    high = pl.col("high")
    if is_text:
        maximum = high.max().over("group")
        frame = frame.with_columns(prefix=pl.when(maximum.str.starts_with(high)).then(high))
    # A file without any value has no bounds and needs none.
    has_values = ~pl.col("none")
    out = frame.group_by("group", maintain_order=True).agg(
        low=_unless((pl.col("low").is_null() & has_values).any(), pl.col("low").min()),
        high=_unless(
            (high.is_null() & has_values).any(),
            # Of prefixes of one text, the shortest is the minimum.
            pl.col("prefix").min() if is_text else high.max(),
        ),
        nulls=_unless(pl.col("nulls").is_null().any(), pl.col("nulls").sum()),
        none=pl.col("none").all(),
    )
    table = out.collect().to_arrow(compat_level=pl.CompatLevel.oldest())
    types = {"low": stats[0].type, "high": stats[1].type, "nulls": pa.int64(), "none": pa.bool_()}
    return {f"{n}.{name}": pc.cast(table[n].combine_chunks(), kind) for n, kind in types.items()}


def _sum_nans(nans: pa.Array, none: pa.Array, group: pl.Series) -> pa.Array:
    """Sum the NaNs per row group, null if unknown for a file; one without values has none."""
    known = pc.if_else(none, make_int64(0), nans)
    frame = pl.DataFrame([group.alias("group"), pl.Series("nans", pl.from_arrow(known))])
    nans_of_group = _unless(pl.col("nans").is_null().any(), pl.col("nans").sum())
    out = frame.group_by("group", maintain_order=True).agg(nans_of_group)
    return pc.cast(out["nans"].to_arrow(), pa.int64())


def _unless(unknown: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(~unknown).then(value)
