"""From a store to a state: pick the files, read and decode them, replay.

With `reading`, the only module of this room that asks a store.
"""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import ArrowlogWarning, InvalidRequest, LogCorrupt
from arrowlog.log.checkpoint import Manifest, to_lines
from arrowlog.log.decode import Actions
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import CHECKPOINTS, LOG, Listing, commit_name
from arrowlog.log.recent import unknown_before
from arrowlog.log.segment import Gap, Segment, earliest, plan
from arrowlog.log.window import Window
from arrowlog.state.apply import apply, check_whole, compact, schema_of
from arrowlog.state.deferred import Deferred, Rows
from arrowlog.state.files import files_table
from arrowlog.state.foreign import read_foreign
from arrowlog.state.listing import list_log
from arrowlog.state.memory import check_room
from arrowlog.state.parquet import open_checkpoint, verify
from arrowlog.state.parts import Parts
from arrowlog.state.reading import Reading
from arrowlog.state.snapshot import Report, Snapshot, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.apply import Change

_TAIL_MAX = 50_000  # files after a checkpoint that are not worth reading all of it for


@dataclass(slots=True)
class _Loading:
    """A load on its way: where from, how, and what it has cost so far."""

    store: Store
    config: Config
    outside: bool
    avoid: frozenset[int] = frozenset()
    observed: float = float("-inf")
    started: float = field(default_factory=time.perf_counter)
    files_read: int = 0
    bytes_read: int = 0
    warnings: list[str] = field(default_factory=list)
    gap: Gap | None = None
    summed: bool = False  # whether a checksum vouches for the checkpoint
    gone: FileNotFoundError | None = None  # a file of a checkpoint that was listed

    def count(self, size: int) -> None:
        """Note a file that was read."""
        self.files_read += 1
        self.bytes_read += size

    def report(self, version: int, source: str, checkpoint: int | None, commits: int) -> Report:
        spent = (time.perf_counter() - self.started) * 1000
        told = tuple(self.warnings)
        return Report(
            version,
            source,
            checkpoint,
            commits,
            self.files_read,
            self.bytes_read,
            spent,
            told,
            self.gap,
        )


def load(
    store: Store,
    listing: Listing,
    config: Config,
    version: int | None = None,
    *,
    strict: bool = False,
    outside: bool = False,
    avoid: frozenset[int] = frozenset(),
) -> Snapshot:
    """The table at a version (None: the newest that can be read without a gap).

    `avoid` has the versions of Parquet checkpoints that are known to be damaged.
    """
    work = _Loading(store, config, outside, avoid, listing.observed)
    segment, base = _base(work, listing, version)
    _check_reached(segment, listing, version)
    if segment.gap is not None:
        if strict:
            raise LogCorrupt(
                f"{segment.gap}.",
                next="Restore the missing file from a backup.",
                version=segment.gap.missing,
            )
        work.gap = segment.gap
        work.warnings.append(str(segment.gap))
        warnings.warn(f"{store.root}: {segment.gap}", ArrowlogWarning, stacklevel=4)
    actions = _read(work, segment.commits)
    change = apply(base, actions, segment.version, store.root, outside=outside)
    state = _settled(change.state)
    source = "commits" if segment.checkpoint is None else "checkpoint"
    return Snapshot(
        state, work.report(state.version, source, segment.checkpoint, len(segment.commits))
    )


def read_commits(store: Store, config: Config, commits: Sequence[tuple[int, str]]) -> Actions:
    """Everything that some commits say, whole or `LogCorrupt`: for who needs more than a state."""
    actions = _read(_Loading(store, config, outside=True), commits)
    check_whole(actions)
    return actions


def follow(
    store: Store,
    config: Config,
    snapshot: Snapshot,
    commits: Sequence[tuple[int, str]],
    *,
    outside: bool = False,
    observed: float = float("-inf"),
) -> Snapshot:
    """The table after some commits more, which must follow right on the snapshot.

    `observed` is when they were seen to belong to the log. `FileNotFoundError` if one of them is
    gone, or may have been replaced since by one that does not count.
    """
    work = _Loading(store, config, outside, observed=observed)
    actions = _read(work, commits)
    change = apply(snapshot.state, actions, commits[-1][0], store.root, outside=outside)
    state, given = _settled(change.state), None
    known = {"files", "columns"} & set(snapshot.__dict__)
    if state.metadata is not snapshot.state.metadata:
        known = set()
    kept = _kept(snapshot, change) if known else None
    if "files" in known:
        given = _follow_files(snapshot, change, kept)
    report = work.report(state.version, "refresh", snapshot.report.checkpoint, len(commits))
    after = Snapshot(state, report, given)
    if "columns" in known:
        after.columns.adopt(snapshot.columns.followed(kept, change.fresh))
    return after


