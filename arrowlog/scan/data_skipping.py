"""Data skipping: decide from statistics which files cannot contain a row of a test.

A skip mask has one value per file. TRUE means that no row of the file can satisfy the test; FALSE
and NULL keep the file, and so does a mask of None (nothing is known for any file). Masks combine by
Kleene logic: for `And` one TRUE skips the file, for `Or` all parts must be TRUE.

The mask of the rows that do *not* match tells in which files every row matches; from it follow the
aggregates that statistics determine exactly.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    TRUE,
    make_array,
    make_int64,
    make_scalar,
    number_combinations,
    repeat_bool,
    search_sorted,
    sum_exactly,
)
from arrowlog.errors import InvalidRequest
from arrowlog.predicate import evaluate_condition, may_have_nan, referenced_columns, resolve_column
from arrowlog.scan.stats_predicate import (
    And,
    ColumnComparison,
    Comparison,
    ConstantResult,
    In,
    IsNaN,
    IsNull,
    Or,
    PartitionEval,
    StartsWith,
    StatsPredicateBuilder,
    Unprunable,
    nan_free_columns,
)
from arrowlog.snapshot import (
    all_null_files,
    comparison_type,
    high_bounds,
    low_bounds,
    to_comparable,
    widen_bounds,
)

if TYPE_CHECKING:
    from arrowlog.predicate import Predicate
    from arrowlog.scan.stats_predicate import StatsPredicate
    from arrowlog.snapshot import FileStats, Snapshot

    _ColumnTest = Comparison | ColumnComparison | In | StartsWith | IsNull | IsNaN | PartitionEval

_KERNELS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# U+E000 sorts after every character that a usable literal or bound contains (see
# `enclose_literal`).
_SENTINEL, _EMPTY = make_array(["\ue000", ""], pa.string())
_ZEROS = make_array([0.0, -0.0], pa.float64())
_ZERO = _ZEROS[0]


def required_columns(test: StatsPredicate) -> set[str]:
    """The columns whose statistics or partition values a test reads."""
    if isinstance(test, (And, Or)):
        return set().union(*(required_columns(part) for part in test.parts))
    if isinstance(test, PartitionEval):
        return set(referenced_columns(test.node))
    if isinstance(test, ColumnComparison):
        return {test.left, test.right}
    return set() if isinstance(test, (Unprunable, ConstantResult)) else {test.name}


def compute_skip_mask(
    test: StatsPredicate, columns: FileStats, nan_free: frozenset[str] = frozenset()
) -> pa.Array | None:
    """Compute the skip mask of a test: TRUE for files without a row that satisfies it.

    `nan_free` names floating-point columns that are known not to be NaN in the rows concerned,
    because another conjunct excludes NaN. Returns None if nothing can be skipped.
    """
    if isinstance(test, ConstantResult):
        return None if test.value else repeat_bool(True, columns.num_rows)
    if isinstance(test, Unprunable):
        return None
    if isinstance(test, And):
        nan_free |= nan_free_columns(test, columns.schema)
        masks = [
            mask
            for part in test.parts
            if (mask := compute_skip_mask(part, columns, nan_free)) is not None
        ]
        return reduce(pc.or_kleene, masks) if masks else None
    if isinstance(test, Or):
        part_masks: list[pa.Array] = []
        for part in test.parts:
            mask = compute_skip_mask(part, columns, nan_free)
            if mask is None:
                return None
            part_masks.append(mask)
        return reduce(pc.and_kleene, part_masks)
    if not all(columns.knows(name) for name in required_columns(test)):
        return None
    return _skip_by_column(test, columns, nan_free)


def _skip_by_column(
    test: _ColumnTest, columns: FileStats, nan_free: frozenset[str]
) -> pa.Array | None:
    """Compute the skip mask of a test of one column, or of a few together."""
    if isinstance(test, PartitionEval):
        return _evaluate_on_partitions(test, columns)
    if isinstance(test, ColumnComparison):
        return _skip_by_two_columns(test, columns, nan_free)
    if not isinstance(test, IsNaN) and test.name in columns.partition_columns:
        return _skip_by_partition_value(test, columns)
    return _skip_by_bounds(test, columns, nan_free)


def invert_skip_mask(mask: pa.Array | None, count: int) -> pa.Array:
    """Invert a skip mask into the mask of files to read; NULL keeps the file."""
    return repeat_bool(True, count) if mask is None else pc.fill_null(pc.invert(mask), TRUE)


def _or_masks(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    """Kleene OR of two skip masks; None is neutral."""
    if first is None or second is None:
        return second if first is None else first
    return pc.or_kleene(first, second)


def _comparable_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A literal as a scalar of the type in which bounds of a column are compared."""
    return make_scalar(value, comparison_type(kind))


