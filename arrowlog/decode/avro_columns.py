"""Decode the records of an Avro container into columns, without a Python object per record. Pure.

1. Guess where all records of some blocks begin. Records of one writer look alike where one ends and
   the next begins; a search for those bytes finds most of the beginnings.
2. Read the records at all these positions in lock-step (`arrowlog.decode.avro_walk`), field after
   field, each for all records at once.
3. Prove the guess: the first record begins where the blocks begin, each record begins where the one
   before it ends, blocks end with a record, and each has as many as it says. A position that fails
   was none, an end where nothing begins gives another position to read, and a record that cannot be
   read although the one before it ends there is damage.
4. Copy the texts from the data into Arrow arrays and validate them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from arrowlog.decode.avro_walk import Array, Cursors, RecordWalk
from arrowlog.formats import (
    ValueDamaged,
    damaged,
    read_value,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrowlog.formats import AvroType, Container

# Records that are read in lock-step, about: their cursors and the fields that are being read should
# fit the second-level cache, and numpy's cost per operation should not matter.
_RECORDS_PER_STEP = 8192
# Below this many records, a guess costs more than reading the records one by one.
_GUESS_MIN_RECORDS = 256
_SAMPLE_BLOCKS = 8
_RECORDS_PER_SAMPLE = 4
_PATTERN_BYTES_MAX = 24  # on either side of a record's beginning
_PATTERN_BYTES_MIN = 4  # a shorter pattern would be found everywhere
# Keys of a map that become columns. With more of them, the map is kept as JSON text.
MAX_MAP_COLUMNS = 256
_MAX_KEY_BYTES = 256
_HASH_BITS = 14
_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio times 2**64: spreads consecutive numbers


class AvroKind(Enum):
    """What a column is decoded to."""

    INT = ("int", "long")
    BOOL = ("boolean",)
    TEXT = ("string",)
    WORD = ("string", "")  # text that repeats: a dictionary-encoded column
    TEXT_MAP = ("map",)  # a map of text: one column `field.key` per key
    JSON = ("array",)  # an array of text: a column of JSON text


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """A column to decode; a required field may be neither absent nor null."""

    kind: AvroKind
    required: bool = False


@dataclass(slots=True, eq=False)
class _Values:
    """The values of a field in the records of a step; null where `valid` is false."""

    valid: Array | None = None
    numbers: Array | None = None
    starts: Array | None = None
    lengths: Array | None = None
    entries: list[_Entries] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Entries:
    """One map entry in some records each."""

    rows: Array
    key_starts: Array
    key_lengths: Array
    starts: Array
    lengths: Array


@dataclass(slots=True, eq=False)
class _Records:
    """Records that were read at `starts`: where each ended, and the values of the columns."""

    starts: Array
    ends: Array
    values: dict[str, _Values]


def decode_columns(
    container: Container, columns: Mapping[str, AvroColumn]
) -> pa.Table:
    """Return the columns of all records, in the order of the file.

    Fields are found by name. A column whose field the writer's schema does not have is left out,
    unless it is required. Maps of text become one column per key, `field.key`.

    Raises:
        LogCorrupt: the records are damaged, or a required value is null.
        UnsupportedProtocol: a field has a type that its column does not accept.
    """
    plan = _plan(container, columns)
    walk = RecordWalk(container.data)
    reader = _Reader(container, plan, walk)
    tables = [reader.emit(records) for records in reader.read_all()]
    if not tables:
        return pa.table({name: pa.nulls(0, _arrow_type(item.kind)) for name, item in plan.items()
            if item.kind is not AvroKind.TEXT_MAP})
    return pa.concat_tables(tables, promote_options="default")


def _arrow_type(kind: AvroKind) -> pa.DataType:
    if kind is AvroKind.WORD:
        return pa.dictionary(pa.int32(), pa.string())
    return {AvroKind.INT: pa.int64(), AvroKind.BOOL: pa.bool_()}.get(kind, pa.string())


def _plan(container: Container, columns: Mapping[str, AvroColumn]) -> dict[str, AvroColumn]:
    """Check the wanted columns against the schema; returns those that the file has."""
    fields = {item.name: item.type for item in container.schema.fields}
    for name, column in columns.items():
        if name not in fields:
            if column.required:
                raise unsupported(container.file, f"the schema of the Avro file lacks {name!r}")
            continue
        if not _fits(fields[name], column.kind):
            raise unsupported(
                container.file, f"the field {name!r} of the Avro file has an unexpected type"
            )
    return {name: column for name, column in columns.items() if name in fields}


def _fits(kind: AvroType, wanted: AvroKind) -> bool:
    value = kind.value_type
    if value is None or value.kind not in wanted.value or len(kind.branches) > 2:
        return False
    if value.items is not None:
        return value.items.kind == "string"
    return True


class _Reader:
    """Reads the records of one container."""

    def __init__(self, container: Container, plan: dict[str, AvroColumn], walk: RecordWalk) -> None:
        self.container = container
        self.plan = plan
        self.walk = walk
        self.keys = _KeyTable(walk)
        self.buffer = pa.py_buffer(walk.octets)
        self.even: dict[int, pa.Array] = {}

    # -- where records begin

    def read_all(self) -> Iterator[_Records]:
        """Read and prove the records of all blocks, some blocks at a time."""
        container = self.container
        limits = [*container.starts[1:], len(container.data)]
        blocks = []
        for start, stop, count in zip(container.starts, limits, container.counts, strict=True):
            if (count == 0) != (start == stop):
                raise damaged(container.file, "a block has bytes but no records")
            if count:
                blocks.append((start, stop, count))
        hits = self._guess(blocks)
        step = _RECORDS_PER_STEP if hits is not None else container.num_records
        at = 0
        while at < len(blocks):
            group, total = [], 0
            while at < len(blocks) and (not group or total + blocks[at][2] <= step):
                group.append(blocks[at])
                total += blocks[at][2]
                at += 1
            yield self._read_blocks(group, hits)

    def _guess(self, blocks: list[tuple[int, int, int]]) -> Array | None:
        """Return positions where records may begin, ascending; None if there is no guess."""
        if self.container.num_records < _GUESS_MIN_RECORDS:
            return np.array(self._read_starts(blocks), np.int64)
        pattern, before = self._pattern(blocks)
        if len(pattern) < _PATTERN_BYTES_MIN:
            return None
        data = self.container.data
        hits = []
        at = data.find(pattern)
        while at >= 0:
            hits.append(at)
            at = data.find(pattern, at + 1)
        return np.array(hits, np.int64) + before

    def _read_starts(self, blocks: list[tuple[int, int, int]]) -> list[int]:
        """Return where records begin, found by reading them one by one."""
        data, schema, starts = self.container.data, self.container.schema, []
        for start, _, count in blocks:
            at = start
            for _ in range(count):
                starts.append(at)
                try:
                    at = read_value(schema, data, at)[1]
                except ValueDamaged:
                    break
        return starts

    def _pattern(self, blocks: list[tuple[int, int, int]]) -> tuple[bytes, int]:
        """Return the bytes around the beginning of records, and how many of them are before it."""
        data, schema = self.container.data, self.container.schema
        step = max(1, len(blocks) // _SAMPLE_BLOCKS)
        before, after = None, b""
        for start, stop, count in blocks[::step]:
            at = start
            for _ in range(min(count - 1, _RECORDS_PER_SAMPLE)):
                try:
                    at = read_value(schema, data, at)[1]
                except ValueDamaged:
                    break
                tail = data[max(start, at - _PATTERN_BYTES_MAX) : at]
                head = data[at : min(stop, at + _PATTERN_BYTES_MAX)]
                if before is None:
                    before, after = tail, head
                before = before[len(before) - _common(before[::-1], tail[::-1]) :]
                after = after[: _common(after, head)]
        before = before or b""
        return before + after, len(before)

    def _read_blocks(
        self, blocks: list[tuple[int, int, int]], hits: Array | None
    ) -> _Records:
        """Read the records of adjacent blocks, starting from the guessed positions."""
        low, high = blocks[0][0], blocks[-1][1]
        starts = np.array([start for start, _, _ in blocks], np.int64)
        if hits is not None:
            inside = hits[np.searchsorted(hits, low) : np.searchsorted(hits, high)]
            starts = np.union1d(starts, inside)
        records = self._read(starts)
        counts = np.array([count for _, _, count in blocks])
        edges = np.concatenate(([0], np.cumsum(counts)))
        if (
            starts.size == edges[-1]
            and records.ends[-1] == high
            and (records.ends[:-1] == starts[1:]).all()
            and (starts[edges[:-1]] == [start for start, _, _ in blocks]).all()
        ):
            return records
        return self._repair(blocks, records)

    def _repair(self, blocks: list[tuple[int, int, int]], first: _Records) -> _Records:
        """Find the records from a guess that misses some, or has positions that are none."""
        high = blocks[-1][1]
        starts, ends = first.starts, first.ends
        fresh = ends
        while True:
            missing = np.setdiff1d(fresh[fresh < high], starts)
            if not missing.size:
                break
            fresh = self.walk.skip(self.container.schema, missing)
            starts, ends = np.append(starts, missing), np.append(ends, fresh)
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        return self._read(starts[self._chain(blocks, starts, ends)])

    def _chain(self, blocks: list[tuple[int, int, int]], starts: Array, ends: Array) -> Array:
        """Return the rows that follow one another from the first block's beginning to the end.

        Raises `LogCorrupt` if there is no such chain, or a block does not begin, end or count as it
        says.
        """
        file, high = self.container.file, blocks[-1][1]
        following = np.searchsorted(starts, ends)
        breaks = np.flatnonzero(following != np.arange(1, starts.size + 1)).tolist()
        runs, row, number = [], 0, 0
        while True:
            while number < len(breaks) and breaks[number] < row:
                number += 1
            last = breaks[number] if number < len(breaks) else starts.size - 1
            runs.append(np.arange(row, last + 1))
            end = int(ends[last])
            if end == high:
                break
            row = int(following[last])
            if end > high or row >= starts.size or int(starts[row]) != end:
                raise damaged(file, "a record cannot be read, or does not end with its block")
        chain = np.concatenate(runs)
        # A run may contain ends that lie between two positions: compare them all once more.
        if (ends[chain[:-1]] != starts[chain[1:]]).any():
            raise damaged(file, "a record cannot be read")
        edges = np.concatenate(([0], np.cumsum([count for _, _, count in blocks])))
        begins = np.array([start for start, _, _ in blocks])
        if edges[-1] != chain.size or (starts[chain[edges[:-1]]] != begins).any():
            raise damaged(file, "a block does not have the number of records that it says")
        return chain

    # -- the fields of records

    def _read(self, starts: Array) -> _Records:
        cursors: Cursors = starts
        values: dict[str, _Values] = {}
        for item in self.container.schema.fields:
            column = self.plan.get(item.name)
            if column is None:
                cursors = self.walk.skip(item.type, cursors)
            else:
                values[item.name], cursors = self._read_field(item.type, column.kind, cursors)
        return _Records(starts, cursors, values)

    def _read_field(
        self, kind: AvroType, wanted: AvroKind, cursors: Cursors
    ) -> tuple[_Values, Cursors]:
        if kind.kind != "union":
            return self._read_present(kind, wanted, cursors)
        indexes, cursors = self.walk.indexes(cursors, len(kind.branches))
        value_index = next(i for i, branch in enumerate(kind.branches) if branch.kind != "null")
        valid = indexes == value_index
        branch = kind.branches[value_index]
        if valid.all():
            return self._read_present(branch, wanted, cursors)
        rows = np.flatnonzero(valid)
        if not rows.size:
            return _Values(valid=valid), cursors
        values, inner = self._read_present(branch, wanted, cursors[rows])
        cursors[rows] = inner
        return _spread(values, rows, valid), cursors

    def _read_present(
        self, kind: AvroType, wanted: AvroKind, cursors: Cursors
    ) -> tuple[_Values, Cursors]:
        walk = self.walk
        if wanted is AvroKind.INT:
            numbers, after = (walk.ints if kind.kind == "int" else walk.longs)(cursors)
            return _Values(numbers=numbers), after
        if wanted is AvroKind.BOOL:
            numbers, after = walk.booleans(cursors)
            return _Values(numbers=numbers), after
        if wanted in (AvroKind.TEXT, AvroKind.WORD):
            starts, lengths, after = walk.texts(cursors)
            return _Values(starts=starts, lengths=lengths), after
        if wanted is AvroKind.JSON:
            after = walk.skip(kind, cursors)
            return _Values(starts=cursors, lengths=after - cursors), after
        return self._read_map(kind, cursors)

    def _read_map(self, kind: AvroType, cursors: Cursors) -> tuple[_Values, Cursors]:
        """Read maps of text, one entry of all records at a time."""
        walk, entries = self.walk, []
        cursors = cursors.copy()
        active = np.arange(cursors.size)
        while active.size:
            counts, stops, at = walk.item_counts(kind, cursors[active])
            left = counts.copy()
            while True:
                rows = np.flatnonzero(left)
                if not rows.size:
                    break
                whole = rows.size == at.size
                key_starts, key_lengths, inner = walk.texts(at if whole else at[rows])
                starts, lengths, inner = walk.texts(inner)
                entries.append(_Entries(active[rows], key_starts, key_lengths, starts, lengths))
                left[rows] -= 1
                if inner.max() > walk.size:
                    left[rows[inner > walk.size]] = 0
                at[rows] = inner
            if stops is not None:
                at[(stops >= 0) & (stops != at)] = walk.beyond
            cursors[active] = at
            active = active[(counts != 0) & (at <= walk.size)]
        return _Values(entries=entries), cursors

    # -- Arrow

    def emit(self, records: _Records) -> pa.Table:
        """Build Arrow columns from proven records."""
        columns: dict[str, Any] = {}
        count = records.starts.size
        raw_maps: dict[str, list[_Entries]] = {}
        for name, column in self.plan.items():
            values = records.values[name]
            if column.required and values.valid is not None:
                raise damaged(self.container.file, f"{name!r} is null in a record")
            if column.kind is AvroKind.TEXT_MAP:
                flat = self._map_columns(name, values, count)
                if flat is None:
                    raw_maps[name] = values.entries
                else:
                    columns |= flat
            elif values.numbers is None and values.starts is None:
                columns[name] = pa.nulls(count, _arrow_type(column.kind))
            else:
                columns[name] = self._column(column.kind, values, count)
        if raw_maps:
            return self._with_raw_maps(records, columns)
        return pa.table(columns)

    def _column(self, kind: AvroKind, values: _Values, count: int) -> pa.Array:
        bitmap = None if values.valid is None else _bitmap(values.valid)
        if kind is AvroKind.INT:
            assert values.numbers is not None
            data = pa.py_buffer(np.ascontiguousarray(values.numbers))
            return pa.Array.from_buffers(pa.int64(), count, [bitmap, data])
        if kind is AvroKind.BOOL:
            assert values.numbers is not None
            data = _bitmap(values.numbers)
            return pa.Array.from_buffers(pa.bool_(), count, [bitmap, data])
        assert values.starts is not None
        assert values.lengths is not None
        if kind is AvroKind.JSON:
            return self._json_column(values, count)
        texts = self._texts(values.starts, values.lengths, bitmap)
        return texts.dictionary_encode() if kind is AvroKind.WORD else texts

    def _texts(
        self, starts: Array, lengths: Array, bitmap: pa.Buffer | None, *, binary: bool = False
    ) -> pa.Array:
        """Copy spans of the data into an array.

        The spans and the gaps between them are an array over the data, of which every other
        element is taken: one copy, made by Arrow.
        """
        count = starts.size
        if count == 0:
            return pa.nulls(0, pa.binary() if binary else pa.string())
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = starts
        np.add(starts, lengths, out=bounds[1::2], casting="unsafe")
        gaps = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), self.buffer]
        )
        if count not in self.even:
            even = np.arange(0, 2 * count, 2, dtype=np.int64)
            self.even[count] = pa.Array.from_buffers(
                pa.int64(), count, [None, pa.py_buffer(even)]
            )
        taken = gaps.take(self.even[count])
        _, offsets, data = taken.buffers()
        kind = pa.binary() if binary else pa.string()
        texts = pa.Array.from_buffers(kind, count, [bitmap, offsets, data])
        if not binary:
            try:
                texts.validate(full=True)
            except pa.ArrowInvalid:
                raise damaged(self.container.file, "a text is not UTF-8") from None
        return texts

    def _json_column(self, values: _Values, count: int) -> pa.Array:
        """Return arrays as JSON text; each distinct one is decoded once."""
        assert values.starts is not None
        assert values.lengths is not None
        bitmap = None if values.valid is None else _bitmap(values.valid)
        spans = self._texts(values.starts, values.lengths, bitmap, binary=True).dictionary_encode()
        kind = pa.string()
        texts = []
        array_type = _array_of_text()
        for span in spans.dictionary.to_pylist():
            try:
                texts.append(msgspec.json.encode(read_value(array_type, span, 0)[0]).decode())
            except ValueDamaged as error:
                raise damaged(self.container.file, str(error)) from None
        from arrowlog.arrays import make_array

        return make_array(texts, kind).take(spans.indices)

    def _map_columns(
        self, name: str, values: _Values, count: int
    ) -> dict[str, pa.Array] | None:
        """Return a column per key; None if there are too many keys."""
        found = [self.keys.find(entry.key_starts, entry.key_lengths) for entry in values.entries]
        if any(ids is None for ids in found):
            return None
        num_keys = len(self.keys.names)
        starts = np.zeros((num_keys, count), np.int64)
        lengths = np.full((num_keys, count), -1, np.int64)
        for entry, ids in zip(values.entries, found, strict=True):
            assert ids is not None
            places = ids * count + entry.rows
            starts.ravel()[places] = entry.starts
            lengths.ravel()[places] = entry.lengths
        columns = {}
        for key, key_starts, key_lengths in zip(self.keys.names, starts, lengths, strict=True):
            valid = key_lengths >= 0
            if valid.all():
                columns[f"{name}.{key}"] = self._texts(key_starts, key_lengths, None)
            elif valid.any():
                np.maximum(key_lengths, 0, out=key_lengths)
                columns[f"{name}.{key}"] = self._texts(key_starts, key_lengths, _bitmap(valid))
        return columns

    def _with_raw_maps(self, records: _Records, columns: dict[str, Any]) -> pa.Table:
        raise NotImplementedError


class _KeyTable:
    """The distinct keys of the maps of a file, found by a perfect hash of their bytes."""

    def __init__(self, walk: RecordWalk) -> None:
        self.walk = walk
        self.names: list[str] = []
        self._rows: dict[bytes, int] = {}
        self._words = np.zeros((0, _MAX_KEY_BYTES // 8), _U64)
        self._lengths = np.zeros(0, np.int64)
        self._table = np.zeros(1 << _HASH_BITS, np.int64)
        self._factors = _factors(0)

    def find(self, starts: Array, lengths: Array) -> Array | None:
        """Return the number of each key; None if there are too many keys, or long ones."""
        if lengths.max(initial=0) > _MAX_KEY_BYTES:
            return None
        words = []
        sums = lengths.astype(_U64) * self._factors[-1]
        for index in range((int(lengths.max(initial=0)) + 7) // 8 or 1):
            word = self.walk.words_at(starts + 8 * index)
            word &= _MASKS[np.clip(lengths - 8 * index, 0, 8)]
            words.append(word)
        while True:
            sums = lengths.astype(_U64) * self._factors[-1]
            for index, word in enumerate(words):
                sums += word * self._factors[index]
            ids = self._table[(sums >> _U64(64 - _HASH_BITS)).view(np.int64)]
            if self.names:
                wrong = self._lengths[ids] != lengths
                for index, word in enumerate(words):
                    wrong |= self._words[ids, index] != word
                if not wrong.any():
                    return ids
                row = int(np.argmax(wrong))
            else:
                row = 0
                if not ids.size:
                    return ids
            start, length = int(starts[row]), int(lengths[row])
            if not self._add(self.walk.octets[start : start + length].tobytes()):
                return None

    def _add(self, key: bytes) -> bool:
        """Add a key; returns whether that is possible."""
        if len(self.names) >= MAX_MAP_COLUMNS:
            return False
        self.names.append(key.decode())
        words = np.frombuffer(key.ljust(_MAX_KEY_BYTES, b"\0"), "<u8")
        self._words = np.vstack([self._words, words])
        self._lengths = np.append(self._lengths, len(key))
        for seed in range(100):
            self._factors = _factors(seed)
            sums = self._lengths.astype(_U64) * self._factors[-1]
            sums += (self._words * self._factors[:-1]).sum(axis=1, dtype=_U64)
            slots = (sums >> _U64(64 - _HASH_BITS)).view(np.int64)
            if len(set(slots.tolist())) == slots.size:
                self._table[:] = 0
                self._table[slots] = np.arange(slots.size)
                return True
        return False


def _factors(seed: int) -> Array:
    """Return odd multipliers of the hash, one per word of a key and one for its length."""
    count = _MAX_KEY_BYTES // 8 + 1
    numbers = [(seed * count + index + 1) * _GOLDEN for index in range(count)]
    return np.array([(n ^ n >> 31) * _GOLDEN % (1 << 64) | 1 for n in numbers], _U64)


_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], _U64)


def _array_of_text() -> AvroType:
    from arrowlog.formats import parse_schema

    return parse_schema('{"type":"array","items":"string"}')


def _common(left: bytes, right: bytes) -> int:
    """Return the length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _bitmap(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _spread(values: _Values, rows: Array, valid: Array) -> _Values:
    """Place the values of some rows among all; the others are null."""

    def place(part: Array | None) -> Array | None:
        if part is None:
            return None
        whole = np.zeros(valid.size, part.dtype)
        whole[rows] = part
        return whole

    for entry in values.entries:
        entry.rows = rows[entry.rows]
    return _Values(
        valid, place(values.numbers), place(values.starts), place(values.lengths), values.entries
    )
