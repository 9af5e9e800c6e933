"""A table as a DataFrame, by its address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.config import PREFIX, known_in
from arrowlog.spark.local import pyspark_sql
from arrowlog.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.state.travel import Moment


def read(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None = None,
    where: Any = None,
    *,
    timestamp: Moment | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    native: bool | None = None,
) -> DataFrame:
    """The rows of a table, at its newest version, at a version, or as it was at a moment.

    Spark's own Parquet reader reads them where it can, and whatever filters Spark has are pruned by
    when it plans; elsewhere Python workers do, and `where` alone is pruned by. `native` asks for
    the one or the other. The frame stays at its version.
    """
    pyspark_sql()
    table = open_table(spark, uri, storage_options, options)
    return table.scan(where, version, timestamp).to_spark(spark, native=native)


def open_table(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
) -> Table:
    """A table with the settings of a call, and below them those of the session."""
    return Table(uri, storage_options, options={**session_settings(spark), **(options or {})})


def session_settings(spark: SparkSession) -> dict[str, object]:
    """The session's `spark.indextables.*`, as far as they are settings of ours."""
    found = {key: value for key, value in spark.conf.getAll.items() if key.startswith(PREFIX)}
    return known_in(found)
