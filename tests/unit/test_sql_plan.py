"""The SQL of a plan: readable text that selects the same files as the plan."""

import datetime as dt
from decimal import Decimal

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog import testing
from arrowlog.scan.sql_plan import FileQueryWriter
from arrowlog.scan.stats_predicate import Comparison

QUIET = {"checkpoint.enabled": False}
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(30, 2)),
        ("ok", pa.bool_()),
        ("box", pa.struct([("high", pa.int64()), ("a.b", pa.string())])),
    ]
)
FIRST = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
PREDICATES = [
    "day = '2024-01-02' AND id BETWEEN 5 AND 19",
    "x > 4.5 OR x IS NULL",
    "NOT (x >= 4.5)",
    "name LIKE 'n3%'",
    "name NOT LIKE 'n3%'",
    "name = 'n''3; --'",
    "name > 'n5' AND name <= 'n7'",
    "name = chr(0)",
    "at >= TIMESTAMPTZ '2024-01-05 00:00:00+00'",
    "price IN (10, 20.5, 1000000000000000000000.25)",
    "price < 1000000000000000000000.25",
    "ok",
    "NOT ok",
    "id IN (1, 12, 13, 14, 15, 16, 17, 18, 19, 52)",
    "name IN ('a', 'b', 'c', 'd', 'e', 'f', 'n1', 'n2', 'n3x')",
    "id NOT IN (10, 11) AND id IS NOT NULL",
    "year(day) = 2024 AND day + 1 = '2024-01-03'",
    "lower(name) = 'n1' AND md5(name) = 'x'",
    "box.high = 40",
    "box.\"a.b\" = 'v3'",
    "id < box.high",
    "CAST(day AS VARCHAR) = '2024-01-02'",
    "FALSE",
    "NULL",
    None,
    [("id", "in", pa.array(range(11, 4000, 37)))],
    [("name", "in", pa.array([f"n{number}y" for number in range(0, 900, 2)]))],
    [("at", "in", pa.array([FIRST + dt.timedelta(days=n, hours=n % 2) for n in range(400)]))],
    [("id", ">=", 50), ("day", "in", [dt.date(2024, 1, 2)])],
    (pc.field("id") == 33) & pc.match_substring(pc.field("name"), "3"),
]


def rows(number):
    ids = [number * 10 + row for row in range(3)]
    columns = {
        "day": [FIRST.date() + dt.timedelta(days=number % 3)] * 3,
        "id": ids,
        "x": [None, float(number), float("nan") if number == 1 else -0.0],
        "name": [f"n{number}", f"n{number}", f"n{number}x"],
        "at": [FIRST + dt.timedelta(days=number)] * 3,
        "price": [Decimal(number * 10)] * 3,
        "ok": [number % 2 == 0] * 3,
        "box": [{"high": number * 10, "a.b": f"v{number}"}] * 3,
    }
    return pa.table(columns, schema=SCHEMA)


def write(root, **properties):
    table = arrowlog.Table.create(
        root, SCHEMA, partition_columns=["day"], properties=properties, options=QUIET
    )
    for number in range(8):
        table.write(rows(number))
    return table


def plain(root):
    return write(root)


def with_checkpoint(root):
    table = write(root)
    table.checkpoint()
    table.write(rows(8))
    return arrowlog.Table(root)


def with_state(root):
    table = write(root)
    table.upgrade_protocol(4, 4)
    table.checkpoint()
    return arrowlog.Table(root)


def delta(root):
    for number in range(8):
        deltalake.write_deltalake(str(root), rows(number), mode="append", partition_by=["day"])
    return arrowlog.Table(root)


@pytest.mark.thorough
@pytest.mark.promise("scan.engines_agree")
@pytest.mark.parametrize("make", [plain, with_checkpoint, with_state, delta])
def test_sql_query_selects_the_files_of_the_plan(make, tmp_path):
    table = make(tmp_path / "t")
    dropped = 0
    with table.connect() as con:
        for predicate in PREDICATES:
            for version in (table.version, 4):
                plan = table.scan(predicate, version)
                by_duckdb = table.scan(predicate, version, engine="duckdb")
                assert by_duckdb.paths == plan.paths, plan.sql
                found = con.sql(plan.sql)
                assert found.columns[0] == "path"
                paths = [row[0] for row in found.fetchall()]
                assert sorted(paths) == sorted(plan.paths), plan.sql
                dropped += plan.total_files - plan.num_files
    assert dropped > 100


