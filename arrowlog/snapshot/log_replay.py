"""Log replay: applies actions to a state. Pure: no store, no clock.

Checks what must hold before the actions are used: the protocol is supported, every commit has the
actions it declares, and no path leads out of the table. Which files are live is decided by
`reconciliation`.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.decode import SEQ_LINE_BITS, commit_info_from_row
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl, polars_is_stranded
from arrowlog.formats import MAX_RECENT_COMMITS, Protocol, RecentCommits, no_recent_commits
from arrowlog.formats.indextables import CHECKSUM_PREFIX, INDEXTABLES
from arrowlog.snapshot import reconciliation
from arrowlog.snapshot.snapshot import LazyTransactions, State, first_files
from arrowlog.storage import root_spellings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.decode import ActionBatch, CommitInfo
    from arrowlog.formats import Format, Metadata

_COMMIT_INFO_COLUMNS = ("timestamp", "txn", "txnId", "inCommitTimestamp")
_RESTORE_FIRST = "Restore version 0 from a backup."


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a replay: the new state, and how it differs from the state before.

    `fresh` holds the new live adds. `kept_mask` computes which rows of the old state are still
    live (None: all), which may mean to read them.
    """

    state: State
    fresh: pa.Table
    kept_mask: Callable[[], pa.Array | pa.ChunkedArray | None]

    @property
    def added(self) -> int:
        """The number of new live files."""
        return int(self.fresh.num_rows)


def replay_actions(
    base: State | None,
    actions: ActionBatch,
    version: int,
    root: str,
    *,
    allow_external_paths: bool = False,
) -> ReplayResult:
    """Replay actions on a state, or from scratch if `base` is None.

    `version` is the version that the actions lead to. `root` is the table's address; absolute paths
    below it are made relative. From scratch, `actions` is left without its adds, which may take
    most of the memory.

    Raises `UnsupportedProtocol` if the protocol needs a newer reader, `LogCorrupt` if there is no
    metadata, a commit is incomplete or altered, or a path leads out of the table.
    """
    # The protocol comes first: under an unsupported one, nothing else can be believed.
    table_format = actions.format
    protocol = _latest_protocol(base, actions)
    metadata, schema = _latest_metadata(base, actions, version, protocol)
    infos = validate_commit_integrity(actions)
    adds, removes = read_file_actions(actions, root, allow_external_paths=allow_external_paths)
    timestamp, txns = _latest_timestamp_and_txns(base, actions, infos)
    recent = _recent_commits(base, actions, infos, version)
    if base is None:
        # Nothing else holds the adds from here on: those that are not live can be freed.
        actions.tables["add"], given = [], [adds]
        del adds
        change = first_files(given.pop(), removes, table_format)
    else:
        change = base.source.with_commits(version, adds, removes)
    state = State(
        version, protocol, metadata, schema, change.source, timestamp, txns, recent, table_format
    )
    return ReplayResult(state, change.fresh, change.kept_mask)


def read_file_actions(
    actions: ActionBatch, root: str, *, allow_external_paths: bool
) -> tuple[pa.Table, pa.Table]:
    """Return the adds and the removes, with their keys.

    Raises `LogCorrupt` if a path of an add leads out of the table and none may.
    """
    adds, suspect = with_file_keys(actions, "add", root)
    if suspect and not allow_external_paths:
        _check_paths(actions, adds, root)
    if not allow_external_paths:
        check_auxiliary_paths(adds, root, actions.format)
    removes, _ = with_file_keys(actions, "remove", root)
    return adds, removes


def validate_commit_integrity(actions: ActionBatch) -> list[tuple[int, CommitInfo]]:
    """Check every commit's declared action count and CRC-32 against its content.

    Returns the commitInfos with their sequence numbers. Raises `LogCorrupt` naming a bad file.
    """
    infos = _commit_infos(actions)
    if actions.format.verified_commits:
        _check_action_counts(actions, infos)
        _check_checksums(actions, infos)
    return infos


def commit_timestamps(actions: ActionBatch) -> dict[int, int]:
    """Return the timestamp of every commit that carries one, by version."""
    return {
        actions.versions[seq >> SEQ_LINE_BITS]: info.timestamp
        for seq, info in _commit_infos(actions)
        if info.timestamp is not None
    }


