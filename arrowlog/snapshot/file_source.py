"""Where the live files of a state are: in memory, or in a checkpoint that is read as needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot.file_table import FileStats, files_table
from arrowlog.snapshot.reconciliation import reconcile_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.formats import Format

# Selections of row groups that are kept in memory: how many, and up to how many files each.
_SELECTIONS_MAX = 8
CACHED_SELECTION_FILES_MAX = 1 << 17
# A table is compacted once it has more chunks than this and fewer rows per chunk, on average, than
# `_CHUNK_ROWS_MIN`: kernels have a fixed cost per chunk, compaction costs a copy.
_CHUNKS_MAX = 64
_CHUNK_ROWS_MIN = 1 << 9


class FileSource(Protocol):
    """The live files of one version, in an order that does not change.

    This is what a form of checkpoint implements. A source may read on demand, and it reads as
    little as it can; if what it reads is damaged, it falls back to log replay and adds a warning.

    `schema` and `partition_columns` are those of the state. They may be newer than those that a
    checkpoint was written with; its typed columns must not be used then.

    Sources are shared by threads. A source pickles into one that needs no store.
    """

    @property
    def num_files(self) -> int:
        """The number of live files."""

    @property
    def max_files(self) -> int:
        """An upper bound of `num_files`, known without reading and as long as no read fails."""

    @property
    def checkpoint(self) -> int | None:
        """The version of the checkpoint that files are read from; None if all are in memory."""

    @property
    def warnings(self) -> Sequence[str]:
        """What went wrong since the source was opened."""

    def adds(self) -> pa.Table:
        """Return all live adds as the log decoder returns them, with a column `key`."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds that every add has, such as `key`, `path` or `size`."""

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:
        """Whether `files` and `stats` come from stored typed columns and not from the adds."""

    def row_group_stats(
        self, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> FileStats | None:
        """Return the statistics of groups of files, one row per group, for data skipping.

        None if there are no groups, or if skipping some of them would save no reading.
        """

    def select_row_groups(self, groups: Sequence[int]) -> FileSource:
        """Return the files of some row groups, and all files that are in no row group."""

    def narrowed(
        self,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        keep: Callable[[FileStats], pa.Array],
    ) -> FileSource:
        """Return the files that may match a question, or all of them if telling saves no reading.

        `keep` returns a mask of the rows that may match from statistics in which partition columns
        are ordinary columns.
        """

    def with_commits(self, version: int, adds: pa.Table, removes: pa.Table) -> SourceChange:
        """Return the live files after commits that lead to `version`; `self` does not change.

        `adds` and `removes` are all actions of the commits, with the columns `key` and `seq`.
        """


class SourceChange(NamedTuple):
    """What commits did to a source.

    `source` has the live files afterwards: those that are still live, in their order, then `fresh`,
    the new live adds. `kept_mask` computes which files of the source before are still live; None
    for all.
    """

    source: FileSource
    fresh: pa.Table
    kept_mask: Callable[[], pa.Array | pa.ChunkedArray | None]


@dataclass(frozen=True, slots=True)
class InMemoryFiles:
    """Live files as a table of adds, as a log of the given format has them."""

    table: pa.Table
    format: Format = INDEXTABLES

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return int(self.table.num_rows)

    @property
    def max_files(self) -> int:
        """The number of live files."""
        return self.num_files

    @property
    def checkpoint(self) -> int | None:
        """None: nothing is left to read."""
        return None

    @property
    def warnings(self) -> Sequence[str]:
        """None: nothing is left to go wrong."""
        return ()

    def adds(self) -> pa.Table:
        """Return all live adds."""
        return self.table

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds."""
        return self.table[name]

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""
        chosen = self.table if mask is None else self.table.filter(mask)
        return files_table(chosen, schema, partition_columns, table_format=self.format)

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""
        return FileStats(self.table, schema, partition_columns, self.format)

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:  # noqa: ARG002
        """False: partition values and statistics are text in the adds."""
        return False

    def row_group_stats(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
    ) -> FileStats | None:
        """None: the files are in no row groups."""
        return None

    def select_row_groups(self, groups: Sequence[int]) -> FileSource:  # noqa: ARG002 -- as above
        """Return all files, as they are in no row groups."""
        return self

    def narrowed(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
        keep: Callable[[FileStats], pa.Array],  # noqa: ARG002 -- of the protocol
    ) -> FileSource:
        """Return all files: they are in memory."""
        return self

    def with_commits(
        self,
        version: int,  # noqa: ARG002 -- of the protocol
        adds: pa.Table,
        removes: pa.Table,
    ) -> SourceChange:
        """Return the live files after commits."""
        kept, live = reconcile_keys(self.table["key"], adds, removes)
        fresh = adds if live is None else adds.filter(live)
        still_live = self.table if kept is None else self.table.filter(kept)
        table = compact_chunks(pa.concat_tables([still_live, fresh], promote_options="default"))
        return SourceChange(InMemoryFiles(table, self.format), fresh, lambda: kept)


def first_files(
    adds: pa.Table, removes: pa.Table, table_format: Format = INDEXTABLES
) -> SourceChange:
    """Return the live files after the first commits of a log, or those of a JSON checkpoint."""
    _, live = reconcile_keys(pa.chunked_array([], pa.string()), adds, removes)
    fresh = adds if live is None else adds.filter(live)
    return SourceChange(InMemoryFiles(fresh, table_format), fresh, lambda: None)


def compact_chunks(table: pa.Table) -> pa.Table:
    """Combine the chunks of a table if refreshes have left too many small ones."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    fragmented = chunks > max(_CHUNKS_MAX, table.num_rows // _CHUNK_ROWS_MIN)
    return table.combine_chunks() if fragmented else table


def insert_evicting_oldest(kept: dict[Any, Any], key: object, value: object) -> None:
    """Insert a selection, evicting the oldest ones so that at most `_SELECTIONS_MAX` remain."""
    while len(kept) >= _SELECTIONS_MAX:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
