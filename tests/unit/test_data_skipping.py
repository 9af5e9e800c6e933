"""Data skipping, rule by rule: which files may be skipped and which may not."""

import json

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog import testing

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("place", pa.string()),
        ("num", pa.int32()),
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("r", pa.float32()),
        ("pf", pa.float64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("big", pa.decimal128(38, 10)),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("on", pa.date32()),
        ("ok", pa.bool_()),
        ("inner", pa.struct([("k", pa.int64())])),
    ]
)
PARTITIONS = ["day", "place", "num", "pf"]


@pytest.fixture
def plan(root):
    """Plan over files given as keyword arguments of an add."""

    def make(where, *adds, schema=SCHEMA, partitions=PARTITIONS):
        opening = [testing.protocol(), testing.metadata(schema, partitions)]
        testing.write_commit(root, 0, opening)
        actions = [testing.add(f"{number}", **fields) for number, fields in enumerate(adds)]
        testing.write_commit(root, 1, actions)
        return arrowlog.Table(root).scan(where)

    return make


def bounds(low, high, column="id", **fields):
    return {"minValues": {column: low}, "maxValues": {column: high}, **fields}


def stats(**found):
    return {"stats": json.dumps(found)}


ID = [bounds("0", "9"), bounds("10", "19"), bounds("20", "29"), {}]
POWER = [
    ("id = 15", "13"),
    ("15 = id", "13"),
    ("id = 9", "03"),
    ("id <=> 9", "03"),
    ("id < 10", "03"),
    ("id <= 10", "013"),
    ("id > 19", "23"),
    ("id >= 19", "123"),
    ("id BETWEEN 9 AND 10", "013"),
    ("NOT (id < 20)", "23"),
    ("NOT id BETWEEN 5 AND 25", "023"),
    ("id IN (3, 25)", "023"),
    ("id IN (3, 9, 25, 1000, 2000, 3000)", "023"),
    ("id = 3 OR id = 25", "023"),
    ("id = 3 AND id = 25", "3"),
    ("id < 1.5", "03"),
    ("id >= 9.5", "123"),
    ("id > 9.5e0", "123"),
    ("id <= 9.5", "03"),
    ("NOT (id > 9.5)", "03"),
    ("id >= 9.0000000000000000001", "0123"),
    ("CAST(id AS HUGEINT) = 15", "13"),
    ("id::BIGINT IN (3, 25)", "023"),
    ("15 > CAST(id AS BIGINT)", "013"),
    ("id::BIGINT BETWEEN 9 AND 10", "013"),
    ("id::INTEGER = 15", "13"),
    ("id = 3 OR id = 25 OR 8 = id", "023"),
    ("id <> 15 AND id <> 16", "0123"),
    ("id IN (3, 25) AND id NOT IN (4, 5)", "023"),
    ("id = 9.5", "013"),
    ("id = '15'", "13"),
    ("id > 9223372036854775807", "3"),
    ("id > 9223372036854775808", "3"),
    ("id = NULL", ""),
    ("id NOT IN (1, NULL)", ""),
    ("FALSE", ""),
    ("NULL", ""),
    ("id = 15 AND foo(id)", "13"),
    ([("id", ">", 19)], "23"),
    ([[("id", "=", 3)], [("id", "=", 25)]], "023"),
    (pl.col("id").is_between(10, 12), "13"),
    (pc.field("id") == 15, "13"),
]


@pytest.mark.parametrize(("where", "kept"), POWER, ids=range(len(POWER)))
def test_sorted_files_are_skipped_by_range(plan, where, kept):
    assert "".join(plan(where, *ID).paths) == kept


