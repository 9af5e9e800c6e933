"""Where bytes come from: few, stateless operations on keys relative to the table's root.

`open_store` picks a backend for an address: own code for local disks, fsspec for everything else.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from arrowlog.errors import InvalidRequest, StoreUnavailable, redact
from arrowlog.log.envelope import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.log.window import Window

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")
_SMALL = 1 << 16
_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store knows of an object without reading it."""

    size: int
    mtime_ms: int
    tag: str = ""


class Store(Protocol):
    """What every backend can do. Keys are relative to `root` and use `/`."""

    root: str

    def get(self, key: str) -> bytes:
        """The object's bytes; `FileNotFoundError` if there is none."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Several objects, in order, at the same time where that helps."""

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Put log files into the window, in order, until it holds about `enough` bytes.

        Returns how many files were put in, and how many bytes they have.
        """

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names directly in `folder` that are not below `start`, sorted; none if it is missing."""

    def stat(self, key: str) -> Stat | None:
        """Size and time of an object; None if there is none."""


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    parallelism: int = 4,
    timeout_seconds: float = 30.0,
) -> Store:
    """The store for a table's address: a path, a `file:` URL, or any URL fsspec knows."""
    text = os.fspath(uri)
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest("The table's address is empty.", next="Give a path or a URL.")
    if "\0" in text:
        raise InvalidRequest("The table's address has a NUL character in it.")
    if not _SCHEME.match(text):
        return LocalStore(text, parallelism)
    if text.startswith(("file://", "local://")):
        return LocalStore(_local_path(text), parallelism)
    return FsspecStore(text, storage_options or {}, parallelism, timeout_seconds)


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    return path if parts.netloc in ("", "localhost") else f"//{parts.netloc}{path}"


