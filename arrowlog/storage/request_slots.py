"""The ceiling on concurrent requests to one store."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class RequestSlots:
    """Lets at most `limit` threads through at a time; None lets all through.

    A thread that is inside may enter again: an operation may send another request to find out what
    became of the first. A forked child starts with all slots free.
    """

    def __init__(self, limit: int | None) -> None:
        """Start with all slots free."""
        self._limit = limit
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._slots = None if self._limit is None else threading.Semaphore(self._limit)
        self._inside = threading.local()

    def __enter__(self) -> None:
        """Wait for a slot, unless this thread has one."""
        if self._limit is None:
            return
        if self._pid != os.getpid():
            self._renew()
        depth = getattr(self._inside, "depth", 0)
        if depth == 0 and self._slots is not None:
            self._slots.acquire()
        self._inside.depth = depth + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the slot when the thread leaves for the last time."""
        if self._limit is None:
            return
        self._inside.depth -= 1
        if self._inside.depth == 0 and self._slots is not None:
            self._slots.release()
