"""Put a commit file at one version of the log, or read the commits that are there instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrowlog.errors import CommitStateUnknown, StoreUnavailable
from arrowlog.formats.indextables import LOG_FOLDER, commit_name
from arrowlog.storage import PutOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.config import Config
    from arrowlog.storage import Store
    from arrowlog.transaction.backoff import Clock, ContentionBackoff

# Commits read in parallel after a lost race. One at a time nearly halves the commit rate of 16
# contending writers; two at a time landed fewer commits per second than four (decision 5).
_READ_AHEAD = 4
# The same for a writer that is far behind: it needs few round trips to reach the end of the log.
_READ_AHEAD_MAX = 64
# Upper bound of the retry loops. Their deadline, commit.timeoutSeconds, ends them long before.
MAX_PUTS_PER_VERSION = 1000
_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PutContext:
    """What putting a commit file requires: store, settings, clock and contention backoff."""

    store: Store
    config: Config
    clock: Clock
    backoff: ContentionBackoff


@dataclass(slots=True)
class CommitProgress:
    """The mutable state of one transaction across its attempts.

    Attributes:
        txn_id: the unique id of the commit; for version 0, the id of the table.
        deadline: time by the writer's clock after which no further put is sent.
        attempts: puts sent so far.
        losses: races lost so far.
        behind: commits read since the end of the log was last seen.
        unknown: an earlier put at the current version may have been applied.
        pending: the lowest version at which a put may have landed without the writer knowing.
        put_at: when the first put at the current version began.
        stamps: the commit timestamp sent for each version.
    """

    txn_id: str
    deadline: float
    attempts: int = 0
    losses: int = 0
    behind: int = 0
    unknown: bool = False
    pending: int | None = None
    put_started_at: float = float("-inf")
    timestamps: dict[int, int] = field(default_factory=dict)


def put_commit(
    writer: PutContext, progress: CommitProgress, version: int, data: bytes
) -> list[bytes]:
    """Put a commit file at a version, retrying until the outcome is known.

    A put whose outcome is unknown is read back. If the version is still empty, the same version is
    tried again, never the next one: otherwise a delayed put would commit twice.

    Returns:
        [] if this writer's put created the file. Otherwise the file at the version and its
        successors, as far as they were read; they include this writer's own file if an earlier put
        landed and its response was lost.

    Raises:
        CommitStateUnknown: the deadline passed, or the store failed, after a put whose outcome is
            unknown.
        StoreUnavailable: the same, but no put was applied.
    """
    clock, backoff = writer.clock, writer.backoff
    key = f"{LOG_FOLDER}/{commit_name(version)}"
    # The winner of an earlier version settled what was unknown about this writer's puts there.
    progress.unknown = False
    for retry in range(MAX_PUTS_PER_VERSION):
        started = clock.seconds()
        progress.put_started_at = progress.put_started_at if retry else started
        if started >= progress.deadline and retry:
            break
        progress.attempts += 1
        try:
            outcome = writer.store.put_if_absent(key, data)
        except StoreUnavailable as error:  # this put was not applied; an earlier one may have been
            if progress.unknown:
                raise _gave_up(progress, version, key, error) from None
            raise
        backoff.record_put(clock.seconds() - started)
        if outcome is PutOutcome.DONE:
            return []
        progress.unknown |= outcome is not PutOutcome.NOT_APPLIED
        if progress.unknown and progress.pending is None:
            progress.pending = version
        if outcome is not PutOutcome.NOT_APPLIED:
            commit_files = _read_back(writer, progress, version)
            if commit_files:
                return commit_files
        clock.sleep(backoff_seconds(clock, retry))
    raise _gave_up(progress, version, key)


def backoff_seconds(clock: Clock, retry: int) -> float:
    """Return how long to wait before a retry: exponential backoff with full jitter."""
    return clock.uniform() * min(_BACKOFF_FIRST_SECONDS * 2.0**retry, _BACKOFF_MAX_SECONDS)


def _read_back(writer: PutContext, progress: CommitProgress, version: int) -> list[bytes]:
    """Read the commit files from a version on, up to the first missing one.

    The number of files requested at once grows with the races lost, up to `_READ_AHEAD`. A writer
    that has read many commits without seeing the end of the log requests half as many again.
    """
    width = max(min(1 + progress.losses, _READ_AHEAD), min(progress.behind // 2, _READ_AHEAD_MAX))
    keys = [f"{LOG_FOLDER}/{commit_name(version + ahead)}" for ahead in range(width)]
    try:
        files = writer.store.find_many(keys)
    except StoreUnavailable as error:
        raise _gave_up(progress, version, keys[0], error) from None
    count = next((n for n, data in enumerate(files) if data is None), len(files))
    progress.behind = progress.behind + count if count == width else 0
    return [data for data in files[:count] if data is not None]


def _gave_up(
    progress: CommitProgress, version: int, key: str, error: Exception | None = None
) -> CommitStateUnknown | StoreUnavailable:
    cause = "" if error is None else f" ({error})"
    if progress.unknown:
        return commit_state_unknown(progress, version, f"the store's response was lost{cause}")
    return StoreUnavailable(
        f"{key} could not be written in time{cause}; the commit is not in the log.",
        next="Check the store and try again.",
    )


def commit_state_unknown(progress: CommitProgress, version: int, reason: str) -> CommitStateUnknown:
    """Return the error for a commit that may or may not be in the log."""
    return CommitStateUnknown(
        f"It is unknown whether the commit is in the log as version {version}: {reason}.",
        next=f"Search the table's history for the txnId {progress.txn_id}, or the table for the"
        " rows; commit again only if they are missing.",
        version=version,
        txn_id=progress.txn_id,
    )


def put_first_version(
    writer: PutContext, data: bytes, table_id: str, id_of: Callable[[bytes], str | None]
) -> bool:
    """Put version 0 of a new table; return False if another writer created it.

    Version 0 has no `commitInfo` and hence no `txnId`: the table id, extracted by `id_of`,
    identifies the writer.
    """
    deadline = writer.clock.seconds() + writer.config.commit_timeout_seconds
    commit_files = put_commit(writer, CommitProgress(table_id, deadline), 0, data)
    return not commit_files or id_of(commit_files[0]) == table_id
