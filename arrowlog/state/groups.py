"""The rows of a checkpoint in groups: in which order, and what holds for a whole group. Pure.

The index has one row a group. For each column, partition columns included, `low.` and `high.` are
bounds that hold for every row of every file in the group, null if one of them is unknown; `nulls.`
is how many rows have no value, null if unknown (for a partition column: how many files have none);
`none.` is true where no row has a value.

A text bound may have been cut, so a high stands for everything that begins with it. The highest of
several is not enough then: of `ab` and `abc` the first one reaches further. The shortest one that
the highest begins with reaches as far as all of them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl
from arrowlog.log.arrays import FALSE
from arrowlog.state.files import Columns
from arrowlog.state.safe import all_null, comparable, high_of, low_of, safe
from arrowlog.state.stored import believed, bounded, unbounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUP_ROWS = 1 << 14
_SORTED_MAX = 2  # data columns to sort by
_USEFUL = 0.5  # wider files than this, of the whole range, are not worth sorting by


class Groups(Columns):
    """The index as columns to prune by, as if every group were a file and had no partitions."""

    def __init__(self, index: pa.Table, schema: pa.Schema) -> None:
        """`index` as `index_of` makes it."""
        super().__init__(index, schema, ())
        self._indexed = frozenset(index.column_names)

    def prepare(self, names: Iterable[str]) -> None:
        """Have ready what is known of these columns; a table may have thousands.

        Of a column that was not named here nothing is known.
        """
        for name in names:
            if ("bounds", name) in self.derived:
                continue
            self.derived["bounds", name] = (self._side("low", name), self._side("high", name))
            none = self._side("none", name, pa.bool_())
            self.derived["all null", name] = none if none.true_count else None

    def _side(self, side: str, name: str, kind: pa.DataType | None = None) -> pa.Array:
        if f"{side}.{name}" in self._indexed:
            return self._adds[f"{side}.{name}"].combine_chunks()
        return self._unknown(name) if kind is None else pa.nulls(self.num_rows, kind)

    def _unknown(self, name: str) -> pa.Array:
        kind = comparable(self.schema.field(name).type)
        return pa.nulls(self.num_rows, pa.null() if kind is None else kind)

    def null_count(self, name: str) -> pa.Array:
        """How many rows of a group have no value in a column; null is unknown."""
        return self._side("nulls", name, pa.int64())


def order_of(
    columns: Columns, keys: pa.ChunkedArray, best: Sequence[str] | None = None
) -> pa.Array:
    """The order in which files are stored: by partition, then by what tells files apart best."""
    table = sort_keys(columns, keys, best_of(columns) if best is None else best)
    order = table.select(pl.arg_sort_by(table.columns, nulls_last=True)).to_series()
    return order.cast(pl.Int64).to_arrow()


def sort_keys(columns: Columns, keys: pa.ChunkedArray, best: Sequence[str]) -> pl.DataFrame:
    """What files are put in order by, first things first."""
    frame = {f"p{i}": columns.partition(name) for i, name in enumerate(columns.partition_columns)}
    frame |= {f"b{i}": low_of(columns, name) for i, name in enumerate(best)}
    parts = [pl.Series(name, pl.from_arrow(array)) for name, array in frame.items()]
    ties = pl.Series("ties", pl.from_arrow(keys), dtype=pl.String)
    # Where few files tie, any order of those will do that is always the same; hashes sort faster.
    return pl.DataFrame([*parts, ties.hash(0) if best else ties])


def best_of(columns: Columns) -> list[str]:
    """The columns by whose ranges most files can be told apart."""
    found: list[tuple[float, str]] = []
    for name in bounded(columns):
        low, high = low_of(columns, name), high_of(columns, name)
        if len(low) == 0 or low.null_count + high.null_count > len(low) * _USEFUL:
            continue
        if pa.types.is_string(low.type):
            continue
        lows, highs = (pc.cast(side, pa.float64(), safe=False) for side in (low, high))
        whole = (pc.max(highs).as_py() or 0) - (pc.min(lows).as_py() or 0)
        width = pc.mean(pc.subtract(highs, lows)).as_py()
        share = 1.0 if not whole or width is None else width / whole
        if share < _USEFUL:
            found.append((share, name))
    return [name for _, name in sorted(found)[:_SORTED_MAX]]


def index_of(columns: Columns, order: pa.Array) -> pa.Table:
    """What holds for each group of files, taken in an order."""
    count = len(order)
    group = pl.int_range(count, eager=True) // GROUP_ROWS
    sizes = pl.DataFrame({"group": group}).group_by("group", maintain_order=True).len()
    found = {"rows": sizes["len"].cast(pl.Int64).to_arrow()}
    for name in (*columns.partition_columns, *bounded(columns)):
        if columns.schema.get_field_index(name) < 0:
            continue
        if comparable(columns.schema.field(name).type) is None:
            continue
        known = _partition if name in columns.partition_columns else _bounds
        found |= _per_group(name, [part.take(order) for part in known(columns, name)], group)
    for name in unbounded(columns):
        parts = [part.take(order) for part in _counts(columns, name)]
        counted = _per_group(name, parts, group)
        found |= {key: counted[key] for key in (f"nulls.{name}", f"none.{name}")}
    return pa.table(found)


def _counts(columns: Columns, name: str) -> Sequence[pa.Array]:
    """The same for a column whose values do not compare."""
    nulls, nowhere = believed(columns, name), pa.nulls(columns.num_rows, pa.int64())
    every = pc.fill_null(pc.equal(nulls, columns.num_records()), FALSE)
    return nowhere, nowhere, nulls, every


def _bounds(columns: Columns, name: str) -> Sequence[pa.Array]:
    """For each file: low, high, rows without a value, whether that is all of them."""
    none = all_null(columns, name)
    nothing = pa.repeat(FALSE, columns.num_rows) if none is None else none
    return low_of(columns, name), high_of(columns, name), columns.null_count(name), nothing


def _partition(columns: Columns, name: str) -> Sequence[pa.Array]:
    kind = columns.schema.field(name).type
    values, odd = columns.partition(name), columns.unreadable(name)
    missing = pc.and_not(pc.is_null(values), odd)
    nulls = pc.if_else(odd, pa.nulls(1, pa.int64())[0], pc.cast(missing, pa.int64()))
    return safe(values, kind, upper=False), safe(values, kind, upper=True), nulls, missing


def _per_group(name: str, parts: Sequence[pa.Array], group: pl.Series) -> dict[str, pa.Array]:
    names = ("low", "high", "nulls", "none")
    arrays = [pl.Series(n, pl.from_arrow(part)) for n, part in zip(names, parts, strict=True)]
    frame = pl.DataFrame([group.alias("group"), *arrays]).lazy()
    text = pa.types.is_string(parts[1].type)
    high = pl.col("high")
    if text:
        top = high.max().over("group")
        reach = pl.when(top.str.starts_with(high)).then(high)
        frame = frame.with_columns(reach=reach)
    unknown = ~pl.col("none")
    out = frame.group_by("group", maintain_order=True).agg(
        low=_unless((pl.col("low").is_null() & unknown).any(), pl.col("low").min()),
        high=_unless(
            (high.is_null() & unknown).any(), pl.col("reach").min() if text else high.max()
        ),
        nulls=_unless(pl.col("nulls").is_null().any(), pl.col("nulls").sum()),
        none=pl.col("none").all(),
    )
    table = out.collect().to_arrow(compat_level=pl.CompatLevel.oldest())
    types = {"low": parts[0].type, "high": parts[1].type, "nulls": pa.int64(), "none": pa.bool_()}
    return {f"{n}.{name}": pc.cast(table[n].combine_chunks(), kind) for n, kind in types.items()}


def _unless(flag: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(~flag).then(value)
