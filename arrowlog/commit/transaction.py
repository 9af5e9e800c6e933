"""One commit: put into the next free slot of the log, exactly once.

A slot is `_transaction_log/<version>.json`, and the store lets one writer make it. The answer may
get lost, or come from a retry of our own request, so what the store says is not the last word: the
commit's `txnId`, read back, is. Own id: done. Nothing there: the same slot again. Somebody else's:
check for conflicts, then the next slot. What nobody can tell by the deadline is
`CommitStateUnknown`; nothing is ever deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from arrowlog.commit.conflict import Head, Intent, Rival, after, check
from arrowlog.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.log.encode import commit
from arrowlog.log.envelope import wrap
from arrowlog.log.names import LOG, commit_name, read_listing
from arrowlog.log.store import Outcome
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata
    from arrowlog.log.store import Store

_WIDTH = 4  # commits that are asked for at a time after a lost race
_WIDTH_MAX = 64  # the same, for who is far behind
_POLITE_SECONDS = 5.0
_WAIT_SECONDS_MAX = 0.5
_KNOWN_MAX = 256  # commits that are read at a time
_PUTS_MAX = 1000  # into one slot; the deadline ends it long before
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


class Clock(Protocol):
    """Time and chance, handed in."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def seconds(self) -> float:
        """Seconds that only go forward."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def uniform(self) -> float:
        """A number from 0 to 1."""

    def new_id(self) -> str:
        """A text nobody else has."""


@dataclass(slots=True)
class Pace:
    """How crowded the log is, as one writer sees it: how long a put takes, which races were lost.

    A writer that has just won knows the next free slot at once; those that lost must read first,
    and would lose to it for ever. So who has met others lately now and then lets them go first, the
    more often, the larger the crowd. The numbers come from a simulation of 2 to 16 writers at one
    round trip a put: 9 of 10 of what one writer alone could do, and nobody waits long.
    """

    put_seconds: float = 0.0
    lost_at: float = float("-inf")
    crowd: float = 0.0

    def took(self, seconds: float) -> None:
        """A put took so long."""
        self.put_seconds = 0.8 * self.put_seconds + 0.2 * seconds if self.put_seconds else seconds

    def raced(self, losses: int, now: float) -> None:
        """A commit came to its end after so many lost races."""
        self.crowd = max(float(losses), 0.9 * self.crowd + 0.1 * losses)
        if losses:
            self.lost_at = now

    def wait(self, clock: Clock) -> float:
        """How long to wait before a commit's first put."""
        if clock.seconds() - self.lost_at > _POLITE_SECONDS:
            return 0.0
        if clock.uniform() > min(0.1 + self.crowd / 120, 0.6):
            return 0.0
        return min(2 * self.put_seconds * (0.75 + clock.uniform() / 2), _WAIT_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Writer:
    """What a transaction needs of the world."""

    store: Store
    config: Config
    clock: Clock
    pace: Pace
    rivals: Callable[[int, Sequence[bytes], Head, bool], Iterable[Rival]]  # with their files?
    permit: Callable[[Head], None]  # refuse a protocol we may not write
    own: Container[str | None] = ()  # ids of commits made by the same hand before


@dataclass(slots=True)
class _Try:
    """A transaction on its way."""

    txn_id: str
    deadline: float
    attempts: int = 0
    losses: int = 0
    behind: int = 0  # commits read since it last saw the end of the log
    unknown: bool = False


def run(
    writer: Writer, head: Head, prepare: Callable[[Head], Draft], newest: int = -1
) -> tuple[CommitResult, Head]:
    """Commit what `prepare` makes of a head; the result, and the head that it has become.

    Versions up to `newest` are known to be there: they are read, not raced.
    """
    clock, config = writer.clock, writer.config
    work = _Try(clock.new_id(), clock.seconds() + config.commit_timeout_seconds)
    writer.permit(head)
    draft = prepare(head)
    _pause(clock, writer.pace.wait(clock))
    for _ in range(config.commit_max_attempts):
        duplicate = _duplicate(draft, head, work)
        if duplicate is not None:
            return duplicate, head
        stamp = max(clock.now_ms(), (head.timestamp or 0) + 1)
        if newest > head.version:
            taken = _read_known(writer, head.version + 1, newest)
        else:
            data = _pack(_plain(draft, head, work, stamp), config)
            taken = _put(writer, work, head.version + 1, data)
            if not taken:
                writer.pace.raced(work.losses, clock.seconds())
                return _done(draft, head, work, stamp)
            work.losses += 1
        files, stale = draft.intent.looks_at_files, draft.rebuild
        for rival in writer.rivals(head.version + 1, taken, head, files):
            if rival.txn_id == work.txn_id:  # the answer was lost, the commit was not
                writer.pace.raced(work.losses, clock.seconds())
                return _done(draft, head, work, rival.timestamp or stamp)
            later = after(head, rival)
            duplicate = _duplicate(draft, later, work)
            if duplicate is not None:  # the same step, taken by somebody before us
                return duplicate, later
            stale |= _touches(draft.intent, head, rival, writer.own)
            head = later
        writer.permit(head)
        if stale:
            draft = prepare(head)
        if clock.seconds() >= work.deadline:
            break
    raise CommitConflict(
        f"Other writers were faster {work.losses} times; the commit is not in the log.",
        next="Try again, or raise commit.timeoutSeconds.",
        version=head.version,
        txn_id=work.txn_id,
    )


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


def _duplicate(draft: Draft, head: Head, work: _Try) -> CommitResult | None:
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


def _done(draft: Draft, head: Head, work: _Try, stamp: int) -> tuple[CommitResult, Head]:
    version = head.version + 1
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
    return result, Head(version, draft.protocol or head.protocol, metadata, schema, stamp, txns)


def _info(draft: Draft, head: Head, work: _Try, stamp: int) -> dict[str, Any]:
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


def _plain(draft: Draft, head: Head, work: _Try, stamp: int) -> bytes:
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


def _put(writer: Writer, work: _Try, version: int, data: bytes) -> list[bytes]:
    """Put the commit into a slot. Nothing: it is ours. Else what is there, and what follows."""
    clock, pace = writer.clock, writer.pace
    key = f"{LOG}/{commit_name(version)}"
    work.unknown = False  # what was unknown of an earlier slot was settled by who has it now
    for number in range(_PUTS_MAX):
        started = clock.seconds()
        if started >= work.deadline and number:
            break
        work.attempts += 1
        try:
            outcome = writer.store.put_new(key, data)
        except StoreUnavailable as error:  # surely not applied; an earlier one may have been
            if work.unknown:
                raise _given_up(work, version, key, error) from None
            raise
        pace.took(clock.seconds() - started)
        if outcome is Outcome.DONE:
            return []
        work.unknown |= outcome is not Outcome.NOT_APPLIED
        if outcome is not Outcome.NOT_APPLIED:
            found = _read_back(writer, work, version)
            if found:
                return found
        clock.sleep(clock.uniform() * min(0.05 * 2**number, 2.0))
    raise _given_up(work, version, key)


def _read_known(writer: Writer, first: int, newest: int) -> list[bytes]:
    """Commits that came after what the writer has seen, some at a time."""
    last = min(newest, first + _KNOWN_MAX - 1)
    keys = [f"{LOG}/{commit_name(version)}" for version in range(first, last + 1)]
    found = [data for data in writer.store.find_many(keys) if data is not None]
    if len(found) < len(keys):
        names = read_listing(writer.store.list_from(LOG)).commits  # other programs' widths
        keys = [f"{LOG}/{names[version]}" for version in range(first, last + 1) if version in names]
        found = [data for data in writer.store.find_many(keys) if data is not None]
    if len(found) < last + 1 - first:
        raise CommitConflict(
            f"The table has come to version {newest}, and commits after version {first - 1}, which"
            " this one builds on, were cleaned up: nobody can tell whether they go together.",
            next="Call refresh(), look at the table again and decide anew.",
            version=first - 1,
        )
    return found


def _read_back(writer: Writer, work: _Try, version: int) -> list[bytes]:
    """The commits from a slot on: more of them, the more races were lost.

    Who has read many and not seen the end asks for half as many again, to get there in few steps.
    """
    width = max(min(1 + work.losses, _WIDTH), min(work.behind // 2, _WIDTH_MAX))
    keys = [f"{LOG}/{commit_name(version + ahead)}" for ahead in range(width)]
    try:
        found = writer.store.find_many(keys)
    except StoreUnavailable as error:
        raise _given_up(work, version, keys[0], error) from None
    count = next((n for n, data in enumerate(found) if data is None), len(found))
    work.behind = work.behind + count if count == width else 0
    return [data for data in found[:count] if data is not None]


def _given_up(
    work: _Try, version: int, key: str, error: Exception | None = None
) -> CommitStateUnknown | StoreUnavailable:
    why = "" if error is None else f" ({error})"
    if work.unknown:
        return CommitStateUnknown(
            f"Nobody can tell whether the commit is in the log as version {version}: the store's"
            f" answer was lost, and so was the question whether {key} is there{why}.",
            next=f"Look whether version {version} has the txnId {work.txn_id}; if it has not,"
            " commit again.",
            version=version,
            txn_id=work.txn_id,
        )
    return StoreUnavailable(
        f"{key} could not be written in time{why}; the commit is not in the log.",
        next="Check the store and try again.",
    )


def create(
    writer: Writer, data: bytes, table_id: str, id_of: Callable[[bytes], str | None]
) -> bool:
    """Put version 0; False if somebody else's is there. The table's id tells whose it is."""
    work = _Try(table_id, writer.clock.seconds() + writer.config.commit_timeout_seconds)
    found = _put(writer, work, 0, data)
    return not found or id_of(found[0]) == table_id
