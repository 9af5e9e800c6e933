"""What a store is: few, stateless operations on keys relative to the table's root.

A store has no opinions about logs. What it promises is checked by one contract suite that every
backend passes. `put_new` is the operation that everything rests on: it makes an object that was not
there, whole or not at all, and of many callers one wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Protocol

import pyarrow as pa

from arrowlog.errors import StoreUnavailable, redact
from arrowlog.log.arrays import array_of
from arrowlog.log.names import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.log.window import Window

_PUTS_MAX = 5


class Outcome(Enum):
    """What became of a `put_new`."""

    DONE = "the object is there, and it is ours"
    EXISTS = "an object was there before, or the store says so: it may still be ours"
    NOT_APPLIED = "nothing was written; the same put may be tried again"
    UNKNOWN = "the answer was lost; the object may be there, or may yet appear"


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store knows of an object without reading it.

    Size and tag tell whether it is still the same object. Times are not compared: listings and
    single answers round them differently. A time below 0 is not known: it makes nothing old.
    """

    size: int
    mtime_ms: int = field(compare=False)
    tag: str = ""
    folder: bool = field(default=False, compare=False)


def walked(keys: list[str], sizes: list[int], times: list[int]) -> pa.Table:
    """What `Store.walk` answers."""
    columns = [array_of(sizes, pa.int64()), array_of(times, pa.int64())]
    return pa.table([array_of(keys, pa.string()), *columns], names=["key", "size", "mtime_ms"])


class Store(Protocol):
    """What every backend can do. Keys are relative to `root` and use `/`.

    An object that is not there is a `FileNotFoundError`, whatever else fails `StoreUnavailable`.
    """

    root: str
    cheap_stat: bool  # whether asking for one object costs next to nothing, as on a disk

    def get(self, key: str) -> bytes:
        """The object's bytes; `FileNotFoundError` if there is none."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Some of the object's bytes."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Several objects, in order, at the same time where that helps."""

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Several objects, in order, None for those that are not there."""

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Put log files into the window, in order, until it holds about `enough` bytes.

        Returns how many files were put in, and how many bytes they have.
        """

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names directly in `folder` that are not below `start`, sorted; none if it is missing.

        The root is the folder "".
        """

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """The objects directly in `folder` whose names are not below `start`, by name."""

    def walk(self) -> pa.Table:
        """Every object below the root, at any depth: `key`, `size`, `mtime_ms`. None if missing.

        Folders are no objects, and links on a disk are not followed.
        """

    def stat(self, key: str) -> Stat | None:
        """Size and time of an object; None if there is none."""

    def check_writable(self, folder: str = LOG) -> None:
        """Refuse a store that cannot be trusted to make an object only once.

        Who has to try it, tries it in `folder`.
        """

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Make an object that is not there yet, atomically."""

    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there, atomically: the pointer only."""

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """The same with what an open file has from its beginning on; on a disk, piece by piece."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""


def stat_object(store: Store, key: str) -> Stat | None:
    """Size and time of an object; None if there is none, or a folder has its name."""
    found = store.stat(key)
    return None if found is None or found.folder else found


def put_same(store: Store, key: str, data: bytes | pa.Buffer) -> bool:
    """Whether these bytes are under the key now; False if others are.

    For objects that whoever writes them writes alike, so that a lost answer can be asked for again.
    """
    body = data if isinstance(data, bytes) else data.to_pybytes()
    for _ in range(_PUTS_MAX):
        outcome = store.put_new(key, body)
        if outcome is Outcome.DONE:
            return True
        if outcome is not Outcome.NOT_APPLIED:
            found = store.find_many([key])[0]
            if found is not None:
                return found == body
    raise StoreUnavailable(f"Could not write {key}.", next="Check access and try again.")


def unavailable(verb: str, where: str, error: BaseException) -> StoreUnavailable:
    """A failure of the store in our words, without the store's stack of debug text."""
    reason = redact(str(error)).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__
    return StoreUnavailable(
        f"Could not {verb} {where}: {reason}.", next="Check access and try again."
    )
