"""Compaction: merge small data files into larger ones, one commit per group.

Groups are planned from one version by bin packing: adjacent small files of a partition, up to a
target size. Each group is rewritten and committed together with the removal of its files, so
readers see the same rows before and after. The commit goes through the usual conflict check against
everything since the files were read: concurrent appends do not conflict, and if a file of the group
was removed or replaced, only that group is abandoned. A file that cannot be read is recorded as a
merge skip, and its group continues without it. New files that were not committed are left to
vacuum.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, make_int64
from arrowlog.config import parse_argument, parse_at_least, parse_bytes
from arrowlog.decode import flatten_map_columns
from arrowlog.errors import CommitConflict, CommitStateUnknown, StoreUnavailable
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.log_lines import COMPACTION_DONE, MERGE_SKIPPED, compression_ratio
from arrowlog.maintenance.file_rewriter import RewriteTask, RewrittenFile, UnreadableFile, rewrite
from arrowlog.maintenance.skips import Skips
from arrowlog.metering import metrics_of
from arrowlog.scan import plan_scan
from arrowlog.snapshot import StatsTruncation
from arrowlog.transaction import (
    UNREADABLE_PARTITION,
    CommitOptions,
    PrepareContext,
    prepare_file_changes,
    select_files_by_path,
    typed_partition_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from arrowlog.snapshot import Snapshot, State
    from arrowlog.storage import Store
    from arrowlog.transaction import WriteSession

    Runner = Callable[[Sequence[RewriteTask]], Iterator["RewriteAttempt"]]

# A file of at least this fraction of the target size is left alone: rewriting it gains little.
MIN_TARGET_FRACTION = 0.75
_PARQUET_NAME = r"(?i)\.(?:parquet|parq|pq)$"
_SOURCE_FIELDS = ("size", "modificationTime", "numRecords", "numMergeOps", "tags")
_TAGS = msgspec.json.Decoder(dict[str, str])
COMPACT_OPERATION = "COMPACT"
_MAX_FILES_PER_GROUP = 1000  # bounds memory: the footers of a group are held together
_MAX_CONSECUTIVE_FAILURES = 3  # rewrites that the store fails, after which the run stops
_MIN_GROUP_FILES = 2  # merging a single file gains nothing
_GROUPS_SCHEMA = pa.schema(
    [
        ("group", pa.int64()),
        ("status", pa.string()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("files", pa.int64()),
        ("size_bytes", pa.int64()),
        ("path", pa.string()),
        ("new_size_bytes", pa.int64()),
        ("num_records", pa.int64()),
        ("version", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be merged, with the fields of its add."""

    key: str
    size: int
    modification_time: int
    num_records: int | None = None
    merges: int = 0
    tags: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Files of one partition that are merged into one, in the order of the table's live files."""

    number: int
    partition: Mapping[str, str | None]
    sources: tuple[SourceFile, ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(source.size for source in self.sources)

    @property
    def keys(self) -> list[str]:
        """The paths of the files, relative to the table."""
        return [source.key for source in self.sources]

    def without(self, key: str) -> CompactionGroup:
        """Return the group without one of its files."""
        return replace(self, sources=tuple(s for s in self.sources if s.key != key))

    def tags(self) -> dict[str, str]:
        """Return the tags that all files share; they hold for the merged file too."""
        common: dict[str, str] | None = None
        for text in {source.tags for source in self.sources}:
            tags = _decode_tags(text)
            kept = tags if common is None else common
            common = {name: value for name, value in kept.items() if tags.get(name) == value}
        return common or {}


def _decode_tags(text: str | None) -> dict[str, str]:
    """Decode the JSON of tags; empty if absent or not a map of strings."""
    try:
        return {} if text is None else _TAGS.decode(text)
    except msgspec.DecodeError:
        return {}


def plan_groups(
    state: State,
    *,
    chosen: pa.Array | None,
    excluded: pa.Array,
    target: int,
    max_files: int,
) -> list[CompactionGroup]:
    """Plan groups of at least two files each.

    `chosen` restricts the plan to these paths (None: all files), `excluded` are keys to leave out.
    `target` is the size in bytes of a merged file. Files are not merged if they are large enough
    already, not Parquet by their name, or if their partition values cannot be parsed.
    """
    if not state.num_files:
        return []
    adds = _candidates(state, chosen, excluded, target)
    columns = state.metadata.partition_columns
    names = [f"partitionValues.{name}" for name in columns]
    frame = pl.DataFrame(pl.from_arrow(adds))
    partitions = [frame] if not names else frame.partition_by(names, maintain_order=True)
    groups: list[CompactionGroup] = []
    for files in partitions:
        sizes = files["size"].to_list()
        for rows in pack_adjacent(sizes, target, max_files):
            packed = files[rows]
            values = packed.select(names).row(0) if names else ()
            partition = dict(zip(columns, values, strict=True))
            groups.append(CompactionGroup(len(groups), partition, tuple(_sources(packed))))
    return groups


def _sources(files: pl.DataFrame) -> Iterator[SourceFile]:
    for key, size, mtime, records, merges, tags in files.select("key", *_SOURCE_FIELDS).iter_rows():
        yield SourceFile(key, size, mtime, records, merges or 0, tags)


def _candidates(state: State, chosen: pa.Array | None, excluded: pa.Array, target: int) -> pa.Table:
    """Return the small Parquet files: key, fields of `SourceFile`, and raw partition values."""
    adds: pa.Table = state.adds
    keep = pc.and_(
        pc.match_substring_regex(adds["key"], _PARQUET_NAME),
        pc.less(adds["size"], make_int64(max(int(target * MIN_TARGET_FRACTION), 1))),
    )
    keep = pc.and_not(keep, pc.is_in(adds["key"], value_set=excluded))
    if chosen is not None:
        keep = pc.and_(keep, pc.is_in(adds["path"], value_set=chosen))
    columns = state.metadata.partition_columns
    small = flatten_map_columns(adds.filter(keep), columns)
    if small.num_rows and columns:
        parsed = pc.invert(
            typed_partition_values(small, state.schema, columns)[UNREADABLE_PARTITION]
        )
        small = small.filter(parsed)
    selected = {"key": small["key"]} if small.num_rows else {"key": pa.nulls(0, pa.string())}
    types: dict[str, Any] = {"tags": pa.string()}
    for name in (*_SOURCE_FIELDS, *(f"partitionValues.{name}" for name in columns)):
        type_ = types.get(name, pa.string() if "." in name else pa.int64())
        present = name in small.column_names
        selected[name] = pc.cast(small[name], type_) if present else pa.nulls(small.num_rows, type_)
    return pa.table(selected)


def pack_adjacent(sizes: Sequence[int], target: int, max_files: int) -> Iterable[list[int]]:
    """Yield runs of at least two adjacent positions whose sizes fit into the target together.

    Next-fit on adjacent files rather than a best fit, so that rows keep the order of the table.

    >>> list(pack_adjacent([4, 5, 3, 3, 9, 1], 10, 100))
    [[0, 1], [2, 3], [4, 5]]
    """
    run: list[int] = []
    total = 0
    for row, size in enumerate(sizes):
        if run and (total + size > target or len(run) >= max_files):
            if len(run) > 1:
                yield run
            run, total = [], 0
        run.append(row)
        total += size
    if len(run) > 1:
        yield run


@dataclass(frozen=True, slots=True)
class RewriteAttempt:
    """The outcome of rewriting one group.

    At most one of the last three is set: the new file in `made`, the path and the reason of a file
    that is `unreadable`, or the message of a store error in `failed`. None is set if the group had
    changed and was not rewritten. `base` is the snapshot taken before the files were read; None if
    the rewrite ran where there is none.
    """

    task: RewriteTask
    base: Snapshot | None
    made: RewrittenFile | None = None
    unreadable: tuple[str, str] | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The final outcome of one group.

    `status` is `compacted`; `planned` in a dry run; `conflict` if another commit removed or
    replaced one of its files; `too few` if fewer than two files could be read; `failed` if the
    store failed; or `unknown` if it is not known whether the commit landed.
    """

    group: CompactionGroup
    status: str
    made: RewrittenFile | None = None
    version: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CompactResult:
    """The outcome of every group, and the files that were skipped with the reason for each."""

    groups: tuple[GroupOutcome, ...] = field(repr=False)
    skipped: tuple[tuple[str, str], ...]  # (path, reason)
    dry_run: bool
    milliseconds: float = 0.0

    def __repr__(self) -> str:
        """The number of files before and after, of groups by other outcomes, and of skips."""
        verb = "would become" if self.dry_run else "became"
        text = f"CompactResult({self.files_removed} files {verb} {self.files_added}"
        others = {outcome.status for outcome in self.groups} - {"compacted", "planned"}
        text += "".join(
            f", {len(self._with_status(name))} groups {name}" for name in sorted(others)
        )
        return f"{text}, {len(self.skipped)} skipped)"

    def _with_status(self, *status: str) -> list[GroupOutcome]:
        return [outcome for outcome in self.groups if outcome.status in status]

    @property
    def num_groups(self) -> int:
        """Number of groups that were compacted or, in a dry run, would be."""
        return len(self._with_status("compacted", "planned"))

    @property
    def num_conflicts(self) -> int:
        """Number of groups abandoned because another commit changed one of their files."""
        return len(self._with_status("conflict"))

    @property
    def files_removed(self) -> int:
        """Number of small files that were replaced."""
        outcomes = self._with_status("compacted", "planned")
        return sum(len(outcome.group.sources) for outcome in outcomes)

    @property
    def files_added(self) -> int:
        """Number of files that replaced them."""
        return self.num_groups

    @property
    def bytes_removed(self) -> int:
        """Total size of the small files."""
        return sum(
            outcome.group.size_bytes for outcome in self._with_status("compacted", "planned")
        )

    @property
    def bytes_added(self) -> int:
        """Total size of the new files; 0 in a dry run."""
        return sum(
            outcome.made.size_bytes for outcome in self.groups if outcome.made and outcome.version
        )

    @property
    def size_ratio(self) -> float:
        """Size of the small files divided by that of the new ones; 1.0 in a dry run."""
        return compression_ratio(self.bytes_removed, self.bytes_added)

    @property
    def num_records(self) -> int:
        """Number of rows in the new files; 0 in a dry run."""
        return sum(outcome.made.rows for outcome in self.groups if outcome.made and outcome.version)

    def to_arrow(self) -> pa.Table:
        """Return one row per group."""
        rows = [
            {
                "group": outcome.group.number,
                "status": outcome.status,
                "partition": list(outcome.group.partition.items()),
                "files": len(outcome.group.sources),
                "size_bytes": outcome.group.size_bytes,
                "path": outcome.made.add.path if outcome.made else None,
                "new_size_bytes": outcome.made.size_bytes if outcome.made else None,
                "num_records": outcome.made.rows if outcome.made else None,
                "version": outcome.version,
                "reason": outcome.reason,
            }
            for outcome in self.groups
        ]
        return pa.Table.from_pylist(rows, schema=_GROUPS_SCHEMA)


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The validated arguments of a compaction. `target` is the target file size in bytes."""

    target: int
    where: Any = None
    max_groups: int | None = None
    max_files: int = _MAX_FILES_PER_GROUP
    include_skipped: bool = False
    cooldown: str | int | timedelta = "24h"


def parse_compaction_request(
    target_size: str | int,
    where: Any,
    max_groups: int | None,
    max_files_per_group: int | None,
    *,
    include_skipped: bool,
    cooldown: str | int | timedelta,
) -> CompactionRequest:
    """Validate the arguments of a compaction. Raises InvalidRequest naming the wrong one."""
    target = parse_argument(parse_bytes, target_size, "target_size")
    if max_groups is not None:
        max_groups = parse_argument(parse_at_least(1), max_groups, "max_groups")
    max_files = _MAX_FILES_PER_GROUP
    if max_files_per_group is not None:
        parse = parse_at_least(_MIN_GROUP_FILES)
        max_files = parse_argument(parse, max_files_per_group, "max_files_per_group")
    return CompactionRequest(target, where, max_groups, max_files, include_skipped, cooldown)


def compact(
    session: WriteSession,
    request: CompactionRequest,
    *,
    dry_run: bool,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompactResult:
    """Plan groups of small files, rewrite each and commit it.

    `runner` rewrites tasks elsewhere, such as on Spark; without it they run in this process.
    `progress(done, total)` counts groups. Conflicts, unreadable files and store failures are in the
    result; after three failed rewrites in a row, the remaining groups are left alone.

    Raises UnsupportedProtocol if the table needs a newer writer.
    """
    started = time.perf_counter()
    base = session.read_latest()
    INDEXTABLES.check_writable(base.protocol, session.store.root)
    groups = _plan(session, base, request)
    if dry_run:
        milliseconds = (time.perf_counter() - started) * 1000
        planned = tuple(GroupOutcome(group, "planned") for group in groups)
        return CompactResult(planned, (), dry_run=True, milliseconds=milliseconds)
    run = runner or (lambda tasks: _run_locally(session, tasks))
    outcomes: list[GroupOutcome] = []
    skipped: list[tuple[str, str]] = []
    queue = [_task(session, base, group) for group in groups]
    failures = 0
    while queue and failures < _MAX_CONSECUTIVE_FAILURES:
        retries: list[RewriteTask] = []
        for rewritten in run(queue):
            result = _finish(session, rewritten, request, skipped)
            failures = failures + 1 if rewritten.failed else 0
            if isinstance(result, RewriteTask):
                retries.append(result)
                continue
            outcomes.append(result)
            if progress is not None:
                progress(len(outcomes), len(groups))
            if failures >= _MAX_CONSECUTIVE_FAILURES:
                break
        queue = retries  # terminates: each retry has one file less
    outcomes.sort(key=lambda outcome: outcome.group.number)
    milliseconds = (time.perf_counter() - started) * 1000
    done = CompactResult(tuple(outcomes), tuple(skipped), dry_run=False, milliseconds=milliseconds)
    _report_compaction(session.store, done)
    return done


def _report_compaction(store: Store, result: CompactResult) -> None:
    """Log and count a compaction."""
    metrics = metrics_of(store)
    metrics.add("compactions")
    if result.files_removed:
        metrics.add("compacted_files", result.files_removed)
    COMPACTION_DONE.log(
        table=store.root,
        files_removed=result.files_removed,
        files_added=result.files_added,
        conflicts=result.num_conflicts,
        skipped=len(result.skipped),
        ms=result.milliseconds,
    )


def _plan(
    session: WriteSession, base: Snapshot, request: CompactionRequest
) -> list[CompactionGroup]:
    cooling_down = pa.nulls(0, pa.string())
    if not request.include_skipped:
        skips = Skips(session)
        active = skips.active()
        cooling_down = active["path"].combine_chunks()
        if active.num_rows:
            skips.report_filtered(base.state.column("key"), active)
    chosen = None
    if request.where is not None:
        chosen = make_array(
            plan_scan(base, request.where, session.store.root, {}).paths, pa.string()
        )
    groups = plan_groups(
        base.state,
        chosen=chosen,
        excluded=cooling_down,
        target=request.target,
        max_files=request.max_files,
    )
    return groups[: request.max_groups]


def _task(session: WriteSession, base: Snapshot, group: CompactionGroup) -> RewriteTask:
    partition_columns = base.partition_columns
    file_schema = pa.schema([item for item in base.schema if item.name not in partition_columns])
    truncation = StatsTruncation.of(session.config(session.head_of(base)))
    return RewriteTask(
        group, file_schema, truncation, session.clock.new_id(), session.clock.now_ms()
    )


def _run_locally(session: WriteSession, tasks: Sequence[RewriteTask]) -> Iterator[RewriteAttempt]:
    """Rewrite groups one after the other in this process."""
    for task in tasks:
        # Taken before the files are read, so that the commit is checked against all that follows.
        base = session.read_latest()
        if find_changed_file(base.state, task.group) is None:
            yield try_rewrite(session.store, task, base)
        else:
            yield RewriteAttempt(task, base)


def try_rewrite(store: Store, task: RewriteTask, base: Snapshot | None = None) -> RewriteAttempt:
    """Rewrite a group. Unreadable files and store failures are returned, not raised."""
    try:
        return RewriteAttempt(task, base, rewrite(store, task))
    except UnreadableFile as error:
        return RewriteAttempt(task, base, unreadable=(error.key, error.reason))
    except StoreUnavailable as error:
        return RewriteAttempt(task, base, failed=str(error))
    except OSError as error:
        # Of the temporary file: errors of source files were turned into `UnreadableFile`.
        return RewriteAttempt(
            task, base, failed=f"the temporary file could not be written: {error}"
        )


def find_changed_file(state: State, group: CompactionGroup) -> str | None:
    """Return the first file of a group that is not live as planned; None if all are.

    A file counts as replaced if its size or modification time in the log differs.
    """
    if not state.num_files:
        return group.keys[0]
    keys = make_array(group.keys, pa.string())
    live = state.adds.filter(pc.is_in(state.adds["key"], value_set=keys))
    current = {
        row["key"]: (row["size"], row["modificationTime"])
        for row in live.select(["key", "size", "modificationTime"]).to_pylist()
    }
    for source in group.sources:
        if current.get(source.key) != (source.size, source.modification_time):
            return source.key
    return None


def _finish(
    session: WriteSession,
    rewritten: RewriteAttempt,
    request: CompactionRequest,
    skipped: list[tuple[str, str]],
) -> GroupOutcome | RewriteTask:
    """Commit a rewritten group, or return why not, or a task for the rest of the group.

    An unreadable file is recorded as a skip and appended to `skipped`.
    """
    task, group = rewritten.task, rewritten.task.group
    # A file may be unreadable because it was removed since `base`: then it is a conflict, no skip.
    base = (
        session.read_latest() if rewritten.base is None or rewritten.unreadable else rewritten.base
    )
    changed = find_changed_file(base.state, group)
    if changed is not None:
        reason = f"{changed} was removed or replaced by another commit"
        return GroupOutcome(group, "conflict", rewritten.made, reason=reason)
    if rewritten.failed is not None:
        return GroupOutcome(group, "failed", reason=rewritten.failed)
    if rewritten.unreadable is not None:
        key, reason = rewritten.unreadable
        # The skip is only a hint for later runs: failing to record it must not stop this one.
        with suppress(StoreUnavailable, CommitStateUnknown, CommitConflict):
            Skips(session).record(key, reason, "merge", request.cooldown)
        MERGE_SKIPPED.log(table=session.store.root, path=key, reason=reason)
        skipped.append((key, reason))
        rest = group.without(key)
        if len(rest.sources) < _MIN_GROUP_FILES:
            return GroupOutcome(group, "too few", reason=f"{key}: {reason}")
        return replace(task, group=rest, new_id=session.clock.new_id())
    assert rewritten.made is not None
    return _commit(session, base, group, rewritten.made)


def _commit(
    session: WriteSession, base: Snapshot, group: CompactionGroup, made: RewrittenFile
) -> GroupOutcome:
    """Commit the new file of a group and the removal of its old ones."""

    def state(head: Any) -> State:
        return base.state if head.version == base.version else session.state(head)

    world = PrepareContext(state, session.clock.now_ms(), session.config)
    parameters: Mapping[str, Any] = {"partition": dict(group.partition)}
    how = CommitOptions(COMPACT_OPERATION, data_change=False, parameters=parameters)
    pick = select_files_by_path(group.keys, base.state)
    try:
        result = session.change(prepare_file_changes([made.add], pick, how, world), base)
    except CommitConflict as error:
        return GroupOutcome(group, "conflict", made, reason=str(error))
    except CommitStateUnknown as error:
        return GroupOutcome(group, "unknown", made, reason=str(error))
    except StoreUnavailable as error:
        return GroupOutcome(group, "failed", made, reason=str(error))
    return GroupOutcome(group, "compacted", made, result.version)
