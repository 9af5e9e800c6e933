"""Delete what a log no longer needs, or say what would go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import LogCorrupt, StoreUnavailable
from arrowlog.log.names import CHECKPOINTS, LOG, read_listing
from arrowlog.log.segment import checkpoint_versions, plan
from arrowlog.log.store import Stat
from arrowlog.state.checkpoint import json_name
from arrowlog.state.load import verify_checkpoint
from arrowlog.upkeep.retention import File, Policy, Retention, decide, sort_files
from arrowlog.upkeep.skipped import held_commits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

_AT_ONCE = 1000
_FAILURES_MAX = 3  # in a row; then it is the store that fails
_EVER = -(1 << 62)  # younger than whatever a wrong clock makes of an age
AT_ONCE = Policy(_EVER, _EVER)  # keep nothing for its age


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


def foresee(store: Store, config: Config, policy: Policy, now_ms: int) -> Retention:
    """What clean-up would do now."""
    listing, files = _look(store)
    verified, bad = _newest_verified(store, listing, config)
    version = _whole(store, listing, bad)
    known = {verified}
    for _ in range(len(files) + 1):
        found = decide(files, version, verified, policy, now_ms, bad)
        unproven = [version for version in found.starts if version not in known]
        if not unproven:
            doomed = [file for file in found.doomed if file.kind == "commit"]
            held = held_commits(store, config, [(f.version, f.key) for f in doomed], now_ms)
            if not held:
                return found
            return decide(files, version, verified, policy, now_ms, bad, held)
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
    found = decide(files, version, version, AT_ONCE, now_ms)
    doomed = [(file.version, file.key) for file in found.doomed if file.kind == "commit"]
    held = held_commits(store, config, doomed, now_ms)
    return decide(files, version, version, AT_ONCE, now_ms, (), held)


def _look(store: Store) -> tuple[Listing, list[File]]:
    log = store.stats_from(LOG)
    inner = store.stats_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in log else {}
    return read_listing(sorted(log), sorted(inner)), sort_files(log, inner)


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
    if dry_run:
        return CleanupResult(retention, dry_run=True)
    return carry_out(store, config, retention)


def carry_out(store: Store, config: Config, retention: Retention) -> CleanupResult:
    """Delete what was foreseen."""
    keys = [file.key for file in retention.doomed]
    failures: list[str] = []
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
    return CleanupResult(retention, dry_run=False, failures=tuple(failures))


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
