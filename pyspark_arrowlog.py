"""Entry point by which Spark discovers `format("arrowlog")`: it imports modules named `pyspark_*`.

Spark imports all of them whenever it looks up any data source, so this module must never fail.
"""

try:
    from arrowlog.spark.source import ArrowlogSource
except ImportError:  # no pyspark, or one too old; `arrowlog.spark.register` says what is missing
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]

    class DefaultSource(ArrowlogSource):
        """The data source for tables with a transaction log."""
