"""A reusable buffer of the lines of log files.

Fresh memory costs a page fault every 4 KiB, which for a large log takes as long as decoding it. One
buffer is therefore reused for all files of a load. A commit consists mostly of adds, with another
action in its first or last line. The buffer separates those lines from the adds when a file is
added, so that the remaining lines can be decoded as columns. Many small files are added as one
batch: a few vectorized operations find the line boundaries and the line kinds of the whole batch.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import concat_bytes, make_array, to_numpy
from arrowlog.decode.line_splitter import adjacent_rows, count_line_feeds, cut_lines, int64_array
from arrowlog.decode.row_decoder import NonAddLines
from arrowlog.formats.indextables import (
    COMPRESSED_FIRST_BYTES,
    INDEXTABLES,
    check_plain_size,
    crc32,
    decompress,
    is_compressed,
)
from arrowlog.storage import SMALL_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from arrowlog.decode.columnar_decoder import LineTemplate
    from arrowlog.decode.schema_decoder import LearnedShapes
    from arrowlog.formats import Format

# A sequence number is `file number << SEQ_LINE_BITS | line number`.
SEQ_LINE_BITS = 32
# From this many bytes on, decompressing in threads and counting lines with numpy pay off.
_LARGE_FILE_BYTES = 1 << 17
# Fewer files than this are added one by one: a batch costs a fixed number of Arrow calls.
_BATCH_MIN_FILES = 8
# Decompressed bytes of a batch. Bounds the memory and stays within 32-bit Arrow offsets.
_BATCH_MAX_BYTES = 1 << 28
# Adjacent adds that are worth an operation of Python, on average.
_MOVED_BYTES_MIN = 1 << 11
_ADD_PREFIX = b'{"add":'
# A first line that contains this declares the CRC-32 of the lines after it; arrowlog writes it.
_CHECKSUM_MARK = b'"checksum":"crc32:'
_LINE_FEED = 10
_SHAPELESS_BUFFERS_MAX = 16  # after so many buffers without a template, one is looked for again


class LineBuffer:
    """The lines of log files, in log order.

    `view` holds the buffered lines and `numbers` their sequence numbers; `apart` holds the lines
    that were separated from them. Of a file that is added alone, only the first and the last line
    are separated if they are not adds; in a batch, every line that is not an add is separated. File
    i is `names[i]` of version `versions[i]` and has `lines[i]` lines. `sums` maps the number of
    each file whose first line declares a checksum to the CRC-32 of all its lines but the first.
    """

    def __init__(
        self, limit: int, pool: pa.MemoryPool | None = None, table_format: Format = INDEXTABLES
    ) -> None:
        """Create an empty buffer.

        Args:
            limit: Maximum size of one decompressed file, in bytes.
            pool: Arrow memory pool for intermediate results.
            table_format: The format of the log that the files belong to.
        """
        self.limit = limit
        self.pool = pool
        self.format = table_format
        self._compressed_first_bytes = (
            frozenset(COMPRESSED_FIRST_BYTES) if table_format.compressed_commits else frozenset()
        )
        # A first line that contains this declares the checksum of the other lines.
        self._checksum_mark = _CHECKSUM_MARK if table_format.verified_commits else None
        self.data = bytearray()
        self._stage: NDArray[np.uint8] | None = None
        # The templates of the lines decoded last; the next ones probably have them too.
        self.templates: list[LineTemplate] = []
        # What the schema decoder has learned of lines without a template, and how often in a row
        # none was found.
        self.learned: LearnedShapes = {}
        self.num_shapeless = 0
        self.clear()

    def clear(self) -> None:
        """Remove all files, but keep the memory for the next ones."""
        self._begin = self.size = 0
        # The lines of the first batch stay where they are, in Arrow memory or in that in which they
        # were collected, without a copy into `data`, until more lines follow.
        self._first_lines: memoryview | None = None
        self.names: list[str] = []
        self.versions: list[int] = []
        self.lines: list[int] = []
        self.seq_numbers: list[pa.Array] = []
        self.non_add_lines: list[NonAddLines] = []
        self.sums: dict[int, int] = {}

    def drop_adds(self) -> None:
        """Forget the buffered lines; those that were separated, and the counts and sums, stay."""
        self._begin = self.size = 0
        self._first_lines, self.seq_numbers = None, []

    def is_shapeless(self) -> bool:
        """Return whether to expect that lines share no template, as those before them.

        A template is looked for again from time to time.
        """
        if not self.num_shapeless:
            return False
        self.num_shapeless = (self.num_shapeless + 1) % _SHAPELESS_BUFFERS_MAX
        return self.num_shapeless > 0

    @property
    def kept(self) -> int:
        """The number of buffered lines."""
        return sum(map(len, self.seq_numbers))

    @property
    def end(self) -> int:
        """Where the buffered lines end in `data`, and the next file begins."""
        return self._begin + self.size

    @property
    def view(self) -> memoryview:
        """The buffered lines. Release the view before more files are added."""
        if self._first_lines is not None:
            return self._first_lines[:]
        return memoryview(self.data)[self._begin : self.end]

    def staging_memory(self, room: int) -> memoryview:
        """Return at least `room` bytes of memory in which to collect small files before `put`.

        The operating system commits a page when it is touched. numpy requests large pages, where
        there are any, for what is larger than 4 MiB: they save a page fault every 4 KiB.
        """
        self.reserve(0).release()  # what `put` left in this memory is overwritten
        if self._stage is None or len(self._stage) < room:
            self._stage = np.empty(room, np.uint8)
        return self._stage.data

    def reserve(self, room: int) -> memoryview:
        """Return the free end of the buffer, at least `room` bytes.

        Release the view before the next call, which may replace the buffer or append to it.
        """
        first_lines, self._first_lines = self._first_lines, None
        if len(self.data) < self.end + room:
            grown = bytearray(max(self.end + room, 2 * len(self.data)))
            if first_lines is None:
                grown[: len(self.data)] = self.data
            self.data = grown
        if first_lines is not None:
            self.data[: self.size] = first_lines
        return memoryview(self.data)[self.end :]

    def accept(self, name: str, version: int, length: int) -> None:
        """Add the file that was read into the free end of the buffer.

        `length` is the size of the file as stored, compressed or not. Raises `LogCorrupt`, naming
        the file, if it is empty, damaged or too large; so do the other methods that add files.
        """
        start = self.end
        if self._is_compressed(self.data, start, length):
            raw = bytes(memoryview(self.data)[start : start + length])
            self.append(name, version, decompress(raw, name, self.limit))
        else:
            check_plain_size(length, name, self.limit)
            self._close_file(name, version, start + length)

    def append(self, name: str, version: int, plain: bytes | bytearray) -> None:
        """Add a file that is already decompressed."""
        check_plain_size(len(plain), name, self.limit)
        self.reserve(len(plain) + 1).release()
        start = self.end
        stop = start + len(plain)
        self.data[start:stop] = plain
        self._close_file(name, version, stop)

    def fill(self, names: Sequence[str], versions: Sequence[int], raws: Sequence[bytes]) -> None:
        """Add files as stored. Several large ones are decompressed in parallel."""
        if max(map(len, raws), default=0) <= SMALL_FILE_BYTES:
            self.put(names, versions, b"".join(raws), list(accumulate(map(len, raws))))
            return
        large = [
            i
            for i, raw in enumerate(raws)
            if len(raw) > _LARGE_FILE_BYTES and self._is_compressed(raw, 0, len(raw))
        ]
        decompressed: dict[int, bytes] = {}
        if len(large) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                texts = pool.map(lambda i: self._decompress(raws[i], names[i]), large)
                decompressed = dict(zip(large, texts, strict=True))
        for i, raw in enumerate(raws):
            # pop: free each text once it is in the buffer
            plain = decompressed.pop(i) if i in decompressed else self._decompress(raw, names[i])
            self.append(names[i], versions[i], plain)

    def put(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        raws: bytes | memoryview,
        ends: Sequence[int],
    ) -> None:
        """Add small files as stored: `raws` is their concatenation, `ends` where each one ends.

        Equivalent to `append` for each file, with two differences: every line that is not an add is
        separated, and the work is a few operations per batch instead of dozens per file.
        """
        few_files = len(ends) < _BATCH_MIN_FILES
        if (
            few_files
            or ends[-1] > _BATCH_MAX_BYTES
            or not self._all_plain(raws, np.array(ends, np.int64))
        ):
            texts = [
                _with_line_feed(self._decompress(bytes(raws[start:stop]), name))
                for name, (start, stop) in zip(names, pairwise((0, *ends)), strict=True)
            ]
            if few_files or sum(map(len, texts)) > _BATCH_MAX_BYTES:
                for name, version, text in zip(names, versions, texts, strict=True):
                    self.append(name, version, text)
                return
            raws, ends = b"".join(texts), list(accumulate(map(len, texts)))
        self._add_batch(raws, np.array(ends, np.int64))
        self.names += names
        self.versions += versions

    def _is_compressed(self, data: bytes | bytearray, start: int, length: int) -> bool:
        return self.format.compressed_commits and is_compressed(data, start, length)

    def _decompress(self, raw: bytes, name: str) -> bytes:
        """Return the plain content of a file, which may be compressed if the format allows it."""
        if self.format.compressed_commits:
            return decompress(raw, name, self.limit)
        check_plain_size(len(raw), name, self.limit)
        return raw

    def _all_plain(self, data: bytes | memoryview, ends: NDArray[np.int64]) -> bool:
        """Whether every file is uncompressed, non-empty, within `limit` and ends a line."""
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        sizes = ends - starts
        if sizes.min() == 0 or sizes.max() > self.limit:
            return False
        octets = np.frombuffer(data, np.uint8)
        if not bool((octets[ends - 1] == _LINE_FEED).all()):
            return False
        return self._compressed_first_bytes.isdisjoint(octets[starts].tolist())

    def _add_batch(self, data: bytes | memoryview, ends: NDArray[np.int64]) -> None:
        """Add the lines of many plain files, each of which ends with a line feed."""
        lines = cut_lines(data)
        stops = np.frombuffer(lines.buffers()[1], np.int32)[1:].astype(np.int64)
        # Per file: the index of its first line, and the index after its last line.
        line_stops = np.searchsorted(stops, ends) + 1
        line_starts = np.concatenate([np.zeros(1, np.int64), line_stops[:-1]])
        num_lines = line_stops - line_starts
        bases = (np.arange(len(ends)) + len(self.names)) << SEQ_LINE_BITS
        numbers = np.arange(1, len(stops) + 1) + np.repeat(bases - line_starts, num_lines)
        self._add_checksums(data, stops[line_starts], ends, lines.take(int64_array(line_starts)))
        self._separate(NonAddLines(int64_array(numbers), lines), data, stops)
        self.lines += num_lines.tolist()

    def _separate(
        self, batch: NonAddLines, data: bytes | memoryview, stops: NDArray[np.int64]
    ) -> None:
        """Buffer the adds of a batch and store its other lines in `apart`.

        `data` are the lines, and `stops` is where each one ends.
        """
        is_add = pc.starts_with(batch.lines, _ADD_PREFIX)
        self.seq_numbers.append(pc.filter(batch.seq, is_add, memory_pool=self.pool))
        self.non_add_lines.append(batch.filter(pc.invert(is_add), self.pool))
        lines = self._close_gaps(data, stops, is_add)
        if lines is None:
            lines = concat_bytes(pc.filter(batch.lines, is_add, memory_pool=self.pool))
        if self.size:
            with self.reserve(len(lines)) as free:
                free[: len(lines)] = lines
        else:
            self._begin, self._first_lines = 0, lines
        self.size += len(lines)

    def _close_gaps(
        self, data: bytes | memoryview, stops: NDArray[np.int64], is_add: pa.Array
    ) -> memoryview | None:
        """Move the adds among collected lines together; returns them.

        Arrow's filter takes fresh memory for them, up to three times as much as they have. Returns
        None if the lines were not collected here, or if there are too many runs of adds to be moved
        one by one.
        """
        if not isinstance(data, memoryview):
            return None
        owner: Any = data.obj
        if owner is not self._stage:
            return None
        runs = adjacent_rows(to_numpy(pc.indices_nonzero(is_add)))
        if len(runs) * _MOVED_BYTES_MIN > len(data):
            return None
        size = 0
        for first, stop in runs:
            start, end = stops[first - 1] if first else 0, stops[stop - 1]
            data[size : size + end - start] = data[start:end]
            size += end - start
        return data[:size]

    def _add_checksums(
        self,
        data: bytes | memoryview,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        first_lines: pa.Array,
    ) -> None:
        """Compute the CRC-32 of each file in a batch whose first line declares one.

        `starts` is where the second line of each file begins, `ends` where the file ends.
        """
        mark = self._checksum_mark
        if mark is None or mark not in bytes(concat_bytes(first_lines)):
            return
        with memoryview(data) as view:
            for file in pc.indices_nonzero(pc.match_substring(first_lines, mark)).to_pylist():
                self.sums[len(self.names) + file] = crc32(view[starts[file] : ends[file]])

    def _close_file(self, name: str, version: int, stop: int) -> None:
        """Complete the file whose plain bytes are in `data` from `end` to `stop`.

        Ends its last line with a line feed, counts its lines, and separates its first and its last
        line if they are not adds.
        """
        data, start, file = self.data, self.end, len(self.names)
        if data[stop - 1] != _LINE_FEED:
            if stop == len(data):
                data.append(_LINE_FEED)
            data[stop] = _LINE_FEED
            stop += 1
        num_lines = _count_lines(data, start, stop)
        first_kept, num_kept, separated = 1, num_lines, []
        if not data.startswith(_ADD_PREFIX, start):
            end = data.index(_LINE_FEED, start) + 1
            first_line = bytes(memoryview(data)[start:end])
            separated.append((1, first_line))
            first_kept, num_kept, start = 2, num_lines - 1, end
            if self._checksum_mark is not None and self._checksum_mark in first_line:
                with memoryview(data) as view:
                    self.sums[file] = crc32(view[start:stop])
        last = data.rfind(_LINE_FEED, start, stop - 1) + 1 or start
        if num_kept and not data.startswith(_ADD_PREFIX, last):
            separated.append((num_lines, bytes(memoryview(data)[last:stop])))
            num_kept, stop = num_kept - 1, last
        if not self.size:
            self._begin = start if stop > start else self._begin
        elif start > self.end:  # close the hole that the first line left
            with memoryview(data) as view:
                view[self.end : self.end + stop - start] = view[start:stop]
        self.size += stop - start
        self.names.append(name)
        self.versions.append(version)
        self.lines.append(num_lines)
        self._assign_seq(file << SEQ_LINE_BITS, first_kept, num_kept, separated)

    def _assign_seq(
        self, base: int, first_kept: int, num_kept: int, separated: list[tuple[int, bytes]]
    ) -> None:
        """Record the sequence numbers of a file's buffered lines and its separated lines."""
        first_seq = base + first_kept
        self.seq_numbers.append(int64_array(np.arange(first_seq, first_seq + num_kept)))
        if separated:
            seq = make_array([base + line for line, _ in separated], pa.int64())
            self.non_add_lines.append(
                NonAddLines(seq, make_array([text for _, text in separated], pa.binary()))
            )


def _with_line_feed(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"


def _count_lines(data: bytearray, start: int, stop: int) -> int:
    if stop - start < _LARGE_FILE_BYTES:
        return data.count(_LINE_FEED, start, stop)
    with memoryview(data) as view:
        return count_line_feeds(view[start:stop])
