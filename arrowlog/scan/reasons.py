"""Classify for each file why a test could not skip it. Pure; used by explanations only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import FALSE, scalar
from arrowlog.scan.normal import (
    NOT_COMPARABLE,
    NOT_PRUNABLE,
    Begins,
    Compare,
    Constant,
    Every,
    Exactly,
    Null,
    OneOf,
    Some,
    Unknown,
    without_nan,
)
from arrowlog.scan.prune import begins_with, dropped
from arrowlog.scan.tree import columns_of
from arrowlog.state.safe import has_nan, high_of, low_of

if TYPE_CHECKING:
    from arrowlog.scan.normal import Test
    from arrowlog.state.files import Columns

REASONS = (
    "dropped",
    "in range",
    "no statistics",
    "truncated bound",
    NOT_COMPARABLE,
    NOT_PRUNABLE,
    "NaN possible",
    "partition value matches",
    "partition value unreadable",
)
DROPPED, IN_RANGE, NO_STATISTICS, TRUNCATED, INCOMPARABLE, UNPRUNABLE, NAN, VALUE, UNREADABLE = (
    range(len(REASONS))
)


def code(number: int) -> pa.Scalar:
    """A reason code as a scalar."""
    return scalar(number, pa.int8())


def where(mask: pa.Array, number: int, otherwise: pa.Array | int) -> pa.Array:
    """One reason code where the mask is true, another (or an array of codes) elsewhere."""
    other = code(otherwise) if isinstance(otherwise, int) else otherwise
    return pc.if_else(mask, code(number), other)


def reasons(
    test: Test, columns: Columns, mask: pa.Array | None, nan_free: frozenset[str]
) -> pa.Array:
    """One reason code per file: `DROPPED`, or why the test kept the file.

    `mask` is the skip mask of the test, `nan_free` as in `dropped`.
    """
    kept_because = _reason_kept(test, columns, nan_free)
    return kept_because if mask is None else where(pc.fill_null(mask, FALSE), DROPPED, kept_because)


def _repeat_code(number: int, columns: Columns) -> pa.Array:
    return pa.repeat(code(number), columns.num_rows)


def _reason_kept(test: Test, columns: Columns, nan_free: frozenset[str]) -> pa.Array:
    """Reason codes for keeping a file, computed for every file."""
    if isinstance(test, Constant):
        return _repeat_code(IN_RANGE, columns)
    if isinstance(test, Unknown):
        return _repeat_code(INCOMPARABLE if test.why == NOT_COMPARABLE else UNPRUNABLE, columns)
    if isinstance(test, (Every, Some)):
        return _combine_parts(test, columns, nan_free)
    names = columns_of(test.node) if isinstance(test, Exactly) else {test.name}
    if names <= set(columns.partition_columns):
        codes = _repeat_code(VALUE, columns)
        for name in names:
            codes = where(columns.unreadable(name), UNREADABLE, codes)
        return codes
    assert not isinstance(test, Exactly)
    return _reason_bounds(test, columns, nan_free)


def _combine_parts(test: Every | Some, columns: Columns, nan_free: frozenset[str]) -> pa.Array:
    """The reason of the first part that could not skip the file.

    A part that lacked information takes precedence over one whose value is in range.
    """
    if isinstance(test, Every):
        nan_free |= without_nan(test, columns.schema)
    codes = _repeat_code(IN_RANGE, columns)
    for part in reversed(test.parts):
        part_codes = reasons(part, columns, dropped(part, columns, nan_free), nan_free)
        informed = pc.or_(pc.equal(part_codes, code(DROPPED)), pc.equal(part_codes, code(IN_RANGE)))
        codes = pc.if_else(informed, codes, part_codes)
    return codes


def _reason_bounds(
    test: Compare | OneOf | Begins | Null, columns: Columns, nan_free: frozenset[str]
) -> pa.Array:
    """Why the statistics of a data column could not skip a file."""
    name = test.name
    if isinstance(test, Null):
        unknown = pc.is_null(columns.null_count(name))
        return where(unknown, NO_STATISTICS, IN_RANGE)
    low, high = low_of(columns, name), high_of(columns, name)
    kind = columns.schema.field(name).type
    op = test.op if isinstance(test, Compare) else "="
    op = "<>" if isinstance(test, OneOf) and test.negated else op
    needs_high, needs_low = op in (">", ">="), op in ("<", "<=")
    missing = pc.is_null(high) if needs_high else pc.is_null(low)
    if not (needs_high or needs_low):
        missing = pc.or_(missing, pc.is_null(high))
    codes = where(missing, NO_STATISTICS, IN_RANGE)
    # A maximum does not cover NaN, so it cannot exclude rows for these operators.
    if has_nan(kind) and name not in nan_free and (needs_high or op == "<>"):
        return where(missing, NO_STATISTICS, NAN)
    value = test.prefix if isinstance(test, Begins) else getattr(test, "down", None)
    if pa.types.is_string(kind) and not needs_low and isinstance(value, str):
        return where(begins_with(value, high), TRUNCATED, codes)
    return codes
