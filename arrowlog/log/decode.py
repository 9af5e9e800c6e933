"""Lines of a log to tables of actions: columns where lines share a shape, line by line where not."""

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
from arrowlog.log.shape import Lines, Match, Shape, match, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.log.window import Window

COLUMNAR_LINES = 48  # below this, reading lines one by one is as fast
SPREAD_BYTES = 1 << 20  # above this, more than one thread pays
ROUNDS_MAX = 16
SAMPLES = (443, 211, 701, 109, 17, 61, 163, 307, 353, 499, 557, 607, 659, 787, 853, 907, 953)
LINE_BITS = 32  # a sequence number is the file's number and the line's number in it


@dataclass(slots=True)
class Actions:
    """What a run of log files says, in order.

    `tables` holds tables of `add`, `remove`, `mergeskip` and `commitInfo`, each with a column `seq`
    that orders all lines and says where each came from. File number i is `names[i]` of version
    `versions[i]` with `lines[i]` lines.
    """

    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def table(self, action: str) -> pa.Table:
        """All actions of one kind."""
        empty = pa.table({"seq": pa.array([], pa.int64())})
        return pa.concat_tables([empty, *self.tables[action]], promote_options="default")

    def place(self, seq: int) -> tuple[str, int]:
        """The file that a line came from, and the line's number in it."""
        return self.names[seq >> LINE_BITS], seq & ((1 << LINE_BITS) - 1)

    def extend(self, more: Actions) -> None:
        """Append what came later."""
        by = len(self.names) << LINE_BITS
        for name, tables in more.tables.items():
            self.tables[name] += tables if by == 0 else [_shift(table, by) for table in tables]
        self.protocols += [(seq + by, found) for seq, found in more.protocols]
        self.metadata += [(seq + by, found) for seq, found in more.metadata]
        self.names += more.names
        self.versions += more.versions
        self.lines += more.lines


def _shift(table: pa.Table, by: int) -> pa.Table:
    seq = (pl.Series(pl.from_arrow(table["seq"])) + by).to_arrow()
    return table.set_column(table.column_names.index("seq"), "seq", seq)


def decode(window: Window, *, columnar: bool = True) -> Actions:
    """All actions in the window."""
    actions = Actions(
        names=list(window.names), versions=list(window.versions), lines=list(window.lines)
    )
    apart = [(file << LINE_BITS) + line for file, line, _ in window.apart]
    with memoryview(window.data)[: window.size] as view:
        for seq, lines in (
            (pl.Series(apart, dtype=pl.Int64), Lines.join([text for _, _, text in window.apart])),
            (_numbers(window), Lines(view, sum(window.kept))),
        ):
            if columnar and lines.count >= COLUMNAR_LINES and lines.clean():
                _decode_columns(actions, lines, seq)
            else:
                _decode_lines(actions, seq.to_list(), lines.texts())
    return actions


def _numbers(window: Window) -> pl.Series:
    """The sequence number of every line that was left in the window."""
    kept = pl.Series(window.kept, dtype=pl.Int64)
    before = kept.cum_sum() - kept
    files = pl.int_range(len(kept), dtype=pl.Int64, eager=True)
    first = files * (1 << LINE_BITS) + pl.Series(window.firsts, dtype=pl.Int64) - before
    each = first.repeat_by(kept).explode(empty_as_null=False) if len(kept) else first
    return each + pl.int_range(each.len(), dtype=pl.Int64, eager=True)


def _decode_columns(actions: Actions, lines: Lines, seq: pl.Series) -> None:
    """Round by round: take the shape of a line, decode all lines that share it, keep the rest."""
    for _ in range(ROUNDS_MAX):
        shape = _pick(lines)
        found = None if shape is None else _match(lines, shape)
        if shape is None or found is None:
            break
        if found.columns:
            at = seq if found.rows is None else seq.gather(found.rows)
            actions.tables[shape.action].append(pa.table({"seq": at.to_arrow(), **found.columns}))
        if not found.odd:
            return
        seq = seq.gather([row for row, _ in found.odd])
        lines = Lines.join([text for _, text in found.odd])
        if lines.count < COLUMNAR_LINES:
            break
    _decode_lines(actions, seq.to_list(), lines.texts())


def _match(lines: Lines, shape: Shape) -> Match | None:
    if len(lines.data) > SPREAD_BYTES:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = match(lines, shape, pool)
        if found is not None:
            return found
    return match(lines, shape)


def _pick(lines: Lines) -> Shape | None:
    """The shape of a line from the middle; the others tell which of its values are no news."""
    texts = []
    for part in SAMPLES:
        texts.append(_line_at(lines.data, len(lines.data) * part // 1000))
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


def _line_at(data: bytes | memoryview, position: int) -> bytes:
    """The first whole line after a position; the last line if there is none."""
    reach = 1 << 12
    while True:
        text = bytes(data[position : position + reach])
        first = text.find(b"\n")
        second = text.find(b"\n", first + 1)
        if 0 <= first < second:
            return text[first + 1 : second]
        if position + reach >= len(data):
            return bytes(data[: position + 1 + max(first, 0)]).rpartition(b"\n")[2]
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
        if values:
            actions.tables[name].append(table_of(name, at, values))
