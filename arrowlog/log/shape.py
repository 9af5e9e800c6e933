"""Decode many JSON lines at once by the shape they share.

Lines of a log come from a program, so thousands of them differ only in a few values. Take one
line apart: its *shape* is the line with the values left out. Then, for a whole buffer of lines:

1. cut every line at its commas, which a CSV parser does several times faster than any JSON parser
   reads it; between two commas stands constant text, or constant text round one value;
2. compare the constant text of every line, byte for byte, with the shape;
3. count quotation marks, backslashes and control characters in the buffer: if there are only those
   of the shape, then no value has one in it.

What passes *is* the shape with those values: nothing else about the line needs parsing, and nothing
is taken on trust. Lines that do not pass are handed back, to have their own shape taken or to be
read one by one.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from arrowlog.log.actions import ALIASES, FIELDS, REQUIRED, STATS_MAPS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

Path = tuple[str, ...]
Columns = dict[str, Any]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')
# The default pool gives memory back to the system too eagerly: page faults cost 170 ms in 600 here.
_POOL = pa.system_memory_pool()
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_WIDTH_MAX = 20_000
_BLOCK = 1 << 20
_MARKS = (b'"', b"\\")
_ACTIONS = {*FIELDS, "protocol", "metaData"}
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a shape where lines differ; `index` tells one from the other."""

    index: int
    number: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that all lines of a shape have; a number as its text."""

    value: str | bool | None
    number: bool = False


Leaf = Slot | Fixed
Values = dict[Slot, pa.ChunkedArray]


@dataclass(slots=True)
class Shape:
    """A line with its values left out.

    `parts` is the line as constant texts and slots. `leaves` says which field a slot is, and the
    value of fields that are the same in all lines. `spans` are the parts that hold a field's JSON
    text.
    """

    action: str = ""
    parts: list[str | Slot] = field(default_factory=list)
    leaves: dict[Path, Leaf] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def slots(self) -> list[Slot]:
        """The places where lines differ, in order."""
        return [part for part in self.parts if isinstance(part, Slot)]


class _Odd(Exception):
    """This line has no shape that can be shared."""


def shape_of(line: str, samples: Sequence[str] = ()) -> Shape | None:
    """The shape of one line, or None if it has to be decoded by itself.

    `line` must be known to be valid; what is odd about it is for the line decoder to judge.
    Values that are the same in all `samples` become part of the shape: most statistics of most
    files are no news, and what is not a slot costs nothing. A wrong guess only costs time.
    """
    shape = Shape()
    try:
        known = json.loads(line, object_pairs_hook=_no_duplicates)
        actions = [key for key in known if ALIASES.get(key, key) in _ACTIONS]
        if len(actions) > 1 or line.count(",") > _WIDTH_MAX:
            return None
        shape.action = ALIASES.get(actions[0], actions[0]) if actions else ""
        if shape.action in ("protocol", "metaData"):
            return None
        _walk(shape, line, (), nested=False)
        _check(shape)
        if len(_fields(shape)) != line.count(",") + 1:
            return None  # a value has a comma in it, or two values share a field
    except (_Odd, ValueError, RecursionError):
        return None
    if samples:
        _fix(shape, line, samples)
    return shape


def _fix(shape: Shape, line: str, samples: Sequence[str]) -> None:
    """Make the values that do not differ among the samples part of the shape."""
    pieces = line.split(",")
    others = [other for other in (text.split(",") for text in samples) if len(other) == len(pieces)]
    fixed: dict[Slot, str] = {}
    for item, piece, *rest in zip(_fields(shape), pieces, *others, strict=True):
        if item.slot is not None and rest and all(other == piece for other in rest):
            fixed[item.slot] = piece[len(item.before) : len(piece) - len(item.after)]
    shape.parts = [fixed.get(p, p) if isinstance(p, Slot) else p for p in shape.parts]
    shape.leaves = {
        path: Fixed(fixed[leaf], leaf.number) if isinstance(leaf, Slot) and leaf in fixed else leaf
        for path, leaf in shape.leaves.items()
    }


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Odd
    return found


def _walk(shape: Shape, text: str, base: Path, *, nested: bool) -> None:
    """Append `text` to the shape, leaving its values out; `base` is where in the line it stands."""
    stack: list[Path | None] = []  # the path of each open object; None within an array
    key: str | None = None
    for token in _TOKEN.findall(text):
        inside = stack[-1] if stack else base
        first = token[0]
        if first == '"' and stack and inside is not None and key is None:
            key = json.loads(token)
            _constant(shape, token, nested=nested)
        elif first in "{[":
            path = inside if inside is None or key is None else (*inside, key)
            _begin(shape, path, len(stack), nested=nested)
            stack.append(None if first == "[" else path)
            key = None
            _constant(shape, token, nested=nested)
        elif first in "}]":
            stack.pop()
            key = None
            _constant(shape, token, nested=nested)
            _end(shape, len(stack), nested=nested)
        elif first in ",:" or first.isspace():
            key = None if first == "," else key
            _constant(shape, token, nested=nested)
        elif inside is None:
            _constant(shape, token, nested=nested)
        else:
            _value(shape, token, inside if key is None else (*inside, key), nested=nested)


def _begin(shape: Shape, path: Path | None, depth: int, *, nested: bool) -> None:
    """Note where the JSON text of a field begins: an object or array, two levels down."""
    if depth == 2 and not nested and path is not None:
        if _kind(shape, path) in (Kind.JSON, Kind.STATS):
            shape.parts.append("")
            shape.spans[path] = (len(shape.parts) - 1, -1)
        elif _kind(shape, path) not in (Kind.FLAT, None):
            raise _Odd


def _end(shape: Shape, depth: int, *, nested: bool) -> None:
    """Note where it ends."""
    if depth == 2 and not nested:
        for path, (start, stop) in shape.spans.items():
            if stop < 0:
                shape.spans[path] = (start, len(shape.parts))
                shape.parts.append("")


def _kind(shape: Shape, path: Path) -> Kind | None:
    """The kind of the field that a path leads to or into; None if nobody knows it."""
    if len(path) < 2 or ALIASES.get(path[0], path[0]) != shape.action:
        return None
    return FIELDS.get(shape.action, {}).get(path[1])


def _constant(shape: Shape, text: str, *, nested: bool) -> None:
    text = text.replace('"', '\\"') if nested else text
    if shape.parts and isinstance(shape.parts[-1], str):
        shape.parts[-1] += text
    else:
        shape.parts.append(text)


def _value(shape: Shape, token: str, path: Path, *, nested: bool) -> None:
    if token[0] == '"' and "\\" not in token:
        _constant(shape, '"', nested=nested)
        _slot(shape, path, number=False)
        _constant(shape, '"', nested=nested)
    elif token[0] == '"' and _kind(shape, path) is Kind.STATS and not nested:
        _stats(shape, token, path)
    elif token[0] == '"':
        shape.leaves[path] = Fixed(json.loads(token))
        _constant(shape, token, nested=nested)
    elif token in _WORDS:
        shape.leaves[path] = Fixed(_WORDS[token])
        _constant(shape, token, nested=nested)
    else:
        _slot(shape, path, number=True)


def _slot(shape: Shape, path: Path, *, number: bool) -> None:
    slot = Slot(len(shape.parts), number)
    shape.leaves[path] = slot
    shape.parts.append(slot)


def _stats(shape: Shape, token: str, path: Path) -> None:
    """Statistics are JSON inside a JSON string: take them apart too, one level of escapes down."""
    inner = json.loads(token)
    if token[1:-1] != inner.replace('"', '\\"') or not inner.startswith("{"):
        raise _Odd
    json.loads(inner, object_pairs_hook=_no_duplicates)
    _constant(shape, '"', nested=False)
    shape.parts.append("")
    start = len(shape.parts) - 1
    _walk(shape, inner, path, nested=True)
    shape.spans[path] = (start, len(shape.parts))
    shape.parts.append("")
    _constant(shape, '"', nested=False)


def _check(shape: Shape) -> None:
    """Refuse a shape whose fields are not of their kind; the line decoder says what is wrong."""
    have = {path[1] for path in shape.spans}
    for path, leaf in shape.leaves.items():
        kind = _kind(shape, path)
        if kind is None or leaf == Fixed(None):
            continue
        have.add(path[1])
        text = not leaf.number and not (isinstance(leaf, Fixed) and isinstance(leaf.value, bool))
        right = {
            Kind.TEXT: text and len(path) == 2,
            Kind.WORD: text and len(path) == 2,
            Kind.INT: leaf.number and len(path) == 2,
            Kind.BOOL: isinstance(leaf, Fixed) and not text and len(path) == 2,
            Kind.FLAT: len(path) == 3,
            Kind.JSON: len(path) > 2,
            Kind.STATS: leaf.number if _is_count(path) else len(path) > 2 or text,
        }
        if not right[kind]:
            raise _Odd
    if not have.issuperset(REQUIRED.get(shape.action, ())):
        raise _Odd


@dataclass(frozen=True, slots=True)
class Match:
    """What a shape made of a buffer: columns for the lines in `rows`, and the lines that differ.

    `rows` is None if all lines match.
    """

    columns: Columns
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

    def marks(self, mark: bytes) -> int:
        """How often a character stands in the buffer."""
        return int((octets(self.data) == mark[0]).sum())

    def clean(self) -> bool:
        """Whether there are no control characters but line feeds, and those at the line ends."""
        return int((octets(self.data) < 32).sum()) == self.count


def octets(data: bytes | bytearray | memoryview) -> pl.Series:
    """The bytes as numbers, without a copy."""
    array = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pl.Series(pl.from_arrow(array))


@dataclass(frozen=True, slots=True)
class _Field:
    """What stands between two commas of a line: constant text, with at most one slot in it."""

    before: str
    slot: Slot | None = None
    after: str = ""


def _fields(shape: Shape) -> list[_Field]:
    """The parts of a shape, cut at its commas."""
    fields: list[_Field] = []
    before, slot, after = "", None, ""
    for part in shape.parts:
        if isinstance(part, Slot):
            slot = part
            continue
        first, *rest = part.split(",")
        before, after = (before + first, after) if slot is None else (before, after + first)
        for text in rest:
            fields.append(_Field(before, slot, after))
            before, slot, after = text, None, ""
    fields.append(_Field(before, slot, after))
    return fields


def match(lines: Lines, shape: Shape, pool: Executor | None = None) -> Match | None:
    """Columns of every line that has this shape; None if the lines must be looked at one by one.

    With a pool, the work is spread over its threads; then a line with more or fewer commas than the
    shape cannot be located, and the answer is None too: ask again without.
    """
    fields = _fields(shape)
    marks = [pool.submit(lines.marks, mark) for mark in _MARKS] if pool is not None else []
    plain = octets(lines.data).max() < 128
    if not plain and not _is_utf8(lines.data):
        return None
    cuts, skipped = _cut(lines, len(fields), numbered=pool is None)
    if len(cuts[0]) + len(skipped) != lines.count or (pool is not None and skipped):
        return None
    texts = lines.texts() if skipped else []
    odd = [(row, texts[row]) for row in skipped]
    spread = map if pool is None else pool.map
    checked = list(spread(_check_field, fields, cuts))
    values = {
        item.slot: value for item, (value, _) in zip(fields, checked, strict=True) if item.slot
    }
    wrong = [failed for _, fails in checked for failed in fails]
    counts = [mark.result() for mark in marks] or [lines.marks(mark) for mark in _MARKS]
    others = b"".join(text for _, text in odd)
    constant = "".join(part for part in shape.parts if isinstance(part, str)).encode()
    for mark, count in zip(_MARKS, counts, strict=True):
        known = constant.count(mark) * (lines.count - len(odd)) + others.count(mark)
        if wrong or count != known:
            wrong += [
                pl.Series(pl.from_arrow(pc.match_substring(value, mark)))
                for value in values.values()
                if pa.types.is_string(value.type)
            ]
    try:
        return _matched(lines, shape, values, odd, wrong)
    except _Odd:  # a field that must be an integer is not, in some line
        return None


Failed = list[pl.Series]


def _check_field(item: _Field, cut: pa.ChunkedArray) -> tuple[Any, Failed]:
    """The values of a slot, and in which lines its field is not as the shape has it."""
    failed: Failed = []
    if item.slot is None:
        _unless(pc.equal(cut, item.before.encode()), failed)
        return None, failed
    value = _between(cut, item.before.encode(), item.after.encode(), failed)
    return (_number(value, failed) if item.slot.number else value), failed


def _unless(right: pa.ChunkedArray, failed: Failed) -> None:
    if pc.all(right).as_py() is False:
        failed.append(~pl.Series(pl.from_arrow(right)))


def _between(cut: pa.ChunkedArray, start: bytes, stop: bytes, failed: Failed) -> pa.ChunkedArray:
    """What stands between two constant texts."""
    _unless(pc.starts_with(cut, start), failed)
    if stop:
        _unless(pc.ends_with(cut, stop), failed)
        value = pc.binary_slice(cut, len(start), -len(stop), memory_pool=_POOL)
    else:  # an open end makes binary_slice ask for a negative amount of memory
        value = pc.binary_replace_slice(cut, 0, len(start), b"", memory_pool=_POOL)
    if _total(value) + len(cut) * len(start + stop) != _total(cut):  # the two overlap somewhere
        _unless(pc.greater_equal(pc.binary_length(cut), len(start + stop)), failed)
    return _as(pa.string(), value)


def _as(kind: pa.DataType, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as binary or the other way round, without looking at it."""
    return pa.chunked_array([chunk.view(kind) for chunk in texts.chunks], kind)


