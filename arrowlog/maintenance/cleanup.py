"""Log cleanup: delete commits, checkpoints and table states that retention no longer protects.

Deleting a commit makes its version free again, so a stalled writer can succeed in putting its
commit there although no reader will ever see it. Two rules make that harmless (decision 17):

1. Before a commit is deleted, its version is recorded as retired. Readers ignore commit files at
   retired versions, and a writer checks the records before it acknowledges a commit.
2. Over a network, where that check costs a request, no commit is deleted before it is
   `MIN_COMMIT_AGE_SECONDS` old. A writer that finished quickly enough can skip the check.

Parquet checkpoints share parts whose names are unique to a writer; such a name is never used again.
A part is deleted in three steps: it is recorded as retired, the manifests are read once more, and
if none that stays names it, it is deleted. The writer of a manifest looks for records after it has
put the manifest, and a cleanup that relies on a manifest looks for them after it has read it. So
one of two concurrent processes always sees the other, however long it was suspended: either the
part stays, or the manifest is not used.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from arrowlog.display import format_bytes, format_items
from arrowlog.errors import LogCorrupt, StoreUnavailable
from arrowlog.formats import RETIRED_FOLDER as RETIRED
from arrowlog.formats import parse_retired_records, retired_record_name, superseded_records
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LOG_FOLDER,
    RETIRED_PART_SUFFIX,
    STATE_KIND,
    classify_names,
    is_checkpoint_part,
    parse_parquet_part,
    parse_state_folder,
    retired_part_name,
)
from arrowlog.log_lines import (
    CLEANUP_DEFERRED,
    CLEANUP_DONE,
    CLEANUP_IDLE,
    DELETION_FAILED,
    LOG_FILE_DELETED,
)
from arrowlog.maintenance.retention import (
    LogFile,
    RetentionPlan,
    RetentionPolicy,
    classify_log_files,
    plan_retention,
    tabulate_log_files,
)
from arrowlog.maintenance.skips import find_commits_with_active_skips
from arrowlog.metering import metrics_of
from arrowlog.snapshot import (
    OBSERVATION_TRUST_SECONDS,
    CheckpointPartReader,
    checkpoint_versions,
    find_named_parts,
    json_checkpoint_name,
    open_parquet_checkpoint,
    plan_segment,
    read_pointer,
    retired_record_error,
    verify_checkpoint,
    without_retired,
)
from arrowlog.storage import ObjectStat, put_identical

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.maintenance.state_files import StateFiles
    from arrowlog.storage import Store

# Reader feature of tables that may have Parquet checkpoints only.
PARQUET_CHECKPOINT_FEATURE = "parquetCheckpoint"
_Result = TypeVar("_Result")
DELETE_BATCH_KEYS = 1000  # the limit of one S3 DeleteObjects request
# A concurrent cleanup can retire versions between our listings of the log folder and of
# `_checkpoints`. The listing is repeated until it is consistent with the retirement records.
_MAX_LISTINGS = 5
_MAX_ATTEMPTS = 3  # runs over a log whose listed files vanish
# With this many failures (in a row within a batch, or in total over batches), the store is failing
# rather than single files, and the run stops.
MAX_DELETE_FAILURES = 3
# Far below any age that a wrong clock can produce (ages may be negative), without overflowing.
_NO_MINIMUM_AGE = -(1 << 62)
RETAIN_NOTHING = RetentionPolicy(
    _NO_MINIMUM_AGE, _NO_MINIMUM_AGE
)  # retain nothing because of its age
# The factor covers clock rates, timestamps rounded to seconds, and slow listings.
MIN_COMMIT_AGE_SECONDS = 3 * OBSERVATION_TRUST_SECONDS


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The files that cleanup deleted or, with `dry_run`, would have deleted.

    `retention` is the plan. `failures` holds one error message per failed deletion, and `left` the
    keys of planned files that may still exist for that reason; they count as not deleted.
    `milliseconds` is the duration, planning included.
    """

    retention: RetentionPlan
    dry_run: bool
    failures: tuple[str, ...] = ()
    left: frozenset[str] = field(default=frozenset(), repr=False)
    milliseconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        """The number of files, their size, and the versions that stay readable."""
        verb = "would be deleted" if self.dry_run else "deleted"
        first, last = self.earliest_version, self.retention.version
        stays = f"version {last} stays" if first == last else f"versions {first} to {last} stay"
        failed = f"; {len(self.failures)} deletions failed" if self.failures else ""
        files, size = format_items(self.num_files, "file"), format_bytes(self.bytes_freed)
        return f"CleanupResult({files} {verb}, {size}; {stays} readable{failed})"

    @property
    def log_files(self) -> tuple[LogFile, ...]:
        """The files as values."""
        return tuple(file for file in self.retention.files_to_delete if file.key not in self.left)

    @property
    def files(self) -> pa.Table:
        """One row per file: path, kind, version, size_bytes, modification_time."""
        return tabulate_log_files(self.log_files)

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self.log_files)

    @property
    def num_too_young(self) -> int:
        """Number of commits kept only because they are younger than `MIN_COMMIT_AGE_SECONDS`."""
        return self.retention.num_too_young

    @property
    def bytes_freed(self) -> int:
        """Total size of the files."""
        return sum(file.stat.size for file in self.log_files)

    @property
    def earliest_version(self) -> int:
        """The version from which on every version can be read after the cleanup."""
        return self.retention.earliest_version


