"""Checkpoints of Delta tables: Parquet files whose rows are actions, read by column on demand.

A row holds one action; each kind of action is a struct column that is null in the rows of the
others. Opening a checkpoint reads the footers and the rows that are not adds or removes. Paths,
partition values and statistics are read when a question needs them.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, make_int64, search_sorted
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import OnFirstUse
from arrowlog.storage import LocalStore, RangeReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow.parquet as pq

    from arrowlog.storage import Store

# Kinds of actions that are part of a table's state besides its files, with a field that each has.
_STATE_ACTIONS = {
    "protocol": "protocol.minReaderVersion",
    "metaData": "metaData.schemaString",
    "txn": "txn.appId",
    "sidecar": "sidecar.path",
    "checkpointMetadata": "checkpointMetadata.version",
}
# What pyarrow raises for a damaged Parquet file.
_BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError)
AddPath = tuple[str, ...]
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
# Adds per batch: about 20 MB of statistics as text. Each batch costs a query of DuckDB.
_BATCH_ROWS = 1 << 16
# Bytes that are read ahead of a column chunk in a local file.
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class CheckpointPart:
    """One Parquet file of a checkpoint: the checkpoint itself, a part of it, or a sidecar."""

    store: Store
    key: str
    size: int
    metadata: pq.FileMetaData = field(repr=False)
    schema: pa.Schema = field(repr=False)

    @classmethod
    def open(cls, store: Store, key: str) -> CheckpointPart:
        """Read the footer. Raises `LogCorrupt` or `FileNotFoundError`."""
        import pyarrow.parquet as pq

        stat = store.stat(key)
        if stat is None:
            raise FileNotFoundError(key)
        try:
            opened = pq.ParquetFile(_open_file(store, key, stat.size))
            part = cls(store, key, stat.size, opened.metadata, opened.schema_arrow)
            part.add_counts  # noqa: B018 -- decodes the names in the footer, which may be damaged
        except FileNotFoundError:
            raise
        except _BROKEN as error:
            raise _damaged(key, error) from None
        return part

    @OnFirstUse
    def add_counts(self) -> list[int | None]:
        """The number of adds in each row group; None where the footer does not tell."""
        return [self.count_of(group, "add.path") for group in range(self.metadata.num_row_groups)]

    @property
    def has_adds(self) -> bool:
        """Whether the part may have adds."""
        return any(count != 0 for count in self.add_counts)

    def has_field(self, path: AddPath) -> bool:
        """Whether the adds have a field, by the names that lead to it."""
        return _type_at(self.schema, path) is not None

    @OnFirstUse
    def _leaves(self) -> dict[str, int]:
        if not self.metadata.num_row_groups:
            return {}
        group = self.metadata.row_group(0)
        return {group.column(i).path_in_schema: i for i in range(group.num_columns)}

    def count_of(self, group: int, leaf: str) -> int | None:
        """Return how many rows of a row group have a value in a leaf column."""
        index = self._leaves.get(leaf)
        if index is None:
            return 0
        chunk = self.metadata.row_group(group).column(index)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        return int(chunk.num_values - statistics.null_count)

    def groups_with(self, action: str) -> list[int]:
        """Return the row groups that may have rows of an action."""
        leaves = [name for name in self._leaves if name.startswith(f"{action}.")]
        groups = range(self.metadata.num_row_groups)
        return [g for g in groups if any(self.count_of(g, leaf) != 0 for leaf in leaves)]

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of a row group. Raises `LogCorrupt` or `FileNotFoundError`.

        Some writers put all adds into one row group. Batches reuse the memory of earlier ones;
        fresh memory for all of them costs more than decoding them.
        """
        import pyarrow.parquet as pq

        local = isinstance(self.store, LocalStore)
        try:
            source = _open_file(self.store, self.key, self.size)
            # A handle per row group: handles must not be shared by threads.
            opened = pq.ParquetFile(
                source,
                metadata=self.metadata,
                pre_buffer=not local,  # one request per column chunk
                buffer_size=_BUFFER_BYTES if local else 0,
                page_checksum_verification=True,  # of pages that have one, as those of Spark do
            )
            yield from opened.iter_batches(
                _BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
            )
        except FileNotFoundError:
            raise
        except _BROKEN as error:
            raise _damaged(self.key, error) from None


