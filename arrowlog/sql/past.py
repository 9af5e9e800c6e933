"""The commits of a table, decoded block by block when somebody asks for them.

A block is a run of commits. It is read when first needed and cut into pieces, a window of the log
each. What is decoded stays in memory up to `history.maxMemory`; what comes after goes to files in a
temporary folder, and is mapped into memory as far as it is looked at.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import ForkSafeLock, pl
from arrowlog.log.actions import FIELDS
from arrowlog.log.arrays import number
from arrowlog.log.names import LOG
from arrowlog.log.segment import checkpoint_versions
from arrowlog.log.window import LINE_BITS
from arrowlog.state.apply import check_readable, check_whole, keyed
from arrowlog.state.load import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata, Protocol
    from arrowlog.log.decode import Actions
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

BLOCK_COMMITS = 2048
_KEYED = ("add", "remove", "mergeskip")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some commits, decoded: tables by action, and what each file of the log is.

    File number i is `names[i]` of version `versions[i]`; a line's file number is in its `seq`.
    """

    names: tuple[str, ...]
    versions: pa.Array
    tables: dict[str, pa.Table | str]  # or the file that holds it
    protocols: tuple[tuple[int, Protocol], ...]
    metadata: tuple[tuple[int, Metadata], ...]

    def table(self, action: str) -> pa.Table:
        """All actions of one kind."""
        found = self.tables[action]
        if isinstance(found, str):
            with pa.memory_map(found) as source:
                return pa.ipc.open_stream(source).read_all()
        return found

    def version_of(self, seq: pa.ChunkedArray) -> pa.ChunkedArray:
        """The versions that lines are of."""
        return pc.take(self.versions, pc.shift_right(seq, number(LINE_BITS)))


def line_of(seq: pa.ChunkedArray) -> pa.ChunkedArray:
    """The number of a line in its file."""
    return pc.bit_wise_and(seq, number((1 << LINE_BITS) - 1))


@contextmanager
def gone_is_corrupt(store: Store) -> Iterator[None]:
    """Raise `LogCorrupt` for a commit that is in the listing and cannot be found."""
    try:
        yield
    except FileNotFoundError as error:
        raise LogCorrupt(
            "it was listed, and is gone.",
            next="A clean-up may have taken it meanwhile; ask again.",
            file=str(error).removeprefix(f"{store.root}/"),
        ) from error


class Past:
    """What the log of a table says from its earliest readable version on.

    1. `first` is the earliest version that can be read, `last` the newest.
    2. Every version in between has its commit here, except those in `holes`: their commits are gone
       and a checkpoint stands in their place.
    3. Commits below `first` are no part of it, whether they are still there or not.
    """

    def __init__(
        self, store: Store, listing: Listing, config: Config, first: int, last: int
    ) -> None:
        """Nothing is read yet."""
        self.store = store
        self.config = config
        self.listing = listing
        self.first = first
        self.last = last
        here = range(first, last + 1)
        self.commits = [(v, listing.commits[v]) for v in here if v in listing.commits]
        self.holes = [v for v in here if v not in listing.commits]
        self.watch: Callable[[int, int], None] | None = None
        self.failure: Exception | None = None  # what went wrong while DuckDB was asking
        self._lock = ForkSafeLock(self._after_torn_fork)
        self._blocks: dict[int, list[Piece]] = {}
        self._held = 0
        self._folder: str | None = None
        self._written: dict[int, int] | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing was cleaned away."""
        return self.first == 0 and not self.holes

    def note(self) -> str:
        """What is not known of the past, in a sentence; empty if all is."""
        parts = []
        if self.first:
            parts.append(
                f"history begins with version {self.first}: what came before was cleaned up"
            )
        gone = [str(version) for version in self.holes if version != self.first]
        if gone:
            parts.append(
                f"the commits of versions {', '.join(gone)} are gone, and checkpoints tell what"
                " they left"
            )
        return "; ".join(parts)

    def ranges(self) -> list[tuple[int, int]]:
        """The versions each block begins and ends with."""
        steps = range(0, len(self.commits), BLOCK_COMMITS)
        runs = [self.commits[at : at + BLOCK_COMMITS] for at in steps]
        return [(run[0][0], run[-1][0]) for run in runs]

    def pieces(self, blocks: Sequence[int] | None = None) -> Iterator[Piece]:
        """All commits, or those of some blocks, in order; each is decoded once."""
        for block in range(len(self.ranges())) if blocks is None else blocks:
            yield from self._block(block)

    def recent(self, count: int) -> Iterator[Piece]:
        """The newest commits alone, which are not kept."""
        yield from self._read(self.commits[max(0, len(self.commits) - count) :])

    def _read(self, commits: Sequence[tuple[int, str]]) -> Iterator[Piece]:
        with gone_is_corrupt(self.store):
            for actions in stream(self.store, self.config, commits):
                yield _piece(actions, self.store.root)

    def _after_torn_fork(self) -> None:
        self._written = None

    def written(self, version: int) -> int | None:
        """When the file of a commit was written, by the store's clock; one listing for all."""
        with self._lock:
            if self._written is None:
                found = self.store.stats_from(LOG)
                names = {name: version for version, name in self.commits}
                self._written = {names[n]: s.mtime_ms for n, s in found.items() if n in names}
        return self._written.get(version)

    def checkpoints(self) -> list[int]:
        """Versions that have a checkpoint, oldest first."""
        return checkpoint_versions(self.listing)[::-1]

    def _block(self, block: int) -> list[Piece]:
        with self._lock:
            found = self._blocks.get(block)
            if found is None:
                start = block * BLOCK_COMMITS
                run = self.commits[start : start + BLOCK_COMMITS]
                found = [self._kept(piece) for piece in self._read(run)]
                self._blocks[block] = found
                if self.watch is not None:
                    self.watch(min(start + len(run), len(self.commits)), len(self.commits))
            return found

    def _kept(self, piece: Piece) -> Piece:
        """The piece in memory, or if there is much already, in files."""
        tables: dict[str, Any] = {}
        for action in FIELDS:
            table = piece.table(action)
            if self._held + table.nbytes <= self.config.history_memory or not table.num_rows:
                self._held += table.nbytes
                tables[action] = table
            else:
                tables[action] = self._spilled(table)
        return Piece(piece.names, piece.versions, tables, piece.protocols, piece.metadata)

    def _spilled(self, table: pa.Table) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="arrowlog-history-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = os.path.join(self._folder, f"{len(os.listdir(self._folder))}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        return path

    @property
    def folder(self) -> str | None:
        """Where what does not fit into memory is; None if everything does."""
        return self._folder


def _piece(actions: Actions, root: str) -> Piece:
    """Decoded commits, checked to be whole as a reader of the table checks them."""
    for seq, protocol in actions.protocols:
        check_readable(protocol, actions.place(seq)[0])
    check_whole(actions)
    tables: dict[str, pa.Table | str] = {
        action: keyed(actions, action, root)[0] for action in _KEYED
    }
    tables["commitInfo"] = actions.table("commitInfo")
    versions = pl.Series(actions.versions, dtype=pl.Int64).to_arrow()
    return Piece(
        tuple(actions.names),
        versions,
        tables,
        tuple(sorted(actions.protocols, key=lambda found: found[0])),
        tuple(sorted(actions.metadata, key=lambda found: found[0])),
    )
