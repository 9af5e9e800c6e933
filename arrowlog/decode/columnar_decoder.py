"""The columnar decoder: decode all lines that fit a template, and verify every one of them.

For a block of lines:

1. Split every line at its commas. A CSV parser does that several times faster than any JSON parser
   reads the line. Between two commas there is constant text around at most one value.
2. Compare the constant text of every line, byte for byte, with the template.
3. Reject values that contain quotation marks, backslashes or control characters.
4. Count the bytes: each one belongs to a field, or is the comma or line feed after it.

A line that passes is, provably, the template with those values; nothing else about it needs
parsing. Lines that do not pass are returned, for another template or for the row decoder. Pure: no
I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from arrowlog.arrays import bytes_to_series, data_span, make_array, make_scalar, repeat_bool
from arrowlog.decode.line_template import (
    TemplateConstant,
    TemplateMismatch,
    TemplateSlot,
    field_kind_at,
    is_count_path,
    split_template,
)
from arrowlog.fork_safety import pl
from arrowlog.formats import STATS_MAPS, FieldKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.decode.line_template import JsonPath, LineTemplate, TemplateField, TemplateLeaf

ActionColumns = dict[str, Any]
SlotValues = dict[TemplateSlot | None, pa.ChunkedArray]

# Bytes per call of `match`. A piece has a fixed cost of 2 ms, and needs memory of a few times its
# size in every thread.
PIECE_BYTES = 16 << 20
# Bytes that the CSV parser processes at a time, so that they stay in the CPU cache.
_CSV_BLOCK_BYTES = 1 << 19
_FORBIDDEN_IN_STRINGS = b'"\\'
_JSON_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class TemplateMatch:
    """The result of matching `count` lines against a template.

    `columns` are the columns of the matching lines, whose indexes are `rows` (None: all lines
    match). `odd` are the other lines with their indexes.
    """

    columns: ActionColumns
    count: int
    rows: pl.Series | None = None
    odd: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A buffer of `count` whole lines, each ending with a line feed."""

    data: bytes | memoryview
    count: int

    @classmethod
    def join(cls, texts: Sequence[bytes]) -> LineBlock:
        """Build a buffer from lines without their line feeds."""
        return cls(b"\n".join([*texts, b""]), len(texts))

    def texts(self) -> list[bytes]:
        """Return each line without its line feed."""
        return bytes(self.data).split(b"\n")[: self.count]

    def pieces(self) -> list[bytes | memoryview]:
        """Split the buffer into pieces of whole lines, of about `PIECE_BYTES` bytes each."""
        pieces, start = [], 0
        while start < len(self.data):
            stop = _line_end(self.data, start + PIECE_BYTES)
            pieces.append(self.data[start:stop])
            start = stop
        return pieces


def _line_end(data: bytes | memoryview, position: int) -> int:
    """Return the end of the line that contains a position, its line feed included."""
    window_size = 1 << 12
    while position < len(data):
        feed = bytes(data[position : position + window_size]).find(b"\n")
        if feed >= 0:
            return position + feed + 1
        position += window_size
    return len(data)


def decode_matching_lines(
    data: bytes | memoryview, template: LineTemplate, pool: pa.MemoryPool | None = None
) -> TemplateMatch:
    """Decode the lines of a piece that fit the template, and return the others as they are.

    Malformed input is not an error here: a piece that cannot be verified is returned as lines that
    do not match. `together` must compare the sum of `count` with the number of lines, because the
    CSV parser also ends a line at a carriage return.
    """
    fields = split_template(template)
    try:
        cells, odd = _split_at_commas(data, len(fields), pool)
        num_rows = len(cells[0])
        # pop: free each column once it is checked
        checked = [_check_field(item, cells.pop(0), pool) for item in fields]
        values = {item.slot: check.value for item, check in zip(fields, checked, strict=True)}
        _check_texts(values, checked[0], pool)
        failed = [mask for check in checked for mask in check.failed]
        if odd or failed:
            _check_line_ends(data, num_rows + len(odd))
        elif sum(check.size for check in checked) + num_rows * len(fields) != len(data):
            raise TemplateMismatch  # bytes outside all fields: a carriage return, a byte order mark
        return _build_match(data, template, values, num_rows, odd, failed, pool)
    except (
        TemplateMismatch,
        pa.ArrowInvalid,
        UnicodeDecodeError,
    ):  # the row decoder reports what it is
        texts = bytes(data).split(b"\n")[:-1]
        return TemplateMatch({}, len(texts), pl.Series([], dtype=pl.Int64), list(enumerate(texts)))