def test_sql_text_is_readable(tmp_path):
    plan = write(tmp_path).scan(
        "day = '2024-01-02' AND id BETWEEN 5 AND 9 AND x > 1 AND id % 2 = 0"
    )
    assert plan.sql == (
        "-- Files of version 8 that may have rows for: (day = '2024-01-02')"
        " AND (id BETWEEN 5 AND 9) AND (x > 1) AND ((id % 2) = 0)\n"
        "SELECT path\n"
        "FROM file_bounds_at(8)\n"
        'WHERE (coalesce("partition.day" = DATE \'2024-01-02\', FALSE) OR "unreadable.day")'
        " IS NOT FALSE\n"
        '  AND ("max.id" >= 5 AND "min.id" <= 9 AND "null_count.id" <> num_records) IS NOT FALSE\n'
        '  AND (("max.x" > 1.0 OR "nan_count.x" <> 0) AND "null_count.x" <> num_records)'
        " IS NOT FALSE\n"
        f"  AND (TRUE /* {plan.test.parts[3].why}: (id % 2) = 0 */) IS NOT FALSE"
    )


def test_column_names_are_quoted(tmp_path):
    names = ['a "b".c', "A", "min.id", "spaced out", "select", "é{}", "'"]
    schema = pa.schema([("p.q", pa.string()), *((name, pa.int64()) for name in names)])
    table = arrowlog.Table.create(tmp_path, schema, ["p.q"])
    for number in range(4):
        columns = {"p.q": [f"{{{number}}}"], **{name: [number] for name in names}}
        table.write(pa.table(columns, schema=schema))
    for name in [*names, "p.q"]:
        value = "{2}" if name == "p.q" else 2
        plan = table.scan([(name, "=", value)])
        assert plan.num_files == 1
        assert table.query(plan.sql)["path"].to_pylist() == plan.paths
        assert table.scan([(name, "=", value)], engine="duckdb").paths == plan.paths


def test_unreadable_and_unknown_values_keep_their_files(tmp_path):
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64())])
    opening = [testing.protocol(), testing.metadata(schema, ["day"])]
    testing.write_commit(tmp_path, 0, opening)
    known = {"minValues": {"id": "5"}, "maxValues": {"id": "6"}}
    adds = [
        testing.add("good", {"day": "2024-01-01"}, **known),
        testing.add("bad", {"day": "someday"}, **known),
        testing.add("null", {"day": None}, **known),
        testing.add("unknown", {"day": "2024-01-01"}),
        testing.add("crossed", {"day": "2024-01-01"}, minValues={"id": "9"}, maxValues={"id": "1"}),
        testing.add("other", {"day": "2024-01-02"}, minValues={"id": "7"}, maxValues={"id": "8"}),
    ]
    testing.write_commit(tmp_path, 1, adds)
    table = arrowlog.Table(tmp_path)
    wanted = {
        "day = '2024-01-01' AND id = 5": ["bad", "crossed", "good", "unknown"],
        "day IS NULL": ["bad", "null"],
        "id > 6": ["crossed", "other", "unknown"],
        "year(day) + 0 = 2024 AND id > 6": ["crossed", "other", "unknown"],
    }
    for predicate, paths in wanted.items():
        plan = table.scan(predicate)
        assert sorted(plan.paths) == paths
        assert sorted(table.query(plan.sql)["path"].to_pylist()) == paths
        assert sorted(table.scan(predicate, engine="duckdb").paths) == paths


def test_failed_evaluation_of_one_value_keeps_its_file(tmp_path):
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    table = arrowlog.Table.create(tmp_path, schema, ["p"])
    table.write(pa.table({"p": ["1", "2", "x"], "id": [1, 2, 3]}, schema=schema))
    plan = table.scan("CAST(p AS INTEGER) = 2")
    assert sorted(path.split("/")[0] for path in plan.paths) == ["p=2", "p=x"]
    assert sorted(table.query(plan.sql)["path"].to_pylist()) == sorted(plan.paths)
    assert table.scan("CAST(p AS INTEGER) = 2", engine="duckdb").paths == plan.paths


