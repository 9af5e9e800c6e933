"""Read a table with Spark's own Parquet reader through the index, or say why that is impossible.

The index and the relation around it are internals of Spark. They are probed once per JVM before
they are used. If they behave differently from the Spark versions this was written for, Python
workers read the rows instead.
"""

from __future__ import annotations

import json
import logging
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.formats.delta import mapping_mode
from arrowlog.scan import mask_splits
from arrowlog.spark.bridge import jvm_bridge
from arrowlog.spark.index import PinnedTable, PythonFileIndex
from arrowlog.spark.local import is_connect
from arrowlog.spark.versions import frame_from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOGGER = logging.getLogger("arrowlog.spark")
_LOCAL_SCHEMES = ("file://", "local://")
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")
_FLOAT_CHECKS = (pa.types.is_floating, pa.types.is_float16)
# Read dates and timestamps as stored, in the proleptic Gregorian calendar, without rebasing.
_READ_OPTIONS = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
_LOCK = Lock()
_PROBE_RESULTS: dict[int, tuple[Any, str | None]] = {}  # by id of the gateway, one per JVM
_LOGGED: set[str] = set()


def read_natively(place: PinnedTable, spark: SparkSession, schema: StructType) -> DataFrame:
    """Return all rows of a version as a DataFrame; Spark's filters prune files at planning time."""
    from pyspark.sql import DataFrame

    relation = native_relation(place, spark, schema)
    session = spark._jsparkSession  # noqa: SLF001 -- pyspark has no public access to the JVM
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def native_relation(place: PinnedTable, spark: SparkSession, schema: StructType) -> Any:
    """Return the Java `HadoopFsRelation` of a version, whose files our index lists."""
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql.types import StringType, StructField, StructType

    jvm, session = spark._jvm, spark._jsparkSession  # noqa: SLF001 -- pyspark has no public access
    ensure_callback_server_started(spark.sparkContext._gateway)  # noqa: SLF001 -- as above
    fields = {item.name: item for item in schema}
    names = place.snapshot.partition_columns
    partition_fields = [fields.get(name, StructField(name, StringType())) for name in names]
    partition_schema = _java_schema(jvm, StructType(partition_fields))
    index = PythonFileIndex(place, spark, partition_schema).index()
    sources = jvm.org.apache.spark.sql.execution.datasources
    return sources.HadoopFsRelation(
        index,
        partition_schema,
        _java_schema(jvm, schema),
        jvm.scala.Option.empty(),
        _file_format(place.snapshot.columns.schema, spark),
        jvm.PythonUtils.toScalaMap(_READ_OPTIONS),
        session,
    )


def _java_schema(jvm: Any, schema: StructType) -> Any:
    return jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(schema.jsonValue()))


def _file_format(schema: pa.Schema, spark: SparkSession) -> Any:
    """Return Spark's Parquet format, without pushdown of filters on columns that contain floats.

    Parquet's row group and page filters (statistics, column index, dictionary, bloom filter)
    compare floats by Java's total order or by their bits: -0.0 differs from 0.0, and maxima do not
    account for NaN. Spark's comparisons differ, so pushed filters would lose rows. Nothing else
    changes: Spark applies every filter to the rows again, the log prunes files, and filters on
    other columns are pushed.
    """
    floats = [item.name for item in schema if _contains_floats(item.type)]
    if floats:
        return jvm_bridge(spark).parquet_format(floats)
    sources = spark._jvm.org.apache.spark.sql.execution.datasources  # noqa: SLF001 -- as above
    return sources.parquet.ParquetFileFormat()


def _contains_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_contains_floats(kind.field(n).type) for n in range(kind.num_fields))
    return any(check(kind) for check in _FLOAT_CHECKS)


def find_read_obstacle(place: PinnedTable, spark: SparkSession, schema: StructType) -> str | None:
    """Return why Spark's own reader cannot read this table; None if it can."""
    return (
        find_unsupported_internals(spark)
        or _unsupported_schema(place, spark, schema)
        or _unreachable(place, spark)
        or _unsupported_files(place)
        or _unsupported_paths(place)
    )


def find_unsupported_internals(spark: SparkSession) -> str | None:
    """Return why the internals of a session cannot be used; None if they can.

    Each JVM is probed once.
    """
    if is_connect(spark):
        return "a Spark Connect session gives no access to the planner"
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
    with _LOCK:
        result = _PROBE_RESULTS.get(id(gateway))
        # The id of a closed gateway may be reused, so the gateway itself is compared.
        if result is None or result[0] is not gateway:
            result = _PROBE_RESULTS[id(gateway)] = (gateway, _probe(spark))
    return result[1]


def _probe(spark: SparkSession) -> str | None:
    """Call every internal of Spark that the index uses, on a DataFrame of three rows."""
    try:
        rows = frame_from_arrow(spark, pa.table({"n": pa.array([1, None, 2], pa.int32())}), "n int")
        query = rows.filter("n > 1")._jdf.queryExecution()  # noqa: SLF001 -- as above
        logical = query.analyzed()
        data = rows._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001 -- as above
        java = jvm_bridge(spark)
        if java.passing(logical.condition(), logical.child().output(), data) != b"\0\0\1":
            return "this version of Spark evaluates filters differently"
        directory = java.directories(data, [(0, [("file:/a b%20c", 7, 8)])]).get(0)
        status = directory.files().apply(0)
        if (status.getPath().toString(), status.getLen()) != ("file:/a b%20c", 7):
            return "this version of Spark represents file listings differently"
        if not _withholds_float_filters(spark):
            return "this version of Spark passes filters to its Parquet reader differently"
    except Exception as error:  # noqa: BLE001 -- whatever differs, workers can still read the rows
        reason = str(error).split("\n", 1)[0]
        return (
            "the internals of this version of Spark are not supported"
            f" ({type(error).__name__}: {reason})"
        )
    return None