def _open_file(store: Store, key: str, size: int) -> Any:
    if isinstance(store, LocalStore):
        return pa.OSFile(os.path.join(store.root, key))
    return pa.PythonFile(RangeReader(store, key, size), mode="r")


def _damaged(key: str, error: BaseException) -> LogCorrupt:
    return LogCorrupt(
        f"the checkpoint cannot be read: {str(error).partition(chr(10))[0][:200]}.",
        next="Delete it if the commits before it are there; the table can be read without it.",
        file=key,
    )


class DeltaCheckpoint:
    """The adds of a checkpoint, by column.

    Adds are numbered in the order of the files and their row groups. Row groups are read in
    batches, each of which is decoded and dropped: what is kept is what the caller keeps.
    """

    def __init__(self, version: int, parts: Sequence[CheckpointPart]) -> None:
        """Read nothing yet. `parts` are all files that may hold adds, in their order."""
        self.version = version
        self._chunks = [
            (part, group)
            for part in parts
            for group, count in enumerate(part.add_counts)
            if count != 0
        ]

    @OnFirstUse
    def starts(self) -> list[int]:
        """The number of the first add of each row group, and the number of adds.

        Reads the paths of row groups whose footer does not tell how many adds they have.
        """
        starts = [0]
        for part, group in self._chunks:
            count = part.add_counts[group]
            if count is None:
                count = sum(batch.num_rows for batch in _read_adds(part, group, [], {}))
            starts.append(starts[-1] + count)
        return starts

    @property
    def num_adds(self) -> int:
        """The number of adds."""
        return self.starts[-1]

    def has(self, path: AddPath) -> bool:
        """Whether any part has a field of the adds, by the names that lead to it."""
        return self.type_of(path) is not None

    def type_of(self, path: AddPath) -> pa.DataType | None:
        """Return the type of a field of the adds in the first part that has it."""
        if path not in self._types:
            kinds = (_type_at(part.schema, path) for part, _ in self._chunks)
            self._types[path] = next((kind for kind in kinds if kind is not None), None)
        return self._types[path]

    @OnFirstUse
    def _types(self) -> dict[AddPath, pa.DataType | None]:
        return {}

    def map(
        self,
        paths: Sequence[AddPath],
        rows: pa.Array | None,
        convert: Callable[[dict[AddPath, pa.Array | None]], _Result],
    ) -> list[_Result]:
        """Read fields of the adds and convert them, some ten thousand adds at a time.

        `rows` are ascending numbers of the adds to read; None for all. `convert` gets one value per
        add, and None for a field that no part has; it is called in several threads. Raises
        `LogCorrupt` if the checkpoint is damaged.
        """
        types = {path: self.type_of(path) for path in paths}
        stored = [path for path, kind in types.items() if kind is not None]

        nothing: dict[AddPath, pa.Array | None] = dict.fromkeys(paths)

        def pieces(index: int, chosen: pa.Array | None) -> Iterator[dict[AddPath, pa.Array | None]]:
            """Yield the fields of the chosen adds of a row group, in their order."""
            part, group = self._chunks[index]
            count = 0
            for values in _read_adds(part, group, stored, types):
                first, count = count, count + values.num_rows
                if chosen is not None:
                    if first > chosen[-1].as_py():
                        return  # the rest of the row group is not needed
                    values = values.take(_within(chosen, first, count))  # noqa: PLW2901
                    if not values.num_rows:
                        continue
                yield nothing | dict(zip(stored, values.columns, strict=False))
            if count != self.starts[index + 1] - self.starts[index]:
                what = f"a row group of {part.key} has other adds than its footer says."
                raise LogCorrupt(what, file=part.key, version=self.version)

        return _convert_all([partial(pieces, *chunk) for chunk in self._chunks_of(rows)], convert)

    def _chunks_of(self, rows: pa.Array | None) -> list[tuple[int, pa.Array | None]]:
        """Return the row groups that have chosen rows, and the numbers of these within them."""
        if rows is None:
            return [(index, None) for index in range(len(self._chunks))]
        bounds = make_array(self.starts, pa.int64())
        cuts = search_sorted(rows, bounds).to_pylist() if len(rows) else [0] * len(bounds)
        return [
            (index, pc.subtract(rows.slice(first, last - first), bounds[index]))
            for index, (first, last) in enumerate(pairwise(cuts))
            if last > first
        ]

    def read(
        self, paths: Iterable[AddPath], rows: pa.Array | None = None
    ) -> dict[AddPath, pa.ChunkedArray | None]:
        """Return fields of the adds, one value per add; None for a field that no part has.

        `rows` are ascending numbers of the adds to read; None for all. Raises `LogCorrupt` if the
        checkpoint is damaged.
        """
        wanted = [path for path in dict.fromkeys(paths) if self.has(path)]
        found: dict[AddPath, pa.ChunkedArray | None] = dict.fromkeys(paths)
        if wanted:
            chunks = self.map(wanted, rows, lambda columns: columns)
            for path in wanted:
                found[path] = pa.chunked_array([c[path] for c in chunks], self.type_of(path))
        return found

    def verify(self) -> None:
        """Read all fields of all adds. Raises `LogCorrupt` if the checkpoint is damaged."""
        names = {item.name for part, _ in self._chunks for item in part.schema.field("add").type}
        missing = self.map(
            [(name,) for name in sorted(names)],
            None,
            lambda columns: column.null_count if (column := columns["path",]) is not None else 0,
        )
        if any(missing):
            raise LogCorrupt("the checkpoint has an add without a path.", version=self.version)