class LocalStore:
    """A folder on a local disk."""

    def __init__(self, root: str, parallelism: int = 4) -> None:
        """`root` need not exist yet."""
        self.root = os.path.abspath(os.path.expanduser(root))
        self._parallelism = parallelism

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def get(self, key: str) -> bytes:
        """Read a file."""
        descriptor = _open(self._path(key))
        try:
            return _rest(descriptor, os.read(descriptor, _SMALL))
        except OSError as error:
            raise _unavailable("read", self._path(key), error) from error
        finally:
            os.close(descriptor)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Files, in one tight loop: no number of threads beats it."""
        return [self.get(key) for key in keys]

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Small files together; a large one straight into the window."""
        total = done = size = 0
        small: list[bytes] = []
        for done, key in enumerate(keys):
            if window.size + size >= enough:
                break
            descriptor = _open(f"{self.root}/{key}")
            try:
                data = os.read(descriptor, _SMALL)
                if len(data) < _SMALL and not os.read(descriptor, 1):
                    small.append(unwrap(data, key, window.limit))
                    size += len(small[-1])
                    total += len(data)
                    if size >= _BATCH:  # memory that is given back is used again for the next
                        if not window.size:
                            window.reserve(min(len(keys) * size // len(small), enough)).release()
                        _flush(window, keys, versions, done + 1, small)
                        size = 0
                    continue
                _flush(window, keys, versions, done, small)
                size = 0
                length = _read_all(descriptor, window)
            except OSError as error:
                raise _unavailable("read", self._path(key), error) from error
            finally:
                os.close(descriptor)
            window.accept(key, versions[done], length)
            total += length
        else:
            done = len(keys)
        _flush(window, keys, versions, done, small)
        return done, total

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names in a folder."""
        try:
            names = os.listdir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unavailable("list", self._path(folder), error) from error
        return sorted(names if not start else [name for name in names if name >= start])

    def stat(self, key: str) -> Stat | None:
        """Size, time and inode of a file."""
        try:
            found = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unavailable("look at", self._path(key), error) from error
        return Stat(
            found.st_size, found.st_mtime_ns // 1_000_000, f"{found.st_ino}:{found.st_mtime_ns}"
        )


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise _unavailable("read", path, error) from error


def _flush(
    window: Window, keys: Sequence[str], versions: Sequence[int], done: int, small: list[bytes]
) -> None:
    """Put the last small files before number `done` into the window."""
    part = slice(done - len(small), done)
    window.extend(keys[part], versions[part], small)
    small.clear()


def _read_all(descriptor: int, window: Window) -> int:
    """Put a file into the free end of the window; returns its length."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    length, room = 0, os.fstat(descriptor).st_size + 1
    while True:
        with window.reserve(room) as free:
            read = os.readv(descriptor, [free[length:]])
            length += read
            full = length == len(free)
        if read == 0 and not full:
            return length
        if full:
            room = max(os.fstat(descriptor).st_size, 2 * length) + 1


def _rest(descriptor: int, data: bytes) -> bytes:
    """All of a file whose first bytes have been read."""
    if len(data) < _SMALL:
        return data
    parts = [data]
    size = max(os.fstat(descriptor).st_size - len(data), 0) + 1
    while part := os.read(descriptor, max(size, _SMALL)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _unavailable(verb: str, where: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"Could not {verb} {where}: {redact(str(error)) or type(error).__name__}.",
        next="Check access and try again.",
    )


class FsspecStore:
    """Any store fsspec knows, read through one file system instance made for this table."""

    def __init__(
        self, uri: str, options: Mapping[str, Any], parallelism: int, timeout_seconds: float
    ) -> None:
        """Connects lazily; a protocol whose package is missing is an `InvalidRequest`."""
        import fsspec

        try:
            self._fs, path = fsspec.core.url_to_fs(
                uri, **{"use_listings_cache": False, "skip_instance_cache": True, **options}
            )
        except (ImportError, ValueError) as error:
            raise InvalidRequest(
                f"{uri} cannot be opened: {error}.", next="Check the address, install its package."
            ) from error
        self._path = str(path).rstrip("/")
        self.root = redact(uri).rstrip("/")
        self._parallelism = parallelism
        self._timeout = timeout_seconds
        self._mean = _SMALL  # bytes of a log file, about

    def get(self, key: str) -> bytes:
        """Read an object."""
        path = f"{self._path}/{key}"
        data = self._try("read", path, lambda: self._fs.cat_file(path))
        return bytes(data)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Read objects, some at a time, all before the time limit."""
        pool = ThreadPoolExecutor(self._parallelism)
        try:
            futures = [pool.submit(self.get, key) for key in keys]
            late = wait(futures, timeout=self._timeout).not_done
            if late:
                raise StoreUnavailable(
                    f"{len(late)} of {len(keys)} log files of {self.root} were not there after"
                    f" {self._timeout:g} s.",
                    next="Try again, or raise checkpoint.read.timeoutSeconds.",
                )
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # waiting would undo the time limit

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read some objects at the same time, then unpack them into the window."""
        count = min(max(enough // self._mean, self._parallelism), len(keys))
        raws = self.get_many(keys[:count])
        window.fill(keys[:count], versions[:count], raws)
        total = sum(len(raw) for raw in raws)
        self._mean = window.size // count + 1
        return count, total

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names in a folder."""
        path = f"{self._path}/{folder}"
        try:
            found = self._try("list", path, lambda: self._fs.ls(path, detail=False, refresh=True))
        except FileNotFoundError:
            return []
        names = (str(name).rstrip("/").rpartition("/")[2] for name in found)
        return sorted(name for name in names if name >= start)

    def stat(self, key: str) -> Stat | None:
        """Size, time and entity tag of an object, as far as the store has them."""
        path = f"{self._path}/{key}"
        try:
            found = self._try("look at", path, lambda: self._fs.info(path))
        except FileNotFoundError:
            return None
        when = next((found[k] for k in ("LastModified", "mtime", "created") if found.get(k)), 0)
        seconds = when.timestamp() if hasattr(when, "timestamp") else float(when)
        return Stat(int(found.get("size") or 0), int(seconds * 1000), str(found.get("ETag", when)))

    def _try(self, verb: str, where: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FileNotFoundError:
            raise FileNotFoundError(redact(where)) from None
        except Exception as error:  # whatever the store's own library raises
            raise _unavailable(verb, where, error) from error
