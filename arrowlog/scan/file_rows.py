"""Read the rows of one data file that Arrow's dataset cannot read by itself.

That is a file with a deletion vector, whose rows are known by their position in the file, or a
file of a table with column mapping, whose columns have other names than the table's, or only ids.
Deleted rows are dropped before anything else looks at the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import DataFileError
from arrowlog.formats.delta import (
    DeletionVector,
    InvalidDeletionVector,
    field_id,
    mapping_mode,
    stored_name,
)
from arrowlog.scan.data_files import is_readable_as, type_family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

VECTOR_PREFIX = "deletionVector."


@dataclass(frozen=True, slots=True)
class FileRowReader:
    """Reads files as rows of a table. `mode` is that of column mapping."""

    schema: pa.Schema
    partition_columns: tuple[str, ...]
    mode: str

    @classmethod
    def of(cls, schema: pa.Schema, partition_columns: Sequence[str]) -> FileRowReader:
        """Return the reader for a table."""
        return cls(schema, tuple(partition_columns), mapping_mode(schema))

    def tables(
        self,
        fragment: Any,
        partition: Mapping[str, pa.Scalar],
        deleted: np.ndarray | None,
        names: Sequence[str],
        batch_rows: int,
    ) -> Iterator[pa.Table]:
        """Yield the rows of a file that are not deleted, with some columns of the table.

        `partition` has the partition values of the file, `deleted` the ascending numbers of the
        deleted rows. Raises ArrowInvalid if a column cannot be read as the table's.
        """
        import pyarrow.parquet as pq

        with fragment.open() as source:
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)
            stored = file.schema_arrow
            wanted = [self.schema.field(name) for name in names]
            found = {
                item.name: self._find(stored, item)
                for item in wanted
                if item.name not in self.partition_columns
            }
            columns = sorted({stored.field(i).name for i in found.values() if i is not None})
            position = 0
            for batch in file.iter_batches(batch_rows, columns=columns or None):
                rows = _without_deleted(batch, position, deleted)
                position += batch.num_rows
                arrays = []
                for item in wanted:
                    index = found.get(item.name)
                    if item.name in self.partition_columns:
                        arrays.append(_repeat(partition[item.name], item.type, rows.num_rows))
                    elif index is None:
                        arrays.append(pa.nulls(rows.num_rows, item.type))
                    else:
                        values = rows.column(stored.field(index).name)
                        arrays.append(_conform(values, item, self.mode, item.name))
                yield pa.Table.from_arrays(arrays, schema=pa.schema(wanted))
            if deleted is not None and len(deleted) and deleted[-1] >= position:
                raise pa.ArrowInvalid(
                    f"the deletion vector deletes row {deleted[-1]}, but the file has {position}"
                )

    def _find(self, stored: pa.Schema, item: pa.Field) -> int | None:
        return _find_field([stored.field(i) for i in range(len(stored))], item, self.mode)


def _find_field(fields: Sequence[pa.Field], item: pa.Field, mode: str) -> int | None:
    """Return the position of a column of the table among the fields of a file; None if absent."""
    if mode == "id":
        number = field_id(item)
        matches = [i for i, other in enumerate(fields) if field_id(other) == number]
    else:
        name = stored_name(item)
        matches = [i for i, other in enumerate(fields) if other.name == name]
        if not matches and mode == "none":
            folded = name.lower()
            matches = [i for i, other in enumerate(fields) if other.name.lower() == folded]
    if len(matches) > 1:
        raise pa.ArrowInvalid(f"the file has the column {item.name!r} more than once")
    return matches[0] if matches else None


def _without_deleted(
    batch: pa.RecordBatch, position: int, deleted: np.ndarray | None
) -> pa.RecordBatch:
    """Drop the deleted rows of a batch that begins at a position of the file."""
    if deleted is None or not len(deleted):
        return batch
    import numpy as np

    first, last = np.searchsorted(deleted, [position, position + batch.num_rows])
    if first == last:
        return batch
    keep = np.ones(batch.num_rows, dtype=bool)
    keep[deleted[first:last] - position] = False
    return batch.filter(_bool_array(keep))


def _bool_array(mask: np.ndarray) -> pa.Array:
    import numpy as np

    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits.tobytes())])


def _repeat(value: pa.Scalar, kind: pa.DataType, count: int) -> pa.Array:
    if not value.is_valid:
        return pa.nulls(count, kind)
    return pa.repeat(value, count).cast(kind)


def _conform(values: pa.Array, item: pa.Field, mode: str, where: str) -> pa.Array:
    """Return values of a file as a column of the table: its members, their order, its types."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _conform_type(values, item.type, mode, where)


