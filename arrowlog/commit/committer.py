"""The hand of one `Table` that writes: what it has seen, what it has done, and the next commit.

A commit builds on what the handle has last shown: what others did since is checked against it. An
append needs no more than the head of the log, so a handle that appends again and again asks the
store for nothing but to take the commit.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arrowlog.clock import SystemClock
from arrowlog.commit.conflict import Head
from arrowlog.commit.pace import Pace
from arrowlog.commit.rivals import read_rivals
from arrowlog.commit.transaction import CommitResult, Writer, run
from arrowlog.config import resolve
from arrowlog.errors import (
    CommitConflict,
    InvalidRequest,
    LogCorrupt,
    MetadataChanged,
    StoreUnavailable,
)
from arrowlog.fork_safety import ForkSafeLock
from arrowlog.log.names import LOG, POINTER, commit_name
from arrowlog.log.recent import RecentCommits
from arrowlog.log.segment import Gap
from arrowlog.state.apply import check_writable
from arrowlog.state.listing import TRUST_SECONDS, list_retired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrowlog.commit.conflict import Rival
    from arrowlog.commit.drafts import Prepare
    from arrowlog.commit.pace import Clock
    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.copies import Mark
    from arrowlog.state.follow import Follower
    from arrowlog.state.snapshot import Snapshot, State

_OWN_MAX = 100_000
_AHEAD = 8  # slots after the next one in which a writer that counted ahead may have left a commit
_UNSEEN_SECONDS = 3.0


class Committer:
    """Commits for one handle."""

    def __init__(
        self,
        follower: Follower,
        options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        landed: Callable[[int, Snapshot | None, Config], None] | None = None,
    ) -> None:
        """`options` are those of the call; the table's own come on top of the defaults.

        `landed` is told of every commit, with what the handle has last read and the settings.
        """
        self._landed = landed
        self.clock: Clock = clock or SystemClock()
        self._follower = follower
        self._options = options
        self._pace = Pace()
        self._own: dict[str | None, int] = {}  # what this handle has committed, and as what version
        self._head: Head | None = None
        self._mark: Mark | None = None
        self._ready = False
        self._refused_at = -1  # the look after which a conflict showed that the handle is behind
        self._moved: tuple[Snapshot, int] | None = None  # what was shown; our look beyond it
        self._lock = ForkSafeLock(self._after_torn_fork)

    def _after_torn_fork(self) -> None:
        self._head = self._mark = self._moved = None
        self._contact, self._ready = float("-inf"), False

    @property
    def store(self) -> Store:
        """Where the table is."""
        return self._follower.store

    def at(self, version: int) -> Snapshot:
        """The table at a version."""
        return self._follower.at(version)

    def look(self) -> Snapshot:
        """The newest version, looked at now."""
        with self._lock:
            self._refresh()
            assert self._follower.latest is not None
            return self._follower.latest

    def refused(self, conflict: CommitConflict) -> CommitConflict:
        """A conflict, after which the next decision is made on what is there."""
        self._refused_at = self._follower.looks
        return conflict

    def last_seen(self) -> State | None:
        """What the handle has shown before, if anything."""
        shown = self._shown
        return None if shown is None else shown.state

    @property
    def _shown(self) -> Snapshot | None:
        """What somebody has seen. The follower may have gone on since, for our own needs."""
        if self._moved is not None and self._moved[1] == self._follower.looks:
            return self._moved[0]
        return self._follower.latest

    def _go_on(self) -> Snapshot:
        """The newest snapshot, which nobody has been shown. Our own commits count as seen."""
        shown = self._shown
        if shown is not None and self._ahead(shown):
            shown = self._with_own(shown)
        newest = self._follower.newest()
        self._moved = None if shown is None else (shown, self._follower.looks)
        return newest

    def _reobserve(self) -> tuple[Head, RecentCommits]:
        """The newest head by a new look at the log, and whose commits the last versions are."""
        with self._lock:
            self._refresh()
            latest = self._follower.latest
            assert latest is not None
            self._check_whole(latest)
            return head_of(latest.state, self._follower.asked), latest.state.recent

    def _recent(self) -> RecentCommits:
        latest = self._follower.latest
        return RecentCommits() if latest is None else latest.state.recent

    def head_of(self, snapshot: Snapshot) -> Head:
        """What a writer has to know of a snapshot."""
        return head_of(snapshot.state)

    def head(self) -> Head:
        """What the table is now, looked at for a write that takes long: not what was shown."""
        with self._lock:
            self._refresh()
            head = self._newest_head()
        check_writable(head.protocol, self.store.root)
        return head

    def step_of(self, txn: tuple[str, int] | None) -> CommitResult | None:
        """The result of an application's step, if this handle knows that it was taken."""
        with self._lock:
            head = self._newest_head()
        check_writable(head.protocol, self.store.root)
        known = None if txn is None else head.txns.get(txn[0])
        if txn is None or known is None or known[0] < txn[1]:
            return None
        return CommitResult(known[1], 0, {}, duplicate=True)

    def config(self, head: Head) -> Config:
        """The settings in force for this table."""
        return resolve(self._options, table=head.metadata.configuration)

    def seen(self) -> Snapshot:
        """What the handle has last shown, brought to its own last commit; the newest at first."""
        with self._lock:
            if self._follower.latest is None or self._behind:
                self._refresh()
                self._moved = None
            shown = self._shown
            assert shown is not None
            return self._with_own(shown) if self._ahead(shown) else shown

    def _ahead(self, shown: Snapshot) -> bool:
        """Whether the handle has committed since, on top of what it has read."""
        ahead = self._head is not None and self._head.version > shown.version
        return ahead and shown is self._follower.latest

    def _with_own(self, latest: Snapshot) -> Snapshot:
        """The snapshot after the handle's own commits, if nothing but those came after it."""
        assert self._head is not None
        between = self._head.version - latest.version
        versions = list(self._own.values())[-between:]
        if versions != list(range(latest.version + 1, self._head.version + 1)):
            return latest
        own = {version: txn_id for txn_id, version in list(self._own.items())[-between:]}
        self._moved = None
        try:
            found = self._follower.advance(self._head.version)
            if all(found.state.recent.txn_id(version) == own[version] for version in versions):
                return found
        except FileNotFoundError:  # they were cleaned up, or the table was dropped
            pass
        version, found = self._head.version, self._follower.newest()
        self._head = self._mark = None
        same = found.version == version and found.metadata.id == latest.metadata.id
        return found if same else latest

    def append(self, prepare: Prepare) -> CommitResult:
        """Commit what only needs to know the head of the log."""
        with self._lock:
            head = self._newest_head()
        return self._run(head, prepare)

    def change(
        self, prepare: Prepare, base: Snapshot | None = None, *, mends: bool = False
    ) -> CommitResult:
        """Commit what was decided by looking at the table, as `base` shows it.

        What `mends` the table's settings is not kept from it by a wrong one.
        """
        with self._lock:
            snapshot = self.seen() if base is None else base
            follower = self._follower
            gone = snapshot is self._shown and follower.dropped()
            newest = self._newest_head()
            if gone or not self._leads_to(snapshot, newest):
                self._refused_at = follower.looks
                raise MetadataChanged(
                    f"{self.store.root} is no longer the table whose version {snapshot.version}"
                    " this commit builds on: it was dropped, and another is in its place.",
                    next="Look at the table again and decide anew.",
                    version=snapshot.version,
                )
        return self._run(head_of(snapshot.state), prepare, newest, mends=mends)

    def _leads_to(self, snapshot: Snapshot, head: Head) -> bool:
        """Whether a snapshot is of the log that ends with this head."""
        if snapshot.metadata.id != head.metadata.id:
            return False
        if snapshot.version <= head.version:
            return True
        key = f"{LOG}/{commit_name(snapshot.version)}"  # a listing may lag behind
        return self.store.find_many([key])[0] is not None

    def state(self, head: Head) -> State:
        """The state at a head."""
        latest = self._follower.latest
        if latest is None or latest.version < head.version:
            with self._lock:
                latest = self._go_on()
        if latest.version != head.version:
            latest = self._follower.at(head.version)
        return latest.state

    def _newest_head(self) -> Head:
        """The newest head that is known, known again if it has been long or looks changed."""
        follower = self._follower
        seen = follower.asked if self._head is None else max(self._head.observed, follower.asked)
        age = self.clock.seconds() - seen
        old = follower.latest is None or self._behind or age > self._fresh() or follower.odd
        if (
            old
            or not (follower.stands(self._mark) if self._mark else follower.unchanged())
            or self._overtaken()
        ):
            self._refresh()
        latest = follower.latest
        assert latest is not None
        self._check_whole(latest)
        if self._head is None or latest.version >= self._head.version:
            self._head = head_of(latest.state, follower.asked)
        if not self._ready:
            self._head = self._get_ready(self._head)
        if self._check_next(self._head):
            return self._head
        self._refresh()  # commits were deleted while this handle looked
        latest = follower.latest
        assert latest is not None
        self._check_whole(latest)
        self._head = head_of(latest.state, follower.asked)
        return self._head

    def _overtaken(self) -> bool:
        """Whether somebody may have cleared away what follows the newest head that is known."""
        latest = self._follower.latest
        assert latest is not None
        known = latest.version if self._head is None else max(self._head.version, latest.version)
        return self._follower.overtaken(known)

    def _fresh(self) -> float:
        """How long a head may be built on without looking at the log again.

        A put that takes longer than what is left of `TRUST_SECONDS` has to be verified.
        """
        # Where looking costs a request, a table that was dropped is noticed no earlier than this.
        return TRUST_SECONDS / 2 if self.store.cheap_stat else _UNSEEN_SECONDS

    def _refresh(self) -> None:
        self._go_on()
        self._head = self._mark = None

    @property
    def _behind(self) -> bool:
        """Whether nobody has looked at the table since a conflict."""
        return self._follower.looks == self._refused_at

    def _check_whole(self, latest: Snapshot) -> None:
        if latest.report.gap is not None:
            raise _gap(self._follower.store.root, latest.report.gap)

    def _check_next(self, head: Head) -> bool:
        """Refuse a gap where the next commit would go: a writer that counts ahead leaves one.

        False if the next commit is not missing but was deleted by clean-up.
        """
        store, version = self._follower.store, head.version
        if not store.cheap_stat:
            return True
        for later in range(version + 2, version + 2 + _AHEAD):
            if store.stat(f"{LOG}/{commit_name(later)}") is None:
                continue
            if store.stat(f"{LOG}/{commit_name(version + 1)}") is None:  # asked after the other
                if version + 1 in list_retired(store):
                    return False
                raise _gap(store.root, Gap(version + 1, later))
            return True
        return True

    def _get_ready(self, head: Head) -> Head:
        """Once for a handle: can this store be trusted, and is this all there is of the log."""
        store = self._follower.store
        store.check_writable()
        found = store.find_many([f"{LOG}/{POINTER}"])[0]
        pointed = -1 if found is None else _pointed(found)
        if pointed > head.version:  # others may have gone on since this handle has looked
            latest = self._go_on()
            self._check_whole(latest)
            head = head_of(latest.state, self._follower.asked)
        if pointed > head.version:
            raise LogCorrupt(
                f"the pointer speaks of version {pointed}, and the log ends with {head.version}:"
                " commits or a checkpoint are missing.",
                next="Restore them from a backup, or delete the pointer if it is wrong.",
                file=f"{LOG}/{POINTER}",
                version=head.version,
            )
        self._ready = True
        return head

    def writer(self, config: Config) -> Writer:
        """What a transaction needs of the world."""
        store = self._follower.store

        def rivals(
            first: int,
            commits: Sequence[bytes],
            head: Head,
            files: bool,  # noqa: FBT001 -- the one flag of a private function
        ) -> Iterator[Rival]:
            limit = config.max_decompressed_bytes
            return read_rivals(first, commits, head, store.root, limit, files=files)

        def permit(head: Head) -> None:
            check_writable(head.protocol, store.root)

        verify = config.commit_verify == "always" or not self.clock.counts_suspension

        def unretired(first: int, last: int) -> bool:
            return not list_retired(store).overlaps(first, last)

        def undeleted(first: int, last: int, observed: float) -> bool:
            if verify or self.clock.seconds() - observed > TRUST_SECONDS:
                return False
            if not store.cheap_stat:
                return True
            # Clean-up by arrowlog leaves a record of whatever it deletes. Other programs do not:
            # what they delete is below a checkpoint, which their pointer names.
            return unretired(first, last) and not self._follower.pointed_beyond(first - 1)

        return Writer(
            store,
            config,
            self.clock,
            self._pace,
            rivals,
            permit,
            verify,
            undeleted,
            unretired,
            self._reobserve,
            self._recent,
            self._own,
        )

    def _run(
        self, head: Head, prepare: Prepare, newest: Head | None = None, *, mends: bool = False
    ) -> CommitResult:
        config = self._follower.config if mends else self.config(head)
        if newest is not None and newest.version == head.version:
            head = replace(head, observed=newest.observed)
        writer = self.writer(config)
        try:
            result, after = run(writer, head, prepare, newest)
        except CommitConflict as conflict:
            raise self.refused(conflict) from None
        if not result.duplicate:
            self._note(result, after)
            if self._landed is not None:
                with suppress(
                    InvalidRequest
                ):  # a rival's wrong property is no fault of this commit
                    config = config if after.metadata is head.metadata else self.config(after)
                self._landed(result.version, self._follower.latest, config)
        return result

    def _note(self, result: CommitResult, head: Head) -> None:
        with self._lock:
            self._own[result.txn_id] = result.version
            if len(self._own) > _OWN_MAX:
                del self._own[next(iter(self._own))]
            self._follower.outdated = True
            if self._head is None or head.version > self._head.version:
                self._head = head
                try:
                    self._mark = self._follower.mark_of(head.version, commit_name(head.version))
                except StoreUnavailable:  # the commit stands; only the next one has to look again
                    self._head = self._mark = None


def _gap(root: str, gap: Gap) -> LogCorrupt:
    return LogCorrupt(
        f"{root} cannot be written: {gap}. A commit in the gap would bring version {gap.next} back"
        " to life.",
        next="Restore the missing file from a backup, or move the later ones away.",
        version=gap.missing,
    )


def head_of(state: State, observed: float = float("-inf")) -> Head:
    """What a writer has to know of a state; `observed` is when the log went no further."""
    return Head(
        state.version,
        state.protocol,
        state.metadata,
        state.schema,
        state.timestamp,
        state.txns,
        observed,
    )


def _pointed(data: bytes) -> int:
    """The version a pointer speaks of; -1 if nobody can tell."""
    try:
        version = json.loads(data)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1
    return version if isinstance(version, int) and not isinstance(version, bool) else -1
