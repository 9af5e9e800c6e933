"""The write session of one `Table` handle: what it has shown, what it has committed.

Conditional changes (remove, overwrite with a predicate, restore) are based on what the handle last
showed its user; commits made by others since are checked for conflicts. An append depends only on
the head of the log, which the session remembers after each commit: repeated appends send one
request each, the put.
"""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from arrowlog.clock import SystemClock, boottime
from arrowlog.config import resolve
from arrowlog.errors import (
    ArrowlogError,
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    LogCorrupt,
    MetadataChanged,
    StoreUnavailable,
)
from arrowlog.fork_safety import ForkSafeLock
from arrowlog.formats import RecentCommits
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    STATE_KIND,
    STATE_PROTOCOL_VERSION,
    commit_name,
)
from arrowlog.log_lines import COMMIT_CONFLICT, COMMIT_UNKNOWN
from arrowlog.metering import metrics_of
from arrowlog.snapshot import (
    OBSERVATION_TRUST_SECONDS,
    VersionGap,
    apply_commits,
    list_log,
    list_retired,
    load_snapshot,
    pointed_version,
    with_state_files,
)
from arrowlog.transaction.commit_loop import TransactionContext, run_transaction
from arrowlog.transaction.commit_result import CommitResult
from arrowlog.transaction.conflict_checker import CONFLICT_NEXT_STEP, TableHead
from arrowlog.transaction.version_race import ContentionBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arrowlog.config import Config
    from arrowlog.formats import Metadata
    from arrowlog.snapshot import LogTip, ReadBase, Snapshot, SnapshotTracker, State
    from arrowlog.storage import Store
    from arrowlog.transaction.prepared_commits import Prepare
    from arrowlog.transaction.version_race import Clock