def commit_identities(actions: ActionBatch) -> dict[int, tuple[str, str]]:
    """Return transaction id and checksum of every commit that carries both, by version."""
    return {
        actions.versions[seq >> SEQ_LINE_BITS]: (info.txnId, info.checksum)
        for seq, info in _commit_infos(actions)
        if info.txnId and info.checksum
    }


def find_copied_commits(identities: Mapping[int, tuple[str, str]]) -> dict[int, int]:
    """Map versions whose commit is that of an earlier version to the latter.

    A transaction commits once, so such a file was copied over the commit that was there before.

    >>> find_copied_commits({1: ("a", "x"), 2: ("b", "y"), 3: ("a", "x")})
    {3: 1}
    """
    first: dict[tuple[str, str], int] = {}
    for version in sorted(identities):
        first.setdefault(identities[version], version)
    return {v: first[each] for v, each in sorted(identities.items()) if first[each] != v}


def _commit_infos(actions: ActionBatch) -> list[tuple[int, CommitInfo]]:
    """Return the commitInfos with their sequence numbers."""
    infos = _columnar_infos(actions)
    for batch in actions.infos:
        infos += zip(batch.seq.to_pylist(), batch.found, strict=True)
    return infos


def _columnar_infos(actions: ActionBatch) -> list[tuple[int, CommitInfo]]:
    """Return the commitInfos that were decoded as columns.

    Without `numActions`, which `_check_action_counts` reads from the columns.
    """
    infos = []
    for table in actions.tables["commitInfo"]:
        known = [name for name in _COMMIT_INFO_COLUMNS if name in table.column_names]
        rows = table.select(["seq", *known]).to_pylist()
        infos += [(row["seq"], commit_info_from_row(row)) for row in rows]
    return infos


def _latest_protocol(base: State | None, actions: ActionBatch) -> Protocol:
    if not actions.protocols:
        if base is None and actions.format.protocol_required:
            file = actions.names[0] if actions.names else None
            raise LogCorrupt("no protocol in the log.", next=_RESTORE_FIRST, file=file)
        if base is None:
            return Protocol()
        actions.format.check_readable(base.protocol, "checkpoint")
        return base.protocol
    seq, protocol = max(actions.protocols, key=itemgetter(0))
    actions.format.check_readable(protocol, actions.place(seq)[0])
    return protocol


def check_readable(protocol: Protocol, where: str) -> None:
    """Raise `UnsupportedProtocol` unless this version can read an IndexTables table."""
    INDEXTABLES.check_readable(protocol, where)


def _latest_metadata(
    base: State | None, actions: ActionBatch, version: int, protocol: Protocol
) -> tuple[Metadata, pa.Schema]:
    if actions.metadata:
        seq, metadata = max(actions.metadata, key=itemgetter(0))
        file, line = actions.place(seq)
        schema = parse_table_schema(
            metadata, version, file, line, table_format=actions.format, protocol=protocol
        )
        return metadata, schema
    if base is not None and base.protocol != protocol:  # features may change how it is read
        schema = parse_table_schema(
            base.metadata, version, table_format=actions.format, protocol=protocol
        )
        return base.metadata, schema
    if base is not None:
        return base.metadata, base.schema
    raise LogCorrupt(
        f"no metaData in the log up to version {version}.",
        next=_RESTORE_FIRST,
        file=actions.names[0] if actions.names else None,
    )


def parse_table_schema(
    metadata: Metadata,
    version: int,
    file: str | None = None,
    line: int | None = None,
    *,
    table_format: Format = INDEXTABLES,
    protocol: Protocol | None = None,
) -> pa.Schema:
    """Parse the schema of a metaData action.

    Raises `LogCorrupt`, naming `file`, `line` and `version`, if it is not a Spark schema.
    """
    try:
        return table_format.table_schema(metadata, protocol or Protocol())
    except ValueError as error:
        what = f"metaData.schemaString: {error}."
        raise LogCorrupt(what, file=file, line=line, version=version) from None


def with_file_keys(actions: ActionBatch, action: str, root: str) -> tuple[pa.Table, bool]:
    """Return the `add` or `remove` actions with a column `key`, the path relative to the root.

    Also returns whether a path looks absolute, empty or as if it led out of the table.
    """
    table = actions.table(action)
    if "path" not in table.column_names:
        table = table.append_column("path", pa.nulls(0, pa.string()))
    return with_keys(table, root, actions.format)


