"""Decode a buffer of log lines into Arrow tables of actions.

Lines that share a template are decoded together as columns (`arrowlog.decode.columnar_decoder`);
the remaining lines are decoded one by one (`arrowlog.decode.row_decoder`).
"""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import concat_bytes, make_scalar
from arrowlog.decode.columnar_decoder import (
    LineBlock,
    TemplateMatch,
    decode_matching_lines,
    merge_matches,
)
from arrowlog.decode.commit_info import (
    COMMIT_INFO_PREFIX,
    CommitInfoLines,
    lines_from_raw_infos,
    parse_commit_infos,
)
from arrowlog.decode.line_buffer import SEQ_LINE_BITS, NonAddLines, concat_typed_arrays
from arrowlog.decode.line_template import LineTemplate, build_template
from arrowlog.decode.row_decoder import build_action_table, decode_line, to_metadata, to_protocol
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import INDEXTABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future

    from arrowlog.decode.line_buffer import LineBuffer
    from arrowlog.formats import ActionFields, Format, Metadata, Protocol

# Below this many lines the row decoder is as fast as the columnar decoder, unless the lines are
# long: from `_COLUMNAR_MIN_BYTES` on, two lines are enough.
COLUMNAR_MIN_LINES = 48
_COLUMNAR_MIN_BYTES = 1 << 16
# Templates tried per buffer. Lines that match none of them go to the row decoder.
MAX_TEMPLATE_ROUNDS = 16
# Where sample lines are taken from, in thousandths of the buffer. The first position supplies the
# template. The distances are uneven because lines may repeat at regular intervals.
SAMPLE_POSITIONS = (443, 61, 211, 353, 607, 787, 907)
_LINES_PER_SAMPLE = 3
_TEMPLATE_CANDIDATES = 4  # sample lines that are tried as the template


