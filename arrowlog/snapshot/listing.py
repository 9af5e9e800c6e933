"""Lists a log: chooses the table's format, and which commits and checkpoints exist, by version.

Commits at retired versions are left out (decision 17), so that code that uses a listing need not
know of them.
"""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from arrowlog.clock import COUNTS_SUSPENSION, boottime
from arrowlog.errors import ArrowlogError, ArrowlogWarning, LogCorrupt, TableNotFound
from arrowlog.formats import CommitFile, RetiredVersions, parse_retired_records
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot.log_segment import retired_record_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.formats import Format, LogListing
    from arrowlog.storage import ObjectStat, Store

# The formats that a table may have; the first one whose log is there is chosen.
FORMATS: tuple[Format, ...] = (INDEXTABLES, DELTA)
# How long an observation of the log can be relied on over a network without asking again. Cleanup
# leaves every commit alone for three times as long (`maintenance.MIN_COMMIT_AGE_SECONDS`), so a
# version that was empty this long ago cannot have been committed and deleted since. The factor
# covers clock rates, the store's rounding of times to seconds, and listings that take a while.
OBSERVATION_TRUST_SECONDS = 10.0
# How the names of data files end, from which a lost log can be rebuilt.
_DATA_SUFFIXES = (".parquet", ".parq", ".pq")
# Versions in a slice of a listing: their commits and some checkpoints fit one page of 1,000 names.
_SLICE_VERSIONS = 900
_SLICES_MAX = 8
# Attempts at a listing in which no truncation came between the listed folders.
_ATTEMPTS_MAX = 5


def open_log(store: Store) -> LogListing:
    """Choose the format of a table by which log is there, and list its log as `list_recent` does.

    The listing tells the format. If there are logs of several formats, the first in `FORMATS`
    counts; where a stat is cheap, a warning says so. Raises `TableNotFound` naming all log folders
    if there is no log.
    """
    for position, choice in enumerate(FORMATS):
        try:
            listing = list_recent(store, choice)
        except TableNotFound:
            continue
        for other in FORMATS[position + 1 :] if store.cheap_stat else ():
            if store.stat(other.log_folder) is not None and _has_log(store, other):
                warnings.warn(
                    f"{store.root} has several logs: {choice.log_folder}/ is read,"
                    f" {other.log_folder}/ is not",
                    ArrowlogWarning,
                    stacklevel=4,
                )
        return listing
    raise _no_table_error(store, FORMATS, has_data=has_data_files(store))


def has_data_files(store: Store) -> bool:
    """Whether the root has Parquet files or partition folders, as far as one listing tells."""
    try:
        names = store.list_from("")
    except (ArrowlogError, OSError):  # the error about the log is the one to raise
        return False
    return any(
        not name.startswith(".") and (name.lower().endswith(_DATA_SUFFIXES) or "=" in name)
        for name in names
    )


def _no_table_error(
    store: Store, choices: Sequence[Format], *, has_data: bool = False
) -> TableNotFound:
    folders = [f"{choice.log_folder}/" for choice in choices]
    where = f"{folders[0]} has" if len(folders) == 1 else f"neither {' nor '.join(folders)} has"
    missing = "no commits" if len(folders) == 1 else "commits"
    if has_data:
        return TableNotFound(
            f"There is no table at {store.root}: {where} {missing}, but there are data files.",
            next="If the log is lost, restore it from a backup, or make a new one from the files"
            " with arrowlog.rebuild(uri) (`arrowlog rebuild TABLE`); dry_run=True (--dry-run) shows"
            " it first.",
        )
    return TableNotFound(
        f"There is no table at {store.root}: {where} {missing}.",
        next="Check the address and your access to it, or create a table with Table.create.",
    )


def find_other_log(store: Store, table_format: Format = INDEXTABLES) -> Format | None:
    """Return the first other format whose log is there; None if there is no such log."""
    others = (other for other in FORMATS if other.name != table_format.name)
    return next((other for other in others if _has_log(store, other)), None)


