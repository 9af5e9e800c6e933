"""Table references in SQL text, found without Spark."""

import pytest

from arrowlog.spark.sql_text import SqlText, TemporaryViewText


def found(text):
    return [
        (each.path or ".".join(each.parts), each.version, each.timestamp)
        for each in SqlText(text).references()
        if each.path or each.travels
    ]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT * FROM arrowlog.`/a`", ["/a"]),
        ("select * from ARROWLOG . `/a` as x, IndexTables.`/b` y", ["/a", "/b"]),
        ("SELECT * FROM t JOIN arrowlog.`/a` ON t.id = arrowlog.`/a`", ["/a"]),
        ("SELECT (SELECT max(id) FROM arrowlog.`/a`) FROM arrowlog.`/b`", ["/a", "/b"]),
        ("WITH c AS (SELECT * FROM arrowlog.`/a`) SELECT * FROM c", ["/a"]),
        ("SELECT * FROM (arrowlog.`/a` x CROSS JOIN arrowlog.`/b` y)", ["/a", "/b"]),
        ("SELECT 1 WHERE EXISTS (FROM arrowlog.`/a`)", ["/a"]),
        ("FROM arrowlog.`/a` SELECT id", ["/a"]),
        ("TABLE arrowlog.`/a`", ["/a"]),
        ("EXPLAIN SELECT * FROM arrowlog.`/a`", ["/a"]),
        ("DESCRIBE TABLE arrowlog.`/a`", ["/a"]),
        ("DESCRIBE arrowlog.`/a`", ["/a"]),
        ("DESC EXTENDED arrowlog.`/a`", ["/a"]),
        ("DESCRIBE TABLE FORMATTED arrowlog.`/a`", ["/a"]),
        ("(SELECT id FROM arrowlog.`/a`) UNION (SELECT id FROM arrowlog.`/b`)", ["/a", "/b"]),
        ("INSERT INTO t SELECT * FROM arrowlog.`/a`", ["/a"]),
        ("CREATE TABLE t USING parquet AS SELECT * FROM arrowlog.`/a`", ["/a"]),
        ("SELECT * FROM -- arrowlog.`/x`\n arrowlog.`/a` /* FROM arrowlog.`/y` */", ["/a"]),
        ("SELECT * FROM arrowlog.`/we``ird`", ["/we`ird"]),
        ("SELECT * FROM a JOIN b ON a.x = b.x, arrowlog.`/a`", ["/a"]),
        ("SELECT * FROM a WHERE x IN (SELECT y FROM arrowlog.`/a`) ;", ["/a"]),
        # Not a table, although it looks like one:
        ("SELECT 'FROM arrowlog.`/a`'", []),
        ('SELECT "FROM arrowlog.`/a`"', []),
        ("SELECT `FROM arrowlog.`, arrowlog.`/a` FROM t AS arrowlog", []),
        ("SELECT x IS DISTINCT FROM arrowlog.`/a` FROM t AS arrowlog", []),
        ("SELECT x IS NOT DISTINCT FROM arrowlog.`/a` FROM t AS arrowlog", []),
        ("SELECT extract(YEAR FROM arrowlog.`/a`) FROM t AS arrowlog", []),
        ("SELECT trim(FROM arrowlog.`/a`) FROM t AS arrowlog", []),
        ("SELECT trim(BOTH 'x' FROM arrowlog.`/a`) FROM t AS arrowlog", []),
        ("SELECT substring(s FROM arrowlog.`/a` FOR 2) FROM t AS arrowlog", []),
        ("SELECT * FROM t ORDER BY a, arrowlog.`/a`", []),
        ("SELECT f(a, arrowlog.`/a`) FROM t AS arrowlog GROUP BY 1, arrowlog.`/b`", []),
        ("SELECT * FROM t LATERAL VIEW explode(m) x AS k, arrowlog.`/a`", []),
        ("FROM t |> EXTEND a AS x, arrowlog.`/a`", []),
        ("SELECT * FROM spark_catalog.arrowlog.`/a`", []),
        ("SELECT * FROM arrowlog.`/a`.`b`", []),
        ("SELECT * FROM arrowlog.a", []),
        ("SELECT * FROM parquet.`/a`", []),
        ("DROP TABLE arrowlog.`/a`", []),
        ("DELETE FROM arrowlog.`/a`", []),
        ("REFRESH TABLE arrowlog.`/a`", []),
        # Ambiguous:
        ("SELECT r'\\' FROM arrowlog.`/a` --'", []),
        ("SELECT * /* /* */ FROM arrowlog.`/a` */ FROM t", []),
        ("SELECT 'unterminated FROM arrowlog.`/a`", []),
        ("SELECT 1; SELECT * FROM arrowlog.`/a`", []),
        ("", []),
        (";", []),
        ("(", []),
    ],
)
def test_tables_by_path(text, tables):
    assert [path for path, _, _ in found(text)] == tables


