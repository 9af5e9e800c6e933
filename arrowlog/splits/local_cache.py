"""A bounded cache of unbundled splits on the local disk, shared by all processes of a user.

An entry is a folder named after the identity of its split and its kind. It is built under another
name and renamed into place, so an entry is complete or absent; the sizes of its files tell whether
it survived a loss of power. Each entry has a lock file: readers hold a shared lock while they use
the entry, and a process that builds or evicts it an exclusive one. The least recently used entries
are evicted; entries in use stay.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from arrowlog.errors import ArrowlogError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What an entry holds. The kinds are apart because each lacks what the others have: a search in a
# folder without terms would find nothing, without an error. `field_search` is the index of the
# fields of the first search, `search` that of all fields.
Kind = Literal["meta", "rows", "fast", "documents", "field_search", "search"]
_KINDS = ("meta", "rows", "fast", "documents", "field_search", "search")
# To be changed with the content of entries: entries of another version are evicted unread.
_VERSION = 3
_LOCK = ".lock"
_BUILDING = ".building"
_SIZES = ".sizes.json"  # in each entry
# Sizes are summed after this part of the bound was added, not after every entry: summing reads
# every folder. The bound is lowered by the same part.
_SLACK = 16


@dataclass
class SplitCache:
    """The cache in `folder`, of about `max_bytes` bytes."""

    folder: str
    max_bytes: int
    _unchecked: int = field(default=-1, repr=False)  # bytes added since the last check; -1: never
    _mutex: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def entry(self, identity: str, kind: Kind, build: Callable[[str], None]) -> Iterator[str]:
        """Return the folder of an entry, built with `build(folder)` if it is absent.

        The entry is not evicted before the context ends. Raises InvalidRequest if the cache cannot
        be written.
        """
        name = _entry_name(identity, kind)
        path = os.path.join(self.folder, name)
        with self._translate_errors():
            descriptor = self._pin(name, path, build)
        try:
            yield path
        finally:
            os.close(descriptor)
        self._evict_if_due()

    def has(self, identity: str, kind: Kind) -> bool:
        """Whether an entry exists; it may be evicted right after."""
        return os.path.isdir(os.path.join(self.folder, _entry_name(identity, kind)))

    def _pin(self, name: str, path: str, build: Callable[[str], None]) -> int:
        """Hold a shared lock on an existing entry; build it first if it is absent."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        while True:
            descriptor = self._lock(name, fcntl.LOCK_SH)
            if _touch(path) and _is_intact(path):
                return descriptor
            os.close(descriptor)
            descriptor = self._lock(name, fcntl.LOCK_EX)
            try:
                if not _is_intact(path):
                    shutil.rmtree(path, ignore_errors=True)
                    self._build(path, build)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                # Changing the lock is not atomic: the entry may have been evicted in between.
                if _touch(path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _build(self, path: str, build: Callable[[str], None]) -> None:
        building = path + _BUILDING
        shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
        os.mkdir(building, 0o700)
        try:
            build(building)
            sizes = _file_sizes(building)
            with open(os.path.join(building, _SIZES), "w", encoding="utf-8") as out:
                json.dump(sizes, out)
            os.rename(building, path)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        with self._mutex:
            if self._unchecked >= 0:
                self._unchecked += sum(sizes.values())

    def _lock(self, name: str, operation: int) -> int:
        """Open and lock the lock file of an entry.

        An evicting process deletes the file with the entry. A lock on a deleted file excludes no
        one, so it is taken again.
        """
        path = os.path.join(self.folder, name + _LOCK)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(descriptor, operation)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _evict_if_due(self) -> None:
        with self._mutex:
            if 0 <= self._unchecked < self.max_bytes // _SLACK:
                return
            self._unchecked = 0
        with suppress(OSError):
            self.evict()

    def evict(self) -> None:
        """Delete the least recently used entries beyond the bound, and remains of killed builds."""
        entries: list[tuple[float, int, str]] = []
        total = 0
        for name in os.listdir(self.folder):
            base = name.removesuffix(_LOCK).removesuffix(_BUILDING)
            if base.rpartition(".")[2] not in _KINDS:
                continue
            path = os.path.join(self.folder, name)
            if name != base:
                if not os.path.isdir(os.path.join(self.folder, base)):
                    self._evict_entry(base)
                continue
            with suppress(OSError):
                size = sum(_file_sizes(path, hidden=True).values())
                total += size
                entries.append((os.stat(path).st_mtime, size, name))
        for _, size, name in sorted(entries):
            if total <= self.max_bytes - self.max_bytes // _SLACK:
                return
            if self._evict_entry(name):
                total -= size

    def _evict_entry(self, name: str) -> bool:
        """Delete an entry unless it is in use; returns whether it is gone."""
        try:
            descriptor = self._lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            path = os.path.join(self.folder, name)
            building = path + _BUILDING
            shutil.rmtree(building, ignore_errors=True)
            with suppress(FileNotFoundError):
                os.rename(path, building)
                shutil.rmtree(building, ignore_errors=True)
            os.unlink(path + _LOCK)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except ArrowlogError:
            raise
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidRequest(
                f"The cache of splits in {self.folder} cannot be used: {reason}.",
                next="Set `splits.cache.path` to a folder that this process may write.",
            ) from error


def default_cache_folder() -> str:
    """The folder of the cache if none is set: in the user's cache folder, else a temporary one."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(base, "arrowlog", "splits")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        pass
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    # A worker of a cluster may have no home. Other users must not be able to write to the folder.
    folder = os.path.join(tempfile.gettempdir(), f"arrowlog-splits-{os.getuid()}")
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InvalidRequest(
            f"The folder {folder} belongs to another user.",
            next="Set `splits.cache.path` to a folder of this user.",
        )
    return folder


def _entry_name(identity: str, kind: Kind) -> str:
    digest = sha256(f"{_VERSION}\n{identity}".encode()).hexdigest()[:40]
    return f"{digest}.{kind}"


def _touch(path: str) -> bool:
    """Note the use of an entry; returns whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _file_sizes(path: str, *, hidden: bool = False) -> dict[str, int]:
    """The sizes of the files of an entry; hidden ones are the sizes and tantivy's locks."""
    return {
        os.path.relpath(os.path.join(folder, name), path): os.lstat(f"{folder}/{name}").st_size
        for folder, _, names in os.walk(path)
        for name in names
        if hidden or not name.startswith(".")
    }


def _is_intact(path: str) -> bool:
    """Whether an entry exists, and its files have the sizes that they were written with.

    Files are not flushed to disk, because entries can be built again: after a loss of power, some
    may be empty.
    """
    try:
        with open(os.path.join(path, _SIZES), encoding="utf-8") as file:
            sizes = json.load(file)
        return all(os.lstat(os.path.join(path, name)).st_size == sizes[name] for name in sizes)
    except (OSError, ValueError, TypeError):
        return False
