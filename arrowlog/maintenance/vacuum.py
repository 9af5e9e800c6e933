"""Vacuum: delete data files that no readable version references.

The folder is listed before the log is read, so a file committed in between is found in the log.
Every file that a commit or checkpoint in the log references is kept, so every readable version
keeps its rows. Recently removed files are kept for running readers. Any other file is deleted once
it is old enough, unless another log in the table's folder names it: see `other_logs`. Before each
batch of deletions, new commits are read again; if some of them may have been deleted meanwhile, all
of the log is.

Writers must commit a file before it reaches the retention age. That is why a retention below one
day requires an explicit override.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    classify_names,
    commit_name,
)
from arrowlog.log_lines import VACUUM_DONE
from arrowlog.maintenance.cleanup import (
    DELETE_BATCH_KEYS,
    MAX_DELETE_FAILURES,
    delete_files,
    retry_after_cleanup,
)
from arrowlog.maintenance.other_logs import OtherLogs, find_other_logs, read_other_logs
from arrowlog.maintenance.retention import (
    FATES,
    classify_files,
    expand_path_variants,
    find_readable_versions,
    find_required_checkpoints,
)
from arrowlog.metering import metrics_of
from arrowlog.snapshot import (
    ReadOptions,
    commit_identities,
    earliest_rebuildable_version,
    find_copied_commits,
    list_log,
    list_retired,
    load_snapshot,
    plan_segment,
    read_pointer,
    read_verified_actions,
    with_file_keys,
)
from arrowlog.storage import root_spellings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.decode import ActionBatch
    from arrowlog.formats import LogListing
    from arrowlog.storage import Store

    Progress = Callable[[int, int], None]

DAY_MS = 86_400_000
_COMMITS_PER_BATCH = 512  # commits that are read and decoded together
_STRING_LIST = msgspec.json.Decoder(list[str])
_FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("modification_time", pa.timestamp("ms", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class VacuumResult:
    """The files that vacuum deleted or, with `dry_run`, would have deleted.

    `files` has one row per file: path, size_bytes, modification_time. `counts` and `sizes` classify
    all files in the folder, in files and bytes: `live` in the latest version, needed by `history`,
    needed by an `other-log`, `young`, `orphan` (to be deleted), `other`, `hidden` and `log`.
    `other_logs` are the folders of the logs that keep the files of `other-log`. `failures` holds an
    error message per failed deletion. `milliseconds` is the duration.
    """

    files: pa.Table = field(repr=False)
    counts: dict[str, int]
    sizes: dict[str, int] = field(repr=False)
    version: int
    earliest_version: int
    dry_run: bool
    failures: tuple[str, ...] = ()
    other_logs: tuple[str, ...] = ()
    milliseconds: float = 0.0

    def __repr__(self) -> str:
        """The number of files by fate."""
        verb = "would be deleted" if self.dry_run else "deleted"
        kept = ", ".join(f"{n} {fate}" for fate, n in self.counts.items() if fate != "orphan" and n)
        return f"VacuumResult({self.num_files} files {verb}, {self.bytes_freed} bytes; {kept})"

    @property
    def num_files(self) -> int:
        """Number of deleted files."""
        return int(self.files.num_rows)

    @property
    def bytes_freed(self) -> int:
        """Total size of the deleted files."""
        return int(pc.sum(self.files["size_bytes"]).as_py() or 0)

    def to_arrow(self) -> pa.Table:
        """Return the deleted files, as `files`."""
        return self.files


@dataclass(frozen=True, slots=True)
class ReferencedFiles:
    """The data files that a log references, by key, and the versions that can be read."""

    live: pa.ChunkedArray = field(repr=False)
    history: pa.ChunkedArray = field(repr=False)  # may include live files
    version: int
    earliest_version: int
    partition_columns: tuple[str, ...]
    # Versions whose own commit was overwritten, and those whose commit they have.
    copied: Mapping[int, int] = field(default_factory=dict)


def vacuum(
    store: Store,
    config: Config,
    older_ms: int,
    now_ms: int,
    *,
    dry_run: bool,
    force: bool,
    ignored_logs: Sequence[str] = (),
    progress: Progress | None = None,
) -> VacuumResult:
    """Delete orphan files older than `older_ms` milliseconds.

    Files that only the logs in the folders `ignored_logs` name are deleted as well.
    `progress(done, total)` is called after each batch. Failed deletions are in the result.

    Raises InvalidRequest if `older_ms` is less than a day and `force` is not set, LogCorrupt if
    the log has a gap, has lost its last versions or cannot be read, and UnsupportedProtocol if the
    table needs a newer writer.
    """
    if older_ms < DAY_MS and not force:
        raise InvalidRequest(
            f"A retention of {older_ms / DAY_MS * 24:g} h is too short: files younger than a day"
            " may belong to a commit in progress.",
            next="Use at least 24h, or force=True if no writer is active on the table.",
        )
    horizon_ms, started = now_ms - older_ms, time.perf_counter()
    walked = store.walk()  # before the log is read: see the module's docstring
    needed = find_all_referenced_files(store, config, horizon_ms)
    others = read_other_logs(store, config, walked, ignored_logs)
    _check_ignored(walked, ignored_logs)
    classified = classify_table_files(walked, needed, others, horizon_ms)
    orphans = classified.filter(pl.col("fate") == "orphan").sort("key")
    counts, sizes = _count_by_fate(classified)
    deleted = orphans["key"]
    failures: list[str] = []
    if not dry_run:
        deleted, failures = _delete(
            store, config, orphans["key"], needed.version, horizon_ms, progress
        )
    files = orphans.filter(pl.col("key").is_in(deleted.implode()))
    result = VacuumResult(
        _to_arrow(files),
        counts,
        sizes,
        needed.version,
        needed.earliest_version,
        dry_run,
        tuple(failures),
        others.folders if counts["other-log"] else (),
        (time.perf_counter() - started) * 1000,
    )
    if not dry_run:
        _report_vacuum(store, result)
    return result


def _report_vacuum(store: Store, result: VacuumResult) -> None:
    """Log and count a vacuum."""
    files, size, metrics = result.num_files, result.bytes_freed, metrics_of(store)
    metrics.add("vacuums")
    if files:
        metrics.add("vacuum_files", files)
        metrics.add("vacuum_bytes", size)
    failures, milliseconds = len(result.failures), result.milliseconds
    VACUUM_DONE.log(table=store.root, files=files, bytes=size, failures=failures, ms=milliseconds)


def _check_ignored(walked: pa.Table, ignored_logs: Sequence[str]) -> None:
    """Refuse names that are not those of other logs in the table's folder."""
    existing = find_other_logs(pl.Series(pl.from_arrow(walked["key"]), dtype=pl.String))
    for name in ignored_logs:
        if name not in existing:
            raise InvalidRequest(
                f"There is no other log {name!r} in the table's folder.",
                next=f"The other logs are: {', '.join(existing)}."
                if existing
                else "Leave it out: the table has only its own log.",
            )


