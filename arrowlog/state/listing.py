"""Which files a log has, by version: one listing of each of its folders.

Commits at retired versions are left out of a listing, so nothing behind it needs to know of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from arrowlog.clock import COUNTS_SUSPENSION, boottime
from arrowlog.errors import TableNotFound
from arrowlog.log.names import CHECKPOINTS, LOG, read_listing
from arrowlog.log.retired import FOLDER, RetiredVersions, read_records
from arrowlog.state.checkpoint import read_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

# How long an observation of the log can be relied on over a network without asking again. Clean-up
# leaves every commit alone for three times as long (`upkeep.cleanup.MIN_COMMIT_AGE_SECONDS`), so a
# version that was empty this long ago cannot have been committed and deleted since. The factor
# covers clock rates, the store's rounding of times to seconds, and listings that take a while.
TRUST_SECONDS = 10.0
_LISTINGS_MAX = 5


def list_log(store: Store) -> Listing:
    """Everything in the log folder; `TableNotFound` if there is no log."""
    return _consistent(lambda: _list_all(store))


def _consistent(list_once: Callable[[], Listing]) -> Listing:
    """A listing in which the checkpoint stands above every retired version.

    Folders are listed one after the other, and a checkpoint and a truncation may come in between.
    If the checkpoint stays away, it is missing, and whoever plans with the listing says so.
    """
    for _ in range(_LISTINGS_MAX):
        listing = list_once()
        if not listing.overtaken:
            break
    return listing


def _list_all(store: Store) -> Listing:
    observed = boottime()
    names = store.list_from(LOG)
    inner = store.list_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in names else []
    listing = replace(read_listing(names, inner), observed=observed)
    if listing.empty:
        raise TableNotFound(
            f"There is no table at {store.root}: {LOG}/ has no commits in it.",
            next="Check the address and the access to it, or make one with Table.create.",
        )
    return without_retired(store, listing, names)


def list_recent(store: Store) -> Listing:
    """The log folder from the checkpoint on that the pointer names.

    Over a network, a month of commits is many pages of names, and opening a table needs the last.
    The pointer is a hint: if it leads to no checkpoint, everything is listed. It is read while the
    checkpoints are listed, so it costs no extra round trip.
    """
    if store.cheap_stat:
        return list_log(store)
    return _consistent(lambda: _list_from_pointer(store))


def _list_from_pointer(store: Store) -> Listing:
    observed = boottime()
    with ThreadPoolExecutor(1) as pool:
        hint = pool.submit(read_pointer, store)
        inner = store.list_from(f"{LOG}/{CHECKPOINTS}")
        start = hint.result()
    if start <= 0:
        return _list_all(store)
    names = store.list_from(LOG, f"{start:020d}")
    listing = replace(read_listing(names, inner, start), observed=observed)
    known = {*listing.json_checkpoints, *listing.parquet_checkpoints}
    if max(known, default=-1) < start:
        return _list_all(store)
    return without_retired(store, listing, names)


def without_retired(store: Store, listing: Listing, names: Iterable[str]) -> Listing:
    """The listing without commits that do not count, given the names in the log folder.

    The records are listed after the commits: a commit file that was put after the real one had been
    deleted is seen together with the record of its deletion.
    """
    if FOLDER not in names:
        return listing
    return listing.without(list_retired(store))


def check_current(store: Store, commits: Sequence[tuple[int, str]], observed: float) -> None:
    """Make sure that commit files, just read, were the ones that count.

    `observed` is when they were last seen to belong to the log. `FileNotFoundError` names one that
    was retired since: the file that was read may be another, which does not count.
    """
    if not commits:
        return
    if not store.cheap_stat and COUNTS_SUSPENSION and boottime() - observed <= TRUST_SECONDS:
        return
    retired = list_retired(store)
    if retired.overlaps(commits[0][0], commits[-1][0]):
        for version, name in commits:
            if version in retired:
                raise FileNotFoundError(f"{LOG}/{name}")


def list_retired(store: Store) -> RetiredVersions:
    """The versions whose commits may have been deleted."""
    return read_records(store.list_from(f"{LOG}/{FOLDER}"))