# Partition columns: the value of every row is known, so the test is evaluated exactly.


def _skip_by_partition_value(
    test: Comparison | In | StartsWith | IsNull, columns: FileStats
) -> pa.Array | None:
    """Skip files whose partition value fails the test; an unreadable value keeps the file."""
    unreadable = columns.unreadable(test.name)
    mask = _partition_mismatch(test, columns)
    return pc.and_not(mask, unreadable) if unreadable.true_count else mask


def _partition_mismatch(
    test: Comparison | In | StartsWith | IsNull, columns: FileStats
) -> pa.Array:
    """TRUE where the partition value fails the test. Unreadable values appear as NULL here."""
    values = _partition_values(columns, test.name)
    if isinstance(values, pa.DictionaryArray):
        matches = _satisfies(test, values.dictionary, columns.type_of(test.name))
        matches = matches.take(values.indices)
        if isinstance(test, IsNull):  # the dictionary does not contain NULL
            matches = pc.is_valid(values.indices) if test.negated else pc.is_null(values.indices)
    else:
        matches = _satisfies(test, values, columns.type_of(test.name))
    return pc.fill_null(pc.invert(matches), TRUE)


def _partition_values(columns: FileStats, name: str) -> pa.Array:
    """Partition values in comparable form, cached per column.

    Strings are dictionary-encoded: there are few distinct values, so tests run once per value.
    """
    if ("partition", name) not in columns.derived:
        kind = columns.type_of(name) if name in columns.schema.names else pa.string()
        values = columns.partition(name)
        values = values if comparison_type(kind) is None else to_comparable(values, kind)
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        columns.derived["partition", name] = values
    return columns.derived["partition", name]


def _satisfies(
    test: Comparison | In | StartsWith | IsNull, values: pa.Array, kind: pa.DataType
) -> pa.Array:
    """Evaluate a test on values; NULL where the value is NULL, except for IS [NOT] NULL and IN."""
    if isinstance(test, IsNull):
        return pc.is_valid(values) if test.negated else pc.is_null(values)
    if isinstance(test, In):
        matches = pc.is_in(values, value_set=_value_set(test, kind))
        return pc.and_(pc.is_valid(values), pc.invert(matches)) if test.negated else matches
    if isinstance(test, StartsWith):
        matches = pc.starts_with(values, test.prefix)
        return pc.invert(matches) if test.negated else matches
    matches = _KERNELS[test.op](values, _comparable_scalar(test.down, kind))
    if may_have_nan(kind) and test.op in (">", ">="):
        return pc.or_kleene(matches, pc.is_nan(values))  # to Arrow, NaN is not above any number
    return matches


def _value_set(test: In, kind: pa.DataType) -> pa.Array:
    if isinstance(test.values, pa.Array):
        is_float = may_have_nan(kind) and pc.any(pc.equal(test.values, _ZERO)).as_py()
        return pa.concat_arrays([test.values, _ZEROS]) if is_float else test.values
    values = list(test.values)
    if may_have_nan(kind) and 0.0 in values:
        values += [0.0, -0.0]  # equal, but hashed as two values
    return make_array(values, comparison_type(kind))


