"""Open a table by its URI as a Spark DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.spark.local import require_pyspark
from arrowlog.spark.settings import session_settings
from arrowlog.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.snapshot import TimestampLike


def read(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None = None,
    where: Any = None,
    *,
    timestamp: TimestampLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    native: bool | None = None,
) -> DataFrame:
    """Return the rows of a table as a DataFrame that stays at one version.

    Reads the latest version, `version`, or the version that was current at `timestamp`.

    Spark's own Parquet reader is used where possible; then every filter that Spark pushes down
    prunes files at planning time. Otherwise Python workers read the rows, and only `where` prunes.
    `native=True` or `native=False` requires one or the other.
    """
    require_pyspark()
    table = open_table(spark, uri, storage_options, options)
    return table.scan(where, version, timestamp).to_spark(spark, native=native)


def open_table(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
) -> Table:
    """Open a table. `options` override the session's `spark.indextables.*` settings."""
    return Table(uri, storage_options, options={**session_settings(spark), **(options or {})})
