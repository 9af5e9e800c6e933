"""The commits of a table, decoded in blocks on demand.

A block is a run of `COMMITS_PER_BLOCK` commits. It is read when a query first needs it, as a
sequence of pieces, one per batch of actions that the reader yields. Decoded tables stay in memory
up to `history.maxMemory`; beyond that they are spilled to Arrow files in a temporary folder, which
are memory-mapped when a query reads them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, make_int64, repeat_bool, repeat_value
from arrowlog.decode import SEQ_LINE_BITS, ActionBatch
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import ForkSafeLock, pl
from arrowlog.formats import CommitFile
from arrowlog.snapshot import (
    checkpoint_versions,
    files_table,
    load_snapshot,
    stream_actions,
    unreadable_states,
    validate_commit_integrity,
    with_file_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.formats import Format, LogListing, Metadata, Protocol
    from arrowlog.snapshot import ReadOptions, Snapshot
    from arrowlog.storage import Store

# Commits per block, the unit of lazy reading and of progress reports. A filter on `version` skips
# whole blocks.
COMMITS_PER_BLOCK = 2048
_FILE_ACTIONS = ("add", "remove", "mergeskip")
# Of an action that the format does not have, or that no commit has.
_NO_ACTIONS = pa.table(
    {
        "seq": pa.nulls(0, pa.int64()),
        "path": pa.nulls(0, pa.string()),
        "key": pa.nulls(0, pa.string()),
    }
)
# Of two states: the same statistics may be written as several texts.
_NOT_COMPARED = {"path", "stats"}


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """A batch of decoded commits: one table per kind of action.

    Commit file number i is `names[i]`, of version `versions[i]`. The column `seq` of a table holds
    the file number in its upper bits and the line number in its lower `SEQ_LINE_BITS` bits.
    """

    names: tuple[str, ...]
    versions: pa.Array
    tables: dict[str, pa.Table | str]  # a path if the table was spilled
    protocols: tuple[tuple[int, Protocol], ...]
    metadata: tuple[tuple[int, Metadata], ...]
    format: Format
    # Milliseconds by file number, of versions that are table states without a commit.
    state_times: tuple[tuple[int, int], ...] = ()
    # Whether the actions are unknown: a version that has to be compared cannot be read.
    unknown: bool = False

    def table(self, action: str) -> pa.Table:
        """Return all actions of one kind; maps the file into memory if the table was spilled."""
        table = self.tables.get(action, _NO_ACTIONS)
        if isinstance(table, str):
            with pa.memory_map(table) as source:
                return pa.ipc.open_stream(source).read_all()
        return table

    def version_of(self, seq: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the version of each sequence number."""
        return pc.take(self.versions, pc.shift_right(seq, make_int64(SEQ_LINE_BITS)))


