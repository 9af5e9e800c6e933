"""A table on Spark's own Parquet reader, with our index in front of it; or why that cannot be.

The index and what it is put into are internals of Spark. They are looked at before they are
trusted: where they differ from what is known here, rows are read through Python instead.
"""

from __future__ import annotations

import json
import logging
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.log.names import LOG
from arrowlog.spark.bridge import bridge
from arrowlog.spark.index import Listing, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOGGER = logging.getLogger("arrowlog.spark")
_OURS = ("file://", "local://")
_S3 = ("s3://", "s3a://", "s3n://")
_FLOATS = (pa.types.is_floating, pa.types.is_float16)
# Days and moments are read as they stand in a file, in the calendar of today.
_OPTIONS = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
_LOCK = Lock()
_FOUND: dict[int, tuple[Any, str | None]] = {}  # by gateway: what the look at Spark gave
_TOLD: set[str] = set()


def frame_of(place: Place, spark: SparkSession, schema: StructType) -> DataFrame:
    """Every row of a version. Spark's filters are pruned by when Spark plans."""
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StringType, StructField, StructType

    jvm, session = spark._jvm, spark._jsparkSession  # noqa: SLF001 -- there is no public way
    ensure_callback_server_started(spark.sparkContext._gateway)  # noqa: SLF001 -- as above
    known = {item.name: item for item in schema}
    names = place.snapshot.partition_columns
    parts = [known.get(name, StructField(name, StringType())) for name in names]
    partition_schema = _java(jvm, StructType(parts))
    index = Listing(place, spark, partition_schema).index()
    sources = jvm.org.apache.spark.sql.execution.datasources
    relation = sources.HadoopFsRelation(
        index,
        partition_schema,
        _java(jvm, schema),
        jvm.scala.Option.empty(),
        _format(place.snapshot.columns.schema, spark),
        jvm.PythonUtils.toScalaMap(_OPTIONS),
        session,
    )
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def _java(jvm: Any, schema: StructType) -> Any:
    return jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(schema.jsonValue()))


def _format(schema: pa.Schema, spark: SparkSession) -> Any:
    """Spark's Parquet format; it pushes no filter on a column with floats into the Parquet reader.

    Parquet's filters on row groups and pages (statistics, column index, dictionary, bloom filter)
    compare floats by Java's total order or by their bits: -0.0 is not 0.0 there, and NaN is in no
    maximum. Spark's comparisons differ, and rows would be lost. Spark applies every filter to the
    rows again, files are pruned by the log, and filters on other columns are pushed as usual.
    """
    floats = [item.name for item in schema if _has_floats(item.type)]
    if floats:
        return bridge(spark).parquet_format(floats)
    sources = spark._jvm.org.apache.spark.sql.execution.datasources  # noqa: SLF001 -- as above
    return sources.parquet.ParquetFileFormat()


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return any(test(kind) for test in _FLOATS)


def obstacle(place: Place, spark: SparkSession, schema: StructType) -> str | None:
    """Why the native reader cannot be used here; None if it can."""
    return (
        unlike(spark)
        or _unsupported(place, spark, schema)
        or _out_of_reach(place, spark)
        or _odd_paths(place)
    )


