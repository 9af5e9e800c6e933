"""What the log alone can say of the matching rows: exactly, or not at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.log.arrays import number
from arrowlog.scan.normal import Normal
from arrowlog.scan.prune import columns_needed, dropped, kept
from arrowlog.state.safe import all_null, comparable, high_of, low_of, plain

if TYPE_CHECKING:
    from arrowlog.scan.predicate import Predicate
    from arrowlog.state.files import Columns
    from arrowlog.state.snapshot import Snapshot


def count(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> int | None:
    """How many rows match: known if in every file either all rows do or none."""
    if not mask.true_count:
        return 0
    if not _all_match(snapshot, predicate, mask):
        return None
    rows = snapshot.columns.num_records().filter(mask)
    return None if rows.null_count else int(pc.sum(rows).as_py())


def extreme(
    snapshot: Snapshot, predicate: Predicate, mask: pa.Array, column: str, *, upper: bool
) -> Any:
    """The least or greatest value of a column in the matching rows, where bounds are exact."""
    schema = snapshot.columns.schema
    if schema.get_field_index(column) < 0:
        known = ", ".join(schema.names[:12])
        raise InvalidRequest(f"There is no column {column!r}.", next=f"The columns are {known}.")
    if not mask.true_count or not _all_match(snapshot, predicate, mask):
        return None
    columns = snapshot.columns
    columns.prepare([column])
    pick = pc.max if upper else pc.min
    if column in snapshot.partition_columns:
        rows = columns.num_records().filter(mask)
        odd = columns.unreadable(column).filter(mask)
        if rows.null_count or odd.true_count:
            return None
        return pick(
            columns.partition(column).filter(mask).filter(pc.greater(rows, number(0)))
        ).as_py()
    return _from_bounds(columns, mask, column, upper=upper)


def _from_bounds(columns: Columns, mask: pa.Array, column: str, *, upper: bool) -> Any:
    """A bound counts if nothing had to be widened to make it safe.

    Texts may be cut and NaN may be above a maximum, so those are never exact.
    """
    kind = columns.schema.field(column).type
    if comparable(kind) is None or pa.types.is_string(kind):
        return None
    if upper and pa.types.is_floating(kind):
        return None
    pick = pc.max if upper else pc.min
    given = columns.high(column) if upper else columns.low(column)
    safe = high_of(columns, column) if upper else low_of(columns, column)
    nothing = all_null(columns, column)
    some = mask if nothing is None else pc.and_not(mask, nothing)
    safe = safe.filter(some)
    if safe.null_count:
        return None
    answer = pick(given.filter(some))
    bare = pick(plain_numbers(given.filter(some), kind))
    if not answer.is_valid or bare != pick(safe):
        return None
    if pa.types.is_timestamp(kind) and bare.as_py() % 1000 == 0:
        return None  # it may have been cut to milliseconds
    return answer.as_py()


def plain_numbers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as they are compared, times as numbers."""
    return pc.cast(values, pa.int64()) if pa.types.is_timestamp(kind) else plain(values, kind)


def _all_match(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> bool:
    """Whether no row of the planned files fails the predicate."""
    normal = Normal(snapshot.columns.schema, snapshot.partition_columns)
    failing = normal.rows(predicate.tree, want=False, null=True)
    snapshot.columns.prepare(columns_needed(failing))
    may_fail = kept(dropped(failing, snapshot.columns), snapshot.num_files)
    return not pc.and_(mask, may_fail).true_count
