"""Log cleanup: delete commits and checkpoints that retention no longer protects.

Deleting a commit makes its version free again, so a stalled writer can succeed in putting its
commit there although no reader will ever see it. Two rules make that harmless (decision 17):

1. Before a commit is deleted, its version is recorded as retired. Readers ignore commit files at
   retired versions, and a writer checks the records before it acknowledges a commit.
2. Over a network, where that check costs a request, no commit is deleted before it is
   `MIN_COMMIT_AGE_SECONDS` old. A writer that finished quickly enough can skip the check.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt, StoreUnavailable
from arrowlog.log.names import CHECKPOINTS, LOG, read_listing
from arrowlog.log.retired import FOLDER as RETIRED
from arrowlog.log.retired import read_records, record_name, superseded
from arrowlog.log.segment import checkpoint_versions, plan
from arrowlog.log.store import Stat
from arrowlog.log.store.base import put_same
from arrowlog.state.checkpoint import json_name
from arrowlog.state.listing import TRUST_SECONDS, without_retired
from arrowlog.state.load import verify_checkpoint
from arrowlog.upkeep.retention import File, Policy, Retention, decide, sort_files
from arrowlog.upkeep.skipped import held_commits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

_LOG = logging.getLogger("arrowlog")
_DELETE_BATCH_KEYS = 1000  # the limit of one S3 DeleteObjects request
# A concurrent cleanup can retire versions between our listings of the log folder and of
# `_checkpoints`. The listing is repeated until it is consistent with the retirement records.
_MAX_LISTINGS = 5
# With this many failures (in a row within a batch, or in total over batches), the store is failing
# rather than single files, and the run stops.
_MAX_FAILURES = 3
# Far below any age that a wrong clock can produce (ages may be negative), without overflowing.
_NO_MINIMUM_AGE = -(1 << 62)
AT_ONCE = Policy(_NO_MINIMUM_AGE, _NO_MINIMUM_AGE)  # retain nothing because of its age
# The factor covers clock rates, timestamps rounded to seconds, and slow listings.
MIN_COMMIT_AGE_SECONDS = 3 * TRUST_SECONDS


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The files that cleanup deleted or, with `dry_run`, would have deleted.

    `failures` holds one error message per failed deletion. The files concerned are still counted
    in the properties below.
    """

    retention: Retention
    dry_run: bool
    failures: tuple[str, ...] = ()

    @property
    def files(self) -> pa.Table:
        """One row per file: path, kind, version, size_bytes, modification_time."""
        return self.retention.files

    @property
    def num_files(self) -> int:
        """Number of files."""
        return self.retention.num_files

    @property
    def num_too_young(self) -> int:
        """Number of commits kept only because they are younger than `MIN_COMMIT_AGE_SECONDS`."""
        return self.retention.num_too_young

    @property
    def bytes_freed(self) -> int:
        """Total size of the files."""
        return self.retention.bytes_freed

    @property
    def earliest_version(self) -> int:
        """The version from which on every version can be read after the cleanup."""
        return self.retention.earliest_version


def policy_of(config: Config) -> Policy:
    """Return the retention policy that the settings define."""
    commits = config.checkpoint_retention if "checkpoint_retention" in config.given else 0
    return Policy(config.log_retention_ms, config.checkpoint_retention_ms, commits)


def foresee(
    store: Store, config: Config, policy: Policy, now_ms: int, *, spare_young: bool = True
) -> Retention:
    """Plan a cleanup without deleting anything.

    `spare_young` keeps commits younger than `MIN_COMMIT_AGE_SECONDS`. Commits with a merge skip in
    its cooldown are always kept, because checkpoints do not hold skips. Every checkpoint that a
    readable version will depend on afterwards is verified first.

    Raises LogCorrupt if the log has a gap.
    """
    listing, files = _list_files(store)
    dead = listing.dead
    verified, bad = _newest_verified_checkpoint(store, listing, config)
    version = _latest_contiguous_version(store, listing, bad)
    young = young_commits(store, files) if spare_young else frozenset()
    checked = {verified}
    for _ in range(len(files) + 1):
        retention = decide(files, version, verified, policy, now_ms, bad, young, dead)
        unchecked = [version for version in retention.starts if version not in checked]
        if not unchecked:
            doomed_commits = [file for file in retention.doomed if file.kind == "commit"]
            held = held_commits(store, config, [(f.version, f.key) for f in doomed_commits], now_ms)
            if held:
                retention = decide(
                    files, version, verified, policy, now_ms, bad, young | held, dead
                )
            if not young:
                return retention
            without_young_rule = decide(files, version, verified, policy, now_ms, bad, held, dead)
            num_too_young = without_young_rule.num_commits - retention.num_commits
            return replace(retention, num_too_young=num_too_young)
        # The plan depends on checkpoints that were not verified yet, usually just one: the oldest
        # that stays. If one is bad, the plan changes and may depend on others.
        checked |= set(unchecked)
        bad |= {v for v in unchecked if verify_checkpoint(store, listing, v, config)}
    raise AssertionError  # each round verifies at least one more checkpoint


