"""Reads a table state: its record, and from elsewhere in the log what the record may lack.

Many writers put the metadata into the commit of version 0 only. No state of another writer has
application transactions, so that they are looked up in the commits, when they are asked for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from arrowlog.decode import decode_line, parse_metadata, to_metadata, to_protocol
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats import Protocol, RecentCommits, no_recent_commits
from arrowlog.formats.indextables import decompress, parse_state
from arrowlog.snapshot.avro_state_files import AvroStateFiles, StateEntries
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.log_replay import parse_table_schema
from arrowlog.snapshot.snapshot import LazyTransactions, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile, Format, LogListing, Metadata
    from arrowlog.formats.indextables import StateManifest
    from arrowlog.snapshot.read_options import ManifestCache
    from arrowlog.snapshot.snapshot import Transactions
    from arrowlog.storage import Store

MAPPING_PREFIX = "docMappingSchema."
# Commits that are read at a time when metadata is searched in them.
_COMMITS_PER_READ = 64


class StateFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What arrowlog writes into a state beside its record, as JSON.

    `addedProperties` are properties in the state's metadata that are not the table's: doc mappings,
    for other programs.
    """

    timestamp: int | None = None
    txns: dict[str, tuple[int, int]] = {}
    recentCommits: tuple[int, list[str | None]] | None = None  # noqa: N815 -- the name on disk
    features: tuple[list[str], list[str]] | None = None
    addedProperties: list[str] = []  # noqa: N815 -- the name on disk


class _Found(NamedTuple):
    """Metadata, and the protocol that stood beside it."""

    metadata: Metadata
    protocol: Protocol | None


