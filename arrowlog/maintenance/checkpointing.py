"""Write checkpoints: on request, and in the background after commits.

A background checkpoint that fails is only logged. The commit that triggered it has already landed
and is never affected.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from arrowlog.errors import (
    AccessDenied,
    BucketNotFound,
    CredentialsMissing,
    CredentialsRefused,
    ReadOnlyStore,
    StoreFull,
    StoreUnavailable,
)
from arrowlog.fork_safety import ForkSafeLock, polars_is_stranded
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    INDEXTABLES,
    format_checksum,
)
from arrowlog.log_lines import (
    CHECKPOINT_CREATED,
    CHECKPOINT_FAILED,
    CHECKPOINT_MENDED,
    CHECKPOINT_READ_BACK,
    CHECKPOINTS_STOPPED,
    CLEANUP_FAILED,
)
from arrowlog.maintenance.cleanup import (
    PARQUET_CHECKPOINT_FEATURE,
    cleanup,
    configured_retention,
    has_expired_files,
)
from arrowlog.metering import metrics_of
from arrowlog.snapshot import (
    CheckpointResult,
    InMemoryFiles,
    ReadOptions,
    SharedPartsLost,
    SpilledFiles,
    WrittenCheckpoint,
    WrittenParquetCheckpoint,
    apply_commits,
    is_state_table,
    list_log,
    load_snapshot,
    read_pointer,
    rebased_state,
    spill_checkpoint_files,
    truncate_adds,
    verify_checkpoint,
    write_incremental_form,
    write_json_form,
    write_parquet_form,
    write_pointer,
)
from arrowlog.transaction import read_txn_id

if TYPE_CHECKING:
    from typing import Self

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.snapshot import Snapshot, State
    from arrowlog.storage import Store
    from arrowlog.transaction import Clock

# Attempts at a checkpoint whose writes the store does not confirm. Each one first reads back what
# the one before has written.
_MAX_ATTEMPTS = 3
# Failures that say that nothing was written, and that do not pass.
_FINAL_FAILURES = (
    AccessDenied,
    BucketNotFound,
    CredentialsMissing,
    CredentialsRefused,
    ReadOnlyStore,
    StoreFull,
)
# Files up to which a JSON checkpoint costs next to nothing.
JSON_FILES_MAX = 4096
# Without a need for it, a JSON checkpoint is written once in so many intervals.
_JSON_INTERVALS = 10


def make_checkpoint(
    store: Store,
    listing: LogListing,
    state: State,
    config: Config,
    clock: Clock,
    *,
    for_all_readers: bool = False,
    form: str | None = None,
) -> CheckpointResult:
    """Write the checkpoint of a state in the configured forms, then the `_last_checkpoint` pointer.

    A form that exists and verifies is not written again; one that exists and is damaged is
    replaced. The pointer is written last and never moves backwards. The result's `names` are the
    files that this call wrote. With `for_all_readers`, commits are deleted next: the checkpoint
    must stand alone, in the forms that every reader of the table knows. `form` is written instead
    of the configured forms.
    """
    if form is None:
        form = choose_form(listing, state, config, for_all_readers=for_all_readers)
    with _FullState(state, config) as full:
        return _make_forms(store, listing, full, clock, form, anew=for_all_readers)


class _FullState:
    """A state, and all its files as a checkpoint in full needs them, read on first use."""

    def __init__(self, state: State, config: Config) -> None:
        self.state = state
        self.config = config
        self._full: State | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._full is not None and self._full is not self.state:
            source = self._full.source
            if isinstance(source, SpilledFiles):
                source.close()

    def read(self) -> State:
        """Return the state with all its files, in memory or in a temporary file.

        The limit on the length of statistics is applied, also to those of other writers.
        """
        if self._full is None:
            state, config = self.state, self.config
            spilled = isinstance(state.source, SpilledFiles)
            self._full = state if spilled else spill_checkpoint_files(state, config)
            self._full = self._full or _with_truncated_stats(state, config)
        return self._full


def _make_forms(
    store: Store, listing: LogListing, full: _FullState, clock: Clock, form: str, *, anew: bool
) -> CheckpointResult:
    state, config = full.state, full.config
    now = clock.now_ms()
    written: list[WrittenCheckpoint] = []
    num_files: int | None = None
    if form in ("both", "parquet") and not _is_valid(store, listing, state, config, "parquet"):
        parquet = _write_parquet(store, listing, full, clock, anew=anew)
        names = tuple(f"{CHECKPOINT_FOLDER_NAME}/{name}" for name in parquet.names)
        written.append(
            WrittenCheckpoint(
                names, parquet.num_bytes, parquet.checksum, parquet.uncompressed_bytes
            )
        )
        num_files = parquet.num_files
    if form in ("both", "json") and not _is_valid(store, listing, state, config, "json"):
        broken = listing.checkpoint_form(state.version, "json") is not None
        json = write_json_form(store, full.read(), config, now, clock.new_id(), broken=broken)
        written.insert(0, json)
    names = tuple(name for each in written for name in each.names)
    total = WrittenCheckpoint(
        names,
        sum(each.size_bytes for each in written),
        written[-1].checksum if written else "",
        sum(each.uncompressed_bytes for each in written),
    )
    num_files = state.num_files if num_files is None else num_files
    if written:
        parts = len(names) - len(written) if len(names) > len(written) else None
        write_pointer(store, state, total, form, parts, now, num_files=num_files)
    elif read_pointer(store, state.format) < state.version:
        # The writer of this checkpoint stopped before it wrote the pointer.
        with suppress(FileNotFoundError):  # truncated meanwhile: the pointer names a newer one
            existing = _describe_existing(store, listing, state.version)
            write_pointer(store, state, existing, form, None, now, num_files=num_files)
    sizes = total.size_bytes, form, names, total.uncompressed_bytes
    return CheckpointResult(state.version, num_files, *sizes)


def write_checkpoint(
    store: Store,
    listing: LogListing,
    state: State,
    config: Config,
    clock: Clock,
    *,
    for_all_readers: bool = False,
    form: str | None = None,
) -> CheckpointResult:
    """Make a checkpoint; if the store does not confirm a write, read back what is there.

    `make_checkpoint` verifies what exists and writes only what is missing, so that repeating it
    tells whether a write whose response was lost has landed. Raises the error of the last attempt.
    """
    started = time.perf_counter()
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            result = make_checkpoint(
                store, listing, state, config, clock, for_all_readers=for_all_readers, form=form
            )
        except StoreUnavailable as error:
            if attempt == _MAX_ATTEMPTS or isinstance(error, _FINAL_FAILURES):
                raise
            CHECKPOINT_READ_BACK.log(
                table=store.root, version=state.version, attempt=attempt, reason=str(error)
            )
            clock.sleep(clock.uniform() * 0.1 * attempt)
            listing = list_log(store, state.format)
        else:
            return replace(result, milliseconds=(time.perf_counter() - started) * 1000)
    raise AssertionError  # the last attempt returns or raises


def report_checkpoint(store: Store, result: CheckpointResult, *, background: bool) -> None:
    """Log and count a checkpoint, unless it existed already."""
    if not result.names:
        return
    trigger, metrics = "background" if background else "call", metrics_of(store)
    metrics.add("checkpoints", 1, trigger)
    metrics.observe("checkpoint_ms", result.milliseconds, trigger)
    metrics.observe("checkpoint_bytes", result.size_bytes)
    metrics.observe("checkpoint_ratio", result.compression_ratio)
    CHECKPOINT_CREATED.log(
        table=store.root,
        version=result.version,
        files=result.num_files,
        bytes=result.size_bytes,
        uncompressed_bytes=result.uncompressed_bytes,
        ratio=result.compression_ratio,
        ms=result.milliseconds,
        format=result.format,
        background=background,
    )


def choose_form(
    listing: LogListing, state: State, config: Config, *, for_all_readers: bool = False
) -> str:
    """Return the form of the next checkpoint: `parquet`, `json` or `both`.

    Readers that do not know the feature `parquetCheckpoint` need the JSON form once commits are
    deleted. Until then it only spares them the replay of commits, and it costs as much as the table
    is large: by default it is written for small tables, and every `_JSON_INTERVALS` intervals.
    """
    form = config.checkpoint_format
    if PARQUET_CHECKPOINT_FEATURE in state.protocol.reader_features:
        return "parquet" if form == "auto" else form
    if form != "auto":
        return "both" if form == "parquet" else form
    if for_all_readers or state.source.max_files < JSON_FILES_MAX:
        return "both"
    last = max((v for v in listing.checkpoints if listing.checkpoint_form(v, "json")), default=0)
    due = state.version - last >= _JSON_INTERVALS * config.checkpoint_interval
    return "both" if due else "parquet"


def _with_truncated_stats(state: State, config: Config) -> State:
    """Apply the limit on the length of statistics, also to those of other writers."""
    columns = state.metadata.partition_columns
    adds = truncate_adds(state.adds, columns, config, state.schema)
    return state if adds is state.adds else replace(state, source=InMemoryFiles(adds, state.format))


def _is_valid(store: Store, listing: LogListing, state: State, config: Config, form: str) -> bool:
    """Whether a form of the state's checkpoint exists and verifies."""
    if listing.checkpoint_form(state.version, form) is None:
        return False
    return not verify_checkpoint(store, listing, state.version, config, form)


