"""Which files may be deleted: of the log by retention, of the data by reference. Pure.

A commit may be deleted if it is older than `logRetention.duration`, below a verified checkpoint,
below the latest version, and not version 0. A checkpoint may be deleted if it is older than
`checkpointRetention.duration` and a newer one is verified; its parts stay as long as a later
checkpoint names them. A table state, which is the commit of some writers, is retained as long as
commits are. The checkpoint that the retained commits build on is kept as long as they are: without
it, no version between could be read.

A file in the table's folder has a fate, the first of these that applies:

- `log`: it belongs to this table's log, or to a folder that is a log or contains one (another
  table, a copy of a log);
- `hidden`: a name in its path begins with `_` or `.`, and is not that of a partition folder;
- `live`: it is in the latest version;
- `history`: the log references it, so an earlier version may need it;
- `other-log`: another log in the table's folder names it, or may have named it before it was
  damaged (see `other_logs`);
- `young`: it is so recent that its commit may still be in progress;
- `other`: its extension is not one of a data file;
- `orphan`: none of these. Temporary files that a writer left on a local disk are orphans too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa

from arrowlog.fork_safety import pl
from arrowlog.formats import CommitFile, LogListing
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    classify_log_file,
    classify_names,
)
from arrowlog.snapshot import earliest_rebuildable_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from arrowlog.storage import ObjectStat

_FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("version", pa.int64()),
        ("size_bytes", pa.int64()),
        ("modification_time", pa.timestamp("ms", "UTC")),
    ]
)

# Milliseconds, later than any real time: a file whose time is unknown never reaches any age.
_UNKNOWN_TIME_MS = 1 << 62
FATES = ("live", "history", "other-log", "young", "orphan", "other", "hidden", "log")
_DATA_EXTENSIONS = (".parquet", ".split")
_EXTENSION = r"(\.[^./]+)$"
_TEMPORARY = r"(^|/)\.[^/]+\.[0-9a-f]{32}\.tmp$"  # as `LocalStore` names files in progress
_TABLE_FOLDER = rf"^((?:[^/]+/)*?)(?:{LOG_FOLDER}|{CHECKPOINT_FOLDER_NAME})/"  # captures the folder
_LOG_FOLDER = rf"^(.*/)(?:[0-9]{{18,}}\.json|{LAST_CHECKPOINT})$"  # captures a folder that is a log
_AMBIGUOUS = r"%[0-9A-Fa-f]{2}|//|(?:^|/)\./"  # percent-encoding, or redundant path segments
_REGEX_SPECIAL = r"([\\.+*?()|\[\]{}^$#&~-])"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Minimum ages in milliseconds, and how many commits below a checkpoint to keep (`commits`)."""

    log_ms: int
    checkpoint_ms: int
    commits: int = 0


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log. `kind` is `commit`, `checkpoint`, `state` or `manifest`.

    A manifest belongs to no version, and has -1.
    """

    key: str
    kind: str
    version: int
    stat: ObjectStat

    @property
    def commit(self) -> CommitFile:
        """This file, which must be one of kind `commit`, as a commit of the log."""
        return CommitFile(self.version, self.key)

    @property
    def is_base(self) -> bool:
        """Whether replay can start from this file."""
        return self.kind in ("checkpoint", "state")


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A cleanup plan: the files to delete, and the versions that stay readable.

    `version` is the latest version, `checkpoint` the newest verified checkpoint. Every version from
    `earliest_version` on is readable afterwards; `versions` lists all readable ones.
    """

    files_to_delete: tuple[LogFile, ...] = field(repr=False)
    version: int
    checkpoint: int | None
    earliest_version: int
    versions: tuple[int, ...] = field(repr=False)
    required_checkpoints: tuple[int, ...] = field(
        repr=False, default=()
    )  # checkpoints that `versions` depend on
    store_time_ms: int = field(repr=False, default=0)  # of the newest file, by the store's clock
    num_too_young: int = field(repr=False, default=0)  # commits kept by the minimum commit age only

    @property
    def num_files(self) -> int:
        """Number of files to delete."""
        return len(self.files_to_delete)

    @property
    def num_commits(self) -> int:
        """Number of commits among them."""
        return sum(file.kind == "commit" for file in self.files_to_delete)

    @property
    def bytes_freed(self) -> int:
        """Total size of the files to delete."""
        return sum(file.stat.size for file in self.files_to_delete)

    @property
    def files(self) -> pa.Table:
        """The files to delete: path, kind, version, size_bytes, modification_time."""
        return tabulate_log_files(self.files_to_delete)


