"""Rows of a DataFrame into a table: Spark's own Parquet writer, footers read, one commit.

Spark writes into a folder of its own inside the table's, and takes care that of a task that is
tried twice, or runs twice, one result is there. Nobody knows of the folder before the commit. Where
Spark cannot reach the store, workers write the files in Python instead; the commit is the same.
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa

from arrowlog.commit.parquet import add_of
from arrowlog.config import parse_bytes, resolve
from arrowlog.errors import InvalidRequest
from arrowlog.log.schema import from_spark
from arrowlog.log.store import open_store
from arrowlog.spark.local import pyspark_sql
from arrowlog.spark.native import hadoop_root, reachable, tell, unlike
from arrowlog.spark.read import session_settings
from arrowlog.spark.target import Destination, destination
from arrowlog.spark.types import arrow_schema
from arrowlog.state.truncation import Truncation
from arrowlog.state.typed import HIVE_NULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from arrowlog.commit.adds import Add
    from arrowlog.commit.transaction import CommitResult
    from arrowlog.log.store import Store

_FOOTERS_AT_ONCE = 16
_PART = re.compile(r"part-.*\.parquet")
# Moments as they are, in the calendar of today: what every reader here takes them for.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_LOCK = RLock()


def write(
    frame: DataFrame,
    uri: str | os.PathLike[str],
    mode: str = "append",
    *,
    replace_where: object = None,
    partition_columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    target_size: str | int = "128MB",
    rebalance: bool | None = None,
    txn: tuple[str, int] | None = None,
    native: bool | None = None,
) -> CommitResult | None:
    """Write the rows of a DataFrame into a table, as one commit; None if there is nothing to do.

    `mode="overwrite"` replaces the table, or the partitions that `replace_where` picks. A table
    that is not there is made, partitioned by `partition_columns`. Rows are gathered by partition
    before they are written, so that each has few files; `rebalance=False` leaves them where they
    are. `txn=("app", n)` makes it a step that is taken once.
    """
    pyspark_sql()
    spark = frame.sparkSession
    goal = destination(
        os.fspath(uri),
        frame.schema,
        mode=mode,
        where=replace_where,
        partition_columns=partition_columns,
        storage_options=storage_options,
        options={**session_settings(spark), **(options or {})},
        target_size=parse_bytes(target_size),
    )
    rows = _conformed(frame, goal)
    if goal.partition_columns and rebalance is not False:
        rows = rows.hint("rebalance", *map(_quoted, goal.partition_columns))
    why = None if native is False else _obstacle(goal, spark)
    if native and why:
        raise InvalidRequest(f"Spark's own writer cannot write here: {why}.")
    if native is False or why:
        if why:
            tell("Rows are written by Python workers", why)
        adds = _by_workers(rows, goal)
    else:
        tell("Rows are written by Spark's own Parquet writer", None)
        adds = _by_spark(rows, goal, spark)
    return goal.commit(adds, mode, replace_where, txn)


def _obstacle(goal: Destination, spark: SparkSession) -> str | None:
    if set(goal.partition_columns) == set(goal.schema.names):
        return "every column is a partition column"
    root = hadoop_root(open_store(goal.uri, goal.storage_options).root)
    return unlike(spark) or (None if reachable(root, spark) else "it cannot reach the store")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _conformed(frame: DataFrame, goal: Destination) -> DataFrame:
    """The table's columns in its order and types; those that the rows have not are null."""
    from pyspark.sql import functions

    columns = []
    for item in goal.schema:
        there = item.name in frame.columns
        column = frame[_quoted(item.name)] if there else functions.lit(None)
        columns.append(column.cast(item.dataType).alias(item.name))
    return frame.select(*columns)


# By Spark's own writer.


def _by_spark(rows: DataFrame, goal: Destination, spark: SparkSession) -> list[Add]:
    store = open_store(goal.uri, goal.storage_options)
    folder = f"spark-{uuid4()}"
    done = False
    try:
        _write_parquet(rows, goal, f"{hadoop_root(store.root)}/{folder}", spark)
        keys = _parts(store, folder, spark)
        adds = _adds(store, keys, goal)
        _check_nulls(adds, goal)
        done = True
    finally:
        if not done:
            _delete_folder(store, folder, spark)
    return [add for add in adds if add.num_records]


def _write_parquet(rows: DataFrame, goal: Destination, path: str, spark: SparkSession) -> None:
    names = goal.partition_columns
    columns = [
        _text(rows[_quoted(item.name)], item.dataType.simpleString()).alias(item.name)
        if item.name in names
        else rows[_quoted(item.name)]
        for item in rows.schema
    ]
    writer = rows.select(*columns).write.mode("errorifexists")
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer = writer.partitionBy(*names) if names else writer
    with _settings(spark):
        writer.parquet(path)


