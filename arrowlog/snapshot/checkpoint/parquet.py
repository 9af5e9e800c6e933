"""Parquet checkpoints: write, open and verify arrowlog's own, and read those of other programs.

Parts mean nothing by themselves; the manifest, written last, makes them a checkpoint. Concurrent
writers of the same checkpoint do not disturb each other: only a manifest that was found damaged is
ever overwritten, a name already taken by other bytes is left alone, and a manifest identifies its
parts by their bytes, not by their names.

Checkpoints of other programs have one flat row per action: `actionType` and the fields of that
action, with maps for keyed fields. For `add` these are path, partitionValues, size, numRecords,
minValues, maxValues and any other field of an add; for `metadata` metadataId, schemaString,
partitionColumns, format. What they do not record (protocol, commit times, application transactions)
is unknown in the state.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import empty_table, make_scalar
from arrowlog.errors import LogCorrupt, StoreUnavailable, UnsupportedProtocol
from arrowlog.formats import FieldKind, Metadata, Protocol
from arrowlog.formats.indextables import (
    ADD_FIELDS,
    ADD_MAP_FIELDS,
    CHECKPOINT_FOLDER_NAME,
    LOG_FOLDER,
    format_checksum,
    manifest_name,
    parquet_names,
    retired_part_name,
)
from arrowlog.snapshot.checkpoint.parts import (
    DAMAGED_CHECKPOINT_NEXT,
    CheckpointManifest,
    CheckpointPart,
    CheckpointPartReader,
    column_chunk_ranges,
    decode_manifest,
    decode_unverified_part,
    encode_manifest,
    encode_stored_schema,
    is_shared_part,
    missing_part_error,
    read_footer_metadata,
    read_metadata,
    with_chunk_checksums,
)
from arrowlog.snapshot.checkpoint.row_gather import GatheredRows, RowGatherer
from arrowlog.snapshot.checkpoint.row_spill import SPILL_POOL, SpilledFiles
from arrowlog.snapshot.checkpoint.rows import (
    ROW_GROUP_FILES,
    RebuildRecipe,
    build_row_group_index,
    choose_sort_columns,
    flatten_all_maps,
    storage_order,
    to_checkpoint_rows,
)
from arrowlog.snapshot.file_table import FileStats
from arrowlog.snapshot.log_replay import check_readable, parse_table_schema, with_checkpoint_keys
from arrowlog.snapshot.snapshot import InMemoryFiles, State
from arrowlog.snapshot.stats_truncation import StatsTruncation
from arrowlog.storage import put_identical
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.storage import Store


CHECKPOINT_FOLDER = f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}"
# Live files from which on later checkpoints share the parts of a checkpoint.
SHARED_FILES_MIN = 4096
# A part is in memory until it is put, and several parts are made at a time, whatever the settings
# allow.
_PART_BYTES_MAX = 16 << 20
# Row groups that are gathered and encoded at a time: more would not stay in the cache.
_SLICE_GROUPS = 2
# Parts of files in a temporary file that are made at a time, and their size.
_SPILLED_PARTS_MAX, _SPILLED_PART_BYTES_MAX = 2, 8 << 20
# With a limit so many times that large, a small trial tells the size of parts well enough.
_ROUGH_TRIAL_RATIO = 4
_TRIAL_FILES = 1 << 12
# Files in a row group at least, however small parts are to be.
_GROUP_FILES_MIN = 64
# Parts are not equally large: they are planned this much smaller than they may be.
_SIZE_MARGIN = 1.1
# More than a part takes beside its rows.
_FOOTER_BYTES_MAX = 1 << 20
# A column with a larger share of distinct values than this is not dictionary-encoded.
_DISTINCT_SHARE_MAX = 0.5
# Rows by which that share is estimated, and the columns to sort by from so many such samples.
_SAMPLE_ROWS = 4096
_FEW_ROWS = 1024  # of them, by which most columns are told already
_SAMPLES = 4
# More than the footer of a part says about a column of a row group.
_CHUNK_FOOTER_BYTES = 1 << 9
# The key in a part's footer metadata that tells our parts from those of other programs.
_FOOTER_KEY = b"arrowlog"
_CODECS = {"uncompressed": "none"}


@dataclass(frozen=True, slots=True)
class WrittenParquetCheckpoint:
    """A checkpoint that exists now: its file names, the manifest last, and their size.

    Parts that it shares with earlier checkpoints are not counted. `uncompressed_bytes` is the size
    of its rows in memory and of the manifest. `checksum` is the manifest's. `made` is false if
    another writer had made it before.
    """

    names: tuple[str, ...]
    num_bytes: int
    num_files: int
    checksum: str
    made: bool = True
    uncompressed_bytes: int = 0


@dataclass(slots=True)
class ParquetCheckpointLayout:
    """The stored rows of a checkpoint, their order, and how and where to write them.

    `schema` and `partition_columns` are those of the table.
    """

    version: int
    rows: GatheredRows
    order: pa.Array
    recipe: RebuildRecipe
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    options: dict[str, Any]
    folder: str = CHECKPOINT_FOLDER
    group_files: int | None = None
    parallelism: int = 1
    part_bytes: int = _PART_BYTES_MAX
    slice_groups: int = _SLICE_GROUPS
    read_ahead: bool = False
    pool: pa.MemoryPool | None = None

    @property
    def files_per_group(self) -> int:
        """The number of files in a row group."""
        return self.group_files or ROW_GROUP_FILES


def write_parquet_form(
    store: Store, state: State, config: Config, *, now_ms: int, new_id: str, broken: bool = False
) -> WrittenParquetCheckpoint:
    """Write the checkpoint of a state.

    `new_id` must be unique, with at least 12 hex digits. With `broken`, the manifest of a damaged
    checkpoint is replaced. Returns the other writer's checkpoint if one finished first.
    """
    layout = _layout(state, config)
    if layout.read_ahead and store.cheap_stat:
        # Gathering rows is done beside encoding them; a put over a network takes a thread as well.
        layout = replace(layout, parallelism=1)
    own = writer_id(new_id)
    # Parts that later checkpoints may share have unique names: such names are never used again, and
    # mean nothing without a manifest.
    shareable = layout.rows.num_rows >= SHARED_FILES_MIN
    limit = config.checkpoint_max_file_size
    parts, index = put_parts(store, layout, limit, own, unique=shareable)
    manifest = CheckpointManifest(
        state.version,
        state.protocol,
        state.metadata,
        layout.rows.num_rows,
        tuple(parts),
        tuple(layout.rows.schema.names),
        layout.recipe,
        index,
        state.timestamp,
        state.txns,
        state.recent,
        stored_schema=encode_stored_schema(layout.rows.schema),
        truncation=StatsTruncation.of(config).label,
    )
    written = put_manifest(store, manifest, own, now_ms, broken=broken, folder=layout.folder)
    stored = sum(part.sizeInBytes for part in parts)
    plain = layout.rows.nbytes + written.num_bytes - stored
    return replace(written, uncompressed_bytes=plain if written.made else written.num_bytes)


def writer_id(new_id: str) -> str:
    """Return the part of a unique id that is in the names of a writer's parts."""
    return new_id.replace("-", "").lower()[:12]


