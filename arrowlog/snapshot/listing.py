"""Lists a log: which commits and checkpoints exist, by version.

Commits at retired versions are left out (decision 17), so that code that uses a listing need not
know of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from arrowlog.clock import COUNTS_SUSPENSION, boottime
from arrowlog.errors import LogCorrupt, TableNotFound
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    RETIRED_FOLDER,
    RetiredVersions,
    classify_names,
    parse_retired_records,
)
from arrowlog.snapshot.checkpoint.json import read_pointer
from arrowlog.snapshot.log_segment import retired_record_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.formats.indextables import CommitFile, LogListing
    from arrowlog.storage import Store

# How long an observation of the log can be relied on over a network without asking again. Clean-up
# leaves every commit alone for three times as long (`upkeep.cleanup.MIN_COMMIT_AGE_SECONDS`), so a
# version that was empty this long ago cannot have been committed and deleted since. The factor
# covers clock rates, the store's rounding of times to seconds, and listings that take a while.
OBSERVATION_TRUST_SECONDS = 10.0
# Attempts at a listing in which no truncation came between the listed folders.
_ATTEMPTS_MAX = 5


def list_log(store: Store) -> LogListing:
    """List the whole log. Raises `TableNotFound` if there is none."""
    return _consistent(lambda: _list_all(store))


def _consistent(list_once: Callable[[], LogListing]) -> LogListing:
    """Return a listing that shows a checkpoint above every retired version.

    Folders are listed one after the other; a checkpoint and a truncation may happen in between, and
    the listing is repeated. If no such checkpoint appears, it is lost or the record is wrong, and
    `LogCorrupt` is raised: without its retired commits the table would look older than it is.
    """
    for attempt in range(_ATTEMPTS_MAX):
        try:
            listing = list_once()
        except _CheckpointsLost:  # or the first one was written while the names were listed
            if attempt == _ATTEMPTS_MAX - 1:
                raise
            continue
        if not listing.overtaken:
            return listing
    raise retired_record_error(listing)


class _CheckpointsLost(LogCorrupt):
    """The pointer names a checkpoint, but the log has nothing but version 0."""


def _list_all(store: Store) -> LogListing:
    observed = boottime()
    names = store.list_from(LOG_FOLDER)
    has_checkpoints = CHECKPOINT_FOLDER_NAME in names
    checkpoint_names = (
        store.list_from(f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}") if has_checkpoints else []
    )
    listing = replace(classify_names(names, checkpoint_names), observed=observed)
    if listing.empty:
        raise TableNotFound(
            f"There is no table at {store.root}: {LOG_FOLDER}/ has no commits.",
            next="Check the address and your access to it, or create a table with Table.create.",
        )
    listing = without_retired(store, listing, names)
    if LAST_CHECKPOINT in names and not (listing.json_checkpoints or listing.parquet_checkpoints):
        _check_pointer_is_reached(store, listing)
    return listing


def _check_pointer_is_reached(store: Store, listing: LogListing) -> None:
    """Raise `LogCorrupt` if the pointer names a checkpoint, and nothing is left but version 0.

    Such a table would look like a new one. Otherwise the pointer is only a hint.
    """
    pointed = read_pointer(store)
    if pointed > 0 and max(listing.commits, default=0) == 0 and not listing.retired:
        raise _CheckpointsLost(
            f"the pointer names a checkpoint of version {pointed}, but all commits after version 0"
            " and all checkpoints are gone.",
            next="Restore them from a backup, or delete the pointer if it is wrong.",
            file=f"{LOG_FOLDER}/{LAST_CHECKPOINT}",
            version=pointed,
        )


def list_recent(store: Store) -> LogListing:
    """List the log from the checkpoint on that `_last_checkpoint` names.

    Over a network, a month of commits is many pages of names, of which opening a table needs only
    the last. The pointer is a hint: if it leads to no checkpoint, the whole log is listed. It is
    read while the checkpoints are listed, so it costs no extra round trip. On a local disk the
    whole log is listed. Raises `TableNotFound` if there is no log.
    """
    if store.cheap_stat:
        return list_log(store)
    return _consistent(lambda: _list_from_pointer(store))


def _list_from_pointer(store: Store) -> LogListing:
    observed = boottime()
    with ThreadPoolExecutor(1) as pool:
        pointer = pool.submit(read_pointer, store)
        checkpoint_names = store.list_from(f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}")
        start = pointer.result()
    if start <= 0:
        return _list_all(store)
    names = store.list_from(LOG_FOLDER, f"{start:020d}")
    listing = replace(classify_names(names, checkpoint_names, start), observed=observed)
    checkpoints = {*listing.json_checkpoints, *listing.parquet_checkpoints}
    if max(checkpoints, default=-1) < start:
        return _list_all(store)
    return without_retired(store, listing, names)


def without_retired(store: Store, listing: LogListing, names: Iterable[str]) -> LogListing:
    """Return the listing without commits at retired versions.

    `names` are all names in the log folder. The records must be listed after the commits: then a
    commit file that a stalled writer put after the real one was deleted always comes with the
    record of that deletion.
    """
    if RETIRED_FOLDER not in names:
        return listing
    return listing.without(list_retired(store))


def check_not_retired(store: Store, commits: Sequence[CommitFile], observed: float) -> None:
    """Check that commit files that were just read are the ones that count.

    `observed` is when they were last seen to belong to the log, by `clock.boottime`. Raises
    `FileNotFoundError` naming a commit that was retired since: the file that was read may be a
    stalled writer's, which does not count. Over a network, no request is made if the observation
    is at most `OBSERVATION_TRUST_SECONDS` old.
    """
    if not commits:
        return
    if (
        not store.cheap_stat
        and COUNTS_SUSPENSION
        and boottime() - observed <= OBSERVATION_TRUST_SECONDS
    ):
        return
    retired = list_retired(store)
    if retired.overlaps(commits[0].version, commits[-1].version):
        for commit in commits:
            if commit.version in retired:
                raise FileNotFoundError(commit.key)


def list_retired(store: Store) -> RetiredVersions:
    """Return the versions whose commits clean-up or truncation may have deleted."""
    return parse_retired_records(store.list_from(f"{LOG_FOLDER}/{RETIRED_FOLDER}"))