@pytest.mark.parametrize(
    ("clause", "version", "timestamp"),
    [
        ("VERSION AS OF 3", "3", None),
        ("FOR VERSION AS OF 3 AS x", "3", None),
        ("for system_version as of '3' x", "'3'", None),
        ("TIMESTAMP AS OF '2024-01-01'", None, "'2024-01-01'"),
        ("TIMESTAMP AS OF '2024-01-01' x WHERE x.id = 1", None, "'2024-01-01'"),
        ("FOR SYSTEM_TIME AS OF TIMESTAMP '2024-01-01' x", None, "TIMESTAMP '2024-01-01'"),
        ("TIMESTAMP AS OF now() - INTERVAL 1 DAY x", None, "now() - INTERVAL 1 DAY"),
        ("TIMESTAMP AS OF date_sub(f(1), 2) JOIN t", None, "date_sub(f(1), 2)"),
        ("TIMESTAMP AS OF (a + b) x", None, "(a + b)"),
        ("VERSION", None, None),
        ("timestamp", None, None),
        ("", None, None),
    ],
)
def test_time_travel(clause, version, timestamp):
    assert found(f"SELECT * FROM arrowlog.`/a` {clause}") == [("/a", version, timestamp)]
    named = found(f"SELECT * FROM db.`t 1` {clause}")
    assert named == ([] if version is timestamp else [("db.t 1", version, timestamp)])


def test_incomplete_clause_is_ignored():
    # A version that is missing is Spark's to report: the reference ends before it.
    (reference,) = SqlText("SELECT * FROM arrowlog.`/a` VERSION AS OF").references()
    assert not reference.travels
    assert reference.text == "arrowlog.`/a`"


def test_common_table_names():
    text = SqlText("WITH a AS (SELECT 1), `B c` (x) AS (SELECT 2) SELECT f AS (g) FROM a")
    assert {"a", "b c"} <= text.common_table_names()
    assert SqlText("SELECT a AS b FROM c").common_table_names() == set()


def test_insert_statements():
    def parts(text):
        insert = SqlText(text).insert()
        if insert is None:
            return None
        return insert.target.text, insert.overwrite, insert.columns, insert.by_name, insert.query

    assert parts("INSERT INTO a SELECT 1;") == ("a", False, None, False, "SELECT 1")
    assert parts("insert overwrite table a.`b` (x, `y z`) values (1, 2)") == (
        "a.`b`",
        True,
        ("x", "y z"),
        False,
        "values (1, 2)",
    )
    assert parts("INSERT INTO a BY NAME SELECT 1") == ("a", False, None, True, "SELECT 1")
    assert parts("INSERT INTO a (SELECT 1)") == ("a", False, None, False, "(SELECT 1)")
    assert parts("INSERT INTO a TABLE b") == ("a", False, None, False, "TABLE b")
    for text in (
        "INSERT INTO a PARTITION (p = 1) SELECT 1",
        "INSERT INTO a REPLACE WHERE p = 1 SELECT 1",
        "INSERT INTO a VERSION AS OF 1 SELECT 1",
        "INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT 1",
        "INSERT INTO a ((1, 2)) SELECT 1",
        "INSERT INTO a",
        "SELECT 1",
    ):
        assert parts(text) is None


def test_insert_after_with_is_the_same_as_before_it():
    def moved(text):
        return SqlText(text).insert_first()

    with_names = "WITH RECURSIVE x (a) AS (SELECT 1), y AS (INSERT) "
    text = f"{with_names}INSERT INTO t (a) SELECT * FROM x -- y"
    assert moved(text) == f"INSERT INTO t (a) {with_names}SELECT * FROM x"
    text = "with x as (select 1) insert overwrite table a.`b` with z as (select 2) table z;"
    assert moved(text) == (
        "insert overwrite table a.`b` with x as (select 1) (with z as (select 2) table z)"
    )
    for text in (
        "INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "WITH x AS (SELECT 1) FROM x INSERT INTO t SELECT *",
        "WITH x AS (SELECT 1) FROM (TABLE x) INSERT INTO t SELECT *",
        "WITH insert AS (SELECT 1) SELECT * FROM insert",
        "WITH x AS (SELECT 1) INSERT INTO t PARTITION (p = 1) TABLE x",
        "WITH x AS (SELECT 1) INSERT",
        "WITH",
    ):
        assert moved(text) is None


