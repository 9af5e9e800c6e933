"""Write a DataFrame into a table as one commit.

Spark's own Parquet writer writes the files into a new folder inside the table's folder; the adds,
with their statistics, come from the Parquet footers. Spark's output committer keeps one result of a
task that was retried or ran speculatively. No file is visible before the commit. Where Spark cannot
reach the store, Python workers write the files; the commit is the same.
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
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa

from arrowlog.config import parse_bytes, resolve
from arrowlog.errors import InvalidRequest
from arrowlog.formats import parse_spark_schema
from arrowlog.snapshot import HIVE_NULL, StatsTruncation
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.local import require_pyspark
from arrowlog.spark.native import (
    find_unsupported_internals,
    is_reachable_by_spark,
    log_once,
    to_hadoop_uri,
)
from arrowlog.spark.settings import session_settings
from arrowlog.spark.target import CREATE_MODES, WriteDestination, resolve_destination
from arrowlog.spark.types import to_spark_arrow_schema
from arrowlog.spark.versions import frame_to_arrow, rebalance_by
from arrowlog.storage import open_store
from arrowlog.transaction import describe_parquet_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from arrowlog.storage import Store
    from arrowlog.transaction import Add, CommitResult

SaveMode = Literal["append", "overwrite", "error", "errorifexists", "ignore"]
_CONCURRENT_FOOTERS = 16
_DATA_FILE_NAME = re.compile(r"part-.*\.parquet")
# Timestamps in microseconds and in the proleptic Gregorian calendar, as every reader of arrowlog
# expects them. These are session settings: Spark has no write options for them.
_SESSION_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_SETTINGS_LOCK = RLock()  # one native write at a time: see `_session_settings`


def write(
    frame: DataFrame,
    uri: str | os.PathLike[str],
    mode: SaveMode = "append",
    *,
    replace_where: object = None,
    partition_columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    target_size: str | int = "128MB",
    rebalance: bool | None = None,
    txn: tuple[str, int] | None = None,
    read_version: int | None = None,
    native: bool | None = None,
) -> CommitResult | None:
    """Write the rows of a DataFrame into a table as one commit; None if there is nothing to write.

    `mode="overwrite"` replaces the whole table, or the partitions selected by `replace_where`.
    `"errorifexists"` raises `TableExists` if there is a table, and `"ignore"` writes nothing then,
    also if the table is created while the rows are written. A missing table is created, partitioned
    by `partition_columns`.

    By default Spark shuffles rows by partition first, so that each partition gets few files;
    `rebalance=False` omits the shuffle. `txn=("app", n)` makes the write idempotent: a repetition
    of the same step is not committed. `read_version` is the version that the rows were read from:
    an overwrite then raises `ConcurrentAppend` or `ConcurrentRemove` if another commit followed it.

    `native=True` requires Spark's own Parquet writer, `native=False` requires Python workers.
    Raises `InvalidRequest` if the rows do not fit the table.
    """
    require_pyspark()
    spark = frame.sparkSession
    save_mode = CREATE_MODES.get(mode)
    write_mode: Any = mode if save_mode is None else "append"
    target = resolve_destination(
        os.fspath(uri),
        frame.schema,
        mode=write_mode,
        save_mode=save_mode,
        where=replace_where,
        partition_columns=partition_columns,
        storage_options=storage_options,
        options={**session_settings(spark), **(options or {})},
        target_size=parse_bytes(target_size),
    )
    if target.is_ignored:
        return None
    rows = _to_table_schema(frame, target)
    if target.partition_columns and rebalance is not False:
        rows = rebalance_by(rows, [_quoted(name) for name in target.partition_columns])
    why = None if native is False else _obstacle(target, spark)
    if native and why:
        raise InvalidRequest(
            f"The table cannot be written by Spark's own Parquet writer: {why}.",
            next="Omit `native` to have Python workers write the rows.",
        )
    if native is False or why:
        if why:
            log_once("Rows are written by Python workers", why)
        adds = _by_workers(rows, target)
    else:
        log_once("Rows are written by Spark's own Parquet writer", None)
        adds = _by_spark(rows, target, spark)
    return target.commit(adds, write_mode, replace_where, txn, read_version)


def _obstacle(target: WriteDestination, spark: SparkSession) -> str | None:
    """Return why Spark's own writer cannot be used; None if it can."""
    if set(target.partition_columns) == set(target.schema.names):
        return "every column is a partition column"
    root = to_hadoop_uri(open_store(target.uri, target.storage_options).root)
    if why := find_unsupported_internals(spark):
        return why
    # On an object store there is no folder before the first file is written to it.
    reachable = is_reachable_by_spark(root, spark, missing_ok=not target.exists)
    return None if reachable else "Spark cannot reach the store"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _to_table_schema(frame: DataFrame, target: WriteDestination) -> DataFrame:
    """Select the table's columns in its order and types; missing columns are null."""
    from pyspark.sql import functions

    columns = []
    for item in target.schema:
        present = item.name in frame.columns
        column = frame[_quoted(item.name)] if present else functions.lit(None)
        columns.append(column.cast(item.dataType).alias(item.name))
    return frame.select(*columns)


