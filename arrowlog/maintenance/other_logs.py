"""Logs beside the table's own: logs that a repair replaced, backups, logs of other formats.

Such a log may be the only one that still names a data file, so vacuum keeps what it names. A log is
read as far as it can be: a commit or checkpoint that cannot be read makes it `damaged`, as does a
missing or overwritten commit or a pointer beyond its end. What a damaged log has lost is unknown,
so beside one, vacuum also keeps the files that no log names, if they are not newer than the damage
can be.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import ArrowlogError, LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats import CommitFile
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    classify_log_file,
    parse_state_folder,
)
from arrowlog.maintenance.retention import expand_path_variants
from arrowlog.snapshot import (
    ReadOptions,
    commit_identities,
    find_copied_commits,
    load_snapshot,
    read_pointer,
    read_verified_actions,
    with_file_keys,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from arrowlog.config import Config
    from arrowlog.decode import ActionBatch
    from arrowlog.formats import Format, LogListing
    from arrowlog.storage import Store

_COMMITS_PER_BATCH = 512  # commits that are read and decoded together
_LOG_FILE = rf"^(.+)/(?:[0-9]{{18,20}}\.json|{LAST_CHECKPOINT})$"  # captures the folder
_STATE_FILE = r"^(.+)/state-v[0-9]+/[^/]+$"  # of a log whose commits are table states
_EVENTS_SCHEMA = {
    "key": pl.String,
    "version": pl.Int64,
    "at": pl.Int64,
    "is_add": pl.Boolean,
    "data_change": pl.Boolean,
}


@dataclass(frozen=True, slots=True)
class OtherLog:
    """What a log beside the table's own says, as far as it can be read.

    `events` has a row per action on a file, in the order of the log: key, version, at, is_add,
    data_change. `state_keys` are the files that its checkpoints name. `newest_ms` is the
    modification time of its newest file. `lost_versions` are those between its first and its last
    commit whose commit is missing or cannot be read.
    """

    folder: str
    events: pl.DataFrame = field(repr=False)
    state_keys: pl.Series = field(repr=False)
    damaged: bool
    newest_ms: int
    lost_versions: tuple[int, ...] = ()

    @property
    def named_keys(self) -> pl.Series:
        """Every file that the log names, under every spelling of its path."""
        keys = pl.concat([self.events["key"], self.state_keys]).unique()
        return expand_path_variants(pa.chunked_array([keys.to_arrow()]).cast(pa.string()))

    def last_adds(self) -> pl.DataFrame:
        """Return the adds, one row per file, that no later action of the log undoes."""
        last = self.events.sort("at").group_by("key", maintain_order=True).last()
        return last.filter(pl.col("is_add"))


@dataclass(frozen=True, slots=True)
class OtherLogs:
    """The logs beside the table's own that count for the question at hand."""

    logs: tuple[OtherLog, ...] = ()
    own_created_ms: int = 0  # modification time of the first commit of the table's own log

    @property
    def folders(self) -> tuple[str, ...]:
        """Their folders, relative to the table."""
        return tuple(log.folder for log in self.logs)

    def keys(self) -> pl.Series:
        """Every file that one of the logs names."""
        empty = pl.Series("key", [], dtype=pl.String)
        return pl.concat([empty, *(log.named_keys for log in self.logs)])

    @property
    def damage_ms(self) -> int:
        """Files up to this modification time may belong to a commit that a damaged log lost.

        -1 if no log is damaged. A repair writes the first commit of the new log, so files that are
        newer than that commit and than everything in the damaged log were never in the latter.
        """
        newest = [log.newest_ms for log in self.logs if log.damaged]
        return max([*newest, self.own_created_ms]) if newest else -1


def read_other_logs(
    store: Store, config: Config, walked: pa.Table, ignored: Collection[str] = ()
) -> OtherLogs:
    """Find and read the logs in the table's folder, without its own and those in `ignored`.

    `walked` lists all files of the table's folder, as `Store.walk` returns it.
    """
    files = pl.DataFrame(pl.from_arrow(walked))
    folders = [name for name in find_other_logs(files["key"]) if name not in ignored]
    if not folders:
        return OtherLogs()
    first = files.filter(pl.col("key") == INDEXTABLES.commit_file(0).key)["mtime_ms"]
    logs = tuple(read_other_log(store, config, folder, files) for folder in folders)
    return OtherLogs(logs, int(first[0]) if len(first) else 0)


