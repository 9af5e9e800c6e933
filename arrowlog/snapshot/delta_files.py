"""The live files of a Delta table that starts from a checkpoint, read on demand.

The live files are the checkpoint's adds whose keys no later commit touched, followed by the live
adds of those commits (the tail). Paths are read when a key is needed, partition values and
statistics when a question needs them. If the checkpoint turns out to be damaged, the adds are
loaded without it and a warning is issued.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, make_int64, null_scalar, repeat_bool
from arrowlog.errors import LogCorrupt
from arrowlog.formats.delta import DELTA, VECTOR_COLUMNS, subtract_deleted
from arrowlog.snapshot.deferred_files import NO_ADDS, DeferredFiles
from arrowlog.snapshot.delta_checkpoint import map_values
from arrowlog.snapshot.delta_stats import (
    BOUNDS,
    COUNTS,
    PARTITION_PATH,
    STATS_PATH,
    StatsReader,
    one_array,
    partition_converter,
    to_type,
    type_of,
)
from arrowlog.snapshot.file_table import FileStats, files_table, files_table_from_checkpoint
from arrowlog.snapshot.log_replay import check_auxiliary_paths, with_keys
from arrowlog.snapshot.reconciliation import paths_leading_out
from arrowlog.snapshot.snapshot import InMemoryFiles
from arrowlog.snapshot.typed_values import has_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.snapshot.delta_checkpoint import AddPath, DeltaCheckpoint
    from arrowlog.snapshot.file_table import GroupStats
    from arrowlog.snapshot.snapshot import FileSource

    Columns = dict[AddPath, pa.Array | None]
    Values = dict[tuple[str, str], pa.ChunkedArray]

# A question that leaves at most this fraction of the files reads only what it needs of them.
_NARROW_FRACTION = 2
_NO_SCHEMA = pa.schema([])  # of columns whose type does not depend on the table
_STATS_MAPS = (*BOUNDS, "nullCount")
_STORED = ("stored", "")  # the number of rows of a file, deleted ones included
# Fields of an add that are columns of their own, with the types that the log decoder gives them.
_FIELDS: dict[str, pa.DataType] = {
    "path": pa.string(),
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
}


class DeltaCheckpointFiles(DeferredFiles):
    """A `FileSource`: live files in a checkpoint of a Delta table.

    `selection` are the numbers of the checkpoint's adds that are considered; None for all.
    """

    _key_column = "key"

    def __init__(
        self,
        rows: DeltaCheckpoint,
        version: int,
        root: str,
        again: Callable[[int], pa.Table],
        *,
        allow_external_paths: bool,
        selection: pa.Array | None = None,
        tail: pa.Table = NO_ADDS,
        touched: pa.ChunkedArray | None = None,
        warned: list[str] | None = None,
    ) -> None:
        """Read nothing yet. `warned` collects warnings, shared with all sources made from this."""
        super().__init__(version, again, tail, touched, warned)
        self.rows = rows
        self.selection = selection
        self._root = root
        self._external = allow_external_paths
        self._keyed: pa.Table | None = None  # path and key of the selected adds
        self._mask: pa.ChunkedArray | None = None  # which of them are live; None: all
        self._masked = False  # whether the mask is known
        self._leads_out = False  # whether a path is empty or leads out of the table
        # Typed columns of the selected adds, for each schema that types them.
        self._values: list[tuple[pa.Schema, Values]] = []

    def _with(self, **changes: Any) -> DeltaCheckpointFiles:
        """Return a source over the same checkpoint with other arguments."""
        arguments = {
            "version": self.version,
            "root": self.root,
            "again": self._again,
            "allow_external_paths": self._external,
            "selection": self.selection,
            "tail": self.tail,
            "touched": self.touched,
            "warned": self._warned,
        }
        return DeltaCheckpointFiles(self.rows, **{**arguments, **changes})

    def _replaced(
        self, version: int, tail: pa.Table, touched: pa.ChunkedArray | None
    ) -> DeltaCheckpointFiles:
        source = self._with(version=version, tail=tail, touched=touched)
        source._keyed, source._values = self._keyed, self._values  # noqa: SLF001 -- of this class
        source._leads_out = self._leads_out  # noqa: SLF001 -- as above
        return source

    def _in_memory(self, adds: pa.Table) -> InMemoryFiles:
        return InMemoryFiles(adds, DELTA)

    @property
    def root(self) -> str:
        """The address of the table, for messages."""
        return self._root

    @property
    def checkpoint(self) -> int:
        """The version of the checkpoint."""
        return self.rows.version

    @property
    def _num_rows(self) -> int:
        return self.read(lambda: self.num_selected) or 0

    @property
    def _partial(self) -> bool:
        return self.selection is not None

    def _shown_keys(self) -> pa.ChunkedArray | None:
        return None if self._keyed is None else self.live(self._keyed["key"])

    def _read(self, names: Iterable[str]) -> pa.Table:
        return pa.table({name: self._base_column(name) for name in {"key", *names}})

    @property
    def damaged(self) -> bool:
        """Whether the checkpoint is of no use, and all adds are in memory."""
        return self._adds is not None

    @property
    def num_files(self) -> int:
        """The number of live files. Reads the keys if later commits touched any file."""
        count = self.num_live
        return int(self.adds().num_rows) if count is None else count + int(self.tail.num_rows)

    @property
    def num_live(self) -> int | None:
        """The number of live adds of the checkpoint; None if it is damaged."""
        if self.touched is None:
            count: int | None = self.read(lambda: self.num_selected)
            return count
        keys = self.keys()
        return None if keys is None else len(keys)

    @property
    def num_selected(self) -> int:
        """The number of the checkpoint's adds that are considered, live or not."""
        return self.rows.num_adds if self.selection is None else len(self.selection)

    @property
    def max_files(self) -> int:
        """The number of the checkpoint's adds and of the adds after it."""
        if self._adds is not None:
            return int(self._adds.num_rows)
        return (self.read(lambda: self.num_selected) or 0) + int(self.tail.num_rows)

    def read(self, read: Callable[[], Any]) -> Any:
        """Read from the checkpoint; None if it is damaged, and all adds are in memory then."""
        if self._adds is not None:
            return None
        try:
            return read()
        except LogCorrupt as error:
            self._fall_back(error)
        except FileNotFoundError as error:
            self._fall_back(LogCorrupt(f"{error} is missing.", version=self.checkpoint))
        except UnicodeDecodeError as error:
            what = f"the checkpoint has text that is not UTF-8 ({error.reason})."
            self._fall_back(LogCorrupt(what, version=self.checkpoint))
        return None

    def _keys_of_rows(self) -> pa.Table:
        """Return path and key of the selected adds."""
        if self._keyed is None:
            names = {"path": ("path",)} | {
                f"deletionVector.{name}": ("deletionVector", name)
                for name in VECTOR_COLUMNS
                if self.rows.has(("deletionVector",))
            }

            def to_keys(columns: Columns) -> tuple[pa.Table, bool]:
                typed = {
                    name: to_type(columns[path], VECTOR_COLUMNS.get(path[-1], pa.string()))
                    for name, path in names.items()
                    if columns[path] is not None
                }
                _check_vectors(typed, self.checkpoint)
                table, suspect = with_keys(pa.table(typed), self.root, DELTA)
                try:
                    table["key"].validate(full=True)
                except pa.ArrowInvalid:
                    what = "the checkpoint has a path that is not UTF-8."
                    raise LogCorrupt(what, version=self.checkpoint) from None
                if not self._external:
                    check_auxiliary_paths(table, self.root, DELTA)
                return table.select(["path", "key"]), suspect

            chunks = self.rows.map(list(names.values()), self.selection, to_keys)
            empty = pa.table({"path": pa.nulls(0, pa.string()), "key": pa.nulls(0, pa.string())})
            table = pa.concat_tables([empty, *(chunk for chunk, _ in chunks)])
            if table["path"].null_count:
                raise LogCorrupt("the checkpoint has an add without a path.", version=self.version)
            suspect = any(found for _, found in chunks)
            self._leads_out = suspect and paths_leading_out(table["key"]) is not None
            self._keyed = table
        return self._keyed

    def keys(self) -> pa.ChunkedArray | None:
        """Return the keys of the checkpoint's live adds; None if the checkpoint is damaged."""
        keyed = self.read(self._keys_of_rows)
        if keyed is None:
            return None
        keys = keyed["key"]
        if self._leads_out and not self._external:
            raise LogCorrupt(
                "the checkpoint has a path that is empty or leads out of the table.",
                next=f"If files of {self.root} may lie elsewhere, open it with"
                " allow_outside_paths=True.",
                version=self.version,
            )
        if self.touched is not None and not self._masked:
            dead = pc.is_in(keys, value_set=self.touched.combine_chunks())
            self._mask = pc.invert(dead) if pc.any(dead).as_py() else None
            self._masked = True
        return self.live(keys)

    def live(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values of the live adds from a column of the selected adds."""
        return column if self._mask is None else column.filter(self._mask)

    def values_for(self, schema: pa.Schema) -> Values:
        """Return the typed columns of the selected adds that are kept for a schema."""
        for known, values in self._values:
            if known.equals(schema, check_metadata=True):
                return values
        values = {}
        self._values.append((schema, values))
        return values

    def live_values(
        self,
        schema: pa.Schema,
        names: Sequence[tuple[str, str]],
        paths: Sequence[AddPath],
        convert: Callable[[Columns], dict[tuple[str, str], pa.Array]],
    ) -> Values | None:
        """Return typed columns of the checkpoint's live adds; None if the checkpoint is damaged.

        `convert` makes the columns `names` of the fields `paths`. The columns are kept.
        """
        if self.touched is not None and self.keys() is None:
            return None
        values = self.values_for(schema)
        if any(name not in values for name in names):
            chunks = self.read(lambda: self.rows.map(paths, self.selection, convert))
            if chunks is None:
                return None
            for name in chunks[0] if chunks else ():
                values[name] = pa.chunked_array([chunk[name] for chunk in chunks])
        return {name: self.live(values[name]) for name in names if name in values}

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds."""
        base = None if self._adds is not None else self._base_column(name)
        return self.adds()[name] if base is None else self._with_tail(base, name)

    def _base_column(self, name: str) -> pa.ChunkedArray | None:
        """Return a column of the checkpoint's live adds; None if the checkpoint is damaged."""
        if name in ("key", "path"):
            return None if self.keys() is None else self.live(self._keys_of_rows()[name])
        path = tuple(name.split(".")) if name.startswith("deletionVector.") else (name,)
        kind = _FIELDS.get(name) or VECTOR_COLUMNS.get(path[-1], pa.string())

        def typed(columns: Columns) -> dict[tuple[str, str], pa.Array]:
            return {("field", name): to_type(columns[path], kind)}

        if self.rows.has(path):
            values = self.live_values(_NO_SCHEMA, [("field", name)], [path], typed)
            if values is None:
                return None
            if values:
                return values["field", name]
        count = self.num_live
        return None if count is None else pa.chunked_array([pa.nulls(count, kind)], kind)

    def _with_tail(self, base: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        if name not in self.tail.column_names:
            more: list[pa.Array] = [pa.nulls(self.tail.num_rows, base.type)]
        else:
            tail = self.tail[name]
            more = (tail if tail.type == base.type else pc.cast(tail, base.type)).chunks
        return pa.chunked_array([*base.chunks, *more], base.type)

    def _to_adds(self) -> pa.Table | None:
        """Return the checkpoint's live adds as the log decoder would; None if it is damaged."""
        names = ["key", *_FIELDS]
        if self.rows.has(("deletionVector", "storageType")):
            names += [f"deletionVector.{name}" for name in VECTOR_COLUMNS]
        columns: dict[str, Any] = {}
        for name in names:
            column = self._base_column(name)
            if column is None:
                return None
            columns[name] = column
        others = [PARTITION_PATH, ("tags",), ("stats_parsed",)]
        read = self.read(lambda: self.rows.read(others, self.selection))
        if read is None:
            return None
        found = {path: None if c is None else self.live(c) for path, c in read.items()}
        maps = found[PARTITION_PATH]
        for key in () if maps is None else _distinct_keys(maps):
            columns[f"partitionValues.{key}"] = map_values(maps, key)
        if found["tags",] is not None:
            columns["tags"] = _maps_to_json(found["tags",])
        columns |= _stats_as_text(found["stats_parsed",])
        columns["raw"] = pc.is_valid(columns["stats"])
        return pa.table(columns)

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""
        stats = self.stats(schema, partition_columns)
        base = self._stored_rows(stats)
        if base is None:
            return InMemoryFiles(self.adds(), DELTA).files(schema, partition_columns, mask)
        tail = self.tail
        if mask is not None:
            tail = tail.filter(mask.slice(base.num_rows))
            base = base.filter(mask.slice(0, base.num_rows))
        typed = files_table_from_checkpoint(base, stats.schema, partition_columns, DELTA)
        if not tail.num_rows:
            return typed
        more = files_table(tail, stats.schema, partition_columns, table_format=DELTA)
        return pa.concat_tables([typed, more], promote_options="default")

    def _stored_rows(self, stats: DeltaFileStats) -> pa.Table | None:
        """Return the checkpoint's live adds with typed columns; None if it is damaged."""
        names = [name for name in _FIELDS if name != "stats" and self.rows.has((name,))]
        names = list(dict.fromkeys(["path", *names]))
        if self.rows.has(("deletionVector", "storageType")):
            names += [f"deletionVector.{name}" for name in VECTOR_COLUMNS]
        bounded = [
            item.name
            for item in stats.schema
            if has_bounds(item.type) and item.name not in stats.partition_columns
        ]
        bounded += [leaf.name for leaf in stats.leaves.values() if has_bounds(leaf.type)]
        stats.prepare_all(bounded)
        columns: dict[str, Any] = {name: self._base_column(name) for name in names}
        for name in stats.partition_columns:
            columns[f"partition.{name}"] = stats.of_rows("partition", name)
        for name in bounded:
            columns[f"min.{name}"] = stats.of_rows("minValues", name)
            columns[f"max.{name}"] = stats.of_rows("maxValues", name)
            columns[f"null_count.{name}"] = stats.of_rows("nullCount", name)
        columns["num_records"] = stats.of_rows("stored", "")
        if self.rows.has(("tags",)):
            tags = self.read(lambda: self.rows.read([("tags",)], self.selection))
            columns["tags"] = None if tags is None else _maps_to_json(self.live(tags["tags",]))
        if any(column is None for column in columns.values()) or self._adds is not None:
            return None
        return pa.table(columns)

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> DeltaFileStats:
        """Return the typed partition values and statistics of the live files, by column."""
        return DeltaFileStats(self, schema, partition_columns)

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:  # noqa: ARG002
        """False: partition values are text, and so are most statistics."""
        return False

    def row_group_stats(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
    ) -> GroupStats | None:
        """None: nothing is known of the row groups of a checkpoint."""
        return None

    def select_row_groups(self, groups: Sequence[int]) -> FileSource:  # noqa: ARG002 -- as above
        """Return all files."""
        return self

    def narrowed(
        self,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        keep: Callable[[FileStats], pa.Array],
    ) -> FileSource:
        """Return the files that may match; `keep` tells it from statistics of single adds.

        Partition values are read first, then the bounds of the adds that they leave, then the paths
        of those that are left. So a selective question reads little of the checkpoint.
        """
        source = self
        for stats in (_PartitionStats, _BoundStats):
            if stats is _PartitionStats and not partition_columns:
                continue
            mask = source.read(lambda: keep(stats(source, schema, partition_columns)))  # noqa: B023
            if mask is None:
                return self
            if mask.true_count * _NARROW_FRACTION > len(mask):
                continue
            source = source._chosen(pc.cast(pc.indices_nonzero(mask), pa.int64()))
        return source

    def _chosen(self, rows: pa.Array) -> DeltaCheckpointFiles:
        """Return a source of some of the selected adds, with what is known of them already."""
        source = self._with(selection=rows if self.selection is None else self.selection.take(rows))
        source._values = [  # noqa: SLF001 -- of this class
            (schema, {name: column.take(rows) for name, column in values.items()})
            for schema, values in self._values
        ]
        return source


class DeltaFileStats(FileStats):
    """Typed columns of a checkpoint's live adds and its tail.

    Statistics are taken from `stats_parsed` where the checkpoint has it, else from the JSON text,
    of which only the members in question are looked up.
    """

    def __init__(
        self, source: DeltaCheckpointFiles, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> None:
        """Read nothing yet."""
        super().__init__(source.tail, schema, partition_columns, DELTA)
        self._source = source
        self._tail = FileStats(source.tail, schema, partition_columns, DELTA)
        self._fallback: FileStats | None = None  # of all adds, if the checkpoint is damaged
        self._counted: list[str] = []  # columns of which counts may be asked for

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as columns of the live adds, as `DeltaCheckpointFiles` does."""
        return FileStats, (self._source.adds(), self.schema, self.partition_columns, DELTA)

    @property
    def num_rows(self) -> int:
        """The number of live files."""
        return self._source.num_files

    def prepare(self, names: Iterable[str]) -> None:
        """Look up the bounds of several columns in one pass over the texts.

        Most questions need no counts. The first that does looks all of them up in another pass.
        """
        wanted = [name for name in names if name]
        self._tail.prepare(wanted)
        data = [name for name in wanted if name not in self.partition_columns]
        self._counted += [name for name in data if name not in self._counted]
        if data:
            self._statistics([(what, name) for name in data for what in BOUNDS])

    def prepare_all(self, names: Sequence[str]) -> None:
        """Look up all statistics of several columns in one pass over the texts."""
        self._tail.prepare(names)
        if names:
            self._statistics([(what, name) for name in names for what in _STATS_MAPS] + [_STORED])

    def _statistics(self, names: Sequence[tuple[str, str]]) -> Values | None:
        """Return bounds, null counts and row counts of the checkpoint's live adds."""
        reader = StatsReader(self._source.rows, self.schema)
        kept = self._source.values_for(self.schema)
        missing = [name for name in names if name not in kept]
        if any(what in COUNTS for what, _ in missing):
            counts = [_STORED, *(("nullCount", name) for name in self._counted)]
            missing += [name for name in counts if name not in kept and name not in missing]
        convert, paths = reader.converter(missing, self._source.num_selected)
        return self._source.live_values(self.schema, names, paths, convert)

    def of_rows(self, what: str, name: str) -> pa.ChunkedArray | None:
        """Return a typed column of the checkpoint's live adds; None if it is damaged."""
        if what in ("partition", "unreadable"):
            values = self._partition(name)
        elif what == "inexact":
            return self._inexact()
        elif what == "records":
            return self._records()
        elif what == "nanCount":  # no writer of Delta tables counts NaN
            values = {} if self._source.num_live is not None else None
        else:
            values = self._statistics([(what, name)])
        if values is None:
            return None
        if (what, name) in values:
            return values[what, name]
        count = self._source.num_live
        kind = pa.bool_() if what == "unreadable" else self._kind(what, name)
        nulls = pa.chunked_array([pa.nulls(count or 0, kind)], kind)
        return pc.fill_null(nulls, FALSE) if what == "unreadable" else nulls

    def _kind(self, what: str, name: str) -> pa.DataType:
        return pa.int64() if what in COUNTS else type_of(self.schema, name)

    def _records(self) -> pa.ChunkedArray | None:
        stored = self.of_rows("stored", "")
        if stored is None or not self._source.rows.has(("deletionVector", "cardinality")):
            return None if stored is None else subtract_deleted(stored, None)
        deleted = self._source._base_column("deletionVector.cardinality")  # noqa: SLF001
        return None if deleted is None else subtract_deleted(stored, deleted)

    def _inexact(self) -> pa.ChunkedArray | None:
        """Return which of the checkpoint's live adds have bounds that may be too wide."""
        paths: list[AddPath] = [("deletionVector", "storageType"), ("stats_parsed", "tightBounds")]
        paths.append(STATS_PATH)

        def convert(columns: Columns) -> dict[tuple[str, str], pa.Array]:
            known = {"deletionVector.storageType": columns[paths[0]], "stats": columns[STATS_PATH]}
            table = pa.table({name: c for name, c in known.items() if c is not None})
            wide = columns[paths[1]]
            inexact = DELTA.inexact_bounds(table) if table.num_columns else None
            if wide is not None:
                wide = pc.fill_null(pc.invert(wide), FALSE)
                inexact = wide if inexact is None else pc.or_(inexact, wide)
            if inexact is None:
                inexact = repeat_bool(False, _num_rows(columns))
            return {("inexact", ""): one_array(inexact)}

        values = self._source.live_values(_NO_SCHEMA, [("inexact", "")], paths, convert)
        if values is None:
            return None
        none = pa.chunked_array([repeat_bool(False, self._source.num_live or 0)])
        return values.get(("inexact", ""), none)

    def _partition(self, name: str) -> Values | None:
        names = [("partition", name), ("unreadable", name)]
        convert = partition_converter(self.schema, name)
        return self._source.live_values(self.schema, names, [PARTITION_PATH], convert)

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        base = self.of_rows(what, name) if self._fallback is None else None
        if base is None:
            if self._fallback is None:
                adds = self._source.adds()
                self._fallback = FileStats(adds, self.schema, self.partition_columns, DELTA)
            return pa.chunked_array([self._fallback.typed(what, name)])
        return pa.chunked_array([*base.chunks, self._tail.typed(what, name)], base.type)


class _AddStats(FileStats):
    """Statistics of the selected adds of a checkpoint, live or not, for data skipping.

    Partition columns look like data columns of one value. What is not known without further reading
    is null.
    """

    def __init__(
        self, source: DeltaCheckpointFiles, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> None:
        """Read nothing yet."""
        super().__init__(NO_ADDS, schema, partition_columns, DELTA)
        self._source = source
        self._partitioned = self.partition_columns
        self.partition_columns = ()

    @property
    def num_rows(self) -> int:
        """The number of adds."""
        return self._source.num_selected

    def knows(self, name: str) -> bool:
        """Whether a column has been read."""
        return ("minValues", name) in self._typed

    def _read(
        self,
        names: Sequence[tuple[str, str]],
        paths: Sequence[AddPath],
        convert: Callable[[Columns], dict[tuple[str, str], pa.Array]],
    ) -> None:
        """Type columns of all selected adds, unless they are kept already."""
        source, kept = self._source, self._source.values_for(self.schema)
        if any(name not in kept for name in names):
            chunks = source.rows.map(paths, source.selection, convert)
            for name in chunks[0] if chunks else ():
                kept[name] = pa.chunked_array([chunk[name] for chunk in chunks])
        self._typed |= {name: one_array(kept[name]) for name in names if name in kept}

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        kind = pa.int64() if what in COUNTS else type_of(self.schema, name)
        return pa.chunked_array([pa.nulls(self.num_rows, kind)], kind)


class _PartitionStats(_AddStats):
    """Partition values of the selected adds."""

    def prepare(self, names: Iterable[str]) -> None:
        """Read the partition values of columns; all others are unknown."""
        for name in names:
            if name not in self._partitioned:
                continue
            keys = [("partition", name), ("unreadable", name)]
            self._read(keys, [PARTITION_PATH], partition_converter(self.schema, name))
            if keys[0] not in self._typed:
                continue
            values, unreadable = (self._typed[key] for key in keys)
            is_null = pc.and_not(pc.is_null(values), unreadable)
            counts = pc.if_else(unreadable, null_scalar(pa.int64()), pc.cast(is_null, pa.int64()))
            ones = pc.if_else(is_null, make_int64(1), make_int64(1))
            self._typed |= {("minValues", name): values, ("maxValues", name): values}
            self._typed |= {("nullCount", name): counts, ("stored", ""): ones}


class _BoundStats(_AddStats):
    """Bounds of the selected adds."""

    def prepare(self, names: Iterable[str]) -> None:
        """Look up the bounds of columns in one pass; those of partition columns are unknown."""
        wanted = [
            (what, name)
            for name in names
            if name not in self._partitioned and has_bounds(type_of(self.schema, name))
            for what in ("minValues", "maxValues")
        ]
        if wanted:
            reader = StatsReader(self._source.rows, self.schema)
            convert, paths = reader.converter(wanted, self.num_rows)
            self._read(wanted, paths, convert)


def _check_vectors(columns: dict[str, pa.Array], version: int) -> None:
    """Raise `LogCorrupt` if an add has a part of a deletion vector only.

    It would be taken for none, and deleted rows would be shown.
    """
    required = [name for name in VECTOR_COLUMNS if name != "offset"]
    parts = [columns.get(f"deletionVector.{name}") for name in required]
    given = [pc.is_valid(part) for part in parts if part is not None and part.type != pa.null()]
    if given and (len(given) < len(required) or any(not given[0].equals(one) for one in given)):
        some = any(one.true_count for one in given)
        if some:
            what = "the checkpoint has a deletion vector that is incomplete."
            raise LogCorrupt(what, version=version)


def _num_rows(columns: Columns) -> int:
    return next((len(column) for column in columns.values() if column is not None), 0)


def _distinct_keys(maps: pa.ChunkedArray) -> list[str]:
    """Return the keys that occur in maps."""
    found: dict[str, None] = {}
    for chunk in maps.chunks:
        if len(chunk):
            first, last = chunk.offsets[0].as_py(), chunk.offsets[len(chunk)].as_py()
            keys = chunk.keys.slice(first, last - first)
            found |= dict.fromkeys(pc.unique(keys).to_pylist())
    return list(found)


def _maps_to_json(maps: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return maps of text as JSON text; null for a null map."""
    assert maps is not None
    if maps.null_count == len(maps):
        return pa.chunked_array([pa.nulls(len(maps), pa.string())])
    texts = [
        None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False)
        for pairs in maps.to_pylist()
    ]
    return pa.chunked_array([make_array(texts, pa.string())])


def _stats_as_text(stats: pa.ChunkedArray | None) -> dict[str, pa.ChunkedArray]:
    """Return typed statistics as the columns that the log decoder makes of JSON statistics."""
    if stats is None:
        return {}
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in _members_of(stats).items():
        if name == "numRecords":
            columns["stats.numRecords"] = pc.cast(column, pa.int64())
        elif name in _STATS_MAPS and pa.types.is_struct(column.type):
            for key, values in _members_of(column).items():
                if name == "nullCount" and pa.types.is_integer(values.type):
                    columns[f"stats.{name}.{key}"] = pc.cast(values, pa.int64())
                elif name != "nullCount" and has_bounds(values.type):
                    columns[f"stats.{name}.{key}"] = pc.cast(values, pa.string())
    return columns


def _members_of(structs: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    kind = structs.type
    return {kind.field(i).name: pc.struct_field(structs, [i]) for i in range(kind.num_fields)}