def test_create_statements():
    formats = ("arrowlog", "io.x.y")

    def parts(text):
        create = SqlText(text).create(formats)
        return create and (create.name, create.partition_columns, create.query)

    assert parts("CREATE TABLE a USING arrowlog LOCATION '/x'") == ("a", (), None)
    text = "CREATE TABLE IF NOT EXISTS d.a USING io.x.y PARTITIONED BY (p, `q r`) AS SELECT 1 AS x"
    assert parts(text) == ("d.a", ("p", "q r"), "SELECT 1 AS x")
    create = SqlText(text).create(formats)
    assert create.if_not_exists
    assert create.header == "CREATE TABLE IF NOT EXISTS d.a USING io.x.y  "
    assert text[: create.schema_position].endswith("d.a")
    given = SqlText("CREATE TABLE a (x INT COMMENT 'USING csv') USING arrowlog").create(formats)
    assert given.schema_position is None
    for other in (
        "CREATE TABLE a USING parquet",
        "CREATE TABLE a AS SELECT 1",
        "CREATE OR REPLACE TABLE a USING arrowlog",
        "CREATE TABLE a USING arrowlog PARTITIONED BY (days(x))",
        "CREATE VIEW a AS SELECT 1",
        "SELECT 1",
    ):
        assert parts(other) is None


def test_history():
    def history(text):
        given = SqlText(text).history()
        return given and (given[0] if isinstance(given[0], str) else given[0].text, given[1])

    assert history("DESCRIBE HISTORY '/a b'") == ("/a b", None)
    assert history("desc history arrowlog.`/a` LIMIT 3;") == ("arrowlog.`/a`", 3)
    assert history("DESCRIBE HISTORY db.t") == ("db.t", None)
    assert history("DESCRIBE history") is None
    assert history("DESCRIBE HISTORY a WHERE b") is None
    assert history("DESCRIBE EXTENDED history") is None


VIEWS = {
    "CREATE OR REPLACE TEMP VIEW `a b` AS SELECT 1;": ("a b", "SELECT 1", (), True, False, None),
    "CREATE GLOBAL TEMPORARY VIEW a AS (TABLE b)": ("a", "(TABLE b)", (), False, True, None),
    "CREATE TEMP VIEW a (x, `y z`) AS SELECT 1, 2": (
        "a", "SELECT 1, 2", ("x", "y z"), False, False, None,
    ),
    "CACHE TABLE a AS SELECT 1": ("a", "SELECT 1", (), False, False, "CACHE TABLE a"),
    "cache lazy table `a b` OPTIONS ('storageLevel' = 'DISK_ONLY') SELECT 1;": (
        "a b", "SELECT 1", (), False, False,
        "cache lazy table `a b` OPTIONS ('storageLevel' = 'DISK_ONLY')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", VIEWS)
def test_statements_that_make_a_temporary_view(text):
    statement = SqlText(text)
    assert statement.makes_view()
    assert statement.temporary_view() == TemporaryViewText(*VIEWS[text])


@pytest.mark.parametrize(
    ("text", "makes_view"),
    [
        ("CREATE VIEW a AS SELECT 1", True),
        ("CREATE TEMP VIEW a (x COMMENT 'y') AS SELECT 1", True),
        ("CREATE TEMP VIEW a COMMENT 'y' AS SELECT 1", True),
        ("CREATE TEMP VIEW", True),
        ("CACHE TABLE a", True),
        ("CACHE", True),
        ("CREATE TABLE view AS SELECT 1", False),
        ("SELECT 1", False),
    ],
)
def test_other_statements_make_no_temporary_view(text, makes_view):
    assert SqlText(text).makes_view() is makes_view
    assert SqlText(text).temporary_view() is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("DESCRIBE TABLE EXTENDED events", ("events",)),
        ("DESC FORMATTED db.events", ("db", "events")),
        ("DESCRIBE TABLE extended", ("extended",)),
        ("DESCRIBE TABLE `extended`", ("extended",)),
    ],
)
def test_describe_table_statements(text, parts):
    statement = SqlText(text)
    assert statement.describes_table()
    assert [each.parts for each in statement.references()] == [parts]