# Writing with Spark's own Parquet writer.


def _by_spark(rows: DataFrame, target: WriteDestination, spark: SparkSession) -> list[Add]:
    """Write files with Spark and return their adds; on any failure the files are deleted."""
    store = open_store(target.uri, target.storage_options)
    folder = f"spark-{uuid4()}"
    succeeded = False
    try:
        _write_parquet(rows, target, f"{to_hadoop_uri(store.root)}/{folder}", spark)
        keys = _list_data_files(store, folder, spark)
        _check_same_store(store, keys, target)
        adds = _adds(store, keys, target)
        _check_nulls(adds, target)
        succeeded = True
    finally:
        if not succeeded:
            _delete_folder(store, folder, spark)
    return [add for add in adds if add.num_records]


def _write_parquet(
    rows: DataFrame, target: WriteDestination, path: str, spark: SparkSession
) -> None:
    names = target.partition_columns
    columns = [
        _encode_partition(rows[_quoted(item.name)], item.dataType.simpleString()).alias(item.name)
        if item.name in names
        else rows[_quoted(item.name)]
        for item in rows.schema
    ]
    writer = rows.select(*columns).write.mode("errorifexists")
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer = writer.partitionBy(*names) if names else writer
    with _session_settings(spark):
        writer.parquet(path)


def _encode_partition(column: Column, kind: str) -> Column:
    """Encode partition values as folder names that `_decode_partition` reads back exactly.

    By itself Spark formats timestamps in the session's time zone, which loses information, and
    names the folder of an empty string like that of null. Timestamps become microseconds since the
    epoch. The prefix "~" marks strings that would otherwise be ambiguous: empty ones, Hive's name
    for null, and those that begin with "~".
    """
    from pyspark.sql import functions

    if kind == "timestamp":
        return functions.unix_micros(column).cast("string")
    if kind != "string":
        return column.cast("string")
    ambiguous = column.startswith("~") | column.isin("", HIVE_NULL)
    return functions.when(ambiguous, functions.concat(functions.lit("~"), column)).otherwise(column)


def _decode_partition(text: str, kind: pa.DataType) -> Any:
    """Return the partition value that `_encode_partition` encoded."""
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


def _partition_values(key: str, target: WriteDestination, schema: pa.Schema) -> dict[str, Any]:
    """Return the partition values of a file that Spark wrote, from its folder names.

    Raises `InvalidRequest` for values that a log cannot represent: NaN, infinities, and the string
    that stands for null.
    """
    folders = key.split("/")[1:-1]
    values = {}
    for name, folder in zip(target.partition_columns, folders, strict=True):
        value = _decode_partition(unquote(folder.partition("=")[2]), schema.field(name).type)
        if value == HIVE_NULL or (isinstance(value, float) and not abs(value) < float("inf")):
            raise InvalidRequest(
                f"Partition column {name!r} has the value {value!r}, which a log cannot represent.",
                next="Replace it with null or another value.",
            )
        values[name] = value
    return values


def _adds(store: Store, keys: list[str], target: WriteDestination) -> list[Add]:
    """Read the footers of the files and return their adds, with statistics."""
    schema = parse_spark_schema(target.schema_string)
    truncation = StatsTruncation.of(resolve(target.options, table=target.properties))

    def add_from_footer(key: str) -> Add:
        values = _partition_values(key, target, schema)
        return describe_parquet_file(
            store, key, schema, target.partition_columns, truncation, values
        )

    with ThreadPoolExecutor(_CONCURRENT_FOOTERS) as pool:
        return list(pool.map(add_from_footer, keys))


