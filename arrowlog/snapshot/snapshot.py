"""Snapshot: an immutable version of a table. State: what log replay produced for it.

The live files of a state come from a `FileSource`: they are in memory, or in a checkpoint that is
read as needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from typing import Protocol as Interface

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import LOW_PEAK_POOL, TRUE, sum_exactly
from arrowlog.display import format_bytes, format_count, format_html_card, format_html_table
from arrowlog.fork_safety import OnFirstUse
from arrowlog.formats import FieldKind, RecentCommits
from arrowlog.formats.indextables import INDEXTABLES, STATE_PROTOCOL_VERSION
from arrowlog.snapshot.file_table import FileStats, files_table
from arrowlog.snapshot.reconciliation import reconcile_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from arrowlog.formats import Format, Metadata, Protocol
    from arrowlog.snapshot.file_table import GroupStats
    from arrowlog.snapshot.log_segment import VersionGap

# By application id, the version of its last transaction and the table version that holds it.
Transactions = Mapping[str, tuple[int, int]]

# Selections of row groups that are kept in memory: how many, and up to how many files each.
_SELECTIONS_MAX = 8
CACHED_SELECTION_FILES_MAX = 1 << 17
# A table is compacted once it has more chunks than this and fewer rows per chunk, on average, than
# `_CHUNK_ROWS_MIN`: kernels have a fixed cost per chunk, compaction costs a copy.
_CHUNKS_MAX = 64
_CHUNK_ROWS_MIN = 1 << 9
# The share of a batch that has to be live for its dead rows to stay in memory: copying the others
# takes time, and as much memory again while both are there.
_SLICED_SHARE_MIN = 0.75


class FileSource(Interface):
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
    def held_bytes(self) -> int:
        """The memory of the columns that were read so far."""

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
    ) -> GroupStats | None:
        """Return the statistics of groups of files, for data skipping.

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


class UngroupedFiles:
    """What sources of files share whose adds are text and in no row groups."""

    __slots__ = ()

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:  # noqa: ARG002
        """False: partition values and statistics are text in the adds."""
        return False

    def row_group_stats(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
    ) -> GroupStats | None:
        """None: the files are in no row groups."""
        return None

    def select_row_groups(self, groups: Sequence[int]) -> Self:  # noqa: ARG002 -- as above
        """Return all files, as they are in no row groups."""
        return self

    def narrowed(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
        keep: Callable[[FileStats], pa.Array],  # noqa: ARG002 -- of the protocol
    ) -> Self:
        """Return all files: none can be left unread."""
        return self


@dataclass(frozen=True, slots=True)
class InMemoryFiles(UngroupedFiles):
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
    def held_bytes(self) -> int:
        """The memory of the adds."""
        return int(self.table.nbytes)

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
    if live is not None:
        schema, batches = adds.schema, adds.to_batches()
        del adds  # so that each batch can be freed once its live rows are copied
        adds = pa.Table.from_batches(_filter_batches(batches, live), schema)
    return SourceChange(InMemoryFiles(adds, table_format), adds, lambda: None)


def _filter_batches(batches: list[pa.RecordBatch], mask: pa.Array) -> list[pa.RecordBatch]:
    """Filter batches by one mask of all their rows, in several threads; empties the list.

    A later commit often removes adjacent files of an earlier one. If the other rows of a batch are
    adjacent and most of it, they are not copied.
    """
    stops = list(accumulate(batch.num_rows for batch in batches))

    def filtered(index: int) -> pa.RecordBatch:
        batch, batches[index] = batches[index], None
        part = mask.slice(stops[index] - batch.num_rows, batch.num_rows)
        if part.true_count == len(part):
            return batch
        run = _only_run(part)
        if run is not None and len(run) >= len(part) * _SLICED_SHARE_MIN:
            return batch.slice(run.start, len(run))
        return pc.filter(batch, part, memory_pool=LOW_PEAK_POOL)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(filtered, range(len(batches))))


def _only_run(mask: pa.Array) -> range | None:
    """Return the rows that a mask selects if they are adjacent; None otherwise."""
    first = pc.index(mask, TRUE).as_py()
    run = range(first, first + mask.true_count) if first >= 0 else range(0)
    return run if mask.slice(run.start, len(run)).true_count == len(run) else None


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