def test_file_bounds_of_every_version(tmp_path):
    table = write(tmp_path)
    counts = "SELECT version, count(*) AS n FROM file_bounds_by_version GROUP BY ALL ORDER BY ALL"
    assert table.query(counts).to_pydict() == {"version": [*range(1, 9)], "n": [*range(1, 9)]}
    assert table.query("FROM file_bounds_at(3)").num_rows == 3
    assert table.query("FROM file_bounds").num_rows == 8
    bounds = table.query('SELECT "min.box.high", "max.at" FROM file_bounds ORDER BY ALL')
    assert bounds["min.box.high"].to_pylist() == [number * 10 for number in range(8)]
    # A maximum that may have been cut to milliseconds is widened.
    assert bounds["max.at"][0].as_py() == FIRST + dt.timedelta(microseconds=999)
    with pytest.raises(arrowlog.InvalidRequest, match="There is no version 9; known are"):
        table.query("FROM file_bounds_at(9)")


def test_column_of_another_type_at_an_earlier_version(tmp_path):
    """Bounds that do not fit the latest type are unknown, never wrong."""
    old, new = pa.schema([("id", pa.string())]), pa.schema([("id", pa.int64())])
    opening = [testing.protocol(), testing.metadata(old)]
    testing.write_commit(tmp_path, 0, opening)
    low = testing.add("a", minValues={"id": "a"}, maxValues={"id": "b"})
    testing.write_commit(tmp_path, 1, [low])
    testing.write_commit(tmp_path, 2, [testing.metadata(new)])
    table = arrowlog.Table(tmp_path)
    found = table.query('SELECT path, "min.id" FROM file_bounds_at(1)')
    assert found.to_pydict() == {"path": ["a"], "min.id": [None]}


def test_unknown_engine_is_refused(tmp_path):
    with pytest.raises(arrowlog.InvalidRequest, match='"arrow" or "duckdb"'):
        write(tmp_path).scan("id = 1", engine="spark")


def test_unknown_test_keeps_every_file():
    writer = FileQueryWriter(SCHEMA, ["day"])

    class Novel(Comparison):
        pass

    assert writer.condition(Novel("id", "=", 1, 1)) == "TRUE"
    assert not writer.columns


@pytest.mark.parametrize(
    ("kind", "value", "same"),
    [
        (pa.float64(), 0.1, "CAST('0.1' AS DOUBLE)"),
        (pa.float64(), 0.30000000000000004, "CAST('0.30000000000000004' AS DOUBLE)"),
        (pa.float64(), 5e-324, "CAST('5e-324' AS DOUBLE)"),
        (pa.float64(), float("inf"), "CAST('inf' AS DOUBLE)"),
        (pa.float64(), 123456789012345678.0, "CAST('123456789012345678' AS DOUBLE)"),
        (pa.int64(), -(2**63), "CAST('-9223372036854775808' AS BIGINT)"),
        (pa.decimal128(38, 0), Decimal(10**37), f"CAST('{10**37}' AS DECIMAL(38, 0))"),
        (pa.date32(), -800_000, "DATE '1970-01-01' - 800000"),
        (pa.date32(), 2**31 - 1, "DATE 'infinity'"),
        (pa.timestamp("us"), 2**63 - 1, "TIMESTAMP 'infinity'"),
        (pa.timestamp("us"), -(10**17), "make_timestamp(-100000000000000000)"),
        (pa.timestamp("us", "UTC"), 1, "make_timestamptz(1)"),
        (pa.string(), "it's\0 {x}\n", "'it''s' || chr(0) || ' {x}' || chr(10)"),
        (pa.bool_(), 1, "TRUE"),
    ],
    ids=str,
)
def test_literals_are_exact(kind, value, same):
    writer = FileQueryWriter(pa.schema([("c", kind)]), ["c"])
    literal = writer._value(value, "c")
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        assert con.sql(f"SELECT {literal} = {same}").fetchall() == [(True,)], literal
