"""The rows of a plan as a Spark DataFrame: by Spark's own reader where it can, else by workers.

Where Spark's own reader cannot be used, each part of the plan goes to a Python worker as a row of a
small DataFrame, and the worker reads its files the way every other engine here does: so rows are
the same, on classic sessions and on Connect, in any store. Options of the store travel in the
function's closure, which no plan shows.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.config import parse_bytes
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.log.store import open_store
from arrowlog.log.store.remote import secrets_in
from arrowlog.scan.tree import TRUE
from arrowlog.spark.conditions import to_spark
from arrowlog.spark.index import Place
from arrowlog.spark.local import check_sendable, pyspark_sql
from arrowlog.spark.native import frame_of, hadoop_root, obstacle, tell
from arrowlog.spark.types import arrow_schema, fitted, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrowlog.scan.plan import ScanPlan, Split
    from arrowlog.scan.rows import Rows

    Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def frame(
    plan: ScanPlan, rows: Rows, spark: SparkSession, *, native: bool | None = None
) -> DataFrame:
    """The matching rows of a plan. Nothing is read before Spark asks; the version stays.

    With `native` true or false the way is chosen by the caller.
    """
    pyspark_sql()
    schema = spark_schema(plan.snapshot.metadata.schema_string)
    rows.check()
    if native is False:
        return _by_workers(plan, rows, spark, schema)
    store = open_store(plan.root, rows.options)
    place = Place(plan.snapshot, store, hadoop_root(store.root), rows.options)
    why = obstacle(place, spark, schema)
    condition = None
    if why is None:
        condition = to_spark(plan.predicate.tree, plan.snapshot.columns.schema)
        if condition is None:
            why = f"Spark has no condition that means just {plan.predicate}"
    if why is None:
        tell("Rows are read by Spark's own Parquet reader", None)
        whole = frame_of(place, spark, schema)
        return whole if plan.predicate.tree == TRUE else whole.filter(condition)
    if native:
        raise InvalidRequest(
            f"The table cannot be read by Spark's own Parquet reader: {why}.",
            next="Leave native out, and rows are read by Python workers.",
        )
    tell("Rows are read by Python workers", why)
    return _by_workers(plan, rows, spark, schema)


def _by_workers(plan: ScanPlan, rows: Rows, spark: SparkSession, schema: StructType) -> DataFrame:
    """Parts of the plan, read by Spark's Python workers."""
    if plan.root.startswith("memory:"):
        return _local(plan, spark, schema)
    cores = _cores(spark)
    splits = plan.splits(_target_size(plan, spark, cores))
    parts = spark.createDataFrame(_table(splits), "part int, split binary")
    if len(splits) > cores:  # else each is a task of its own already
        parts = parts.repartitionById(len(splits), "part")
    return parts.mapInArrow(_reader(rows.options, arrow_schema(schema)), schema)


def _table(splits: list[Split]) -> pa.Table:
    """Parts of a plan as rows. They hold no options of the store."""
    pickled = [pickle.dumps(split) for split in splits]
    numbers = pa.array(range(len(splits)), pa.int32())
    return pa.table({"part": numbers, "split": pa.array(pickled, pa.binary())})


def _local(plan: ScanPlan, spark: SparkSession, schema: StructType) -> DataFrame:
    """What is in the memory of this process no worker can see, so the rows themselves go."""
    rows = plan.to_arrow_dataset().to_table().cast(arrow_schema(schema))
    return spark.createDataFrame(rows, schema)


def _reader(options: Mapping[str, Any], schema: pa.Schema) -> Read:
    """What a worker does. It is pickled whole, so it holds no more than it needs."""
    check_sendable(options)

    def arrowlog_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for split in batch.column("split"):
                for rows in read_split(pickle.loads(split.as_py()), options):  # noqa: S301 -- ours
                    yield from fitted(rows, schema)

    return arrowlog_rows


def read_split(split: Split, options: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a part. Spark shows a failure as it stands: nothing secret may be in it."""
    try:
        yield from split.batches(options)
    except ArrowlogError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a store or a damaged file leads to
        first, *others = split.paths
        what = f"one of {first} and {len(others)} other files" if others else first
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0].rstrip(".")
        for secret in secrets_in(options):
            reason = reason.replace(secret, "***") if len(secret) > 3 else reason
        raise ArrowlogError(
            f"Could not read {what} at version {split.version}. {reason}.",
            next="Check that the table's files are there, whole and open to Spark's workers.",
        ) from None


def _cores(spark: SparkSession) -> int:
    """How many tasks run at the same time; 1 on Connect, where a session does not say."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return 1
    return max(1, int(spark.sparkContext.defaultParallelism))


def _target_size(plan: ScanPlan, spark: SparkSession, cores: int) -> int:
    """As Spark cuts its own tables: a share for each core, neither tiny nor over the limit."""
    limit = parse_bytes(spark.conf.get("spark.sql.files.maxPartitionBytes"))
    least = parse_bytes(spark.conf.get("spark.sql.files.openCostInBytes"))
    return min(limit, max(least, plan.size_bytes // cores, 1))