def _has_log(store: Store, table_format: Format) -> bool:
    try:
        list_log(store, table_format)
    except TableNotFound:
        return False
    except LogCorrupt:  # damaged, but a log
        return True
    return True


def list_log(store: Store, table_format: Format = INDEXTABLES) -> LogListing:
    """List the whole log. Raises `TableNotFound` if there is none."""
    return _consistent(lambda: _list_all(store, table_format))


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


class _Page(NamedTuple):
    """What the log folder begins with, whether that is all of it, and when it was asked for."""

    stats: dict[str, ObjectStat]
    complete: bool
    observed: float


def _list_all(
    store: Store,
    table_format: Format,
    attempts: int = _ATTEMPTS_MAX,
    page: _Page | None = None,
) -> LogListing:
    """List the log from the start; `page` is what is known of the log folder."""
    observed = boottime() if page is None else page.observed
    names, stats = _list_folder(store, table_format, page=page)
    checkpoints: Mapping[str, ObjectStat | None] = {}
    if table_format.checkpoint_folder in names:
        checkpoints = _list_checkpoints(store, table_format)
    return _listing_of(store, table_format, names, stats, checkpoints, observed, attempts)


def _listing_of(
    store: Store,
    table_format: Format,
    names: Sequence[str],
    stats: Mapping[str, ObjectStat],
    checkpoints: Mapping[str, ObjectStat | None],
    observed: float,
    attempts: int,
) -> LogListing:
    """Return the listing of a whole log from the names in its folders."""
    listing = table_format.classify(names, sorted(checkpoints))
    stats = _with_checkpoint_stats(table_format, stats, checkpoints)
    listing = replace(listing, observed=observed, stats=stats)
    finished = without_failed_states(store, listing)
    if finished.newest < listing.newest and attempts:
        # A state is deleted only after a higher one exists: look whether there is one now.
        names_now = store.list_from(table_format.log_folder)
        if table_format.classify(names_now).newest > listing.newest:
            return _list_all(store, table_format, attempts - 1)
    listing = finished
    if listing.empty:
        raise _no_table_error(store, [table_format])
    listing = _without_remains(store, without_retired(store, listing, names))
    if table_format.pointer_name in names and not listing.checkpoints:
        _check_pointer_is_reached(store, listing)
    return listing


def _without_remains(store: Store, listing: LogListing) -> LogListing:
    """Return the listing without what an interrupted cleanup has left of earlier checkpoints.

    Cleanup deletes the manifest of a Parquet checkpoint before its parts. Parts of ours without a
    manifest are no checkpoint, and the commits that would give their version are retired. Without
    retired versions, or at the newest checkpoint, no file is read.
    """
    if not listing.retired:
        return listing
    first, newest = listing.retired.ranges[0][0], max(listing.checkpoints, default=-1)
    remains: set[int] = set()
    for version, (form, *others) in listing.checkpoints.items():
        if first <= version < newest and form.kind == "parquet" and not others:
            from arrowlog.snapshot.checkpoint.parquet import is_without_manifest

            try:
                if is_without_manifest(store, form.keys):
                    remains.add(version)
            except FileNotFoundError:  # a cleanup has deleted it since it was listed
                remains.add(version)
            except LogCorrupt:  # which program wrote it cannot be told
                pass
    if not remains:
        return listing
    rest = {v: forms for v, forms in listing.checkpoints.items() if v not in remains}
    return replace(listing, checkpoints=rest)


def _list_folder(
    store: Store, table_format: Format, start: str = "", page: _Page | None = None
) -> tuple[list[str], dict[str, ObjectStat]]:
    """Return the names in the log folder from one on, and their stats where they cost nothing.

    `page` is the first page of that listing, if it is known already.
    """
    if store.cheap_stat:
        return store.list_from(table_format.log_folder, start), {}
    stats = _list_in_slices(store, table_format, start, page)
    return sorted(stats), stats


