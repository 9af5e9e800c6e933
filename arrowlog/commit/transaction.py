"""One commit: written as the next version of the log, exactly once.

A version is one file, `_transaction_log/<version>.json`, which the store creates for one writer
only. The store's answer may be lost, or may be the answer to a retry of the same request, so it is
not the last word: the commit's `txnId`, read back, is. Own id: done. Nothing there: the same
version again. Another's: check for conflicts, then the next version.

A version that was deleted by clean-up is empty again, and a put there succeeds without ever being
read. So a writer acknowledges a put only if the version cannot have been deleted since it saw the
end of the log; otherwise it asks the log whose commit that version is (decision 17). What cannot be
settled raises `CommitStateUnknown`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from arrowlog.commit.conflict import Head, Intent, Rival, after, check, check_jump
from arrowlog.commit.put import PUTS_MAX, Progress, Putter, put_commit, unsettled
from arrowlog.errors import (
    ArrowlogError,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.log.encode import commit
from arrowlog.log.envelope import wrap
from arrowlog.log.names import LOG, commit_name, read_listing
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.commit.pace import Clock
    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata
    from arrowlog.log.recent import RecentCommits

_SECOND_WIND_SECONDS = 10.0
_KNOWN_MAX = 256  # commits that are read at a time
ENGINE = "arrowlog"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a commit does. `lines` are its actions as they will stand in the log."""

    operation: str
    lines: Sequence[bytes]
    intent: Intent = field(default_factory=Intent)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    txn: tuple[str, int] | None = None
    user_metadata: Any = None
    protocol: Any = None  # what they become, if they change
    metadata: tuple[Metadata, pa.Schema] | None = None
    rebuild: bool = False  # its content follows from the state: make it anew after every race


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a commit.

    `duplicate`: the application's step was in the log already, at `version`; nothing was written.
    """

    version: int
    attempts: int
    operation_metrics: Mapping[str, int]
    operation: str = ""
    timestamp: int | None = None
    txn_id: str | None = None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Writer(Putter):
    """What a transaction needs of the world."""

    rivals: Callable[[int, Sequence[bytes], Head, bool], Iterable[Rival]]  # with their files?
    permit: Callable[[Head], None]  # refuse a protocol we may not write
    verify: bool  # ask the log about every put, because the clock may miss suspended time
    undeleted: Callable[[int, int, float], bool]  # surely no version of a range, since a moment
    unretired: Callable[[int, int], bool]  # whether no record speaks of a version of a range
    reobserve: Callable[[], tuple[Head, RecentCommits]]  # the newest version, by a new listing
    recent: Callable[[], RecentCommits]  # whose commits the last versions are that were read
    own: Container[str | None] = ()  # ids of commits made by the same hand before


def run(
    writer: Writer, head: Head, prepare: Callable[[Head], Draft], newest: Head | None = None
) -> tuple[CommitResult, Head]:
    """Commit what `prepare` makes of a head; the result, and the head that it has become.

    Versions up to `newest` are known to be there: they are read, not raced.
    """
    clock, config = writer.clock, writer.config
    work = Progress(clock.new_id(), clock.seconds() + config.commit_timeout_seconds)
    writer.permit(head)
    transaction = _Transaction(writer, work, prepare, head, prepare(head), newest)
    _pause(clock, writer.pace.wait(clock))
    for _ in range(config.commit_max_attempts):
        result = _duplicate(transaction.draft, transaction.head, work) or transaction.attempt()
        if result is not None:
            return result, transaction.head
        if clock.seconds() >= work.deadline:
            break
    raise CommitConflict(
        f"Other writers were faster {work.losses} times; the commit is not in the log.",
        next="Try again, or raise commit.timeoutSeconds.",
        version=transaction.head.version,
        txn_id=work.txn_id,
    )


@dataclass(slots=True)
class _Transaction:
    """A commit on its way: the head it builds on, and what it writes there.

    `newest` is a later head that was seen; the commits up to it are read before anything is put.
    """

    writer: Writer
    work: Progress
    prepare: Callable[[Head], Draft]
    head: Head
    draft: Draft
    newest: Head | None

    def attempt(self) -> CommitResult | None:
        """Try the next version; None if others have it, and the head has moved behind theirs."""
        if self.newest is not None and self.newest.version > self.head.version:
            return self._rebase(_read_known(self.writer, self.head, self.newest, self.draft.intent))
        version, clock = self.head.version + 1, self.writer.clock
        stamp = max(clock.now_ms(), (self.head.timestamp or 0) + 1)
        self.work.stamps[version] = stamp
        data = _pack(_plain(self.draft, self.head, self.work, stamp), self.writer.config)
        try:
            taken = put_commit(self.writer, self.work, version, data)
        except CommitStateUnknown as unknown:
            return self._found_after_all(unknown)
        if not taken and _counts(self.writer, self.work, self.head, data):
            return self._landed(version)
        self.work.losses += 1
        rivals = _read_taken(self.writer, self.head, taken, self.draft.intent)
        return self._start_over() if rivals is None else self._rebase(rivals)

    def _landed(self, version: int, stamp: int | None = None) -> CommitResult:
        """The commit is in the log; `stamp` is the time it has there, if it was read."""
        self.writer.pace.raced(self.work.losses, self.writer.clock.seconds())
        stamp = self.work.stamps[version] if stamp is None else stamp
        result, after_it = _done(self.draft, self.head, self.work, version, stamp)
        if version > self.head.version:
            self.head = after_it
        return result

    def _found_after_all(self, unknown: CommitStateUnknown) -> CommitResult:
        """The commit, if the log has it: a suspended writer may have missed it come and go."""
        try:
            newest, recent = self.writer.reobserve()
        except (ArrowlogError, FileNotFoundError):
            raise unknown from None
        landed = recent.version_of(self.work.txn_id)
        if landed is None:
            raise unknown
        result = self._landed(landed)
        self.head = newest
        return result

    def _rebase(self, rivals: Sequence[Rival]) -> CommitResult | None:
        """Move behind the winning commits, or raise the conflict with one of them."""
        stale = self.draft.rebuild
        for rival in rivals:
            if rival.txn_id == self.work.txn_id:  # the answer was lost, the commit was not
                return self._landed(rival.version, rival.timestamp)
            later = after(self.head, rival)
            duplicate = _duplicate(self.draft, later, self.work)
            if duplicate is not None:  # the same application transaction, committed before
                self.head = later
                return duplicate
            stale |= _touches(self.draft.intent, self.head, rival, self.writer.own)
            self.head = later
        self.work.pending = None  # every version that it was put at is known to be another's
        newest = self.newest
        if newest is not None and newest.version == self.head.version:
            self.head = replace(self.head, observed=max(self.head.observed, newest.observed))
        self.writer.permit(self.head)
        if stale:
            self.draft = self.prepare(self.head)
        return None

    def _start_over(self) -> CommitResult | None:
        """Build on the newest version: what followed the head may have been deleted.

        Raises what stands against it; `CommitStateUnknown` if this commit may be in the log.
        """
        newest, recent = _look_again(self.writer, self.work, self.head)
        # A process that was suspended has not used its time: it gets some for another attempt.
        soon = self.writer.clock.seconds() + _SECOND_WIND_SECONDS
        self.work.deadline = max(self.work.deadline, soon)
        landed = recent.version_of(self.work.txn_id)
        if landed is not None:
            result = self._landed(landed)
            self.head = newest
            return result
        pending = self.work.pending
        if pending is not None and pending < recent.first:
            why = f"the log is at version {newest.version}, and no longer says whose it is"
            raise unsettled(self.work, pending, why)
        self.newest = newest
        if self.draft.intent.looks_at_files:
            return None  # the commits in between are read, if they are still there
        conflict = check_jump(self.draft.intent, self.head, newest)
        if conflict is not None:
            raise conflict
        self.writer.permit(newest)
        self.head = newest
        self.draft = self.prepare(newest)
        return None


def _read_taken(
    writer: Writer, head: Head, taken: Sequence[bytes], intent: Intent
) -> list[Rival] | None:
    """The winning commits behind a head; None if they may be files that do not count.

    An empty `taken` is a put of our own that does not count.
    """
    if not taken:
        return None
    first = head.version + 1
    rivals = list(writer.rivals(first, taken, head, intent.looks_at_files))
    sound = writer.undeleted(first, first + len(taken) - 1, head.observed)
    return rivals if sound else None


def _counts(writer: Writer, work: Progress, head: Head, data: bytes) -> bool:
    """Whether a put that succeeded is the commit that readers see at its version.

    If the version was deleted before the put arrived, it is not, and the file is withdrawn: it will
    never be read, and nobody who finds it should have to wonder.
    """
    version, clock = head.version + 1, writer.clock
    if work.pending is None:
        work.pending = version
    with suppress(StoreUnavailable):  # the commit may stand: the log is asked next
        if not writer.verify and writer.undeleted(version, version, head.observed):
            return True
    for number in range(PUTS_MAX):
        try:
            newest, recent = writer.reobserve()
        except (ArrowlogError, FileNotFoundError) as error:
            raise unsettled(work, version, str(error)) from None
        if recent.knows(version):
            if recent.txn_id(version) == work.txn_id:
                return True
            _withdraw(writer, version, data)
            work.pending = None  # settled: it does not count
            return False
        if newest.version >= version:
            why = f"the log is at version {newest.version}, and no longer says whose it is"
            raise unsettled(work, version, why)
        if clock.seconds() >= work.deadline:
            break
        clock.sleep(clock.uniform() * min(0.05 * 2**number, 2.0))  # the listing is behind
    raise unsettled(work, version, "the store's listings do not show it")


def _withdraw(writer: Writer, version: int, data: bytes) -> None:
    """Delete our file at a version that is another's; failing that, readers ignore it."""
    key = f"{LOG}/{commit_name(version)}"
    with suppress(StoreUnavailable):
        if writer.store.find_many([key])[0] == data:
            writer.store.delete([key])


