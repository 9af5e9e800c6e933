"""The schema decoder: decode lines that have the same fields in any order, some of them left out.

The lines of some writers share no template: their fields have no fixed order, and optional fields
come and go. Arrow's JSON reader decodes such lines into columns if it is told all fields and their
types. They are learned from a sample of the lines. The reader rejects a block of lines if one of
them has a field that is not known, a field twice, or a value of another type. A rejected block is
halved, and halved again; the fields of a small one are learned from all its lines. Lines that are
rejected after that are left to the row decoder (`arrowlog.decode.row_decoder`).

The reader is stricter than JSON in that, and more lenient in other respects, which are checked
here. It decodes only lines that begin like an action and end with a brace, in valid UTF-8 and
without control characters. Between the `}` that ends a line and the `{` that begins the next, JSON
would need a comma, so every line feed is between two objects; if there are as many objects as
lines, each line is one object. Of what the row decoder keeps as JSON text, only flat objects and
arrays are decoded here, because their text is found again in the line, byte for byte. Pure: no I/O,
no clock.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from arrowlog.arrays import (
    concat_bytes,
    data_span,
    from_numpy,
    make_array,
    make_scalar,
    repeat_bool,
    to_numpy,
)
from arrowlog.decode.line_splitter import (
    count_control_characters,
    cut_lines,
    find_octets,
)
from arrowlog.decode.row_decoder import JSON_ERRORS, parse_counts
from arrowlog.fork_safety import pl
from arrowlog.formats import STATS_COUNTS, STATS_MAPS, FieldKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from arrowlog.formats import ActionFields

# Lines that are sampled before the first block is read.
_NUM_SAMPLES = 32
# All lines of a rejected block of this size are sampled as well.
_LEARNED_BLOCK_LINES = 128
# From so many rejected blocks on that are not halved, the reader gives up if it rejects most lines.
_REJECTED_BLOCKS_MAX = 8
# After so many rejected reads, each of which has a fixed cost, blocks are not halved any more.
_REJECTED_READS_MAX = 256
# Every field of the schema costs time in every line, even where it is absent: more than so many
# times the fields of a line are not worth it.
_FIELDS_PER_LINE_FIELD = 4
# Bytes that the reader processes at a time, so that they stay in the CPU cache.
_READ_BYTES = 1 << 20
_READER_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowKeyError,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
)
_CONTROL_CHARACTERS = r"[\x00-\x09\x0b-\x1f]"
# A JSON number behind a colon, and the text that makes a string of it. Inside a string, the added
# quotation mark would end that string in front of a digit, so the text would not be JSON any more.
_NUMBER = r"(:\s*)(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(\s*[,}\]])"
_QUOTED_NUMBER = r'\1"\2"\3'

# What is known of a JSON value: a dict with the members of an object; a list with one item, for
# all elements of an array; str, float (for any number) or bool; None for null.
Shape = Any
# By action or field: the shape of its values, the number of samples and of fields in them.
LearnedShapes = dict[str, tuple[Shape, int, int]]
_DOUBLE = pa.float64()
_SCALARS = (str, int, float, bool, type(None))
_LEAF_TYPES: dict[Any, pa.DataType] = {str: pa.string(), bool: pa.bool_(), None: pa.null()}
_EMPTY, _LINE_FEED = make_array([b"", b"\n"], pa.binary())
_ONE = make_scalar(1, pa.int32())
_COLON = ord(":")


class _RejectedError(Exception):
    """Lines that have to be left to the row decoder."""


@dataclass(frozen=True, slots=True)
class SchemaMatch:
    """Decoded lines of one action: their indexes, and the columns of the action's table."""

    action: str
    rows: pa.Array
    columns: dict[str, pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class LeftLines:
    """Lines that were not decoded: their number, indexes and texts, each with its line feed."""

    num_lines: int
    rows: pa.Array
    texts: pa.Array


def decode_by_schema(
    data: bytes | memoryview,
    fields: ActionFields,
    min_lines: int = 1,
    pool: pa.MemoryPool | None = None,
    learned: LearnedShapes | None = None,
) -> tuple[list[SchemaMatch], LeftLines]:
    """Decode a piece of whole lines, less than 2 GiB, each ending with a line feed.

    Lines of an action that has fewer than `min_lines` are left alone. `learned` is what earlier
    pieces have taught, and is told what this one teaches.

    Returns the lines that were decoded, and the others as they are. Malformed input is not an error
    here. The columns are those of the columnar decoder: maps and statistics are split into columns.
    """
    lines = cut_lines(data)
    matches: list[SchemaMatch] = []
    readable, num_chosen = _readable_lines(lines), 0
    learned = {} if learned is None else learned
    for action in fields.fields:
        if action == "commitInfo" or readable is None or num_chosen == len(lines):
            continue
        chosen = pc.and_(pc.starts_with(lines, f'{{"{action}":'.encode()), readable)
        num_chosen += chosen.true_count
        if chosen.true_count < min_lines:
            continue
        rows = pc.indices_nonzero(chosen).cast(pa.int64())
        texts = lines if len(rows) == len(lines) else lines.filter(chosen)
        reader = _LineReader(fields, action, pool, learned)
        for start, table in reader.read(texts):
            part = slice(start, start + table.num_rows)
            columns, passed = reader.to_columns(table, texts[part])
            matches.append(SchemaMatch(action, rows[part].filter(passed), columns))
    every = pc.indices_nonzero(repeat_bool(True, len(lines))).cast(pa.int64())
    if not matches:
        return [], LeftLines(len(lines), every, lines)
    decoded = pa.concat_arrays([match.rows for match in matches])
    left = every[:0]
    if len(decoded) < len(every):
        left = every.filter(pc.invert(pc.is_in(every, value_set=decoded)))
    return matches, LeftLines(len(lines), left, lines.take(left))


def _readable_lines(lines: pa.Array) -> pa.Array | None:
    """Return which lines can be read: they end with `}` and have no control character.

    Arrow's reader rejects control characters in strings. That a line is one object rests on it, so
    it is checked here. Returns None if the lines are not UTF-8: the row decoder reports where.
    """
    data = concat_bytes(lines)
    readable = pc.ends_with(lines, b"}\n")
    if count_control_characters(data) != len(lines):
        control = pc.match_substring_regex(lines, _CONTROL_CHARACTERS.encode())
        readable = pc.and_(readable, pc.invert(control))
    if len(data) and np.frombuffer(data, np.uint8).max() > 127:
        try:
            pc.cast(lines, pa.string())
        except pa.ArrowInvalid:
            return None
    return readable


def _learn(known: Shape, value: Any) -> Shape:
    """Return what is known of a value after one more sample. If types differ, the first stays."""
    if isinstance(value, dict):
        if known is not None and not isinstance(known, dict):
            return known
        members = dict(known or {})
        for key, member in value.items():
            members[key] = _learn(members.get(key), member)
        return members
    if isinstance(value, list):
        if known is not None and not isinstance(known, list):
            return known
        element = known[0] if known else None
        for item in value:
            element = _learn(element, item)
        return [element]
    if known is not None or value is None:
        return known
    return value.__class__ if isinstance(value, (str, bool)) else float


def _arrow_type(shape: Shape, number: pa.DataType = _DOUBLE) -> pa.DataType:
    """Return the Arrow type that reads values of a shape, and numbers as type `number`."""
    if isinstance(shape, dict):
        return pa.struct([(key, _arrow_type(member, number)) for key, member in shape.items()])
    if isinstance(shape, list):
        return pa.list_(_arrow_type(shape[0], number))
    return number if shape is float else _LEAF_TYPES[shape]


def _all_members(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield the members of all objects in a shape, or in a JSON value."""
    if isinstance(shape, list):
        for element in shape:
            yield from _all_members(element)
    if isinstance(shape, dict):
        for key, member in shape.items():
            yield key, member
            yield from _all_members(member)


def _count_fields(shape: Shape) -> int:
    return sum(1 for _ in _all_members(shape))


def _check_finite(values: pa.Array) -> None:
    """Raise `_RejectedError` if a number is not finite: the reader accepts NaN, JSON does not."""
    if pa.types.is_struct(values.type):
        for member in values.flatten():
            _check_finite(member)
    elif pa.types.is_list(values.type):
        _check_finite(values.flatten())
    elif values.type == _DOUBLE and pc.is_finite(values).false_count:
        raise _RejectedError


class _BlockReader(ABC):
    """Reads JSON objects, one per line, block by block, with a schema that it learns."""

    smallest_block = 128  # lines of a rejected block that is not halved any more

    def __init__(self, pool: pa.MemoryPool | None, learned: LearnedShapes, key: str) -> None:
        """Start with what `learned` has under a key."""
        self._learned, self._key = learned, key
        # Beside the shape: samples, and the sum of their fields.
        self.shape, self._num_learned, self._num_fields = learned.get(key, ({}, 0, 0))
        self._pool = pool
        self._schema: pa.Schema | None = None

    def read(self, lines: pa.Array) -> Iterator[tuple[int, pa.Table]]:
        """Yield the index of the first line and the columns of each block that could be read."""
        if not self._num_learned and not self._learn_from_some(lines):
            return
        num_read = num_rejected = num_blocks = num_reads = 0
        blocks = [(0, len(lines), False)] if len(lines) else []
        while blocks:
            start, stop, learned = blocks.pop()
            block = lines[start:stop]
            table = self._try(block)
            if table is None and len(block) <= _LEARNED_BLOCK_LINES and not learned:
                learned = True
                table = self._try(block) if self._learn_from_all(block) else None
            if table is not None:
                num_read += table.num_rows
                yield start, table
                continue
            num_reads += 1
            if len(block) > self.smallest_block and num_reads < _REJECTED_READS_MAX:
                middle = (start + stop) // 2
                blocks += [(middle, stop, learned), (start, middle, learned)]
                continue
            num_rejected, num_blocks = num_rejected + len(block), num_blocks + 1
            if num_blocks >= _REJECTED_BLOCKS_MAX and num_rejected > num_read:
                break
        if num_rejected > num_read:  # what is known does not help the lines that follow
            self._learned.pop(self._key, None)

    def _learn_from_some(self, lines: pa.Array) -> bool:
        """Learn from a sample of the lines; returns whether enough of them can be read."""
        step = max(len(lines) // _NUM_SAMPLES, 1)
        samples = lines.take(make_array(range(0, len(lines), step), pa.int64())).to_pylist()
        num_readable = sum(map(self._learn_from, samples))
        return num_readable * 2 >= len(samples) or (num_readable > 0 and len(samples) <= 8)

    def _learn_from_all(self, lines: pa.Array) -> bool:
        """Learn the fields of several lines; returns whether some of them were not known."""
        known = self.shape
        for text in lines.to_pylist():
            self._learn_from(text)
        return bool(self.shape != known)

    def _learn_from(self, text: bytes) -> bool:
        """Learn the fields of a line; returns whether it can be read."""
        try:
            value = msgspec.json.decode(text)
            if not isinstance(value, dict) or not self.is_readable(value):
                return False
            self.shape = _learn(self.shape, value)
            self._num_fields += _count_fields(value)
        except JSON_ERRORS:
            return False
        self._num_learned += 1
        self._schema = None
        self._learned[self._key] = self.shape, self._num_learned, self._num_fields
        return True

    def _try(self, lines: pa.Array) -> pa.Table | None:
        """Read a block; None if a line is rejected."""
        try:
            if self._schema is None:
                most = _FIELDS_PER_LINE_FIELD * self._num_fields
                if _count_fields(self.shape) * self._num_learned > most:
                    return None
                self._schema = self.make_schema()
            table = self._parse(self.prepare(lines), self._schema)
            for column in table.columns:
                for chunk in column.chunks:
                    _check_finite(chunk)
        except (*_READER_ERRORS, _RejectedError):
            return None
        return table if table.num_rows == len(lines) else None

    def _parse(self, lines: pa.Array, schema: pa.Schema) -> pa.Table:
        start, stop = data_span(lines)
        longest = pc.max(pc.binary_length(lines)).as_py()
        return arrow_json.read_json(
            pa.BufferReader(lines.buffers()[2].slice(start, stop - start)),
            read_options=arrow_json.ReadOptions(
                use_threads=False, block_size=max(_READ_BYTES, 4 * longest)
            ),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="error"
            ),
            memory_pool=self._pool,
        )

    def is_readable(self, value: dict[str, Any]) -> bool:
        """Return whether an object has only values that can be read."""
        del value
        return True

    @abstractmethod
    def make_schema(self) -> pa.Schema:
        """Return the schema for the fields learned so far."""

    def prepare(self, lines: pa.Array) -> pa.Array:
        """Return the lines as they are to be read."""
        return lines


class _LineReader(_BlockReader):
    """Reads lines that hold one action."""

    def __init__(
        self,
        fields: ActionFields,
        action: str,
        pool: pa.MemoryPool | None,
        learned: LearnedShapes,
    ) -> None:
        super().__init__(pool, learned, action)
        self._action = action
        self._kinds = fields.fields[action]
        self._required = fields.required.get(action, ())
        self._other_actions = {*fields.fields, *fields.aliases, "protocol", "metaData"} - {action}

    def is_readable(self, value: dict[str, Any]) -> bool:
        """Return whether a line has no other action, and the fields have their types."""
        content = value.get(self._action)
        return (
            isinstance(content, dict)
            and all(content.get(name) is not None for name in self._required)
            and self._other_actions.isdisjoint(value)
            and all(_fits(self._kinds.get(name), field) for name, field in content.items())
        )

    def make_schema(self) -> pa.Schema:
        """Return the schema; raises `_RejectedError` if the text of a JSON field is ambiguous."""
        members = []
        for name, shape in self.shape[self._action].items():
            kind = self._kinds.get(name)
            if kind is FieldKind.JSON and isinstance(shape, (dict, list)):
                self._check_unambiguous(name)
            members.append((name, _field_type(kind, shape)))
        others = [
            (name, _arrow_type(shape)) for name, shape in self.shape.items() if name != self._action
        ]
        return pa.schema([(self._action, pa.struct(members)), *others])

    def _check_unambiguous(self, name: str) -> None:
        """Check that `"name":` is followed by an object or array only where the field is.

        It could also be a key in another object, or the end of a key that contains a quotation
        mark. It is in no string: the second quotation mark ends it, and a key alone has a colon.
        """
        containers = [
            key for key, shape in _all_members(self.shape) if isinstance(shape, (dict, list))
        ]
        if sum(key == name or key.endswith(f'"{name}') for key in containers) > 1:
            raise _RejectedError

    def to_columns(
        self, table: pa.Table, texts: pa.Array
    ) -> tuple[dict[str, pa.ChunkedArray], pa.Array]:
        """Return the columns of the lines that pass, and the mask of these lines.

        `texts` are the lines of the table.
        """
        action = table[self._action]
        values = _members(action)
        columns: dict[str, pa.ChunkedArray] = {}
        passed = pc.is_valid(action).combine_chunks()
        for name in self._required:
            passed = pc.and_(passed, pc.is_valid(values[name]).combine_chunks())
        for name, column in values.items():
            kind = self._kinds.get(name)
            if kind is None or column.null_count == len(column):
                continue
            certain = None
            if kind is FieldKind.FLAT:
                columns |= {f"{name}.{key}": text for key, text in _members(column).items()}
            elif kind is FieldKind.JSON and not pa.types.is_string(column.type):
                columns[name], certain = _find_json(name, column, texts)
            else:
                columns[name] = column.dictionary_encode() if kind is FieldKind.WORD else column
            if kind is FieldKind.STATS:
                key = f"{self._action}.{name}"
                split, certain = _split_stats(column, _StatsReader(self._pool, self._learned, key))
                columns |= split
            if certain is not None:
                passed = pc.and_(passed, certain)
        if passed.true_count < len(passed):
            columns = {name: column.filter(passed) for name, column in columns.items()}
        return {n: c for n, c in columns.items() if c.null_count < len(c)}, passed


def _members(column: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Return the members of structs by name."""
    names = [member.name for member in column.type]
    return dict(zip(names, column.flatten(), strict=True))


def _fits(kind: FieldKind | None, value: Any) -> bool:
    """Return whether a value of a field of some kind can be read; `kind` is None if unknown."""
    if kind is None or value is None:
        return True
    if kind is FieldKind.INT:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is FieldKind.BOOL:
        return isinstance(value, bool)
    if kind is FieldKind.FLAT:
        return isinstance(value, dict) and all(
            member is None or isinstance(member, str) for member in value.values()
        )
    if kind is FieldKind.JSON and isinstance(value, (dict, list)):
        members = value.values() if isinstance(value, dict) else value
        return all(isinstance(member, _SCALARS) for member in members)
    return isinstance(value, str)


def _field_type(kind: FieldKind | None, shape: Shape) -> pa.DataType:
    if kind is FieldKind.INT:
        return pa.int64()
    if kind is FieldKind.BOOL:
        return pa.bool_()
    if kind is FieldKind.FLAT:
        return pa.struct([(key, pa.string()) for key in shape or ()])
    return _arrow_type(shape) if kind in (FieldKind.JSON, None) else pa.string()


def _find_json(
    name: str, column: pa.ChunkedArray, texts: pa.Array
) -> tuple[pa.ChunkedArray, pa.Array | None]:
    """Return the text of a flat object or array in each line, and for which lines it is certain.

    None means that it is for all. The text ends with the first closing bracket, unless that is in a
    string. It is not, if there are an even number of quotation marks before it and no backslash.
    """
    plain = _find_plain_json(name, column, texts)
    if plain is not None:
        return pa.chunked_array([plain]), None
    content = r"\{[^}\\]*\}" if pa.types.is_struct(column.type) else r"\[[^\]\\]*\]"
    lines = pl.Series(pl.from_arrow(texts.view(pa.string())))
    found = lines.str.extract(f'"{re.escape(name)}": *({content})', 1)
    even = (found.str.count_matches('"', literal=True) % 2 == 0).fill_null(value=True).to_arrow()
    json_texts = found.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
    as_read = pc.equal(pc.is_valid(json_texts), pc.is_valid(column).combine_chunks())
    return pa.chunked_array([json_texts]), pc.and_(as_read, even)


def _find_plain_json(name: str, column: pa.ChunkedArray, texts: pa.Array) -> pa.Array | None:
    """Do what `_find_json` does if nothing is in the way, such as a space or an escape; else None.

    This takes neither a pattern nor polars.
    """
    opening, closing = b"{}" if pa.types.is_struct(column.type) else b"[]"
    data = concat_bytes(texts)
    octets = np.frombuffer(data, np.uint8)
    starts = find_octets(data, _COLON, opening) + 1
    before = f'"{name}":'.encode()
    starts = starts[starts >= len(before)]
    for distance, octet in enumerate(reversed(before), 1):
        starts = starts[octets[starts - distance] == octet]
    # There is one in each of the lines in which the field was read, and in no other line.
    borders = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    line_stops = borders[1:] - borders[0]
    is_there = to_numpy(pc.is_valid(column))
    rows = np.flatnonzero(is_there)
    if not np.array_equal(np.searchsorted(line_stops, starts, "right"), rows):
        return None
    # It ends with the first closing bracket of its line.
    rests = _take_pieces(data, starts, line_stops[rows])
    lengths = to_numpy(pc.find_substring(rests, bytes([closing]))) + 1
    if not bool(lengths.all()):
        return None
    found = _take_pieces(data, starts, starts + lengths).view(pa.string())
    odd = pc.bit_wise_and(pc.count_substring(found, '"'), _ONE)
    if pc.any(pc.equal(odd, _ONE)).as_py() or b"\\" in bytes(concat_bytes(found)):
        return None
    if len(rows) == len(texts):
        return found
    valid = from_numpy(is_there).buffers()[1]
    places = pa.py_buffer(np.cumsum(is_there) - 1)
    return found.take(pa.Array.from_buffers(pa.int64(), len(texts), [valid, places]))


def _take_pieces(data: memoryview, starts: NDArray[Any], stops: NDArray[Any]) -> pa.Array:
    """Return pieces of a buffer, in ascending order, as an array of type binary."""
    borders = np.stack([starts, stops], axis=1).astype(np.int32)
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(pa.binary(), max(2 * len(borders) - 1, 0), buffers)
    return texts.take(from_numpy(np.arange(0, 2 * len(borders), 2)))


def _split_stats(
    texts: pa.ChunkedArray, reader: _StatsReader
) -> tuple[dict[str, pa.ChunkedArray], pa.Array]:
    """Return the columns of statistics, and for which rows they are certain.

    Files of equal content often have equal statistics: each distinct text is read once.
    """
    codes = texts.combine_chunks().dictionary_encode()
    distinct = codes.dictionary.view(pa.binary())
    lines = pc.binary_join_element_wise(distinct, _LINE_FEED, _EMPTY)
    readable = _readable_lines(lines)
    parts: list[pa.Table] = []
    if readable is not None:
        chosen = pc.and_(readable, pc.starts_with(lines, b"{"))
        rows = pc.indices_nonzero(chosen).cast(pa.int64())
        for start, table in reader.read(lines.filter(chosen)):
            columns = {"row": rows[start : start + table.num_rows]} | _stats_columns(table)
            parts.append(pa.table(columns))
    if not parts:
        return {}, pc.is_null(codes)
    split = pa.concat_tables(parts, promote_options="default").combine_chunks()
    index = codes.indices.cast(pa.int64())
    if split.num_rows < len(distinct):
        index = pc.index_in(index, value_set=split["row"].combine_chunks())
    passed = pc.or_(pc.is_null(codes), pc.is_valid(index))
    return {
        f"stats.{name}": split[name].take(index) for name in split.column_names if name != "row"
    }, passed


def _stats_columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the row count, and the bounds and counts of every column, by their paths."""
    columns: dict[str, pa.ChunkedArray | None] = {}
    for name in table.column_names:
        column = table[name]
        if name == "numRecords":
            columns[name] = _to_counts(column)
        elif name in STATS_MAPS and pa.types.is_struct(column.type):
            convert = _to_counts if name in STATS_COUNTS else _to_texts
            columns |= {f"{name}.{key}": convert(each) for key, each in _members(column).items()}
    return {name: column for name, column in columns.items() if column is not None}


def _to_counts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if not pa.types.is_string(column.type):
        return column if pa.types.is_integer(column.type) else None
    return pa.chunked_array([parse_counts(column.combine_chunks())])


def _to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if pa.types.is_boolean(column.type):
        return pc.cast(column, pa.string())
    return column if pa.types.is_string(column.type) else None


class _StatsReader(_BlockReader):
    """Reads statistics.

    Numbers of rows are read as integers. Other numbers must keep every digit: if there are any,
    all numbers are read as text.
    """

    smallest_block = 1  # many files may have the same statistics

    @property
    def _numbers_as_text(self) -> bool:
        counts = [self.shape.get("numRecords")]
        bounds: list[Shape] = []
        for name in STATS_MAPS:
            members = self.shape.get(name)
            values = members.values() if isinstance(members, dict) else ()
            (counts if name in STATS_COUNTS else bounds).extend(values)
        return float in bounds or not all(count in (float, None) for count in counts)

    def make_schema(self) -> pa.Schema:
        """Return the schema."""
        as_text = self._numbers_as_text
        members = []
        for name, shape in self.shape.items():
            is_count = name == "numRecords" or name in STATS_COUNTS
            number = pa.string() if as_text else pa.int64() if is_count else _DOUBLE
            members.append((name, _arrow_type(shape, number)))
        return pa.schema(members)

    def prepare(self, lines: pa.Array) -> pa.Array:
        """Return the lines, with numbers as strings if they are to be read as text."""
        if not self._numbers_as_text:
            return lines
        return pc.replace_substring_regex(lines, _NUMBER, _QUOTED_NUMBER)