def unlike(spark: SparkSession) -> str | None:
    """Why the Spark of a session is not the one that is known here; None if it is."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return "a Spark Connect session has no planner that could be reached from here"
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
    with _LOCK:
        found = _FOUND.get(id(gateway))
        if found is None or found[0] is not gateway:
            found = _FOUND[id(gateway)] = (gateway, _look(spark))
    return found[1]


def _look(spark: SparkSession) -> str | None:
    """Try everything on an index of nothing."""
    try:
        rows = spark.createDataFrame(pa.table({"n": pa.array([1, None, 2], pa.int32())}), "n int")
        query = rows.filter("n > 1")._jdf.queryExecution()  # noqa: SLF001 -- as above
        logical = query.analyzed()
        data = rows._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001 -- as above
        test = bridge(spark)
        if test.passing(logical.condition(), logical.child().output(), data) != b"\0\0\1":
            return "this Spark works filters out differently"
        made = test.directories(data, [(0, [("file:/a b%20c", 7, 8)])]).get(0)
        status = made.files().apply(0)
        if (status.getPath().toString(), status.getLen()) != ("file:/a b%20c", 7):
            return "this Spark has other file listings"
        if not _keeps_floats_out(spark):
            return "this Spark hands filters to its Parquet reader in another form"
    except Exception as error:  # noqa: BLE001 -- whatever is different, rows can be read without
        reason = str(error).split("\n", 1)[0]
        return f"this Spark is not as it is known here ({type(error).__name__}: {reason})"
    return None


def _keeps_floats_out(spark: SparkSession) -> bool:
    """Whether filters that mention a float column are recognized, also inside of a struct."""
    jvm = spark._jvm  # noqa: SLF001 -- as above
    sources, filters = jvm.org.apache.spark.sql.sources, jvm.java.util.ArrayList()
    for name in ("n", "F", "s.f", "`s.x`", "`a b`.f"):
        filters.add(sources.GreaterThan(name, 1))
    filters.add(sources.Or(sources.IsNull("n"), sources.LessThan("f", 1.5)))
    test = bridge(spark)
    form = test.parquet_format(["f", "s", "a b"])
    return test.pushed_count(form, jvm.PythonUtils.toSeq(filters).toSeq()) == 2


def _unsupported(place: Place, spark: SparkSession, schema: StructType) -> str | None:
    jvm = spark._jvm  # noqa: SLF001 -- as above
    parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
    for item, kind in zip(schema.fields, _java(jvm, schema).fields(), strict=True):
        if not parquet.supportDataType(kind.dataType()):
            return f"Spark's Parquet reader does not take the type of column {item.name!r}"
    names = [item.name.lower() for item in schema]
    if len(set(names)) < len(names) and spark.conf.get("spark.sql.caseSensitive") != "true":
        return "columns differ in upper and lower case alone"
    unsaid = set(place.snapshot.partition_columns) - set(schema.names)
    return f"partition column {min(unsaid)!r} is not in the schema" if unsaid else None


def hadoop_root(root: str) -> str:
    """A table's address as Hadoop spells it, nothing escaped.

    >>> hadoop_root("/tmp/a b"), hadoop_root("s3://bucket/t")
    ('file:/tmp/a b', 's3a://bucket/t')
    """
    for scheme in _OURS:
        root = root.removeprefix(scheme)
    for scheme in _S3:
        if root.startswith(scheme):
            return "s3a://" + root.removeprefix(scheme)
    return root if "://" in root else f"file:{root}"


def _out_of_reach(place: Place, spark: SparkSession) -> str | None:
    """Whether Spark sees the table's log where we see it."""
    if place.root.startswith("memory:"):
        return "what is in the memory of this process Spark cannot reach"
    scheme = place.root.partition(":")[0]
    there = reachable(f"{place.root}/{LOG}", spark)
    return None if there else f"this Spark has no working connector for {scheme}://"


def reachable(path: str, spark: SparkSession) -> bool:
    """Whether Spark's own readers and writers get at a store; every Spark has disks."""
    if path.startswith("file:"):
        return True
    try:
        found = spark._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001 -- as above
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- as above
        there = found.getFileSystem(conf).exists(found)
    except Exception:  # noqa: BLE001 -- no connector, no access: all the same here
        return False
    return bool(there)


def _odd_paths(place: Place) -> str | None:
    """Hadoop has no files with a colon on a disk, and tidies up what stores of objects do not."""
    import pyarrow.compute as pc

    odd = ":" if place.root.startswith("file:") else r"//|(^|/)\.{1,2}(/|$)|^/"
    found = pc.match_substring_regex(place.snapshot.state.column("key"), odd)
    return "the names of some files are none for Hadoop" if pc.any(found).as_py() else None


def tell(way: str, why: str | None) -> None:
    """Say which way rows are read, and why not natively; each once."""
    text = f"{way}: {why}" if why else way
    with _LOCK:
        if text in _TOLD:
            return
        _TOLD.add(text)
    LOGGER.log(logging.WARNING if why else logging.INFO, "%s.", text)
