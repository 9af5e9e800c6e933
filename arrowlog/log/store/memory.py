"""`memory://`: objects in the memory of this process, in fsspec's memory file system."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome
from arrowlog.log.store.remote import FsspecStore

_LOCK = Lock()
if hasattr(os, "register_at_fork"):
    # Take the lock during a fork: a child that inherits it locked would wait forever.
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class MemoryStore(FsspecStore):
    """A store in memory. All stores of a process share the same objects.

    fsspec's `create` mode checks and then writes, which is not atomic; here a lock of the process
    covers both steps.
    """

    cheap_stat = True

    def __init__(self, uri: str, options: Any, parallelism: int, seconds: float) -> None:
        """Open a table; see `FsspecStore`."""
        super().__init__(uri, options, parallelism, seconds)

    def check_writable(self, folder: str = LOG) -> None:
        """Accept every address: the lock makes puts atomic."""

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Create an object if the key is free, under the lock."""
        path = self.path(key)
        with _LOCK:
            if self.fs.exists(path):
                return Outcome.EXISTS
            self.fs.pipe_file(path, data)
        return Outcome.DONE
