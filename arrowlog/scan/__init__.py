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
from arrowlog.scan.plan import ScanPlan, Split, plan_scan
from arrowlog.scan.row_reader import RowReader

if TYPE_CHECKING:
    from arrowlog.scan.arrow_dataset import LazyScanner

__all__ = [
    "Explanation",
    "LazyScanner",
    "RowReader",
    "ScanPlan",
    "Split",
    "build_data_file_error",
    "find_column_problem",
    "find_member_case_mismatch",
    "find_nanosecond_column",
    "int_range",
    "is_always_readable_as",
    "is_readable_as",
    "map_column_case",
    "plan_scan",
]


def __getattr__(name: str) -> Any:
    """Import `LazyScanner` on first use: `pyarrow.dataset` imports pandas, a third of a second."""
    if name == "LazyScanner":
        from arrowlog.scan.arrow_dataset import LazyScanner

        return LazyScanner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
