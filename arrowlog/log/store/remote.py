"""Stores behind a network: what they share, and any of them that fsspec knows."""

from __future__ import annotations

import os
import random
import re
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from arrowlog.errors import ArrowlogError, InvalidRequest, StoreUnavailable, redact
from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome, Stat, unavailable, walked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.log.window import Window

_ABOUT = 1 << 16  # bytes of a log file, as long as none was seen
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
_SECRET = ("secret", "token", "password", "key", "credential", "sas", "username")
_SECRET_LENGTH_MIN = 4  # hiding every "a" would leave no message
_TIMES = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")
_KEYS_ATOMIC = ("gs", "gcs", "abfs", "abfss", "az")  # their `create` is the service's own condition
# What a request was signed with, when an answer repeats it.
_SIGNED = re.compile(
    r"(?i)((?:Credential|Signature|Security-Token|AWSAccessKeyId)['\"]?[=:>]\s*)[^\s,&<]+"
)
_Read = TypeVar("_Read")


class Remote(ABC):
    """What stores behind a network have in common: patience, parallel reads, silence on secrets."""

    cheap_stat = False

    def __init__(self, root: str, secrets: Iterable[str], parallelism: int, seconds: float) -> None:
        """`seconds` is what an operation may take, tries again included."""
        self.root = root
        self.parallelism = parallelism
        self.seconds = seconds
        self._secrets = _spellings(secrets)
        self._mean = _ABOUT

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read an object."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Read objects, some at a time, all before the time limit."""
        return self._all(self.get, keys)

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read objects, None for those that are not there."""
        return self._all(self.find, keys)

    def find(self, key: str) -> bytes | None:
        """Read an object, None if it is not there."""
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _all(self, read: Callable[[str], _Read], keys: Sequence[str]) -> list[_Read]:
        pool = ThreadPoolExecutor(max(self.parallelism, 1))
        try:
            futures = [pool.submit(read, key) for key in keys]
            late = wait(futures, timeout=self.seconds).not_done
            if late:
                raise self.too_late(len(late), len(keys))
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # waiting would undo the time limit

    def too_late(self, late: int, count: int) -> StoreUnavailable:
        """The error for reads that took too long."""
        return StoreUnavailable(
            f"{late} of {count} files of {self.root} were not there after {self.seconds:g} s.",
            next="Try again, or raise checkpoint.read.timeoutSeconds.",
        )

    def read_into(
        self, window: Window, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read some objects at the same time, then unpack them into the window."""
        count = min(max(enough // self._mean, self.parallelism), len(keys))
        raws = self.get_many(keys[:count])
        window.fill(keys[:count], versions[:count], raws)
        total = sum(len(raw) for raw in raws)
        self._mean = window.size // count + 1
        return count, total

    @abstractmethod
    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """The same with what a file has: one request, which may have to be sent again."""
        file.seek(0)
        self.replace(key, file.read())

    @abstractmethod
    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """The objects directly in `folder` whose names are not below `start`, by name."""

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Names directly in a folder."""
        return sorted(self.stats_from(folder, start))

    def patiently(self, verb: str, where: str, call: Callable[[], Any]) -> Any:
        """Do what can be done again without harm, again until it works or time is up."""
        stop = time.monotonic() + self.seconds
        pause = _PAUSE_SECONDS
        while True:
            try:
                return call()
            except ArrowlogError:
                raise
            except FileNotFoundError:
                raise FileNotFoundError(self.cleared(where)) from None
            except Exception as error:  # noqa: BLE001 -- whatever the store's own library raises
                if self.is_final(error) or time.monotonic() + pause >= stop:
                    raise self.failed(verb, where, error) from None
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 -- not a secret
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def is_final(self, error: Exception) -> bool:
        """Whether trying again cannot help."""
        return isinstance(error, (PermissionError, ValueError, TypeError, ImportError))

    def failed(self, verb: str, where: str, error: BaseException) -> StoreUnavailable:
        """A failure in our words, without anything secret in it."""
        text = self.cleared(str(error)) or type(error).__name__
        return unavailable(verb, self.cleared(where), RuntimeError(text))

    def refused(self, error: BaseException) -> InvalidRequest:
        """Options or an address that no client can be made of."""
        reason = self.cleared(str(error)).split("\n", 1)[0].strip().rstrip(".")
        return InvalidRequest(
            f"{self.root} cannot be opened: {reason or type(error).__name__}.",
            next="Check the address and the options, install its package.",
        )

    def cleared(self, text: str) -> str:
        """A text without anything secret in it."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(_SIGNED.sub(r"\1***", text))


def secrets_in(options: Mapping[str, Any]) -> list[str]:
    """Values of options that no message may show."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, dict):
            found += secrets_in(value)
        elif isinstance(value, str) and "://" in value:
            found += _secrets_of(value)
        elif isinstance(value, str) and any(word in str(name).lower() for word in _SECRET):
            found.append(value)
    return found


def _secrets_of(uri: str) -> list[str]:
    """What an address has of user, password and query: a client may show it without the rest."""
    rest, _, query = uri.partition("://")[2].partition("?")
    info, _, _ = rest.rpartition("@")
    user, _, password = info.partition(":")
    port = re.match(r"\d+(?:/|$)", password)  # host:8020/folder@x has no user
    found = [user, password] if password and not port else []
    return found + [unquote(text) for text in found] + [value for _, value in parse_qsl(query)]


def _spellings(secrets: Iterable[str]) -> list[str]:
    """Secrets as they stand in texts, in addresses and in XML, the longest first."""
    texts = {text for text in secrets if len(text) >= _SECRET_LENGTH_MIN}
    quoted = {quote(text, safe=safe) for text in texts for safe in ("", "/")}
    return sorted(texts | quoted | {escape(text) for text in texts}, key=len, reverse=True)


class FsspecStore(Remote):
    """Any store fsspec knows, through one file system instance made for this table.

    Instances do not survive a fork, so every process makes its own.
    """

    def __init__(
        self,
        uri: str,
        options: Mapping[str, Any],
        parallelism: int,
        seconds: float,
        secrets: Iterable[str] = (),
        *,
        unsafe: bool = False,
    ) -> None:
        """A protocol whose package is missing is an `InvalidRequest`."""
        secrets = [*secrets, *secrets_in(options), *_secrets_of(uri)]
        super().__init__(redact(uri).rstrip("/"), secrets, parallelism, seconds)
        self._uri = uri
        self._options = {"use_listings_cache": False, "skip_instance_cache": True, **options}
        self._unsafe = unsafe
        self._made = self._connect()

    def _connect(self) -> tuple[int, Any, str]:
        """A file system of this process, and the table's root in it."""
        import fsspec

        try:
            file_system, path = fsspec.core.url_to_fs(self._uri, **self._options)
        except Exception as error:  # noqa: BLE001 -- every package refuses in its own way
            raise self.refused(error) from None
        return os.getpid(), file_system, str(path).rstrip("/")

    @property
    def fs(self) -> Any:
        """The file system of this process."""
        # No lock: a fork while another thread holds it would leave the child waiting forever.
        if self._made[0] != os.getpid():
            self._made = self._connect()
        return self._made[1]

    def path(self, key: str) -> str:
        """The key as fsspec has it."""
        return f"{self._made[2]}/{key}"

    def get(self, key: str) -> bytes:
        """Read an object."""
        path = self.path(key)
        return bytes(self.patiently("read", path, lambda: self.fs.cat_file(path)))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Read a part of an object."""
        path = self.path(key)
        read = lambda: self.fs.cat_file(path, start=start, end=stop)  # noqa: E731
        return bytes(self.patiently("read", path, read))

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """Everything directly in a folder, by name."""
        path = self.path(folder)
        try:
            found = self.patiently(
                "list", path, lambda: self.fs.ls(path, detail=True, refresh=True)
            )
        except FileNotFoundError:
            return {}
        named = ((str(item["name"]).rstrip("/").rpartition("/")[2], item) for item in found)
        return {name: _stat(item) for name, item in named if name >= start and name}

    def walk(self) -> pa.Table:
        """Everything below the root."""
        root = self.path("")
        try:
            find = lambda: self.fs.find(root.rstrip("/"), detail=True)  # noqa: E731
            found = self.patiently("list", root, find)
        except FileNotFoundError:
            return walked([], [], [])
        inside = {name: item for name, item in found.items() if str(name).startswith(root)}
        stats = [_stat(item) for item in inside.values()]
        return walked(
            [str(name)[len(root) :] for name in inside],
            [stat.size for stat in stats],
            [stat.mtime_ms for stat in stats],
        )

    def stat(self, key: str) -> Stat | None:
        """Size, time and entity tag of an object, as far as the store has them."""
        path = self.path(key)
        try:
            return _stat(self.patiently("look at", path, lambda: self.fs.info(path)))
        except FileNotFoundError:
            return None

    def check_writable(self, folder: str = LOG) -> None:
        """Only protocols that are known to make an object once, unless the user insists."""
        del folder
        protocol = self._uri.partition(":")[0]
        if protocol not in _KEYS_ATOMIC and not self._unsafe:
            raise InvalidRequest(
                f"{self.root} can be read, and not committed to: nobody promises that a file is"
                f" made only once on {protocol}://.",
                next="If nobody else writes this table, open it with allow_unsafe_commits=True.",
            )

    def put_new(self, key: str, data: bytes) -> Outcome:
        """Make an object, if the file system knows how."""
        path = self.path(key)
        try:
            if self._unsafe and self.fs.exists(path):
                return Outcome.EXISTS
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return Outcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- whatever the store's own library raises
            if self.is_final(error):
                raise self.failed("write", path, error) from None
            return Outcome.UNKNOWN
        return Outcome.DONE

    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""
        path = self.path(key)
        self.patiently("write", path, lambda: self._pipe(path, data))

    def _pipe(self, path: str, data: bytes) -> None:
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, one by one: one that is missing must not stop the others."""
        for key in keys:
            try:
                self.patiently("delete", self.path(key), partial(self._remove, key))
            except FileNotFoundError:
                continue

    def _remove(self, key: str) -> None:
        self.fs.rm_file(self.path(key))


def _stat(found: Mapping[str, Any]) -> Stat:
    """What a file system of fsspec says of an object; each has names of its own for the time.

    >>> _stat({"size": 5, "updated": "1970-01-01T00:00:01.5Z", "etag": "x"})
    Stat(size=5, mtime_ms=1500, tag='x', folder=False)
    """
    when = next((found[name] for name in _TIMES if found.get(name)), -1)
    try:
        when = datetime.fromisoformat(when) if isinstance(when, str) else when
        seconds = when.timestamp() if hasattr(when, "timestamp") else float(when)
    except (TypeError, ValueError):
        seconds = -1.0  # nobody can tell
    tag = next((found[name] for name in ("ETag", "etag", "generation") if found.get(name)), seconds)
    return Stat(int(found.get("size") or 0), int(seconds * 1000), str(tag))
