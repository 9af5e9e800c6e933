"""Parquet checkpoints: write one, open one, find out whether one is whole.

Parts are put under names that say nothing by themselves; the manifest, put last, makes them one.
Two writers of the same checkpoint do no harm to each other: nothing but a manifest that was found
damaged is ever overwritten, a name that is taken by other bytes is left to its owner, and a
manifest vouches for bytes, not for names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import ArrowlogError, LogCorrupt, StoreUnavailable
from arrowlog.log.encode import checksum
from arrowlog.log.names import CHECKPOINTS, LOG, manifest_name, parquet_names
from arrowlog.log.store import put_same
from arrowlog.state.apply import check_readable
from arrowlog.state.files import Columns
from arrowlog.state.groups import GROUP_ROWS, index_of, order_of
from arrowlog.state.manifest import NEXT, Manifest, Part, decode, encode, with_sums
from arrowlog.state.parts import Parts, notes_of, places, read_whole
from arrowlog.state.stored import Recipe, pack, settle
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import State

FOLDER = f"{LOG}/{CHECKPOINTS}"
_SLICE_GROUPS = 8  # row groups that are put in order at a time
_PLAIN = 0.5  # a column with more distinct values than this share is not worth a dictionary
_PROBE_ROWS = 4096
_OURS = b"arrowlog"
_CODECS = {"uncompressed": "none"}


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that is there now: its files, the manifest last, and what is in it.

    `checksum` is the manifest's. `made` is false if somebody else had made it before.
    """

    names: tuple[str, ...]
    num_bytes: int
    num_files: int
    checksum: str
    made: bool = True


@dataclass(slots=True)
class Layout:
    """What is to be written, and how."""

    version: int
    table: pa.Table
    order: pa.Array
    recipe: Recipe
    index: pa.Table
    options: dict[str, Any]


def write_checkpoint(
    store: Store, state: State, config: Config, *, now_ms: int, new_id: str, broken: bool = False
) -> Written:
    """Write the checkpoint of a state. `new_id` is nobody else's: 12 hex digits or more.

    With `broken`, a damaged one is there, and its manifest is replaced.
    """
    layout = _layout(state, config)
    own = new_id.replace("-", "").lower()[:12]
    parts, sums = _put_parts(store, layout, config.checkpoint_max_file_size, own)
    manifest = Manifest(
        state.version,
        state.protocol,
        state.metadata,
        layout.table.num_rows,
        tuple(parts),
        tuple(layout.table.column_names),
        layout.recipe,
        with_sums(layout.index, sums, layout.table.num_columns),
        state.timestamp,
        state.txns,
        state.recent,
    )
    return put_manifest(store, manifest, own, now_ms, broken=broken)


def put_manifest(
    store: Store, manifest: Manifest, own: str, now_ms: int, *, broken: bool = False
) -> Written:
    """Make a checkpoint of parts that are there; if somebody was faster, it is theirs.

    With `broken`, a damaged one has the name, and is replaced.
    """
    data = encode(manifest, own, now_ms, f"arrowlog/{__version__}")
    key = f"{FOLDER}/{manifest_name(manifest.version)}"
    if broken:
        store.replace(key, data)
    if broken or put_same(store, key, data):
        return _written(manifest, data, made=True)
    found = store.find_many([key])[0]
    if found is None:  # there was one, and clean-up has deleted it since
        raise StoreUnavailable(
            f"{key} could not be written: the log was truncated beyond it.", next="Try again."
        )
    theirs = decode(found, manifest.version, key)
    if theirs is None:
        raise LogCorrupt("another program's manifest has the name.", next=NEXT, file=key)
    _take_back(store, manifest, theirs, own)
    return _written(theirs, found, made=False)


def _written(manifest: Manifest, data: bytes, *, made: bool) -> Written:
    names = (*(part.name for part in manifest.parts), manifest_name(manifest.version))
    size = sum(part.sizeInBytes for part in manifest.parts) + len(data)
    return Written(names, size, manifest.num_files, checksum(data), made)


