"""Delete data files that no version in the log needs any more, or say which.

First the folder is walked, then the log is read: a file that is committed meanwhile is in the log
by then. Everything that any commit or checkpoint in the log speaks of is needed, so every version
that can be read keeps its rows; a file that was removed lately is kept for who may still read it.
What nobody needs goes when it is old enough. Before each batch the log is looked at once more.

What a writer must do: commit a file before it is as old as the retention. That is why less than a
day has to be insisted on.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest, LogCorrupt, StoreUnavailable
from arrowlog.fork_safety import pl
from arrowlog.log.names import LOG, commit_name, read_listing
from arrowlog.log.segment import earliest, plan
from arrowlog.state.apply import check_writable, keyed, spellings
from arrowlog.state.listing import list_log
from arrowlog.state.load import load, read_commits
from arrowlog.upkeep.cleanup import delete_each
from arrowlog.upkeep.orphans import FATES, sort_out, spelled
from arrowlog.upkeep.retention import readable, starts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.config import Config
    from arrowlog.log.decode import Actions
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

    Progress = Callable[[int, int], None]

DAY_MS = 86_400_000
_COMMITS_AT_ONCE = 512
_DELETE_AT_ONCE = 1000
_LOOKS_MAX = 3  # a clean-up may take away what was just listed
_FAILURES_MAX = 3
_LIST = msgspec.json.Decoder(list[str])
_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("modification_time", pa.timestamp("ms", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class VacuumResult:
    """What vacuum did, or with `dry_run` would have done.

    `files` are those that went: path, size_bytes, modification_time. `counts` and `sizes` say of
    all files in the folder how many there are, and how many bytes: `live` in the newest version,
    needed by `history`, `young`, `orphan` (those that were to go), `other`, `hidden` and `log`.
    """

    files: pa.Table = field(repr=False)
    counts: dict[str, int]
    sizes: dict[str, int] = field(repr=False)
    version: int
    earliest_version: int
    dry_run: bool
    failures: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The counts."""
        verb = "would go" if self.dry_run else "went"
        kept = ", ".join(f"{n} {fate}" for fate, n in self.counts.items() if fate != "orphan" and n)
        return f"VacuumResult({self.num_files} files {verb}, {self.bytes_freed} bytes; {kept})"

    @property
    def num_files(self) -> int:
        """How many files went."""
        return int(self.files.num_rows)

    @property
    def bytes_freed(self) -> int:
        """How many bytes they had."""
        return int(pc.sum(self.files["size_bytes"]).as_py() or 0)

    def to_arrow(self) -> pa.Table:
        """The files that went."""
        return self.files


@dataclass(frozen=True, slots=True)
class Needed:
    """What a log speaks of: the keys of data files, and which versions can be read."""

    live: pa.ChunkedArray = field(repr=False)
    history: pa.ChunkedArray = field(repr=False)  # and what is live among it
    version: int
    earliest_version: int
    partition_columns: tuple[str, ...]


def vacuum(
    store: Store,
    config: Config,
    older_ms: int,
    now_ms: int,
    *,
    dry_run: bool,
    insist: bool,
    progress: Progress | None = None,
) -> VacuumResult:
    """Delete what nobody needs and is older than `older_ms`."""
    if older_ms < DAY_MS and not insist:
        raise InvalidRequest(
            f"Files younger than a day may belong to a commit that is on its way, and"
            f" {older_ms / DAY_MS * 24:g} h is less.",
            next="Use at least 24h, or insist=True if nobody writes to the table.",
        )
    horizon = now_ms - older_ms
    walked = store.walk()
    needed = needed_files(store, config, horizon)
    sorted_out = sort_out(walked, needed.live, needed.history, needed.partition_columns, horizon)
    doomed = sorted_out.filter(pl.col("fate") == "orphan").sort("key")
    counts, sizes = _account(sorted_out)
    gone = doomed["key"]
    failures: list[str] = []
    if not dry_run:
        gone, failures = _delete(store, config, doomed["key"], needed.version, horizon, progress)
    files = doomed.filter(pl.col("key").is_in(gone.implode()))
    return VacuumResult(
        _table(files),
        counts,
        sizes,
        needed.version,
        needed.earliest_version,
        dry_run,
        tuple(failures),
    )


def _table(files: pl.DataFrame) -> pa.Table:
    columns = files.select("key", "size", pl.col("mtime_ms").cast(pl.Datetime("ms", "UTC")))
    return (
        columns.to_arrow(compat_level=pl.CompatLevel.oldest())
        .rename_columns(_FILES.names)
        .cast(_FILES)
    )