def tabulate_log_files(files: Sequence[LogFile]) -> pa.Table:
    """Return one row per file: path, kind, version, size_bytes, modification_time."""
    columns = {
        "path": [file.key for file in files],
        "kind": [file.kind for file in files],
        "version": [None if file.version < 0 else file.version for file in files],
        "size_bytes": [file.stat.size for file in files],
        "modification_time": [file.stat.mtime_ms for file in files],
    }
    return pa.table(columns, schema=_FILES_SCHEMA)


def classify_log_files(
    log: Mapping[str, ObjectStat], inner: Mapping[str, ObjectStat]
) -> list[LogFile]:
    """Classify the files of the log folder and of `_checkpoints` (`inner`), ordered by version.

    Files whose names do not follow the protocol are left out, so they are never deleted.
    """
    files = []
    for folder, entries in ((LOG_FOLDER, log), (f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}", inner)):
        for name, stat in entries.items():
            part = classify_log_file(name)
            if part is not None and (part[0] == "checkpoint" or folder == LOG_FOLDER):
                files.append(LogFile(f"{folder}/{name}", part[0], part[1], stat))
    return sorted(files, key=lambda file: (file.version, file.key))


def plan_retention(
    files: Sequence[LogFile],
    version: int,
    verified: int | None,
    policy: RetentionPolicy,
    now_ms: int,
    bad: Collection[int] = (),
    held: Collection[int] = (),
    dead: Collection[int] = (),
    held_states: Collection[int] = (),
    named_parts: Mapping[int, Collection[str]] | None = None,
) -> RetentionPlan:
    """Plan which files to delete at `now_ms`.

    `version` is the latest version and `verified` the newest verified checkpoint; without one,
    nothing is deleted. `bad` are checkpoints that failed verification: no version counts as
    readable because of them. `held` are versions whose commits must stay. `dead` are retired
    versions that have a commit file: below the verified checkpoint these files are deleted at any
    age, and nowhere do they make anything readable. `held_states` are versions whose table states
    must stay. `named_parts` holds, by the version of a checkpoint, the keys of the parts that its
    manifest names: a part stays as long as a checkpoint that names it.
    """
    written_ms = _write_times(files)
    held_by_kind = {"commit": held, "state": held_states}

    def may_go(file: LogFile, checkpoint: int) -> bool:
        if file.kind == "commit" and file.version in dead and file.version < checkpoint:
            return True
        if file.version in held_by_kind.get(file.kind, ()):
            return False
        age_ms = now_ms - written_ms[file.kind, file.version]
        return _is_expired(file, age_ms, version, checkpoint, policy)

    doomed = tuple(file for file in files if verified is not None and may_go(file, verified))
    shadow = _highest_state_only(files, dead)
    doomed = _without_shadow(doomed, files, shadow, dead)
    # A held commit is kept for its content, not for time travel: it needs no base checkpoint.
    by_age = [
        file
        for file in files
        if file.kind != "commit" or (file.version not in held and not 0 < file.version < shadow)
    ]
    base = _base_checkpoint(by_age, {file.key for file in doomed}, version, bad)
    doomed = tuple(file for file in doomed if not (file.is_base and file.version == base))
    doomed = _without_named_parts(doomed, named_parts or {})
    doomed_keys = {file.key for file in doomed}
    usable_keys = [
        file.key
        for file in files
        if file.key not in doomed_keys
        and file.version not in (dead if file.kind == "commit" else bad)
    ]
    listing = _listing_of(usable_keys)
    versions = find_readable_versions(listing, version)
    starts = find_required_checkpoints(listing, versions)
    earliest_version = version if listing.empty else earliest_rebuildable_version(listing, version)
    store_time_ms = max((file.stat.mtime_ms for file in files), default=0)
    return RetentionPlan(
        doomed, version, verified, earliest_version, versions, starts, store_time_ms
    )


def _highest_state_only(files: Sequence[LogFile], dead: Collection[int]) -> int:
    """Return the highest version above 0 with a table state and no commit; -1 if there is none."""
    states = {file.version for file in files if file.kind == "state"}
    commits = {file.version for file in files if file.kind == "commit"}.difference(dead)
    return max(states - commits - {0}, default=-1)


def _without_shadow(
    doomed: tuple[LogFile, ...], files: Sequence[LogFile], shadow: int, dead: Collection[int]
) -> tuple[LogFile, ...]:
    """Return the doomed files without the state that shows that commits below it do not count.

    `shadow` is the highest state without a commit; see `LogListing.state_only_version`. Without it,
    commits below it that stay would be applied.
    """
    doomed_keys = {file.key for file in doomed}
    if any(
        file.kind == "commit"
        and 0 < file.version < shadow
        and file.version not in dead
        and file.key not in doomed_keys
        for file in files
    ):
        return tuple(f for f in doomed if (f.kind, f.version) != ("state", shadow))
    return doomed


def _without_named_parts(
    doomed: tuple[LogFile, ...], named_parts: Mapping[int, Collection[str]]
) -> tuple[LogFile, ...]:
    """Return the doomed files without the parts that a checkpoint names which stays."""
    going = {file.version for file in doomed if file.kind == "checkpoint"}
    kept = {key for version, keys in named_parts.items() if version not in going for key in keys}
    return tuple(file for file in doomed if file.key not in kept)


def _base_checkpoint(
    files: Sequence[LogFile], doomed_keys: Collection[str], version: int, bad: Collection[int]
) -> int | None:
    """Return the lowest checkpoint from which the retained commits lead to the latest version.

    None if they reach down to version 0 and need no checkpoint, or if there is none.
    """
    commits = {
        file.version for file in files if file.kind == "commit" and file.key not in doomed_keys
    }
    lowest = version
    while lowest - 1 in commits:
        lowest -= 1
    if lowest == 0:
        return None
    # Parts alone, without the manifest that names them, are no checkpoint.
    complete = _listing_of([file.key for file in files]).checkpoints
    checkpoints = {v for v in complete if v not in bad}
    # A checkpoint at the lowest retained commit makes that commit redundant, so it serves as base;
    # otherwise it is the one right below, or failing that the next one above.
    first = lowest if lowest in checkpoints else lowest - 1
    return min((c for c in checkpoints if first <= c <= version), default=None)


def _write_times(files: Sequence[LogFile]) -> dict[tuple[str, int], int]:
    """Map (kind, version) to the time in ms of its newest file.

    The parts of a multi-part checkpoint share one time, so they expire together or not at all.
    """
    written_ms: dict[tuple[str, int], int] = {}
    for file in files:
        name, time_ms = (file.kind, file.version), file.stat.mtime_ms
        time_ms = _UNKNOWN_TIME_MS if time_ms < 0 else time_ms
        written_ms[name] = max(time_ms, written_ms.get(name, time_ms))
    return written_ms


def _is_expired(
    file: LogFile, age_ms: int, version: int, verified: int, policy: RetentionPolicy
) -> bool:
    if file.kind == "checkpoint":
        return file.version < verified and age_ms > policy.checkpoint_ms
    limit = verified - policy.commits
    if file.kind == "state":  # the commit of some writers, and retained as long as commits are
        return file.version < limit and age_ms > policy.log_ms
    return file.version < limit and 0 < file.version < version and age_ms > policy.log_ms


def _listing_of(keys: Sequence[str]) -> LogListing:
    inner = f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/"
    # A state counts by the name of its folder.
    names = [
        key[len(LOG_FOLDER) + 1 :].partition("/")[0] for key in keys if not key.startswith(inner)
    ]
    return classify_names(names, [key[len(inner) :] for key in keys if key.startswith(inner)])


def find_required_checkpoints(listing: LogListing, versions: Sequence[int]) -> tuple[int, ...]:
    """Return the readable versions that can be rebuilt only from their own checkpoint.

    `versions` are the readable versions, ascending; all others follow from these by replay.
    """
    readable_set = set(versions)
    with_commit = readable_set & listing.applied_commits().keys()
    return tuple(v for v in versions if v and (v not in with_commit or v - 1 not in readable_set))


def find_readable_versions(listing: LogListing, newest: int) -> tuple[int, ...]:
    """Return every version up to `newest` that can be rebuilt from the listed files, ascending."""
    checkpoints, commits = set(listing.checkpoints), listing.applied_commits()
    candidates = sorted(v for v in {*commits, *checkpoints} if v <= newest)
    versions: list[int] = []
    for v in candidates:
        follows = v in commits and (v == 0 or (bool(versions) and versions[-1] == v - 1))
        if v in checkpoints or follows:
            versions.append(v)
    return tuple(versions)


def classify_files(
    walked: pa.Table,
    live: pa.ChunkedArray,
    history: pa.ChunkedArray,
    partition_columns: Sequence[str],
    horizon_ms: int,
    *,
    other_keys: pl.Series | None = None,
    other_ms: int = -1,
) -> pl.DataFrame:
    """Return the files of `Store.walk` with a column `fate`, one of `FATES`.

    `live` are the keys of the latest version, `history` all other keys that the log references.
    `other_keys` are files that other logs name; data files up to the time `other_ms` may belong to
    what such a log has lost.
    Files written after `horizon_ms` are young, as are files whose time is unknown. An extension
    that any referenced file has counts as one of a data file.
    """
    files = pl.DataFrame(pl.from_arrow(walked))
    live_keys, history_keys = expand_path_variants(live), expand_path_variants(history)
    referenced = pl.concat([live_keys, history_keys])
    extensions = referenced.str.extract(_EXTENSION).fill_null("").unique().to_list()
    key = pl.col("key")
    visible = _with_visible_partitions(key, partition_columns)
    is_temporary = visible.str.contains(_TEMPORARY)
    has_hidden_name = visible.str.contains(r"(?:^|/)[_.][^/]*$")
    extension = key.str.extract(_EXTENSION).fill_null("")
    return files.with_columns(
        pl.when(_is_in_log(files["key"]))
        .then(pl.lit("log"))
        .when(visible.str.contains(r"(?:^|/)[_.][^/]*/") | (has_hidden_name & ~is_temporary))
        .then(pl.lit("hidden"))
        .when(key.is_in(live_keys.implode()))
        .then(pl.lit("live"))
        .when(key.is_in(history_keys.implode()))
        .then(pl.lit("history"))
        .when(pl.lit(False) if other_keys is None else key.is_in(other_keys.implode()))
        .then(pl.lit("other-log"))
        .when((pl.col("mtime_ms") > horizon_ms) | (pl.col("mtime_ms") < 0))
        .then(pl.lit("young"))
        .when(~is_temporary & ~extension.is_in([*_DATA_EXTENSIONS, *extensions]))
        .then(pl.lit("other"))
        .when(~is_temporary & (pl.col("mtime_ms") <= other_ms))
        .then(pl.lit("other-log"))
        .otherwise(pl.lit("orphan"))
        .alias("fate")
    )


def expand_path_variants(keys: pa.ChunkedArray) -> pl.Series:
    """Return the keys and every other name under which their files may be stored.

    Paths in a log are taken literally. Other programs may nevertheless have written them
    percent-encoded or with redundant slashes, so files of the decoded and the normalized name are
    protected as well.
    """
    unique = pl.Series("key", pl.from_arrow(keys), dtype=pl.String).unique()
    ambiguous = unique.filter(unique.str.contains(_AMBIGUOUS)).to_list()
    variants = {unquote(text) for text in ambiguous} | {_normalized(text) for text in ambiguous}
    variants |= {_normalized(unquote(text)) for text in ambiguous}
    return pl.concat([unique, pl.Series("key", sorted(variants), dtype=pl.String)])


def _normalized(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _is_in_log(keys: pl.Series) -> pl.Series:
    """Return a mask of files in this log, or in a folder that is a log or has one of its own."""
    matches = pl.concat([keys.str.extract(_TABLE_FOLDER), keys.str.extract(_LOG_FOLDER)])
    folders = matches.drop_nulls().unique().to_list()
    inside = keys.str.starts_with(f"{LOG_FOLDER}/")
    for folder in folders:
        if folder:
            inside |= keys.str.starts_with(folder)
    return inside


def _with_visible_partitions(key: pl.Expr, columns: Iterable[str]) -> pl.Expr:
    """Rename partition folders whose column begins with `_` or `.`, so they do not look hidden."""
    for column in columns:
        if column.startswith(("_", ".")):
            names = {column, quote(column, safe=" !$&'()+,;@[]^`{}~")}
            either = "|".join(_escape_regex(name) for name in sorted(names))
            key = key.str.replace_all(rf"(^|/)(?:{either})=", "${1}p=")
    return key


def _escape_regex(text: str) -> str:
    return re.sub(_REGEX_SPECIAL, r"\\\1", text)
