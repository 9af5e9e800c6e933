"""The state of a large table for a full checkpoint, without its files in memory.

The log is replayed backward: the newest commits first, in blocks, then the row groups of the
checkpoint that they follow. The newest action on a file decides, so that a block is filtered by the
keys of all later actions, of which 16 bytes each are kept, and every row that is left is live. It
is converted to a row of the checkpoint, and a block of rows goes sorted to a temporary file
(`row_spill`). The sort columns remain in memory, by which the rows are gathered in the end.

Everything is read and checked before a checkpoint begins to be written.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog import memory_limit
from arrowlog.arrays import from_numpy, release_unused_memory
from arrowlog.decode import ActionBatch
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot.checkpoint.parts import decode_stored_schema
from arrowlog.snapshot.checkpoint.row_spill import NotSpillable, RowSpill, SpilledFiles
from arrowlog.snapshot.checkpoint.rows import (
    StoredFileStats,
    choose_sort_columns,
    flatten_all_maps,
    from_checkpoint_rows,
    order_by,
    sort_columns,
    tie_hashes,
    to_checkpoint_rows,
)
from arrowlog.snapshot.checkpoint_files import CheckpointFiles, CheckpointRows
from arrowlog.snapshot.commit_reader import CommitReader
from arrowlog.snapshot.file_table import FileStats
from arrowlog.snapshot.loader import open_base
from arrowlog.snapshot.log_replay import parse_table_schema, read_file_actions, replay_actions
from arrowlog.snapshot.reconciliation import reconcile_keys
from arrowlog.snapshot.seen_keys import SeenKeys
from arrowlog.snapshot.snapshot import State, is_state_table
from arrowlog.snapshot.stats_truncation import StatsTruncation, truncate_adds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile, LogListing, Metadata
    from arrowlog.snapshot.checkpoint.rows import RebuildRecipe
    from arrowlog.snapshot.log_segment import LogSegment
    from arrowlog.snapshot.read_options import ReadOptions
    from arrowlog.storage import Store

# Below these sizes, the files take little memory, and a checkpoint of files in memory is faster.
STREAMED_LOG_BYTES_MIN = 64 << 20
STREAMED_FILES_MIN = 1 << 17
# With fewer new files than this share of those in a checkpoint, the next one is incremental. The
# size of an add in a commit is that of many logs.
_FRESH_SHARE_MIN, _ADD_BYTES = 0.25, 400
# Decoded actions of a block. It is in memory several times: as lines, as texts, as typed columns.
# A large log has larger blocks, because every row group of the checkpoint has rows of every block.
_BLOCK_BYTES, _BLOCK_BYTES_MAX = 8 << 20, 24 << 20
_BLOCKS = 64
# What decoded actions take of the size of a commit, at first: a compressed one takes much more.
_DECODED_RATIO = 4.0
# Row groups of a checkpoint that are read at a time, and adds that are converted.
_BLOCK_GROUPS = 1
_BLOCK_FILES = 1 << 15
# Of more commits than this, only so many are asked for their size.
_SIZED_COMMITS_MAX = 1024
_COMMIT_BYTES_ESTIMATE = 4096
# Columns to sort by are chosen by so many samples of so many bytes, or of so many rows, if the
# samples are a small share of all.
_SAMPLES, _SAMPLE_BYTES, _SAMPLE_ROWS = 4, 1 << 20, 1 << 12
_SAMPLED_SHARE_MAX = 0.25
_KEPT_ACTIONS = ("commitInfo",)


class RowStream:
    """Live adds of a table, converted to rows of a checkpoint and spilled block by block."""

    def __init__(
        self,
        schema: pa.Schema,
        partition_columns: tuple[str, ...],
        config: Config,
        best: Sequence[str] | None,
    ) -> None:
        """Open a temporary file. `best` are the columns to sort by; the first block tells if None.

        Raises `NotSpillable` if there is no room for it.
        """
        self.schema = schema
        self._of_table = (schema, partition_columns)
        self.config = config
        self._best = best
        self._spill = RowSpill()
        self._sorted_by: list[dict[str, pa.Array]] = []
        self._ties: list[pa.Array] = []

    def close(self) -> None:
        """Give the temporary file back."""
        self._spill.close()

    def add(self, adds: pa.Table) -> None:
        """Take adds as the log has them. All must be live."""
        for start in range(0, adds.num_rows, _BLOCK_FILES):
            self._add(adds.slice(start, _BLOCK_FILES))
        release_unused_memory()  # allocators would keep more with every block

    def _add(self, adds: pa.Table) -> None:
        schema, partition = self._of_table
        names = [*schema.names, *partition]
        short = truncate_adds(adds, partition, self.config, schema)
        flat = flatten_all_maps(short, names)
        if "raw" in flat.column_names and not pc.any(flat["raw"]).as_py():
            flat = flat.drop_columns("raw")  # all maps are columns now
        columns = FileStats(flat, schema, partition)
        columns.prepare(names)
        rows, recipe = to_checkpoint_rows(columns, flat)
        self._append(columns, rows, recipe)

    def add_rows(self, rows: pa.Table, recipe: RebuildRecipe) -> None:
        """Take rows of an earlier checkpoint with the same schema, partitioning and truncation."""
        self._append(StoredFileStats(rows, *self._of_table), rows, recipe)

    def _append(self, columns: FileStats, rows: pa.Table, recipe: RebuildRecipe) -> None:
        if not rows.num_rows:
            return
        if self._best is None:
            self._best = choose_sort_columns(columns)
        paths, hashed = rows["path"], bool(self._best)
        frame = sort_columns(columns, self._best)
        ties = tie_hashes(paths) if hashed else paths.combine_chunks()
        order = order_by(frame, ties, hashed=hashed)
        self._sorted_by.append({name: array.take(order) for name, array in frame.items()})
        self._ties.append(ties.take(order))
        self._spill.append(rows.combine_chunks().take(order), recipe)

    def finish(self) -> SpilledFiles:
        """Return the files in the order of a checkpoint; none are added any more.

        Raises `NotSpillable` if their columns do not go together, or there are none.
        """
        if not self._ties:
            raise NotSpillable("no file is live")
        self._spill.seal()
        release_unused_memory()  # what blocks took, before their order is determined
        # One column after the other, so that only one is in memory twice.
        frame = {
            name: pa.concat_arrays([some.pop(name) for some in self._sorted_by])
            for name in list(self._sorted_by[0])
        }
        ties = pa.chunked_array(self._ties)
        self._ties = []
        order = order_by(frame, ties, hashed=bool(self._best))
        del frame, ties
        release_unused_memory()
        return SpilledFiles(self._spill, order, INDEXTABLES)


def spill_checkpoint_files(state: State, config: Config) -> State | None:
    """Return a state based on a Parquet checkpoint with its files in a temporary file.

    None if they are few or in memory already, if there is no room for the file, or if the
    checkpoint is damaged: it is loaded another way then.
    """
    source = state.source
    if (
        not isinstance(source, CheckpointFiles)
        or source.in_memory
        or source.rows.groups is not None
        or source.max_files < STREAMED_FILES_MIN
    ):
        return None
    release_unused_memory()  # what loading the state took
    seen = SeenKeys()
    if source.touched is not None:
        seen.add(seen.hashes(source.touched))
    best = _choose_from_checkpoint(source, state)
    try:
        stream = RowStream(state.schema, state.metadata.partition_columns, config, best)
    except NotSpillable:
        return None
    try:
        stream.add(source.tail)
        _stream_checkpoint(stream, source, state, config, seen)
        return replace(state, source=stream.finish())
    except (NotSpillable, LogCorrupt):
        stream.close()
        return None
    except BaseException:
        stream.close()
        raise


def _choose_from_checkpoint(source: CheckpointFiles, state: State) -> list[str] | None:
    """Return the columns to sort by, judged by samples of a checkpoint's typed columns.

    None if it has none of this schema, or is damaged.
    """
    partition = state.metadata.partition_columns
    if not source.is_typed(state.schema, partition):
        return None
    reader = source.rows.parts
    num_groups = reader.manifest.index.num_rows
    groups = sorted({number * num_groups // _SAMPLES for number in range(_SAMPLES)})
    names = [name for name in reader.manifest.columns if name.startswith(("min.", "max."))]
    names += ["path", "num_records", *(n for n in reader.manifest.columns if "_count." in n)]
    try:
        pieces = [reader.read_with_dead([g], names).slice(0, _SAMPLE_ROWS) for g in groups]
    except LogCorrupt:
        return None
    return choose_sort_columns(StoredFileStats(pa.concat_tables(pieces), state.schema, partition))


def _stream_checkpoint(
    stream: RowStream, source: CheckpointFiles, state: State, config: Config, seen: SeenKeys
) -> None:
    """Add the rows of a checkpoint that no later action is about.

    Raises `LogCorrupt` if they are damaged.
    """
    reader, manifest = source.rows.parts, source.rows.parts.manifest
    typed = (
        source.is_typed(state.schema, state.metadata.partition_columns)
        and bool(manifest.stored_schema)
        and manifest.truncation == StatsTruncation.of(config).label
    )
    for first in range(0, manifest.index.num_rows, _BLOCK_GROUPS):
        groups = range(first, min(first + _BLOCK_GROUPS, manifest.index.num_rows))
        external = source.rows.allow_external_paths
        some = CheckpointRows(reader, source.rows.schema, groups, allow_external_paths=external)
        rows = some.table(manifest.columns)
        dead = seen.find(seen.hashes(rows["path"]))
        if dead is not None:
            rows = rows.filter(from_numpy(~dead))
        if typed:
            stored = decode_stored_schema(manifest.stored_schema)
            stream.add_rows(_with_types(rows, stored), manifest.recipe)
        else:
            stream.add(from_checkpoint_rows(rows, manifest.recipe))


def _with_types(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Return rows with the types that they had before they were written as Parquet."""
    for at, name in enumerate(rows.column_names):
        kind, column = stored.field(name).type, rows[name]
        if column.type != kind:
            if pa.types.is_dictionary(kind):
                column = column.cast(kind.value_type).dictionary_encode()
            rows = rows.set_column(at, name, column.cast(kind))
    return rows


