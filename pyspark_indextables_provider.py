"""Entry point by which Spark discovers the data source under the class name of the original.

See `pyspark_arrowlog`.
"""

try:
    from arrowlog.spark.source import ArrowlogSource
except ImportError:  # no pyspark, or one too old; `arrowlog.spark.register` says what is missing
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]

    class DefaultSource(ArrowlogSource):
        """The data source under the name of the class that the original provides."""

        format_name = "io.indextables.spark.core.IndexTables4SparkTableProvider"
