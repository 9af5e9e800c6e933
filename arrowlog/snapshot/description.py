"""What a table is, without its files: protocol, metadata and schema of the newest version.

The commits are read backward, in batches, until a metaData and a protocol are found; a checkpoint
ends the search. Of the other commits the adds are not decoded. Every commit that is read is checked
against its declared count and checksum, as in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.formats import Protocol
from arrowlog.snapshot.listing import check_not_retired
from arrowlog.snapshot.loader import open_base
from arrowlog.snapshot.log_replay import parse_table_schema, validate_commit_integrity

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.decode import ActionBatch
    from arrowlog.formats import CommitFile, LogListing, Metadata
    from arrowlog.snapshot.tracked_state import ReadOptions
    from arrowlog.storage import Store

# Commits of the first batch, and by how much the next one is larger.
_BATCH_COMMITS, _BATCH_GROWTH, _BATCH_COMMITS_MAX = 16, 4, 1024
_MARKS = (b'"metaData"', b'"protocol"')


@dataclass(frozen=True, slots=True)
class TableDescription:
    """Protocol, metadata and schema of one version."""

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema


def describe_table(
    store: Store, listing: LogListing, options: ReadOptions
) -> TableDescription | None:
    """Describe the newest version; None if only a replay can tell, as behind a gap.

    Raises `LogCorrupt` if a commit is damaged, `FileNotFoundError` if a listed file is gone.
    """
    segment, base = open_base(store, listing, options)
    if segment.gap is not None or options.format.actions.partial_metadata:
        return None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    rest, count = list(segment.commits), _BATCH_COMMITS
    while rest and (protocol is None or metadata is None):
        batch, rest = rest[-count:], rest[:-count]
        for actions in _read_backward(store, batch, options, listing.observed):
            if protocol is None and actions.protocols:
                protocol = max(actions.protocols, key=itemgetter(0))[1]
            if metadata is None and actions.metadata:
                metadata = max(actions.metadata, key=itemgetter(0))[1]
        count = min(count * _BATCH_GROWTH, _BATCH_COMMITS_MAX)
    if base is not None:
        protocol, metadata = protocol or base.protocol, metadata or base.metadata
    if metadata is None or (protocol is None and options.format.protocol_required):
        return None  # a replay raises the right error
    protocol = protocol or Protocol()
    options.format.check_readable(protocol, store.root)
    schema = parse_table_schema(
        metadata, segment.version, table_format=options.format, protocol=protocol
    )
    return TableDescription(segment.version, protocol, metadata, schema)


def _read_backward(
    store: Store, commits: list[CommitFile], options: ReadOptions, observed: float
) -> list[ActionBatch]:
    """Return the actions of some commits, mostly without adds; those of later commits first."""
    found: list[ActionBatch] = []
    limit = options.config.max_decompressed_bytes
    window = LineBuffer(limit, table_format=options.format)
    trusted = float("-inf") if options.config.commit_verify == "always" else observed
    while commits:
        keys = [commit.key for commit in commits]
        count, _ = store.read_into(window, keys, [c.version for c in commits], limit)
        check_not_retired(store, options.format, commits[:count], trusted)
        with window.view as view:
            text = bytes(view)
        if not any(mark in text for mark in _MARKS):
            window.drop_adds()
        actions = decode_buffer(window)
        validate_commit_integrity(actions)
        found.insert(0, actions)
        window.clear()
        if not count:
            raise LogCorrupt("it cannot be read.", file=keys[0])
        commits = commits[count:]
    return found
