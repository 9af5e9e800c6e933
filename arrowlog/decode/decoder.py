"""Decode the lines of log files into Arrow tables of actions.

Lines that share a template are decoded together as columns (`arrowlog.decode.columnar_decoder`),
lines that share no more than their fields by a JSON reader that knows these fields
(`arrowlog.decode.schema_decoder`); the remaining lines are decoded one by one
(`arrowlog.decode.row_decoder`). `arrowlog.decode.line_buffer` holds the lines of files.
"""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import concat_bytes, concat_typed_arrays, make_scalar
from arrowlog.decode.columnar_decoder import (
    LineBlock,
    LineTemplate,
    TemplateMatch,
    build_template,
    decode_matching_lines,
    fits_again,
    merge_matches,
    which_fit,
)
from arrowlog.decode.line_buffer import SEQ_LINE_BITS
from arrowlog.decode.line_splitter import int64_array, lines_after
from arrowlog.decode.row_decoder import (
    COMMIT_INFO_PREFIX,
    CommitInfoLines,
    NonAddLines,
    build_action_table,
    build_info_table,
    decode_line,
    decode_lines,
    lines_from_raw_infos,
    parse_commit_infos,
    to_metadata,
    to_protocol,
)
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import INDEXTABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future

    from arrowlog.decode.line_buffer import LineBuffer
    from arrowlog.decode.schema_decoder import LearnedShapes
    from arrowlog.formats import ActionFields, Format, Metadata, Protocol

# Below this many lines the row decoder is as fast as the columnar decoder, unless the lines are
# long: from `_COLUMNAR_MIN_BYTES` on, two lines are enough.
COLUMNAR_MIN_LINES = 48
_COLUMNAR_MIN_BYTES = 1 << 16
# Another template is tried if the last one matched at least one line for so many that are left. A
# round costs a fifth of decoding these row by row, and lines without a common shape match none.
_MIN_MATCHED_SHARE = 8
# Templates tried per buffer. Lines that match none of them go to the row decoder.
MAX_TEMPLATE_ROUNDS = 16
# Below this many lines, the row decoder is as fast as the schema decoder.
SCHEMA_MIN_LINES = 400
# Where sample lines are taken from, in thousandths of the buffer. The first position supplies the
# template. The distances are uneven because lines may repeat at regular intervals.
SAMPLE_POSITIONS = (443, 61, 211, 353, 607, 787, 907)
_LINES_PER_SAMPLE = 3
_KNOWN_TEMPLATES_MAX = 4  # kept from one buffer to the next
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
        tables = list(self.tables.get(action, ()))
        if action == "commitInfo":
            tables += [table for infos in self.infos for table in _info_tables(infos, self.format)]
        if len(tables) == 1:
            return tables[0]
        empty = pa.table({"seq": pa.nulls(0, pa.int64())})
        return pa.concat_tables([empty, *tables], promote_options="default")

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
    seq: pa.Array
    shape: LineTemplate | None
    pieces: list[Future[TemplateMatch]]
    pool: Executor | None = None
    memory: pa.MemoryPool | None = None
    columnar: bool = True
    known: list[LineTemplate] = field(default_factory=list)
    learned: LearnedShapes = field(default_factory=dict)

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
            first = self.shape, matches
            left = _decode_by_template(self.actions, self.lines, self.seq, *first, self.known)
            if self.columnar:
                left = _decode_without_shape(
                    self.actions, *left, self.pool, self.memory, self.learned
                )
            _decode_rows(self.actions, left[1].to_pylist(), left[0].texts())
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
    template = None
    may_be_shapeless = lines.count >= SCHEMA_MIN_LINES
    if columnar and _worth_columnar(lines) and not (may_be_shapeless and window.is_shapeless()):
        template = _pick_template(lines, fields, window.templates)
        window.num_shapeless = 0 if template is not None else 1
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
        concat_typed_arrays(window.seq_numbers, pa.int64()),
        template,
        pieces,
        pool,
        window.pool,
        columnar,
        window.templates,
        window.learned,
    )
    try:
        # The other lines are decoded here, while the pool works on the adds.
        if columnar and len(non_adds.seq) >= COLUMNAR_MIN_LINES:
            other_lines = LineBlock(concat_bytes(non_adds.lines), len(non_adds.seq))
            known = window.templates
            first = _match_picked(other_lines, fields, known)
            left = _decode_by_template(actions, other_lines, non_adds.seq, *first, known)
            left = _decode_without_shape(actions, *left, None, window.pool, window.learned)
            _decode_rows(actions, left[1].to_pylist(), left[0].texts())
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


