"""IndexTables splits: rows and search of `.split` files, without a JVM.

Requires the `[splits]` extra: numpy for rows, tantivy for search and nested columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from arrowlog.splits.bundle import companion_error
    from arrowlog.splits.local_cache import SplitCache, default_cache_folder
    from arrowlog.splits.query import check_query, parse_query
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

ALL_FIELDS = "_indexall"  # in place of a column: every text field of the split

_MODULES = {
    "RowDecoder": "reader",
    "SplitCache": "local_cache",
    "SplitFile": "split_files",
    "SplitFiles": "split_files",
    "SplitRows": "reader",
    "SplitSearch": "search",
    "check_query": "query",
    "companion_error": "bundle",
    "default_cache_folder": "local_cache",
    "mask_members": "reader",
    "parse_query": "query",
}
_WITHOUT_NUMPY = ("bundle", "query")


def __getattr__(name: str) -> Any:
    """Import on first use. Raises InvalidRequest if it needs numpy, which is not installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if _MODULES[name] not in _WITHOUT_NUMPY:
        try:
            import numpy as np  # noqa: F401
        except ImportError:
            raise InvalidRequest(
                "Reading splits needs the package numpy.",
                next="Install it: pip install 'arrowlog[splits]'.",
            ) from None
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
