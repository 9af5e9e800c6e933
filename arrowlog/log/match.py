"""Decode all lines that share a shape, as columns, and prove each of them.

For a buffer of lines:

1. cut every line at its commas, which a CSV parser does several times faster than any JSON parser
   reads it; between two commas stands constant text, or constant text round one value;
2. compare the constant text of every line, byte for byte, with the shape;
3. look for quotation marks, backslashes and control characters in the values; there may be none;
4. count the bytes: all of them are in a field, or are the comma or line feed behind it.

What passes *is* the shape with those values: nothing else about the line needs parsing, and nothing
is taken on trust. Lines that do not pass are handed back, to have their own shape taken or to be
read one by one. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from arrowlog.fork_safety import pl
from arrowlog.log.actions import STATS_MAPS, Kind
from arrowlog.log.arrays import array_of, flags, octets, scalar, span_of
from arrowlog.log.shape import Fixed, Odd, Slot, fields_of, is_count, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.log.shape import Field, Leaf, Path, Shape

Columns = dict[str, Any]
Values = dict[Slot | None, pa.ChunkedArray]

# A piece costs 2 ms whatever its size, and memory for a few times its size in every thread.
PIECE = 16 << 20
_BLOCK = 1 << 19
_MARKS = b'"\\'
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class Match:
    """What a shape made of `count` lines: columns for those in `rows`, and the lines that differ.

    `rows` is None if all lines match.
    """

    columns: Columns
    count: int
    rows: pl.Series | None = None
    odd: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """A buffer of `count` whole lines, each ended by a line feed."""

    data: bytes | memoryview
    count: int

    @classmethod
    def join(cls, texts: Sequence[bytes]) -> Lines:
        """Lines that came out of another buffer."""
        return cls(b"\n".join([*texts, b""]), len(texts))

    def texts(self) -> list[bytes]:
        """Each line by itself, without its line feed."""
        return bytes(self.data).split(b"\n")[: self.count]

    def pieces(self) -> list[bytes | memoryview]:
        """The buffer in pieces of whole lines, each small enough to stay in a cache."""
        found, start = [], 0
        while start < len(self.data):
            stop = _line_end(self.data, start + PIECE)
            found.append(self.data[start:stop])
            start = stop
        return found


def _line_end(data: bytes | memoryview, position: int) -> int:
    """Where the line ends that goes over a position."""
    reach = 1 << 12
    while position < len(data):
        found = bytes(data[position : position + reach]).find(b"\n")
        if found >= 0:
            return position + found + 1
        position += reach
    return len(data)


def match(data: bytes | memoryview, shape: Shape, pool: pa.MemoryPool | None = None) -> Match:
    """Columns of every line in a piece that has this shape; the others as they are.

    Whoever puts pieces together must compare the sum of `count` with the number of line feeds: a
    carriage return would end a line here, and shows there.
    """
    fields = fields_of(shape)
    try:
        cuts, odd = _cut(data, len(fields), pool)
        rows = len(cuts[0])
        checked = [_check_field(item, cuts.pop(0), pool) for item in fields]  # pop: free it
        values = {item.slot: found.value for item, found in zip(fields, checked, strict=True)}
        _check_texts(values, checked[0], pool)
        failed = [wrong for found in checked for wrong in found.failed]
        if odd or failed:
            _check_ends(data, rows + len(odd))
        elif sum(found.size for found in checked) + rows * len(fields) != len(data):
            raise Odd  # bytes that are in no field: a carriage return, a byte order mark
        return _matched(data, shape, values, rows, odd, failed, pool)
    except (Odd, pa.ArrowInvalid, UnicodeDecodeError):  # the line decoder says what it is
        texts = bytes(data).split(b"\n")[:-1]
        return Match({}, len(texts), pl.Series([], dtype=pl.Int64), list(enumerate(texts)))


def together(found: Sequence[Match], count: int) -> Match | None:
    """The pieces of a buffer of `count` lines as one; None if nothing in them has the shape."""
    right = [piece for piece in found if piece.columns]
    if not right or sum(piece.count for piece in found) != count:
        return None
    columns = {
        name: pa.chunked_array([chunk for piece in right for chunk in _chunks(piece.columns[name])])
        for name in right[0].columns
    }
    if all(piece.rows is None for piece in found):
        return Match(columns, count)
    rows: list[pl.Series] = []
    odd: list[tuple[int, bytes]] = []
    start = 0
    for piece in found:
        own = piece.rows
        if own is None:
            own = pl.int_range(piece.count, dtype=pl.Int64, eager=True)
        rows.append(own + start)
        odd += [(row + start, text) for row, text in piece.odd]
        start += piece.count
    return Match(columns, count, pl.concat(rows), odd)


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _check_ends(data: bytes | memoryview, count: int) -> None:
    """Refuse a piece in which something else than a line feed ends a line, or stands in one.

    A byte order mark at the start is refused too: the parser would pass over it.
    """
    all_octets = octets(data)
    if (all_octets < 32).sum() != count or (all_octets == 10).sum() != count:
        raise Odd
    if bytes(data[:3]) == b"\xef\xbb\xbf":
        raise Odd


Failed = list[pl.Series]


@dataclass(slots=True)
class _Checked:
    """A field of all lines: its bytes together, a slot's values, and in which lines it is wrong."""

    size: int = 0
    value: Any = None
    failed: Failed = field(default_factory=list)

    def unless(self, right: pa.ChunkedArray) -> None:
        """Note the lines in which something is not right."""
        if _true(right) != len(right):
            self.failed.append(~pl.Series(pl.from_arrow(right)))