def _info_tables(infos: CommitInfoLines, table_format: Format) -> list[pa.Table]:
    """Decode commitInfos: those that share a template as columns, the others one by one."""
    if len(infos.seq) < COLUMNAR_MIN_LINES:
        return [infos.table()]
    batch = ActionBatch(table_format)
    lines = LineBlock(concat_bytes(infos.lines), len(infos.seq))
    first = _match_picked(lines, infos.fields, [])
    _, left = _decode_by_template(batch, lines, infos.seq, *first, [])
    tables = batch.tables["commitInfo"]
    if len(left):
        others = pc.is_in(infos.seq, value_set=left)
        rows = infos.seq.filter(others), infos.lines.filter(others)
        tables.append(build_info_table(*rows, infos.fields))
    return tables


def decode_buffer(window: LineBuffer, *, columnar: bool = True) -> ActionBatch:
    """Return all actions in the window, decoded in the calling thread.

    Raises `LogCorrupt`, naming file and line, for a line that is not a valid action.
    """
    return start_decode(window, None, columnar=columnar).finish()


def _match_picked(
    lines: LineBlock, fields: ActionFields, known: list[LineTemplate], *, common: bool = True
) -> tuple[LineTemplate | None, list[TemplateMatch]]:
    """Pick a template from the lines and match all lines against it."""
    template = _pick_template(lines, fields, known, common=common)
    if template is None:
        return None, []
    return template, [decode_matching_lines(piece, template) for piece in lines.pieces()]


def _decode_by_template(
    actions: ActionBatch,
    lines: LineBlock,
    seq: pa.Array,
    template: LineTemplate | None,
    pieces: Sequence[TemplateMatch],
    known: list[LineTemplate],
    *,
    common: bool = True,
) -> tuple[LineBlock, pa.Array]:
    """Decode lines in rounds: match a template, then pick one from the lines that did not match.

    `pieces` are the matches of `template`; `known` and `common` as in `_pick_template`. Returns the
    lines that are left after the last round, and their sequence numbers.
    """
    for _ in range(MAX_TEMPLATE_ROUNDS):
        merged = merge_matches(pieces, lines.count)
        if template is None or merged is None:
            break
        matched_seq = seq if merged.rows is None else seq.take(int64_array(merged.rows))
        actions.tables[template.action].append(pa.table({"seq": matched_seq, **merged.columns}))
        seq = seq.take(int64_array(merged.odd_rows))
        lines = LineBlock(merged.odd, len(seq))
        if not _worth_columnar(lines) or len(matched_seq) < lines.count // _MIN_MATCHED_SHARE:
            break
        template, pieces = _match_picked(lines, actions.format.actions, known, common=common)
    return lines, seq


def _decode_without_shape(
    actions: ActionBatch,
    lines: LineBlock,
    seq: pa.Array,
    pool: Executor | None,
    memory: pa.MemoryPool | None,
    learned: LearnedShapes,
) -> tuple[LineBlock, pa.Array]:
    """Decode lines that share their fields, and then lines of which some share a template.

    Returns the lines that are left, and their sequence numbers.
    """
    if lines.count < SCHEMA_MIN_LINES:
        return lines, seq
    lines, seq = _decode_by_schema(actions, lines, seq, pool, memory, learned)
    if not _worth_columnar(lines):
        return lines, seq
    first = _match_picked(lines, actions.format.actions, [], common=False)
    return _decode_by_template(actions, lines, seq, *first, [], common=False)


