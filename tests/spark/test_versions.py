"""What every supported version of Spark does: `dev.py matrix` runs this file with each of them.

What a version lacks is refused in a sentence; nothing falls back silently.
"""

import datetime as dt
import math
import random

import pyarrow as pa
import pyspark
import pytest

import arrowlog
from arrowlog.spark.versions import (
    check_spark_version,
    frame_from_arrow,
    frame_to_arrow,
    repartition_by_id,
    spark_hash,
)

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
from_4_0 = pytest.mark.skipif(VERSION < (4, 0), reason="Spark 3.5 has no data sources in Python")
SCHEMA = pa.schema(
    [
        ("city", pa.string()),
        ("day", pa.date32()),
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
CITIES = ["Kyoto", "", None, "~a=b/c %20"]


def rows(first, count):
    numbers = range(first, first + count)
    return pa.table(
        {
            "city": [CITIES[n % 4] for n in numbers],
            "day": [dt.date(2024, 1, 1 + n % 3) for n in numbers],
            "id": list(numbers),
            "x": [math.nan if n % 10 == 0 else n / 4 for n in numbers],
            "at": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=n) for n in numbers],
        },
        SCHEMA,
    )


def fill(root, commits=4, count=25):
    options = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(root, SCHEMA, partition_columns=["city"], options=options)
    for number in range(commits):
        table.write(rows(number * count, count))
    return table


def same(found, expected):
    """Rows as texts, in any order: NaN equals itself."""
    return sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def in_utc(found):
    return found.set_column(
        found.schema.get_field_index("at"), "at", found["at"].cast(pa.timestamp("us", "UTC"))
    )


@pytest.mark.parametrize("native", [True, False])
def test_read_rows(spark, root, native):
    fill(root)
    frame = arrowlog.spark.read(spark, root, native=native)
    assert same(in_utc(frame_to_arrow(frame.select(*SCHEMA.names))), rows(0, 100))
    few, others = frame.filter("id < 30 AND city = 'Kyoto'"), frame.filter("x > 20")
    assert few.count() == 8
    assert others.count() == 18 + 10  # NaN is greater than every number
    assert few.unionByName(others).count() == 36
    assert frame.join(frame.selectExpr("id AS other"), frame.id == 99 - frame.id).count() == 0
    assert arrowlog.spark.read(spark, root, version=2, native=native).count() == 50
    assert arrowlog.spark.read(spark, root, where="id = 7", native=native).count() == 1


def test_spark_filters_select_files(spark, root):
    fill(root)
    frame = arrowlog.spark.read(spark, root, native=True)
    files = {"id = 7": 4, "city = 'Kyoto'": 4, "city IS NULL": 4, "id < 25": 4}
    for where, count in files.items():
        (plan,) = arrowlog.spark.explain(frame.filter(where))
        assert plan.num_files == count
        read = frame.filter(where).select("_metadata.file_path").distinct().collect()
        assert len(read) <= count


@pytest.mark.parametrize("native", [True, False])
def test_write_rows(spark, root, native):
    frame = frame_from_arrow(spark, rows(0, 60))
    made = arrowlog.spark.write(frame, root, partition_columns=["city", "day"], native=native)
    assert made.version == 1
    table = arrowlog.Table(root)
    assert same(table.to_arrow().select(SCHEMA.names), rows(0, 60))
    assert table.snapshot().num_records == 60
    kyoto = frame.filter("city = 'Kyoto' AND id < 8")
    where = "city = 'Kyoto'"
    arrowlog.spark.write(kyoto, root, "overwrite", replace_where=where, native=native)
    assert table.refresh().num_records == 45 + 2
    again = [arrowlog.spark.write(kyoto, root, txn=("job", 1), native=native) for _ in range(2)]
    assert [result.duplicate for result in again] == [False, True]


def test_plan_to_spark(spark, root):
    plan = fill(root).scan("id >= 90 AND day = '2024-01-01'")
    assert plan.to_spark(spark, native=True).count() == plan.to_arrow_dataset().count_rows() > 0


def test_distributed_replay_and_checkpoint(spark, root):
    table = fill(root, commits=9, count=8)
    table.remove(random.Random(5).sample(table.snapshot().files["path"].to_pylist(), 7))
    expected = table.snapshot()
    found = arrowlog.spark.snapshot(spark, root, buckets=3)
    assert found.files.to_pylist() == expected.files.to_pylist()
    made = arrowlog.spark.checkpoint(spark, root, buckets=3)
    assert made.num_files == expected.num_files
    assert sum(name.endswith(".parquet") for name in made.names) == 3
    assert arrowlog.spark.checkpoint(spark, root, buckets=3).names == ()
    again = arrowlog.Table(root).snapshot()
    assert again.report.checkpoint == made.version
    assert same(again.files, expected.files)


def test_files_are_a_dataframe(spark, root):
    table = fill(root)
    found = arrowlog.spark.files(spark, root)
    assert sorted(row["path"] for row in found.select("path").collect()) == sorted(
        table.snapshot().files["path"].to_pylist()
    )
    planned = arrowlog.spark.plan(spark, root, "id < 25 AND city = 'Kyoto'")
    assert planned.count() == table.scan("id < 25 AND city = 'Kyoto'").num_files == 1