def _text(column: Column, kind: str) -> Column:
    """A partition value as the text of a folder, from which it can be told exactly.

    Spark would name folders in the zone of the session, and call empty texts null.
    """
    from pyspark.sql import functions

    if kind == "timestamp":
        return functions.unix_micros(column).cast("string")
    if kind != "string":
        return column.cast("string")
    odd = column.startswith("~") | column.isin("", HIVE_NULL)
    return functions.when(odd, functions.concat(functions.lit("~"), column)).otherwise(column)


def _value(text: str, kind: pa.DataType) -> Any:
    """The partition value that `_text` made a folder of."""
    if text == HIVE_NULL:
        return None
    if pa.types.is_string(kind):
        return text.removeprefix("~")
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return dt.datetime.fromisoformat(text)
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(text))
    if pa.types.is_decimal(kind):
        return Decimal(text)
    return float(text) if pa.types.is_floating(kind) else text


def _values(key: str, goal: Destination, schema: pa.Schema) -> dict[str, Any]:
    """The partition values of a file that Spark wrote, by its folders."""
    folders = key.split("/")[1:-1]
    found = {}
    for name, folder in zip(goal.partition_columns, folders, strict=True):
        value = _value(unquote(folder.partition("=")[2]), schema.field(name).type)
        if value == HIVE_NULL or (isinstance(value, float) and not abs(value) < float("inf")):
            raise InvalidRequest(
                f"Partition column {name!r} has the value {value!r}, which no log can hold.",
                next="Use null, or another value.",
            )
        found[name] = value
    return found


def _adds(store: Store, keys: list[str], goal: Destination) -> list[Add]:
    """The adds of the files, with all that their footers say."""
    schema = from_spark(goal.schema_string)
    cut = Truncation.of(resolve(goal.options, table=goal.properties))

    def one(key: str) -> Add:
        values = _values(key, goal, schema)
        return add_of(store, key, schema, goal.partition_columns, cut, values)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(one, keys))


def _check_nulls(adds: list[Add], goal: Destination) -> None:
    for name in goal.required:
        for add in adds:
            nulls = add.null_count.get(name, 0)
            if nulls or (name in add.partition_values and add.partition_values[name] is None):
                raise InvalidRequest(
                    f"Column {name!r} of the rows has nulls, and may not have any.",
                    next="Fill them before writing.",
                )


def _parts(store: Store, folder: str, spark: SparkSession) -> list[str]:
    """The files that Spark wrote, relative to the table."""
    if store.cheap_stat:
        found = []
        for place, _, names in os.walk(f"{store.root}/{folder}"):
            inner = os.path.relpath(place, store.root).replace(os.sep, "/")
            found += [f"{inner}/{name}" for name in names if _PART.fullmatch(name)]
        return sorted(found)
    system, path = _hadoop(f"{hadoop_root(store.root)}/{folder}", spark)
    listed = system.listFiles(path, True)
    prefix = len(system.makeQualified(path).toUri().getPath()) + 1
    found = []
    while listed.hasNext():
        inner = listed.next().getPath().toUri().getPath()[prefix:]
        if _PART.fullmatch(inner.rpartition("/")[2]):
            found.append(f"{folder}/{inner}")
    return sorted(found)


def _delete_folder(store: Store, folder: str, spark: SparkSession) -> None:
    """What is in no commit and never will be."""
    system, path = _hadoop(f"{hadoop_root(store.root)}/{folder}", spark)
    system.delete(path, True)


def _hadoop(path: str, spark: SparkSession) -> tuple[Any, Any]:
    found = spark._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001 -- there is no public way
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- as above
    return found.getFileSystem(conf), found


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """The session as files for everybody need it, and as it was afterwards."""
    with _LOCK:
        before = {name: spark.conf.get(name, None) for name in _SETTINGS}
        changed = {name: value for name, value in _SETTINGS.items() if before[name] != value}
        for name, value in changed.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in changed:
                if before[name] is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, before[name])


# By workers.


def _by_workers(rows: DataFrame, goal: Destination) -> list[Add]:
    schema = arrow_schema(rows.schema)
    if goal.uri.startswith("memory:"):  # which no worker can see
        table = rows.toArrow()
        return goal.write(table.to_batches(), table.schema)

    def arrowlog_write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        adds = goal.write((batch.cast(schema) for batch in batches), schema)
        yield pa.record_batch([pa.array([pickle.dumps(adds)], pa.binary())], names=["adds"])

    found = rows.mapInArrow(arrowlog_write, "adds binary").toArrow()
    return [
        add
        for pickled in found["adds"].to_pylist()
        for add in pickle.loads(pickled)  # noqa: S301 -- ours
    ]
