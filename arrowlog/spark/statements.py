"""The IndexTables statements and our tables in `spark.sql`, and table functions over a log.

Text that is one of the statements is executed here and its result returned as a DataFrame. In other
text, tables that Spark cannot resolve are completed; see `sql_tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import ArrowlogError
from arrowlog.spark.catalog import readable_location
from arrowlog.spark.local import is_connect, own_errors, require_pyspark, to_spark_error
from arrowlog.spark.optimizer import install_optimizer_rule
from arrowlog.spark.settings import FORMAT_NAMES, session_settings
from arrowlog.spark.sql_tables import SqlSession, to_frame
from arrowlog.spark.sql_text import SqlText
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
    """Execute SQL: a statement of IndexTables, or Spark's own, in which our tables are known.

    ``SELECT … FROM arrowlog.`path` ``, `VERSION AS OF`, `TIMESTAMP AS OF`, `DESCRIBE HISTORY`,
    `CREATE TABLE … USING arrowlog`, `INSERT INTO` and `INSERT OVERWRITE` work. What is not
    understood goes to Spark unchanged. `args` and `kwargs` are those of `SparkSession.sql`.
    """
    require_pyspark()
    session = SqlSession(spark)
    if not isinstance(text, str):
        return session.spark_sql(text, *args, **kwargs)
    try:
        if not args and not kwargs and is_statement(text):
            rows = sql_statement(text, options=session_settings(spark), spark=spark)
            return to_frame(spark, rows)
        if SqlText(text).uses(FORMAT_NAMES):
            register_source(spark)  # Spark creates the data source by itself: with today's settings
        with own_errors():
            return session.execute(text, *args, **kwargs)
    except ArrowlogError as error:
        raise to_spark_error(error) from None


def enable(spark: SparkSession) -> None:
    """Make `spark.sql` of this session work as `arrowlog.spark.sql`. Idempotent.

    `spark.table` then finds our tables, too: those of Spark's catalog, and by path.
    """
    require_pyspark()
    install_optimizer_rule(spark)
    if not hasattr(spark.sql, "arrowlog_wraps"):
        spark.sql = _extended_sql(spark, spark.sql)
    if not hasattr(spark.table, "arrowlog_wraps"):
        spark.table = _extended_table(spark, spark.table)


def _extended_sql(spark: SparkSession, spark_sql: Any) -> Any:
    def extended_sql(sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N803 -- Spark's
        return sql(spark, sqlQuery, *args, **kwargs)

    extended_sql.__doc__ = spark_sql.__doc__
    extended_sql.arrowlog_wraps = spark_sql  # type: ignore[attr-defined]
    return extended_sql


def _extended_table(spark: SparkSession, spark_table: Any) -> Any:
    def extended_table(tableName: str) -> DataFrame:  # noqa: N803 -- Spark's
        location = readable_location(spark, tableName)
        if location is None:
            frame: DataFrame = spark_table(tableName)
            return frame
        return spark.read.format(FORMAT_NAMES[0]).load(location)

    extended_table.__doc__ = spark_table.__doc__
    extended_table.arrowlog_wraps = spark_table  # type: ignore[attr-defined]
    return extended_table


def register_source(spark: SparkSession) -> None:
    """Register the data source under all its names, with the current settings of the session."""
    from arrowlog.spark.source import ArrowlogSource

    settings = session_settings(spark)
    for name in FORMAT_NAMES:
        members = {"session": settings, "format_name": name}
        try:
            spark.dataSource.register(type("ArrowlogSource", (ArrowlogSource,), members))
        except Exception as error:
            # Spark 4.0 keeps the installed source, which it found by itself.
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
                raise


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
