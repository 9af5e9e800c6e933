"""DataFrames into tables: exact statistics, one commit, and nothing where something failed."""

import datetime as dt
import math
import os
import signal
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from support.store_places import S3, Memory

import arrowlog
from arrowlog.snapshot.stats_truncation import StatsTruncation
from arrowlog.spark.target import WriteDestination
from arrowlog.transaction.parquet_files import compute_stats

WAYS = [True, False]


def rows_of(root, **where):
    return arrowlog.Table(root).scan(**where).to_arrow_dataset().to_table()


def ids(root):
    return sorted(rows_of(root)["id"].to_pylist())


def data_files(root):
    return sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(root)
        for name in names
        if name.endswith(".parquet")
    )


@pytest.mark.parametrize("native", WAYS)
def test_create_append_and_overwrite(spark, root, native):
    frame = spark.range(10).selectExpr("id", "id % 2 AS half", "cast(id AS string) AS name")
    first = arrowlog.spark.write(frame, root, partition_columns=["half"], native=native)
    assert first.version == 1
    table = arrowlog.Table(root)
    assert table.snapshot().partition_columns == ("half",)
    assert table.snapshot().num_records == 10
    arrowlog.spark.write(frame.filter("id < 3"), root, native=native)
    assert ids(root) == sorted([*range(10), 0, 1, 2])
    new = frame.filter("half = 1 AND id > 6")
    arrowlog.spark.write(new, root, "overwrite", replace_where="half = 1", native=native)
    assert ids(root) == [0, 0, 2, 2, 4, 6, 7, 8, 9]
    with pytest.raises(arrowlog.InvalidRequest):
        arrowlog.spark.write(frame, root, "overwrite", replace_where="half = 1", native=native)
    arrowlog.spark.write(frame.filter("id = 5"), root, "overwrite", native=native)
    assert ids(root) == [5]
    assert arrowlog.Table(root).version == 4
    assert arrowlog.spark.write(frame.filter("id < 0"), root, native=native) is None
    live = {f"{root}/{path}" for path in rows_live(root)}
    assert live <= set(data_files(root))


def rows_live(root):
    return [
        path
        for version in range(arrowlog.Table(root).version + 1)
        for path in arrowlog.Table(root).snapshot(version).files["path"].to_pylist()
    ]