def _conform_type(values: pa.Array, kind: pa.DataType, mode: str, where: str) -> pa.Array:
    stored = values.type
    if pa.types.is_struct(kind) and pa.types.is_struct(stored):
        return _conform_struct(values, kind, mode, where)
    if mode == "none" and stored.equals(kind):
        return values
    if pa.types.is_map(kind) and pa.types.is_map(stored):
        offsets, mask, inner = _list_layout(values)
        entries = inner.field(0), inner.field(1)
        keys = _conform_type(entries[0], kind.key_type, mode, f"{where} key")
        items = _conform_type(entries[1], kind.item_type, mode, f"{where} value")
        return _from_offsets(
            kind,
            offsets,
            mask,
            pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field]),
        )
    if type_family(kind) == type_family(stored) == "list":
        offsets, mask, inner = _list_layout(values)
        return _from_offsets(
            kind, offsets, mask, _conform_type(inner, kind.value_type, mode, f"{where}[]")
        )
    widened = pa.types.is_date(stored) and pa.types.is_timestamp(kind) and kind.tz is None
    if not widened and not is_readable_as(stored, kind):
        raise pa.ArrowInvalid(f"the column {where!r} is {stored} and cannot be read as {kind}")
    return values if stored == kind else pc.cast(values, kind)


def _conform_struct(values: pa.Array, kind: pa.DataType, mode: str, where: str) -> pa.Array:
    stored = values.type
    fields = [stored.field(i) for i in range(stored.num_fields)]
    children = []
    for index in range(kind.num_fields):
        item = kind.field(index)
        position = _find_field(fields, item, mode)
        if position is None:
            children.append(pa.nulls(len(values), item.type))
        else:
            child = values.field(position)
            children.append(_conform_type(child, item.type, mode, f"{where}.{item.name}"))
    if not children:
        return pa.nulls(len(values), kind)
    mask = pc.is_null(values) if values.null_count else None
    return pa.StructArray.from_arrays(
        children, fields=[kind.field(i) for i in range(kind.num_fields)], mask=mask
    )


def _list_layout(values: pa.Array) -> tuple[Any, pa.Array | None, pa.Array]:
    """Return offsets from 0, the mask of nulls, and the items of a list or map array.

    Null lists get no items, and items outside the array are left out.
    """
    import numpy as np

    raw = np.frombuffer(
        values.buffers()[1], np.int64 if pa.types.is_large_list(values.type) else np.int32
    )
    raw = raw[values.offset : values.offset + len(values) + 1].astype(np.int64)
    items = values.values if not pa.types.is_map(values.type) else _entries(values)
    inner = items.slice(int(raw[0]), int(raw[-1] - raw[0]))
    offsets = raw - raw[0]
    mask = pc.is_null(values) if values.null_count else None
    return offsets.astype(np.int32), mask, inner


def _entries(values: pa.Array) -> pa.Array:
    """Return the entries of a map array as structs of key and value."""
    return pa.StructArray.from_arrays(
        [values.keys, values.items], fields=[values.type.key_field, values.type.item_field]
    )


def _from_offsets(kind: pa.DataType, offsets: Any, mask: pa.Array | None, inner: pa.Array) -> Any:
    """Build a list or map array."""
    import numpy as np

    validity = None
    nulls = 0
    if mask is not None:
        valid = np.asarray(pc.invert(mask).to_numpy(zero_copy_only=False), dtype=bool)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        nulls = int((~valid).sum())
    return pa.Array.from_buffers(
        kind,
        len(offsets) - 1,
        [validity, pa.py_buffer(offsets.tobytes())],
        null_count=nulls,
        children=[inner],
    )


def read_deleted_rows(
    row: Mapping[str, Any], filesystem: Any, base: str, roots: Sequence[str], version: int
) -> np.ndarray | None:
    """Return the deleted rows of a file, ascending; None if it has no deletion vector.

    `row` has the columns `deletionVector.*` of the file, `base` is the table's path in the file
    system, and `roots` are the spellings of its URI. Raises DataFileError if the deletion
    vector is missing, damaged or not as the log describes it.
    """
    if row.get(f"{VECTOR_PREFIX}storageType") is None:
        return None
    vector = DeletionVector(
        row[f"{VECTOR_PREFIX}storageType"],
        row[f"{VECTOR_PREFIX}pathOrInlineDv"],
        row[f"{VECTOR_PREFIX}sizeInBytes"],
        row[f"{VECTOR_PREFIX}cardinality"],
        row[f"{VECTOR_PREFIX}offset"],
    )
    try:
        name = vector.file
        if name is None:
            return vector.decode_inline()
        for root in roots:
            name = name.removeprefix(f"{root}/")
        if "://" in name:
            raise InvalidDeletionVector(f"{name} cannot be read with the table")
        place = name if name.startswith("/") else f"{base}/{name}"
        start, stop = vector.file_range
        if start < 0 or stop < start:
            raise InvalidDeletionVector("its position in the file is negative")
        with filesystem.open_input_file(place) as file:
            file.seek(start)
            return vector.decode_range(file.read(stop - start))
    except (InvalidDeletionVector, OSError, pa.ArrowException) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be used: {error}"
        raise DataFileError(
            f"the deletion vector of {row['key']} {what}. Without it, deleted rows would be shown.",
            next="Restore the file of the deletion vector, or read an earlier version.",
            file=row["key"],
            version=version,
        ) from None
