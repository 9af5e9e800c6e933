"""Explain which files the scans of a DataFrame skip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.index import ACTIVE_INDEXES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from arrowlog.scan import ScanPlan


def explain(frame: DataFrame) -> list[ScanPlan]:
    """Print and return the scan plan of each table that a DataFrame reads.

    Each plan says which clause drops which files. Raises `InvalidRequest` unless the DataFrame
    reads a table with Spark's own Parquet reader.
    """
    plans = list(_scan_plans(_physical_plan(frame)))
    if not plans:
        raise InvalidRequest(
            "This DataFrame reads no arrowlog table with Spark's own Parquet reader.",
            next="Use table.scan(…).explain() instead.",
        )
    for plan in plans:
        print(plan.explain())  # noqa: T201 -- prints, like DataFrame.explain
    return plans


def _physical_plan(frame: DataFrame) -> Any:
    java_frame = getattr(frame, "_jdf", None)
    if java_frame is None:
        raise InvalidRequest(
            "A DataFrame of Spark Connect does not expose its plan.",
            next="Use table.scan(…).explain() instead.",
        )
    return java_frame.queryExecution().sparkPlan()


def _scan_plans(node: Any) -> Iterator[ScanPlan]:
    if node.getClass().getSimpleName() == "FileSourceScanExec":
        index = ACTIVE_INDEXES.get(node.relation().location().toString())
        if index is not None:
            yield index.plan(node.partitionFilters(), node.dataFilters())
    children = node.children()
    for number in range(children.size()):
        yield from _scan_plans(children.apply(number))