def merge_matches(pieces: Sequence[TemplateMatch], count: int) -> TemplateMatch | None:
    """Merge the matches of the pieces of a buffer of `count` lines.

    Returns None if no line matches, or if the pieces have another number of lines than the buffer.
    """
    matching = [piece for piece in pieces if piece.columns]
    if not matching or sum(piece.count for piece in pieces) != count:
        return None
    columns = {
        name: pa.chunked_array(
            [chunk for piece in matching for chunk in _chunks(piece.columns[name])]
        )
        for name in matching[0].columns
    }
    if all(piece.rows is None for piece in pieces):
        return TemplateMatch(columns, count)
    rows: list[pl.Series] = []
    odd: list[tuple[int, bytes]] = []
    start = 0
    for piece in pieces:
        piece_rows = piece.rows
        if piece_rows is None:
            piece_rows = pl.int_range(piece.count, dtype=pl.Int64, eager=True)
        rows.append(piece_rows + start)
        odd += [(row + start, text) for row, text in piece.odd]
        start += piece.count
    return TemplateMatch(columns, count, pl.concat(rows), odd)


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _check_line_ends(data: bytes | memoryview, count: int) -> None:
    """Raise `TemplateMismatch` unless a piece has `count` line feeds and no other control byte.

    A byte order mark at the start raises `TemplateMismatch` as well: the CSV parser would skip it.
    """
    all_octets = bytes_to_series(data)
    if (all_octets < 32).sum() != count or (all_octets == 10).sum() != count:
        raise TemplateMismatch
    if bytes(data[:3]) == b"\xef\xbb\xbf":
        raise TemplateMismatch


FailureMasks = list[pl.Series]


@dataclass(slots=True)
class _Checked:
    """One field of all lines: its total bytes, the values of its slot, and masks of bad lines."""

    size: int = 0
    value: Any = None
    failed: FailureMasks = field(default_factory=list)

    def require(self, passes: pa.ChunkedArray) -> None:
        """Record the lines for which a check is false."""
        if sum(chunk.true_count for chunk in passes.chunks) != len(passes):
            self.failed.append(~pl.Series(pl.from_arrow(passes)))


def _check_field(
    item: TemplateField, cells: pa.ChunkedArray, pool: pa.MemoryPool | None
) -> _Checked:
    """Compare a field of all lines with the template and extract the values of its slot."""
    checked = _Checked(_num_bytes(cells))
    before, after = item.before.encode(), item.after.encode()
    if item.slot is None:
        checked.require(pc.equal(cells, make_scalar(before, cells.type)))
        return checked
    checked.require(pc.starts_with(cells, before))
    if after:
        checked.require(pc.ends_with(cells, after))
        value = pc.binary_slice(cells, len(before), -len(after), memory_pool=pool)
    else:  # binary_slice without a stop asks for a negative amount of memory
        value = pc.binary_replace_slice(cells, 0, len(before), b"", memory_pool=pool)
    # If the sizes do not add up, prefix and suffix overlap in some line.
    if _num_bytes(value) + len(cells) * len(before + after) != checked.size:
        min_length = make_scalar(len(before + after), pa.int32())
        checked.require(pc.greater_equal(pc.binary_length(cells), min_length))
    checked.value = _check_number(checked, value, pool) if item.slot.number else value
    return checked