def configured_retention(config: Config) -> RetentionPolicy:
    """Return the retention policy that the settings define.

    The default of `checkpoint.retention` yields to a duration that was given: a user who wants
    commits deleted after an hour does not expect 30 of them to be kept.
    """
    given = config.given
    counts = "checkpoint_retention" in given or "log_retention_ms" not in given
    commits = config.checkpoint_retention if counts else 0
    return RetentionPolicy(config.log_retention_ms, config.checkpoint_retention_ms, commits)


def plan_cleanup(
    store: Store, config: Config, policy: RetentionPolicy, now_ms: int, *, spare_young: bool = True
) -> RetentionPlan:
    """Plan a cleanup without deleting anything.

    `spare_young` keeps commits younger than `MIN_COMMIT_AGE_SECONDS`. Commits with a merge skip in
    its cooldown are always kept, because checkpoints do not hold skips. Every checkpoint that a
    readable version will depend on afterwards is verified first.

    Raises LogCorrupt if the log has a gap.
    """
    return plan_cleanups(store, config, policy, [now_ms], spare_young=spare_young)[0]


def plan_cleanups(
    store: Store,
    config: Config,
    policy: RetentionPolicy,
    moments_ms: Sequence[int],
    *,
    spare_young: bool = True,
) -> list[RetentionPlan]:
    """Plan cleanups at several times, from one listing, as `plan_cleanup` does for one."""
    log, version, verified, bad = _examine_log(store, config)
    young = find_young_commits(store, log.files) if spare_young else frozenset()
    return [
        _Planning(log, version, verified, policy, now_ms).plan(set(bad), young)
        for now_ms in moments_ms
    ]


def has_expired_files(store: Store, config: Config, policy: RetentionPolicy, now_ms: int) -> bool:
    """Return whether a cleanup would delete commits, checkpoints or states, by a listing alone.

    Assumes that all checkpoints are intact and that no file is needed for its content: the answer
    may be True for nothing, and False only if no file that is intact can be deleted. Raises
    LogCorrupt if the log has a gap.
    """
    log = _list_files(store, config)
    version = _latest_contiguous_version(store, log.listing, set())
    newest = max(checkpoint_versions(log.listing), default=None)
    plan = plan_retention(log.files, version, newest, policy, now_ms, dead=log.listing.dead)
    return bool(plan.files_to_delete)


def plan_truncation(store: Store, config: Config, now_ms: int) -> RetentionPlan:
    """Plan a truncation: checkpoint the latest version and delete everything before it.

    The plan assumes that the checkpoint exists, whether or not it has been written yet.

    Raises LogCorrupt if the log has a gap.
    """
    log, version, _, _ = _examine_log(store, config)
    log.assume_checkpoint(version, now_ms)
    return _Planning(log, version, version, RETAIN_NOTHING, now_ms).plan(set(), frozenset())


