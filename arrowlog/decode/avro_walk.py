"""Walk many Avro records in lock-step: one numpy operation reads a field of all of them. Pure.

A `Cursors` array has the position in each record. Every function takes the cursors and returns them
behind the value that it read. Bytes that are not a value of their type move the record's cursor
beyond the end of the data, where it stays: a walk never fails, and the caller tells by the cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from arrowlog.formats import MAX_VALUE_DEPTH, ValueDamaged, read_value

if TYPE_CHECKING:
    from arrowlog.formats import AvroType

Cursors = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]
ItemReader = Callable[[Array | None, Cursors], Cursors]

PADDING = 32  # zero bytes after the data, so that words can be read at every position of it
_U64 = np.uint64
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


class RecordWalk:
    """Reads values at many positions of a buffer."""

    def __init__(self, data: bytes) -> None:
        """Wrap the data, whose last `PADDING` bytes are zero and belong to no record."""
        self.size = len(data) - PADDING
        self.octets: Array = np.frombuffer(data, np.uint8)
        self.beyond = self.size + 1
        # A word at every position: the words overlap and are not aligned.
        self.words: Array = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))

    def words_at(self, cursors: Cursors) -> Array:
        """Return the 8 bytes at each position as little-endian numbers."""
        return self.words[np.minimum(cursors, self.beyond)]

    def longs(self, cursors: Cursors) -> tuple[Array, Cursors]:
        """Read zigzag varints."""
        first = self.octets.take(cursors, mode="clip")
        if first.max(initial=0) < 0x80:
            values = first.astype(np.int64)
            return (values >> 1) ^ -(values & 1), cursors + 1
        return self._long_varints(cursors)

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
        lengths, starts = self.longs(cursors)
        # As an unsigned number, a negative length is too large as well.
        if lengths.view(_U64).max(initial=0) > self.size:
            wrong = lengths.view(_U64) > self.size
            lengths[wrong] = 0
            starts[wrong] = self.beyond
        return starts, lengths, starts + lengths

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
            return self.texts(cursors)[2]
        if kind.kind == "long":
            return self.longs(cursors)[1]
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
            return self.skip(items, self.texts(at)[2] if is_map else at, depth + 1)

        return self.read_items(kind, cursors, skip_item)

    def read_items(self, kind: AvroType, cursors: Cursors, read_item: ItemReader) -> Cursors:
        """Read an array or a map, one item of all records at a time.

        `read_item` gets the numbers of the records that have a further item (None: all) and their
        cursors, and returns their cursors behind the item.
        """
        counts, stops, at = self.item_counts(kind, cursors)
        most = int(counts.max(initial=0))
        if stops is not None or most != counts.min(initial=most):
            return self._read_uneven_items(kind, cursors, read_item)
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
