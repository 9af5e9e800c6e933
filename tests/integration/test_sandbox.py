"""SQL over the log with `history.sandbox` reaches only the views."""

import os
import subprocess
import sys

import duckdb
import pyarrow as pa
import pytest

import arrowlog

OUTSIDE = [
    "FROM read_csv('{secret}')",
    "FROM read_text('{secret}')",
    "FROM '{secret}'",
    "FROM glob('{folder}/*')",
    "FROM query('FROM read_csv(''{secret}'')')",
    "COPY (FROM commits) TO '{folder}/out.csv'",
    "EXPORT DATABASE '{folder}/export'",
    "ATTACH '{folder}/new.db'",
    "LOAD '{folder}/x.duckdb_extension'",
    "SET enable_external_access = true",
    "SET temp_directory = '{folder}'",
    "SET log_query_path = '{folder}/queries'",
    "RESET ALL",
]
VIEWS = "commits actions adds removes skips metadata protocols checkpoints files file_lifetimes"


@pytest.fixture
def place(tmp_path):
    table = arrowlog.Table.create(tmp_path / "table", pa.schema([("id", pa.int64())]))
    table.write(pa.table({"id": [1, 2]}))
    (tmp_path / "secret.csv").write_text("word\nopen sesame\n")
    return tmp_path


def locked(place):
    return arrowlog.Table(place / "table", options={"history.sandbox": True})


@pytest.mark.promise("security.sandbox")
@pytest.mark.parametrize("query", OUTSIDE)
def test_sandboxed_query_reads_and_writes_no_file(place, query):
    text = query.format(secret=place / "secret.csv", folder=place)
    before = sorted(os.listdir(place))
    with pytest.raises(arrowlog.InvalidRequest):
        locked(place).query(text)
    with pytest.raises((arrowlog.InvalidRequest, duckdb.Error)):
        locked(place).sql(text).fetchall()
    with pytest.raises(duckdb.Error):
        locked(place).connect().sql(text).fetchall()
    assert sorted(os.listdir(place)) == before


def test_all_views_work_in_the_sandbox(place):
    table = locked(place)
    for view in [*VIEWS.split(), "coverage", "files_at(1)"]:
        assert table.query(f"FROM {view}").num_rows >= 0
        assert table.connect().sql(f"SELECT count(*) FROM {view}").fetchall()[0][0] >= 0
    joined = table.query("SELECT count(*) AS n FROM commits JOIN adds USING (version)")
    assert joined["n"].to_pylist() == [1]
    assert table.overview() is not None
    assert table.history().num_rows == 2


def test_python_variables_are_not_visible_in_the_sandbox(place):
    mine = pa.table({"word": ["open sesame"]})
    assert arrowlog.Table(place / "table").connect().sql("FROM mine").fetchall() == [
        (mine[0][0].as_py(),)
    ]
    with pytest.raises(duckdb.CatalogException):
        locked(place).connect().sql("FROM mine").fetchall()


def test_query_may_read_files_without_the_sandbox(place):
    found = arrowlog.Table(place / "table").query(f"FROM read_csv('{place / 'secret.csv'}')")
    assert found["word"].to_pylist() == ["open sesame"]


def test_table_property_cannot_set_the_sandbox(place):
    arrowlog.Table(place / "table").set_properties({"other": "x"})
    properties = {"spark.indextables.history.sandbox": "true"}
    made = arrowlog.Table.create(place / "b", pa.schema([("id", pa.int64())]), (), properties)
    assert made.query(f"FROM read_csv('{place / 'secret.csv'}')").num_rows == 1


def test_command_line_sandbox_flag(place):
    query = f"FROM read_csv('{place / 'secret.csv'}')"
    command = [sys.executable, "-m", "arrowlog", "sql", str(place / "table"), query]
    free = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (free.returncode, "open sesame" in free.stdout) == (0, True)
    bound = subprocess.run([*command, "--restricted"], capture_output=True, text=True, check=False)
    assert bound.returncode == 1
    assert "Permission" in bound.stderr
    assert "sesame" not in bound.stdout + bound.stderr
    command[-1] = "SELECT count(*) AS n FROM commits"
    views = subprocess.run([*command, "--restricted"], capture_output=True, text=True, check=False)
    assert (views.returncode, "2" in views.stdout) == (0, True)


def test_relation_raises_duckdb_error_and_query_raises_typed_error(place):
    table = arrowlog.Table(place / "table")
    path = place / "table" / "_transaction_log" / f"{1:020d}.json"
    path.write_bytes(b"{broken\n")
    with pytest.raises(duckdb.Error, match=path.name):
        table.sql("SELECT sum(adds) FROM commits").fetchall()
    with pytest.raises(arrowlog.LogCorrupt, match=path.name):
        table.query("SELECT sum(adds) FROM commits")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE OR REPLACE VIEW commits AS SELECT 666 AS version",
        "CREATE OR REPLACE TEMP VIEW commits AS SELECT 666 AS version",
        "CREATE OR REPLACE MACRO count(x) AS 666",
        "SELECT 1; CREATE TEMP TABLE commits AS SELECT 666 AS version",
        "EXPLAIN ANALYZE CREATE TEMP TABLE commits AS SELECT 666 AS version",
        "BEGIN",
        "SET VARIABLE a = 1",
    ],
)
def test_query_cannot_change_later_query_results(place, text):
    table = locked(place)
    question = "SELECT version, count(version) OVER () AS n FROM commits ORDER BY 1"
    before = table.query(question)
    for ask in (table.query, table.sql):
        with pytest.raises(arrowlog.InvalidRequest, match="not allowed in the sandbox"):
            ask(text)
    assert table.query(question) == before
    assert table.query("SHOW TABLES").num_rows > 3
