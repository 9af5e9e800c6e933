"""Salvage: read a damaged log as far as its content can be proven.

1. Commits are replayed from version 0 up to the first one that is missing, torn, changed, or
   present twice with different content. Nothing of such a commit is applied, nor anything after it,
   because what it did is unknown.
2. A newer valid checkpoint takes over from there, since it contains everything before it.
   Checkpoints with checksums are verified. Those without are accepted if they can be read
   completely.
3. Where commits and a checkpoint disagree about a version, the commits win, since checkpoints are
   derived from them. The exception: the checkpoint wins if it carries a checksum and not every
   commit does.

Whatever is passed over is reported to a `ProblemLog`, with a code that the errors of the reader
carry. Nothing is written and nothing is guessed.

A file that cannot be read is a problem of that file alone. A commit that this user may not read, or
on which the disk or the server fails, would otherwise end an examination with the error of the
store. `ReadableStore` raises `LogCorrupt` with the code `file-unreadable` instead, which names the
file, so that the checks treat it like a damaged file and go on. Such a file is not lost: its fix is
to restore access, never to repair the log without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arrowlog.errors import AccessDenied, ArrowlogError, LogCorrupt, StoreUnavailable, TableNotFound
from arrowlog.fork_safety import pl
from arrowlog.formats import MAX_VERSION
from arrowlog.formats.indextables import (
    INDEXTABLES,
    LAST_CHECKPOINT,
    STATE_PROTOCOL_VERSION,
    classify_log_file,
    decompress,
    parse_state_folder,
)
from arrowlog.maintenance import retry_after_cleanup
from arrowlog.recovery.findings import ProblemLog
from arrowlog.snapshot import (
    CheckpointPartReader,
    ReadOptions,
    checkpoint_versions,
    load_snapshot,
    open_parquet_checkpoint,
    read_pointer,
    verify_checkpoint,
    without_failed_states,
    without_retired,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import CheckpointForm, Checkpoints, Format, LogListing, Protocol
    from arrowlog.snapshot import Snapshot, State
    from arrowlog.storage import FileBuffer, ObjectStat, Store

_CHECKSUM_MARKER = b'"checksum":"crc32:'  # in every commit and JSON checkpoint that has a checksum
_MAX_ATTEMPTS = 3  # a concurrent cleanup can delete files between the listing and the read


@dataclass(frozen=True, slots=True)
class SalvageResult:
    """The newest snapshot that could be read, and the problems that were found."""

    snapshot: Snapshot
    listing: LogListing
    newest: int  # the highest version that a commit, a checkpoint or the pointer names
    problems: ProblemLog


@dataclass(slots=True)
class _Salvaging:
    """One run: the listing that it works on, and the problems so far."""

    store: Store
    config: Config
    listing: LogListing
    problems: ProblemLog

    @property
    def options(self) -> ReadOptions:
        """Paths are not judged here: readers of the salvaged log do."""
        return ReadOptions(self.config, allow_external_paths=True, format=self.listing.format)

    def note(self, code: str, where: str, what: str, version: int) -> None:
        self.problems.report(code, "error", what, where, version=version)


def salvage(store: Store, config: Config, table_format: Format = INDEXTABLES) -> SalvageResult:
    """Read a damaged log as far as its content can be proven.

    `table_format` is that of IndexTables; it tells the folder of the log.

    Raises TableNotFound if there is no log, LogCorrupt if no version can be read, and
    UnsupportedProtocol if the log needs a newer reader.
    """
    return retry_after_cleanup(lambda: _salvage(store, config, table_format))


def _salvage(store: Store, config: Config, table_format: Format) -> SalvageResult:
    listing, problems = list_damaged_log(store, config, table_format)
    if listing.empty:
        raise TableNotFound(
            f"There is no log at {store.root}: the folder has no commits in it.",
            next="Check the address; it must be that of the log's folder.",
        )
    run = _Salvaging(store, config, listing, problems)
    by_commits = _replay_commits(run)
    reached = -1 if by_commits is None else by_commits.version
    by_checkpoint = _load_newer_checkpoint(run, reached)
    if by_commits is not None and by_checkpoint is not None:
        mismatch = describe_table_id_mismatch(by_commits, by_checkpoint)
        if mismatch is not None:
            run.note("two-tables", listing.format.commit_file(0).key, mismatch, reached)
    snapshot = by_checkpoint or by_commits
    if snapshot is None:
        raise LogCorrupt(
            "no version can be read"
            + "".join(f"; {note}" for note in problems.notes()[:3]).rstrip(".")
            + ".",
            next="Restore version 0 or a checkpoint from a backup.",
        )
    snapshot = _resolve_divergence(run, snapshot)
    newest = max(listing.newest, read_pointer(store, table_format))
    _note_unreachable(run, snapshot.version, newest)
    return SalvageResult(snapshot, listing, newest, problems)


def list_damaged_log(
    store: Store, config: Config, table_format: Format = INDEXTABLES
) -> tuple[LogListing, ProblemLog]:
    """List the log, tolerating names that a reader rejects, and report these.

    Files of the same version with equal content count once. If their content differs, none of them
    counts, since there is no way to tell which one is right.
    """
    names, inner = list_log_folder(store, table_format)
    problems = ProblemLog(store.root, table_format.log_folder)
    by_version: dict[tuple[str, int], list[str]] = {}
    accepted: list[str] = []
    for name in names:
        if parse_state_folder(name) is not None:
            accepted.append(name)
            continue
        part = classify_log_file(name) if name.endswith(".json") else None
        if part is None or part[1] > MAX_VERSION:
            if part is not None:
                what = f"the version number in the file name is larger than {MAX_VERSION}."
                problems.report("odd-name", "error", what, table_format.key(name[:60]))
            continue
        if part[0] == "commit" or name.endswith(".checkpoint.json"):
            by_version.setdefault(part, []).append(name)
        else:
            accepted.append(name)
    for (kind, version), duplicates in by_version.items():
        keys = [table_format.key(name) for name in duplicates]
        if len(keys) == 1 or _have_same_content(store, keys, config):
            accepted.append(duplicates[0])
            continue
        what = f"{' and '.join(duplicates)} are both version {version}, but their content differs."
        problems.report(f"{kind}-twice", "error", what, keys[0], version=version)
    inner = [name for name in inner if (classify_log_file(name) or ("", 0))[1] <= MAX_VERSION]
    listing = without_failed_states(store, table_format.classify(sorted(accepted), inner))
    return without_retired(store, listing, names), problems


def list_log_folder(store: Store, table_format: Format) -> tuple[list[str], list[str]]:
    """Return the names in the log folder and in its folder of Parquet checkpoints."""
    names = store.list_from(table_format.log_folder)
    folder = table_format.checkpoint_folder
    return names, store.list_from(table_format.key(folder)) if folder in names else []


def _have_same_content(store: Store, keys: Sequence[str], config: Config) -> bool:
    """Whether files are equal after decompression; False if one cannot be read."""
    try:
        limit = config.max_decompressed_bytes
        contents = {
            decompress(data, key, limit)
            for key, data in zip(keys, store.get_many(keys), strict=True)
        }
    except (LogCorrupt, FileNotFoundError):
        return False
    return len(contents) == 1


def _contiguous_commits(listing: LogListing, base: int) -> dict[int, str]:
    """Return the commits right after version `base`, up to the first that is missing."""
    commits = {}
    while base + 1 in listing.commits:
        base += 1
        commits[base] = listing.commits[base]
    return commits


def _replay_commits(run: _Salvaging) -> Snapshot | None:
    return _load_readable_prefix(run, _contiguous_commits(run.listing, -1), {})


def _load_readable_prefix(
    run: _Salvaging, commits: dict[int, str], checkpoints: Checkpoints
) -> Snapshot | None:
    """Load a checkpoint, if one is given, and the commits up to the first that is broken.

    Returns None if nothing is left to load.
    """
    for _ in range(len(commits) + 1):
        if not commits and not checkpoints:
            return None
        listing = run.listing.only(commits, checkpoints)
        try:
            return load_snapshot(run.store, listing, run.options)
        except LogCorrupt as error:
            broken = broken_commit_version(error)
            if broken is None or broken not in commits:
                raise
            run.note("commit-broken", commits[broken], describe_error(error), broken)
            commits = {version: key for version, key in commits.items() if version < broken}
    raise AssertionError  # each round drops at least one commit


def broken_commit_version(error: ArrowlogError) -> int | None:
    """Return the version of the commit file that an error names; None if it names no commit."""
    part = None if error.file is None else classify_log_file(error.file.rpartition("/")[2])
    return None if part is None or part[0] != "commit" else part[1]


def describe_error(error: ArrowlogError) -> str:
    """Describe an error in a file: the line, if known, and what is wrong there."""
    line = "" if error.line is None else f"line {error.line}: "
    return f"{line}{error.what}"


def _load_newer_checkpoint(run: _Salvaging, reached: int) -> Snapshot | None:
    """Load the newest valid checkpoint above version `reached`, and the commits after it."""
    listing = run.listing
    for version in checkpoint_versions(listing):
        if version <= reached:
            return None
        forms = valid_checkpoint_forms(run.store, listing, version, run.config, run.problems)
        if forms:
            commits = _contiguous_commits(listing, version)
            return _load_readable_prefix(run, commits, {version: forms})
    return None


def valid_checkpoint_forms(
    store: Store, listing: LogListing, version: int, config: Config, problems: ProblemLog
) -> tuple[CheckpointForm, ...]:
    """Return the valid forms of a checkpoint; what is wrong with others goes to `problems`."""
    valid: list[CheckpointForm] = []
    for form in reversed(listing.checkpoints[version]):
        check = _verify_parquet if form.kind == "parquet" else _verify_form
        error = check(store, listing, version, config, form)
        if error is None:
            valid.insert(0, form)
        else:
            _report_checkpoint(problems, form.keys[0], error, version)
    return tuple(valid)


def _verify_form(
    store: Store, listing: LogListing, version: int, config: Config, form: CheckpointForm
) -> ArrowlogError | None:
    """Return what is wrong with a form of a checkpoint, None if it is valid."""
    errors = verify_checkpoint(store, listing, version, config, form.kind)
    return errors[0] if errors else None


def _verify_parquet(
    store: Store, listing: LogListing, version: int, config: Config, form: CheckpointForm
) -> ArrowlogError | None:
    """Return what is wrong with a Parquet checkpoint, None if it is valid."""
    try:
        opened = open_parquet_checkpoint(store, version, form.keys, lambda _: None)
        if opened is None:
            what = "the checkpoint has no manifest: its writer stopped before it was complete."
            return LogCorrupt(what, version=version, code="checkpoint-partial")
        if isinstance(opened, CheckpointPartReader):
            errors = verify_checkpoint(store, listing, version, config, "parquet")
            return errors[0] if errors else None
        # A checkpoint of another program has no checksums: it is valid if it loads.
        options = ReadOptions(config, allow_external_paths=True, format=listing.format)
        load_snapshot(store, listing.only(checkpoints={version: (form,)}), options)
    except LogCorrupt as error:
        return error
    except FileNotFoundError as error:
        file = str(error).removeprefix(f"{store.root}/")
        return LogCorrupt("it is gone.", file=file, code="checkpoint-partial")
    return None


def _report_checkpoint(
    problems: ProblemLog, where: str, error: ArrowlogError, version: int
) -> None:
    """Report a checkpoint that is not valid. An error without a code of its own is damage."""
    own = error.code in ("checkpoint-diverges", "checkpoint-partial")
    code = str(error.code) if own else "checkpoint-broken"
    if error.code == "file-unreadable":
        code, fix = "checkpoint-unreadable", f"# {error.next}"
        problems.report(code, "error", error.what, error.file or where, fix, version=version)
        return
    problems.report(code, "error", str(error), where, version=version)


def _resolve_divergence(run: _Salvaging, snapshot: Snapshot) -> Snapshot:
    """Compare replayed commits with the newest checkpoint they cover; return what to believe.

    The commits win, unless the checkpoint carries a checksum and not every commit does.
    """
    listing = run.listing
    version = next((v for v in checkpoint_versions(listing) if v <= snapshot.version), None)
    if version is None or snapshot.report.checkpoint is not None:
        return snapshot
    forms = valid_checkpoint_forms(run.store, listing, version, run.config, run.problems)
    if not forms:
        return snapshot
    commits = {v: key for v, key in _contiguous_commits(listing, -1).items() if v <= version}
    checkpoint = load_snapshot(run.store, listing.only(None, {version: forms}), run.options)
    replayed = load_snapshot(run.store, listing.only(commits), run.options)
    divergence = describe_divergence(checkpoint.state, replayed.state)
    if divergence is None:
        return snapshot
    # Version 0 never carries a checksum: it consists of protocol and metaData only.
    kinds = {form.kind for form in forms}
    checkpoint_has_checksum = kinds != {"json"} or _have_checksums(run, [forms[0].keys[0]])
    trust_checkpoint = checkpoint_has_checksum and not _have_checksums(
        run, [commits[v] for v in commits if v]
    )
    used = (
        "the checkpoint, because it has a checksum and not every commit does"
        if trust_checkpoint
        else "the commits"
    )
    where = listing.checkpoints[version][-1].keys[0]
    run.note("checkpoint-diverges", where, f"{divergence} Repair uses {used}.", version)
    if not trust_checkpoint:
        return snapshot
    commits = _contiguous_commits(listing, version)
    return _load_readable_prefix(run, commits, {version: forms}) or snapshot


def describe_table_id_mismatch(before: Snapshot, after: Snapshot) -> str | None:
    """Describe how the table ids of commits and of a later checkpoint differ; None if equal."""
    if before.metadata.id == after.metadata.id:
        return None
    return (
        f"the commits up to version {before.version} belong to table {before.metadata.id}, but the"
        f" checkpoint of version {after.report.checkpoint} belongs to table {after.metadata.id}:"
        " one of them may be left over from a table that was here before. Readers and repair use"
        " the checkpoint."
    )


def describe_divergence(checkpoint: State, replayed: State) -> str | None:
    """Describe how a checkpoint differs from the replay of its commits; None if it does not.

    Compares the keys of live files, the metadata and the protocol.
    """
    checkpoint_keys, replayed_keys = checkpoint.column("key"), replayed.column("key")
    extra = _count_missing_from(checkpoint_keys, replayed_keys)
    lacking = _count_missing_from(replayed_keys, checkpoint_keys)
    if extra or lacking:
        return (
            f"the checkpoint has {len(checkpoint_keys):,} files, but its commits lead to"
            f" {len(replayed_keys):,}: {extra:,} are only in the checkpoint, {lacking:,} only in"
            " the commits."
        )
    if checkpoint.metadata != replayed.metadata:
        return "the metaData of the checkpoint differs from that of its commits."
    if not _is_same_protocol(checkpoint.protocol, replayed.protocol):
        return "the protocol of the checkpoint differs from that of its commits."
    return None


def _is_same_protocol(checkpoint: Protocol, replayed: Protocol) -> bool:
    """Whether a checkpoint has the protocol of its commits; a table state has no features."""
    if checkpoint == replayed:
        return True
    bare = replace(replayed, reader_features=(), writer_features=())
    return checkpoint.min_reader_version >= STATE_PROTOCOL_VERSION and checkpoint == bare


def _count_missing_from(keys: pa.ChunkedArray, others: pa.ChunkedArray) -> int:
    """Count the keys that are not among the others."""
    wanted = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    present = pl.Series(pl.from_arrow(others), dtype=pl.String)
    return int((~wanted.is_in(present.implode())).sum())


def _have_checksums(run: _Salvaging, keys: Sequence[str]) -> bool:
    """Whether every one of these log files carries a checksum."""
    limit = run.config.max_decompressed_bytes
    contents = zip(keys, run.store.get_many(keys), strict=True)
    return all(_CHECKSUM_MARKER in decompress(data, key, limit) for key, data in contents)


def _note_unreachable(run: _Salvaging, reached: int, newest: int) -> None:
    """Report what lies after the last version that can be read: a gap, a pointer too far ahead."""
    listing = run.listing
    later = sorted(v for v in listing.commits if v > reached)
    reported = {found.version for found in run.problems if found.code.startswith("commit")}
    if later and later[0] > reached + 1 and reached + 1 not in reported:
        what = f"version {reached + 1} is missing although version {later[0]} is there."
        run.note("gap", run.listing.format.commit_file(reached + 1).key, what, reached + 1)
    if newest > max(reached, listing.newest):
        what = describe_pointer_ahead(newest, listing.newest)
        run.note("pointer-ahead", listing.format.key(LAST_CHECKPOINT), what, newest)


def describe_pointer_ahead(pointer: int, newest: int) -> str:
    """Describe a pointer that names a version beyond the end of the log."""
    return f"the pointer names version {pointer}, but the log ends at version {newest}."


# Other files of the log that are tried before a failure counts as that of one file.
_MAX_PROBES = 3
_DOCTOR_AGAIN = "Then run the doctor again."


class ReadableStore:
    """A store whose reads of single objects fail with `LogCorrupt`; all else is passed on.

    Raises the error of the store if it fails as a whole: if no other file of the log can be read
    either, or a folder cannot be listed. A file that failed once is not read again, because on a
    remote store every attempt takes as long as the time limit allows.
    """

    def __init__(self, store: Store, log_folder: str) -> None:
        """Wrap a store; `log_folder` has the files that are tried after a failure."""
        self._store = store
        self._log_folder = log_folder
        self._failed: dict[str, LogCorrupt] = {}
        self._answers = False  # whether any file could be read

    def __getattr__(self, name: str) -> Any:
        """Pass on every other operation and attribute."""
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        self._raise_failed([key])
        try:
            data = self._store.get(key)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None
        self._answers = True
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object."""
        self._raise_failed([key])
        try:
            return self._store.get_range(key, start, stop)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None

    def stat(self, key: str) -> ObjectStat | None:
        """Return the stat of an object; None if it does not exist."""
        try:
            return self._store.stat(key)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects; the first that cannot be read is named."""
        self._raise_failed(keys)
        try:
            return self._store.get_many(keys)
        except StoreUnavailable:
            return [self.get(key) for key in keys]

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of objects, None for missing ones; an unreadable one is named."""
        self._raise_failed(keys)
        try:
            return self._store.find_many(keys)
        except StoreUnavailable:
            return [self._find(key) for key in keys]

    def _find(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the buffer; the first that cannot be read is named."""
        self._raise_failed(keys)
        try:
            return self._store.read_into(buffer, keys, versions, enough)
        except StoreUnavailable:
            for key in keys:
                self.get(key)
            raise  # every file can be read now: the store fails from time to time

    def _raise_failed(self, keys: Sequence[str]) -> None:
        for key in keys if self._failed else ():
            if key in self._failed:
                raise self._failed[key]

    def _unreadable(self, key: str, error: StoreUnavailable) -> LogCorrupt | StoreUnavailable:
        """Return the error for a file that cannot be read; `error` itself if the store fails."""
        if not isinstance(error, AccessDenied) and not self._can_read_another(key):
            return error
        reason = error.what.partition(f"{key}: ")[2] or error.what
        what = f"the file cannot be read: {reason}"
        advice = f"{error.next} {_DOCTOR_AGAIN}"
        self._failed[key] = LogCorrupt(what, next=advice, file=key, code="file-unreadable")
        return self._failed[key]

    def _can_read_another(self, key: str) -> bool:
        """Whether the store reads any other file of the log."""
        if self._answers:
            return True
        names = self._store.list_from(self._log_folder)
        others = [f"{self._log_folder}/{name}" for name in names if name.endswith(".json")]
        for other in [other for other in others if other != key][:_MAX_PROBES]:
            try:
                self._store.get(other)
            except (StoreUnavailable, FileNotFoundError):
                continue
            self._answers = True
            return True
        return False
