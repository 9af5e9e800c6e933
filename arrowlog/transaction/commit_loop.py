"""The commit loop: optimistic concurrency with exactly-once semantics.

A version is one file, `_transaction_log/<version>.json`, created with put-if-absent: of all writers
that try, exactly one succeeds. The store's response can be lost, or can be the response to a retry
of the same request, so the response alone does not decide. The commit's `txnId`, read back from the
log, does: the writer's own id means the commit landed, a missing file means the same version is
tried again, and another id means a concurrent writer won the version. In that case the winning
commits are checked for conflicts and the commit is rebased onto them.

Log cleanup deletes commit files and thereby makes their versions available to put-if-absent again.
A put at such a version succeeds, but no reader ever sees it. A put is therefore acknowledged only
if its version cannot have been deleted since the writer last observed the end of the log; otherwise
the writer reads the log to find out which commit owns that version (decision 17). If the log can no
longer tell, `CommitStateUnknown` is raised.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from arrowlog.errors import (
    ArrowlogError,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    MetadataChanged,
    StoreUnavailable,
)
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LOG_FOLDER,
    STATE_PROTOCOL_VERSION,
    classify_names,
    commit_name,
    compress,
    detect_codec,
    encode_commit,
)
from arrowlog.log_lines import COMMIT_ATTEMPT, COMMIT_LOST_RACE
from arrowlog.transaction.commit_result import CommitResult, report_landed
from arrowlog.transaction.conflict_checker import (
    CONFLICT_NEXT_STEP,
    ReadSet,
    TableHead,
    WinningCommit,
    advance_head,
    check_conflict,
    check_conflict_between,
)
from arrowlog.transaction.version_race import (
    MAX_PUTS_PER_VERSION,
    CommitProgress,
    PutContext,
    backoff_seconds,
    commit_state_unknown,
    put_commit,
    read_winning_commits,
)
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import Metadata, RecentCommits
    from arrowlog.formats import Protocol as TableProtocol

# Time granted for one more attempt to a process whose deadline passed while it was suspended.
_RESUME_GRACE_SECONDS = 10.0
# Winning commits fetched per request batch when a writer catches up; bounds memory.
_WINNERS_PER_READ = 256
ENGINE_NAME = "arrowlog"
_INT32_MAX = (1 << 31) - 1
_REPLACED_REASON = "the table was dropped, and the one in its place may have received the commit"


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit's content and read set, prepared for a particular head.

    Attributes:
        operation: name of the operation, written to `commitInfo`.
        lines: the actions as encoded JSON lines.
        read_set: the read set, checked against winning commits.
        parameters: `operationParameters` of `commitInfo`.
        metrics: `operationMetrics` of `commitInfo`.
        txn: application id and version of an idempotent write.
        user_metadata: `userMetadata` of `commitInfo`.
        protocol: the new protocol if the commit changes it, else None.
        metadata: the new metadata and schema if the commit changes them, else None.
        rebuild: the content depends on the table state and must be prepared again after
            every lost race, even without a conflict.
    """

    operation: str
    lines: Sequence[bytes]
    read_set: ReadSet = field(default_factory=ReadSet)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    txn: tuple[str, int] | None = None
    user_metadata: Any = None
    protocol: Any = None
    metadata: tuple[Metadata, pa.Schema] | None = None
    rebuild: bool = False


class TransactionLog(Protocol):
    """What a transaction asks of the log besides putting and reading commits (decision 17)."""

    def reobserve(self) -> tuple[TableHead, RecentCommits]:
        """List the log again; return the newest head and the ids of the recent commits."""

    def recent(self) -> RecentCommits:
        """Return the ids of the recent commits as of the last read."""

    def is_own(self, txn_id: str | None) -> bool:
        """Whether the same session has made a commit."""

    def none_retired(self, first: int, last: int) -> bool:
        """Whether no version of a range is recorded as deleted."""

    def none_deleted(self, first: int, last: int, observed: float) -> bool:
        """Whether no version of a range can have been deleted since the log ended before it.

        `observed` is the time at which it did. Where that costs no request, the log must also be
        the same still. Always False if the clock may not count suspended time: the log has to be
        read then.
        """

    def replaced(self) -> bool:
        """Whether the commit that the head was observed by is gone, other than by cleanup.

        The table was dropped then, and another one may have been created. False if that is unknown.
        """


