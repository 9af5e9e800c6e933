"""Data skipping: which files may hold rows that match a predicate, and their rows."""

from typing import TYPE_CHECKING, Any

from arrowlog.scan.data_files import (
    build_data_file_error,
    find_column_problem,
    find_member_case_mismatch,
    find_nanosecond_column,
    int_range,
    is_always_readable_as,
    is_readable_as,
    map_column_case,
)
from arrowlog.scan.explain import Explanation
from arrowlog.scan.file_bounds import bounds_schema, bounds_table
from arrowlog.scan.plan import Engine, ReadableRows, ScanPlan, Split, plan_scan
from arrowlog.scan.read_reports import ReadLog, ReadReport
from arrowlog.scan.row_reader import RowReader
from arrowlog.scan.split_rows import SPLIT_SUFFIX, SplitCacheOptions, mask_splits

if TYPE_CHECKING:
    from arrowlog.scan.lazy_readers import LazyRows as LazyRows
    from arrowlog.scan.lazy_readers import LazyScanner

__all__ = [
    "SPLIT_SUFFIX",
    "Engine",
    "Explanation",
    "LazyRows",
    "LazyScanner",
    "ReadLog",
    "ReadReport",
    "ReadableRows",
    "RowReader",
    "ScanPlan",
    "Split",
    "SplitCacheOptions",
    "bounds_schema",
    "bounds_table",
    "build_data_file_error",
    "find_column_problem",
    "find_member_case_mismatch",
    "find_nanosecond_column",
    "int_range",
    "is_always_readable_as",
    "is_readable_as",
    "map_column_case",
    "mask_splits",
    "plan_scan",
]


def __getattr__(name: str) -> Any:
    """Import the lazy readers on first use: `pyarrow.dataset` imports pandas, which takes time."""
    if name in ("LazyRows", "LazyScanner"):
        from arrowlog.scan import lazy_readers

        return getattr(lazy_readers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