@dataclass(slots=True)
class _LogFiles:
    """The files of a log with modification times. `states` is None if it has no table states."""

    store: Store
    config: Config
    listing: LogListing
    files: list[LogFile]
    states: StateFiles | None

    def is_intact(self, version: int) -> bool:
        """Verify the checkpoint of a version; its table state, if it has one."""
        if self.states is not None and version in self.states.states:
            return self.states.is_intact(version)
        return not verify_checkpoint(self.store, self.listing, version, self.config)

    def named_parts(self) -> dict[int, frozenset[str]]:
        """Return the parts that each manifest names, by version; only those that may be shared."""
        parts = frozenset(file.key for file in self.files if is_shareable_part(file.key))
        return find_all_named_parts(self.store, self.listing, parts) if parts else {}

    def assume_checkpoint(self, version: int, now_ms: int) -> None:
        """Assume that there is a checkpoint of a version."""
        if self.states is not None:
            if version not in self.states.states or not self.states.is_intact(version):
                self.files = [f for f in self.files if (f.kind, f.version) != ("state", version)]
                self.files.append(self.states.assume(version, now_ms))
        elif not any(file.is_base and file.version == version for file in self.files):
            key = f"{LOG_FOLDER}/{json_checkpoint_name(version)}"
            self.files.append(LogFile(key, "checkpoint", version, ObjectStat(0, now_ms)))


@dataclass(slots=True)
class _Planning:
    """Plans a cleanup: repeats the plan until everything that it relies on was examined."""

    log: _LogFiles
    version: int
    verified: int | None
    policy: RetentionPolicy
    now_ms: int
    held: set[int] = field(default_factory=set)  # commits that stay for their content
    held_states: set[int] = field(default_factory=set)
    _examined: set[int] = field(default_factory=set)
    _named_parts: dict[int, frozenset[str]] = field(default_factory=dict)

    def plan(self, bad: set[int], young: frozenset[int]) -> RetentionPlan:
        """Return the plan; `bad` are checkpoints that failed verification already."""
        self._hold_for_other_programs()
        self._named_parts = self.log.named_parts()
        checked = {self.verified}
        while True:
            retention = self._retention(bad, young)
            unchecked = [v for v in retention.required_checkpoints if v not in checked]
            # The plan depends on checkpoints that were not verified yet, usually just one: the
            # oldest that stays. If one is bad, the plan changes and may depend on others.
            checked |= set(unchecked)
            bad |= {v for v in unchecked if not self.log.is_intact(v)}
            if not self._hold_needed(retention) and not unchecked:
                break
        if young:
            num_too_young = self._retention(bad, frozenset()).num_commits - retention.num_commits
            retention = replace(retention, num_too_young=num_too_young)
        return self._with_manifests(retention)

    def _retention(self, bad: set[int], young: frozenset[int]) -> RetentionPlan:
        return plan_retention(
            self.log.files,
            self.version,
            self.verified,
            self.policy,
            self.now_ms,
            bad,
            young | self.held,
            self.log.listing.dead,
            self.held_states,
            self._named_parts,
        )

    def _hold_for_other_programs(self) -> None:
        """Hold the state that the pointer names, and the highest commit.

        Other programs open the state of the pointer, and number their next commit after the
        highest one, whatever the states are.
        """
        if self.log.states is None:
            return
        self.held_states.add(read_pointer(self.log.store))
        highest = max(self.log.listing.commits, default=self.version)
        if highest < self.version:
            self.held.add(highest)

    def _hold_needed(self, retention: RetentionPlan) -> bool:
        """Hold files that are needed for their content; return whether there were new ones."""
        doomed = [file.commit for file in retention.files_to_delete if file.kind == "commit"]
        new = [commit for commit in doomed if commit.version not in self._examined]
        self._examined.update(commit.version for commit in new)
        log = self.log
        commits = set(find_commits_with_active_skips(log.store, log.config, new, self.now_ms))
        states: set[int] = set()
        if log.states is not None and self.verified is not None:
            staying = self._staying_states(retention)
            first = 0 in log.listing.commits
            needed = log.states.required_by(staying, self.verified, doomed, first=first)
            commits |= needed.commits
            states |= needed.states
        found_new = not (commits <= self.held and states <= self.held_states)
        self.held |= commits
        self.held_states |= states
        return found_new

    def _staying_states(self, retention: RetentionPlan) -> set[int]:
        doomed = {file.version for file in retention.files_to_delete if file.kind == "state"}
        return set() if self.log.states is None else set(self.log.states.states) - doomed

    def _with_manifests(self, retention: RetentionPlan) -> RetentionPlan:
        """Return the plan with the manifests that no state needs afterwards."""
        if self.log.states is None or self.verified is None:
            return retention
        staying = self._staying_states(retention)
        released = self.log.states.release_manifests(staying, self.now_ms)
        return replace(retention, files_to_delete=(*retention.files_to_delete, *released))


