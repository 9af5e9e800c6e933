"""Delete what a log no longer needs, or say what would go.

A version whose commit is deleted is empty again, and a writer that was stalled may put its commit
there, where it does not count. Two rules make that harmless. Before a commit is deleted, its
version is recorded as retired, so that the writer, and every reader, can tell. And over a network,
where looking costs a request, no commit is deleted before it is `MIN_COMMIT_AGE_SECONDS` old, so
that a writer that was quick need not look. See decision 17.
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
_AT_ONCE = 1000
_LISTINGS_MAX = 5  # until none is older than the records of what others have deleted
_FAILURES_MAX = 3  # in a row; then it is the store that fails
_EVER = -(1 << 62)  # younger than whatever a wrong clock makes of an age
AT_ONCE = Policy(_EVER, _EVER)  # keep nothing for its age
MIN_COMMIT_AGE_SECONDS = 3 * TRUST_SECONDS


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What clean-up did, or with `dry_run` would have done."""

    retention: Retention
    dry_run: bool
    failures: tuple[str, ...] = ()

    @property
    def files(self) -> pa.Table:
        """The files: path, kind, version, size_bytes, modification_time."""
        return self.retention.files

    @property
    def num_files(self) -> int:
        """How many files."""
        return self.retention.num_files

    @property
    def num_too_young(self) -> int:
        """How many commits stay only because they are younger than `MIN_COMMIT_AGE_SECONDS`."""
        return self.retention.num_too_young

    @property
    def bytes_freed(self) -> int:
        """How many bytes they have."""
        return self.retention.bytes_freed

    @property
    def earliest_version(self) -> int:
        """The lowest version from which on every version can be read afterwards."""
        return self.retention.earliest_version


def policy_of(config: Config) -> Policy:
    """The policy that the settings make."""
    commits = config.checkpoint_retention if "checkpoint_retention" in config.given else 0
    return Policy(config.log_retention_ms, config.checkpoint_retention_ms, commits)


def foresee(
    store: Store, config: Config, policy: Policy, now_ms: int, *, spare_young: bool = True
) -> Retention:
    """What clean-up would do now.

    With `spare_young`, commits stay that are too young for writers to have noticed them.
    """
    listing, files = _look(store)
    dead = listing.dead
    verified, bad = _newest_verified(store, listing, config)
    version = _whole(store, listing, bad)
    young = young_commits(store, files) if spare_young else frozenset()
    known = {verified}
    for _ in range(len(files) + 1):
        found = decide(files, version, verified, policy, now_ms, bad, young, dead)
        unproven = [version for version in found.starts if version not in known]
        if not unproven:
            doomed = [file for file in found.doomed if file.kind == "commit"]
            held = held_commits(store, config, [(f.version, f.key) for f in doomed], now_ms)
            if held:
                found = decide(files, version, verified, policy, now_ms, bad, young | held, dead)
            if not young:
                return found
            other = decide(files, version, verified, policy, now_ms, bad, held, dead)
            return replace(found, num_too_young=other.num_commits - found.num_commits)
        # What is promised rests on these. Nearly always it is one: the oldest that stays.
        known |= set(unproven)
        bad |= {v for v in unproven if verify_checkpoint(store, listing, v, config)}
    raise AssertionError  # every round learns of a checkpoint


def foresee_truncation(store: Store, config: Config, now_ms: int) -> Retention:
    """What stays if the newest version gets a checkpoint and everything before it goes."""
    listing, files = _look(store)
    _, bad = _newest_verified(store, listing, config)
    version = _whole(store, listing, bad)
    if not any(file.kind == "checkpoint" and file.version == version for file in files):
        files.append(File(f"{LOG}/{json_name(version)}", "checkpoint", version, Stat(0, now_ms)))
    dead = listing.dead
    found = decide(files, version, version, AT_ONCE, now_ms, dead=dead)
    doomed = [(file.version, file.key) for file in found.doomed if file.kind == "commit"]
    held = held_commits(store, config, doomed, now_ms)
    return decide(files, version, version, AT_ONCE, now_ms, (), held, dead)