def put_manifest(
    store: Store,
    manifest: CheckpointManifest,
    own: str,
    now_ms: int,
    *,
    broken: bool = False,
    folder: str = CHECKPOINT_FOLDER,
) -> WrittenParquetCheckpoint:
    """Write the manifest of parts that are already stored in `folder`.

    If another writer's manifest is there first, it wins, and our unique parts are deleted. With
    `broken`, a damaged manifest is replaced. Raises `LogCorrupt` if the manifest that is there is
    another program's, `StoreUnavailable` if the checkpoint was truncated away meanwhile.
    """
    data = encode_manifest(manifest, own, now_ms, f"arrowlog/{__version__}")
    key = f"{folder}/{manifest_name(manifest.version)}"
    if broken:
        store.replace(key, data)
    if broken or put_identical(store, key, data):
        return _written(manifest, data, made=True)
    existing = store.find_many([key])[0]
    if existing is None:  # another manifest was there, and cleanup has deleted it since
        raise StoreUnavailable(
            f"{key} could not be written: the log was truncated beyond it.", next="Try again."
        )
    theirs = decode_manifest(existing, manifest.version, key)
    if theirs is None:
        raise LogCorrupt(
            "another program's manifest has this name.", next=DAMAGED_CHECKPOINT_NEXT, file=key
        )
    used = {part.name for part in theirs.parts}
    ours = [part.name for part in manifest.parts if f".{own}." in part.name]
    store.delete([f"{folder}/{name}" for name in ours if name not in used])
    return _written(theirs, existing, made=False)