def find_other_logs(keys: pl.Series) -> list[str]:
    """Return the folders, relative to the table, that hold a log and are not the table's own.

    >>> find_other_logs(pl.Series(["_transaction_log_old/000000000000000000.json", "a.parquet"]))
    ['_transaction_log_old']
    """
    found = pl.concat([keys.str.extract(_LOG_FILE), keys.str.extract(_STATE_FILE)])
    folders = found.drop_nulls().unique().sort().to_list()
    return [f for f in folders if f != LOG_FOLDER and not f.startswith(f"{LOG_FOLDER}/")]


def read_other_log(store: Store, config: Config, folder: str, files: pl.DataFrame) -> OtherLog:
    """Read the log in a folder as far as it can be read. `files` are those of `Store.walk`."""
    is_delta = folder.rpartition("/")[2] == DELTA.log_folder
    table_format = (DELTA if is_delta else INDEXTABLES).relocated(folder)
    options = ReadOptions(config, allow_external_paths=True, format=table_format)
    inside = files.filter(pl.col("key").str.starts_with(f"{folder}/"))
    names = inside["key"].str.slice(len(folder) + 1)
    parts = {name: classify_log_file(name) for name in names.to_list()}
    commits = [
        CommitFile(part[1], table_format.key(name))
        for name, part in parts.items()
        if part is not None and part[0] == "commit"
    ]
    versions = sorted(commit.version for commit in commits)
    damaged = bool(versions) and versions != list(range(versions[0], versions[-1] + 1))
    damaged |= read_pointer(store, table_format) > _newest_version(parts)
    events = [pl.DataFrame(schema=_EVENTS_SCHEMA)]
    identities: dict[int, tuple[str, str]] = {}
    lost = set(range(versions[0], versions[-1] + 1)) if versions else set()
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        for batch in _readable(store, options, commits[start : start + _COMMITS_PER_BATCH]):
            if batch is None:
                damaged = True
                continue
            events.append(_events(batch, store.root, table_format))
            identities |= commit_identities(batch)
            lost.difference_update(batch.versions)
    damaged |= bool(find_copied_commits(identities))
    state_keys, all_read = _checkpoint_keys(store, options, names.to_list())
    # The log of a table inside this one says nothing about the files of this one.
    parent, _, name = folder.rpartition("/")
    is_nested = bool(parent) and name in (LOG_FOLDER, DELTA.log_folder)
    return OtherLog(
        folder,
        pl.concat(events),
        state_keys,
        (damaged or not all_read) and not is_nested,
        int(inside["mtime_ms"].max() or 0),  # type: ignore[arg-type]
        tuple(sorted(lost)),
    )


def _newest_version(names: Iterable[str]) -> int:
    """Return the newest version that a file in a log folder is named after; -1 without any."""
    newest = -1
    for name in names:
        part = classify_log_file(name.rpartition("/")[2])
        state = parse_state_folder(name.partition("/")[0])
        newest = max(newest, -1 if part is None else part[1], -1 if state is None else state)
    return newest


def _readable(
    store: Store, options: ReadOptions, commits: Sequence[CommitFile]
) -> Iterator[ActionBatch | None]:
    """Yield the actions of the commits that can be read, and None for each that cannot be."""
    try:
        yield read_verified_actions(store, options, commits)
    except (ArrowlogError, OSError):
        if len(commits) == 1:
            yield None
            return
        half = len(commits) // 2
        yield from _readable(store, options, commits[:half])
        yield from _readable(store, options, commits[half:])


