"""Files of a log to tables of actions: columns where lines share a shape, line by line where not."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.log.actions import FIELDS, Metadata, Protocol
from arrowlog.log.lines import decode_line, table_of, to_metadata, to_protocol
from arrowlog.log.shape import Lines, Shape, line_feeds, match, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHUNK_MIN, CHUNK_MAX = 1 << 20, 1 << 23  # starting a chunk costs a few milliseconds
COLUMNAR_LINES = 48  # below this, reading lines one by one is as fast
ROUNDS_MAX = 16
SAMPLES = (443, 211, 701, 109, 17, 61, 163, 307, 353, 499, 557, 607, 659, 787, 853, 907, 953)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit or checkpoint, unpacked: its name, version and JSON lines."""

    name: str
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """Which file a run of lines came from, and the sequence number of its first line."""

    name: str
    version: int
    first: int
    lines: int


@dataclass(slots=True)
class Actions:
    """What a run of log files says, in order.

    `tables` holds tables of `add`, `remove`, `mergeskip` and `commitInfo`, each with a column `seq`:
    the number of the line in the whole run. `origins` leads back from there to file and line.
    """

    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    lines: int = 0

    def table(self, action: str) -> pa.Table:
        """All actions of one kind."""
        tables = self.tables[action]
        empty = pa.table({"seq": pa.array([], pa.int64())})
        return pa.concat_tables([empty, *tables], promote_options="default")

    def place(self, seq: int) -> tuple[Origin, int]:
        """The file that a line came from, and the line's number in it."""
        firsts = pl.Series([origin.first for origin in self.origins])
        origin = self.origins[firsts.search_sorted(seq, side="right") - 1]
        return origin, seq - origin.first + 1

    def extend(self, other: Actions) -> None:
        """Append what came later."""
        for name, tables in other.tables.items():
            self.tables[name] += [_shift(table, self.lines) for table in tables]
        self.protocols += [(seq + self.lines, found) for seq, found in other.protocols]
        self.metadata += [(seq + self.lines, found) for seq, found in other.metadata]
        for origin in other.origins:
            first = origin.first + self.lines
            self.origins.append(Origin(origin.name, origin.version, first, origin.lines))
        self.lines += other.lines


def _shift(table: pa.Table, by: int) -> pa.Table:
    if by == 0:
        return table
    seq = (pl.Series(pl.from_arrow(table["seq"])) + by).to_arrow()
    return table.set_column(table.column_names.index("seq"), "seq", seq)


def decode(files: Sequence[LogFile], *, columnar: bool = True) -> Actions:
    """All actions in the files, which must be in the order they apply."""
    cores = os.cpu_count() or 1
    chunks = list(_chunks(files, cores))
    actions = Actions()
    if len(chunks) < 2:
        for chunk in chunks:
            _append(actions, _decode_chunk(chunk, columnar=columnar))
        return actions
    with ThreadPoolExecutor(max_workers=cores) as pool:
        for result in pool.map(lambda chunk: _decode_chunk(chunk, columnar=columnar), chunks):
            _append(actions, result)
    return actions


def _append(actions: Actions, more: Actions) -> None:
    """Append a chunk; the first file in it may go on where the last one stopped."""
    last = actions.origins[-1] if actions.origins else None
    actions.extend(more)
    if last is not None and more.origins and more.origins[0].name == last.name:
        at = len(actions.origins) - len(more.origins)
        actions.origins[at - 1 : at + 1] = [
            Origin(last.name, last.version, last.first, last.lines + more.origins[0].lines)
        ]