class StateReader:
    """Reads the states of one log.

    `transactions` reads the application transactions of commits; `count` counts what was read.
    """

    def __init__(
        self,
        store: Store,
        listing: LogListing,
        config: Config,
        cache: ManifestCache,
        *,
        allow_external_paths: bool,
        count: Callable[[int], None],
        transactions: Callable[[Sequence[CommitFile]], Transactions],
    ) -> None:
        """Read nothing yet."""
        self._store = store
        self._listing = listing
        self._config = config
        self._cache = cache
        self._allow_external_paths = allow_external_paths
        self._count = count
        self._transactions = transactions

    @property
    def _format(self) -> Format:
        return self._listing.format

    def open(self, file: CommitFile, again: Callable[[int], pa.Table]) -> State:
        """Open a state; its manifests stay unread.

        Raises `LogCorrupt` naming the file if it is damaged or the log holds no metadata for it,
        `UnsupportedProtocol` if it needs a newer reader, and `FileNotFoundError` if it is gone.
        """
        manifest = self.record(file)
        if file.version == 0:
            self._check_first(manifest, file)
        metadata, beside = self._metadata(manifest, file)
        facts = parse_facts(manifest, file)
        features = facts.features or (
            ((), ()) if beside is None else (beside.reader_features, beside.writer_features)
        )
        protocol = Protocol(
            manifest.protocol_version,
            manifest.protocol_version,
            tuple(features[0]),
            tuple(features[1]),
        )
        self._format.check_readable(protocol, file.key)
        schema = parse_table_schema(
            metadata, file.version, file.key, table_format=self._format, protocol=protocol
        )
        source = AvroStateFiles(self.entries(manifest, metadata), file.version, again)
        recent = no_recent_commits(file.version)
        if facts.recentCommits is not None:
            recent = RecentCommits(facts.recentCommits[0], tuple(facts.recentCommits[1]))
        return State(
            file.version,
            protocol,
            metadata,
            schema,
            source,
            max(manifest.created_at, facts.timestamp or 0),
            facts.txns if manifest.annotation is not None else self._lazy_transactions(file),
            recent if recent.last == file.version else no_recent_commits(file.version),
            self._format,
        )

    def entries(self, manifest: StateManifest, metadata: Metadata) -> StateEntries:
        """Return the entries of a state, unread."""
        return StateEntries(
            self._store,
            self._format,
            self._config,
            self._cache,
            manifest,
            metadata.id,
            doc_mappings(manifest, metadata),
            allow_external_paths=self._allow_external_paths,
        )

    def record(self, file: CommitFile) -> StateManifest:
        """Read the record of a state."""
        data = self._store.get(file.key)
        self._count(len(data))
        return parse_state(data, file.key, file.version, self._config.max_decompressed_bytes)

    def _check_first(self, manifest: StateManifest, file: CommitFile) -> None:
        """Raise `LogCorrupt` if the state of version 0 was written after one of a later version.

        Some writers put the current state of the table there.
        """
        for version in sorted(self._listing.checkpoints):
            later = self._listing.state_file(version)
            if later is None or version == 0:
                continue
            try:
                created_at = self.record(later).created_at
            except (LogCorrupt, FileNotFoundError):
                continue
            if created_at < manifest.created_at:
                raise LogCorrupt(
                    f"the state was written after that of version {version}, so that it does not"
                    " describe version 0.",
                    next="Read a later version.",
                    file=file.key,
                    version=0,
                )
            return

    def _metadata(self, manifest: StateManifest, file: CommitFile) -> _Found:
        """Find the metadata of a state: its own, else the nearest one that the log has."""
        if manifest.metadata is not None:
            return _Found(_parse_own_metadata(manifest, file), None)
        listing = self._listing
        if listing.start or 0 not in listing.commits:  # commits that were not listed may hold it
            with suppress(LogCorrupt):
                listing = list_log(self._store, self._format)
        found = self._metadata_of_commits(listing, file.version)
        if found is None:
            found = self._metadata_of_states(listing, file.version)
        if found is None:
            raise LogCorrupt(
                "neither this state nor any other file of the log has the metadata of the table.",
                next="Restore the commit of version 0 from a backup.",
                file=file.key,
                version=file.version,
            )
        return found

    def _metadata_of_commits(self, listing: LogListing, version: int) -> _Found | None:
        """Return the metadata in the newest commit up to a version that has one."""
        commits = [commit for commit in listing.commit_files() if commit.version <= version]
        while commits:
            chunk, commits = commits[-_COMMITS_PER_READ:], commits[:-_COMMITS_PER_READ]
            files = self._store.get_many([commit.key for commit in chunk])
            for commit, data in reversed(list(zip(chunk, files, strict=True))):
                self._count(len(data))
                found = self._metadata_of_commit(commit, data)
                if found is not None:
                    return found
        return None

    def _metadata_of_commit(self, commit: CommitFile, data: bytes) -> _Found | None:
        plain = decompress(data, commit.key, self._config.max_decompressed_bytes)
        metadata = protocol = None
        for number, line in enumerate(plain.split(b"\n"), 1):
            if b'"metaData"' not in line and b'"protocol"' not in line:
                continue
            decoded = decode_line(line, commit.key, number, self._format.actions)
            if decoded is None:
                continue
            action, fields = decoded
            if action == "metaData":
                metadata = to_metadata(fields, self._format.default_provider)
            elif action == "protocol":
                protocol = to_protocol(fields)
        return None if metadata is None else _Found(metadata, protocol)

    def _metadata_of_states(self, listing: LogListing, version: int) -> _Found | None:
        """Return the metadata of the nearest other state that has one."""
        others = sorted(set(listing.checkpoints) - {version}, key=lambda v: abs(v - version))
        for other in others:
            file = listing.state_file(other)
            if file is None:
                continue
            try:
                record = self.record(file)
                if record.metadata is not None:
                    return _Found(_parse_own_metadata(record, file), None)
            except (LogCorrupt, FileNotFoundError):
                continue
        return None

    def _lazy_transactions(self, file: CommitFile) -> LazyTransactions:
        listing = self._listing

        def load() -> Transactions:
            whole = list_log(self._store, self._format) if listing.start else listing
            base, known = self._last_own_transactions(whole, file.version)
            commits = [c for c in whole.commit_files() if base < c.version <= file.version]
            later = self._transactions(commits)
            for app, txn in later.items():
                # The highest number of an application counts.
                known[app] = max(txn, known.get(app, txn))
            return known

        return LazyTransactions(load)

    def _last_own_transactions(
        self, listing: LogListing, version: int
    ) -> tuple[int, dict[str, tuple[int, int]]]:
        """Return the last state below a version that arrowlog wrote, and its transactions.

        The commits up to it may be gone. Returns -1 if there is no such state.
        """
        files = [listing.state_file(v) for v in sorted(listing.checkpoints) if v < version]
        states = [file for file in files if file is not None]
        while states:
            chunk, states = states[-_COMMITS_PER_READ:], states[:-_COMMITS_PER_READ]
            found = self._store.find_many([file.key for file in chunk])
            for file, data in reversed(list(zip(chunk, found, strict=True))):
                limit = self._config.max_decompressed_bytes
                with suppress(LogCorrupt):
                    record = data and parse_state(data, file.key, file.version, limit)
                    if record and record.annotation is not None:
                        return file.version, parse_facts(record, file).txns
        return -1, {}


