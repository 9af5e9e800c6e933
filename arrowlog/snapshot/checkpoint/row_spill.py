"""The rows of a large checkpoint in a temporary file, until they are written in their order.

Rows arrive in runs: those of some commits, or of some row groups of an earlier checkpoint. A run is
sorted as the checkpoint will be, so that neighbours of the checkpoint are neighbours in each run,
and is written in small batches. Gathering some rows of the checkpoint then reads a few batches of
each run. The file has no name: it vanishes with the process.

Runs may differ in which columns they have, and in which texts can be rebuilt from typed columns. A
text that can be rebuilt in all runs is rebuilt in the checkpoint; otherwise it is stored, and runs
without it render it when they are read.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import LOW_PEAK_POOL, empty_table, from_numpy, repeat_bool, to_numpy
from arrowlog.snapshot.checkpoint.rows import (
    RebuildRecipe,
    from_checkpoint_rows,
    render_as_text,
)
from arrowlog.snapshot.snapshot import InMemoryFiles, UngroupedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from arrowlog.formats import Format
    from arrowlog.snapshot.file_table import FileStats
    from arrowlog.snapshot.snapshot import SourceChange

# Rows that are written and read at a time. Two row groups of a checkpoint are gathered at a time;
# fewer rows cost more calls, more rows are read in vain at the ends of what is needed.
_BATCH_ROWS = 1 << 9
# Rows of all files that are read at a time where all of them are needed.
_READ_ROWS = 1 << 15
# More columns than a checkpoint can have: maps with ever different keys in different runs.
_COLUMNS_MAX = 10_000
_UNREADABLE = "unreadable."
# For what is allocated again and again while a checkpoint is written, in several threads.
SPILL_POOL = LOW_PEAK_POOL


class NotSpillable(Exception):
    """The rows do not fit one table, or there is no room for a temporary file."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows that were appended together: their columns, and what can be rebuilt from them."""

    schema: pa.Schema
    recipe: RebuildRecipe