def with_checkpoint_keys(
    adds: pa.Table,
    root: str,
    version: int,
    *,
    allow_external_paths: bool,
    table_format: Format = INDEXTABLES,
    unique: bool = True,
    file: str | None = None,
) -> pa.Table:
    """Return the adds of a checkpoint with a column `key`, the path relative to the root.

    Raises `LogCorrupt` naming `file` if a path is empty or leads out of the table, and with
    `unique` if two adds have the same key.
    """
    table, suspect = with_keys(adds, root, table_format)
    checked = suspect and not allow_external_paths
    if checked and reconciliation.paths_leading_out(table["key"]) is not None:
        what = "the checkpoint has a path that is empty or leads out of the table."
        raise LogCorrupt(what, version=version, file=file)
    if unique and pc.count_distinct(table["key"]).as_py() != table.num_rows:
        raise LogCorrupt("the checkpoint lists a file twice.", version=version, file=file)
    return table


def with_keys(table: pa.Table, root: str, table_format: Format) -> tuple[pa.Table, bool]:
    """Append the column `key`; also return whether a path looks as if it led out of the table.

    Most tables have only relative paths, which are their own keys.
    """
    table = table_format.normalized_files(table)
    path = table["path"]
    suspect = reconciliation.contains_any(path, ":/", "..") or bool(
        pc.any(pc.starts_with(path, "/")).as_py()
    )
    if suspect and polars_is_stranded():
        path = reconciliation.file_keys_without_polars(path, root_spellings(root))
    elif suspect:
        paths = pl.Series("path", pl.from_arrow(path), dtype=pl.String).to_frame()
        key = paths.select(
            reconciliation.file_keys(pl.col("path"), root_spellings(root))
        ).to_series()
        path = pa.chunked_array([pc.cast(key.to_arrow(), pa.string())])
    empty = pc.min(pc.binary_length(path)).as_py() == 0
    return table.append_column("key", table_format.file_keys(table, path)), suspect or empty


def _check_paths(actions: ActionBatch, adds: pa.Table, root: str) -> None:
    """Raise `LogCorrupt` if a path is empty or leads out of the table.

    A log from an untrusted writer must not make a reader fetch files from elsewhere.
    """
    leads_out = reconciliation.paths_leading_out(adds["key"])
    if leads_out is None:
        return
    bad = adds.filter(leads_out)
    path = bad["path"][0].as_py()
    file, line = actions.place(bad["seq"][0].as_py())
    if not path:
        raise LogCorrupt("the path of the add is empty.", file=file, line=line)
    raise LogCorrupt(
        f"the add has the path {path!r}, outside the table.",
        next=f"If files of {root} may lie elsewhere, open it with allow_outside_paths=True.",
        file=file,
        line=line,
        code="paths-outside",
    )


def check_auxiliary_paths(adds: pa.Table, root: str, table_format: Format) -> None:
    """Raise `LogCorrupt` if a deletion vector, which reading rows needs, lies outside the table."""
    paths = table_format.auxiliary_paths(adds)
    if not paths:
        return
    column = pa.chunked_array([make_array(list(paths), pa.string())])
    keys = reconciliation.file_keys_without_polars(column, root_spellings(root))
    leads_out = reconciliation.paths_leading_out(keys)
    if leads_out is not None:
        raise LogCorrupt(
            f"a deletion vector is stored in {column.filter(leads_out)[0].as_py()!r}, outside the"
            " table.",
            next=f"If files of {root} may lie elsewhere, open it with allow_outside_paths=True.",
            code="paths-outside",
        )


def _latest_timestamp_and_txns(
    base: State | None, actions: ActionBatch, infos: Sequence[tuple[int, CommitInfo]]
) -> tuple[int | None, Mapping[str, tuple[int, int]]]:
    """Return the latest commit timestamp, and the last application transaction per application.

    The timestamp is in milliseconds, None if no commit has one. The transactions map an application
    id to its transaction version and the table version that holds it.
    """
    table_format = actions.format
    commit_time = attrgetter(table_format.commit_time_field)
    times: list[int | None] = [commit_time(info) for _, info in infos]
    if table_format.creation_time_counts:
        times += [metadata.created_time for _, metadata in actions.metadata]
    if base is not None:
        times.append(base.timestamp)
    latest = max((time for time in times if time is not None), default=None)
    if base is not None and isinstance(base.txns, LazyTransactions):
        return latest, base.txns.updated(_last_transactions({}, actions, infos))
    return latest, _last_transactions({} if base is None else base.txns, actions, infos)


