"""Upkeep as a user asks for it, one function each."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from arrowlog.commit.operations import upgrade_protocol
from arrowlog.config import parse_duration_ms
from arrowlog.errors import ArrowlogWarning, InvalidRequest
from arrowlog.state.apply import check_writable
from arrowlog.state.listing import list_log
from arrowlog.state.travel import Moment, to_millis
from arrowlog.upkeep.checkpoints import FEATURE, make_checkpoint
from arrowlog.upkeep.cleanup import (
    AT_ONCE,
    MIN_COMMIT_AGE_SECONDS,
    CleanupResult,
    carry_out,
    cleanup,
    failed,
    foresee,
    foresee_truncation,
    policy_of,
)
from arrowlog.upkeep.compact import compact as compact_files
from arrowlog.upkeep.compact import wish
from arrowlog.upkeep.retention import Policy, Retention
from arrowlog.upkeep.vacuum import vacuum as vacuum_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.commit.committer import Committer
    from arrowlog.state.checkpoint import CheckpointResult
    from arrowlog.upkeep.checkpoints import Keeper
    from arrowlog.upkeep.compact import CompactResult, Wish
    from arrowlog.upkeep.vacuum import Progress, VacuumResult

_READER = 3
_LOG = logging.getLogger("arrowlog")
__all__ = ["checkpoint", "clean", "compact", "foretell", "truncate_history", "vacuum", "wish"]


def checkpoint(committer: Committer, keeper: Keeper) -> CheckpointResult:
    """Make the checkpoint of the newest version."""
    snapshot = committer.look()
    config = committer.config(committer.head_of(snapshot))
    if config.checkpoint_format == "parquet" and FEATURE not in snapshot.protocol.reader_features:
        # Older readers could not follow once the commits are cleaned up, so they must be told.
        upgrade_protocol(committer, _READER, _READER, [FEATURE], [FEATURE])
        snapshot = committer.look()
    listing = list_log(committer.store)
    result = make_checkpoint(committer.store, listing, snapshot.state, config, committer.clock)
    keeper.made(result.version)
    return result


def clean(committer: Committer, *, dry_run: bool | None) -> CleanupResult:
    """Delete what may go."""
    config = committer.config(committer.head_of(committer.seen()))
    dry = config.cleanup_dry_run if dry_run is None else dry_run
    now = committer.clock.now_ms()
    result = cleanup(committer.store, config, policy_of(config), now, dry_run=dry)
    if result.failures:
        warnings.warn(f"{committer.store.root}: {failed(result)}", ArrowlogWarning, stacklevel=3)
    return result


def foretell(
    committer: Committer, log: str | int | None, checkpoints: str | int | None, now: Moment | None
) -> Retention:
    """What a policy would do."""
    config = committer.config(committer.head_of(committer.seen()))
    usual = policy_of(config)
    policy = Policy(
        usual.log_ms if log is None else _millis(log, "log_retention"),
        usual.checkpoint_ms
        if checkpoints is None
        else _millis(checkpoints, "checkpoint_retention"),
        usual.commits,
    )
    moment = committer.clock.now_ms() if now is None else to_millis(now)
    return foresee(committer.store, config, policy, moment)


def _millis(given: str | int, name: str) -> int:
    try:
        return parse_duration_ms(given)
    except ValueError as error:
        raise InvalidRequest(f"{name} is {given!r}.", next=f"Allowed: {error}.") from None


def vacuum(
    committer: Committer,
    older_than: str | int,
    *,
    dry_run: bool,
    insist: bool,
    progress: Progress | None,
) -> VacuumResult:
    """Delete data files that nobody needs."""
    config = committer.config(committer.head_of(committer.seen()))
    result = vacuum_files(
        committer.store,
        config,
        _millis(older_than, "older_than"),
        committer.clock.now_ms(),
        dry_run=dry_run,
        insist=insist,
        progress=progress,
    )
    if result.failures:
        what = f"{len(result.failures)} deletions failed, the first: {result.failures[0]}"
        warnings.warn(f"{committer.store.root}: {what}", ArrowlogWarning, stacklevel=3)
    return result


def compact(
    committer: Committer,
    wanted: Wish,
    *,
    dry_run: bool,
    spark: Any = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactResult:
    """Make large files of small ones: in this process, or as tasks of Spark."""
    runner = None
    if spark is not None and not committer.store.root.startswith("memory:"):
        from arrowlog.spark.compact import runner_on

        runner = runner_on(spark, committer, options or {})
    return compact_files(committer, wanted, dry_run=dry_run, runner=runner, progress=progress)


def _let_commits_age(committer: Committer, found: Retention) -> None:
    """Over a network, wait until the commits that go are old enough for writers to rely on.

    Ages are by the store's clock alone: the newest file of the log tells what time it is there.
    """
    times = [file.stat.mtime_ms for file in found.doomed if file.kind == "commit"]
    if committer.store.cheap_stat or not times:
        return
    youngest = found.store_time_ms if min(times) < 0 else max(times)  # below 0: not known
    left = MIN_COMMIT_AGE_SECONDS - (found.store_time_ms - youngest) / 1000
    if left > 0:
        _LOG.info(
            "%s: truncation waits %.0f s, until the commits that go are %.0f s old",
            committer.store.root,
            left,
            MIN_COMMIT_AGE_SECONDS,
        )
        committer.clock.sleep(left)


def truncate_history(committer: Committer, keeper: Keeper, *, dry_run: bool) -> CleanupResult:
    """Make a checkpoint of the newest version and delete the commits and checkpoints before it."""
    snapshot = committer.look()
    config = committer.config(committer.head_of(snapshot))
    check_writable(snapshot.protocol, committer.store.root)
    now = committer.clock.now_ms()
    if dry_run:
        return CleanupResult(foresee_truncation(committer.store, config, now), dry_run=True)
    checkpoint(committer, keeper)
    found = foresee(committer.store, config, AT_ONCE, now, spare_young=False)
    _let_commits_age(committer, found)
    result = carry_out(committer.store, config, found)  # and nothing that came meanwhile
    if result.failures:
        warnings.warn(f"{committer.store.root}: {failed(result)}", ArrowlogWarning, stacklevel=3)
    return result