def _events(actions: ActionBatch, root: str, table_format: Format) -> pl.DataFrame:
    """Return the actions on files, one row each, as `OtherLog.events` has them."""
    versions = pl.Series(actions.versions, dtype=pl.Int64)
    frames = [pl.DataFrame(schema=_EVENTS_SCHEMA)]
    for kind in ("add", "remove"):
        table, _ = with_file_keys(actions, kind, root)
        if table.num_rows == 0:
            continue
        changes = (
            pc.fill_null(table["dataChange"], fill_value=True)
            if "dataChange" in table.column_names
            else pa.repeat(pa.scalar(True), table.num_rows)
        )
        columns = pa.table(
            {"key": table_format.paths_of(table["key"]), "seq": table["seq"], "change": changes}
        )
        batch = pl.DataFrame(pl.from_arrow(columns))
        lines = 1 << SEQ_LINE_BITS
        version = versions.gather(batch["seq"] // lines)
        frames.append(
            pl.DataFrame(
                {
                    "key": batch["key"].cast(pl.String),
                    "version": version,
                    "at": version * lines + batch["seq"] % lines,
                    "is_add": pl.repeat(kind == "add", batch.height, eager=True),
                    "data_change": batch["change"],
                },
                schema=_EVENTS_SCHEMA,
            )
        )
    return pl.concat(frames)


def _checkpoint_keys(
    store: Store, options: ReadOptions, names: Sequence[str]
) -> tuple[pl.Series, bool]:
    """Return the files that the checkpoints of a log name, and whether all could be read."""
    keys, complete = [pl.Series("key", [], dtype=pl.String)], True
    try:
        for listing in _checkpoint_listings(options, names):
            try:
                named = load_snapshot(store, listing, options).state.column("key")
            except (ArrowlogError, OSError):
                complete = False
                continue
            paths = options.format.paths_of(named)
            keys.append(pl.Series("key", pl.from_arrow(paths), dtype=pl.String))
    except ArrowlogError:  # two files with the name of one version
        complete = False
    return pl.concat(keys).unique(), complete


def _checkpoint_listings(options: ReadOptions, names: Sequence[str]) -> Iterator[LogListing]:
    """Yield a listing of each checkpoint alone, from the names of all files in a log folder.

    Raises LogCorrupt if two names stand for the same version.
    """
    inner_prefix = f"{options.format.checkpoint_folder}/"
    inner = [name.removeprefix(inner_prefix) for name in names if name.startswith(inner_prefix)]
    outer = dict.fromkeys(name.partition("/")[0] for name in names)
    listing = options.format.classify(sorted(outer), sorted(inner))
    for version, forms in sorted(listing.checkpoints.items()):
        yield listing.only(None, {version: forms})


def read_adds(store: Store, config: Config, folder: str, keys: pa.Array) -> pa.Table:
    """Return the last add of each of some files in another log, one row per file that it names.

    Commits and checkpoints that cannot be read are passed over.
    """
    options = ReadOptions(config, allow_external_paths=True, format=INDEXTABLES.relocated(folder))
    inner = options.format.checkpoint_folder
    names = store.list_from(folder)
    if inner in names:
        names += [f"{inner}/{name}" for name in store.list_from(options.format.key(inner))]
    parts = {name: classify_log_file(name) for name in names}
    commits = [
        CommitFile(part[1], options.format.key(name))
        for name, part in parts.items()
        if part is not None and part[0] == "commit"
    ]
    found: list[pa.Table] = []
    with suppress(LogCorrupt):  # two files with the name of one version
        for listing in _checkpoint_listings(options, names):
            with suppress(ArrowlogError, OSError):
                adds = load_snapshot(store, listing, options).state.adds
                found.append(adds.filter(pc.is_in(adds["key"], value_set=keys)))
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        for batch in _readable(store, options, commits[start : start + _COMMITS_PER_BATCH]):
            if batch is not None:
                table, _ = with_file_keys(batch, "add", store.root)
                table = table.sort_by("seq")
                found.append(table.filter(pc.is_in(table["key"], value_set=keys)))
    if not found:
        return pa.table({"key": pa.array([], pa.string())})
    adds = pa.concat_tables(found, promote_options="permissive")
    order = (
        pl.Series("key", pl.from_arrow(adds["key"]), dtype=pl.String).to_frame().with_row_index()
    )
    last = order.group_by("key", maintain_order=True).agg(pl.col("index").last())["index"]
    return adds.take(last.to_arrow().cast(pa.int64()))