def _describe_existing(store: Store, listing: LogListing, version: int) -> WrittenCheckpoint:
    """Return what the pointer has to say about a checkpoint that exists already.

    Raises FileNotFoundError if the checkpoint was deleted meanwhile.
    """
    keys = [key for form in reversed(listing.checkpoints[version]) for key in form.keys]
    stats = [store.stat(key) for key in keys]
    last = next(key for key in reversed(keys) if key.endswith(".json"))
    size = sum(stat.size for stat in stats if stat is not None)
    names = tuple(key.removeprefix(f"{listing.format.log_folder}/") for key in keys)
    return WrittenCheckpoint(names, size, format_checksum(store.get(last)))


def _write_parquet(
    store: Store, listing: LogListing, full: _FullState, clock: Clock, *, anew: bool
) -> WrittenParquetCheckpoint:
    """Write the Parquet form: incrementally, unless `anew` is set or a damaged one is there."""
    state, config = full.state, full.config
    broken = listing.checkpoint_form(state.version, "parquet") is not None
    if not broken and not anew and not isinstance(state.source, SpilledFiles):
        base = rebased_state(store, listing, state, config)
        try:
            written = base and write_incremental_form(
                store, base, config, now_ms=clock.now_ms(), new_id=clock.new_id()
            )
        except SharedPartsLost:
            broken, written = True, None
        if written:
            return written
    return write_parquet_form(
        store, full.read(), config, now_ms=clock.now_ms(), new_id=clock.new_id(), broken=broken
    )


