"""Register the data source and the SQL functions in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.local import require_pyspark
from arrowlog.spark.read import session_settings
from arrowlog.spark.statements import register_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("arrowlog")` and the SQL functions `arrowlog_files(…)` and so on.

    Spark finds an installed data source by itself (`pyspark_arrowlog`), but without the settings of
    the session. A registered one has the `spark.indextables.*` settings at this moment. Raises
    `InvalidRequest` on Spark 3.5, which has no data sources in Python.
    """
    pyspark = require_pyspark()
    if not hasattr(pyspark.SparkSession, "dataSource"):
        raise InvalidRequest(
            "This version of Spark has no data sources in Python.",
            next="Use arrowlog.spark.read and arrowlog.spark.write, or Spark 4.0 or newer.",
        )
    from arrowlog.spark.source import ArrowlogSource

    require_on_workers(spark)
    settings = session_settings(spark)
    source = type("ArrowlogSource", (ArrowlogSource,), {"session": settings})
    try:
        spark.dataSource.register(source)
    except Exception as error:
        # Spark 4.0 keeps the installed source, which it found by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    register_functions(spark)
