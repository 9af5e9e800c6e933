"""Loads a snapshot: choose the log segment, read and decode its files, replay them.

A checkpoint that cannot be used is skipped for the next older one; the report names it and says
why. Reading commits is left to `commit_reader`. What reads one form of checkpoint is imported when
there is one.
"""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog import memory_limit
from arrowlog.decode import (
    ActionBatch,
    LineBuffer,
)
from arrowlog.errors import (
    ArrowlogWarning,
    CheckpointCorruptionError,
    CheckpointError,
    CheckpointValidationError,
    InvalidRequest,
    LogCorrupt,
    UnsupportedProtocol,
)
from arrowlog.formats import CheckpointForm, CommitFile, no_recent_commits
from arrowlog.formats.indextables import STATE_KIND
from arrowlog.snapshot.commit_reader import CommitReader
from arrowlog.snapshot.file_table import files_table
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.log_replay import (
    parse_table_schema,
    read_transactions,
    replay_actions,
    validate_commit_integrity,
    with_file_keys,
)
from arrowlog.snapshot.log_segment import (
    LogSegment,
    VersionGap,
    earliest_rebuildable_version,
    missing_file_error,
    no_longer_available_error,
    plan_segment,
    with_cause,
)
from arrowlog.snapshot.read_ahead import THREADS_MAX, read_checkpoint_ahead
from arrowlog.snapshot.read_options import ReadOptions
from arrowlog.snapshot.reconciliation import paths_leading_out
from arrowlog.snapshot.snapshot import (
    BypassedCheckpoint,
    Report,
    Snapshot,
    State,
    compact_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.formats.indextables import CheckpointContext
    from arrowlog.snapshot.checkpoint.state import WrittenState
    from arrowlog.snapshot.log_replay import ReplayResult
    from arrowlog.snapshot.snapshot import FileSource
    from arrowlog.snapshot.state_reader import StateReader
    from arrowlog.storage import Store


@dataclass(slots=True)
class _Load:
    """The parameters of one load, and what it has read so far.

    `avoid` are forms of checkpoints known to be damaged. `observed` is when the versions of the
    commits were seen to be empty, by `clock.boottime`. `meanwhile` is called while the store is
    asked whether the commits that were read count.
    """

    store: Store
    options: ReadOptions
    avoid: frozenset[CheckpointForm] = frozenset()
    observed: float = float("-inf")
    started: float = field(default_factory=time.perf_counter)
    files_read: int = 0
    bytes_read: int = 0
    warnings: list[str] = field(default_factory=list)
    gap: VersionGap | None = None
    bypassed: list[BypassedCheckpoint] = field(default_factory=list)
    checksum_verified: bool = False  # the JSON checkpoint carries a checksum, and it matches
    missing_file: FileNotFoundError | None = None  # a checkpoint's file that was listed
    listing: LogListing | None = None
    unfinished: str | None = None  # a part of a checkpoint that was listed without its manifest
    damage: LogCorrupt | None = None  # of the first checkpoint that could not be used
    damaged_state: LogCorrupt | None = None  # the first table state that could not be used
    meanwhile: Callable[[], None] | None = None

    def count(self, size: int) -> None:
        """Count one file that was read."""
        self.files_read += 1
        self.bytes_read += size

    def report(self, version: int, source: str, checkpoint: int | None, commits: int) -> Report:
        milliseconds = (time.perf_counter() - self.started) * 1000
        return Report(
            version,
            source,
            checkpoint,
            commits,
            self.files_read,
            self.bytes_read,
            milliseconds,
            tuple(self.warnings),
            self.gap,
            tuple(self.bypassed),
        )

    def bypass(self, version: int, reason: str) -> None:
        """Take note of a checkpoint that cannot be used."""
        item = BypassedCheckpoint(version, reason)
        self.bypassed.append(item)
        self.warnings.append(str(item))


def load_snapshot(
    store: Store,
    listing: LogListing,
    options: ReadOptions,
    version: int | None = None,
    *,
    avoid: frozenset[CheckpointForm] = frozenset(),
    meanwhile: Callable[[], None] | None = None,
) -> Snapshot:
    """Load the snapshot of a version, by default the newest before any gap.

    `avoid` are forms of checkpoints known to be damaged. `meanwhile` is called in another thread,
    at the same time as a request to a network store that it need not wait for: the last one.

    Raises `InvalidRequest` if the version does not exist or was cleaned up, `LogCorrupt` if it
    cannot be rebuilt, and `FileNotFoundError` if a listed file is gone: list again and retry.
    """
    # Without `listing.observed`: a commit that was there may be truncated at any age, and a stalled
    # put may be in its place now. Only versions that were empty then can be relied on.
    work = _Load(store, options, avoid, listing=listing, meanwhile=meanwhile)
    with ThreadPoolExecutor(2 + THREADS_MAX) as pool:
        work.store = read_checkpoint_ahead(store, listing, version, avoid, pool)
        ahead = _read_ahead(work, listing, version, pool)
        if ahead is None and listing.checkpoints and meanwhile and not store.cheap_stat:
            # There is probably no commit to be checked after it was read: nothing to wait for.
            pool.submit(meanwhile)
            work.meanwhile = None
        segment, base = _read_base(work, listing, version)
        _check_reached(segment, listing, version)
        if segment.gap is not None:
            _report_gap(work, segment.gap)
        if ahead is not None and ahead[1] == segment.commits:
            actions = ahead[2].result()
            work.files_read += ahead[0].files_read
            work.bytes_read += ahead[0].bytes_read
        else:
            actions = _decode_commits(work, segment.commits)
    _commit_reader(work).check(segment.commits, work.meanwhile)
    change = replay_actions(
        base,
        actions,
        segment.version,
        store.root,
        allow_external_paths=options.allow_external_paths,
    )
    state = change.state
    source = "commits" if segment.checkpoint is None else "checkpoint"
    return Snapshot(
        state, work.report(state.version, source, segment.checkpoint, len(segment.commits))
    )


def _report_gap(work: _Load, gap: VersionGap) -> None:
    """Warn of a gap, or raise `LogCorrupt` if it is an error."""
    options = work.options
    if options.strict or options.format.gap_is_error:
        raise LogCorrupt(
            f"{gap.what}, so the newest table is unknown.",
            next="Restore the missing file from a backup, or read an earlier version.",
            file=options.format.commit_file(gap.missing).key,
            version=gap.missing,
        )
    work.gap = gap
    work.warnings.append(str(gap))
    warnings.warn(f"{work.store.root}: {gap}", ArrowlogWarning, stacklevel=5)


def _read_ahead(
    work: _Load, listing: LogListing, version: int | None, pool: Executor
) -> tuple[_Load, tuple[CommitFile, ...], Future[ActionBatch]] | None:
    """Start to read the commits after a checkpoint while the checkpoint is read, over a network.

    Both are known from the listing. If the checkpoint turns out to be unusable, other commits are
    needed. Returns None if there is nothing to be read ahead.
    """
    commits: tuple[CommitFile, ...] = ()
    if listing.checkpoints and not work.store.cheap_stat:
        with suppress(LogCorrupt):  # `_read_base` raises it again
            segment = plan_segment(listing, version)
            commits = () if segment.checkpoint is None else segment.commits
    ahead = replace(work, files_read=0, bytes_read=0)
    return (ahead, commits, pool.submit(_decode_commits, ahead, commits)) if commits else None


def open_base(
    store: Store, listing: LogListing, options: ReadOptions
) -> tuple[LogSegment, State | None]:
    """Return the segment of the newest version, and the state of its checkpoint; None without one.

    Raises as `load_snapshot` does.
    """
    return _read_base(_Load(store, options, listing=listing), listing, None)


def read_verified_actions(
    store: Store, options: ReadOptions, commits: Sequence[CommitFile]
) -> ActionBatch:
    """Read all actions of some commits, removes and commitInfos included.

    Raises `LogCorrupt` if a commit does not match its declared action count or checksum.
    """
    actions = _read_actions(_Load(store, options), commits)
    validate_commit_integrity(actions)
    return actions


def apply_commits(
    store: Store,
    options: ReadOptions,
    snapshot: Snapshot,
    commits: Sequence[CommitFile],
    *,
    observed: float = float("-inf"),
) -> Snapshot:
    """Apply further commits to a snapshot. They must begin at the next version, without a gap.

    Typed columns that the snapshot has already computed carry over; only new files are typed.
    `observed` is when the commits were seen to belong to the log. Raises `FileNotFoundError` if one
    of them is gone, or may have been replaced since by a file that does not count.
    """
    work = _Load(store, options, observed=observed)
    work.bypassed = list(snapshot.report.bypassed)
    actions = _read_actions(work, commits)
    change = replay_actions(
        snapshot.state,
        actions,
        commits[-1].version,
        store.root,
        allow_external_paths=options.allow_external_paths,
    )
    state, files = change.state, None
    computed = {"files", "columns"} & set(snapshot.__dict__)  # cached properties, once used
    if state.metadata is not snapshot.state.metadata:
        computed = set()  # a new schema may type every column anew
    kept = change.kept_mask() if computed else None
    if "files" in computed:
        files = _carry_over_files(snapshot, change, kept)
    report = work.report(state.version, "refresh", snapshot.report.checkpoint, len(commits))
    after = Snapshot(state, report, files)
    if "columns" in computed:
        after.columns.take_typed_columns(snapshot.columns.followed(kept, change.fresh))
    return after


def _carry_over_files(
    snapshot: Snapshot, change: ReplayResult, kept_mask: pa.Array | pa.ChunkedArray | None
) -> pa.Table:
    """Return the typed files of the new state; only new files are typed."""
    state = change.state
    kept = snapshot.files if kept_mask is None else snapshot.files.filter(kept_mask)
    typed = files_table(
        change.fresh, state.schema, state.metadata.partition_columns, table_format=state.format
    )
    return compact_chunks(pa.concat_tables([kept, typed], promote_options="default"))


def _read_base(
    work: _Load, listing: LogListing, version: int | None
) -> tuple[LogSegment, State | None]:
    """Choose the log segment and read its checkpoint; unusable checkpoints are skipped.

    Returns the segment and the checkpoint's state, None without a checkpoint.
    """
    unusable: set[int] = set()
    for _ in range(len(listing.checkpoints) + 1):
        try:
            segment = plan_segment(listing, version, unusable)
        except LogCorrupt as error:
            _require_full_listing(listing)
            if work.missing_file is not None:  # possibly a concurrent cleanup: list again
                raise work.missing_file from work.damaged_state or error
            if work.damaged_state is not None:
                raise work.damaged_state from error
            _check_not_cleaned_up(work, listing, version, error)
            if work.damage is not None:
                told = with_cause(error, work.damage)
                raise to_checkpoint_error(told, max(unusable, default=None)) from work.damage
            if work.unfinished is not None:
                # A concurrent cleanup may have deleted its manifest while the folder was listed,
                # and a listing may miss a checkpoint that was written meanwhile: list again.
                raise FileNotFoundError(work.unfinished) from error
            raise
        if segment.checkpoint is None:
            break
        state = _read_checkpoint(work, listing, segment.checkpoint)
        if state is not None:
            return segment, state
        unusable.add(segment.checkpoint)
    return segment, None


def _check_not_cleaned_up(
    work: _Load, listing: LogListing, version: int | None, error: LogCorrupt
) -> None:
    """Raise `InvalidRequest` if a cleanup has deleted commits of a version, and is deleting it."""
    later = [v for v in listing.checkpoints if version is not None and v > version]
    if later and error.version in listing.retired:
        lost = max((v for v in listing.checkpoints if v < min(later)), default=-1)
        problems = verify_checkpoint(work.store, listing, lost, work.options.config)
        if any(problem.code == "checkpoint-partial" for problem in problems):
            raise no_longer_available_error(version, min(later)) from error


def _require_full_listing(listing: LogListing) -> None:
    """Raise `FileNotFoundError` if the listing began at a checkpoint.

    Files that seem to be missing may be below it, so the caller has to list the whole log.
    """
    if listing.start:
        raise FileNotFoundError(listing.format.commit_file(listing.start).key)


def _read_checkpoint(work: _Load, listing: LogListing, version: int) -> State | None:
    """Read a checkpoint in the first form that is usable; None if no form is."""
    for form in listing.checkpoints[version]:
        if form in work.avoid:
            continue
        try:
            state = CHECKPOINT_READERS[form.kind].read(work, version, form)
            if state is not None:
                return state
            work.unfinished = form.keys[0]
        except FileNotFoundError as error:
            work.missing_file = error
            work.bypass(version, f"{error} is gone")
        except LogCorrupt as error:
            work.bypass(version, str(error))
            work.damage = work.damage or error
            if form.kind in listing.format.state_kinds and work.damaged_state is None:
                work.damaged_state = error
    return None


def _read_parquet(work: _Load, version: int, form: CheckpointForm) -> State | None:
    """Open a Parquet checkpoint; None if its writer never finished it.

    Of a checkpoint with a verifiable manifest, only the manifest is read; its rows are read on
    demand. One written by another program has no checksums and is read completely.
    """
    from arrowlog.snapshot.checkpoint.parquet import (
        open_parquet_checkpoint,
        read_foreign_checkpoint,
    )
    from arrowlog.snapshot.checkpoint.parts import CheckpointPartReader
    from arrowlog.snapshot.checkpoint_files import CheckpointFiles, CheckpointRows

    checkpoint = open_parquet_checkpoint(work.store, version, form.keys, work.count)
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, CheckpointPartReader):
        state = read_foreign_checkpoint(
            checkpoint,
            version,
            work.store.root,
            allow_external_paths=work.options.allow_external_paths,
        )
        work.warnings.append(
            f"checkpoint {version} was used unverified: another program wrote it without checksums"
        )
        return replace(state, format=work.options.format)
    manifest = checkpoint.manifest
    rows = CheckpointRows(
        checkpoint,
        parse_table_schema(manifest.metadata, version),
        None,
        allow_external_paths=work.options.allow_external_paths,
    )
    source = CheckpointFiles(rows, version, _fallback_loader(work, form))
    return State(
        version,
        manifest.protocol,
        manifest.metadata,
        rows.schema,
        source,
        manifest.timestamp,
        manifest.txns,
        manifest.recent,
        work.options.format,
    )