class _InProgress:
    """The background checkpoints that this process is writing, by table.

    Without it, every handle of a table would start one while the first is still being written.
    """

    def __init__(self) -> None:
        self.lock = ForkSafeLock(self._after_torn_fork)
        self._running: dict[tuple[str, str], tuple[int, threading.Thread]] = {}

    def covers(self, table: tuple[str, str], version: int, interval: int) -> bool:
        """Whether a checkpoint in progress makes one of `version` superfluous.

        One that is a whole interval old does not count any more: it may hang.
        """
        running, thread = self._running.get(table, (0, None))
        return thread is not None and thread.is_alive() and version - running < interval

    def record(self, table: tuple[str, str], version: int, thread: threading.Thread) -> None:
        """Take note of a checkpoint that was started; its end shows by the thread's."""
        self._running = {key: each for key, each in self._running.items() if each[1].is_alive()}
        self._running[table] = version, thread

    def _after_torn_fork(self) -> None:
        self._running = {}  # threads do not survive a fork


_IN_PROGRESS = _InProgress()


class BackgroundCheckpointer:
    """Writes checkpoints in a background thread after commits, and cleans up after each.

    Writers of a table with states write a state with every commit; such a table is only cleaned up.
    At most one checkpoint per handle is in progress, and while one is, other handles of the same
    table in this process start none for an interval. Failures are logged and never raised. The
    interpreter waits for the thread before it exits.
    """

    def __init__(self, store: Store, clock: Clock, *, allow_external_paths: bool) -> None:
        """Does no I/O. `allow_external_paths` as in `ReadOptions`."""
        self._store = store
        self._clock = clock
        self._allow_external_paths = allow_external_paths
        self._lock = ForkSafeLock(self._after_torn_fork)
        self._thread: threading.Thread | None = None
        self._table_id: str | None = None  # the table that the next two attributes refer to
        self._last_checkpoint: int | None = None  # newest known version with a checkpoint
        self._last_failure = 0  # version of the last attempt that failed
        self._mended: set[int] = set()  # bypassed checkpoints that were dealt with
        self._warned_of_fork = False
        _INSTANCES.add(self)

    def on_commit(self, version: int, latest: Snapshot | None, config: Config) -> None:
        """Start a checkpoint of `version` if one is due; called after each commit that landed.

        `latest` is the newest snapshot the handle has; without one, nothing happens. Does no
        I/O itself.
        """
        if not config.checkpoint_enabled or latest is None:
            return
        has_states = is_state_table(latest.state)
        if has_states and not config.cleanup_enabled:
            return
        if polars_is_stranded():
            self._warn_of_fork_once()
            return
        with self._lock:
            if self._table_id != latest.metadata.id:  # the table was replaced by another
                self._table_id = latest.metadata.id
                self._last_checkpoint, self._last_failure = None, 0
                self._mended = set()
            first = self._last_checkpoint is None
            if self._last_checkpoint is None:
                self._last_checkpoint = latest.report.checkpoint or 0
            interval = config.checkpoint_interval
            damaged = {item.version for item in latest.report.bypassed} - self._mended
            if has_states:
                due = version % interval == 0 or version - self._last_checkpoint >= interval
            else:
                due = bool(damaged) or is_checkpoint_due(
                    version, self._last_checkpoint, self._last_failure, interval, first=first
                )
            if not due:
                return
            if self._thread is not None and self._thread.is_alive():
                return
            self._start(version, latest, config)

    def _start(self, version: int, latest: Snapshot, config: Config) -> None:
        """Start the thread, unless another handle is writing a checkpoint of this table."""
        table = (self._store.root, latest.metadata.id)
        with _IN_PROGRESS.lock:
            if _IN_PROGRESS.covers(table, version, config.checkpoint_interval):
                return
            thread = threading.Thread(
                target=self._run, args=(version, latest, config), name="arrowlog-checkpoint"
            )
            try:
                thread.start()
            except RuntimeError as error:  # thread limit reached, or interpreter shutdown
                self._failed(version, f"the thread was not started: {error}", error)
                return
            _IN_PROGRESS.record(table, version, thread)
            self._thread = thread

    def _after_torn_fork(self) -> None:
        # The lock was held during the fork, so a thread may have been about to be recorded. Threads
        # do not survive a fork in any case.
        self._thread = None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the checkpoint in progress; return whether none is in progress any more."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def made(self, version: int) -> None:
        """Take note that `version` has a checkpoint."""
        with self._lock:
            self._last_checkpoint = max(self._last_checkpoint or 0, version)

    def _run(self, version: int, latest: Snapshot, config: Config) -> None:
        if is_state_table(latest.state):
            self.made(version)
            self._clean(config, only_expired=True)
            return
        try:
            listing = list_log(self._store)
            listing = self._mend(latest, listing, config)
            newest = max((*listing.checkpoints, 0))
            self.made(newest)
            if version - newest < config.checkpoint_interval:
                return  # another writer made it meanwhile
            state = self._state_at(version, latest, listing, config)
            result = write_checkpoint(self._store, listing, state, config, self._clock)
            report_checkpoint(self._store, result, background=True)
            self.made(version)
        except Exception as error:  # noqa: BLE001 -- a checkpoint must never fail a commit
            self._failed(version, str(error), error)
            return
        if config.cleanup_enabled:
            self._clean(config)

    def _mend(self, latest: Snapshot, listing: LogListing, config: Config) -> LogListing:
        """Make damaged checkpoints anew that the handle's snapshot had to bypass.

        A form that is intact, or that another writer has mended meanwhile, is left alone. Returns
        the listing, taken again if something was written.
        """
        for item in latest.report.bypassed:
            if item.version in self._mended:
                continue
            self._mended.add(item.version)  # also if it fails: the next checkpoint supersedes it
            if item.version not in listing.checkpoints:
                continue  # cleaned up meanwhile
            damaged = frozenset(
                form
                for form in listing.checkpoints[item.version]
                if verify_checkpoint(self._store, listing, item.version, config, form.kind)
            )
            options = ReadOptions(config, allow_external_paths=self._allow_external_paths)
            state = load_snapshot(self._store, listing, options, item.version, avoid=damaged).state
            result = write_checkpoint(self._store, listing, state, config, self._clock)
            if result.names:
                metrics_of(self._store).add("checkpoints_mended")
                CHECKPOINT_MENDED.log(
                    table=self._store.root,
                    version=result.version,
                    files=result.num_files,
                    ms=result.milliseconds,
                )
                listing = list_log(self._store)
        return listing

    def _clean(self, config: Config, *, only_expired: bool = False) -> None:
        """Clean up; with `only_expired`, read nothing if no file has expired by its age."""
        try:
            dry_run = config.cleanup_dry_run
            now, policy = self._clock.now_ms(), configured_retention(config)
            if only_expired and not has_expired_files(self._store, config, policy, now):
                return
            cleanup(self._store, config, policy, now, dry_run=dry_run)
        except Exception as error:  # noqa: BLE001 -- a cleanup must never fail a commit
            CLEANUP_FAILED.log(table=self._store.root, reason=str(error))

    def _warn_of_fork_once(self) -> None:
        if not self._warned_of_fork:
            self._warned_of_fork = True
            CHECKPOINTS_STOPPED.log(table=self._store.root)

    def _failed(self, version: int, reason: str, error: Exception) -> None:
        self._last_failure = version
        metrics_of(self._store).add("checkpoint_failures")
        root, kind = self._store.root, type(error).__name__
        CHECKPOINT_FAILED.log(table=root, version=version, reason=reason, error=kind)

    def _state_at(
        self, version: int, latest: Snapshot, listing: LogListing, config: Config
    ) -> State:
        """Return the state at a version, built on the handle's latest snapshot where possible."""
        options = ReadOptions(config, allow_external_paths=self._allow_external_paths)
        commits = [INDEXTABLES.commit_file(v) for v in range(latest.version + 1, version + 1)]
        if latest.version <= version and all(listing.commit_file(c.version) == c for c in commits):
            state = latest.state
            if commits:
                state = apply_commits(self._store, options, latest, commits).state
            # After the read: then the commits that were read belong to the same log as well.
            if self._still_contains(latest, config):
                return state
        return load_snapshot(self._store, listing, options, version).state

    def _still_contains(self, snapshot: Snapshot, config: Config) -> bool:
        """Whether the log still has the commit that a snapshot ends with.

        While the thread was suspended, the table may have been dropped and another one created:
        applying its commits to the snapshot would mix two tables. False if it cannot be told.
        """
        recent, version = snapshot.state.recent, snapshot.version
        txn_id = recent.txn_id(version) if recent.knows(version) else None
        key = INDEXTABLES.commit_file(version).key
        data = None if txn_id is None else self._store.find_many([key])[0]
        limit = config.max_decompressed_bytes
        return data is not None and read_txn_id(data, key, limit) == txn_id


