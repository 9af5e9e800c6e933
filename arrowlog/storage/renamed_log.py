"""A log in a folder with another name: a repaired log, a backup, a log to be examined."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.storage.base import FileBuffer, ObjectStat, PutOutcome, Store


class RelocatedLogStore:
    """A view of a store whose log folder has another name.

    Keys of the log keep the standard folder name and are mapped; all other keys are unchanged.
    """

    def __init__(self, store: Store, name: str, folder: str) -> None:
        """Map the standard log folder to `folder`, which is relative to the root of `store`."""
        self.root = store.root
        self.cheap_stat = store.cheap_stat
        self._store = store
        self._name = name
        self._folder = folder

    def _key(self, key: str) -> str:
        if key != self._name and not key.startswith(f"{self._name}/"):
            return key
        return f"{self._folder}{key[len(self._name) :]}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in keys]

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return self._store.get(self._key(key))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object."""
        return self._store.get_range(self._key(key), start, stop)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects."""
        return self._store.get_many(self._keys(keys))

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of objects; None for each missing one."""
        return self._store.find_many(self._keys(keys))

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the buffer. Errors name a file by its actual key."""
        return self._store.read_into(buffer, self._keys(keys), versions, enough)

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Return the names in a folder."""
        return self._store.list_from(self._key(folder), start)

    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of a folder."""
        return self._store.stats_from(self._key(folder), start)

    def walk(self) -> pa.Table:
        """Return every object below the root, with its actual key."""
        return self._store.walk()

    def stat(self, key: str) -> ObjectStat | None:
        """Return the stat of an object."""
        return self._store.stat(self._key(key))

    def check_writable(self, folder: str) -> None:
        """Check the store for atomic puts, probing in the mapped folder."""
        self._store.check_writable(self._key(folder))

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object if the key is free."""
        return self._store.put_if_absent(self._key(key), data)

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object."""
        self._store.replace(self._key(key), data)

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """Create or overwrite an object with the content of an open file."""
        self._store.replace_from(self._key(key), file)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._store.delete(self._keys(keys))
