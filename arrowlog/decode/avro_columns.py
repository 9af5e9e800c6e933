"""Decode the records of an Avro container into columns, without a Python object per record. Pure.

Some blocks at a time: guess where their records begin, read the records in lock-step, field after
field for all of them at once (both in `arrowlog.decode.avro_records`), prove the guess, and copy
the values into Arrow arrays. The entries of a manifest are adds, with the same columns.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from arrowlog.arrays import make_array, repeat_bool
from arrowlog.decode.avro_records import (
    Array,
    BlockGroup,
    BlockMemory,
    Cursors,
    RecordWalk,
    StartGuess,
    find_starts,
)
from arrowlog.errors import LogCorrupt
from arrowlog.formats import (
    AvroType,
    FieldKind,
    ValueDamaged,
    damaged,
    read_container,
    read_value,
    unsupported,
)
from arrowlog.formats.indextables import ADD_FIELDS, FILE_ENTRY_FIELDS, REQUIRED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrowlog.formats import Container

# Records that are read in lock-step, about: their bytes, cursors and the fields that are being read
# should fit the second-level cache, and numpy's cost per operation should not matter. An array of
# cursors stays below 128 kB, from where on malloc returns freed memory to the system.
_RECORDS_PER_STEP = 1 << 13
# The same where the guess fails: each round reads only one record per block.
_RECORDS_PER_SLOW_STEP = 1 << 17
# Stored bytes per record of a step beyond which it has fewer records; bounds memory.
_STEP_BYTES_PER_RECORD = 512
# Keys of the maps of a file that become columns. With more of them, or longer ones, the maps are
# kept as JSON text.
MAX_MAP_COLUMNS = 256
_MAX_KEY_BYTES = 256
_HASH_BITS = 14  # slots of the hash table; many more than keys, so that a perfect hash is found
_HASH_ATTEMPTS = 100
_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio times 2**64: spreads consecutive numbers
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], _U64)  # of the first n bytes


class AvroKind(Enum):
    """What a column is decoded to."""

    INT = ("int", "long")
    BOOL = ("boolean",)
    TEXT = ("string",)
    WORD = ("string", "")  # text that repeats: a dictionary-encoded column
    TEXT_MAP = ("map",)  # a map of text: one column `field.key` per key
    JSON = ("array",)  # an array of text: a column of JSON text
    STATS = ("string", "stats")  # JSON text with statistics; see `decode_columns`


class AvroColumn(msgspec.Struct, frozen=True):
    """A column to decode; a required field may be neither absent nor null."""

    kind: AvroKind
    required: bool = False


_KINDS = {
    FieldKind.TEXT: AvroKind.TEXT,
    FieldKind.INT: AvroKind.INT,
    FieldKind.BOOL: AvroKind.BOOL,
    FieldKind.WORD: AvroKind.WORD,
    FieldKind.FLAT: AvroKind.TEXT_MAP,
    FieldKind.JSON: AvroKind.JSON,
    FieldKind.STATS: AvroKind.STATS,
}
# What an entry has in common with an add. `addedAtVersion` and `addedAtTimestamp` are not among
# the columns: writers of the format leave them at 0.
ENTRY_COLUMNS = {
    name: AvroColumn(_KINDS[kind], required=name in REQUIRED_FIELDS["add"])
    for name, kind in ADD_FIELDS.items()
    if name in FILE_ENTRY_FIELDS
}


class _Entries(msgspec.Struct, eq=False):
    """One further map entry of some records each; `rows` is None for all records."""

    rows: Array | None
    key_starts: Array
    key_lengths: Array
    starts: Array
    lengths: Array


class _Values(msgspec.Struct, eq=False):
    """The values of a field: numbers, or spans of the data. Null where `valid` is false."""

    valid: Array | None = None
    numbers: Array | None = None
    starts: Array | None = None
    lengths: Array | None = None
    entries: list[_Entries] = msgspec.field(default_factory=list)

    def spread(self, rows: Array, valid: Array) -> _Values:
        """Return the values of `rows` among all records; the other records have null."""

        def place(part: Array | None) -> Array | None:
            if part is None:
                return None
            whole = np.zeros(valid.size, part.dtype)
            whole[rows] = part
            return whole

        for entry in self.entries:
            entry.rows = rows if entry.rows is None else rows[entry.rows]
        return _Values(
            valid, place(self.numbers), place(self.starts), place(self.lengths), self.entries
        )


def decode_columns(container: Container, columns: Mapping[str, AvroColumn]) -> pa.Table:
    """Return the columns of all records, in the order of the file.

    Fields are found by name. A column whose field the writer's schema does not have is left out,
    unless it is required. Maps of text become one column per key, `field.key`. Where the maps have
    too many keys for that, or a record has a text of statistics, all maps of some blocks are
    columns of JSON text, and a column `raw` is true, as `flatten_map_columns` expects it.

    Raises:
        LogCorrupt: the records are damaged, or a required value is null.
        UnsupportedProtocol: a field has a type that its column does not accept.
    """
    plan = _plan(container, columns)
    keys = _KeyTable(container.file)
    guess = StartGuess(container.schema)
    memory = BlockMemory()
    tables = []
    at = used = 0
    step = _RECORDS_PER_STEP
    while at < len(container.blocks):
        stop = _step_end(container, at, step)
        counts = container.counts[at:stop]
        group = memory.join(container.unpack(at, stop, used), counts, container.file)
        used += group.size
        at = stop
        if group.starts.size:
            decoder = _GroupDecoder(container.schema, plan, group, keys, guess)
            tables.append(decoder.decode())
            step = _RECORDS_PER_STEP if decoder.guessed else _RECORDS_PER_SLOW_STEP
    if not tables:
        empty = {name: column.kind for name, column in plan.items()}
        return pa.table({name: pa.nulls(0, _arrow_type(kind)) for name, kind in empty.items()})
    return pa.concat_tables(tables, promote_options="default")


def _step_end(container: Container, start: int, records: int) -> int:
    """Return the block up to which the blocks from `start` on have about so many records."""
    stop, total = start + 1, container.counts[start]
    size, max_size = len(container.blocks[start]), records * _STEP_BYTES_PER_RECORD
    while stop < len(container.blocks):
        total += container.counts[stop]
        size += len(container.blocks[stop])
        if total > records or size > max_size:
            break
        stop += 1
    return stop


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


class _GroupDecoder:
    """Decodes the records of a group of blocks."""

    def __init__(
        self,
        schema: AvroType,
        plan: dict[str, AvroColumn],
        group: BlockGroup,
        keys: _KeyTable,
        guess: StartGuess,
    ) -> None:
        self.schema = schema
        self.plan = plan
        self.group = group
        self.keys = keys
        self.guess = guess
        self.walk = RecordWalk(group.data)
        self.guessed = True  # whether the first guess was right
        self._types: dict[str, AvroType] = {}
        self._even: pa.Array | None = None

    def decode(self) -> pa.Table:
        """Return the columns of the group's records."""
        starts = self.guess.guess(self.group)
        values, ends = self._read(starts)
        if not self.group.is_proven(starts, ends):
            self.guess.forget()
            self.guessed = False
            starts = find_starts(self.walk, self.schema, self.group, starts, ends)
            values, ends = self._read(starts)
        return self._build(values, starts.size)

    def _read(self, starts: Array) -> tuple[dict[str, _Values], Array]:
        """Read the records at `starts`; returns the values of the columns, and where each ends."""
        cursors: Cursors = starts
        values: dict[str, _Values] = {}
        for item in self.schema.fields:
            column = self.plan.get(item.name)
            if column is None:
                cursors = self.walk.skip(item.type, cursors)
            else:
                values[item.name], cursors = self._read_field(item.type, column.kind, cursors)
        return values, cursors

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
        return values.spread(rows, valid), cursors

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
        if wanted in (AvroKind.TEXT, AvroKind.WORD, AvroKind.STATS):
            starts, lengths, after = walk.texts(cursors)
            return _Values(starts=starts, lengths=lengths), after
        if wanted is AvroKind.JSON:
            after = walk.skip(kind, cursors)
            return _Values(starts=cursors, lengths=after - cursors), after
        return self._read_map(kind, cursors)

    def _read_map(self, kind: AvroType, cursors: Cursors) -> tuple[_Values, Cursors]:
        """Read maps of text, one entry of all records at a time."""
        entries: list[_Entries] = []

        def read_entry(rows: Array | None, at: Cursors) -> Cursors:
            key_starts, key_lengths, at = self.walk.texts(at)
            starts, lengths, at = self.walk.texts(at)
            entries.append(_Entries(rows, key_starts, key_lengths, starts, lengths))
            return at

        after = self.walk.read_items(kind, cursors, read_entry)
        return _Values(starts=cursors, lengths=after - cursors, entries=entries), after

    def _build(self, values: dict[str, _Values], count: int) -> pa.Table:
        """Build the Arrow columns of proven records."""
        columns: dict[str, Any] = {}
        has_stats = any(
            column.kind is AvroKind.STATS and values[name].starts is not None
            for name, column in self.plan.items()
        )
        flat = None if has_stats else self._flat_maps(values, count)
        for name, column in self.plan.items():
            field_values = values[name]
            if column.required and field_values.valid is not None:
                raise damaged(self.group.file, f"{name!r} is null in a record")
            if column.kind is AvroKind.TEXT_MAP and flat is not None:
                columns |= flat[name]
            else:
                columns[name] = self._column(name, column.kind, field_values, count)
        if flat is None:
            columns["raw"] = repeat_bool(True, count)
        return pa.table(columns)

    def _column(self, name: str, kind: AvroKind, values: _Values, count: int) -> pa.Array:
        bitmap = None if values.valid is None else _bitmap(values.valid)
        if values.numbers is not None:
            if kind is AvroKind.BOOL:
                data = _bitmap(values.numbers)
            else:
                data = pa.py_buffer(np.ascontiguousarray(values.numbers))
            return pa.Array.from_buffers(_arrow_type(kind), count, [bitmap, data])
        if values.starts is None or values.lengths is None:  # null in all records
            return pa.nulls(count, _arrow_type(kind))
        if kind in (AvroKind.JSON, AvroKind.TEXT_MAP):
            spans = self._copy(values.starts, values.lengths, bitmap)
            return self._json_texts(name, spans.dictionary_encode())
        texts = self._texts(values.starts, values.lengths, bitmap)
        return texts.dictionary_encode() if kind is AvroKind.WORD else texts

    def _texts(self, starts: Array, lengths: Array, bitmap: pa.Buffer | None) -> pa.Array:
        """Copy spans of the data into an array of text."""
        octets = self._copy(starts, lengths, bitmap)
        texts = pa.Array.from_buffers(pa.string(), len(octets), octets.buffers())
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise damaged(self.group.file, "a text is not UTF-8") from None
        return texts

    def _copy(self, starts: Array, lengths: Array, bitmap: pa.Buffer | None) -> pa.Array:
        """Copy spans of the data into a binary array.

        The spans and the gaps between them are an array over the data, and every other element of
        it is taken: one copy, made by Arrow.
        """
        count = starts.size
        bounds = np.empty(2 * count, np.int32)
        if bitmap is not None:  # nulls have no position: put each behind the value before it
            starts = np.maximum.accumulate(starts)
        bounds[0::2] = starts
        np.add(starts, lengths, out=bounds[1::2], casting="unsafe")
        data = [None, pa.py_buffer(bounds), pa.py_buffer(self.group.data)]
        gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, data)
        if self._even is None:
            even = np.arange(0, 2 * count, 2, dtype=np.int64)
            self._even = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(even)])
        spans = gaps.take(self._even)
        if bitmap is None:
            return spans
        return pa.Array.from_buffers(pa.binary(), count, [bitmap, *spans.buffers()[1:]])

    def _json_texts(self, name: str, spans: pa.DictionaryArray) -> pa.Array:
        """Return arrays or maps as JSON text; each distinct one is read once."""
        kind = next(item.type for item in self.schema.fields if item.name == name).value_type
        assert kind is not None
        try:
            values = [read_value(kind, span, 0)[0] for span in spans.dictionary.to_pylist()]
        except ValueDamaged as error:
            raise damaged(self.group.file, str(error)) from None
        texts = [msgspec.json.encode(value).decode() for value in values]
        return make_array(texts, pa.string()).take(spans.indices)

    def _flat_maps(
        self, values: dict[str, _Values], count: int
    ) -> dict[str, dict[str, pa.Array]] | None:
        """Return the columns per key of all maps; None if they have too many keys, or long ones."""
        flat = {}
        for name, column in self.plan.items():
            if column.kind is AvroKind.TEXT_MAP:
                columns = self._flat_map(name, values[name].entries, count)
                if columns is None:
                    return None
                flat[name] = columns
        return flat

    def _flat_map(
        self, name: str, entries: list[_Entries], count: int
    ) -> dict[str, pa.Array] | None:
        columns = self._same_keys(name, entries, count)
        if columns is not None:
            return columns
        found = [self.keys.find(self.walk, item.key_starts, item.key_lengths) for item in entries]
        num_keys = len(self.keys.names)
        starts = np.zeros((num_keys, count), np.int64)
        lengths = np.full((num_keys, count), -1, np.int64)
        everywhere = np.arange(count)
        for item, numbers in zip(entries, found, strict=True):
            if numbers is None:
                return None
            # Of equal keys in one map the last one counts.
            places = numbers * count + (everywhere if item.rows is None else item.rows)
            starts.ravel()[places] = item.starts
            lengths.ravel()[places] = item.lengths
        columns = {}
        for key, key_starts, key_lengths in zip(self.keys.names, starts, lengths, strict=True):
            valid = key_lengths >= 0
            if valid.all():
                columns[f"{name}.{key}"] = self._texts(key_starts, key_lengths, None)
            elif valid.any():
                np.maximum(key_lengths, 0, out=key_lengths)
                columns[f"{name}.{key}"] = self._texts(key_starts, key_lengths, _bitmap(valid))
        return columns

    def _same_keys(
        self, name: str, entries: list[_Entries], count: int
    ) -> dict[str, pa.Array] | None:
        """Return the columns of maps whose first, second, … keys are the same in all records.

        None if they are not, if a map may have a key twice, or if there are too many keys.
        """
        keys = [self.keys.find_common(self.walk, i.key_starts, i.key_lengths) for i in entries]
        if None in keys or len(set(keys)) < len(keys):
            return None
        columns = {}
        for key, item in zip(keys, entries, strict=True):
            column = f"{name}.{key}"
            values = _Values(starts=item.starts, lengths=item.lengths)
            if item.rows is not None:
                valid = np.zeros(count, np.bool_)
                valid[item.rows] = True
                values = values.spread(item.rows, valid)
            columns[column] = self._column(column, AvroKind.TEXT, values, count)
        return columns


