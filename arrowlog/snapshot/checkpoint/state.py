"""Writes table states in Avro: manifests first, then the state that names them, then the pointer.

A state reuses the manifests of the state below it, adds one for the new files, and lists removed
files as tombstones. All files are written anew instead if other readers could misread that: they
let a tombstone beat any entry of its path, and some do not drop the earlier of two entries.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import INT_MAX, make_array, sum_exactly
from arrowlog.decode import flatten_map_columns
from arrowlog.errors import CommitConflict, LogCorrupt, StoreUnavailable
from arrowlog.formats.indextables import (
    ENTRIES_PER_MANIFEST,
    INDEXTABLES,
    LAST_CHECKPOINT,
    STATE_PROTOCOL_VERSION,
    ManifestInfo,
    StateManifest,
    StatePointer,
    encode_manifest,
    encode_state,
    encode_state_pointer,
    manifest_bounds,
    metadata_fields,
    new_manifest_path,
    parse_state,
    parse_state_pointer,
)
from arrowlog.snapshot.avro_state_files import AvroStateFiles, StateEntries
from arrowlog.snapshot.read_options import ManifestCache
from arrowlog.snapshot.state_reader import MAPPING_PREFIX, StateFacts, doc_mappings
from arrowlog.storage import PutOutcome, put_identical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.snapshot.snapshot import State
    from arrowlog.storage import Store

# Limits of other writers, beyond which a state is written anew. The number of manifests is that
# beside those that are needed for all files.
_MAX_TOMBSTONE_SHARE = 0.1
_MAX_MANIFESTS = 20
_MAX_PUTS = 5
_REF_LENGTH = 16
_SYNC_BYTES = 16


@dataclass(frozen=True, slots=True)
class WrittenState:
    """A state that is in the log: the files that were written, their size, and its record."""

    version: int
    names: tuple[str, ...]
    size_bytes: int
    record: StateManifest


class StateWriter:
    """Writes states of one table; `new_id` returns a unique text for names."""

    def __init__(self, store: Store, config: Config, new_id: Callable[[], str]) -> None:
        """Write nothing yet."""
        self._store = store
        self._config = config
        self._new_id = new_id

    def write(self, state: State, *, anew: bool = False, broken: bool = False) -> WrittenState:
        """Write the state of a version whose commit is in the log, and point to it.

        Args:
            state: the version.
            anew: reuse no manifests.
            broken: the state that is there is damaged: replace it.

        Raises:
            CommitConflict: another program wrote another state of the same version.
            StoreUnavailable: the store failed; the commit stands without a state.
        """
        names: list[str] = []
        record, sizes = self._build(state, names, anew=anew)
        key = INDEXTABLES.key(INDEXTABLES.state_name(state.version))
        data = encode_state(record, self._sync())
        if broken:
            self._store.replace(key, data)
        elif not self._put(key, data):
            self.check_same(state)
        self._point(record)
        names.append(INDEXTABLES.state_name(state.version))
        return WrittenState(state.version, tuple(names), sizes + len(data), record)

    def _sync(self) -> bytes:
        return hashlib.sha256(self._new_id().encode()).digest()[:_SYNC_BYTES]

    def _build(self, state: State, names: list[str], *, anew: bool) -> tuple[StateManifest, int]:
        """Write the new manifests and return the record that names all of them."""
        reused = None if anew else _reusable_base(state)
        mappings = _known_mappings(state)
        if reused is None:
            adds = _in_partition_order(state)
            manifests: tuple[ManifestInfo, ...] = ()
            tombstones: tuple[str, ...] = ()
        else:
            adds, manifests, tombstones = reused
        adds, registry = _with_references(adds, mappings)
        sizes = 0
        for start in range(0, adds.num_rows, ENTRIES_PER_MANIFEST):
            info, size = self._write_manifest(state, adds.slice(start, ENTRIES_PER_MANIFEST))
            manifests = (*manifests, info)
            names.append(info.path)
            sizes += size
        fields = _without_none(metadata_fields(state.metadata))
        # Other programs look doc mappings up in either place.
        configuration = {f"{MAPPING_PREFIX}{ref}": text for ref, text in registry.items()}
        added = sorted(configuration.keys() - fields["configuration"].keys())
        fields["configuration"] = configuration | fields["configuration"]
        total = sum_exactly(state.column("size")) if state.num_files else 0
        record = StateManifest(
            state.version,
            state.timestamp or 0,
            state.num_files,
            min(total, INT_MAX),  # an estimate
            manifests,
            tombstones,
            registry,
            STATE_PROTOCOL_VERSION,
            msgspec.json.encode(fields).decode(),
            msgspec.json.encode(_facts(state, added)),
        )
        return record, sizes

    def _write_manifest(self, state: State, adds: pa.Table) -> tuple[ManifestInfo, int]:
        unique = hashlib.sha256(self._new_id().encode()).hexdigest()[:_REF_LENGTH]
        path = new_manifest_path(unique)
        data = encode_manifest(
            adds,
            version=state.version,
            timestamp=state.timestamp or 0,
            sync=self._sync(),
            path="path",
        )
        if not put_identical(self._store, INDEXTABLES.key(path), data):
            raise StoreUnavailable(f"{path} exists with other content.", next="Try again.")
        columns = state.metadata.partition_columns
        bounds = manifest_bounds(flatten_map_columns(adds, columns), columns)
        info = ManifestInfo(path, adds.num_rows, bounds, state.version, state.version)
        return info, len(data)

    def _put(self, key: str, data: bytes) -> bool:
        """Put the file of a state; return whether it holds these bytes afterwards."""
        for _ in range(_MAX_PUTS):
            outcome = self._store.put_if_absent(key, data)
            if outcome is PutOutcome.DONE:
                return True
            if outcome is not PutOutcome.NOT_APPLIED:
                stored = self._store.find_many([key])[0]
                if stored is not None:
                    return stored == data
        raise StoreUnavailable(
            f"Could not write {key}: the response of the store was lost.", next="Try again."
        )

    def check_same(self, state: State) -> None:
        """Raise `CommitConflict` unless the state that another program put has the same files."""
        key = INDEXTABLES.key(INDEXTABLES.state_name(state.version))
        what = "the state cannot be read"
        try:
            limit = self._config.max_decompressed_bytes
            record = parse_state(self._store.get(key), key, state.version, limit)
            if _live_keys(self._store, self._config, record, state) == _key_set(state):
                return
            what = "its files differ"
        except LogCorrupt as error:
            what = error.what
        except FileNotFoundError:
            return
        raise CommitConflict(
            f"The commit is in the log as version {state.version}, but a writer for which table"
            f" states are the commits wrote {key} at the same time: {what}. Both stay, and"
            " different readers see different tables.",
            next="Let writers of one kind only write to the table, then look at both versions with"
            " table.doctor().",
            version=state.version,
        )

    def _point(self, record: StateManifest) -> None:
        """Point `_last_checkpoint` to the state, unless it names a later version already.

        A writer that was stopped between reading and writing the pointer may put it back behind
        the state of another one. That state is there already, so that it is looked for.
        """
        key = INDEXTABLES.key(LAST_CHECKPOINT)
        newest: StateManifest | None = record
        while newest is not None:
            if self._is_pointed_to(newest.state_version, self._store.find_many([key])[0]):
                return
            pointer = StatePointer(
                newest.state_version, newest.num_files, newest.total_bytes, newest.created_at
            )
            self._store.replace(key, encode_state_pointer(pointer))
            newest = self._find_later(newest.state_version)

    def point_to(self, version: int) -> None:
        """Point `_last_checkpoint` to a state that is in the log; see `_point`."""
        key = INDEXTABLES.key(INDEXTABLES.state_name(version))
        limit = self._config.max_decompressed_bytes
        try:
            data = self._store.get(key)
        except FileNotFoundError:
            return  # deleted meanwhile, below a newer state, to which the pointer leads
        self._point(parse_state(data, key, version, limit))

    def _is_pointed_to(self, version: int, data: bytes | None) -> bool:
        """Whether the content of `_last_checkpoint` names a state, or a later one that is there."""
        pointer = None if data is None else parse_state_pointer(data)
        if pointer is None or pointer.version < version:
            return False
        name = INDEXTABLES.state_name(pointer.version)
        return pointer.version == version or self._store.stat(INDEXTABLES.key(name)) is not None

    def _find_later(self, version: int) -> StateManifest | None:
        """Return the last of the states that follow a version without a gap; None if none does."""
        last = version
        while self._store.stat(INDEXTABLES.key(INDEXTABLES.state_name(last + 1))) is not None:
            last += 1
        if last == version:
            return None
        key = INDEXTABLES.key(INDEXTABLES.state_name(last))
        data = self._store.find_many([key])[0]
        limit = self._config.max_decompressed_bytes
        return None if data is None else parse_state(data, key, last, limit)


def _reusable_base(
    state: State,
) -> tuple[pa.Table, tuple[ManifestInfo, ...], tuple[str, ...]] | None:
    """Return the new adds, the manifests to reuse and the tombstones; None to write all anew."""
    source = state.source
    if not isinstance(source, AvroStateFiles) or source.entries.chosen is not None:
        return None
    base, tail = source.entries.state, source.tail
    if source.touched is None:
        return tail, base.manifests, base.tombstones
    entries = source.entries.table(())
    touched = source.touched.combine_chunks()
    hit = entries.filter(pc.is_in(entries["key"], value_set=touched))
    if tail.num_rows:
        # A path that is added again, whether it is live in the base or a tombstone.
        known = pa.concat_arrays([*hit["key"].chunks, source.entries.tombstone_keys()])
        if pc.any(pc.is_in(tail["key"], value_set=known)).as_py():
            return None
        if _was_removed(source):
            return None
    tombstones = (*base.tombstones, *hit["path"].to_pylist())
    num_manifests = len(base.manifests) + bool(tail.num_rows)
    files = state.num_files
    if files <= 0 or num_manifests > _MAX_MANIFESTS + files // ENTRIES_PER_MANIFEST:
        return None
    if len(tombstones) > _MAX_TOMBSTONE_SHARE * files:
        return None
    return tail, base.manifests, tombstones


def _was_removed(source: AvroStateFiles) -> bool:
    """Whether a live file of the tail may have been removed since the base.

    Other readers apply all adds of the commits after a state before all removes. `touched` has a
    key once for each action, so a file of the tail that is there twice was.
    """
    assert source.touched is not None
    again = pc.is_in(source.touched, value_set=source.tail["key"].combine_chunks())
    return bool((pc.sum(again).as_py() or 0) > source.tail.num_rows)


def _in_partition_order(state: State) -> pa.Table:
    """Return all live adds, those of one partition together: then bounds can exclude manifests."""
    adds = state.adds
    columns = [f"partitionValues.{name}" for name in state.metadata.partition_columns]
    flat = flatten_map_columns(adds, state.metadata.partition_columns)
    known = [name for name in columns if name in flat.column_names]
    if not known or not adds.num_rows:
        return adds
    keys = flat.select(known)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in known])
    return adds.take(order)


def _known_mappings(state: State) -> dict[str, str]:
    source = state.source
    if isinstance(source, AvroStateFiles):
        return doc_mappings(source.entries.state, state.metadata)
    return doc_mappings(StateManifest(0, 0, 0, 0), state.metadata)


def _with_references(
    adds: pa.Table, mappings: Mapping[str, str]
) -> tuple[pa.Table, dict[str, str]]:
    """Return the adds with references in place of doc mappings, and the mappings by reference."""
    registry = dict(mappings)
    if "docMappingJson" not in adds.column_names:
        return adds, registry
    texts = pc.cast(adds["docMappingJson"], pa.string()).combine_chunks().dictionary_encode()
    own = [mapping_reference(text) for text in texts.dictionary.to_pylist()]
    derived = make_array(own, pa.string()).take(texts.indices)
    refs = derived
    if "docMappingRef" in adds.column_names:
        given = pc.cast(adds["docMappingRef"], pa.string()).combine_chunks()
        refs = pc.coalesce(given, derived)
        adds = adds.drop_columns(["docMappingRef"])
    plain = texts.dictionary_decode()
    pairs = pa.table({"ref": refs, "text": plain}).group_by(["ref", "text"]).aggregate([])
    for ref, text in zip(pairs["ref"].to_pylist(), pairs["text"].to_pylist(), strict=True):
        if ref is not None and text is not None:
            registry.setdefault(ref, text)
    adds = adds.drop_columns(["docMappingJson"])
    return adds.append_column("docMappingRef", refs), registry


def mapping_reference(text: str) -> str:
    """Return the reference to a doc mapping: a hash of its canonical JSON.

    Keys are sorted, and so are lists of objects with names. Text that is not JSON is hashed as it
    is.
    """
    try:
        canonical = msgspec.json.encode(_canonical(msgspec.json.decode(text)), order="sorted")
    except (msgspec.DecodeError, RecursionError):
        canonical = text.encode()
    digest = hashlib.sha256(canonical).digest()
    return base64.urlsafe_b64encode(digest).decode()[:_REF_LENGTH]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_canonical(item) for item in value]
        if items and all(isinstance(item, dict) and "name" in item for item in items):
            items.sort(key=lambda item: str(item["name"]))
        return items
    return value


def _facts(state: State, added: list[str]) -> StateFacts:
    recent = state.recent
    protocol = state.protocol
    return StateFacts(
        timestamp=state.timestamp,
        txns=dict(state.txns),
        recentCommits=(recent.first, list(recent.txn_ids)),
        features=(list(protocol.reader_features), list(protocol.writer_features)),
        addedProperties=added,
    )


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _key_set(state: State) -> set[str]:
    return set(state.column("key").to_pylist())


def _live_keys(store: Store, config: Config, record: StateManifest, state: State) -> set[str]:
    """Return the keys of the live files of another program's state."""
    entries = StateEntries(
        store,
        state.format,
        config,
        ManifestCache(),
        record,
        state.metadata.id,
        {},
        allow_external_paths=True,
    )
    keys: Sequence[str] = entries.table(())["key"].to_pylist()
    return set(keys)