def _take_back(store: Store, ours: Manifest, theirs: Manifest, own: str) -> None:
    """Delete parts that only we can have made, and that nobody vouches for."""
    named = {part.name for part in theirs.parts}
    gone = [part.name for part in ours.parts if f".{own}." in part.name and part.name not in named]
    store.delete([f"{FOLDER}/{name}" for name in gone])


def _layout(state: State, config: Config) -> Layout:
    partition = state.metadata.partition_columns
    adds = settle(state.adds, [*state.schema.names, *partition])
    columns = Columns(adds, state.schema, partition)
    columns.prepare([*state.schema.names, *partition])
    keys = adds["key"] if adds.num_rows else pa.chunked_array([], pa.string())
    order = order_of(columns, keys)
    index = index_of(columns, order)
    table, recipe = pack(columns, adds)
    table = table.combine_chunks()
    return layout_of(state.version, table, order, recipe, index, config)


def layout_of(
    version: int,
    table: pa.Table,
    order: pa.Array,
    recipe: Recipe,
    index: pa.Table,
    config: Config,
) -> Layout:
    """Stored rows and their order, to be written as the settings say."""
    codec = config.checkpoint_compression
    options = {
        "compression": _CODECS.get(codec, codec),
        "use_dictionary": _words(table),
        "write_statistics": False,
        "write_page_checksum": True,
    }
    return Layout(version, table, order, recipe, index, options)


