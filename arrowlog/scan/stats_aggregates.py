"""Aggregates from statistics alone: count, min and max, exact or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_int64
from arrowlog.predicate import resolve_column
from arrowlog.scan.data_skipping import compute_skip_mask, invert_skip_mask, required_columns
from arrowlog.scan.stats_predicate import StatsPredicateBuilder
from arrowlog.snapshot import (
    all_null_files,
    comparison_type,
    high_bounds,
    low_bounds,
    to_comparable,
)

if TYPE_CHECKING:
    from arrowlog.predicate import Predicate
    from arrowlog.snapshot import FileStats, Snapshot


def count_matching_rows(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> int | None:
    """Number of matching rows, or None if statistics do not determine it.

    Known if in every file either all rows match or none, and every matching file records its row
    count.
    """
    if not mask.true_count:
        return 0
    if not _all_match(snapshot, predicate, mask):
        return None
    rows = snapshot.columns.num_records().filter(mask)
    return None if rows.null_count else int(pc.sum(rows).as_py())


def find_extreme(
    snapshot: Snapshot, predicate: Predicate, mask: pa.Array, column: str, *, upper: bool
) -> Any:
    """Minimum, or with `upper` maximum, of a column over the matching rows; None if not exact.

    Raises InvalidRequest for an unknown column.
    """
    resolve_column(column, snapshot.columns.schema)
    if not mask.true_count or not _all_match(snapshot, predicate, mask):
        return None
    columns = snapshot.columns
    columns.prepare([column])
    aggregate = pc.max if upper else pc.min
    if column in snapshot.partition_columns:
        rows = columns.num_records().filter(mask)
        unreadable = columns.unreadable(column).filter(mask)
        if rows.null_count or unreadable.true_count:
            return None
        values = columns.partition(column).filter(mask)
        return aggregate(values.filter(pc.greater(rows, make_int64(0)))).as_py()
    return _extreme_of_bounds(columns, mask, column, upper=upper)


def _extreme_of_bounds(columns: FileStats, mask: pa.Array, column: str, *, upper: bool) -> Any:
    """The extreme of a data column, if the bound that decides it is exact.

    A bound is exact if making it safe did not widen it. String bounds may be truncated and a float
    maximum does not cover NaN, so these are never exact.
    """
    kind = columns.schema.field(column).type
    if comparison_type(kind) is None or pa.types.is_string(kind):
        return None
    if upper and pa.types.is_floating(kind):
        return None
    aggregate = pc.max if upper else pc.min
    recorded = columns.high(column) if upper else columns.low(column)
    safe_bounds = high_bounds(columns, column) if upper else low_bounds(columns, column)
    if pc.and_(mask, columns.inexact()).true_count:
        return None  # the row with the extreme value may be deleted
    only_nulls = all_null_files(columns, column)
    with_values = mask if only_nulls is None else pc.and_not(mask, only_nulls)
    safe_bounds = safe_bounds.filter(with_values)
    if safe_bounds.null_count:
        return None
    extreme_value = aggregate(recorded.filter(with_values))
    recorded_extreme = aggregate(to_comparable_numbers(recorded.filter(with_values), kind))
    if not extreme_value.is_valid or recorded_extreme != aggregate(safe_bounds):
        return None
    if pa.types.is_timestamp(kind) and recorded_extreme.as_py() % 1000 == 0:
        return None  # may have been truncated to milliseconds
    return extreme_value.as_py()


def to_comparable_numbers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values in their comparable type; timestamps as microseconds, not widened."""
    return (
        pc.cast(values, pa.int64()) if pa.types.is_timestamp(kind) else to_comparable(values, kind)
    )


def _all_match(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> bool:
    """Whether statistics prove that every row of the planned files matches."""
    builder = StatsPredicateBuilder(snapshot.columns.schema, snapshot.partition_columns)
    failing = builder.rows(predicate.tree, want=False, null=True)
    snapshot.columns.prepare(required_columns(failing))
    may_fail = invert_skip_mask(compute_skip_mask(failing, snapshot.columns), snapshot.num_files)
    return not pc.and_(mask, may_fail).true_count
