"""Writes JSON checkpoints and the `_last_checkpoint` pointer.

A checkpoint appears completely or not at all. One that exists is left alone unless it is damaged,
so two writers of the same checkpoint do no harm. The pointer is written last and never moves back;
correctness does not depend on it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.display import format_bytes, format_items
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import (
    CHECKSUM_PREFIX,
    CheckpointContext,
    StreamCompressor,
    encode_action,
    encode_checkpoint_end,
    encode_checkpoint_start,
    encode_json_manifest,
    format_checksum,
    join_add_objects,
    metadata_fields,
    protocol_fields,
)
from arrowlog.log_lines import compression_ratio
from arrowlog.snapshot.checkpoint.row_spill import SpilledFiles
from arrowlog.snapshot.checkpoint.rows import ROW_GROUP_FILES
from arrowlog.snapshot.listing import pointed_version
from arrowlog.storage import PutOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from arrowlog.config import Config
    from arrowlog.formats import Format
    from arrowlog.snapshot.snapshot import State
    from arrowlog.storage import Store

# Adds that are encoded as JSON at a time.
_BATCH_ROWS_MAX = 1 << 15
# The same of files in a temporary file, and the size of a part of them: memory counts there.
_SPILLED_ROWS_MAX, _SPILLED_PART_BYTES_MAX = 1 << 12, 8 << 20
# JSON of an add is nearly always at least this long: so many adds of this size fill a file.
_ADD_BYTES_MIN = 1 << 8
# Batches of adds that fill a file at least, if their JSON does not compress.
_BATCHES_PER_FILE = 16
# What follows the last add of a checkpoint in one file.
_END_BYTES_MAX = 64
# A file that would exceed its limit so many times, judged by its first adds, is not begun.
_CERTAIN_EXCESS = 1.25
# Part numbers have five digits.
_PARTS_MAX = 10_000
# What readers with default settings decompress at most (`maxDecompressedBytes`).
_DEFAULT_DECOMPRESSED_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """What was written: `names` in the log folder, empty if the checkpoint existed already.

    `size_bytes` and `uncompressed_bytes` are those of the files that were written, in all forms.
    """

    version: int
    num_files: int
    size_bytes: int
    format: str
    names: tuple[str, ...]
    uncompressed_bytes: int = 0
    milliseconds: float = 0.0

    def __repr__(self) -> str:
        """The version, and what was written of it."""
        live = f"version {self.version}, {format_items(self.num_files, 'live file')}"
        if not self.names:
            return f"CheckpointResult({live}; it existed already)"
        written = f"{format_bytes(self.size_bytes)} in {format_items(len(self.names), 'file')}"
        return f"CheckpointResult({live}; {self.format}: {written}, {self.milliseconds:.0f} ms)"

    @property
    def compression_ratio(self) -> float:
        """Uncompressed size divided by stored size; 1.0 if nothing was written."""
        return compression_ratio(self.uncompressed_bytes, self.size_bytes)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """The files of one form of a checkpoint, and their size and checksum."""

    names: tuple[str, ...]
    size_bytes: int
    checksum: str = ""
    uncompressed_bytes: int = 0


def json_checkpoint_name(version: int) -> str:
    """Return the file name of a JSON checkpoint."""
    return f"{version:020d}.checkpoint.json"


def write_json_form(
    store: Store, state: State, config: Config, now_ms: int, new_id: str, *, broken: bool = False
) -> WrittenCheckpoint:
    """Write a JSON checkpoint: one object, or parts and a manifest if it exceeds a file's limit.

    With `broken`, a damaged checkpoint is replaced. Raises `StoreUnavailable` if it is unknown
    whether the file was written.
    """
    if isinstance(state.source, SpilledFiles):  # one file would be in memory until it is put
        limit = min(config.checkpoint_max_file_size, _SPILLED_PART_BYTES_MAX)
        return _write_parts(store, state, config, limit, now_ms, new_id, broken=broken)
    codec, limit = config.checkpoint_codec, config.checkpoint_max_file_size
    beside = CheckpointContext(state.timestamp, state.txns, state.recent)
    name = json_checkpoint_name(state.version)
    packing = StreamCompressor(codec, config.checkpoint_gzip_level)
    packing.write(encode_checkpoint_start(state.version, state.protocol, state.metadata, beside))
    rows = _batch_rows(state, limit)
    num_batches = -(-state.num_files // rows)
    for number, batch in enumerate(_encode_adds(state, rows)):
        too_large = not number and _exceeds(len(batch) * (num_batches - 1), config)
        if too_large or not _has_room(packing, len(batch) + _END_BYTES_MAX, config, limit):
            return _write_parts(store, state, config, limit, now_ms, new_id, broken=broken)
        packing.write(batch if number < num_batches - 1 else batch[:-1])  # without a last comma
    packing.write(b"]")
    packing.write(encode_checkpoint_end(packing.sum))
    data = packing.finish()
    _put(store, state.format.key(name), data, broken=broken)
    return WrittenCheckpoint((name,), len(data), format_checksum(data), packing.uncompressed_size)


def _write_parts(
    store: Store,
    state: State,
    config: Config,
    limit: int,
    now_ms: int,
    new_id: str,
    *,
    broken: bool,
) -> WrittenCheckpoint:
    """Write parts of JSON lines of at most `limit`, then the manifest that makes them a checkpoint.

    A part may exceed it if one batch of adds does.
    """
    codec = config.checkpoint_codec
    short = new_id.replace("-", "")[:12]
    parts: dict[str, str] = {}
    size = plain = 0
    head = encode_action("protocol", protocol_fields(state.protocol))
    head += encode_action("metaData", metadata_fields(state.metadata))
    packing = StreamCompressor(codec, config.checkpoint_gzip_level)
    packing.write(head)

    def finish(packing: StreamCompressor) -> int:
        part = f"{state.version:020d}.checkpoint.{short}.{len(parts) + 1:05d}.json"
        parts[part] = f"{CHECKSUM_PREFIX}{packing.sum:08x}"
        data = packing.finish()
        store.replace(state.format.key(part), data)
        return len(data)

    has_adds = False
    for lines in _encode_adds(state, _batch_rows(state, limit), lines=True):
        if has_adds and not _has_room(packing, len(lines), config, limit):
            plain += packing.uncompressed_size
            size += finish(packing)
            packing = StreamCompressor(codec, config.checkpoint_gzip_level)
        packing.write(lines)
        has_adds = True
    plain += packing.uncompressed_size
    size += finish(packing)
    beside = CheckpointContext(state.timestamp, state.txns, state.recent)
    data = encode_json_manifest(state.version, parts, short, beside, now_ms)
    name = json_checkpoint_name(state.version)
    _put(store, state.format.key(name), data, broken=broken)
    return WrittenCheckpoint(
        (name, *parts), size + len(data), format_checksum(data), plain + len(data)
    )


def _batch_rows(state: State, limit: int) -> int:
    """Return how many adds are encoded at a time.

    Parts can end only between batches, so a batch should be a fraction of a file's limit; and there
    must not be more batches than part numbers.
    """
    spilled = isinstance(state.source, SpilledFiles)
    most = _SPILLED_ROWS_MAX if spilled else _BATCH_ROWS_MAX
    per_file = min(most, limit // _BATCHES_PER_FILE // _ADD_BYTES_MIN)
    return max(per_file, state.num_files // _PARTS_MAX + 1)


def _plain_bytes_max(config: Config) -> int:
    """Return what a file may take decompressed, in a reader's memory."""
    return min(config.max_decompressed_bytes, _DEFAULT_DECOMPRESSED_BYTES_MAX) // 2


