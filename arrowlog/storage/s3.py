"""S3 and compatible services: normalized options, and a store based on s3fs.

Options may have the names of s3fs (`key`, `secret`, `token`, `endpoint_url`, `client_kwargs`) or of
the environment variables (`AWS_ACCESS_KEY_ID` …, in any case). A put is never retried here: a
client that retries after a lost response gets "exists", and mistakes its own commit for a
concurrent one.
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
from arrowlog.storage.base import ObjectStat, PutOutcome, build_walk_table
from arrowlog.storage.failures import response_status, unknown_option_error
from arrowlog.storage.fsspec_store import FsspecStore, parameter_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_CONNECT_SECONDS = 5
_READ_SECONDS = 10
_SMALL_PUT_BYTES = 1 << 20
LARGE_OBJECT_FACTOR = 10  # factor on the time limit of an operation, for large objects
_DELETE_BATCH_KEYS = 1000  # the maximum of DeleteObjects
_MAX_PUT_BYTES = 5 << 30  # the maximum of a single PUT
_MAX_PROBES = 3
# Endpoint and bucket of the servers that `probe` has accepted in this process.
PROBED_BUCKETS: set[tuple[str, str]] = set()
# Our name of an option, and the names it may be given by, without the prefix `aws_`. The options in
# "_" are accepted and ignored.
_OPTION_NAMES = {
    "key": ("key", "username", "access_key_id"),
    "secret": ("secret", "password", "secret_access_key"),
    "token": ("token", "session_token"),
    "region": ("region", "default_region", "region_name"),
    "endpoint": ("endpoint", "endpoint_url", "endpoint_url_s3"),
    "anon": ("anon", "skip_signature"),
    "virtual": ("virtual_hosted_style_request",),
    "_": ("allow_http", "conditional_put", "s3_allow_unsafe_rename", "use_ssl"),
}
# Options of fsspec that s3fs takes as **kwargs.
_FSSPEC_OPTIONS = ("listings_expiry_time", "max_paths", "skip_instance_cache", "use_listings_cache")
_CANONICAL_NAMES = {given: name for name, names in _OPTION_NAMES.items() for given in names}


@dataclass(frozen=True, slots=True)
class S3Options:
    """The options of an S3 client. `other` are options that only s3fs understands."""

    key: str | None = None
    secret: str | None = None
    token: str | None = None
    region: str | None = None
    endpoint: str | None = None
    anon: bool = False
    virtual: bool = False
    other: Mapping[str, Any] = field(default_factory=dict)


def parse_s3_options(options: Mapping[str, Any]) -> S3Options:
    """Normalize options. Top-level options override those in `client_kwargs`."""
    client = dict(options.get("client_kwargs") or {})
    plain = {name: value for name, value in options.items() if name != "client_kwargs"}
    known: dict[str, Any] = {}
    for given, value in [*client.items(), *plain.items()]:
        name = _canonical_name(given)
        if name is not None and value is not None:
            known[name] = value
    other = {given: value for given, value in plain.items() if _canonical_name(given) is None}
    other_client = {
        given: value for given, value in client.items() if _canonical_name(given) is None
    }
    if other_client:
        other["client_kwargs"] = other_client
    known.pop("_", None)
    for name in ("anon", "virtual"):
        known[name] = str(known.get(name, False)).lower() in ("true", "1")
    return S3Options(**known, other=other)


def check_option_names(options: Mapping[str, Any]) -> None:
    """Raise `UnknownStorageOption` for an option that neither arrowlog nor s3fs knows.

    s3fs looks at its options when they are first used, and then fails with a TypeError. Without
    s3fs, only the options that arrowlog knows are accepted.
    """
    other = parse_s3_options(options).other
    if not other:
        return
    top_level, client, config = _s3fs_option_names()
    given: list[tuple[str, list[str]]] = [(name, top_level) for name in other]
    given += [(name, client) for name in _mapping(other, "client_kwargs")]
    given += [(name, config) for name in _mapping(other, "config_kwargs")]
    for name, known in given:
        if name not in known:
            raise unknown_option_error(name, known)


def _mapping(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an option whose value is a mapping of options; raises `InvalidRequest` for others."""
    value = options.get(name) or {}
    if not hasattr(value, "keys"):
        raise InvalidRequest(f"The storage option {name!r} is not a mapping.", next="Give a dict.")
    result: Mapping[str, Any] = value
    return result


