"""What actions do to a state. Pure: no store, no clock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.fork_safety import pl, polars_is_stranded
from arrowlog.log.actions import Protocol
from arrowlog.log.arrays import scalar
from arrowlog.log.encode import CHECKSUM
from arrowlog.log.infos import info_of_row
from arrowlog.log.match import octets_of
from arrowlog.log.recent import RECENT_MAX, RecentCommits, unknown_before
from arrowlog.log.schema import from_spark
from arrowlog.log.window import LINE_BITS
from arrowlog.state import replay
from arrowlog.state.deferred import Deferred
from arrowlog.state.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.log.actions import Metadata
    from arrowlog.log.decode import Actions
    from arrowlog.log.infos import Info

READER_VERSION = 3
WRITER_VERSION = 3
FEATURES = frozenset(
    {
        "checkpoint",
        "checkpoints",
        "conditionalWrites",
        "extendedMetadata",
        "footerOffsets",
        "multiPartCheckpoint",
        "optimizeWrite",
        "parquetCheckpoint",
        "schemaDeduplication",
        "skippedFiles",
        "tantivy4java",
    }
)
_CHUNKS_MAX = 64
_FEW = 20_000
_CHUNK_ROWS = 1 << 9  # what a chunk should have at least, on average


@dataclass(frozen=True, slots=True)
class Change:
    """A state, and how it came about: which rows stayed (None: all), and the new ones.

    Of a state that is not read yet nobody knows which rows stayed; then `touched` has the keys of
    all files that the actions say anything about.
    """

    state: State
    kept: pa.Array | pa.ChunkedArray | None
    fresh: pa.Table
    touched: pa.ChunkedArray | None = None

    @property
    def added(self) -> int:
        """How many rows are new."""
        return int(self.fresh.num_rows)


def apply(
    base: State | None, actions: Actions, version: int, root: str, *, outside: bool = False
) -> Change:
    """Replay actions on a state, or on nothing.

    `root` is the table's address, to tell its own files; `outside` admits files that lie elsewhere.
    """
    protocol = _protocol(base, actions)
    metadata, schema = _metadata(base, actions, version)
    infos = check_whole(actions)
    adds, suspect = keyed(actions, "add", root)
    if suspect and not outside:
        _check_paths(actions, adds, root)
    removes, _ = keyed(actions, "remove", root)
    timestamp, txns = _clock(base, actions, infos)
    recent = _recent(base, actions, infos, version)
    if base is not None and isinstance(base.source, Deferred) and not base.source.loaded:
        kept, live = _survivors(base.source.tail["key"], adds, removes)
        fresh = adds if live is None else adds.filter(live)
        touched = pa.chunked_array([*adds["key"].chunks, *removes["key"].chunks], pa.string())
        later = base.source.after(version, kept, fresh, touched)
        state = State(version, protocol, metadata, schema, later, timestamp, txns, recent)
        return Change(state, None, fresh, touched)
    before = pa.chunked_array([], pa.string()) if base is None else base.adds["key"]
    kept, live = _survivors(before, adds, removes)
    fresh = whole = adds if live is None else adds.filter(live)
    if base is not None:
        stay = base.adds if kept is None else base.adds.filter(kept)
        whole = compact(pa.concat_tables([stay, fresh], promote_options="default"))
    state = State(version, protocol, metadata, schema, whole, timestamp, txns, recent)
    return Change(state, kept, fresh)


def check_whole(actions: Actions) -> list[tuple[int, Info]]:
    """What commits say of themselves must be true; returns what they say."""
    infos = _info_rows(actions)
    for some in actions.infos:
        infos += zip(some.seq.to_pylist(), some.found, strict=True)
    _check_counts(actions, infos)
    _check_sums(actions, infos)
    return infos


def _info_rows(actions: Actions) -> list[tuple[int, Info]]:
    """The commitInfos that were decoded as columns, one a commit. Counts are checked apart."""
    found = []
    for table in actions.tables["commitInfo"]:
        known = [name for name in ("timestamp", "txn", "txnId") if name in table.column_names]
        for row in table.select(["seq", *known]).to_pylist():
            info = info_of_row(row.get("timestamp"), row.get("txn"), row.get("txnId"))
            found.append((row["seq"], info))
    return found


def compact(table: pa.Table) -> pa.Table:
    """Many refreshes leave many small chunks; put them together now and then."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    many = chunks > max(_CHUNKS_MAX, table.num_rows // _CHUNK_ROWS)
    return table.combine_chunks() if many else table


def _protocol(base: State | None, actions: Actions) -> Protocol:
    if not actions.protocols:
        return Protocol() if base is None else base.protocol
    seq, protocol = max(actions.protocols, key=lambda found: found[0])
    check_readable(protocol, actions.place(seq)[0])
    return protocol


def check_writable(protocol: Protocol, where: str) -> None:
    """Refuse to write a table that needs a newer writer than this, or a newer reader."""
    check_readable(protocol, where)
    version, features = protocol.min_writer_version, protocol.writer_features
    _check("writer", version, WRITER_VERSION, features, where)