def _exceeds(expected: int, config: Config) -> bool:
    """Whether a file of so many decompressed bytes, about, would certainly exceed its limit."""
    return expected > _plain_bytes_max(config) * _CERTAIN_EXCESS


def _has_room(packing: StreamCompressor, more: int, config: Config, limit: int) -> bool:
    """Whether a file stays within its limits, on disk and decompressed in a reader's memory."""
    if packing.uncompressed_size + more > _plain_bytes_max(config):
        return False
    return packing.fits(more, limit)


def _encode_adds(state: State, batch_rows: int, *, lines: bool = False) -> Iterator[memoryview]:
    """Yield the adds as JSON in batches: objects with a comma after each, or JSON lines.

    Threads encode the next batches while the caller compresses the last one.
    """
    source = state.source
    before, after = ('{"add":', "}\n") if lines else ("", ",")
    workers, rows = os.cpu_count() or 1, batch_rows
    if isinstance(source, SpilledFiles):
        # Each thread takes memory. Fewer rows than a row group has would be read several times.
        workers, rows = 1, max(ROW_GROUP_FILES // batch_rows, 1) * batch_rows
    adds_from = source.batch if isinstance(source, SpilledFiles) else state.adds.slice
    starts = range(0, state.num_files, rows)

    def encode(start: int) -> list[memoryview]:
        adds = adds_from(start, rows)
        return [
            join_add_objects(adds.slice(at, batch_rows), path="path", before=before, after=after)
            for at in range(0, adds.num_rows, batch_rows)
        ]

    if len(starts) < 2:
        for start in starts:
            yield from encode(start)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[list[memoryview]]] = deque()
        for start in starts:
            pending.append(pool.submit(encode, start))
            if len(pending) > workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _put(store: Store, key: str, data: bytes, *, broken: bool) -> None:
    """Put a checkpoint's file; one that another writer put there first is as good.

    Raises `StoreUnavailable` if the outcome is unknown and the file cannot be found.
    """
    if broken:
        store.replace(key, data)
        return
    outcome = store.put_if_absent(key, data)
    if outcome in (PutOutcome.DONE, PutOutcome.EXISTS):
        return
    if store.find_many([key])[0] is None:
        raise StoreUnavailable(
            f"{key} could not be written: the put was not confirmed, and the file is not there.",
            next="Try again.",
        )