@dataclass(frozen=True, slots=True)
class TransactionContext(PutContext):
    """The environment of a transaction: what a put requires, and the log."""

    log: TransactionLog


def run_transaction(
    writer: TransactionContext,
    head: TableHead,
    prepare: Callable[[TableHead], PreparedCommit],
    newest: TableHead | None = None,
) -> tuple[CommitResult, TableHead]:
    """Commit what `prepare` produces for a head, rebasing onto winning commits.

    Args:
        writer: store, clock, settings and queries on the log.
        head: the head that the commit's decisions were based on.
        prepare: makes the commit for a head. Called again when a rebase invalidates its result.
        newest: a later head that was already observed. Versions up to it exist, so they are read
            and checked for conflicts without attempting to put them.

    Returns:
        The result and the head after the commit.

    Raises:
        CommitConflict: a winning commit conflicts with this one, or every attempt permitted by
            `commit.maxAttempts` and `commit.timeoutSeconds` lost its race. Not committed.
        CommitStateUnknown: it cannot be determined whether the commit is in the log.
        StoreUnavailable: the store failed. Not committed.
    """
    clock, config = writer.clock, writer.config
    started = time.perf_counter()
    progress = CommitProgress(clock.new_id(), clock.seconds() + config.commit_timeout_seconds)
    INDEXTABLES.check_writable(head.protocol, writer.store.root)
    transaction = _Transaction(writer, progress, prepare)
    base = _CommitBase(head, prepare(head), newest)
    wait_seconds = writer.backoff.wait(clock, network=not writer.store.cheap_stat)
    if wait_seconds > 0:
        clock.sleep(wait_seconds)
    for _ in range(config.commit_max_attempts):
        duplicate = _find_duplicate(base.prepared, base.head, progress)
        outcome = transaction.attempt(base) if duplicate is None else _Landed(duplicate, base.head)
        if isinstance(outcome, _Landed):
            milliseconds = (time.perf_counter() - started) * 1000
            result = replace(outcome.result, milliseconds=milliseconds)
            report_landed(writer.store, result, progress.codec)
            return result, outcome.head
        base = outcome
        if clock.seconds() >= progress.deadline:
            break
    races = "1 race" if progress.losses == 1 else f"{progress.losses} races"
    raise CommitConflict(
        f"The commit lost {races} against concurrent writers and is not in the log.",
        next="Try again, or raise commit.timeoutSeconds.",
        version=base.head.version,
        txn_id=progress.txn_id,
    )


@dataclass(frozen=True, slots=True)
class _CommitBase:
    """What an attempt builds on.

    Attributes:
        head: the head that the commit follows.
        prepared: the commit, prepared for the head.
        newest: a later head that was observed, or None. Commits up to it are read before anything
            is put.
    """

    head: TableHead
    prepared: PreparedCommit
    newest: TableHead | None = None

    @property
    def is_behind(self) -> bool:
        """Whether commits after the head are known to exist."""
        return self.newest is not None and self.newest.version > self.head.version


@dataclass(frozen=True, slots=True)
class _Landed:
    """The end of a transaction: its result, and the head after it."""

    result: CommitResult
    head: TableHead


