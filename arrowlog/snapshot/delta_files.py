"""The live files of a Delta table that starts from a checkpoint, read on demand.

The live files are the checkpoint's adds whose keys no later commit touched, followed by the live
adds of those commits (the tail). Paths are read when a key is needed, partition values and
statistics when a question needs them. If the checkpoint turns out to be damaged, the adds are
loaded without it and a warning is issued.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, repeat_bool
from arrowlog.decode import StatsMember, lookup_stats, stats_counts
from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.formats import physical_name
from arrowlog.formats.delta import DELTA, VECTOR_COLUMNS
from arrowlog.snapshot.delta_checkpoint import map_values
from arrowlog.snapshot.file_source import InMemoryFiles, SourceChange
from arrowlog.snapshot.file_table import FileStats, files_table, files_table_from_checkpoint
from arrowlog.snapshot.log_replay import with_keys
from arrowlog.snapshot.reconciliation import paths_leading_out, reconcile_keys
from arrowlog.snapshot.typed_values import cast_text, has_bounds, partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.snapshot.delta_checkpoint import AddPath, DeltaCheckpoint
    from arrowlog.snapshot.file_source import FileSource

# Live files added after a checkpoint up to which its adds stay unread; see `checkpoint_files`.
_TAIL_FILES_MAX = 50_000
_NO_ADDS = pa.table({"key": pa.nulls(0, pa.string())})
_STATS_MAPS = ("minValues", "maxValues", "nullCount")
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


class DeltaCheckpointFiles:
    """A `FileSource`: live files in a checkpoint of a Delta table.

    `tail` holds the live adds of the commits after the checkpoint, `touched` the keys of all files
    that those commits add or remove. `again` loads all live adds of a version without this
    checkpoint, for the case that it is damaged.
    """

    def __init__(
        self,
        rows: DeltaCheckpoint,
        version: int,
        root: str,
        again: Callable[[int], pa.Table],
        *,
        allow_external_paths: bool,
        tail: pa.Table = _NO_ADDS,
        touched: pa.ChunkedArray | None = None,
        warned: list[str] | None = None,
    ) -> None:
        """Read nothing yet. `warned` collects warnings, shared with all sources made from this."""
        self.rows = rows
        self.version = version
        self.root = root
        self.tail = tail
        self.touched = touched
        self._external = allow_external_paths
        self._again = again
        self._warned: list[str] = [] if warned is None else warned
        self._keyed: pa.Table | None = None  # path and key of all rows of the checkpoint
        self._mask: pa.Array | pa.ChunkedArray | None = None  # which of them are live; None: all
        self._adds: pa.Table | None = None  # all live adds, once the checkpoint is of no use

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the live adds: the receiver may not be able to reach the store."""
        return InMemoryFiles, (self.adds(), DELTA)

    @property
    def checkpoint(self) -> int:
        """The version of the checkpoint."""
        return self.rows.version

    @property
    def warnings(self) -> Sequence[str]:
        """Why the checkpoint could not be used, if it turned out to be damaged."""
        return self._warned

    @property
    def num_files(self) -> int:
        """The number of live files. Reads the keys if later commits touched any file."""
        if self._adds is not None:
            return int(self._adds.num_rows)
        if self.touched is None:
            count = self._read(lambda: self.rows.num_adds)
            return self.num_files if count is None else count + int(self.tail.num_rows)
        keys = self.keys()
        return self.num_files if keys is None else len(keys) + int(self.tail.num_rows)

    @property
    def max_files(self) -> int:
        """The number of the checkpoint's adds and of the adds after it."""
        if self._adds is not None:
            return int(self._adds.num_rows)
        return (self._read(lambda: self.rows.num_adds) or 0) + int(self.tail.num_rows)

    def _read(self, read: Callable[[], Any]) -> Any:
        """Read from the checkpoint; None if it is damaged, and all adds are in memory then."""
        if self._adds is not None:
            return None
        try:
            return read()
        except (LogCorrupt, FileNotFoundError) as error:
            self._fall_back(error)
            return None

    def _keys_of_rows(self) -> pa.Table:
        """Return path and key of every add in the checkpoint."""
        if self._keyed is None:
            fields: dict[str, AddPath] = {"path": ("path",)}
            if self.rows.has(("deletionVector", "storageType")):
                fields |= {
                    f"deletionVector.{name}": ("deletionVector", name)
                    for name in ("storageType", "pathOrInlineDv", "offset")
                }
            read = self.rows.read(fields.values())
            columns = {"path": pa.chunked_array([], pa.string())}
            columns |= {
                name: _typed_or_null(read[path], VECTOR_COLUMNS.get(path[-1], pa.string()))
                for name, path in fields.items()
                if read[path] is not None
            }
            table, _ = with_keys(pa.table(columns), self.root, DELTA)
            if table["path"].null_count:
                raise LogCorrupt("the checkpoint has an add without a path.", version=self.version)
            self._keyed = table.select(["path", "key"])
        return self._keyed

    def keys(self) -> pa.ChunkedArray | None:
        """Return the keys of the checkpoint's live adds; None if the checkpoint is damaged."""
        keyed = self._read(self._keys_of_rows)
        if keyed is None:
            return None
        if not self._external and paths_leading_out(keyed["key"]) is not None:
            raise LogCorrupt(
                "the checkpoint has a path that is empty or leads out of the table.",
                next=f"If files of {self.root} may lie elsewhere, open it with"
                " allow_outside_paths=True.",
                version=self.version,
            )
        keys = keyed["key"]
        if self.touched is not None and self._mask is None:
            dead = pc.is_in(keys, value_set=self.touched.combine_chunks())
            self._mask = pc.invert(dead)
        return self.live(keys)

    def live(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values of the live adds from a column of all adds of the checkpoint."""
        return column if self._mask is None else column.filter(self._mask)

    def read_live(self, paths: Iterable[AddPath]) -> dict[AddPath, pa.ChunkedArray | None] | None:
        """Return fields of the checkpoint's live adds; None if the checkpoint is damaged."""
        wanted = list(paths)
        if self.touched is not None and self.keys() is None:
            return None
        read = self._read(lambda: self.rows.read(wanted))
        if read is None:
            return None
        return {path: None if c is None else self.live(c) for path, c in read.items()}

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds."""
        if self._adds is None:
            base = self._base_column(name)
            if base is not None:
                return self._with_tail(base, name)
        return self.adds()[name]

    def _base_column(self, name: str) -> pa.ChunkedArray | None:
        """Return a column of the checkpoint's live adds; None if the checkpoint is damaged."""
        if name in ("key", "path"):
            if self.keys() is None:
                return None
            return self.live(self._keys_of_rows()[name])
        path = tuple(name.split(".")) if name.startswith("deletionVector.") else (name,)
        read = self.read_live([path])
        if read is None:
            return None
        kind = _FIELDS.get(name) or VECTOR_COLUMNS.get(path[-1], pa.string())
        if read[path] is None:
            return pa.chunked_array([pa.nulls(self._num_live(), kind)], kind)
        return _typed_or_null(read[path], kind)

    def _num_live(self) -> int:
        return self.num_files - int(self.tail.num_rows)

    def _with_tail(self, base: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        if name not in self.tail.column_names:
            more: list[pa.Array] = [pa.nulls(self.tail.num_rows, base.type)]
        else:
            tail = self.tail[name]
            more = (tail if tail.type == base.type else pc.cast(tail, base.type)).chunks
        return pa.chunked_array([*base.chunks, *more], base.type)

    def adds(self) -> pa.Table:
        """Return all live adds, as the log decoder would."""
        if self._adds is None:
            base = self._adds_of_rows()
            if base is not None:
                self._adds = pa.concat_tables([base, self.tail], promote_options="default")
        assert self._adds is not None
        return self._adds

    def _adds_of_rows(self) -> pa.Table | None:
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
        read = self.read_live([("partitionValues",), ("tags",), ("stats_parsed",)])
        if read is None:
            return None
        maps = read["partitionValues",]
        if maps is not None:
            for key in _distinct_keys(maps):
                columns[f"partitionValues.{key}"] = map_values(maps, key)
        if read["tags",] is not None:
            columns["tags"] = _maps_to_json(read["tags",])
        columns |= _stats_as_text(read["stats_parsed",])
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
        columns: dict[str, Any] = {}
        names = [name for name in _FIELDS if name == "path" or self.rows.has((name,))]
        if self.rows.has(("deletionVector", "storageType")):
            names += [f"deletionVector.{name}" for name in VECTOR_COLUMNS]
        bounded = [
            item.name
            for item in stats.schema
            if has_bounds(item.type) and item.name not in stats.partition_columns
        ]
        stats.prepare([*bounded, *stats.partition_columns])
        for name in names:
            columns[name] = self._base_column(name)
        for name in stats.partition_columns:
            columns[f"partition.{name}"] = stats.of_rows("partition", name)
        for name in bounded:
            columns[f"min.{name}"] = stats.of_rows("minValues", name)
            columns[f"max.{name}"] = stats.of_rows("maxValues", name)
            columns[f"null_count.{name}"] = stats.of_rows("nullCount", name)
        columns["num_records"] = stats.of_rows("stored", "")
        if any(column is None for column in columns.values()) or self._adds is not None:
            return None
        tags = self.read_live([("tags",)])
        if tags is not None and tags["tags",] is not None:
            columns["tags"] = _maps_to_json(tags["tags",])
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
    ) -> FileStats | None:
        """None: nothing is known of the row groups of a checkpoint."""
        return None

    def select_row_groups(self, groups: Sequence[int]) -> FileSource:  # noqa: ARG002 -- as above
        """Return all files."""
        return self

    def with_commits(self, version: int, adds: pa.Table, removes: pa.Table) -> SourceChange:
        """Return the live files after commits; the checkpoint stays unread unless many are new."""
        if self._adds is not None:
            return InMemoryFiles(self._adds, DELTA).with_commits(version, adds, removes)
        kept, live = reconcile_keys(self.tail["key"], adds, removes)
        fresh = adds if live is None else adds.filter(live)
        still_live = self.tail if kept is None else self.tail.filter(kept)
        tail = pa.concat_tables([still_live, fresh], promote_options="default")
        touched = pa.chunked_array([*adds["key"].chunks, *removes["key"].chunks], pa.string())
        before = [] if self.touched is None else self.touched.chunks
        keys = pa.chunked_array([*before, *touched.chunks], pa.string())
        source = DeltaCheckpointFiles(
            self.rows,
            version,
            self.root,
            self._again,
            allow_external_paths=self._external,
            tail=tail,
            touched=keys if len(keys) else None,
            warned=self._warned,
        )
        source._keyed = self._keyed
        if tail.num_rows > max(_TAIL_FILES_MAX, source.max_files // 2):
            return SourceChange(
                InMemoryFiles(source.adds(), DELTA), fresh, lambda: self._mask_excluding(touched)
            )
        return SourceChange(source, fresh, lambda: self._mask_excluding(touched))

    def _mask_excluding(self, keys: pa.ChunkedArray) -> pa.Array | None:
        """Return a mask of the live files that are not among `keys`; None if none is."""
        hit = pc.is_in(self.column("key"), value_set=keys.combine_chunks()).combine_chunks()
        return pc.invert(hit) if hit.true_count else None

    def _fall_back(self, error: Exception) -> None:
        """Load the adds without the checkpoint, keeping the order of rows already handed out."""
        note = f"checkpoint {self.checkpoint} was not used: {error}"
        if note not in self._warned:
            self._warned.append(note)
            warnings.warn(f"{self.root}: {note}", ArrowlogWarning, stacklevel=2)
        adds = self._again(self.version)
        if self._keyed is not None:
            order = self._with_tail(self.live(self._keyed["key"]), "key")
            rows = pc.index_in(order, value_set=adds["key"].combine_chunks())
            if rows.null_count or len(rows) != adds.num_rows:
                what = "the checkpoint has files that are not live by a replay of the commits."
                raise LogCorrupt(what, version=self.checkpoint) from error
            adds = adds.take(rows)
        self._adds = adds


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
        self._texts: dict[StatsMember, pa.ChunkedArray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as columns of the live adds, as `DeltaCheckpointFiles` does."""
        return FileStats, (self._source.adds(), self.schema, self.partition_columns, DELTA)

    @property
    def num_rows(self) -> int:
        """The number of live files."""
        return self._source.num_files

    def prepare(self, names: Iterable[str]) -> None:
        """Look up the statistics of several columns in one pass over the texts."""
        wanted = [name for name in names if name]
        self._tail.prepare(wanted)
        data = [name for name in wanted if name not in self.partition_columns]
        self._source.read_live([("partitionValues",)] if len(data) < len(wanted) else [])
        members = [self._member(what, name) for name in data for what in _STATS_MAPS]
        if members:
            self._look_up([StatsMember(("numRecords",)), *members])

    def _member(self, what: str, name: str) -> StatsMember:
        if what == "stored":
            return StatsMember(("numRecords",))
        index = self.schema.get_field_index(name)
        kind = self.schema.field(index).type if index >= 0 else pa.string()
        exact = pa.types.is_decimal(kind) and what != "nullCount"
        return StatsMember((what, physical_name(self.schema, name)), exact)

    def _look_up(self, members: Sequence[StatsMember]) -> None:
        """Look up members in the JSON texts, unless the checkpoint has them as typed columns."""
        missing = [
            member
            for member in members
            if member not in self._texts and not self._is_stored(member)
        ]
        if not missing:
            return
        read = self._source.read_live([("stats",)])
        if read is None:
            return
        texts = read["stats",]
        if texts is not None and texts.null_count < len(texts):
            self._texts |= lookup_stats(texts, missing)

    def _is_stored(self, member: StatsMember) -> bool:
        """Whether every add has a member as a typed column.

        A checkpoint may have both forms; then adds without the typed one have the text.
        """
        rows = self._source.rows
        return rows.has(("stats_parsed", *member.keys)) and not rows.has(("stats",))

    def of_rows(self, what: str, name: str) -> pa.ChunkedArray | None:
        """Return a typed column of the checkpoint's live adds; None if it is damaged."""
        if what in ("partition", "unreadable"):
            return self._partition(what, name)
        source = self._source
        if what == "inexact":
            return self._inexact()
        if what == "records":
            stored = self.of_rows("stored", "")
            deleted = source.read_live([("deletionVector", "cardinality")])
            if stored is None or deleted is None:
                return None
            counts = deleted["deletionVector", "cardinality"]
            if counts is None:
                return stored
            none = make_array([0], pa.int64())[0]
            return pc.subtract(stored, pc.fill_null(pc.cast(counts, pa.int64()), none))
        return self._statistic(what, name)

    def _inexact(self) -> pa.ChunkedArray | None:
        source = self._source
        paths: list[AddPath] = [("deletionVector", "storageType"), ("stats_parsed", "tightBounds")]
        read = source.read_live(paths)
        texts = source.read_live([("stats",)])
        if read is None or texts is None:
            return None
        columns = {
            "deletionVector.storageType": read[paths[0]],
            "stats": texts["stats",],
        }
        table = pa.table({name: column for name, column in columns.items() if column is not None})
        inexact = DELTA.inexact_bounds(table) if table.num_columns else None
        tight = read[paths[1]]
        if tight is not None:
            wide = pc.fill_null(pc.invert(tight), FALSE)
            inexact = wide if inexact is None else pc.or_(inexact, wide)
        if inexact is None:
            return pa.chunked_array([repeat_bool(False, source.num_files - self._tail.num_rows)])
        return inexact

    def _partition(self, what: str, name: str) -> pa.ChunkedArray | None:
        read = self._source.read_live([("partitionValues",)])
        if read is None:
            return None
        maps = read["partitionValues",]
        kind = self._kind(name)
        if maps is None:
            count = self._source.num_files - self._tail.num_rows
            nulls = pa.chunked_array([pa.nulls(count, kind)], kind)
            return nulls if what == "partition" else pc.invert(pc.is_null(nulls))
        texts = map_values(maps, physical_name(self.schema, name))
        values, unreadable = partition_values(texts, kind, empty_is_null=True, hive_is_null=False)
        return values if what == "partition" else unreadable

    def _kind(self, name: str) -> pa.DataType:
        index = self.schema.get_field_index(name)
        return self.schema.field(index).type if index >= 0 else pa.string()

    def _statistic(self, what: str, name: str) -> pa.ChunkedArray | None:
        """Return a bound, null count or row count: typed if it is stored so, else from the text."""
        member = self._member(what, name)
        kind = pa.int64() if what in ("nullCount", "stored") else self._kind(name)
        path = ("stats_parsed", *member.keys)
        typed = None
        if self._source.rows.has(path):
            read = self._source.read_live([path])
            if read is None:
                return None
            typed = _typed_or_null(read[path], kind)
        self._look_up([member])
        if self._source._adds is not None:  # noqa: SLF001 -- damaged: part of one source
            return None
        text = self._texts.get(member)
        if text is not None:
            parsed = (
                stats_counts(text)
                if pa.types.is_integer(kind) and what in ("nullCount", "stored")
                else cast_text(text, kind, upper=what == "maxValues")
            )
            typed = parsed if typed is None else pc.coalesce(typed, parsed)
        if typed is None:
            count = self._source.num_files - self._tail.num_rows
            typed = pa.chunked_array([pa.nulls(count, kind)], kind)
        return typed

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        base = self.of_rows(what, name) if self._fallback is None else None
        if base is None:
            if self._fallback is None:
                adds = self._source.adds()
                self._fallback = FileStats(adds, self.schema, self.partition_columns, DELTA)
            return pa.chunked_array([self._fallback.typed(what, name)])
        return pa.chunked_array([*base.chunks, self._tail.typed(what, name)], base.type)


def _typed_or_null(column: pa.ChunkedArray | None, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a stored column to the type of the table; null if that is impossible."""
    assert column is not None
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException:
        return pa.chunked_array([pa.nulls(len(column), kind)], kind)


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
    import json

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
