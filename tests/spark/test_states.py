"""Tables of protocol 4 in Spark: files from states are read by Spark's own reader."""

import pyarrow as pa
import pytest

import arrowlog

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("states") / "table"
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.write(pa.table({"p": ["old"], "id": [-1]}, SCHEMA))
    table.upgrade_protocol(reader=4, writer=4)
    for part in range(3):
        ids = list(range(10 * part, 10 * part + 10))
        table.write(pa.table({"p": [f"p{part}"] * 10, "id": ids}, SCHEMA))
    return root


def ids(frame):
    return sorted(frame.toArrow()["id"].to_pylist())


def test_spark_reads_the_files_of_a_state(spark, root):
    frame = arrowlog.spark.read(spark, root)
    assert "FileScan parquet" in frame._jdf.queryExecution().executedPlan().toString()
    assert ids(frame) == list(range(-1, 30))
    assert ids(frame.filter("p = 'p1' AND id > 15")) == [16, 17, 18, 19]


def test_plan_of_a_state_to_spark(spark, root):
    table = arrowlog.Table(root)
    plan = table.scan("p = 'p2' OR id = 3")
    assert len(plan.paths) == 2
    assert ids(plan.to_spark(spark)) == [3, *range(20, 30)]
    assert ids(table.scan(version=3).to_spark(spark)) == list(range(-1, 10))


def test_statements_on_a_table_with_states(spark, root):
    def run(text):
        return arrowlog.spark.sql(spark, text).collect()

    assert run(f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}'")
    assert run(f"PURGE INDEXTABLE '{root}' OLDER THAN 7 DAYS DRY RUN")[0].metrics.status == (
        "DRY_RUN"
    )
    assert ids(arrowlog.spark.read(spark, root)) == list(range(-1, 30))
    run(f"TRUNCATE INDEXTABLES TIME TRAVEL '{root}'")
    assert arrowlog.Table(root).earliest_version == 5
    assert ids(arrowlog.spark.read(spark, root)) == list(range(-1, 30))