LETTERS = ", ".join(f"'{letter}'" for letter in "abcdefghijklmnopqrstuvwx")
KEPT = [
    (f"name IN ({LETTERS})", bounds("m", "m", "name")),
    ("id = 15 OR foo(id)", bounds("0", "9")),
    ("id = 15 OR lower(name) = 'a'", bounds("0", "9")),
    ("NOT (foo(id) AND id = 15)", bounds("15", "15")),
    ("id = 15", bounds(None, "19")),
    ("id = 15", bounds("10", None)),
    ("id = 15", bounds("ten", "nine")),
    ("id = 15", bounds("20", "10")),
    ("id IS NULL", {}),
    ("id IS NULL", bounds("1", "1")),
    ("id IS NULL", stats(nullCount={"id": 1})),
    ("id IS NOT NULL", stats(numRecords=5, nullCount={"id": 4})),
    ("id = 1", bounds("1", "1", numRecords=1, **stats(nullCount={"id": 1}))),
    ("isnan(x)", stats(nanCount={"x": 1})),
    ("isnan(x)", {}),
    ("NOT isnan(x)", stats(nanCount={"x": 0})),
    ("isnan(x) IS NOT TRUE", stats(nanCount={"x": 0})),
    ("isnan(x) IS NULL", stats(nanCount={"x": 0})),
    ("x > 5", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 1}))),
    ("x > 5", bounds("1.0", "3.0", "x", **stats(nanCount={"x": -1}))),
    ("x > 5", bounds("1.0", "3.0", "x", **stats(nanCount={"x": "none"}))),
    ("x > 5", bounds("1.0", "3.0", "x", **stats(nanCount={"r": 0}))),
    ("x > 5", bounds("1.0", None, "x", **stats(nanCount={"x": 0}))),
    ("x >= 3", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 0}))),
    ("x <> 1", bounds("1.0", "1.0", "x", **stats(nanCount={"x": 1}))),
    ("NOT (x <= 5)", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 1}))),
    ("x >= 0", bounds("-0.0", "-0.0", "x", **stats(nanCount={"x": 0}))),
    ("x <= -0.0", bounds("0.0", "0.0", "x", **stats(nanCount={"x": 0}))),
    ("id <> 5", bounds("5", "6")),
    ("id = 9007199254740992e0", bounds("9007199254740993", "9007199254740993")),
    ("x > 5", bounds("1.0", "3.0", "x")),
    ("x >= 5 OR x < 0", bounds("1.0", "3.0", "x")),
    ("x <> 3", bounds("3.0", "3.0", "x")),
    ("NOT (x <= 5)", bounds("1.0", "3.0", "x")),
    ("x = CAST('NaN' AS DOUBLE)", bounds("1.0", "3.0", "x")),
    ("x < 5", bounds("NaN", "NaN", "x")),
    ("x = 7", bounds("1.0", "Infinity", "x")),
    ("x = 0", bounds("-0.0", "-0.0", "x")),
    ("r = 0.1", bounds("0.1", "0.1", "r")),
    ("name = 'abcd'", bounds("a", "abc", "name")),
    ("name > 'abc'", bounds("a", "abc", "name")),
    ("name >= 'abcz'", bounds("a", "abc", "name")),
    ("name LIKE 'abcd%'", bounds("a", "abc", "name")),
    ("name <> 'abc'", bounds("abc", "abc", "name")),
    ("name = 'zzz'", bounds("a", "zz [TRUNCATED]", "name")),
    ("name = 'b'", bounds("😀", "😀", "name")),
    ("name = '\uffee'", bounds("a", "b", "name")),
    ("name = '\uffee'", bounds("\uffee", "😀", "name")),
    ("name > 'a\ue000'", bounds("a", "a😀", "name")),
    ("name LIKE 'a_c'", bounds("abc", "abc", "name")),
    ("name LIKE '%c'", bounds("abc", "abc", "name")),
    (r"name LIKE 'a\_c%'", bounds("a_c", "a_c", "name")),
    (r"name LIKE 'a!_c%' ESCAPE '!'", bounds("a_c", "a_c", "name")),
    ("name NOT LIKE 'a%'", bounds("a", "b", "name")),
    ("name NOT LIKE 'a%b'", bounds("a", "ab", "name")),
    ("name = 10", bounds("1", "2", "name")),
    ("name = 10", bounds("010", "010", "name")),
    ("name IN ('10', 10)", bounds("010", "010", "name")),
    ("id IN (9007199254740993, 1e0)", bounds(*["9007199254740992"] * 2)),
    ("id IN ('9007199254740993', 1e0)", bounds(*["9007199254740992"] * 2)),
    ("id BETWEEN 9007199254740993 AND 1e300", bounds(*["9007199254740992"] * 2)),
    ("id NOT IN (9007199254740993, 1e0)", bounds("9007199254740992", "9007199254740995")),
    ("big IN (12345678901234568e0, 1)", bounds(*["12345678901234567.5"] * 2, "big")),
    ("id = 'abc'", bounds("1", "2")),
    ("ok", bounds("false", "true", "ok")),
    ("price = 1.235", bounds("1.23", "1.24", "price")),
    ("price > 1.2e0", bounds("1.20", "1.20001", "price")),
    ("big = 12345678901234567.1e0", bounds("12345678901234568", "12345678901234568", "big")),
    ("big = 12345678901234568e0", bounds(*["12345678901234567.5"] * 2, "big")),
    ("at = '2024-01-01 00:00:00.123456'", bounds(*["2024-01-01T00:00:00.123Z"] * 2, "at")),
    ("at > '2024-01-01T00:00:00Z'", bounds(*["2024-01-01T00:00:00Z"] * 2, "at")),
    ("at < '1969-12-31 23:59:59.9995'", bounds(*["1970-01-01T00:00:00Z"] * 2, "at")),
    ("at = '2024-01-01 00:00:00'", bounds("1704067", "1704068", "at")),
    (
        "wall > TIMESTAMPTZ '2024-01-01 00:00:00+00'",
        bounds(*["2024-01-01T00:00:00.5Z"] * 2, "wall"),
    ),
    ("wall > '2024-01-01 00:00:00+14'", bounds(*["2023-12-31T12:00:00.5Z"] * 2, "wall")),
    ("\"on\" > TIMESTAMPTZ '2024-01-01 12:00:00+00'", bounds(*["2024-01-02"] * 2, "on")),
    ("at::DATE = '2024-01-02'", bounds(*["2024-01-02T23:59:59.999Z"] * 2, "at")),
    ("date(at) <> '2024-01-02'", bounds("2024-01-02T00:00:00Z", "2024-01-03T00:00:00Z", "at")),
    ("CAST(wall AS DATE) > '2024-01-01'", bounds(*["2024-01-02T00:00:00Z"] * 2, "wall")),
    ("day::TIMESTAMP < '2024-01-01 12:00:00'", {"partition_values": {"day": "2024-01-01"}}),
    ("day::TIMESTAMP < '2024-01-01T12:00:00+14'", {"partition_values": {"day": "2024-01-01"}}),
    ("id = CAST(16777216 AS FLOAT)", bounds("16777217", "16777217")),
    ("id IN (CAST(1 AS FLOAT), 16777216)", bounds("16777217", "16777217")),
    ("price = CAST(99999.99 AS FLOAT)", bounds("99999.98", "99999.98", "price")),
    ("num = CAST(16777216 AS FLOAT)", {"partition_values": {"num": "16777217"}}),
    ("num IS TRUE", {"partition_values": {"num": "5"}}),
    ("num IS NOT FALSE", {"partition_values": {"num": "5"}}),
    ("(num AND day IS NULL) IS TRUE", {"partition_values": {"num": "5"}}),
    ("pf IS TRUE", {"partition_values": {"pf": "2.0"}}),
    ("pf IS FALSE", {"partition_values": {"pf": "-0.0"}}),
    ("place ~ 'b'", {"partition_values": {"place": "abc"}}),
    ("place !~ '^b'", {"partition_values": {"place": "abc"}}),
    ("x NOT IN (1e0, 2e0)", bounds("1.0", "1.0", "x")),
    ("x <> 1e0 AND x <> 2e0 AND id < 5", bounds("1.0", "1.0", "x")),
    ("name NOT IN ('a', 'b')", bounds("a", "a", "name")),
    ("num NOT IN (4, 5)", {"partition_values": {"num": "6"}}),
    (f"name IN ({LETTERS})", bounds("kk", "l", "name")),
    (f"name IN ('lx', {LETTERS})", bounds("la", "l", "name")),
    (f"name IN ('lx', {LETTERS})", bounds("lb", "l", "name")),
    ("price IN (1.23, 1.25, 7)", bounds("1.24", "1.26", "price")),
    ("id IN (3, 25)", bounds(None, "4")),
    (
        "at > TIMESTAMP '2024-01-01' + INTERVAL 1.5 DAY",
        bounds(*["2024-01-02T06:00:00.5Z"] * 2, "at"),
    ),
    ("\"on\" > TIMESTAMP '2024-01-01 12:00:00'", bounds("2024-01-02", "2024-01-02", "on")),
    ("\"on\" <= '2024-01-01 12:00:00'", bounds("2024-01-01", "2024-01-01", "on")),
    ("inner.k = 5", {"minValues": {"k": "1", "inner.k": "1"}, "maxValues": {"k": "2"}}),
    ("day > '2024-01-01'", {"partition_values": {"day": "yesterday"}}),
    ("day IS NOT NULL", {"partition_values": {"day": "yesterday"}}),
    ("day IS NULL", {"partition_values": {"day": "yesterday"}}),
    ("year(day) = 1999", {"partition_values": {"day": "yesterday"}}),
    ("num > 9", {"partition_values": {"num": "10"}}),
    ("pf IN (-0.0e0, 1e0)", {"partition_values": {"pf": "0.0"}}),
    ("pf IN (0.0e0, 1e0)", {"partition_values": {"pf": "-0.0"}}),
    ("pf = 0", {"partition_values": {"pf": "-0.0"}}),
    ("pf <=> -0.0", {"partition_values": {"pf": "0"}}),
    ("x IN (-0.0e0, 7e0)", bounds("0.0", "0.0", "x")),
    ("x IN (0.0e0, 7e0)", bounds("-0.0", "-0.0", "x")),
    ("place < 'b'", {"partition_values": {"place": "10"}}),
    ("place = '😀/=%'", {"partition_values": {"place": "😀/=%"}}),
    ("CAST(place AS INT) = 1", {"partition_values": {"place": "x"}}),
    ("day IS NULL", {"partition_values": {"day": ""}}),
    ("day IS NULL", {"partition_values": {"day": "__HIVE_DEFAULT_PARTITION__"}}),
    ("day IS NULL AND place IS NULL", {}),
]


