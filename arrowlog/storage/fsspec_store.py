"""Remote stores: their common base class, any fsspec file system, and `memory://`."""

from __future__ import annotations

import os
import random
import re
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from functools import partial
from html import escape
from inspect import Parameter, signature
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from arrowlog.errors import ArrowlogError, InvalidRequest, StoreTimeout, StoreUnavailable, redact
from arrowlog.log_lines import STORE_RETRY
from arrowlog.metering import child_metrics
from arrowlog.storage.base import ObjectStat, PutOutcome, build_walk_table
from arrowlog.storage.failures import (
    bucket_missing_error,
    find_unexpected_option,
    is_bucket_missing,
    is_tls_failure,
    store_error,
    unknown_option_error,
)
from arrowlog.storage.request_slots import RequestSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.storage.base import FileBuffer


DEFAULT_PARALLELISM = 4  # concurrent requests, unless the setting says otherwise
_INITIAL_FILE_BYTES = 1 << 16  # assumed size of a log file, until some have been read
# Files that one call of `read_into` reads one after the other: it has to end within the time limit.
_FILES_PER_READER = 64
_BACKOFF_SECONDS = 0.05  # first pause; doubles with every attempt
_MAX_BACKOFF_SECONDS = 2.0
# An option is secret if its name contains one of these.
_SECRET_WORDS = ("secret", "token", "password", "key", "credential", "sas", "username")
_MIN_SECRET_LENGTH = 4  # replacing every "a" would make messages unreadable
# The names that fsspec file systems use for the modification time, in order of preference.
_MTIME_FIELDS = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")
# Google Cloud Storage and Azure: `mode="create"` is a conditional request of the service.
_ATOMIC_PROTOCOLS = ("gs", "gcs", "abfs", "abfss", "az")
# Credentials and signatures of a request that a response repeats.
_SIGNATURE = re.compile(
    r"(?i)((?:Credential|Signature|Security-Token|AWSAccessKeyId)['\"]?[=:>]\s*)[^\s,&<]+"
)
_Result = TypeVar("_Result")