def _list_checkpoints(store: Store, table_format: Format) -> Mapping[str, ObjectStat | None]:
    """Return the names in the checkpoint folder, with their stats where they cost nothing."""
    folder = table_format.key(table_format.checkpoint_folder)
    if store.cheap_stat:
        return dict.fromkeys(store.list_from(folder))
    return dict(store.stats_from(folder))


def _with_checkpoint_stats(
    table_format: Format,
    stats: Mapping[str, ObjectStat],
    checkpoints: Mapping[str, ObjectStat | None],
) -> Mapping[str, ObjectStat]:
    """Return the stats of the files in both folders, by name relative to the log folder."""
    folder = table_format.checkpoint_folder
    inner = {f"{folder}/{name}": stat for name, stat in checkpoints.items() if stat is not None}
    return {**stats, **inner} if inner else stats


def _list_in_slices(
    store: Store, table_format: Format, start: str, first_page: _Page | None = None
) -> dict[str, ObjectStat]:
    """List the log folder with stats; of a long one, several slices at the same time.

    A store returns names page by page, one after the other. The names of commits are numbers, so
    that later pages can be requested without waiting: by ranges of versions, twice as many with
    every round trip. The slices together are all names, but they are seen in any order. Commits
    are made and cleaned up while they are listed: if the versions are not contiguous, a slice was
    seen too early or too late, and the folder is listed again, page by page.
    """
    folder = table_format.log_folder
    page_from = getattr(store, "page_from", None)  # not every store has pages
    if page_from is None:
        return store.stats_from(folder, start)
    stats: dict[str, ObjectStat]
    stats, complete = page_from(folder, start) if first_page is None else first_page[:2]
    if complete:
        return stats
    newest = first = max(table_format.classify(stats).commits, default=-1)
    reached, slices = -1, 1
    while not complete:
        # Without further commits, or if their names sort elsewhere, there is nothing to go by.
        if newest == reached or table_format.commit_name(newest) not in stats:
            return store.stats_from(folder, start)
        reached = newest
        slices = min(2 * slices, _SLICES_MAX)
        starts = [
            table_format.first_name(newest + number * _SLICE_VERSIONS) for number in range(slices)
        ]
        with ThreadPoolExecutor(slices) as pool:
            pages = list(pool.map(lambda name: page_from(folder, name), starts))
        for (page, complete), end in zip(pages, (*starts[1:], None), strict=True):
            if end is not None and not complete and max(page) < end:
                return store.stats_from(folder, start)  # other names than commits fill the pages
            stats |= page
            newest = max(newest, max(table_format.classify(page).commits, default=-1))
    commits = table_format.classify(stats).commits
    if sum(version >= first for version in commits) != newest - first + 1:
        return store.stats_from(folder, start)
    return stats


@dataclass(frozen=True, slots=True)
class LogObservation:
    """A listing of the log, the time at which it began and the folder's tag from before it."""

    listing: LogListing
    started_at: float
    folder_tag: str | None


@dataclass(frozen=True, slots=True)
class TipListing:
    """The log folder from a commit on, with stats, and the time at which the listing began."""

    key: str
    started_at: float
    entries: Mapping[str, ObjectStat | None]


def list_from_tip(store: Store, listing: LogListing) -> TipListing | None:
    """List the log again from the newest commit on; None if names do not sort by version there."""
    tip = listing.commit_file(listing.newest)
    if tip is None or tip.key != listing.format.commit_file(tip.version).key:
        return None
    started_at = boottime()
    entries = store.stats_from(listing.format.log_folder, tip.name)
    return TipListing(tip.key, started_at, entries)


def find_commit(
    store: Store, table_format: Format, version: int, like: str
) -> tuple[CommitFile, ObjectStat | None]:
    """Stat a commit under its usual name and under a name as wide as `like`.

    The stat is None if there is no such commit.
    """
    for name in table_format.commit_name_candidates(version, like):
        commit = CommitFile(version, table_format.key(name))
        stat = store.stat(commit.key)
        if stat is not None:
            break
    return commit, stat


