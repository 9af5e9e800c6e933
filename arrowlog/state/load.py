"""From a store to a state: pick the files, read and decode them, replay.

The only module of this room that asks a store.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import (
    ArrowlogWarning,
    InvalidRequest,
    LogCorrupt,
    TableNotFound,
    UnsupportedProtocol,
)
from arrowlog.log.actions import Protocol
from arrowlog.log.checkpoint import Manifest, to_lines
from arrowlog.log.decode import LINE_BITS, Actions, Decoding, begin
from arrowlog.log.envelope import unwrap
from arrowlog.log.lines import protocol_of
from arrowlog.log.names import CHECKPOINTS, LOG, Listing, read_listing
from arrowlog.log.segment import Segment, plan
from arrowlog.log.store import LocalStore
from arrowlog.log.window import Window
from arrowlog.state import replay
from arrowlog.state.files import files_table
from arrowlog.state.snapshot import Report, Snapshot, State, read_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from arrowlog.config import Config
    from arrowlog.log.store import Store

READER_VERSION = WRITER_VERSION = 3
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
_FIRST_FILES = 4  # read first, to see how large files are
_WINDOW_BYTES = 8 << 20
_BUSY_MAX = 2  # windows that are decoded while the next is read
_CHUNKS_MAX = 64
_CHUNK_ROWS = 1 << 9  # what a chunk should have at least, on average


@dataclass(slots=True)
class _Loading:
    """A load on its way: where from, how, and what it has cost so far."""

    store: Store
    config: Config
    outside: bool
    started: float = field(default_factory=time.perf_counter)
    files_read: int = 0
    bytes_read: int = 0
    warnings: list[str] = field(default_factory=list)

    def report(self, version: int, source: str, checkpoint: int | None, commits: int) -> Report:
        spent = (time.perf_counter() - self.started) * 1000
        told = tuple(self.warnings)
        return Report(
            version, source, checkpoint, commits, self.files_read, self.bytes_read, spent, told
        )


def list_log(store: Store) -> Listing:
    """What is in the log folder; `TableNotFound` if there is no log."""
    names = store.list_from(LOG)
    inner = store.list_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in names else []
    listing = read_listing(names, inner)
    if listing.empty:
        raise TableNotFound(
            f"There is no table at {store.root}: {LOG}/ has no commits in it.",
            next="Check the address and the access to it.",
        )
    return listing


def load(
    store: Store,
    listing: Listing,
    config: Config,
    version: int | None = None,
    *,
    strict: bool = False,
    outside: bool = False,
) -> Snapshot:
    """The table at a version (None: the newest that can be read without a gap)."""
    work = _Loading(store, config, outside)
    segment, base = _base(work, listing, version)
    _check_reached(segment, listing, version)
    if segment.gap is not None:
        if strict:
            raise LogCorrupt(
                f"{segment.gap}.",
                next="Restore the missing file from a backup.",
                version=segment.gap.missing,
            )
        work.warnings.append(str(segment.gap))
        warnings.warn(f"{store.root}: {segment.gap}", ArrowlogWarning, stacklevel=4)
    actions = _read(work, segment.commits)
    state = _apply(work, base, actions, segment.version)
    source = "commits" if segment.checkpoint is None else "checkpoint"
    return Snapshot(
        state, work.report(state.version, source, segment.checkpoint, len(segment.commits))
    )


def follow(
    store: Store,
    config: Config,
    snapshot: Snapshot,
    commits: Sequence[tuple[int, str]],
    *,
    outside: bool = False,
) -> Snapshot:
    """The table after some commits more, which must follow right on the snapshot."""
    work = _Loading(store, config, outside)
    actions = _read(work, commits)
    state = _apply(work, snapshot.state, actions, commits[-1][0])
    given = None
    if "files" in snapshot.__dict__ and state.metadata is snapshot.state.metadata:
        given = _follow_files(snapshot, state)
    report = work.report(state.version, "refresh", snapshot.report.checkpoint, len(commits))
    return Snapshot(state, report, given)


def _follow_files(snapshot: Snapshot, state: State) -> pa.Table:
    """The typed files of the new state, of which only the new ones need typing."""
    old, new = snapshot.state.adds, state.adds
    kept = snapshot.files
    added = new.filter(pc.greater(new["seq"], -1))
    if new.num_rows - added.num_rows != old.num_rows:
        still = pl.Series(pl.from_arrow(new.filter(pc.equal(new["seq"], -1))["key"]))
        before = pl.Series(pl.from_arrow(old["key"]))
        kept = kept.filter(before.is_in(still.implode()).to_arrow())
    fresh = files_table(added, state.schema, state.metadata.partition_columns)
    return _compact(pa.concat_tables([kept, fresh], promote_options="permissive"))


def _base(work: _Loading, listing: Listing, version: int | None) -> tuple[Segment, State | None]:
    """The segment to read, and the state it builds on; bad checkpoints are passed over."""
    unusable: set[int] = set()
    for _ in range(len(listing.json_checkpoints) + len(listing.parquet_checkpoints) + 1):
        segment = plan(listing, version, unusable)
        if segment.checkpoint is None:
            break
        try:
            return segment, _read_checkpoint(work, listing, segment.checkpoint)
        except (LogCorrupt, FileNotFoundError) as error:
            unusable.add(segment.checkpoint)
            reason = f"{error} is gone" if isinstance(error, FileNotFoundError) else str(error)
            work.warnings.append(f"checkpoint {segment.checkpoint} was not used: {reason}")
    return segment, None


def _check_reached(segment: Segment, listing: Listing, version: int | None) -> None:
    if version is None or segment.version == version:
        return
    if segment.gap is not None or version <= listing.newest:
        raise LogCorrupt(
            f"version {version} cannot be rebuilt: {segment.gap or 'its commit is gone'}.",
            next="Restore the missing file, or read an earlier version.",
            version=version,
        )
    raise InvalidRequest(
        f"There is no version {version}; the newest is {segment.version}.", next="", version=version
    )


def _read_checkpoint(work: _Loading, listing: Listing, version: int) -> State:
    name = listing.json_checkpoints.get(version)
    if name is None:
        parts = ", ".join(listing.parquet_checkpoints[version])
        raise LogCorrupt(
            f"checkpoint {version} is in Parquet only ({parts}), which this arrowlog cannot read.",
            file=f"{LOG}/{CHECKPOINTS}",
            version=version,
        )
    file = f"{LOG}/{name}"
    found = to_lines(_get(work, [file])[0], version, file)
    names, datas = [file], [found]
    if isinstance(found, Manifest):
        names = [f"{LOG}/{part}" for part in found.parts]
        pieces = zip(names, _get(work, names), strict=True)
        datas = [to_lines(data, version, name) for name, data in pieces]
    plain = [data for data in datas if isinstance(data, bytes)]
    if len(plain) < len(names):
        raise LogCorrupt("a part of the checkpoint is a manifest itself.", file=file)
    window = Window(work.config.max_decompressed_bytes)
    for part, lines in zip(names, plain, strict=True):
        window.append(part, version, lines)
    actions = Actions()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        _finish(work, actions, window, _begin(work, window, pool))
    if not actions.metadata:
        raise LogCorrupt("the checkpoint has no metaData.", file=file, version=version)
    return _apply(work, None, actions, version)


def _get(work: _Loading, keys: Sequence[str]) -> list[bytes]:
    """Log files, unpacked."""
    found = work.store.get_many(keys)
    work.files_read += len(found)
    work.bytes_read += sum(len(data) for data in found)
    limit = work.config.max_decompressed_bytes
    return [unwrap(data, key, limit) for key, data in zip(keys, found, strict=True)]


def _read(work: _Loading, commits: Sequence[tuple[int, str]]) -> Actions:
    """All actions of the commits: a window is read while the ones before it are decoded."""
    actions = Actions()
    free: list[Window] = []
    busy: deque[tuple[Window, Decoding]] = deque()
    start, count, mean = 0, _FIRST_FILES, 1
    least = 1 if isinstance(work.store, LocalStore) else _FIRST_FILES  # far files: some at a time
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while start < len(commits):
            if len(busy) >= _BUSY_MAX:
                free.append(_finish(work, actions, *busy.popleft()))
            window = free.pop() if free else Window(work.config.max_decompressed_bytes)
            try:
                _fill(work, window, commits[start : start + count], mean)
                busy.append((window, _begin(work, window, pool)))
            except Exception:
                while busy:  # what is wrong in an earlier file comes first
                    _finish(work, actions, *busy.popleft())
                raise
            start += count
            mean = work.bytes_read // work.files_read + 1
            count = min(max(_WINDOW_BYTES // mean, least), len(commits))
        while busy:
            _finish(work, actions, *busy.popleft())
    return actions


def _fill(work: _Loading, window: Window, commits: Sequence[tuple[int, str]], mean: int) -> None:
    """Read commits into a window; `mean` is about how large one is."""
    keys = [f"{LOG}/{name}" for _, name in commits]
    window.clear()
    window.reserve(len(commits) * (mean + mean // 8) + 1).release()
    work.bytes_read += work.store.read_into(window, keys, [version for version, _ in commits])
    work.files_read += len(commits)


def _begin(work: _Loading, window: Window, pool: Executor) -> Decoding:
    try:
        return begin(window, pool, columnar=work.config.use_optimized)
    except LogCorrupt:
        _check_protocols(work, window)
        raise


def _finish(work: _Loading, actions: Actions, window: Window, decoding: Decoding) -> Window:
    """Append what the window says; the window can be used again."""
    try:
        actions.extend(decoding.finish())
    except LogCorrupt:
        _check_protocols(work, window)
        raise
    return window


def _check_protocols(work: _Loading, window: Window) -> None:
    """What cannot be decoded may be from a newer protocol: then say that instead."""
    texts = [text for _, _, text in window.apart] + bytes(window.data[: window.size]).split(b"\n")
    for text in texts:
        protocol = protocol_of(text)
        if protocol is not None:
            check_readable(protocol, work.store.root)


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


def _apply(work: _Loading, base: State | None, actions: Actions, version: int) -> State:
    """Replay actions on a state, or on nothing."""
    protocol = base.protocol if base is not None else Protocol()
    if actions.protocols:
        seq, protocol = max(actions.protocols, key=lambda found: found[0])
        check_readable(protocol, actions.place(seq)[0])
    metadata = base.metadata if base is not None else None
    schema = base.schema if base is not None else None
    if actions.metadata:
        seq, metadata = max(actions.metadata, key=lambda found: found[0])
        try:
            schema = read_schema(metadata)
        except ValueError as error:
            file, line = actions.place(seq)
            raise LogCorrupt(f"metaData.schemaString: {error}.", file=file, line=line) from None
    if metadata is None or schema is None:
        raise LogCorrupt(
            f"no metaData in the log up to version {version}.",
            next="Restore version 0 from a backup.",
            file=actions.names[0] if actions.names else None,
        )
    adds = _keyed(work, actions, "add")
    removes = _keyed(work, actions, "remove")
    live = _replay(base, adds, removes)
    _check_counts(actions)
    return State(version, protocol, metadata, schema, live)


def _keyed(work: _Loading, actions: Actions, action: str) -> pa.Table:
    """The actions with the key of their file; refuses paths that lead out of the table."""
    table = actions.table(action)
    if "path" not in table.column_names:
        return table.append_column("key", pa.array([], pa.string()))
    path = table["path"]
    text = pl.Series("path", pl.from_arrow(path))
    plain = not text.str.contains_any([":/", ".."]).any() and not text.str.starts_with("/").any()
    if not plain:
        key = (
            text.to_frame().select(replay.keys(pl.col("path"), _roots(work.store.root))).to_series()
        )
        path = pa.chunked_array([pc.cast(key.to_arrow(), pa.string())])
    table = table.append_column("key", path)
    if action == "add" and (not plain or (text == "").any()):
        _check_paths(work, actions, table)
    return table


def _roots(root: str) -> list[str]:
    """Every way to spell the table's root in an absolute path."""
    scheme, colon, rest = root.partition("://")
    if not colon:
        return [root, f"file://{root}", f"file:{root}"]
    if scheme in ("s3", "s3a", "s3n"):
        return [f"{name}://{rest}" for name in ("s3", "s3a", "s3n")]
    return [root, f"/{rest}"] if scheme == "memory" else [root]


