"""From a store to a state: pick the files, read and decode them, replay.

The only module of this room that asks a store.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import (
    ArrowlogWarning,
    InvalidRequest,
    LogCorrupt,
    TableNotFound,
)
from arrowlog.log.checkpoint import Manifest, to_lines
from arrowlog.log.decode import Actions, Decoding, begin
from arrowlog.log.envelope import unwrap
from arrowlog.log.lines import protocol_of
from arrowlog.log.names import CHECKPOINTS, LOG, Listing, read_listing
from arrowlog.log.segment import Segment, plan
from arrowlog.log.window import Window
from arrowlog.state.apply import apply, check_readable, compact
from arrowlog.state.files import files_table
from arrowlog.state.snapshot import Report, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.apply import Change
    from arrowlog.state.snapshot import State

_WINDOW_BYTES = 6 << 20
_BUSY_MAX = 2  # windows that are decoded while the next is read


@dataclass(slots=True)
class _Loading:
    """A load on its way: where from, how, and what it has cost so far."""

    store: Store
    config: Config
    outside: bool
    started: float = field(default_factory=time.perf_counter)
    files_read: int = 0
    bytes_read: int = 0
    warnings: list[str] = field(default_factory=list)

    def report(self, version: int, source: str, checkpoint: int | None, commits: int) -> Report:
        spent = (time.perf_counter() - self.started) * 1000
        told = tuple(self.warnings)
        return Report(
            version, source, checkpoint, commits, self.files_read, self.bytes_read, spent, told
        )


def list_log(store: Store) -> Listing:
    """What is in the log folder; `TableNotFound` if there is no log."""
    names = store.list_from(LOG)
    inner = store.list_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in names else []
    listing = read_listing(names, inner)
    if listing.empty:
        raise TableNotFound(
            f"There is no table at {store.root}: {LOG}/ has no commits in it.",
            next="Check the address and the access to it.",
        )
    return listing


def load(
    store: Store,
    listing: Listing,
    config: Config,
    version: int | None = None,
    *,
    strict: bool = False,
    outside: bool = False,
) -> Snapshot:
    """The table at a version (None: the newest that can be read without a gap)."""
    work = _Loading(store, config, outside)
    segment, base = _base(work, listing, version)
    _check_reached(segment, listing, version)
    if segment.gap is not None:
        if strict:
            raise LogCorrupt(
                f"{segment.gap}.",
                next="Restore the missing file from a backup.",
                version=segment.gap.missing,
            )
        work.warnings.append(str(segment.gap))
        warnings.warn(f"{store.root}: {segment.gap}", ArrowlogWarning, stacklevel=4)
    actions = _read(work, segment.commits)
    state = apply(base, actions, segment.version, store.root, outside=outside).state
    source = "commits" if segment.checkpoint is None else "checkpoint"
    return Snapshot(
        state, work.report(state.version, source, segment.checkpoint, len(segment.commits))
    )


def follow(
    store: Store,
    config: Config,
    snapshot: Snapshot,
    commits: Sequence[tuple[int, str]],
    *,
    outside: bool = False,
) -> Snapshot:
    """The table after some commits more, which must follow right on the snapshot."""
    work = _Loading(store, config, outside)
    actions = _read(work, commits)
    change = apply(snapshot.state, actions, commits[-1][0], store.root, outside=outside)
    state, given = change.state, None
    if "files" in snapshot.__dict__ and state.metadata is snapshot.state.metadata:
        given = _follow_files(snapshot, change)
    report = work.report(state.version, "refresh", snapshot.report.checkpoint, len(commits))
    return Snapshot(state, report, given)


def _follow_files(snapshot: Snapshot, change: Change) -> pa.Table:
    """The typed files of the new state, of which only the new ones need typing."""
    state = change.state
    kept = snapshot.files if change.kept is None else snapshot.files.filter(change.kept)
    fresh = state.adds.slice(state.adds.num_rows - change.added)
    typed = files_table(fresh, state.schema, state.metadata.partition_columns)
    return compact(pa.concat_tables([kept, typed], promote_options="default"))


def _base(work: _Loading, listing: Listing, version: int | None) -> tuple[Segment, State | None]:
    """The segment to read, and the state it builds on; bad checkpoints are passed over."""
    unusable: set[int] = set()
    for _ in range(len(listing.json_checkpoints) + len(listing.parquet_checkpoints) + 1):
        segment = plan(listing, version, unusable)
        if segment.checkpoint is None:
            break
        try:
            return segment, _read_checkpoint(work, listing, segment.checkpoint)
        except (LogCorrupt, FileNotFoundError) as error:
            unusable.add(segment.checkpoint)
            reason = f"{error} is gone" if isinstance(error, FileNotFoundError) else str(error)
            work.warnings.append(f"checkpoint {segment.checkpoint} was not used: {reason}")
    return segment, None


def _check_reached(segment: Segment, listing: Listing, version: int | None) -> None:
    if version is None or segment.version == version:
        return
    if segment.gap is not None or version <= listing.newest:
        raise LogCorrupt(
            f"version {version} cannot be rebuilt: {segment.gap or 'its commit is gone'}.",
            next="Restore the missing file, or read an earlier version.",
            version=version,
        )
    raise InvalidRequest(
        f"There is no version {version}; the newest is {segment.version}.", next="", version=version
    )


def _read_checkpoint(work: _Loading, listing: Listing, version: int) -> State:
    name = listing.json_checkpoints.get(version)
    if name is None:
        parts = ", ".join(listing.parquet_checkpoints[version])
        raise LogCorrupt(
            f"checkpoint {version} is in Parquet only ({parts}), which this arrowlog cannot read.",
            file=f"{LOG}/{CHECKPOINTS}",
            version=version,
        )
    file = f"{LOG}/{name}"
    found = to_lines(_get(work, [file])[0], version, file)
    names, datas = [file], [found]
    if isinstance(found, Manifest):
        names = [f"{LOG}/{part}" for part in found.parts]
        pieces = zip(names, _get(work, names), strict=True)
        datas = [to_lines(data, version, name) for name, data in pieces]
    plain = [data for data in datas if isinstance(data, bytes)]
    if len(plain) < len(names):
        raise LogCorrupt("a part of the checkpoint is a manifest itself.", file=file)
    window = Window(work.config.max_decompressed_bytes)
    for part, lines in zip(names, plain, strict=True):
        window.append(part, version, lines)
    actions = Actions()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        _finish(work, actions, window, _begin(work, window, pool))
    if not actions.metadata:
        raise LogCorrupt("the checkpoint has no metaData.", file=file, version=version)
    return apply(None, actions, version, work.store.root, outside=work.outside).state


def _get(work: _Loading, keys: Sequence[str]) -> list[bytes]:
    """Log files, unpacked."""
    found = work.store.get_many(keys)
    work.files_read += len(found)
    work.bytes_read += sum(len(data) for data in found)
    limit = work.config.max_decompressed_bytes
    return [unwrap(data, key, limit) for key, data in zip(keys, found, strict=True)]


def _read(work: _Loading, commits: Sequence[tuple[int, str]]) -> Actions:
    """All actions of the commits: a window is read while the ones before it are decoded."""
    actions = Actions()
    free: list[Window] = []
    busy: deque[tuple[Window, Decoding]] = deque()
    start = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while start < len(commits):
            if len(busy) >= _BUSY_MAX:
                free.append(_finish(work, actions, *busy.popleft()))
            window = free.pop() if free else Window(work.config.max_decompressed_bytes)
            try:
                start += _fill(work, window, commits[start:])
                alone = start == len(commits) and not busy
                busy.append((window, _begin(work, window, None if alone else pool)))
            except Exception:
                while busy:  # what is wrong in an earlier file comes first
                    _finish(work, actions, *busy.popleft())
                raise
        while busy:
            _finish(work, actions, *busy.popleft())
    return actions


def _fill(work: _Loading, window: Window, commits: Sequence[tuple[int, str]]) -> int:
    """Read commits into a window, as many as it should hold; returns how many."""
    window.clear()
    keys = [f"{LOG}/{name}" for _, name in commits]
    versions = [version for version, _ in commits]
    count, size = work.store.read_into(window, keys, versions, _WINDOW_BYTES)
    work.files_read += count
    work.bytes_read += size
    return count


def _begin(work: _Loading, window: Window, pool: Executor | None) -> Decoding:
    try:
        return begin(window, pool, columnar=work.config.use_optimized)
    except LogCorrupt:
        _check_protocols(work, window)
        raise


def _finish(work: _Loading, actions: Actions, window: Window, decoding: Decoding) -> Window:
    """Append what the window says; the window can be used again."""
    try:
        actions.extend(decoding.finish())
    except LogCorrupt:
        _check_protocols(work, window)
        raise
    return window


def _check_protocols(work: _Loading, window: Window) -> None:
    """What cannot be decoded may be from a newer protocol: then say that instead."""
    texts = [text for _, _, text in window.apart] + bytes(window.data[: window.size]).split(b"\n")
    for text in texts:
        protocol = protocol_of(text)
        if protocol is not None:
            check_readable(protocol, work.store.root)