def _fallback_loader(work: _Load, form: CheckpointForm) -> Callable[[int], pa.Table]:
    """Return a function that loads all live adds of a version without this checkpoint's form."""
    store, avoid = work.store, work.avoid | {form}
    options = replace(work.options, strict=False)  # a gap was reported by the load itself

    def load_adds(version: int) -> pa.Table:
        for last_attempt in (False, True):
            listing = list_log(store, options.format)
            try:
                snapshot = load_snapshot(store, listing, options, version, avoid=avoid)
            except FileNotFoundError as error:  # possibly a concurrent cleanup: list again
                if last_attempt:
                    raise missing_file_error(error) from None
            else:
                return snapshot.state.adds
        raise AssertionError  # the loop either returns or raises

    return load_adds


def _check_reached(segment: LogSegment, listing: LogListing, version: int | None) -> None:
    """Raise if the segment ends before the requested version.

    `InvalidRequest` if the version was cleaned up or never existed, else `LogCorrupt`.
    """
    if version is None or segment.version == version:
        return
    first = earliest_rebuildable_version(listing, listing.newest)
    gap = segment.gap
    if gap is not None and gap.missing in listing.retired:
        # Not damage: cleanup keeps single commits that hold a skip still in its cooldown.
        gap, first = None, max(first, version + 1)
    if version < first and (gap is None or gap.missing == 1):
        raise no_longer_available_error(version, first)
    if segment.gap is not None or version <= listing.newest:
        raise LogCorrupt(
            f"version {version} cannot be rebuilt: {segment.gap or 'its commit is gone'}.",
            next="Restore the missing file, or read an earlier version.",
            version=version,
        )
    raise InvalidRequest(
        f"There is no version {version}; the newest is {segment.version}.", next="", version=version
    )