def _total(texts: pa.ChunkedArray) -> int:
    """Bytes in all texts together."""
    total = 0
    for chunk in texts.chunks:
        offsets = pa.Array.from_buffers(
            pa.int32(), len(chunk) + 1, [None, chunk.buffers()[1]], offset=chunk.offset
        )
        total += offsets[len(chunk)].as_py() - offsets[0].as_py()
    return total


def _number(text: pa.ChunkedArray, failed: Failed) -> pa.ChunkedArray:
    """Check that the text is a JSON number, and read it if it is an integer.

    An integer is checked by writing it again: 007, 0x7 and -0 come out different.
    """
    try:
        number = pc.cast(text, pa.int64(), memory_pool=_POOL)
    except pa.ArrowInvalid:
        _unless(pc.match_substring_regex(text, _NUMBER), failed)
        return text
    again = pc.cast(number, pa.string(), memory_pool=_POOL)
    if not again.equals(text):
        _unless(pc.equal(again, text), failed)
    return number


def _matched(
    lines: Lines, shape: Shape, values: Values, odd: list[tuple[int, bytes]], failed: Failed
) -> Match:
    if not odd and not failed:
        return Match(_columns(shape, values, lines.count))
    rows = pl.int_range(lines.count, dtype=pl.Int64, eager=True)
    if odd:
        rows = rows.filter(~rows.is_in([row for row, _ in odd]))
    if failed:
        wrong = failed[0]
        for more in failed[1:]:
            wrong = wrong | more
        if wrong.any():
            texts = lines.texts()
            odd = sorted(odd + [(row, texts[row]) for row in rows.filter(wrong).to_list()])
        rows = rows.filter(~wrong)
        right = (~wrong).to_arrow()
        values = {slot: value.filter(right) for slot, value in values.items()}
    return Match(_columns(shape, values, rows.len()), rows, odd)


