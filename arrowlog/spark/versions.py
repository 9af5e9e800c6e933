"""One spelling for what the supported versions of Spark spell differently: 3.5, and 4.0 and later.

Everything is decided by what an object offers, not by the number of a version: distributions of
Spark carry changes of later versions.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OLDEST_SPARK = (3, 5)
_HASH_SEED = 42  # of Spark's hash partitioning
_PLACE_COLUMN = "@place"


def check_spark_version(version: str) -> None:
    """Raise `InvalidRequest` for a version of Spark that is too old.

    >>> check_spark_version("4.0.1")
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise InvalidRequest(
            f"arrowlog needs Spark {oldest} or newer; this is {version}.",
            next="Install a newer one with: pip install 'arrowlog[spark]'",
        )


def all_settings(spark: SparkSession) -> dict[str, str]:
    """Return all settings of a session."""
    settings: Any = getattr(spark.conf, "getAll", None)
    if settings is None:  # Spark 3.5
        return {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    return dict(settings() if callable(settings) else settings)


def frame_from_arrow(
    spark: SparkSession, rows: pa.Table, schema: StructType | str | None = None
) -> DataFrame:
    """Return a DataFrame of rows in this process."""
    if _takes_arrow(spark):
        return spark.createDataFrame(rows, schema) if schema else spark.createDataFrame(rows)
    from pyspark.sql.pandas.types import from_arrow_schema

    names = rows.column_names
    columns = [column.to_pylist() for column in rows.columns]
    tuples = list(zip(*columns, strict=True)) if names else [()] * rows.num_rows
    return spark.createDataFrame(tuples, schema or from_arrow_schema(rows.schema))


def _takes_arrow(spark: SparkSession) -> bool:
    """Whether `createDataFrame` takes Arrow tables: `toArrow` came with it, in Spark 4.0."""
    from pyspark.sql import DataFrame

    return hasattr(DataFrame, "toArrow") or type(spark).__module__.startswith("pyspark.sql.connect")


def frame_to_arrow(frame: DataFrame) -> pa.Table:
    """Collect the rows of a DataFrame."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    import pyarrow as pa  # here: statements and types need no pyarrow

    batches = frame._collect_as_arrow()  # noqa: SLF001 -- Spark 3.5
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(frame.schema))


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark accepts rows of a Spark schema, in UTC."""
    from pyspark.sql.pandas import types

    if "timezone" in inspect.signature(types.to_arrow_schema).parameters:
        return types.to_arrow_schema(schema, timezone="UTC")
    # Before 4.2: the same types, and timestamps in UTC in all places.
    return types.to_arrow_schema(schema)


def repartition_by_id(frame: DataFrame, count: int, column: str) -> DataFrame:
    """Shuffle rows so that those with the number n in a column are in partition n of `count`."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, column)
    # Before 4.1: a shuffle by hash, of keys that are chosen so that each falls into its partition.
    keys = ",".join(map(str, keys_by_partition(count)))
    keyed = frame.selectExpr("*", f"array({keys})[`{column}`] AS `{_PLACE_COLUMN}`")
    return keyed.repartition(count, f"`{_PLACE_COLUMN}`").drop(_PLACE_COLUMN)


def rebalance_by(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Have Spark gather rows by quoted names of columns, into partitions of about equal size."""
    if hasattr(frame, "toArrow"):
        return frame.hint("rebalance", *names)
    # Spark 3.5 takes expressions here, and its Python API only names.
    from pyspark.sql import DataFrame, functions

    columns = [functions.col(name)._jc.expr() for name in names]  # noqa: SLF001 -- not public
    hinted = frame._jdf.hint("rebalance", frame._jseq(columns))  # noqa: SLF001 -- as above
    return DataFrame(hinted, frame.sparkSession)


@cache
def keys_by_partition(count: int) -> tuple[int, ...]:
    """Return for each of `count` partitions an integer that Spark's hash puts there.

    >>> [spark_hash(key) % 3 for key in keys_by_partition(3)]
    [0, 1, 2]
    """
    found: dict[int, int] = {}
    key = 0
    while len(found) < count:
        found.setdefault(spark_hash(key) % count, key)
        key += 1
    return tuple(found[n] for n in range(count))


def spark_hash(value: int) -> int:
    """Return the hash of a 32-bit integer by which Spark partitions: Murmur3, signed.

    >>> spark_hash(1), spark_hash(-7)
    (-559580957, -1618159745)
    """
    mask = 0xFFFFFFFF
    word = (value & mask) * 0xCC9E2D51 & mask
    word = ((word << 15 | word >> 17) & mask) * 0x1B873593 & mask
    state = _HASH_SEED ^ word
    state = ((state << 13 | state >> 19) & mask) * 5 + 0xE6546B64 & mask
    state ^= 4  # the length in bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
