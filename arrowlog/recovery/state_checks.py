"""Checks of table states: what their files say about each other and about the commits below."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from arrowlog.errors import ArrowlogError, LogCorrupt
from arrowlog.formats import CommitFile
from arrowlog.formats.indextables import LOG_FOLDER, MANIFEST_FOLDER, parse_state, state_folder_name
from arrowlog.recovery.findings import Finding
from arrowlog.snapshot import load_snapshot, read_verified_actions, with_file_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrowlog.formats import LogListing
    from arrowlog.formats.indextables import StateManifest
    from arrowlog.snapshot import ReadOptions, Snapshot
    from arrowlog.storage import Store

_COUNTED = "# Nothing is to be done: readers count the files, and the next state has their number."
_NONE_NEEDED = "# Nothing is to be done: readers leave it out."
_RESTORE = (
    "# Restore the file from a backup. Other versions can be read; table.cleanup() deletes the"
    " state when it has expired."
)
_ASK = (
    "# Find out who wrote them, and add the files again if they belong to the table:"
    " table.append(...)."
)


class StateChecks:
    """Examines the states of one log. Writes nothing."""

    def __init__(
        self, store: Store, listing: LogListing, options: ReadOptions, repair_call: str
    ) -> None:
        """`options` should admit any path: paths are judged elsewhere."""
        self._store = store
        self._listing = listing
        self._options = options
        self._repair_call = repair_call
        self._states: dict[int, StateManifest] = {}

    def findings(self, snapshot: Snapshot | None) -> Iterator[Finding]:
        """Yield what is wrong; `snapshot` is the newest version, None if it cannot be read."""
        versions = sorted(v for v in self._listing.checkpoints if self._listing.state_file(v))
        first = CommitFile(0, f"{LOG_FOLDER}/{state_folder_name(0)}/_manifest.avro")
        if not versions:
            return
        for version in versions:
            yield from self._check_record(version, newest=version == versions[-1])
        yield from self._check_manifests(versions[-1])
        yield from self._check_first(first)
        yield from self._check_times()
        yield from self._check_commits()
        if snapshot is not None and snapshot.report.checkpoint in self._states:
            yield from self._check_count(snapshot, snapshot.report.checkpoint)

    def _check_record(self, version: int, *, newest: bool) -> Iterator[Finding]:
        file = self._listing.state_file(version)
        assert file is not None
        try:
            self._states[version] = self._read(file)
        except FileNotFoundError:
            what = "the folder has no state: a write failed. Readers leave it out."
            yield Finding("state-failed", "info", what, file.key, _NONE_NEEDED, version=version)
        except LogCorrupt as error:
            code = str(error.code) if error.code == "state-misnumbered" else "state-broken"
            severity = "error" if newest else "warning"
            fix = self._repair_call if newest else _RESTORE
            if error.code == "file-unreadable":  # it may be intact: access comes before repair
                code, fix = "state-unreadable", f"# {error.next}"
            yield Finding(code, severity, error.what, file.key, fix, version=version)

    def _read(self, file: CommitFile) -> StateManifest:
        limit = self._options.config.max_decompressed_bytes
        return parse_state(self._store.get(file.key), file.key, file.version, limit)

    def _check_manifests(self, newest: int) -> Iterator[Finding]:
        """Report manifests that a state names and that are not there."""
        folders = {
            manifest.path.rpartition("/")[0]
            for state in self._states.values()
            for manifest in state.manifests
        }
        present = {
            f"{folder}/{name}"
            for folder in {MANIFEST_FOLDER, *folders}
            for name in self._store.list_from(f"{LOG_FOLDER}/{folder}")
        }
        missing: dict[str, list[int]] = {}
        for version, state in self._states.items():
            for manifest in state.manifests:
                if manifest.path not in present:
                    missing.setdefault(manifest.path, []).append(version)
        for path, versions in sorted(missing.items()):
            hits_newest = newest in versions
            states = f"the states of {len(versions)} versions, {min(versions)} to {max(versions)},"
            if len(versions) == 1:
                states = f"the state of version {versions[0]}"
            what = f"the manifest is missing, but {states} need it: their files cannot be listed."
            if len(versions) == 1:
                what = (
                    f"the manifest is missing, but {states} needs it: its files cannot be listed."
                )
            yield Finding(
                "manifest-missing",
                "error" if hits_newest else "warning",
                what,
                f"{LOG_FOLDER}/{path}",
                self._repair_call if hits_newest else _RESTORE,
                count=len(versions),
                version=max(versions),
            )

    def _check_first(self, file: CommitFile) -> Iterator[Finding]:
        """Report a state in the folder of version 0 that holds a later version of the table."""
        if 0 not in self._listing.commits:
            return
        try:
            state = self._read(file)
        except (FileNotFoundError, LogCorrupt):
            return
        later = [v for v, other in self._states.items() if other.created_at < state.created_at]
        if later:
            what = (
                f"the state of version 0 was written after that of version {min(later)}, so that it"
                " does not describe version 0. Readers use the commit of version 0."
            )
            yield Finding("state-lies", "info", what, file.key, _NONE_NEEDED, version=0)

    def _check_times(self) -> Iterator[Finding]:
        versions = sorted(self._states)
        for before, after in pairwise(versions):
            if self._states[after].created_at < self._states[before].created_at:
                what = (
                    f"the state of version {after} has an earlier time than that of {before}: the"
                    " clocks of its writers differ. Time travel by time may be off there."
                )
                file = self._listing.state_file(after)
                where = LOG_FOLDER if file is None else file.key
                yield Finding("state-times", "info", what, where, _NONE_NEEDED, version=after)

    def _check_commits(self) -> Iterator[Finding]:
        """Report commits below a state whose files the state of their version does not have."""
        newest = max(self._states, default=-1)
        shadow = self._listing.state_only_version
        for commit in self._listing.commit_files():
            if not 0 < commit.version <= newest:
                continue
            state = commit.version in self._states
            if not state and commit.version > shadow:
                continue
            try:
                actions = read_verified_actions(self._store, self._options, [commit])
                keys = with_file_keys(actions, "add", self._store.root)[0]["key"]
                live = None
                if state:
                    live = load_snapshot(
                        self._store, self._listing, self._options, commit.version
                    ).state.column("key")
            except (ArrowlogError, FileNotFoundError):
                continue  # reported elsewhere
            removed = with_file_keys(actions, "remove", self._store.root)[0]["key"]
            lost = keys.filter(pc.invert(pc.is_in(keys, value_set=removed.combine_chunks())))
            if live is not None:
                lost = lost.filter(pc.invert(pc.is_in(lost, value_set=live.combine_chunks())))
            if len(lost):
                what = (
                    f"the commit adds {len(lost):,} files that no reader sees: the table state of a"
                    " version at or above it does not have them. A writer that ignores table states"
                    " numbered it."
                )
                files = pc.unique(lost)
                yield Finding(
                    "commit-ignored",
                    "error",
                    what,
                    commit.key,
                    _ASK,
                    len(lost),
                    files,
                    commit.version,
                )

    def _check_count(self, snapshot: Snapshot, version: int) -> Iterator[Finding]:
        state = self._states[version]
        try:
            live = load_snapshot(self._store, self._listing, self._options, version).num_files
        except (ArrowlogError, FileNotFoundError):
            return
        del snapshot
        if live != state.num_files >= 0:
            file = self._listing.state_file(version)
            where = LOG_FOLDER if file is None else file.key
            what = f"the state says that it has {state.num_files:,} files, and has {live:,}."
            yield Finding("state-count", "info", what, where, _COUNTED, version=version)
