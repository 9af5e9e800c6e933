"""How Spark finds `format("arrowlog")` by itself: it looks into modules called `pyspark_…`."""

from arrowlog.spark.source import ArrowlogSource

__all__ = ["DefaultSource"]


class DefaultSource(ArrowlogSource):
    """The data source of tables with a transaction log."""
