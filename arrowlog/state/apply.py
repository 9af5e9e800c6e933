"""What actions do to a state. Pure: no store, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.log.actions import Protocol
from arrowlog.log.decode import LINE_BITS
from arrowlog.log.lines import count_of
from arrowlog.log.schema import from_spark
from arrowlog.state import replay
from arrowlog.state.snapshot import State

if TYPE_CHECKING:
    from arrowlog.log.actions import Metadata
    from arrowlog.log.decode import Actions

READER_VERSION = 3
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
_OUTSIDE = r"^/|(^|/)\.\.(/|$)|^[A-Za-z][A-Za-z0-9+.-]*:/|^$"


@dataclass(frozen=True, slots=True)
class Change:
    """A state, and how it came about: which rows stayed (None: all), how many are new."""

    state: State
    kept: pa.Array | pa.ChunkedArray | None
    added: int


def apply(
    base: State | None, actions: Actions, version: int, root: str, *, outside: bool = False
) -> Change:
    """Replay actions on a state, or on nothing.

    `root` is the table's address, to tell its own files; `outside` admits files that lie elsewhere.
    """
    protocol = _protocol(base, actions)
    metadata, schema = _metadata(base, actions, version)
    _check_counts(actions)
    adds, suspect = _keyed(actions, "add", root)
    if suspect and not outside:
        _check_paths(actions, adds, root)
    removes, _ = _keyed(actions, "remove", root)
    before = pa.chunked_array([], pa.string()) if base is None else base.adds["key"]
    kept, live = _survivors(before, adds, removes)
    fresh = whole = adds if live is None else adds.filter(live)
    if base is not None:
        stay = base.adds if kept is None else base.adds.filter(kept)
        whole = compact(pa.concat_tables([stay, fresh], promote_options="default"))
    state = State(version, protocol, metadata, schema, whole)
    return Change(state, kept, fresh.num_rows)


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


def check_readable(protocol: Protocol, where: str) -> None:
    """Refuse a table that needs a newer reader than this."""
    unknown = sorted(set(protocol.reader_features) - FEATURES)
    if protocol.min_reader_version <= READER_VERSION and not unknown:
        return
    needs = f"reader version {protocol.min_reader_version}"
    if unknown:
        needs += f" and the features {', '.join(unknown)}"
    raise UnsupportedProtocol(
        f"{where}: the table needs {needs}; this arrowlog has reader version {READER_VERSION}"
        f" and knows the features {', '.join(sorted(FEATURES))}.",
        next="Upgrade arrowlog, or read the table with the program that wrote it.",
    )


def _metadata(base: State | None, actions: Actions, version: int) -> tuple[Metadata, pa.Schema]:
    if actions.metadata:
        seq, metadata = max(actions.metadata, key=lambda found: found[0])
        try:
            return metadata, from_spark(metadata.schema_string)
        except ValueError as error:
            file, line = actions.place(seq)
            raise LogCorrupt(f"metaData.schemaString: {error}.", file=file, line=line) from None
    if base is not None:
        return base.metadata, base.schema
    raise LogCorrupt(
        f"no metaData in the log up to version {version}.",
        next="Restore version 0 from a backup.",
        file=actions.names[0] if actions.names else None,
    )


def _survivors(
    before: pa.ChunkedArray, adds: pa.Table, removes: pa.Table
) -> tuple[pa.Array | None, pa.Array | None]:
    """Which rows stay live and which adds become live; None for all.

    A few files that are all new are looked up right here: polars takes longer to start than that.
    """
    key = adds["key"]
    if removes.num_rows == 0 and len(key) <= _FEW and pc.count_distinct(key).as_py() == len(key):
        touched = pc.is_in(before, value_set=key.combine_chunks())
        return (pc.invert(touched) if pc.any(touched).as_py() else None), None
    old = pl.Series(pl.from_arrow(before), dtype=pl.String)
    kept, live = replay.survivors(old, _slim(adds), _slim(removes))
    return (
        None if kept is None else kept.to_arrow(),
        None if live is None else live.to_arrow(),
    )


def _slim(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.select(["key", "seq"])))


def _keyed(actions: Actions, action: str, root: str) -> tuple[pa.Table, bool]:
    """The actions with the key of their file, and whether a key needs a closer look."""
    table = actions.table(action)
    if "path" not in table.column_names:
        table = table.append_column("path", pa.array([], pa.string()))
    path = table["path"]
    suspect = _mentions(path, ":/", "..") or bool(pc.any(pc.starts_with(path, "/")).as_py())
    if suspect:
        text = pl.Series("path", pl.from_arrow(path), dtype=pl.String).to_frame()
        key = text.select(replay.keys(pl.col("path"), _spellings(root))).to_series()
        path = pa.chunked_array([pc.cast(key.to_arrow(), pa.string())])
    empty = pc.min(pc.binary_length(path)).as_py() == 0
    return table.append_column("key", path), suspect or empty


def _mentions(texts: pa.ChunkedArray, *needles: str) -> bool:
    """Whether any text has one of the needles in it."""
    if len(texts) > _FEW:
        found = pl.Series(pl.from_arrow(texts), dtype=pl.String).str.contains_any(list(needles))
        return bool(found.any())
    return any(pc.any(pc.match_substring(texts, needle)).as_py() for needle in needles)


def _spellings(root: str) -> list[str]:
    """Every way to spell the table's root in an absolute path."""
    scheme, colon, rest = root.partition("://")
    if not colon:
        return [root, f"file://{root}", f"file:{root}"]
    if scheme in ("s3", "s3a", "s3n"):
        return [f"{name}://{rest}" for name in ("s3", "s3a", "s3n")]
    return [root, f"/{rest}"] if scheme == "memory" else [root]


def _check_paths(actions: Actions, adds: pa.Table, root: str) -> None:
    """Refuse paths that lead out of the table: a reader must not be made to fetch elsewhere."""
    bad = adds.filter(pc.match_substring_regex(adds["key"], _OUTSIDE))
    if bad.num_rows == 0:
        return
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


def _check_counts(actions: Actions) -> None:
    """A commit that says how many actions it has must have them all."""
    said = [(seq, count) for seq, info in actions.infos if (count := count_of(info)) is not None]
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