class RowSpill:
    """Rows of a checkpoint in a temporary file: appended in runs, then gathered in any order."""

    def __init__(self) -> None:
        """Open a file in the folder for temporary files.

        Raises `NotSpillable` if there is none that can be written.
        """
        try:
            # Closed with the rows, which outlive this call.
            self._file = tempfile.TemporaryFile(prefix="arrowlog-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise NotSpillable(str(error)) from None
        self._runs: list[_Run] = []
        self._run_of: list[int] = []  # by batch
        self._rows: list[int] = []  # by batch: how many
        self._offsets: list[int] = [0]  # in the file, by batch, and the end
        self._dictionaries: set[str] = set()
        self._conforms: list[bool] = []  # by run: whether it has the columns of all
        self._local = local()
        self._starts = np.zeros(1, np.int64)
        self.nbytes = 0
        self.num_rows = 0
        self.schema = self._plain_schema = pa.schema([])  # the latter without dictionaries
        self.recipe = RebuildRecipe((), {})

    def close(self) -> None:
        """Give the memory on disk back."""
        self._file.close()

    def append(self, rows: pa.Table, recipe: RebuildRecipe) -> None:
        """Write rows, numbered from `num_rows` on, with what can be rebuilt from them.

        Raises `NotSpillable` if the file cannot be written.
        """
        if not rows.num_rows:
            return
        plain = self._without_dictionaries(rows).combine_chunks()
        self._runs.append(_Run(plain.schema, recipe))
        for batch in plain.to_batches(max_chunksize=_BATCH_ROWS):
            data = batch.serialize()
            try:
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) :]
            except OSError as error:
                raise NotSpillable(str(error)) from None
            self._offsets.append(self._offsets[-1] + data.size)
            self._run_of.append(len(self._runs) - 1)
            self._rows.append(batch.num_rows)
        self.num_rows += rows.num_rows
        self.nbytes += plain.nbytes

    def _without_dictionaries(self, rows: pa.Table) -> pa.Table:
        """Return the rows with plain texts: a batch alone does not have its dictionaries."""
        for at, item in enumerate(rows.schema):
            if pa.types.is_dictionary(item.type):
                self._dictionaries.add(item.name)
                kind = item.type.value_type
                rows = rows.set_column(at, item.name, rows[item.name].cast(kind))
        return rows

    def seal(self) -> None:
        """Decide on the columns and the recipe of all rows; none are appended any more.

        Raises `NotSpillable` if a column has types that do not go together.
        """
        self._starts = np.concatenate([[0], np.cumsum(self._rows)]).astype(np.int64)
        rebuilt = self._rebuilt_everywhere()
        typed = dict.fromkeys(name for run in self._runs for name in run.recipe.typed)
        kinds: dict[str, pa.DataType] = {"path": pa.string()}
        for run in self._runs:
            for item in run.schema:
                if item.name not in typed:
                    self._unify(kinds, item.name, item.type)
            for name, (source, form) in run.recipe.rebuilt.items():
                if name not in rebuilt:
                    same = run.schema.field(source).type if form == "as it is" else pa.string()
                    self._unify(kinds, name, same)
        for run in self._runs:
            for name in run.recipe.typed:
                self._unify(kinds, name, run.schema.field(name).type)
        if len(kinds) > _COLUMNS_MAX:
            raise NotSpillable("too many columns")
        self.schema = self._plain_schema = pa.schema(list(kinds.items()))
        for name in self._dictionaries:
            at = self.schema.get_field_index(name)
            kind = pa.dictionary(pa.int32(), kinds[name])
            self.schema = self.schema.set(at, pa.field(name, kind))
        self.recipe = RebuildRecipe(tuple(typed), rebuilt)
        self._conforms = [run.schema.equals(self._plain_schema) for run in self._runs]

    @staticmethod
    def _unify(kinds: dict[str, pa.DataType], name: str, kind: pa.DataType) -> None:
        known = kinds.get(name, pa.null())
        if pa.types.is_null(known):
            kinds[name] = kind
        elif known != kind and not pa.types.is_null(kind):
            raise NotSpillable(f"the column {name} is {known} and {kind}")

    def _rebuilt_everywhere(self) -> dict[str, tuple[str, str]]:
        """Return the texts that every run can do without, and how they are rebuilt.

        In a run that does not have the text, its source must be absent as well: it would be rebuilt
        although no add has it.
        """
        wanted = {name: how for run in self._runs for name, how in run.recipe.rebuilt.items()}
        return {
            name: how
            for name, how in wanted.items()
            if all(
                run.recipe.rebuilt.get(name) == how
                or (
                    name not in run.recipe.rebuilt
                    and name not in run.schema.names
                    and how[0] not in run.schema.names
                )
                for run in self._runs
            )
        }

    def slice(self, start: int, count: int) -> pa.Table:
        """Return up to `count` rows from a number on, in the order in which they were appended."""
        return self.take(
            from_numpy(np.arange(start, max(start, min(start + count, self.num_rows))))
        )

    def take(self, rows: pa.Array) -> pa.Table:
        """Return some rows, given by their numbers, in that order, with the columns of all."""
        numbers = to_numpy(rows).astype(np.int64)
        batches = np.searchsorted(self._starts, numbers, side="right") - 1
        needed = np.zeros(len(self._rows), np.bool_)
        needed[batches] = True
        chosen = np.flatnonzero(needed)
        sizes = np.diff(self._starts)[chosen]
        # Where each batch begins among the rows that are read.
        begins = np.zeros(len(self._rows), np.int64)
        begins[chosen] = np.cumsum(sizes) - sizes
        positions = begins[batches] + numbers - self._starts[batches]
        used = np.zeros(int(sizes.sum()), np.bool_)
        used[positions] = True
        read = self._read(chosen.tolist(), used)
        # Their places among the rows that are used.
        places = (np.cumsum(used) - 1)[positions]
        table = pa.concat_tables([empty_table(self._plain_schema), *read])
        # Both copy, so that the memory that was read into can be used again.
        table = pc.take(
            table.combine_chunks(memory_pool=SPILL_POOL), from_numpy(places), memory_pool=SPILL_POOL
        )
        for name in self._dictionaries:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table[name].dictionary_encode())
        return table if table.schema == self.schema else table.cast(self.schema)

    def _read(self, chosen: Sequence[int], used: NDArray[np.bool_]) -> Iterator[pa.Table]:
        """Yield the rows of some batches that are used, those of a run that follow each other."""
        lengths = [self._offsets[number + 1] - self._offsets[number] for number in chosen]
        memory, view = self._reading_memory(sum(lengths))
        at = position = row = 0
        while at < len(chosen):
            stop, run = at + 1, self._run_of[chosen[at]]
            while (
                stop < len(chosen)
                and chosen[stop] == chosen[stop - 1] + 1
                and self._run_of[chosen[stop]] == run
            ):
                stop += 1
            size = sum(lengths[at:stop])
            self._fill(view[position : position + size], self._offsets[chosen[at]])
            batches = []
            for length in lengths[at:stop]:
                message = memory.slice(position, length)
                batches.append(pa.ipc.read_record_batch(message, self._runs[run].schema))
                position += length
            rows = pa.Table.from_batches(batches)
            some = _only_used(rows, used[row : row + rows.num_rows])
            yield some if self._conforms[run] else self._conform(some, self._runs[run])
            row += rows.num_rows
            at = stop

    def _reading_memory(self, size: int) -> tuple[pa.Buffer, memoryview]:
        """Return memory of this thread: what was read before into it is overwritten.

        Fresh memory costs a page fault every 4 KiB, which takes as long as reading.
        """
        memory = getattr(self._local, "memory", None)
        if memory is None or memory.size < size:
            memory = self._local.memory = pa.allocate_buffer(size + size // 4, SPILL_POOL)
        return memory, memoryview(memory).cast("B")

    def _fill(self, view: memoryview, offset: int) -> None:
        while view:
            data = os.pread(self._file.fileno(), len(view), offset)  # macOS has no preadv
            if not data:
                raise OSError("a temporary file is shorter than it was written")
            view[: len(data)] = data
            view, offset = view[len(data) :], offset + len(data)

    def _conform(self, rows: pa.Table, run: _Run) -> pa.Table:
        """Return the rows of a run with the columns of all."""
        schema = self._plain_schema
        columns: list[Any] = []
        for item in schema:
            if item.name in run.schema.names:
                column = rows[item.name]
            elif item.name in run.recipe.rebuilt:
                source, form = run.recipe.rebuilt[item.name]
                column = render_as_text(rows[source], form)
            elif item.name.startswith(_UNREADABLE):
                column = repeat_bool(False, rows.num_rows)
            else:
                column = pa.nulls(rows.num_rows, item.type)
            columns.append(column if column.type == item.type else column.cast(item.type))
        return pa.table(columns, schema=schema)


def _only_used(rows: pa.Table, used: NDArray[np.bool_]) -> pa.Table:
    """Return the rows that are used: as a rule neighbours, which need no copy."""
    first, stop = int(used.argmax()), len(used) - int(used[::-1].argmax())
    if stop - first == np.count_nonzero(used):
        return rows.slice(first, stop - first)
    return rows.filter(from_numpy(used))


class SpilledFiles(UngroupedFiles):
    """A `FileSource`: live files in a temporary file, for writing a checkpoint of them.

    Reading them in any other way than in batches loads them all.
    """

    def __init__(self, spill: RowSpill, order: pa.Array, table_format: Format) -> None:
        """Take rows and the order in which a checkpoint stores them."""
        self.spill = spill
        self.order = order
        self.format = table_format

    def close(self) -> None:
        """Give the temporary file back; no row can be read afterwards."""
        self.spill.close()

    def batch(self, start: int, count: int) -> pa.Table:
        """Return up to `count` live adds from a place in their order on."""
        rows = self.spill.take(self.order.slice(start, count))
        return from_checkpoint_rows(rows, self.spill.recipe)

    def _loaded(self) -> InMemoryFiles:
        starts = range(0, len(self.order), _READ_ROWS)
        adds = pa.concat_tables([self.batch(start, _READ_ROWS) for start in starts])
        return InMemoryFiles(adds, self.format)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the live adds."""
        return InMemoryFiles, (self.adds(), self.format)

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return len(self.order)

    @property
    def max_files(self) -> int:
        """The number of live files."""
        return len(self.order)

    @property
    def checkpoint(self) -> int | None:
        """None: the rows are not in a checkpoint."""
        return None

    @property
    def held_bytes(self) -> int:
        """The memory of the order."""
        return int(self.order.nbytes)

    @property
    def warnings(self) -> Sequence[str]:
        """None: what was read is intact."""
        return ()

    def adds(self) -> pa.Table:
        """Return all live adds."""
        return self._loaded().table

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds."""
        return self._loaded().column(name)

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""
        return self._loaded().files(schema, partition_columns, mask)

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""
        return self._loaded().stats(schema, partition_columns)

    def with_commits(self, version: int, adds: pa.Table, removes: pa.Table) -> SourceChange:
        """Return the live files after commits."""
        return self._loaded().with_commits(version, adds, removes)