@pytest.mark.parametrize(("where", "add"), KEPT, ids=range(len(KEPT)))
def test_files_that_may_match_are_kept(plan, where, add):
    assert plan(where, add).num_files == 1


DROPPED = [
    (f"name IN ({LETTERS})", bounds("y", "z", "name")),
    ("id IS NULL", stats(nullCount={"id": 0})),
    ("id IS NOT NULL", stats(numRecords=5, nullCount={"id": 5})),
    ("id <> 7", stats(numRecords=5, nullCount={"id": 5})),
    ("id <> 5", bounds("5", "5")),
    ("id NOT IN (4, 5)", bounds("5", "5")),
    ("id <> 4 AND id <> 5", bounds("5", "5")),
    ("id > CAST(5.5 AS FLOAT)", bounds("4", "5")),
    ("r = CAST(0.1 AS FLOAT)", bounds("0.2", "0.3", "r")),
    ("x NOT IN (1e0, 2e0) AND x < 5", bounds("1.0", "1.0", "x")),
    ("num NOT IN (4, 5)", {"partition_values": {"num": "5"}}),
    ("num NOT IN (4, 5)", {}),
    ("num IS TRUE", {"partition_values": {"num": "0"}}),
    ("id IN (3, 25)", bounds(None, "2")),
    ("id IN (3, 25)", bounds("26", None)),
    (f"name IN ({LETTERS})", bounds("bb", "bc", "name")),
    ("price IN (1.23, 1.25, 7)", bounds("1.24", "1.24", "price")),
    ("price IN (1.23, 1.25, 7)", bounds("8", None, "price")),
    (
        "wall > TIMESTAMPTZ '2024-01-01 00:00:00+00'",
        bounds(*["2023-01-01T00:00:00.5Z"] * 2, "wall"),
    ),
    ("\"on\" > TIMESTAMPTZ '2024-01-01 12:00:00+00'", bounds(*["2024-01-01"] * 2, "on")),
    ("\"on\"::TIMESTAMP > '2024-01-01 12:00:00'", bounds(*["2024-01-01"] * 2, "on")),
    ("at::DATE = '2024-01-02'", bounds(*["2024-01-03T00:00:00.001Z"] * 2, "at")),
    ("at::DATE <> '2024-01-02'", bounds(*["2024-01-02T10:00:00.5Z"] * 2, "at")),
    ("at::DATE IN ('2024-01-02', '2024-01-04')", bounds(*["2024-01-03T00:00:00.5Z"] * 2, "at")),
    (
        "at::DATE NOT BETWEEN '2024-01-02' AND '2024-01-03'",
        bounds(*["2024-01-03T00:00:00.5Z"] * 2, "at"),
    ),
    ("to_date(wall) <= '2024-01-02'", bounds(*["2024-01-03T00:00:00.001Z"] * 2, "wall")),
    ("isnan(x)", stats(nanCount={"x": 0})),
    ("isnan(x)", stats(numRecords=5, nullCount={"x": 5})),
    ("isnan(x) IS TRUE", stats(nanCount={"x": 0})),
    ("isnan(r) AND id > 5", stats(nanCount={"r": 0})),
    ("x > 5", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 0}))),
    ("x >= 5", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 0}))),
    ("NOT (x <= 5)", bounds("1.0", "3.0", "x", **stats(nanCount={"x": 0}))),
    ("r > 5", bounds("1.0", "3.0", "r", **stats(nanCount={"r": 0}))),
    ("x <> 1", bounds("1.0", "1.0", "x", **stats(nanCount={"x": 0}))),
    ("x NOT IN (1, 2)", bounds("1.0", "1.0", "x", **stats(nanCount={"x": 0}))),
    ("x <> 0", bounds("-0.0", "0.0", "x", **stats(nanCount={"x": 0}))),
    ("x NOT IN (0, 7)", bounds("-0.0", "-0.0", "x", **stats(nanCount={"x": 0}))),
    ("x > 0", bounds("-0.0", "-0.0", "x", **stats(nanCount={"x": 0}))),
    ("x > 5 AND x < 9", bounds("1.0", "3.0", "x")),
    ("x BETWEEN 5 AND 9", bounds("1.0", "3.0", "x")),
    ("x = 5", bounds("1.0", "3.0", "x")),
    ("x < 1", bounds("1.0", "3.0", "x")),
    ("r = 5", bounds("1.0", "3.0", "r")),
    ("name = 'abd'", bounds("a", "abc", "name")),
    ("name > 'b'", bounds("a", "abc", "name")),
    ("name < 'a'", bounds("a", "abc", "name")),
    ("name LIKE 'b%'", bounds("a", "abc", "name")),
    ("name LIKE 'b_c'", bounds("a", "abc", "name")),
    ("name LIKE 'a%'", bounds("b", "c", "name")),
    ("starts_with(name, 'ab')", bounds("ac", "b", "name")),
    ("name NOT LIKE 'ab%'", bounds("aba", "abc", "name")),
    ("name IN ('b', 'c')", bounds("d", "e", "name")),
    ("id BETWEEN 20 AND 30.5", bounds("1", "9")),
    ("id IN (20, 30.5, 1e3)", bounds("1", "9")),
    (
        "at BETWEEN DATE '2024-01-01' AND TIMESTAMP '2024-01-02 12:00:00'",
        bounds(*["2023-01-01T00:00:00.5Z"] * 2, "at"),
    ),
    ("ok", bounds("false", "false", "ok")),
    ("NOT ok", bounds("true", "true", "ok")),
    ("price > 1.239", bounds("1.20", "1.23", "price")),
    ("price IN (5, 6)", bounds("1.20", "1.23", "price")),
    ("big = 12345678901234567.1", bounds("12345678901234568", "12345678901234568", "big")),
    ("at > '2024-01-01 00:00:00.124'", bounds(*["2024-01-01T00:00:00.123Z"] * 2, "at")),
    ("at < DATE '2024-01-01'", bounds(*["2024-01-01T00:00:00.5Z"] * 2, "at")),
    ("at > '2024-01-01 02:00:00+02:00'", bounds(*["2023-01-01T00:00:00.5Z"] * 2, "at")),
    ("\"on\" > TIMESTAMP '2024-01-01 12:00:00'", bounds("2024-01-01", "2024-01-01", "on")),
    ("id = 5", stats(minValues={"id": 6}, maxValues={"id": 9})),
    ("day > '2024-01-01'", {"partition_values": {"day": "2024-01-01"}}),
    ("day = '2024-01-01'", {"partition_values": {"day": None}}),
    ("day <> '2024-01-01'", {}),
    ("NOT (day = '2024-01-01')", {}),
    ("year(day) = 2023", {"partition_values": {"day": "2024-01-01"}}),
    ("num < 9", {"partition_values": {"num": "10"}}),
    ("num = 1.5", {"partition_values": {"num": "1"}}),
    ("place LIKE '%z'", {"partition_values": {"place": "x/y"}}),
    ("place || num = 'b1'", {"partition_values": {"place": "a", "num": "1"}}),
    ("place IN ('a', 'b')", {"partition_values": {"place": "c"}}),
    ("day IS NOT NULL", {"partition_values": {"day": ""}}),
    ("place IS NULL", {"partition_values": {"place": ""}}),
]


