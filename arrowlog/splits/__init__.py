"""IndexTables splits: rows and search of `.split` files, without a JVM.

Requires the `[splits]` extra: numpy for rows, tantivy for search and nested columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.splits.bundle import companion_error
from arrowlog.splits.query import ALL_FIELDS, check_query, parse_query

if TYPE_CHECKING:
    from arrowlog.splits.local_cache import SplitCache, default_cache_folder
    from arrowlog.splits.reader import RowDecoder, SplitRows, mask_members
    from arrowlog.splits.search import SplitSearch
    from arrowlog.splits.split_files import SplitFile, SplitFiles

__all__ = [
    "ALL_FIELDS",
    "RowDecoder",
    "SplitCache",
    "SplitFile",
    "SplitFiles",
    "SplitRows",
    "SplitSearch",
    "check_query",
    "companion_error",
    "default_cache_folder",
    "mask_members",
    "parse_query",
]

_MODULES = {
    "RowDecoder": "reader",
    "SplitCache": "local_cache",
    "SplitFile": "split_files",
    "SplitFiles": "split_files",
    "SplitRows": "reader",
    "SplitSearch": "search",
    "default_cache_folder": "local_cache",
    "mask_members": "reader",
}


def __getattr__(name: str) -> Any:
    """Import on first use what needs numpy. Raises InvalidRequest if it is not installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        import numpy as np  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "Reading splits needs the package numpy.",
            next="Install it: pip install 'arrowlog[splits]'.",
        ) from None
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
