"""S3 through obstore, an optional package: the same results as s3fs, many times faster.

`open_store` chooses it if obstore understands all options and the credentials are given as options
or in the environment; profiles, roles and sessions are left to s3fs. obstore's threads do not
survive a fork, and a forked child would wait for them forever: there, s3fs is used instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogError, redact
from arrowlog.storage.base import ObjectStat, PutOutcome, build_walk_table
from arrowlog.storage.failures import response_status
from arrowlog.storage.fsspec_store import RemoteStore, find_secrets
from arrowlog.storage.s3 import (
    LARGE_OBJECT_FACTOR,
    PROBED_BUCKETS,
    S3Options,
    S3Store,
    check_endpoint,
    find_endpoint,
    find_environment_secrets,
    parse_s3_options,
    predecessor_name,
    probe_conditional_put,
    put_time_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_QUICK_SECONDS = 10  # limit of small requests, and of silence during large ones
_CONNECT_SECONDS = 5
# Concurrent reads if checkpoint.parallelism is not set. At 64, opening 10,000 commits over 20 ms is
# 156 round trips, most of the time that it takes.
_CONCURRENT_READS_MAX = 512
# Reads may use one in so many of the files that the process may open: each is a connection.
_OPEN_FILES_PER_READ = 4
_LIST_PAGE_KEYS = 1000
# Up to this many objects are read by a thread pool that is kept.
_THREAD_POOL_SIZE = 4
_RETRYABLE_STATUS = (408, 409, 429)
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_ENVIRONMENT = {
    "key": ("AWS_ACCESS_KEY_ID",),
    "secret": ("AWS_SECRET_ACCESS_KEY",),
    "token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
# Process ids of forked children whose parent had loaded obstore; obstore hangs in them.
_FORKED_WITH_OBSTORE: set[int] = set()
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def _record_fork() -> None:
    if "obstore" in sys.modules:
        _FORKED_WITH_OBSTORE.add(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_fork)


def is_obstore_usable(options: Mapping[str, Any], bucket: str = "bucket") -> bool:
    """Return whether obstore is installed, works in this process and supports these options."""
    if os.getpid() in _FORKED_WITH_OBSTORE or not _BUCKET_NAME.fullmatch(bucket):
        return False
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    parsed = parse_s3_options(options)
    has_credentials = bool(parsed.key and parsed.secret) or _from_environment("secret") is not None
    return not parsed.other and (parsed.anon or has_credentials)


def _from_environment(name: str) -> str | None:
    return next((os.environ[key] for key in _ENVIRONMENT[name] if os.environ.get(key)), None)


def _with_s3fs_fallback(
    method: Callable[Concatenate[ObstoreS3, _Args], _Result],
) -> Callable[Concatenate[ObstoreS3, _Args], _Result]:
    """Delegate a method to s3fs in forked children, where obstore hangs."""

    @wraps(method)
    def call(self: ObstoreS3, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        if os.getpid() not in _FORKED_WITH_OBSTORE:
            return method(self, *args, **kwargs)
        result: _Result = getattr(self.s3fs_fallback(), method.__name__)(*args, **kwargs)
        return result

    return call


def _concurrent_reads() -> int:
    """Return how many objects are read at a time, within the limit of open files."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
    except ImportError:  # Windows has no such limit
        return _CONCURRENT_READS_MAX
    limit = getrlimit(RLIMIT_NOFILE)[0]
    if limit == RLIM_INFINITY:
        return _CONCURRENT_READS_MAX
    return max(1, min(_CONCURRENT_READS_MAX, limit // _OPEN_FILES_PER_READ))


class ObstoreS3(RemoteStore):
    """A bucket through obstore.

    obstore's retries are off: `with_retries` repeats what is idempotent, and never a put.
    """

    kind = "s3"

    def __init__(
        self, uri: str, options: Mapping[str, Any], parallelism: int | None, seconds: float
    ) -> None:
        """Open a bucket. Clients are created when they are first used."""
        secrets = [*find_secrets(options), *find_environment_secrets()]
        super().__init__(redact(uri).rstrip("/"), secrets, parallelism, seconds)
        self._options = dict(options)
        self._bucket, _, self._prefix = self.root.partition("://")[2].partition("/")
        self._config = _config(parse_s3_options(options))
        check_endpoint(self._config.get("aws_endpoint"))
        self.server = self._config.get("aws_endpoint") or ""
        self._probe_key = (str(self._config.get("aws_endpoint")), self._bucket)
        self._clients: dict[tuple[float, float], Any] = {}
        self._connecting = Lock()  # never taken in a forked child, where s3fs is used
        self._stand_ins: dict[int, S3Store] = {}
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def s3fs_fallback(self) -> S3Store:
        """Return the same bucket through s3fs; one instance per process."""
        store = self._stand_ins.get(os.getpid())
        if store is None:
            store = S3Store(self.root, self._options, self.ceiling, self.seconds)
            store.metrics = self.metrics
            self._stand_ins[os.getpid()] = store
        return store

    def _thread_pool(self) -> ThreadPoolExecutor:
        """Return the small thread pool of this process."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = (os.getpid(), ThreadPoolExecutor(_THREAD_POOL_SIZE, "arrowlog-get"))
        return self._pool[1]

    def _reader(self) -> Any:
        """Return a client for responses that may be large: slow is fine, silence is not."""
        return self._client(LARGE_OBJECT_FACTOR * self.seconds, min(_QUICK_SECONDS, self.seconds))

    def _writer(self, size: int) -> Any:
        """Return a client for a request of `size` bytes, with a short limit if it is small."""
        limit = put_time_limit(size, self.seconds, _QUICK_SECONDS)
        return self._client(limit, limit)

    def _client(self, total_seconds: float, silent_seconds: float) -> Any:
        """Return a client with a limit on whole requests and a limit on silence; cached."""
        limits = (total_seconds, silent_seconds)
        with self._connecting:
            client = self._clients.get(limits)
            if client is None:
                client = self._clients[limits] = self._connect(total_seconds, silent_seconds)
            return client

    def _connect(self, total_seconds: float, silent_seconds: float) -> Any:
        from obstore.store import S3Store as Client

        limits = {
            "timeout": timedelta(seconds=total_seconds),
            "read_timeout": timedelta(seconds=silent_seconds),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, total_seconds)),
        }
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=self._config,  # type: ignore[arg-type]
                client_options={"allow_http": True, **limits},  # type: ignore[arg-type]
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=total_seconds)},
            )
        except Exception as error:  # noqa: BLE001 -- obstore rejects options with many types
            raise self.refused(error) from None

    def readers(self) -> int:
        """Return how many objects are read at a time."""
        return _concurrent_reads() if self.ceiling is None else self.ceiling

    @_with_s3fs_fallback
    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        import obstore

        where = f"{self.root}/{key}"
        read = lambda: bytes(obstore.get(self._reader(), key).bytes())  # noqa: E731
        return bytes(self.with_retries("read", where, read))

    @_with_s3fs_fallback
    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object."""
        import obstore

        client = self._reader()
        read = lambda: bytes(obstore.get_range(client, key, start=start, end=stop))  # noqa: E731
        return bytes(self.with_retries("read", f"{self.root}/{key}", read))

    @_with_s3fs_fallback
    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects, read in parallel within the time limit."""
        contents = self._read_parallel(keys)
        for key, content in zip(keys, contents, strict=True):
            if content is None:
                raise FileNotFoundError(f"{self.root}/{key}")
        return contents  # type: ignore[return-value]

    @_with_s3fs_fallback
    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of objects; None for each missing one."""
        return self._read_parallel(keys)

    def _read_parallel(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read few objects with the thread pool that is kept, many with threads of their own.

        With a ceiling, threads wait for a slot before each request.
        """
        if len(keys) < 2:
            return [self.find(key) for key in keys]
        try:
            if self.ceiling is not None:
                return self._map_keys(self.find, keys)
            if len(keys) <= _THREAD_POOL_SIZE:
                return list(self._thread_pool().map(self.find, keys, timeout=self.seconds))
            return self._read_with_threads(keys)
        except TimeoutError:
            raise self.timeout_error(len(keys), len(keys)) from None

    def _read_with_threads(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read objects in as many threads as there may be reads, each one after the other.

        A thread that waits in obstore costs half of the processor time of an event loop, which
        obstore has to wake up twice for each object.
        """
        import obstore

        contents: list[bytes | None] = [None] * len(keys)
        waiting = deque(enumerate(keys))  # its operations are atomic
        client = self._reader()

        def read_waiting() -> None:
            requests = size = 0
            try:
                while waiting:
                    number, key = waiting.popleft()
                    requests += 1
                    try:
                        data = obstore.get(client, key).bytes().to_bytes()
                    except FileNotFoundError:
                        continue
                    except Exception as error:  # noqa: BLE001 -- `find` retries, or raises the right one
                        self.note_retry("read", error)
                        contents[number] = self.find(key)
                        continue
                    size += len(data)
                    contents[number] = data
            except IndexError:  # another thread took the last one in between
                return
            finally:
                self.metrics.count_request(self.kind, "read", requests, size)

        count = min(len(keys), _concurrent_reads())
        pool = ThreadPoolExecutor(count, "arrowlog-read")
        try:
            futures: list[Future[None]] = []
            with suppress(RuntimeError):  # no more threads may be started: fewer do
                while len(futures) < count:
                    futures.append(pool.submit(read_waiting))
            if not futures:
                read_waiting()
            done, late = wait(futures, timeout=self.seconds, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if late:
                raise TimeoutError
        finally:
            waiting.clear()  # what is left to read after a failure is not needed
            pool.shutdown(wait=False, cancel_futures=True)
        return contents

    @_with_s3fs_fallback
    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of a folder from `start` on; a subfolder counts as one entry."""
        return self._listed(folder, start, list)

    def page_from(self, folder: str, start: str = "") -> tuple[dict[str, ObjectStat], bool]:
        """Return what `stats_from` begins with, as far as one request shows, and whether it is all.

        For listings in several slices at the same time.
        """
        if os.getpid() in _FORKED_WITH_OBSTORE:
            return self.stats_from(folder, start), True
        last = 0

        def first_page(batches: Any) -> list[Any]:
            nonlocal last
            first = list(islice(batches, 1))
            last = first[0].num_rows if first else 0
            return first

        return self._listed(folder, start, first_page), last < _LIST_PAGE_KEYS

    def _listed(
        self, folder: str, start: str, take: Callable[[Any], list[Any]]
    ) -> dict[str, ObjectStat]:
        """Return the stats of the entries that `take` takes of the pages of a listing."""
        import obstore

        where = f"{self.root}/{folder}"
        before = predecessor_name(start)
        offset = f"{folder}/{before}".lstrip("/") if before else None

        def pages() -> list[pa.RecordBatch]:
            listing = obstore.list(
                self._reader(),
                folder or None,
                offset=offset,
                chunk_size=_LIST_PAGE_KEYS,
                return_arrow=True,
            )
            return take(map(pa.record_batch, listing))

        try:
            found = self.with_retries("list", where, pages)
        except FileNotFoundError:
            raise self.bucket_missing("list", where) from None
        stats: dict[str, ObjectStat] = {}
        for page in found:
            times = pc.cast(page["last_modified"], pa.timestamp("ms", "UTC"), safe=False)
            columns = (page["path"], page["size"], times.cast(pa.int64()), page["e_tag"])
            for path, size, mtime_ms, tag in zip(*(c.to_pylist() for c in columns), strict=True):
                name, deeper, _ = path[len(folder) + bool(folder) :].partition("/")
                if name >= start and name:
                    found_one = ObjectStat(int(size), mtime_ms, tag or "")
                    stats[name] = ObjectStat(0, 0) if deeper else found_one
        return stats

    @_with_s3fs_fallback
    def walk(self) -> pa.Table:
        """Return every object below the root. A failed page is retried from the last key on."""
        import obstore

        pages: Any = None
        tables: list[pa.Table] = []
        last_key: str | None = None

        def next_page() -> Any:
            nonlocal pages
            try:
                if pages is None:
                    listing = obstore.list(
                        self._reader(),
                        offset=last_key,
                        chunk_size=_LIST_PAGE_KEYS,
                        return_arrow=True,
                    )
                    pages = iter(listing)
                return next(pages, None)
            except Exception:
                pages = None
                raise

        try:
            while (page := self.with_retries("list", self.root, next_page)) is not None:
                batch = pa.record_batch(page)
                times = pc.cast(batch["last_modified"], pa.timestamp("ms", "UTC"), safe=False)
                columns = [batch["path"], batch["size"], times]
                kinds = [pa.string(), pa.int64(), pa.int64()]
                cast = [pc.cast(c, kind) for c, kind in zip(columns, kinds, strict=True)]
                tables.append(pa.table(cast, names=["key", "size", "mtime_ms"]))
                last_key = batch["path"][-1].as_py()
        except FileNotFoundError:
            raise self.bucket_missing("list", self.root) from None
        return pa.concat_tables([build_walk_table([], [], []), *tables])

    @_with_s3fs_fallback
    def stat(self, key: str) -> ObjectStat | None:
        """Return size, time and entity tag of an object."""
        import obstore

        where = f"{self.root}/{key}"
        try:
            meta = self.with_retries("stat", where, lambda: obstore.head(self._writer(0), key))
        except FileNotFoundError:
            return None
        mtime_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectStat(int(meta["size"]), mtime_ms, meta.get("e_tag") or "")

    def check_writable(self, folder: str) -> None:
        """Probe whether the server supports conditional puts, once per bucket and process."""
        if self._probe_key not in PROBED_BUCKETS:
            probe_conditional_put(self, folder)
            PROBED_BUCKETS.add(self._probe_key)

    @_with_s3fs_fallback
    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object with one conditional request (`If-None-Match: *`)."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        client = self._writer(len(data))
        try:
            put = lambda: obstore.put(client, key, data, mode="create", use_multipart=False)  # noqa: E731
            self.request("write", put, len(data))
        except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
            return PutOutcome.NOT_APPLIED if "409 Conflict" in str(error) else PutOutcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- obstore has many exception types
            if isinstance(error, FileNotFoundError) or self.is_permanent(error):
                raise self.failed("write", f"{self.root}/{key}", error) from None
            return PutOutcome.UNKNOWN
        return PutOutcome.DONE

    @_with_s3fs_fallback
    def put_or_find(self, key: str, data: bytes) -> tuple[PutOutcome, bytes | None]:
        """Create an object, and read it at the same time in another thread."""
        reading = self._thread_pool().submit(self.find, key)
        outcome = self.put_if_absent(key, data)
        if outcome in (PutOutcome.DONE, PutOutcome.NOT_APPLIED):
            reading.cancel()
            return outcome, None
        try:
            return outcome, reading.result(timeout=self.seconds)
        except (ArrowlogError, TimeoutError):
            return outcome, None

    def is_permanent(self, error: Exception) -> bool:
        """Client errors are final, except those that may pass."""
        from obstore import exceptions

        final_types = (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.NotSupportedError,
            exceptions.InvalidPathError,
            exceptions.UnknownConfigurationKeyError,
        )
        if isinstance(error, final_types) or super().is_permanent(error):
            return True
        status = response_status(error)  # other client errors have no type of their own
        return status is not None and 400 <= status < 500 and status not in _RETRYABLE_STATUS

    @_with_s3fs_fallback
    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object with one request."""
        import obstore

        put = lambda: obstore.put(  # noqa: E731
            self._writer(len(data)), key, data, use_multipart=False
        )
        self.with_retries("write", f"{self.root}/{key}", put, len(data))

    @_with_s3fs_fallback
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in batches."""
        import obstore

        client = self._reader()

        def delete() -> None:
            try:
                obstore.delete(client, list(keys))
            except Exception as error:
                # Some servers delete the objects, but their response is not complete enough for
                # obstore to parse.
                if "DeleteObjects response" not in str(error) or any(map(self.stat, keys)):
                    raise

        if keys:
            self.with_retries("delete", f"{self.root}/{keys[0]}", delete)


def _config(options: S3Options) -> dict[str, Any]:
    """Return obstore's configuration; options that are not given come from the environment."""
    # A session token belongs to its key: it is not combined with a key that was given.
    token = options.token or (None if options.key else _from_environment("token"))
    settings = {
        "aws_access_key_id": options.key or _from_environment("key"),
        "aws_secret_access_key": options.secret or _from_environment("secret"),
        "aws_session_token": token,
        "aws_region": options.region or _from_environment("region") or "us-east-1",
        "aws_endpoint": find_endpoint(options),
    }
    config: dict[str, Any] = {name: value for name, value in settings.items() if value}
    if options.anon:
        config = {k: v for k, v in config.items() if k in ("aws_region", "aws_endpoint")}
        config["aws_skip_signature"] = True
    config["aws_virtual_hosted_style_request"] = options.virtual
    return config
