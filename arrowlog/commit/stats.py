"""What a log says of the rows in a file: exact bounds and counts, or nothing.

A bound is left out where it would not hold for every reader: a maximum where there are NaNs, which
sort above all numbers and are in no maximum; a text with characters that UTF-16 sorts elsewhere;
moments beyond the year 9999; texts too long for the log. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.text import text_of
from arrowlog.state.typed import has_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.state.truncation import Truncation

_LAST = 0xD7FF  # above it, UTF-16 and code points sort differently


@dataclass(frozen=True, slots=True)
class Stats:
    """Of one file: rows, and by column the least and greatest value, and how many are null."""

    num_records: int
    low: dict[str, str] = field(default_factory=dict)
    high: dict[str, str] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)


def of_table(table: pa.Table, names: Iterable[str], cut: Truncation) -> Stats:
    """Statistics of rows that are at hand."""
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
            _note(name, kind, *_extremes(column), cut, low, high)
    return Stats(table.num_rows, low, high, nulls)


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(column)
    least, most = _value(found["min"]), _value(found["max"])
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return (None if least is None or math.isnan(least) else least), None
    return least, most


def _value(found: pa.Scalar) -> Any:
    try:
        return found.as_py()
    except (OverflowError, ValueError):  # a moment that Python has no value for
        return None


def _note(
    name: str,
    kind: pa.DataType,
    least: Any,
    most: Any,
    cut: Truncation,
    low: dict[str, str],
    high: dict[str, str],
) -> None:
    """Write down bounds of a column, as far as they hold for everybody."""
    first, last = _bound(least, kind), _bound(most, kind)
    if pa.types.is_string(kind):
        first, last = cut.shorten(first, last)
    if first is not None:
        low[name] = first
    if last is not None:
        high[name] = last


def _bound(value: Any, kind: pa.DataType) -> str | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    text = text_of(value, kind)
    if text is not None and pa.types.is_string(kind) and any(ord(c) > _LAST for c in text):
        return None
    return text


def of_footer(footer: Any, schema: pa.Schema, cut: Truncation) -> Stats:
    """Statistics from the footer of a Parquet file, of the columns that the table has.

    A column counts if the file has it in the table's own type. Maxima of floating point columns are
    left out unless Java wrote the file: other footers do not say whether there are NaNs, and there
    a NaN is the maximum, which is then none.
    """
    with_nan = str(footer.created_by).startswith("parquet-mr ")
    stored = footer.schema.to_arrow_schema()
    paths: dict[str, int | None] = {}
    for number in range(footer.num_columns):  # a path that is there twice is of two columns
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
        found = [group.column(index).statistics for group in groups]
        if any(stats is None for stats in found) or not found:
            continue
        if all(stats.has_null_count for stats in found):
            nulls[item.name] = sum(stats.null_count for stats in found)
        if _same(stored.field(item.name).type, item.type):
            least, most = _footer_bounds(found, groups, item.type, with_nan=with_nan)
            _note(item.name, item.type, least, most, cut, low, high)
    return Stats(footer.num_rows, low, high, nulls)


def _footer_bounds(
    found: list[Any], groups: list[Any], kind: pa.DataType, *, with_nan: bool
) -> tuple[Any, Any]:
    pairs = []
    for stats, group in zip(found, groups, strict=True):
        if stats.has_min_max:
            try:
                pairs.append((stats.min, stats.max))
            except (OverflowError, ValueError):  # a moment that Python has no value for
                return None, None
        elif not (stats.has_null_count and stats.null_count == group.num_rows):
            return None, None  # rows about which nothing is known
    if not pairs:
        return None, None
    least, most = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    if pa.types.is_floating(kind) and not with_nan:
        return (None if least != least else least), None  # noqa: PLR0124 -- NaN
    return least, most


def _same(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of the file are values of the table as they are."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if pa.types.is_string(kind):
        return any(test(stored) for test in texts)
    if pa.types.is_integer(kind) and pa.types.is_integer(stored):
        return True
    return bool(stored == kind)
