"""The race for one version of the log: put a commit there, or read the commits that won."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import repeat_bool
from arrowlog.decode import (
    CommitInfo,
    LineBuffer,
    decode_buffer,
    decode_line,
    extract_commit_info,
    flatten_map_columns,
    parse_commit_info,
    to_metadata,
)
from arrowlog.errors import CommitStateUnknown, LogCorrupt, StoreUnavailable
from arrowlog.formats import parse_spark_schema
from arrowlog.formats.indextables import LOG_FOLDER, commit_name, decompress, format_checksum
from arrowlog.snapshot import partition_values, validate_commit_integrity, with_file_keys
from arrowlog.storage import PutOutcome
from arrowlog.transaction.conflict_checker import WinningCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.decode import ActionBatch
    from arrowlog.formats import Metadata
    from arrowlog.storage import Store
    from arrowlog.transaction.conflict_checker import TableHead


# Commits read in parallel after a lost race. One at a time nearly halves the commit rate of 16
# contending writers; two at a time landed fewer commits per second than four (decision 5).
_READ_AHEAD = 4
# The same for a writer that is far behind: it needs few round trips to reach the end of the log.
_READ_AHEAD_MAX = 64
# A writer among many sends its next put and the read of that version at the same time, so that a
# further loss costs one round trip instead of two. That is one commit per round trip: a writer that
# has read this many without seeing the end of the log reads several at a time instead.
_BEHIND_MAX = 12
# Races that a commit has to lose, or has lost recently, until the writer is among many.
_LOSSES_AMONG_MANY = 2
# Upper bound of the retry loops. Their deadline, commit.timeoutSeconds, ends them long before.
MAX_PUTS_PER_VERSION = 1000
_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 2.0
# A writer that has not lost a race for this long does not wait.
_CONTENTION_SECONDS = 5.0
_WAIT_SECONDS_MAX = 0.5
# A writer that has made so many commits without a pause, and lost no race, pauses once over a
# network: others may be losing to it, of which it cannot know.
_STREAK_MAX = 32
# The column of `typed_partition_values` that marks files with an unreadable partition value.
UNREADABLE_PARTITION = "unknown"


class Clock(Protocol):
    """Time and randomness, injected so that tests control them."""

    counts_suspension: bool  # whether `seconds` advances while the machine is suspended

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""

    def seconds(self) -> float:
        """Return elapsed seconds; they never decrease."""

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""

    def uniform(self) -> float:
        """Return a random number from 0 to 1."""

    def new_id(self) -> str:
        """Return a globally unique id."""


@dataclass(slots=True)
class ContentionBackoff:
    """One writer's estimate of the contention on a log, and its backoff.

    The writer that has just won knows the next free version at once. Those that lost must read the
    winning commit first, and would lose to the same writer again and again. So a writer that lost a
    race within the last `_CONTENTION_SECONDS` sometimes waits for two puts before its next commit,
    with a probability that grows with the number of races a commit takes. The constants come from
    a simulation of 2 to 16 writers at one round trip per put: together they reach 85 % of the
    commit rate of a single writer, and no writer starves (decision 5).

    A writer that wins every race never learns that there are others. After `_STREAK_MAX` commits,
    each of which began less than a put after the one before, it pauses for half a put, so that
    another one can win.

    Attributes:
        put_seconds: moving average of the duration of a put.
        lost_at: when a commit that had lost a race last landed, by the writer's clock.
        crowd: estimated races lost per commit. It rises at once and decays slowly.
        streak: commits in a row without a lost race and without a pause.
        committed_at: when the last commit landed.
    """

    put_seconds: float = 0.0
    lost_at: float = float("-inf")
    crowd: float = 0.0
    streak: int = 0
    committed_at: float = float("-inf")

    def record_put(self, seconds: float) -> None:
        """Record the duration of a put."""
        self.put_seconds = 0.8 * self.put_seconds + 0.2 * seconds if self.put_seconds else seconds

    def record_commit(self, losses: int, now: float) -> None:
        """Record that a commit landed after a number of lost races."""
        self.crowd = max(float(losses), 0.9 * self.crowd + 0.1 * losses)
        self.streak = 0 if losses else self.streak + 1
        self.committed_at = now
        if losses:
            self.lost_at = now

    def wait(self, clock: Clock, *, network: bool = True) -> float:
        """Return the seconds to wait before the first put of a commit; usually 0.

        Over a network, a writer that has just won is a round trip ahead of those that lost to it.
        """
        now = clock.seconds()
        if now - self.committed_at > self.put_seconds:
            self.streak = 0
        if now - self.lost_at > _CONTENTION_SECONDS:
            if self.streak < _STREAK_MAX or not network:
                return 0.0
            self.streak = 0
            return min(self.put_seconds * (0.25 + clock.uniform() / 2), _WAIT_SECONDS_MAX)
        if clock.uniform() > min(0.1 + self.crowd / 60, 0.6):
            return 0.0
        return min(2 * self.put_seconds * (0.75 + clock.uniform() / 2), _WAIT_SECONDS_MAX)


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
        lagging: the last read of several commits has not shown the end of the log.
        unknown: an earlier put at the current version may have been applied.
        pending: the lowest version at which a put may have landed without the writer knowing.
        put_started_at: when the first put at the current version began.
        timestamps: the commit timestamp sent for each version.
        sizes: the size of the commit last sent, as stored and before compression.
        codec: its compression codec.
    """

    txn_id: str
    deadline: float
    attempts: int = 0
    losses: int = 0
    behind: int = 0
    lagging: bool = False
    unknown: bool = False
    pending: int | None = None
    put_started_at: float = float("-inf")
    timestamps: dict[int, int] = field(default_factory=dict)
    sizes: tuple[int, int] = (0, 0)
    codec: str = "none"


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
            outcome, found = _put(writer, progress, key, data)
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
            if found is not None:  # whoever it is from: it stays there
                progress.behind += 1
                return [found]
            commit_files = _read_back(writer, progress, version)
            if commit_files:
                return commit_files
        clock.sleep(backoff_seconds(clock, retry))
    raise _gave_up(progress, version, key)


