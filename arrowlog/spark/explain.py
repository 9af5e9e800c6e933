"""What was pruned in the scans of a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.index import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from arrowlog.scan.plan import ScanPlan


def explain(frame: DataFrame) -> list[ScanPlan]:
    """Print, for each scan of a table that Spark has planned, which clause dropped which files.

    The plans are given back. The frame has to be one of Spark's own reader.
    """
    plans = list(_plans(_executed(frame)))
    if not plans:
        raise InvalidRequest(
            "Nothing in this frame is read through an index of ours.",
            next="Ask table.scan(…).explain() instead.",
        )
    for plan in plans:
        print(plan.explain())  # noqa: T201 -- as Spark's own explain
    return plans


def _executed(frame: DataFrame) -> Any:
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise InvalidRequest(
            "A frame of Spark Connect does not show its plan.",
            next="Ask table.scan(…).explain() instead.",
        )
    return java.queryExecution().sparkPlan()


def _plans(node: Any) -> Iterator[ScanPlan]:
    if node.getClass().getSimpleName() == "FileSourceScanExec":
        index = LIVE.get(node.relation().location().toString())
        if index is not None:
            yield index.plan(node.partitionFilters(), node.dataFilters())
    children = node.children()
    for number in range(children.size()):
        yield from _plans(children.apply(number))