def _read_json(work: _Load, version: int, form: CheckpointForm) -> State:
    """Read a JSON checkpoint of any form: one file, or a manifest and its parts."""
    file = form.keys[0]
    names, lines, beside = _read_json_lines(work, version, file)
    work.checksum_verified = beside.summed
    config, table_format = work.options.config, work.options.format
    window = LineBuffer(config.max_decompressed_bytes, table_format=table_format)
    for name in names:
        window.append(name, version, lines.pop(0))  # in memory once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        actions = CommitReader(work.store, table_format, config).decoded(window, pool)
    if not actions.metadata:
        raise LogCorrupt("the checkpoint has no metaData.", file=file, version=version)
    state = replay_actions(
        None,
        actions,
        version,
        work.store.root,
        allow_external_paths=work.options.allow_external_paths,
    ).state
    timestamps = [ms for ms in (beside.timestamp, state.timestamp) if ms is not None]
    return replace(
        state,
        timestamp=max(timestamps, default=None),
        txns={**state.txns, **beside.txns},
        recent=beside.recent or no_recent_commits(version),
    )


def _read_state(work: _Load, version: int, form: CheckpointForm) -> State:
    """Open a table state; its manifests are read on demand."""
    return _state_reader(work).open(CommitFile(version, form.keys[0]), _fallback_loader(work, form))


