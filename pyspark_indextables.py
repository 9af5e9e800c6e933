"""Entry point by which Spark discovers `format("indextables")`, a name of the same data source.

See `pyspark_arrowlog`.
"""

try:
    from arrowlog.spark.source import ArrowlogSource
except ImportError:  # no pyspark, or one too old; `arrowlog.spark.register` says what is missing
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]

    class DefaultSource(ArrowlogSource):
        """The data source under the short name of the original."""

        format_name = "indextables"