def find_young_commits(store: Store, files: Sequence[LogFile]) -> frozenset[int]:
    """Return the versions whose commits must stay so that quick writers need no extra request.

    Ages are measured by the store's clock alone: the time of the newest file stands for the
    present, which can only underestimate an age. A commit of unknown time counts as young. Where
    `store.cheap_stat` holds, writers always check the records, so the result is empty.
    """
    if store.cheap_stat:
        return frozenset()
    store_now_ms = max((file.stat.mtime_ms for file in files), default=0)
    min_age_ms = MIN_COMMIT_AGE_SECONDS * 1000
    return frozenset(
        file.version
        for file in files
        if file.kind == "commit"
        and (file.stat.mtime_ms < 0 or store_now_ms - file.stat.mtime_ms < min_age_ms)
    )


def _list_files(store: Store, config: Config) -> _LogFiles:
    """List the log with modification times, consistently with the retirement records.

    Raises LogCorrupt if a record has no checkpoint above it: the commits there may be needed.
    """
    for _ in range(_MAX_LISTINGS):
        log = _list_files_once(store, config)
        if not log.listing.overtaken:
            return log
    raise retired_record_error(log.listing)


def _list_files_once(store: Store, config: Config) -> _LogFiles:
    names = store.stats_from(LOG_FOLDER)
    checkpoints = (
        store.stats_from(f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}")
        if CHECKPOINT_FOLDER_NAME in names
        else {}
    )
    files = classify_log_files(names, checkpoints)
    states = None
    if any(parse_state_folder(name) is not None for name in names):
        from arrowlog.maintenance.state_files import list_states  # loads what decodes Avro

        states = list_states(store, config, names)
        files = sorted([*files, *states.states.values()], key=lambda f: (f.version, f.key))
        names = {name: stat for name, stat in names.items() if not states.is_empty_folder(name)}
    listing = without_retired(store, classify_names(sorted(names), sorted(checkpoints)), names)
    return _LogFiles(store, config, listing, files, states if states and states.states else None)


def _examine_log(store: Store, config: Config) -> tuple[_LogFiles, int, int | None, set[int]]:
    """List the log, and return it with its latest version and its newest verified checkpoint.

    Also returns the newer checkpoints that do not verify. Those may be gone since they were listed:
    if the log cannot be read without them, it is listed again.
    """
    for attempt in range(_MAX_ATTEMPTS):
        log = _list_files(store, config)
        verified, bad = _newest_verified_checkpoint(log)
        try:
            return log, _latest_contiguous_version(store, log.listing, bad), verified, bad
        except LogCorrupt:
            checkpoints = log.listing.checkpoints
            keys = [key for version in bad for form in checkpoints[version] for key in form.keys]
            if attempt == _MAX_ATTEMPTS - 1 or all(store.stat(key) is not None for key in keys):
                raise
    raise AssertionError  # the last attempt returns or raises


def _latest_contiguous_version(store: Store, listing: LogListing, bad: set[int]) -> int:
    """Return the latest version. Raises LogCorrupt if a version before it is missing."""
    segment = plan_segment(listing, None, bad)
    if segment.gap is None:
        return segment.version
    raise LogCorrupt(
        f"{store.root} cannot be cleaned up: {segment.gap}.",
        next="Restore the missing file first: commits after the gap may still be needed.",
        version=segment.gap.missing,
    )


def _newest_verified_checkpoint(log: _LogFiles) -> tuple[int | None, set[int]]:
    """Return the newest checkpoint that verifies, and the newer ones that do not.

    On a table with states only those count: other programs read nothing else. On other tables a
    Parquet checkpoint without a JSON one counts if the protocol tells readers of it.
    """
    bad: set[int] = set()
    for version in checkpoint_versions(log.listing):
        if log.states is not None:
            if log.listing.state_file(version) is None:
                continue
            if not verify_checkpoint(log.store, log.listing, version, log.config, STATE_KIND):
                return version, bad
        elif not verify_checkpoint(log.store, log.listing, version, log.config):
            if _is_for_all_readers(log, version):
                return version, bad
            continue
        bad.add(version)
    return None, bad