def _convert_all(
    sources: Sequence[Callable[[], Iterator[_Piece]]], convert: Callable[[_Piece], _Result]
) -> list[_Result]:
    """Convert all pieces of all sources in threads, and return the results in their order.

    Enough sources keep a thread each busy. Of fewer, one thread reads and the others convert.
    """
    threads = os.cpu_count() or 1
    if len(sources) >= threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            runs = pool.map(lambda source: [convert(piece) for piece in source()], sources)
            return [result for run in runs for result in run]
    results: list[_Result] = []
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        for source in sources:
            for piece in source():
                waiting.append(pool.submit(convert, piece))
                if len(waiting) > threads:  # bounds the memory of pieces that wait
                    results.append(waiting.popleft().result())
        return results + [future.result() for future in waiting]


def _within(rows: pa.Array, first: int, end: int) -> pa.Array:
    """Return which of ascending numbers are in a range, counted from its begin."""
    cuts = search_sorted(rows, make_array([first, end], pa.int64())).to_pylist()
    return pc.subtract(rows.slice(cuts[0], cuts[1] - cuts[0]), make_int64(first))


def _read_adds(
    part: CheckpointPart,
    group: int,
    paths: Sequence[AddPath],
    types: Mapping[AddPath, pa.DataType | None],
) -> Iterator[pa.RecordBatch]:
    """Yield fields of the adds in one row group, in the rows that hold an add."""
    present = [path for path in paths if _type_at(part.schema, path) is not None]
    # Any field tells which rows are adds.
    names = {".".join(("add", *path)) for path in present or [("path",)]}
    for batch in part.batches(group, sorted(names)):
        adds = batch.column("add")
        is_add = pc.is_valid(adds)
        some_are_not = is_add.true_count < len(adds)
        columns = []
        for path in paths:
            kind = types[path]
            if path not in present:
                columns.append(pa.nulls(is_add.true_count, kind))
                continue
            values = pc.struct_field(adds, _indices(adds.type, path))
            values = values.filter(is_add) if some_are_not else values
            columns.append(values if values.type == kind else _cast_part(values, kind, part.key))
        if not columns:
            columns = [pa.nulls(is_add.true_count, pa.null())]
        yield pa.RecordBatch.from_arrays(columns, [str(i) for i in range(len(columns))])