class _KeyTable:
    """The distinct keys of the maps of a file, found by a perfect hash of their bytes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.names: list[str] = []
        self._known: dict[bytes, str] = {}
        self._words = np.zeros((0, _MAX_KEY_BYTES // 8), _U64)
        self._lengths = np.zeros(0, np.int64)
        self._table = np.zeros(1 << _HASH_BITS, np.int64)
        self._factors = _hash_factors(0)

    def find(self, walk: RecordWalk, starts: Array, lengths: Array) -> Array | None:
        """Return the number of each key; None if there are too many keys, or long ones."""
        longest = int(lengths.max(initial=0))
        if longest > _MAX_KEY_BYTES:
            return None
        lengths = lengths.astype(np.int64, copy=False)
        words = []
        for index in range(max(1, (longest + 7) // 8)):
            word = walk.words_at(starts + 8 * index if index else starts)
            words.append(word & _MASKS[np.clip(lengths - 8 * index, 0, 8)])
        while True:
            numbers, wrong = self._look_up(words, lengths)
            if wrong is None:
                return numbers
            row = int(np.argmax(wrong))
            start = int(starts[row])
            if not self._add(walk.octets[start : start + int(lengths[row])].tobytes()):
                return None

    def find_common(self, walk: RecordWalk, starts: Array, lengths: Array) -> str | None:
        """Return the key if all are the same; None if they are not, or as in `find`."""
        size, start = int(lengths[0]), int(starts[0])
        if size > _MAX_KEY_BYTES or (lengths != size).any():
            return None
        key: bytes = walk.octets[start : start + size].tobytes()
        for index in range(0, size, 8):
            words = walk.words_at(starts + index if index else starts)
            if size - index < 8:
                words &= _MASKS[size - index]
            if (words != _U64(int.from_bytes(key[index : index + 8], "little"))).any():
                return None
        if key not in self._known and not self._add(key):
            return None
        return self._known[key]

    def _look_up(self, words: list[Array], lengths: Array) -> tuple[Array, Array | None]:
        """Return the numbers of keys, and which of them are wrong because a key is new."""
        if not self.names:
            return lengths, np.ones(lengths.size, np.bool_)
        sums = lengths.view(_U64) * self._factors[-1]
        for word, factor in zip(words, self._factors, strict=False):
            sums += word * factor
        numbers = self._table[(sums >> _U64(64 - _HASH_BITS)).view(np.int64)]
        wrong = self._lengths[numbers] != lengths
        for index, word in enumerate(words):
            wrong |= self._words[:, index][numbers] != word
        return numbers, wrong if wrong.any() else None

    def _add(self, key: bytes) -> bool:
        """Add a key; returns whether that is possible."""
        if len(self.names) >= MAX_MAP_COLUMNS:
            return False
        try:
            self.names.append(key.decode())
        except UnicodeDecodeError:
            raise damaged(self.file, "the key of a map is not UTF-8") from None
        words = np.frombuffer(key.ljust(_MAX_KEY_BYTES, b"\0"), "<u8")
        self._words = np.vstack([self._words, words])
        self._lengths = np.append(self._lengths, len(key))
        for seed in range(_HASH_ATTEMPTS):
            self._factors = _hash_factors(seed)
            sums = self._lengths.view(_U64) * self._factors[-1]
            sums += (self._words * self._factors[:-1]).sum(axis=1, dtype=_U64)
            slots = (sums >> _U64(64 - _HASH_BITS)).view(np.int64)
            if len(set(slots.tolist())) == slots.size:
                self._table[:] = 0
                self._table[slots] = np.arange(slots.size)
                self._known[key] = self.names[-1]
                return True
        self.names.pop()
        self._words, self._lengths = self._words[:-1], self._lengths[:-1]
        return False


def _hash_factors(seed: int) -> Array:
    """Return odd multipliers of the hash, one per word of a key and one for its length."""
    count = _MAX_KEY_BYTES // 8 + 1
    numbers = [(seed * count + index + 1) * _GOLDEN for index in range(count)]
    return np.array([(n ^ n >> 31) * _GOLDEN % (1 << 64) | 1 for n in numbers], _U64)


def _bitmap(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def decode_file_entries(
    data: bytes,
    file: str,
    limit: int,
    *,
    num_entries: int | None = None,
    fields: Iterable[str] | None = None,
) -> pa.Table:
    """Return the entries of a manifest as a table of adds, in the order of the file.

    Args:
        data: the bytes of the manifest.
        file: its name, for errors.
        limit: the number of bytes that it may have uncompressed.
        num_entries: the number of entries that the state gives for it.
        fields: the fields to decode, all by default; others are skipped.

    Raises:
        LogCorrupt: the manifest is damaged, or does not have `num_entries` entries.
        UnsupportedProtocol: its codec or its schema is not known.
    """
    container = read_container(data, file, limit)
    if num_entries is not None and container.num_records != num_entries:
        raise LogCorrupt(
            f"the manifest has {container.num_records} entries, and its state says {num_entries}.",
            next="Restore the file from a backup, or read an earlier version.",
            file=file,
        )
    wanted = ENTRY_COLUMNS if fields is None else {name: ENTRY_COLUMNS[name] for name in fields}
    return decode_columns(container, wanted)
