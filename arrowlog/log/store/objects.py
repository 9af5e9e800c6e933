"""S3 through obstore, where it is installed: the same results as through s3fs, many times faster.

Chosen by itself when the options are ones it understands and the credentials are at hand (given, or
in the environment); profiles, roles and sessions are left to s3fs. obstore's threads do not come
along into a forked child, where it would wait for them forever: there, s3fs does the work.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import redact
from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome, Stat, walked
from arrowlog.log.store.remote import Remote, secrets_in
from arrowlog.log.store.s3 import (
    LONG,
    PROBED,
    S3Options,
    S3Store,
    check_endpoint,
    just_before,
    limit_of,
    probe,
    read_options,
    secrets_in_environment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_QUICK_SECONDS = 10
_CONNECT_SECONDS = 5
_AT_ONCE = 64
_PAGE = 1000
_FEW = 4
_STATUS = re.compile(r"status code: (\d{3})\b")
_PASSING = ("408", "409", "429")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_ENVIRONMENT = {
    "key": ("AWS_ACCESS_KEY_ID",),
    "secret": ("AWS_SECRET_ACCESS_KEY",),
    "token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
_STRANDED: set[int] = set()  # processes forked from one that had obstore
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _note_fork() -> None:
    if "obstore" in sys.modules:
        _STRANDED.add(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def usable(options: Mapping[str, Any], bucket: str = "bucket") -> bool:
    """Whether obstore is there and knows everything that these options ask for."""
    if os.getpid() in _STRANDED or not _BUCKET.fullmatch(bucket):
        return False
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    found = read_options(options)
    at_hand = bool(found.key and found.secret) or _from_environment("secret") is not None
    return not found.other and (found.anon or at_hand)


def _from_environment(name: str) -> str | None:
    return next((os.environ[key] for key in _ENVIRONMENT[name] if os.environ.get(key)), None)


def _or_by_s3fs(
    method: Callable[Concatenate[ObjectStore, _Asked], _Answer],
) -> Callable[Concatenate[ObjectStore, _Asked], _Answer]:
    """The same asked of s3fs where obstore cannot work."""

    @wraps(method)
    def ask(self: ObjectStore, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        if os.getpid() not in _STRANDED:
            return method(self, *args, **kwargs)
        answer: _Answer = getattr(self.stand_in(), method.__name__)(*args, **kwargs)
        return answer

    return ask


class ObjectStore(Remote):
    """A bucket through obstore."""

    def __init__(
        self, uri: str, options: Mapping[str, Any], parallelism: int, seconds: float
    ) -> None:
        """Connects when it is first used."""
        secrets = [*secrets_in(options), *secrets_in_environment()]
        super().__init__(redact(uri).rstrip("/"), secrets, parallelism, seconds)
        self._options = dict(options)
        self._bucket, _, self._prefix = self.root.partition("://")[2].partition("/")
        self._config = _config(read_options(options))
        check_endpoint(self._config.get("aws_endpoint"))
        self._place = (str(self._config.get("aws_endpoint")), self._bucket)
        self._clients: dict[tuple[float, float], Any] = {}
        self._stand_ins: dict[int, S3Store] = {}
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def stand_in(self) -> S3Store:
        """The same bucket through s3fs, made anew in every process."""
        found = self._stand_ins.get(os.getpid())
        if found is None:
            found = S3Store(self.root, self._options, self.parallelism, self.seconds)
            self._stand_ins[os.getpid()] = found
        return found

    def _threads(self) -> ThreadPoolExecutor:
        """A few threads of this process that wait for work."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = (os.getpid(), ThreadPoolExecutor(_FEW, "arrowlog-get"))
        return self._pool[1]

    def _reader(self) -> Any:
        """A client for what may be large: patient, as long as bytes come."""
        return self._client(LONG * self.seconds, min(_QUICK_SECONDS, self.seconds))

    def _writer(self, size: int) -> Any:
        """A client with a short limit for what is small."""
        whole = limit_of(size, self.seconds, _QUICK_SECONDS)
        return self._client(whole, whole)

    def _client(self, whole: float, silent: float) -> Any:
        """A client whose requests may take so long, and be silent for so long."""
        found = self._clients.get((whole, silent))
        if found is None:
            found = self._clients[whole, silent] = self._connect(whole, silent)
        return found

    def _connect(self, whole: float, silent: float) -> Any:
        from obstore.store import S3Store as Client

        limits = {
            "timeout": timedelta(seconds=whole),
            "read_timeout": timedelta(seconds=silent),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, whole)),
        }
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=self._config,  # type: ignore[arg-type]
                client_options={"allow_http": True, **limits},  # type: ignore[arg-type]
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=whole)},
            )
        except Exception as error:  # noqa: BLE001 -- whatever it does not like about the options
            raise self.refused(error) from None

    @_or_by_s3fs
    def get(self, key: str) -> bytes:
        """Read an object."""
        import obstore

        where = f"{self.root}/{key}"
        read = lambda: bytes(obstore.get(self._reader(), key).bytes())  # noqa: E731
        return bytes(self.patiently("read", where, read))

    @_or_by_s3fs
    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Read a part of an object."""
        import obstore

        client = self._reader()
        read = lambda: bytes(obstore.get_range(client, key, start=start, end=stop))  # noqa: E731
        return bytes(self.patiently("read", f"{self.root}/{key}", read))

    @_or_by_s3fs
    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Read objects, many at a time, all before the time limit."""
        found = self._gather(keys)
        for key, data in zip(keys, found, strict=True):
            if data is None:
                raise FileNotFoundError(f"{self.root}/{key}")
        return found  # type: ignore[return-value]

    @_or_by_s3fs
    def find_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read objects, None for those that are not there."""
        return self._gather(keys)

    def _gather(self, keys: Sequence[str]) -> list[bytes | None]:
        """A few at a time by threads that wait for work, many by an event loop of their own.

        A notebook's loop runs in this thread, so the loop gets another.
        """
        if len(keys) < 2:
            return [self.find(key) for key in keys]
        pool = ThreadPoolExecutor(1)
        try:
            if len(keys) <= _FEW:
                return list(self._threads().map(self.find, keys, timeout=self.seconds))
            read = asyncio.wait_for(self._read_all(keys), self.seconds)  # ends what is under way
            return pool.submit(asyncio.run, read).result(timeout=self.seconds)
        except TimeoutError:
            raise self.too_late(len(keys), len(keys)) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def _read_all(self, keys: Sequence[str]) -> list[bytes | None]:
        room = asyncio.Semaphore(max(self.parallelism, _AT_ONCE))
        client = self._reader()

        async def read(key: str) -> bytes | None:
            import obstore

            async with room:
                try:
                    found = await obstore.get_async(client, key)
                    return bytes(await found.bytes_async())
                except FileNotFoundError:
                    return None
                except Exception:  # noqa: BLE001 -- the patient way tells what to do about it
                    return await asyncio.to_thread(self.find, key)

        return list(await asyncio.gather(*(read(key) for key in keys)))

    @_or_by_s3fs
    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """List from a name on; what lies deeper counts as its folder."""
        where = f"{self.root}/{folder}"
        try:
            items = self.patiently("list", where, lambda: self._list(folder, start))
        except FileNotFoundError as error:
            raise self.failed("list", where, error) from None  # there is no such bucket
        found: dict[str, Stat] = {}
        for item in items:
            name, deeper, _ = item["path"][len(folder) + bool(folder) :].partition("/")
            if name >= start and name:
                when = int(item["last_modified"].timestamp() * 1000)
                tag = item.get("e_tag") or ""
                found[name] = Stat(0, 0) if deeper else Stat(int(item["size"]), when, tag)
        return found

    def _list(self, folder: str, start: str) -> list[Any]:
        import obstore

        before = just_before(start)
        offset = f"{folder}/{before}".lstrip("/") if before else None
        pages = obstore.list(self._reader(), folder or None, offset=offset)
        return [item for page in pages for item in page]

    @_or_by_s3fs
    def walk(self) -> pa.Table:
        """List everything, page by page; after a failure, from the last key on."""
        import obstore

        pages: Any = None
        found: list[pa.Table] = []
        last: str | None = None

        def more() -> Any:
            nonlocal pages
            try:
                if pages is None:
                    listed = obstore.list(
                        self._reader(), offset=last, chunk_size=_PAGE, return_arrow=True
                    )
                    pages = iter(listed)
                return next(pages, None)
            except Exception:
                pages = None
                raise

        try:
            while (page := self.patiently("list", self.root, more)) is not None:
                batch = pa.record_batch(page)
                times = pc.cast(batch["last_modified"], pa.timestamp("ms", "UTC"), safe=False)
                columns = [batch["path"], batch["size"], times]
                kinds = [pa.string(), pa.int64(), pa.int64()]
                cast = [pc.cast(c, kind) for c, kind in zip(columns, kinds, strict=True)]
                found.append(pa.table(cast, names=["key", "size", "mtime_ms"]))
                last = batch["path"][-1].as_py()
        except FileNotFoundError as error:
            raise self.failed("list", self.root, error) from None  # there is no such bucket
        return pa.concat_tables([walked([], [], []), *found])

    @_or_by_s3fs
    def stat(self, key: str) -> Stat | None:
        """Size, time and entity tag of an object."""
        import obstore

        where = f"{self.root}/{key}"
        try:
            found = self.patiently("look at", where, lambda: obstore.head(self._writer(0), key))
        except FileNotFoundError:
            return None
        when = int(found["last_modified"].timestamp() * 1000)
        return Stat(int(found["size"]), when, found.get("e_tag") or "")

    def check_writable(self, folder: str = LOG) -> None:
        """Find out servers that ignore the condition, once per bucket in a process."""
        if self._place not in PROBED:
            probe(self, folder)
            PROBED.add(self._place)

    @_or_by_s3fs
    def put_new(self, key: str, data: bytes) -> Outcome:
        """One conditional request, and what its answer means."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        client = self._writer(len(data))
        try:
            obstore.put(client, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
            return Outcome.NOT_APPLIED if "409 Conflict" in str(error) else Outcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- the classes of errors are many
            if isinstance(error, FileNotFoundError) or self.is_final(error):
                raise self.failed("write", f"{self.root}/{key}", error) from None
            return Outcome.UNKNOWN
        return Outcome.DONE

    def is_final(self, error: Exception) -> bool:
        """Refusals are final."""
        from obstore import exceptions

        refused = (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.NotSupportedError,
            exceptions.InvalidPathError,
            exceptions.UnknownConfigurationKeyError,
        )
        if isinstance(error, refused) or super().is_final(error):
            return True
        said = _STATUS.search(str(error))  # other refusals have no class of their own
        return said is not None and 400 <= int(said[1]) < 500 and said[1] not in _PASSING

    @_or_by_s3fs
    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""
        import obstore

        put = lambda: obstore.put(  # noqa: E731
            self._writer(len(data)), key, data, use_multipart=False
        )
        self.patiently("write", f"{self.root}/{key}", put)

    @_or_by_s3fs
    def delete(self, keys: Sequence[str]) -> None:
        """Delete many objects at a time."""
        import obstore

        client = self._reader()

        def delete() -> None:
            try:
                obstore.delete(client, list(keys))
            except Exception as error:
                # Some servers answer in fewer words than obstore expects, after they have done it.
                if "DeleteObjects response" not in str(error) or any(map(self.stat, keys)):
                    raise

        if keys:
            self.patiently("delete", f"{self.root}/{keys[0]}", delete)


def _config(found: S3Options) -> dict[str, Any]:
    plain = {
        "aws_access_key_id": found.key or _from_environment("key"),
        "aws_secret_access_key": found.secret or _from_environment("secret"),
        "aws_session_token": found.token or (None if found.key else _from_environment("token")),
        "aws_region": found.region or _from_environment("region") or "us-east-1",
        "aws_endpoint": found.endpoint or _from_environment("endpoint"),
    }
    config: dict[str, Any] = {name: value for name, value in plain.items() if value}
    if found.anon:
        config = {k: v for k, v in config.items() if k in ("aws_region", "aws_endpoint")}
        config["aws_skip_signature"] = True
    config["aws_virtual_hosted_style_request"] = found.virtual
    return config