def check_readable(protocol: Protocol, where: str) -> None:
    """Refuse a table that needs a newer reader than this."""
    version, features = protocol.min_reader_version, protocol.reader_features
    _check("reader", version, READER_VERSION, features, where)


def _check(who: str, version: int, highest: int, features: Sequence[str], where: str) -> None:
    unknown = sorted(set(features) - FEATURES)
    if version <= highest and not unknown:
        return
    needs = f"{who} version {version}"
    if unknown:
        needs += f" and the features {', '.join(unknown)}"
    verb = "read" if who == "reader" else "write"
    raise UnsupportedProtocol(
        f"{where}: the table needs {needs}; this arrowlog has {who} version {highest} and knows the"
        f" features {', '.join(sorted(FEATURES))}.",
        next=f"Upgrade arrowlog, or {verb} the table with the program that wrote it.",
    )


def _metadata(base: State | None, actions: Actions, version: int) -> tuple[Metadata, pa.Schema]:
    if actions.metadata:
        seq, metadata = max(actions.metadata, key=lambda found: found[0])
        file, line = actions.place(seq)
        return metadata, schema_of(metadata, version, file, line)
    if base is not None:
        return base.metadata, base.schema
    raise LogCorrupt(
        f"no metaData in the log up to version {version}.",
        next="Restore version 0 from a backup.",
        file=actions.names[0] if actions.names else None,
    )


def schema_of(
    metadata: Metadata, version: int, file: str | None = None, line: int | None = None
) -> pa.Schema:
    """The schema that metadata has; where it was read is for the error."""
    try:
        return from_spark(metadata.schema_string)
    except ValueError as error:
        what = f"metaData.schemaString: {error}."
        raise LogCorrupt(what, file=file, line=line, version=version) from None


def _survivors(
    before: pa.ChunkedArray, adds: pa.Table, removes: pa.Table
) -> tuple[pa.Array | None, pa.Array | None]:
    """Which rows stay live and which adds become live; None for all.

    A few files that are all new are looked up right here: polars takes longer to start than that.
    """
    if polars_is_stranded():
        return replay.survivors_without_polars(before, adds, removes)
    key = adds["key"]
    if removes.num_rows == 0 and len(key) <= _FEW and _text(key).n_unique() == len(key):
        if not len(before):
            return None, None
        touched = pc.is_in(before, value_set=key.combine_chunks())
        return (pc.invert(touched) if pc.any(touched).as_py() else None), None
    old = _text(before)
    kept, live = replay.survivors(old, _slim(adds), _slim(removes))
    return (
        None if kept is None else kept.to_arrow(),
        None if live is None else live.to_arrow(),
    )


def _text(texts: pa.ChunkedArray) -> pl.Series:
    return pl.Series(pl.from_arrow(texts), dtype=pl.String)


def _slim(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.select(["key", "seq"])))


def keyed(actions: Actions, action: str, root: str) -> tuple[pa.Table, bool]:
    """The actions with the key of their file, and whether a key needs a closer look."""
    table = actions.table(action)
    if "path" not in table.column_names:
        table = table.append_column("path", pa.nulls(0, pa.string()))
    return _with_keys(table, root)


def live_keys(adds: pa.Table, root: str, version: int, *, outside: bool) -> pa.Table:
    """Adds that are live as they stand, with the key of their file; each file once."""
    table, suspect = _with_keys(adds, root)
    if suspect and not outside and replay.outside_of(table["key"]) is not None:
        what = "the checkpoint has a path that is empty, or leads out of the table."
        raise LogCorrupt(what, version=version)
    if pc.count_distinct(table["key"]).as_py() != table.num_rows:
        raise LogCorrupt("the checkpoint has a file twice.", version=version)
    return table


def _with_keys(table: pa.Table, root: str) -> tuple[pa.Table, bool]:
    path = table["path"]
    suspect = _mentions(path, ":/", "..") or bool(pc.any(pc.starts_with(path, "/")).as_py())
    if suspect and polars_is_stranded():
        path = replay.keys_without_polars(path, spellings(root))
    elif suspect:
        text = pl.Series("path", pl.from_arrow(path), dtype=pl.String).to_frame()
        key = text.select(replay.keys(pl.col("path"), spellings(root))).to_series()
        path = pa.chunked_array([pc.cast(key.to_arrow(), pa.string())])
    empty = pc.min(pc.binary_length(path)).as_py() == 0
    return table.append_column("key", path), suspect or empty


def _mentions(texts: pa.ChunkedArray, *needles: str) -> bool:
    """Whether any text has one of the needles, of two letters each, in it.

    polars is the fastest for many, and takes longer than that to start.
    """
    if len(texts) > _FEW and not polars_is_stranded():
        return bool(_text(texts).str.contains_any(list(needles)).any())
    every = octets_of([texts])
    if not any(_may_have(every, *needle.encode()) for needle in needles):
        return False
    return any(pc.any(pc.match_substring(texts, needle)).as_py() for needle in needles)


