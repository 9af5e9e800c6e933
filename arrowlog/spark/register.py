"""Register the data source and the SQL functions in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.spark.local import require_pyspark
from arrowlog.spark.read import session_settings
from arrowlog.spark.statements import register_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("arrowlog")` and the SQL functions `arrowlog_files(…)` and so on.

    Spark finds an installed data source by itself (`pyspark_arrowlog`), but without the settings of
    the session. A registered one has the `spark.indextables.*` settings at this moment.
    """
    require_pyspark()
    from arrowlog.spark.source import ArrowlogSource

    settings = session_settings(spark)
    source = type("ArrowlogSource", (ArrowlogSource,), {"session": settings})
    spark.dataSource.register(source)
    register_functions(spark)