def _is_utf8(data: bytes | memoryview) -> bool:
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])
    try:
        pc.cast(whole, pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _cut(lines: Lines, width: int, *, numbered: bool) -> tuple[list[pa.ChunkedArray], list[int]]:
    """Cut every line at its commas; say which lines have more or fewer of them than expected."""
    odd: list[int] = []

    def skip(row: Any) -> str:
        odd.append(row.number - 1 if numbered else 0)
        return "skip"

    names = [str(i) for i in range(width)]
    table = csv.read_csv(
        pa.BufferReader(pa.py_buffer(lines.data)),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=not numbered, block_size=_block(lines)
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
        memory_pool=_POOL,
    )
    return table.columns, odd


def _block(lines: Lines) -> int:
    """Bytes to cut at a time: what fits a cache, unless lines are longer than that."""
    mean = len(lines.data) // max(lines.count, 1)
    return min(max(_BLOCK, 64 * mean), len(lines.data) + 1)


def _join(parts: Sequence[str | Slot], values: Values, count: int) -> pa.Array:
    """Put the parts of each line together."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(pc.cast(values[part], pa.string()) if isinstance(part, Slot) else part)
    if len(merged) == 1 and isinstance(merged[0], str):
        return pa.repeat(merged[0], count)
    return pc.binary_join_element_wise(*merged, "", memory_pool=_POOL)


def _columns(shape: Shape, values: Values, count: int) -> Columns:
    """The columns of an action, from the values of its slots and the constants of its shape."""
    columns: Columns = {}
    for path, leaf in shape.leaves.items():
        kind = _kind(shape, path)
        if kind is not None and leaf != Fixed(None) and _has_column(kind, path):
            kind = Kind.INT if kind is Kind.STATS and _is_count(path) else kind
            columns[".".join(path[1:])] = _column(kind, leaf, values, count)
    for path, (start, stop) in shape.spans.items():
        parts = shape.parts[start:stop]
        if _kind(shape, path) is Kind.STATS:
            parts = [p.replace('\\"', '"') if isinstance(p, str) else p for p in parts]
        columns[path[1]] = _join(parts, values, count)
    return columns


def _has_column(kind: Kind, path: Path) -> bool:
    if kind is Kind.STATS and len(path) > 2:
        return _is_count(path) or (len(path) == 4 and path[2] in STATS_MAPS)
    return kind is not Kind.JSON


def _is_count(path: Path) -> bool:
    """Whether a leaf of statistics is a number of rows."""
    return path[2:] == ("numRecords",) or (len(path) == 4 and path[2] == "nullCount")


def _repeat(number: int, count: int) -> pa.Array:
    try:
        return pa.repeat(pa.scalar(number, pa.int64()), count)
    except (pa.ArrowInvalid, OverflowError, ValueError):
        raise _Odd from None


def _column(kind: Kind, leaf: Leaf, values: Values, count: int) -> pa.Array:
    if isinstance(leaf, Slot):
        if kind is Kind.INT and not pa.types.is_integer(values[leaf].type):
            raise _Odd
        value = values[leaf] if kind is Kind.INT else pc.cast(values[leaf], pa.string())
        return value.dictionary_encode() if kind is Kind.WORD else value
    if kind is Kind.BOOL:
        return pa.repeat(leaf.value, count)
    if kind is Kind.INT:
        return _repeat(int(str(leaf.value)), count)
    text = str(leaf.value).lower() if isinstance(leaf.value, bool) else leaf.value
    if kind is Kind.WORD:
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [text])
    return pa.repeat(text, count)
