"""A buffer that logs codec and sizes of every commit that is read into it.

It stands in for the decoder's buffer while the log line is enabled, so that reading costs nothing
more while it is not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from arrowlog.formats.indextables import decompress, detect_codec
from arrowlog.log_lines import COMMIT_READ, compression_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.decode import LineBuffer


class LoggedBuffer:
    """A `FileBuffer` that hands everything to the decoder's buffer, and logs it."""

    def __init__(self, inner: LineBuffer, root: str, limit: int) -> None:
        """Log the files of the table at `root`; `limit` is the maximum decompressed size."""
        self._inner = inner
        self.size = inner.size
        self._root = root
        self._limit = limit

    def staging_memory(self, room: int) -> memoryview:
        """Return scratch memory."""
        return self._inner.staging_memory(room)

    def reserve(self, room: int) -> memoryview:
        """Return the free end of the buffer."""
        return self._inner.reserve(room)

    def accept(self, name: str, version: int, length: int) -> None:
        """Take the bytes that were read into the free end as one file."""
        start = self._inner.end
        raw = bytes(memoryview(self._inner.data)[start : start + length])
        self._inner.accept(name, version, length)
        self._log(name, version, raw)

    def put(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        raws: bytes | memoryview,
        ends: Sequence[int],
    ) -> None:
        """Take small files that lie one after the other."""
        pieces = [bytes(raws[start:stop]) for start, stop in pairwise((0, *ends))]
        self._inner.put(names, versions, raws, ends)
        for name, version, raw in zip(names, versions, pieces, strict=True):
            self._log(name, version, raw)

    def fill(self, names: Sequence[str], versions: Sequence[int], raws: Sequence[bytes]) -> None:
        """Take files of any size."""
        self._inner.fill(names, versions, raws)
        for name, version, raw in zip(names, versions, raws, strict=True):
            self._log(name, version, raw)

    def _log(self, name: str, version: int, raw: bytes) -> None:
        compressible = self._inner.format.compressed_commits
        codec = detect_codec(raw) if compressible else "none"
        # The buffer has accepted the file, so that it decompresses.
        plain = len(raw) if codec == "none" else len(decompress(raw, name, self._limit))
        self.size = self._inner.size
        COMMIT_READ.log(
            table=self._root,
            path=name,
            version=version,
            codec=codec,
            bytes=len(raw),
            uncompressed_bytes=plain,
            ratio=compression_ratio(plain, len(raw)),
        )