@dataclass(frozen=True, slots=True)
class _Transaction:
    """One commit on its way into the log.

    Every attempt returns how the commit landed, or what the next attempt builds on.
    """

    writer: TransactionContext
    progress: CommitProgress
    prepare: Callable[[TableHead], PreparedCommit]

    def attempt(self, base: _CommitBase) -> _Landed | _CommitBase:
        """Try to commit the version after the head.

        If winning commits are found, the next attempt builds on them.
        """
        writer, progress, read_set = self.writer, self.progress, base.prepared.read_set
        if base.newest is not None and base.is_behind:
            return self._rebase(base, _read_commits_until(writer, base.head, base.newest, read_set))
        if has_states(base.head) and self._has_lost_to_state(base.head):
            progress.losses += 1
            return self._start_over(base)
        version, data = base.head.version + 1, self._encode_commit(base)
        if COMMIT_ATTEMPT.enabled:
            COMMIT_ATTEMPT.log(
                table=writer.store.root,
                version=version,
                operation=base.prepared.operation,
                attempt=progress.attempts + 1,
                txn_id=progress.txn_id,
            )
        try:
            commit_files = put_commit(writer, progress, version, data)
        except CommitStateUnknown as unknown:
            return self._find_landed(base, unknown)
        if not commit_files and _is_effective(writer, progress, base.head, data):
            return self._record_landed(base, version)
        progress.losses += 1
        if COMMIT_LOST_RACE.enabled:
            COMMIT_LOST_RACE.log(
                table=writer.store.root,
                version=version,
                operation=base.prepared.operation,
                losses=progress.losses,
                txn_id=progress.txn_id,
            )
        try:
            winners = _read_winners(writer, base.head, commit_files, read_set)
        except StoreUnavailable:
            if progress.pending is None:
                raise
            winners = None  # an earlier put may have landed: only the log can tell
        return self._start_over(base) if winners is None else self._rebase(base, winners)

    def _has_lost_to_state(self, head: TableHead) -> bool:
        """Whether the next version is a table state of a writer for which states are the commits.

        Raises `InvalidRequest` if such a writer made the head, unless the caller insists: it does
        not see commits, and the next one of its states would hide this commit.
        """
        store = self.writer.store
        if store.stat(f"{LOG_FOLDER}/{INDEXTABLES.state_name(head.version + 1)}") is not None:
            return True
        commit = INDEXTABLES.commit_file(head.version).key
        if not self.writer.config.allow_state_only and store.stat(commit) is None:
            raise InvalidRequest(
                f"Version {head.version} of {store.root} is a table state without a commit: its"
                " writer does not see commits, so that a commit of arrowlog may be lost to it."
                " Nothing was written.",
                next="If no such writer uses the table any more, open it with"
                ' options={"avroState.allowStateOnly": True}.',
                version=head.version,
            )
        return False

    def _encode_commit(self, base: _CommitBase) -> bytes:
        """Return the commit file of an attempt."""
        clock, config = self.writer.clock, self.writer.config
        # Commit timestamps increase strictly, whatever the writers' clocks say: time travel
        # searches them by bisection.
        timestamp = max(clock.now_ms(), (base.head.timestamp or 0) + 1)
        self.progress.timestamps[base.head.version + 1] = timestamp
        prepared, strict = base.prepared, has_states(base.prepared.protocol, base.head)
        if strict:
            prepared = replace(prepared, lines=[_without_nulls(line) for line in prepared.lines])
        plain = _encode(prepared, base.head, self.progress, timestamp)
        data = _compress(plain, config, gzip_only=strict)
        self.progress.sizes = len(data), len(plain)
        self.progress.codec = detect_codec(data)
        return data

    def _record_landed(
        self, base: _CommitBase, version: int, timestamp: int | None = None
    ) -> _Landed:
        """Return the outcome of a commit that is in the log.

        `timestamp` is the commit time read from the log; by default the one last sent for the
        version.
        """
        progress = self.progress
        self.writer.backoff.record_commit(progress.losses, self.writer.clock.seconds())
        timestamp = progress.timestamps[version] if timestamp is None else timestamp
        result = _result_of(base.prepared, progress, version, timestamp)
        if version <= base.head.version:
            return _Landed(result, base.head)
        return _Landed(result, _head_after(base.prepared, base.head, progress, version, timestamp))

    def _find_landed(self, base: _CommitBase, unknown: CommitStateUnknown) -> _Landed:
        """Return the outcome if the log contains the commit, else raise `unknown`.

        While this writer was suspended, its commit may have landed and its file been deleted
        below a checkpoint; the recent commit ids still list it.
        """
        try:
            newest, recent = self.writer.log.reobserve()
        except (ArrowlogError, FileNotFoundError):
            raise unknown from None
        version = recent.version_of(self.progress.txn_id)
        if version is None:
            raise unknown
        return replace(self._record_landed(base, version), head=newest)

    def _rebase(self, base: _CommitBase, winners: Sequence[WinningCommit]) -> _Landed | _CommitBase:
        """Build on the winning commits, or raise the first conflict.

        The commit has landed if one of them is this commit, or the same application transaction.
        """
        head, prepared, newest = base.head, base.prepared, base.newest
        stale = prepared.rebuild
        for winner in winners:
            if winner.txn_id == self.progress.txn_id:  # the put landed, only its response was lost
                return self._record_landed(
                    replace(base, head=head), winner.version, winner.timestamp
                )
            after = advance_head(head, winner)
            duplicate = _find_duplicate(prepared, after, self.progress)
            if duplicate is not None:
                return _Landed(duplicate, after)
            stale |= _requires_rebuild(prepared.read_set, head, winner, self.writer.log)
            head = after
        self.progress.pending = None  # every version put so far is known to belong to a winner
        if newest is not None and newest.version == head.version:
            head = replace(head, observed=max(head.observed, newest.observed))
        INDEXTABLES.check_writable(head.protocol, self.writer.store.root)
        return _CommitBase(head, self.prepare(head) if stale else prepared, newest)

    def _start_over(self, base: _CommitBase) -> _Landed | _CommitBase:
        """Build on the newest version, because commits after the head may have been deleted.

        Raises the conflict with what changed since the head, or `CommitStateUnknown` if this
        commit may be in the log.
        """
        progress, read_set = self.progress, base.prepared.read_set
        newest, recent = _reobserve(self.writer, progress, base.head)
        # A process that was suspended has not used its time, so it gets some for another attempt.
        grace = self.writer.clock.seconds() + _RESUME_GRACE_SECONDS
        progress.deadline = max(progress.deadline, grace)
        landed = recent.version_of(progress.txn_id)
        if landed is not None:
            return replace(self._record_landed(base, landed), head=newest)
        pending = progress.pending
        if pending is not None and pending < recent.first:
            raise commit_state_unknown(progress, pending, _ids_forgotten(newest))
        if pending is not None and recent.knows(pending):
            progress.pending = None  # it belongs to another commit
        if read_set.depends_on_files:
            # The next attempt reads the commits up to `newest`, if they still exist.
            return replace(base, newest=newest)
        conflict = check_conflict_between(read_set, base.head, newest)
        if conflict is not None:
            raise conflict
        INDEXTABLES.check_writable(newest.protocol, self.writer.store.root)
        return _CommitBase(newest, self.prepare(newest), newest)