def _words(table: pa.Table) -> list[str]:
    """Columns whose values repeat, looking at some from the middle."""
    some = table.slice(table.num_rows // 2, _PROBE_ROWS)
    found = []
    for name, column in zip(some.column_names, some.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            found.append(name)
        elif not pa.types.is_boolean(column.type):
            distinct = len(column.combine_chunks().dictionary_encode().dictionary)
            if distinct <= some.num_rows * _PLAIN:
                found.append(name)
    return found


def _put_parts(
    store: Store, layout: Layout, size_max: int, own: str
) -> tuple[list[Part], list[int]]:
    """Write the parts; returns what to say of them, and the checksum of each column chunk."""
    sums: list[int] = []
    cuts = _cuts(layout, size_max)
    plain = parquet_names(layout.version, len(cuts))
    special = parquet_names(layout.version, len(cuts), own)
    parts: list[Part] = []
    for (start, stop), name, other in zip(cuts, plain, special, strict=True):
        part, more = put_part(store, layout, (start, stop), (name, other))
        parts.append(part)
        sums += more
    return parts, sums


def put_part(
    store: Store, layout: Layout, rows: tuple[int, int], names: Sequence[str]
) -> tuple[Part, list[int]]:
    """Write some rows under the first of the names that is free: the last one is nobody else's."""
    start, stop = rows
    data, metadata = _bytes(layout, start, stop)
    for chosen in names:
        if put_same(store, f"{FOLDER}/{chosen}", data):
            break
    else:
        what = "a part under a name of our own is there already, with other bytes."
        raise LogCorrupt(what, next="Try again.", file=f"{FOLDER}/{names[-1]}")
    view = memoryview(data)
    sums = [int(checksum(view[a:b])[6:], 16) for a, b in places(metadata)]
    footer = len(data) - metadata.serialized_size - 8
    groups, sum_, foot = metadata.num_row_groups, checksum(data), checksum(view[footer:])
    return Part(chosen, len(data), stop - start, groups, sum_, footer, foot), sums


def _cuts(layout: Layout, size_max: int) -> list[tuple[int, int]]:
    """The rows of each part; how many bytes a row takes is learned from the first group."""
    rows = layout.table.num_rows
    if rows <= GROUP_ROWS:
        return [(0, rows)]
    size = len(_bytes(layout, 0, GROUP_ROWS)[0])
    groups = max(1, size_max // max(size, 1))
    step = groups * GROUP_ROWS
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _bytes(layout: Layout, start: int, stop: int) -> tuple[pa.Buffer, Any]:
    """Some of the rows as a Parquet file."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    note = {_OURS: b"%d" % layout.version}
    schema = layout.table.schema.with_metadata(note)
    with pq.ParquetWriter(sink, schema, **layout.options) as writer:
        for piece in _slices(layout, start, stop):
            writer.write_table(piece.cast(schema), row_group_size=GROUP_ROWS)
    data = sink.getvalue()
    return data, pq.read_metadata(pa.BufferReader(data))


def _slices(layout: Layout, start: int, stop: int) -> Iterator[pa.Table]:
    """Rows in their order, a few groups at a time: all at once would take as much memory again."""
    step = _SLICE_GROUPS * GROUP_ROWS
    for at in range(start, stop, step):
        yield layout.table.take(layout.order.slice(at, min(step, stop - at)))


def open_checkpoint(
    store: Store, version: int, names: Sequence[str], count: Callable[[int], None]
) -> Parts | pa.Table | None:
    """A checkpoint of ours, of which nothing but the manifest is read yet; or another's rows.

    None for parts of ours without a manifest: somebody is at it, or died over it.

    `LogCorrupt` if it is damaged, or not whole as far as can be seen. `count` is told the size of
    each file that was read.
    """
    manifests = [name for name in names if name.endswith(".json")]
    for name in manifests:
        key = f"{FOLDER}/{name}"
        data = store.get(key)
        count(len(data))
        manifest = decode(data, version, key)
        if manifest is None:
            continue
        check_readable(manifest.protocol, key)
        for part in manifest.parts:
            if part.name not in names:
                raise LogCorrupt("it is missing.", next=NEXT, file=f"{FOLDER}/{part.name}")
        return Parts(store, manifest)
    return _others(store, version, names, count)


def _others(
    store: Store, version: int, names: Sequence[str], count: Callable[[int], None]
) -> pa.Table | None:
    """All rows of a checkpoint that no manifest vouches for, if it is another program's."""
    plain = [name for name in names if name.endswith(".parquet")]
    if plain == list(names) and _OURS in notes_of(store, f"{FOLDER}/{plain[0]}"):
        return None
    expected = parquet_names(version, len(plain))
    if [name.lstrip("0") for name in plain] != [name.lstrip("0") for name in expected]:
        raise LogCorrupt(
            f"it has the parts {', '.join(plain) or 'none'}, which are not all of one checkpoint.",
            next=NEXT,
            file=FOLDER,
            version=version,
        )
    tables = []
    for name, data in zip(plain, store.get_many([f"{FOLDER}/{n}" for n in plain]), strict=True):
        count(len(data))
        tables.append(read_whole(data, f"{FOLDER}/{name}"))
        if _OURS in (tables[-1].schema.metadata or {}):
            what = "its manifest is another program's, so nobody vouches for it."
            raise LogCorrupt(what, next=NEXT, file=f"{FOLDER}/{name}")
    return pa.concat_tables(tables, promote_options="default")


def verify(store: Store, version: int, names: Sequence[str], config: Config) -> list[str]:
    """What is wrong with a checkpoint; nothing if it is whole, and every row can be read."""
    del config
    try:
        parts = open_checkpoint(store, version, names, lambda _: None)
    except FileNotFoundError as error:
        return [f"{error} is gone."]
    except ArrowlogError as error:
        return [str(error)]
    if not isinstance(parts, Parts):
        return [f"checkpoint {version} has no manifest of ours, so nobody vouches for it."]
    problems, rows = [], 0
    for part in parts.manifest.parts:
        try:
            found = parts.check(part)
        except ArrowlogError as error:
            problems.append(str(error))
            continue
        rows += found.num_rows
        if found.num_rows != part.numFiles:
            problems.append(f"{FOLDER}/{part.name}: it has {found.num_rows} rows.")
    if not problems and rows != parts.manifest.num_files:
        problems.append(f"checkpoint {version} has {rows} files and should have others.")
    return problems