def _check_same_store(store: Store, keys: list[str], target: WriteDestination) -> None:
    """Raise `InvalidRequest` if Spark wrote a new table to another store than arrowlog's.

    The log of an existing table was found by both.
    """
    if not target.exists and keys and store.stat(keys[0]) is None:
        raise InvalidRequest(
            f"Spark wrote files for {target.uri} that arrowlog does not find: the connector of"
            " Spark is configured for another store.",
            next="Give Spark the endpoint and the credentials of the storage options, as in"
            " spark.hadoop.fs.s3a.endpoint, or pass native=False.",
        )


def _check_nulls(adds: list[Add], target: WriteDestination) -> None:
    """Raise `InvalidRequest` if a column that is declared not nullable has nulls."""
    for name in target.required:
        for add in adds:
            nulls = add.null_count.get(name, 0)  # of a struct: the counts of its fields
            if (isinstance(nulls, int) and nulls) or (
                name in add.partition_values and add.partition_values[name] is None
            ):
                raise InvalidRequest(
                    f"Column {name!r} of the rows has nulls, but is not nullable in the table.",
                    next="Replace the nulls before writing.",
                )


def _list_data_files(store: Store, folder: str, spark: SparkSession) -> list[str]:
    """List the data files that Spark wrote, relative to the table's root."""
    if store.cheap_stat:
        keys = []
        for directory, _, names in os.walk(f"{store.root}/{folder}"):
            relative = os.path.relpath(directory, store.root).replace(os.sep, "/")
            keys += [f"{relative}/{name}" for name in names if _DATA_FILE_NAME.fullmatch(name)]
        return sorted(keys)
    system, path = _hadoop_path(f"{to_hadoop_uri(store.root)}/{folder}", spark)
    listed = system.listFiles(path, True)
    prefix = len(system.makeQualified(path).toUri().getPath()) + 1
    keys = []
    while listed.hasNext():
        relative = listed.next().getPath().toUri().getPath()[prefix:]
        if _DATA_FILE_NAME.fullmatch(relative.rpartition("/")[2]):
            keys.append(f"{folder}/{relative}")
    return sorted(keys)


def _delete_folder(store: Store, folder: str, spark: SparkSession) -> None:
    """Delete the files of a write that failed before its commit."""
    system, path = _hadoop_path(f"{to_hadoop_uri(store.root)}/{folder}", spark)
    system.delete(path, True)


def _hadoop_path(path: str, spark: SparkSession) -> tuple[Any, Any]:
    """Return the Hadoop file system of a path, and the path as a Hadoop object."""
    jvm = spark._jvm  # noqa: SLF001 -- pyspark has no public access to the JVM
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- as above
    return hadoop_path.getFileSystem(conf), hadoop_path


@contextmanager
def _session_settings(spark: SparkSession) -> Iterator[None]:
    """Apply `_SESSION_SETTINGS` to the session and restore its own values afterwards.

    The lock keeps a concurrent write in this process from restoring them too early.
    """
    with _SETTINGS_LOCK:
        before = {name: spark.conf.get(name, None) for name in _SESSION_SETTINGS}
        changed = {n: value for n, value in _SESSION_SETTINGS.items() if before[n] != value}
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


# Writing with Python workers.


def _by_workers(rows: DataFrame, target: WriteDestination) -> list[Add]:
    """Write files with Python workers and return their adds."""
    schema = to_spark_arrow_schema(rows.schema)
    if target.uri.startswith("memory:"):  # workers have no access to the memory of this process
        table = frame_to_arrow(rows)
        return target.write(table.to_batches(), table.schema)
    require_on_workers(rows.sparkSession)

    def arrowlog_write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        adds = target.write((batch.cast(schema) for batch in batches), schema)
        yield pa.record_batch([pa.array([pickle.dumps(adds)], pa.binary())], names=["adds"])

    results = frame_to_arrow(rows.mapInArrow(arrowlog_write, "adds binary"))
    return [
        add
        for pickled in results["adds"].to_pylist()
        for add in pickle.loads(pickled)  # noqa: S301 -- ours
    ]
