"""Cut the values out of lines that share a layout, and verify everything around them.

A layout is a line as constant texts with values in between; a value has no comma in it. One pass
over a block finds its commas and line feeds. A line with the right number of commas has its values
at known distances from them, so a few vector operations over all lines give the borders of every
value. The borders are the offsets of an Arrow array over the block, of which every other element is
constant text. Taking those elements out copies the constant text of all lines into one buffer,
which must be the same text over and over. Taking the others out gives the values.

A block should fit the second-level cache of the processor: it is gone over several times. Pure: no
I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import concat_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_COMMA, _LINE_FEED, _QUOTE, _BACKSLASH = b',\n"\\'
_FIRST_PRINTABLE, _FIRST_NON_ASCII = 32, 128
_BLOCK_BYTES = 1 << 21
_BLOCK_MIN_LINES = 512  # of long lines: a block has a fixed cost per value of a line
# Memory is set aside for one comma or line feed in so many bytes; more follows if there are more.
_MARKED_BYTES_MIN = 8
# Runs of adjacent lines of one layout that are worth an operation each: a commit has its adds and
# its removes one after the other.
_RUNS_MAX = 16
# Searched at a time: larger temporary arrays cost page faults.
_SEARCHED_BYTES = 1 << 17
# A block of a very long line; borders are 32-bit numbers.
_BLOCK_BYTES_MAX = 1 << 28


@dataclass(slots=True)
class LineLayout:
    """A line as constant texts with values in between, and where its values lie.

    A line has `width` commas and line feeds; number 0 is the line feed before it. A border is at a
    distance, in bytes, from one of them. The borders of a line are its start, start and stop of
    every value, and its end. `constants` are the texts before, between and after the values.
    """

    width: int = 0
    anchors: list[int] = field(default_factory=lambda: [0])
    distances: list[int] = field(default_factory=lambda: [1])
    constants: list[bytes] = field(default_factory=lambda: [b""])

    @property
    def num_values(self) -> int:
        """The number of values in a line."""
        return len(self.constants) - 1

    def add_field(self, before: bytes, after: bytes | None) -> None:
        """Append the text between two commas: a value, or constant text if `after` is None."""
        if self.width:
            self.constants[-1] += b","
        self.constants[-1] += before
        if after is not None:
            self.anchors += [self.width, self.width + 1]
            self.distances += [1 + len(before), -len(after)]
            self.constants.append(after)
        self.width += 1

    def close(self) -> LineLayout:
        """End the line."""
        self.anchors.append(self.width)
        self.distances.append(1)
        self.constants[-1] += b"\n"
        return self


@dataclass(slots=True)
class SplitLines:
    """The values of the lines that have a layout.

    `values` are one string array per requested group of values: first the first value of all
    lines, then the second, and so on. `rows` are the indexes of the lines of the block that have
    the layout, None for all of them. `stops` is where each line of the block ends, its line feed
    included.
    """

    values: list[pa.Array]
    rows: NDArray[np.int64] | None
    stops: NDArray[np.int32]

    @property
    def count(self) -> int:
        """The number of lines in the block."""
        return len(self.stops)

    @property
    def num_matching(self) -> int:
        """The number of lines that have the layout."""
        return self.count if self.rows is None else len(self.rows)


def count_line_feeds(data: bytes | memoryview) -> int:
    """Return the number of line feeds."""
    return _count(data, np.equal, _LINE_FEED)


def count_control_characters(data: bytes | memoryview) -> int:
    """Return the number of control characters, line feeds included."""
    return _count(data, np.less, _FIRST_PRINTABLE)


def _count(data: bytes | memoryview, compare: np.ufunc, other: int) -> int:
    """Return how many bytes compare as true with another one."""
    octets = np.frombuffer(data, np.uint8)
    found = np.empty(min(len(octets), _SEARCHED_BYTES), np.bool_)
    count = 0
    for start in range(0, len(octets), _SEARCHED_BYTES):
        part = octets[start : start + _SEARCHED_BYTES]
        count += int(np.count_nonzero(compare(part, other, out=found[: len(part)])))
    return count


def find_line_feeds(data: bytes | memoryview) -> NDArray[np.int64]:
    """Return the positions of all line feeds."""
    return find_octets(data, _LINE_FEED)


def find_octets(
    data: bytes | memoryview, wanted: int, following: int | None = None
) -> NDArray[np.int64]:
    """Return the positions of a byte; if there is a second one, of those it directly follows."""
    octets = np.frombuffer(data, np.uint8)
    parts = [np.zeros(0, np.int64)]
    for start in range(0, len(octets), _SEARCHED_BYTES):
        found = octets[start : start + _SEARCHED_BYTES] == wanted
        if following is not None:
            after = octets[start + 1 : start + 1 + _SEARCHED_BYTES]
            found = found[: len(after)]
            found &= after == following
        parts.append(np.flatnonzero(found) + start)
    return np.concatenate(parts)


def cut_lines(data: bytes | memoryview) -> pa.Array:
    """Return whole lines, with their line feeds, as an array over the buffer, without a copy.

    The buffer must be smaller than 2 GB.
    """
    stops = (find_line_feeds(data) + 1).astype(np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), stops])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(stops), buffers)


def take_lines(
    data: bytes | memoryview, stops: NDArray[np.int64], rows: NDArray[np.int64]
) -> bytes | memoryview:
    """Return some of the lines of a buffer one after the other; `stops` is where each line ends."""
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    runs = adjacent_rows(rows)
    if len(runs) <= _RUNS_MAX:
        return b"".join(data[starts[start] : stops[stop - 1]] for start, stop in runs)
    offsets = np.concatenate([starts[:1], stops]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    lines = pa.Array.from_buffers(pa.binary(), len(stops), buffers)
    return concat_bytes(pc.take(lines, int64_array(rows)))


def int64_array(numbers: NDArray[np.int64]) -> pa.Array:
    """Return numbers as an Arrow array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def contains_octets(octets: NDArray[np.uint8], first: int, second: int | None = None) -> bool:
    """Return whether a byte occurs, directly followed by a second one if there is a second."""
    for start in range(0, len(octets), _SEARCHED_BYTES):
        found = octets[start : start + _SEARCHED_BYTES] == first
        if not found.any():
            continue
        if second is None:
            return True
        following = octets[start + 1 : start + 1 + _SEARCHED_BYTES] == second
        if bool((found[: len(following)] & following).any()):
            return True
    return False