def _cast_part(values: pa.Array, kind: pa.DataType | None, key: str) -> pa.Array:
    """Cast a field of one part to the type that it has in the other parts."""
    try:
        return pc.cast(values, kind)
    except pa.ArrowException as error:
        raise _damaged(key, error) from None


def _type_at(schema: pa.Schema, path: AddPath) -> pa.DataType | None:
    """Return the type of a field of the adds; None if the schema lacks it."""
    index = schema.get_field_index("add")
    kind = schema.field(index).type if index >= 0 else None
    for name in path:
        if kind is None or not pa.types.is_struct(kind):
            return None
        index = kind.get_field_index(name)
        kind = kind.field(index).type if index >= 0 else None
    return kind


def _indices(kind: pa.DataType, path: AddPath) -> list[int]:
    indices = []
    for name in path:
        index = kind.get_field_index(name)
        indices.append(index)
        kind = kind.field(index).type
    return indices


def read_state_actions(part: CheckpointPart) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a part that are neither adds nor removes, as Python objects, by action."""
    return {action: _read_action(part, action) for action in _STATE_ACTIONS}


def _read_action(part: CheckpointPart, action: str) -> list[dict[str, Any]]:
    """Return the rows of an action. Row groups are read until they have no more of them."""
    rows: list[dict[str, Any]] = []
    if part.schema.get_field_index(action) < 0:
        return rows
    for group in part.groups_with(action):
        expected = part.count_of(group, _STATE_ACTIONS[action]) or -1
        found = 0
        for batch in part.batches(group, [action]):
            column = batch.column(action)
            if column.null_count == len(column):
                continue
            valid = column.filter(pc.is_valid(column))
            try:
                rows += valid.to_pylist(maps_as_pydicts="lossy")
            except _BROKEN as error:  # text that is not UTF-8
                raise _damaged(part.key, error) from None
            found += len(valid)
            if found == expected:
                break
    return rows


def map_values(maps: pa.ChunkedArray, key: str) -> pa.ChunkedArray:
    """Return the value of one key in each map of text; null where there is none.

    In most tables all maps have the same keys in the same order, so the values of a key are every
    n-th item.
    """
    return pa.chunked_array([_map_values(chunk, key) for chunk in maps.chunks], pa.string())


def _map_values(maps: pa.MapArray, key: str) -> pa.Array:
    count = len(maps)
    if not count or maps.null_count == count:
        return pa.nulls(count, pa.string())
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[count].as_py()
    keys = maps.keys.slice(first, last - first)
    items = maps.items.slice(first, last - first)
    sizes = pc.min_max(pc.subtract(offsets.slice(1), offsets.slice(0, count)))
    width = sizes["min"].as_py()
    if not maps.null_count and width and width == sizes["max"].as_py():
        pattern = keys.slice(0, width)
        if _repeats(keys, pattern):
            position = pattern.to_pylist().index(key) if key in pattern.to_pylist() else -1
            if position < 0:
                return pa.nulls(count, pa.string())
            values = items if width == 1 else items.take(_every(position, width, count))
            return pc.cast(values, pa.string())
    return pc.cast(pc.map_lookup(maps, key, "last"), pa.string())


def _repeats(keys: pa.Array, pattern: pa.Array) -> bool:
    """Whether keys are a repetition of a pattern."""
    if len(pattern) == 1:
        return bool(pc.all(pc.equal(keys, pattern[0])).as_py())
    return bool(keys.slice(len(pattern)).equals(keys.slice(0, len(keys) - len(pattern))))


def _every(first: int, step: int, count: int) -> pa.Array:
    """Return `first`, `first + step` and so on, `count` numbers."""
    return make_array(range(first, first + step * count, step), pa.int64())