def _decode_by_schema(
    actions: ActionBatch,
    lines: LineBlock,
    seq: pa.Array,
    pool: Executor | None,
    memory: pa.MemoryPool | None,
    learned: LearnedShapes,
) -> tuple[LineBlock, pa.Array]:
    """Decode lines that share their fields; returns the lines that are left, and their numbers."""
    # Imported here: the lines of most logs share a template.
    from arrowlog.decode.schema_decoder import decode_by_schema

    fields = actions.format.actions
    decode = partial(
        decode_by_schema,
        fields=fields,
        min_lines=SCHEMA_MIN_LINES,
        pool=memory,
        learned=learned,
    )
    left_seqs: list[pa.Array] = []
    left_lines: list[bytes | memoryview] = []
    start = 0
    for matches, left in (pool.map if pool else map)(decode, lines.pieces()):
        piece_seq = seq.slice(start, left.num_lines)
        for match in matches:
            table = pa.table({"seq": piece_seq.take(match.rows), **match.columns})
            actions.tables[match.action].append(table)
        left_seqs.append(piece_seq.take(left.rows))
        left_lines.append(concat_bytes(left.texts))
        start += left.num_lines
    left_seq = concat_typed_arrays(left_seqs, pa.int64())
    return LineBlock(b"".join(left_lines), len(left_seq)), left_seq


def _pick_template(
    lines: LineBlock, fields: ActionFields, known: list[LineTemplate], *, common: bool = True
) -> LineTemplate | None:
    """Return the template of a valid line near the middle, or None if no candidate has one.

    The other samples tell which values are the same everywhere and become constants. A template in
    `known` that still fits is returned as it is; a new one is added to them. With `common`, at
    least half of the samples have to fit the template.
    """
    samples: list[bytes] = []
    for position in SAMPLE_POSITIONS:
        # Adjacent lines as well: lines at regular distances may repeat one another.
        found = lines_after(lines.data, len(lines.data) * position // 1000)
        samples += found[:_LINES_PER_SAMPLE]
    for earlier in known:
        if fits_again(earlier, samples[::_LINES_PER_SAMPLE]):
            return earlier
    for index, text in enumerate(samples[:_TEMPLATE_CANDIDATES]):
        try:
            decode_line(text, "", 0, fields)
        except LogCorrupt:
            continue
        others = [other for other in samples[index + 1 :] if other.isascii()]
        template = build_template(text.decode(), fields, others, known)
        if template is None or template.action not in fields.fields:
            continue
        # No further than to the half: a line may have thousands of values.
        half = (len(others) + 1) // 2
        if not common or sum(islice(filter(None, which_fit(template, others)), half)) == half:
            known.insert(0, template)
            del known[_KNOWN_TEMPLATES_MAX:]
            return template
    return None


def _decode_rows(actions: ActionBatch, seqs: Sequence[int], texts: Sequence[bytes]) -> None:
    """Decode lines without a template; `LogCorrupt` names the file and the line."""
    fields = actions.format.actions
    decoded = decode_lines(texts, fields)
    if decoded is None:
        decoded = _decode_one_by_one(actions, seqs, texts)
    for name, (rows, values) in decoded.items():
        action_seqs = [seqs[row] for row in rows]
        if name == "protocol":
            actions.protocols += zip(action_seqs, map(to_protocol, values), strict=True)
        elif name == "metaData":
            provider = actions.format.default_provider
            metadata = [to_metadata(value, provider) for value in values]
            actions.metadata += zip(action_seqs, metadata, strict=True)
        elif name == "commitInfo":
            actions.infos.append(lines_from_raw_infos(action_seqs, values, fields))
        else:
            actions.tables[name].append(build_action_table(fields, name, action_seqs, values))


def _decode_one_by_one(
    actions: ActionBatch, seqs: Sequence[int], texts: Sequence[bytes]
) -> dict[str, tuple[list[int], list[Any]]]:
    """Decode lines that `decode_lines` does not accept together, and report the one at fault."""
    fields = actions.format.actions
    decoded: dict[str, tuple[list[int], list[Any]]] = {}
    for row, (seq, text) in enumerate(zip(seqs, texts, strict=True)):
        try:
            action = decode_line(text, "", 0, fields)
        except LogCorrupt:  # decode again with the place, which is computed only for an error
            action = decode_line(text, *actions.place(seq), fields)
        if action is not None:
            rows, values = decoded.setdefault(action[0], ([], []))
            rows.append(row)
            values.append(action[1])
    return decoded