def _put(
    writer: PutContext, progress: CommitProgress, key: str, data: bytes
) -> tuple[PutOutcome, bytes | None]:
    """Put a commit file; read its key at the same time if another one is probably there by now.

    Returns the outcome, and the file that was found; None if none was looked for or found.
    """
    near = progress.behind < _BEHIND_MAX and not progress.lagging
    if progress.losses and near and _is_among_many(writer, progress):
        return writer.store.put_or_find(key, data)
    return writer.store.put_if_absent(key, data), None


def _is_among_many(writer: PutContext, progress: CommitProgress) -> bool:
    """Whether many writers contend for the log, over a network."""
    losses = max(progress.losses, writer.backoff.crowd)
    return losses >= _LOSSES_AMONG_MANY and not writer.store.cheap_stat


def backoff_seconds(clock: Clock, retry: int) -> float:
    """Return how long to wait before a retry: exponential backoff with full jitter."""
    return clock.uniform() * min(_BACKOFF_FIRST_SECONDS * 2.0**retry, _BACKOFF_MAX_SECONDS)


def _read_back(writer: PutContext, progress: CommitProgress, version: int) -> list[bytes]:
    """Read the commit files from a version on, up to the first missing one.

    The number of files requested at once grows with the races lost, up to `_READ_AHEAD`. A writer
    that has read many commits without seeing the end of the log requests half as many again.
    """
    ahead = max(progress.losses, int(_is_among_many(writer, progress)))  # a second shows the end
    width = max(min(1 + ahead, _READ_AHEAD), min(progress.behind // 2, _READ_AHEAD_MAX))
    keys = [f"{LOG_FOLDER}/{commit_name(version + ahead)}" for ahead in range(width)]
    try:
        files = writer.store.find_many(keys)
    except StoreUnavailable as error:
        raise _gave_up(progress, version, keys[0], error) from None
    count = next((n for n, data in enumerate(files) if data is None), len(files))
    progress.behind = progress.behind + count if count == width else 0
    progress.lagging = 1 < width == count
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


def read_winning_commits(
    first: int, commits: Sequence[bytes], head: TableHead, root: str, limit: int, *, files: bool
) -> Iterator[WinningCommit]:
    """Decode the commits from version `first` on, which follow `head`.

    Without `files`, the added and removed files of a commit may be left out. Under contention every
    writer reads every commit, and no file can conflict with an append.

    Args:
        first: version of the first commit.
        commits: the commit files in order of version.
        head: the head before them.
        root: the table's root, to which paths are made relative.
        limit: the maximum decompressed size of a commit in bytes.
        files: whether `added` and `removed` are needed.

    Raises:
        LogCorrupt: a commit is damaged.
    """
    metadata, schema = head.metadata, head.schema
    for version, data in enumerate(commits, first):
        file = f"{LOG_FOLDER}/{commit_name(version)}"
        plain = decompress(data, file, limit)
        summary = None if files else _decode_info_only(version, plain)
        if summary is not None:
            yield summary
            continue
        window = LineBuffer(limit)
        window.append(file, version, plain)
        actions = decode_buffer(window)
        infos = validate_commit_integrity(actions)
        info = infos[-1][1] if infos else CommitInfo()
        changed = _last_metadata(actions)
        if changed is not None:
            metadata, schema = changed
        yield replace(
            _from_commit_info(version, info),
            protocol=actions.protocols[-1][1] if actions.protocols else None,
            metadata=None if changed is None else metadata,
            schema=None if changed is None else schema,
            added=_added_files(actions, schema, metadata, root),
            removed=with_file_keys(actions, "remove", root)[0]["key"].combine_chunks(),
        )


def _decode_info_only(version: int, plain: bytes) -> WinningCommit | None:
    """Decode only the `commitInfo` line, if the commit changes nothing but files.

    Returns None if the commit has to be decoded in full: it may change metadata or protocol, or it
    has no valid checksum, so that other programs wrote it or it is damaged.
    """
    first_line, _, body = plain.partition(b"\n")
    raw = extract_commit_info(first_line) if first_line.startswith(b'{"commitInfo":') else None
    info = CommitInfo() if raw is None else parse_commit_info(raw)
    # A substring test is enough: a false positive costs only time.
    if info.checksum != format_checksum(body) or b'"metaData"' in body or b'"protocol"' in body:
        return None
    return _from_commit_info(version, info)


def _from_commit_info(version: int, info: CommitInfo) -> WinningCommit:
    return WinningCommit(
        version=version,
        who=info.operation or "another writer",
        txn_id=info.txnId,
        timestamp=info.timestamp,
        txn=None if info.txn is None else (info.txn.appId, info.txn.version),
    )


def _last_metadata(actions: ActionBatch) -> tuple[Metadata, pa.Schema] | None:
    if not actions.metadata:
        return None
    seq, metadata = actions.metadata[-1]
    try:
        return metadata, parse_spark_schema(metadata.schema_string)
    except ValueError as error:
        file, line = actions.place(seq)
        raise LogCorrupt(f"metaData.schemaString: {error}.", file=file, line=line) from None


def _added_files(
    actions: ActionBatch, schema: pa.Schema, metadata: Metadata, root: str
) -> pa.Table:
    adds, _ = with_file_keys(actions, "add", root)
    return typed_partition_values(adds, schema, metadata.partition_columns)


def typed_partition_values(adds: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Return the path, the `data_change` flag and the typed partition values of added files.

    The columns are `path`, `data_change`, `unknown` and one `partition.<name>` for each partition
    column. `unknown` is true if a partition value of the file is not of its column's type: the
    file may then belong to any partition.
    """
    flat = flatten_map_columns(adds, columns)
    rows = flat.num_rows
    unreadable = pa.chunked_array([repeat_bool(False, rows)])
    values: dict[str, pa.ChunkedArray] = {}
    for name in columns:
        index = schema.get_field_index(name)
        kind = pa.string() if index < 0 else schema.field(index).type
        source = f"partitionValues.{name}"
        if source in flat.column_names:
            values[name], invalid = partition_values(flat[source], kind)
            unreadable = pc.or_(unreadable, pc.fill_null(invalid, False))
        else:
            values[name] = pa.chunked_array([pa.nulls(rows, kind)])
    data_change = pa.chunked_array([repeat_bool(True, rows)])
    if "dataChange" in flat.column_names:
        data_change = pc.fill_null(flat["dataChange"], True)
    return pa.table(
        {"path": flat["key"], "data_change": data_change, UNREADABLE_PARTITION: unreadable}
        | {f"partition.{name}": column for name, column in values.items()}
    )


def read_txn_id(data: bytes, file: str, limit: int) -> str | None:
    """Return the `txnId` of a commit file; None if it does not begin with a `commitInfo`."""
    first_line = decompress(data, file, limit).partition(b"\n")[0]
    raw = extract_commit_info(first_line) if first_line.startswith(b'{"commitInfo":') else None
    return None if raw is None else parse_commit_info(raw).txnId


def read_table_id(data: bytes, limit: int) -> str | None:
    """Return the table id in a version 0 commit file, or None if it has no `metaData`."""
    file = f"{LOG_FOLDER}/{commit_name(0)}"
    for number, text in enumerate(decompress(data, file, limit).split(b"\n"), 1):
        action = decode_line(text, file, number)
        if action is not None and action[0] == "metaData":
            return to_metadata(action[1]).id
    return None