def _state_reader(work: _Load) -> StateReader:
    # Most tables have no states, and their readers load what decodes Avro.
    from arrowlog.snapshot.state_reader import StateReader

    options, store = work.options, work.store

    def transactions(commits: Sequence[CommitFile]) -> Mapping[str, tuple[int, int]]:
        return read_transactions(_read_actions(_Load(store, options), commits))

    assert work.listing is not None
    return StateReader(
        store,
        work.listing,
        options.config,
        options.manifests,
        allow_external_paths=options.allow_external_paths,
        count=work.count,
        transactions=transactions,
    )


def with_state_files(
    store: Store, options: ReadOptions, snapshot: Snapshot, written: WrittenState
) -> Snapshot:
    """Return a snapshot that reads its files from a state that was just written for it."""
    from arrowlog.snapshot.avro_state_files import AvroStateFiles

    state = snapshot.state
    key = options.format.key(options.format.state_name(written.version))
    work = _Load(store, options, listing=options.format.classify(()))
    entries = _state_reader(work).entries(written.record, state.metadata)
    form = CheckpointForm(STATE_KIND, (key,))
    source = AvroStateFiles(entries, written.version, _fallback_loader(work, form))
    report = Report(written.version, "checkpoint", written.version)
    return Snapshot(replace(state, source=source), report)