def _look_again(writer: Writer, work: Progress, head: Head) -> tuple[Head, RecentCommits]:
    """The newest head by a new look at the log, not older than one that was read before."""
    clock = writer.clock
    for number in range(PUTS_MAX):
        try:
            newest, recent = writer.reobserve()
        except (ArrowlogError, FileNotFoundError) as error:
            if work.pending is None:
                raise
            raise unsettled(work, work.pending, str(error)) from None
        if newest.version >= head.version:
            return newest, recent
        if clock.seconds() >= work.deadline:
            break
        clock.sleep(clock.uniform() * min(0.05 * 2**number, 2.0))
    why = f"version {head.version} was read, and the store's listings do not show it"
    if work.pending is not None:
        raise unsettled(work, work.pending, why)
    raise StoreUnavailable(f"The commit was not made: {why}.", next="Try again.")


def _touches(intent: Intent, head: Head, rival: Rival, own: Container[str | None]) -> bool:
    """Whether the commit must be made anew after this one; what does not go with it is raised."""
    conflict = check(intent, head, rival)
    if conflict is None:
        return False
    if intent.exact or rival.txn_id not in own:
        raise conflict
    return True  # the same hand did it, and knows


def _pause(clock: Clock, seconds: float) -> None:
    if seconds > 0:
        clock.sleep(seconds)