def _written(manifest: CheckpointManifest, data: bytes, *, made: bool) -> WrittenParquetCheckpoint:
    version = manifest.version
    own_parts = [part for part in manifest.parts if not is_shared_part(part.name, version)]
    names = (*(part.name for part in own_parts), manifest_name(manifest.version))
    size = sum(part.sizeInBytes for part in own_parts) + len(data)
    return WrittenParquetCheckpoint(names, size, manifest.num_files, format_checksum(data), made)


def _layout(state: State, config: Config) -> ParquetCheckpointLayout:
    partition = state.metadata.partition_columns
    folder = state.format.key(state.format.checkpoint_folder)
    of_table = (state.schema, partition)
    if isinstance(state.source, SpilledFiles):
        rows, order = state.source.spill, state.source.order
        layout = build_layout(
            state.version, rows, order, rows.recipe, of_table, config, folder=folder
        )
        # Files are spilled to save memory, which every part takes while it is made.
        return replace(
            layout,
            parallelism=min(layout.parallelism, _SPILLED_PARTS_MAX),
            part_bytes=_SPILLED_PART_BYTES_MAX,
            slice_groups=1,
            read_ahead=True,
            pool=SPILL_POOL,
        )
    names = [*state.schema.names, *partition]
    adds = flatten_all_maps(state.adds, names)
    columns = FileStats(adds, state.schema, partition)
    columns.prepare(names)
    keys = adds["key"] if adds.num_rows else pa.chunked_array([], pa.string())
    order = storage_order(columns, keys, _sort_columns(columns, adds))
    table, recipe = to_checkpoint_rows(columns, adds)
    return build_layout(state.version, table, order, recipe, of_table, config, folder=folder)


def _sort_columns(columns: FileStats, adds: pa.Table) -> list[str]:
    """Return the columns to sort by, judged by samples from all over the adds."""
    rows = adds.num_rows
    if rows <= _SAMPLES * _SAMPLE_ROWS:
        return choose_sort_columns(columns)
    step = rows // _SAMPLES
    pieces = [adds.slice(start, _SAMPLE_ROWS) for start in range(0, rows, step)]
    sample = pa.concat_tables(pieces)
    return choose_sort_columns(FileStats(sample, columns.schema, columns.partition_columns))


def _fitting_group(layout: ParquetCheckpointLayout, size_max: int) -> int:
    """Return the number of files in a row group, such that a part with one stays within a size.

    At least `_GROUP_FILES_MIN`: every part has a footer, whatever it holds.
    """
    group = ROW_GROUP_FILES
    while group > _GROUP_FILES_MIN:
        rows = layout.rows.slice(0, group)
        if rows.nbytes + _FOOTER_BYTES_MAX <= size_max:  # it takes no more encoded
            break
        size = _group_size(layout, group) * _SIZE_MARGIN
        if size <= size_max:
            break
        group = max(int(min(group, layout.rows.num_rows) * size_max / size), _GROUP_FILES_MIN)
    return group


