"""An object as a file that is read in pieces: for footers, of which only the end is needed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrowlog.log.store.base import Store


class RangeFile(io.RawIOBase):
    """Reads from a store what is asked for, and nothing else."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        """`size` is the object's, from `stat`."""
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        data = self._store.get_range(self._key, self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data
