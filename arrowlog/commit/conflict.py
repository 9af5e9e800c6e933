"""Whether a commit still means the same after somebody else's came before it. Pure.

Appends go together. A file can be removed once: if a rival removed it or put another in its place,
that is `ConcurrentRemove`. What a commit has read must be all there was: a rival's append into it
is `ConcurrentAppend`. A change of metadata or protocol goes together with nothing that was made for
the old one. Everything else is rebased: it means the same one version later.
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

    from arrowlog.log.actions import Metadata, Protocol

_AGAIN = "Look at the table again and decide anew."


@dataclass(frozen=True, slots=True)
class Head:
    """What a writer has to know of the version it builds on.

    `observed` is a moment, by the writer's clock, at which the log did not go beyond this version.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    observed: float = field(default=float("-inf"), compare=False)


@dataclass(frozen=True, slots=True)
class Intent:
    """What a commit relies on.

    `removes` are the files it takes away. `reads` tells which of a rival's added files (a table of
    them, as in `Snapshot.files`) it should have seen: None for none. `metadata`, `protocol`: it
    changes them itself. `exact`: it was made for one version of the metadata, any change counts;
    otherwise only one that its adds do not fit.
    """

    removes: pa.Array = field(default_factory=lambda: pa.nulls(0, pa.string()))
    reads: Callable[[pa.Table], pa.Array | pa.ChunkedArray] | None = None
    metadata: bool = False
    protocol: bool = False
    exact: bool = False

    @property
    def looks_at_files(self) -> bool:
        """Whether it matters which files a rival added or removed."""
        return len(self.removes) > 0 or self.reads is not None


@dataclass(frozen=True, slots=True)
class Rival:
    """What somebody else's commit did.

    `added` has the files, as `commit.rivals` types them, `removed` the keys; they may be left out
    for an intent that does not look at them (`looks_at_files`).
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


def after(head: Head, rival: Rival) -> Head:
    """The head one version later."""
    times = [time for time in (head.timestamp, rival.timestamp) if time is not None]
    txns = dict(head.txns)
    if rival.txn is not None:
        app, step = rival.txn
        if app not in txns or txns[app][0] < step:
            txns[app] = (step, rival.version)
    return Head(
        rival.version,
        rival.protocol or head.protocol,
        rival.metadata or head.metadata,
        head.schema if rival.schema is None else rival.schema,
        max(times, default=None),
        txns,
        head.observed,
    )


def check(intent: Intent, head: Head, rival: Rival) -> CommitConflict | None:
    """What stands between the intent and the rival's commit, which came right after the head."""
    return (
        _protocol(intent, head, rival)
        or _metadata(intent, head, rival)
        or _removes(intent, rival)
        or _reads(intent, rival)
    )


def _protocol(intent: Intent, head: Head, rival: Rival) -> CommitConflict | None:
    if rival.protocol is None or rival.protocol == head.protocol:
        return None
    if not (intent.exact or intent.metadata or intent.protocol):
        return None  # whether we may still write is checked against the new one anyway
    return ProtocolChanged(
        f"Version {rival.version} ({rival.who}) changed the table's protocol.",
        next=_AGAIN,
        version=rival.version,
    )


def _metadata(intent: Intent, head: Head, rival: Rival) -> CommitConflict | None:
    new, old = rival.metadata, head.metadata
    if new is None or new == old:
        return None
    if new.id != old.id:
        what = "put another table in its place"
    elif intent.exact or intent.metadata:
        what = _difference(old, new)
    elif new.partition_columns != old.partition_columns:
        what = "changed the partition columns"
    elif not _still_fits(head.schema, rival.schema):
        what = "changed the schema"
    else:
        return None
    return MetadataChanged(
        f"Version {rival.version} ({rival.who}) {what}.", next=_AGAIN, version=rival.version
    )


def check_jump(intent: Intent, head: Head, newest: Head) -> CommitConflict | None:
    """What stands between the intent and all that led from one head to another.

    For intents that do not look at files: the commits in between need not be there any more.
    """
    rival = Rival(
        newest.version,
        "another writer",
        protocol=newest.protocol,
        metadata=newest.metadata,
        schema=newest.schema,
    )
    return check(intent, head, rival)


def outgrown(then: Head, now: Head) -> CommitConflict | None:
    """Why files that were made for one head no longer fit a later one; None if they do."""
    rival = Rival(now.version, "another writer", metadata=now.metadata, schema=now.schema)
    return _metadata(Intent(), then, rival)


def _difference(old: Metadata, new: Metadata) -> str:
    if new.schema_string != old.schema_string:
        return "changed the schema"
    if new.partition_columns != old.partition_columns:
        return "changed the partition columns"
    same = replace(new, configuration=old.configuration) == old
    return "changed the table's properties" if same else "changed the table's metadata"


def _still_fits(old: pa.Schema, new: pa.Schema | None) -> bool:
    """Whether files made for the old schema are right for the new one: columns may be added."""
    if new is None:
        return True
    types = {item.name: item.type for item in new}
    added = [item for item in new if item.name not in old.names]
    kept = all(types.get(item.name) == item.type for item in old)
    return kept and all(item.nullable for item in added)


def _removes(intent: Intent, rival: Rival) -> CommitConflict | None:
    if len(intent.removes) == 0:
        return None
    assert rival.added is not None
    assert rival.removed is not None
    for keys, what in ((rival.removed, "removed"), (rival.added["path"], "replaced")):
        touched = pc.filter(keys, pc.is_in(keys, value_set=intent.removes))
        if len(touched):
            more = "" if len(touched) == 1 else f" and {len(touched) - 1} more"
            return ConcurrentRemove(
                f"Version {rival.version} ({rival.who}) {what} {touched[0].as_py()!r}{more}, which"
                " this commit removes.",
                next=_AGAIN,
                version=rival.version,
            )
    return None


def _reads(intent: Intent, rival: Rival) -> CommitConflict | None:
    if intent.reads is None:
        return None
    assert rival.added is not None
    changes = rival.added.filter(rival.added["data_change"])  # the others hold no new rows
    seen = changes.filter(intent.reads(changes)) if changes.num_rows else changes
    if seen.num_rows == 0:
        return None
    more = "" if seen.num_rows == 1 else f" and {seen.num_rows - 1} more"
    return ConcurrentAppend(
        f"Version {rival.version} ({rival.who}) added {seen['path'][0].as_py()!r}{more}, which this"
        " commit should have seen.",
        next=_AGAIN,
        version=rival.version,
    )
