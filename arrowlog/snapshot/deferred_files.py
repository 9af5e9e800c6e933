"""Live files in a checkpoint that is read on demand: what all forms of it have in common.

The live files are the checkpoint's rows whose keys no later commit touched, in stored order,
followed by the live adds of those commits (the tail). If the checkpoint turns out to be damaged,
the adds are loaded without it and a warning is issued; the order of rows that were already handed
out does not change.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.log_lines import CHECKPOINT_BYPASSED
from arrowlog.metering import metrics
from arrowlog.snapshot.reconciliation import reconcile_keys
from arrowlog.snapshot.snapshot import BypassedCheckpoint, InMemoryFiles, SourceChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.metering import Metrics
    from arrowlog.snapshot.file_table import FileStats, GroupStats
    from arrowlog.snapshot.snapshot import FileSource

# Live files added after a checkpoint up to which the checkpoint stays unread. With more of them,
# masking and concatenating on every question costs more than reading the checkpoint once.
_TAIL_FILES_MAX = 50_000
NO_ADDS = pa.table({"key": pa.nulls(0, pa.string())})


def report_bypass(root: str, counts: Metrics, item: BypassedCheckpoint) -> None:
    """Log, count and warn of a checkpoint of the table at `root` that cannot be used."""
    counts.add("checkpoints_bypassed")
    CHECKPOINT_BYPASSED.log(table=root, version=item.version, reason=item.reason)
    warnings.warn(f"{root}: {item}", ArrowlogWarning, stacklevel=3)


class DeferredFiles(ABC):
    """A `FileSource` over a checkpoint that is not read yet; subclasses read one form of it.

    `tail` holds the live adds of the commits after the checkpoint, `touched` the keys of all files
    that those commits add or remove. `again` loads all live adds of a version without this
    checkpoint, for the case that it is damaged.
    """

    # The column of `_read` that identifies a file.
    _key_column = "path"

    def __init__(
        self,
        version: int,
        again: Callable[[int], pa.Table],
        tail: pa.Table = NO_ADDS,
        touched: pa.ChunkedArray | None = None,
        warned: list[str] | None = None,
    ) -> None:
        """Read nothing yet. `warned` collects warnings, shared with all sources made from this."""
        self.version = version
        self.tail = tail
        self.touched = touched
        self._warned: list[str] = [] if warned is None else warned
        self._again = again
        self._live_mask: pa.ChunkedArray | None = None  # of the checkpoint's rows; None: all live
        self._keys: pa.ChunkedArray | None = None  # of its live rows, once they were handed out
        self._adds: pa.Table | None = None  # all live adds, once all of them were needed

    @property
    @abstractmethod
    def checkpoint(self) -> int:
        """The version of the checkpoint."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The address of the table, for messages."""

    @property
    def _metrics(self) -> Metrics:
        """What reads count in: the process, unless a subclass knows its store."""
        return metrics

    @property
    @abstractmethod
    def _num_rows(self) -> int:
        """An upper bound of the number of the checkpoint's live files, known without reading."""

    @property
    def _exact(self) -> bool:
        """Whether `_num_rows` is exact."""
        return True

    @abstractmethod
    def _read(self, names: Iterable[str]) -> pa.Table:
        """Read columns of the checkpoint's rows. Raises `LogCorrupt` if it is damaged."""

    @abstractmethod
    def _to_adds(self) -> pa.Table | None:
        """Return all live adds of the checkpoint as the log decoder would; None if damaged."""

    @abstractmethod
    def _replaced(
        self, version: int, tail: pa.Table, touched: pa.ChunkedArray | None
    ) -> DeferredFiles:
        """Return the same checkpoint with another tail."""

    @abstractmethod
    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds that every add has."""

    @abstractmethod
    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""

    @abstractmethod
    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""

    @abstractmethod
    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:
        """Whether `files` and `stats` come from stored typed columns and not from the adds."""

    @abstractmethod
    def row_group_stats(
        self, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> GroupStats | None:
        """Return the statistics of groups of files, for data skipping."""

    @abstractmethod
    def select_row_groups(self, groups: Sequence[int]) -> FileSource:
        """Return the files of some row groups, and the tail."""

    def _in_memory(self, adds: pa.Table) -> InMemoryFiles:
        """Return a source over all live adds."""
        return InMemoryFiles(adds)

    def _shown_keys(self) -> pa.ChunkedArray | None:
        """Return the keys of the checkpoint's live rows, if they were handed out in this order."""
        return self._keys

    @property
    def _partial(self) -> bool:
        """Whether the checkpoint's rows may be a part of its live files."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the live adds: the receiver may not be able to reach the store."""
        files = self._in_memory(self.adds())
        return InMemoryFiles, (files.table, files.format)

    @property
    def in_memory(self) -> bool:
        """Whether all live adds were read."""
        return self._adds is not None

    @property
    def held_bytes(self) -> int:
        """The memory of the tail, and of the adds if they were read."""
        return int(self.tail.nbytes) + (0 if self._adds is None else int(self._adds.nbytes))

    @property
    def warnings(self) -> Sequence[str]:
        """Why the checkpoint could not be used, if it turned out to be damaged."""
        return self._warned

    @property
    def num_files(self) -> int:
        """The number of live files. Reads the keys if later commits touched any file."""
        if self._adds is not None:
            return int(self._adds.num_rows)
        if self.touched is None and self._exact:
            return self._num_rows + int(self.tail.num_rows)
        rows = self.stored(())
        if rows is None:  # damaged: all adds are loaded now, so this recurses once
            return self.num_files
        return int(rows.num_rows + self.tail.num_rows)

    @property
    def max_files(self) -> int:
        """The number of the checkpoint's rows and of the adds after it."""
        return self._num_rows + int(self.tail.num_rows)

    def stored(self, names: Iterable[str]) -> pa.Table | None:
        """Read columns of the checkpoint's rows that are still live, their key included.

        Returns None if the checkpoint is damaged; all adds are in memory then.
        """
        if self._keys is None and self._adds is not None:
            return None
        try:
            rows = self._read(names)
        except LogCorrupt as error:
            self._fall_back(error)
            return None
        keys = rows[self._key_column]
        if self._keys is None and self.touched is not None:
            dead = pc.is_in(keys, value_set=self.touched.combine_chunks())
            self._live_mask = pc.invert(dead) if pc.any(dead).as_py() else None
        rows = rows if self._live_mask is None else rows.filter(self._live_mask)
        if self._keys is None:
            self._keys = rows[self._key_column]
        return rows

    def adds(self) -> pa.Table:
        """Return all live adds, as the log decoder would."""
        if self._adds is None:
            base = self._to_adds()
            if base is not None:
                self._adds = pa.concat_tables([base, self.tail], promote_options="default")
        assert self._adds is not None
        return self._adds

    def narrowed(
        self,
        schema: pa.Schema,  # noqa: ARG002 -- of the protocol
        partition_columns: Sequence[str],  # noqa: ARG002 -- of the protocol
        keep: Callable[[FileStats], pa.Array],  # noqa: ARG002 -- of the protocol
    ) -> FileSource:
        """Return all files: row groups are skipped instead."""
        return self

    def with_commits(self, version: int, adds: pa.Table, removes: pa.Table) -> SourceChange:
        """Return the live files after commits; the checkpoint stays unread unless many are new."""
        if self._adds is not None:
            return self._in_memory(self._adds).with_commits(version, adds, removes)
        kept, live = reconcile_keys(self.tail["key"], adds, removes)
        fresh = adds if live is None else adds.filter(live)
        still_live = self.tail if kept is None else self.tail.filter(kept)
        tail = pa.concat_tables([still_live, fresh], promote_options="default")
        touched = pa.chunked_array([*adds["key"].chunks, *removes["key"].chunks], pa.string())
        before = [] if self.touched is None else self.touched.chunks
        keys = pa.chunked_array([*before, *touched.chunks], pa.string())
        source: FileSource = self._replaced(version, tail, keys if len(keys) else None)
        if tail.num_rows > max(_TAIL_FILES_MAX, self._num_rows // 2):
            source = self._in_memory(source.adds())
        return SourceChange(source, fresh, lambda: self._mask_excluding(touched))

    def _mask_excluding(self, keys: pa.ChunkedArray) -> pa.Array | None:
        """Return a mask of the live files that are not among `keys`; None if none is."""
        hit = pc.is_in(self.column("key"), value_set=keys.combine_chunks()).combine_chunks()
        return pc.invert(hit) if hit.true_count else None

    def _fall_back(self, error: LogCorrupt) -> None:
        """Load the adds without the checkpoint, keeping the order of rows already handed out."""
        adds = self._load_again(error)  # raises if it is impossible: then a warning says nothing
        item = BypassedCheckpoint(self.checkpoint, str(error))
        if str(item) not in self._warned:
            self._warned.append(str(item))
            report_bypass(self.root, self._metrics, item)
        keys = self._shown_keys()
        if keys is not None:
            order = pa.chunked_array([*keys.chunks, *self.tail["key"].chunks], pa.string())
            rows = pc.index_in(order, value_set=adds["key"].combine_chunks())
            if rows.null_count or not (self._partial or len(rows) == adds.num_rows):
                what = "the checkpoint has files that are not live by a replay of the commits."
                raise LogCorrupt(what, version=self.checkpoint) from error
            adds = adds.take(rows)
        self._adds, self._keys = adds, None

    def _load_again(self, error: LogCorrupt) -> pa.Table:
        """Load the adds without the checkpoint, which has the given error."""
        del error
        return self._again(self.version)
