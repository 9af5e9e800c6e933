"""Lines of a log to tables of actions: columns where lines share a shape, one by one where not."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.log.actions import FIELDS, Metadata, Protocol
from arrowlog.log.arrays import octets_in, scalar
from arrowlog.log.infos import HEAD, Infos, of_raws, read_infos
from arrowlog.log.lines import decode_line, table_of, to_metadata, to_protocol
from arrowlog.log.match import Lines, Match, match, together
from arrowlog.log.shape import Shape, shape_of
from arrowlog.log.window import LINE_BITS, Apart, joined

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future

    from arrowlog.log.window import Window

COLUMNAR_LINES = 48  # below this, reading lines one by one is as fast, unless they are long
_COLUMNAR_BYTES = 1 << 16
ROUNDS_MAX = 16
SAMPLES = (443, 61, 211, 353, 607, 787, 907)  # thousandths of the buffer


@dataclass(slots=True)
class Actions:
    """What a run of log files says, in order.

    `tables` holds tables of `add`, `remove`, `mergeskip` and `commitInfo`, each with a column `seq`
    that orders all lines and says where each came from. `infos` holds further commitInfos: a state
    needs little of them. File number i is `names[i]` of version
    `versions[i]` with `lines[i]` lines; `sums` has checksums as `Window` does.
    """

    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    infos: list[Infos] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    sums: dict[int, int] = field(default_factory=dict)

    def table(self, action: str) -> pa.Table:
        """All actions of one kind."""
        tables = [pa.table({"seq": pa.nulls(0, pa.int64())}), *self.tables[action]]
        if action == "commitInfo":
            tables += [infos.table() for infos in self.infos]
        return pa.concat_tables(tables, promote_options="default")

    def place(self, seq: int) -> tuple[str, int]:
        """The file that a line came from, and the line's number in it."""
        return self.names[seq >> LINE_BITS], seq & ((1 << LINE_BITS) - 1)

    def extend(self, more: Actions) -> None:
        """Append what came later."""
        files = len(self.names)
        by = files << LINE_BITS
        self.sums |= {file + files: found for file, found in more.sums.items()}
        for name, tables in more.tables.items():
            self.tables[name] += tables if by == 0 else [_shift(table, by) for table in tables]
        self.protocols += [(seq + by, found) for seq, found in more.protocols]
        self.metadata += [(seq + by, found) for seq, found in more.metadata]
        self.infos += [infos.shifted(by) for infos in more.infos]
        self.names += more.names
        self.versions += more.versions
        self.lines += more.lines


def _shift(table: pa.Table, by: int) -> pa.Table:
    seq = pc.add(table["seq"], scalar(by, pa.int64()))
    return table.set_column(table.column_names.index("seq"), "seq", seq)


@dataclass(slots=True)
class Decoding:
    """A window that is being decoded: threads are at its pieces until `finish` takes the result."""

    actions: Actions
    view: memoryview
    lines: Lines
    seq: pl.Series
    shape: Shape | None
    pieces: list[Future[Match]]
    memory: pa.MemoryPool | None = None

    def finish(self) -> Actions:
        """All actions in the window, which is free then."""
        try:
            found = [piece.result() for piece in self.pieces]
            if self.shape is not None and not found:
                shape, memory = self.shape, self.memory
                found = [match(piece, shape, memory) for piece in self.lines.pieces()]
            _decode_columns(self.actions, self.lines, self.seq, self.shape, found)
        finally:
            wait(self.pieces)
            self.view.release()
        return self.actions


def begin(window: Window, pool: Executor | None, *, columnar: bool = True) -> Decoding:
    """Start to decode a window. Nothing may be put into it until that is finished.

    Without a pool, everything is done in this thread: if there is nothing else to do meanwhile,
    threads that wait for each other's locks cost more than they bring.
    """
    actions = Actions(
        names=list(window.names),
        versions=list(window.versions),
        lines=list(window.lines),
        sums=dict(window.sums),
    )
    others = _set_apart(actions, Apart.join(window.apart))
    view = window.view
    lines = Lines(view, window.kept)
    shape = _pick(lines) if columnar and _many(lines) else None
    pieces = []
    if shape is not None and pool is not None:
        pieces = [pool.submit(match, piece, shape, window.pool) for piece in lines.pieces()]
    decoding = Decoding(
        actions,
        view,
        lines,
        _series(joined(window.numbers, pa.int64())),
        shape,
        pieces,
        window.pool,
    )
    try:
        if columnar and len(others.seq) >= COLUMNAR_LINES:
            apart = Lines(octets_in(others.lines), len(others.seq))
            _decode_columns(actions, apart, _series(others.seq), *_first(apart))
        else:
            texts = [text[:-1] for text in others.lines.to_pylist()]
            _decode_lines(actions, others.seq.to_pylist(), texts)
    except BaseException:
        wait(pieces)
        view.release()
        raise
    return decoding