@pytest.mark.parametrize(("where", "add"), DROPPED, ids=range(len(DROPPED)))
def test_files_that_cannot_match_are_skipped(plan, where, add):
    assert plan(where, add).num_files == 0


MANY = " AND ".join(f"id >= {low} AND id <= {30 - low}" for low in range(-9, 6))


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (MANY, "0123"),
        (f"{MANY} AND id >= 12", "123"),
        (f"id > 19 AND {MANY}", "23"),
        (f"{MANY} AND id < 7", "03"),
        (f"{MANY} AND id < 7.5e0 AND id < 9.5e0", "03"),
        (f"{MANY} AND id < 1e300 AND id > -1e300", "0123"),
        (f"{MANY} AND id <= 'NaN'::DOUBLE", "0123"),
        (f"{MANY} AND id > NULL", ""),
        (f"NOT ({MANY})", "023"),
        (f"({MANY}) IS NULL", "0123"),
    ],
)
def test_strongest_of_many_bounds_applies(plan, where, kept):
    assert "".join(plan(where, *ID).paths) == kept


def test_maps_win_over_the_stats_text(plan):
    both = bounds("1", "2", **stats(minValues={"id": 100}, maxValues={"id": 200}))
    assert plan("id = 150", both).num_files == 0


def test_added_column_keeps_old_files(plan):
    schema = pa.schema([*SCHEMA, ("later", pa.int64())])
    assert plan("later = 5", bounds("1", "2"), schema=schema).num_files == 1