def _account(sorted_out: pl.DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    found = sorted_out.group_by("fate").agg(pl.len().alias("count"), pl.col("size").sum())
    rows = {fate: (count, size) for fate, count, size in found.iter_rows()}
    counts = {fate: rows.get(fate, (0, 0))[0] for fate in FATES}
    return counts, {fate: rows.get(fate, (0, 0))[1] for fate in FATES}


def needed_files(store: Store, config: Config, horizon_ms: int) -> Needed:
    """Everything that a commit or a checkpoint in the log speaks of."""
    for attempt in range(_LOOKS_MAX):
        try:
            return _needed(store, config, horizon_ms)
        except FileNotFoundError as error:
            if attempt == _LOOKS_MAX - 1:
                raise LogCorrupt(
                    "it was listed, and is gone.",
                    next="Something deletes files of the log; try again when it is done.",
                    file=str(error),
                ) from None
    raise AssertionError  # the last attempt returns or raises


def _needed(store: Store, config: Config, horizon_ms: int) -> Needed:
    listing = list_log(store)
    segment = plan(listing, None)
    if segment.gap is not None:
        raise LogCorrupt(
            f"{store.root} cannot be vacuumed: {segment.gap}.",
            next="Repair the log first: what lies behind the gap may still be needed.",
            version=segment.gap.missing,
        )
    newest = load(store, listing, config, outside=True).state
    check_writable(newest.protocol, store.root)
    keys: list[pa.ChunkedArray] = []
    commits = sorted(listing.commits.items())
    for start in range(0, len(commits), _COMMITS_AT_ONCE):
        actions = read_commits(store, config, commits[start : start + _COMMITS_AT_ONCE])
        keys += _spoken_of(actions, store.root, horizon_ms)
    for version in _starts(listing, segment.version):
        if version != newest.version:
            keys.append(load(store, listing, config, version, outside=True).state.column("key"))
    chunks = [chunk for column in keys for chunk in column.chunks]
    return Needed(
        newest.column("key"),
        pa.chunked_array(chunks, pa.string()),
        segment.version,
        earliest(listing, segment.version),
        newest.metadata.partition_columns,
    )


def _starts(listing: Listing, newest: int) -> tuple[int, ...]:
    """Checkpoints whose content follows from nothing else that is in the log."""
    return starts_of(listing, readable(listing, newest))


def _spoken_of(actions: Actions, root: str, horizon_ms: int) -> list[pa.ChunkedArray]:
    """The files that commits added, and those they removed so lately that somebody may read on."""
    adds, _ = keyed(actions, "add", root)
    removes, _ = keyed(actions, "remove", root)
    found = [adds["key"]]
    if "deletionTimestamp" in removes.column_names:
        late = pc.greater(removes["deletionTimestamp"], horizon_ms)
        found.append(removes["key"].filter(pc.fill_null(late, True)))
    elif removes.num_rows:
        found.append(removes["key"])
    if "companionSourceFiles" in adds.column_names:
        texts = adds["companionSourceFiles"].drop_null().unique().to_pylist()
        found.append(pa.chunked_array([_companions(texts, root)], pa.string()))
    return found


def _companions(texts: Sequence[str], root: str) -> pa.Array:
    paths: set[str] = set()
    for text in texts:
        with suppress(ValueError):  # another program's, and no list
            paths.update(str(path) for path in _LIST.decode(text))
    roots = [f"{name}/" for name in spellings(root)]
    cut = [next((p[len(r) :] for r in roots if p.startswith(r)), p) for p in sorted(paths)]
    return pa.array(cut, pa.string())


def _delete(
    store: Store,
    config: Config,
    keys: pl.Series,
    version: int,
    horizon_ms: int,
    progress: Progress | None,
) -> tuple[pl.Series, list[str]]:
    """Delete files some thousand at a time, several requests at once; what went, what failed."""
    done: list[str] = []
    failures: list[str] = []
    workers = max(config.checkpoint_parallelism, 1)
    step = workers * _DELETE_AT_ONCE
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(keys), step):
            version, news = _news(store, config, version)
            some = keys.slice(start, step)
            some = some.filter(~some.is_in(news.implode())) if len(news) else some
            parts = [
                some.slice(at, _DELETE_AT_ONCE).to_list()
                for at in range(0, len(some), _DELETE_AT_ONCE)
            ]
            for gone, failed in pool.map(lambda part: _delete_some(store, part, horizon_ms), parts):
                done += gone
                failures += failed
            if progress is not None:
                progress(min(start + step, len(keys)), len(keys))
            if len(failures) >= _FAILURES_MAX:
                break
    return pl.Series("key", done, dtype=pl.String), failures


def _delete_some(store: Store, keys: Sequence[str], horizon_ms: int) -> tuple[list[str], list[str]]:
    """What of these files was deleted, and what went wrong."""
    if store.cheap_stat:  # somebody may have put a new file in the place of an old one
        stats = {key: store.stat(key) for key in keys}
        keys = [key for key, stat in stats.items() if stat and 0 <= stat.mtime_ms <= horizon_ms]
    try:
        store.delete(keys)
    except StoreUnavailable:
        failures = delete_each(store, keys)
        left = {key for key in keys if store.stat(key) is not None} if failures else set()
        return [key for key in keys if key not in left], failures
    return list(keys), []


def _news(store: Store, config: Config, version: int) -> tuple[int, pl.Series]:
    """What was committed since: the newest version, and the files that it brought."""
    names = store.list_from(LOG, commit_name(version + 1))
    commits = sorted(item for item in read_listing(names).commits.items() if item[0] > version)
    if not commits:
        return version, pl.Series("key", [], dtype=pl.String)
    actions = read_commits(store, config, commits)
    return commits[-1][0], spelled(keyed(actions, "add", store.root)[0]["key"])