def _many(lines: Lines) -> bool:
    """Whether it is worth a look what the lines have in common."""
    return lines.count >= COLUMNAR_LINES or (lines.count > 1 and len(lines.data) >= _COLUMNAR_BYTES)


def _set_apart(actions: Actions, apart: Apart) -> Apart:
    """Read the commitInfos among lines that were set apart; returns the others."""
    mask = pc.starts_with(apart.lines, HEAD)
    if not mask.true_count:
        return apart
    some = apart.filter(mask)
    infos, wrong = read_infos(some.seq, some.lines)
    actions.infos.append(infos)
    others = apart.filter(pc.invert(mask))
    return others if wrong is None else Apart.join([others, some.filter(wrong)])


def _series(seq: pa.Array) -> pl.Series:
    return pl.Series(pl.from_arrow(seq), dtype=pl.Int64)


def decode(window: Window, *, columnar: bool = True) -> Actions:
    """All actions in the window."""
    return begin(window, None, columnar=columnar).finish()


def _first(lines: Lines) -> tuple[Shape | None, list[Match]]:
    """A shape, and what it makes of the lines."""
    shape = _pick(lines)
    return shape, [] if shape is None else [match(piece, shape) for piece in lines.pieces()]


def _decode_columns(
    actions: Actions, lines: Lines, seq: pl.Series, shape: Shape | None, pieces: Sequence[Match]
) -> None:
    """Round by round: take the shape of a line, decode all lines that share it, keep the rest."""
    for _ in range(ROUNDS_MAX):
        found = together(pieces, lines.count)
        if shape is None or found is None:
            break
        at = seq if found.rows is None else seq.gather(found.rows)
        actions.tables[shape.action].append(pa.table({"seq": at.to_arrow(), **found.columns}))
        if not found.odd:
            return
        seq = seq.gather([row for row, _ in found.odd])
        lines = Lines.join([text for _, text in found.odd])
        if not _many(lines):
            break
        shape, pieces = _first(lines)
    _decode_lines(actions, seq.to_list(), lines.texts())


def _pick(lines: Lines) -> Shape | None:
    """The shape of a line from the middle; the others tell which of its values are no news."""
    texts = []
    for part in SAMPLES:  # neighbours too: at even distances, lines may repeat themselves
        texts += _lines_at(lines.data, len(lines.data) * part // 1000)
    for number, text in enumerate(texts[:4]):
        try:
            decode_line(text, "", 0)
        except LogCorrupt:
            continue
        others = [other.decode() for other in texts[number + 1 :] if other.isascii()]
        shape = shape_of(text.decode(), others)
        if shape is not None and shape.action in FIELDS:
            return shape
    return None


def _lines_at(data: bytes | memoryview, position: int) -> list[bytes]:
    """A few whole lines after a position; the last one if there are none."""
    reach = 1 << 12
    while True:
        text = bytes(data[position : position + reach])
        found = text.split(b"\n")[1:-1]
        if found:
            return found[:3]
        if position + reach >= len(data):
            return bytes(data).split(b"\n")[-2:-1]
        reach *= 4


def _decode_lines(actions: Actions, seqs: Sequence[int], texts: Sequence[bytes]) -> None:
    found: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in FIELDS}
    for seq, text in zip(seqs, texts, strict=True):
        try:
            action = decode_line(text, "", 0)
        except LogCorrupt:
            action = decode_line(text, *actions.place(seq))
        if action is None:
            continue
        name, value = action
        if name == "protocol":
            actions.protocols.append((seq, to_protocol(value)))
        elif name == "metaData":
            actions.metadata.append((seq, to_metadata(value)))
        else:
            found[name][0].append(seq)
            found[name][1].append(value)
    for name, (at, values) in found.items():
        if values and name == "commitInfo":
            actions.infos.append(of_raws(at, values))
        elif values:
            actions.tables[name].append(table_of(name, at, values))