def _read_json_lines(
    work: _Load, version: int, file: str
) -> tuple[list[str], list[bytes | bytearray], CheckpointContext]:
    """Return the names and the lines of the files of a JSON checkpoint, and what is beside them."""
    from arrowlog.formats.indextables import JsonManifest, checkpoint_to_lines

    folder = file.rpartition("/")[0]
    content, beside = checkpoint_to_lines(_get_files(work, [file])[0], version, file)
    names, contents = [file], [content]
    if isinstance(content, JsonManifest):
        names = [f"{folder}/{part}" for part in content.parts]
        parts = _get_files(work, names)
        for number, (name, data) in enumerate(zip(names, parts, strict=True)):
            content.check(number, data, name)
        contents = [
            checkpoint_to_lines(data, version, n)[0] for n, data in zip(names, parts, strict=True)
        ]
    lines = [data for data in contents if not isinstance(data, JsonManifest)]
    if len(lines) < len(names):
        raise LogCorrupt("a part of the checkpoint is a manifest itself.", file=file)
    return names, lines, beside


def verify_checkpoint(
    store: Store, listing: LogListing, version: int, config: Config, form: str | None = None
) -> list[LogCorrupt | UnsupportedProtocol]:
    """Read a checkpoint completely and return what is wrong with it.

    Returns an empty list if the requested form (such as `json`; None: any) is intact.
    """
    problems: list[LogCorrupt | UnsupportedProtocol] = []
    for candidate in reversed(listing.checkpoints.get(version, ())):
        if form not in (None, candidate.kind):
            continue
        work = _Load(store, ReadOptions(config, allow_external_paths=True, format=listing.format))
        try:
            found = CHECKPOINT_READERS[candidate.kind].verify(work, listing, version, candidate)
        except LogCorrupt as error:
            found = [error]
        except FileNotFoundError as error:
            from arrowlog.snapshot.checkpoint.parts import missing_part_error

            found = [missing_part_error(str(error).removeprefix(f"{store.root}/"))]
        if not found:
            return []
        problems += (to_checkpoint_error(problem, version) for problem in found)
    return problems or [
        CheckpointValidationError(f"there is no checkpoint of version {version}.", version=version)
    ]


