"""Storage backends: local disks, memory, S3 (obstore or s3fs), and any fsspec file system.

Every backend guarantees put-if-absent: a new object appears completely, and of several concurrent
writers exactly one creates it. Keys and bytes are all that storage knows of a table.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from arrowlog.config import is_text
from arrowlog.errors import InvalidRequest, redact
from arrowlog.lazy_names import import_on_first_use
from arrowlog.storage.base import (
    SMALL_FILE_BYTES,
    FileBuffer,
    ObjectStat,
    PutOutcome,
    RangeReader,
    Store,
    put_identical,
    stat_object,
)
from arrowlog.storage.failures import store_error
from arrowlog.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.storage.fsspec_store import find_secrets
    from arrowlog.storage.s3 import parse_s3_options, to_s3fs_options

# Remote stores are imported on first use: a table on a local disk needs none of them.
_ON_FIRST_USE = {
    "fsspec_store": ("find_secrets",),
    "s3": ("parse_s3_options", "to_s3fs_options"),
}

__all__ = [
    "SMALL_FILE_BYTES",
    "FileBuffer",
    "LocalStore",
    "ObjectStat",
    "PutOutcome",
    "RangeReader",
    "Store",
    "find_secrets",
    "open_store",
    "parse_s3_options",
    "put_identical",
    "root_spellings",
    "stat_object",
    "store_error",
    "to_s3fs_options",
]


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    parallelism: int | None = None,
    timeout_seconds: float = 30.0,
    accelerate: bool = True,
    unsafe: bool = False,
) -> Store:
    """Open the store for a table's address: a path, a `file:` URL, or any URL fsspec supports.

    `parallelism` is the maximum number of concurrent requests; None leaves it to the store.
    `accelerate` permits obstore for S3. `unsafe` permits commits to stores whose puts are not known
    to be atomic. Raises `InvalidRequest` if the address or the options are not valid, or a package
    is missing.
    """
    text = os.fspath(uri) if hasattr(uri, "__fspath__") else uri
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest("The table's address is empty.", next="Give a path or a URL.")
    if "\0" in text or not is_text(text):
        raise InvalidRequest(
            "The table's address contains a NUL character or an unpaired surrogate.",
            next="Give a path or a URL of valid Unicode.",
        )
    if storage_options is not None and not hasattr(storage_options, "items"):
        raise InvalidRequest(
            f"Storage options must be a map, not {type(storage_options).__name__}.",
            next='Pass a map such as {"region": "eu-central-1"}.',
        )
    if text.startswith(("file:", "local:")):  # Spark writes file:/path
        return LocalStore(_local_path(text))
    if not _SCHEME.match(text):
        return LocalStore(text)
    options = dict(storage_options or {})
    if text.startswith(("s3://", "s3a://", "s3n://")):
        return _open_s3(text, options, parallelism, timeout_seconds, accelerate=accelerate)
    if text.startswith("memory://"):
        from arrowlog.storage.fsspec_store import MemoryStore

        return MemoryStore(text, options, parallelism, timeout_seconds)
    from arrowlog.storage.fsspec_store import FsspecStore

    return FsspecStore(text, options, parallelism, timeout_seconds, unsafe=unsafe)


def _open_s3(
    uri: str, options: dict[str, Any], parallelism: int | None, seconds: float, *, accelerate: bool
) -> Store:
    from arrowlog.storage.obstore_s3 import ObstoreS3, is_obstore_usable
    from arrowlog.storage.s3 import S3Store, check_option_names

    uri = "s3" + uri[uri.index("://") :]
    if redact(uri) != uri:
        raise InvalidRequest(
            "The table's address contains credentials or a query.",
            next="Give only the bucket and the folder, and credentials as storage_options.",
        )
    check_option_names(options)
    bucket = uri.removeprefix("s3://").partition("/")[0]
    store_class = ObstoreS3 if accelerate and is_obstore_usable(options, bucket) else S3Store
    return store_class(uri, options, parallelism, seconds)


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    return path if parts.netloc in ("", "localhost") else f"//{parts.netloc}{path}"


def root_spellings(root: str) -> list[str]:
    """Return every spelling of the table's root that an absolute path may begin with."""
    scheme, colon, rest = root.partition("://")
    if not colon:
        return [root, f"file://{root}", f"file:{root}"]
    if scheme in ("s3", "s3a", "s3n"):
        return [f"{name}://{rest}" for name in ("s3", "s3a", "s3n")]
    return [root, f"/{rest}"] if scheme == "memory" else [root]


if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _ON_FIRST_USE)
