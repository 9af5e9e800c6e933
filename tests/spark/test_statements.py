"""Statements and functions in Spark's SQL."""

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import arrowlog


@pytest.fixture
def table(root):
    schema = pa.schema([("p", pa.int64()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, partition_columns=["p"])
    for part in range(3):
        table.write(pa.table({"p": [part, part], "id": [part * 10, 1]}))
    return table


def test_own_statements_are_executed_and_others_passed_to_spark(either, table, root):
    state = arrowlog.spark.sql(either, f"  describe IndexTables state '{root}';").collect()[0]
    assert (state.version, state.num_files) == (3, 3)
    assert state.status == "No checkpoint found"
    merged = arrowlog.spark.sql(either, f"DROP TANTIVY4SPARK PARTITIONS FROM '{root}' WHERE p = 1")
    assert merged.collect()[0].splits_removed == 1
    assert table.refresh().num_files == 2
    assert arrowlog.spark.sql(either, "SELECT 1 + 1").collect() == [(2,)]
    with pytest.raises(arrowlog.InvalidRequest, match="Expected TRANSACTION"):
        arrowlog.spark.sql(either, "REPAIR INDEXFILES TRANSACTON LOG 'x' AT LOCATION 'y'")
    with pytest.raises(PySparkException):
        arrowlog.spark.sql(either, "SELEC 1")


def test_repair_statement_uses_session_settings(spark, table, root):
    lost = table.snapshot().files["path"][0].as_py()
    (root / lost).unlink()
    text = (
        f"REPAIR INDEXFILES TRANSACTION LOG '{root}/_transaction_log' AT LOCATION '{root}/_mended'"
    )
    spark.conf.set("spark.indextables.repair.failOnMissing", "true")
    try:
        assert arrowlog.spark.sql(spark, text).collect()[0].status.startswith("ERROR: 1 of 3")
    finally:
        spark.conf.unset("spark.indextables.repair.failOnMissing")
    row = arrowlog.spark.sql(spark, text).collect()[0]
    assert row.asDict() == {
        "source_path": f"{root}/_transaction_log",
        "target_path": f"{root}/_mended",
        "source_version": 3,
        "total_splits": 3,
        "valid_splits": 2,
        "missing_splits": 1,
        "status": "SUCCESS",
    }


@pytest.mark.parametrize(
    "text",
    [
        "DESCRIBE INDEXTABLES TRANSACTION LOG '{}' INCLUDE ALL",
        "CHECKPOINT INDEXTABLES '{}'",
        "TRUNCATE INDEXTABLES TIME TRAVEL '{}' DRY RUN",
        "PURGE INDEXTABLE '{}' OLDER THAN 7 DAYS DRY RUN",
        "MERGE SPLITS '{}' TARGET SIZE 100M",
        "INVALIDATE INDEXTABLES TRANSACTION LOG CACHE FOR '{}'",
    ],
)
def test_every_statement_returns_spark_rows(spark, table, root, text):
    rows = arrowlog.spark.sql(spark, text.format(root)).collect()
    assert len(rows) >= 1


def test_enabled_session_executes_statements(either, table, root):
    before, before_table = either.sql, either.table
    try:
        arrowlog.spark.enable(either)
        arrowlog.spark.enable(either)
        assert either.sql(f"CHECKPOINT INDEXTABLES '{root}'").collect()[0].checkpoint_version == 3
        assert either.sql("SELECT :n AS n", {"n": 3}).collect() == [(3,)]
        assert either.sql("SELECT 2").collect() == [(2,)]
        assert arrowlog.spark.sql(either, "SELECT 4").collect() == [(4,)]
    finally:
        either.sql, either.table = before, before_table


def test_table_functions_in_sql(either, root):
    schema = pa.schema([("p", pa.int64()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, partition_columns=["p"])
    for part in range(3):
        table.write(pa.table({"p": [part], "id": [part * 10]}))
    arrowlog.spark.register(either)
    found = either.sql(f"SELECT * FROM arrowlog_files('{root}') ORDER BY partition_values['p']")
    rows = found.collect()
    assert [(row.partition_values, row.num_records) for row in rows] == [
        ({"p": str(part)}, 1) for part in range(3)
    ]
    text = f"SELECT * FROM arrowlog_explain('{root}', 'id = 10 AND p < 2')"
    told = either.sql(text).collect()
    assert {row.clause: row.files_dropped for row in told} == {"id = 10": 2, "p < 2": 1}


def test_history_table_function(either, table, root):
    arrowlog.spark.register(either)
    rows = either.sql(f"SELECT * FROM arrowlog_history('{root}') ORDER BY version").collect()
    assert [(row.version, row.operation, row.adds, row.rows) for row in rows] == [
        (0, None, 0, 0),
        *((version, "WRITE", 1, 2) for version in (1, 2, 3)),
    ]
    told = table.history().sort_by("version")["timestamp"].to_pylist()
    assert [row.timestamp.timestamp() for row in rows] == [moment.timestamp() for moment in told]
