"""Tables in SQL: by path, in the session catalog, at versions, with writes."""

import random
import re
from functools import partial

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.case_count import cases

import arrowlog
from arrowlog.spark.sql_tables import SqlSession
from arrowlog.spark.sql_text import SqlText
from arrowlog.spark.target import WriteDestination

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.int64())])


@pytest.fixture
def sql(either, request):
    """A function that executes SQL; tables of the catalog are dropped afterwards."""
    arrowlog.spark.register(either)
    names = ("events", "copies", "strange")

    def run(text, *args, **kwargs):
        return arrowlog.spark.sql(either, text, *args, **kwargs).collect()

    for name in names:
        run(f"DROP TABLE IF EXISTS {name}")
    yield run
    for name in names:
        run(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def table(tmp_path):
    """Three versions with rows: 0 to 9, 10 to 19, 20 to 29."""
    table = arrowlog.Table.create(tmp_path / "a table", SCHEMA, ["p"])
    for part in range(3):
        ids = list(range(10 * part, 10 * part + 10))
        table.write(pa.table({"id": ids, "p": [part] * 10}, SCHEMA))
    return table


def ids(path):
    return sorted(arrowlog.Table(path).scan().to_arrow()["id"].to_pylist())


def test_sql_table_by_path(sql, table):
    path = f"arrowlog.`{table.uri}`"
    assert sql(f"SELECT count(*), max(id) FROM {path}") == [(30, 29)]
    assert sql(f"SELECT count(*) FROM indextables.`{table.uri}` AS x WHERE x.p = 1") == [(10,)]
    assert sql(f"SELECT count(*) FROM {path} x JOIN {path} y ON x.id = y.id + 1") == [(29,)]
    assert sql(f"WITH c AS (SELECT * FROM {path} WHERE p = 2) SELECT min(id) FROM c") == [(20,)]
    assert sql(f"SELECT (SELECT max(id) FROM {path}) - count(*) FROM {path}") == [(-1,)]
    assert sql(f"SELECT '{{}} {{x}}', count(*) FROM {path}") == [("{} {x}", 30)]
    assert sql(f"SELECT count(*) FROM {path} WHERE id < :most", {"most": 5}) == [(5,)]
    assert len(sql(f"DESCRIBE {path}")) == 2
    with pytest.raises(PySparkException, match="There is no table at /nowhere/at-all"):
        sql("SELECT * FROM arrowlog.`/nowhere/at-all`")


def test_sql_with_frames_and_paths(either, table):
    some = either.range(5).selectExpr("id AS k")
    text = f"SELECT count(*) FROM arrowlog.`{table.uri}` JOIN {{some}} ON id = k"
    assert arrowlog.spark.sql(either, text, some=some).collect() == [(5,)]


def test_sql_time_travel(sql, table):
    path = f"arrowlog.`{table.uri}`"
    for version in range(4):
        count = 10 * version
        assert sql(f"SELECT count(*) FROM {path} VERSION AS OF {version}") == [(count,)]
        moment = table.snapshot(version).state.timestamp
        travel = f"TIMESTAMP AS OF timestamp_millis({moment})"
        assert sql(f"SELECT count(*) FROM {path} {travel} AS x") == [(count,)]
    text = f"SELECT count(*) FROM {path} VERSION AS OF 1 x RIGHT JOIN {path} y ON x.id = y.id"
    assert sql(f"{text} WHERE x.id IS NULL") == [(20,)]
    with pytest.raises(PySparkException, match="99"):
        sql(f"SELECT * FROM {path} VERSION AS OF 99")
    with pytest.raises(PySparkException, match="no version that can still be read"):
        sql(f"SELECT * FROM {path} TIMESTAMP AS OF '2001-01-01'")


def test_catalog_table_of_an_existing_table(either, sql, table):
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    assert sql("SELECT count(*), max(events.id) FROM events") == [(30, 29)]
    assert sql("SELECT count(*) FROM default.events x, events y WHERE x.id = y.id") == [(30,)]
    assert sql("SELECT count(*) FROM events VERSION AS OF 1") == [(10,)]
    assert sql("WITH events AS (SELECT 7 AS id) SELECT * FROM events") == [(7,)]
    sql("INSERT INTO events VALUES (100, 1), (101, 7)")
    sql("INSERT INTO events (p, id) SELECT p, id + 1000 FROM events WHERE id = 5")
    assert table.refresh().version == 5
    assert sql("SELECT p FROM events WHERE id IN (101, 1005) ORDER BY id") == [(7,), (0,)]
    sql("INSERT OVERWRITE events SELECT * FROM events WHERE p = 1")
    assert ids(table.uri) == [*range(10, 20), 100]
    assert [row.operation for row in sql("DESCRIBE HISTORY events LIMIT 2")] == [
        "OVERWRITE",
        "WRITE",
    ]
    with pytest.raises(PySparkException):
        sql("INSERT INTO events VALUES ('not a number', 1)")
    assert len(ids(table.uri)) == 11


def test_catalog_table_creates_a_new_table(sql, tmp_path):
    place = tmp_path / "new"
    sql(
        "CREATE TABLE events (id BIGINT, `odd name` STRING, p INT) USING indextables"
        f" PARTITIONED BY (p) LOCATION '{place}'"
    )
    assert arrowlog.Table(place).snapshot().partition_columns == ("p",)
    assert sql("SELECT * FROM events") == []
    sql("INSERT INTO events VALUES (1, 'a', 2)")
    assert sql("SELECT `odd name` FROM events") == [("a",)]
    sql("CREATE TABLE IF NOT EXISTS events USING arrowlog AS SELECT 1 AS other")
    assert sql("SELECT count(*) FROM events") == [(1,)]
    with pytest.raises(PySparkException, match="events"):
        sql(f"CREATE TABLE events (id INT) USING arrowlog LOCATION '{tmp_path / 'x'}'")


def test_catalog_table_sees_added_columns(either, sql, table):
    """Spark's catalog keeps the columns of CREATE TABLE; statements see those of the log."""
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    table.add_columns({"x": pa.string(), "y": pa.struct([("a b", pa.int32())])})
    assert sql("SELECT count(*), count(x), count(y.`a b`) FROM events") == [(30, 0, 0)]
    assert [row.col_name for row in sql("DESCRIBE events")][:4] == ["id", "p", "x", "y"]
    assert len(sql("DESCRIBE TABLE EXTENDED events")) > 4
    sql("INSERT INTO events VALUES (100, 1, 'new', named_struct('a b', 7))")
    assert sql("SELECT x, y.`a b` FROM events WHERE id = 100") == [("new", 7)]
    assert sql("SELECT count(*), count(x) FROM events VERSION AS OF 1") == [(10, 0)]
    sql("ALTER TABLE events ADD COLUMNS (`odd name` INT COMMENT 'why', z DATE)")
    sql(f"ALTER TABLE arrowlog.`{table.uri}` ADD COLUMN last BIGINT")
    names = ["id", "p", "x", "y", "odd name", "z", "last"]
    assert table.refresh().schema.names == names
    sql("INSERT INTO events (id, p, last) VALUES (101, 1, 5)")
    assert sql("SELECT last, `odd name`, z FROM events WHERE id = 101") == [(5, None, None)]
    for change in ("DROP COLUMN z", "RENAME COLUMN z TO y", "ALTER COLUMN z TYPE STRING"):
        with pytest.raises(arrowlog.InvalidRequest, match="Columns can be added"):
            sql(f"ALTER TABLE events {change}")
    table.refresh()
    table.restore(3)
    assert sql("SELECT * FROM events WHERE id = 7") == [(7, 0)]
    assert sql("SELECT count(*) FROM events") == [(30,)]


def test_added_columns_of_a_partitioned_catalog_table(sql, tmp_path):
    place = tmp_path / "new"
    sql(
        "CREATE TABLE copies (p INT, id BIGINT) USING arrowlog PARTITIONED BY (p)"
        f" LOCATION '{place}'"
    )
    sql("ALTER TABLE copies ADD COLUMNS (w STRING)")
    sql("INSERT INTO copies (w, p, id) VALUES ('a', 1, 2)")
    assert sql("SELECT p, id, w FROM copies") == [(1, 2, "a")]


def test_save_as_table_insert_into_and_read_table(either, sql, tmp_path):
    """`saveAsTable`, `insertInto` and `spark.read.table`, as for other formats of Spark."""
    rows = either.range(6).selectExpr("id", "id % 3 AS p")
    place = str(tmp_path / "saved")
    writer = rows.write.format("arrowlog").option("path", place).partitionBy("p")
    writer.saveAsTable("events")
    assert arrowlog.Table(place).snapshot().partition_columns == ("p",)
    assert either.read.table("events").count() == 6
    assert either.read.option("versionAsOf", 0).table("default.events").count() == 0
    with pytest.raises(PySparkException, match="events already"):
        rows.write.format("arrowlog").saveAsTable("events")
    rows.write.format("arrowlog").mode("ignore").saveAsTable("events")
    assert len(ids(place)) == 6
    rows.selectExpr("p", "id + 6 AS id").write.saveAsTable("events", "indextables", "append")
    assert ids(place) == list(range(12))
    rows.selectExpr("id + 50", "7L").write.insertInto("events")
    assert ids(place) == [*range(12), *range(50, 56)]
    rows.write.insertInto("events", overwrite=True)
    assert ids(place) == list(range(6))
    either.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with pytest.raises(PySparkException, match="replaces the whole table"):
            rows.write.format("arrowlog").mode("overwrite").save(place)
        for overwrite in (
            lambda: rows.write.mode("overwrite").insertInto("events"),
            lambda: sql(f"INSERT OVERWRITE arrowlog.`{place}` SELECT 1L, 1L"),
        ):
            with pytest.raises((PySparkException, arrowlog.InvalidRequest), match="the whole"):
                overwrite()
        some = rows.filter("p = 1").write.format("arrowlog").mode("overwrite")
        some.option("replaceWhere", "p = 1").save(place)
    finally:
        either.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert ids(place) == list(range(6))
    rows.write.format("arrowlog").saveAsTable("copies")
    assert sql("SELECT count(*), sum(id) FROM copies") == [(6, 15)]
    with pytest.raises(PySparkException):
        rows.write.format("arrowlog").option("path", place).saveAsTable("strange")
    assert not either.catalog.tableExists("strange")


def test_catalog_tables_of_other_formats_are_not_affected(either, sql):
    rows = either.range(3)
    sql("DROP TABLE IF EXISTS strange")
    rows.write.saveAsTable("strange", format="parquet")
    rows.write.insertInto("strange")
    assert either.read.table("strange").count() == 6


@pytest.mark.promise("spark.catalog_table_is_never_dropped_to_be_replaced")
def test_replacing_a_catalog_table_is_refused_before_spark_drops_it(either, sql):
    """Spark drops a managed table with its files, and then finds that it cannot write."""
    rows = either.range(6).selectExpr("id", "id % 3 AS p")
    sql("CREATE OR REPLACE TABLE events USING arrowlog PARTITIONED BY (p) AS TABLE {r}", r=rows)
    version = sql("DESCRIBE HISTORY events LIMIT 1")[0].version
    writer = rows.writeTo("spark_catalog.default.events").using("arrowlog")
    attempts = [
        lambda: sql("CREATE OR REPLACE TABLE events USING arrowlog AS SELECT 1 AS id"),
        lambda: sql("create or replace table default.`events` (id INT) using indextables"),
        lambda: sql("REPLACE TABLE events USING arrowlog AS SELECT r'' AS id"),
        writer.createOrReplace,
        rows.writeTo("events").using("arrowlog").replace,
    ]
    for attempt in attempts:
        with pytest.raises(PySparkException, match="cannot be replaced") as caught:
            attempt()
        assert isinstance(caught.value, arrowlog.InvalidRequest)
    assert sql("SELECT count(*), sum(id) FROM events") == [(6, 15)]
    assert sql("DESCRIBE HISTORY events LIMIT 1")[0].version == version
    rows.write.saveAsTable("strange", format="parquet")
    with pytest.raises(PySparkException):
        sql("CREATE OR REPLACE TABLE strange USING parquet AS SELECT 1 AS id")


@pytest.mark.promise("spark.catalog_table_is_never_dropped_to_be_replaced")
def test_replacement_that_only_spark_can_recognize_is_refused(spark):
    """In a classic session, whatever the text is, and whether or not it passes through arrowlog."""
    arrowlog.spark.register(spark)
    arrowlog.spark.sql(spark, "DROP TABLE IF EXISTS events")
    arrowlog.spark.sql(spark, "CREATE TABLE events USING arrowlog AS SELECT id FROM range(6)")
    replacement = "CREATE OR REPLACE TABLE events USING arrowlog AS SELECT 1 AS id"
    named = replacement.replace("events", "IDENTIFIER(:t)")
    try:
        for execute in (spark.sql, partial(arrowlog.spark.sql, spark)):
            for attempt in (
                partial(execute, replacement),
                partial(execute, "REPLACE TABLE events (id INT) USING arrowlog"),
                partial(execute, named, args={"t": "default.events"}),
                partial(execute, f"EXECUTE IMMEDIATE '{replacement}'"),
                partial(execute, f"/* outer /* inner */ */ {replacement}"),
            ):
                with pytest.raises(PySparkException, match=r"^A table cannot be replaced"):
                    attempt()
        found = arrowlog.spark.sql(spark, "SELECT count(*), sum(id) FROM events").collect()
        assert found == [(6, 15)]
    finally:
        spark.sql("DROP TABLE events")


def test_names_with_a_catalog_and_tables_as_queries(sql, table):
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    name = "spark_catalog.default.events"
    assert sql(f"SELECT count(*), max(events.id) FROM {name}") == [(30, 29)]
    assert sql("SELECT count(*) FROM `spark_catalog`.`default`.`events` VERSION AS OF 1") == [(10,)]
    assert sql(f"DESCRIBE HISTORY {name} LIMIT 1")[0].version == 3
    assert len(sql("TABLE events")) == 30
    assert len(sql(f"TABLE {name} UNION ALL TABLE arrowlog.`{table.uri}`")) == 60
    sql(f"INSERT INTO {name} TABLE events")
    assert ids(table.uri) == sorted([*range(30), *range(30)])
    sql("INSERT OVERWRITE TABLE events SELECT * FROM events WHERE id < 5 UNION TABLE events")
    assert ids(table.uri) == list(range(30))


def test_errors_of_catalog_tables_are_arrowlog_errors(sql, tmp_path):
    """The data source raises them in a process of Spark."""
    nowhere = tmp_path / "nowhere"
    with pytest.raises(arrowlog.TableNotFound, match=f"^There is no table at {nowhere}") as caught:
        sql(f"CREATE TABLE copies USING arrowlog LOCATION '{nowhere}'")
    assert isinstance(caught.value, PySparkException)


def test_errors_of_sql_are_arrowlog_and_spark_errors(sql, table):
    path = f"arrowlog.`{table.uri}`"
    for text, match in (
        (f"SELECT * FROM {path} TIMESTAMP AS OF NULL", "is null"),
        (f"ALTER TABLE {path} DROP COLUMN p", "cannot be dropped"),
        ("DESCRIBE HISTORY arrowlog.`/nowhere/at-all`", "There is no table at"),
    ):
        with pytest.raises(PySparkException, match=match) as caught:
            sql(text)
        assert isinstance(caught.value, arrowlog.errors.ArrowlogError)


def test_create_table_as_select(sql, table, tmp_path):
    path, place = f"arrowlog.`{table.uri}`", tmp_path / "copy"
    sql(
        f"CREATE TABLE copies USING arrowlog PARTITIONED BY (p) LOCATION '{place}'"
        f" AS SELECT id, p FROM {path} VERSION AS OF 2"
    )
    assert arrowlog.Table(place).snapshot().partition_columns == ("p",)
    assert sql("SELECT count(*) FROM copies") == [(20,)]
    with pytest.raises(PySparkException, match="There is a table at"):
        sql(f"CREATE TABLE strange USING arrowlog LOCATION '{place}' AS SELECT 1 AS id")
    with pytest.raises(PySparkException):
        sql("SELECT * FROM strange")
    assert len(ids(place)) == 20
    sql(f"CREATE TABLE strange USING arrowlog AS SELECT id, p FROM {path} WHERE p = 1")
    assert sql("SELECT sum(id) FROM strange") == [(145,)]


def test_insert_into_a_path(either, sql, table):
    path = f"arrowlog.`{table.uri}`"
    sql(f"INSERT INTO {path} SELECT id + 100, p FROM {path} WHERE p = 0")
    assert ids(table.uri)[-1] == 109
    sql(f"INSERT INTO {path} (p, id) VALUES (9, 200)")
    sql(f"INSERT INTO {path} BY NAME SELECT 9 AS P, 201 AS ID")
    assert sql(f"SELECT id FROM {path} WHERE p = 9 ORDER BY id") == [(200,), (201,)]
    with pytest.raises(arrowlog.InvalidRequest, match="has 1 columns, but 2"):
        sql(f"INSERT INTO {path} VALUES (1)")
    with pytest.raises(PySparkException, match="is string, but the table has bigint"):
        sql(f"INSERT INTO {path} VALUES ('x', 1)")
    with pytest.raises(PySparkException, match=r"CAST_OVERFLOW|out of range|overflow"):
        sql(f"INSERT INTO {path} VALUES (99999999999999999999, 1)")
    either.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with pytest.raises(arrowlog.InvalidRequest, match="dynamic partition overwrite"):
            sql(f"INSERT OVERWRITE {path} VALUES (1, 1)")
    finally:
        either.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert len(ids(table.uri)) == 42
    sql(f"INSERT OVERWRITE {path} SELECT id, p FROM {path} WHERE p = 9")
    assert ids(table.uri) == [200, 201]


def test_insert_with_a_query_before_it(sql, table):
    path = f"arrowlog.`{table.uri}`"
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    rows = f"WITH few AS (SELECT id + 100 AS id, p FROM {path} WHERE id < 2)"
    sql(f"{rows} INSERT INTO events SELECT * FROM few")
    sql(f"{rows} INSERT INTO {path} WITH more AS (SELECT id + 100, p FROM few) SELECT * FROM more")
    assert ids(table.uri)[-4:] == [100, 101, 200, 201]
    sql(f"{rows} INSERT OVERWRITE {path} BY NAME SELECT p, id FROM few ORDER BY id")
    assert ids(table.uri) == [100, 101]


def test_read_table_by_path(either, sql, table):
    path = f"arrowlog.`{table.uri}`"
    sql("SELECT 1")  # the session is known to arrowlog
    assert either.read.table(path).count() == len(ids(table.uri))
    enabled = either.newSession()
    arrowlog.spark.enable(enabled)
    assert enabled.table(path.upper()[:8] + path[8:]).count() == len(ids(table.uri))


def test_history(sql, table):
    rows = sql(f"DESCRIBE HISTORY arrowlog.`{table.uri}`")
    assert [row.version for row in rows] == [3, 2, 1, 0]
    assert sql(f"DESCRIBE HISTORY '{table.uri}' LIMIT 1")[0].version == 3
    with pytest.raises(PySparkException):
        sql("DESCRIBE HISTORY nothing_of_that_name")


def test_views_are_pinned_to_their_version(either, sql, table):
    path = f"arrowlog.`{table.uri}`"
    sql(f"CREATE OR REPLACE TEMP VIEW seen AS SELECT * FROM {path} WHERE p > 0")
    table.remove("p = 1")
    assert sql("SELECT count(*) FROM seen") == [(20,)]
    assert sql(f"SELECT count(*) FROM seen JOIN {path} USING (id)") == [(10,)]
    assert either.table("seen").count() == 20


def test_views_of_a_path_name_its_columns(either, sql, table):
    path = f"arrowlog.`{table.uri}`"
    sql(f"CREATE OR REPLACE TEMP VIEW named (a, `b c`) AS SELECT id, p FROM {path}")
    assert sql("SELECT sum(a) FROM named WHERE `b c` = 1") == [(145,)]
    for text in (
        f"CREATE VIEW named AS SELECT id FROM {path}",
        f"CREATE TEMP VIEW other (a COMMENT 'why') AS SELECT id FROM {path}",
        f"CREATE TEMP VIEW other COMMENT 'why' AS SELECT id FROM {path}",
    ):
        with pytest.raises(arrowlog.InvalidRequest, match="must be temporary, without a comment"):
            sql(text)


def test_cached_query_of_a_path(either, sql, table):
    """Spark would keep a view of a DataFrame that it has forgotten."""
    path = f"arrowlog.`{table.uri}`"
    try:
        sql(f"CACHE TABLE kept AS SELECT * FROM {path} WHERE p > 0")
        sql(f"CACHE LAZY TABLE lazy OPTIONS ('storageLevel' = 'DISK_ONLY') TABLE {path}")
        assert either.catalog.isCached("kept")
        assert either.catalog.isCached("lazy")
        table.remove("p = 1")
        assert sql("SELECT count(*) FROM kept") == [(20,)]
        assert sql("SELECT count(*) FROM lazy") == [(30,)]
        with pytest.raises(PySparkException, match="NOPE"):
            sql(f"CACHE TABLE wrong OPTIONS ('storageLevel' = 'NOPE') SELECT * FROM {path}")
        assert not either.catalog.tableExists("wrong")
    finally:
        either.catalog.clearCache()
        for name in ("kept", "lazy"):
            either.catalog.dropTempView(name)


def test_enabled_session_sql(either, table):
    session = either.newSession()
    arrowlog.spark.enable(session)
    arrowlog.spark.enable(session)
    session.sql("DROP TABLE IF EXISTS events")
    try:
        session.sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
        assert session.table("events").count() == 30
        assert session.table("default.events").filter("p = 1").count() == 10
        assert session.sql("SELECT 1 AS x").collect() == [(1,)]
        session.range(3).createOrReplaceTempView("three")
        assert session.table("three").count() == 3
    finally:
        session.sql("DROP TABLE IF EXISTS events")


def more(table, number):
    table.write(pa.table({"id": [number], "p": [9]}, SCHEMA))


def test_statement_reads_one_version(either, sql, table, monkeypatch):
    """Commits while a statement is completed, and before it is executed."""
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    complete = SqlSession._replacement

    def with_commit(self, *args):
        found = complete(self, *args)
        more(table, 1000 + len(self._versions))
        return found

    monkeypatch.setattr(SqlSession, "_replacement", with_commit)
    for name in (f"arrowlog.`{table.uri}`", "events"):
        text = f"SELECT x.id, y.id FROM {name} x FULL JOIN {name} y ON x.id = y.id"
        frame = arrowlog.spark.sql(either, f"{text} WHERE x.id IS NULL OR y.id IS NULL")
        more(table, 2000)
        assert frame.collect() == []
        counted = arrowlog.spark.sql(either, f"SELECT id FROM {name}")
        count = counted.count()
        more(table, 3000)
        assert counted.count() == count


def test_overwrite_from_itself_loses_no_concurrent_append(spark, table, monkeypatch):
    commit = WriteDestination.commit

    def after_another(self, *args, **kwargs):
        monkeypatch.setattr(WriteDestination, "commit", commit)
        more(arrowlog.Table(table.uri), 77)
        return self.commit(*args, **kwargs)

    path = f"arrowlog.`{table.uri}`"
    monkeypatch.setattr(WriteDestination, "commit", after_another)
    with pytest.raises(arrowlog.ConcurrentAppend):
        arrowlog.spark.sql(spark, f"INSERT OVERWRITE {path} SELECT * FROM {path} WHERE p = 1")
    assert ids(table.uri) == [*range(30), 77]
    arrowlog.spark.sql(spark, f"INSERT OVERWRITE {path} SELECT * FROM {path} WHERE p = 1")
    assert ids(table.uri) == list(range(10, 20))


def test_overwrite_with_read_version(either, table):
    rows = either.range(3).selectExpr("id", "id AS p").write.format("arrowlog").mode("overwrite")
    with pytest.raises(PySparkException, match=r"ConcurrentAppend|added"):
        rows.option("readVersion", 2).save(table.uri)
    assert ids(table.uri) == list(range(30))
    rows.option("readVersion", 3).save(table.uri)
    assert ids(table.uri) == [0, 1, 2]


def test_database_named_like_the_format_takes_precedence(spark, tmp_path):
    arrowlog.spark.sql(spark, "CREATE DATABASE IF NOT EXISTS arrowlog")
    try:
        arrowlog.spark.sql(spark, "CREATE TABLE arrowlog.`plain` USING parquet AS SELECT 5 AS x")
        found = arrowlog.spark.sql(spark, "SELECT * FROM arrowlog.`plain`")
        assert found.collect() == [(5,)]
    finally:
        arrowlog.spark.sql(spark, "DROP DATABASE IF EXISTS arrowlog CASCADE")


def test_settings_apply_in_sql(either, sql, table):
    sql(f"CREATE TABLE events USING arrowlog LOCATION '{table.uri}'")
    key = "spark.indextables.checkpoint.interval"
    either.conf.set(key, "seldom")
    try:
        for text in (
            "SELECT * FROM events",
            f"SELECT * FROM arrowlog.`{table.uri}`",
            "INSERT INTO events VALUES (1, 1)",
            f"INSERT INTO arrowlog.`{table.uri}` VALUES (1, 1)",
        ):
            with pytest.raises(PySparkException, match="cannot be 'seldom'"):
                sql(text)
    finally:
        either.conf.unset(key)
    assert sql("SELECT count(*) FROM events") == [(30,)]


def test_case_insensitive_column_names_in_sql(sql, tmp_path):
    place = tmp_path / "cases"
    sql(f"CREATE TABLE strange (Id BIGINT, `p.q` STRING) USING arrowlog LOCATION '{place}'")
    sql("INSERT INTO STRANGE (ID, `P.Q`) VALUES (1, 'x')")
    sql(f"INSERT INTO arrowlog.`{place}` (`P.q`, iD) VALUES ('y', 2)")
    rows = sql("SELECT iD, `p.Q` FROM Strange ORDER BY 1")
    assert rows == [(1, "x"), (2, "y")]
    assert arrowlog.Table(place).snapshot().schema.names == ["Id", "p.q"]


# Against Spark's own parser: the tables that we find are those that Spark finds.


class Grammar:
    """Random queries over tables by path, with what may be taken for a table."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.paths = []

    def choose(self, *options):
        made = self.rng.choice(options)
        return made() if callable(made) else made

    def path(self):
        self.paths.append(f"/t{len(self.paths)}")
        name = self.choose("arrowlog", "ARROWLOG", "indextables", "`arrowlog`")
        space = self.choose("", "", " ", "\n", " /* FROM arrowlog.`/no` */ ")
        return f"{name}{space}.{space}`{self.paths[-1]}`"

    def expression(self, depth):
        options = [
            "1",
            "'FROM arrowlog.`/no`'",
            '"its FROM arrowlog.`/no`"',
            "arrowlog.`/no`",
            "extract(YEAR FROM arrowlog.`/no`)",
            "trim(BOTH 'x' FROM arrowlog.`/no`)",
            "trim(FROM arrowlog.`/no`)",
            "substring(a FROM arrowlog.`/no`)",
            "a IS DISTINCT FROM arrowlog.`/no`",
            "f(a, arrowlog.`/no`)",
            "'back\\\\'",
            "'quo\\'te FROM arrowlog.`/no`'",
        ]
        if depth:
            options += [
                lambda: f"({self.query(depth - 1)})",
                lambda: f"a IN ({self.query(depth - 1)})",
                lambda: f"EXISTS ({self.query(depth - 1)})",
                lambda: f"coalesce({self.expression(depth - 1)}, ({self.query(depth - 1)}))",
            ]
        return self.choose(*options)

    def relation(self, depth):
        options = ["t", "db.`t`", "range(3)", lambda: f"{self.path()} {self.alias()}"]
        if depth:
            options += [
                lambda: f"({self.query(depth - 1)}) {self.alias()}",
                lambda: f"({self.relation(depth - 1)} JOIN {self.path()} {self.alias()})",
                lambda: f"{self.path()} LEFT JOIN {self.path()} ON ({self.expression(0)})",
                lambda: f"(TABLE {self.path()})",
            ]
        return self.choose(*options)

    def alias(self):
        return self.choose("", "AS x", "arrowlog", "AS `arrowlog`", "y")

    def query(self, depth):
        with_clause = ""
        if depth and self.rng.random() < 0.3:
            with_clause = f"WITH c AS ({self.query(depth - 1)}) "
        columns = ", ".join(self.expression(depth) for _ in range(self.rng.randint(1, 3)))
        tables = ", ".join(self.relation(depth) for _ in range(self.rng.randint(1, 2)))
        text = f"{with_clause}SELECT {columns} FROM {tables}"
        if self.rng.random() < 0.4:
            text += f" WHERE ({self.expression(depth)}) = 1"
        if self.rng.random() < 0.3:
            text += " GROUP BY a, arrowlog.`/no`"
        if self.rng.random() < 0.3:
            text += " ORDER BY a, arrowlog.`/no`"
        if depth and self.rng.random() < 0.2:
            text = f"({text}) -- FROM arrowlog.`/no`\n UNION ALL ({self.query(depth - 1)})"
        if depth and self.rng.random() < 0.2:
            text = f"({text}) {self.choose('UNION', 'EXCEPT ALL', 'INTERSECT')} TABLE {self.path()}"
        return text


@pytest.mark.parametrize("seed", range(cases(150)))
def test_parsed_tables_equal_those_of_spark(spark, seed):
    grammar = Grammar(seed)
    text = grammar.query(2)
    parser = spark._jsparkSession.sessionState().sqlParser()
    plan = parser.parsePlan(text).toString()
    seen = re.findall(r"UnresolvedRelation \[(?:arrowlog|ARROWLOG|indextables), ([^\]]*)\]", plan)
    found = [each.path for each in SqlText(text).references() if each.path]
    assert sorted(found) == sorted(seen) == sorted(grammar.paths)
