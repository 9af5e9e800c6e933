"""S3 and what speaks like it: options in every spelling, and the store through s3fs.

Options may be spelled as s3fs has them (`key`, `secret`, `token`, `endpoint_url`, `client_kwargs`)
or as the environment has them (`AWS_ACCESS_KEY_ID` …, in any case). Nothing here tries a put again
by itself: a client that does so turns a lost answer into "exists", and its own commit into a
rival's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from arrowlog.errors import InvalidRequest, StoreUnavailable
from arrowlog.log.names import LOG
from arrowlog.log.store.base import Outcome, Stat, walked
from arrowlog.log.store.remote import FsspecStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_CONNECT_SECONDS = 5
_READ_SECONDS = 10
_QUICK_BYTES = 1 << 20
LONG = 10  # times the limit of an operation: what a large object may take
_DELETE_MAX = 1000
_PUT_BYTES_MAX = 5 << 30
_PROBES_MAX = 3
PROBED: set[tuple[str, str]] = set()
_SPELLINGS = {
    "key": ("key", "username", "access_key_id"),
    "secret": ("secret", "password", "secret_access_key"),
    "token": ("token", "session_token"),
    "region": ("region", "default_region", "region_name"),
    "endpoint": ("endpoint", "endpoint_url", "endpoint_url_s3"),
    "anon": ("anon", "skip_signature"),
    "virtual": ("virtual_hosted_style_request",),
    "_": ("allow_http", "conditional_put", "s3_allow_unsafe_rename", "use_ssl"),
}
_NAMES = {spelled: name for name, many in _SPELLINGS.items() for spelled in many}


@dataclass(frozen=True, slots=True)
class S3Options:
    """What is needed to reach a bucket; `other` is for s3fs alone."""

    key: str | None = None
    secret: str | None = None
    token: str | None = None
    region: str | None = None
    endpoint: str | None = None
    anon: bool = False
    virtual: bool = False
    other: Mapping[str, Any] = field(default_factory=dict)


def read_options(options: Mapping[str, Any]) -> S3Options:
    """Options in any spelling, as one."""
    client = dict(options.get("client_kwargs") or {})
    plain = {name: value for name, value in options.items() if name != "client_kwargs"}
    known: dict[str, Any] = {}
    for spelled, value in [*client.items(), *plain.items()]:
        name = _name_of(spelled)
        if name is not None and value is not None:
            known[name] = value
    other = {spelled: value for spelled, value in plain.items() if _name_of(spelled) is None}
    rest = {spelled: value for spelled, value in client.items() if _name_of(spelled) is None}
    if rest:
        other["client_kwargs"] = rest
    known.pop("_", None)
    for name in ("anon", "virtual"):
        known[name] = str(known.get(name, False)).lower() in ("true", "1")
    return S3Options(**known, other=other)


def _name_of(spelled: str) -> str | None:
    return _NAMES.get(spelled.lower().removeprefix("aws_"))


def for_s3fs(found: S3Options, seconds: float = _READ_SECONDS) -> dict[str, Any]:
    """The options as s3fs takes them, with nothing cached and nothing tried twice.

    A server that says nothing for `seconds` is given up.
    """
    client = dict(found.other.get("client_kwargs") or {})
    config = dict(found.other.get("config_kwargs") or {})
    config = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": min(_CONNECT_SECONDS, seconds),
        "read_timeout": min(_READ_SECONDS, seconds),
        **config,
    }
    if found.region:
        client["region_name"] = found.region
    if found.virtual:
        config["s3"] = {"addressing_style": "virtual", **config.get("s3", {})}
    plain = {"key": found.key, "secret": found.secret, "token": found.token}
    named = {name: value for name, value in plain.items() if value is not None}
    if found.endpoint:
        named["endpoint_url"] = found.endpoint
    return {
        **found.other,
        **named,
        "anon": found.anon,
        "client_kwargs": client,
        "config_kwargs": config,
    }


class S3Store(FsspecStore):
    """A bucket through s3fs."""

    def __init__(
        self, uri: str, options: Mapping[str, Any], parallelism: int, seconds: float
    ) -> None:
        """Connects when it is first used."""
        self.options = read_options(options)
        check_endpoint(self.options.endpoint)
        plain = for_s3fs(self.options, seconds)
        super().__init__(uri, plain, parallelism, seconds, secrets_in_environment())

    def _connect(self) -> tuple[int, Any, str]:
        made = super()._connect()
        made[1].retries = 1  # one try; patience is ours
        return made

    def get(self, key: str) -> bytes:
        """Read an object with one request."""
        path, limit = self.path(key), LONG * self.seconds
        read = lambda: self._ask(limit, "_cat_file", path, max_concurrency=1)  # noqa: E731
        return bytes(self.patiently("read", path, read))

    def _ask(self, limit: float, method: str, *args: Any, **kwargs: Any) -> Any:
        """A method of s3fs, ended after `limit` seconds: its own limits know of reading alone."""
        from fsspec.asyn import sync

        fs = self.fs
        return sync(fs.loop, getattr(fs, method), *args, timeout=limit, **kwargs)

    def _limit(self, data: bytes) -> float:
        return limit_of(len(data), self.seconds, _READ_SECONDS)

    def stats_from(self, folder: str, start: str = "") -> dict[str, Stat]:
        """List from a name on, however many pages that takes."""
        bucket, _, prefix = self.path(folder).rstrip("/").partition("/")
        inside = f"{prefix}/" if prefix else ""
        found: dict[str, Stat] = {}
        ask: dict[str, Any] = {"Bucket": bucket, "Prefix": inside, "Delimiter": "/"}
        if before := just_before(start):
            ask["StartAfter"] = f"{inside}{before}"
        while True:
            page = self._page(ask)
            for item in page.get("Contents", ()):
                name = item["Key"][len(inside) :]
                if name >= start and name:
                    when = int(item["LastModified"].timestamp() * 1000)
                    found[name] = Stat(int(item["Size"]), when, str(item.get("ETag", "")))
            for item in page.get("CommonPrefixes", ()):
                name = item["Prefix"][len(inside) : -1]
                if name >= start:
                    found[name] = Stat(0, 0)
            if not page.get("IsTruncated"):
                return found
            ask["ContinuationToken"] = page["NextContinuationToken"]

    def walk(self) -> pa.Table:
        """List everything, however many pages that takes."""
        bucket, _, prefix = self.path("").partition("/")
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        ask: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            page = self._page(ask)
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):
                    keys.append(item["Key"][len(prefix) :])
                    sizes.append(int(item["Size"]))
                    times.append(int(item["LastModified"].timestamp() * 1000))
            if not page.get("IsTruncated"):
                return walked(keys, sizes, times)
            ask["ContinuationToken"] = page["NextContinuationToken"]

    def _page(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        where = f"s3://{ask['Bucket']}/{ask['Prefix']}"
        try:
            call = lambda: self._ask(self.seconds, "_call_s3", "list_objects_v2", **ask)  # noqa: E731
            page: dict[str, Any] = self.patiently("list", where, call)
        except FileNotFoundError as error:
            raise self.failed("list", where, error) from None  # there is no such bucket
        return page

    def check_writable(self, folder: str = LOG) -> None:
        """Find out servers that ignore the condition, once per bucket in a process."""
        place = (str(self.options.endpoint), self.path("").partition("/")[0])
        if place not in PROBED:
            probe(self, folder)
            PROBED.add(place)

    def put_new(self, key: str, data: bytes) -> Outcome:
        """One conditional request, and what its answer means."""
        path = self.path(key)
        try:
            # Never in parts: giving up their upload would hide what became of the whole.
            one = {"mode": "create", "chunksize": _PUT_BYTES_MAX}
            self._ask(self._limit(data), "_pipe_file", path, data, **one)
        except FileExistsError:
            return Outcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- s3fs gives many types to what S3 says by number
            return self._judge(path, error)
        return Outcome.DONE

    def _judge(self, path: str, error: Exception) -> Outcome:
        status = status_of(error)
        if status == 412:
            return Outcome.EXISTS
        if status == 409:
            return Outcome.NOT_APPLIED
        if status is None and self.is_final(error):
            raise self.failed("write", path, error) from None
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise self.failed("write", path, error) from None
        return Outcome.UNKNOWN

    def is_final(self, error: Exception) -> bool:
        """Refusals are final; so is having nothing to sign with."""
        status = status_of(error)
        if status is not None:
            return 400 <= status < 500 and status not in (408, 409, 429)
        return super().is_final(error) or type(error).__name__ in (
            "NoCredentialsError",
            "PartialCredentialsError",
            "ParamValidationError",
        )

    def replace(self, key: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""
        path = self.path(key)
        put = lambda: self._ask(  # noqa: E731
            self._limit(data), "_pipe_file", path, data, chunksize=_PUT_BYTES_MAX
        )
        self.patiently("write", path, put)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete a thousand objects at a time."""
        paths = [self.path(key) for key in keys]
        for start in range(0, len(paths), _DELETE_MAX):
            some = paths[start : start + _DELETE_MAX]
            self.patiently("delete", some[0], partial(self._delete, some))

    def _delete(self, paths: Sequence[str]) -> None:
        bucket = paths[0].partition("/")[0]
        objects = [{"Key": path.partition("/")[2]} for path in paths]
        asked = {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": True}}
        done = self._ask(self.seconds, "_call_s3", "delete_objects", **asked)
        for error in done.get("Errors", ()):
            raise PermissionError(f"{error.get('Key')}: {error.get('Code')}")


def limit_of(size: int, seconds: float, quick: float) -> float:
    """How many seconds a put of so many bytes may take: few, unless they are many."""
    return LONG * seconds if size > _QUICK_BYTES else min(quick, seconds)


def just_before(name: str) -> str:
    """A name a little below this one, to list after: "after" is not "from". Empty if there is none.

    >>> just_before("00000000000000000042"), just_before("10"), just_before("0")
    ('00000000000000000041', '1', '')
    """
    last = name[-1:]
    # Nothing but plain characters: a slash would begin a folder, and half of a pair is no text.
    before = name[:-1] + (chr(ord(last) - 1) if "0" < last <= "~" else "")
    return "" if before.strip(".") == "" else before


def check_endpoint(url: str | None) -> None:
    """Refuse what is no address before a client chokes on it."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        good = False
    if not good or "@" in url or "?" in url or not url.isprintable() or " " in url:
        raise InvalidRequest(
            "The endpoint is not the address of a server.",
            next="Give it as http://host:port or https://host, and credentials as options.",
        )


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception of s3fs or botocore stands for."""
    for found in (error, error.__cause__, error.__context__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status else None
    return None


def secrets_in_environment() -> list[str]:
    """Values of the environment that no message may show."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return [os.environ[name] for name in names if os.environ.get(name)]


def probe(store: Any, folder: str = LOG) -> None:
    """Make an object twice; a server that lets both win would let two commits win.

    Only a clear yes and a clear no prove something. A lost answer proves nothing, so it is asked
    again, and what stays unproven is not committed to.
    """
    for _ in range(_PROBES_MAX):
        key = f"{folder}/.probe-{uuid4().hex}"
        first = store.put_new(key, b"first")
        second = store.put_new(key, b"second")
        with suppress(StoreUnavailable):  # no reader takes it for anything
            store.delete([key])
        if second is Outcome.EXISTS:
            return
        if first is Outcome.DONE and second is Outcome.DONE:
            raise InvalidRequest(
                f"{store.root} cannot be committed to: its server ignores If-None-Match, so two"
                " writers would overwrite each other's commits.",
                next="Use a store with conditional writes, or upgrade the server.",
            )
    raise StoreUnavailable(
        f"Could not find out whether {store.root} makes an object only once: answers were lost.",
        next="Check the connection and try again.",
    )
