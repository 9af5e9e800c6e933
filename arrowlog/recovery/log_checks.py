"""Doctor: examine a table, write nothing, and report problems with the call that fixes each.

This module examines the log: file names, commits, checkpoints, the pointer and the protocol.
`data_files` examines the files of the latest version. Codes of findings are stable, and each `fix`
can be executed as it stands. A log that cannot be opened can still be examined.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import (
    ArrowlogError,
    ArrowlogWarning,
    InvalidRequest,
    LogCorrupt,
    StoreUnavailable,
    UnsupportedProtocol,
)
from arrowlog.fork_safety import pl, require_polars
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    STATE_PROTOCOL_VERSION,
)
from arrowlog.maintenance import retry_after_cleanup
from arrowlog.recovery.data_files import DoctorLimits, check_data_files, check_repeated_skips
from arrowlog.recovery.delta_checks import examine_delta_table
from arrowlog.recovery.findings import Finding, Findings, ProblemLog
from arrowlog.recovery.log_repair import REPLACED_LOG_FOLDER, open_table_store
from arrowlog.recovery.salvage import (
    ReadableStore,
    broken_commit_version,
    describe_divergence,
    describe_error,
    describe_pointer_ahead,
    describe_table_id_mismatch,
    list_damaged_log,
    salvage,
    valid_checkpoint_forms,
)
from arrowlog.snapshot import (
    CLOCK_TOLERANCE_MS,
    ReadOptions,
    checkpoint_versions,
    commit_identities,
    commit_timestamps,
    earliest_rebuildable_version,
    find_copied_commits,
    find_other_log,
    format_epoch_millis,
    has_data_files,
    load_snapshot,
    missing_file_error,
    pointed_version,
    read_verified_actions,
    retired_record_error,
    with_file_keys,
)
from arrowlog.transaction import check_no_remains

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import CheckpointForm, CommitFile, LogListing
    from arrowlog.snapshot import Snapshot, State
    from arrowlog.storage import Store

_STATE_SCOPE = (
    "Table states (protocol 4). Checked: every commit, the list of manifests of every state and"
    " that they exist, the entries of the newest state. Not checked: the entries of older states."
)
_COMMITS_PER_BATCH = 512  # commits that are read and decoded together
_MAX_LISTINGS = 3  # attempts at a listing in which no truncation came between
# Without a limit from the caller, a checkpoint is reported as late after this many intervals.
_NORMAL_INTERVALS = 2
_WITHOUT_BACKUP = (
    f"Without one, rename {LOG_FOLDER} to {REPLACED_LOG_FOLDER}, and run `arrowlog rebuild"
    " --ignore-logs` on the table, with --dry-run first."
)
_UPGRADE = "pip install --upgrade arrowlog  # The installed version is too old."
_CHECKPOINT = "table.checkpoint()  # Writes a checkpoint of the latest version and the pointer."
# Truncation gives up versions that can be read, so it is not advised without a look.
_TRUNCATE = (
    "table.truncate_history(dry_run=True)  # The latest version does not need this commit: restore"
    " it from a backup if there is one. Without dry_run, truncation gives up all earlier versions."
)
_CLEAN = "table.cleanup()  # Deletes it once it is older than checkpointRetention.duration."
_CLEAN_DEAD = "table.cleanup()  # Deletes these files, whatever their age."


@dataclass(slots=True)
class _Examination:
    """An examination in progress."""

    store: Store
    options: ReadOptions
    limits: DoctorLimits
    now_ms: int
    problems: ProblemLog
    listing: LogListing = field(default_factory=lambda: INDEXTABLES.classify(()))
    broken_commits: dict[int, str] = field(default_factory=dict)  # version -> what is wrong
    # Those among them that the store cannot read: version -> what to do about it.
    unreadable_commits: dict[int, str] = field(default_factory=dict)
    valid_checkpoint: int | None = None  # the newest one
    # The valid forms of the checkpoints that were verified, by version.
    valid_forms: dict[int, tuple[CheckpointForm, ...]] = field(default_factory=dict)
    timestamps: dict[int, int] = field(default_factory=dict)  # of commits, by version
    # Transaction ids and checksums of commits, by version.
    identities: dict[int, tuple[str, str]] = field(default_factory=dict)
    scope: str = ""  # what was checked, where that is not everything

    @property
    def config(self) -> Config:
        """The settings."""
        return self.options.config

    @property
    def access_fix(self) -> str:
        """What to do before a repair, which would give up commits that may be intact; or "".

        That is to restore access to the commits that the store cannot read.
        """
        return next((f"# {advice}" for advice in self.unreadable_commits.values()), "")

    @property
    def any_path(self) -> ReadOptions:
        """Options for checks that do not judge paths; `_load_snapshot` reports those."""
        return replace(self.options, allow_external_paths=True)


def doctor(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, object] | None = None,
    max_commits_since_checkpoint: int | None = None,
    max_small_files: int | None = None,
    assert_stats: Sequence[str] = (),
    data_files: bool = True,
) -> Findings:
    """Examine a table, even one that cannot be opened. The options are those of `Table.doctor`."""
    config = resolve(options)
    store = open_table_store(uri, storage_options, config)
    limits = DoctorLimits.parse(
        max_commits_since_checkpoint, max_small_files, assert_stats, data_files=data_files
    )
    other = None if store.list_from(LOG_FOLDER) else find_other_log(store)
    read_options = ReadOptions(config, format=other or INDEXTABLES)
    return examine_table(store, read_options, SystemClock().now_ms(), limits)


def examine_table(
    store: Store, options: ReadOptions, now_ms: int, limits: DoctorLimits | None = None
) -> Findings:
    """Run every check on a table. Writes nothing.

    Damage of the log, gaps included, is reported as findings; so are single files that the store
    cannot read. Raises StoreUnavailable if the store fails as a whole, InvalidRequest for an
    unknown column in `limits.stats`, and LogCorrupt if files of the log keep vanishing while they
    are read.
    """
    require_polars("The doctor")
    store = cast("Store", ReadableStore(store, options.format.log_folder))
    if options.format.name == DELTA.name:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ArrowlogWarning)  # reported as findings instead
            return examine_delta_table(store, options, limits or DoctorLimits())
    if options.format.name != INDEXTABLES.name:
        raise InvalidRequest(
            f"The doctor does not examine tables in the {options.format.name} format.",
            next="Read the table with snapshot(); its report lists warnings.",
        )
    options = replace(options, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)  # reported as findings instead
        return retry_after_cleanup(
            lambda: _examine(
                _Examination(
                    store, options, limits or DoctorLimits(), now_ms, ProblemLog(store.root)
                )
            )
        )


def _examine(exam: _Examination) -> Findings:
    try:
        version = _run_checks(exam)
    except UnsupportedProtocol as error:
        where = f"{exam.store.root}/{LOG_FOLDER}"
        exam.problems.report(error.code or "protocol-unknown", "error", error.what, where, _UPGRADE)
        version = None
    return Findings(exam.store.root, version, exam.problems, exam.scope)


def _fix_for_no_log(store: Store) -> str:
    """The fix for a folder without a log: depends on whether it has Parquet files."""
    if has_data_files(store):
        try:
            check_no_remains(store, store.list_from(LOG_FOLDER))
        except LogCorrupt:  # a rebuild refuses them
            return f"Restore the commits from a backup. {_WITHOUT_BACKUP}"
        return (
            f"arrowlog.rebuild({store.root!r})  # A new log from the Parquet files; dry_run=True"
            " shows it first. Restore the old log from a backup instead if there is one."
        )
    return (
        "arrowlog.Table.create(uri, schema)  # Only for a new table; otherwise correct the address."
    )


def _run_checks(exam: _Examination) -> int | None:
    """Run every check; return the latest version that could be read, None if none could."""
    store, config = exam.store, exam.config
    for _ in range(_MAX_LISTINGS):
        exam.listing, exam.problems = list_damaged_log(store, config)
        if not exam.listing.overtaken:  # otherwise a truncation may have come in between
            break
    exam.problems.repaired_folder = _free_folder(store, exam.problems.repaired_folder)
    exam.problems.old_folder = _free_folder(store, exam.problems.old_folder)
    if exam.listing.empty:
        exam.problems.report(
            "unreadable",
            "error",
            "there is no log: the folder contains no commits.",
            f"{store.root}/{LOG_FOLDER}",
            _fix_for_no_log(store),
        )
        return None
    _check_commits(exam)
    exam.problems.extend(check_commit_times(exam.timestamps, exam.listing.commits, exam.now_ms))
    _check_copied_commits(exam)
    _check_dead_commits(exam)
    _check_checkpoints(exam)
    if exam.listing.overtaken:
        _report_retired_record(exam)
        _check_pointer(exam)
        return None
    snapshot = _load_snapshot(exam)
    _check_pointer(exam)
    from arrowlog.recovery.state_checks import StateChecks  # loads what decodes Avro

    checks = StateChecks(store, exam.listing, exam.any_path, exam.problems.repair_call)
    exam.problems.extend(checks.findings(snapshot))
    if snapshot is None:
        return None
    if snapshot.protocol.min_reader_version >= STATE_PROTOCOL_VERSION:
        exam.scope = _STATE_SCOPE
    _check_protocol(exam, snapshot)
    _check_table_id(exam, snapshot)
    _check_history(exam, snapshot)
    _check_checkpoint_age(exam, snapshot)
    _check_actions(exam, snapshot)
    exam.problems.extend(check_repeated_skips(store, config, exam.listing, snapshot))
    _check_data_files(exam, snapshot)
    return snapshot.version


def _free_folder(store: Store, name: str) -> str:
    """Return a name for a log next to the table's own under which there is none yet.

    An earlier repair may have left its logs: a target that is not empty is refused, and moving a
    log to a folder that exists would move it into that folder.
    """
    candidates = chain([name], (f"{name}{number}" for number in count(2)))
    return next(folder for folder in candidates if not store.list_from(folder))


def _check_data_files(exam: _Examination, snapshot: Snapshot) -> None:
    """Check the live files; if the folder cannot be listed, what the log says about them."""
    call, writable = exam.access_fix or exam.problems.repair_call, not exam.problems.has_error
    limits = exam.limits
    try:
        found = check_data_files(
            exam.store, exam.config, snapshot, limits, exam.now_ms, call, writable=writable
        )
    except StoreUnavailable as error:
        what = f"{error.what} Whether the data files exist was not checked."
        exam.problems.report("data-unchecked", "error", what, exam.store.root, f"# {error.next}")
        limits = replace(limits, data_files=False)
        found = check_data_files(
            exam.store, exam.config, snapshot, limits, exam.now_ms, call, writable=writable
        )
    exam.problems.extend(found)


def _check_commits(exam: _Examination) -> None:
    """Decode every commit and record each one that cannot be read.

    Batches are decoded as a whole. When one fails, the commit that the error names is left out and
    the rest of the batch is decoded again.
    """
    commits = exam.listing.commit_files()
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        batch = commits[start : start + _COMMITS_PER_BATCH]
        for _ in range(len(batch)):
            try:
                actions = read_verified_actions(exam.store, exam.options, batch)
                exam.timestamps |= commit_timestamps(actions)
                exam.identities |= commit_identities(actions)
                break
            except LogCorrupt as error:
                broken = broken_commit_version(error)
                if broken is None:
                    raise
                exam.broken_commits[broken] = describe_error(error)
                if error.code == "file-unreadable":
                    exam.unreadable_commits[broken] = error.next
                batch = [commit for commit in batch if commit.version != broken]


def _check_copied_commits(exam: _Examination) -> None:
    """Report commits that were overwritten by a copy of another one."""
    for version, original in find_copied_commits(exam.identities).items():
        what = (
            f"the commit of version {version} is a copy of that of version {original}. What it did"
            " is lost; if a backup has the file, restore it instead of the repair. Afterwards, the"
            " doctor lists the files that it may have added."
        )
        where = exam.listing.commits[version]
        exam.problems.report("commit-copied", "error", what, where, version=version)


def _check_dead_commits(exam: _Examination) -> None:
    """Report commit files at retired versions, which do not count."""
    dead = exam.listing.dead
    if dead:
        first = dead[min(dead)]
        subject = f"{len(dead)} commit files have" if len(dead) > 1 else "a commit file has"
        what = (
            f"{subject} a version that was cleaned up: left by a writer or a cleanup that died, or"
            " restored from a backup. Readers ignore such files."
        )
        exam.problems.report("commit-dead", "info", what, first, _CLEAN_DEAD)


def _report_retired_record(exam: _Examination) -> None:
    """Report a record of deleted commits that has no checkpoint above it."""
    error = retired_record_error(exam.listing)
    exam.problems.report("record-wrong", "error", error.what, str(error.file), f"# {error.next}")


def _check_checkpoints(exam: _Examination) -> None:
    """Verify every checkpoint; compare the newest valid one with the commits it replaces."""
    listing = exam.listing
    invalid = ProblemLog(exam.store.root)
    for version in checkpoint_versions(listing):
        reported = len(invalid)
        if exam.valid_checkpoint is not None and listing.state_file(version) is not None:
            continue  # `StateChecks` examines states; older ones share most of their manifests
        forms = valid_checkpoint_forms(exam.store, listing, version, exam.config, invalid)
        exam.valid_forms[version] = forms
        if forms and exam.valid_checkpoint is None:
            exam.valid_checkpoint = version
            if len(invalid) == reported:
                _compare_with_commits(exam, version, forms)
    for problem in invalid:
        graded = _grade_checkpoint(problem, exam.valid_checkpoint)
        if graded.fix == _CHECKPOINT and problem.version not in listing.commits:
            # The state was the commit, so that the version has no other source.
            graded = replace(graded, fix=exam.problems.repair_call)
        exam.problems.extend([graded])


def _grade_checkpoint(problem: Finding, valid_checkpoint: int | None) -> Finding:
    """Return a problem of a checkpoint with the severity and the fix that it has for readers."""
    assert problem.version is not None
    if problem.code == "checkpoint-diverges":
        return problem
    if problem.code == "checkpoint-unreadable":
        return replace(problem, severity="warning")
    if valid_checkpoint is None or problem.version >= valid_checkpoint:
        return replace(problem, severity="warning", fix=_CHECKPOINT)
    what = f"{problem.what} The newer checkpoint of version {valid_checkpoint} is valid."
    return replace(problem, severity="info", what=what, fix=_CLEAN)


def _compare_with_commits(
    exam: _Examination, version: int, forms: Sequence[CheckpointForm]
) -> None:
    """Report each form of a checkpoint that differs from the replay of its commits.

    Nothing is compared unless all commits from version 0 on are there and readable.
    """
    commits = {v: key for v, key in exam.listing.commits.items() if v <= version}
    if len(commits) != version + 1 or any(v in exam.broken_commits for v in commits):
        return
    replayed: State | None = None
    for form in reversed(forms):
        try:
            if replayed is None:
                commits_only = exam.listing.only(commits)
                replayed = load_snapshot(exam.store, commits_only, exam.any_path).state
            listing = exam.listing.only(None, {version: (form,)})
            stored = load_snapshot(exam.store, listing, exam.any_path).state
        except ArrowlogError:
            return
        divergence = describe_divergence(stored, replayed)
        if divergence is not None:
            folder = form.keys[0].rpartition("/")[0]
            where = f"{folder}/{version:020d}.checkpoint.{form.kind}"
            if form.kind in exam.listing.format.state_kinds:
                where = form.keys[0]
            exam.problems.report("checkpoint-diverges", "error", divergence, where, version=version)


def _load_snapshot(exam: _Examination) -> Snapshot | None:
    """Load the latest version as a reader does, or else what can be salvaged; None if nothing."""
    store, listing = exam.store, exam.listing
    try:
        snapshot = load_snapshot(store, listing, exam.options)
        snapshot.state.column("key")  # deferred reads happen here, so that they can fail here
    except (LogCorrupt, FileNotFoundError) as error:
        _report_broken_commits(exam, None)
        if isinstance(error, LogCorrupt) and error.code == "paths-outside":
            fix = (
                f"arrowlog.Table({store.root!r}, allow_outside_paths=True)"
                "  # Only if these files are meant to lie outside the folder."
            )
            exam.problems.report(
                "paths-outside", "error", str(error), f"{store.root}/{LOG_FOLDER}", fix
            )
            return load_snapshot(store, listing, exam.any_path)
        return _load_salvaged(exam, error)
    _report_broken_commits(exam, snapshot)
    gap = snapshot.report.gap
    if gap is not None:
        where = exam.options.format.commit_file(gap.missing).key
        what = (
            f"{gap}. Readers do not see later versions, and writers refuse to commit. If a backup"
            " has the missing file, restore it instead of the repair, which gives up all later"
            " versions."
        )
        exam.problems.report("gap", "error", what, where, version=gap.missing)
    return snapshot


def _load_salvaged(exam: _Examination, error: LogCorrupt | FileNotFoundError) -> Snapshot | None:
    """Return the snapshot that a repair would keep of a log that cannot be read."""
    text = str(missing_file_error(error) if isinstance(error, FileNotFoundError) else error)
    where = f"{exam.store.root}/{LOG_FOLDER}"
    access = exam.access_fix
    try:
        salvaged = salvage(exam.store, exam.config)
    except (ArrowlogError, FileNotFoundError):
        fix = access or (
            "Restore the files of the log from a backup: no version of it can be salvaged."
            f" {_WITHOUT_BACKUP}"
        )
        exam.problems.report("unreadable", "error", text, where, fix)
        return None
    version = salvaged.snapshot.version
    what = f"{text} Repair can salvage version {version}; the checks below refer to that version."
    if access:
        what = f"{text} The checks below refer to version {version}, which can be read."
    exam.problems.report("unreadable", "error", what, where, access)
    return salvaged.snapshot


def _report_broken_commits(exam: _Examination, snapshot: Snapshot | None) -> None:
    """Report commits that cannot be read: warnings below a valid checkpoint, errors above it."""
    uses_checkpoint = snapshot is not None and snapshot.report.checkpoint is not None
    base = exam.valid_checkpoint if uses_checkpoint else None
    newest = max(exam.listing.commits, default=-1)
    for version, problem in sorted(exam.broken_commits.items()):
        where = exam.listing.commits[version]
        access = exam.unreadable_commits.get(version)
        if access is not None:
            needed = base is None or version > base
            what = problem if needed else f"{problem} The latest version does not need it."
            severity = "error" if needed else "warning"
            exam.problems.report(
                "commit-unreadable", severity, what, where, f"# {access}", version=version
            )
            continue
        if base is None or version > base:
            code = "commit-torn" if version == newest else "commit-broken"
            exam.problems.report(code, "error", problem, where, version=version)
            continue
        what = f"{problem} The checkpoint of version {base} stands for this commit."
        if base:
            what = f"{problem} Only versions up to {base - 1} need this commit."
        # Truncation never deletes version 0.
        fix = _TRUNCATE if version else exam.problems.repair_call
        exam.problems.report("commit-broken", "warning", what, where, fix, version=version)


def _check_pointer(exam: _Examination) -> None:
    """Check `_last_checkpoint`. It is only a hint for arrowlog; other programs may rely on it."""
    where = f"{LOG_FOLDER}/{LAST_CHECKPOINT}"
    try:
        data = exam.store.find_many([where])[0]
    except LogCorrupt as error:
        fix = f"# {error.next}"
        exam.problems.report("pointer-unreadable", "warning", error.what, where, fix)
        return
    version = pointed_version(data)
    if data is not None and version < 0:
        what = "the pointer cannot be read: it is not JSON with the number of a version."
        exam.problems.report("pointer-broken", "warning", what, where, _CHECKPOINT)
        return
    newest = exam.listing.newest
    checkpoint = exam.valid_checkpoint
    if version > newest:
        what = describe_pointer_ahead(version, newest)
        exam.problems.report("pointer-ahead", "error", what, where, version=version)
    elif checkpoint is not None and version < checkpoint:
        state = "is missing" if data is None else f"names version {version}"
        what = f"the pointer {state}, but there is a valid checkpoint of version {checkpoint}."
        exam.problems.report("pointer-stale", "warning", what, where, _CHECKPOINT)


def _check_protocol(exam: _Examination, snapshot: Snapshot) -> None:
    """Report a table that this arrowlog can read but not write."""
    try:
        INDEXTABLES.check_writable(snapshot.protocol, exam.store.root)
    except UnsupportedProtocol as error:
        code = error.code or "protocol-unknown"
        what = f"{error.what} The table can be read, but not written."
        exam.problems.report(code, "warning", what, f"{exam.store.root}/{LOG_FOLDER}", _UPGRADE)


def _check_history(exam: _Examination, snapshot: Snapshot) -> None:
    """Report a missing commit below a checkpoint, which readers of the latest version skip."""
    versions = sorted(v for v in exam.listing.commits if 0 < v <= snapshot.version)
    for before, after in pairwise(versions):
        if after > before + 1 and snapshot.report.gap is None:
            first = earliest_rebuildable_version(exam.listing, snapshot.version)
            what = (
                f"the commits between versions {before} and {after} are missing. The latest version"
                f" does not need them, but some versions before {first} cannot be read."
            )
            where = exam.options.format.commit_file(before + 1).key
            exam.problems.report("history-gap", "info", what, where, _TRUNCATE)
            return


def _check_table_id(exam: _Examination, snapshot: Snapshot) -> None:
    """Report a checkpoint left over from a previous table, which hides the present one.

    Only possible where commits between version 0 and the checkpoint are missing.
    """
    commits = exam.listing.commits
    commit = exam.listing.commit_file(0)
    if commit is None or commit.version in exam.broken_commits:
        return
    if all(v in commits for v in range(snapshot.version + 1)):
        return
    only_first = exam.listing.only({commit.version: commit.key})
    first = load_snapshot(exam.store, only_first, exam.any_path)
    mismatch = describe_table_id_mismatch(first, snapshot)
    if mismatch is not None:
        exam.problems.report("two-tables", "warning", mismatch, commit.key)


def _check_checkpoint_age(exam: _Examination, snapshot: Snapshot) -> None:
    """Report too many commits after the newest valid checkpoint, which every reader replays."""
    asked = exam.limits.commits_since_checkpoint
    limit = _NORMAL_INTERVALS * exam.config.checkpoint_interval if asked is None else asked
    base = exam.valid_checkpoint
    num_commits = snapshot.version - (base or 0)  # the commit that created the table is free
    if num_commits > limit:
        last = "none" if base is None else f"version {base}"
        what = (
            f"readers replay {num_commits:,} commits, more than the limit of {limit:,}."
            f" Newest valid checkpoint: {last}."
        )
        severity = "warning" if asked is None else "error"
        exam.problems.report("checkpoint-behind", severity, what, f"{LOG_FOLDER}/", _CHECKPOINT)


def _check_actions(exam: _Examination, snapshot: Snapshot) -> None:
    """Report files that were added while live or removed while not live.

    Covers the commits that a reader of the latest version replays.
    """
    listing, base = exam.listing, snapshot.report.checkpoint
    first = 0 if base is None else base + 1
    commits = listing.commit_files(range(first, snapshot.version + 1))
    if not commits:
        return
    live_before = pl.Series([], dtype=pl.String)
    if base is not None:
        forms = exam.valid_forms.get(base)
        if forms is None:
            ignored = ProblemLog(exam.store.root)  # `StateChecks` reports them
            forms = valid_checkpoint_forms(exam.store, listing, base, exam.config, ignored)
        if not forms:
            return
        only_checkpoint = listing.only(None, {base: forms})
        state = load_snapshot(exam.store, only_checkpoint, exam.any_path).state
        live_before = pl.Series(pl.from_arrow(state.column("key")), dtype=pl.String)
    redundant = _redundant_actions(exam, commits, live_before)
    for is_add, code, severity, verb in (
        (True, "duplicate-adds", "warning", "added again while they were live"),
        (False, "removes-without-adds", "info", "removed although they were not live"),
    ):
        actions = redundant.filter(pl.col("is_add") == is_add)
        if actions.height:
            version, key = actions["version"][0], actions["key"][0]
            what = (
                f"{actions.height:,} files were {verb}, the first {key!r} in version {version}."
                " Readers use the last action."
            )
            keys = actions["key"].to_arrow(compat_level=pl.CompatLevel.oldest())
            where = listing.commits[version]
            files = pa.chunked_array([keys]).combine_chunks().cast(pa.string())
            exam.problems.extend(
                [Finding(code, severity, what, where, _CHECKPOINT, actions.height, files, version)]
            )


def _redundant_actions(
    exam: _Examination, commits: Sequence[CommitFile], live_before: pl.Series
) -> pl.DataFrame:
    """Return adds of live files and removes of files that are not live, in log order.

    `live_before` are the keys of the files that are live before the first commit.
    """
    events = [
        pl.DataFrame(
            schema={"key": pl.String, "at": pl.Int64, "version": pl.Int64, "is_add": pl.Boolean}
        )
    ]
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        actions = read_verified_actions(
            exam.store, exam.options, commits[start : start + _COMMITS_PER_BATCH]
        )
        versions = pl.Series(actions.versions, dtype=pl.Int64)
        for kind in ("add", "remove"):
            table, _ = with_file_keys(actions, kind, exam.store.root)
            if table.num_rows == 0:
                continue
            batch = pl.DataFrame(pl.from_arrow(table.select(["key", "seq"])))
            # `seq` is the number of the commit in its batch, then LINE_BITS for the line.
            commit_number = batch["seq"] // (1 << SEQ_LINE_BITS)
            events.append(
                batch.select(
                    "key",
                    at=pl.col("seq") + (start << SEQ_LINE_BITS),
                    version=versions.gather(commit_number),
                    is_add=pl.lit(kind == "add"),
                )
            )
    ordered = (
        pl.concat(events)
        .sort("at")
        .with_columns(
            previous=pl.col("is_add").shift(1).over("key"),
            initially_live=pl.col("key").is_in(live_before.implode()),
        )
    )
    was_live = pl.coalesce("previous", "initially_live")
    return ordered.filter(was_live == pl.col("is_add"))


_SET_CLOCK = (
    "# Set the clock of the machine that wrote these versions (NTP). The log needs no change."
)
# Unit of a duration and its length in seconds, the longest first.
_DURATION_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def check_commit_times(
    timestamps: Mapping[int, int], commits: Mapping[int, str], now_ms: int
) -> list[Finding]:
    """Report commits whose timestamps are later than now, all in one finding.

    `timestamps` are those of the commits by version, `commits` the keys of their files.
    """
    ahead = {v: time for v, time in timestamps.items() if time > now_ms + CLOCK_TOLERANCE_MS}
    if not ahead:
        return []
    first, last = min(ahead), max(ahead)
    contiguous = last - first + 1 == len(ahead)
    span = f"versions {first} to {last} are" if contiguous else f"{len(ahead):,} versions are"
    subject = span if len(ahead) > 1 else f"version {first} is"
    farthest = max(ahead.values())
    what = (
        f"{subject} dated in the future, up to {format_duration((farthest - now_ms) // 1000)} ahead"
        f" ({format_epoch_millis(farthest)}): the clock of a writer was wrong. Writers keep"
        " timestamps in order, so later versions may be dated after it, too. Until that time,"
        " snapshot(timestamp=…) uses the modification times of these commit files instead."
    )
    return [
        Finding(
            "commit-in-future", "warning", what, commits[first], _SET_CLOCK, len(ahead), None, first
        )
    ]


def format_duration(seconds: int) -> str:
    """Format a duration in its largest unit, rounded down.

    >>> format_duration(90_000), format_duration(7_199), format_duration(61)
    ('1 day', '1 hour', '1 minute')
    """
    unit, length = next(
        (each for each in _DURATION_UNITS if seconds >= each[1]), _DURATION_UNITS[-1]
    )
    count = seconds // length
    return f"{count:,} {unit}{'s' if count != 1 else ''}"
