"""Tables in a folder of a local file system."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISDIR
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from arrowlog.metering import child_metrics
from arrowlog.storage.base import (
    SMALL_FILE_BYTES,
    ObjectStat,
    PutOutcome,
    build_walk_table,
)
from arrowlog.storage.failures import store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from arrowlog.storage.base import FileBuffer


_PAGE_BYTES = 4096
_STAGE_MAX_BYTES = 1 << 24  # small files that are collected before they go into the buffer
_COPY_CHUNK_BYTES = 1 << 22
_O_BINARY = getattr(os, "O_BINARY", 0)  # Windows only
_O_TMPFILE = getattr(os, "O_TMPFILE", None)  # Linux only
_STATS = (
    "store_requests",
    ("local", "stat"),
)  # a counter; a stat takes little more than to count it
_FILE_MODE = 0o666  # the umask of the process applies


class LocalStore:
    """Files below a folder.

    A new file appears atomically: its bytes are written and synced first, then a hard link gives
    the file its name. `link` fails if the name is taken.
    """

    cheap_stat = True
    takes_buffers = True  # puts write any buffer, without a copy as bytes
    server = ""
    kind = "local"

    def __init__(self, root: str) -> None:
        """Open a folder, which need not exist yet. `~` is expanded."""
        self.root = os.path.abspath(os.path.expanduser(root))
        self.metrics = child_metrics()

    def _path(self, key: str) -> str:
        if "\0" in key:  # a damaged log may name it; no file system has it
            raise FileNotFoundError(key)
        return f"{self.root}/{key}"

    def get(self, key: str) -> bytes:
        """Return the content of a file."""
        descriptor = _open_for_read(self._path(key))
        try:
            data = _read_rest(descriptor, os.read(descriptor, SMALL_FILE_BYTES))
        except OSError as error:
            raise store_error("read", self._path(key), error) from error
        finally:
            os.close(descriptor)
        self.metrics.count_request("local", "read", received=len(data))
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of a file."""
        descriptor = _open_for_read(self._path(key))
        try:
            data = os.pread(descriptor, stop - start, start)
        except OSError as error:
            raise store_error("read", self._path(key), error) from error
        finally:
            os.close(descriptor)
        self.metrics.count_request("local", "read", received=len(data))
        return data

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of files. A plain loop is faster than any number of threads."""
        return [self.get(key) for key in keys]

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of files; None for each missing one."""
        contents: list[bytes | None] = []
        for key in keys:
            try:
                contents.append(self.get(key))
            except FileNotFoundError:
                contents.append(None)
        return contents

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read log files into the buffer: small ones in batches, large ones one by one."""
        num_bytes = num_files = last_large = 0
        while num_files < len(keys) and buffer.size < enough:
            ends: list[int] = []
            if (
                last_large < SMALL_FILE_BYTES
            ):  # a large file is probably followed by another large one
                stage = buffer.staging_memory(min(enough, _STAGE_MAX_BYTES) + SMALL_FILE_BYTES)
                ends = self._read_small_files(stage, keys[num_files:], enough - buffer.size)
            if ends:
                batch = slice(num_files, num_files + len(ends))
                buffer.put(keys[batch], versions[batch], stage[: ends[-1]], ends)
                num_files += len(ends)
                num_bytes += ends[-1]
            else:
                last_large = self._read_large_file(buffer, keys[num_files])
                buffer.accept(keys[num_files], versions[num_files], last_large)
                num_files += 1
                num_bytes += last_large
        self.metrics.count_request("local", "read", num_files, num_bytes)
        return num_files, num_bytes

    def _read_small_files(
        self, staging_memory: memoryview, keys: Sequence[str], enough: int
    ) -> list[int]:
        """Read small files into `stage`, up to the first large one; returns where each one ends.

        This loop dominates the cost of opening a table with many small commits, so keep it minimal.
        A read that returns less than requested has reached the end of the file, unless it stops at
        a page boundary: a page is read completely or not at all.
        """
        open_file, read, close, flags = os.open, os.readv, os.close, os.O_RDONLY | _O_BINARY
        prefix, key = f"{self.root}/", ""
        position, capacity = 0, min(enough, len(staging_memory) - SMALL_FILE_BYTES)
        ends: list[int] = []
        try:
            for key in keys:
                descriptor = open_file(prefix + key, flags)
                try:
                    length = read(
                        descriptor, [staging_memory[position : position + SMALL_FILE_BYTES]]
                    )
                    if length == SMALL_FILE_BYTES or (
                        length % _PAGE_BYTES == 0 and os.read(descriptor, 1)
                    ):
                        break
                finally:
                    close(descriptor)
                position += length
                ends.append(position)
                if position >= capacity:
                    break
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(self._path(key)) from None
        except OSError as error:
            raise store_error("read", self._path(key), error) from error
        return ends

    def _read_large_file(self, buffer: FileBuffer, key: str) -> int:
        """Read a file into the free end of the buffer; returns its length."""
        descriptor = _open_for_read(self._path(key))
        try:
            return _read_to_buffer(descriptor, buffer)
        except OSError as error:
            raise store_error("read", self._path(key), error) from error
        finally:
            os.close(descriptor)

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Return the sorted names in a folder that are not less than `start`."""
        self.metrics.count_request("local", "list")
        try:
            names = os.listdir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise store_error("list", self._path(folder), error) from error
        return sorted(names if not start else [name for name in names if name >= start])

    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of the files in a folder, by name."""
        stats = {name: self.stat(f"{folder}/{name}") for name in self.list_from(folder, start)}
        return {name: stat for name, stat in stats.items() if stat is not None}  # deleted since

    def walk(self) -> pa.Table:
        """Return every file below the root."""
        self.metrics.count_request("local", "list")
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(f"{self.root}/{folder}") as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{folder}{entry.name}/")
                        elif entry.is_file(follow_symlinks=False):
                            stat = entry.stat(follow_symlinks=False)
                            keys.append(f"{folder}{entry.name}")
                            sizes.append(stat.st_size)
                            times.append(stat.st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue  # deleted since its parent was listed
            except OSError as error:
                raise store_error("list", f"{self.root}/{folder}", error) from error
        return build_walk_table(keys, sizes, times)

    def links(self) -> list[str]:
        """Return the symbolic links below the root, sorted. `walk` does not list them."""
        found = []
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    found.append(os.path.relpath(path, self.root))
        return sorted(found)

    def stat(self, key: str) -> ObjectStat | None:
        """Return size and time of a file; the tag is its inode and modification time."""
        self.metrics.raise_counter(_STATS)
        try:
            status = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise store_error("stat", self._path(key), error) from error
        return ObjectStat(
            status.st_size,
            status.st_mtime_ns // 1_000_000,
            f"{status.st_ino}:{status.st_mtime_ns}",
            S_ISDIR(status.st_mode),
        )

    def check_writable(self, folder: str) -> None:
        """Accept every folder: `link` to a taken name fails on every file system with links."""

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Write and sync the bytes first, then link the file to its name."""
        self.metrics.count_request("local", "write", sent=len(data))
        path = self._path(key)
        folder = os.path.dirname(path)
        try:
            _make_folder(folder)
            linked = _write_and_link(folder, path, data)
        except OSError as error:
            raise store_error("write", path, error) from error
        try:
            _fsync_folder(folder)
        except OSError:  # the file exists, but it may not survive a power failure
            return PutOutcome.UNKNOWN
        return PutOutcome.DONE if linked else PutOutcome.EXISTS

    def put_or_find(self, key: str, data: bytes) -> tuple[PutOutcome, bytes | None]:
        """Create a file as `put_if_absent` does, and read nothing: a later read costs little."""
        return self.put_if_absent(key, data), None

    def replace(self, key: str, data: bytes) -> None:
        """Write a temporary file, then rename it to its name."""
        self.metrics.count_request("local", "write", sent=len(data))
        self._replace(key, lambda descriptor: _write_and_close(descriptor, data))

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """Like `replace`, copying the file in chunks."""
        self.metrics.count_request("local", "write", sent=os.fstat(file.fileno()).st_size)
        self._replace(key, lambda descriptor: _copy_and_close(descriptor, file))

    def _replace(self, key: str, write: Callable[[int], None]) -> None:
        """Replace a file; `write` fills, syncs and closes the descriptor that it is given."""
        path = self._path(key)
        folder = os.path.dirname(path)
        temporary = _temporary_path(path)
        try:
            _make_folder(folder)
            try:
                write(_create(temporary))
                os.replace(temporary, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            _fsync_folder(folder)
        except OSError as error:
            raise store_error("write", path, error) from error

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files, and folders whose key ends with a slash if they are empty."""
        self.metrics.count_request("local", "delete", len(keys))
        for key in keys:
            try:
                if key.endswith("/"):
                    with suppress(OSError):  # not empty, or in use
                        os.rmdir(self._path(key))
                else:
                    os.unlink(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise store_error("delete", self._path(key), error) from error


def _write_and_link(folder: str, path: str, data: bytes) -> bool:
    """Create the file `path`; returns False, leaving nothing behind, if the name is taken."""
    if _O_TMPFILE is not None:
        try:  # an unnamed file: a process that dies here leaves nothing to clean up
            descriptor = os.open(folder, os.O_WRONLY | _O_TMPFILE, _FILE_MODE)
        except OSError:
            descriptor = -1  # the file system does not support it
        if descriptor >= 0:
            return _write_and_link_unnamed(descriptor, path, data)
    temporary = _temporary_path(path)
    try:
        _write_and_close(_create(temporary), data)
        return _link(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _write_and_link_unnamed(descriptor: int, path: str, data: bytes) -> bool:
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
        # With `src_dir_fd`, Python calls linkat(), which can follow the symbolic link in /proc.
        return _link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _link(source: str, path: str, **options: int) -> bool:
    """Create a hard link; returns False if the name is taken."""
    try:
        os.link(source, path, follow_symlinks=True, **options)
    except FileExistsError:
        return False
    return True


def _temporary_path(path: str) -> str:
    """Return a unique path in the same folder whose name every reader of a log ignores."""
    folder, name = os.path.split(path)
    return f"{folder}/.{name}.{uuid4().hex}.tmp"


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY, _FILE_MODE)


def _write_and_close(descriptor: int, data: bytes) -> None:
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_and_close(descriptor: int, file: BinaryIO) -> None:
    try:
        file.seek(0)
        while chunk := file.read(_COPY_CHUNK_BYTES):
            _write_all(descriptor, chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # a write may be short
        view = view[os.write(descriptor, view) :]


def _make_folder(folder: str) -> None:
    """Create a folder and its parents, and sync each new name to the disk."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        _fsync_folder(os.path.dirname(path))


def _fsync_folder(folder: str) -> None:
    """Sync a folder, so that the names in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_for_read(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | _O_BINARY)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise store_error("read", path, error) from error


def _read_to_buffer(descriptor: int, buffer: FileBuffer) -> int:
    """Read a file into the free end of the buffer; returns its length.

    One byte more than the size is reserved, to see the end of a file that has grown meanwhile.
    """
    length, room = 0, os.fstat(descriptor).st_size + 1
    while True:
        with buffer.reserve(room) as free:
            num_read = os.readv(descriptor, [free[length:]])
            length += num_read
            full = length == len(free)
        if num_read == 0 and not full:
            return length
        if full:
            room = max(os.fstat(descriptor).st_size, 2 * length) + 1


def _read_rest(descriptor: int, data: bytes) -> bytes:
    """Return the whole file, of which the first bytes have been read as `data`."""
    if len(data) < SMALL_FILE_BYTES:
        return data
    parts = [data]
    remaining = max(os.fstat(descriptor).st_size - len(data), 0) + 1
    while part := os.read(descriptor, max(remaining, SMALL_FILE_BYTES)):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)