@dataclass(slots=True)
class ActionBatch:
    """The actions of a run of log files, in log order.

    `tables` holds the tables of the actions that the format declares, such as `add`, `remove` and
    `commitInfo`. Each table has a column `seq`, the sequence number of the line, which orders all
    lines of the batch and identifies the file and the line (see `place`). `infos` holds further
    commitInfos as raw lines, because a snapshot needs few of their fields. File number i has the
    key `names[i]`, is of version `versions[i]` and has `lines[i]` lines. `sums` maps file numbers
    to CRC-32 checksums, as in `LineBuffer`.
    """

    format: Format = INDEXTABLES
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    infos: list[CommitInfoLines] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    sums: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with an empty list of tables for each action."""
        self.tables = self.tables or {name: [] for name in self.format.actions.fields}

    def table(self, action: str) -> pa.Table:
        """Return all actions of one kind as one table. The rows are not sorted by `seq`."""
        tables = [pa.table({"seq": pa.nulls(0, pa.int64())}), *self.tables.get(action, ())]
        if action == "commitInfo":
            tables += [infos.table() for infos in self.infos]
        return pa.concat_tables(tables, promote_options="default")

    def place(self, seq: int) -> tuple[str, int]:
        """Return the file name and the line number (from 1) of a sequence number."""
        return self.names[seq >> SEQ_LINE_BITS], seq & ((1 << SEQ_LINE_BITS) - 1)

    def extend(self, more: ActionBatch) -> None:
        """Append the actions of later log files, renumbering their files and lines."""
        num_files = len(self.names)
        seq_offset = num_files << SEQ_LINE_BITS
        self.sums |= {file + num_files: crc for file, crc in more.sums.items()}
        for name, tables in more.tables.items():
            shifted = [_shift_seq(table, seq_offset) for table in tables] if seq_offset else tables
            self.tables[name] += shifted
        self.protocols += [(seq + seq_offset, protocol) for seq, protocol in more.protocols]
        self.metadata += [(seq + seq_offset, metadata) for seq, metadata in more.metadata]
        self.infos += [infos.with_seq_offset(seq_offset) for infos in more.infos]
        self.names += more.names
        self.versions += more.versions
        self.lines += more.lines


def _shift_seq(table: pa.Table, offset: int) -> pa.Table:
    seq = pc.add(table["seq"], make_scalar(offset, pa.int64()))
    return table.set_column(table.column_names.index("seq"), "seq", seq)


@dataclass(slots=True)
class PendingDecode:
    """A decode in progress: threads work on the pieces of a window until `finish` is called."""

    actions: ActionBatch
    view: memoryview
    lines: LineBlock
    seq: pl.Series
    shape: LineTemplate | None
    pieces: list[Future[TemplateMatch]]
    memory: pa.MemoryPool | None = None

    def finish(self) -> ActionBatch:
        """Wait for the threads, release the window and return all actions in it.

        Raises `LogCorrupt`, naming file and line, for a line that is not a valid action. The window
        is released in that case as well.
        """
        try:
            matches = [piece.result() for piece in self.pieces]
            if self.shape is not None and not matches:
                template, memory = self.shape, self.memory
                matches = [
                    decode_matching_lines(piece, template, memory) for piece in self.lines.pieces()
                ]
            _decode_by_template(self.actions, self.lines, self.seq, self.shape, matches)
        finally:
            wait(self.pieces)
            self.view.release()
        return self.actions


def start_decode(
    window: LineBuffer, pool: Executor | None, *, columnar: bool = True
) -> PendingDecode:
    """Start to decode a buffer, which must not change before `PendingDecode.finish` returns.

    `pool` runs the columnar decoder on pieces of the window. Without a pool, all work is done in
    the calling thread; choose that if the caller has nothing else to do in the meantime, because
    contention between the threads then costs more than they gain. `columnar=False` decodes every
    line with the row decoder.
    """
    actions = ActionBatch(
        window.format,
        names=list(window.names),
        versions=list(window.versions),
        lines=list(window.lines),
        sums=dict(window.sums),
    )
    non_adds = _take_commit_infos(actions, NonAddLines.join(window.non_add_lines))
    view = window.view
    lines = LineBlock(view, window.kept)
    fields = window.format.actions
    template = _pick_template(lines, fields) if columnar and _worth_columnar(lines) else None
    pieces = []
    if template is not None and pool is not None:
        pieces = [
            pool.submit(decode_matching_lines, piece, template, window.pool)
            for piece in lines.pieces()
        ]
    decoding = PendingDecode(
        actions,
        view,
        lines,
        _seq_series(concat_typed_arrays(window.seq_numbers, pa.int64())),
        template,
        pieces,
        window.pool,
    )
    try:
        # The other lines are decoded here, while the pool works on the adds.
        if columnar and len(non_adds.seq) >= COLUMNAR_MIN_LINES:
            other_lines = LineBlock(concat_bytes(non_adds.lines), len(non_adds.seq))
            first = _match_picked(other_lines, fields)
            _decode_by_template(actions, other_lines, _seq_series(non_adds.seq), *first)
        else:
            texts = [text[:-1] for text in non_adds.lines.to_pylist()]
            _decode_rows(actions, non_adds.seq.to_pylist(), texts)
    except BaseException:
        wait(pieces)  # the threads read from `view`
        view.release()
        raise
    return decoding


def _worth_columnar(lines: LineBlock) -> bool:
    """Return whether searching for a template costs less than decoding row by row."""
    return lines.count >= COLUMNAR_MIN_LINES or (
        lines.count > 1 and len(lines.data) >= _COLUMNAR_MIN_BYTES
    )


def _take_commit_infos(actions: ActionBatch, non_adds: NonAddLines) -> NonAddLines:
    """Parse the commitInfo lines into `actions.infos` and return the other lines.

    A line that starts like a commitInfo but holds something else is among those returned.
    """
    starts_as_info = pc.starts_with(non_adds.lines, COMMIT_INFO_PREFIX)
    if not starts_as_info.true_count:
        return non_adds
    candidates = non_adds.filter(starts_as_info)
    fields = actions.format.actions
    infos, rejected = parse_commit_infos(candidates.seq, candidates.lines, fields)
    actions.infos.append(infos)
    others = non_adds.filter(pc.invert(starts_as_info))
    return others if rejected is None else NonAddLines.join([others, candidates.filter(rejected)])


def _seq_series(seq: pa.Array) -> pl.Series:
    return pl.Series(pl.from_arrow(seq), dtype=pl.Int64)


def decode_buffer(window: LineBuffer, *, columnar: bool = True) -> ActionBatch:
    """Return all actions in the window, decoded in the calling thread.

    Raises `LogCorrupt`, naming file and line, for a line that is not a valid action.
    """
    return start_decode(window, None, columnar=columnar).finish()


def _match_picked(
    lines: LineBlock, fields: ActionFields
) -> tuple[LineTemplate | None, list[TemplateMatch]]:
    """Pick a template from the lines and match all lines against it."""
    template = _pick_template(lines, fields)
    if template is None:
        return None, []
    return template, [decode_matching_lines(piece, template) for piece in lines.pieces()]


def _decode_by_template(
    actions: ActionBatch,
    lines: LineBlock,
    seq: pl.Series,
    template: LineTemplate | None,
    pieces: Sequence[TemplateMatch],
) -> None:
    """Decode lines in rounds: match a template, then pick one from the lines that did not match.

    `pieces` are the matches of `template`. What is left after the last round is decoded row by row.
    """
    for _ in range(MAX_TEMPLATE_ROUNDS):
        merged = merge_matches(pieces, lines.count)
        if template is None or merged is None:
            break
        matched_seq = seq if merged.rows is None else seq.gather(merged.rows)
        table = pa.table({"seq": matched_seq.to_arrow(), **merged.columns})
        actions.tables[template.action].append(table)
        if not merged.odd:
            return
        seq = seq.gather([row for row, _ in merged.odd])
        lines = LineBlock.join([text for _, text in merged.odd])
        if not _worth_columnar(lines):
            break
        template, pieces = _match_picked(lines, actions.format.actions)
    _decode_rows(actions, seq.to_list(), lines.texts())


def _pick_template(lines: LineBlock, fields: ActionFields) -> LineTemplate | None:
    """Return the template of a valid line near the middle, or None if no candidate has one.

    The other samples tell which values are the same everywhere and become constants.
    """
    samples: list[bytes] = []
    for position in SAMPLE_POSITIONS:
        # Adjacent lines as well: lines at regular distances may repeat one another.
        samples += _lines_after(lines.data, len(lines.data) * position // 1000)
    for index, text in enumerate(samples[:_TEMPLATE_CANDIDATES]):
        try:
            decode_line(text, "", 0, fields)
        except LogCorrupt:
            continue
        others = [other.decode() for other in samples[index + 1 :] if other.isascii()]
        template = build_template(text.decode(), fields, others)
        if template is not None and template.action in fields.fields:
            return template
    return None


def _lines_after(data: bytes | memoryview, position: int) -> list[bytes]:
    """Return a few whole lines after a position, or the last line of the buffer."""
    window_size = 1 << 12
    while True:
        text = bytes(data[position : position + window_size])
        whole_lines = text.split(b"\n")[1:-1]  # the first and the last may be cut
        if whole_lines:
            return whole_lines[:_LINES_PER_SAMPLE]
        if position + window_size >= len(data):
            return bytes(data).split(b"\n")[-2:-1]
        window_size *= 4


def _decode_rows(actions: ActionBatch, seqs: Sequence[int], texts: Sequence[bytes]) -> None:
    """Decode lines one by one; `LogCorrupt` names the file and the line."""
    fields = actions.format.actions
    decoded: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in fields.fields}
    for seq, text in zip(seqs, texts, strict=True):
        try:
            action = decode_line(text, "", 0, fields)
        except LogCorrupt:  # decode again with the place, which is computed only for an error
            action = decode_line(text, *actions.place(seq), fields)
        if action is None:
            continue
        name, value = action
        if name == "protocol":
            actions.protocols.append((seq, to_protocol(value)))
        elif name == "metaData":
            metadata = to_metadata(value, actions.format.default_provider)
            actions.metadata.append((seq, metadata))
        else:
            decoded[name][0].append(seq)
            decoded[name][1].append(value)
    for name, (action_seqs, values) in decoded.items():
        if values and name == "commitInfo":
            actions.infos.append(lines_from_raw_infos(action_seqs, values, fields))
        elif values:
            actions.tables[name].append(build_action_table(fields, name, action_seqs, values))