def _read_winners(
    writer: TransactionContext, head: TableHead, commit_files: Sequence[bytes], read_set: ReadSet
) -> list[WinningCommit] | None:
    """Decode the winning commits that follow a head.

    Returns None if they cannot be trusted: their versions may have been deleted since the head was
    observed, and the files put there afterwards by stalled writers. An empty `commit_files` means
    that this writer's own put was such a file.
    """
    if not commit_files:
        return None
    first = head.version + 1
    winners = _decode_winners(writer, head, commit_files, read_set)
    # A dead file read in place of a conflicting commit would hide the conflict; one with the same
    # application transaction would pass for a duplicate.
    trusted = writer.log.none_deleted(first, first + len(commit_files) - 1, head.observed)
    return winners if trusted else None


def _decode_winners(
    writer: TransactionContext, head: TableHead, commit_files: Sequence[bytes], read_set: ReadSet
) -> list[WinningCommit]:
    """Decode the commits that follow a head, with their files if the read set depends on them."""
    root, limit = writer.store.root, writer.config.max_decompressed_bytes
    files = read_set.depends_on_files
    return list(
        read_winning_commits(head.version + 1, commit_files, head, root, limit, files=files)
    )


def _is_effective(
    writer: TransactionContext, progress: CommitProgress, head: TableHead, data: bytes
) -> bool:
    """Whether a successful put is the commit that readers see at its version.

    Returns False if the version had been committed by another writer and deleted before the put
    arrived. The file is then deleted; readers ignore it in any case. Raises `CommitStateUnknown`
    if the log cannot tell, `MetadataChanged` if it belongs to another table by now.
    """
    version, clock = head.version + 1, writer.clock
    progress.pending = version if progress.pending is None else progress.pending
    if _is_undisputed(writer, head):
        return True
    if _withdraw_from_replaced_log(writer, version, data):
        progress.pending = None
        return False
    for retry in range(MAX_PUTS_PER_VERSION):
        try:
            newest, recent = writer.log.reobserve()
        except (ArrowlogError, FileNotFoundError) as error:
            raise commit_state_unknown(progress, version, str(error)) from None
        if newest.metadata.id != head.metadata.id:
            raise _withdraw_from_other_table(writer, progress, head, newest, data)
        if recent.knows(version):
            if recent.txn_id(version) == progress.txn_id:
                return True
            _withdraw(writer, version, data)
            progress.pending = None
            return False
        if newest.version >= version:
            raise commit_state_unknown(progress, version, _ids_forgotten(newest))
        if clock.seconds() >= progress.deadline:
            break
        clock.sleep(backoff_seconds(clock, retry))  # listings of the store lag behind the put
    raise commit_state_unknown(progress, version, "the store's listings do not show it")