def split_blocks(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Split a buffer of whole lines into blocks of whole lines."""
    size = max(_BLOCK_BYTES, _BLOCK_MIN_LINES * line_end(data, 0))
    start = 0
    while start < len(data):
        # A remainder of less than half a block is not worth a block of its own.
        rest = len(data) - start < size + size // 2
        stop = len(data) if rest else line_end(data, start + size)
        yield data[start:stop]
        start = stop


def line_end(data: bytes | memoryview, position: int) -> int:
    """Return the end of the line that contains a position, its line feed included."""
    window_size = 1 << 12
    while position < len(data):
        feed = bytes(data[position : position + window_size]).find(b"\n")
        if feed >= 0:
            return position + feed + 1
        position += window_size
    return len(data)


def lines_after(data: bytes | memoryview, position: int) -> list[bytes]:
    """Return some whole lines after a position, or the last line of the buffer."""
    window_size = 1 << 12
    while True:
        text = bytes(data[position : position + window_size])
        whole_lines = text.split(b"\n")[1:-1]  # the first and the last may be cut
        if whole_lines:
            return whole_lines
        if position + window_size >= len(data):
            return bytes(data).split(b"\n")[-2:-1]
        window_size *= 4


def split_lines(
    data: bytes | memoryview,
    layout: LineLayout,
    groups: Sequence[Sequence[int]],
    pool: pa.MemoryPool | None,
) -> SplitLines:
    """Cut the values out of the lines of a block that have the layout.

    `groups` are the indexes of the values that each array of the result has. No value contains a
    comma, quotation mark, backslash or control character. Raises `pa.ArrowInvalid` if a value is
    not UTF-8, or if the block is too large.
    """
    if len(data) > _BLOCK_BYTES_MAX:
        raise pa.ArrowInvalid("the block is too large")
    octets = np.frombuffer(data, np.uint8)
    marks, rows = _find_marks(octets), None
    feeds = np.arange(layout.width, len(marks), layout.width)
    borders = _regular_borders(octets, marks, feeds, layout)
    # The constant texts have all commas of a line, so that they also tell that its line feed is the
    # only one. If they differ, the line feeds have to be looked for.
    if borders is None or not _has_constants(data, borders, layout, pool):
        feeds = np.flatnonzero(octets[marks[1:]] == _LINE_FEED) + 1
        was_regular = borders is not None
        borders, rows = _irregular_borders(marks, feeds, layout)
        known_to_differ = was_regular and len(rows) == len(feeds)
        if known_to_differ or not _has_constants(data, borders, layout, pool):
            passed = _find_matching(octets, borders, layout)
            borders, rows = borders[passed], rows[passed]
    values = [_take(data, borders, layout, group, pool) for group in groups]
    bad = _lines_with_odd_values(values, len(borders))
    if bad is not None:
        passed = ~bad
        borders, rows = borders[passed], _chosen(rows, passed)
        values = [_take(data, borders, layout, group, pool) for group in groups]
    texts = [_to_strings(part) for part in values]
    return SplitLines(texts, rows, marks[feeds] + 1)


def _chosen(rows: NDArray[np.int64] | None, passed: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.flatnonzero(passed) if rows is None else rows[passed]


def _find_marks(octets: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the positions of all commas and line feeds, after a leading -1.

    It stands for a line feed before the block.
    """
    marks = np.empty(max(len(octets) // _MARKED_BYTES_MIN, 1) + _SEARCHED_BYTES + 1, np.int32)
    marks[0], count = -1, 1
    scratch = np.empty((2, min(len(octets), _SEARCHED_BYTES)), np.bool_)
    for start in range(0, len(octets), _SEARCHED_BYTES):
        part = octets[start : start + _SEARCHED_BYTES]
        is_mark, is_feed = scratch[:, : len(part)]
        np.equal(part, _COMMA, out=is_mark)
        np.equal(part, _LINE_FEED, out=is_feed)
        np.logical_or(is_mark, is_feed, out=is_mark)
        found = is_mark.nonzero()[0]
        stop = count + len(found)
        if stop > len(marks):
            marks = np.concatenate([marks[:count], np.empty(stop + len(octets) - start, np.int32)])
        np.add(found, start, out=marks[count:stop], casting="same_kind")
        count = stop
    return marks[:count]


def _regular_borders(
    octets: NDArray[np.uint8],
    marks: NDArray[np.int32],
    feeds: NDArray[np.int64],
    layout: LineLayout,
) -> NDArray[np.int32] | None:
    """Return the borders of lines that end with these marks; None if one is not a line feed.

    Whether the marks between them are commas is left to the comparison with the constant texts.
    """
    if len(marks) != len(feeds) * layout.width + 1:
        return None
    if not bool((octets[marks[feeds]] == _LINE_FEED).all()):
        return None
    borders = np.empty((len(feeds), len(layout.anchors)), np.int32)
    _write_borders(marks, layout, borders)
    return borders


def _write_borders(
    marks: NDArray[np.int32], layout: LineLayout, borders: NDArray[np.int32]
) -> None:
    """Write the borders of adjacent lines with the right number of commas.

    The first mark is the line feed before the first line.
    """
    step = marks.strides[0]
    shape, strides = (len(borders), layout.width + 1), (step * layout.width, step)
    lines = np.lib.stride_tricks.as_strided(marks, shape, strides)
    for column, (anchor, distance) in enumerate(zip(layout.anchors, layout.distances, strict=True)):
        np.add(lines[:, anchor], distance, out=borders[:, column])


def _irregular_borders(
    marks: NDArray[np.int32], feeds: NDArray[np.int64], layout: LineLayout
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the borders of the lines that have the right number of commas, and their indexes."""
    before = np.concatenate([np.zeros(1, np.int64), feeds[:-1]])
    rows = np.flatnonzero(feeds - before == layout.width)
    runs = adjacent_rows(rows)
    if len(runs) > _RUNS_MAX:
        index = before[rows][:, None] + np.array(layout.anchors)
        return marks[index] + np.array(layout.distances, np.int32), rows
    borders = np.empty((len(rows), len(layout.anchors)), np.int32)
    done = 0
    for start, stop in runs:
        _write_borders(marks[before[start] :], layout, borders[done : done + stop - start])
        done += stop - start
    return borders, rows


def adjacent_rows(rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the runs of adjacent rows among sorted ones, each as its first row and its end.

    >>> adjacent_rows(np.array([0, 1, 2, 5, 7, 8]))
    [(0, 3), (5, 6), (7, 9)]
    """
    if not len(rows):
        return []
    gaps = np.flatnonzero(rows[1:] - rows[:-1] != 1)
    starts = rows[np.concatenate([np.zeros(1, np.int64), gaps + 1])]
    stops = rows[np.concatenate([gaps, np.array([len(rows) - 1])])] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _has_constants(
    data: bytes | memoryview,
    borders: NDArray[np.int32],
    layout: LineLayout,
    pool: pa.MemoryPool | None,
) -> bool:
    """Return whether all lines have the constant texts of the layout, byte for byte."""
    if not len(borders):
        return True
    flat = borders.reshape(-1)
    if not bool((flat[1:] >= flat[:-1]).all()):  # a value of negative length
        return False
    num_texts = len(layout.constants)
    found = _take_elements(data, borders, np.arange(0, 2 * num_texts, 2, dtype=np.int32), pool)
    lengths = np.array(list(map(len, layout.constants)), np.int32)
    offsets = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1)
    text = b"".join(layout.constants)
    size = len(text)
    # The first line has the right texts, and every other line those of the line before it.
    if not bool((offsets[1 : num_texts + 1] == np.cumsum(lengths)).all()):
        return False
    if not bool((offsets[num_texts:] - offsets[:-num_texts] == size).all()):
        return False
    taken = found.buffers()[2].slice(0, size * len(borders))
    if not taken.slice(0, size).equals(pa.py_buffer(text)):
        return False
    return bool(taken.slice(size).equals(taken.slice(0, taken.size - size)))


def _find_matching(
    octets: NDArray[np.uint8], borders: NDArray[np.int32], layout: LineLayout
) -> NDArray[np.bool_]:
    """Return which lines have the constant texts of the layout: slower, but for each line."""
    passed: NDArray[np.bool_] = np.all(borders[:, 2::2] >= borders[:, 1:-1:2], axis=1)
    for column, text in enumerate(layout.constants):
        starts, stops = borders[:, 2 * column], borders[:, 2 * column + 1]
        passed &= stops - starts == len(text)
        rows = np.flatnonzero(passed)
        positions = starts[rows][:, None] + np.arange(len(text))
        passed[rows] = np.all(octets[positions] == np.frombuffer(text, np.uint8), axis=1)
    return passed


def _take(
    data: bytes | memoryview,
    borders: NDArray[np.int32],
    layout: LineLayout,
    group: Sequence[int],
    pool: pa.MemoryPool | None,
) -> pa.Array:
    """Take values out of all lines: first the first value of all lines, and so on."""
    del layout
    elements = 2 * np.array(group, np.int32)[:, None] + 1
    return _take_elements(data, borders, elements, pool)


def _take_elements(
    data: bytes | memoryview,
    borders: NDArray[np.int32],
    elements: NDArray[np.int32],
    pool: pa.MemoryPool | None,
) -> pa.Array:
    """Take elements out of all lines; element i of a line is between its borders i and i + 1.

    The result is in the order of the lines, or of the elements if those are a column vector.
    """
    count, width = borders.shape
    texts = pa.Array.from_buffers(
        pa.binary(),
        max(count * width - 1, 0),
        [None, pa.py_buffer(borders), pa.py_buffer(data)],
    )
    starts = np.arange(count, dtype=np.int32) * width
    by_element = elements.ndim > 1
    index = elements + starts if by_element else starts[:, None] + elements
    flat = np.ascontiguousarray(index).reshape(-1)
    indices = pa.Array.from_buffers(pa.int32(), len(flat), [None, pa.py_buffer(flat)])
    return pc.take(texts, indices, boundscheck=False, memory_pool=pool)


def _octets_of(values: pa.Array) -> NDArray[np.uint8]:
    data = values.buffers()[2]
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1)
    return np.frombuffer(data or b"", np.uint8, int(offsets[-1]))


def _lines_with_odd_values(values: Sequence[pa.Array], num_lines: int) -> NDArray[np.bool_] | None:
    """Return which lines have a value that does not stand for itself in JSON; None if none has.

    Such a value contains a quotation mark, a backslash or a control character.
    """
    bad: Any = None
    for part in values:
        octets = _octets_of(part)
        if not len(octets):
            continue
        if int(octets.min()) > _QUOTE and not contains_octets(octets, _BACKSLASH):
            continue  # the common case, in which no value has a space either
        is_odd = octets < _FIRST_PRINTABLE
        is_odd |= octets == _QUOTE
        is_odd |= octets == _BACKSLASH
        if not is_odd.any():
            continue
        bad = np.zeros(num_lines, np.bool_) if bad is None else bad
        offsets = np.frombuffer(part.buffers()[1], np.int32, len(part) + 1)
        bad[(np.searchsorted(offsets, np.flatnonzero(is_odd), "right") - 1) % num_lines] = True
    found: NDArray[np.bool_] | None = bad
    return found


def _to_strings(values: pa.Array) -> pa.Array:
    """Convert bytes to strings; `pa.ArrowInvalid` if one is not UTF-8."""
    octets = _octets_of(values)
    if not len(octets) or int(octets.max()) < _FIRST_NON_ASCII:
        return values.view(pa.string())
    return pc.cast(values, pa.string())
