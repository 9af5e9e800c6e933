"""Write checkpoints: the state of one version, so that nobody has to replay what came before.

A checkpoint appears whole or not at all, and one that is there already is left alone unless it is
damaged: two writers that make the same one do no harm. The pointer is written last and is never
moved back; nothing depends on it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import ArrowlogError, StoreUnavailable
from arrowlog.log.checkpoint import Beside, closing, manifest, opening
from arrowlog.log.encode import CHECKSUM, checksum, line, metadata_fields, protocol_fields
from arrowlog.log.envelope import Packing
from arrowlog.log.names import LOG, POINTER
from arrowlog.log.store import Outcome
from arrowlog.log.texts import add_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import State

_ROWS = 1 << 15  # adds that are turned into text at a time
_ADD_BYTES = 1 << 8  # an add has at least so many, nearly always
_PARTS_MAX = 10_000  # their numbers have five digits
_READABLE = 512 << 20  # what a reader with the usual settings unpacks at most


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """What was written: `names` in the log folder; none if the checkpoint was there already."""

    version: int
    num_files: int
    size_bytes: int
    format: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Files of one form of a checkpoint."""

    names: tuple[str, ...]
    size_bytes: int
    checksum: str = ""


def json_name(version: int) -> str:
    """The name a JSON checkpoint is written under."""
    return f"{version:020d}.checkpoint.json"


def write_json(
    store: Store, state: State, config: Config, now_ms: int, new_id: str, *, broken: bool = False
) -> Written:
    """Write the JSON form: one object, or parts and a manifest if it is too large for a file.

    With `broken`, a damaged one is there, and is replaced.
    """
    codec = config.compression_codec if config.checkpoint_compression_enabled else "none"
    level = config.compression_gzip_level
    beside = Beside(state.timestamp, state.txns, state.recent)
    name = json_name(state.version)
    packing = Packing(codec, level)
    packing.write(opening(state.version, state.protocol, state.metadata, beside))
    first = True
    for text in _texts(state, _rows(state, config)):
        packing.write(text if first else b"," + text)
        first = False
        if _full(packing, config):
            return _write_parts(store, state, config, now_ms, new_id, broken=broken)
    packing.write(b"]")
    packing.write(closing(packing.sum))
    data = packing.finish()
    _put(store, f"{LOG}/{name}", data, broken=broken)
    return Written((name,), len(data), checksum(data))


def _write_parts(
    store: Store, state: State, config: Config, now_ms: int, new_id: str, *, broken: bool
) -> Written:
    """JSON lines in parts of the allowed size, then the manifest that makes them a checkpoint."""
    codec = config.compression_codec if config.checkpoint_compression_enabled else "none"
    short = new_id.replace("-", "")[:12]
    parts: dict[str, str] = {}
    size = 0
    head = line("protocol", protocol_fields(state.protocol))
    head += line("metaData", metadata_fields(state.metadata))
    packing = Packing(codec, config.compression_gzip_level)
    packing.write(head)

    def finish(packing: Packing) -> int:
        part = f"{state.version:020d}.checkpoint.{short}.{len(parts) + 1:05d}.json"
        parts[part] = f"{CHECKSUM}{packing.sum:08x}"
        data = packing.finish()
        store.replace(f"{LOG}/{part}", data)
        return len(data)

    for lines in _texts(state, _rows(state, config), lines=True):
        packing.write(lines)
        if _full(packing, config):
            size += finish(packing)
            packing = Packing(codec, config.compression_gzip_level)
    if packing.plain_size:
        size += finish(packing)
    beside = Beside(state.timestamp, state.txns, state.recent)
    data = manifest(state.version, parts, short, beside, now_ms)
    name = json_name(state.version)
    _put(store, f"{LOG}/{name}", data, broken=broken)
    return Written((name, *parts), size + len(data), checksum(data))


def _rows(state: State, config: Config) -> int:
    """How many adds are written at a time: a part can be cut between them, and has a number."""
    few = min(_ROWS, config.checkpoint_max_file_size // _ADD_BYTES)
    return max(few, int(state.adds.num_rows) // _PARTS_MAX + 1)


def _full(packing: Packing, config: Config) -> bool:
    """Whether a file is as large as it may be, on disk or in the memory of who reads it."""
    room = min(config.max_decompressed_bytes, _READABLE) // 2
    return packing.size > config.checkpoint_max_file_size or packing.plain_size > room


def _texts(state: State, rows: int, *, lines: bool = False) -> Iterator[bytes]:
    """The adds as JSON, some thousand at a time, made in threads while the last are packed."""
    adds = state.adds
    starts = range(0, adds.num_rows, rows)

    def make(start: int) -> bytes:
        texts = add_objects(adds.slice(start, rows), path="path").to_pylist()
        if lines:
            return "".join(f'{{"add":{text}}}\n' for text in texts).encode()
        return ",".join(texts).encode()

    if len(starts) < 2:
        yield from map(make, starts)
        return
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[object] = deque()
        rest = iter(starts)
        for start in rest:
            ahead.append(pool.submit(make, start))
            if len(ahead) > workers:
                yield ahead.popleft().result()  # type: ignore[attr-defined]
        while ahead:
            yield ahead.popleft().result()  # type: ignore[attr-defined]


def _put(store: Store, key: str, data: bytes, *, broken: bool) -> None:
    """Make a checkpoint's file; what somebody else has put there in its place is as good."""
    if broken:
        store.replace(key, data)
        return
    outcome = store.put_new(key, data)
    if outcome in (Outcome.DONE, Outcome.EXISTS):
        return
    found = store.find_many([key])[0]
    if found is None:
        raise StoreUnavailable(
            f"{key} could not be written: the store's answer was lost.", next="Try again."
        )


def write_pointer(
    store: Store, state: State, written: Written, form: str, parts: int | None, now_ms: int
) -> None:
    """Point to a checkpoint, unless the pointer is further already."""
    key = f"{LOG}/{POINTER}"
    if read_pointer(store) >= state.version:
        return
    fields = {
        "version": state.version,
        "size": state.adds.num_rows + 2,
        "sizeInBytes": written.size_bytes,
        "numFiles": state.adds.num_rows,
        "createdTime": now_ms,
        "format": form,
        "parts": parts,
        "checksum": written.checksum,
    }
    said = {name: value for name, value in fields.items() if value is not None}
    store.replace(key, json.dumps(said, separators=(",", ":")).encode())


def read_pointer(store: Store) -> int:
    """The version the pointer speaks of; -1 if there is none, or nobody can tell."""
    try:
        data = store.find_many([f"{LOG}/{POINTER}"])[0]
        version = -1 if data is None else json.loads(data)["version"]
    except (ArrowlogError, ValueError, KeyError, TypeError, RecursionError):
        return -1
    return version if isinstance(version, int) and not isinstance(version, bool) else -1