def _is_undisputed(writer: TransactionContext, head: TableHead) -> bool:
    """Whether the version after a head cannot have belonged to another commit before."""
    version = head.version + 1
    with suppress(StoreUnavailable):  # the commit may be in the log: read the log instead
        return writer.log.none_deleted(version, version, head.observed)
    return False


def _ids_forgotten(newest: TableHead) -> str:
    return (
        f"the log is at version {newest.version} and no longer records which writer committed that"
        " version"
    )


def _withdraw(writer: TransactionContext, version: int, data: bytes) -> bool:
    """Delete this writer's file at a version that it must not be at; return whether it is gone."""
    key = f"{LOG_FOLDER}/{commit_name(version)}"
    with suppress(StoreUnavailable):  # at a retired version, readers ignore it
        if writer.store.find_many([key])[0] == data:
            writer.store.delete([key])
        return True
    return False


def _withdraw_from_replaced_log(writer: TransactionContext, version: int, data: bytes) -> bool:
    """Take a commit back that was put behind the end of a log that replaced the one it was for.

    The new log is another table's, or a backup of this one. Nobody builds on a commit behind a gap,
    so that it can be deleted. Returns False if there is no gap, or a later commit exists: what the
    log is has to be read.
    """
    with suppress(StoreUnavailable):
        if not writer.log.replaced():
            return False
        keys = [f"{LOG_FOLDER}/{commit_name(other)}" for other in (version - 1, version + 1)]
        if writer.store.find_many(keys) == [None, None]:
            return _withdraw(writer, version, data)
    return False


def _withdraw_from_other_table(
    writer: TransactionContext,
    progress: CommitProgress,
    head: TableHead,
    newest: TableHead,
    data: bytes,
) -> ArrowlogError:
    """Take a commit back from the log of another table, which `newest` is of; return the error.

    Others may have built on the commit. Without it their log would have a gap, so it stays.
    """
    version = head.version + 1
    if newest.version > version or not _withdraw(writer, version, data):
        return commit_state_unknown(progress, version, _REPLACED_REASON)
    return _table_replaced(head)


def _table_replaced(head: TableHead) -> MetadataChanged:
    return MetadataChanged(
        f"The table whose version {head.version} this commit is based on was dropped, and another"
        " one created. Nothing was committed.",
        next=CONFLICT_NEXT_STEP,
        version=head.version,
    )