def _is_for_all_readers(log: _LogFiles, version: int) -> bool:
    """Whether every reader of the table can start from a checkpoint, one form of which verifies."""
    listing, parquet = log.listing, log.listing.checkpoint_form(version, "parquet")
    if listing.checkpoint_form(version, "json") is not None:
        return not verify_checkpoint(log.store, listing, version, log.config, "json")
    if parquet is None:
        return True
    try:
        opened = open_parquet_checkpoint(log.store, version, parquet.keys, lambda _: None)
    except (LogCorrupt, FileNotFoundError):  # deleted since it was verified
        return False
    return isinstance(opened, CheckpointPartReader) and (
        PARQUET_CHECKPOINT_FEATURE in opened.manifest.protocol.reader_features
    )


def cleanup(
    store: Store, config: Config, policy: RetentionPolicy, now_ms: int, *, dry_run: bool
) -> CleanupResult:
    """Delete the files that the policy releases, or with `dry_run` only list them.

    Raises LogCorrupt if the log has a gap, and StoreUnavailable if a deletion fails and
    `cleanup.failurePolicy` is `fail`; otherwise failed deletions are in the result.
    """
    started = time.perf_counter()
    retention = plan_cleanup(store, config, policy, now_ms)
    if retention.num_too_young:
        CLEANUP_DEFERRED.log(
            table=store.root, commits=retention.num_too_young, seconds=MIN_COMMIT_AGE_SECONDS
        )
    if dry_run:
        milliseconds = (time.perf_counter() - started) * 1000
        return CleanupResult(retention, dry_run=True, milliseconds=milliseconds)
    return execute_cleanup(store, config, retention, started)


def execute_cleanup(
    store: Store, config: Config, retention: RetentionPlan, started: float
) -> CleanupResult:
    """Delete the files of a plan, after recording the versions of its commits as retired.

    If the record cannot be written, nothing is deleted. `started` is when the cleanup began, by
    `time.perf_counter`. Raises StoreUnavailable if `cleanup.failurePolicy` is `fail`; otherwise
    failures are in the result.
    """
    result = _delete_planned(store, config, retention)
    result = replace(result, milliseconds=(time.perf_counter() - started) * 1000)
    _report_cleanup(store, result)
    return result


def _report_cleanup(store: Store, result: CleanupResult) -> None:
    """Log and count a cleanup, the deleted files one by one at DEBUG."""
    files, milliseconds = result.log_files, result.milliseconds
    size, failures = result.bytes_freed, len(result.failures)
    metrics = metrics_of(store)
    metrics.add("cleanups")
    metrics.observe("cleanup_ms", milliseconds)
    if files:
        metrics.add("cleanup_files", len(files))
        metrics.add("cleanup_bytes", size)
    if failures:
        metrics.add("cleanup_failures", failures)
    for failure in result.failures:
        DELETION_FAILED.log(table=store.root, reason=failure)
    if LOG_FILE_DELETED.enabled:
        for file in files:
            LOG_FILE_DELETED.log(
                table=store.root,
                path=file.key,
                kind=file.kind,
                version=file.version,
                bytes=file.stat.size,
            )
    if not files:
        CLEANUP_IDLE.log(table=store.root, ms=milliseconds)
        return
    CLEANUP_DONE.log(
        table=store.root,
        files=len(files),
        bytes=size,
        failures=failures,
        earliest_version=result.earliest_version,
        ms=milliseconds,
    )