def classify_table_files(
    walked: pa.Table, needed: ReferencedFiles, others: OtherLogs, horizon_ms: int
) -> pl.DataFrame:
    """Return the files of `Store.walk` with a column `fate`; see `retention.classify_files`."""
    return classify_files(
        walked,
        needed.live,
        needed.history,
        needed.partition_columns,
        horizon_ms,
        other_keys=others.keys(),
        other_ms=others.damage_ms,
    )


def _to_arrow(files: pl.DataFrame) -> pa.Table:
    columns = files.select("key", "size", pl.col("mtime_ms").cast(pl.Datetime("ms", "UTC")))
    return (
        columns.to_arrow(compat_level=pl.CompatLevel.oldest())
        .rename_columns(_FILES_SCHEMA.names)
        .cast(_FILES_SCHEMA)
    )


def _count_by_fate(classified: pl.DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of files and their bytes for every fate."""
    totals = classified.group_by("fate").agg(pl.len().alias("count"), pl.col("size").sum())
    rows = {fate: (count, size) for fate, count, size in totals.iter_rows()}
    counts = {fate: rows.get(fate, (0, 0))[0] for fate in FATES}
    return counts, {fate: rows.get(fate, (0, 0))[1] for fate in FATES}


def find_all_referenced_files(store: Store, config: Config, horizon_ms: int) -> ReferencedFiles:
    """Like `find_referenced_files`, and raise LogCorrupt if the log has lost commits without a gap.

    These are its last versions, and commits that were overwritten. The files that they added are
    not referenced any more, but they were never removed either.
    """
    pointed = read_pointer(store)  # before the log is listed: a checkpoint may be written meanwhile
    needed = find_referenced_files(store, config, horizon_ms)
    if pointed > needed.version:
        raise LogCorrupt(
            f"{store.root} cannot be vacuumed: {LAST_CHECKPOINT} names version {pointed}, but the"
            f" log ends at version {needed.version}.",
            next="Repair the log first: files that the lost versions added may still be needed.",
            version=needed.version + 1,
        )
    for version, original in needed.copied.items():
        raise LogCorrupt(
            f"{store.root} cannot be vacuumed: the commit of version {version} is a copy of that of"
            f" version {original}.",
            next="Restore it, or repair the log: files that it added may still be needed.",
            version=version,
        )
    return needed


def find_referenced_files(store: Store, config: Config, horizon_ms: int) -> ReferencedFiles:
    """Return every data file that a commit or checkpoint in the log references.

    Files removed before `horizon_ms` count only if another action references them.

    Raises LogCorrupt if the log has a gap or cannot be read, and UnsupportedProtocol if the table
    needs a newer writer.
    """
    return retry_after_cleanup(lambda: _needed_files(store, config, horizon_ms))


def _needed_files(store: Store, config: Config, horizon_ms: int) -> ReferencedFiles:
    listing = list_log(store)
    segment = plan_segment(listing, None)
    if segment.gap is not None:
        raise LogCorrupt(
            f"{store.root} cannot be vacuumed: {segment.gap}.",
            next="Repair the log first: files that later versions added may still be needed.",
            version=segment.gap.missing,
        )
    options = ReadOptions(config, allow_external_paths=True)
    latest = load_snapshot(store, listing, options).state
    INDEXTABLES.check_writable(latest.protocol, store.root)
    keys: list[pa.ChunkedArray] = []
    commits = listing.commit_files()
    identities: dict[int, tuple[str, str]] = {}
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        actions = read_verified_actions(store, options, commits[start : start + _COMMITS_PER_BATCH])
        keys += _referenced_keys(actions, store.root, horizon_ms)
        identities |= commit_identities(actions)
    for version in _required_checkpoints(listing, segment.version):
        if version != latest.version:
            keys.append(_keys_of_version(store, listing, options, version))
    chunks = [chunk for column in keys for chunk in column.chunks]
    return ReferencedFiles(
        latest.column("key"),
        pa.chunked_array(chunks, pa.string()),
        segment.version,
        earliest_rebuildable_version(listing, segment.version),
        latest.metadata.partition_columns,
        find_copied_commits(identities),
    )


def _keys_of_version(
    store: Store, listing: LogListing, options: ReadOptions, version: int
) -> pa.ChunkedArray:
    """Return the live files of a version; none if a manifest of its table state is gone.

    Other programs delete manifests of states that stay. Such a version cannot be read any more. A
    damaged file is an error: it may be restored. So is a part of a checkpoint that is gone.
    """
    try:
        return load_snapshot(store, listing, options, version).state.column("key")
    except InvalidRequest as error:  # a checkpoint that is incomplete, below a later one
        raise LogCorrupt(
            f"{store.root} cannot be vacuumed: the checkpoint of version {version} is incomplete,"
            " and its commits were cleaned up.",
            next="Restore its files if the version is still needed; if not, truncate the history"
            " (table.truncate_history(), `arrowlog truncate-history`), which deletes its rest.",
            version=version,
        ) from error
    except LogCorrupt as error:
        is_state = listing.state_file(version) is not None
        if is_state and error.file is not None and store.stat(error.file) is None:
            return pa.chunked_array([], pa.string())
        raise


def _required_checkpoints(listing: LogListing, newest: int) -> tuple[int, ...]:
    """Return the checkpoints whose content cannot be rebuilt from other files of the log."""
    return find_required_checkpoints(listing, find_readable_versions(listing, newest))


def _referenced_keys(actions: ActionBatch, root: str, horizon_ms: int) -> list[pa.ChunkedArray]:
    """Return the files that commits added, and those they removed after `horizon_ms`.

    A recently removed file may still be read by a scan that started before. A remove without a
    time counts as recent. Source files of companion indexes are referenced as well.
    """
    adds, _ = with_file_keys(actions, "add", root)
    removes, _ = with_file_keys(actions, "remove", root)
    keys = [adds["key"]]
    if "deletionTimestamp" in removes.column_names:
        recent = pc.greater(removes["deletionTimestamp"], horizon_ms)
        keys.append(removes["key"].filter(pc.fill_null(recent, True)))
    elif removes.num_rows:
        keys.append(removes["key"])
    if "companionSourceFiles" in adds.column_names:
        texts = adds["companionSourceFiles"].drop_null().unique().to_pylist()
        keys.append(pa.chunked_array([_companion_keys(texts, root)], pa.string()))
    return keys


def _companion_keys(texts: Sequence[str], root: str) -> pa.Array:
    """Decode lists of companion source files to keys relative to the table."""
    paths: set[str] = set()
    for text in texts:
        with suppress(ValueError):  # written by another program, and not a JSON list of strings
            paths.update(str(path) for path in _STRING_LIST.decode(text))
    roots = [f"{name}/" for name in root_spellings(root)]
    keys = [next((p[len(r) :] for r in roots if p.startswith(r)), p) for p in sorted(paths)]
    return pa.array(keys, pa.string())


def _delete(
    store: Store,
    config: Config,
    keys: pl.Series,
    version: int,
    horizon_ms: int,
    progress: Progress | None,
) -> tuple[pl.Series, list[str]]:
    """Delete files in parallel batches; return the deleted keys and the errors.

    Before each round, files that the log references since `version` are taken off the list.
    """
    deleted: list[str] = []
    failures: list[str] = []
    workers = max(config.checkpoint_parallelism, 1)
    round_size = workers * DELETE_BATCH_KEYS
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(keys), round_size):
            version, added = _newly_added_keys(store, config, version, horizon_ms)
            candidates = keys.slice(start, round_size)
            if len(added):
                candidates = candidates.filter(~candidates.is_in(added.implode()))
            batches = [
                candidates.slice(at, DELETE_BATCH_KEYS).to_list()
                for at in range(0, len(candidates), DELETE_BATCH_KEYS)
            ]
            for done, errors in pool.map(
                lambda batch: _delete_batch(store, batch, horizon_ms), batches
            ):
                deleted += done
                failures += errors
            if progress is not None:
                progress(min(start + round_size, len(keys)), len(keys))
            if len(failures) >= MAX_DELETE_FAILURES:
                break
    return pl.Series("key", deleted, dtype=pl.String), failures


def _delete_batch(
    store: Store, keys: Sequence[str], horizon_ms: int
) -> tuple[list[str], list[str]]:
    """Delete files; return those that are gone and the errors."""
    if store.cheap_stat:
        # A writer may have replaced an old file by a new one of the same name since the listing.
        stats = {key: store.stat(key) for key in keys}
        keys = [key for key, stat in stats.items() if stat and 0 <= stat.mtime_ms <= horizon_ms]
    return delete_files(store, keys)


def _newly_added_keys(
    store: Store, config: Config, version: int, horizon_ms: int
) -> tuple[int, pl.Series]:
    """Return the latest version and the files that the log references since `version`.

    Normally these are the files that the commits after `version` added. If such a commit may have
    been deleted meanwhile, or `version` itself is gone, they are all files that the log references.
    """
    names = store.list_from(LOG_FOLDER, commit_name(version))
    commits = [c for c in classify_names(names).commit_files() if c.version >= version]
    newest = commits[-1].version if commits else -1
    if commits and [c.version for c in commits] == list(range(version, newest + 1)):
        if newest == version:
            return version, pl.Series("key", [], dtype=pl.String)
        with suppress(FileNotFoundError):  # a commit was deleted since it was listed
            actions = read_verified_actions(store, ReadOptions(config), commits[1:])
            # After the read: what was read may be a stalled writer's file at a deleted version.
            if not list_retired(store).overlaps(version + 1, newest):
                added = with_file_keys(actions, "add", store.root)[0]["key"]
                return newest, expand_path_variants(added)
    needed = find_referenced_files(store, config, horizon_ms)
    keys = pa.chunked_array([*needed.live.chunks, *needed.history.chunks], pa.string())
    return needed.version, expand_path_variants(keys)
