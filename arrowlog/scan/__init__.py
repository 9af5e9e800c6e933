"""Data skipping: which files may hold rows that match a predicate, and their rows."""

from arrowlog.scan.arrow_dataset import LazyScanner
from arrowlog.scan.explain import Explanation
from arrowlog.scan.file_schema import (
    find_nanosecond_column,
    int_range,
    is_always_readable_as,
    is_readable_as,
    map_column_case,
)
from arrowlog.scan.literal_bounds import enclose_literal
from arrowlog.scan.plan import ScanPlan, Split, plan_scan
from arrowlog.scan.read_errors import build_data_file_error
from arrowlog.scan.row_reader import RowReader
from arrowlog.scan.stats_predicate import LIKE_WILDCARDS, coerce_literals

__all__ = [
    "LIKE_WILDCARDS",
    "Explanation",
    "LazyScanner",
    "RowReader",
    "ScanPlan",
    "Split",
    "build_data_file_error",
    "coerce_literals",
    "enclose_literal",
    "find_nanosecond_column",
    "int_range",
    "is_always_readable_as",
    "is_readable_as",
    "map_column_case",
    "plan_scan",
]