def young_commits(store: Store, files: Sequence[File]) -> frozenset[int]:
    """Versions whose commits must stay, so that a quick writer needs no look at the log.

    Ages are by the store's own clock: no file is newer than the store's present. Where looking is
    cheap, writers always look, and nothing has to stay.
    """
    if store.cheap_stat:
        return frozenset()
    now = max((file.stat.mtime_ms for file in files), default=0)
    return frozenset(
        file.version
        for file in files
        if file.kind == "commit"
        and (file.stat.mtime_ms < 0 or now - file.stat.mtime_ms < MIN_COMMIT_AGE_SECONDS * 1000)
    )


def _look(store: Store) -> tuple[Listing, list[File]]:
    """The log's files with their times."""
    for _ in range(_LISTINGS_MAX):
        listing, files = _look_once(store)
        if not listing.overtaken:
            break
    return listing, files


def _look_once(store: Store) -> tuple[Listing, list[File]]:
    log = store.stats_from(LOG)
    inner = store.stats_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in log else {}
    listing = without_retired(store, read_listing(sorted(log), sorted(inner)), log)
    return listing, sort_files(log, inner)


def _whole(store: Store, listing: Listing, bad: set[int]) -> int:
    """The newest version, if nothing is missing before it."""
    segment = plan(listing, None, bad)
    if segment.gap is None:
        return segment.version
    raise LogCorrupt(
        f"{store.root} cannot be cleaned up: {segment.gap}.",
        next="Restore the missing file first: what lies behind the gap may still be needed.",
        version=segment.gap.missing,
    )


def _newest_verified(store: Store, listing: Listing, config: Config) -> tuple[int | None, set[int]]:
    """The newest checkpoint that was read and found whole, and the newer ones that are not."""
    bad: set[int] = set()
    for version in checkpoint_versions(listing):
        if not verify_checkpoint(store, listing, version, config):
            return version, bad
        bad.add(version)
    return None, bad


def cleanup(
    store: Store, config: Config, policy: Policy, now_ms: int, *, dry_run: bool
) -> CleanupResult:
    """Delete what may go."""
    retention = foresee(store, config, policy, now_ms)
    if retention.num_too_young:
        _LOG.info(
            "%s: %d commits stay until they are %.0f s old",
            store.root,
            retention.num_too_young,
            MIN_COMMIT_AGE_SECONDS,
        )
    if dry_run:
        return CleanupResult(retention, dry_run=True)
    return carry_out(store, config, retention)


def carry_out(store: Store, config: Config, retention: Retention) -> CleanupResult:
    """Delete what was foreseen, after it is recorded which commits go."""
    keys = [file.key for file in retention.doomed]
    failures: list[str] = []
    try:
        obsolete = _retire(store, [f.version for f in retention.doomed if f.kind == "commit"])
    except StoreUnavailable as error:
        if config.cleanup_failure_policy == "fail":
            raise
        return CleanupResult(retention, dry_run=False, failures=(str(error),))
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        try:
            store.delete(some)
        except StoreUnavailable:
            if config.cleanup_failure_policy == "fail":
                raise
            failures += delete_each(store, some)
            if len(failures) >= _FAILURES_MAX:
                break
    with suppress(StoreUnavailable):  # they say nothing that the newer ones do not
        store.delete(obsolete)
    return CleanupResult(retention, dry_run=False, failures=tuple(failures))


def _retire(store: Store, versions: Sequence[int]) -> list[str]:
    """Record that commits are about to be deleted; returns the records that are obsolete now."""
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
    """One that cannot be deleted must not keep the others; what went wrong."""
    failures: list[str] = []
    row = 0
    for key in keys:
        try:
            store.delete([key])
            row = 0
        except StoreUnavailable as error:
            failures.append(str(error))
            row += 1
        if row == _FAILURES_MAX:
            break
    return failures


def failed(result: CleanupResult) -> str:
    """What clean-up could not do, in words."""
    return f"{len(result.failures)} deletions failed, the first: {result.failures[0]}"
