"""A folder on a local disk."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISDIR
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome, Stat, unavailable, walked
from arrowlog.log.window import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from arrowlog.log.window import Window

_PAGE = 4096
_STAGE_MAX = 1 << 24
_PIECE = 1 << 22
_BINARY = getattr(os, "O_BINARY", 0)
_NAMELESS = getattr(os, "O_TMPFILE", None)
_MODE = 0o666  # less what the user's umask takes away


class LocalStore:
    """Files below a folder. Files appear whole, by a link, after their bytes are on the disk."""

    cheap_stat = True

    def __init__(self, root: str) -> None:
        """`root` need not exist yet."""
        self.root = os.path.abspath(os.path.expanduser(root))

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def get(self, key: str) -> bytes:
        """Read a file."""
        descriptor = _open(self._path(key))
        try:
            return _rest(descriptor, os.read(descriptor, SMALL))
        except OSError as error:
            raise unavailable("read", self._path(key), error) from error
        finally:
            os.close(descriptor)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Read a part of a file."""
        descriptor = _open(self._path(key))
        try:
            return os.pread(descriptor, stop - start, start)
        except OSError as error:
            raise unavailable("read", self._path(key), error) from error
        finally:
            os.close(descriptor)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Files, in one tight loop: no number of threads beats it."""
        return [self.get(key) for key in keys]

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Files, None for those that are not there."""
        found: list[bytes | None] = []
        for key in keys:
            try:
                found.append(self.get(key))
            except FileNotFoundError:
                found.append(None)
        return found

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Small files together; a large one straight into the window."""
        total = done = length = 0
        while done < len(keys) and window.size < enough:
            ends: list[int] = []
            if length < SMALL:  # after a large file comes another
                stage = window.stage(min(enough, _STAGE_MAX) + SMALL)
                ends = self._read_small(stage, keys[done:], enough - window.size)
            if ends:
                part = slice(done, done + len(ends))
                window.put(keys[part], versions[part], stage[: ends[-1]], ends)
                done += len(ends)
                total += ends[-1]
            else:
                length = self._read_large(window, keys[done])
                window.accept(keys[done], versions[done], length)
                done += 1
                total += length
        return done, total

    def _read_small(self, stage: memoryview, keys: Sequence[str], enough: int) -> list[int]:
        """Collect small files, up to the first that is not; returns where each of them ends.

        This loop is most of what opening many small commits costs: nothing may be added to it. A
        read that gives less than it was asked for has met the end of the file, unless it stops at
        the end of a page: what keeps a page from being read keeps all of it.
        """
        opened, read, close, flags = os.open, os.readv, os.close, os.O_RDONLY | _BINARY
        prefix, key = f"{self.root}/", ""
        at, room = 0, min(enough, len(stage) - SMALL)
        ends: list[int] = []
        try:
            for key in keys:
                descriptor = opened(prefix + key, flags)
                try:
                    got = read(descriptor, [stage[at : at + SMALL]])
                    if got == SMALL or (got % _PAGE == 0 and os.read(descriptor, 1)):
                        break
                finally:
                    close(descriptor)
                at += got
                ends.append(at)
                if at >= room:
                    break
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(self._path(key)) from None
        except OSError as error:
            raise unavailable("read", self._path(key), error) from error
        return ends

    def _read_large(self, window: Window, key: str) -> int:
        """Put a file into the free end of the window; returns its length."""
        descriptor = _open(self._path(key))
        try:
            return _read_all(descriptor, window)
        except OSError as error:
            raise unavailable("read", self._path(key), error) from error
        finally:
            os.close(descriptor)

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names in a folder."""
        try:
            names = os.listdir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unavailable("list", self._path(folder), error) from error
        return sorted(names if not start else [name for name in names if name >= start])

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """Names in a folder, with what the disk knows of the files."""
        found = {name: self.stat(f"{folder}/{name}") for name in self.list_from(folder, start)}
        return {name: stat for name, stat in found.items() if stat is not None}

    def walk(self) -> pa.Table:
        """Every file below the root."""
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(f"{self.root}/{folder}") as found:
                    for entry in found:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{folder}{entry.name}/")
                        elif entry.is_file(follow_symlinks=False):
                            stat = entry.stat(follow_symlinks=False)
                            keys.append(f"{folder}{entry.name}")
                            sizes.append(stat.st_size)
                            times.append(stat.st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue  # gone meanwhile
            except OSError as error:
                raise unavailable("list", f"{self.root}/{folder}", error) from error
        return walked(keys, sizes, times)

    def stat(self, key: str) -> Stat | None:
        """Size, time and inode of a file."""
        try:
            found = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable("look at", self._path(key), error) from error
        return Stat(
            found.st_size,
            found.st_mtime_ns // 1_000_000,
            f"{found.st_ino}:{found.st_mtime_ns}",
            S_ISDIR(found.st_mode),
        )

    def check_writable(self, folder: str = LOG) -> None:
        """A link to a name that is taken fails on every file system that has links."""

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Write the bytes to the disk first, then give them their name."""
        path = self._path(key)
        folder = os.path.dirname(path)
        try:
            _make_folder(folder)
            linked = _link_new(folder, path, data)
        except OSError as error:
            raise unavailable("write", path, error) from error
        try:
            _sync(folder)
        except OSError:  # it is there, and nobody can say whether it will be after a power cut
            return Outcome.UNKNOWN
        return Outcome.DONE if linked else Outcome.EXISTS

    def replace(self, key: str, data: bytes) -> None:
        """Write a file beside the one that is there, then rename it over it."""
        self._replace(key, lambda descriptor: _write(descriptor, data))

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """The same, some megabytes at a time."""
        self._replace(key, lambda descriptor: _copy(descriptor, file))

    def _replace(self, key: str, fill: Callable[[int], None]) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        draft = _draft(path)
        try:
            _make_folder(folder)
            try:
                fill(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, _MODE))
                os.replace(draft, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(draft)
                raise
            _sync(folder)
        except OSError as error:
            raise unavailable("write", path, error) from error

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files."""
        for key in keys:
            try:
                os.unlink(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise unavailable("delete", self._path(key), error) from error


def _link_new(folder: str, path: str, data: bytes) -> bool:
    """Whether `path` is now ours; if somebody has it, nothing is left behind."""
    if _NAMELESS is not None:
        try:  # a file without a name: a process that dies here leaves nothing to clean up
            descriptor = os.open(folder, os.O_WRONLY | _NAMELESS, _MODE)
        except OSError:
            descriptor = -1  # a file system that has none
        if descriptor >= 0:
            return _link_nameless(descriptor, path, data)
    draft = _draft(path)
    try:
        _write(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, _MODE), data)
        return _link(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _link_nameless(descriptor: int, path: str, data: bytes) -> bool:
    try:
        _write_synced(descriptor, data)
        # A descriptor for the source's folder makes Python follow the link in /proc.
        return _link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _link(source: str, path: str, **how: int) -> bool:
    try:
        os.link(source, path, follow_symlinks=True, **how)
    except FileExistsError:
        return False
    return True


def _draft(path: str) -> str:
    """A name beside `path` that no reader takes for anything."""
    folder, name = os.path.split(path)
    return f"{folder}/.{name}.{uuid4().hex}.tmp"


def _write(descriptor: int, data: bytes) -> None:
    try:
        _write_synced(descriptor, data)
    finally:
        os.close(descriptor)


def _copy(descriptor: int, file: BinaryIO) -> None:
    try:
        file.seek(0)
        while piece := file.read(_PIECE):
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_synced(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def _make_folder(folder: str) -> None:
    """Make a folder and those above it, and make them stay."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        _sync(os.path.dirname(path))


def _sync(folder: str) -> None:
    """Make names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise unavailable("read", path, error) from error


def _read_all(descriptor: int, window: Window) -> int:
    """Put a file into the free end of the window; returns its length."""
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
    if len(data) < SMALL:
        return data
    parts = [data]
    size = max(os.fstat(descriptor).st_size - len(data), 0) + 1
    while part := os.read(descriptor, max(size, SMALL)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
