"""Where bytes are. Promises: a new object appears whole, once, for one of its writers.

Backends: local disks, memory, S3 (obstore where installed, s3fs), and what else fsspec can read.
May import `log.envelope`, `log.names`, `log.window`, `errors`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from arrowlog.errors import InvalidRequest, redact
from arrowlog.log.store.base import Outcome, Stat, Store, put_same
from arrowlog.log.store.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LocalStore", "Outcome", "Stat", "Store", "open_store", "put_same"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    parallelism: int = 4,
    timeout_seconds: float = 30.0,
    accelerate: bool = True,
    unsafe: bool = False,
) -> Store:
    """The store for a table's address: a path, a `file:` URL, or any URL fsspec knows.

    `accelerate` admits obstore for S3; `unsafe` admits commits where nobody promises that they are
    atomic.
    """
    text = os.fspath(uri) if hasattr(uri, "__fspath__") else uri
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest("The table's address is empty.", next="Give a path or a URL.")
    if "\0" in text:
        raise InvalidRequest("The table's address has a NUL character in it.")
    if text.startswith(("file:", "local:")):  # Spark writes file:/path
        return LocalStore(_local_path(text))
    if not _SCHEME.match(text):
        return LocalStore(text)
    options = dict(storage_options or {})
    if text.startswith(("s3://", "s3a://", "s3n://")):
        return _open_s3(text, options, parallelism, timeout_seconds, accelerate=accelerate)
    if text.startswith("memory://"):
        from arrowlog.log.store.memory import MemoryStore

        return MemoryStore(text, options, parallelism, timeout_seconds)
    from arrowlog.log.store.remote import FsspecStore

    return FsspecStore(text, options, parallelism, timeout_seconds, unsafe=unsafe)


def _open_s3(
    uri: str, options: dict[str, Any], parallelism: int, seconds: float, *, accelerate: bool
) -> Store:
    from arrowlog.log.store.objects import ObjectStore, usable
    from arrowlog.log.store.s3 import S3Store

    uri = "s3" + uri[uri.index("://") :]
    if redact(uri) != uri:
        raise InvalidRequest(
            "The table's address has credentials or a query in it.",
            next="Give the bucket and the folder alone, and credentials as storage_options.",
        )
    bucket = uri.removeprefix("s3://").partition("/")[0]
    store = ObjectStore if accelerate and usable(options, bucket) else S3Store
    return store(uri, options, parallelism, seconds)


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    return path if parts.netloc in ("", "localhost") else f"//{parts.netloc}{path}"
