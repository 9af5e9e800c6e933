"""Register the data source and the SQL functions in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.spark.local import require_pyspark
from arrowlog.spark.optimizer import install_optimizer_rule
from arrowlog.spark.statements import register_functions, register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("arrowlog")`, its other names, and the SQL functions `arrowlog_files(…)`.

    Spark finds an installed data source by itself (`pyspark_arrowlog`). A registered one also has
    the `spark.indextables.*` settings of the session wherever Spark creates it, as for views in
    SQL.
    """
    require_pyspark()
    register_source(spark)
    register_functions(spark)
    install_optimizer_rule(spark)