def to_checkpoint_error(
    error: LogCorrupt | UnsupportedProtocol, version: int | None
) -> LogCorrupt | UnsupportedProtocol:
    """Return an error about a checkpoint as one of its own kind, with the same message.

    `CheckpointValidationError` if the checkpoint is intact but contradicts the log, else
    `CheckpointCorruptionError`. An unsupported protocol is no damage and stays as it is.
    """
    if isinstance(error, CheckpointError | UnsupportedProtocol):
        return error
    diverges = error.code == "checkpoint-diverges"
    kind = CheckpointValidationError if diverges else CheckpointCorruptionError
    return kind(
        error.what,
        next=error.next,
        file=error.file,
        line=error.line,
        version=version if error.version is None else error.version,
        code=error.code,
    )


def _verify_json(
    work: _Load, listing: LogListing, version: int, form: CheckpointForm
) -> Sequence[LogCorrupt | UnsupportedProtocol]:
    state = _read_json(work, version, form)
    if not work.checksum_verified:
        _compare_with_commits(work, listing, state, form)
    return ()


def _verify_state(
    work: _Load, listing: LogListing, version: int, form: CheckpointForm
) -> Sequence[LogCorrupt | UnsupportedProtocol]:
    """Read all manifests of a state."""
    from arrowlog.decode import ENTRY_COLUMNS
    from arrowlog.snapshot.avro_state_files import AvroStateFiles

    work.listing = listing
    try:
        source = _read_state(work, version, form).source
        assert isinstance(source, AvroStateFiles)
        source.entries.table(ENTRY_COLUMNS)
    except UnsupportedProtocol as error:
        return [error]
    return ()


def _verify_parquet(
    work: _Load, listing: LogListing, version: int, form: CheckpointForm
) -> Sequence[LogCorrupt | UnsupportedProtocol]:
    from arrowlog.snapshot.checkpoint.parquet import verify_parquet_checkpoint

    del listing
    return verify_parquet_checkpoint(work.store, version, form.keys)


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """How one kind of checkpoint form is read.

    `read` returns the state, or None if the writer of the form never finished it. `verify` reads
    the form completely and returns what is wrong with it. Both may raise `LogCorrupt` if it is
    damaged and `FileNotFoundError` if a file of it is gone.
    """

    read: Callable[[_Load, int, CheckpointForm], State | None]
    verify: Callable[
        [_Load, LogListing, int, CheckpointForm], Sequence[LogCorrupt | UnsupportedProtocol]
    ]


def _read_delta(work: _Load, version: int, form: CheckpointForm) -> State:
    """Open a checkpoint of a Delta table; its adds are read on demand."""
    from arrowlog.snapshot.delta_files import DeltaCheckpointFiles
    from arrowlog.snapshot.delta_loader import open_delta_checkpoint

    store, options = work.store, work.options
    limit = options.config.max_decompressed_bytes
    opened = open_delta_checkpoint(store, options.format, version, form, work.count, limit)
    options.format.check_readable(opened.protocol, form.keys[0])
    schema = parse_table_schema(
        opened.metadata,
        version,
        form.keys[0],
        table_format=options.format,
        protocol=opened.protocol,
    )
    external = options.allow_external_paths
    source: FileSource = DeltaCheckpointFiles(
        opened.rows,
        version,
        store.root,
        _fallback_loader(work, form),
        allow_external_paths=external,
    )
    if opened.lines is not None:
        adds, _ = with_file_keys(opened.lines, "add", store.root)
        if not external and paths_leading_out(adds["key"]) is not None:
            what = "the checkpoint has a path that is empty or leads out of the table."
            raise LogCorrupt(what, file=form.keys[0], version=version)
        source = source.with_commits(version, adds, adds.slice(0, 0)).source
    return State(
        version,
        opened.protocol,
        opened.metadata,
        schema,
        source,
        None,
        opened.txns,
        no_recent_commits(version),
        options.format,
    )


