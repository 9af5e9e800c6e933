"""`memory://`: the objects of this process, in the memory file system of fsspec."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome
from arrowlog.log.store.remote import FsspecStore

_LOCK = Lock()
if hasattr(os, "register_at_fork"):  # held by nobody at a fork, or the child would wait forever
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class MemoryStore(FsspecStore):
    """What fsspec's own `create` checks and then does, done under one lock for all writers here."""

    cheap_stat = True

    def __init__(self, uri: str, options: Any, parallelism: int, seconds: float) -> None:
        """All stores of a process see the same objects."""
        super().__init__(uri, options, parallelism, seconds)

    def check_writable(self, folder: str = LOG) -> None:
        """The lock is the promise."""

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Look and put, while nobody else can."""
        path = self.path(key)
        with _LOCK:
            if self.fs.exists(path):
                return Outcome.EXISTS
            self.fs.pipe_file(path, data)
        return Outcome.DONE