def _chunks(files: Sequence[LogFile], cores: int) -> Iterator[list[LogFile]]:
    """Files put together, or cut at line ends, to chunks that give every core the same to do."""
    total = sum(len(file.data) for file in files)
    wanted = min(max(-(-total // cores), CHUNK_MIN), CHUNK_MAX)
    chunk: list[LogFile] = []
    size = 0
    for file in files:
        for piece in _pieces(file, wanted):
            chunk.append(piece)
            size += len(piece.data)
            if size >= wanted:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _pieces(file: LogFile, wanted: int) -> Iterator[LogFile]:
    total = len(file.data)
    if total <= wanted + wanted // 2:
        yield file
        return
    start = 0
    while start < total:
        stop = file.data.find(b"\n", start + wanted) + 1 or total
        yield LogFile(file.name, file.version, file.data[start:stop])
        start = stop


@dataclass(slots=True)
class _Chunk:
    """A chunk on its way: its files as one buffer of lines."""

    files: list[LogFile]
    data: bytes
    actions: Actions = field(default_factory=Actions)

    def where(self, row: int) -> tuple[str, int]:
        origin, number = self.actions.place(row)
        return origin.name, number


def _decode_chunk(files: list[LogFile], *, columnar: bool) -> Actions:
    datas = [f.data if f.data.endswith(b"\n") else f.data + b"\n" for f in files]
    chunk = _Chunk(files, datas[0] if len(datas) == 1 else b"".join(datas))
    lines = Lines.of(chunk.data) if columnar else None
    counts = [line_feeds(data) for data in datas]
    first = 0
    for file, count in zip(files, counts, strict=True):
        chunk.actions.origins.append(Origin(file.name, file.version, first, count))
        first += count
    chunk.actions.lines = first
    if lines is None or lines.count < COLUMNAR_LINES:
        _decode_lines(chunk, range(first), chunk.data.split(b"\n")[:first])
    else:
        _decode_columns(chunk, lines)
    return chunk.actions


def _decode_columns(chunk: _Chunk, lines: Lines) -> None:
    """Round by round: take the shape of a line, decode all lines that share it, keep the rest."""
    rows: pl.Series | None = None  # which line of the chunk each remaining line is; None: itself
    for _ in range(ROUNDS_MAX):
        shape = _pick(lines)
        if shape is None:
            break
        try:
            found = match(lines, shape)
        except pa.ArrowInvalid:
            break
        if found.columns:
            at = found.rows if rows is None else rows.gather(found.rows)
            columns = {"row": at.to_arrow(), **found.columns}
            _add_table(chunk.actions, shape.action, pa.table(columns))
        if not found.odd:
            return
        rest = pl.Series([row for row, _ in found.odd], dtype=pl.Int64)
        rows = rest if rows is None else rows.gather(rest)
        lines = Lines(b"".join(text + b"\n" for _, text in found.odd), len(found.odd))
        if lines.count < COLUMNAR_LINES:
            break
    _decode_lines(chunk, range(lines.count) if rows is None else rows.to_list(), lines.texts())


def _pick(lines: Lines) -> Shape | None:
    """The shape of a line from the middle; the others tell which of its values are no news."""
    texts = []
    for part in SAMPLES:
        start = lines.data.rfind(b"\n", 0, len(lines.data) * part // 1000 + 1) + 1
        texts.append(lines.data[start : lines.data.find(b"\n", start)])
    for number, text in enumerate(texts[:4]):
        try:
            decode_line(text, "", 0)
        except LogCorrupt:
            continue
        others = [other.decode() for other in texts[number + 1 :] if other.isascii()]
        shape = shape_of(text.decode(), others)
        if shape is not None:
            return shape
    return None


def _decode_lines(chunk: _Chunk, rows: Sequence[int], texts: Sequence[bytes]) -> None:
    found: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in FIELDS}
    for row, text in zip(rows, texts, strict=True):
        try:
            action = decode_line(text, "", 0)
        except LogCorrupt:
            action = decode_line(text, *chunk.where(row))
        if action is None:
            continue
        name, value = action
        if name == "protocol":
            chunk.actions.protocols.append((row, to_protocol(value)))
        elif name == "metaData":
            chunk.actions.metadata.append((row, to_metadata(value)))
        else:
            found[name][0].append(row)
            found[name][1].append(value)
    for name, (at, values) in found.items():
        if values:
            _add_table(chunk.actions, name, table_of(name, at, values))


def _add_table(actions: Actions, action: str, table: pa.Table) -> None:
    actions.tables[action].append(table.rename_columns({"row": "seq"}))