def find_broken_states(
    store: Store, listing: LogListing, config: Config, versions: Iterable[int]
) -> set[int]:
    """Return those of some versions whose states are gone, damaged, or lack a manifest.

    The manifests are listed, not read.
    """
    files = [file for v in versions if (file := listing.state_file(v)) is not None]
    named: dict[int, list[str]] = {}
    for file, data in zip(files, store.find_many([file.key for file in files]), strict=True):
        with suppress(LogCorrupt, UnsupportedProtocol):
            if data is not None:
                limit = config.max_decompressed_bytes
                record = parse_state(data, file.key, file.version, limit)
                named[file.version] = [info.path for info in record.manifests]
    folders = {path.rpartition("/")[0] for paths in named.values() for path in paths}
    present = {
        f"{folder}/{name}"
        for folder in folders
        for name in store.list_from(listing.format.key(folder))
    }
    return {
        file.version
        for file in files
        if file.version not in named or not present.issuperset(named[file.version])
    }


def doc_mappings(manifest: StateManifest, metadata: Metadata) -> dict[str, str]:
    """Return the doc mappings by reference: those of the state, then those of the table."""
    configured = {
        key.removeprefix(MAPPING_PREFIX): text
        for key, text in metadata.configuration.items()
        if key.startswith(MAPPING_PREFIX)
    }
    return {**configured, **manifest.schema_registry}


def _parse_own_metadata(manifest: StateManifest, file: CommitFile) -> Metadata:
    """Return the metadata in a state, which must have one, with the table's own properties."""
    assert manifest.metadata is not None
    added = parse_facts(manifest, file).addedProperties
    try:
        metadata = parse_metadata(manifest.metadata.encode())
        own = {key: text for key, text in metadata.configuration.items() if key not in added}
        return replace(metadata, configuration=own) if added else metadata
    except (ValueError, RecursionError) as error:
        raise LogCorrupt(
            f"the metadata of the state cannot be read: {error}.",
            next="Restore the file from a backup, or read an earlier version.",
            file=file.key,
            version=file.version,
        ) from None


def parse_facts(manifest: StateManifest, file: CommitFile) -> StateFacts:
    """Return what arrowlog wrote beside the record; nothing if another program wrote the state."""
    if manifest.annotation is None:
        return StateFacts()
    try:
        return msgspec.json.decode(manifest.annotation, type=StateFacts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogCorrupt(
            f"the header of the state cannot be read: {error}.",
            next="Restore the file from a backup, or read an earlier version.",
            file=file.key,
            version=file.version,
        ) from None
