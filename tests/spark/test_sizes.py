"""What Spark's optimizer knows about the size of a table, and what it makes of it."""

import os

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

import arrowlog

SCHEMA = pa.schema([("p", pa.int64()), ("id", pa.int64()), ("s", pa.string())])
ROWS = 400


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    table = arrowlog.Table.create(tmp_path_factory.mktemp("sizes") / "t", SCHEMA, ["p"])
    for part in range(4):
        ids = list(range(part * ROWS, (part + 1) * ROWS))
        texts = [os.urandom(20).hex() for _ in ids]
        table.write(pa.table({"p": [part] * ROWS, "id": ids, "s": texts}, SCHEMA))
    return table


def natively(spark, table, where=None):
    frame = arrowlog.spark.read(spark, table.uri)
    return frame if where is None else frame.filter(where)


def with_where(spark, table, where=None):
    return arrowlog.spark.read(spark, table.uri, where=where)


def by_workers(spark, table, where=None):
    return arrowlog.spark.read(spark, table.uri, where=where, native=False)


def by_format(spark, table, where=None):
    frame = spark.read.format("arrowlog").load(table.uri)
    return frame if where is None else frame.filter(where)


def by_view(spark, table, where=None):
    arrowlog.spark.register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sizes USING arrowlog OPTIONS (path '{table.uri}')")
    frame = spark.table("sizes")
    return frame if where is None else frame.filter(where)


def by_path(spark, table, where=None):
    where = "" if where is None else f" WHERE {where}"
    return arrowlog.spark.sql(spark, f"SELECT * FROM arrowlog.`{table.uri}`{where}")


def by_catalog(spark, table, where=None):
    where = "" if where is None else f" WHERE {where}"
    arrowlog.spark.sql(spark, "DROP TABLE IF EXISTS sizes_of_all")
    arrowlog.spark.sql(spark, f"CREATE TABLE sizes_of_all USING arrowlog LOCATION '{table.uri}'")
    return arrowlog.spark.sql(spark, f"SELECT * FROM sizes_of_all{where}")


WAYS = [natively, with_where, by_workers, by_format, by_view, by_path, by_catalog]


def statistics(frame):
    stats = frame._jdf.queryExecution().optimizedPlan().stats()
    rows = stats.rowCount()
    return stats.sizeInBytes(), None if rows.isEmpty() else rows.get()


@pytest.mark.parametrize("read", WAYS)
def test_optimizer_size_equals_the_plan(spark, table, read):
    assert statistics(read(spark, table))[0] == table.snapshot().size_bytes
    for where in ("p = 1", "id = 7", "p > 1 AND id < 1000", "id BETWEEN 300 AND 500"):
        frame = read(spark, table, where)
        plan = table.scan(where)
        assert 0 < plan.size_bytes < table.snapshot().size_bytes
        assert statistics(frame)[0] == plan.size_bytes
        rows = table.scan(where).to_arrow_dataset().to_table()
        assert frame.count() == rows.num_rows
    assert statistics(read(spark, table, "id = -5"))[0] <= 1


@pytest.mark.parametrize("read", WAYS)
def test_join_broadcasts_a_side_that_is_small_after_pruning(spark, table, read):
    half = table.snapshot().size_bytes // 2
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", half)
    try:
        for where, is_small in ((None, False), ("p = 1", True), ("p <> 1", False)):
            one, two = read(spark, table).alias("x"), read(spark, table, where).alias("y")
            joined = one.join(two, F.col("x.id") == F.col("y.id"))
            plan = joined._jdf.queryExecution().sparkPlan().toString()
            assert ("BroadcastHashJoin" in plan) is is_small
            assert joined.count() == {None: 4, "p = 1": 1, "p <> 1": 3}[where] * ROWS
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_row_counts_are_given_with_cost_based_optimization(spark, table):
    assert statistics(natively(spark, table, "p = 1"))[1] is None
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        assert statistics(natively(spark, table))[1] == 4 * ROWS
        assert statistics(natively(spark, table, "p = 1"))[1] == ROWS
        assert natively(spark, table, "p = 1").groupBy("p").count().collect() == [(1, ROWS)]
    finally:
        spark.conf.unset("spark.sql.cbo.enabled")