def _view_as_string(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reinterpret bytes as strings, without validating UTF-8."""
    return pa.chunked_array([chunk.view(pa.string()) for chunk in texts.chunks], pa.string())


def _num_bytes(texts: pa.ChunkedArray) -> int:
    """Return the total number of bytes in all texts."""
    return sum(stop - start for start, stop in map(data_span, texts.chunks))


def concat_column_bytes(texts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return all bytes of several columns as one uint8 array, without a copy."""
    parts = []
    for chunk in (chunk for column in texts for chunk in column.chunks):
        start, stop = data_span(chunk)
        buffers = [None, chunk.buffers()[2]]
        parts.append(pa.Array.from_buffers(pa.uint8(), stop - start, buffers, offset=start))
    return pa.chunked_array(parts, pa.uint8())


def _check_texts(values: SlotValues, checked: _Checked, pool: pa.MemoryPool | None) -> None:
    """Check the values of all string slots, and convert them from binary to string.

    A value must stand for itself: no quotation mark, backslash or control character, and valid
    UTF-8. Lines with the first two are recorded in `checked`; a control character raises
    `TemplateMismatch`. All slots are searched in one call, because a call costs as much as
    searching a hundred kilobytes.
    """
    text_slots = [slot for slot in values if slot is not None and not slot.number]
    all_octets = concat_column_bytes([values[slot] for slot in text_slots])
    bounds = pc.min_max(all_octets)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and low < 32:
        raise TemplateMismatch
    for char in _FORBIDDEN_IN_STRINGS:
        if low is not None and low <= char <= high and _contains_byte(all_octets, char, pool):
            for slot in text_slots:
                checked.require(pc.invert(pc.match_substring(values[slot], bytes([char]))))
    ascii_only = low is None or high < 128
    for slot in text_slots:
        texts = values[slot]
        values[slot] = _view_as_string(texts) if ascii_only else pc.cast(texts, pa.string())


def _contains_byte(all_octets: pa.ChunkedArray, byte: int, pool: pa.MemoryPool | None) -> bool:
    """Return whether a byte occurs.

    The minimum of an exclusive or takes a tenth of the time of a comparison in pyarrow. polars
    would use its own thread pool, which slows down the threads here by more than it saves.
    """
    differ = pc.bit_wise_xor(all_octets, make_scalar(byte, pa.uint8()), memory_pool=pool)
    return bool(pc.min(differ).as_py() == 0)


def _check_number(
    checked: _Checked, value: pa.ChunkedArray, pool: pa.MemoryPool | None
) -> pa.ChunkedArray:
    """Check that values are JSON numbers; returns them as int64 if all are integers, else as text.

    An integer is checked by formatting it again: 007, 0x7 and -0 come out different.
    """
    text = _view_as_string(value)
    try:
        number = pc.cast(text, pa.int64(), memory_pool=pool)
    except pa.ArrowInvalid:
        checked.require(pc.match_substring_regex(text, _JSON_NUMBER))
        return text
    if not _is_canonical(text, number):
        formatted = pc.cast(number, pa.string())
        if not formatted.equals(text):
            checked.require(pc.equal(formatted, text))
    return number


def _is_canonical(text: pa.ChunkedArray, number: pa.ChunkedArray) -> bool:
    """Return whether all texts are decimal digits without leading zeros, by a sufficient test.

    The test: only digits, the smallest and the largest number have the same width, and the total
    length is that width times the count. No text can be shorter than its number, so if the total is
    right, each one is. Sizes and timestamps mostly pass, which saves formatting them; that takes
    three times as long.
    """
    numbers, chars = pc.min_max(number), pc.min_max(concat_column_bytes([text]))
    low, high = numbers["min"].as_py(), numbers["max"].as_py()
    if low is None or chars["min"].as_py() < 48 or chars["max"].as_py() > 57:  # "0" to "9"
        return False
    width = len(str(low))
    return width == len(str(high)) and _num_bytes(text) == width * len(text)


def _build_match(
    data: bytes | memoryview,
    template: LineTemplate,
    values: SlotValues,
    count: int,
    odd: list[tuple[int, bytes]],
    failed: FailureMasks,
    pool: pa.MemoryPool | None,
) -> TemplateMatch:
    """Build the result for `count` lines that were split, less those in the masks `failed`.

    `odd` are the lines that could not be split; they are in addition to `count`.
    """
    if not odd and not failed:
        return TemplateMatch(_to_columns(template, values, count, pool), count)
    total = count + len(odd)
    rows = pl.int_range(total, dtype=pl.Int64, eager=True)
    if odd:
        odd_rows = make_array([row for row, _ in odd], pa.int64())
        was_split = pc.invert(pc.is_in(rows.to_arrow(), value_set=odd_rows))
        rows = rows.filter(pl.Series(pl.from_arrow(was_split)))
    if failed:
        any_failed = failed[0]
        for mask in failed[1:]:
            any_failed = any_failed | mask
        texts = bytes(data).split(b"\n")
        odd = sorted(odd + [(row, texts[row]) for row in rows.filter(any_failed).to_list()])
        rows = rows.filter(~any_failed)
        passed = (~any_failed).to_arrow()
        values = {slot: value.filter(passed) for slot, value in values.items() if slot}
    columns = _to_columns(template, values, rows.len(), pool) if rows.len() else {}
    return TemplateMatch(columns, total, rows, odd)


def _split_at_commas(
    data: bytes | memoryview, width: int, pool: pa.MemoryPool | None
) -> tuple[list[pa.ChunkedArray], list[tuple[int, bytes]]]:
    """Split every line into `width` cells; returns them and the lines with more or fewer cells."""
    odd: list[tuple[int, bytes]] = []

    def skip(row: Any) -> str:
        odd.append((row.number - 1, row.text.encode()))
        return "skip"

    try:
        return _parse_csv(data, width, pool), odd
    except pa.ArrowInvalid:  # some line has another number of cells: parse again with the handler
        bytes(data).decode()  # pyarrow cannot pass a line that is not UTF-8 to the handler
        return _parse_csv(data, width, pool, skip), odd


def _parse_csv(
    data: bytes | memoryview, width: int, pool: pa.MemoryPool | None, skip: Any = None
) -> list[pa.ChunkedArray]:
    names = [str(i) for i in range(width)]
    table = csv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=_block_size(data)
        ),
        parse_options=csv.ParseOptions(
            delimiter=",",
            quote_char=False,
            escape_char=False,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
        ),
        memory_pool=pool,
    )
    columns: list[pa.ChunkedArray] = table.columns
    return columns


