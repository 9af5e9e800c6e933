"""Make `format("arrowlog")` and the functions of SQL known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.spark.local import pyspark_sql
from arrowlog.spark.read import session_settings
from arrowlog.spark.statements import register_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("arrowlog")` and `arrowlog_files(…)` and its kin known to a session.

    Spark finds the source by itself where arrowlog is installed; registered by hand it also has the
    `spark.indextables.*` settings that the session has now.
    """
    pyspark_sql()
    from arrowlog.spark.source import ArrowlogSource

    settings = session_settings(spark)
    source = type("ArrowlogSource", (ArrowlogSource,), {"session": settings})
    spark.dataSource.register(source)
    register_functions(spark)