def _evaluate_on_partitions(test: PartitionEval, columns: FileStats) -> pa.Array | None:
    """Evaluate a condition once per distinct combination of partition values."""
    names = sorted(referenced_columns(test.node))
    codes, combinations = _combinations(columns, names)
    try:
        matches = evaluate_condition(test.node, combinations, want=test.want, null=test.null)
    except (InvalidRequest, pa.ArrowException):
        return None  # a condition that cannot be evaluated proves nothing about the rows
    mismatch = pc.invert(matches.combine_chunks()).take(codes)
    for name in names:
        unreadable = columns.unreadable(name)
        mismatch = pc.and_not(mismatch, unreadable) if unreadable.true_count else mismatch
    return mismatch


def _combinations(columns: FileStats, names: list[str]) -> tuple[pa.Array, pa.Table]:
    """Distinct combinations of partition values.

    Returns the number of each file's combination and one row per combination. Cached.
    """
    key = ("combinations", *names)
    if key not in columns.derived:
        table = pa.table({name: columns.partition(name) for name in names})
        values = [column.combine_chunks() for column in table.columns]
        codes, first_rows = number_combinations(values, table.num_rows)
        columns.derived[key] = (codes, table.take(first_rows))
    codes_and_rows: tuple[pa.Array, pa.Table] = columns.derived[key]
    return codes_and_rows


# Data columns: minimum, maximum and null count bound the values of a file.


def _skip_by_bounds(
    test: Comparison | In | StartsWith | IsNull | IsNaN,
    columns: FileStats,
    nan_free: frozenset[str],
) -> pa.Array | None:
    """Skip files whose bounds or null counts exclude the test, or whose column is all NULL."""
    name = test.name
    if isinstance(test, IsNaN):
        return _or_masks(mask_nan_free(columns, name), all_null_files(columns, name))
    if isinstance(test, IsNull):
        if test.negated:
            return all_null_files(columns, name)
        counts = columns.usable_null_count(name)
        return None if counts.null_count == len(counts) else pc.equal(counts, make_int64(0))
    only_nulls = all_null_files(columns, name)
    kind = columns.type_of(name)
    if isinstance(test, StartsWith):
        mask: pa.Array | None = _skip_by_prefix(test, columns)
    elif isinstance(test, In):
        skip = _skip_not_in if test.negated else _skip_in
        mask = skip(test, columns, kind, nan_free=not may_have_nan(kind) or name in nan_free)
    elif pa.types.is_string(kind):
        mask = _skip_by_text_range(test, columns)
    else:
        mask = _skip_by_range(
            test, columns, kind, nan_free=not may_have_nan(kind) or name in nan_free
        )
    return _or_masks(mask, only_nulls)


def _skip_by_range(
    test: Comparison, columns: FileStats, kind: pa.DataType, *, nan_free: bool
) -> pa.Array | None:
    """Compare a literal with the bounds of a column that is not a string.

    Without `nan_free`, rows may be NaN: greater than every number and not covered by any maximum,
    so `>`, `>=` and `<>` skip only files of which the log says that they have no NaN.
    """
    low, high = low_bounds(columns, test.name), high_bounds(columns, test.name)
    lower = None if test.down is None else _comparable_scalar(test.down, kind)
    upper = None if test.up is None else _comparable_scalar(test.up, kind)
    if test.op in (">", ">="):
        if lower is None:
            return None
        below = (pc.less_equal if test.op == ">" else pc.less)(high, lower)
        return below if nan_free else _unless_nan(below, columns, test.name)
    if test.op == "<":
        return None if upper is None else pc.greater_equal(low, upper)
    if test.op == "<=":
        return None if upper is None else pc.greater(low, upper)
    if test.op == "=":
        above_maximum = None if lower is None else pc.less(high, lower)
        return _or_masks(above_maximum, None if upper is None else pc.greater(low, upper))
    if not test.exact:
        return None
    constant = pc.and_kleene(pc.equal(low, lower), pc.equal(high, lower))
    return constant if nan_free else _unless_nan(constant, columns, test.name)


