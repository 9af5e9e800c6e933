"""The storage interface: few stateless operations on keys relative to the table's root.

A store knows nothing about logs. One contract test suite checks the guarantees of every backend.
The correctness of commits rests on `put_new`, which is put-if-absent: it creates an object that
does not exist, completely or not at all, and of several concurrent callers exactly one succeeds.
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

_MAX_PUT_ATTEMPTS = 5


class Outcome(Enum):
    """The outcome of a `put_new`."""

    DONE = "this call created the object"
    # A layer below may have repeated a request of this call whose response was lost.
    EXISTS = "the store reports an existing object, which may still be the caller's own"
    NOT_APPLIED = "nothing was written; the same put may be repeated"
    UNKNOWN = "the response was lost; the object may exist, or may still appear"


@dataclass(frozen=True, slots=True)
class Stat:
    """The metadata of an object.

    Two stats are equal if size and tag are: then it is still the same object. Modification times
    are not compared, because listings and single requests round them differently. A time below 0
    means unknown; no object counts as old because of it.
    """

    size: int
    mtime_ms: int = field(compare=False)
    tag: str = ""
    folder: bool = field(default=False, compare=False)


def walked(keys: list[str], sizes: list[int], times: list[int]) -> pa.Table:
    """Build the result of `Store.walk`."""
    columns = [array_of(sizes, pa.int64()), array_of(times, pa.int64())]
    return pa.table([array_of(keys, pa.string()), *columns], names=["key", "size", "mtime_ms"])


class Store(Protocol):
    """The operations of every backend. Keys are relative to `root` and use `/`.

    A missing object raises `FileNotFoundError`, any other failure `StoreUnavailable`, unless an
    operation says otherwise. No error message contains a credential.
    """

    root: str
    # Whether `stat` costs next to nothing, as on a local disk. Callers then stat one object instead
    # of listing a folder.
    cheap_stat: bool

    def get(self, key: str) -> bytes:
        """Return the content of an object."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes of an object from `start` up to, but excluding, `stop`."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of several objects in order, read in parallel where that helps."""

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of several objects in order; None for each missing one."""

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the window, in order, until it holds about `enough` bytes.

        Returns the number of files read and their total size as stored.
        """

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Return the sorted names directly in `folder` that are not less than `start`.

        A missing folder gives no names. The root is the folder "".
        """

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """Return the stats of the objects that `list_from` lists, by name."""

    def walk(self) -> pa.Table:
        """Return every object below the root, at any depth: `key`, `size`, `mtime_ms`.

        A missing root gives no rows. Folders are not objects; symbolic links are not followed.
        """

    def stat(self, key: str) -> Stat | None:
        """Return the stat of an object; None if it does not exist."""

    def check_writable(self, folder: str = LOG) -> None:
        """Raise `InvalidRequest` unless `put_new` is known to be atomic on this store.

        A backend that has to probe the server does so with temporary objects in `folder`.
        """

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Create an object if the key is free, atomically (put-if-absent).

        Never retries: a retry after a lost response would report the caller's own object as
        `EXISTS`.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object, atomically. In a log, only the pointer is overwritten."""

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """Like `replace`, with the content of an open file; on a local disk, piece by piece."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing objects are ignored."""


def stat_object(store: Store, key: str) -> Stat | None:
    """Return the stat of an object; None if it does not exist or is a folder."""
    stat = store.stat(key)
    return None if stat is None or stat.folder else stat


def put_same(store: Store, key: str, data: bytes | pa.Buffer) -> bool:
    """Create an object, and return whether the key holds exactly these bytes afterwards.

    For objects whose content is the same whoever writes them, so that the put is idempotent: after
    a lost response, the object is read and compared. Raises `StoreUnavailable` if the outcome
    stays unknown.
    """
    body = data if isinstance(data, bytes) else data.to_pybytes()
    for _ in range(_MAX_PUT_ATTEMPTS):
        outcome = store.put_new(key, body)
        if outcome is Outcome.DONE:
            return True
        if outcome is not Outcome.NOT_APPLIED:
            stored = store.find_many([key])[0]
            if stored is not None:
                return stored == body
    raise StoreUnavailable(f"Could not write {key}.", next="Check access and try again.")


def unavailable(verb: str, where: str, error: BaseException) -> StoreUnavailable:
    """Return the error for a failed operation, with the first line of the cause, redacted."""
    reason = redact(str(error)).split("\n", 1)[0].strip().rstrip(".") or type(error).__name__
    return StoreUnavailable(
        f"Could not {verb} {where}: {reason}.", next="Check access and try again."
    )