class RemoteStore(ABC):
    """Base class of remote stores: retries with backoff, parallel reads, redacted messages."""

    cheap_stat = False
    server = ""
    kind = ""

    def __init__(
        self, root: str, secrets: Iterable[str], parallelism: int | None, seconds: float
    ) -> None:
        """Set up a store.

        Args:
            root: Address of the table, without credentials.
            secrets: Texts that no message may contain.
            parallelism: Maximum number of concurrent requests; None leaves it to the store.
            seconds: Time limit of an operation, including retries.
        """
        self.root = root
        self.ceiling = parallelism
        self.parallelism = DEFAULT_PARALLELISM if parallelism is None else parallelism
        self.seconds = seconds
        self.metrics = child_metrics()
        self.slots = RequestSlots(parallelism)
        self._secrets = _secret_forms(secrets)
        self._mean_file_bytes = _INITIAL_FILE_BYTES

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the content of an object."""

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects, read in parallel within the time limit."""
        return self._map_keys(self.get, keys)

    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of objects; None for each missing one."""
        return self._map_keys(self.find, keys)

    def find(self, key: str) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _map_keys(self, read: Callable[[str], _Result], keys: Sequence[str]) -> list[_Result]:
        pool = ThreadPoolExecutor(max(self.parallelism, 1))
        try:
            futures = [pool.submit(read, key) for key in keys]
            late = wait(futures, timeout=self.seconds).not_done
            if late:
                raise self.timeout_error(len(late), len(keys))
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # waiting would defeat the time limit

    def timeout_error(self, late: int, count: int) -> StoreUnavailable:
        """Return the error for reads that exceeded the time limit."""
        return StoreTimeout(
            f"{late} of {count} files of {self.root} were not read within {self.seconds:g} s.",
            next="Try again, or raise checkpoint.read.timeoutSeconds.",
        )

    def readers(self) -> int:
        """Return how many objects are read at a time."""
        return self.parallelism

    def read_into(
        self, buffer: FileBuffer, keys: Sequence[str], versions: Sequence[int], enough: int
    ) -> tuple[int, int]:
        """Read as many files as should give `enough` bytes, in parallel, into the buffer.

        The number of files is estimated from the mean size of the files read last.
        """
        count = min(
            max(enough // self._mean_file_bytes, self.parallelism),
            _FILES_PER_READER * max(self.readers(), 1),
            len(keys),
        )
        raws = self.get_many(keys[:count])
        buffer.fill(keys[:count], versions[:count], raws)
        num_bytes = sum(len(raw) for raw in raws)
        self._mean_file_bytes = buffer.size // count + 1
        return count, num_bytes

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object if the key is free, atomically."""

    def put_or_find(self, key: str, data: bytes) -> tuple[PutOutcome, bytes | None]:
        """Create an object as `put_if_absent` does, and read nothing."""
        return self.put_if_absent(key, data), None

    @abstractmethod
    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object."""

    def replace_from(self, key: str, file: BinaryIO) -> None:
        """Like `replace`, with the whole content in memory: the request may have to be repeated."""
        file.seek(0)
        self.replace(key, file.read())

    @abstractmethod
    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of the objects in `folder` whose names are not less than `start`."""

    def list_from(self, folder: str, start: str = "") -> list[str]:
        """Return the sorted names in `folder` that are not less than `start`."""
        return sorted(self.stats_from(folder, start))

    def request(self, verb: str, call: Callable[[], Any], sent: int = 0) -> Any:
        """Send one request, of which `sent` is the size, within the ceiling; counts it."""
        with self.slots:
            self.metrics.count_request(self.kind, verb, sent=sent)
            result = call()
        if isinstance(result, bytes):
            self.metrics.count_request(self.kind, verb, 0, len(result))
        return result

    def with_retries(self, verb: str, where: str, call: Callable[[], Any], sent: int = 0) -> Any:
        """Call `call`, retrying with backoff until it succeeds or the time limit is reached.

        Only for idempotent operations. `FileNotFoundError` and `ArrowlogError` are not retried; any
        other final failure raises `StoreUnavailable`, worded with `verb` and `where`. So does a
        missing bucket, which is more than a missing object.
        """
        stop = time.monotonic() + self.seconds
        pause = _BACKOFF_SECONDS
        while True:
            try:
                return self.request(verb, call, sent)
            except ArrowlogError:
                raise
            except FileNotFoundError as error:
                if is_bucket_missing(error):
                    raise self.failed(verb, where, error) from None
                raise FileNotFoundError(self.without_secrets(where)) from None
            except Exception as error:  # noqa: BLE001 -- whatever the store's own library raises
                permanent = self.is_permanent(error) or is_tls_failure(error)
                if permanent or time.monotonic() + pause >= stop:
                    raise self.failed(verb, where, error) from None
                self.note_retry(verb, error)
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 -- not a secret
            pause = min(2 * pause, _MAX_BACKOFF_SECONDS)

    def note_retry(self, verb: str, error: Exception) -> None:
        """Count and log a request that is about to be repeated."""
        self.metrics.add("store_retries", 1, self.kind, verb)
        if STORE_RETRY.enabled:
            text = self.without_secrets(str(error)).partition("\n")[0]
            reason = f"{type(error).__name__}: {text}"
            STORE_RETRY.log(table=self.root, operation=verb, reason=reason)

    def is_permanent(self, error: Exception) -> bool:
        """Return whether a retry cannot succeed."""
        return isinstance(error, (PermissionError, ValueError, TypeError, ImportError))

    def failed(self, verb: str, where: str, error: BaseException) -> ArrowlogError:
        """Return the error for a failed operation: its cause and the next step, no secrets."""
        option = find_unexpected_option(error)
        if option is not None:  # some packages look at their options only when they are used
            return unknown_option_error(option, self.option_names())
        return store_error(verb, self.without_secrets(where), error, self.without_secrets)

    def bucket_missing(self, verb: str, where: str) -> StoreUnavailable:
        """Return the error for an operation on a bucket that does not exist."""
        return bucket_missing_error(verb, self.without_secrets(where))

    def option_names(self) -> list[str]:
        """Return the names of the options of this store, as far as they are known."""
        return []

    def refused(self, error: BaseException) -> InvalidRequest:
        """Return the error for an address or options with which no client can be created."""
        option = find_unexpected_option(error)
        if option is not None:
            return unknown_option_error(option, self.option_names())
        reason = self.without_secrets(str(error)).split("\n", 1)[0].strip().rstrip(".")
        advice = "Check the address and the options, and that the store's package is installed."
        if isinstance(error, ImportError) and self.root.startswith(("s3://", "s3a://", "s3n://")):
            reason, advice = "s3fs is not installed", "Install it: pip install 'arrowlog[s3]'"
        return InvalidRequest(
            f"{self.root} cannot be opened: {reason or type(error).__name__}.", next=advice
        )

    def without_secrets(self, text: str) -> str:
        """Return a text with all secrets replaced by `***`."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(_SIGNATURE.sub(r"\1***", text))


def parameter_names(function: Any) -> list[str]:
    """Return the names of the parameters that a function can be given by name.

    >>> parameter_names(lambda self, key, *args, secret=None, **rest: None)
    ['key', 'secret']
    """
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = signature(function).parameters
    return [name for name, each in parameters.items() if each.kind in by_name and name != "self"]


def find_secrets(options: Mapping[str, Any]) -> list[str]:
    """Return the values of options that no message may contain."""
    secrets: list[str] = []
    for name, value in options.items():
        if isinstance(value, dict):
            secrets += find_secrets(value)
        elif isinstance(value, str) and "://" in value:
            secrets += _secrets_in_uri(value)
        elif isinstance(value, str) and any(word in str(name).lower() for word in _SECRET_WORDS):
            secrets.append(value)
    return secrets


def _secrets_in_uri(uri: str) -> list[str]:
    """Return user, password and query values of an address.

    They are needed one by one, because a client may show them without the rest of the address.
    """
    rest, _, query = uri.partition("://")[2].partition("?")
    userinfo, _, _ = rest.rpartition("@")
    user, _, password = userinfo.partition(":")
    port = re.match(r"\d+(?:/|$)", password)  # host:8020/folder@x has no user
    secrets = [user, password] if password and not port else []
    return secrets + [unquote(text) for text in secrets] + [value for _, value in parse_qsl(query)]


def _secret_forms(secrets: Iterable[str]) -> list[str]:
    """Return the secrets as they appear in text, in URLs and in XML, the longest first."""
    texts = {text for text in secrets if len(text) >= _MIN_SECRET_LENGTH}
    quoted = {quote(text, safe=safe) for text in texts for safe in ("", "/")}
    return sorted(
        texts | quoted | {escape(text, quote=False) for text in texts}, key=len, reverse=True
    )


class FsspecStore(RemoteStore):
    """Any fsspec file system, through an instance of its own for this table.

    Instances do not survive a fork, so every process creates its own. Caches of listings and
    instances are off: a cached listing hides the commits of other writers.
    """

    def __init__(
        self,
        uri: str,
        options: Mapping[str, Any],
        parallelism: int | None,
        seconds: float,
        secrets: Iterable[str] = (),
        *,
        unsafe: bool = False,
    ) -> None:
        """Connect to the file system.

        `unsafe` permits commits although `put_if_absent` may not be atomic. Raises `InvalidRequest`
        if the package for the protocol is missing or refuses the options.
        """
        secrets = [*secrets, *find_secrets(options), *_secrets_in_uri(uri)]
        super().__init__(redact(uri).rstrip("/"), secrets, parallelism, seconds)
        self._uri = uri
        self._options = {"use_listings_cache": False, "skip_instance_cache": True, **options}
        self._unsafe = unsafe
        self.kind = uri.partition(":")[0]
        self._connection = self._connect()

    def _connect(self) -> tuple[int, Any, str]:
        """Return the process id, a new file system, and the path of the table's root in it."""
        import fsspec

        try:
            file_system, path = fsspec.core.url_to_fs(self._uri, **self._options)
        except Exception as error:  # noqa: BLE001 -- every package refuses in its own way
            raise self.refused(error) from None
        return os.getpid(), file_system, str(path).rstrip("/")

    @property
    def fs(self) -> Any:
        """The file system of this process."""
        # No lock: after a fork while another thread holds it, the child would wait forever.
        if self._connection[0] != os.getpid():
            self._connection = self._connect()
        return self._connection[1]

    def path(self, key: str) -> str:
        """Return the path of a key in the file system."""
        return f"{self._connection[2]}/{key}"

    def url(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return f"{self.root}/{key}"

    def option_names(self) -> list[str]:
        """Return the options that the class of the file system names."""
        from fsspec import get_filesystem_class

        # Of a chain such as simplecache::s3://, the first file system gets the options.
        protocol = self._uri.partition("://")[0].partition("::")[0]
        file_system = get_filesystem_class(protocol)
        return parameter_names(file_system.__init__)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        path = self.path(key)
        return bytes(self.with_retries("read", self.url(key), lambda: self.fs.cat_file(path)))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object."""
        path = self.path(key)
        read = lambda: self.fs.cat_file(path, start=start, end=stop)  # noqa: E731
        return bytes(self.with_retries("read", self.url(key), read))

    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of the entries of a folder, by name."""
        path = self.path(folder)
        try:
            entries = self.with_retries(
                "list", self.url(folder), lambda: self.fs.ls(path, detail=True, refresh=True)
            )
        except FileNotFoundError:
            return {}
        named = ((str(info["name"]).rstrip("/").rpartition("/")[2], info) for info in entries)
        return {name: _to_stat(info) for name, info in named if name >= start and name}

    def walk(self) -> pa.Table:
        """Return every object below the root."""
        root = self.path("")
        try:
            find = lambda: self.fs.find(root.rstrip("/"), detail=True)  # noqa: E731
            infos = self.with_retries("list", self.root, find)
        except FileNotFoundError:
            return build_walk_table([], [], [])
        inside = {name: info for name, info in infos.items() if str(name).startswith(root)}
        stats = [_to_stat(info) for info in inside.values()]
        return build_walk_table(
            [str(name)[len(root) :] for name in inside],
            [stat.size for stat in stats],
            [stat.mtime_ms for stat in stats],
        )

    def stat(self, key: str) -> ObjectStat | None:
        """Return size, time and entity tag of an object, as far as the file system has them."""
        path = self.path(key)
        try:
            return _to_stat(self.with_retries("stat", self.url(key), lambda: self.fs.info(path)))
        except FileNotFoundError:
            return None

    def check_writable(self, folder: str) -> None:
        """Raise `InvalidRequest` for protocols without put-if-absent, unless the user allows it."""
        del folder
        protocol = self._uri.partition(":")[0]
        if protocol not in _ATOMIC_PROTOCOLS and not self._unsafe:
            raise InvalidRequest(
                f"{self.root} is read-only: {protocol}:// does not guarantee that only one of two"
                " concurrent writers creates a file.",
                next="If this is the only writer, open the table with allow_unsafe_commits=True.",
            )

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object with the file system's `create` mode."""
        path = self.path(key)
        try:
            # Some file systems ignore `create` and overwrite.
            if self._unsafe and self.fs.exists(path):
                return PutOutcome.EXISTS
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            put = lambda: self.fs.pipe_file(path, data, mode="create")  # noqa: E731
            self.request("write", put, len(data))
        except FileExistsError:
            return PutOutcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- whatever the store's own library raises
            if self.is_permanent(error):
                raise self.failed("write", self.url(key), error) from None
            return PutOutcome.UNKNOWN
        return PutOutcome.DONE

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object."""
        path = self.path(key)
        self.with_retries("write", self.url(key), lambda: self._write(path, data), len(data))

    def _write(self, path: str, data: bytes) -> None:
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects one by one, so that a missing one does not stop the others."""
        for key in keys:
            try:
                self.with_retries("delete", self.url(key), partial(self._delete_one, key))
            except FileNotFoundError:
                continue

    def _delete_one(self, key: str) -> None:
        self.fs.rm_file(self.path(key))


def _to_stat(info: Mapping[str, Any]) -> ObjectStat:
    """Convert an entry of an fsspec listing, whose field for the time depends on the file system.

    >>> _to_stat({"size": 5, "updated": "1970-01-01T00:00:01.5Z", "etag": "x"})
    ObjectStat(size=5, mtime_ms=1500, tag='x', folder=False)
    """
    mtime = next((info[name] for name in _MTIME_FIELDS if info.get(name)), -1)
    try:
        mtime = datetime.fromisoformat(mtime) if isinstance(mtime, str) else mtime
        seconds = mtime.timestamp() if hasattr(mtime, "timestamp") else float(mtime)
    except (TypeError, ValueError):
        seconds = -1.0  # unknown
    tag = next((info[name] for name in ("ETag", "etag", "generation") if info.get(name)), seconds)
    return ObjectStat(int(info.get("size") or 0), int(seconds * 1000), str(tag))


_LOCK = Lock()
if hasattr(os, "register_at_fork"):
    # Take the lock during a fork: a child that inherits it locked would wait forever.
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class MemoryStore(FsspecStore):
    """A store in memory. All stores of a process share the same objects.

    fsspec's `create` mode checks and then writes, which is not atomic; here a lock of the process
    covers both steps.
    """

    cheap_stat = True

    def __init__(self, uri: str, options: Any, parallelism: int | None, seconds: float) -> None:
        """Open a table; see `FsspecStore`."""
        super().__init__(uri, options, parallelism, seconds)

    def check_writable(self, folder: str) -> None:
        """Accept every address: the lock makes puts atomic."""

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object if the key is free, under the lock."""
        path = self.path(key)
        with _LOCK:
            if self.fs.exists(path):
                return PutOutcome.EXISTS
            self.fs.pipe_file(path, data)
        self.metrics.count_request(self.kind, "write", sent=len(data))
        return PutOutcome.DONE