def _true(right: pa.ChunkedArray) -> int:
    return sum(chunk.true_count for chunk in right.chunks)


def _check_field(item: Field, cut: pa.ChunkedArray, pool: pa.MemoryPool | None) -> _Checked:
    """The values of a slot, and in which lines its field is not as the shape has it."""
    found = _Checked(_size(cut))
    before, after = item.before.encode(), item.after.encode()
    if item.slot is None:
        found.unless(pc.equal(cut, scalar(before, cut.type)))
        return found
    found.unless(pc.starts_with(cut, before))
    if after:
        found.unless(pc.ends_with(cut, after))
        value = pc.binary_slice(cut, len(before), -len(after), memory_pool=pool)
    else:  # an open end makes binary_slice ask for a negative amount of memory
        value = pc.binary_replace_slice(cut, 0, len(before), b"", memory_pool=pool)
    if _size(value) + len(cut) * len(before + after) != found.size:  # the two overlap somewhere
        found.unless(
            pc.greater_equal(pc.binary_length(cut), scalar(len(before + after), pa.int32()))
        )
    found.value = _check_number(found, value, pool) if item.slot.number else value
    return found


def _as_text(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as text, without looking at them."""
    return pa.chunked_array([chunk.view(pa.string()) for chunk in texts.chunks], pa.string())


def _size(texts: pa.ChunkedArray) -> int:
    """Bytes in all texts together."""
    return sum(stop - start for start, stop in map(span_of, texts.chunks))


def octets_of(texts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """All bytes of the texts, as numbers."""
    parts = []
    for chunk in (chunk for column in texts for chunk in column.chunks):
        start, stop = span_of(chunk)
        buffers = [None, chunk.buffers()[2]]
        parts.append(pa.Array.from_buffers(pa.uint8(), stop - start, buffers, offset=start))
    return pa.chunked_array(parts, pa.uint8())


def _check_texts(values: Values, found: _Checked, pool: pa.MemoryPool | None) -> None:
    """Text must stand for itself: no quotation marks, escapes or control characters; and be UTF-8.

    All slots at once: a call costs as much as a hundred kilobytes of looking.
    """
    texts = [slot for slot in values if slot is not None and not slot.number]
    all_octets = octets_of([values[slot] for slot in texts])
    bounds = pc.min_max(all_octets)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and low < 32:
        raise Odd
    for mark in _MARKS:
        if low is not None and low <= mark <= high and _has(all_octets, mark, pool):
            for slot in texts:
                found.unless(pc.invert(pc.match_substring(values[slot], bytes([mark]))))
    plain = low is None or high < 128
    for slot in texts:
        values[slot] = _as_text(values[slot]) if plain else pc.cast(values[slot], pa.string())


def _has(all_octets: pa.ChunkedArray, mark: int, pool: pa.MemoryPool | None) -> bool:
    """Whether a byte is there.

    The minimum of an exclusive or takes a tenth of what a comparison in pyarrow takes; polars wakes
    its own threads for it, which costs the threads here more than it saves.
    """
    differ = pc.bit_wise_xor(all_octets, scalar(mark, pa.uint8()), memory_pool=pool)
    return bool(pc.min(differ).as_py() == 0)


def _check_number(
    found: _Checked, value: pa.ChunkedArray, pool: pa.MemoryPool | None
) -> pa.ChunkedArray:
    """Check that the text is a JSON number, and read it if it is an integer.

    An integer is checked by writing it again: 007, 0x7 and -0 come out different.
    """
    text = _as_text(value)
    try:
        number = pc.cast(text, pa.int64(), memory_pool=pool)
    except pa.ArrowInvalid:
        found.unless(pc.match_substring_regex(text, _NUMBER))
        return text
    if not _same_width(text, number):
        again = pc.cast(number, pa.string())
        if not again.equals(text):
            found.unless(pc.equal(again, text))
    return number


def _same_width(text: pa.ChunkedArray, number: pa.ChunkedArray) -> bool:
    """Whether these are digits and nothing else, and as many in every text as the numbers need.

    Sizes and times mostly are; then nothing need be written again, which takes three times as long.
    No text can be shorter than its number, so if the sum is right, each of them is.
    """
    numbers, letters = pc.min_max(number), pc.min_max(octets_of([text]))
    low, high = numbers["min"].as_py(), numbers["max"].as_py()
    if low is None or letters["min"].as_py() < 48 or letters["max"].as_py() > 57:
        return False
    width = len(str(low))
    return width == len(str(high)) and _size(text) == width * len(text)


def _matched(
    data: bytes | memoryview,
    shape: Shape,
    values: Values,
    count: int,
    odd: list[tuple[int, bytes]],
    failed: Failed,
    pool: pa.MemoryPool | None,
) -> Match:
    if not odd and not failed:
        return Match(_columns(shape, values, count, pool), count)
    total = count + len(odd)
    rows = pl.int_range(total, dtype=pl.Int64, eager=True)
    if odd:
        strange = array_of([row for row, _ in odd], pa.int64())
        plain = pc.invert(pc.is_in(rows.to_arrow(), value_set=strange))
        rows = rows.filter(pl.Series(pl.from_arrow(plain)))
    if failed:
        wrong = failed[0]
        for more in failed[1:]:
            wrong = wrong | more
        texts = bytes(data).split(b"\n")
        odd = sorted(odd + [(row, texts[row]) for row in rows.filter(wrong).to_list()])
        rows = rows.filter(~wrong)
        right = (~wrong).to_arrow()
        values = {slot: value.filter(right) for slot, value in values.items() if slot}
    columns = _columns(shape, values, rows.len(), pool) if rows.len() else {}
    return Match(columns, total, rows, odd)


def _cut(
    data: bytes | memoryview, width: int, pool: pa.MemoryPool | None
) -> tuple[list[pa.ChunkedArray], list[tuple[int, bytes]]]:
    """Cut every line at its commas; hand back the lines that have more or fewer of them."""
    odd: list[tuple[int, bytes]] = []

    def skip(row: Any) -> str:
        odd.append((row.number - 1, row.text.encode()))
        return "skip"

    try:
        return _parse(data, width, pool), odd
    except pa.ArrowInvalid:  # there are such lines
        bytes(data).decode()  # pyarrow cannot hand back what is not UTF-8
        return _parse(data, width, pool, skip), odd


def _parse(
    data: bytes | memoryview, width: int, pool: pa.MemoryPool | None, skip: Any = None
) -> list[pa.ChunkedArray]:
    names = [str(i) for i in range(width)]
    table = csv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=_block(data)
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


def _block(data: bytes | memoryview) -> int:
    """Bytes to cut at a time: what fits a cache, unless lines are longer than that."""
    first = _line_end(data, 0)
    return min(max(_BLOCK, 64 * first), len(data) + 1)


def _join(
    parts: Sequence[str | Slot], values: Values, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    """Put the parts of each line together."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(_string(values[part], pool) if isinstance(part, Slot) else part)
    if len(merged) == 1 and isinstance(merged[0], str):
        return pa.repeat(scalar(merged[0], pa.string()), count, memory_pool=pool)
    texts = [scalar(p, pa.string()) if isinstance(p, str) else p for p in (*merged, "")]
    return pc.binary_join_element_wise(*texts, memory_pool=pool)


def _string(value: pa.ChunkedArray, pool: pa.MemoryPool | None) -> pa.ChunkedArray:
    return value if value.type == pa.string() else pc.cast(value, pa.string(), memory_pool=pool)


def _columns(shape: Shape, values: Values, count: int, pool: pa.MemoryPool | None) -> Columns:
    """The columns of an action, from the values of its slots and the constants of its shape."""
    columns: Columns = {}
    for path, leaf in shape.leaves.items():
        kind = kind_of(shape, path)
        if kind is not None and leaf != Fixed(None) and _has_column(kind, path):
            kind = Kind.INT if kind is Kind.STATS and is_count(path) else kind
            columns[".".join(path[1:])] = _column(kind, leaf, values, count, pool)
    for path, (start, stop) in shape.spans.items():
        parts = shape.parts[start:stop]
        if kind_of(shape, path) is Kind.STATS:
            parts = [p.replace('\\"', '"') if isinstance(p, str) else p for p in parts]
        columns[path[1]] = _join(parts, values, count, pool)
    return columns


def _has_column(kind: Kind, path: Path) -> bool:
    if kind is Kind.STATS and len(path) > 2:
        return is_count(path) or (len(path) == 4 and path[2] in STATS_MAPS)
    return kind is not Kind.JSON


def _repeat(number: int, count: int, pool: pa.MemoryPool | None) -> pa.Array:
    try:
        return pa.repeat(scalar(number, pa.int64()), count, memory_pool=pool)
    except (pa.ArrowInvalid, OverflowError, ValueError):
        raise Odd from None


def _column(
    kind: Kind, leaf: Leaf, values: Values, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    if isinstance(leaf, Slot):
        if kind is Kind.INT and not pa.types.is_integer(values[leaf].type):
            raise Odd
        value = values[leaf] if kind is Kind.INT else _string(values[leaf], pool)
        return value.dictionary_encode() if kind is Kind.WORD else value
    if kind is Kind.BOOL:
        return flags(leaf.value is True, count)
    if kind is Kind.INT:
        return _repeat(int(str(leaf.value)), count, pool)
    text = str(leaf.value).lower() if isinstance(leaf.value, bool) else str(leaf.value)
    if kind is Kind.WORD:
        return pa.DictionaryArray.from_arrays(
            pa.repeat(scalar(0, pa.int32()), count), array_of([text], pa.string())
        )
    return pa.repeat(scalar(text, pa.string()), count, memory_pool=pool)
