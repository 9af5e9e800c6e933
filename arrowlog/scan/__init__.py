"""Data skipping: which files may hold rows that match a predicate, and their rows."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
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
    from arrowlog.scan.explain import (
        Explanation,
    )
    from arrowlog.scan.lazy_readers import (
        LazyRows,
        LazyScanner,
    )
    from arrowlog.scan.plan import (
        Engine,
        ScanPlan,
        Split,
        plan_scan,
    )
    from arrowlog.scan.read_reports import ReadLog, ReadReport
    from arrowlog.scan.readable_rows import ReadableRows
    from arrowlog.scan.row_reader import (
        RowReader,
    )
    from arrowlog.scan.split_rows import (
        SPLIT_SUFFIX,
        SplitCacheOptions,
        mask_splits,
    )
    from arrowlog.scan.sql_plan import (
        bounds_schema,
        bounds_table,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "data_files": (
        "build_data_file_error",
        "find_column_problem",
        "find_member_case_mismatch",
        "find_nanosecond_column",
        "int_range",
        "is_always_readable_as",
        "is_readable_as",
        "map_column_case",
    ),
    "explain": ("Explanation",),
    "lazy_readers": ("LazyRows", "LazyScanner"),
    "plan": ("Engine", "ScanPlan", "Split", "plan_scan"),
    "read_reports": ("ReadLog", "ReadReport"),
    "readable_rows": ("ReadableRows",),
    "row_reader": ("RowReader",),
    "split_rows": ("SPLIT_SUFFIX", "SplitCacheOptions", "mask_splits"),
    "sql_plan": ("bounds_schema", "bounds_table"),
}

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

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