def _delete_planned(store: Store, config: Config, retention: RetentionPlan) -> CleanupResult:
    deletion = Deletion(store, config, {file.key for file in retention.files_to_delete})
    try:
        obsolete = _retire(
            store, [f.version for f in retention.files_to_delete if f.kind == "commit"]
        )
    except StoreUnavailable as error:
        if config.cleanup_failure_policy == "fail":
            raise
        return CleanupResult(
            retention, dry_run=False, failures=(str(error),), left=frozenset(deletion.left)
        )
    files = [file for file in retention.files_to_delete if file.kind != "manifest"]
    parts = [file for file in files if is_checkpoint_part(file.key.rpartition("/")[2])]
    part_keys = {file.key for file in parts}
    # The parts of a checkpoint last: without its manifest they mean nothing, while a manifest
    # without its parts is a damaged checkpoint. A cleanup may be interrupted at any time.
    deletion.run([file.key for file in files if file.key not in part_keys])
    undeleted = deletion.left - part_keys
    staying = {file.version for file in files if file.key in undeleted}
    released = [file.key for file in parts if file.version not in staying]
    deletion.run([key for key in released if not is_shareable_part(key)])
    shareable = [file.key for file in parts if is_shareable_part(file.key)]
    if shareable:
        delete_parts(deletion, shareable)
    _delete_state_remains(deletion, retention)
    with suppress(StoreUnavailable):  # harmless leftovers: newer records cover the same versions
        store.delete(obsolete)
    return CleanupResult(
        retention,
        dry_run=False,
        failures=tuple(deletion.failures),
        left=frozenset(deletion.left),
    )


@dataclass(slots=True)
class Deletion:
    """Deletes files in batches; `left` are those that may still exist."""

    store: Store
    config: Config
    left: set[str]
    failures: list[str] = field(default_factory=list)

    def fail(self, error: StoreUnavailable) -> None:
        """Record a failure, or raise it if a setting says so."""
        if self.config.cleanup_failure_policy == "fail":
            raise error
        self.failures.append(str(error))

    def run(self, keys: Sequence[str]) -> None:
        """Delete files. Stops if the store keeps failing, or raises if a setting says so."""
        for start in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = keys[start : start + DELETE_BATCH_KEYS]
            if self.config.cleanup_failure_policy == "fail":
                self.store.delete(batch)
                self.left.difference_update(batch)
                continue
            deleted, errors = delete_files(self.store, batch)
            self.left.difference_update(deleted)
            self.failures += errors
            if len(self.failures) >= MAX_DELETE_FAILURES:
                break


def _delete_state_remains(deletion: Deletion, retention: RetentionPlan) -> None:
    """Delete manifests, once the states that named them are gone, and the folders of states.

    A state that still exists may name them, and so may one that was written since the plan.
    """
    store = deletion.store
    states = [file for file in retention.files_to_delete if file.kind == "state"]
    manifests = [file for file in retention.files_to_delete if file.kind == "manifest"]
    if manifests and not any(file.key in deletion.left for file in states):
        from arrowlog.maintenance.state_files import list_states

        now = list_states(store, deletion.config, store.list_from(LOG_FOLDER))
        deletion.run(now.unnamed(manifests))
    if states and store.cheap_stat:
        with suppress(StoreUnavailable):  # an empty folder is not a state
            store.delete([f"{file.key.rpartition('/')[0]}/" for file in states])


def _retire(store: Store, versions: Sequence[int]) -> list[str]:
    """Record versions as retired and return the keys of records that are now redundant."""
    if not versions:
        return []
    folder = f"{LOG_FOLDER}/{RETIRED}"
    names = store.list_from(folder)
    ranges = parse_retired_records(names).union(versions).ranges
    for first, last in ranges:
        name = retired_record_name(first, last)
        if name not in names:
            text = f'{{"first":{first},"last":{last}}}'
            put_identical(store, f"{folder}/{name}", text.encode())
    return [f"{folder}/{name}" for name in superseded_records(names, ranges)]


