"""A view of a store for the doctor: a file that cannot be read is a problem of that file alone.

A commit that this user may not read, or on which the disk or the server fails, would otherwise end
the examination with the error of the store. `ReadableStore` raises `LogCorrupt` with the code
`file-unreadable` instead, which names the file, so that the checks treat it like a damaged file and
go on. Such a file is not lost: its fix is to restore access, never to repair the log without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import AccessDenied, LogCorrupt, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.storage import FileBuffer, ObjectStat, Store

# Other files of the log that are tried before a failure counts as that of one file.
_MAX_PROBES = 3
_DOCTOR_AGAIN = "Then run the doctor again."


class ReadableStore:
    """A store whose reads of single objects fail with `LogCorrupt`; all else is passed on.

    Raises the error of the store if it fails as a whole: if no other file of the log can be read
    either, or a folder cannot be listed. A file that failed once is not read again, because on a
    remote store every attempt takes as long as the time limit allows.
    """

    def __init__(self, store: Store, log_folder: str) -> None:
        """Wrap a store; `log_folder` has the files that are tried after a failure."""
        self._store = store
        self._log_folder = log_folder
        self._failed: dict[str, LogCorrupt] = {}
        self._answers = False  # whether any file could be read

    def __getattr__(self, name: str) -> Any:
        """Pass on every other operation and attribute."""
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        self._raise_failed([key])
        try:
            data = self._store.get(key)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None
        self._answers = True
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object."""
        self._raise_failed([key])
        try:
            return self._store.get_range(key, start, stop)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None

    def stat(self, key: str) -> ObjectStat | None:
        """Return the stat of an object; None if it does not exist."""
        try:
            return self._store.stat(key)
        except StoreUnavailable as error:
            raise self._unreadable(key, error) from None

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects; the first that cannot be read is named."""
        self._raise_failed(keys)
        try:
            return self._store.get_many(keys)
        except StoreUnavailable:
            return [self.get(key) for key in keys]

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of objects, None for missing ones; an unreadable one is named."""
        self._raise_failed(keys)
        try:
            return self._store.find_many(keys)
        except StoreUnavailable:
            return [self._find(key) for key in keys]

    def _find(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the buffer; the first that cannot be read is named."""
        self._raise_failed(keys)
        try:
            return self._store.read_into(buffer, keys, versions, enough)
        except StoreUnavailable:
            for key in keys:
                self.get(key)
            raise  # every file can be read now: the store fails from time to time

    def _raise_failed(self, keys: Sequence[str]) -> None:
        for key in keys if self._failed else ():
            if key in self._failed:
                raise self._failed[key]

    def _unreadable(self, key: str, error: StoreUnavailable) -> LogCorrupt | StoreUnavailable:
        """Return the error for a file that cannot be read; `error` itself if the store fails."""
        if not isinstance(error, AccessDenied) and not self._can_read_another(key):
            return error
        reason = error.what.partition(f"{key}: ")[2] or error.what
        what = f"the file cannot be read: {reason}"
        advice = f"{error.next} {_DOCTOR_AGAIN}"
        self._failed[key] = LogCorrupt(what, next=advice, file=key, code="file-unreadable")
        return self._failed[key]

    def _can_read_another(self, key: str) -> bool:
        """Whether the store reads any other file of the log."""
        if self._answers:
            return True
        names = self._store.list_from(self._log_folder)
        others = [f"{self._log_folder}/{name}" for name in names if name.endswith(".json")]
        for other in [other for other in others if other != key][:_MAX_PROBES]:
            try:
                self._store.get(other)
            except (StoreUnavailable, FileNotFoundError):
                continue
            self._answers = True
            return True
        return False
