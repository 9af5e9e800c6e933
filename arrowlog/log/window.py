"""A buffer that holds log files one after the other, unpacked, for the decoder.

Memory that is used again costs nothing; fresh memory costs a page fault every 4 KiB, which for a
large log is as much as all the decoding. So there is one buffer for all files of a load, filled
again and again.

A commit is mostly adds, with something else as its first or last line. Those lines are set apart
when a file is put in, so that what stays is lines that can be decoded together. Many small files
are put in together: where their lines begin and what they are is told for all of them at once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from mmap import mmap
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import array_of, number, octets, octets_in
from arrowlog.log.envelope import MAGICS, check_plain, crc32, packed, unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_BITS = 32  # a sequence number is the file's number and the line's number in it
SMALL = 1 << 16  # bytes of a file that is better put in together with others
_LARGE = 1 << 17
_FEW = 8  # files that are as quickly put in one by one
_TOGETHER_MAX = 1 << 28  # unpacked bytes that are still put in together
_ADD = b'{"add":'
_SUMMED = b'"checksum":"crc32:'  # how our own commits begin
_FEED = 10


@dataclass(frozen=True, slots=True)
class Apart:
    """Lines by themselves, each ended by a line feed, and their sequence numbers."""

    seq: pa.Array
    lines: pa.Array

    def filter(self, mask: pa.Array, pool: pa.MemoryPool | None = None) -> Apart:
        """Some of them."""
        seq = pc.filter(self.seq, mask, memory_pool=pool)
        return Apart(seq, pc.filter(self.lines, mask, memory_pool=pool))

    @classmethod
    def join(cls, parts: Sequence[Apart]) -> Apart:
        """All of them."""
        seqs = joined([part.seq for part in parts], pa.int64())
        return cls(seqs, joined([part.lines for part in parts], pa.binary()))


class Window:
    """Lines of log files, in order.

    `view` has the lines that were left in and `numbers` their sequence numbers; `apart` holds the
    others. File i is `names[i]` of `versions[i]` and has `lines[i]` lines. `sums` has the
    CRC-32 of all lines but the first for files whose first line speaks of one.
    """

    def __init__(self, limit: int, pool: pa.MemoryPool | None = None) -> None:
        """`limit` is what one file may hold when unpacked; `pool` has memory for the work on it."""
        self.limit = limit
        self.pool = pool
        self.data = bytearray()
        self._stage: mmap | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the files; keep the memory."""
        self.size = 0
        self._lent: memoryview | None = None  # the lines, while they are in memory of Arrow's
        self.names: list[str] = []
        self.versions: list[int] = []
        self.lines: list[int] = []
        self.numbers: list[pa.Array] = []
        self.apart: list[Apart] = []
        self.sums: dict[int, int] = {}

    @property
    def kept(self) -> int:
        """How many lines were left in."""
        return sum(map(len, self.numbers))

    @property
    def view(self) -> memoryview:
        """The lines that were left in. Release it before anything is put in."""
        return memoryview(self.data)[: self.size] if self._lent is None else self._lent[:]

    def stage(self, room: int) -> memoryview:
        """Memory in which to collect small files before they are put in.

        It is the system's, which gives it page by page when it is touched.
        """
        if self._stage is None or len(self._stage) < room:
            self._stage = mmap(-1, room)
        return memoryview(self._stage)

    def reserve(self, room: int) -> memoryview:
        """The free end of the buffer, at least `room` bytes. Release it before the next call."""
        lent, self._lent = self._lent, None
        held = len(self.data) if lent is None else 0
        if len(self.data) < self.size + room:
            grown = bytearray(max(self.size + room, 2 * len(self.data)))
            grown[:held] = self.data
            self.data = grown
        if lent is not None:
            self.data[: self.size] = lent
        return memoryview(self.data)[self.size :]

    def accept(self, name: str, version: int, length: int) -> None:
        """The next file is in the free end of the buffer, `length` bytes as they are on disk."""
        start = self.size
        if packed(self.data, start, length):
            raw = bytes(memoryview(self.data)[start : start + length])
            self.append(name, version, unwrap(raw, name, self.limit))
        else:
            check_plain(length, name, self.limit)
            self._close(name, version, start + length)

    def append(self, name: str, version: int, plain: bytes) -> None:
        """Put a file that is unpacked already at the end."""
        check_plain(len(plain), name, self.limit)
        self.reserve(len(plain) + 1).release()
        stop = self.size + len(plain)
        self.data[self.size : stop] = plain
        self._close(name, version, stop)

    def fill(self, names: Sequence[str], versions: Sequence[int], raws: Sequence[bytes]) -> None:
        """Put files at the end, as they are on disk; large ones are unpacked in threads."""
        if max(map(len, raws), default=0) <= SMALL:
            self.put(names, versions, b"".join(raws), list(accumulate(map(len, raws))))
            return
        large = [i for i, raw in enumerate(raws) if len(raw) > _LARGE and packed(raw, 0, len(raw))]
        ready: dict[int, bytes] = {}
        if len(large) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                texts = pool.map(lambda i: unwrap(raws[i], names[i], self.limit), large)
                ready = dict(zip(large, texts, strict=True))
        for i, raw in enumerate(raws):
            plain = ready.pop(i) if i in ready else unwrap(raw, names[i], self.limit)
            self.append(names[i], versions[i], plain)

    def put(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        raws: bytes | memoryview,
        ends: Sequence[int],
    ) -> None:
        """Put small files at the end, as they are on disk: one after the other, up to `ends`.

        The same as `append` for each, except that all lines that are no adds are set apart, and
        with some operations for all of them instead of some dozen for each.
        """
        few = len(ends) < _FEW
        if (
            few
            or ends[-1] > _TOGETHER_MAX
            or not _all_plain(raws, array_of(ends, pa.int64()), self.limit)
        ):
            texts = [
                _ended(unwrap(bytes(raws[start:stop]), name, self.limit))
                for name, (start, stop) in zip(names, pairwise((0, *ends)), strict=True)
            ]
            if few or sum(map(len, texts)) > _TOGETHER_MAX:
                for name, version, text in zip(names, versions, texts, strict=True):
                    self.append(name, version, text)
                return
            raws, ends = b"".join(texts), list(accumulate(map(len, texts)))
        self._take(raws, array_of(ends, pa.int64()))
        self.names += names
        self.versions += versions

    def _take(self, data: bytes | memoryview, ends: pa.Array) -> None:
        """Lines of many files, each of which ends with a line feed."""
        own = {"memory_pool": self.pool}
        stops = pc.cast((octets(data) == _FEED).arg_true().to_arrow(), pa.int64(), **own)
        stops = pc.add(stops, number(1), **own)
        offsets = pa.py_buffer(bytes(4) + memoryview(pc.cast(stops, pa.int32()).buffers()[1]))
        lines = pa.Array.from_buffers(pa.binary(), len(stops), [None, offsets, pa.py_buffer(data)])
        ended = pc.index_in(stops, value_set=ends, **own)  # the file whose last line this is
        behind = pc.add(pc.indices_nonzero(pc.is_valid(ended)).cast(pa.int64()), number(1))
        before = pa.concat_arrays([array_of([0], pa.int64()), behind[:-1]])
        file = pc.fill_null_backward(ended, **own)
        line = array_of(range(1, len(stops) + 1), pa.int64())
        line = pc.subtract(line, pc.take(before, file, **own), **own)
        file = pc.add(pc.cast(file, pa.int64(), **own), number(len(self.names)), **own)
        seq = pc.add(pc.shift_left(file, number(LINE_BITS), **own), line, **own)
        self._sum(data, ends, lines.take(before))
        self._keep(Apart(seq, lines))
        self.lines += pc.subtract(behind, before).to_pylist()

    def _keep(self, whole: Apart) -> None:
        """Leave the adds in, set the others apart."""
        adds = pc.starts_with(whole.lines, _ADD)
        left = whole.filter(adds, self.pool)
        self.numbers.append(left.seq)
        self.apart.append(whole.filter(pc.invert(adds), self.pool))
        lines = octets_in(left.lines)
        if self.size:
            with self.reserve(len(lines)) as free:
                free[: len(lines)] = lines
        else:
            self._lent = lines
        self.size += len(lines)

    def _sum(self, data: bytes | memoryview, ends: pa.Array, heads: pa.Array) -> None:
        """Sum up the files that say what their lines sum up to."""
        if _SUMMED not in bytes(octets_in(heads)):
            return
        starts = pc.add(
            pa.concat_arrays([array_of([0], pa.int64()), ends[:-1]]), pc.binary_length(heads)
        )
        said = pc.indices_nonzero(pc.match_substring(heads, _SUMMED))
        spans = (said, starts.take(said), ends.take(said))
        with memoryview(data) as view:
            for file, start, stop in zip(*(found.to_pylist() for found in spans), strict=True):
                self.sums[len(self.names) + file] = crc32(view[start:stop])

    def _close(self, name: str, version: int, stop: int) -> None:
        """A file ends at `stop`: end its last line, count its lines, set some apart."""
        data, start, file = self.data, self.size, len(self.names)
        if data[stop - 1] != _FEED:
            if stop == len(data):
                data.append(_FEED)
            data[stop] = _FEED
            stop += 1
        lines = _count(data, start, stop)
        first, kept, apart = 1, lines, []
        if not data.startswith(_ADD, start):
            end = data.index(_FEED, start) + 1
            head = bytes(memoryview(data)[start:end])
            apart.append((1, head))
            first, kept, start = 2, lines - 1, end
            if _SUMMED in head:
                with memoryview(data) as view:
                    self.sums[file] = crc32(view[start:stop])
        last = data.rfind(_FEED, start, stop - 1) + 1 or start
        if kept and not data.startswith(_ADD, last):
            apart.append((lines, bytes(memoryview(data)[last:stop])))
            kept, stop = kept - 1, last
        if start > self.size:
            with memoryview(data) as view:
                view[self.size : self.size + stop - start] = view[start:stop]
        self.size += stop - start
        self.names.append(name)
        self.versions.append(version)
        self.lines.append(lines)
        self._number(file << LINE_BITS, first, kept, apart)

    def _number(self, base: int, first: int, kept: int, apart: list[tuple[int, bytes]]) -> None:
        """Give the lines of a file their numbers."""
        self.numbers.append(array_of(range(base + first, base + first + kept), pa.int64()))
        if apart:
            seq = array_of([base + line for line, _ in apart], pa.int64())
            self.apart.append(Apart(seq, array_of([text for _, text in apart], pa.binary())))


def joined(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Arrays as one."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([*arrays, pa.nulls(0, kind)])


def _all_plain(data: bytes | memoryview, ends: pa.Array, limit: int) -> bool:
    """Whether no file is packed, empty or too large, and all of them end with a line feed."""
    starts = pa.concat_arrays([array_of([0], pa.int64()), ends[:-1]])
    sizes = pc.min_max(pc.subtract(ends, starts))
    if sizes["min"].as_py() == 0 or sizes["max"].as_py() > limit:
        return False
    every = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    last = pc.unique(every.take(pc.subtract(ends, number(1)))).to_pylist()
    first = pc.unique(every.take(starts)).to_pylist()
    return last == [_FEED] and not set(first) & set(MAGICS)


def _ended(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"


def _count(data: bytearray, start: int, stop: int) -> int:
    if stop - start < _LARGE:
        return data.count(_FEED, start, stop)
    with memoryview(data) as view:
        return int((octets(view[start:stop]) == _FEED).sum())
