"""The live files of a version that starts from a table state in Avro, read on demand.

A state names manifests; of two entries with one path the one in the later manifest counts, and its
tombstones are dead. Manifests are the row groups of data skipping: their partition bounds tell
which of them need not be read.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, make_array, to_numpy
from arrowlog.decode import ENTRY_COLUMNS, decode_file_entries
from arrowlog.errors import LogCorrupt
from arrowlog.formats import physical_name
from arrowlog.formats.indextables import STATE_FILE_NAME, bound_table, state_folder_name
from arrowlog.memory_limit import check_memory
from arrowlog.snapshot.deferred_files import NO_ADDS, DeferredFiles
from arrowlog.snapshot.file_table import FileStats, GroupStats
from arrowlog.snapshot.log_replay import with_checkpoint_keys
from arrowlog.snapshot.read_options import find_superset
from arrowlog.snapshot.snapshot import InMemoryFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import Format
    from arrowlog.formats.indextables import ManifestInfo, StateManifest
    from arrowlog.snapshot.read_options import ManifestCache
    from arrowlog.storage import Store

# Manifests that are read and decoded at a time; each holds its uncompressed blocks in memory.
_READERS_MAX = 8
_ALL_FIELDS = frozenset(ENTRY_COLUMNS)
# Always decoded: the path is needed to tell which entries are live, and most plans show sizes.
_BASE_FIELDS = frozenset({"path", "size"})
_COUNT_FIELDS = ("numRecords", "stats")
_BOUND_FIELDS = ("minValues", "maxValues", "stats", "numRecords")
_DOT, _SLASH, _COLON = b"./:"
_HASHED_KEYS_MIN = 2000  # below, a hash table of the keys takes as long
_WORD_BYTES = 8
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio times 2**64
_HASH_SHIFT = np.uint64(29)
_RESTORE = "Restore the file from a backup, or read a version whose files are all there."


class StateEntries:
    """The live entries of a state, or of some of its manifests. Columns are kept once read.

    `mappings` are the doc mappings that entries refer to. `folder` is that of the log.
    """

    def __init__(
        self,
        store: Store,
        table_format: Format,
        config: Config,
        cache: ManifestCache,
        state: StateManifest,
        table_id: str,
        mappings: Mapping[str, str],
        *,
        allow_external_paths: bool,
        chosen: Sequence[int] | None = None,
    ) -> None:
        """Read nothing yet; `chosen` are the numbers of manifests, None for all."""
        self.store = store
        self.format = table_format
        self.config = config
        self.cache = cache
        self.state = state
        self.table_id = table_id
        self.mappings = mappings
        self.allow_external_paths = allow_external_paths
        self.chosen = chosen
        numbers = range(len(state.manifests)) if chosen is None else chosen
        self.manifests = [state.manifests[number] for number in numbers]
        self.count = sum(manifest.num_entries for manifest in self.manifests)
        self._live: pa.Array | None = None  # rows of the manifests that are live; None: not known
        self._all_live = False
        self._tables: dict[frozenset[str], pa.Table] = {}

    def only(self, chosen: Sequence[int]) -> StateEntries:
        """Return the entries of some manifests."""
        return StateEntries(
            self.store,
            self.format,
            self.config,
            self.cache,
            self.state,
            self.table_id,
            self.mappings,
            allow_external_paths=self.allow_external_paths,
            chosen=tuple(chosen),
        )

    def table(self, names: Iterable[str]) -> pa.Table:
        """Return fields of the live entries as adds, always including `path` and `key`.

        Raises `LogCorrupt` if a manifest is missing, damaged, or has a path outside the table.
        """
        fields = frozenset(names) & _ALL_FIELDS | _BASE_FIELDS
        if "docMappingJson" in fields:
            fields |= {"docMappingRef"}
        known = find_superset(self._tables, fields)
        if known is None:
            known = self._read(fields)
            for other in [other for other in self._tables if other < fields]:
                self._tables.pop(other, None)
            self._tables[fields] = known
        return known

    def _read(self, fields: frozenset[str]) -> pa.Table:
        if len(self.manifests) == 1:
            tables = [self._manifest(self.manifests[0], fields)]
        else:
            workers = max(1, min(len(self.manifests), _READERS_MAX, 2 * (os.cpu_count() or 1)))
            with ThreadPoolExecutor(workers) as pool:
                tables = list(pool.map(lambda info: self._manifest(info, fields), self.manifests))
        if not tables:
            return pa.table({"path": pa.nulls(0, pa.string()), "key": pa.nulls(0, pa.string())})
        entries = pa.concat_tables(tables, promote_options="default")
        check_memory(self.store.root, entries.nbytes, self.config.max_memory)
        entries = self._with_keys(entries, allow_external_paths=self.allow_external_paths)
        if self._live is None and not self._all_live:
            self._live = self._find_live(entries["key"])
            self._all_live = self._live is None
        if self._live is not None:
            entries = entries.take(self._live)
        return self.with_mappings(entries) if "docMappingJson" in fields else entries

    def _manifest(self, info: ManifestInfo, fields: frozenset[str]) -> pa.Table:
        """Return the decoded entries of one manifest, from the cache if they are there."""
        key = self.format.key(info.path)
        entries = self.cache.get(self.table_id, key, fields)
        if entries is not None and entries.num_rows == info.num_entries:
            return entries
        try:
            data = self.store.get(key)
        except FileNotFoundError:
            raise LogCorrupt(
                f"the state of version {self.state.state_version} names this manifest, and it is"
                " missing.",
                next=_RESTORE,
                file=key,
                version=self.state.state_version,
            ) from None
        limit = self.config.max_decompressed_bytes
        entries = decode_file_entries(data, key, limit, num_entries=info.num_entries, fields=fields)
        self.cache.put(self.table_id, key, fields, entries)
        return entries

    def _find_live(self, keys: pa.ChunkedArray) -> pa.Array | None:
        """Return the rows of live entries: the last one of each path, unless it is dead.

        None if all entries are live.
        """
        rows = None
        if not _are_distinct(keys):
            codes = keys.combine_chunks().dictionary_encode()
            last = np.zeros(len(codes.dictionary), np.int64)
            # Of values that are assigned to one place, the last one stays.
            last[to_numpy(codes.indices)] = np.arange(len(codes))
            rows = from_numpy(np.sort(last))
        if self.state.tombstones:
            whole = keys if rows is None else keys.take(rows)
            dead = pc.is_in(whole, value_set=self.tombstone_keys()).combine_chunks()
            if dead.true_count:
                alive = pc.indices_nonzero(pc.invert(dead))
                rows = pc.cast(alive, pa.int64()) if rows is None else rows.take(alive)
        return rows

    def tombstone_keys(self) -> pa.Array:
        """Return the keys of dead files, written as the paths of entries are."""
        paths = pa.table({"path": make_array(self.state.tombstones, pa.string())})
        return self._with_keys(paths, allow_external_paths=True)["key"].combine_chunks()

    def _with_keys(self, entries: pa.Table, *, allow_external_paths: bool) -> pa.Table:
        if _are_plain(entries["path"]):
            return entries.append_column("key", entries["path"])
        version = self.state.state_version
        return with_checkpoint_keys(
            entries,
            self.store.root,
            version,
            allow_external_paths=allow_external_paths,
            table_format=self.format,
            unique=False,
            file=self.format.key(state_folder_name(version), STATE_FILE_NAME),
        )

    def with_mappings(self, entries: pa.Table) -> pa.Table:
        """Return the entries with `docMappingJson` filled in from what they refer to."""
        if "docMappingRef" not in entries.column_names or not self.mappings:
            return entries
        refs = entries["docMappingRef"].unify_dictionaries().combine_chunks()
        known = [self.mappings.get(ref) for ref in refs.dictionary.to_pylist()]
        texts = make_array(known, pa.string()).take(refs.indices)
        if "docMappingJson" in entries.column_names:
            at = entries.column_names.index("docMappingJson")
            own = pc.cast(entries["docMappingJson"], pa.string()).combine_chunks()
            merged = pc.coalesce(own, texts).dictionary_encode()
            return entries.set_column(at, "docMappingJson", merged)
        return entries.append_column("docMappingJson", texts.dictionary_encode())

    def unresolved_refs(self, entries: pa.Table) -> list[str]:
        """Return references to doc mappings that are nowhere, of entries without an own mapping."""
        if "docMappingRef" not in entries.column_names:
            return []
        refs = entries["docMappingRef"]
        if "docMappingJson" in entries.column_names:
            refs = refs.filter(pc.is_null(entries["docMappingJson"]))
        return sorted(text for text in pc.unique(pc.cast(refs, pa.string())).to_pylist() if text)


def _are_plain(paths: pa.ChunkedArray) -> bool:
    """Return whether all paths are relative, with `/` between names; False if that is not certain.

    Most manifests have such paths only, which are their own keys.
    """
    for chunk in (chunk for chunk in paths.chunks if len(chunk)):
        _, offsets, data = chunk.buffers()
        bounds = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        if chunk.null_count or data is None or (bounds[1:] == bounds[:-1]).any():
            return False
        octets = np.frombuffer(data, np.uint8)[: bounds[-1]]
        if (octets[bounds[:-1]] == _SLASH).any():
            return False
        used = octets[bounds[0] :]
        dots, colons = used == _DOT, used == _COLON
        if (dots[1:] & dots[:-1]).any() or (colons[:-1] & (used[1:] == _SLASH)).any():
            return False
    return True


def _are_distinct(keys: pa.ChunkedArray) -> bool:
    """Return whether no key is there twice; False if that is not certain.

    Texts with different hashes are different. Sorting the hashes of many keys takes a tenth of the
    time of encoding the keys, and needs no engine.
    """
    if len(keys) <= _HASHED_KEYS_MIN:
        return int(pc.count_distinct(keys, mode="all").as_py()) == len(keys)
    hashes = [_hash_texts(chunk) for chunk in keys.chunks if len(chunk)]
    if any(part is None for part in hashes):
        return False
    ordered = np.sort(np.concatenate([part for part in hashes if part is not None]))
    return not bool((ordered[1:] == ordered[:-1]).any())


def _hash_texts(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]] | None:
    """Return a hash of each text; None if one is null, or too short for a word of 8 bytes."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, lengths = bounds[:-1].astype(np.int64), np.diff(bounds)
    if texts.null_count or lengths.min() < _WORD_BYTES:
        return None
    # A word at every position; those beyond the end of a text are its last one again.
    count = int(bounds[-1]) - _WORD_BYTES + 1
    words: np.ndarray[Any, Any] = np.ndarray((count,), "<u8", buffer=data, strides=(1,))
    last = starts + (lengths - _WORD_BYTES)
    hashes = lengths.astype(np.uint64)
    for at in range(0, int(lengths.max()), _WORD_BYTES):
        hashes *= _HASH_FACTOR
        hashes ^= hashes >> _HASH_SHIFT
        hashes += words[np.minimum(starts + at, last)]
    return hashes