def _may_have(octets: pa.ChunkedArray, one: int, other: int) -> bool:
    """Whether two bytes follow on each other. The end of one text and the next count, too."""
    first = pc.bit_wise_xor(octets, scalar(one, pa.uint8()))
    if pc.min(first).as_py() != 0:
        return False
    then = pc.bit_wise_xor(octets, scalar(other, pa.uint8()))
    both = pc.bit_wise_or(first.slice(0, len(first) - 1), then.slice(1))
    return bool(pc.min(both).as_py() == 0)


def spellings(root: str) -> list[str]:
    """Every way to spell the table's root in an absolute path."""
    scheme, colon, rest = root.partition("://")
    if not colon:
        return [root, f"file://{root}", f"file:{root}"]
    if scheme in ("s3", "s3a", "s3n"):
        return [f"{name}://{rest}" for name in ("s3", "s3a", "s3n")]
    return [root, f"/{rest}"] if scheme == "memory" else [root]


def _check_paths(actions: Actions, adds: pa.Table, root: str) -> None:
    """Refuse paths that lead out of the table: a reader must not be made to fetch elsewhere."""
    outside = replay.outside_of(adds["key"])
    if outside is None:
        return
    bad = adds.filter(outside)
    path = bad["path"][0].as_py()
    file, line = actions.place(bad["seq"][0].as_py())
    if not path:
        raise LogCorrupt("the path of the add is empty.", file=file, line=line)
    raise LogCorrupt(
        f"the add has the path {path!r}, outside the table.",
        next=f"If files of {root} may lie elsewhere, open it with allow_outside_paths=True.",
        file=file,
        line=line,
    )


def _clock(
    base: State | None, actions: Actions, infos: Sequence[tuple[int, Info]]
) -> tuple[int | None, Mapping[str, tuple[int, int]]]:
    """The latest time a commit gives, and the last steps of applications."""
    times = [info.timestamp for _, info in infos if info.timestamp is not None]
    tables = [table for table in actions.tables["commitInfo"] if "timestamp" in table.column_names]
    latest = [pc.max(table["timestamp"]).as_py() for table in tables]
    times += [time for time in latest if time is not None]
    times += [found.created_time for _, found in actions.metadata if found.created_time is not None]
    txns = {} if base is None else dict(base.txns)
    if base is not None and base.timestamp is not None:
        times.append(base.timestamp)
    steps = [(seq, info.txn) for seq, info in infos if info.txn is not None]
    for seq, step in sorted(steps, key=lambda found: found[0]):
        known = txns.get(step.appId)
        if known is None or step.version > known[0]:
            txns[step.appId] = (step.version, actions.versions[seq >> LINE_BITS])
    return max(times, default=None), txns


def _recent(
    base: State | None, actions: Actions, infos: Sequence[tuple[int, Info]], version: int
) -> RecentCommits:
    """The ids of the last commits, those of a state's included."""
    numbers = actions.versions
    if base is None:
        known = RecentCommits(numbers[0] if numbers else 0)
    else:
        known = base.recent if base.recent.last == base.version else unknown_before(base.version)
    start = known.last + 1
    if version - start >= RECENT_MAX:
        start = version + 1 - RECENT_MAX
        known = RecentCommits(start)
    low = bisect_left(numbers, start) << LINE_BITS
    ids = {numbers[seq >> LINE_BITS]: info.txnId for seq, info in infos if seq >= low}
    return known.extended([ids.get(v) for v in range(start, version + 1)])


def _check_sums(actions: Actions, infos: Sequence[tuple[int, Info]]) -> None:
    """A commit that says what its actions sum up to must have just those."""
    for seq, info in infos:
        number = seq >> LINE_BITS
        said, found = info.checksum, actions.sums.get(number)
        if said is None or found is None or not said.startswith(CHECKSUM):
            continue
        if said != f"{CHECKSUM}{found:08x}":
            raise LogCorrupt(
                f"its actions have the checksum {CHECKSUM}{found:08x}, and it says {said}:"
                " it was damaged or changed after it was written.",
                next="Restore the file from a backup, or read an earlier version.",
                file=actions.names[number],
                version=actions.versions[number],
            )


def _check_counts(actions: Actions, infos: Sequence[tuple[int, Info]]) -> None:
    """A commit that says how many actions it has must have them all."""
    said = [(seq, info.numActions) for seq, info in infos if info.numActions is not None]
    for table in actions.tables["commitInfo"]:
        if "numActions" in table.column_names:
            known = table.filter(pc.is_valid(table["numActions"]))
            pairs = zip(known["seq"].to_pylist(), known["numActions"].to_pylist(), strict=True)
            said.extend(pairs)
    wrong = [pair for pair in said if actions.lines[pair[0] >> LINE_BITS] != pair[1] + 1]
    if not wrong:
        return
    seq, count = min(wrong)
    number = seq >> LINE_BITS
    raise LogCorrupt(
        f"the commit says it has {count} actions and has {actions.lines[number] - 1}:"
        " it is not whole.",
        next="Restore the file from a backup, or read an earlier version.",
        file=actions.names[number],
        version=actions.versions[number],
    )
