"""For each file, why a test could not drop it. Pure; asked only by explanations."""

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
    """A reason as it is kept in columns."""
    return scalar(number, pa.int8())


def where(mask: pa.Array, number: int, otherwise: pa.Array | int) -> pa.Array:
    """One reason where the mask is true, another elsewhere."""
    rest = code(otherwise) if isinstance(otherwise, int) else otherwise
    return pc.if_else(mask, code(number), rest)


def reasons(test: Test, columns: Columns, mask: pa.Array | None, sane: frozenset[str]) -> pa.Array:
    """A code for each file: dropped, or why not. `mask` is what the test dropped."""
    found = _why(test, columns, sane)
    return found if mask is None else where(pc.fill_null(mask, FALSE), DROPPED, found)


def _all(number: int, columns: Columns) -> pa.Array:
    return pa.repeat(code(number), columns.num_rows)


def _why(test: Test, columns: Columns, sane: frozenset[str]) -> pa.Array:
    if isinstance(test, Constant):
        return _all(IN_RANGE, columns)
    if isinstance(test, Unknown):
        return _all(INCOMPARABLE if test.why == NOT_COMPARABLE else UNPRUNABLE, columns)
    if isinstance(test, (Every, Some)):
        return _parts(test, columns, sane)
    names = columns_of(test.node) if isinstance(test, Exactly) else {test.name}
    if names <= set(columns.partition_columns):
        found = _all(VALUE, columns)
        for name in names:
            found = where(columns.unreadable(name), UNREADABLE, found)
        return found
    assert not isinstance(test, Exactly)
    return _bounds(test, columns, sane)


def _parts(test: Every | Some, columns: Columns, sane: frozenset[str]) -> pa.Array:
    """The reason of the first part that could not drop the file; a definite one comes last."""
    if isinstance(test, Every):
        sane |= without_nan(test, columns.schema)
    found = _all(IN_RANGE, columns)
    for part in reversed(test.parts):
        why = reasons(part, columns, dropped(part, columns, sane), sane)
        settled = pc.or_(pc.equal(why, code(DROPPED)), pc.equal(why, code(IN_RANGE)))
        found = pc.if_else(settled, found, why)
    return found


def _bounds(
    test: Compare | OneOf | Begins | Null, columns: Columns, sane: frozenset[str]
) -> pa.Array:
    name = test.name
    if isinstance(test, Null):
        unknown = pc.is_null(columns.null_count(name))
        return where(unknown, NO_STATISTICS, IN_RANGE)
    low, high = low_of(columns, name), high_of(columns, name)
    kind = columns.schema.field(name).type
    op = test.op if isinstance(test, Compare) else "="
    op = "<>" if isinstance(test, OneOf) and test.negated else op
    rising, falling = op in (">", ">="), op in ("<", "<=")
    missing = pc.is_null(high) if rising else pc.is_null(low)
    if not (rising or falling):
        missing = pc.or_(missing, pc.is_null(high))
    found = where(missing, NO_STATISTICS, IN_RANGE)
    if has_nan(kind) and name not in sane and (rising or op == "<>"):
        return where(missing, NO_STATISTICS, NAN)
    value = test.prefix if isinstance(test, Begins) else getattr(test, "down", None)
    if pa.types.is_string(kind) and not falling and isinstance(value, str):
        return where(begins_with(value, high), TRUNCATED, found)
    return found
