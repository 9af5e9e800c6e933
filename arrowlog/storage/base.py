"""The storage interface: few stateless operations on keys relative to the table's root.

A store knows nothing about logs. One contract test suite checks the guarantees of every backend.
The correctness of commits rests on `put_if_absent`: it creates an object that does not exist,
completely or not at all, and of several concurrent callers exactly one succeeds.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from arrowlog.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.metering import Metrics

_MAX_PUT_ATTEMPTS = 5
# Files up to this size are read in batches, larger ones one at a time.
SMALL_FILE_BYTES = 1 << 16


class FileBuffer(Protocol):
    """What `Store.read_into` fills: a buffer that takes files as they are on disk.

    The decoder's buffer is one. Storage knows nothing of what the files mean.
    """

    size: int

    def staging_memory(self, room: int) -> memoryview:
        """Return scratch memory in which small files are collected before `put`."""

    def reserve(self, room: int) -> memoryview:
        """Return the free end of the buffer, at least `room` bytes."""

    def accept(self, name: str, version: int, length: int) -> None:
        """Take the `length` bytes that were read into the free end as one file."""

    def put(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        raws: bytes | memoryview,
        ends: Sequence[int],
    ) -> None:
        """Take small files that lie one after the other and end at `ends`."""

    def fill(self, names: Sequence[str], versions: Sequence[int], raws: Sequence[bytes]) -> None:
        """Take files of any size."""


class PutOutcome(Enum):
    """The outcome of a `put_if_absent`."""

    DONE = "this call created the object"
    # A layer below may have repeated a request of this call whose response was lost.
    EXISTS = "the store reports an existing object, which may still be the caller's own"
    NOT_APPLIED = "nothing was written; the same put may be repeated"
    UNKNOWN = "the response was lost; the object may exist, or may still appear"


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """The metadata of an object.

    Two stats are equal if size and tag are: then it is still the same object. Modification times
    are not compared, because listings and single requests round them differently. A time below 0
    means unknown; no object counts as old because of it.
    """

    size: int
    mtime_ms: int = field(compare=False)
    tag: str = ""
    folder: bool = field(default=False, compare=False)


def build_walk_table(keys: list[str], sizes: list[int], times: list[int]) -> pa.Table:
    """Build the result of `Store.walk`."""
    import pyarrow as pa  # the other operations need none

    from arrowlog.arrays import make_array

    columns = [make_array(sizes, pa.int64()), make_array(times, pa.int64())]
    return pa.table([make_array(keys, pa.string()), *columns], names=["key", "size", "mtime_ms"])


class Store(Protocol):
    """The operations of every backend. Keys are relative to `root` and use `/`.

    A missing object raises `FileNotFoundError`, any other failure `StoreUnavailable`, unless an
    operation says otherwise. No error message contains a credential.
    """

    root: str
    # Whether `stat` costs next to nothing, as on a local disk. Callers then stat one object instead
    # of listing a folder.
    cheap_stat: bool
    # What the requests to this store count in.
    metrics: Metrics
    # The kind of store, for metrics: `local`, `s3`, `memory`, or the protocol of its URL.
    kind: str
    # The address of the server if `root` does not name it, as the endpoint of an S3 bucket; else
    # empty. On another server, the same root is another table.
    server: str

    def get(self, key: str) -> bytes:
        """Return the content of an object."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes of an object from `start` up to, but excluding, `stop`."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of several objects in order, read in parallel where that helps."""

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of several objects in order; None for each missing one."""

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the buffer, in order, until it holds about `enough` bytes.

        Returns the number of files read and their total size as stored.
        """

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Return the sorted names directly in `folder` that are not less than `start`.

        A missing folder gives no names. The root is the folder "".
        """

    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of the objects that `list_from` lists, by name."""

    def walk(self) -> pa.Table:
        """Return every object below the root, at any depth: `key`, `size`, `mtime_ms`.

        A missing root gives no rows. Folders are not objects; symbolic links are not followed.
        """

    def stat(self, key: str) -> ObjectStat | None:
        """Return the stat of an object; None if it does not exist."""

    def check_writable(self, folder: str) -> None:
        """Raise `InvalidRequest` unless `put_if_absent` is known to be atomic on this store.

        A backend that has to probe the server does so with temporary objects in `folder`.
        """

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object if the key is free, atomically (put-if-absent).

        Never retries: a retry after a lost response would report the caller's own object as
        `EXISTS`.
        """

    def put_or_find(self, key: str, data: bytes) -> tuple[PutOutcome, bytes | None]:
        """Create an object as `put_if_absent` does, and read the key at the same time.

        For a put that will probably find the key taken: where a request takes long, what is there
        is known one round trip earlier. Returns the content if the read has found an object, which
        may be the caller's own. None says nothing: the read may have come first, may have failed,
        or was not made.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object, atomically. In a log, only the pointer is overwritten."""

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """Like `replace`, with the content of an open file; on a local disk, piece by piece."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing objects are ignored."""


def stat_object(store: Store, key: str) -> ObjectStat | None:
    """Return the stat of an object; None if it does not exist or is a folder."""
    stat = store.stat(key)
    return None if stat is None or stat.folder else stat


def put_identical(store: Store, key: str, data: bytes | pa.Buffer) -> bool:
    """Create an object, and return whether the key holds exactly these bytes afterwards.

    For objects whose content is the same whoever writes them, so that the put is idempotent: after
    a lost response, the object is read and compared. Raises `StoreUnavailable` if the outcome
    stays unknown.
    """
    body: Any = data
    if not isinstance(data, bytes):
        any_buffer = getattr(store, "takes_buffers", False)
        # Unsigned, or no byte above 127 would equal that of `bytes`.
        body = memoryview(data).cast("B") if any_buffer else data.to_pybytes()
    for _ in range(_MAX_PUT_ATTEMPTS):
        outcome = store.put_if_absent(key, body)
        if outcome is PutOutcome.DONE:
            return True
        if outcome is not PutOutcome.NOT_APPLIED:
            stored = store.find_many([key])[0]
            if stored is not None:
                return bool(stored == body)
    raise StoreUnavailable(
        f"Could not write {key}: the responses of the store were lost.", next="Try again."
    )


class RangeReader(io.RawIOBase):
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