def test_partition_column_missing_from_the_schema_is_text(plan):
    adds = [{"partition_values": {"hour": hour}} for hour in ("9", "10", None)]
    found = plan("hour > '10'", *adds, partitions=["hour"])
    assert found.paths == ["0"]
    assert found.explain().clauses[0].files_dropped == 2


def test_statistics_of_unknown_columns_are_ignored(plan):
    with pytest.raises(arrowlog.InvalidRequest, match="no column 'ghost'"):
        plan("ghost = 5", bounds("1", "2", "ghost"))


def test_column_names_may_have_any_characters(plan):
    odd = ['sp ace "q"', "dot.ted", "partition.x", "min.x", "a'b", "`tick`"]
    schema = pa.schema([(name, pa.int64()) for name in odd])
    for name in odd[:3]:
        quoted = '"' + name.replace('"', '""') + '"'
        found = plan(
            f"{quoted} = 5",
            {"partition_values": {name: "5"}},
            {"partition_values": {name: "6"}},
            schema=schema,
            partitions=odd[:3],
        )
        assert found.paths == ["0"], name
    for name in odd[3:]:
        found = plan(
            [(name, "=", 5)],
            bounds("5", "6", name),
            bounds("6", "7", name),
            schema=schema,
            partitions=odd[:3],
        )
        assert found.paths == ["0"], name