def _s3fs_option_names() -> tuple[list[str], list[str], list[str]]:
    """Return the options at the top level, in `client_kwargs` and in `config_kwargs`."""
    ours = [name for names in _OPTION_NAMES.values() for name in names]
    ours += [f"aws_{name}" for name in ours]
    try:
        from aiobotocore.session import AioSession
        from botocore.config import Config
        from fsspec import get_filesystem_class

        file_system = get_filesystem_class("s3")
    except ImportError:
        return [*ours, "client_kwargs"], ours, []
    top_level = [*parameter_names(file_system.__init__), *_FSSPEC_OPTIONS]
    top_level += parameter_names(AioSession.__init__)  # s3fs passes the rest on
    client = parameter_names(AioSession._create_client)  # noqa: SLF001 -- what s3fs calls
    return [*ours, *top_level], [*ours, *client], list(Config.OPTION_DEFAULTS)


def find_endpoint(options: S3Options) -> str | None:
    """Return the endpoint in the options, else the one in the environment; None is AWS itself."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return options.endpoint or next(filter(None, map(os.environ.get, names)), None)


def _canonical_name(given: str) -> str | None:
    return _CANONICAL_NAMES.get(given.lower().removeprefix("aws_"))


def to_s3fs_options(options: S3Options, seconds: float = _READ_SECONDS) -> dict[str, Any]:
    """Return the options for s3fs, with botocore's retries off.

    A request fails when the server sends nothing for `seconds`.
    """
    client = dict(options.other.get("client_kwargs") or {})
    config = dict(options.other.get("config_kwargs") or {})
    config = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": min(_CONNECT_SECONDS, seconds),
        "read_timeout": min(_READ_SECONDS, seconds),
        **config,
    }
    if options.region:
        client["region_name"] = options.region
    if options.virtual:
        config["s3"] = {"addressing_style": "virtual", **config.get("s3", {})}
    credentials = {"key": options.key, "secret": options.secret, "token": options.token}
    top_level = {name: value for name, value in credentials.items() if value is not None}
    if options.endpoint:
        top_level["endpoint_url"] = options.endpoint
    return {
        **options.other,
        **top_level,
        "anon": options.anon,
        "client_kwargs": client,
        "config_kwargs": config,
    }


class S3Store(FsspecStore):
    """A bucket through s3fs."""

    def __init__(
        self, uri: str, options: Mapping[str, Any], parallelism: int | None, seconds: float
    ) -> None:
        """Open a bucket. No request is sent yet."""
        self.options = parse_s3_options(options)
        check_endpoint(self.options.endpoint)
        self.server = find_endpoint(self.options) or ""
        s3fs_options = to_s3fs_options(self.options, seconds)
        super().__init__(uri, s3fs_options, parallelism, seconds, find_environment_secrets())

    def _connect(self) -> tuple[int, Any, str]:
        connection = super()._connect()
        connection[1].retries = 1  # one attempt; `with_retries` retries what is idempotent
        return connection

    def get(self, key: str) -> bytes:
        """Return the content of an object, with one request."""
        path, limit = self.path(key), LARGE_OBJECT_FACTOR * self.seconds
        read = lambda: self._call_s3fs(limit, "_cat_file", path, max_concurrency=1)  # noqa: E731
        return bytes(self.with_retries("read", self.url(key), read))

    def _call_s3fs(self, limit: float, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a coroutine of s3fs and cancel it after `limit` seconds.

        botocore's own time limits cover only reading from the connection.
        """
        from fsspec.asyn import sync

        fs = self.fs
        return sync(fs.loop, getattr(fs, method), *args, timeout=limit, **kwargs)

    def _put_limit(self, data: bytes) -> float:
        return put_time_limit(len(data), self.seconds, _READ_SECONDS)

    def stats_from(self, folder: str, start: str = "") -> dict[str, ObjectStat]:
        """Return the stats of a folder from `start` on; a common prefix counts as an entry."""
        bucket, _, prefix = self.path(folder).rstrip("/").partition("/")
        folder_prefix = f"{prefix}/" if prefix else ""
        stats: dict[str, ObjectStat] = {}
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": folder_prefix, "Delimiter": "/"}
        if before := predecessor_name(start):
            request["StartAfter"] = f"{folder_prefix}{before}"
        while True:
            page = self._list_page(request)
            for item in page.get("Contents", ()):
                name = item["Key"][len(folder_prefix) :]
                if name >= start and name:
                    mtime_ms = int(item["LastModified"].timestamp() * 1000)
                    stats[name] = ObjectStat(int(item["Size"]), mtime_ms, str(item.get("ETag", "")))
            for item in page.get("CommonPrefixes", ()):
                name = item["Prefix"][len(folder_prefix) : -1]
                if name >= start:
                    stats[name] = ObjectStat(0, 0)
            if not page.get("IsTruncated"):
                return stats
            request["ContinuationToken"] = page["NextContinuationToken"]

    def walk(self) -> pa.Table:
        """Return every object below the root."""
        bucket, _, prefix = self.path("").partition("/")
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            page = self._list_page(request)
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):
                    keys.append(item["Key"][len(prefix) :])
                    sizes.append(int(item["Size"]))
                    times.append(int(item["LastModified"].timestamp() * 1000))
            if not page.get("IsTruncated"):
                return build_walk_table(keys, sizes, times)
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _list_page(self, request: Mapping[str, Any]) -> dict[str, Any]:
        where = f"s3://{request['Bucket']}/{request['Prefix']}"
        limit = self.seconds
        try:
            call = lambda: self._call_s3fs(limit, "_call_s3", "list_objects_v2", **request)  # noqa: E731
            page: dict[str, Any] = self.with_retries("list", where, call)
        except FileNotFoundError:
            raise self.bucket_missing("list", where) from None
        return page

    def check_writable(self, folder: str) -> None:
        """Probe whether the server supports conditional puts, once per bucket and process."""
        bucket = (str(self.options.endpoint), self.path("").partition("/")[0])
        if bucket not in PROBED_BUCKETS:
            probe_conditional_put(self, folder)
            PROBED_BUCKETS.add(bucket)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        """Create an object with one conditional request (`If-None-Match: *`)."""
        path = self.path(key)
        try:
            # Never a multipart upload: aborting one would hide whether the object was created.
            one_part = {"mode": "create", "chunksize": _MAX_PUT_BYTES}
            limit = self._put_limit(data)
            put = lambda: self._call_s3fs(limit, "_pipe_file", path, data, **one_part)  # noqa: E731
            self.request("write", put, len(data))
        except FileExistsError:
            return PutOutcome.EXISTS
        except Exception as error:  # noqa: BLE001 -- s3fs maps HTTP statuses to many exception types
            return self._outcome_of(self.url(key), error)
        return PutOutcome.DONE

    def _outcome_of(self, where: str, error: Exception) -> PutOutcome:
        """Classify a failed conditional put; raises `StoreUnavailable` if S3 refused it."""
        status = response_status(error)
        if status == 412:  # precondition failed
            return PutOutcome.EXISTS
        if status == 409:  # a concurrent conditional request is in progress
            return PutOutcome.NOT_APPLIED
        if status is None and self.is_permanent(error):
            raise self.failed("write", where, error) from None
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise self.failed("write", where, error) from None
        return PutOutcome.UNKNOWN

    def is_permanent(self, error: Exception) -> bool:
        """Client errors are final, except those that may pass; so are missing credentials."""
        status = response_status(error)
        if status is not None:
            return 400 <= status < 500 and status not in (408, 409, 429)
        return super().is_permanent(error) or type(error).__name__ in (
            "NoCredentialsError",
            "PartialCredentialsError",
            "ParamValidationError",
        )

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object with one request."""
        path = self.path(key)
        put = lambda: self._call_s3fs(  # noqa: E731
            self._put_limit(data), "_pipe_file", path, data, chunksize=_MAX_PUT_BYTES
        )
        self.with_retries("write", self.url(key), put, len(data))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in batches."""
        paths = [self.path(key) for key in keys]
        for start in range(0, len(paths), _DELETE_BATCH_KEYS):
            batch = paths[start : start + _DELETE_BATCH_KEYS]
            self.with_retries("delete", f"s3://{batch[0]}", partial(self._delete_batch, batch))

    def _delete_batch(self, paths: Sequence[str]) -> None:
        bucket = paths[0].partition("/")[0]
        objects = [{"Key": path.partition("/")[2]} for path in paths]
        request = {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": True}}
        response = self._call_s3fs(self.seconds, "_call_s3", "delete_objects", **request)
        for error in response.get("Errors", ()):
            # In the form in which S3 reports the failure of a whole request.
            raise PermissionError(f"{error.get('Key')}: <Code>{error.get('Code')}</Code>")


def put_time_limit(size: int, seconds: float, quick: float) -> float:
    """Return the time limit in seconds of a put of `size` bytes.

    At most `quick` for a small object; `LARGE_OBJECT_FACTOR` times the operation's limit for a
    large one.
    """
    return LARGE_OBJECT_FACTOR * seconds if size > _SMALL_PUT_BYTES else min(quick, seconds)


def predecessor_name(name: str) -> str:
    """Return a name that sorts shortly before `name`, or "" if there is none.

    S3 lists the names *after* a given one; listing after this name includes `name` itself.

    >>> predecessor_name("00000000000000000042"), predecessor_name("10"), predecessor_name("0")
    ('00000000000000000041', '1', '')
    """
    last = name[-1:]
    # Only from "0" to "~": the character before "0" is a slash, which starts a folder, and the one
    # before a non-ASCII character may be a lone surrogate.
    before = name[:-1] + (chr(ord(last) - 1) if "0" < last <= "~" else "")
    return "" if before.strip(".") == "" else before


def check_endpoint(url: str | None) -> None:
    """Raise `InvalidRequest` if the endpoint is not a plain URL of a server.

    The clients fail on such endpoints with less helpful errors, or later.
    """
    if url is None:
        return
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        valid = False
    if not valid or "@" in url or "?" in url or not url.isprintable() or " " in url:
        raise InvalidRequest(
            "The endpoint is not the URL of a server.",
            next="Give it as http://host:port or https://host, and credentials as options.",
        )


def find_environment_secrets() -> list[str]:
    """Return the credentials in the environment, which no message may contain."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return [os.environ[name] for name in names if os.environ.get(name)]


def probe_conditional_put(store: Any, folder: str) -> None:
    """Check that a server honours conditional puts, by creating the same object twice.

    A server that accepts both puts would also accept two commits at one version: raises
    `InvalidRequest`. A lost response proves nothing, so the probe is repeated; raises
    `StoreUnavailable` if it stays inconclusive.
    """
    for _ in range(_MAX_PROBES):
        key = f"{folder}/.probe-{uuid4().hex}"
        first = store.put_if_absent(key, b"first")
        second = store.put_if_absent(key, b"second")
        with suppress(StoreUnavailable):  # every reader of a log ignores the name
            store.delete([key])
        if second is PutOutcome.EXISTS:
            return
        if first is PutOutcome.DONE and second is PutOutcome.DONE:
            raise InvalidRequest(
                f"{store.root} cannot be committed to: its server ignores If-None-Match, so two"
                " writers would overwrite each other's commits.",
                next="Use a store with conditional writes, or upgrade the server.",
            )
    raise StoreUnavailable(
        f"Could not verify that {store.root} supports conditional writes: answers were lost.",
        next="Check the connection and try again.",
    )
