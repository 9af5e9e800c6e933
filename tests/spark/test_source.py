"""`format("arrowlog")`: reads, writes and views; and why filters are not pushed there."""

import os
import pickle
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle as cloud
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import arrowlog
from arrowlog.spark.options import parse_source_options
from arrowlog.spark.source import SourceWriter, TaskAdds
from arrowlog.spark.target import resolve_destination


def write(root, rows=30):
    table = arrowlog.Table.create(
        root, pa.schema([("p", pa.int64()), ("id", pa.int64())]), partition_columns=["p"]
    )
    for part in range(3):
        ids = list(range(part * rows // 3, (part + 1) * rows // 3))
        table.write(pa.table({"p": [part] * len(ids), "id": ids}))
    return table


def ids(frame):
    return sorted(frame.toArrow()["id"].to_pylist())


@pytest.fixture
def source(either):
    arrowlog.spark.register(either)
    return either


def test_load_with_version_and_predicate(source, root):
    table = write(root)
    load = source.read.format("arrowlog")
    assert ids(load.load(str(root))) == list(range(30))
    assert ids(load.option("where", "id BETWEEN 9 AND 11").load(str(root))) == [9, 10, 11]
    load = source.read.format("arrowlog")
    assert ids(load.option("versionAsOf", 1).load(str(root))) == list(range(10))
    moment = table.snapshot(2).state.timestamp
    load = source.read.format("arrowlog").option("timestampAsOf", moment)
    assert ids(load.load(str(root))) == list(range(20))
    load = source.read.format("arrowlog").option("timestampAsOf", _iso(moment))
    assert ids(load.load(str(root))) == list(range(20))
    narrow = source.read.format("arrowlog").schema("id bigint").load(str(root))
    assert narrow.columns == ["id"]
    assert ids(narrow) == list(range(30))


def _iso(millis):
    import datetime as dt

    return dt.datetime.fromtimestamp(millis / 1000, dt.UTC).isoformat()


def test_sql_creates_a_view(source, root):
    write(root)
    path = str(root)
    source.sql(
        "CREATE OR REPLACE TEMPORARY VIEW events USING arrowlog"
        f" OPTIONS (path '{path}', versionAsOf '2', where 'id > 3')"
    )
    assert source.sql("SELECT count(*), min(id), max(id) FROM events").collect() == [(16, 4, 19)]


def test_loaded_frame_reused_in_queries(source, root):
    table = write(root)
    base = source.read.format("arrowlog").load(str(root))
    one, two = base.filter("id = 5"), base.filter("id = 25")
    assert ids(one.union(two)) == [5, 25]
    assert base.count() == 30
    assert base.join(base.selectExpr("id + 1 AS id"), "id").count() == 29
    table.remove("p = 1")
    assert base.count() == 30  # at the version it was loaded at
    assert source.read.format("arrowlog").load(str(root)).count() == 20


class _Pushing(DataSource):
    """A source that trusts the filters that are pushed to it."""

    @classmethod
    def name(cls):
        return "pushing"

    def schema(self):
        return "id long"

    def reader(self, schema):
        return _PushingReader()


class _PushingReader(DataSourceReader):
    wanted = None

    def pushFilters(self, filters):  # noqa: N802 -- Spark's
        for each in filters:
            if type(each).__name__ == "EqualTo":
                self.wanted = each.value
            yield each

    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        ids = range(200) if self.wanted is None else [self.wanted]
        yield pa.record_batch({"id": pa.array(ids, pa.int64())})


def test_spark_push_filters_still_returns_wrong_rows(spark):
    """The reason why this source has no pushFilters. If this fails, Spark has mended it."""
    cloud.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(_Pushing)
        base = spark.read.format("pushing").load()
        assert [row.id for row in base.filter("id = 5").collect()] == [5]
        assert [row.id for row in base.filter("id = 105").collect()] == [105]
        assert base.count() != 200
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        cloud.unregister_pickle_by_value(sys.modules[__name__])


def test_save_writes_rows(source, root):
    frame = source.range(12).selectExpr("id", "id % 3 AS p")
    save = frame.write.format("arrowlog")
    save.option("partitionColumns", "p").mode("append").save(str(root))
    assert arrowlog.Table(root).snapshot().partition_columns == ("p",)
    load = source.read.format("arrowlog").load(str(root))
    assert ids(load) == list(range(12))
    frame.filter("id = 1").write.format("arrowlog").mode("overwrite").option(
        "replaceWhere", "p = 1"
    ).save(str(root))
    load = source.read.format("arrowlog").load(str(root))
    assert ids(load) == [0, 1, 2, 3, 5, 6, 8, 9, 11]
    frame.limit(1).write.format("arrowlog").mode("overwrite").save(str(root))
    assert arrowlog.Table(root).snapshot().num_records == 1
    assert arrowlog.Table(root).version == 3
    with pytest.raises(PySparkException, match="'extra'"):
        frame.selectExpr("id", "1 AS extra").write.format("arrowlog").mode("append").save(str(root))
    assert arrowlog.Table(root).version == 3


def test_settings_are_read_from_options_and_the_session(spark, root):
    write(root)
    path = str(root)
    with pytest.raises(PySparkException, match=r"checkpoint\.interval.*cannot be 'often'"):
        spark.read.format("arrowlog").option("spark.indextables.checkpoint.interval", "often").load(
            path
        ).count()
    spark.conf.set("spark.indextables.checkpoint.interval", "seldom")
    try:
        arrowlog.spark.register(spark)
        with pytest.raises(PySparkException, match=r"checkpoint\.interval.*cannot be 'seldom'"):
            spark.read.format("arrowlog").load(path).count()
    finally:
        spark.conf.unset("spark.indextables.checkpoint.interval")
        arrowlog.spark.register(spark)
    assert spark.read.format("arrowlog").load(path).count() == 30


def test_source_options_are_validated():
    given = {"PATH": "file:/a b", "where": "id = 1", "spark.indextables.checkpoint.interval": "5"}
    found = parse_source_options(
        {**given, "storage.aws_access_key_id": "k", "storage.key": "x"}, {}
    )
    assert found.path == "/a b"
    assert found.storage == {"AWS_ACCESS_KEY_ID": "k", "key": "x"}
    assert found.settings == {"spark.indextables.checkpoint.interval": "5"}
    assert parse_source_options(
        {"path": "x", "partitionColumns": '["a, b", "c"]'}, {}
    ).partition_columns == (
        "a, b",
        "c",
    )
    assert parse_source_options(
        {"path": "x", "partitioncolumns": "a, b"}, {}
    ).partition_columns == (
        "a",
        "b",
    )
    wrong = {
        "Did you mean 'versionAsOf'": {"path": "x", "verionAsOf": "1"},
        "path is missing": {"where": "id = 1"},
        "cannot be 'new'": {"path": "x", "versionAsOf": "new"},
        "mutually exclusive": {"path": "x", "versionAsOf": "1", "timestampAsOf": "2024-01-01"},
        "cannot be '0'": {"path": "x", "maxFilesPerTrigger": "0"},
        "cannot be 'maybe'": {"path": "x", "ignoreDeletes": "maybe"},
    }
    for match, options in wrong.items():
        with pytest.raises(arrowlog.InvalidRequest, match=match):
            parse_source_options(options, {})


def test_failed_commit_keeps_files_that_may_be_in_the_log(spark, root):
    """Spark aborts after a failed commit, with the messages of all tasks."""
    arrowlog.spark.write(spark.range(3), root)
    goal = resolve_destination(str(root), spark.range(1).schema, mode="append")
    writer = pickle.loads(pickle.dumps(SourceWriter(goal, "append", None)))
    batch = pa.record_batch({"id": pa.array([7], pa.int64())})
    one, two = writer.write(iter([batch])), writer.write(iter([batch]))
    assert isinstance(one, TaskAdds)
    writer.commit([one])
    writer.abort([one])  # the commit landed, and its answer was lost
    assert arrowlog.Table(root).scan().to_arrow_dataset().count_rows() == 4
    writer.abort([None, two])  # a task failed, so nothing was committed
    assert not os.path.exists(root / two.adds[0].path)


def test_source_is_found_without_registration(spark, root):
    write(root)
    assert spark.newSession().read.format("arrowlog").load(str(root)).count() == 30
