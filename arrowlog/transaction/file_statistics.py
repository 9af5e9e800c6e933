"""Column statistics of a data file: row count, bounds and null counts. Pure.

Statistics are exact or omitted. A bound is omitted where it would not be valid for every reader: a
maximum if there are NaNs, which sort above all numbers but are in no maximum; text with characters
that sort differently in UTF-16 (Java) and by code point; timestamps after the year 9999; text that
exceeds the limit for statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.snapshot import has_bounds, to_log_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.snapshot import StatsTruncation

# Beyond this code point, UTF-16 code units and code points sort differently.
_MAX_CODE_POINT = 0xD7FF


@dataclass(frozen=True, slots=True)
class DataFileStats:
    """Statistics of one file: row count, and by column the bounds as log text and null counts."""

    num_records: int
    low: dict[str, str] = field(default_factory=dict)
    high: dict[str, str] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)


def compute_stats(table: pa.Table, names: Iterable[str], cut: StatsTruncation) -> DataFileStats:
    """Compute the statistics of rows in memory."""
    low: dict[str, str] = {}
    high: dict[str, str] = {}
    nulls: dict[str, int] = {}
    for name in names:
        column = table[name]
        kind = column.type
        if not has_bounds(kind):
            continue
        nulls[name] = column.null_count
        if column.null_count < len(column):
            _add_bounds(name, kind, *_extremes(column), cut, low, high)
    return DataFileStats(table.num_rows, low, high, nulls)


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return minimum and maximum; None for one that is not valid."""
    extremes = pc.min_max(column)
    least, most = _python_value(extremes["min"]), _python_value(extremes["max"])
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return (None if least is None or math.isnan(least) else least), None
    return least, most


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # a timestamp outside Python's range
        return None


def _add_bounds(
    name: str,
    kind: pa.DataType,
    least: Any,
    most: Any,
    cut: StatsTruncation,
    low: dict[str, str],
    high: dict[str, str],
) -> None:
    """Add the bounds of a column to `low` and `high`, if they are valid for every reader."""
    first, last = _bound_text(least, kind), _bound_text(most, kind)
    if pa.types.is_string(kind):
        first, last = cut.shorten(first, last)
    if first is not None:
        low[name] = first
    if last is not None:
        high[name] = last


def _bound_text(value: Any, kind: pa.DataType) -> str | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    text = to_log_text(value, kind)
    if (
        text is not None
        and pa.types.is_string(kind)
        and any(ord(c) > _MAX_CODE_POINT for c in text)
    ):
        return None
    return text


def read_footer_stats(footer: Any, schema: pa.Schema, cut: StatsTruncation) -> DataFileStats:
    """Read the statistics of the table's columns from a Parquet footer.

    Bounds are taken only from columns that the file stores in the table's own type. Maxima of
    floating point columns are omitted unless parquet-mr (Java) wrote the file: it writes NaN as the
    maximum if there is one, which is then omitted because it is not finite. Footers of other
    writers do not tell whether there are NaNs.
    """
    with_nan = str(footer.created_by).startswith("parquet-mr ")
    stored = footer.schema.to_arrow_schema()
    paths: dict[str, int | None] = {}
    for number in range(footer.num_columns):  # None marks an ambiguous path
        path = footer.schema.column(number).path
        paths[path] = None if path in paths else number
    low: dict[str, str] = {}
    high: dict[str, str] = {}
    nulls: dict[str, int] = {}
    for item in schema:
        index = paths.get(item.name)
        if index is None or stored.get_field_index(item.name) < 0 or not has_bounds(item.type):
            continue
        groups = [footer.row_group(g) for g in range(footer.num_row_groups)]
        groups = [group for group in groups if group.num_rows]
        chunks = [group.column(index).statistics for group in groups]
        if any(stats is None for stats in chunks) or not chunks:
            continue
        if all(stats.has_null_count for stats in chunks):
            nulls[item.name] = sum(stats.null_count for stats in chunks)
        if _is_same_type(stored.field(item.name).type, item.type):
            least, most = _footer_bounds(chunks, groups, item.type, with_nan=with_nan)
            _add_bounds(item.name, item.type, least, most, cut, low, high)
    return DataFileStats(footer.num_rows, low, high, nulls)


def _footer_bounds(
    chunks: list[Any], groups: list[Any], kind: pa.DataType, *, with_nan: bool
) -> tuple[Any, Any]:
    """Return the bounds over all row groups; None for those that are not known."""
    pairs = []
    for stats, group in zip(chunks, groups, strict=True):
        if stats.has_min_max:
            try:
                pairs.append((stats.min, stats.max))
            except (OverflowError, ValueError):  # a timestamp outside Python's range
                return None, None
        elif not (stats.has_null_count and stats.null_count == group.num_rows):
            return None, None  # this row group has values but no bounds
    if not pairs:
        return None, None
    least, most = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    if pa.types.is_floating(kind) and not with_nan:
        return (None if least != least else least), None  # noqa: PLR0124 -- NaN
    return least, most


def _is_same_type(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of the stored type are values of the table's type without conversion."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if pa.types.is_string(kind):
        return any(test(stored) for test in texts)
    if pa.types.is_integer(kind) and pa.types.is_integer(stored):
        return True
    return bool(stored == kind)