def is_checkpoint_due(
    version: int, last: int, tried: int, interval: int, *, first: bool = False
) -> bool:
    """Whether the writer that committed `version` should make a checkpoint.

    `last` is the newest known checkpoint, `tried` the version of the last failed attempt. A
    checkpoint is due `interval` commits after the later of the two.

    With many concurrent writers, many commits follow before the checkpoint is there. To have it
    soon, even if a writer dies, without every writer making one, only these writers make it: of the
    version at which it becomes due, of those 1, 2, 4, 8, … versions later, of every version once
    it is a whole interval late, and a handle's first commit (`first`).
    """
    overdue = version - max(last, tried) - interval
    is_power_of_two_or_zero = overdue & (overdue - 1) == 0
    return overdue >= 0 and (first or overdue >= interval or is_power_of_two_or_zero)


_INSTANCES: WeakSet[BackgroundCheckpointer] = WeakSet()


def _wait_for_all() -> None:
    for checkpointer in list(_INSTANCES):
        checkpointer.wait()


# The interpreter joins non-daemon threads at exit, but only after thread pools stopped accepting
# work, and a large checkpoint needs a pool. Functions registered here run before the pools close:
# last registered, first called. The hook is private to CPython, so its absence is tolerated.
_register_atexit = getattr(threading, "_register_atexit", None)
if _register_atexit is not None:
    _register_atexit(_wait_for_all)
