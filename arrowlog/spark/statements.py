"""Statements about logs through Spark's own `sql`, and read-only questions as functions in SQL.

A text that is one of our statements is done here, and its rows are a DataFrame; everything else
goes to Spark as it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.spark.local import pyspark_sql
from arrowlog.spark.read import session_settings
from arrowlog.sql.statements import is_statement
from arrowlog.statements import sql_statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

FILES = "path string, partition_values map<string,string>, size_bytes bigint, num_records bigint"
HISTORY = (
    "version bigint, timestamp timestamp, operation string, adds bigint, removes bigint,"
    " bytes bigint, rows bigint, txn_id string"
)
EXPLAIN = (
    "clause string, files_dropped bigint, bytes_dropped bigint, only_files bigint,"
    " redundant boolean, kept map<string,bigint>"
)


def sql(spark: SparkSession, text: str, *args: Any, **kwargs: Any) -> DataFrame:
    """A statement of ours, such as `REPAIR INDEXFILES TRANSACTION LOG …`, or Spark's own SQL."""
    pyspark_sql()
    if not args and not kwargs and _is_ours(text):
        return _frame(spark, _done(spark, text))
    own = getattr(spark.sql, "arrowlog_wraps", spark.sql)
    found: DataFrame = own(text, *args, **kwargs)
    return found


def enable(spark: SparkSession) -> None:
    """Let `spark.sql` of this session take our statements too. Doing it twice does no harm."""
    pyspark_sql()
    if hasattr(spark.sql, "arrowlog_wraps"):
        return
    own = spark.sql

    def both(sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N803 -- Spark's
        return sql(spark, sqlQuery, *args, **kwargs)

    both.__doc__ = own.__doc__
    both.arrowlog_wraps = own  # type: ignore[attr-defined]
    spark.sql = both


def _done(spark: SparkSession, text: str) -> pa.Table:
    """What a statement gives, with the settings of the session."""
    return sql_statement(text, options=session_settings(spark), spark=spark)


def _is_ours(text: object) -> bool:
    return isinstance(text, str) and is_statement(text)


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as Spark takes them: plain texts, moments in microseconds."""
    fields = [pa.field(item.name, _kind(item.type), item.nullable) for item in rows.schema]
    return spark.createDataFrame(rows.cast(pa.schema(fields)))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


def register_functions(spark: SparkSession) -> None:
    """`arrowlog_files`, `arrowlog_history` and `arrowlog_explain`, to be selected from."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect.functions import udtf
    else:
        from pyspark.sql.functions import udtf

    for name, function, columns in (
        ("arrowlog_files", Files, FILES),
        ("arrowlog_history", History, HISTORY),
        ("arrowlog_explain", Explain, EXPLAIN),
    ):
        spark.udtf.register(name, udtf(function, returnType=columns))


class Files:
    """The live files of a table, one row each."""

    def eval(self, uri: str) -> Iterator[tuple[Any, ...]]:
        """Read by one worker, when the rows are asked for."""
        from arrowlog.commit.text import text_of
        from arrowlog.table import Table

        snapshot = Table(uri).snapshot()
        kinds = {
            name: snapshot.files.schema.field(f"partition.{name}").type
            for name in snapshot.partition_columns
        }
        wanted = ["path", "size_bytes", "num_records"]
        for row in snapshot.files.select([*wanted, *(f"partition.{n}" for n in kinds)]).to_pylist():
            values = {n: text_of(row[f"partition.{n}"], kind) for n, kind in kinds.items()}
            yield row["path"], values, row["size_bytes"], row["num_records"]


class History:
    """The commits of a table, newest first."""

    def eval(self, uri: str) -> Iterator[tuple[Any, ...]]:
        """Read by one worker, when the rows are asked for."""
        from arrowlog.table import Table

        names = [column.split()[0] for column in HISTORY.split(", ")]
        table: Any = Table(uri)
        for row in table.history().to_pylist():
            yield tuple(row.get(name) for name in names)


class Explain:
    """Which clause of a predicate drops what, and why the rest is kept."""

    def eval(self, uri: str, predicate: str) -> Iterator[tuple[Any, ...]]:
        """Planned by one worker, when the rows are asked for."""
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