def _verify_delta(
    work: _Load, listing: LogListing, version: int, form: CheckpointForm
) -> Sequence[LogCorrupt | UnsupportedProtocol]:
    """Read a checkpoint completely, and compare it with the commits if they are all there."""
    from arrowlog.snapshot.delta_files import DeltaCheckpointFiles

    state = _read_delta(work, version, form)
    if isinstance(state.source, DeltaCheckpointFiles):
        state.source.rows.verify()
    _compare_with_commits(work, listing, state, form)
    return ()


# The reader of each kind of checkpoint form that a format's listing may contain.
CHECKPOINT_READERS: dict[str, CheckpointReader] = {
    "parquet": CheckpointReader(_read_parquet, _verify_parquet),
    "json": CheckpointReader(_read_json, _verify_json),
    STATE_KIND: CheckpointReader(_read_state, _verify_state),
    "delta-parquet": CheckpointReader(_read_delta, _verify_delta),
    "delta-json": CheckpointReader(_read_delta, _verify_delta),
}


def _compare_with_commits(
    work: _Load, listing: LogListing, state: State, form: CheckpointForm
) -> None:
    """Compare a checkpoint without a checksum with a replay that does not use it.

    Passes if the replay is impossible because the commits were cleaned up.
    """
    others = {v: forms for v, forms in listing.checkpoints.items() if v != state.version}
    try:
        rest = listing.only(listing.commits, others)
        replayed = load_snapshot(work.store, rest, work.options, state.version).state
    except (LogCorrupt, InvalidRequest, FileNotFoundError):
        return
    same_files = set(replayed.adds["key"].to_pylist()) == set(state.adds["key"].to_pylist())
    if not same_files or replayed.metadata.id != state.metadata.id:
        raise LogCorrupt(
            f"it differs from a replay of the commits: it has {state.adds.num_rows} files, the"
            f" replay {replayed.adds.num_rows}, or the same number of other files.",
            next="Delete it; the table can be read without it.",
            file=form.keys[0],
            version=state.version,
            code="checkpoint-diverges",
        )


def _get_files(work: _Load, keys: Sequence[str]) -> list[bytes]:
    """Read files of the log and decompress them."""
    from arrowlog.formats.indextables import decompress

    files = work.store.get_many(keys)
    work.files_read += len(files)
    work.bytes_read += sum(len(data) for data in files)
    limit = work.options.config.max_decompressed_bytes
    return [decompress(data, key, limit) for key, data in zip(keys, files, strict=True)]


def stream_actions(
    store: Store, options: ReadOptions, commits: Sequence[CommitFile]
) -> Iterator[ActionBatch]:
    """Yield the actions of commits in batches, in log order, so that not all are in memory."""
    reader, read = CommitReader(store, options.format, options.config), 0
    for run in reader.runs(commits):
        reader.check(commits[read : read + run.commits])
        read += run.commits
        yield run.actions


def _read_actions(work: _Load, commits: Sequence[CommitFile]) -> ActionBatch:
    """Read all actions of the commits, and check that they are the ones that count."""
    actions = _decode_commits(work, commits)
    _commit_reader(work).check(commits, work.meanwhile)
    return actions


def _decode_commits(work: _Load, commits: Sequence[CommitFile]) -> ActionBatch:
    """Read all actions of the commits; `LogTooLarge` before the process runs out of memory."""
    actions, reader = ActionBatch(work.options.format), _commit_reader(work)
    limit = work.options.config.max_memory
    try:
        for run in reader.runs(commits):
            work.files_read += run.commits
            work.bytes_read += run.size
            if work.bytes_read >= memory_limit.CHECK_FROM_BYTES:
                limit = limit or memory_limit.memory_limit_bytes() or 0
                memory_limit.check_memory(work.store.root, work.bytes_read, limit)
            actions.extend(run.actions)
    except (LogCorrupt, UnsupportedProtocol):
        reader.check(commits)  # what cannot be decoded may not be part of the log
        raise
    return actions


def _commit_reader(work: _Load) -> CommitReader:
    stats = work.listing.stats if work.listing is not None else None
    return CommitReader(work.store, work.options.format, work.options.config, work.observed, stats)
