"""Find where the records of Avro blocks begin: guess all positions at once, then prove them. Pure.

Avro has no separators, so the beginning of a record is known only when the one before it was read.
But records of one writer look alike where one ends and the next begins, and a search for those
bytes finds most beginnings at once. The guess is certain if reading the records there shows that
the first begins with the blocks, each one begins where the one before it ends, every block ends
with a record, and each has as many as it says: that is what reading them one by one would have
found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from arrowlog.decode.avro_walk import PADDING, Array, RecordWalk
from arrowlog.formats import ValueDamaged, damaged, read_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.formats import AvroType

# With fewer records, a guess costs more than reading the records one by one.
_GUESS_MIN_RECORDS = 64
# Beginnings that are compared. With few of them, bytes may agree by chance and the guess misses the
# records where they do not.
_SAMPLES = 16
_PATTERN_BYTES_MAX = 24  # on either side of a record's beginning
_PATTERN_BYTES_MIN = 3  # a shorter pattern would be found everywhere
_HISTOGRAM_BYTES = 1 << 14
_SEARCH_BYTES = 1 << 17  # at a time: memory that is reused, and fits the cache


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Uncompressed blocks, one after another and followed by padding, none of them empty.

    Block i begins at `starts[i]` and says that it has `counts[i]` records.
    """

    data: bytes
    starts: Array
    counts: Array
    file: str

    @classmethod
    def join(cls, pieces: Sequence[Any], counts: Sequence[int], file: str) -> BlockGroup:
        """Join blocks and leave out those without records, which have no bytes either."""
        filled = [(piece, count) for piece, count in zip(pieces, counts, strict=True) if count]
        sizes = [len(piece) for piece, _ in filled]
        return cls(
            b"".join([*(piece for piece, _ in filled), bytes(PADDING)]),
            np.cumsum([0, *sizes[:-1]])[: len(filled)],
            np.array([count for _, count in filled], np.int64),
            file,
        )

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
        octets: Array = np.frombuffer(group.data, np.uint8)[: group.size]
        hits = _search(octets, pattern) + len(self._before)
        hits = hits[: np.searchsorted(hits, group.size)]
        if not hits.size:
            return group.starts
        nearest = hits[np.searchsorted(hits, group.starts).clip(max=hits.size - 1)]
        return np.sort(np.concatenate([hits, group.starts[nearest != group.starts]]))

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
            before = group.data[max(0, at - _PATTERN_BYTES_MAX) : at]
            after = group.data[at : at + _PATTERN_BYTES_MAX]
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
    data: Any = memoryview(group.data)[: group.size]
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
    """Return all positions of a pattern: those of its rarest byte, filtered by the other bytes."""
    histogram = np.bincount(octets[:_HISTOGRAM_BYTES], minlength=256)
    order = sorted(range(len(pattern)), key=lambda index: histogram[pattern[index]])
    first = order[0]
    places = octets[first : octets.size - len(pattern) + 1 + first]
    hits = np.concatenate(
        [
            np.flatnonzero(places[at : at + _SEARCH_BYTES] == pattern[first]) + at
            for at in range(0, places.size, _SEARCH_BYTES)
        ]
    )
    for index in order[1:]:
        hits = hits[octets[hits + index] == pattern[index]]
    return hits