def _duplicate(draft: Draft, head: Head, work: Progress) -> CommitResult | None:
    """The step's earlier commit, if the application has taken it before."""
    known = None if draft.txn is None else head.txns.get(draft.txn[0])
    if draft.txn is None or known is None or known[0] < draft.txn[1]:
        return None
    return CommitResult(
        version=known[1],
        attempts=work.attempts,
        operation_metrics={},
        operation=draft.operation,
        duplicate=True,
    )


def _done(
    draft: Draft, head: Head, work: Progress, version: int, stamp: int
) -> tuple[CommitResult, Head]:
    result = CommitResult(
        version=version,
        attempts=work.attempts,
        operation_metrics=dict(draft.metrics),
        operation=draft.operation,
        timestamp=stamp,
        txn_id=work.txn_id,
    )
    txns = head.txns
    if draft.txn is not None:
        txns = {**txns, draft.txn[0]: (draft.txn[1], version)}
    metadata, schema = draft.metadata or (head.metadata, head.schema)
    protocol = draft.protocol or head.protocol
    # The next version was empty when this one was applied, which is after the put was begun.
    observed = max(head.observed, work.put_at)
    return result, Head(version, protocol, metadata, schema, stamp, txns, observed)


def _info(draft: Draft, head: Head, work: Progress, stamp: int) -> dict[str, Any]:
    txn = None if draft.txn is None else {"appId": draft.txn[0], "version": draft.txn[1]}
    return {
        "txnId": work.txn_id,
        "timestamp": stamp,
        "operation": draft.operation,
        "operationParameters": dict(draft.parameters),
        "operationMetrics": dict(draft.metrics),
        "readVersion": head.version,
        "engineInfo": f"{ENGINE}/{__version__}",
        "userMetadata": draft.user_metadata,
        "txn": txn,
    }


def _plain(draft: Draft, head: Head, work: Progress, stamp: int) -> bytes:
    try:
        return commit(_info(draft, head, work, stamp), draft.lines)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # of what a user says
        raise InvalidRequest(
            f"The commit cannot be written as JSON: {error}.",
            next="Use text, numbers, maps and lists in operation, parameters and user_metadata.",
        ) from None


def _pack(plain: bytes, config: Config) -> bytes:
    codec = config.compression_codec if config.compression_enabled else "none"
    return wrap(plain, codec, config.compression_gzip_level)


def _read_known(writer: Writer, head: Head, newest: Head, intent: Intent) -> list[Rival]:
    """The winning commits between a head and a newer one, some at a time."""
    first, last = head.version + 1, min(newest.version, head.version + _KNOWN_MAX)
    keys = [f"{LOG}/{commit_name(version)}" for version in range(first, last + 1)]
    found = [data for data in writer.store.find_many(keys) if data is not None]
    if len(found) < len(keys):
        names = read_listing(writer.store.list_from(LOG)).commits  # other programs' widths
        keys = [f"{LOG}/{names[version]}" for version in range(first, last + 1) if version in names]
        found = [data for data in writer.store.find_many(keys) if data is not None]
    if len(found) == last + 1 - first:
        rivals = list(writer.rivals(first, found, head, intent.looks_at_files))
        if _genuine(writer, rivals):
            return rivals
    raise CommitConflict(
        f"The table has come to version {newest.version}, and commits after version {first - 1},"
        " which this one builds on, were cleaned up: it cannot be told whether they go together.",
        next="Call refresh(), look at the table again and decide anew.",
        version=first - 1,
    )


def _genuine(writer: Writer, rivals: Sequence[Rival]) -> bool:
    """Whether commit files are the commits that count at their versions."""
    recent = writer.recent()
    known = [rival for rival in rivals if recent.knows(rival.version)]
    if any(recent.txn_id(rival.version) != rival.txn_id for rival in known):
        return False
    if len(known) == len(rivals) and all(rival.txn_id is not None for rival in known):
        return True
    return writer.unretired(rivals[0].version, rivals[-1].version)