class AvroStateFiles(DeferredFiles):
    """A `FileSource`: live files in the manifests of a state that are not read yet."""

    _key_column = "key"

    def __init__(
        self,
        entries: StateEntries,
        version: int,
        again: Callable[[int], pa.Table],
        tail: pa.Table = NO_ADDS,
        touched: pa.ChunkedArray | None = None,
        warned: list[str] | None = None,
    ) -> None:
        """Read nothing yet. `warned` collects warnings, shared with all sources made from this."""
        super().__init__(version, again, tail, touched, warned)
        self.entries = entries

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the live adds: the receiver may not be able to reach the store."""
        return InMemoryFiles, (self.adds(), self.entries.format)

    @property
    def checkpoint(self) -> int:
        """The version of the state."""
        return self.entries.state.state_version

    @property
    def root(self) -> str:
        """The address of the table, for messages."""
        return self.entries.store.root

    @property
    def _num_rows(self) -> int:
        return self.entries.count

    @property
    def _exact(self) -> bool:
        """False: only reading tells whether a path is there twice, or a tombstone hits one."""
        return False

    def _read(self, names: Iterable[str]) -> pa.Table:
        rows = self.entries.table(names)
        state = self.entries.state
        if self.entries.chosen is None and rows.num_rows != state.num_files >= 0:
            self._note(
                f"state {self.checkpoint} says that it has {state.num_files} files, and has"
                f" {rows.num_rows}"
            )
        return rows

    def _note(self, text: str) -> None:
        if text not in self._warned:
            self._warned.append(text)

    def adds(self) -> pa.Table:
        """Return all live adds; doc mappings of later commits are looked up as well."""
        if self._adds is None:
            self._adds = self.entries.with_mappings(super().adds())
        return self._adds

    def _to_adds(self) -> pa.Table | None:
        rows = self.stored(_ALL_FIELDS)
        if rows is not None:
            for ref in self.entries.unresolved_refs(rows):
                self._note(f"state {self.checkpoint}: the doc mapping {ref} is nowhere in the log")
        return rows

    def _replaced(
        self, version: int, tail: pa.Table, touched: pa.ChunkedArray | None
    ) -> AvroStateFiles:
        return AvroStateFiles(self.entries, version, self._again, tail, touched, self._warned)

    def _load_again(self, error: LogCorrupt) -> pa.Table:
        """Load the adds without the state; if that is impossible, its own error counts.

        A selection of manifests cannot be loaded in another way, so that all files are loaded.
        """
        try:
            return self._again(self.version)
        except LogCorrupt as other:
            raise error from other

    def table(self, names: Iterable[str]) -> pa.Table:
        """Return fields of all live adds, `path` and `key` included."""
        wanted = list(names)
        rows = None if self._adds is not None else self.stored(wanted)
        if rows is None:
            return self.adds()
        return pa.concat_tables([rows, self.tail], promote_options="default")

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds; reads only that field of the manifests."""
        table = self.table([name])
        if name in table.column_names:
            return table[name]
        kind = self.entries.format.actions.fields["add"][name].type
        return pa.chunked_array([pa.nulls(table.num_rows, kind)])

    def files(
        self, schema: pa.Schema, partition_columns: Sequence[str], mask: pa.Array | None = None
    ) -> pa.Table:
        """Return the typed table of live files, or of those in `mask`."""
        return InMemoryFiles(self.adds(), self.entries.format).files(
            schema, partition_columns, mask
        )

    def stats(self, schema: pa.Schema, partition_columns: Sequence[str]) -> FileStats:
        """Return the typed partition values and statistics of the live files, by column."""
        return AvroStateStats(self, schema, partition_columns)

    def is_typed(self, schema: pa.Schema, partition_columns: Sequence[str]) -> bool:
        """False: partition values and statistics are text in the entries."""
        del schema, partition_columns
        return False

    def row_group_stats(
        self, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> GroupStats | None:
        """Return the partition bounds of the manifests that can be trusted."""
        if self._adds is not None or self.entries.chosen is not None:
            return None
        if not partition_columns or len(self.entries.manifests) <= 1:
            return None
        return ManifestStats(self.entries.manifests, schema, partition_columns)

    def select_row_groups(self, groups: Sequence[int]) -> AvroStateFiles:
        """Return the files of some manifests, and the tail."""
        return AvroStateFiles(
            self.entries.only(groups),
            self.version,
            self._again,
            self.tail,
            self.touched,
            self._warned,
        )


class ManifestStats(GroupStats):
    """Trusted partition bounds of manifests.

    A manifest has a row for the values within its bounds and one for '' in each text column, which
    bounds say nothing about; it can be skipped if all its rows can be.
    """

    def __init__(
        self,
        manifests: Sequence[ManifestInfo],
        schema: pa.Schema,
        partition_columns: Sequence[str],
    ) -> None:
        """Take the bounds that the state holds."""
        typed = FileStats(NO_ADDS, schema, partition_columns).schema
        kinds = {name: typed.field(name).type for name in partition_columns}
        bounds = bound_table([info.partition_bounds for info in manifests], kinds)
        columns: dict[str, pa.ChunkedArray] = {}
        for name in partition_columns:
            stored = physical_name(typed, name)
            columns[f"minValues.{stored}"] = bounds[f"low.{name}"]
            columns[f"maxValues.{stored}"] = bounds[f"high.{name}"]
        super().__init__(pa.table(columns), typed, ())
        self._owners = bounds["manifest"]
        self._num_manifests = len(manifests)

    def choose_groups(self, keep_mask: pa.Array) -> list[int] | None:
        """Return the manifests of which a row is kept; None if that is all of them."""
        chosen = pc.unique(self._owners.filter(keep_mask)).to_pylist()
        return None if len(chosen) == self._num_manifests else sorted(chosen)


class AvroStateStats(FileStats):
    """Typed columns of a state's live files; only the fields that hold them are read."""

    def __init__(
        self, source: AvroStateFiles, schema: pa.Schema, partition_columns: Sequence[str]
    ) -> None:
        """Read nothing yet."""
        super().__init__(NO_ADDS, schema, partition_columns, source.entries.format)
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as columns of the live adds, as `AvroStateFiles` does."""
        adds = self._source.adds()
        return FileStats, (adds, self.schema, self.partition_columns, self._format)

    @property
    def num_rows(self) -> int:
        """The number of live files."""
        return self._source.num_files

    def _adds_with(self, names: Iterable[str]) -> pa.Table:
        """Read the statistics of several columns in one pass."""
        fields: set[str] = set()
        for name in names:
            if name in self.partition_columns:
                fields.add("partitionValues")
            else:
                fields.update(_BOUND_FIELDS if name else _COUNT_FIELDS)
        return self._source.table(fields)
