"""Incremental Parquet checkpoints: parts of the last checkpoint by name, and what changed since.

The new manifest names the parts of the checkpoint that the state is based on, the rows of these
that are no longer live, and one new part with the live adds of the commits since. Nothing that did
not change is read: a file that a commit touched is looked for only in the row groups whose range of
paths contains it.

Small parts at the end, and parts that are not much larger than what is new, are folded into the new
part, so that a checkpoint has few parts, and every file is rewritten a few times at most. Once too
many rows are dead, the checkpoint is written in full.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, make_int64, release_unused_memory, to_numpy
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import parse_parquet_part, retired_part_name
from arrowlog.snapshot.checkpoint import parquet
from arrowlog.snapshot.checkpoint.parts import (
    CheckpointManifest,
    decode_stored_schema,
)
from arrowlog.snapshot.checkpoint.rows import (
    PATH_RANGE,
    build_row_group_index,
    flatten_all_maps,
    from_checkpoint_rows,
    render_as_text,
    storage_order,
    to_checkpoint_rows,
)
from arrowlog.snapshot.checkpoint_files import CheckpointFiles
from arrowlog.snapshot.file_table import FileStats
from arrowlog.snapshot.loader import load_snapshot
from arrowlog.snapshot.read_options import ReadOptions
from arrowlog.snapshot.stats_truncation import StatsTruncation, truncate_adds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.snapshot.checkpoint.parquet import WrittenParquetCheckpoint
    from arrowlog.snapshot.checkpoint.parts import CheckpointPart, CheckpointPartReader
    from arrowlog.snapshot.snapshot import State
    from arrowlog.storage import Store

# A part at the end is folded into the new one if it has fewer files than this, or at most so many
# times as many files as are new. The first bounds the number of parts, the second how often a file
# is rewritten.
FOLDED_FILES_MAX = 4096
_FOLDED_RATIO_MAX = 2
# With a larger share of dead rows than this, the checkpoint is written in full.
DEAD_SHARE_MAX = 0.25
# Commits after a checkpoint up to which reading them costs less than a full checkpoint.
_COMMITS_MAX = 1000
# Row groups whose paths are searched at a time, for few keys and for many: the latter take memory.
_SEARCHED_GROUPS, _MANY_SEARCHED_GROUPS, _MANY_KEYS = 4, 2, 1 << 16
# Threads that search for few keys: over a network, one part after the other costs round trips.
_SEARCHERS_MAX = 4


class SharedPartsLost(Exception):
    """A cleanup deletes a part that the new manifest names."""


@dataclass(frozen=True, slots=True)
class _Reuse:
    """What a new checkpoint takes over: leading parts of `base`, and their dead rows."""

    base: CheckpointManifest
    parts: tuple[CheckpointPart, ...]
    dead: pa.Array
    fresh: pa.Table  # the adds that no part has

    @property
    def num_groups(self) -> int:
        """The number of row groups in the parts."""
        return sum(part.rowGroups for part in self.parts)

    @property
    def num_files(self) -> int:
        """The number of live files of the new checkpoint."""
        rows = sum(part.numFiles for part in self.parts)
        return rows - len(self.dead) + int(self.fresh.num_rows)


def rebased_state(store: Store, listing: LogListing, state: State, config: Config) -> State | None:
    """Return a state as its last Parquet checkpoint and the commits since, if it is worth it.

    A handle that has followed the log for long has the files in memory, or is based on an old
    checkpoint. None if there is no checkpoint, or too many commits follow it, or the log is no
    longer the one that the state was read from.
    """
    bases = [v for v in listing.checkpoints if v < state.version]
    version = max((v for v in bases if listing.checkpoint_form(v, "parquet")), default=None)
    if version is None or state.version - version > _COMMITS_MAX:
        return None
    if state.source.checkpoint == version:
        return state
    form = listing.checkpoint_form(version, "parquet")
    assert form is not None
    commits = {v: key for v, key in listing.commits.items() if version < v <= state.version}
    options = ReadOptions(config, allow_external_paths=True, format=state.format)
    try:
        rest = listing.only(commits, {version: (form,)})
        loaded = load_snapshot(store, rest, options, state.version).state
    except (LogCorrupt, InvalidRequest, FileNotFoundError):
        return None
    same = (loaded.protocol, loaded.metadata, loaded.recent, loaded.timestamp) == (
        state.protocol,
        state.metadata,
        state.recent,
        state.timestamp,
    )
    return loaded if same and dict(loaded.txns) == dict(state.txns) else None


def write_incremental_form(
    store: Store, state: State, config: Config, *, now_ms: int, new_id: str
) -> WrittenParquetCheckpoint | None:
    """Write the checkpoint of a state that is based on a Parquet checkpoint.

    None if it has to be written in full: its checkpoint is too small, damaged, from an earlier
    release or has other columns, or too much has changed. `new_id` as for `write_parquet_form`.

    Raises `SharedPartsLost` if a cleanup deletes a part at the same time. The manifest is there
    then, and has to be replaced by a full one. It is not deleted: others may rely on it, if its
    parts are there after all.
    """
    try:
        reuse = _plan_reuse(state, config)
    except LogCorrupt:  # the parts are damaged; a full checkpoint is made without them
        return None
    if reuse is None:
        return None
    folder = state.format.key(state.format.checkpoint_folder)
    own = parquet.writer_id(new_id)
    new = _put_fresh(store, state, reuse, config, own, folder)
    if new is None:
        return None
    parts, index = new
    base = reuse.base
    kept = base.index.slice(0, reuse.num_groups)
    manifest = CheckpointManifest(
        state.version,
        state.protocol,
        state.metadata,
        reuse.num_files,
        (*reuse.parts, *parts),
        base.columns,
        base.recipe,
        kept if index is None else pa.concat_tables([kept, index]).combine_chunks(),
        state.timestamp,
        state.txns,
        state.recent,
        reuse.dead,
        base.stored_schema,
        base.truncation,
    )
    written = parquet.put_manifest(store, manifest, own, now_ms, folder=folder)
    if written.made and not _parts_remain(store, folder, reuse.parts):
        raise SharedPartsLost
    stored = sum(part.sizeInBytes for part in parts)
    return replace(written, uncompressed_bytes=written.num_bytes - stored + reuse.fresh.nbytes)


def _parts_remain(store: Store, folder: str, parts: Sequence[CheckpointPart]) -> bool:
    """Whether shared parts exist and no cleanup has recorded that it deletes one.

    To be called after the manifest was put: a cleanup that records a part later finds the manifest
    and leaves the part alone.
    """
    names = set(store.list_from(folder))
    return all(part.name in names and retired_part_name(part.name) not in names for part in parts)


def _plan_reuse(state: State, config: Config) -> _Reuse | None:
    """Decide what to reuse; None if the checkpoint has to be written in full."""
    source = state.source
    columns = state.metadata.partition_columns
    if not isinstance(source, CheckpointFiles) or not source.is_typed(state.schema, columns):
        return None
    base, reader = source.rows.parts.manifest, source.rows.parts
    if not _is_shareable(base, config) or source.rows.groups is not None:
        return None
    dead = _with_touched(reader, source.touched)
    live = _live_rows(base, dead)
    parts = list(base.parts)
    num_new = int(source.tail.num_rows)
    while parts and (live[-1] < FOLDED_FILES_MAX or live[-1] <= _FOLDED_RATIO_MAX * num_new):
        num_new += live[-1]
        parts.pop()
        live.pop()
    rows = sum(part.numFiles for part in parts)
    kept_dead = dead.filter(pc.less(dead, make_int64(rows)))
    if not parts or len(kept_dead) > rows * DEAD_SHARE_MAX:
        return None
    fresh = [_folded_adds(reader, part, dead) for part in base.parts[len(parts) :]]
    fresh.append(truncate_adds(source.tail, columns, config, state.schema))
    adds = pa.concat_tables(
        [table for table in fresh if table.num_rows] or fresh[-1:], promote_options="default"
    )
    return _Reuse(base, tuple(parts), kept_dead, adds)


def _is_shareable(base: CheckpointManifest, config: Config) -> bool:
    """Whether later checkpoints may name the parts of this one."""
    return (
        base.num_files >= parquet.SHARED_FILES_MIN
        and bool(base.stored_schema)
        and base.truncation == StatsTruncation.of(config).label
        and set(PATH_RANGE) <= set(base.index.column_names)
        and all((parse_parquet_part(part.name) or (0, ""))[1] for part in base.parts)
    )


def _with_touched(reader: CheckpointPartReader, touched: pa.ChunkedArray | None) -> pa.Array:
    """Return the dead rows of a checkpoint once files with these keys are replaced or removed.

    Raises `LogCorrupt` if a part is damaged.
    """
    manifest = reader.manifest
    if touched is None or not len(touched):
        return manifest.dead
    import numpy as np

    if len(touched) >= _MANY_KEYS:
        release_unused_memory()  # what so many actions took while they were decoded
    ordered = pl.Series("key", pl.from_arrow(touched), pl.String).sort()
    keys = pc.cast(ordered.to_arrow(), pa.string())
    first, last = (pl.Series(pl.from_arrow(manifest.index[name])) for name in PATH_RANGE)
    above = ordered.search_sorted(last.fill_null(""), side="right").to_numpy()
    below = ordered.search_sorted(first.fill_null(""), side="left").to_numpy()
    groups = np.flatnonzero(above > below).tolist()
    starts = manifest.group_starts()
    many = len(keys) >= _MANY_KEYS
    step = _MANY_SEARCHED_GROUPS if many else _SEARCHED_GROUPS

    def search(at: int) -> NDArray[np.int64]:
        some = groups[at : at + step]
        paths = reader.read_with_dead(some, ["path"])["path"]
        # Only the keys that these groups may have: a set is made of them for each call.
        near = int(below[some].min()), int(above[some].max())
        hits = pc.is_in(paths, value_set=keys.slice(near[0], near[1] - near[0])).combine_chunks()
        rows = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in some])
        if len(rows) != len(hits):
            what = f"the checkpoint has {len(hits)} rows instead of {len(rows)}."
            raise LogCorrupt(what, version=manifest.version)
        touched_rows: NDArray[np.int64] = rows[to_numpy(hits)]
        return touched_rows

    found = [to_numpy(manifest.dead)]
    steps = range(0, len(groups), step)
    if many or len(steps) < 2:
        found += map(search, steps)
    else:
        workers = min(max(os.cpu_count() or 1, 2), _SEARCHERS_MAX)
        with ThreadPoolExecutor(workers) as pool:
            found += pool.map(search, steps)
    return from_numpy(np.unique(np.concatenate(found)))


def _live_rows(base: CheckpointManifest, dead: pa.Array) -> list[int]:
    """Return the number of live rows of each part."""
    import numpy as np

    ends = np.cumsum([part.numFiles for part in base.parts])
    below = np.searchsorted(to_numpy(dead), ends)
    num_dead = np.diff(np.concatenate([np.zeros(1, np.int64), below]))
    return [part.numFiles - int(n) for part, n in zip(base.parts, num_dead, strict=True)]


def _folded_adds(reader: CheckpointPartReader, part: CheckpointPart, dead: pa.Array) -> pa.Table:
    """Return the live adds of a part, given the dead rows of all parts."""
    import numpy as np

    groups = reader.groups_of(part)
    first = int(reader.manifest.group_starts()[groups.start])
    live = np.ones(part.numFiles, np.bool_)
    rows = to_numpy(dead) - first
    live[rows[(rows >= 0) & (rows < part.numFiles)]] = False
    stored = reader.check(part)
    if stored.num_rows != part.numFiles:
        what = f"it has {stored.num_rows} rows instead of {part.numFiles}."
        raise LogCorrupt(what, file=reader.key(part))
    return from_checkpoint_rows(stored.filter(from_numpy(live)), reader.manifest.recipe)


def _put_fresh(
    store: Store, state: State, reuse: _Reuse, config: Config, own: str, folder: str
) -> tuple[list[CheckpointPart], pa.Table | None] | None:
    """Write the new adds as parts with the columns of the others; None if they do not fit.

    Returns the parts and their index, which is None without a part.
    """
    if not reuse.fresh.num_rows:
        return [], None
    partition = state.metadata.partition_columns
    adds = flatten_all_maps(reuse.fresh, [*state.schema.names, *partition])
    if "raw" in adds.column_names and not pc.any(adds["raw"]).as_py():
        adds = adds.drop_columns("raw")  # all maps are columns now
    columns = FileStats(adds, state.schema, partition)
    columns.prepare([*state.schema.names, *partition])
    table = _conform(columns, adds, reuse.base)
    if table is None:
        return None
    of_table = (state.schema, partition)
    expected = build_row_group_index(table.slice(0, 0), *of_table).schema
    if expected != reuse.base.index.drop_columns("sums").schema:
        return None
    order = storage_order(columns, adds["key"])
    layout = parquet.build_layout(
        state.version, table, order, reuse.base.recipe, of_table, config, folder=folder
    )
    return parquet.put_parts(store, layout, config.checkpoint_max_file_size, own, unique=True)


def _conform(columns: FileStats, adds: pa.Table, base: CheckpointManifest) -> pa.Table | None:
    """Return adds as stored rows in the columns of `base`; None if that loses or invents a value.

    A text that `base` does not store must be what its recipe rebuilds.
    """
    table, recipe = to_checkpoint_rows(columns, adds)
    stored, rebuilt = set(table.column_names), base.recipe.rebuilt
    present = {n for n in adds.column_names if adds[n].null_count < adds.num_rows}
    for name, (source, form) in rebuilt.items():
        if name not in present:
            if source in stored:  # it would be rebuilt although no add has it
                return None
        elif source not in stored or not render_as_text(table[source], form).equals(
            _as_chunked(adds[name])
        ):
            return None
    needed = (stored | set(recipe.rebuilt)) - set(rebuilt)
    if not needed <= set(base.columns):
        return None
    arrays = []
    for item in decode_stored_schema(base.stored_schema):
        if item.name in stored:
            column = table[item.name]
        elif item.name in recipe.rebuilt:
            column = adds[item.name]
        else:
            column = pa.chunked_array([pa.nulls(table.num_rows, item.type)])
        arrays.append(_cast(column, item.type))
    return pa.table(arrays, names=list(base.columns)).combine_chunks()


def _as_chunked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([column.combine_chunks()], column.type)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode().cast(kind)
    return column.cast(kind)