class LazyTransactions(Mapping[str, tuple[int, int]]):
    """Application transactions that are read from the commits on first use. Pickles as a dict."""

    def __init__(self, load: Callable[[], Transactions], later: Transactions | None = None) -> None:
        """Read nothing yet; `later` are those of later commits, which win."""
        self._load = load
        self._later = dict(later or {})
        self._all: dict[str, tuple[int, int]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a dict: the receiver may not be able to reach the store."""
        return dict, (dict(self),)

    def updated(self, later: Transactions) -> LazyTransactions:
        """Return these transactions followed by later ones."""
        before = self._later
        return LazyTransactions(self._load, {**before, **_highest(before, later)})

    def _known(self) -> dict[str, tuple[int, int]]:
        if self._all is None:
            loaded = dict(self._load())
            self._all = {**loaded, **_highest(loaded, self._later)}
        return self._all

    def __getitem__(self, app_id: str) -> tuple[int, int]:
        """Return the last transaction of an application."""
        return self._known()[app_id]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the application ids."""
        return iter(self._known())

    def __len__(self) -> int:
        """Return the number of applications."""
        return len(self._known())


def _highest(before: Transactions, later: Transactions) -> dict[str, tuple[int, int]]:
    """Return the later transactions whose number is not below the one before."""
    return {
        app_id: txn
        for app_id, txn in later.items()
        if app_id not in before or txn[0] > before[app_id][0]
    }


class BypassedCheckpoint(NamedTuple):
    """A checkpoint that could not be used, and why."""

    version: int
    reason: str

    def __str__(self) -> str:
        """Say so, for warnings."""
        return f"checkpoint {self.version} was not used: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """How a snapshot was loaded: its source, its cost, and any warnings.

    `source` is `commits`, `checkpoint`, `refresh` if only new commits were read, or `copy` if the
    disk cache held the newest version. `bypassed` are damaged checkpoints that were not used; the
    warnings name them as well.
    """

    version: int
    source: str
    checkpoint: int | None = None
    commits_read: int = 0
    files_read: int = 0
    bytes_read: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()
    gap: VersionGap | None = None
    bypassed: tuple[BypassedCheckpoint, ...] = ()

    def __str__(self) -> str:
        """One line of facts, then one line per warning."""
        base = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        if self.source == "copy":
            base = "a local copy"
        if self.source == "refresh":
            base = f"version {self.version - self.commits_read} in memory"
        facts = (
            f"version {self.version} from {base} + {_plural(self.commits_read, 'commit')}"
            f" ({_plural(self.files_read, 'file')}, {self.bytes_read:,} bytes,"
            f" {self.milliseconds:.1f} ms)"
        )
        return "\n".join([facts, *(f"warning: {text}" for text in self.warnings)])


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class State:
    """The result of log replay: protocol, metadata, and the live adds as Arrow columns.

    `source` holds the live files, or reads them from a checkpoint on demand. `adds` has a column
    `key`, the file's path relative to the table. `timestamp` is the latest commit timestamp, in
    milliseconds. `txns` maps an application id to its last application transaction and the table
    version that holds it. `recent` holds the transaction ids of the last commits. `format` is that
    of the log.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    source: FileSource
    timestamp: int | None = None
    txns: Transactions = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)
    format: Format = INDEXTABLES

    @property
    def adds(self) -> pa.Table:
        """All live adds. Reads them if they are still in a checkpoint."""
        return self.source.adds()

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.source.num_files

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds that every add has, such as `key`, `path` or `size`."""
        if not self.num_files:  # no add has told the type of the column
            kind = self.format.actions.fields["add"].get(name, FieldKind.TEXT)
            return pa.chunked_array([], kind.type)
        return self.source.column(name)


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. Properties are computed on first use and kept."""

    state: State = field(repr=False)
    _report: Report = field(repr=False)
    _given: pa.Table | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> Report:
        """How this snapshot was loaded, with warnings that came up later.

        Damage in a checkpoint shows only when its rows are read.
        """
        late, checkpoint = self.state.source.warnings, self.state.source.checkpoint
        if not late:
            return self._report
        bypassed = self._report.bypassed
        if checkpoint is not None:
            unused = str(BypassedCheckpoint(checkpoint, ""))
            reasons = [text.removeprefix(unused) for text in late if text.startswith(unused)]
            bypassed += tuple(BypassedCheckpoint(checkpoint, reason) for reason in reasons)
        warnings = (*self._report.warnings, *late)
        return replace(self._report, warnings=warnings, bypassed=bypassed)

    def only(self, groups: Sequence[int]) -> Snapshot:
        """Return this snapshot restricted to some row groups of its checkpoint.

        Files added after the checkpoint stay. The last few results are kept.
        """
        key = tuple(groups)
        restricted = self._restrictions.get(key)
        if restricted is None:
            files = self.state.source.select_row_groups(key)
            restricted = Snapshot(replace(self.state, source=files), self._report)
            if files.max_files <= CACHED_SELECTION_FILES_MAX:
                insert_evicting_oldest(self._restrictions, key, restricted)
        return restricted

    @property
    def has_states(self) -> bool:
        """Whether the log may continue with table states."""
        return is_state_table(self.state)

    def restricted_to(self, source: FileSource) -> Snapshot:
        """Return this snapshot restricted to the files of a source that was made from its own."""
        if source is self.state.source:
            return self
        return Snapshot(replace(self.state, source=source), self._report)

    @OnFirstUse
    def _restrictions(self) -> dict[tuple[int, ...], Snapshot]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cached restrictions."""
        return {name: value for name, value in self.__dict__.items() if name != "_restrictions"}

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.state.version

    @property
    def protocol(self) -> Protocol:
        """The reader and writer versions and features that the table requires."""
        return self.state.protocol

    @property
    def metadata(self) -> Metadata:
        """Identity, schema text, partitioning and properties of the table."""
        return self.state.metadata

    @property
    def held_bytes(self) -> int:
        """The memory of the columns that were read or computed so far, nearly all that it takes."""
        files = self.__dict__.get("files")  # computed on first use
        return self.state.source.held_bytes + (0 if files is None else int(files.nbytes))

    @property
    def schema(self) -> pa.Schema:
        """The table's schema, partition columns included."""
        return self.state.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns, in order."""
        return self.state.metadata.partition_columns

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.state.num_files

    @OnFirstUse
    def size_bytes(self) -> int:
        """The size of all live files in bytes."""
        return sum_exactly(self.state.column("size")) if self.num_files else 0

    @OnFirstUse
    def num_records(self) -> int | None:
        """The number of rows in all live files; None if it is unknown for one of them."""
        rows = self.columns.num_records()
        return None if rows.null_count else sum_exactly(rows)

    @OnFirstUse
    def files(self) -> pa.Table:
        """The live files as a typed table, one row per file. The tutorial lists the columns."""
        if self._given is not None:
            return self._given
        return self.state.source.files(self.schema, self.partition_columns)

    @OnFirstUse
    def columns(self) -> FileStats:
        """The columns of `files` one at a time, for data skipping, which needs few of them."""
        return self.state.source.stats(self.schema, self.partition_columns)

    def __repr__(self) -> str:
        """One line for a prompt."""
        return (
            f"Snapshot(version={self.version}, files={self.num_files:,}, bytes={self.size_bytes:,})"
        )

    def _repr_html_(self) -> str:
        """A card with the size, the columns and the source of this snapshot, for notebooks."""
        partitions = ", ".join(self.partition_columns) or "none"
        facts = [
            ("files", f"{self.num_files:,}"),
            ("bytes", format_bytes(self.size_bytes)),
            ("rows", format_count(self.num_records)),
            ("partitioned by", partitions),
            ("read from", str(self.report).partition("\n")[0]),
            *(("warning", text) for text in self.report.warnings),
        ]
        name = self.metadata.name
        columns = format_html_table(
            ["column", "type"], [[item.name, str(item.type)] for item in self.schema]
        )
        title = f"{name or 'table'} at version {self.version}"
        return format_html_card(title, facts, columns)


def is_state_table(state: State) -> bool:
    """Whether writers of a table have to write states."""
    return state.protocol.min_reader_version >= STATE_PROTOCOL_VERSION
