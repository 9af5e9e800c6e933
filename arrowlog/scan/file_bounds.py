"""The bounds of files as a table: the columns of `file_bounds`, over which `ScanPlan.sql` runs.

One row per live file. For every column of the table, and every field inside a struct column under
the name that `formats.leaf_name` gives it (`min.a.b`):

- `partition.<column>`: the partition value; NULL also where `unreadable.<column>` is true, which
  means that the log has a value that is not of the column's type.
- `min.<column>`, `max.<column>`: no value in the file is below or above. They may be wider than
  what the log has: a time that may have been truncated to milliseconds is widened by up to 999
  microseconds, and contradictory bounds are unknown. A maximum does not cover NaN. A text may be
  truncated: values that start with a text maximum may lie above it.
- `null_count.<column>`, `nan_count.<column>` (of floating-point columns): exact.

`num_records` counts the rows of a file, deleted ones included. NULL means unknown in every column
but `partition.<column>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import DECIMAL_DIGITS_MAX
from arrowlog.formats import struct_leaves
from arrowlog.predicate import may_have_nan
from arrowlog.snapshot import comparison_type, high_bounds, low_bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from arrowlog.snapshot import FileStats, Snapshot

_FILE_COLUMNS = (("path", pa.string()), ("size_bytes", pa.int64()), ("num_records", pa.int64()))


def bounds_schema(schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    """The columns of `file_bounds` for a table; `schema` declares the partition columns too."""
    fields = [*_FILE_COLUMNS]
    for name in partition_columns:
        fields.append((f"partition.{name}", _plain_type(schema.field(name).type)))
        fields.append((f"unreadable.{name}", pa.bool_()))
    data = [(field.name, field.type) for field in schema if field.name not in partition_columns]
    data += [(leaf.name, leaf.type) for leaf in struct_leaves(schema).values()]
    comparable = [(name, kind) for name, kind in data if comparison_type(kind) is not None]
    for side in ("min", "max"):
        fields += [(f"{side}.{name}", _bound_type(kind)) for name, kind in comparable]
    fields += [(f"null_count.{name}", pa.int64()) for name, _ in data]
    fields += [(f"nan_count.{name}", pa.int64()) for name, kind in data if may_have_nan(kind)]
    return pa.schema(fields)


def bounds_table(snapshot: Snapshot, names: Collection[str]) -> pa.Table:
    """Columns of `file_bounds` for the live files of a snapshot, in their order."""
    stats = snapshot.columns
    schema = bounds_schema(stats.schema, snapshot.partition_columns)
    stats.prepare({name.partition(".")[2] for name in names if "." in name})
    columns = {name: _column(snapshot, stats, name, schema.field(name).type) for name in names}
    return pa.table(columns)


def _column(
    snapshot: Snapshot, stats: FileStats, column: str, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """One column of `file_bounds`."""
    prefix, _, name = column.partition(".")
    if column in ("path", "size_bytes"):
        if not snapshot.num_files:
            return pa.nulls(0, kind)
        return snapshot.state.column("path" if column == "path" else "size").cast(kind)
    if column == "num_records":
        return stats.stored_records()
    if prefix == "partition":
        values = stats.partition(name)
        return values if values.type == kind else pc.cast(values, kind)
    if prefix == "unreadable":
        return stats.unreadable(name)
    if prefix == "null_count":
        return stats.usable_null_count(name)
    if prefix == "nan_count":
        return stats.nan_count(name)
    bounds = low_bounds(stats, name) if prefix == "min" else high_bounds(stats, name)
    return _from_comparable(bounds, kind)


def _from_comparable(bounds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bounds in the type of their column, from the type in which they are compared."""
    if pa.types.is_date32(kind):
        bounds = pc.cast(bounds, pa.int32())
    return bounds if bounds.type == kind else pc.cast(bounds, kind)


def _bound_type(kind: pa.DataType) -> pa.DataType:
    """The type of the bounds of a column: numbers as wide as those they are compared with."""
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale)
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