def _reobserve(
    writer: TransactionContext, progress: CommitProgress, head: TableHead
) -> tuple[TableHead, RecentCommits]:
    """List the log again until it shows at least the version of `head`, which was read before.

    Raises `MetadataChanged` if the log belongs to another table by now.
    """
    clock = writer.clock
    for retry in range(MAX_PUTS_PER_VERSION):
        try:
            newest, recent = writer.log.reobserve()
        except (ArrowlogError, FileNotFoundError) as error:
            if progress.pending is None:
                raise
            raise commit_state_unknown(progress, progress.pending, str(error)) from None
        if newest.metadata.id != head.metadata.id:
            pending = progress.pending
            if pending is not None and (
                not recent.knows(pending) or recent.version_of(progress.txn_id) is not None
            ):
                raise commit_state_unknown(progress, pending, _REPLACED_REASON)
            raise _table_replaced(head)
        if newest.version >= head.version:
            return newest, recent
        if clock.seconds() >= progress.deadline:
            break
        clock.sleep(backoff_seconds(clock, retry))
    reason = f"version {head.version} was read before, but the store's listings do not show it"
    if progress.pending is not None:
        raise commit_state_unknown(progress, progress.pending, reason)
    raise StoreUnavailable(f"The commit was not made: {reason}.", next="Try again.")


def _requires_rebuild(
    read_set: ReadSet, head: TableHead, winner: WinningCommit, log: TransactionLog
) -> bool:
    """Whether the commit must be prepared again after a winning commit.

    Raises the conflict unless the same session made the winning commit: the session knows its own
    changes, so they are taken into account instead. An `exact` read set conflicts with those, too.
    """
    conflict = check_conflict(read_set, head, winner)
    if conflict is None:
        return False
    if read_set.exact or not log.is_own(winner.txn_id):
        raise conflict
    return True  # own commit


def _find_duplicate(
    prepared: PreparedCommit, head: TableHead, progress: CommitProgress
) -> CommitResult | None:
    """Return the earlier commit of the same application transaction, if there is one.

    An application's transaction versions increase, so a lower or equal one was committed before.
    """
    committed = None if prepared.txn is None else head.txns.get(prepared.txn[0])
    if prepared.txn is None or committed is None or committed[0] < prepared.txn[1]:
        return None
    return CommitResult(
        version=committed[1],
        attempts=progress.attempts,
        operation_metrics={},
        operation=prepared.operation,
        duplicate=True,
    )


def _result_of(
    prepared: PreparedCommit, progress: CommitProgress, version: int, timestamp: int
) -> CommitResult:
    return CommitResult(
        version=version,
        attempts=progress.attempts,
        operation_metrics=dict(prepared.metrics),
        operation=prepared.operation,
        timestamp=timestamp,
        txn_id=progress.txn_id,
        size_bytes=progress.sizes[0],
        uncompressed_bytes=progress.sizes[1],
    )


def _head_after(
    prepared: PreparedCommit,
    head: TableHead,
    progress: CommitProgress,
    version: int,
    timestamp: int,
) -> TableHead:
    """Return the head after this commit landed at a version."""
    txns = head.txns
    if prepared.txn is not None:
        txns = {**txns, prepared.txn[0]: (prepared.txn[1], version)}
    metadata, schema = prepared.metadata or (head.metadata, head.schema)
    protocol = prepared.protocol or head.protocol
    # Versions are contiguous: when the put of this version began, the next one did not exist.
    observed = max(head.observed, progress.put_started_at)
    return TableHead(version, protocol, metadata, schema, timestamp, txns, observed)


def _commit_info(
    prepared: PreparedCommit, head: TableHead, progress: CommitProgress, timestamp: int
) -> dict[str, Any]:
    txn = None if prepared.txn is None else {"appId": prepared.txn[0], "version": prepared.txn[1]}
    return {
        "txnId": progress.txn_id,
        "timestamp": timestamp,
        "operation": prepared.operation,
        "operationParameters": dict(prepared.parameters),
        "operationMetrics": dict(prepared.metrics),
        "readVersion": head.version,
        "engineInfo": f"{ENGINE_NAME}/{__version__}",
        "userMetadata": prepared.user_metadata,
        "txn": txn,
    }