@pytest.mark.parametrize("text", ["DESCRIBE SELECT 1", "DESC QUERY TABLE x", "SELECT 1"])
def test_describe_query_statements(text):
    assert not SqlText(text).describes_table()


@pytest.mark.parametrize(
    ("text", "added"),
    [
        (
            "ALTER TABLE a.b ADD COLUMNS (x INT, `y z` STRUCT<c: INT>);",
            "x INT, `y z` STRUCT<c: INT>",
        ),
        ("alter table a.b add column x DECIMAL(9, 2)", "x DECIMAL(9, 2)"),
        ("ALTER TABLE a.b ADD COLUMN (x DECIMAL(9, 2))", "x DECIMAL(9, 2)"),
        ("ALTER TABLE a.b DROP COLUMN x", None),
        ("ALTER TABLE a.b RENAME COLUMN x TO y", None),
        ("ALTER TABLE a.b ADD COLUMNS", None),
    ],
)
def test_alter_table_add_columns_statements(text, added):
    found = SqlText(text).alter()
    assert found.target.parts == ("a", "b")
    assert found.added == added


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE a RENAME TO b",
        "ALTER TABLE a SET TBLPROPERTIES ('x' = 'y')",
        "ALTER TABLE a ADD PARTITION (x = 1)",
        "ALTER VIEW a AS SELECT 1",
    ],
)
def test_other_alter_statements_are_ignored(text):
    assert SqlText(text).alter() is None


def test_create_statement_for_the_catalog_omits_partition_columns():
    made = SqlText(
        "CREATE TABLE t USING arrowlog PARTITIONED BY (a, `b c`) LOCATION '/x' AS SELECT 1"
    )
    created = made.create(("arrowlog",))
    assert created.header == "CREATE TABLE t USING arrowlog  LOCATION '/x' "
    assert created.partition_columns == ("a", "b c")
    assert created.header[: created.schema_position] == "CREATE TABLE t"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CREATE OR REPLACE TABLE a.`b c` USING arrowlog", "a.`b c`"),
        ("replace table t AS SELECT 1", "t"),
        ('REPLACE TABLE "t" AS SELECT 1', '"t"'),
        ("REPLACE TABLE identifier('a.t') AS SELECT 1", "a.t"),
        ('CREATE OR REPLACE TABLE IDENTIFIER ( "t" ) USING arrowlog', "t"),
        ("REPLACE TABLE identifier AS SELECT 1", "identifier"),
        ("REPLACE TABLE IDENTIFIER (id INT) USING arrowlog", "IDENTIFIER"),
    ],
)
def test_table_that_is_replaced(text, name):
    target, created = SqlText(text).replaced_table()
    assert target.text == name
    assert created == f"CREATE TABLE {text[text.upper().index('TABLE') + 6 :]}"


@pytest.mark.parametrize(
    "text",
    ["REPLACE TABLE", "CREATE OR REPLACE TABLE;", "REPLACE TABLE (", "REPLACE TABLE IDENTIFIER("],
)
def test_replacement_without_a_name_is_left_to_spark(text):
    assert SqlText(text).replaced_table() is None


@pytest.mark.parametrize(
    "text",
    ["CREATE TABLE", "CREATE TABLE IF NOT EXISTS;", "CREATE TABLE a (x INT) USING", "ALTER TABLE;"],
)
def test_statement_that_ends_before_a_name_is_left_to_spark(text):
    statement = SqlText(text)
    assert statement.create(["arrowlog"]) is None
    assert statement.alter() is None


@pytest.mark.parametrize("name", ["IDENTIFIER(:t)", "identifier('a' || :t)", "IDENTIFIER(t)"])
def test_table_named_by_an_expression_is_left_to_spark(name):
    assert SqlText(f"CREATE OR REPLACE TABLE {name} USING arrowlog").replaced_table() is None
    assert SqlText(f"CREATE TABLE {name} USING arrowlog").create(["arrowlog"]) is None
    created = SqlText("CREATE TABLE identifier (t INT) USING arrowlog").create(["arrowlog"])
    assert created.name == "identifier"