def _skip_by_two_columns(
    test: ColumnComparison, columns: FileStats, nan_free: frozenset[str]
) -> pa.Array | None:
    """Skip files in which the range of one column lies beyond that of the other.

    Files in which one of them is all NULL are skipped too.
    """
    left, op, right = test.left, test.op, test.right
    if op in (">", ">="):
        left, op, right = right, "<" if op == ">" else "<=", left
    low, high = _value_range(columns, left)
    other_low, other_high = _value_range(columns, right)
    if low is None or high is None or other_low is None or other_high is None:
        return None
    is_text = pa.types.is_string(low.type)
    beyond = pc.greater_equal if op == "<" and not is_text else pc.greater
    above = beyond(low, _end_of_prefix(other_high) if is_text else other_high)
    right_kind = columns.type_of(right)
    if may_have_nan(right_kind) and right not in nan_free:
        # A NaN on the right is greater than everything; equal only to another NaN.
        above = _unless_nan(above, columns, right)
    if op == "=":
        below = pc.greater(other_low, _end_of_prefix(high) if is_text else high)
        if may_have_nan(columns.type_of(left)) and left not in nan_free:
            below = _unless_nan(below, columns, left)
        above = pc.or_kleene(above, below)
    return reduce(_or_masks, (above, _only_nulls(columns, left), _only_nulls(columns, right)))


def _value_range(columns: FileStats, name: str) -> tuple[pa.Array | None, pa.Array | None]:
    """The bounds of a data column; the value of a partition column is both of its bounds."""
    if name not in columns.partition_columns:
        return low_bounds(columns, name), high_bounds(columns, name)
    kind = columns.type_of(name)
    if comparison_type(kind) is None or may_have_nan(kind):
        return None, None
    # Text that writers order differently is unknown, as in bounds.
    values = widen_bounds(columns.partition(name), kind, upper=False)
    values = values if pa.types.is_string(kind) else to_comparable(columns.partition(name), kind)
    return values, values


def _only_nulls(columns: FileStats, name: str) -> pa.Array | None:
    """Which files have only NULLs in a data or partition column; None if that is not known."""
    if name not in columns.partition_columns:
        return all_null_files(columns, name)
    return pc.and_not(pc.is_null(columns.partition(name)), columns.unreadable(name))


def _end_of_prefix(texts: pa.Array) -> pa.Array:
    """Texts above everything that begins with a high bound, among those that bounds contain."""
    if len(texts) == texts.null_count:
        return texts
    return pc.binary_join_element_wise(texts, _SENTINEL, _EMPTY)


def _unless_nan(mask: pa.Array, columns: FileStats, name: str) -> pa.Array:
    """A skip mask, restricted to the files that are known to have no NaN in a column."""
    return pc.and_kleene(mask, mask_nan_free(columns, name))


def mask_nan_free(columns: FileStats, name: str) -> pa.Array:
    """TRUE for files without NaN in a column, NULL where that is unknown."""
    return pc.equal(columns.nan_count(name), make_int64(0))


def _skip_in(test: In, columns: FileStats, kind: pa.DataType, *, nan_free: bool) -> pa.Array | None:
    """Skip files whose range contains none of the sorted values.

    The range is empty of values if as many values are below the minimum as are up to the maximum.
    """
    del nan_free  # the values of an IN list are never NaN
    low, high = low_bounds(columns, test.name), high_bounds(columns, test.name)
    values = test.values
    if not isinstance(values, pa.Array):
        values = make_array(values, comparison_type(kind))
    if pa.types.is_string(kind):
        outside = pc.or_kleene(_above_maximum(values[0].as_py(), high), pc.greater(low, values[-1]))
        # A maximum may be a truncated prefix; all literals starting with it sort before this.
        high = _end_of_prefix(high)
    else:
        outside = pc.or_kleene(pc.less(high, values[0]), pc.greater(low, values[-1]))
    below_minimum = search_sorted(values, low, "left")
    up_to_maximum = search_sorted(values, high, "right")
    return pc.or_kleene(outside, pc.greater_equal(below_minimum, up_to_maximum))