EVERYTHING = (
    "id, cast(id AS int) i, cast(id AS short) sh, cast(id AS byte) b, id / 4 AS d,"
    " cast(id / 4 AS float) f, cast(id / 4 AS decimal(9,3)) dec,"
    " cast(id * 1000000007 AS decimal(30,3)) wide, id % 2 = 0 AS yes,"
    " date_add(date'1960-01-01', cast(id AS int)) day,"
    " timestamp_micros(id * 123456789) AS ts,"
    " cast(concat('2024-01-0', id % 9 + 1, ' 10:11:12.345678') AS timestamp_ntz) wall,"
    " if(id % 3 = 0, NULL, concat('n', id)) AS name, array(id) AS list,"
    " if(id = 7, double('NaN'), cast(id AS double)) AS odd, cast('ab' AS binary) AS bin"
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_statistics_equal_the_rows(spark, root, zone):
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.range(40, numPartitions=2).selectExpr(*_columns(EVERYTHING))
        arrowlog.spark.write(frame, root, native=True)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = arrowlog.Table(root)
    snapshot = table.snapshot()
    assert snapshot.num_files == 2
    bounded = set()
    for add in snapshot.state.adds.to_pylist():
        data = pq.read_table(root / add["path"]).cast(snapshot.schema)
        wanted = compute_stats(data, data.column_names, StatsTruncation())
        (file,) = [row for row in snapshot.files.to_pylist() if row["path"] == add["path"]]
        texts = arrowlog.snapshot.typed_values.to_log_text
        for name in data.column_names:
            kind = snapshot.schema.field(name).type
            if f"min.{name}" not in file:
                continue
            low, high = file[f"min.{name}"], file[f"max.{name}"]
            assert texts(low, kind) == wanted.low.get(name), name
            assert texts(high, kind) == wanted.high.get(name), name
            assert file[f"null_count.{name}"] == wanted.nulls[name], name
            bounded |= {name} if high is not None else set()
        assert file["num_records"] == wanted.num_records
    assert {"id", "d", "f", "dec", "day", "ts", "wall", "name", "odd"} <= bounded
    files = snapshot.files.to_pylist()
    assert [math.isfinite(file["max.odd"] or math.nan) for file in files].count(False) == 1


def _columns(text):
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    return [*found, text[start:]]


VALUES = [
    ("p", "string", ["", None, "~", "~~x", "a/b=c%20d", " lead", "ünï😀", "_x", ".y", "a:b*?[]{}"]),
    ("p", "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    ("p", "int", [-5, 0, None]),
    ("p", "boolean", [True, False, None]),
    ("p", "decimal(20,4)", [Decimal("-1.5000"), Decimal("0.0001"), None]),
    ("p", "double", [-0.5, 1e300, 1e-7, None]),
    ("p", "timestamp", [dt.datetime(2024, 11, 3, h, 30, tzinfo=dt.UTC) for h in (5, 6)] + [None]),
    ("p", "timestamp_ntz", [dt.datetime.fromisoformat("2024-03-10T02:30:00.000005"), None]),
]


@pytest.mark.parametrize(("name", "kind", "values"), VALUES, ids=[item[1] for item in VALUES])
def test_partition_values_round_trip(spark, root, name, kind, values):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = list(enumerate(values))
        frame = spark.createDataFrame(rows, f"id int, {name} {kind}")
        arrowlog.spark.write(frame, root, partition_columns=[name], native=True)
        assert arrowlog.Table(root).snapshot().num_files == len(values)
        found = {row["id"]: row[name] for row in rows_of(root).to_pylist()}
        assert found == dict(rows)
        again = arrowlog.spark.read(spark, root).toArrow().to_pylist()
        assert {row["id"]: row[name] for row in again} == dict(rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("value", ["__HIVE_DEFAULT_PARTITION__", math.nan, math.inf])
def test_unrepresentable_partition_values_are_refused(spark, root, value):
    frame = spark.createDataFrame([(1, 2.0 if isinstance(value, str) else 1.0)], "id int, x double")
    frame = frame.withColumn("p", F.lit(value))
    for native in WAYS:
        with pytest.raises(Exception, match="Partition column 'p' has"):
            arrowlog.spark.write(frame, root, partition_columns=["p"], native=native)
        assert not data_files(root)
        with pytest.raises(arrowlog.TableNotFound):
            arrowlog.Table(root)


@pytest.mark.parametrize("native", WAYS)
def test_incompatible_rows_are_refused_before_a_file_is_written(spark, root, native):
    arrowlog.spark.write(spark.range(3).selectExpr("id", "'a' AS name"), root, native=native)
    before = data_files(root)
    wrong = {
        "'extra'": spark.range(1).selectExpr("id", "1 AS extra"),
        "bigint": spark.range(1).selectExpr("cast(id AS string) AS id"),
        "table has string": spark.range(1).selectExpr("1 AS name"),
        "twice": spark.range(1).selectExpr("id", "id"),
    }
    for match, frame in wrong.items():
        with pytest.raises(arrowlog.InvalidRequest, match=match):
            arrowlog.spark.write(frame, root, native=native)
    with pytest.raises(arrowlog.InvalidRequest, match="partitioned by"):
        arrowlog.spark.write(spark.range(1), root, partition_columns=["id"], native=native)
    with pytest.raises(arrowlog.InvalidRequest, match="mode"):
        arrowlog.spark.write(spark.range(1), root, "upsert", native=native)
    assert data_files(root) == before
    narrow = spark.range(5, 6).selectExpr("cast(id AS int) AS id")
    arrowlog.spark.write(narrow, root, native=native)
    assert ids(root) == [0, 1, 2, 5]


@pytest.mark.parametrize("native", WAYS)
def test_nulls_in_required_columns_are_refused(spark, root, native):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    arrowlog.Table.create(root, schema)
    with pytest.raises(arrowlog.InvalidRequest, match="no column 'id'"):
        arrowlog.spark.write(spark.range(1).selectExpr("'a' AS name"), root, native=native)
    nulls = spark.range(3).selectExpr("if(id = 1, NULL, id) AS id")
    with pytest.raises(Exception, match="Column 'id' of the rows has nulls"):
        arrowlog.spark.write(nulls, root, native=native)
    assert arrowlog.Table(root).version == 0
    assert not native or not data_files(root)


@pytest.mark.parametrize("native", WAYS)
def test_failed_job_leaves_the_table_unchanged(spark, root, native):
    arrowlog.spark.write(spark.range(3), root, native=native)
    bad = spark.range(100, numPartitions=4).selectExpr(
        "if(id = 99, raise_error('broken'), id) AS id"
    )
    with pytest.raises(PySparkException, match="broken"):
        arrowlog.spark.write(bad, root, native=native)
    assert ids(root) == [0, 1, 2]
    assert arrowlog.Table(root).version == 1
    if native:
        assert len(data_files(root)) == len(rows_live(root))


@pytest.mark.parametrize("native", WAYS)
def test_conflict_raises_commit_conflict_and_deletes_its_files(spark, root, native, monkeypatch):
    frame = spark.range(4).selectExpr("id", "id % 2 AS half")
    arrowlog.spark.write(frame, root, partition_columns=["half"], native=native)
    commit = WriteDestination.commit

    def late(self, *args, **more):
        rival = arrowlog.Table(root)
        rival.write(pa.table({"id": [9], "half": [1]}))
        return commit(self, *args, **more)

    monkeypatch.setattr(WriteDestination, "commit", late)
    before = len(data_files(root))
    new = frame.filter("half = 1")
    with pytest.raises(arrowlog.ConcurrentAppend):
        arrowlog.spark.write(new, root, "overwrite", replace_where="half = 1", native=native)
    assert len(data_files(root)) == before + 1
    assert arrowlog.spark.write(new, root, native=native).version == 4
    assert ids(root) == [0, 1, 1, 2, 3, 3, 9, 9]


@pytest.mark.parametrize("native", WAYS)
def test_application_transaction_commits_once(spark, root, native):
    arrowlog.spark.write(spark.range(3), root, txn=("job", 1), native=native)
    again = arrowlog.spark.write(spark.range(3), root, txn=("job", 1), native=native)
    assert again.duplicate
    assert ids(root) == [0, 1, 2]
    assert len(data_files(root)) == arrowlog.Table(root).snapshot().num_files


def test_session_settings_do_not_change_written_files(spark, root):
    name = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(name, "INT96")
    try:
        arrowlog.spark.write(spark.sql("SELECT timestamp'1500-01-01 00:00:00' AS ts"), root)
        assert spark.conf.get(name) == "INT96"
    finally:
        spark.conf.unset(name)
    moment = dt.datetime(1500, 1, 1, tzinfo=dt.UTC)
    assert rows_of(root)["ts"].to_pylist() == [moment]
    assert arrowlog.Table(root).snapshot().files["max.ts"].to_pylist() == [moment]


def test_relative_paths_are_resolved_in_the_driver(spark, tmp_path, monkeypatch):
    """Workers were started elsewhere, and would take a relative one for another."""
    monkeypatch.chdir(tmp_path)
    for native in WAYS:
        arrowlog.spark.write(spark.range(3), "inner/table", native=native)
    assert ids(tmp_path / "inner/table") == [0, 0, 1, 1, 2, 2]
    assert arrowlog.spark.read(spark, "inner/table", native=False).count() == 6
    assert arrowlog.spark.snapshot(spark, "inner/table", buckets=2).num_files > 0


def test_few_files_per_partition(spark, root):
    frame = spark.range(1000, numPartitions=8).selectExpr("id", "id % 3 AS p")
    arrowlog.spark.write(frame, root, partition_columns=["p"])
    assert arrowlog.Table(root).snapshot().num_files == 3


def test_workers_write_to_memory_stores_and_from_connect(sessions, root):
    place = Memory()
    arrowlog.spark.write(sessions["classic"].range(5), place.uri)
    assert ids(place.uri) == [0, 1, 2, 3, 4]
    frame = sessions["connect"].range(5).selectExpr("id", "id % 2 AS p")
    arrowlog.spark.write(frame, root, partition_columns=["p"])
    assert ids(root) == [0, 1, 2, 3, 4]


def test_s3_is_written_and_read_without_a_connector(spark, moto, capfd):
    server, client = moto
    place = S3(server, accelerate=True, writer=client)
    options = dict(server.options)
    frame = spark.range(20).selectExpr("id", "id % 2 AS p")
    arrowlog.spark.write(frame, place.uri, partition_columns=["p"], storage_options=options)
    found = arrowlog.spark.read(spark, place.uri, where="p = 1", storage_options=options)
    assert sorted(row.id for row in found.collect()) == list(range(1, 20, 2))
    arrowlog.spark.register(spark)
    given = {f"storage.{key}": value for key, value in options.items()}
    frame.write.format("arrowlog").options(**given).mode("append").save(place.uri)
    source = spark.read.format("arrowlog").options(**given).option("where", "id < 3")
    assert sorted(row.id for row in source.load(place.uri).collect()) == [0, 0, 1, 1, 2, 2]
    source.load(place.uri).explain(True)
    assert options["secret"] not in capfd.readouterr().out


TRIED_AGAIN = """
import os, signal, sys
sys.path[:0] = sys.argv[2:3]
import arrowlog
root = sys.argv[1]
spark = arrowlog.spark.session(**{"spark.master": "local[2,3]", "spark.driver.memory": "600m"})

def odd(batches):
    # Every first try writes all of its rows, and fails then.
    from pyspark import TaskContext
    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first try")

def deadly(batches):
    yield next(iter(batches))
    os.kill(driver, signal.SIGKILL)

driver = os.getpid()
frame = spark.range(1000, numPartitions=3).mapInArrow(odd, "id long")
for native in (True, False):
    arrowlog.spark.write(frame, root, native=native)
print(sorted(arrowlog.Table(root).scan().to_arrow_dataset().to_table()["id"].to_pylist())
      == sorted([*range(1000)] * 2), flush=True)
arrowlog.spark.write(spark.range(1000, numPartitions=3).mapInArrow(deadly, "id long"), root)
"""


def test_retried_tasks_and_a_killed_job(root):
    """In a process of its own, whose tasks may fail, and which is killed in the middle."""
    here = os.path.dirname(os.path.dirname(arrowlog.__file__))
    command = [sys.executable, "-c", TRIED_AGAIN, str(root), here]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert done.stdout.strip() == "True", done.stderr[-2000:]
    assert arrowlog.Table(root).version == 2
    assert ids(root) == sorted([*range(1000)] * 2)
    arrowlog.Table(root).write(pa.table({"id": pa.array([7], pa.int64())}))