def _check_paths(work: _Loading, actions: Actions, adds: pa.Table) -> None:
    key = adds["key"]
    pattern = r"^/|(^|/)\.\.(/|$)|^[A-Za-z][A-Za-z0-9+.-]*:/|^$"
    bad = adds.filter(pc.match_substring_regex(key, pattern))
    for number in range(bad.num_rows):
        path = bad["path"][number].as_py()
        if path and work.outside:
            continue
        file, line = actions.place(bad["seq"][number].as_py())
        what = (
            f"the add has the path {path!r}, outside the table." if path else "the path is empty."
        )
        raise LogCorrupt(
            what,
            next=f"If the files of {work.store.root} may lie elsewhere, open the table with"
            " allow_outside_paths=True."
            if path
            else "",
            file=file,
            line=line,
        )


def _replay(base: State | None, adds: pa.Table, removes: pa.Table) -> pa.Table:
    fresh = pl.DataFrame(pl.from_arrow(adds.select(["key", "seq"])))
    gone = pl.DataFrame(pl.from_arrow(removes.select(["key", "seq"])))
    mask = replay.live_adds(fresh, gone)
    live = adds if mask is None else adds.filter(mask.to_arrow())
    if base is None:
        return live
    kept = base.adds.set_column(
        base.adds.column_names.index("seq"), "seq", pa.repeat(pa.scalar(-1), base.adds.num_rows)
    )
    touched = pl.Series(pl.from_arrow(kept["key"])).is_in(
        pl.concat([fresh["key"], gone["key"]]).implode()
    )
    if touched.any():
        kept = kept.filter((~touched).to_arrow())
    return _compact(pa.concat_tables([kept, live], promote_options="default"))


def _compact(table: pa.Table) -> pa.Table:
    """Many refreshes leave many small chunks; put them together now and then."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    many = chunks > max(_CHUNKS_MAX, table.num_rows // _CHUNK_ROWS)
    return table.combine_chunks() if many else table


def _check_counts(actions: Actions) -> None:
    """A commit that says how many actions it has must have them all."""
    infos = actions.table("commitInfo")
    if "numActions" not in infos.column_names:
        return
    said = infos.select(["seq", "numActions"]).filter(pc.is_valid(infos["numActions"]))
    frame = pl.DataFrame(pl.from_arrow(said)).with_columns(file=pl.col("seq") // (1 << LINE_BITS))
    lines = pl.Series("lines", actions.lines, dtype=pl.Int64).gather(frame["file"])
    wrong = frame.with_columns(lines).filter(pl.col("lines") != pl.col("numActions") + 1)
    if wrong.height:
        number = wrong["file"][0]
        raise LogCorrupt(
            f"the commit says it has {wrong['numActions'][0]} actions and has"
            f" {wrong['lines'][0] - 1}: it is not whole.",
            next="Restore the file from a backup, or read an earlier version.",
            file=actions.names[number],
            version=actions.versions[number],
        )
