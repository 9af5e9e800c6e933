"""Read many Avro records at once: find where they begin, and walk them in lock-step. Pure.

Walk: one numpy operation reads a field of all records. A `Cursors` array has the position in each
record. Every function takes the cursors and returns them behind the value that it read. Bytes that
are not a value of their type move the record's cursor beyond the end of the data, where it stays: a
walk never fails, and the caller tells by the cursor.

Find: Avro has no separators, so the beginning of a record is known only when the one before it was
read. But records of one writer look alike where one ends and the next begins, and a search for
those bytes finds most beginnings at once. The guess is certain if reading the records there shows
that the first begins with the blocks, each one begins where the one before it ends, every block
ends with a record, and each has as many as it says: that is what reading them one by one would have
found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from arrowlog.formats import MAX_VALUE_DEPTH, ValueDamaged, damaged, read_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrowlog.formats import AvroType

Cursors = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]
ItemReader = Callable[[Array | None, Cursors], Cursors]

PADDING = 32  # zero bytes after the data, so that words can be read at every position of it
_WORD_BYTES = 8
_U64 = np.uint64
_NOT_SMALL = 0x81  # bits of the first byte of varints that are negative or have further bytes
_STOP_BITS = _U64(0x8080808080808080)
_DATA_BITS = _U64(0x7F7F7F7F7F7F7F7F)
_ONE = _U64(1)
# Each step joins pairs of neighbouring groups of bits: (bits to keep, bits to shift, distance).
_JOIN_STEPS = (
    (_U64(0x007F007F007F007F), _U64(0x7F007F007F007F00), _U64(1)),
    (_U64(0x00003FFF00003FFF), _U64(0x3FFF00003FFF0000), _U64(2)),
    (_U64(0x000000000FFFFFFF), _U64(0x0FFFFFFF00000000), _U64(4)),
)
_SCALARS = ("boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed")
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
# Arrays with this many records or fewer are read record by record: an operation of numpy costs as
# much as reading some items.
_FEW_RECORDS = 4
# With fewer records, a guess costs more than reading the records one by one.
_GUESS_MIN_RECORDS = 64
# Beginnings that are compared. With few of them, bytes may agree by chance and the guess misses the
# records where they do not.
_SAMPLES = 12
_PATTERN_BYTES_MAX = 24  # on either side of a record's beginning
_PATTERN_BYTES_MIN = 3  # a shorter pattern would be found everywhere
_HISTOGRAM_BYTES = 1 << 14
_SEARCH_BYTES = 1 << 17  # at a time: memory that is reused, and fits the cache


class RecordWalk:
    """Reads values at many positions of a buffer."""

    def __init__(self, data: Any) -> None:
        """Wrap the data, whose last `PADDING` bytes are zero and belong to no record."""
        self.size = len(data) - PADDING
        self.octets: Array = np.frombuffer(data, np.uint8)
        self.beyond = self.size + 1
        self.words = _words(self.octets)

    def words_at(self, cursors: Cursors) -> Array:
        """Return the 8 bytes at each position as little-endian numbers."""
        return self.words[np.minimum(cursors, self.beyond)]

    def longs(self, cursors: Cursors) -> tuple[Array, Cursors]:
        """Read zigzag varints."""
        first = self.octets.take(cursors, mode="clip")
        if first.max(initial=0) >= 0x80:
            return self._long_varints(cursors)
        # Operations on bytes take an eighth of the time of those on 64-bit numbers.
        values = (first >> 1) ^ (0 - (first & 1))
        return values.view(np.int8).astype(np.int64), cursors + 1

    def _long_varints(self, cursors: Cursors) -> tuple[Array, Cursors]:
        words = self.words_at(cursors)
        stops = ~words & _STOP_BITS
        lowest = stops & (~stops + _ONE)
        mask = (lowest << _ONE) - _ONE  # all bits up to the end of the varint
        bits = words & mask & _DATA_BITS
        for keep, shift, distance in _JOIN_STEPS:
            bits = (bits & keep) | ((bits & shift) >> distance)
        after = cursors + (np.bitwise_count(mask) >> 3)
        if not lowest.all():
            self._extend_varints(np.flatnonzero(lowest == 0), cursors, bits, after)
        values = (bits >> _ONE).view(np.int64) ^ -(bits & _ONE).view(np.int64)
        return values, after

    def skip_longs(self, cursors: Cursors) -> Cursors:
        """Skip zigzag varints."""
        if self.octets.take(cursors, mode="clip").max(initial=0) < 0x80:
            return cursors + 1
        stops = ~self.words_at(cursors) & _STOP_BITS
        lowest = stops & (~stops + _ONE)
        if not lowest.all():  # of more than 8 bytes, or damaged
            return self._long_varints(cursors)[1]
        return cursors + ((np.bitwise_count(lowest - _ONE) >> 3) + 1)

    def _extend_varints(self, rows: Array, cursors: Cursors, bits: Array, after: Cursors) -> None:
        """Add the ninth and the tenth byte of varints that have them."""
        ninth = self.octets.take(cursors[rows] + 8, mode="clip").astype(_U64)
        tenth = self.octets.take(cursors[rows] + 9, mode="clip").astype(_U64)
        goes_on = ninth >= 0x80
        bits[rows] |= (ninth & _U64(0x7F)) << _U64(56)
        bits[rows] |= np.where(goes_on, tenth << _U64(63), _U64(0))
        after[rows] = cursors[rows] + np.where(goes_on, 10, 9)
        after[rows[goes_on & (tenth > 1)]] = self.beyond

    def ints(self, cursors: Cursors) -> tuple[Array, Cursors]:
        """Read zigzag varints of at most 32 bits."""
        values, after = self.longs(cursors)
        if values.size and (values.max() > _INT_MAX or values.min() < _INT_MIN):
            after[(values > _INT_MAX) | (values < _INT_MIN)] = self.beyond
        return values, after

    def indexes(self, cursors: Cursors, count: int) -> tuple[Array, Cursors]:
        """Read indexes below `count`: of a union's branch, or an enum's symbol."""
        first = self.octets.take(cursors, mode="clip")
        if first.max(initial=0) < min(0x80, 2 * count) and not (first & 1).any():
            return first >> 1, cursors + 1
        values, after = self.ints(cursors)
        wrong = (values < 0) | (values >= count)
        after[wrong] = self.beyond
        values[wrong] = 0
        return values, after

    def booleans(self, cursors: Cursors) -> tuple[Array, Cursors]:
        """Read booleans."""
        values = self.octets.take(cursors, mode="clip")
        after = cursors + 1
        if values.max(initial=0) > 1:
            after[values > 1] = self.beyond
        return values, after

    def texts(self, cursors: Cursors) -> tuple[Array, Array, Cursors]:
        """Read lengths and the bytes after them: starts, lengths and the cursors behind."""
        first = self.octets.take(cursors, mode="clip")
        if not np.bitwise_or.reduce(first) & _NOT_SMALL:  # lengths of one byte: the usual case
            lengths, starts = first >> 1, cursors + 1
            return starts, lengths, starts + lengths
        lengths, starts = self._long_varints(cursors)
        # As an unsigned number, a negative length is too large as well.
        if lengths.view(_U64).max(initial=0) > self.size:
            wrong = lengths.view(_U64) > self.size
            lengths[wrong] = 0
            starts[wrong] = self.beyond
        return starts, lengths, starts + lengths

    def skip_texts(self, cursors: Cursors) -> Cursors:
        """Skip lengths and the bytes after them."""
        first = self.octets.take(cursors, mode="clip")
        if np.bitwise_or.reduce(first) & _NOT_SMALL:
            return self.texts(cursors)[2]
        return cursors + ((first >> 1) + 1)

    def skip(self, kind: AvroType, cursors: Cursors, depth: int = 0) -> Cursors:
        """Skip a value of any type."""
        if kind.min_size == 0 or not cursors.size:
            return cursors
        if depth > MAX_VALUE_DEPTH:
            return np.full_like(cursors, self.beyond)
        if kind.kind in _SCALARS:
            return self._skip_scalar(kind, cursors)
        if kind.kind == "union":
            return self._skip_union(kind, cursors, depth)
        if kind.kind == "record":
            for item in kind.fields:
                cursors = self.skip(item.type, cursors, depth + 1)
            return cursors
        assert kind.items is not None
        without_bytes = kind.kind == "array" and kind.items.min_size == 0
        if cursors.size <= _FEW_RECORDS or without_bytes:
            return self._skip_one_by_one(kind, cursors, depth)
        return self.skip_items(kind, cursors, depth)

    def _skip_scalar(self, kind: AvroType, cursors: Cursors) -> Cursors:
        if kind.kind in ("string", "bytes"):
            return self.skip_texts(cursors)
        if kind.kind == "long":
            return self.skip_longs(cursors)
        if kind.kind == "int":
            return self.ints(cursors)[1]
        if kind.kind == "boolean":
            return self.booleans(cursors)[1]
        if kind.kind == "enum":
            return self.indexes(cursors, kind.size)[1]
        return cursors + kind.min_size  # a number or bytes of fixed size

    def _skip_union(self, kind: AvroType, cursors: Cursors, depth: int) -> Cursors:
        indexes, after = self.indexes(cursors, len(kind.branches))
        first = int(indexes[0])
        if (indexes == first).all():
            return self.skip(kind.branches[first], after, depth + 1)
        for index, branch in enumerate(kind.branches):
            rows = np.flatnonzero(indexes == index)
            if branch.min_size and rows.size:
                after[rows] = self.skip(branch, after[rows], depth + 1)
        return after

    def item_counts(self, kind: AvroType, cursors: Cursors) -> tuple[Array, Array | None, Cursors]:
        """Read the heads of blocks of items: numbers, ends where they are given (else -1)."""
        assert kind.items is not None
        counts, after = self.longs(cursors)
        stops = None
        if counts.min(initial=0) < 0:
            rows = np.flatnonzero(counts < 0)
            sizes, behind = self.longs(after[rows])
            stops = np.full(counts.size, -1, np.int64)
            inside = (sizes >= 0) & (sizes <= self.size)
            stops[rows] = np.where(inside, behind + sizes, self.beyond)
            after[rows] = behind
            counts[rows] = -counts[rows]
        if counts.view(_U64).max(initial=0) > self.size:  # more items than bytes
            wrong = counts.view(_U64) > self.size
            after[wrong] = self.beyond
            counts[wrong] = 0
        return counts, stops, after

    def skip_items(self, kind: AvroType, cursors: Cursors, depth: int) -> Cursors:
        """Skip an array or a map."""
        items, is_map = kind.items, kind.kind == "map"
        assert items is not None

        def skip_item(_: Array | None, at: Cursors) -> Cursors:
            return self.skip(items, self.skip_texts(at) if is_map else at, depth + 1)

        return self.read_items(kind, cursors, skip_item)

    def read_items(self, kind: AvroType, cursors: Cursors, read_item: ItemReader) -> Cursors:
        """Read an array or a map, one item of all records at a time.

        `read_item` gets the numbers of the records that have a further item (None: all) and their
        cursors, and returns their cursors behind the item.
        """
        first = self.octets.take(cursors, mode="clip")
        octet = int(first[0]) if first.size else 0
        if octet & _NOT_SMALL or (first != octet).any():
            return self._read_uneven_items(kind, cursors, read_item)
        most, at = octet >> 1, cursors + 1
        for _ in range(most):
            at = read_item(None, at)
            if at.min() > self.size:
                return at
        if most == 0:
            return at
        if not self.octets.take(at, mode="clip").any():  # no further block of items
            return at + 1
        return self._read_uneven_items(kind, at, read_item)

    def _read_uneven_items(
        self, kind: AvroType, cursors: Cursors, read_item: ItemReader
    ) -> Cursors:
        cursors = cursors.copy()
        active = np.arange(cursors.size)
        while active.size:
            counts, stops, at = self.item_counts(kind, cursors[active])
            left = counts.copy()
            while (rows := np.flatnonzero(left)).size:
                inner = read_item(active[rows], at[rows])
                at[rows] = inner
                left[rows] = np.where(inner > self.size, 0, left[rows] - 1)
            if stops is not None:
                at[(stops >= 0) & (stops != at)] = self.beyond
            cursors[active] = at
            active = active[(counts != 0) & (at <= self.size)]
        return cursors

    def _skip_one_by_one(self, kind: AvroType, cursors: Cursors, depth: int) -> Cursors:
        data: Any = self.octets[: self.size].data
        cursors = cursors.copy()
        for row, at in enumerate(cursors.tolist()):
            try:
                cursors[row] = read_value(kind, data, at, depth)[1]
            except ValueDamaged:
                cursors[row] = self.beyond
        return cursors


class BlockGroup(msgspec.Struct, frozen=True):
    """Uncompressed blocks, one after another and followed by padding, none of them empty.

    Block i begins at `starts[i]` and says that it has `counts[i]` records.
    """

    data: Array
    starts: Array
    counts: Array
    file: str

    @property
    def size(self) -> int:
        """The number of bytes of all blocks."""
        return len(self.data) - PADDING

    def is_proven(self, starts: Array, ends: Array) -> bool:
        """Return whether records from `starts` to `ends` are exactly those of the blocks."""
        return bool(
            starts.size == self.counts.sum()
            and ends[-1] == self.size
            and (ends[:-1] == starts[1:]).all()
            and (starts[np.cumsum(self.counts) - self.counts] == self.starts).all()
        )


class BlockMemory:
    """Memory for one group of blocks after another: fresh memory costs more than the copy."""

    def __init__(self) -> None:
        """Reserve nothing yet."""
        self._octets: Array = np.zeros(PADDING, np.uint8)

    def join(self, pieces: Iterable[Any], counts: Sequence[int], file: str) -> BlockGroup:
        """Join blocks and leave out those without records, which have no bytes either.

        The data of the group before is overwritten.
        """
        starts: list[int] = []
        at = 0
        for piece, count in zip(pieces, counts, strict=True):
            end = at + len(piece)
            if end + PADDING > self._octets.size:
                grown = np.empty(2 * (end + PADDING), np.uint8)
                grown[:at] = self._octets[:at]
                self._octets = grown
            if count:
                starts.append(at)
                self._octets[at:end] = np.frombuffer(piece, np.uint8)
                at = end
        self._octets[at : at + PADDING] = 0
        filled = [count for count in counts if count]
        return BlockGroup(
            self._octets[: at + PADDING],
            np.array(starts, np.int64),
            np.array(filled, np.int64),
            file,
        )


class StartGuess:
    """Guesses where records begin; what it learns in some blocks serves for the next ones."""

    def __init__(self, schema: AvroType) -> None:
        """Start without samples."""
        self.schema = schema
        self._samples = 0
        self._before = b""  # bytes that all sampled records have before their beginning
        self._after = b""  # and after it

    def guess(self, group: BlockGroup) -> Array:
        """Return positions where records may begin, ascending; those of blocks are among them."""
        if group.counts.sum() < _GUESS_MIN_RECORDS:
            return np.array(_read_starts(group, self.schema), np.int64)
        self._sample(group)
        pattern = self._before + self._after
        if len(pattern) < _PATTERN_BYTES_MIN:
            return group.starts
        hits = _search(group.data[: group.size], pattern) + len(self._before)
        hits = hits[: np.searchsorted(hits, group.size)]
        if not hits.size:
            return group.starts
        places = np.searchsorted(hits, group.starts)
        missing = hits[places.clip(max=hits.size - 1)] != group.starts
        return np.insert(hits, places[missing], group.starts[missing])

    def forget(self) -> None:
        """Drop what was learnt, after a guess that failed."""
        self._samples = 0

    def _sample(self, group: BlockGroup) -> None:
        """Compare the beginnings of blocks and, if those are few, of records that are read."""
        step = len(group.starts) // (4 * _SAMPLES) + 1
        places = group.starts[1::step].tolist()
        if self._samples + len(places) < _SAMPLES:
            per_block = _SAMPLES // len(group.starts) + 2
            places = sorted({*_read_starts(group, self.schema, per_block)} - {0})
        for at in places:
            before = group.data[max(0, at - _PATTERN_BYTES_MAX) : at].tobytes()
            after = group.data[at : at + _PATTERN_BYTES_MAX].tobytes()
            if self._samples == 0:
                self._before, self._after = before, after
            elif not (before.endswith(self._before) and after.startswith(self._after)):
                same = _common_length(self._before[::-1], before[::-1])
                self._before = self._before[len(self._before) - same :]
                self._after = self._after[: _common_length(self._after, after)]
            self._samples += 1


def find_starts(
    walk: RecordWalk, schema: AvroType, group: BlockGroup, starts: Array, ends: Array
) -> Array:
    """Return where the records begin, from a guess that misses some or has positions too many.

    Raises `LogCorrupt` if a record cannot be read, does not end with its block, or a block does not
    have as many records as it says.
    """
    fresh = ends
    while True:  # each round reads the records that follow those of the round before
        missing = np.unique(fresh[fresh < group.size])
        missing = missing[~np.isin(missing, starts, assume_unique=True)]
        if not missing.size:
            break
        fresh = walk.skip(schema, missing)
        starts, ends = np.append(starts, missing), np.append(ends, fresh)
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    chain = _follow(group, starts, ends)
    if not group.is_proven(starts[chain], ends[chain]):
        raise damaged(group.file, "a block does not have the number of records that it says")
    return starts[chain]


def _follow(group: BlockGroup, starts: Array, ends: Array) -> Array:
    """Return the rows that follow one another, from the first position to the end of the data."""
    following = np.searchsorted(starts, ends)
    adjacent = np.append(ends[:-1] == starts[1:], False)
    breaks = np.flatnonzero(~adjacent)
    runs, row = [], 0
    while True:
        last = int(breaks[np.searchsorted(breaks, row)])
        runs.append(np.arange(row, last + 1))
        end, row = int(ends[last]), int(following[last])
        if end == group.size:
            return np.concatenate(runs)
        if end > group.size or row >= starts.size or int(starts[row]) != end:
            raise damaged(group.file, "a record cannot be read, or does not end with its block")


def _read_starts(group: BlockGroup, schema: AvroType, per_block: int | None = None) -> list[int]:
    """Return where records begin, by reading them one by one until one cannot be read."""
    data: Any = group.data[: group.size].data
    starts = []
    for start, count in zip(group.starts.tolist(), group.counts.tolist(), strict=True):
        at = start
        for _ in range(count if per_block is None else min(count, per_block)):
            starts.append(at)
            try:
                at = read_value(schema, data, at)[1]
            except ValueDamaged:
                break
            if at >= group.size:
                break
    return starts


def _common_length(left: bytes, right: bytes) -> int:
    """Return the length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _search(octets: Array, pattern: bytes) -> Array:
    """Return all positions of a pattern: those of its rarest byte, filtered by the others."""
    histogram = np.bincount(octets[:_HISTOGRAM_BYTES], minlength=256)
    first = min(range(len(pattern)), key=lambda index: histogram[pattern[index]])
    places = octets[first : octets.size - len(pattern) + 1 + first]
    hits = np.concatenate(
        [
            np.flatnonzero(places[at : at + _SEARCH_BYTES] == pattern[first]) + at
            for at in range(0, places.size, _SEARCH_BYTES)
        ]
    )
    size = len(pattern)
    if size < _WORD_BYTES:
        for index in range(size):
            hits = hits[octets[hits + index] == pattern[index]]
        return hits
    words = _words(octets)
    for index in (*range(0, size - _WORD_BYTES, _WORD_BYTES), size - _WORD_BYTES):
        word = int.from_bytes(pattern[index : index + _WORD_BYTES], "little")
        same = words[hits + index] == _U64(word)
        hits = hits if same.all() else hits[same]
    return hits


def _words(octets: Array) -> Array:
    """Return a view with the word that begins at each position: they overlap, unaligned."""
    shape = (octets.size - _WORD_BYTES + 1,)
    return np.ndarray(shape, "<u8", buffer=octets.data, strides=(1,))
