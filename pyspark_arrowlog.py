"""How Spark finds `format("arrowlog")` by itself: it looks into modules called `pyspark_…`.

Spark imports all of them whenever it looks for any source, so this one must not fail.
"""

try:
    from arrowlog.spark.source import ArrowlogSource
except (
    ImportError
):  # a pyspark that is too old for it; `arrowlog.spark.register` says what is missing
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]

    class DefaultSource(ArrowlogSource):
        """The data source of tables with a transaction log."""