def _settled(state: State) -> State:
    """A state with much after its checkpoint is better off in memory."""
    source = state.source
    if not isinstance(source, Deferred):
        return state
    tail = int(source.tail.num_rows)
    if tail <= max(_TAIL_MAX, source.rows.count // 2):
        return state
    return replace(state, source=source.adds())


def _kept(snapshot: Snapshot, change: Change) -> pa.Array | pa.ChunkedArray | None:
    """Which rows of a snapshot stayed; None for all."""
    source = snapshot.state.source
    if isinstance(source, Deferred) and change.touched is not None:
        return source.untouched(change.touched)
    return change.kept


def _follow_files(
    snapshot: Snapshot, change: Change, mask: pa.Array | pa.ChunkedArray | None
) -> pa.Table:
    """The typed files of the new state, of which only the new ones need typing."""
    state = change.state
    kept = snapshot.files if mask is None else snapshot.files.filter(mask)
    typed = files_table(change.fresh, state.schema, state.metadata.partition_columns)
    return compact(pa.concat_tables([kept, typed], promote_options="default"))


def _base(work: _Loading, listing: Listing, version: int | None) -> tuple[Segment, State | None]:
    """The segment to read, and the state it builds on; bad checkpoints are passed over."""
    unusable: set[int] = set()
    for _ in range(len(listing.json_checkpoints) + len(listing.parquet_checkpoints) + 1):
        try:
            segment = plan(listing, version, unusable)
        except LogCorrupt as error:
            _check_all(listing)
            if work.gone is None:
                raise
            raise work.gone from error  # a clean-up may be at work: list the log again
        if segment.checkpoint is None:
            break
        state = _read_any(work, listing, segment.checkpoint)
        if state is not None:
            return segment, state
        unusable.add(segment.checkpoint)
    return segment, None


def _check_all(listing: Listing) -> None:
    """Before anything is said to be missing, everything must have been listed."""
    if listing.start:
        raise FileNotFoundError(f"{LOG}/{commit_name(listing.start)}")


def _read_any(work: _Loading, listing: Listing, version: int) -> State | None:
    """The state of a checkpoint in the fastest form that can be read; None if there is none."""
    forms: list[Callable[[_Loading, Listing, int], State | None]] = []
    if version in listing.parquet_checkpoints and version not in work.avoid:
        forms.append(_read_parquet)
    if version in listing.json_checkpoints:
        forms.append(_read_json)
    for read in forms:
        try:
            state = read(work, listing, version)
            if state is not None:
                return state
        except FileNotFoundError as error:
            work.gone = error
            work.warnings.append(f"checkpoint {version} was not used: {error} is gone")
        except LogCorrupt as error:
            work.warnings.append(f"checkpoint {version} was not used: {error}")
    return None


def _read_parquet(work: _Loading, listing: Listing, version: int) -> State | None:
    """A Parquet checkpoint; of one of ours no row is read yet. None if it was never finished."""
    names = listing.parquet_checkpoints[version]
    found = open_checkpoint(work.store, version, names, work.count)
    if found is None:
        return None
    if not isinstance(found, Parts):
        state = read_foreign(found, version, work.store.root, outside=work.outside)
        work.warnings.append(
            f"checkpoint {version} was used unverified: it is another program's, without checksums"
        )
        return state
    manifest = found.manifest
    rows = Rows(found, schema_of(manifest.metadata, version), None, outside=work.outside)
    source = Deferred(rows, version, _again(work, version))
    return State(
        version,
        manifest.protocol,
        manifest.metadata,
        rows.schema,
        source,
        manifest.timestamp,
        manifest.txns,
        manifest.recent,
    )


def _again(work: _Loading, checkpoint: int) -> Callable[[int], pa.Table]:
    """How to load all live adds of a version without a checkpoint."""
    store, config, outside = work.store, work.config, work.outside
    avoid = work.avoid | {checkpoint}

    def load_again(version: int) -> pa.Table:
        for last in (False, True):
            listing = list_log(store)
            try:
                found = load(store, listing, config, version, outside=outside, avoid=avoid)
            except FileNotFoundError as error:  # a clean-up may be at work
                if last:
                    raise gone(error) from None
            else:
                return found.state.adds
        raise AssertionError  # the loop either returns or raises

    return load_again


def gone(error: FileNotFoundError) -> LogCorrupt:
    """What is wrong with a log of which a file was listed twice, and is not there."""
    if isinstance(error.__cause__, LogCorrupt):
        return error.__cause__
    return LogCorrupt(
        "it was listed, and is gone.",
        next="Something deletes files of the log; try again when it is done.",
        file=str(error),
    )


def _check_reached(segment: Segment, listing: Listing, version: int | None) -> None:
    if version is None or segment.version == version:
        return
    first = earliest(listing, listing.newest)
    gap = segment.gap
    if gap is not None and gap.missing in listing.retired:  # commits that were kept for a skip
        gap, first = None, max(first, version + 1)
    if version < first and (gap is None or gap.missing == 1):
        raise InvalidRequest(
            f"Version {version} is no longer there: the log was cleaned up to version {first}.",
            next="Ask for that or a later one.",
            version=version,
        )
    if segment.gap is not None or version <= listing.newest:
        raise LogCorrupt(
            f"version {version} cannot be rebuilt: {segment.gap or 'its commit is gone'}.",
            next="Restore the missing file, or read an earlier version.",
            version=version,
        )
    raise InvalidRequest(
        f"There is no version {version}; the newest is {segment.version}.", next="", version=version
    )


def _read_json(work: _Loading, listing: Listing, version: int) -> State:
    file = f"{LOG}/{listing.json_checkpoints[version]}"
    found, beside = to_lines(_get(work, [file])[0], version, file)
    work.summed = beside.summed
    names, datas = [file], [found]
    if isinstance(found, Manifest):
        names = [f"{LOG}/{part}" for part in found.parts]
        pieces = _get(work, names)
        for number, (part, data) in enumerate(zip(names, pieces, strict=True)):
            found.check(number, data, part)
        datas = [to_lines(data, version, n)[0] for n, data in zip(names, pieces, strict=True)]
    plain = [data for data in datas if isinstance(data, bytes)]
    if len(plain) < len(names):
        raise LogCorrupt("a part of the checkpoint is a manifest itself.", file=file)
    window = Window(work.config.max_decompressed_bytes)
    for part, lines in zip(names, plain, strict=True):
        window.append(part, version, lines)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        actions = Reading(work.store, work.config).decoded(window, pool)
    if not actions.metadata:
        raise LogCorrupt("the checkpoint has no metaData.", file=file, version=version)
    state = apply(None, actions, version, work.store.root, outside=work.outside).state
    times = [time for time in (beside.timestamp, state.timestamp) if time is not None]
    return replace(
        state,
        timestamp=max(times, default=None),
        txns={**state.txns, **beside.txns},
        recent=beside.recent or unknown_before(version),
    )


def verify_checkpoint(
    store: Store, listing: Listing, version: int, config: Config, form: str | None = None
) -> list[str]:
    """What is wrong with a checkpoint: nothing, if a form of it (or the one asked for) is whole."""
    problems: list[str] = []
    for name, known in (
        ("json", listing.json_checkpoints),
        ("parquet", listing.parquet_checkpoints),
    ):
        if form not in (None, name) or version not in known:
            continue
        try:
            _verify(store, listing, version, config, name)
        except (LogCorrupt, FileNotFoundError) as error:
            problems.append(str(error))
        else:
            return []
    return problems or [f"there is no checkpoint of version {version}"]


def _verify(store: Store, listing: Listing, version: int, config: Config, form: str) -> None:
    if form == "json":
        work = _Loading(store, config, outside=True)
        state = _read_json(work, listing, version)
        if not work.summed:
            _compare(store, listing, config, state)
        return
    found = verify(store, version, listing.parquet_checkpoints[version], config)
    if found:
        raise LogCorrupt(f"{found[0]}.", file=f"{LOG}/{CHECKPOINTS}", version=version)


def _compare(store: Store, listing: Listing, config: Config, state: State) -> None:
    """Nobody vouches for a checkpoint without a checksum but the commits, while they are there."""
    json = {v: name for v, name in listing.json_checkpoints.items() if v != state.version}
    parquet = {v: names for v, names in listing.parquet_checkpoints.items() if v != state.version}
    others = Listing(listing.commits, json, parquet)
    try:
        told = load(store, others, config, state.version, outside=True).state
    except (LogCorrupt, InvalidRequest, FileNotFoundError):
        return
    same = set(told.adds["key"].to_pylist()) == set(state.adds["key"].to_pylist())
    if not same or told.metadata.id != state.metadata.id:
        raise LogCorrupt(
            f"it has {state.adds.num_rows} files, and the commits it stands for leave"
            f" {told.adds.num_rows}, or others.",
            next="Delete it; reading goes on without it.",
            file=f"{LOG}/{listing.json_checkpoints[state.version]}",
            version=state.version,
        )


def _get(work: _Loading, keys: Sequence[str]) -> list[bytes]:
    """Log files, unpacked."""
    found = work.store.get_many(keys)
    work.files_read += len(found)
    work.bytes_read += sum(len(data) for data in found)
    limit = work.config.max_decompressed_bytes
    return [unwrap(data, key, limit) for key, data in zip(keys, found, strict=True)]


def stream(store: Store, config: Config, commits: Sequence[tuple[int, str]]) -> Iterator[Actions]:
    """The actions of commits some at a time, for those who need not have all at once."""
    for run in Reading(store, config).runs(commits):
        yield run.actions


def _read(work: _Loading, commits: Sequence[tuple[int, str]]) -> Actions:
    """All actions of the commits."""
    actions = Actions()
    for run in Reading(work.store, work.config, work.observed).runs(commits):
        work.files_read += run.commits
        work.bytes_read += run.size
        check_room(work.store.root, work.bytes_read, work.config.max_memory)
        actions.extend(run.actions)
    return actions