def without_failed_states(store: Store, listing: LogListing, finished: int = -1) -> LogListing:
    """Return the listing without the highest states whose writers never finished them.

    Such a state is a folder without its file. Only the states above the highest finished one are
    looked at; `finished` is the version of one that is known to be. Asks the store for one state,
    if no write has failed. Where a stat is cheap, all versions without a commit are looked at:
    cleanup may have left the folder of a state there.
    """
    failed: set[int] = set()
    reached_finished = False
    for version in sorted(listing.checkpoints, reverse=True):
        state = listing.state_file(version)
        if state is None or (reached_finished and version in listing.commits):
            continue
        if version == finished or store.stat(state.key) is not None:
            if not store.cheap_stat:
                break
            reached_finished = True
        else:
            failed.add(version)
    if not failed:
        return listing
    kinds = listing.format.state_kinds
    checkpoints = {
        version: forms
        if version not in failed
        else tuple(form for form in forms if form.kind not in kinds)
        for version, forms in listing.checkpoints.items()
    }
    return replace(listing, checkpoints={v: forms for v, forms in checkpoints.items() if forms})


def _check_pointer_is_reached(store: Store, listing: LogListing) -> None:
    """Raise `LogCorrupt` if the pointer names a checkpoint, and nothing is left but version 0.

    Such a table would look like a new one. Otherwise the pointer is only a hint.
    """
    if not listing.format.lost_checkpoint_is_error:
        return
    pointed = read_pointer(store, listing.format)
    if pointed > 0 and max(listing.commits, default=0) == 0 and not listing.retired:
        raise _CheckpointsLost(
            f"the pointer names a checkpoint of version {pointed}, but all commits after version 0"
            " and all checkpoints are gone.",
            next="Restore them from a backup, or delete the pointer if it is wrong.",
            file=listing.format.key(listing.format.pointer_name),
            version=pointed,
        )


def list_recent(store: Store, table_format: Format = INDEXTABLES) -> LogListing:
    """List the log from the checkpoint on that `_last_checkpoint` names.

    Over a network, a month of commits is many pages of names, of which opening a table needs only
    the last. The pointer is a hint: if it leads to no checkpoint, the whole log is listed. It is
    read while the checkpoints and the first page of the log are listed, which most logs do not
    exceed; those take one round trip. On a local disk the whole log is listed. Raises
    `TableNotFound` if there is no log.
    """
    if store.cheap_stat:
        return list_log(store, table_format)
    return _consistent(lambda: _list_from_pointer(store, table_format))


def _list_from_pointer(store: Store, table_format: Format) -> LogListing:
    observed = boottime()
    checkpoints: Mapping[str, ObjectStat | None] = {}
    with ThreadPoolExecutor(2) as pool:
        pointer = pool.submit(read_pointer, store, table_format)
        first_page = pool.submit(_first_page, store, table_format)
        if table_format.checkpoint_folder:
            checkpoints = _list_checkpoints(store, table_format)
        start, page = pointer.result(), first_page.result()
    if start <= 0:
        return _list_without_pointer(store, table_format, page, checkpoints)
    first_name = table_format.first_name(start)
    if page is not None and page.complete:
        stats = {name: stat for name, stat in page.stats.items() if name >= first_name}
        names = sorted(stats)
    else:
        names, stats = _list_folder(store, table_format, first_name)
    listing = replace(
        table_format.classify(names, sorted(checkpoints), start),
        stats=_with_checkpoint_stats(table_format, stats, checkpoints),
    )
    finished = without_failed_states(store, listing, start)
    if finished is not listing:
        return _list_all(store, table_format)
    if max(listing.checkpoints, default=-1) < start:
        return _list_all(store, table_format)
    listing = without_retired(store, replace(listing, observed=observed), names)
    return listing if _is_contiguous(listing) else _list_all(store, table_format)


def _first_page(store: Store, table_format: Format) -> _Page | None:
    """List the log folder as far as one request shows; None if the store has no pages."""
    page_from = getattr(store, "page_from", None)
    if page_from is None:
        return None
    observed = boottime()
    stats, complete = page_from(table_format.log_folder)
    return _Page(stats, complete, observed)


