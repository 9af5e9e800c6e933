"""Read the rows of one data file that Arrow's dataset cannot read by itself.

That is a file with a deletion vector, whose rows are known by their position in the file, or a
file of a table with column mapping, whose columns have other names than the table's, or only ids.
Deleted rows are dropped before anything else looks at the rows.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import and_
from queue import Full, Queue
from threading import Event
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

VECTOR_PREFIX = "deletionVector."
# Tables of a file that wait for their turn while earlier files are read; bounds the memory.
_TABLES_AHEAD = 2
# How soon a thread that waits for space notices that nothing more is wanted.
_STOP_CHECK_SECONDS = 0.1


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
        filters: Sequence[pc.Expression] = (),
    ) -> Iterator[pa.Table]:
        """Yield the rows of a file that are not deleted, with some columns of the table.

        `partition` has the partition values of the file, `deleted` the ascending numbers of the
        deleted rows. Row groups in which no row can match `filters` are not read. Raises
        ArrowInvalid if a column cannot be read as the table's, InvalidDeletionVector if a deleted
        row is not in the file.
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
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            if deleted is not None and len(deleted) and deleted[-1] >= sum(sizes):
                raise InvalidDeletionVector(
                    f"it deletes row {deleted[-1]}, but the file has {sum(sizes)} rows"
                )
            chosen = self._matching_row_groups(file, filters)
            for group in chosen:
                position = sum(sizes[:group])
                for batch in file.iter_batches(
                    batch_rows, row_groups=[group], columns=columns or None, use_threads=False
                ):
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

    def _matching_row_groups(self, file: Any, filters: Sequence[pc.Expression]) -> list[int]:
        """Return the row groups that may have a row for which all filters are true.

        Arrow decides it, from the bounds of each row group as a guarantee.
        """
        groups = list(range(file.num_row_groups))
        if not filters or not groups:
            return groups
        import pyarrow.dataset as ds
        import pyarrow.fs

        stored = file.schema_arrow
        leaves = {file.schema.column(i).path: i for i in range(len(file.schema))}
        bounded = [
            (item.name, leaves[stored.field(index).name])
            for item in self.schema
            if item.name not in self.partition_columns
            and _has_exact_bounds(item.type)
            and (index := self._find(stored, item)) is not None
            and stored.field(index).type == item.type
            and stored.field(index).name in leaves
            and "." not in stored.field(index).name  # the path of a struct's member has dots
        ]
        format_, files = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
        fragments = [
            format_.make_fragment(
                str(group),  # a name that is never opened
                files,
                partition_expression=_guarantee(file.metadata.row_group(group), bounded),
            )
            for group in groups
        ]
        dataset = ds.FileSystemDataset(fragments, self.schema, format_, filesystem=files)
        every = reduce(and_, filters)
        return [int(fragment.path) for fragment in dataset.get_fragments(every)]

    def _find(self, stored: pa.Schema, item: pa.Field) -> int | None:
        return _find_field([stored.field(i) for i in range(len(stored))], item, self.mode)


def _has_exact_bounds(kind: pa.DataType) -> bool:
    """Whether the bounds in a footer are values of the column, in the order of its type.

    Writers have disagreed on the bounds of floats, and on those of text before they named an order.
    """
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind))


def _guarantee(group: Any, columns: Sequence[tuple[str, int]]) -> pc.Expression:
    """Return what the statistics of a row group say of all its rows."""
    known = pc.scalar(True)
    for name, index in columns:
        statistics = group.column(index).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        column = pc.field(name)
        within = (column >= statistics.min) & (column <= statistics.max)
        nullable = not statistics.has_null_count or statistics.null_count > 0
        known &= (within | column.is_null()) if nullable else within
    return known


def read_ahead(
    sources: Sequence[Callable[[], Iterator[pa.Table]]], threads: int
) -> Iterator[pa.Table]:
    """Iterate over all sources in their order, reading up to `threads` of them at the same time.

    Of each source that is ahead, at most `_TABLES_AHEAD` tables wait. An error of a source is
    raised in its turn.
    """
    if len(sources) < 2 or threads < 2:
        for source in sources:
            yield from source()
        return
    stop = Event()
    lanes: deque[Queue[Any]] = deque()
    waiting = deque(sources)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while waiting or lanes:
                while waiting and len(lanes) < threads:
                    lanes.append(Queue(_TABLES_AHEAD))
                    pool.submit(_fill, lanes[-1], waiting.popleft(), stop)
                lane = lanes.popleft()
                while (item := lane.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
        finally:
            stop.set()


def _fill(lane: Queue[Any], source: Callable[[], Iterator[pa.Table]], stop: Event) -> None:
    """Put the tables of a source into a queue, then None, or the error that ended it."""
    end: BaseException | None = None
    try:
        for table in source():
            if not _put(lane, table, stop):
                return
    except BaseException as error:  # noqa: BLE001 -- raised by the consumer
        end = error
    _put(lane, end, stop)


def _put(lane: Queue[Any], item: Any, stop: Event) -> bool:
    """Put an item; False if the consumer has stopped."""
    while not stop.is_set():
        try:
            lane.put(item, timeout=_STOP_CHECK_SECONDS)
        except Full:
            continue
        return True
    return False


def _find_field(fields: Sequence[pa.Field], item: pa.Field, mode: str) -> int | None:
    """Return the position of a column of the table among the fields of a file; None if absent."""
    number = field_id(item) if mode == "id" else None
    if number is not None:  # the members of a variant have names only
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
        raise unusable_vector(row["key"], error, version) from None


def unusable_vector(key: str, error: Exception, version: int) -> DataFileError:
    """Return the error for a file whose deleted rows are unknown."""
    what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be used: {error}"
    return DataFileError(
        f"the deletion vector of {key} {what}. Without it, deleted rows would be shown.",
        next="Restore the file of the deletion vector, or read an earlier version.",
        file=key,
        version=version,
    )