def delete_files(store: Store, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Delete files; return the keys of those that are gone for certain, and the errors.

    If the store fails, the files are deleted one by one, so that one failure does not keep the
    others. That stops after `MAX_DELETE_FAILURES` failures in a row.
    """
    try:
        store.delete(keys)
    except StoreUnavailable:
        pass
    else:
        return list(keys), []
    deleted: list[str] = []
    failures: list[str] = []
    consecutive = 0
    for key in keys:
        try:
            store.delete([key])
            deleted.append(key)
            consecutive = 0
        except StoreUnavailable as error:
            failures.append(str(error))
            consecutive += 1
        if consecutive == MAX_DELETE_FAILURES:
            break
    return deleted + _find_deleted(store, sorted(set(keys) - set(deleted))), failures


def _find_deleted(store: Store, keys: Sequence[str]) -> list[str]:
    """Return those files that are gone: a deletion may have happened although its answer was lost.

    Files that the store does not answer for count as existing, and so do all after the first one.
    """
    gone: list[str] = []
    with suppress(StoreUnavailable):
        gone += (key for key in keys if store.stat(key) is None)
    return gone


def retry_after_cleanup(run: Callable[[], _Result]) -> _Result:
    """Run; if a listed file of the log is gone, a concurrent cleanup may have deleted it: rerun.

    Raises LogCorrupt if files keep vanishing.
    """
    for attempt in range(_MAX_ATTEMPTS):
        try:
            return run()
        except FileNotFoundError as error:
            if attempt == _MAX_ATTEMPTS - 1:
                raise LogCorrupt(
                    "it was listed, but was deleted before it could be read.",
                    next="Another process is deleting files of the log; try again when it has"
                    " finished.",
                    file=str(error),
                ) from None
    raise AssertionError  # the last attempt returns or raises


def describe_failures(result: CleanupResult) -> str:
    """Describe the failed deletions of a cleanup; there must be at least one."""
    return f"{len(result.failures)} deletions failed, the first: {result.failures[0]}"


_PARTS_FOLDER = f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}"
# How long the record of a deleted part is kept: a suspended process may name it until then.
_RECORD_AGE_MS_MIN = 7 * 24 * 3_600_000


def is_shareable_part(key: str) -> bool:
    """Whether a file is a part that other checkpoints than its own may name."""
    folder, _, name = key.rpartition("/")
    parsed = parse_parquet_part(name) if folder == _PARTS_FOLDER else None
    return parsed is not None and bool(parsed[1])


def find_all_named_parts(
    store: Store, listing: LogListing, parts: frozenset[str]
) -> dict[int, frozenset[str]]:
    """Return which of `parts` the manifest of each checkpoint names, by version.

    A manifest that cannot be read may name any of them.
    """
    named: dict[int, frozenset[str]] = {}
    for version in listing.checkpoints:
        form = listing.checkpoint_form(version, "parquet")
        if form is None:
            continue
        try:
            found = find_named_parts(store, version, form.keys)
        except FileNotFoundError:  # deleted meanwhile
            continue
        named[version] = parts if found is None else parts & found
    return named


def delete_parts(deletion: Deletion, keys: Sequence[str]) -> None:
    """Delete parts that no manifest names any more; all other files of the plan are gone by now.

    A part that cannot be recorded, or that a manifest has named since the plan, stays.
    """
    store = deletion.store
    try:
        _record_retired_parts(store, keys)
        needed = _find_needed_parts(store, keys)
    except StoreUnavailable as error:
        deletion.fail(error)
        return
    deletion.run([key for key in keys if key not in needed])
    with suppress(StoreUnavailable):  # harmless leftovers
        store.delete(_old_records(store, needed))


def _record_retired_parts(store: Store, keys: Sequence[str]) -> None:
    for key in keys:
        put_identical(store, retired_part_name(key), b"{}")


def _find_needed_parts(store: Store, keys: Sequence[str]) -> frozenset[str]:
    """Return the parts that manifests name now, after the parts were recorded as retired."""
    listing = classify_names((), store.list_from(_PARTS_FOLDER))
    return frozenset().union(*find_all_named_parts(store, listing, frozenset(keys)).values())


def _old_records(store: Store, needed: Collection[str]) -> list[str]:
    """Return the records of parts that were deleted too long ago for a manifest to name them."""
    stats = store.stats_from(_PARTS_FOLDER)
    now_ms = max((stat.mtime_ms for stat in stats.values()), default=0)
    return [
        f"{_PARTS_FOLDER}/{name}"
        for name, stat in stats.items()
        if name.endswith(RETIRED_PART_SUFFIX)
        and name.removesuffix(RETIRED_PART_SUFFIX) not in stats
        and f"{_PARTS_FOLDER}/{name.removesuffix(RETIRED_PART_SUFFIX)}" not in needed
        and 0 <= stat.mtime_ms < now_ms - _RECORD_AGE_MS_MIN
    ]
