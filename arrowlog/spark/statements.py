"""The IndexTables statements in `spark.sql`, and table functions over a log.

Text that is one of the statements is executed here and its result returned as a DataFrame; any
other text is passed to Spark unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.spark.local import is_connect, require_pyspark
from arrowlog.spark.read import session_settings
from arrowlog.spark.versions import frame_from_arrow
from arrowlog.statements import is_statement, sql_statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

FILES_SCHEMA = (
    "path string, partition_values map<string,string>, size_bytes bigint, num_records bigint"
)
HISTORY_SCHEMA = (
    "version bigint, timestamp timestamp, operation string, adds bigint, removes bigint,"
    " bytes bigint, rows bigint, txn_id string"
)
EXPLAIN_SCHEMA = (
    "clause string, files_dropped bigint, bytes_dropped bigint, only_files bigint,"
    " redundant boolean, kept map<string,bigint>"
)


def sql(spark: SparkSession, text: str, *args: Any, **kwargs: Any) -> DataFrame:
    """Execute a statement such as `REPAIR INDEXFILES TRANSACTION LOG …`, or Spark's own SQL.

    `args` and `kwargs` are those of `SparkSession.sql`; text with any of them goes to Spark.
    """
    require_pyspark()
    if not args and not kwargs and isinstance(text, str) and is_statement(text):
        rows = sql_statement(text, options=session_settings(spark), spark=spark)
        return _to_frame(spark, rows)
    spark_sql = getattr(spark.sql, "arrowlog_wraps", spark.sql)
    frame: DataFrame = spark_sql(text, *args, **kwargs)
    return frame


def enable(spark: SparkSession) -> None:
    """Make `spark.sql` of this session accept the statements too. Idempotent."""
    require_pyspark()
    if hasattr(spark.sql, "arrowlog_wraps"):
        return
    spark_sql = spark.sql

    def extended_sql(sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N803 -- Spark's
        return sql(spark, sqlQuery, *args, **kwargs)

    extended_sql.__doc__ = spark_sql.__doc__
    extended_sql.arrowlog_wraps = spark_sql  # type: ignore[attr-defined]
    spark.sql = extended_sql


def _to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert rows to a DataFrame, casting types that Spark does not accept from Arrow."""
    fields = [pa.field(item.name, _spark_type(item.type), item.nullable) for item in rows.schema]
    return frame_from_arrow(spark, rows.cast(pa.schema(fields)))


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


def register_functions(spark: SparkSession) -> None:
    """Register the table functions `arrowlog_files`, `arrowlog_history` and `arrowlog_explain`."""
    if is_connect(spark):
        from pyspark.sql.connect.functions import udtf
    else:
        from pyspark.sql.functions import udtf

    for name, function, columns in (
        ("arrowlog_files", FilesFunction, FILES_SCHEMA),
        ("arrowlog_history", HistoryFunction, HISTORY_SCHEMA),
        ("arrowlog_explain", ExplainFunction, EXPLAIN_SCHEMA),
    ):
        spark.udtf.register(name, udtf(function, returnType=columns))


class FilesFunction:
    """Table function: one row per live file of a table."""

    def eval(self, uri: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows. Runs in one worker, when the query is executed."""
        from arrowlog.snapshot import to_log_text
        from arrowlog.table import Table

        snapshot = Table(uri).snapshot()
        kinds = {
            name: snapshot.files.schema.field(f"partition.{name}").type
            for name in snapshot.partition_columns
        }
        names = ["path", "size_bytes", "num_records", *(f"partition.{name}" for name in kinds)]
        for row in snapshot.files.select(names).to_pylist():
            values = {n: to_log_text(row[f"partition.{n}"], kind) for n, kind in kinds.items()}
            yield row["path"], values, row["size_bytes"], row["num_records"]


class HistoryFunction:
    """Table function: one row per commit of a table, latest first."""

    def eval(self, uri: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows. Runs in one worker, when the query is executed."""
        from arrowlog.table import Table

        names = [column.split()[0] for column in HISTORY_SCHEMA.split(", ")]
        table: Any = Table(uri)
        for row in table.history().to_pylist():
            yield tuple(row.get(name) for name in names)


class ExplainFunction:
    """Table function: per clause of a predicate, what it drops and why other files are kept."""

    def eval(self, uri: str, predicate: str) -> Iterator[tuple[Any, ...]]:
        """Plan the scan and yield the rows. Runs in one worker, when the query is executed."""
        from arrowlog.table import Table

        for clause in Table(uri).scan(predicate).explain().clauses:
            yield (
                clause.text,
                clause.files_dropped,
                clause.bytes_dropped,
                clause.only_files,
                clause.redundant,
                dict(clause.kept),
            )