def _encode(
    prepared: PreparedCommit, head: TableHead, progress: CommitProgress, timestamp: int
) -> bytes:
    """Encode the commit file.

    Raises `InvalidRequest` if `parameters` or `user_metadata` hold values that JSON cannot.
    """
    try:
        return encode_commit(_commit_info(prepared, head, progress, timestamp), prepared.lines)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"The commit cannot be written as JSON: {error}.",
            next="Use text, numbers, maps and lists in operation, parameters and user_metadata.",
        ) from None


def has_states(*of: TableHead | TableProtocol | None) -> bool:
    """Whether a head or a protocol is that of a table with states."""
    protocols = [item.protocol if isinstance(item, TableHead) else item for item in of if item]
    return any(item.min_reader_version >= STATE_PROTOCOL_VERSION for item in protocols)


def _without_nulls(line: bytes) -> bytes:
    """Return the line of an action without null members.

    Other programs that read tables with states reject maps with nulls, and with them the commit.
    """
    if b":null" not in line and b'"numMergeOps"' not in line:
        return line
    action = _drop_nulls(msgspec.json.decode(line))
    merges = action.get("add", {}).get("numMergeOps", 0)
    if merges > _INT32_MAX:
        raise InvalidRequest(
            f"numMergeOps is {merges}, and does not fit 32 bits.", next="Give a smaller number."
        )
    return msgspec.json.encode(action) + b"\n"


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return value


def _compress(plain: bytes, config: Config, *, gzip_only: bool = False) -> bytes:
    codec = config.commit_codec(len(plain))
    if gzip_only and codec != "none":
        codec = "gzip"  # all that other programs read on a table with states
    return compress(plain, codec, config.compression_gzip_level)


def _read_commits_until(
    writer: TransactionContext, head: TableHead, newest: TableHead, read_set: ReadSet
) -> list[WinningCommit]:
    """Read the winning commits after a head, up to a newer head or `_WINNERS_PER_READ` of them.

    Raises `CommitConflict` if one of them was deleted: whether it conflicts is then unknown.
    """
    first, last = head.version + 1, min(newest.version, head.version + _WINNERS_PER_READ)
    keys = [f"{LOG_FOLDER}/{commit_name(version)}" for version in range(first, last + 1)]
    commit_files = [data for data in writer.store.find_many(keys) if data is not None]
    if len(commit_files) < len(keys):
        # Other programs may pad version numbers to another width: take the names from a listing.
        commits = classify_names(writer.store.list_from(LOG_FOLDER)).commits
        keys = [commits[version] for version in range(first, last + 1) if version in commits]
        commit_files = [data for data in writer.store.find_many(keys) if data is not None]
    if len(commit_files) == last + 1 - first:
        winners = _decode_winners(writer, head, commit_files, read_set)
        if _are_authentic(writer, winners):
            return winners
    raise CommitConflict(
        f"The table is at version {newest.version}, and commits after version {first - 1}, which"
        " this commit is based on, were cleaned up: conflicts with them cannot be checked.",
        next=CONFLICT_NEXT_STEP,
        version=first - 1,
    )


def _are_authentic(writer: TransactionContext, winners: Sequence[WinningCommit]) -> bool:
    """Whether commit files that were read are the commits that readers see at their versions.

    A file put at a deleted version by a stalled writer is not.
    """
    recent = writer.log.recent()
    known = [winner for winner in winners if recent.knows(winner.version)]
    if any(recent.txn_id(winner.version) != winner.txn_id for winner in known):
        return False
    if len(known) == len(winners) and all(winner.txn_id is not None for winner in known):
        return True
    return writer.log.none_retired(winners[0].version, winners[-1].version)