def foresee_truncation(store: Store, config: Config, now_ms: int) -> Retention:
    """Plan a truncation: checkpoint the latest version and delete everything before it.

    The plan assumes that the checkpoint exists, whether or not it has been written yet.

    Raises LogCorrupt if the log has a gap.
    """
    listing, files = _list_files(store)
    _, bad = _newest_verified_checkpoint(store, listing, config)
    version = _latest_contiguous_version(store, listing, bad)
    if not any(file.kind == "checkpoint" and file.version == version for file in files):
        files.append(File(f"{LOG}/{json_name(version)}", "checkpoint", version, Stat(0, now_ms)))
    dead = listing.dead
    retention = decide(files, version, version, AT_ONCE, now_ms, dead=dead)
    doomed_commits = [
        (file.version, file.key) for file in retention.doomed if file.kind == "commit"
    ]
    held = held_commits(store, config, doomed_commits, now_ms)
    return decide(files, version, version, AT_ONCE, now_ms, (), held, dead)


def young_commits(store: Store, files: Sequence[File]) -> frozenset[int]:
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


def _list_files(store: Store) -> tuple[Listing, list[File]]:
    """List the log with modification times, consistently with the retirement records."""
    for _ in range(_MAX_LISTINGS):
        listing, files = _list_files_once(store)
        if not listing.overtaken:
            break
    return listing, files


def _list_files_once(store: Store) -> tuple[Listing, list[File]]:
    log = store.stats_from(LOG)
    checkpoints = store.stats_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in log else {}
    listing = without_retired(store, read_listing(sorted(log), sorted(checkpoints)), log)
    return listing, sort_files(log, checkpoints)


def _latest_contiguous_version(store: Store, listing: Listing, bad: set[int]) -> int:
    """Return the latest version. Raises LogCorrupt if a version before it is missing."""
    segment = plan(listing, None, bad)
    if segment.gap is None:
        return segment.version
    raise LogCorrupt(
        f"{store.root} cannot be cleaned up: {segment.gap}.",
        next="Restore the missing file first: commits after the gap may still be needed.",
        version=segment.gap.missing,
    )


def _newest_verified_checkpoint(
    store: Store, listing: Listing, config: Config
) -> tuple[int | None, set[int]]:
    """Return the newest checkpoint that verifies, and the newer ones that do not."""
    bad: set[int] = set()
    for version in checkpoint_versions(listing):
        if not verify_checkpoint(store, listing, version, config):
            return version, bad
        bad.add(version)
    return None, bad


def cleanup(
    store: Store, config: Config, policy: Policy, now_ms: int, *, dry_run: bool
) -> CleanupResult:
    """Delete the files that the policy releases, or with `dry_run` only list them.

    Raises LogCorrupt if the log has a gap, and StoreUnavailable if a deletion fails and
    `cleanup.failurePolicy` is `fail`; otherwise failed deletions are in the result.
    """
    retention = foresee(store, config, policy, now_ms)
    if retention.num_too_young:
        _LOG.info(
            "%s: %d commits are kept until they are %.0f s old",
            store.root,
            retention.num_too_young,
            MIN_COMMIT_AGE_SECONDS,
        )
    if dry_run:
        return CleanupResult(retention, dry_run=True)
    return carry_out(store, config, retention)


def carry_out(store: Store, config: Config, retention: Retention) -> CleanupResult:
    """Delete the files of a plan, after recording the versions of its commits as retired.

    If the record cannot be written, nothing is deleted. Raises StoreUnavailable if
    `cleanup.failurePolicy` is `fail`; otherwise failures are in the result.
    """
    keys = [file.key for file in retention.doomed]
    failures: list[str] = []
    try:
        obsolete = _retire(store, [f.version for f in retention.doomed if f.kind == "commit"])
    except StoreUnavailable as error:
        if config.cleanup_failure_policy == "fail":
            raise
        return CleanupResult(retention, dry_run=False, failures=(str(error),))
    for start in range(0, len(keys), _DELETE_BATCH_KEYS):
        batch = keys[start : start + _DELETE_BATCH_KEYS]
        try:
            store.delete(batch)
        except StoreUnavailable:
            if config.cleanup_failure_policy == "fail":
                raise
            failures += delete_each(store, batch)
            if len(failures) >= _MAX_FAILURES:
                break
    with suppress(StoreUnavailable):  # harmless leftovers: newer records cover the same versions
        store.delete(obsolete)
    return CleanupResult(retention, dry_run=False, failures=tuple(failures))


def _retire(store: Store, versions: Sequence[int]) -> list[str]:
    """Record versions as retired and return the keys of records that are now redundant."""
    if not versions:
        return []
    folder = f"{LOG}/{RETIRED}"
    names = store.list_from(folder)
    ranges = read_records(names).union(versions).ranges
    for first, last in ranges:
        name = record_name(first, last)
        if name not in names:
            text = f'{{"first":{first},"last":{last}}}'
            put_same(store, f"{folder}/{name}", text.encode())
    return [f"{folder}/{name}" for name in superseded(names, ranges)]


def delete_each(store: Store, keys: Sequence[str]) -> list[str]:
    """Delete files one by one, so that one failure does not keep the others; return the errors.

    Stops after `_MAX_FAILURES` failures in a row.
    """
    failures: list[str] = []
    consecutive = 0
    for key in keys:
        try:
            store.delete([key])
            consecutive = 0
        except StoreUnavailable as error:
            failures.append(str(error))
            consecutive += 1
        if consecutive == _MAX_FAILURES:
            break
    return failures


def failed(result: CleanupResult) -> str:
    """Describe the failed deletions of a cleanup; there must be at least one."""
    return f"{len(result.failures)} deletions failed, the first: {result.failures[0]}"