def test_workers_compact_files(spark, root):
    table = fill(root)
    done = table.compact(spark=spark)
    assert done.files_removed == 16
    assert same(table.refresh() and table.to_arrow().select(SCHEMA.names), rows(0, 100))


def test_statements(spark, root):
    fill(root)
    found = arrowlog.spark.sql(spark, f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}'")
    assert found.count() > 0
    assert arrowlog.spark.sql(spark, "SELECT 1 AS one").collect()[0]["one"] == 1


@from_4_0
def test_data_source(either, root, tmp_path):
    fill(root)
    arrowlog.spark.register(either)
    frame = either.read.format("arrowlog").option("where", "id < 30").load(str(root))
    assert same(in_utc(frame_to_arrow(frame)), rows(0, 30))
    assert either.read.format("arrowlog").option("versionAsOf", 1).load(str(root)).count() == 25
    frame.write.format("arrowlog").mode("append").save(str(tmp_path / "copy"))
    assert arrowlog.Table(tmp_path / "copy").snapshot().num_records == 30
    either.sql(f"SELECT path FROM arrowlog_files('{root}')").collect()


@pytest.mark.skipif(VERSION >= (4, 0), reason="later versions have data sources")
def test_data_source_requires_spark_4(spark):
    with pytest.raises(arrowlog.InvalidRequest, match=r"Spark 4\.0"):
        arrowlog.spark.register(spark)


@from_4_0
def test_connect_sessions(sessions, root, tmp_path):
    connect = sessions["connect"]
    fill(root)
    frame = arrowlog.spark.read(connect, root, where="id < 30")
    assert frame.count() == 30
    arrowlog.spark.write(frame, tmp_path / "copy")
    assert arrowlog.Table(tmp_path / "copy").snapshot().num_records == 30
    assert arrowlog.spark.snapshot(connect, root, buckets=2).num_files == 16
    with pytest.raises(arrowlog.InvalidRequest, match="Connect"):
        arrowlog.spark.read(connect, root, native=True)


@from_4_0
def test_streams(spark, root, tmp_path):
    arrowlog.spark.register(spark)
    fill(root)
    stream = spark.readStream.format("arrowlog").load(str(root))
    out = tmp_path / "out"

    def run():
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "progress"))
        if VERSION >= (4, 1):
            query = writer.format("arrowlog").trigger(availableNow=True).start(str(out))
        else:
            query = (
                writer.foreachBatch(
                    lambda batch, number: arrowlog.spark.write(batch, out, txn=("s", number))
                )
                .trigger(availableNow=True)
                .start()
            )
        query.awaitTermination()
        return sorted(arrowlog.Table(out).to_arrow()["id"].to_pylist())

    assert run() == list(range(100))
    assert run() == list(range(100))
    arrowlog.Table(root).write(rows(100, 25))
    assert run() == list(range(125))


@from_4_0
def test_unsupported_stream_options_are_refused(spark, root, tmp_path):
    arrowlog.spark.register(spark)
    fill(root, commits=1)
    limited = spark.readStream.format("arrowlog").option("maxFilesPerTrigger", 1)
    if VERSION < (4, 2):
        with pytest.raises(Exception, match=r"Spark 4\.2"):
            finish(limited.load(str(root)).writeStream.format("noop"), tmp_path / "a")
    if VERSION < (4, 1):
        sink = spark.readStream.format("arrowlog").load(str(root)).writeStream.format("arrowlog")
        with pytest.raises(Exception, match="foreachBatch"):
            finish(sink.option("path", str(tmp_path / "out")), tmp_path / "b")


def finish(writer, progress):
    query = writer.option("checkpointLocation", str(progress)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_hash_shuffle_equals_shuffle_by_number(spark):
    """The shuffle by hash is that of Spark, and puts numbers where a shuffle by number does."""
    values = [*range(-3, 40), 2**31 - 1, -(2**31)]
    frame = frame_from_arrow(spark, pa.table({"n": pa.array(values, pa.int32())}))
    hashes = frame_to_arrow(frame.selectExpr("n", "hash(n) AS h"))
    assert hashes["h"].to_pylist() == [spark_hash(n) for n in hashes["n"].to_pylist()]

    class Older:
        """A DataFrame without the method of later versions."""

        def __init__(self, frame):
            self.selectExpr = frame.selectExpr

    numbers = frame.filter("n BETWEEN 0 AND 16")
    for each in (numbers, Older(numbers)):
        dealt = repartition_by_id(each, 17, "n").selectExpr("n", "spark_partition_id() AS at")
        found = frame_to_arrow(dealt)
        assert found["n"].to_pylist() == found["at"].to_pylist() == list(range(17))
        assert found.column_names == ["n", "at"]


def test_unsupported_spark_versions_are_refused():
    with pytest.raises(arrowlog.InvalidRequest, match=r"3\.5 or newer"):
        check_spark_version("3.4.2")
    check_spark_version("3.5.0")
    check_spark_version("4.3.0.dev1")
    check_spark_version("10.0")