def read_transactions(actions: ActionBatch) -> dict[str, tuple[int, int]]:
    """Return the last application transaction per application, as `State.txns` has them."""
    return _last_transactions({}, actions, validate_commit_integrity(actions))


def _last_transactions(
    before: Mapping[str, tuple[int, int]],
    actions: ActionBatch,
    infos: Sequence[tuple[int, CommitInfo]],
) -> dict[str, tuple[int, int]]:
    txns = dict(before)
    for seq, app_id, txn_version in _app_transactions(actions, infos):
        known = txns.get(app_id)
        if known is None or txn_version > known[0] or not actions.format.highest_txn_counts:
            txns[app_id] = (txn_version, actions.versions[seq >> SEQ_LINE_BITS])
    return txns


def _app_transactions(
    actions: ActionBatch, infos: Sequence[tuple[int, CommitInfo]]
) -> list[tuple[int, str, int]]:
    """Return the sequence number, application id and version of each one, in log order."""
    action = actions.format.txn_action
    if action is None:
        found = [(seq, info.txn.appId, info.txn.version) for seq, info in infos if info.txn]
    else:
        table = actions.table(action)
        names = ("seq", "appId", "version") if table.num_rows else ()
        found = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    return sorted(found)


def _recent_commits(
    base: State | None, actions: ActionBatch, infos: Sequence[tuple[int, CommitInfo]], version: int
) -> RecentCommits:
    """Return the transaction ids of the last commits, continuing those of the base state."""
    versions = actions.versions
    if base is None:
        recent = RecentCommits(versions[0] if versions else 0)
    else:
        recent = (
            base.recent if base.recent.last == base.version else no_recent_commits(base.version)
        )
    start = recent.last + 1
    if version - start >= MAX_RECENT_COMMITS:
        start = version + 1 - MAX_RECENT_COMMITS
        recent = RecentCommits(start)
    first_seq = bisect_left(versions, start) << SEQ_LINE_BITS
    ids = {versions[seq >> SEQ_LINE_BITS]: info.txnId for seq, info in infos if seq >= first_seq}
    return recent.extended([ids.get(v) for v in range(start, version + 1)])


def _check_checksums(actions: ActionBatch, infos: Sequence[tuple[int, CommitInfo]]) -> None:
    """Compare the CRC-32 that a commit declares for its actions with the one computed on read."""
    if not actions.sums:
        return
    for seq, info in infos:
        number = seq >> SEQ_LINE_BITS
        declared, computed = info.checksum, actions.sums.get(number)
        if declared is None or computed is None or not declared.startswith(CHECKSUM_PREFIX):
            continue
        if declared != f"{CHECKSUM_PREFIX}{computed:08x}":
            raise LogCorrupt(
                f"its actions have the checksum {CHECKSUM_PREFIX}{computed:08x}, but it declares"
                f" {declared}: it was damaged or changed after it was written.",
                next="Restore the file from a backup, or read an earlier version.",
                file=actions.names[number],
                version=actions.versions[number],
            )


def _check_action_counts(actions: ActionBatch, infos: Sequence[tuple[int, CommitInfo]]) -> None:
    """Compare the number of actions that a commit declares with the lines it has."""
    declared = [(seq, info.numActions) for seq, info in infos if info.numActions is not None]
    for table in actions.tables["commitInfo"]:
        if "numActions" in table.column_names:
            known = table.filter(pc.is_valid(table["numActions"]))
            pairs = zip(known["seq"].to_pylist(), known["numActions"].to_pylist(), strict=True)
            declared.extend(pairs)
    # The commitInfo itself is a line as well.
    wrong = [pair for pair in declared if actions.lines[pair[0] >> SEQ_LINE_BITS] != pair[1] + 1]
    if not wrong:
        return
    seq, count = min(wrong)
    number = seq >> SEQ_LINE_BITS
    raise LogCorrupt(
        f"the commit declares {count} actions but has {actions.lines[number] - 1}:"
        " it is incomplete or was changed.",
        next="Restore the file from a backup, or read an earlier version.",
        file=actions.names[number],
        version=actions.versions[number],
    )
