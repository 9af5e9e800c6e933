"""The live files of a state that begins with a Parquet checkpoint: read when needed, as needed.

The files are the rows of the checkpoint whose keys no later commit touched, in the order they are
stored in, and after them the live adds of the commits. If the checkpoint turns out to be damaged,
the state is loaded another way, and a warning says so; rows that somebody saw keep their order.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.log.actions import ADD, FLAT_FIELDS
from arrowlog.state.files import Columns, files_table, stored_files, stored_values
from arrowlog.state.groups import Groups
from arrowlog.state.replay import outside_of
from arrowlog.state.stored import render, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.state.parts import Parts

_PICKS_MAX = 8
PICK_ROWS = 1 << 17  # parts of a checkpoint up to this are kept in memory, a few of them
NOTHING = pa.table({"key": pa.nulls(0, pa.string())})


class Rows:
    """Rows of a checkpoint: all of them, or those of some groups. What was read is kept."""

    def __init__(
        self, parts: Parts, schema: pa.Schema, groups: Sequence[int] | None, *, outside: bool
    ) -> None:
        """Nothing is read yet."""
        self.parts = parts
        self.schema = schema
        self.outside = outside
        self.groups = groups
        sizes = parts.manifest.index["rows"]
        chosen = sizes if groups is None else sizes.take(_numbers(groups))
        self.count = int(pc.sum(chosen).as_py() or 0)
        self._found: dict[str, pa.ChunkedArray] = {}
        self._picks: dict[tuple[int, ...], Rows] = {}

    def table(self, names: Iterable[str]) -> pa.Table:
        """Columns of the rows, `path` among them; those that are not stored are left out."""
        stored = self.parts.manifest.columns
        wanted = [name for name in dict.fromkeys(("path", *names)) if name in stored]
        missing = [name for name in wanted if name not in self._found]
        if missing:
            read = self.parts.read(self.groups, missing)
            if read.num_rows != self.count:
                what = f"the checkpoint has {read.num_rows} rows where {self.count} should be."
                raise LogCorrupt(what, version=self.parts.manifest.version)
            if "path" in missing:
                self._check(read["path"])
            self._found |= {name: read[name] for name in missing}
        return pa.table({name: self._found[name] for name in wanted})

    def only(self, groups: tuple[int, ...]) -> Rows:
        """The rows of some groups. The last few are kept, with what was read of them."""
        found = self._picks.get(groups)
        if found is None:
            found = Rows(self.parts, self.schema, groups, outside=self.outside)
            if found.count <= PICK_ROWS:
                keep_last(self._picks, groups, found)
        return found

    def _check(self, keys: pa.ChunkedArray) -> None:
        if keys.null_count or (not self.outside and outside_of(keys) is not None):
            what = "the checkpoint has a path that is none, or leads out of the table."
            raise LogCorrupt(what, version=self.parts.manifest.version)


def keep_last(kept: dict[Any, Any], key: object, value: object) -> None:
    """Keep a value, and forget the one that is kept longest if there are many."""
    while len(kept) >= _PICKS_MAX:
        kept.pop(next(iter(kept)), None)
    kept[key] = value


def _numbers(groups: Sequence[int]) -> pa.Array:
    from array import array

    data = array("q", groups)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


class Deferred:
    """The adds of a state, not read yet.

    `tail` holds the live adds after the checkpoint, `touched` the keys of all files that commits
    after it say anything about. `again` loads all live adds of a version without this checkpoint.
    """

    def __init__(
        self,
        rows: Rows,
        version: int,
        again: Callable[[int], pa.Table],
        tail: pa.Table = NOTHING,
        touched: pa.ChunkedArray | None = None,
        notes: list[str] | None = None,
    ) -> None:
        """Nothing is read yet. `notes` are shared: what went wrong on the way."""
        self.rows = rows
        self.version = version
        self.tail = tail
        self.touched = touched
        self.notes: list[str] = [] if notes is None else notes
        self._again = again
        self._mask: pa.ChunkedArray | None = None
        self._keys: pa.ChunkedArray | None = None
        self._whole: pa.Table | None = None  # all of it, once somebody needed all of it
        self._groups: Groups | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it stands for: a store may be out of reach where it goes."""
        return _as_it_is, (self.adds(),)

    @property
    def checkpoint(self) -> int:
        """The version of the checkpoint."""
        return self.rows.parts.manifest.version

    @property
    def loaded(self) -> bool:
        """Whether all of it is in memory as adds."""
        return self._whole is not None

    @property
    def num_files(self) -> int:
        """How many files are live; needs no more than their keys."""
        if self._whole is not None:
            return int(self._whole.num_rows)
        if self.touched is None:
            return self.rows.count + int(self.tail.num_rows)
        found = self.stored(())
        return self.num_files if found is None else int(found.num_rows + self.tail.num_rows)

    @property
    def groups(self) -> Groups:
        """What holds for whole row groups, to prune by."""
        if self._groups is None:
            manifest = self.rows.parts.manifest
            known = Columns(NOTHING, self.rows.schema, manifest.metadata.partition_columns)
            self._groups = Groups(manifest.index, known.schema)
        return self._groups

    def fits(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:
        """Whether what is typed in the checkpoint is typed by this schema."""
        known = self.rows.parts.manifest.metadata.partition_columns
        return tuple(partition_columns) == known and self.rows.schema.equals(schema)

    def stored(self, names: Iterable[str]) -> pa.Table | None:
        """Columns of the rows in the checkpoint that are still live; None if it is damaged."""
        if self._keys is None and self._whole is not None:
            return None
        try:
            found = self.rows.table(names)
        except LogCorrupt as error:
            self._fall_back(error)
            return None
        if self._keys is None and self.touched is not None:
            gone = pc.is_in(found["path"], value_set=self.touched.combine_chunks())
            self._mask = pc.invert(gone) if pc.any(gone).as_py() else None
        found = found if self._mask is None else found.filter(self._mask)
        if self._keys is None:
            self._keys = found["path"]
        return found

    def adds(self) -> pa.Table:
        """All of it, as decoded adds."""
        if self._whole is None:
            found = self.stored(self.rows.parts.manifest.columns)
            if found is not None:
                base = unpack(found, self.rows.parts.manifest.recipe)
                self._whole = pa.concat_tables([base, self.tail], promote_options="default")
        assert self._whole is not None
        return self._whole

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of the adds, as far as it takes no other."""
        recipe = self.rows.parts.manifest.recipe
        found = None if self._whole is not None else self.stored([recipe.needs(name)])
        if found is None:
            return self.adds()[name]
        source, form = recipe.rebuilt.get(name, (recipe.needs(name), "as it is"))
        tail = self.tail[name] if name in self.tail.column_names else None
        if source not in found.column_names:
            kind = pa.string() if tail is None else tail.type
            base = pa.chunked_array([pa.nulls(found.num_rows, kind)])
        else:
            base = render(found[source], form)
        more = [pa.nulls(self.tail.num_rows, base.type)] if tail is None else tail.chunks
        return pa.chunked_array([*base.chunks, *more], base.type)

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """The table of live files, or of some of them, straight from what is typed."""
        known = self.rows.parts.manifest
        wanted = {*ADD, *known.recipe.typed} - {*FLAT_FIELDS, "numRecords"}
        found = self.stored([name for name in known.columns if name in wanted])
        if found is None:
            chosen = self.adds() if mask is None else self.adds().filter(mask)
            return files_table(chosen, schema, partition_columns)
        tail = self.tail
        if mask is not None:
            tail = tail.filter(mask.slice(found.num_rows))
            found = found.filter(mask.slice(0, found.num_rows))
        base = stored_files(found, schema, partition_columns)
        if not tail.num_rows:
            return base
        more = files_table(tail, schema, partition_columns)
        return pa.concat_tables([base, more], promote_options="default")

    def only(self, groups: Sequence[int]) -> Deferred:
        """The same without the rows of other groups."""
        rows = self.rows.only(tuple(groups))
        return Deferred(rows, self.version, self._again, self.tail, self.touched, self.notes)

    def after(self, version: int, kept: Any, fresh: pa.Table, touched: pa.ChunkedArray) -> Deferred:
        """What is live some commits later: which of the tail stays, what is new, and any keys."""
        stay = self.tail if kept is None else self.tail.filter(kept)
        tail = pa.concat_tables([stay, fresh], promote_options="default")
        known = touched.chunks if self.touched is None else [*self.touched.chunks, *touched.chunks]
        every = pa.chunked_array(known, pa.string())
        every = every if len(every) else None
        return Deferred(self.rows, version, self._again, tail, every, self.notes)

    def untouched(self, keys: pa.ChunkedArray) -> pa.Array | None:
        """Which of the files stay when these are touched; None for all."""
        gone = pc.is_in(self.column("key"), value_set=keys.combine_chunks()).combine_chunks()
        return pc.invert(gone) if gone.true_count else None

    def _fall_back(self, error: LogCorrupt) -> None:
        """Load the state another way, in the order that was seen if any was."""
        note = f"checkpoint {self.checkpoint} was not used: {error}"
        if note not in self.notes:
            self.notes.append(note)
            root = self.rows.parts.store.root
            warnings.warn(f"{root}: {note}", ArrowlogWarning, stacklevel=2)
        whole = self._again(self.version)
        if self._keys is not None:
            tail = self.tail["key"].chunks
            wanted = pa.chunked_array([*self._keys.chunks, *tail], pa.string())
            places = pc.index_in(wanted, value_set=whole["key"].combine_chunks())
            if places.null_count:
                what = "the checkpoint has files that the log does not have."
                raise LogCorrupt(what, version=self.checkpoint) from error
            whole = whole.take(places)
        self._whole, self._keys = whole, None


def _as_it_is(adds: pa.Table) -> pa.Table:
    return adds


class DeferredColumns(Columns):
    """Typed columns of deferred files: those of the checkpoint as they are stored."""

    def __init__(
        self, source: Deferred, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> None:
        """Nothing is read yet."""
        super().__init__(source.tail, schema, partition_columns)
        self._source = source
        self._tail = Columns(source.tail, schema, partition_columns)
        self._plain: Columns | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as columns of what the files are."""
        return Columns, (self._source.adds(), self.schema, self.partition_columns)

    @property
    def num_rows(self) -> int:
        """How many files there are."""
        return self._source.num_files

    def prepare(self, names: Iterable[str]) -> None:
        """Read several columns in one go."""
        wanted = list(names)
        self._source.stored([stored for name in wanted for stored in self._stored(name)])
        self._tail.prepare(wanted)

    def _stored(self, name: str) -> list[str]:
        if name in self.partition_columns:
            return [f"partition.{name}", f"unreadable.{name}"]
        return [f"min.{name}", f"max.{name}", f"null_count.{name}", "num_records"]

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        found = self._source.stored(self._stored(name) if name else ["num_records"])
        if found is None:
            if self._plain is None:
                adds = self._source.adds()
                self._plain = Columns(adds, self.schema, self.partition_columns)
            return pa.chunked_array([self._plain.typed(what, name)])
        base = stored_values(found, what, name, self.schema)
        return pa.chunked_array([*base.chunks, self._tail.typed(what, name)], base.type)
