"""The conflict checker: whether a commit remains valid after a winning commit. Pure.

Appends never conflict with each other. Every file can be removed once: if a winning commit removed
or replaced a file that this commit removes, that is `ConcurrentRemove`. A commit must have seen
every file of what it read: a winning append into its read set is `ConcurrentAppend`. A commit that
depends on the table's metadata or protocol conflicts with any change of them (`MetadataChanged`,
`ProtocolChanged`). Everything else is rebased: it has the same effect one version later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentRemove,
    MetadataChanged,
    ProtocolChanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arrowlog.formats import Metadata, Protocol

# The next step that every conflict suggests.
CONFLICT_NEXT_STEP = "Read the table again and repeat the operation if it still applies."


@dataclass(frozen=True, slots=True)
class TableHead:
    """The part of a table version that a writer needs in order to commit after it.

    Attributes:
        version: the version.
        protocol: the table's protocol.
        metadata: the table's metadata.
        schema: the table's schema as Arrow.
        timestamp: the greatest commit time so far, in milliseconds since the epoch.
        txns: for each application, its last transaction version and the commit that holds it.
        observed: a time by the writer's clock at which the log ended with this version.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    observed: float = field(default=float("-inf"), compare=False)


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The read set of a commit: what must not have changed for it to remain valid.

    Attributes:
        removes: keys of the files that it removes.
        reads: selects, from a table of files added by a winning commit (see
            `typed_partition_values`), those that the commit should have seen. None if it read
            nothing.
        metadata: the commit changes the metadata.
        protocol: the commit changes the protocol.
        exact: the commit was made for one version of the metadata and protocol, so any change
            conflicts; otherwise only one that its added files do not fit.
    """

    removes: pa.Array = field(default_factory=lambda: pa.nulls(0, pa.string()))
    reads: Callable[[pa.Table], pa.Array | pa.ChunkedArray] | None = None
    metadata: bool = False
    protocol: bool = False
    exact: bool = False

    @property
    def depends_on_files(self) -> bool:
        """Whether the files added or removed by a winning commit can conflict."""
        return len(self.removes) > 0 or self.reads is not None


@dataclass(frozen=True, slots=True)
class WinningCommit:
    """A winning commit: one that a concurrent writer made at the version this writer tried.

    Attributes:
        version: its version.
        who: its operation, for messages.
        txn_id: its unique id; None if another program wrote it without one.
        timestamp: its commit time.
        txn: application id and version, if it is an idempotent write.
        protocol: the protocol it sets, if any.
        metadata: the metadata it sets, if any.
        schema: the schema of that metadata.
        added: its added files, see `typed_partition_values`. This and `removed` may be None if the
            read set does not depend on files (`ReadSet.depends_on_files`).
        removed: keys of its removed files.
    """

    version: int
    who: str
    txn_id: str | None = None
    timestamp: int | None = None
    txn: tuple[str, int] | None = None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    schema: pa.Schema | None = None
    added: pa.Table | None = None
    removed: pa.Array | None = None


def advance_head(head: TableHead, winner: WinningCommit) -> TableHead:
    """Return the head after a winning commit. Its timestamp never decreases."""
    times = [time for time in (head.timestamp, winner.timestamp) if time is not None]
    txns = dict(head.txns)
    if winner.txn is not None:
        app_id, txn_version = winner.txn
        if app_id not in txns or txns[app_id][0] < txn_version:
            txns[app_id] = (txn_version, winner.version)
    return TableHead(
        winner.version,
        winner.protocol or head.protocol,
        winner.metadata or head.metadata,
        head.schema if winner.schema is None else winner.schema,
        max(times, default=None),
        txns,
        head.observed,
    )


def check_conflict(
    read_set: ReadSet, head: TableHead, winner: WinningCommit
) -> CommitConflict | None:
    """Return the conflict between a read set and the winning commit after a head, or None."""
    return (
        _check_protocol(read_set, head, winner)
        or _check_metadata(read_set, head, winner)
        or _check_removes(read_set, winner)
        or _check_reads(read_set, winner)
    )


def _check_protocol(
    read_set: ReadSet, head: TableHead, winner: WinningCommit
) -> CommitConflict | None:
    if winner.protocol is None or winner.protocol == head.protocol:
        return None
    if not (read_set.exact or read_set.metadata or read_set.protocol):
        return None  # the transaction checks separately that the new protocol can be written
    return ProtocolChanged(
        f"Version {winner.version} ({winner.who}) changed the table's protocol.",
        next=CONFLICT_NEXT_STEP,
        version=winner.version,
    )


def _check_metadata(
    read_set: ReadSet, head: TableHead, winner: WinningCommit
) -> CommitConflict | None:
    new, old = winner.metadata, head.metadata
    if new is None or new == old:
        return None
    if new.id != old.id:
        what = "replaced the table with another one"
    elif read_set.exact or read_set.metadata:
        what = _describe_change(old, new)
    elif new.partition_columns != old.partition_columns:
        what = "changed the partition columns"
    elif not _accepts_files_of(winner.schema, head.schema):
        what = "changed the schema"
    else:
        return None
    return MetadataChanged(
        f"Version {winner.version} ({winner.who}) {what}.",
        next=CONFLICT_NEXT_STEP,
        version=winner.version,
    )


def check_conflict_between(
    read_set: ReadSet, head: TableHead, newest: TableHead
) -> CommitConflict | None:
    """Return the conflict between a read set and everything from one head to a later one, or None.

    For read sets that do not depend on files. The commits in between are not needed, so they may
    have been deleted.
    """
    winner = WinningCommit(
        newest.version,
        "another writer",
        protocol=newest.protocol,
        metadata=newest.metadata,
        schema=newest.schema,
    )
    return check_conflict(read_set, head, winner)


def check_files_fit(then: TableHead, now: TableHead) -> CommitConflict | None:
    """Return why files written for one head do not fit a later one, or None if they do."""
    winner = WinningCommit(now.version, "another writer", metadata=now.metadata, schema=now.schema)
    return _check_metadata(ReadSet(), then, winner)


def _describe_change(old: Metadata, new: Metadata) -> str:
    if new.schema_string != old.schema_string:
        return "changed the schema"
    if new.partition_columns != old.partition_columns:
        return "changed the partition columns"
    same = replace(new, configuration=old.configuration) == old
    return "changed the table's properties" if same else "changed the table's metadata"


def _accepts_files_of(new: pa.Schema | None, old: pa.Schema) -> bool:
    """Whether files written for the old schema fit the new one.

    All old columns must keep their types; added columns must be nullable.
    """
    if new is None:
        return True
    types = {item.name: item.type for item in new}
    added = [item for item in new if item.name not in old.names]
    kept = all(types.get(item.name) == item.type for item in old)
    return kept and all(item.nullable for item in added)


def _check_removes(read_set: ReadSet, winner: WinningCommit) -> CommitConflict | None:
    if len(read_set.removes) == 0:
        return None
    assert winner.added is not None
    assert winner.removed is not None
    for keys, what in ((winner.removed, "removed"), (winner.added["path"], "replaced")):
        common = pc.filter(keys, pc.is_in(keys, value_set=read_set.removes))
        if len(common):
            more = "" if len(common) == 1 else f" and {len(common) - 1} more"
            return ConcurrentRemove(
                f"Version {winner.version} ({winner.who}) {what} {common[0].as_py()!r}{more}, which"
                " this commit removes.",
                next=CONFLICT_NEXT_STEP,
                version=winner.version,
            )
    return None


def _check_reads(read_set: ReadSet, winner: WinningCommit) -> CommitConflict | None:
    if read_set.reads is None:
        return None
    assert winner.added is not None
    changes = winner.added.filter(winner.added["data_change"])  # other adds hold no new rows
    unseen = changes.filter(read_set.reads(changes)) if changes.num_rows else changes
    if unseen.num_rows == 0:
        return None
    more = "" if unseen.num_rows == 1 else f" and {unseen.num_rows - 1} more"
    return ConcurrentAppend(
        f"Version {winner.version} ({winner.who}) added {unseen['path'][0].as_py()!r}{more}, which"
        " this commit should have seen.",
        next=CONFLICT_NEXT_STEP,
        version=winner.version,
    )
