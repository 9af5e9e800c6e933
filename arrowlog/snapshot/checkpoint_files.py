"""The live files of a state that starts from a Parquet checkpoint, read on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import ADD_FIELDS, ADD_MAP_FIELDS
from arrowlog.metering import metrics_of
from arrowlog.snapshot.checkpoint.rows import RowGroupStats, from_checkpoint_rows, render_as_text
from arrowlog.snapshot.deferred_files import NO_ADDS, DeferredFiles
from arrowlog.snapshot.file_table import (
    FileStats,
    files_table,
    files_table_from_checkpoint,
    typed_checkpoint_column,
)
from arrowlog.snapshot.reconciliation import paths_leading_out
from arrowlog.snapshot.snapshot import (
    CACHED_SELECTION_FILES_MAX,
    InMemoryFiles,
    insert_evicting_oldest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.metering import Metrics
    from arrowlog.snapshot.checkpoint.parts import CheckpointPartReader
    from arrowlog.snapshot.snapshot import FileSource


class CheckpointRows:
    """The rows of a checkpoint, or of some of its row groups. Columns are kept once read."""

    def __init__(
        self,
        parts: CheckpointPartReader,
        schema: pa.Schema,
        groups: Sequence[int] | None,
        *,
        allow_external_paths: bool,
    ) -> None:
        """Read nothing yet."""
        self.parts = parts
        self.schema = schema
        self.allow_external_paths = allow_external_paths
        self.groups = groups
        self.count = parts.manifest.count_live(groups)
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._picks: dict[tuple[int, ...], CheckpointRows] = {}

    def table(self, names: Iterable[str]) -> pa.Table:
        """Read columns, always including `path`; columns that are not stored are left out.

        Raises `LogCorrupt` if the rows are damaged, not as many as the manifest says, or have a
        path that is null or leads out of the table.
        """
        stored = self.parts.manifest.columns
        wanted = [name for name in dict.fromkeys(("path", *names)) if name in stored]
        missing = [name for name in wanted if name not in self._columns]
        if missing:
            read = self.parts.read(self.groups, missing)
            if read.num_rows != self.count:
                what = f"the checkpoint has {read.num_rows} rows instead of {self.count}."
                raise LogCorrupt(what, version=self.parts.manifest.version)
            if "path" in missing:
                self._check_keys(read["path"])
            self._columns |= {name: read[name] for name in missing}
        return pa.table({name: self._columns[name] for name in wanted})

    @property
    def held_bytes(self) -> int:
        """The memory of the columns that were read."""
        return sum(int(column.nbytes) for column in list(self._columns.values()))

    def only(self, groups: tuple[int, ...]) -> CheckpointRows:
        """Return the rows of some row groups. The last few results are kept, columns included."""
        rows = self._picks.get(groups)
        if rows is None:
            rows = CheckpointRows(
                self.parts,
                self.schema,
                groups,
                allow_external_paths=self.allow_external_paths,
            )
            if rows.count <= CACHED_SELECTION_FILES_MAX:
                insert_evicting_oldest(self._picks, groups, rows)
        return rows

    def _check_keys(self, keys: pa.ChunkedArray) -> None:
        checked = not self.allow_external_paths
        if keys.null_count or (checked and paths_leading_out(keys) is not None):
            what = "the checkpoint has a path that is null or leads out of the table."
            raise LogCorrupt(what, version=self.parts.manifest.version)


class CheckpointFiles(DeferredFiles):
    """A `FileSource`: live files in a Parquet checkpoint that is not read yet.

    Its columns are stored typed.
    """

    def __init__(
        self,
        rows: CheckpointRows,
        version: int,
        again: Callable[[int], pa.Table],
        tail: pa.Table = NO_ADDS,
        touched: pa.ChunkedArray | None = None,
        warned: list[str] | None = None,
    ) -> None:
        """Read nothing yet. `warned` collects warnings, shared with all sources made from this."""
        super().__init__(version, again, tail, touched, warned)
        self.rows = rows
        self._groups: RowGroupStats | None = None

    @property
    def checkpoint(self) -> int:
        """The version of the checkpoint."""
        return self.rows.parts.manifest.version

    @property
    def root(self) -> str:
        """The address of the table, for messages."""
        return self.rows.parts.store.root

    @property
    def held_bytes(self) -> int:
        """The memory of the tail, and of the columns and adds that were read."""
        return super().held_bytes + self.rows.held_bytes

    @property
    def _metrics(self) -> Metrics:
        return metrics_of(self.rows.parts.store)

    @property
    def _num_rows(self) -> int:
        return self.rows.count

    def _read(self, names: Iterable[str]) -> pa.Table:
        return self.rows.table(names)

    def _to_adds(self) -> pa.Table | None:
        manifest = self.rows.parts.manifest
        rows = self.stored(manifest.columns)
        return None if rows is None else from_checkpoint_rows(rows, manifest.recipe)

    def _replaced(
        self, version: int, tail: pa.Table, touched: pa.ChunkedArray | None
    ) -> CheckpointFiles:
        return CheckpointFiles(self.rows, version, self._again, tail, touched, self._warned)

    def row_group_stats(
        self, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> RowGroupStats | None:
        """Return the statistics of the checkpoint's row groups, one row per group."""
        if not self.is_typed(schema, partition_columns):
            return None
        if self._groups is None:
            manifest = self.rows.parts.manifest
            # `FileStats` adds partition columns that the schema lacks.
            typed = FileStats(NO_ADDS, self.rows.schema, manifest.metadata.partition_columns)
            self._groups = RowGroupStats(manifest.index, typed.schema)
        return self._groups

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:
        """Whether the checkpoint's typed columns are of use.

        Not if all adds are in memory, nor if a later commit changed the schema or partitioning that
        the typed columns follow.
        """
        if self._adds is not None:
            return False
        stored = self.rows.parts.manifest.metadata.partition_columns
        return tuple(partition_columns) == stored and self.rows.schema.equals(schema)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds; reads only the stored column that it is made of."""
        recipe = self.rows.parts.manifest.recipe
        rows = None if self._adds is not None else self.stored([recipe.stored_column_of(name)])
        if rows is None:
            return self.adds()[name]
        source, form = recipe.rebuilt.get(name, (recipe.stored_column_of(name), "as it is"))
        tail = self.tail[name] if name in self.tail.column_names else None
        if source not in rows.column_names:
            kind = pa.string() if tail is None else tail.type
            base = pa.chunked_array([pa.nulls(rows.num_rows, kind)])
        else:
            base = render_as_text(rows[source], form)
        more = [pa.nulls(self.tail.num_rows, base.type)] if tail is None else tail.chunks
        return pa.chunked_array([*base.chunks, *more], base.type)

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""
        if not self.is_typed(schema, partition_columns):
            return InMemoryFiles(self.adds()).files(schema, partition_columns, mask)
        manifest = self.rows.parts.manifest
        wanted = {*ADD_FIELDS, *manifest.recipe.typed} - {*ADD_MAP_FIELDS, "numRecords"}
        rows = self.stored([name for name in manifest.columns if name in wanted])
        if rows is None:
            return InMemoryFiles(self.adds()).files(schema, partition_columns, mask)
        tail = self.tail
        if mask is not None:
            tail = tail.filter(mask.slice(rows.num_rows))
            rows = rows.filter(mask.slice(0, rows.num_rows))
        base = files_table_from_checkpoint(rows, schema, partition_columns)
        if not tail.num_rows:
            return base
        more = files_table(tail, schema, partition_columns)
        return pa.concat_tables([base, more], promote_options="default")

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""
        if not self.is_typed(schema, partition_columns):
            return FileStats(self.adds(), schema, partition_columns)
        return CheckpointFileStats(self, schema, partition_columns)

    def select_row_groups(self, groups: Sequence[int]) -> FileSource:
        """Return the files of some row groups, and the tail."""
        rows = self.rows.only(tuple(groups))
        return CheckpointFiles(
            rows, self.version, self._again, self.tail, self.touched, self._warned
        )


class CheckpointFileStats(FileStats):
    """Typed columns of a checkpoint's live files and its tail.

    The checkpoint stores them typed, so only the tail is cast from text.
    """

    def __init__(
        self, source: CheckpointFiles, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> None:
        """Read nothing yet."""
        super().__init__(source.tail, schema, partition_columns)
        self._source = source
        self._tail = FileStats(source.tail, schema, partition_columns)
        self._fallback: FileStats | None = None  # of all adds, if the checkpoint is damaged

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as columns of the live adds, as `CheckpointFiles` does."""
        return FileStats, (self._source.adds(), self.schema, self.partition_columns)

    @property
    def num_rows(self) -> int:
        """The number of live files."""
        return self._source.num_files

    def prepare(self, names: Iterable[str]) -> None:
        """Read the statistics of several columns in one pass."""
        wanted = list(names)
        self._source.stored([column for name in wanted for column in self._stored_names(name)])
        self._prepare_leaves(wanted)
        self._tail.prepare([name for name in wanted if not self._is_leaf(name)])

    def _stored_names(self, name: str) -> list[str]:
        """Return the checkpoint's columns that hold the statistics of a table column."""
        if name in self.partition_columns:
            return [f"partition.{name}", f"unreadable.{name}"]
        if self._is_leaf(name):
            return ["stats", "num_records"]
        counts = [f"null_count.{name}", f"nan_count.{name}", "num_records"]
        return [f"min.{name}", f"max.{name}", *counts]

    def _stats_texts(self) -> pa.ChunkedArray | None:
        rows = self._source.stored(["stats"])
        if rows is None:
            adds = self._source.adds()
            return adds["stats"] if "stats" in adds.column_names else None
        return self._source.column("stats")

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        if self._is_leaf(name):
            self._prepare_leaves([name])
            return pa.chunked_array([self._typed[what, name]])
        rows = self._source.stored(self._stored_names(name) if name else ["num_records"])
        if rows is None:
            if self._fallback is None:
                adds = self._source.adds()
                self._fallback = FileStats(adds, self.schema, self.partition_columns)
            return pa.chunked_array([self._fallback.typed(what, name)])
        base = typed_checkpoint_column(rows, what, name, self.schema)
        return pa.chunked_array([*base.chunks, self._tail.typed(what, name)], base.type)