def line_numbers(seq: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the line number, counted within its file, of each sequence number."""
    return pc.bit_wise_and(seq, make_int64((1 << SEQ_LINE_BITS) - 1))


@contextmanager
def missing_commit_is_corrupt(store: Store) -> Iterator[None]:
    """Turn the `FileNotFoundError` of a commit that was listed into `LogCorrupt`.

    The original error is its `__cause__`, by which `HistorySession` recognizes a concurrent
    cleanup.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise LogCorrupt(
            "the file was listed but no longer exists.",
            next="A concurrent cleanup may have deleted it; run the query again.",
            file=str(error).removeprefix(f"{store.root}/"),
        ) from error


class CommitHistory:
    """The commits of a table from its earliest readable version on.

    Invariants:

    1. `first` is the earliest version that can be read, `last` the newest.
    2. `commits` has every version from `first` to `last` except those in `missing_versions`, whose
       commits are gone and whose state comes from a checkpoint. Where a table state is the commit,
       its file stands in `commits`, and its actions are how it differs from the version before.
    3. Commits below `first` are ignored, whether their files still exist or not.
    4. What changed in a version that is a table state is unknown if it or the version before cannot
       be read. It has a row without numbers, and its files are those of the next readable version.

    Thread-safe: blocks are decoded under a lock, each at most once.
    """

    def __init__(
        self, store: Store, listing: LogListing, options: ReadOptions, first: int, last: int
    ) -> None:
        """Select the commits from `first` to `last`; reads none of them."""
        self.store = store
        self.options = options
        self.listing = listing
        self.first = first
        self.last = last
        applied = listing.applied_commits()
        self.commits: list[CommitFile] = []
        self.missing_versions: list[int] = []
        self._has_states = False  # whether some of `commits` are table states
        versions = range(first, last + 1)
        if not listing.checkpoints and all(map(applied.__contains__, versions)):
            self.commits, versions = listing.commit_files(versions), range(0)
        for version in versions:
            state = listing.state_file(version)
            if version in applied:
                self.commits.append(CommitFile(version, applied[version]))
            elif state is not None:
                self.commits.append(state)
                self._has_states = True
            else:
                self.missing_versions.append(version)
        self._applied = applied
        self._unreadable: set[int] | None = None
        self._newest_state: Snapshot | None = None  # of the last state that was read
        self.on_progress: Callable[[int, int], None] | None = (
            None  # progress: commits read, of how many
        )
        # The error that ended a scan. DuckDB passes on only its message, not the exception.
        self.failure: Exception | None = None
        self._lock = ForkSafeLock(self._after_torn_fork)
        self._blocks: dict[int, list[CommitBatch]] = {}
        self._bytes_in_memory = 0
        self._spill_folder: str | None = None
        self._write_times: dict[int, int] | None = None  # milliseconds by version

    def unreadable_versions(self) -> set[int]:
        """Return the versions that only a table state gives, and that it cannot; looks once."""
        if self._unreadable is None:
            config = self.options.config
            self._unreadable = unreadable_states(
                self.store, self.listing, config, self.first, self.last
            )
        return self._unreadable

    def resumed_versions(self) -> list[int]:
        """Return the versions that can be read, and the version right before them cannot."""
        unreadable = self.unreadable_versions()
        return [v + 1 for v in sorted(unreadable) if v + 1 <= self.last and v + 1 not in unreadable]

    def readable_before(self, version: int) -> int:
        """Return the last version below another one that can be read; there must be one."""
        unreadable = self.unreadable_versions()
        return next(v for v in range(version - 1, -1, -1) if v not in unreadable)

    @property
    def whole(self) -> bool:
        """Whether the commits of all versions from 0 on exist."""
        return self.first == 0 and not self.missing_versions and 0 in self._applied

    def note(self) -> str:
        """Describe in one sentence which part of the history is missing; "" if it is complete."""
        parts = []
        if self.first:
            parts.append(
                f"history begins with version {self.first}: earlier versions were cleaned up"
            )
        missing = [str(version) for version in self.missing_versions if version != self.first]
        if missing:
            parts.append(
                f"the commits of versions {', '.join(missing)} are gone; checkpoints provide the"
                " state at these versions"
            )
        unreadable = sorted(self.unreadable_versions())
        if unreadable:
            versions = ", ".join(map(str, unreadable))
            parts.append(
                f"versions {versions} cannot be read, as files of their table states are gone: what"
                " changed in them is unknown"
            )
        return "; ".join(parts)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and the last version of each block."""
        starts = range(0, len(self.commits), COMMITS_PER_BLOCK)
        blocks = [self.commits[start : start + COMMITS_PER_BLOCK] for start in starts]
        return [(block[0].version, block[-1].version) for block in blocks]

    def pieces(self, blocks: Sequence[int] | None = None) -> Iterator[CommitBatch]:
        """Yield the pieces of all blocks, or of the given ones, in log order.

        A block is decoded on first use and kept. Raises `LogCorrupt` if a commit is damaged or was
        deleted since it was listed.
        """
        for block in range(len(self.ranges())) if blocks is None else blocks:
            yield from self._block(block)

    def recent(self, count: int) -> Iterator[CommitBatch]:
        """Yield the pieces of the newest `count` commits; they are not kept."""
        yield from self._read(self.commits[max(0, len(self.commits) - count) :])

    def _read(self, commits: Sequence[CommitFile]) -> Iterator[CommitBatch]:
        with missing_commit_is_corrupt(self.store):
            if not self._has_states:
                for actions in stream_actions(self.store, self.options, commits):
                    yield _checked_piece(actions, self.store.root)
                return
            for has_commits, run in groupby(commits, lambda c: c.version in self._applied):
                if has_commits:
                    for actions in stream_actions(self.store, self.options, list(run)):
                        yield _checked_piece(actions, self.store.root)
                else:
                    for state in run:
                        yield self._state_piece(state)

    def _state_piece(self, file: CommitFile) -> CommitBatch:
        """Return the actions that lead to a table state from the version before.

        They are unknown if one of the two cannot be read, unless it is the newest version.
        """
        if file.version == self.first:
            return self._unknown_piece(file)
        try:
            before = self._newest_state
            if before is None or before.version != file.version - 1:
                before = self._load(file.version - 1)
            after = self._load(file.version)
            piece = state_difference(before, after, file)
        except (LogCorrupt, InvalidRequest):
            if file.version == self.last:
                self._load(file.version).state.column("key")  # raises if it is the newest
            self._newest_state = None
            return self._unknown_piece(file)
        self._newest_state = after
        return piece

    def _unknown_piece(self, file: CommitFile) -> CommitBatch:
        """Return a version without actions; its time is that of its state, if that is readable."""
        actions = ActionBatch(self.listing.format)
        time_ms = None
        with suppress(LogCorrupt, InvalidRequest):
            time_ms = self._load(file.version).state.timestamp
        tables: dict[str, pa.Table | str] = {
            action: with_file_keys(actions, action, "")[0] for action in _FILE_ACTIONS
        }
        return CommitBatch(
            (file.key,),
            make_array([file.version], pa.int64()),
            {**tables, "commitInfo": actions.table("commitInfo")},
            (),
            (),
            self.listing.format,
            () if time_ms is None else ((0, time_ms),),
            unknown=True,
        )

    def _load(self, version: int) -> Snapshot:
        return load_snapshot(self.store, self.listing, self.options, version)

    def _after_torn_fork(self) -> None:
        """Drop what a thread of the parent was setting under the lock when the process forked."""
        self._write_times = None

    def written(self, version: int) -> int | None:
        """Return when the file of a commit was written, in milliseconds by the store's clock.

        None if the file is gone. The first call lists the log, once for all versions.
        """
        with self._lock:
            if self._write_times is None:
                stats = self.store.stats_from(self.listing.format.log_folder)
                versions = {commit.name: commit.version for commit in self.commits}
                self._write_times = {
                    versions[name]: stat.mtime_ms
                    for name, stat in stats.items()
                    if name in versions
                }
        return self._write_times.get(version)

    def checkpoints(self) -> list[int]:
        """Return the versions that have a checkpoint, oldest first."""
        return checkpoint_versions(self.listing)[::-1]

    def _block(self, block: int) -> list[CommitBatch]:
        with self._lock:
            pieces = self._blocks.get(block)
            if pieces is None:
                start = block * COMMITS_PER_BLOCK
                commits = self.commits[start : start + COMMITS_PER_BLOCK]
                pieces = [self._keep(piece) for piece in self._read(commits)]
                self._blocks[block] = pieces
                if self.on_progress is not None:
                    self.on_progress(
                        min(start + len(commits), len(self.commits)), len(self.commits)
                    )
            return pieces

    def _keep(self, piece: CommitBatch) -> CommitBatch:
        """Return the piece with the tables that exceed `history.maxMemory` spilled to files."""
        tables: dict[str, Any] = {}
        for action in piece.tables:
            table = piece.table(action)
            if (
                self._bytes_in_memory + table.nbytes <= self.options.config.history_memory
                or not table.num_rows
            ):
                self._bytes_in_memory += table.nbytes
                tables[action] = table
            else:
                tables[action] = self._spill(table)
        return replace(piece, tables=tables)

    def _spill(self, table: pa.Table) -> str:
        if self._spill_folder is None:
            self._spill_folder = tempfile.mkdtemp(prefix="arrowlog-history-")
            weakref.finalize(self, shutil.rmtree, self._spill_folder, ignore_errors=True)
        path = os.path.join(self._spill_folder, f"{len(os.listdir(self._spill_folder))}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return path

    @property
    def folder(self) -> str | None:
        """The folder of spilled tables; None if everything fits in memory."""
        return self._spill_folder


def state_difference(before: Snapshot, after: Snapshot, file: CommitFile) -> CommitBatch:
    """Return what changed from one version to the next as the actions of a commit."""
    old, new = before.state.adds, after.state.adds
    position = pc.index_in(new["key"], value_set=old["key"].combine_chunks()).combine_chunks()
    changed = pc.is_null(position)
    both = pc.indices_nonzero(pc.is_valid(position))
    if len(both):
        differs = _differing_rows(old.take(position.take(both)), new.take(both), after)
        changed = pc.or_(changed, pc.is_in(_row_numbers(len(position)), both.filter(differs)))
    added = new.filter(changed)
    gone = pc.is_null(pc.index_in(old["key"], value_set=new["key"].combine_chunks()))
    dropped = old.filter(gone)
    removed = pa.table(
        {
            "seq": pc.cast(_row_numbers(dropped.num_rows), pa.int64()),
            "path": dropped["path"],
            "deletionTimestamp": repeat_value(after.state.timestamp, pa.int64(), dropped.num_rows),
            "size": before.state.column("size").filter(gone)
            if old.num_rows
            else pa.nulls(0, pa.int64()),
            "key": dropped["key"],
        }
    )
    lines = pc.add(_row_numbers(added.num_rows), pa.scalar(dropped.num_rows, pa.uint64()))
    adds = added.drop_columns(["seq"]) if "seq" in added.column_names else added
    actions = ActionBatch(after.state.format)
    tables: dict[str, pa.Table | str] = {
        "add": adds.append_column("seq", pc.cast(lines, pa.int64())),
        "remove": removed,
        "mergeskip": with_file_keys(actions, "mergeskip", "")[0],
        "commitInfo": actions.table("commitInfo"),
    }
    count = added.num_rows + dropped.num_rows
    return CommitBatch(
        (file.key,),
        make_array([file.version], pa.int64()),
        tables,
        () if after.protocol == before.protocol else ((count, after.protocol),),
        () if after.metadata == before.metadata else ((count + 1, after.metadata),),
        after.state.format,
        () if after.state.timestamp is None else ((0, after.state.timestamp),),
    )


def _row_numbers(count: int) -> pa.Array:
    return pl.int_range(count, dtype=pl.UInt64, eager=True).to_arrow()


def _differing_rows(old: pa.Table, new: pa.Table, snapshot: Snapshot) -> pa.Array:
    """Return which rows differ in a typed column; both tables have the same files in one order."""
    schema, partition_columns = snapshot.schema, snapshot.partition_columns
    sides = [
        files_table(table, schema, partition_columns, table_format=snapshot.state.format)
        for table in (old, new)
    ]
    differs = repeat_bool(False, new.num_rows)
    for name in set(sides[0].column_names) - _NOT_COMPARED:
        before, after = (_without_dictionary(side[name].combine_chunks()) for side in sides)
        if pa.types.is_nested(after.type):
            continue
        unequal = pc.fill_null(pc.not_equal(before, after), FALSE)
        one_null = pc.xor(pc.is_null(before), pc.is_null(after))
        differs = pc.or_(differs, pc.or_(unequal, one_null))
    return differs


def _without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _checked_piece(actions: ActionBatch, root: str) -> CommitBatch:
    """Check decoded commits as log replay does, and add the file key to file actions.

    Raises `UnsupportedProtocol` if a commit needs a newer reader, and `LogCorrupt` if an action
    count or checksum is wrong.
    """
    for seq, protocol in actions.protocols:
        actions.format.check_readable(protocol, actions.place(seq)[0])
    validate_commit_integrity(actions)
    tables: dict[str, pa.Table | str] = {
        action: with_file_keys(actions, action, root)[0]
        for action in _FILE_ACTIONS
        if actions.tables.get(action)
    }
    for action in ("commitInfo", actions.format.txn_action):
        if action is not None:
            tables[action] = actions.table(action)
    return CommitBatch(
        tuple(actions.names),
        make_array(actions.versions, pa.int64()),
        tables,
        tuple(sorted(actions.protocols, key=itemgetter(0))),
        tuple(sorted(actions.metadata, key=itemgetter(0))),
        actions.format,
    )
