"""The doctor of Delta tables: what is wrong with the log and its files. Writes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array
from arrowlog.errors import InvalidRequest, LogCorrupt, TableNotFound, UnsupportedProtocol
from arrowlog.formats import UPGRADE
from arrowlog.formats.delta import DeletionVector, InvalidDeletionVector
from arrowlog.recovery.findings import Finding, Findings, ProblemLog
from arrowlog.snapshot import list_log, load_snapshot, missing_file_error, verify_checkpoint

if TYPE_CHECKING:
    from arrowlog.formats import LogListing
    from arrowlog.recovery.data_files import DoctorLimits
    from arrowlog.snapshot import ReadOptions, Snapshot
    from arrowlog.storage import Store

_RESTORE = "Restore the file from a backup."
_OTHER_PROGRAM = "Write a checkpoint with the program that writes the table."
_UNREADABLE_SCOPE = (
    "Delta table. Checked: the newest checkpoint and the commits after it. Not checked: all else,"
    " because the newest version cannot be read. arrowlog does not write or repair Delta logs."
)
# Commits after the last checkpoint from which on every reader replays noticeably much.
_COMMITS_MAX = 1000
_VECTOR_FILES_MAX = 1000  # files of deletion vectors that are read completely
_VECTOR_FIELDS = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")


def examine_delta_table(store: Store, options: ReadOptions, limits: DoctorLimits) -> Findings:
    """Check the log, its newest checkpoint and the existence of data files and deletion vectors.

    Raises `StoreUnavailable` if the store fails.
    """
    log_folder = options.format.log_folder
    problems = ProblemLog(store.root, log_folder)
    where = f"{store.root}/{log_folder}"
    try:
        listing = list_log(store, options.format)
    except TableNotFound as error:
        problems.report("unreadable", "error", error.what, where, "Correct the address.")
        return Findings(store.root, None, problems)
    _check_checkpoint(store, options, listing, problems)
    try:
        snapshot = load_snapshot(store, listing, options)
        _ = snapshot.num_files
    except UnsupportedProtocol as error:
        problems.report("protocol-unknown", "error", error.what, where, UPGRADE)
    except (LogCorrupt, InvalidRequest, FileNotFoundError) as error:
        if isinstance(error, LogCorrupt) and error.code == "file-unreadable":
            file = error.file or where
            problems.report("commit-unreadable", "error", error.what, file, f"# {error.next}")
        else:
            told = missing_file_error(error) if isinstance(error, FileNotFoundError) else error
            problems.report("unreadable", "error", str(told), where, _RESTORE)
    else:
        for text in snapshot.report.warnings:
            problems.report("checkpoint-damaged", "warning", f"{text}.", where, _OTHER_PROGRAM)
        _check_age(listing, snapshot, limits, problems)
        _check_sums(store, options, snapshot, problems)
        if limits.data_files:
            _check_files(store, snapshot, problems)
        return Findings(store.root, snapshot.version, problems, _scope(limits))
    return Findings(store.root, None, problems, _UNREADABLE_SCOPE)


def _scope(limits: DoctorLimits) -> str:
    """Describe what was checked of a Delta table and what was not."""
    files = "data files by name and size, deletion vectors" if limits.data_files else ""
    checked = ["the newest checkpoint", "the commits after it", "the checksum file", files]
    unchecked = ["earlier commits and checkpoints", "orphan files", "statistics"]
    unchecked = unchecked if limits.data_files else ["whether data files exist", *unchecked]
    return (
        f"Delta table. Checked: {', '.join(filter(None, checked))}. Not checked:"
        f" {', '.join(unchecked)}. arrowlog does not write or repair Delta logs."
    )


def _check_checkpoint(
    store: Store, options: ReadOptions, listing: LogListing, problems: ProblemLog
) -> None:
    """Read the newest checkpoint completely, and compare it with the commits if all are there."""
    version = max(listing.checkpoints, default=None)
    if version is None:
        return
    try:
        errors = verify_checkpoint(store, listing, version, options.config)
    except UnsupportedProtocol:
        return  # loading the snapshot reports it
    for error in errors:
        where = error.file or listing.checkpoints[version][0].keys[0]
        problems.report(
            "checkpoint-damaged", "warning", error.what, where, _OTHER_PROGRAM, version=version
        )


def _check_age(
    listing: LogListing, snapshot: Snapshot, limits: DoctorLimits, problems: ProblemLog
) -> None:
    newest = max(listing.checkpoints, default=-1)
    commits = snapshot.version - newest
    limit = limits.commits_since_checkpoint
    if commits > (_COMMITS_MAX if limit is None else limit):
        severity = "warning" if limit is None else "error"
        what = f"{commits} commits follow the last checkpoint, and every reader replays them."
        problems.report("checkpoint-behind", severity, what, listing.format.key(), _OTHER_PROGRAM)


def _check_sums(
    store: Store, options: ReadOptions, snapshot: Snapshot, problems: ProblemLog
) -> None:
    """Compare the newest version with its checksum file, if it has one."""
    name = f"{snapshot.version:020d}.crc"
    if name not in store.list_from(options.format.log_folder, f"{snapshot.version:020d}"):
        return
    key = options.format.key(name)
    try:
        sums = json.loads(store.get(key))
        expected = {field: sums.get(field) for field in ("numFiles", "tableSizeBytes")}
    except (ValueError, AttributeError, RecursionError):
        what = "the checksum file cannot be read; no reader needs it."
        problems.report("checksum-unreadable", "info", what, key, "Delete it.")
        return
    found = {"numFiles": snapshot.num_files, "tableSizeBytes": snapshot.size_bytes}
    for field, value in expected.items():
        if value is not None and value != found[field]:
            problems.report(
                "checksum-differs",
                "warning",
                f"the checksum file says {field} is {value}, the log says {found[field]}.",
                key,
                "Find out which program wrote the file; it may have lost an action.",
                version=snapshot.version,
            )


def _check_files(store: Store, snapshot: Snapshot, problems: ProblemLog) -> None:
    """Check that data files and deletion vectors are there and as the log describes them.

    Files outside the table are not checked.
    """
    if not snapshot.num_files:
        return
    walked = store.walk()
    present = walked["key"].combine_chunks()
    keys = snapshot.state.column("key")
    paths = snapshot.state.format.paths_of(keys)
    _report_missing("missing-file", "data files", paths, present, problems)
    _check_sizes(paths, snapshot.state.column("size"), walked, problems)
    if paths is not keys:
        _check_vectors(store, snapshot, paths, present, problems)


def _check_sizes(
    paths: pa.ChunkedArray, logged: pa.ChunkedArray, walked: pa.Table, problems: ProblemLog
) -> None:
    """Report files that have another size than the log says: they were replaced or cut off."""
    found = walked["size"].take(pc.index_in(paths, value_set=walked["key"].combine_chunks()))
    differs = pc.fill_null(pc.not_equal(found, logged), FALSE)
    resized = paths.filter(differs).combine_chunks()
    if len(resized):
        text = (
            f"{len(resized)} data files of the newest version have a different size than the log"
            f" says, first {resized[0]}."
        )
        problems.extend(
            [Finding("data-size", "warning", text, problems.root, _RESTORE, len(resized), resized)]
        )


def _check_vectors(
    store: Store,
    snapshot: Snapshot,
    paths: pa.ChunkedArray,
    present: pa.Array,
    problems: ProblemLog,
) -> None:
    """Report deletion vectors whose file is missing, and those that cannot be decoded."""
    columns = [snapshot.state.column(f"deletionVector.{name}") for name in _VECTOR_FIELDS]
    rows = zip(paths.to_pylist(), *(column.to_pylist() for column in columns), strict=True)
    files: dict[str, list[tuple[str, DeletionVector]]] = {}
    for path, kind, text, offset, size, cardinality in rows:
        if kind is None:
            continue
        vector = DeletionVector(kind, text, size, cardinality, offset)
        try:
            name = vector.file
            if name is None:
                vector.decode_inline()
            else:
                place = name.removeprefix(f"{store.root}/")
                files.setdefault(place, []).append((path, vector))
        except InvalidDeletionVector as error:
            _report_vector(path, error, problems)
    names = pa.chunked_array([make_array(list(files), pa.string())])
    _report_missing("missing-deletion-vector", "deletion vectors", names, present, problems)
    existing = names.filter(pc.is_in(names, value_set=present)).to_pylist()
    for name in existing[:_VECTOR_FILES_MAX]:
        data = store.get(name)
        for path, vector in files[name]:
            try:
                vector.decode_range(data[slice(*vector.file_range)])
            except InvalidDeletionVector as error:
                _report_vector(path, error, problems)


def _report_vector(path: str, error: InvalidDeletionVector, problems: ProblemLog) -> None:
    what = f"the deletion vector of {path} cannot be used: {error}."
    problems.report("deletion-vector", "error", what, problems.root, _RESTORE)


def _report_missing(
    code: str, what: str, paths: pa.ChunkedArray, present: pa.Array, problems: ProblemLog
) -> None:
    inside = paths.filter(pc.invert(pc.match_substring_regex(paths, r"^/|://")))
    missing = inside.filter(pc.invert(pc.is_in(inside, value_set=present))).combine_chunks()
    if len(missing):
        text = f"{len(missing)} {what} of the newest version are missing, first {missing[0]}."
        problems.extend(
            [Finding(code, "error", text, problems.root, _RESTORE, len(missing), missing)]
        )
