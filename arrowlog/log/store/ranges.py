"""An object as a seekable file, for readers that need only a part of it, such as a footer."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrowlog.log.store.base import Store


class RangeFile(io.RawIOBase):
    """A read-only file over an object. Each read is one range request; nothing is buffered."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        """Open an object; `size` is its size, from `stat`."""
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the current position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes from the current position; all of the rest if negative."""
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        data = self._store.get_range(self._key, start, stop) if stop > start else b""
        self._position += len(data)
        return data
