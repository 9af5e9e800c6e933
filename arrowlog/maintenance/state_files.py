"""The table states of a log and their manifests, as cleanup has to know them.

A state that stays needs every manifest that it names and, if another program wrote it, further
files of the log: the one that holds the metadata, and those that hold application transactions.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrowlog.decode import ENTRY_COLUMNS, decode_file_entries
from arrowlog.errors import ArrowlogError, LogCorrupt, UnsupportedProtocol
from arrowlog.formats.indextables import (
    LOG_FOLDER,
    MANIFEST_FOLDER,
    STATE_FILE_NAME,
    StateManifest,
    parse_state,
    parse_state_folder,
    state_folder_name,
)
from arrowlog.maintenance.retention import LogFile
from arrowlog.snapshot import ReadOptions, read_transactions, read_verified_actions
from arrowlog.storage import ObjectStat

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile
    from arrowlog.storage import Store

# Milliseconds. A writer names a manifest in a state some time after it wrote the manifest, and may
# name those of a state that it has read before. Vacuum gives the files of a commit as long.
MIN_MANIFEST_AGE_MS = 86_400_000
_MAX_REQUESTS = 16  # at a time


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """Files that must stay for their content: versions of commits and of states."""

    commits: frozenset[int] = frozenset()
    states: frozenset[int] = frozenset()

    def __or__(self, other: HeldFiles) -> HeldFiles:
        """Return the files of both."""
        return HeldFiles(self.commits | other.commits, self.states | other.states)

    def covers(self, other: HeldFiles) -> bool:
        """Whether the other files are among these."""
        return self.commits >= other.commits and self.states >= other.states


@dataclass(slots=True)
class StateFiles:
    """The states of a log by version, and the manifests by path in the log. Reads on demand."""

    store: Store
    config: Config
    states: dict[int, LogFile]
    manifests: dict[str, ObjectStat]
    _records: dict[int, StateManifest | None] = field(default_factory=dict)
    _intact: dict[str, int | None] = field(default_factory=dict)  # entries by path of a manifest
    _searched: dict[int, tuple[bool, bool]] = field(default_factory=dict)

    def records(self, versions: Iterable[int]) -> dict[int, StateManifest | None]:
        """Return the records of some states; None for each that cannot be read."""
        wanted = list(versions)
        unread = [version for version in wanted if version not in self._records]
        if unread:
            with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
                self._records.update(zip(unread, pool.map(self._read, unread), strict=True))
        return {version: self._records[version] for version in wanted}

    def _read(self, version: int) -> StateManifest | None:
        key = self.states[version].key
        try:
            data = self.store.get(key)
            return parse_state(data, key, version, self.config.max_decompressed_bytes)
        except (LogCorrupt, UnsupportedProtocol, FileNotFoundError):
            return None

    def assume(self, version: int, now_ms: int) -> LogFile:
        """Assume that there is a complete state of a version, which names new manifests only."""
        key = f"{LOG_FOLDER}/{state_folder_name(version)}/{STATE_FILE_NAME}"
        file = self.states[version] = LogFile(key, "state", version, ObjectStat(0, now_ms))
        self._records[version] = StateManifest(version, now_ms, 0, 0, metadata="", annotation=b"")
        return file

    def is_intact(self, version: int) -> bool:
        """Read a state and all its manifests, each once; return whether nothing is wrong."""
        record = self.records([version])[version]
        if record is None:
            return False
        unread = [info.path for info in record.manifests if info.path not in self._intact]
        with ThreadPoolExecutor(2) as pool:  # decoding takes memory
            self._intact.update(zip(unread, pool.map(self._count_entries, unread), strict=True))
        return all(self._intact[info.path] == info.num_entries for info in record.manifests)

    def _count_entries(self, path: str) -> int | None:
        key = f"{LOG_FOLDER}/{path}"
        limit = self.config.max_decompressed_bytes
        try:
            entries = decode_file_entries(self.store.get(key), key, limit, fields=ENTRY_COLUMNS)
        except (LogCorrupt, UnsupportedProtocol, FileNotFoundError):
            return None
        return int(entries.num_rows)

    def release_manifests(self, staying: Collection[int], now_ms: int) -> tuple[LogFile, ...]:
        """Return the manifests that may be deleted if only the states in `staying` stay.

        None if one of those cannot be read: what it names is unknown.
        """
        records = self.records(sorted(staying))
        if None in records.values():
            return ()
        named = {info.path for record in records.values() if record for info in record.manifests}
        return tuple(
            LogFile(f"{LOG_FOLDER}/{path}", "manifest", -1, stat)
            for path, stat in sorted(self.manifests.items())
            if path not in named and 0 <= stat.mtime_ms < now_ms - MIN_MANIFEST_AGE_MS
        )

    def required_by(
        self, staying: Collection[int], verified: int, doomed: Sequence[CommitFile], *, first: bool
    ) -> HeldFiles:
        """Return files that the states in `staying` need besides their manifests.

        A state without metadata gets it from a commit at or below it, else from the nearest state
        that has one. A state of another program has no application transactions: they are in
        commits, or in the last state below it that arrowlog wrote.

        Args:
            staying: the versions of the states that stay.
            verified: the newest of them that is intact.
            doomed: the commits that would be deleted.
            first: whether the commit of version 0 is there.
        """
        records = self.records(sorted(staying))
        bare = [v for v, record in records.items() if record and record.metadata is None]
        newest = records.get(verified)
        annotated = newest is None or newest.annotation is not None
        if not bare and annotated:
            return HeldFiles()
        states: set[int] = set()
        last_own = -1
        if not annotated or (bare and not first):
            known = {v: r for v, r in self.records(sorted(self.states)).items() if r is not None}
            if not annotated:
                own = (v for v, r in known.items() if r.annotation is not None and v < verified)
                last_own = max(own, default=-1)
                states |= {last_own} - {-1}
            if not first:
                states |= _metadata_sources(bare, [v for v, r in known.items() if r.metadata])
        self._search(doomed)
        commits = set()
        for commit in doomed:
            has_metadata, has_txn = self._searched[commit.version]
            needed = has_metadata and any(commit.version <= version for version in bare)
            if needed or (has_txn and not annotated and commit.version > last_own):
                commits.add(commit.version)
        return HeldFiles(frozenset(commits), frozenset(states))

    def _search(self, commits: Sequence[CommitFile]) -> None:
        """Find out which commits hold metadata, and which an application transaction."""
        options = ReadOptions(self.config, allow_external_paths=True)
        for commit in commits:
            if commit.version in self._searched:
                continue
            try:
                actions = read_verified_actions(self.store, options, [commit])
                found = bool(actions.metadata), bool(read_transactions(actions))
            except (ArrowlogError, FileNotFoundError):
                found = True, True  # what cannot be read may be needed
            self._searched[commit.version] = found

    def unnamed(self, manifests: Sequence[LogFile]) -> list[str]:
        """Return the keys of those manifests that no state names; none if one is unreadable."""
        records = self.records(self.states)
        if None in records.values():
            return []
        named = {f"{LOG_FOLDER}/{i.path}" for r in records.values() if r for i in r.manifests}
        return [file.key for file in manifests if file.key not in named]

    def is_empty_folder(self, name: str) -> bool:
        """Whether a name in the log folder is that of a state which has no file."""
        version = parse_state_folder(name)
        return version is not None and version not in self.states


def _metadata_sources(bare: Sequence[int], with_metadata: Sequence[int]) -> set[int]:
    """Return the nearest states with metadata of those without, on either side."""
    sources: set[int] = set()
    for version in bare:
        distances = {other: abs(other - version) for other in with_metadata}
        nearest = min(distances.values(), default=-1)
        sources |= {other for other, distance in distances.items() if distance == nearest}
    return sources


def list_states(store: Store, config: Config, names: Iterable[str]) -> StateFiles:
    """List the states and manifests of a log; `names` are those in the log folder.

    A folder without the file of a state has none: its write failed, or it was deleted.
    """
    listed = list(names)
    folders = {
        name: version for name in listed if (version := parse_state_folder(name)) is not None
    }
    states: dict[int, LogFile] = {}
    manifests: dict[str, ObjectStat] = {}
    if not folders:
        return StateFiles(store, config, states, manifests)
    others = [MANIFEST_FOLDER] if MANIFEST_FOLDER in listed else []
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        found = pool.map(lambda name: store.stats_from(f"{LOG_FOLDER}/{name}"), [*others, *folders])
        for folder, entries in zip([*others, *folders], found, strict=True):
            for name, stat in entries.items():
                if name == STATE_FILE_NAME and folder in folders:
                    key = f"{LOG_FOLDER}/{folder}/{name}"
                    states[folders[folder]] = LogFile(key, "state", folders[folder], stat)
                elif name.endswith(".avro") and not name.startswith((".", "_")):
                    manifests[f"{folder}/{name}"] = stat
    return StateFiles(store, config, states, manifests)
