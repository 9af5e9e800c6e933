"""The write session of one `Table` handle: what it has shown, what it has committed.

Conditional changes (remove, overwrite with a predicate, restore) are based on what the handle last
showed its user; commits made by others since are checked for conflicts. An append depends only on
the head of the log, which the session remembers after each commit: repeated appends send one
request each, the put.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import (
    CommitConflict,
    InvalidRequest,
    LogCorrupt,
    MetadataChanged,
    StoreUnavailable,
)
from arrowlog.fork_safety import ForkSafeLock
from arrowlog.formats.indextables import LAST_CHECKPOINT, LOG_FOLDER, RecentCommits, commit_name
from arrowlog.snapshot import (
    OBSERVATION_TRUST_SECONDS,
    VersionGap,
    check_writable,
    list_retired,
    pointed_version,
)
from arrowlog.transaction.backoff import ContentionBackoff
from arrowlog.transaction.commit_loop import CommitResult, TransactionContext, run_transaction
from arrowlog.transaction.conflict_checker import CONFLICT_NEXT_STEP, TableHead
from arrowlog.transaction.winning_commits import read_winning_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.snapshot import LogTip, Snapshot, SnapshotTracker, State
    from arrowlog.storage import Store
    from arrowlog.transaction.backoff import Clock
    from arrowlog.transaction.conflict_checker import WinningCommit
    from arrowlog.transaction.prepared_commits import Prepare

# Ids of own commits that a session remembers, the oldest forgotten first; bounds memory.
_OWN_COMMITS_MAX = 100_000
# Versions after the next one that are probed for a commit left by a writer that skipped a version.
_GAP_PROBES = 8
# How long a head is used without looking at the log, where looking costs a request. A table that
# was dropped is noticed no earlier than this.
_REMOTE_HEAD_SECONDS = 3.0


class WriteSession:
    """Commits the changes of one handle.

    The session distinguishes what the handle *showed* (a snapshot, a refresh, its own last commit)
    from what it *read* for its own needs. Only the former is the basis of conditional changes.
    After a conflict, the next change is based on the newest version.
    """

    def __init__(
        self,
        tracker: SnapshotTracker,
        options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        landed: Callable[[int, Snapshot | None, Config], None] | None = None,
    ) -> None:
        """Create a session for a table.

        Args:
            tracker: reads the table's snapshots.
            options: settings of the handle; they take precedence over the table's own.
            clock: time and randomness; the machine's by default.
            landed: called after every commit with its version, the snapshot last read and the
                settings in force.
        """
        self._landed = landed
        self.clock: Clock = clock or SystemClock()
        self._follower = tracker
        self._options = options
        self._pace = ContentionBackoff()
        self._own: dict[str | None, int] = {}  # id to version of the commits of this session
        self._head: TableHead | None = None  # the newest head known
        self._mark: LogTip | None = None  # tells cheaply whether the head is still the newest
        self._ready = False  # whether the store and the log were checked before the first write
        self._refused_at = -1  # value of `follower.looks` when a conflict was last raised
        # The snapshot last shown, and the value of `follower.looks` after this session read beyond.
        self._moved: tuple[Snapshot, int] | None = None
        self._lock = ForkSafeLock(self._after_torn_fork)

    def _after_torn_fork(self) -> None:
        self._head = self._mark = self._moved = None
        self._ready = False

    @property
    def store(self) -> Store:
        """The table's store."""
        return self._follower.store

    def at(self, version: int) -> Snapshot:
        """Return the snapshot of a version."""
        return self._follower.at(version)

    def look(self) -> Snapshot:
        """Refresh and return the newest snapshot, without counting it as shown."""
        with self._lock:
            self._refresh()
            assert self._follower.latest is not None
            return self._follower.latest

    def refused(self, conflict: CommitConflict) -> CommitConflict:
        """Return a conflict to be raised; the next change starts from the newest version."""
        self._refused_at = self._follower.looks
        return conflict

    def last_shown_state(self) -> State | None:
        """Return the state last shown, or None if nothing was shown yet."""
        shown = self._shown
        return None if shown is None else shown.state

    @property
    def _shown(self) -> Snapshot | None:
        """The snapshot last shown. The follower may since have read further for this session."""
        if self._moved is not None and self._moved[1] == self._follower.looks:
            return self._moved[0]
        return self._follower.latest

    def _read_on(self) -> Snapshot:
        """Read the newest snapshot without counting it as shown. Own commits count as shown."""
        shown = self._shown
        if shown is not None and self._has_own_commits_after(shown):
            shown = self._with_own_commits(shown)
        newest = self._follower.newest()
        self._moved = None if shown is None else (shown, self._follower.looks)
        return newest

    def _reobserve(self) -> tuple[TableHead, RecentCommits]:
        """List the log again; return the newest head and the ids of the recent commits."""
        with self._lock:
            self._refresh()
            latest = self._follower.latest
            assert latest is not None
            self._check_no_gap(latest)
            return head_of(latest.state, self._follower.asked), latest.state.recent

    def _recent(self) -> RecentCommits:
        latest = self._follower.latest
        return RecentCommits() if latest is None else latest.state.recent

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
        check_writable(head.protocol, self.store.root)
        return head

    def find_committed_txn(self, txn: tuple[str, int] | None) -> CommitResult | None:
        """Return the earlier commit of an application transaction, if this session knows one.

        Raises `UnsupportedProtocol` if the table cannot be written.
        """
        with self._lock:
            head = self._newest_head()
        check_writable(head.protocol, self.store.root)
        committed = None if txn is None else head.txns.get(txn[0])
        if txn is None or committed is None or committed[0] < txn[1]:
            return None
        return CommitResult(committed[1], 0, {}, duplicate=True)

    def config(self, head: TableHead) -> Config:
        """Return the settings in force: the handle's options, then the table's, then defaults."""
        return resolve(self._options, table=head.metadata.configuration)

    def seen(self) -> Snapshot:
        """Return the snapshot that conditional changes are based on.

        It is the one last shown, advanced to the session's own last commit. The newest snapshot is
        read if none was shown yet, or if a conflict was raised since.
        """
        with self._lock:
            if self._follower.latest is None or self._conflicted:
                self._refresh()
                self._moved = None
            shown = self._shown
            assert shown is not None
            return self._with_own_commits(shown) if self._has_own_commits_after(shown) else shown

    def _has_own_commits_after(self, shown: Snapshot) -> bool:
        """Whether the session has committed on top of a snapshot, which is the last one read."""
        ahead = self._head is not None and self._head.version > shown.version
        return ahead and shown is self._follower.latest

    def _with_own_commits(self, latest: Snapshot) -> Snapshot:
        """Advance a snapshot past the session's own commits, if no other commit is among them."""
        assert self._head is not None
        between = self._head.version - latest.version
        versions = list(self._own.values())[-between:]
        if versions != list(range(latest.version + 1, self._head.version + 1)):
            return latest
        own = {version: txn_id for txn_id, version in list(self._own.items())[-between:]}
        self._moved = None
        try:
            advanced = self._follower.advance(self._head.version)
            if all(advanced.state.recent.txn_id(version) == own[version] for version in versions):
                return advanced
        except FileNotFoundError:  # the commits were cleaned up, or the table was dropped
            pass
        version, newest = self._head.version, self._follower.newest()
        self._head = self._mark = None
        same = newest.version == version and newest.metadata.id == latest.metadata.id
        return newest if same else latest

    def append(self, prepare: Prepare) -> CommitResult:
        """Commit a change that depends on the head of the log only. See `transaction.run`."""
        with self._lock:
            head = self._newest_head()
            tip = self._known_tip()
        return self._run(head, prepare, tip)

    def change(
        self, prepare: Prepare, base: Snapshot | None = None, *, mends: bool = False
    ) -> CommitResult:
        """Commit a change that was decided by reading the table. See `transaction.run`.

        Args:
            prepare: makes the commit for a head.
            base: the snapshot the decision was based on; `seen()` by default.
            mends: the change may repair the table's properties. Invalid values among the current
                ones must not prevent it, so the table's settings are not resolved.

        Raises:
            MetadataChanged: `base` belongs to a table that was dropped or replaced.
        """
        with self._lock:
            snapshot = self.seen() if base is None else base
            follower = self._follower
            dropped = snapshot is self._shown and follower.dropped()
            newest = self._newest_head()
            if dropped or not self._is_ancestor(snapshot, newest):
                self._refused_at = follower.looks
                raise MetadataChanged(
                    f"{self.store.root} is no longer the table whose version {snapshot.version}"
                    " this commit is based on: that table was dropped and another one created.",
                    next=CONFLICT_NEXT_STEP,
                    version=snapshot.version,
                )
            tip = self._known_tip()
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
        latest = self._follower.latest
        if latest is None or latest.version < head.version:
            with self._lock:
                latest = self._read_on()
        if latest.version != head.version:
            latest = self._follower.at(head.version)
        return latest.state

    def _newest_head(self) -> TableHead:
        """Return the newest head known, refreshed if it is too old or the log looks changed.

        Raises `LogCorrupt` if the log has a gap, or ends before the checkpoint pointer says.
        """
        follower = self._follower
        seen = follower.asked if self._head is None else max(self._head.observed, follower.asked)
        age = self.clock.seconds() - seen
        old = (
            follower.latest is None
            or self._conflicted
            or age > self._head_lifetime_seconds()
            or follower.odd
        )
        if (
            old
            or not (follower.is_same_object(self._mark) if self._mark else follower.unchanged())
            or self._is_overtaken()
        ):
            self._refresh()
        latest = follower.latest
        assert latest is not None
        self._check_no_gap(latest)
        if self._head is None or latest.version >= self._head.version:
            self._head = head_of(latest.state, follower.asked)
        if not self._ready:
            self._head = self._check_before_first_write(self._head)
        if self._check_next_version(self._head):
            return self._head
        self._refresh()  # commits after the head were deleted since it was observed
        latest = follower.latest
        assert latest is not None
        self._check_no_gap(latest)
        self._head = head_of(latest.state, follower.asked)
        return self._head

    def _known_tip(self) -> LogTip | None:
        """Return the commit by which the newest head was observed; None if it is not known."""
        return self._mark or self._follower.tip

    def _is_overtaken(self) -> bool:
        """Whether commits after the newest head known may have been made and deleted."""
        latest = self._follower.latest
        assert latest is not None
        known = latest.version if self._head is None else max(self._head.version, latest.version)
        return self._follower.overtaken(known)

    def _head_lifetime_seconds(self) -> float:
        """How long a head may be built on without looking at the log again.

        A put that takes longer than what is left of `OBSERVATION_TRUST_SECONDS` has to be verified.
        """
        return OBSERVATION_TRUST_SECONDS / 2 if self.store.cheap_stat else _REMOTE_HEAD_SECONDS

    def _refresh(self) -> None:
        self._read_on()
        self._head = self._mark = None

    @property
    def _conflicted(self) -> bool:
        """Whether the table was not read again since the last conflict."""
        return self._follower.looks == self._refused_at

    def _check_no_gap(self, latest: Snapshot) -> None:
        if latest.report.gap is not None:
            raise _gap_error(self._follower.store.root, latest.report.gap)

    def _check_next_version(self, head: TableHead) -> bool:
        """Raise `LogCorrupt` if the next commit would fill a gap.

        A writer that counts versions instead of observing them leaves such a gap. Returns False if
        the next version is not missing but was deleted by clean-up: the head is outdated. Checked
        only where it costs no request.
        """
        store, version = self._follower.store, head.version
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
        store = self._follower.store
        store.check_writable(LOG_FOLDER)
        pointer = store.find_many([f"{LOG_FOLDER}/{LAST_CHECKPOINT}"])[0]
        pointed = pointed_version(pointer)
        if pointed > head.version:  # others may have committed since this handle last looked
            latest = self._read_on()
            self._check_no_gap(latest)
            head = head_of(latest.state, self._follower.asked)
        if pointed > head.version:
            raise LogCorrupt(
                f"the checkpoint pointer names version {pointed}, but the log ends at version"
                f" {head.version}: commits or a checkpoint are missing.",
                next="Restore them from a backup, or delete the pointer if it is wrong.",
                file=f"{LOG_FOLDER}/{LAST_CHECKPOINT}",
                version=head.version,
            )
        self._ready = True
        return head

    def writer(self, config: Config, tip: LogTip | None = None) -> TransactionContext:
        """Return the environment in which `transaction.run` commits.

        `tip` is a commit at or below the head: while it stands, the log is the one that was read.
        """
        store = self._follower.store

        def decode_winners(
            first: int,
            commits: Sequence[bytes],
            head: TableHead,
            files: bool,  # noqa: FBT001 -- the one flag of a private function
        ) -> Iterator[WinningCommit]:
            limit = config.max_decompressed_bytes
            return read_winning_commits(first, commits, head, store.root, limit, files=files)

        def check_protocol(head: TableHead) -> None:
            check_writable(head.protocol, store.root)

        verify = config.commit_verify == "always" or not self.clock.counts_suspension

        def none_retired(first: int, last: int) -> bool:
            return not list_retired(store).overlaps(first, last)

        def none_deleted(first: int, last: int, observed: float) -> bool:
            # Clean-up leaves every commit alone until it is three times `OBSERVATION_TRUST_SECONDS`
            # old.
            if verify or self.clock.seconds() - observed > OBSERVATION_TRUST_SECONDS:
                return False
            if not store.cheap_stat:
                return True
            # Clean-up by arrowlog records what it deletes. Other programs do not; what they delete
            # is below a checkpoint, which their pointer names.
            return (
                none_retired(first, last)
                and not self._follower.pointer_names_later(first - 1)
                and (tip is None or self._follower.is_same_object(tip))
            )

        def replaced() -> bool:
            if tip is None or self._follower.is_same_object(tip):
                return False
            # Other programs clean up without a record, below a checkpoint that their pointer names.
            return tip.version not in list_retired(
                store
            ) and not self._follower.pointer_names_later(tip.version - 1)

        def reobserve() -> tuple[TableHead, RecentCommits]:
            nonlocal tip
            with self._lock:
                found = self._reobserve()
                tip = self._known_tip()
            return found

        return TransactionContext(
            store,
            config,
            self.clock,
            self._pace,
            decode_winners,
            check_protocol,
            verify,
            none_deleted,
            none_retired,
            replaced,
            reobserve,
            self._recent,
            self._own,
        )

    def _run(
        self,
        head: TableHead,
        prepare: Prepare,
        tip: LogTip | None,
        newest: TableHead | None = None,
        *,
        mends: bool = False,
    ) -> CommitResult:
        config = self._follower.config if mends else self.config(head)
        if newest is not None and newest.version == head.version:
            head = replace(head, observed=newest.observed)
        writer = self.writer(config, tip)
        try:
            result, after = run_transaction(writer, head, prepare, newest)
        except CommitConflict as conflict:
            raise self.refused(conflict) from None
        if not result.duplicate:
            self._record(result, after, writer)
            if self._landed is not None:
                # The commit is in the log: an invalid property set by a winning commit must not
                # turn it into an error.
                with suppress(InvalidRequest):
                    config = config if after.metadata is head.metadata else self.config(after)
                self._landed(result.version, self._follower.latest, config)
        return result

    def _record(self, result: CommitResult, head: TableHead, writer: TransactionContext) -> None:
        """Remember a commit and the head after it."""
        with self._lock:
            self._own[result.txn_id] = result.version
            if len(self._own) > _OWN_COMMITS_MAX:
                del self._own[next(iter(self._own))]
            self._follower.outdated = True
            if self._head is None or head.version > self._head.version:
                self._head = head
                try:
                    self._mark = self._follower.tip_of(head.version, commit_name(head.version))
                    if writer.replaced():  # the mark may be another table's commit
                        self._head = self._mark = None
                except StoreUnavailable:  # the commit stands; the next one reads the head again
                    self._head = self._mark = None


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
