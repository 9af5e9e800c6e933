"""One file at one version of the log: put it there, or find out what is there instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrowlog.errors import CommitStateUnknown, StoreUnavailable
from arrowlog.log.names import LOG, commit_name
from arrowlog.log.store import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.commit.pace import Clock, Pace
    from arrowlog.config import Config
    from arrowlog.log.store import Store

_WIDTH = 4  # commits that are asked for at a time after a lost race
_WIDTH_MAX = 64  # the same, for who is far behind
PUTS_MAX = 1000  # into one slot; the deadline ends it long before


@dataclass(frozen=True, slots=True)
class Putter:
    """What it takes to put a file into the log."""

    store: Store
    config: Config
    clock: Clock
    pace: Pace


@dataclass(slots=True)
class Progress:
    """A transaction in progress."""

    txn_id: str
    deadline: float
    attempts: int = 0
    losses: int = 0
    behind: int = 0  # commits read since it last saw the end of the log
    unknown: bool = False
    pending: int | None = None  # the lowest version at which a put may have landed unseen
    put_at: float = float("-inf")  # when the first put of the last version was begun
    stamps: dict[int, int] = field(default_factory=dict)  # the time given for each version


def put_commit(writer: Putter, work: Progress, version: int, data: bytes) -> list[bytes]:
    """Put the commit into a slot. Nothing: it is ours. Else what is there, and what follows."""
    clock, pace = writer.clock, writer.pace
    key = f"{LOG}/{commit_name(version)}"
    work.unknown = False  # what was unknown of an earlier slot was settled by who has it now
    for number in range(PUTS_MAX):
        started = clock.seconds()
        work.put_at = work.put_at if number else started
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
        if work.unknown and work.pending is None:
            work.pending = version
        if outcome is not Outcome.NOT_APPLIED:
            found = _read_back(writer, work, version)
            if found:
                return found
        clock.sleep(clock.uniform() * min(0.05 * 2**number, 2.0))
    raise _given_up(work, version, key)


def _read_back(writer: Putter, work: Progress, version: int) -> list[bytes]:
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
    work: Progress, version: int, key: str, error: Exception | None = None
) -> CommitStateUnknown | StoreUnavailable:
    why = "" if error is None else f" ({error})"
    if work.unknown:
        return unsettled(work, version, f"the store's answer was lost{why}")
    return StoreUnavailable(
        f"{key} could not be written in time{why}; the commit is not in the log.",
        next="Check the store and try again.",
    )


def unsettled(work: Progress, version: int, why: str) -> CommitStateUnknown:
    """The error for a commit of which it cannot be told whether it landed."""
    return CommitStateUnknown(
        f"It cannot be told whether the commit is in the log as version {version}: {why}.",
        next=f"Look in the table's history for the txnId {work.txn_id}, or for the rows; commit"
        " again only if they are not there.",
        version=version,
        txn_id=work.txn_id,
    )


def create(
    writer: Putter, data: bytes, table_id: str, id_of: Callable[[bytes], str | None]
) -> bool:
    """Put version 0; False if somebody else's is there. The table's id tells whose it is."""
    work = Progress(table_id, writer.clock.seconds() + writer.config.commit_timeout_seconds)
    found = put_commit(writer, work, 0, data)
    return not found or id_of(found[0]) == table_id
