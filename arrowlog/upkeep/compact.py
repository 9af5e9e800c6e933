"""Small data files become large ones: plan, rewrite, commit; one commit for each group.

A group is planned from a version, rewritten, and committed with the removal of its files, so
that readers see the same rows before and after. What others did since the files were read is
checked like for any commit: appends do no harm, a file that was removed or replaced gives up its
group, and nothing but its group. A file that cannot be read is noted as a skip, and its group goes
on without it. New files that were not committed are left to vacuum.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.drafts import Manner, World, change_files, files_named
from arrowlog.config import parse_bytes
from arrowlog.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.log.arrays import array_of
from arrowlog.scan.plan import scan
from arrowlog.state.apply import check_writable
from arrowlog.state.truncation import Truncation
from arrowlog.upkeep.bins import Group, plan_groups
from arrowlog.upkeep.rewrite import Rewritten, Task, Unreadable, rewrite
from arrowlog.upkeep.skips import Skips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrowlog.commit.committer import Committer
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import Snapshot, State

    Runner = Callable[[Sequence[Task]], Iterator["Attempt"]]

OPERATION = "COMPACT"
_FILES_MAX = 1000  # of a group: their footers are in memory together
_FAILURES_MAX = 3  # of the store, in a row
_GROUPS = pa.schema(
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
class Attempt:
    """What became of a task: a new file, or the file or the reason that stood in its way."""

    task: Task
    base: Snapshot | None
    made: Rewritten | None = None
    unreadable: tuple[str, str] | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a group.

    `status`: `compacted`; `planned` in a dry run; `conflict` if somebody else changed one of its
    files; `too few` if less than two could be read; `failed` if the store did not answer; `unknown`
    if nobody can tell whether the commit landed.
    """

    group: Group
    status: str
    made: Rewritten | None = None
    version: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CompactResult:
    """What compaction did, or with `dry_run` would do: groups, and files that were skipped."""

    groups: tuple[Done, ...] = field(repr=False)
    skipped: tuple[tuple[str, str], ...]  # paths, and why
    dry_run: bool

    def __repr__(self) -> str:
        """The counts."""
        verb = "would become" if self.dry_run else "became"
        text = f"CompactResult({self.files_removed} files {verb} {self.files_added}"
        others = {done.status for done in self.groups} - {"compacted", "planned"}
        text += "".join(f", {len(self._of(name))} groups {name}" for name in sorted(others))
        return f"{text}, {len(self.skipped)} skipped)"

    def _of(self, *status: str) -> list[Done]:
        return [done for done in self.groups if done.status in status]

    @property
    def num_groups(self) -> int:
        """How many groups were compacted, or would be."""
        return len(self._of("compacted", "planned"))

    @property
    def num_conflicts(self) -> int:
        """How many groups were given up because somebody else changed a file."""
        return len(self._of("conflict"))

    @property
    def files_removed(self) -> int:
        """How many small files became part of a larger one."""
        return sum(len(done.group.sources) for done in self._of("compacted", "planned"))

    @property
    def files_added(self) -> int:
        """How many files took their place."""
        return self.num_groups

    @property
    def bytes_removed(self) -> int:
        """The bytes of the small files."""
        return sum(done.group.size_bytes for done in self._of("compacted", "planned"))

    @property
    def bytes_added(self) -> int:
        """The bytes of the new files; 0 in a dry run."""
        return sum(done.made.size_bytes for done in self.groups if done.made and done.version)

    @property
    def num_records(self) -> int:
        """The rows in them."""
        return sum(done.made.rows for done in self.groups if done.made and done.version)

    def to_arrow(self) -> pa.Table:
        """A row for each group."""
        rows = [
            {
                "group": done.group.number,
                "status": done.status,
                "partition": list(done.group.partition.items()),
                "files": len(done.group.sources),
                "size_bytes": done.group.size_bytes,
                "path": done.made.add.path if done.made else None,
                "new_size_bytes": done.made.size_bytes if done.made else None,
                "num_records": done.made.rows if done.made else None,
                "version": done.version,
                "reason": done.reason,
            }
            for done in self.groups
        ]
        return pa.Table.from_pylist(rows, schema=_GROUPS)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be compacted, and how."""

    target: int
    where: Any = None
    max_groups: int | None = None
    max_files: int = _FILES_MAX
    include_skipped: bool = False
    cooldown: str | int = "24h"


def wish(
    target_size: str | int,
    where: Any,
    max_groups: int | None,
    max_files_per_group: int | None,
    *,
    include_skipped: bool,
    cooldown: str | int,
) -> Wish:
    """A wish, checked."""
    try:
        target = parse_bytes(target_size)
    except ValueError as error:
        raise InvalidRequest(
            f"target_size is {target_size!r}.", next=f"Allowed: {error}."
        ) from None
    _check_count(max_groups, "max_groups", 1)
    _check_count(max_files_per_group, "max_files_per_group", 2)
    most = _FILES_MAX if max_files_per_group is None else max_files_per_group
    return Wish(target, where, max_groups, most, include_skipped, cooldown)


def _check_count(given: object, name: str, least: int) -> None:
    whole = isinstance(given, int) and not isinstance(given, bool)
    if given is not None and (not whole or given < least):  # type: ignore[operator]
        raise InvalidRequest(f"{name} is {given!r}.", next=f"It is a number from {least} on.")


def compact(
    committer: Committer,
    wanted: Wish,
    *,
    dry_run: bool,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompactResult:
    """Make large files of small ones."""
    base = committer.look()
    check_writable(base.protocol, committer.store.root)
    groups = _plan(committer, base, wanted)
    if dry_run:
        return CompactResult(tuple(Done(group, "planned") for group in groups), (), dry_run=True)
    run = runner or (lambda tasks: _run_here(committer, tasks))
    done: list[Done] = []
    skipped: list[tuple[str, str]] = []
    queue = [_task(committer, base, group) for group in groups]
    misses = 0
    while queue and misses < _FAILURES_MAX:
        again: list[Task] = []
        for attempt in run(queue):
            found = _settle(committer, attempt, wanted, skipped)
            misses = misses + 1 if attempt.failed else 0
            if isinstance(found, Task):
                again.append(found)
                continue
            done.append(found)
            if progress is not None:
                progress(len(done), len(groups))
            if misses >= _FAILURES_MAX:
                break
        queue = again  # each has a file less than before
    return CompactResult(
        tuple(sorted(done, key=lambda found: found.group.number)), tuple(skipped), dry_run=False
    )


def _plan(committer: Committer, base: Snapshot, wanted: Wish) -> list[Group]:
    leave = pa.nulls(0, pa.string())
    if not wanted.include_skipped:
        leave = Skips(committer).active()["path"].combine_chunks()
    chosen = None
    if wanted.where is not None:
        chosen = array_of(scan(base, wanted.where, committer.store.root, {}).paths, pa.string())
    groups = plan_groups(
        base.state, chosen=chosen, leave=leave, target=wanted.target, max_files=wanted.max_files
    )
    return groups[: wanted.max_groups]


def _task(committer: Committer, base: Snapshot, group: Group) -> Task:
    columns = base.partition_columns
    rest = pa.schema([item for item in base.schema if item.name not in columns])
    cut = Truncation.of(committer.config(committer.head_of(base)))
    return Task(group, rest, cut, committer.clock.new_id(), committer.clock.now_ms())


def _run_here(committer: Committer, tasks: Sequence[Task]) -> Iterator[Attempt]:
    """One after the other, in this process."""
    for task in tasks:
        base = committer.look()  # before the files are read: what happens later is checked
        if unchanged(base.state, task.group) is None:
            yield attempt(committer.store, task, base)
        else:
            yield Attempt(task, base)


def attempt(store: Store, task: Task, base: Snapshot | None = None) -> Attempt:
    """Rewrite a group; what stands in the way comes as a value."""
    try:
        return Attempt(task, base, rewrite(store, task))
    except Unreadable as error:
        return Attempt(task, base, unreadable=(error.key, error.reason))
    except StoreUnavailable as error:
        return Attempt(task, base, failed=str(error))
    except OSError as error:  # of the draft: what is wrong with a source is known by now
        return Attempt(task, base, failed=f"the new file could not be drafted: {error}")


def unchanged(state: State, group: Group) -> str | None:
    """None if the files of a group are live as they were planned; else one that is not."""
    if not state.num_files:
        return group.keys[0]
    keys = array_of(group.keys, pa.string())
    live = state.adds.filter(pc.is_in(state.adds["key"], value_set=keys))
    found = {
        row["key"]: (row["size"], row["modificationTime"])
        for row in live.select(["key", "size", "modificationTime"]).to_pylist()
    }
    for source in group.sources:
        if found.get(source.key) != (source.size, source.modification_time):
            return source.key
    return None


def _settle(
    committer: Committer, attempt: Attempt, wanted: Wish, skipped: list[tuple[str, str]]
) -> Done | Task:
    """Commit what was made; or say what became of the group, or what is left to try of it."""
    task, group = attempt.task, attempt.task.group
    base = committer.look() if attempt.base is None or attempt.unreadable else attempt.base
    changed = unchanged(base.state, group)
    if changed is not None:
        reason = f"{changed} was removed or replaced meanwhile"
        return Done(group, "conflict", attempt.made, reason=reason)
    if attempt.failed is not None:
        return Done(group, "failed", reason=attempt.failed)
    if attempt.unreadable is not None:
        key, reason = attempt.unreadable
        with suppress(StoreUnavailable, CommitStateUnknown, CommitConflict):  # a note, no more
            Skips(committer).record(key, reason, "merge", wanted.cooldown)
        skipped.append((key, reason))
        rest = group.without(key)
        if len(rest.sources) < 2:
            return Done(group, "too few", reason=f"{key}: {reason}")
        return replace(task, group=rest, new_id=committer.clock.new_id())
    assert attempt.made is not None
    return _commit(committer, base, group, attempt.made)


def _commit(committer: Committer, base: Snapshot, group: Group, made: Rewritten) -> Done:
    def state(head: Any) -> State:
        return base.state if head.version == base.version else committer.state(head)

    world = World(state, committer.clock.now_ms(), committer.config)
    parameters: Mapping[str, Any] = {"partition": dict(group.partition)}
    how = Manner(OPERATION, data_change=False, parameters=parameters)
    pick = files_named(group.keys, base.state)
    try:
        result = committer.change(change_files([made.add], pick, how, world), base)
    except CommitConflict as error:
        return Done(group, "conflict", made, reason=str(error))
    except CommitStateUnknown as error:
        return Done(group, "unknown", made, reason=str(error))
    except StoreUnavailable as error:
        return Done(group, "failed", made, reason=str(error))
    return Done(group, "compacted", made, result.version)
