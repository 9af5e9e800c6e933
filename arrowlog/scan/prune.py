"""Which files surely have no row of a test. Pure: columns in, one mask out.

A mask is TRUE where no row of the file can be in the test; FALSE and NULL keep the file, and so
does no mask at all. Masks go together by Kleene logic: in `Every` one TRUE is enough, in
`Some` all must be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl, polars_is_stranded
from arrowlog.log.arrays import FALSE, TRUE, array_of, flags, null, number, same, scalar
from arrowlog.scan.engine import evaluate
from arrowlog.scan.normal import (
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
from arrowlog.scan.tree import columns_of
from arrowlog.state.safe import all_null, comparable, has_nan, high_of, low_of, plain

if TYPE_CHECKING:
    from arrowlog.scan.normal import Test
    from arrowlog.state.files import Columns

_KERNELS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


_LAST, _NOTHING = array_of(["\ue000", ""], pa.string())  # no literal has such a letter


def columns_needed(test: Test) -> set[str]:
    """The columns whose statistics a test asks for."""
    if isinstance(test, (Every, Some)):
        return set().union(*(columns_needed(part) for part in test.parts))
    if isinstance(test, Exactly):
        return set(columns_of(test.node))
    return set() if isinstance(test, (Unknown, Constant)) else {test.name}


def dropped(test: Test, columns: Columns, sane: frozenset[str] = frozenset()) -> pa.Array | None:
    """The files that have no row of a test. `sane` columns are not NaN in the rows that count."""
    if isinstance(test, Constant):
        return None if test.value else flags(True, columns.num_rows)
    if isinstance(test, Unknown):
        return None
    if isinstance(test, Every):
        sane |= without_nan(test, columns.schema)
        masks = [mask for part in test.parts if (mask := dropped(part, columns, sane)) is not None]
        return reduce(pc.or_kleene, masks) if masks else None
    if isinstance(test, Some):
        found: list[pa.Array] = []
        for part in test.parts:
            mask = dropped(part, columns, sane)
            if mask is None:
                return None
            found.append(mask)
        return reduce(pc.and_kleene, found)
    if isinstance(test, Exactly):
        return _exactly(test, columns)
    if test.name in columns.partition_columns:
        return _by_value(test, columns)
    return _by_bounds(test, columns, sane)


def kept(mask: pa.Array | None, count: int) -> pa.Array:
    """The files that stay: all that are not surely without a row."""
    return flags(True, count) if mask is None else pc.fill_null(pc.invert(mask), TRUE)


def _or(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return second if first is None else first
    return pc.or_kleene(first, second)


def _literal(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A literal in the type that bounds of a column are compared in."""
    return scalar(value, comparable(kind))


# Partition columns: the value is known, so the answer is.


def _by_value(test: Compare | OneOf | Begins | Null, columns: Columns) -> pa.Array | None:
    odd = columns.unreadable(test.name)
    mask = _outside(test, columns)
    return pc.and_not(mask, odd) if odd.true_count else mask


def _outside(test: Compare | OneOf | Begins | Null, columns: Columns) -> pa.Array:
    """Where the partition value is surely not in the test; an unreadable one looks like NULL."""
    values = _partition(columns, test.name)
    if isinstance(values, pa.DictionaryArray):
        inside = _inside(test, values.dictionary, columns.schema.field(test.name).type)
        inside = inside.take(values.indices)
        if isinstance(test, Null):  # a NULL has no place in the dictionary
            inside = pc.is_valid(values.indices) if test.negated else pc.is_null(values.indices)
    else:
        inside = _inside(test, values, columns.schema.field(test.name).type)
    return pc.fill_null(pc.invert(inside), TRUE)


def _partition(columns: Columns, name: str) -> pa.Array:
    """Partition values ready to compare: texts as a dictionary, for there are few of them."""
    if ("partition", name) not in columns.derived:
        kind = columns.schema.field(name).type if name in columns.schema.names else pa.string()
        values = columns.partition(name)
        values = values if comparable(kind) is None else plain(values, kind)
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        columns.derived["partition", name] = values
    return columns.derived["partition", name]