def _list_without_pointer(
    store: Store,
    table_format: Format,
    page: _Page | None,
    checkpoints: Mapping[str, ObjectStat | None],
) -> LogListing:
    """List the whole log, of which the first page and the checkpoints were listed."""
    if page is None or not page.complete:
        return _list_all(store, table_format, page=page)
    if not page.stats and not checkpoints:
        raise _no_table_error(store, [table_format])
    names = sorted(page.stats)
    if not table_format.classify(names, sorted(checkpoints)).empty:
        listing = _listing_of(
            store, table_format, names, page.stats, checkpoints, page.observed, _ATTEMPTS_MAX
        )
        if _is_contiguous(listing):
            return listing
    return _list_all(store, table_format)


def _is_contiguous(listing: LogListing) -> bool:
    """Whether no commit is missing after the newest checkpoint.

    Checkpoints that were listed before the commits may be older: if another program wrote one in
    between and deleted the commits below it, both are missing. Folders have to be listed one after
    the other then, the checkpoints last.
    """
    base = max(listing.checkpoints, default=-1)
    later = [version for version in listing.commits if version > base]
    return len(later) == max(later, default=base) - base


def without_retired(store: Store, listing: LogListing, names: Iterable[str]) -> LogListing:
    """Return the listing without commits at retired versions.

    `names` are all names in the log folder. The records must be listed after the commits: then a
    commit file that a stalled writer put after the real one was deleted always comes with the
    record of that deletion.
    """
    if listing.format.retired_folder not in names:
        return listing
    return listing.without(list_retired(store, listing.format))


def check_not_retired(
    store: Store, table_format: Format, commits: Sequence[CommitFile], observed: float
) -> None:
    """Check that commit files that were just read are the ones that count.

    `observed` is when their versions were last seen to be empty, by `clock.boottime`. Raises
    `FileNotFoundError` naming a commit that was retired since: the file that was read may be a
    stalled writer's, which does not count. Over a network, no request is made if the observation
    is at most `OBSERVATION_TRUST_SECONDS` old.
    """
    if not needs_retired_check(store, table_format, commits, observed):
        return
    retired = list_retired(store, table_format)
    if retired.overlaps(commits[0].version, commits[-1].version):
        for commit in commits:
            if commit.version in retired:
                raise FileNotFoundError(commit.key)


def needs_retired_check(
    store: Store, table_format: Format, commits: Sequence[CommitFile], observed: float
) -> bool:
    """Whether `check_not_retired` has to look at the records."""
    if not commits or not table_format.retired_folder:
        return False
    recent = COUNTS_SUSPENSION and boottime() - observed <= OBSERVATION_TRUST_SECONDS
    return store.cheap_stat or not recent


def list_retired(store: Store, table_format: Format = INDEXTABLES) -> RetiredVersions:
    """Return the versions whose commits cleanup or truncation may have deleted."""
    if not table_format.retired_folder:
        return RetiredVersions()
    return parse_retired_records(store.list_from(table_format.key(table_format.retired_folder)))


def read_pointer(store: Store, table_format: Format = INDEXTABLES) -> int:
    """Return the version that `_last_checkpoint` names; -1 if there is none or it is unreadable."""
    try:
        data = store.find_many([table_format.key(table_format.pointer_name)])[0]
    except ArrowlogError:
        return -1
    return pointed_version(data)


def pointed_version(data: bytes | None) -> int:
    """Return the version that the content of `_last_checkpoint` names; -1 if it names none."""
    version = decode_pointer(data).get("version")
    return version if isinstance(version, int) and not isinstance(version, bool) else -1


def decode_pointer(data: bytes | None) -> dict[str, Any]:
    """Return the fields of `_last_checkpoint`; {} if it is missing or not a JSON object."""
    try:
        pointer = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return pointer if isinstance(pointer, dict) else {}