def _group_size(layout: ParquetCheckpointLayout, group: int) -> int:
    """Return the size of a part with one row group: the largest of three, encoded on trial."""
    rows = layout.rows.num_rows
    last = max(rows - group, 0)
    starts = {0, last // 2, last}
    return max(_trial_size(layout, start, min(start + group, rows)) for start in starts)


def _trial_size(layout: ParquetCheckpointLayout, start: int, stop: int) -> int:
    sink = pa.MockOutputStream()
    with _open_part(layout, sink) as writer:
        writer.write_table(layout.rows.take(layout.order.slice(start, stop - start)))
    return int(sink.size())


def build_layout(
    version: int,
    table: pa.Table | GatheredRows,
    order: pa.Array,
    recipe: RebuildRecipe,
    of_table: tuple[pa.Schema, tuple[str, ...]],
    config: Config,
    *,
    folder: str = CHECKPOINT_FOLDER,
) -> ParquetCheckpointLayout:
    """Return the layout of a checkpoint, with Parquet options from the settings.

    `of_table` is the table's schema and its partition columns.
    """
    codec = config.checkpoint_compression
    rows = RowGatherer(table) if isinstance(table, pa.Table) else table
    repetitive = _repetitive_columns(rows)
    options = {
        "compression": _CODECS.get(codec, codec),
        "use_dictionary": repetitive,
        "column_encoding": _delta_encodings(rows.schema, repetitive),
        "write_statistics": False,
        "version": "2.6",
        "writer_engine_version": "V2",
    }
    layout = ParquetCheckpointLayout(
        version,
        rows,
        order,
        recipe,
        *of_table,
        options,
        folder,
        parallelism=min(config.checkpoint_parallelism, os.cpu_count() or 1),
    )
    return replace(layout, group_files=_fitting_group(layout, config.checkpoint_max_file_size))


def _delta_encodings(schema: pa.Schema, repetitive: Sequence[str]) -> dict[str, str]:
    """Return an encoding for integers and times without a dictionary.

    Those of files in order differ little from one to the next: their differences are smaller than
    the values, and are written and read faster.
    """
    return {
        item.name: "DELTA_BINARY_PACKED"
        for item in schema
        if item.name not in repetitive
        and (pa.types.is_int64(item.type) or pa.types.is_timestamp(item.type))
    }


def _repetitive_columns(rows: GatheredRows) -> list[str]:
    """Return the columns worth a dictionary, judged by a sample from the middle."""
    sample = rows.slice(rows.num_rows // 2, _SAMPLE_ROWS)
    repetitive = []
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            repetitive.append(name)
        elif not pa.types.is_boolean(column.type):
            few = column.slice(0, _FEW_ROWS)
            if len(few.unique()) == _FEW_ROWS:
                continue  # no two are equal: as a rule, paths, sizes and times
            if len(column.unique()) <= sample.num_rows * _DISTINCT_SHARE_MAX:
                repetitive.append(name)
    return repetitive


def put_parts(
    store: Store, layout: ParquetCheckpointLayout, size_max: int, own: str, *, unique: bool
) -> tuple[list[CheckpointPart], pa.Table]:
    """Write all parts; returns their manifest entries and their index with checksums.

    With `unique`, no part gets a name that another writer may use. Several parts are encoded,
    compressed and put at a time.
    """
    ranges = _part_ranges(layout, size_max)
    usual_names = parquet_names(layout.version, len(ranges))
    own_names = parquet_names(layout.version, len(ranges), own)

    def put(rows: tuple[int, int], usual: str, own_name: str) -> tuple[CheckpointPart, pa.Table]:
        names = (own_name,) if unique else (usual, own_name)
        return put_part(store, layout, rows, names)

    workers = min(layout.parallelism, len(ranges))
    if workers == 1:
        made = list(map(put, ranges, usual_names, own_names))
    else:
        with ThreadPoolExecutor(workers) as pool:
            made = list(pool.map(put, ranges, usual_names, own_names))
    indexes = [index for _, index in made]
    return [part for part, _ in made], pa.concat_tables(indexes).combine_chunks()


def put_part(
    store: Store, layout: ParquetCheckpointLayout, rows: tuple[int, int], names: Sequence[str]
) -> tuple[CheckpointPart, pa.Table]:
    """Write a range of rows as a part, under the first of `names` that is free or has these bytes.

    The last name must be unique to this writer. Returns the part's manifest entry and its index
    with the CRC-32 of each column chunk.
    """
    start, stop = rows
    data, metadata, index = _encode_rows(layout, start, stop)
    for chosen in names:
        if put_identical(store, f"{layout.folder}/{chosen}", data):
            break
    else:
        what = "a part under this writer's unique name exists already, with other bytes."
        raise LogCorrupt(what, next="Try again.", file=f"{layout.folder}/{names[-1]}")
    view = memoryview(data)
    sums = [int(format_checksum(view[a:b])[6:], 16) for a, b in column_chunk_ranges(metadata)]
    footer = len(data) - metadata.serialized_size - 8  # the footer's length and `PAR1` follow it
    part = CheckpointPart(
        name=chosen,
        sizeInBytes=len(data),
        numFiles=stop - start,
        rowGroups=metadata.num_row_groups,
        checksum=format_checksum(data),
        footerOffset=footer,
        footerChecksum=format_checksum(view[footer:]),
    )
    return part, with_chunk_checksums(index, sums, len(layout.rows.schema))


def _part_ranges(layout: ParquetCheckpointLayout, size_max: int) -> list[tuple[int, int]]:
    """Return the rows of each part; row groups that are encoded on trial tell the size."""
    rows, group, limit = (
        layout.rows.num_rows,
        layout.files_per_group,
        min(size_max, layout.part_bytes),
    )
    if rows <= group or layout.rows.nbytes + _FOOTER_BYTES_MAX <= limit:
        return [(0, rows)]
    if size_max >= limit * _ROUGH_TRIAL_RATIO:
        trial = min(_TRIAL_FILES, group)
        size = _trial_size(layout, rows // 2, min(rows // 2 + trial, rows)) * group / trial
    else:
        size = _group_size(layout, group)
    groups = max(1, int(limit // max(size * _SIZE_MARGIN, 1)))
    # Parts of equal size, so that they are done at the same time.
    num_groups = -(-rows // group)
    num_parts = -(-num_groups // groups)
    step = -(-num_groups // num_parts) * group
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _encode_rows(
    layout: ParquetCheckpointLayout, start: int, stop: int
) -> tuple[pa.Buffer, Any, pa.Table]:
    """Encode a range of rows as a Parquet file; returns its bytes, its metadata and its index."""
    group, step = layout.files_per_group, layout.slice_groups * layout.files_per_group
    of_table = (layout.schema, layout.partition_columns)
    indexes = (
        [] if stop > start else [build_row_group_index(empty_table(layout.rows.schema), *of_table)]
    )
    sink = pa.BufferOutputStream(layout.pool)
    with _open_part(layout, sink) as writer:
        for rows in _gather(layout, range(start, stop, step), stop):
            indexes.append(build_row_group_index(rows, *of_table, group))
            writer.write_table(rows, group)
    data = sink.getvalue()
    return data, read_metadata(data), pa.concat_tables(indexes)


def _gather(layout: ParquetCheckpointLayout, starts: range, stop: int) -> Iterator[pa.Table]:
    """Yield the rows of a part, a slice at a time, with `read_ahead` the next one beforehand."""

    def take(at: int) -> pa.Table:
        return layout.rows.take(layout.order.slice(at, min(starts.step, stop - at)))

    if not layout.read_ahead or len(starts) < 2:
        yield from map(take, starts)
        return
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(take, starts[0])
        for at in starts[1:]:
            rows, ahead = ahead.result(), pool.submit(take, at)
            yield rows
            del rows
        yield ahead.result()


@contextmanager
def _open_part(layout: ParquetCheckpointLayout, sink: pa.NativeFile) -> Iterator[Any]:
    """Yield a writer of Parquet to `sink`, which is complete afterwards."""
    # Importing `pyarrow.parquet`, a wrapper of this, takes longer than a small checkpoint.
    from pyarrow._parquet import ParquetWriter

    footer = {_FOOTER_KEY: b"%d" % layout.version}
    schema = layout.rows.schema.with_metadata(footer)
    writer = ParquetWriter(sink, schema, memory_pool=layout.pool, **layout.options)
    yield writer
    writer.close()


def open_parquet_checkpoint(
    store: Store, version: int, keys: Sequence[str], count: Callable[[int], None]
) -> CheckpointPartReader | pa.Table | None:
    """Open a checkpoint by the keys of its files, which are in one folder.

    Returns `CheckpointPartReader` for one of ours, of which only the manifest is read; all rows for
    one of another program; None for parts of ours without a manifest, which a writer is still
    making or has abandoned. `count` is called with the size of each file that was read.

    Raises `LogCorrupt` if the manifest is damaged or a part is missing.
    """
    folder = keys[0].rpartition("/")[0]
    for key in (key for key in keys if key.endswith(".json")):
        data = store.get(key)
        count(len(data))
        manifest = decode_manifest(data, version, key)
        if manifest is None:
            continue
        check_readable(manifest.protocol, key)
        for part in manifest.parts:
            part_key = f"{folder}/{part.name}"
            if is_shared_part(part.name, version):
                # Not among the files of this version. Over a network, reading it tells.
                if store.cheap_stat and store.stat(part_key) is None:
                    raise missing_part_error(part_key)
            elif part_key not in keys:
                raise missing_part_error(part_key)
        return CheckpointPartReader(store, manifest, folder)
    return _read_unverified(store, version, keys, count)


def find_named_parts(store: Store, version: int, keys: Sequence[str]) -> frozenset[str] | None:
    """Return the keys of all parts that a checkpoint's manifest names, those it shares included.

    Empty without a manifest of arrowlog; None if the manifest is damaged, so that it is unknown.
    Raises `FileNotFoundError` if the manifest is gone.
    """
    folder = keys[0].rpartition("/")[0]
    named: set[str] = set()
    for key in (key for key in keys if key.endswith(".json")):
        try:
            manifest = decode_manifest(store.get(key), version, key)
        except LogCorrupt:
            return None
        named |= {f"{folder}/{part.name}" for part in (manifest.parts if manifest else ())}
    return frozenset(named)


def is_without_manifest(store: Store, keys: Sequence[str]) -> bool:
    """Whether the files of a Parquet checkpoint are parts of ours without their manifest.

    Raises `LogCorrupt` if that cannot be told, and `FileNotFoundError` if a part is gone.
    """
    if any(key.endswith(".json") for key in keys):
        return False
    return _FOOTER_KEY in read_footer_metadata(store, keys[0])


def _read_unverified(
    store: Store, version: int, keys: Sequence[str], count: Callable[[int], None]
) -> pa.Table | None:
    """Read all rows of another program's checkpoint, which has no checksums; None if it is ours."""
    if is_without_manifest(store, keys):
        return None
    part_keys = [key for key in keys if key.endswith(".parquet")]
    parts = [key.rpartition("/")[2] for key in part_keys]
    expected = parquet_names(version, len(parts))
    if [name.lstrip("0") for name in parts] != [name.lstrip("0") for name in expected]:
        raise LogCorrupt(
            f"it has the parts {', '.join(parts) or 'none'}, which are not a complete checkpoint.",
            next=DAMAGED_CHECKPOINT_NEXT,
            file=keys[0].rpartition("/")[0],
            version=version,
            code="checkpoint-partial",
        )
    tables = []
    for key, data in zip(part_keys, store.get_many(part_keys), strict=True):
        count(len(data))
        tables.append(decode_unverified_part(data, key))
        if _FOOTER_KEY in (tables[-1].schema.metadata or {}):
            what = "arrowlog wrote it, but its manifest is another program's, without checksums."
            raise LogCorrupt(what, next=DAMAGED_CHECKPOINT_NEXT, file=key)
    return pa.concat_tables(tables, promote_options="default")


def verify_parquet_checkpoint(
    store: Store, version: int, keys: Sequence[str]
) -> list[LogCorrupt | UnsupportedProtocol]:
    """Read and verify a whole checkpoint; returns what is wrong with it, nothing if intact.

    Raises `StoreUnavailable` if the store fails: that says nothing about the checkpoint.
    """
    folder = keys[0].rpartition("/")[0]
    try:
        parts = open_parquet_checkpoint(store, version, keys, lambda _: None)
    except FileNotFoundError as error:
        return [missing_part_error(str(error))]
    except (LogCorrupt, UnsupportedProtocol) as error:
        return [error]
    if not isinstance(parts, CheckpointPartReader):
        what = "it has no manifest of arrowlog's, so it cannot be verified."
        return [LogCorrupt(what, file=folder, version=version)]
    problems: list[LogCorrupt | UnsupportedProtocol] = []
    num_rows = 0
    for part in parts.manifest.parts:
        try:
            rows = parts.check(part)
        except LogCorrupt as error:
            problems.append(error)
            continue
        num_rows += rows.num_rows
        if rows.num_rows != part.numFiles:
            what = f"it has {rows.num_rows} rows instead of {part.numFiles}."
            problems.append(LogCorrupt(what, file=parts.key(part)))
    num_files = num_rows - len(parts.manifest.dead)
    if not problems and num_files != parts.manifest.num_files:
        what = f"it has {num_files} files instead of {parts.manifest.num_files}."
        problems.append(LogCorrupt(what, file=folder, version=version))
    return problems or _retired_parts(store, parts.manifest, folder)


def _retired_parts(
    store: Store, manifest: CheckpointManifest, folder: str
) -> list[LogCorrupt | UnsupportedProtocol]:
    """Return a problem for each shared part that a cleanup may be about to delete.

    The records are listed after the manifest was found. A cleanup that records a part later finds
    the manifest, and leaves the part alone.
    """
    shared = [part.name for part in manifest.shared_parts]
    records = {retired_part_name(name) for name in shared}
    if not records or records.isdisjoint(store.list_from(folder)):
        return []
    what = "a cleanup has recorded that it deletes this part of an earlier checkpoint."
    return [
        LogCorrupt(what, next="Write a checkpoint: table.checkpoint().", file=f"{folder}/{name}")
        for name in shared
    ]


_REQUIRED_FIELDS = ("path", "size")
_NEXT = "Delete it if the commits up to its version exist."


def read_foreign_checkpoint(
    rows: pa.Table, version: int, root: str, *, allow_external_paths: bool
) -> State:
    """Build the state from the rows of a checkpoint.

    Raises `LogCorrupt` if the layout is unknown, there is not exactly one metadata row, an add
    lacks a required field, a file occurs twice, or a path leads out of the table.
    """
    if "actionType" not in rows.column_names:
        what = "the Parquet checkpoint has no column actionType: its layout is unknown."
        raise LogCorrupt(what, next=_NEXT, version=version)
    kinds = pc.ascii_lower(pc.cast(rows["actionType"], pa.string()))
    metadata = _metadata(
        rows.filter(pc.equal(kinds, make_scalar("metadata", pa.string()))), version
    )
    adds = _adds(rows.filter(pc.equal(kinds, make_scalar("add", pa.string()))), version)
    keyed = with_checkpoint_keys(adds, root, version, allow_external_paths=allow_external_paths)
    schema = parse_table_schema(metadata, version)
    return State(version, Protocol(), metadata, schema, InMemoryFiles(keyed))


def _metadata(rows: pa.Table, version: int) -> Metadata:
    actions: list[dict[str, Any]] = rows.slice(0, 2).to_pylist()  # two show that it is not one
    if len(actions) != 1 or not isinstance(actions[0].get("schemaString"), str):
        what = "the Parquet checkpoint must have one metadata row, with a schemaString."
        raise LogCorrupt(what, next=_NEXT, version=version)
    row = actions[0]
    table_format = dict(row.get("format") or ())
    return Metadata(
        id=row.get("metadataId") or "",
        schema_string=row["schemaString"],
        partition_columns=tuple(row.get("partitionColumns") or ()),
        configuration={k: v for k, v in dict(row.get("configuration") or ()).items() if v},
        format_provider=table_format.pop("provider", None) or "indextables",
        format_options={k: v for k, v in table_format.items() if v is not None},
    )


def _adds(rows: pa.Table, version: int) -> pa.Table:
    for name in _REQUIRED_FIELDS:
        if name not in rows.column_names or rows[name].null_count:
            what = f"the Parquet checkpoint has an add without {name}."
            raise LogCorrupt(what, next=_NEXT, version=version)
    columns: dict[str, pa.ChunkedArray] = {}
    for name, kind in ADD_FIELDS.items():
        if name not in rows.column_names:
            continue
        column = rows[name]
        if name in ADD_MAP_FIELDS:
            if pa.types.is_map(column.type):
                columns |= _flatten_map(name, column)
        elif kind is FieldKind.WORD:
            columns[name] = pc.cast(column, pa.string()).dictionary_encode()
        elif not pa.types.is_nested(column.type):
            columns[name] = pc.cast(column, kind.type)
    return pa.table(columns)


def _flatten_map(name: str, maps: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Return a map column as one text column per key, named `<name>.<key>`."""
    array = maps.combine_chunks()
    keys = pc.unique(pc.cast(array.keys, pa.string())).to_pylist() if len(array) else []
    columns = {}
    for key in keys:
        values = pc.map_lookup(array, key, "last")
        columns[f"{name}.{key}"] = pa.chunked_array([pc.cast(values, pa.string())])
    return columns
