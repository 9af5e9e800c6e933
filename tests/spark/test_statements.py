"""Statements and functions in Spark's SQL."""

import sys
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import arrowlog
from arrowlog.spark import statements


@pytest.fixture
def ours(monkeypatch):
    """A stand-in for the statements: MEND is one of ours, and MEND badly is a mistake."""
    module = ModuleType("arrowlog.sql.statements")
    module.is_statement = lambda text: text.strip().upper().startswith("MEND")
    done = []

    def statement(text):
        done.append(text)
        if "badly" in text:
            raise arrowlog.InvalidRequest("MEND needs a log.")
        at = pa.array([1], pa.timestamp("ms", "UTC"))
        return pa.table({"what": pa.array(["x"]).dictionary_encode(), "n": [1], "at": at})

    package = ModuleType("arrowlog.sql")
    monkeypatch.setitem(sys.modules, "arrowlog.sql", sys.modules.get("arrowlog.sql", package))
    monkeypatch.setitem(sys.modules, "arrowlog.sql.statements", module)
    monkeypatch.setattr(arrowlog, "sql_statement", statement, raising=False)
    return done


def test_our_statements_are_done_here_and_others_by_spark(either, ours):
    row = arrowlog.spark.sql(either, "  mend 'x'").collect()[0]
    assert (row.what, row.n) == ("x", 1)
    assert arrowlog.spark.sql(either, "SELECT 1 + 1").collect() == [(2,)]
    assert ours == ["  mend 'x'"]
    with pytest.raises(arrowlog.InvalidRequest, match="needs a log"):
        arrowlog.spark.sql(either, "MEND badly")
    with pytest.raises(PySparkException):
        arrowlog.spark.sql(either, "SELEC 1")


def test_a_session_that_understands_them(either, ours):
    before = either.sql
    try:
        arrowlog.spark.enable(either)
        arrowlog.spark.enable(either)
        assert either.sql("MEND 'x'").count() == 1
        assert either.sql("SELECT :n AS n", {"n": 3}).collect() == [(3,)]
        assert either.sql("SELECT 2").collect() == [(2,)]
        assert arrowlog.spark.sql(either, "SELECT 4").collect() == [(4,)]
    finally:
        either.sql = before


def test_questions_are_functions_in_sql(either, root):
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


def test_history_is_a_function_too(monkeypatch, root):
    """`eval` as a worker calls it; what the columns hold is for `Table.history` to say."""
    arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    told = pa.table({"operation": ["WRITE"], "version": [3], "more": ["x"]})
    monkeypatch.setattr(arrowlog.Table, "history", lambda self: told, raising=False)
    (row,) = statements.History().eval(str(root))
    assert row == (3, None, "WRITE", None, None, None, None, None)
