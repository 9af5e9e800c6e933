"""Register the data source and the SQL functions in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.local import require_pyspark
from arrowlog.spark.optimizer import install_optimizer_rule
from arrowlog.spark.statements import register_functions, register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("arrowlog")`, its other names, and the SQL functions `arrowlog_files(…)`.

    Spark finds an installed data source by itself (`pyspark_arrowlog`). A registered one also has
    the `spark.indextables.*` settings of the session wherever Spark creates it, as for views in
    SQL. Raises `InvalidRequest` on Spark 3.5, which has no data sources in Python.
    """
    pyspark = require_pyspark()
    if not hasattr(pyspark.SparkSession, "dataSource"):
        raise InvalidRequest(
            "This version of Spark has no data sources in Python.",
            next="Use arrowlog.spark.read and arrowlog.spark.write, or Spark 4.0 or newer.",
        )
    require_on_workers(spark)
    register_source(spark)
    register_functions(spark)
    install_optimizer_rule(spark)
