"""Storage backends: local disks, memory, S3 (obstore or s3fs), and any fsspec file system.

Every backend guarantees put-if-absent: a new object appears completely, and of several concurrent
writers exactly one creates it. May import `log.envelope`, `log.names`, `log.window` and `errors`.
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
    """Open the store for a table's address: a path, a `file:` URL, or any URL fsspec supports.

    `accelerate` permits obstore for S3. `unsafe` permits commits to stores whose puts are not known
    to be atomic. Raises `InvalidRequest` if the address or the options are not valid, or a package
    is missing.
    """
    text = os.fspath(uri) if hasattr(uri, "__fspath__") else uri
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest("The table's address is empty.", next="Give a path or a URL.")
    if "\0" in text:
        raise InvalidRequest("The table's address contains a NUL character.")
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
            "The table's address contains credentials or a query.",
            next="Give only the bucket and the folder, and credentials as storage_options.",
        )
    bucket = uri.removeprefix("s3://").partition("/")[0]
    store_class = ObjectStore if accelerate and usable(options, bucket) else S3Store
    return store_class(uri, options, parallelism, seconds)


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    return path if parts.netloc in ("", "localhost") else f"//{parts.netloc}{path}"