def _inside(test: Compare | OneOf | Begins | Null, values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(test, Null):
        return pc.is_valid(values) if test.negated else pc.is_null(values)
    if isinstance(test, OneOf):
        found = pc.is_in(values, value_set=_set(test, kind))
        return pc.and_(pc.is_valid(values), pc.invert(found)) if test.negated else found
    if isinstance(test, Begins):
        found = pc.starts_with(values, test.prefix)
        return pc.invert(found) if test.negated else found
    return _KERNELS[test.op](values, _literal(test.down, kind))


def _set(test: OneOf, kind: pa.DataType) -> pa.Array:
    wanted = list(test.values)
    if has_nan(kind) and 0.0 in wanted:
        wanted += [0.0, -0.0]  # equal, and yet two values to a hash
    return array_of(wanted, comparable(kind))


def _exactly(test: Exactly, columns: Columns) -> pa.Array | None:
    """Work a condition out for each combination of partition values there is."""
    names = sorted(columns_of(test.node))
    codes, combined = _combinations(columns, names)
    try:
        answer = pc.cast(evaluate(test.node, combined), pa.bool_()).combine_chunks()
    except (InvalidRequest, pa.ArrowException):
        return None  # an error for some value is no reason to drop it
    inside = answer if test.want else pc.invert(answer)
    outside = pc.invert(pc.fill_null(inside, TRUE if test.null else FALSE)).take(codes)
    for name in names:
        odd = columns.unreadable(name)
        outside = pc.and_not(outside, odd) if odd.true_count else outside
    return outside


def _combinations(columns: Columns, names: list[str]) -> tuple[pa.Array, pa.Table]:
    """The distinct combinations of partition values, and which of them each file has."""
    key = ("combinations", *names)
    if key not in columns.derived:
        table = pa.table({name: columns.partition(name) for name in names})
        codes = same(0, pa.int64(), table.num_rows)
        for name in names:
            each = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
            wide = pc.multiply(codes, number(len(each.dictionary) + 1))
            both = pc.add(wide, pc.cast(each.indices, pa.int64())).dictionary_encode()
            codes = pc.cast(both.indices, pa.int64())
        rows = pc.indices_nonzero(flags(True, table.num_rows))
        numbered = pa.table({"code": codes, "row": rows})
        first = numbered.group_by("code").aggregate([("row", "min")]).sort_by("code")
        columns.derived[key] = (codes, table.take(first["row_min"]))
    found: tuple[pa.Array, pa.Table] = columns.derived[key]
    return found


# Data columns: bounds say where rows are not.


def _by_bounds(
    test: Compare | OneOf | Begins | Null, columns: Columns, sane: frozenset[str]
) -> pa.Array | None:
    name = test.name
    if isinstance(test, Null):
        if test.negated:
            return all_null(columns, name)
        nulls = columns.null_count(name)
        return None if nulls.null_count == len(nulls) else pc.equal(nulls, number(0))
    empty = all_null(columns, name)
    kind = columns.schema.field(name).type
    if isinstance(test, Begins):
        mask: pa.Array | None = _begins(test, columns)
    elif isinstance(test, OneOf):
        none_of = _none_of if test.negated else _one_of
        mask = none_of(test, columns, kind, sane=not has_nan(kind) or name in sane)
    elif pa.types.is_string(kind):
        mask = _text(test, columns)
    else:
        mask = _number(test, columns, kind, sane=not has_nan(kind) or name in sane)
    return _or(mask, empty)


def _number(test: Compare, columns: Columns, kind: pa.DataType, *, sane: bool) -> pa.Array | None:
    """Values are from low to high; without `sane` some may be NaN, above every high."""
    low, high = low_of(columns, test.name), high_of(columns, test.name)
    down = None if test.down is None else _literal(test.down, kind)
    up = None if test.up is None else _literal(test.up, kind)
    if test.op == ">":
        return pc.less_equal(high, down) if sane and down is not None else None
    if test.op == ">=":
        return pc.less(high, down) if sane and down is not None else None
    if test.op == "<":
        return None if up is None else pc.greater_equal(low, up)
    if test.op == "<=":
        return None if up is None else pc.greater(low, up)
    if test.op == "=":
        below = None if down is None else pc.less(high, down)
        return _or(below, None if up is None else pc.greater(low, up))
    if not (sane and test.exact):
        return None
    return pc.and_kleene(pc.equal(low, down), pc.equal(high, down))


def _one_of(test: OneOf, columns: Columns, kind: pa.DataType, *, sane: bool) -> pa.Array | None:
    """No value lies in the range: as many values are below low as are up to high."""
    del sane  # NaN is none of the values
    low, high = low_of(columns, test.name), high_of(columns, test.name)
    values = array_of(test.values, comparable(kind))
    if pa.types.is_string(kind):
        ends = pc.or_kleene(_above(test.values[0], high), pc.greater(low, values[-1]))
        if len(high) > high.null_count:  # what a high was cut from lies below this
            high = pc.binary_join_element_wise(high, _LAST, _NOTHING)
    else:
        ends = pc.or_kleene(pc.less(high, values[0]), pc.greater(low, values[-1]))
    before, until = _places(values, low, "left"), _places(values, high, "right")
    return pc.or_kleene(ends, pc.greater_equal(before, until))


def _places(values: pa.Array, among: pa.Array, side: Literal["left", "right"]) -> pa.Array:
    """Where bounds stand among sorted values; null for an unknown one."""
    if not pa.types.is_decimal(values.type):
        return pc.search_sorted(values, among, side=side)
    if polars_is_stranded():
        return _search_each(values.to_pylist(), among.to_pylist(), side)
    known = pl.Series(pl.from_arrow(values))  # Arrow has no search among decimals
    found = known.search_sorted(pl.Series(pl.from_arrow(among)), side=side).to_arrow()
    return pc.if_else(pc.is_valid(among), found, null(found.type))


def _search_each(values: list[Any], among: list[Any], side: str) -> pa.Array:
    search = bisect_left if side == "left" else bisect_right
    places = [None if value is None else search(values, value) for value in among]
    return array_of(places, pa.int64())


def _none_of(test: OneOf, columns: Columns, kind: pa.DataType, *, sane: bool) -> pa.Array | None:
    """All rows of the file have one value, and it is one of these. A text may have been cut."""
    if not sane or pa.types.is_string(kind):
        return None
    low, high = low_of(columns, test.name), high_of(columns, test.name)
    return pc.and_kleene(pc.equal(low, high), pc.is_in(low, value_set=_set(test, kind)))


def _text(test: Compare, columns: Columns) -> pa.Array | None:
    text = test.down
    value = scalar(text, pa.string())
    if test.op in (">", ">="):
        return _above(text, high_of(columns, test.name))
    low = low_of(columns, test.name)
    if test.op == "<":
        return pc.greater_equal(low, value)
    if test.op == "<=":
        return pc.greater(low, value)
    if test.op == "=":
        above = _above(text, high_of(columns, test.name))
        return pc.or_kleene(above, pc.greater(low, value))
    return None  # a high may be cut, so nobody knows that all rows are the same


def _above(value: str, high: pa.Array) -> pa.Array:
    """Where a text is above every row: above high, and not what high may have been cut from."""
    below = pc.less(high, scalar(value, pa.string()))
    return pc.and_kleene(below, pc.invert(begins_with(value, high)))


def begins_with(value: str, texts: pa.Array) -> pa.Array:
    """Which of the texts a value begins with; FALSE for null.

    Only prefixes as long as one of the texts are made: all of them take memory that grows with the
    square of the value's length.
    """
    lengths = pc.unique(pc.utf8_length(texts)).to_pylist()
    prefixes = [value[:length] for length in lengths if length is not None and length <= len(value)]
    return pc.is_in(texts, value_set=array_of(prefixes, pa.string()))


def _begins(test: Begins, columns: Columns) -> pa.Array | None:
    low, high = low_of(columns, test.name), high_of(columns, test.name)
    inside = pc.starts_with(low, test.prefix)
    if test.negated:
        return pc.and_kleene(inside, pc.starts_with(high, test.prefix))
    behind = pc.and_kleene(pc.greater(low, scalar(test.prefix, pa.string())), pc.invert(inside))
    return pc.or_kleene(_above(test.prefix, high), behind)
