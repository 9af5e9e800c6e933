"""The rows of a scan plan as a Spark DataFrame, read by Spark's own reader or by Python workers.

Where Spark's own reader cannot be used, each split of the plan becomes a row of a small DataFrame,
and a Python worker reads its files with the same code as every other engine of arrowlog. The rows
are therefore the same on classic sessions and on Spark Connect, in any store. Storage options
travel in the function's closure, which no plan shows.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.config import parse_bytes
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.predicate import TRUE, emit_spark
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.index import PinnedTable, format_sizes
from arrowlog.spark.local import (
    check_picklable,
    is_connect,
    redact_error,
    require_pyspark,
    sentence_first,
)
from arrowlog.spark.native import find_read_obstacle, log_once, read_natively, to_hadoop_uri
from arrowlog.spark.optimizer import SIZES_KEY, install_optimizer_rule
from arrowlog.spark.types import cast_batch, to_spark_arrow_schema, to_spark_schema
from arrowlog.spark.versions import frame_from_arrow, repartition_by_id
from arrowlog.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrowlog.scan import RowReader, ScanPlan, Split

    BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def plan_to_dataframe(
    plan: ScanPlan, rows: RowReader, spark: SparkSession, *, native: bool | None = None
) -> DataFrame:
    """Return the rows of a plan that match its predicate, at the plan's version.

    Data files are read when Spark executes the DataFrame. `native=True` requires Spark's own
    Parquet reader and raises `InvalidRequest` with the reason where it cannot be used;
    `native=False` requires Python workers. By default Spark's reader is used wherever possible.
    """
    require_pyspark()
    schema = to_spark_schema(plan.snapshot.metadata.schema_string)
    rows.check()
    if native is False:
        return _by_workers(plan, rows, spark, schema)
    store = open_store(plan.root, rows.options)
    place = PinnedTable(plan.snapshot, store, to_hadoop_uri(store.root), rows.options)
    why = find_read_obstacle(place, spark, schema)
    condition = None
    if why is None:
        condition = emit_spark(plan.predicate.tree, plan.snapshot.columns.schema)
        if condition is None:
            why = f"Spark has no condition with exactly the meaning of {plan.predicate}"
    if why is None:
        log_once("Rows are read by Spark's own Parquet reader", None)
        install_optimizer_rule(spark)
        all_rows = read_natively(place, spark, schema)
        return all_rows if plan.predicate.tree == TRUE else all_rows.filter(condition)
    if native:
        raise InvalidRequest(
            f"The table cannot be read by Spark's own Parquet reader: {why}.",
            next="Omit `native` to have Python workers read the rows.",
        )
    log_once("Rows are read by Python workers", why)
    return _by_workers(plan, rows, spark, schema)


def _by_workers(
    plan: ScanPlan, rows: RowReader, spark: SparkSession, schema: StructType
) -> DataFrame:
    if plan.root.startswith("memory:"):
        return _by_driver(plan, spark, schema)
    require_on_workers(spark)
    cores = _cores(spark)
    splits = plan.splits(_target_size(plan, spark, cores))
    install_optimizer_rule(spark)
    tasks = frame_from_arrow(spark, _split_rows(splits), _splits_schema(plan))
    if len(splits) > cores:  # with fewer rows, createDataFrame already makes one task per row
        tasks = repartition_by_id(tasks, len(splits), "part")
    return tasks.mapInArrow(_reader(rows.options, to_spark_arrow_schema(schema)), schema)


def _splits_schema(plan: ScanPlan) -> StructType:
    """Return the schema of the splits, with the size of the plan for Spark's optimizer."""
    from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

    sizes = {SIZES_KEY: format_sizes(plan, with_rows=False)}
    return StructType(
        [StructField("part", IntegerType()), StructField("split", BinaryType(), True, sizes)]
    )


def _split_rows(splits: list[Split]) -> pa.Table:
    """Pickle splits, one per row. They contain no storage options, hence no credentials."""
    pickled = [pickle.dumps(split) for split in splits]
    numbers = pa.array(range(len(splits)), pa.int32())
    return pa.table({"part": numbers, "split": pa.array(pickled, pa.binary())})


def _by_driver(plan: ScanPlan, spark: SparkSession, schema: StructType) -> DataFrame:
    """Read the rows in this process: workers have no access to its in-memory store."""
    rows = plan.to_arrow_dataset().to_table().cast(to_spark_arrow_schema(schema))
    return frame_from_arrow(spark, rows, schema)


def _reader(options: Mapping[str, Any], schema: pa.Schema) -> BatchFunction:
    """Return the function that workers run. Its closure is pickled, so it is kept small."""
    check_picklable(options)

    def arrowlog_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for split in batch.column("split"):
                with sentence_first():
                    for rows in read_split(pickle.loads(split.as_py()), options):  # noqa: S301 -- ours
                        yield from cast_batch(rows, schema)

    return arrowlog_rows


def read_split(split: Split, options: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split. Raises `ArrowlogError` naming the files if they cannot be read.

    Spark shows an error of a worker verbatim, so credentials are removed from it.
    """
    try:
        yield from split.batches(options)
    except ArrowlogError:
        raise
    except Exception as error:  # noqa: BLE001 -- stores and damaged files raise any type
        first, *others = split.paths
        files = f"one of {first} and {len(others)} other files" if others else first
        reason = redact_error(error, options).rstrip(".")
        raise ArrowlogError(
            f"Could not read {files} at version {split.version}. {reason}.",
            next="Check that the files exist, are complete, and that Spark's workers can read"
            " them.",
        ) from None


def _cores(spark: SparkSession) -> int:
    """Return how many tasks run concurrently; 1 on Spark Connect, where it is unknown."""
    if is_connect(spark):
        return 1
    return max(1, int(spark.sparkContext.defaultParallelism))


def _target_size(plan: ScanPlan, spark: SparkSession, cores: int) -> int:
    """Return the size of a split in bytes, by the rule that Spark applies to its own scans.

    An equal share per core, at least `openCostInBytes` and at most `maxPartitionBytes`.
    """
    limit = parse_bytes(spark.conf.get("spark.sql.files.maxPartitionBytes"))
    open_cost = parse_bytes(spark.conf.get("spark.sql.files.openCostInBytes"))
    return min(limit, max(open_cost, plan.size_bytes // cores, 1))
