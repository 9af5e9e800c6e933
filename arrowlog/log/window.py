"""A buffer that holds log files one after the other, unpacked, for the decoder.

Memory that is used again costs nothing; fresh memory costs a page fault every 4 KiB, which for a
large log is as much as all the decoding. So there is one buffer for all files of a load, filled
again and again.

A commit is mostly adds, with something else as its first or last line. Those lines are set apart
when a file is put in, so that what stays is lines that can be decoded together.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from arrowlog.log.envelope import check_plain, crc32, packed, unwrap
from arrowlog.log.match import octets

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGE = 1 << 17
_ADD = b'{"add":'
_SUMMED = b'"checksum":"crc32:'  # how our own commits begin


class Window:
    """Lines of log files, in order.

    `data[:size]` holds the lines that were left in, `apart` the others, as file, line number and
    text. File i is `names[i]` of `versions[i]`; it has `lines[i]` lines, of which `kept[i]` were
    left in, from line `firsts[i]` on. `sums` has the CRC-32 of all lines but the first for files
    whose first line speaks of one.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is what one file may hold when unpacked."""
        self.limit = limit
        self.data = bytearray()
        self.clear()

    def clear(self) -> None:
        """Forget the files; keep the memory."""
        self.size = 0
        self.names: list[str] = []
        self.versions: list[int] = []
        self.lines: list[int] = []
        self.kept: list[int] = []
        self.firsts: list[int] = []
        self.apart: list[tuple[int, int, bytes]] = []
        self.sums: dict[int, int] = {}

    def reserve(self, room: int) -> memoryview:
        """The free end of the buffer, at least `room` bytes. Release it before the next call."""
        if len(self.data) - self.size < room:
            grown = bytearray(max(self.size + room, 2 * len(self.data)))
            grown[: len(self.data)] = self.data
            self.data = grown
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
        large = [i for i, raw in enumerate(raws) if len(raw) > _LARGE and packed(raw, 0, len(raw))]
        ready: dict[int, bytes] = {}
        if len(large) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                plain = pool.map(lambda i: unwrap(raws[i], names[i], self.limit), large)
                ready = dict(zip(large, plain, strict=True))
        texts = [
            ready.pop(i) if i in ready else unwrap(raw, names[i], self.limit)
            for i, raw in enumerate(raws)
        ]
        self.extend(names, versions, texts)

    def extend(self, names: Sequence[str], versions: Sequence[int], texts: list[bytes]) -> None:
        """Put files that are unpacked already at the end; the way for many small ones.

        The same as `append` for each, with a few operations a file instead of a few dozen.
        """
        file, at = len(self.names), 0
        with self.reserve(sum(map(len, texts)) + len(texts) + 1) as free:
            for text in texts:
                whole = text if text.endswith(b"\n") else text + b"\n"
                lines = kept = whole.count(b"\n")
                start, stop, first = 0, len(whole), 1
                if not whole.startswith(_ADD):
                    start = whole.index(b"\n") + 1
                    head = whole[: start - 1]
                    self.apart.append((file, 1, head))
                    if _SUMMED in head:
                        self.sums[file] = crc32(memoryview(whole)[start:])
                    first, kept = 2, lines - 1
                last = whole.rfind(b"\n", start, -1) + 1 or start
                if kept and not whole.startswith(_ADD, last):
                    self.apart.append((file, lines, whole[last:-1]))
                    stop, kept = last, kept - 1
                free[at : at + stop - start] = memoryview(whole)[start:stop]
                at += stop - start
                self.lines.append(lines)
                self.kept.append(kept)
                self.firsts.append(first)
                file += 1
        self.size += at
        self.names += names
        self.versions += versions

    def _close(self, name: str, version: int, stop: int) -> None:
        """A file ends at `stop`: end its last line, count its lines, set some apart."""
        data, start, file = self.data, self.size, len(self.names)
        if data[stop - 1] != 10:
            if stop == len(data):
                data.append(10)
            data[stop] = 10
            stop += 1
        lines = _count(data, start, stop)
        first, kept = 1, lines
        if not data.startswith(_ADD, start):
            end = data.index(10, start)
            head = bytes(memoryview(data)[start:end])
            self.apart.append((file, 1, head))
            first, kept, start = 2, lines - 1, end + 1
            if _SUMMED in head:
                with memoryview(data) as view:
                    self.sums[file] = crc32(view[start:stop])
        last = data.rfind(10, start, stop - 1) + 1 or start
        if kept and not data.startswith(_ADD, last):
            self.apart.append((file, lines, bytes(memoryview(data)[last : stop - 1])))
            kept, stop = kept - 1, last
        if start > self.size:
            with memoryview(data) as view:
                view[self.size : self.size + stop - start] = view[start:stop]
        self.size += stop - start
        self.names.append(name)
        self.versions.append(version)
        self.lines.append(lines)
        self.kept.append(kept)
        self.firsts.append(first)


def _count(data: bytearray, start: int, stop: int) -> int:
    if stop - start < _LARGE:
        return data.count(10, start, stop)
    with memoryview(data) as view:
        return int((octets(view[start:stop]) == 10).sum())