def write_pointer(
    store: Store,
    state: State,
    written: WrittenCheckpoint,
    form: str,
    parts: int | None,
    now_ms: int,
    *,
    num_files: int | None = None,
) -> None:
    """Point `_last_checkpoint` to a checkpoint, unless it names a later one already.

    `num_files` is the number of live files; by default the state is asked. Raises
    `StoreUnavailable` if the pointer cannot be read: it must not move back.
    """
    key = state.format.key(state.format.pointer_name)
    if pointed_version(store.find_many([key])[0]) >= state.version:
        return
    count = state.num_files if num_files is None else num_files
    fields = {
        "version": state.version,
        "size": count + 2,
        "sizeInBytes": written.size_bytes,
        "numFiles": count,
        "createdTime": now_ms,
        "format": form,
        "parts": parts,
        "checksum": written.checksum,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    store.replace(key, json.dumps(present, separators=(",", ":")).encode())
    # The writer of a later checkpoint may have replaced the pointer since it was read; then this
    # write has moved it back. That checkpoint is there by now, as it precedes its pointer.
    later = _later_checkpoint(store, state.format, state.version)
    if later is not None:
        store.replace(key, json.dumps({"version": later}, separators=(",", ":")).encode())


def _later_checkpoint(store: Store, table_format: Format, version: int) -> int | None:
    """Return the latest version above `version` with a checkpoint; None if there is none."""
    start = table_format.first_name(version + 1)
    names = store.list_from(table_format.log_folder, start)
    inner: list[str] = []
    if table_format.checkpoint_folder in names:
        inner = store.list_from(table_format.key(table_format.checkpoint_folder), start)
    checkpoints = table_format.classify(names, inner).checkpoints
    return max((v for v in checkpoints if v > version), default=None)