class StreamedState(NamedTuple):
    """A state, and its files, which take a temporary file until they are closed."""

    state: State
    files: SpilledFiles


class _NewerMetadata(Exception):
    """The log has a metaData newer than the one that rows were converted by."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata.id)
        self.metadata = metadata


def stream_newest_state(
    store: Store,
    listing: LogListing,
    options: ReadOptions,
    config_of: Callable[[Metadata], Config],
) -> StreamedState | None:
    """Return the newest state with its files in a temporary file; close them afterwards.

    None where the log is small, where it has to be read in another way, as behind a gap or past a
    damaged checkpoint, or where there is no room for the file. `config_of` returns the settings
    for a table's metadata.

    Raises `LogCorrupt` or `UnsupportedProtocol` if a commit cannot be used, `FileNotFoundError` if
    one is gone.
    """
    if options.format != INDEXTABLES:
        return None
    expected = max(listing.checkpoints, default=None)
    segment, base = open_base(store, listing, options)
    if segment.gap is not None or segment.checkpoint != expected or not segment.commits:
        return None
    sizes = _commit_sizes(store, listing, segment.commits)
    if not _is_worth_streaming(sum(sizes), base):
        return None
    replay = _BackwardReplay(store, options, segment, base, sizes)
    try:
        metadata = replay.first_metadata()
        while metadata is not None:
            try:
                state, files = replay.run(metadata, config_of(metadata))
                return StreamedState(replace(state, source=files), files)
            except _NewerMetadata as newer:  # the newest one: there is no other after it
                metadata = newer.metadata
    except NotSpillable:
        return None
    except (LogCorrupt, UnsupportedProtocol):
        replay.reader.check(segment.commits)  # what cannot be decoded may not be part of the log
        raise
    return None


def _is_worth_streaming(num_bytes: int, base: State | None) -> bool:
    """Whether the commits after a checkpoint are many, and too many for an incremental one."""
    if num_bytes < STREAMED_LOG_BYTES_MIN or (base is not None and is_state_table(base)):
        return False
    stored = base.source.max_files if base is not None and base.source.checkpoint else 0
    return num_bytes > stored * _ADD_BYTES * _FRESH_SHARE_MIN


def _commit_sizes(store: Store, listing: LogListing, commits: Sequence[CommitFile]) -> list[int]:
    """Return the sizes of commits; of very many, each has that of a neighbour."""
    step = -(-len(commits) // _SIZED_COMMITS_MAX)
    sizes: list[int] = []
    for commit in commits[::step]:
        stat = listing.stats.get(commit.name)
        if stat is None and store.cheap_stat:
            stat = store.stat(commit.key)
        sizes += [_COMMIT_BYTES_ESTIMATE if stat is None else max(stat.size, 1)] * step
    return sizes[: len(commits)]


class _BackwardReplay:
    """One backward replay of a log segment."""

    def __init__(
        self,
        store: Store,
        options: ReadOptions,
        segment: LogSegment,
        base: State | None,
        sizes: Sequence[int],
    ) -> None:
        self.store = store
        self.options = options
        self.segment = segment
        self.base = base
        self.sizes = sizes
        self.reader = CommitReader(store, options.format, options.config)
        self._decoded_ratio = _DECODED_RATIO

    def first_metadata(self) -> Metadata | None:
        """Return the metadata that the segment begins with: as a rule, the newest one."""
        if self.base is not None:
            return self.base.metadata
        first = self._decode(self.segment.commits[:1])
        return max(first.metadata, key=itemgetter(0))[1] if first.metadata else None

    def run(self, metadata: Metadata, config: Config) -> tuple[State, SpilledFiles]:
        """Replay everything, with rows converted by the given metadata, which must be the newest.

        Raises `_NewerMetadata` if it is not.
        """
        segment, options, root = self.segment, self.options, self.store.root
        version, external = segment.version, options.allow_external_paths
        try:
            schema = parse_table_schema(metadata, version, table_format=options.format)
        except LogCorrupt as error:  # a newer one may be intact, and a replay names the file
            raise NotSpillable(str(error)) from error
        partition = metadata.partition_columns
        best = self._choose_sort_columns(schema, partition)
        stream = RowStream(schema, partition, config, best)
        try:
            rest = self._stream_commits(stream, metadata)
            self.reader.check(segment.commits)
            state = replay_actions(
                self.base, rest, version, root, allow_external_paths=external
            ).state
            if state.metadata != metadata or not state.schema.equals(schema):
                raise NotSpillable("the schema depends on the protocol")
            return state, stream.finish()
        except BaseException:
            stream.close()
            raise

    def _stream_commits(self, stream: RowStream, metadata: Metadata) -> ActionBatch:
        """Add the live rows of the segment; returns all actions but those on files."""
        root, external = self.store.root, self.options.allow_external_paths
        seen = SeenKeys()
        blocks: list[ActionBatch] = []
        newest: Metadata | None = None
        has_protocol = False
        for actions in self._blocks():
            if not has_protocol and actions.protocols:
                seq, protocol = max(actions.protocols, key=itemgetter(0))
                self.options.format.check_readable(protocol, actions.place(seq)[0])
                has_protocol = True
            if newest is None and actions.metadata:
                newest = max(actions.metadata, key=itemgetter(0))[1]
                if newest != metadata:
                    raise _NewerMetadata(newest)
            adds, removes = read_file_actions(actions, root, allow_external_paths=external)
            stream.add(_live_adds(adds, removes, seen))
            blocks.append(_without_files(actions))
        self.reader.release_buffers()
        base = self.base
        if base is not None:
            state = replace(base, metadata=metadata, schema=stream.schema)
            if isinstance(base.source, CheckpointFiles) and not base.source.in_memory:
                try:
                    _stream_checkpoint(stream, base.source, state, stream.config, seen)
                except LogCorrupt as error:  # another way to load it may be left
                    raise NotSpillable(str(error)) from error
            else:
                adds = base.adds
                stream.add(_live_adds(adds, adds.slice(0, 0), seen))
        rest = ActionBatch(self.options.format)
        for block in reversed(blocks):
            rest.extend(block)
        return rest

    def _blocks(self) -> Iterator[ActionBatch]:
        """Yield the actions of all commits, the newest first, some commits at a time."""
        commits = self.segment.commits
        stop, read = len(commits), 0
        block_bytes = min(max(_BLOCK_BYTES, sum(self.sizes) // _BLOCKS), _BLOCK_BYTES_MAX)
        while stop:
            start, size = stop - 1, self.sizes[stop - 1]
            while start and (size + self.sizes[start - 1]) * self._decoded_ratio <= block_bytes:
                start -= 1
                size += self.sizes[start]
            actions = self._decode(commits[start:stop])
            decoded = sum(table.nbytes for table in actions.tables["add"])
            self._decoded_ratio = max(decoded / size, 0.25)
            read += size
            memory_limit.check_memory(self.store.root, read, self.options.config.max_memory)
            yield actions
            stop = start

    def _decode(self, commits: Sequence[CommitFile]) -> ActionBatch:
        actions = ActionBatch(self.options.format)
        for run in self.reader.runs(commits):
            actions.extend(run.actions)
        return actions

    def _choose_sort_columns(
        self, schema: pa.Schema, partition_columns: tuple[str, ...]
    ) -> list[str] | None:
        """Return the columns to sort by, judged by samples from all over the log.

        None if samples would be a large share of it: the first block has to do.
        """
        base, commits = self.base, self.segment.commits
        if base is not None and isinstance(base.source, CheckpointFiles):
            best = _choose_from_checkpoint(base.source, replace(base, schema=schema))
            if best is not None:
                return best
        ends = list(accumulate(self.sizes))
        starts = [int(np.searchsorted(ends, ends[-1] * n // _SAMPLES)) for n in range(_SAMPLES)]
        spans = []
        for start in sorted(set(starts)):
            enough = ends[start] - self.sizes[start] + _SAMPLE_BYTES
            spans.append(commits[start : int(np.searchsorted(ends, enough)) + 1])
        num_bytes = sum(self.sizes[s] for s in starts) + _SAMPLES * _SAMPLE_BYTES
        if num_bytes > ends[-1] * _SAMPLED_SHARE_MAX:
            return None
        sample = pa.concat_tables([self._sample(span) for span in spans], promote_options="default")
        if not sample.num_rows:
            return None
        columns = FileStats(sample, schema, partition_columns)
        columns.prepare([*schema.names, *partition_columns])
        return choose_sort_columns(columns)

    def _sample(self, commits: Sequence[CommitFile]) -> pa.Table:
        """Return a copy of some adds of commits, which does not keep the others in memory."""
        root, external = self.store.root, self.options.allow_external_paths
        adds, _ = read_file_actions(self._decode(commits), root, allow_external_paths=external)
        return adds.take(from_numpy(np.arange(min(adds.num_rows, _SAMPLE_ROWS))))


def _live_adds(adds: pa.Table, removes: pa.Table, seen: SeenKeys) -> pa.Table:
    """Return the adds that are live, given the keys of later actions; theirs are seen from now."""
    hashes = seen.hashes(adds["key"])
    live: pa.Array | None = None
    if removes.num_rows or hashes.may_repeat:
        _, live = reconcile_keys(pa.chunked_array([], pa.string()), adds, removes)
    known = seen.find(hashes)
    seen.add(hashes)
    if removes.num_rows:
        seen.add(seen.hashes(removes["key"]))
    if known is not None:
        unknown = from_numpy(~known)
        live = unknown if live is None else pc.and_(live, unknown)
    return adds if live is None else adds.filter(live)


def _without_files(actions: ActionBatch) -> ActionBatch:
    """Return the actions without those on files, and without others that no state has."""
    kept = {*_KEPT_ACTIONS, actions.format.txn_action}
    tables = {name: found if name in kept else [] for name, found in actions.tables.items()}
    return replace(actions, tables=tables)