# Ids of own commits that a session remembers, the oldest forgotten first; bounds memory.
_OWN_COMMITS_MAX = 100_000
# Versions after the next one that are probed for a commit left by a writer that skipped a version.
_GAP_PROBES = 8
# How long a head is used without reading the log, where that costs a request. A table that was
# dropped is noticed no earlier than this.
_REMOTE_HEAD_SECONDS = 3.0
# Commits after the last own table state up to which the next one is built on it, and for how long.
# Cleanup deletes manifests that no state in the log names, and an old state may be gone.
_COMMITS_PER_STATE_MAX = 64
_STATE_BASE_TRUST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a session knows of the log, and what its handle has shown. Replaced, never changed.

    What the tracker knows is given as its `ReadBase`.

    Attributes:
        head: the newest head known; None if it has to be taken from the tracker.
        head_tip: an own commit at or below the head, identified as an object. While it stands, the
            log is the same. None if none was observed.
        shown: the snapshot last shown, if this session has made the tracker read beyond it.
        shown_generation: the tracker's generation then. In a later one, a newer snapshot was shown.
        refused_generation: the tracker's generation when a conflict was last raised.
        is_checked: the store and the log were checked before the first write.
    """

    head: TableHead | None = None
    head_tip: LogTip | None = None
    shown: Snapshot | None = None
    shown_generation: int = -1
    refused_generation: int = -1
    is_checked: bool = False

    def after_reading_on(self, shown: Snapshot | None, generation: int) -> SessionState:
        """Note that the tracker has read further, and that the handle has not shown it."""
        return replace(self, shown=shown, shown_generation=generation)

    def after_showing(self) -> SessionState:
        """Count what the tracker has read as shown."""
        return replace(self, shown=None)

    def without_head(self) -> SessionState:
        """Forget the head: the next one is taken from the tracker."""
        return replace(self, head=None, head_tip=None)

    def with_head(self, head: TableHead) -> SessionState:
        """Use a head that the tracker has read. An own commit below it still identifies the log."""
        return replace(self, head=head)

    def after_check(self, head: TableHead) -> SessionState:
        """Note that the log can be written to, and the head that was found by checking it."""
        return replace(self, head=head, is_checked=True)

    def after_commit(self, head: TableHead, tip: LogTip | None) -> SessionState:
        """Build on an own commit from now on; not if its object was not observed in this log."""
        return self.without_head() if tip is None else replace(self, head=head, head_tip=tip)

    def after_conflict(self, generation: int) -> SessionState:
        """Note that a conflict was raised: the next change is based on the newest version."""
        return replace(self, refused_generation=generation)

    def after_torn_fork(self) -> SessionState:
        """Forget what another thread was about to replace when the process was forked."""
        return replace(self, head=None, head_tip=None, shown=None, is_checked=False)

    def last_shown(self, base: ReadBase) -> Snapshot | None:
        """Return the snapshot last shown. The tracker may since have read further."""
        if self.shown is not None and self.shown_generation == base.generation:
            return self.shown
        return base.snapshot

    def is_refused(self, base: ReadBase) -> bool:
        """Whether the table was not read again since the last conflict."""
        return self.refused_generation == base.generation

    def has_committed_after(self, shown: Snapshot, base: ReadBase) -> bool:
        """Whether the session has committed on top of a snapshot, which is the last one read."""
        ahead = self.head is not None and self.head.version > shown.version
        return ahead and shown is base.snapshot

    def known_version(self, base: ReadBase) -> int:
        """Return the newest version known to exist."""
        versions = [known.version for known in (self.head, base.snapshot) if known is not None]
        return max(versions, default=-1)

    def newest_head(self, base: ReadBase) -> TableHead:
        """Return the newer of the known head and that of the snapshot last read."""
        assert base.snapshot is not None
        if self.head is not None and self.head.version > base.snapshot.version:
            return self.head
        return head_of(base.snapshot.state, base.observed_at)

    def observed_at(self, base: ReadBase) -> float:
        """Return the last time at which the log was observed."""
        return base.observed_at if self.head is None else max(self.head.observed, base.observed_at)

    def tip(self, base: ReadBase) -> LogTip | None:
        """Return the commit by which the newest head was observed; None if it is not known."""
        return self.head_tip or base.tip


class OwnCommits:
    """The ids and versions of the last commits of a session, in the order they were made."""

    def __init__(self) -> None:
        """Start empty."""
        self._versions: dict[str | None, int] = {}

    def __contains__(self, txn_id: object) -> bool:
        """Whether the session has made a commit."""
        return txn_id in self._versions

    def record(self, txn_id: str | None, version: int) -> None:
        """Add a commit; the oldest is forgotten beyond `_OWN_COMMITS_MAX`."""
        self._versions[txn_id] = version
        if len(self._versions) > _OWN_COMMITS_MAX:
            del self._versions[next(iter(self._versions))]

    def between(self, first: int, last: int) -> dict[int, str | None]:
        """Return the ids of the commits from `first` to `last`, if they were the last ones made.

        Returns {} if another writer has made one of them.
        """
        newest = islice(reversed(self._versions.items()), max(last + 1 - first, 0))
        ids = {version: txn_id for txn_id, version in newest}
        return ids if list(ids) == list(range(last, first - 1, -1)) else {}


class SessionLog:
    """The log as one transaction of a session observes it: see `TransactionLog`."""

    def __init__(self, session: WriteSession, config: Config, tip: LogTip | None) -> None:
        """Create the view of a transaction.

        `tip` is a commit at or below the head: while it stands, the log is the one that was read.
        """
        self._session = session
        self._tracker = session.tracker
        self._tip = tip
        self._verify = config.commit_verify == "always" or not session.clock.counts_suspension

    def reobserve(self) -> tuple[TableHead, RecentCommits]:
        """List the log again; return the newest head and the ids of the recent commits."""
        head, recent, self._tip = self._session.reobserve()
        return head, recent

    def recent(self) -> RecentCommits:
        """Return the ids of the recent commits as of the last read."""
        latest = self._tracker.last_read
        return RecentCommits() if latest is None else latest.state.recent

    def is_own(self, txn_id: str | None) -> bool:
        """Whether the session has made a commit."""
        return txn_id in self._session.own_commits

    def none_retired(self, first: int, last: int) -> bool:
        """Whether no version of a range is recorded as deleted."""
        return not list_retired(self._tracker.store).overlaps(first, last)

    def none_deleted(self, first: int, last: int, observed: float) -> bool:
        """Whether no version of a range can have been deleted since the log ended before it."""
        # Cleanup leaves every commit alone until it is three times `OBSERVATION_TRUST_SECONDS`
        # old.
        if self._verify or self._session.clock.seconds() - observed > OBSERVATION_TRUST_SECONDS:
            return False
        if not self._tracker.store.cheap_stat:
            return True
        # Cleanup by arrowlog records what it deletes. Other programs do not; what they delete is
        # below a checkpoint, which their pointer names.
        return (
            self.none_retired(first, last)
            and not self._tracker.pointer_names_later(first - 1)
            and (self._tip is None or self._tracker.is_same_object(self._tip))
        )

    def replaced(self) -> bool:
        """Whether the tip is gone, other than by cleanup: the log is another one by now."""
        tip = self._tip
        if tip is None or self._tracker.is_same_object(tip):
            return False
        # Other programs clean up without a record, below a checkpoint that their pointer names.
        if tip.version in list_retired(self._tracker.store):
            return False
        return not self._tracker.pointer_names_later(tip.version - 1)


class WriteSession:
    """Commits the changes of one handle.

    The session distinguishes what the handle *showed* (a snapshot, a refresh, its own last commit)
    from what it *read* for its own needs. Only the former is the basis of conditional changes.
    After a conflict, the next change is based on the newest version. What it knows is one
    immutable `SessionState`, replaced under the lock.
    """

    def __init__(
        self,
        tracker: SnapshotTracker,
        options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        on_commit: Callable[[int, Snapshot | None, Config], None] | None = None,
    ) -> None:
        """Create a session for a table.

        Args:
            tracker: reads the table's snapshots.
            options: settings of the handle; they take precedence over the table's own.
            clock: time and randomness; the machine's by default.
            on_commit: called after every commit with its version, the snapshot last read and the
                settings in force.
        """
        self.tracker = tracker
        self.clock: Clock = clock or SystemClock()
        self.own_commits = OwnCommits()
        self._on_commit = on_commit
        self._options = options
        self._backoff = ContentionBackoff()
        self._state = SessionState()
        # Of the last table state that was written, and when it was by `clock.boottime`.
        self._state_base: Snapshot | None = None
        self._state_base_time = float("-inf")
        self._lock = ForkSafeLock(self._after_torn_fork)

    def _after_torn_fork(self) -> None:
        self._state = self._state.after_torn_fork()

    @property
    def store(self) -> Store:
        """The table's store."""
        return self.tracker.store

    @property
    def is_refused(self) -> bool:
        """Whether a conflict was raised, and the table was not read again since."""
        return self._state.is_refused(self.tracker.base)

    def at_version(self, version: int) -> Snapshot:
        """Return the snapshot of a version."""
        return self.tracker.at_version(version)

    def read_latest(self) -> Snapshot:
        """Refresh and return the newest snapshot, without counting it as shown."""
        with self._lock:
            return self._refresh()

    def refused(self, conflict: CommitConflict) -> CommitConflict:
        """Return a conflict to be raised; the next change starts from the newest version."""
        with self._lock:
            self._state = self._state.after_conflict(self.tracker.base.generation)
        return conflict

    def last_shown_state(self) -> State | None:
        """Return the state last shown, or None if nothing was shown yet."""
        shown = self._state.last_shown(self.tracker.base)
        return None if shown is None else shown.state

    def _read_on(self) -> Snapshot:
        """Read the newest snapshot without counting it as shown. Own commits count as shown."""
        shown = self._state.last_shown(self.tracker.base)
        if shown is not None:
            shown = self._with_own_commits(shown)
        newest = self.tracker.latest()
        self._state = self._state.after_reading_on(shown, self.tracker.base.generation)
        return newest

    def _refresh(self) -> Snapshot:
        """Read the newest snapshot, and forget the head."""
        newest = self._read_on()
        self._state = self._state.without_head()
        return newest

    def reobserve(self) -> tuple[TableHead, RecentCommits, LogTip | None]:
        """List the log again; return the newest head, the ids of the recent commits and the tip."""
        with self._lock:
            head = self._refreshed_head()
            base = self.tracker.base
            assert base.snapshot is not None
            return head, base.snapshot.state.recent, self._state.tip(base)

    def _refreshed_head(self) -> TableHead:
        """Refresh and return the newest head. Raises `LogCorrupt` if the log has a gap."""
        self._check_no_gap(self._refresh())
        return self._state.newest_head(self.tracker.base)

    def head_of(self, snapshot: Snapshot) -> TableHead:
        """Return the head of a snapshot."""
        return head_of(snapshot.state)

    def head(self) -> TableHead:
        """Refresh and return the newest head, as the target of a write that takes long.

        This does not count as shown. Raises `UnsupportedProtocol` if the table cannot be written.
        """
        with self._lock:
            self._refresh()
            head = self._newest_head()
        INDEXTABLES.check_writable(head.protocol, self.store.root)
        return head

    def find_committed_txn(self, txn: tuple[str, int] | None) -> CommitResult | None:
        """Return the earlier commit of an application transaction, if this session knows one.

        Raises `UnsupportedProtocol` if the table cannot be written.
        """
        with self._lock:
            head = self._newest_head()
        INDEXTABLES.check_writable(head.protocol, self.store.root)
        committed = None if txn is None else head.txns.get(txn[0])
        if txn is None or committed is None or committed[0] < txn[1]:
            return None
        return CommitResult(committed[1], 0, {}, duplicate=True)

    def config(self, head: TableHead) -> Config:
        """Return the settings in force: the handle's options, then the table's, then defaults."""
        return self.config_of(head.metadata)

    def config_of(self, metadata: Metadata) -> Config:
        """Return the settings in force for a table's metadata."""
        return resolve(self._options, table=metadata.configuration)

    def base_snapshot(self) -> Snapshot:
        """Return the snapshot that conditional changes are based on.

        It is the one last shown, advanced to the session's own last commit. The newest snapshot is
        read if none was shown yet, or if a conflict was raised since.
        """
        with self._lock:
            if self.tracker.last_read is None or self.is_refused:
                self._refresh()
                self._state = self._state.after_showing()
            shown = self._state.last_shown(self.tracker.base)
            assert shown is not None
            return self._with_own_commits(shown)

    def _with_own_commits(self, shown: Snapshot) -> Snapshot:
        """Advance a snapshot past the session's own commits, if no other commit is among them."""
        state = self._state
        if not state.has_committed_after(shown, self.tracker.base):
            return shown
        assert state.head is not None
        last = state.head.version
        own = self.own_commits.between(shown.version + 1, last)
        if not own:
            return shown
        self._state = state.after_showing()
        try:
            advanced = self.tracker.apply_own_commits(last)
            if all(advanced.state.recent.txn_id(version) == own[version] for version in own):
                return advanced
        except FileNotFoundError:  # the commits were cleaned up, or the table was dropped
            pass
        newest = self.tracker.latest()
        self._state = self._state.without_head()
        same = newest.version == last and newest.metadata.id == shown.metadata.id
        return newest if same else shown

    def append(self, prepare: Prepare) -> CommitResult:
        """Commit a change that depends on the head of the log only. See `run_transaction`."""
        with self._lock:
            head = self._newest_head()
            tip = self._state.tip(self.tracker.base)
        return self._run(head, prepare, tip)

    def change(
        self, prepare: Prepare, base: Snapshot | None = None, *, mends: bool = False
    ) -> CommitResult:
        """Commit a change that was decided by reading the table. See `run_transaction`.

        Args:
            prepare: makes the commit for a head.
            base: the snapshot the decision was based on; `base_snapshot()` by default.
            mends: the change may repair the table's properties. Invalid values among the current
                ones must not prevent it, so the table's settings are not resolved.

        Raises:
            MetadataChanged: `base` belongs to a table that was dropped or replaced.
        """
        with self._lock:
            snapshot = self.base_snapshot() if base is None else base
            shown = self._state.last_shown(self.tracker.base)
            dropped = snapshot is shown and self.tracker.dropped()
            newest = self._newest_head()
            if dropped or not self._is_ancestor(snapshot, newest):
                raise self.refused(
                    MetadataChanged(
                        f"{self.store.root} is no longer the table whose version {snapshot.version}"
                        " this commit is based on: that table was dropped and another one created.",
                        next=CONFLICT_NEXT_STEP,
                        version=snapshot.version,
                    )
                )
            tip = self._state.tip(self.tracker.base)
        return self._run(head_of(snapshot.state), prepare, tip, newest, mends=mends)

    def _is_ancestor(self, snapshot: Snapshot, head: TableHead) -> bool:
        """Whether a snapshot belongs to the log that ends with a head."""
        if snapshot.metadata.id != head.metadata.id:
            return False
        if snapshot.version <= head.version:
            return True
        # The head may come from a listing that lags behind.
        key = f"{LOG_FOLDER}/{commit_name(snapshot.version)}"
        return self.store.find_many([key])[0] is not None

    def state(self, head: TableHead) -> State:
        """Return the state at a head, reading it if necessary without counting it as shown."""
        latest = self.tracker.last_read
        if latest is None or latest.version < head.version:
            with self._lock:
                latest = self._read_on()
        if latest.version != head.version:
            latest = self.tracker.at_version(head.version)
        return latest.state

    def _newest_head(self) -> TableHead:
        """Return the newest head known, refreshed if it is too old or the log looks changed.

        Raises `LogCorrupt` if the log has a gap, or ends before the checkpoint pointer says.
        """
        if not self._may_build_on_known_head():
            self._refresh()
        base = self.tracker.base
        assert base.snapshot is not None
        self._check_no_gap(base.snapshot)
        head = self._state.newest_head(base)
        self._state = self._state.with_head(head)
        if not self._state.is_checked:
            head = self._check_before_first_write(head)
            self._state = self._state.after_check(head)
        if not self._check_next_version(head):
            # Commits after the head were deleted since it was observed.
            head = self._refreshed_head()
            self._state = self._state.with_head(head)
        return head

    def _may_build_on_known_head(self) -> bool:
        """Whether the newest head known is recent, and the log looks as it did."""
        state, base, tracker = self._state, self.tracker.base, self.tracker
        age = self.clock.seconds() - state.observed_at(base)
        if (
            base.snapshot is None
            or state.is_refused(base)
            or age > self._head_lifetime_seconds()
            or base.has_nonstandard_names
        ):
            return False
        unchanged = (
            tracker.is_same_object(state.head_tip) if state.head_tip else tracker.unchanged()
        )
        return unchanged and not tracker.overtaken(state.known_version(base))

    def _head_lifetime_seconds(self) -> float:
        """How long a head may be built on without reading the log again.

        A put that takes longer than what is left of `OBSERVATION_TRUST_SECONDS` has to be verified.
        """
        return OBSERVATION_TRUST_SECONDS / 2 if self.store.cheap_stat else _REMOTE_HEAD_SECONDS

    def _check_no_gap(self, latest: Snapshot) -> None:
        if latest.report.gap is not None:
            raise _gap_error(self.store.root, latest.report.gap)

    def _check_next_version(self, head: TableHead) -> bool:
        """Raise `LogCorrupt` if the next commit would fill a gap.

        A writer that counts versions instead of observing them leaves such a gap. Returns False if
        the next version is not missing but was deleted by cleanup: the head is outdated. Checked
        only where it costs no request.
        """
        store, version = self.store, head.version
        if not store.cheap_stat:
            return True
        for later in range(version + 2, version + 2 + _GAP_PROBES):
            if store.stat(f"{LOG_FOLDER}/{commit_name(later)}") is None:
                continue
            # The order matters: commits appear in ascending order, so if the later one was there
            # first, a missing earlier one is a gap and not a race.
            if store.stat(f"{LOG_FOLDER}/{commit_name(version + 1)}") is None:
                if version + 1 in list_retired(store):
                    return False
                raise _gap_error(store.root, VersionGap(version + 1, later))
            return True
        return True

    def _check_before_first_write(self, head: TableHead) -> TableHead:
        """Check that the store supports put-if-absent and that the log is complete.

        Done once per session. Returns the head, refreshed if the checkpoint pointer names a later
        version. Raises `LogCorrupt` if the log still ends before that version.
        """
        store = self.store
        store.check_writable(LOG_FOLDER)
        pointer = store.find_many([f"{LOG_FOLDER}/{LAST_CHECKPOINT}"])[0]
        pointed = pointed_version(pointer)
        if pointed > head.version:  # others may have committed since this handle last read the log
            latest = self._read_on()
            self._check_no_gap(latest)
            head = head_of(latest.state, self.tracker.base.observed_at)
        if pointed > head.version:
            raise LogCorrupt(
                f"the checkpoint pointer names version {pointed}, but the log ends at version"
                f" {head.version}: commits or a checkpoint are missing.",
                next="Restore them from a backup, or delete the pointer if it is wrong.",
                file=f"{LOG_FOLDER}/{LAST_CHECKPOINT}",
                version=head.version,
            )
        return head

    def _run(
        self,
        head: TableHead,
        prepare: Prepare,
        tip: LogTip | None,
        newest: TableHead | None = None,
        *,
        mends: bool = False,
    ) -> CommitResult:
        config = self.tracker.config if mends else self.config(head)
        if newest is not None and newest.version == head.version:
            head = replace(head, observed=newest.observed)
        log = SessionLog(self, config, tip)
        writer = TransactionContext(self.store, config, self.clock, self._backoff, log)
        started = time.perf_counter()
        try:
            result, after = run_transaction(writer, head, prepare, newest)
        except CommitConflict as conflict:
            self._report_conflict(conflict, started)
            raise self.refused(conflict) from None
        except CommitStateUnknown as unknown:
            metrics_of(self.store).add("commits_unknown")
            which = {"version": unknown.version, "txn_id": unknown.txn_id}
            COMMIT_UNKNOWN.log(table=self.store.root, reason=str(unknown), **which)
            raise
        if not result.duplicate:
            self._record(result, after, log)
            latest = self.tracker.last_read
            if after.protocol.min_reader_version >= STATE_PROTOCOL_VERSION:
                # What was last read may be of the protocol before, which has no states.
                latest = self._write_state(result.version, config)
            if self._on_commit is not None:
                # The commit is in the log: an invalid property set by a winning commit must not
                # turn it into an error.
                with suppress(InvalidRequest):
                    config = config if after.metadata is head.metadata else self.config(after)
                self._on_commit(result.version, latest, config)
        return result

    def _report_conflict(self, conflict: CommitConflict, started: float) -> None:
        """Log and count a conflict that is raised."""
        kind = type(conflict).__name__
        metrics_of(self.store).add("conflicts", 1, kind)
        COMMIT_CONFLICT.log(
            table=self.store.root,
            version=conflict.version,
            error=kind,
            reason=str(conflict),
            ms=(time.perf_counter() - started) * 1000,
        )

    def _write_state(self, version: int, config: Config) -> Snapshot | None:
        """Write the table state of an own commit; other programs do not see it without.

        The commit is in the log: a store that fails now costs the state, not the commit. Readers of
        arrowlog read the commit, and the next writer's state covers it. Returns the snapshot of the
        commit; None if it has no state now.
        """
        try:
            started = boottime()
            try:
                snapshot = self._own_version(version)
            except InvalidRequest:  # cleaned up meanwhile, below a state that covers the commit
                return None
            from arrowlog.snapshot import StateWriter  # loads what decodes Avro

            writer = StateWriter(self.store, config, self.clock.new_id)
            if snapshot.report.checkpoint == version:
                # Another program's state of this version was read: is it that of the commit?
                writer.check_same(self._without_state(version).state)
                return snapshot
            written = writer.write(snapshot.state)
            base = with_state_files(self.store, self.tracker.read_options, snapshot, written)
            self._state_base, self._state_base_time = base, started
        except CommitConflict:
            raise
        except (ArrowlogError, FileNotFoundError, ValueError) as error:
            # An error here would make the caller commit again what is in the log.
            warnings.warn(
                f"{self.store.root}: version {version} is committed, but has no table state:"
                f" {error}",
                ArrowlogWarning,
                stacklevel=4,
            )
            return None
        return base

    def _own_version(self, version: int) -> Snapshot:
        """Return the snapshot of an own commit, built on the last state where that is possible.

        Then the next state reuses its manifests.
        """
        base = self._state_base
        if (
            base is not None
            and 0 < version - base.version <= _COMMITS_PER_STATE_MAX
            and boottime() - self._state_base_time <= _STATE_BASE_TRUST_SECONDS
        ):
            commits = [INDEXTABLES.commit_file(v) for v in range(base.version + 1, version + 1)]
            with suppress(FileNotFoundError):
                return apply_commits(self.store, self.tracker.read_options, base, commits)
        return load_snapshot(self.store, list_log(self.store), self.tracker.read_options, version)

    def _without_state(self, version: int) -> Snapshot:
        """Load a version as its commit leads to it."""
        listing = list_log(self.store)
        forms = frozenset(
            form for form in listing.checkpoints.get(version, ()) if form.kind == STATE_KIND
        )
        return load_snapshot(self.store, listing, self.tracker.read_options, version, avoid=forms)

    def _record(self, result: CommitResult, head: TableHead, log: SessionLog) -> None:
        """Remember a commit and the head after it."""
        with self._lock:
            self.own_commits.record(result.txn_id, result.version)
            self.tracker.note_own_commit()
            known = self._state.head
            if known is None or head.version > known.version:
                tip = self._observe_own_commit(head, log)
                self._state = self._state.after_commit(head, tip)

    def _observe_own_commit(self, head: TableHead, log: SessionLog) -> LogTip | None:
        """Return the object of the commit at a head; None if it may be another table's."""
        try:
            tip = self.tracker.tip_of(head.version, commit_name(head.version))
            return None if log.replaced() else tip
        except StoreUnavailable:  # the commit stands; the next one reads the head again
            return None


def _gap_error(root: str, gap: VersionGap) -> LogCorrupt:
    return LogCorrupt(
        f"{root} cannot be written: {gap}. A commit that fills the gap would make version"
        f" {gap.next} part of the table again.",
        next="Restore the missing file from a backup, or move the later ones away.",
        version=gap.missing,
    )


def head_of(state: State, observed: float = float("-inf")) -> TableHead:
    """Return the head of a state; `observed` is a time at which the log ended with it."""
    return TableHead(
        state.version,
        state.protocol,
        state.metadata,
        state.schema,
        state.timestamp,
        state.txns,
        observed,
    )