def _withholds_float_filters(spark: SparkSession) -> bool:
    """Check that filters on float columns are recognized, including those inside structs."""
    jvm = spark._jvm  # noqa: SLF001 -- as above
    sources, filters = jvm.org.apache.spark.sql.sources, jvm.java.util.ArrayList()
    for name in ("n", "F", "s.f", "`s.x`", "`a b`.f"):
        filters.add(sources.GreaterThan(name, 1))
    filters.add(sources.Or(sources.IsNull("n"), sources.LessThan("f", 1.5)))
    java = jvm_bridge(spark)
    parquet_format = java.parquet_format(["f", "s", "a b"])
    pushed = java.pushed_count(parquet_format, jvm.PythonUtils.toSeq(filters).toSeq())
    return pushed == 2  # those on `n` and on the column that is called "s.x"


def _unsupported_schema(place: PinnedTable, spark: SparkSession, schema: StructType) -> str | None:
    jvm = spark._jvm  # noqa: SLF001 -- as above
    parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
    for item, kind in zip(schema.fields, _java_schema(jvm, schema).fields(), strict=True):
        if not parquet.supportDataType(kind.dataType()):
            return f"Spark's Parquet reader does not support the type of column {item.name!r}"
    names = [item.name.lower() for item in schema]
    if len(set(names)) < len(names) and spark.conf.get("spark.sql.caseSensitive") != "true":
        return "the names of some columns differ only in case"
    undeclared = set(place.snapshot.partition_columns) - set(schema.names)
    return f"partition column {min(undeclared)!r} is not in the schema" if undeclared else None


def to_hadoop_uri(root: str) -> str:
    """Convert the URI of a table to Hadoop's spelling, not percent-encoded.

    >>> to_hadoop_uri("/tmp/a b"), to_hadoop_uri("s3://bucket/t")
    ('file:/tmp/a b', 's3a://bucket/t')
    """
    for scheme in _LOCAL_SCHEMES:
        root = root.removeprefix(scheme)
    for scheme in _S3_SCHEMES:
        if root.startswith(scheme):
            return "s3a://" + root.removeprefix(scheme)
    return root if "://" in root else f"file:{root}"


def _unreachable(place: PinnedTable, spark: SparkSession) -> str | None:
    if place.root.startswith("memory:"):
        return "Spark has no access to an in-memory store of this process"
    scheme = place.root.partition(":")[0]
    folder = place.snapshot.state.format.log_folder
    exists = is_reachable_by_spark(f"{place.root}/{folder}", spark)
    return None if exists else f"this Spark has no working connector for {scheme}://"


def is_reachable_by_spark(path: str, spark: SparkSession, *, missing_ok: bool = False) -> bool:
    """Check that Spark's file system connector finds a path. Local paths are taken for granted.

    With `missing_ok`, an answer is enough: "there is nothing" comes from the bucket, too. Without
    a connector, a bucket or access, there is an error instead.
    """
    if path.startswith("file:"):
        return True
    try:
        hadoop_path = spark._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001 -- as above
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- as above
        exists = hadoop_path.getFileSystem(conf).exists(hadoop_path)
    except Exception:  # noqa: BLE001 -- no connector or no access: the consequence is the same
        return False
    return missing_ok or bool(exists)


def _unsupported_files(place: PinnedTable) -> str | None:
    """Detect data files that are not Parquet, or whose rows are not simply those of the table."""
    snapshot = place.snapshot
    if not snapshot.num_files:
        return None
    if mapping_mode(snapshot.schema) != "none":
        return "its columns have other names in the data files"
    if "delta.typeChanges" in snapshot.metadata.schema_string:
        return "columns have had other types"
    keys = snapshot.state.column("key")
    if snapshot.state.format.paths_of(keys) is not keys:
        return "rows of some files are deleted by deletion vectors"
    return "some of its files are splits" if pc.any(mask_splits(keys)).as_py() else None


def _unsupported_paths(place: PinnedTable) -> str | None:
    """Detect file names that Hadoop cannot address.

    Hadoop rejects colons in local paths, and normalizes `//`, `.` and `..`, which object stores
    keep.
    """
    pattern = ":" if place.root.startswith("file:") else r"//|(^|/)\.{1,2}(/|$)|^/"
    matches = pc.match_substring_regex(place.snapshot.state.column("key"), pattern)
    return "Hadoop cannot address the names of some files" if pc.any(matches).as_py() else None


def log_once(way: str, why: str | None) -> None:
    """Log how rows are read or written: a warning if there is a reason `why` it is not native.

    Each message is logged once per process.
    """
    text = f"{way}: {why}" if why else way
    with _LOCK:
        if text in _LOGGED:
            return
        _LOGGED.add(text)
    LOGGER.log(logging.WARNING if why else logging.INFO, "%s.", text)