def test_view_with_a_predicate_has_the_size_of_its_plan(spark, table):
    arrowlog.spark.register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW some USING arrowlog"
        f" OPTIONS (path '{table.uri}', where 'p = 2')"
    )
    assert statistics(spark.table("some"))[0] == table.scan("p = 2").size_bytes
    assert spark.table("some").count() == ROWS


def test_optimizer_rule_is_installed_once(spark, table):
    for _ in range(3):
        natively(spark, table)
    rules = spark._jsparkSession.experimental().extraOptimizations()
    names = [rules.apply(n).getClass().getName() for n in range(rules.size())]
    assert names.count("ArrowlogSizes") == 1


def test_cached_frames_of_two_versions_are_not_mixed(spark, tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", SCHEMA, ["p"])
    for part in range(3):
        table.write(pa.table({"p": [part], "id": [part], "s": ["x"]}, SCHEMA))
    frames = [
        arrowlog.spark.read(spark, table.uri, version=n).filter("id < 2") for n in range(1, 4)
    ]
    try:
        for frame in frames:
            frame.cache()
        assert [frame.count() for frame in frames] == [1, 2, 2]
        again = arrowlog.spark.read(spark, table.uri, version=1).filter("id < 2")
        assert "InMemoryTableScan" in again._jdf.queryExecution().executedPlan().toString()
        assert again.count() == 1
        joined = frames[0].alias("x").join(frames[2].alias("y"), F.col("x.id") < F.col("y.id"))
        assert joined.count() == 1
    finally:
        spark.catalog.clearCache()


def scanned_files(frame):
    """How many files each scan of a table has read, after it was executed."""
    found = []

    def walk(node):
        name = node.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            walk(node.executedPlan())
        elif name.endswith("QueryStageExec"):
            walk(node.plan())
        elif name == "FileSourceScanExec":
            found.append(node.metrics().apply("numFiles").value())
        children = node.children()
        for number in range(children.size()):
            walk(children.apply(number))

    frame.collect()
    walk(frame._jdf.queryExecution().executedPlan())
    return found


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("read", [natively, by_format, by_path, by_view, by_catalog])
def test_join_values_prune_partitions_dynamically(spark, table, read, adaptive):
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        few = spark.range(100).selectExpr("id AS k", "id % 2 + 1 AS part").filter("k IN (4, 8)")
        joined = read(spark, table).join(few, F.col("p") == F.col("part"))
        assert scanned_files(joined) == [1]
        assert joined.count() == 2 * ROWS
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_joins_of_several_catalog_tables_prune_and_are_exact(spark, table, tmp_path):
    """Both sides are tables of ours; the small one, filtered, selects partitions of the others."""
    small = arrowlog.Table.create(tmp_path / "small", pa.schema([("part", pa.int64())]))
    small.write(pa.table({"part": [0, 1, 2, 3]}))
    few = by_catalog(spark, small).filter("part IN (1, 3)")
    arrowlog.spark.register(spark)
    view = by_view(spark, table)
    joined = view.join(few, F.col("p") == F.col("part"))
    assert sorted(scanned_files(joined)) == [1, 2]
    again = joined.join(natively(spark, table).select(F.col("p").alias("q"), "id"), "id")
    expected = [(n, n // ROWS) for n in range(4 * ROWS) if n // ROWS in (1, 3)]
    assert sorted((row.id, row.q) for row in again.collect()) == expected


def test_subquery_result_prunes_partitions(spark, table):
    arrowlog.spark.read(spark, table.uri).createOrReplaceTempView("fact")
    frame = spark.sql("SELECT * FROM fact WHERE p = (SELECT max(id) FROM range(3))")
    assert scanned_files(frame) == [1]
    assert {row.p for row in frame.collect()} == {2}


def test_runtime_filter_loses_no_rows(spark, table):
    settings = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
        "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "1",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        few = spark.range(5000).selectExpr("id AS k", "id % 7 AS m").filter("m = 3")
        joined = natively(spark, table).join(few, F.col("id") == F.col("k"))
        expected = [n for n in range(4 * ROWS) if n % 7 == 3]
        assert sorted(row.id for row in joined.select("id").collect()) == expected
    finally:
        for name in settings:
            spark.conf.unset(name)
