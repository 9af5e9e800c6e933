"""A log whose folder has another name: a repaired one, a backup, one that waits to be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from arrowlog.log.names import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.log.store.base import Outcome, Stat, Store
    from arrowlog.log.window import Window


class Renamed:
    """Another store, in which the log of the table is in a folder of another name.

    Keys of the log are spelled as everywhere; everything else is where it was.
    """

    def __init__(self, store: Store, folder: str) -> None:
        """`folder` is the log's, below the root of `store`."""
        self.root = store.root
        self.cheap_stat = store.cheap_stat
        self._store = store
        self._folder = folder

    def _key(self, key: str) -> str:
        if key != LOG and not key.startswith(f"{LOG}/"):
            return key
        return f"{self._folder}{key[len(LOG) :]}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in keys]

    def get(self, key: str) -> bytes:
        """The object's bytes."""
        return self._store.get(self._key(key))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Some of the object's bytes."""
        return self._store.get_range(self._key(key), start, stop)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Several objects."""
        return self._store.get_many(self._keys(keys))

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Several objects, None for those that are not there."""
        return self._store.find_many(self._keys(keys))

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Put log files into the window; what is wrong with one names it as it is on disk."""
        return self._store.read_into(window, self._keys(keys), versions, enough)

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names directly in a folder."""
        return self._store.list_from(self._key(folder), start)

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """The objects directly in a folder."""
        return self._store.stats_from(self._key(folder), start)

    def walk(self) -> pa.Table:
        """Every object below the root, where it is."""
        return self._store.walk()

    def stat(self, key: str) -> Stat | None:
        """Size and time of an object."""
        return self._store.stat(self._key(key))

    def check_writable(self, folder: str = LOG) -> None:
        """Refuse a store that cannot be trusted, trying it in our own folder."""
        self._store.check_writable(self._key(folder))

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Make an object that is not there yet."""
        return self._store.put_new(self._key(key), data)

    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""
        self._store.replace(self._key(key), data)

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """The same with what an open file has."""
        self._store.replace_from(self._key(key), file)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._store.delete(self._keys(keys))