def _skip_not_in(
    test: In, columns: FileStats, kind: pa.DataType, *, nan_free: bool
) -> pa.Array | None:
    """Skip files in which all rows have one and the same value, and the list contains it.

    Not for strings: their bounds may be truncated.
    """
    if pa.types.is_string(kind):
        return None
    low, high = low_bounds(columns, test.name), high_bounds(columns, test.name)
    if isinstance(test.values, pa.Array):  # sorted: hashing it would take much longer
        first, last = (search_sorted(test.values, low, side) for side in ("left", "right"))
        contained = pc.less(first, last)
    else:
        contained = pc.is_in(low, value_set=_value_set(test, kind))
    listed = pc.and_kleene(pc.equal(low, high), contained)
    return listed if nan_free else _unless_nan(listed, columns, test.name)


def _skip_by_text_range(test: Comparison, columns: FileStats) -> pa.Array | None:
    """Compare a literal with the bounds of a string column; a maximum may be a prefix."""
    text = test.down
    value = make_scalar(text, pa.string())
    if test.op in (">", ">="):
        return _above_maximum(text, high_bounds(columns, test.name))
    low = low_bounds(columns, test.name)
    if test.op == "<":
        return pc.greater_equal(low, value)
    if test.op == "<=":
        return pc.greater(low, value)
    if test.op == "=":
        above_maximum = _above_maximum(text, high_bounds(columns, test.name))
        return pc.or_kleene(above_maximum, pc.greater(low, value))
    return None  # <>: the maximum may be truncated, so equal bounds do not prove equal rows


def _above_maximum(value: str, high: pa.Array) -> pa.Array:
    """TRUE where a text is greater than every row.

    It must be greater than the maximum and not start with it: the maximum may be a truncated prefix
    of the text itself.
    """
    greater = pc.less(high, make_scalar(value, pa.string()))
    return pc.and_kleene(greater, pc.invert(mask_prefixes_of(value, high)))


def mask_prefixes_of(value: str, texts: pa.Array) -> pa.Array:
    """TRUE for the texts that are a prefix of `value`; FALSE for null.

    Only prefixes with the length of one of the texts are built: building all of them takes memory
    quadratic in the length of `value`.
    """
    lengths = pc.unique(pc.utf8_length(texts)).to_pylist()
    prefixes = [value[:length] for length in lengths if length is not None and length <= len(value)]
    return pc.is_in(texts, value_set=make_array(prefixes, pa.string()))


def _skip_by_prefix(test: StartsWith, columns: FileStats) -> pa.Array | None:
    """Skip files by a prefix test: [NOT] starts_with."""
    low, high = low_bounds(columns, test.name), high_bounds(columns, test.name)
    low_matches = pc.starts_with(low, test.prefix)
    if test.negated:
        return pc.and_kleene(low_matches, pc.starts_with(high, test.prefix))
    above_prefix = pc.and_kleene(
        pc.greater(low, make_scalar(test.prefix, pa.string())), pc.invert(low_matches)
    )
    return pc.or_kleene(_above_maximum(test.prefix, high), above_prefix)


# Aggregates from statistics alone: exact or not at all.


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
    return None if rows.null_count else sum_exactly(rows)


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
        values = columns.partition(column).filter(mask).filter(pc.greater(rows, make_int64(0)))
        if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            return None  # Arrow leaves out NaN, which is the greatest number
        return aggregate(values).as_py()
    return _extreme_of_bounds(columns, mask, column, upper=upper)


def _extreme_of_bounds(columns: FileStats, mask: pa.Array, column: str, *, upper: bool) -> Any:
    """The extreme of a data column, if the bound that decides it is exact.

    A bound is exact if making it safe did not widen it. String bounds may be truncated and are
    never exact. The maximum of floats is exact if no file has a NaN.
    """
    kind = columns.type_of(column)
    if comparison_type(kind) is None or pa.types.is_string(kind):
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
    if upper and pa.types.is_floating(kind):
        nan_free = mask_nan_free(columns, column).filter(with_values)
        if nan_free.true_count < len(nan_free):
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