def _block_size(data: bytes | memoryview) -> int:
    """Return the CSV block size: what fits a cache, but several lines if they are longer."""
    first_line_bytes = _line_end(data, 0)
    return min(max(_CSV_BLOCK_BYTES, 64 * first_line_bytes), len(data) + 1)


def _join_parts(
    parts: Sequence[str | TemplateSlot], values: SlotValues, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    """Concatenate constant texts and slot values for each line."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(
                _to_string(values[part], pool) if isinstance(part, TemplateSlot) else part
            )
    if len(merged) == 1 and isinstance(merged[0], str):
        return pa.repeat(make_scalar(merged[0], pa.string()), count, memory_pool=pool)
    texts = [make_scalar(p, pa.string()) if isinstance(p, str) else p for p in (*merged, "")]
    return pc.binary_join_element_wise(*texts, memory_pool=pool)


def _to_string(value: pa.ChunkedArray, pool: pa.MemoryPool | None) -> pa.ChunkedArray:
    return value if value.type == pa.string() else pc.cast(value, pa.string(), memory_pool=pool)


def _to_columns(
    template: LineTemplate, values: SlotValues, count: int, pool: pa.MemoryPool | None
) -> ActionColumns:
    """Build the columns of an action from the slot values and the constants of its template."""
    columns: ActionColumns = {}
    for path, leaf in template.leaves.items():
        kind = field_kind_at(template, path)
        if kind is not None and leaf != TemplateConstant(None) and _has_column(kind, path):
            kind = FieldKind.INT if kind is FieldKind.STATS and is_count_path(path) else kind
            columns[".".join(path[1:])] = _to_column(kind, leaf, values, count, pool)
    for path, (start, stop) in template.spans.items():
        parts = template.parts[start:stop]
        if field_kind_at(template, path) is FieldKind.STATS:
            parts = [p.replace('\\"', '"') if isinstance(p, str) else p for p in parts]
        columns[path[1]] = _join_parts(parts, values, count, pool)
    return columns


def _has_column(kind: FieldKind, path: JsonPath) -> bool:
    """Return whether a scalar has a column of its own, beside the JSON text of its field."""
    if kind is FieldKind.STATS and len(path) > 2:
        return is_count_path(path) or (len(path) == 4 and path[2] in STATS_MAPS)
    return kind is not FieldKind.JSON


def _repeat_int(number: int, count: int, pool: pa.MemoryPool | None) -> pa.Array:
    """Repeat an integer; raises `TemplateMismatch` if it does not fit 64 bits."""
    try:
        return pa.repeat(make_scalar(number, pa.int64()), count, memory_pool=pool)
    except (pa.ArrowInvalid, OverflowError, ValueError):
        raise TemplateMismatch from None


def _to_column(
    kind: FieldKind, leaf: TemplateLeaf, values: SlotValues, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    """Build the column of one scalar; raises `TemplateMismatch` if its type does not fit."""
    if isinstance(leaf, TemplateSlot):
        if kind is FieldKind.INT and not pa.types.is_integer(values[leaf].type):
            raise TemplateMismatch
        value = values[leaf] if kind is FieldKind.INT else _to_string(values[leaf], pool)
        return value.dictionary_encode() if kind is FieldKind.WORD else value
    if kind is FieldKind.BOOL:
        return repeat_bool(leaf.value is True, count)
    if kind is FieldKind.INT:
        return _repeat_int(int(str(leaf.value)), count, pool)
    text = str(leaf.value).lower() if isinstance(leaf.value, bool) else str(leaf.value)
    if kind is FieldKind.WORD:
        return pa.DictionaryArray.from_arrays(
            pa.repeat(make_scalar(0, pa.int32()), count), make_array([text], pa.string())
        )
    return pa.repeat(make_scalar(text, pa.string()), count, memory_pool=pool)