def test_plans_are_right_after_a_refresh(root):
    opening = [testing.protocol(), testing.metadata(SCHEMA, PARTITIONS)]
    testing.write_commit(root, 0, opening)
    testing.write_commit(
        root, 1, [testing.add(f"a{i}", **bounds(f"{i}", f"{i}")) for i in range(9)]
    )
    table = arrowlog.Table(root)
    assert table.scan("id = 3").paths == ["a3"]
    testing.write_commit(root, 2, [testing.remove("a3"), testing.add("b", **bounds("3", "9"))])
    assert table.scan("id = 3").paths == ["b"]
    assert table.scan("id = 4").paths == ["a4", "b"]
    assert table.scan("id = 3", version=1).paths == ["a3"]
    many = [testing.add(f"c{i}", **bounds(f"{i}", f"{i}")) for i in range(200)]
    testing.write_commit(root, 3, many)
    assert sorted(table.scan("id = 4").paths) == ["a4", "b", "c4"]
    assert sorted(table.scan("id = 150").paths) == ["c150"]


NAN_PARTITIONS = ["NaN", "Infinity", "1.0", "0.0", "-0.0", "-Infinity", None]
NAN_QUESTIONS = [
    "b >= 0.0",
    "b > 'Infinity'::DOUBLE",
    "NOT (b < 5.0)",
    "NOT (b <= 5.0) OR b IS NULL",
    "b BETWEEN 0.0 AND 'NaN'::DOUBLE",
    "b < 0.0",
    "b <= 'NaN'::DOUBLE",
    "b <> 1.0",
    "b = 'NaN'::DOUBLE",
    "b IN ('NaN'::DOUBLE, 1.0)",
    "b NOT IN (1.0)",
    "b = 0.0",
]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize("form", ["commits", "checkpoint", "state"])
def test_partition_value_nan_is_greater_than_every_number(root, kind, form):
    schema = pa.schema([("id", pa.int64()), ("b", kind)])
    adds = [testing.add(str(p), {"b": p}, numRecords=1) for p in NAN_PARTITIONS]
    first = [testing.protocol(), testing.metadata(schema, ["b"])]
    testing.write_commit(root, 0, [*first, *adds])
    if form == "checkpoint":
        arrowlog.Table(root).checkpoint()
    elif form == "state":
        arrowlog.Table(root).upgrade_protocol(4, 4)
    table = arrowlog.Table(root)
    values = pa.table({"b": [None if p is None else float(p) for p in NAN_PARTITIONS]})
    named = values.cast(pa.schema([("b", kind)])).append_column(
        "p", [list(map(str, NAN_PARTITIONS))]
    )
    rows = duckdb.from_arrow(named)
    for where in NAN_QUESTIONS:
        expected = sorted(path for (path,) in rows.filter(where).select("p").fetchall())
        for engine in ("arrow", "duckdb"):
            plan = table.scan(where, engine=engine)
            assert sorted(plan.paths) == expected, where
            assert plan.count() == len(expected)
    assert table.scan().max("b") is None
    assert table.scan("b <= 1.0").max("b") == 1.0
    table.drop_partitions("b > 1.0")
    assert sorted(table.snapshot().files["path"].to_pylist()) == sorted(
        map(str, NAN_PARTITIONS[2:])
    )
