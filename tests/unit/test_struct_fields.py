"""Struct fields: statistics in the log, unambiguous names, and data skipping in every form."""

import datetime as dt
import json

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog import testing
from arrowlog.errors import InvalidRequest
from arrowlog.formats import leaf_name, struct_leaves

INNER = pa.struct([("at", pa.timestamp("us")), ("x", pa.float64())])
STRUCT = pa.struct([("b", pa.int64()), ("s", pa.string()), ("in", INNER)])
SCHEMA = pa.schema([("id", pa.int64()), ("a", STRUCT), ("n.m", pa.int64())])
FILES = 6
MIDNIGHT = dt.datetime.fromisoformat("2024-01-01")


def file_rows(number):
    """Four rows: the first has a NULL struct, all of the last file have one."""
    rows = []
    for at in range(4):
        inner = {"at": MIDNIGHT + dt.timedelta(days=number, hours=at), "x": number + at / 10}
        value = {"b": number * 10 + at, "s": f"v{number}{at}", "in": inner}
        is_null = at == 0 or number == FILES - 1
        rows.append({"id": number * 10 + at, "a": None if is_null else value, "n.m": -number})
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.fixture
def table(tmp_path):
    made = arrowlog.Table.create(tmp_path / "t", SCHEMA)
    for number in range(FILES):
        made.write(file_rows(number))
    return made


A_B = pl.col("a").struct.field("b")
QUESTIONS = [
    ("a.b = 33", 1, [33]),
    ('A."B" = 33', 1, [33]),
    ("33 >= a.b AND a.b > 22", 2, [23, 31, 32, 33]),
    ("a.b IN (11, 33, 77)", 2, [11, 33]),
    ("a.b BETWEEN 12 AND 21", 2, [12, 13, 21]),
    ("NOT (a.b < 42)", 1, [42, 43]),
    ("a.b IS NULL", FILES, [0, 10, 20, 30, 40, 50, 51, 52, 53]),
    ("a.b IS NOT NULL AND id >= 41", 1, [41, 42, 43]),
    ("a.s LIKE 'v3%'", 1, [31, 32, 33]),
    ("a.\"in\".at < TIMESTAMP '2024-01-02'", 1, [1, 2, 3]),
    ("a.\"in\".at::DATE = '2024-01-02'", 1, [11, 12, 13]),
    ('a."in".x > 4.1', 1, [42, 43]),
    ('a."in".x <> 4.1 AND id > 40', 1, [42, 43]),
    ('"n.m" = -3', 1, [30, 31, 32, 33]),
    ("n.m = -3", 1, [30, 31, 32, 33]),
    (("a.b", "=", 33), 1, [33]),
    ((("a", "b"), "=", 33), 1, [33]),
    ([(("a", "in", "x"), ">", 4.1), ("a.b", "<", 43)], 1, [42]),
    ([[("a.b", "=", 33)], [("n.m", "=", -4)]], 2, [33, 40, 41, 42, 43]),
    (("n.m", "=", -3), 1, [30, 31, 32, 33]),
    (A_B == 33, 1, [33]),
    (A_B.is_in([11, 33]), 2, [11, 33]),
    (pl.col("a").struct.field("in").struct.field("x") > 4.1, 1, [42, 43]),
    (pc.field("a", "b") == 33, 1, [33]),
    (pc.field("a", "in", "at") < pa.scalar("2024-01-02").cast(pa.timestamp("us")), 1, [1, 2, 3]),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("where", "files", "ids"), QUESTIONS, ids=str)
def test_every_predicate_form_prunes_and_finds_its_rows(table, where, files, ids):
    plan = table.scan(where)
    assert sorted(plan.to_arrow()["id"].to_pylist()) == ids
    assert plan.num_files == files
    table.checkpoint()
    again = arrowlog.Table(table.uri).scan(where)
    assert again.num_files == files


def test_pushed_filters_open_only_files_that_may_match(table, tmp_path):
    """The other files are deleted: opening one fails."""
    connection = duckdb.connect()  # relations of DuckDB 1 do not keep it
    readers = [table.to_polars(), table.to_arrow_dataset(), table.to_duckdb(connection)]
    for path in set(table.snapshot().files["path"].to_pylist()) - set(table.scan("a.b = 33").paths):
        (tmp_path / "t" / path).unlink()
    frame, dataset, relation = readers
    assert frame.filter(A_B == 33).collect()["id"].to_list() == [33]
    assert dataset.to_table(filter=pc.field("a", "b") == 33)["id"].to_pylist() == [33]
    assert relation.filter("a.b = 33").project("id").fetchall() == [(33,)]


def test_statistics_are_nested_in_the_log_and_dotted_in_the_files(table):
    files = table.snapshot().files
    stats = json.loads(files["stats"][1].as_py())
    assert stats["minValues"] == {
        "a": {"b": 11, "s": "v11", "in": {"at": "2024-01-02T01:00:00.000000", "x": 1.1}}
    }
    assert stats["nullCount"]["a"] == {"b": 1, "s": 1, "in": {"at": 1, "x": 1}}
    assert stats["nanCount"] == {"a": {"in": {"x": 0}}}
    assert files["min.a.b"].to_pylist() == [1, 11, 21, 31, 41, None]
    assert files["max.a.in.x"].to_pylist() == [0.3, 1.3, 2.3, 3.3, 4.3, None]
    assert files["null_count.a.s"].to_pylist() == [1] * 5 + [4]


def test_footers_and_compaction_record_statistics_of_fields(table, tmp_path):
    pq.write_table(file_rows(2), tmp_path / "t" / "two.parquet")
    add = arrowlog.add_parquet(table, "two.parquet")
    assert add.min_values["a"]["b"] == "21"
    assert add.null_count["a"]["in"] == {"at": 1, "x": 1}
    assert "x" not in add.max_values["a"]["in"]  # a NaN may be above the maximum
    table.append([add])
    assert table.scan("a.b = 22").num_files == 2
    assert table.scan('a."in".x > 4.1').num_files == 2
    table.update_statistics(["two.parquet"])
    assert table.scan('a."in".x > 4.1').num_files == 1
    table.compact()
    (low,) = table.snapshot().files["min.a.b"].to_pylist()
    (high,) = table.snapshot().files["max.a.in.x"].to_pylist()
    assert (low, high) == (1, 4.3)


def test_names_with_dots_are_never_taken_for_paths(tmp_path):
    """The struct field and the column have the same spelling, but separate statistics."""
    schema = pa.schema(
        [("a", pa.struct([("b", pa.int64()), ("c.d", pa.int64())])), ("a.b", "int64")]
    )
    table = arrowlog.Table.create(tmp_path / "t", schema)
    for number in range(3):
        rows = [{"a": {"b": number, "c.d": 10 + number}, "a.b": 20 + number}]
        table.write(pa.Table.from_pylist(rows, schema))
    files = table.snapshot().files
    assert files["min.a.b"].to_pylist() == [20, 21, 22]
    assert files["min.`a`.`b`"].to_pylist() == [0, 1, 2]
    assert files["min.a.`c.d`"].to_pylist() == [10, 11, 12]
    for where in ("a.b = 1", '"a.b" = 21', 'a."c.d" = 11', (("a", "b"), "=", 1), ("a.b", "=", 21)):
        assert table.scan(where).num_files == table.scan(where).to_arrow().num_rows == 1, where
    assert table.scan("a.b = 21").num_files == 0


def test_added_column_does_not_use_statistics_of_a_struct_field(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", pa.schema([("a", pa.struct([("b", "int64")]))]))
    table.write(pa.table({"a": [{"b": 5}]}))
    table.add_columns(pa.schema([("a.b", pa.int64())]))
    assert table.scan('"a.b" IS NULL').num_files == 1
    assert table.scan("a.b = 5").num_files == 1
    assert table.scan("a.b = 6").num_files == 0


def test_statistics_of_other_writers_are_used(root):
    opening = [testing.protocol(), testing.metadata(SCHEMA, [])]
    testing.write_commit(root, 0, opening)
    stats = [
        {"numRecords": 2, "minValues": {"a": {"b": 1}}, "maxValues": {"a": {"b": 2}}},
        {"numRecords": 2, "minValues": {"a": {"b": "5"}}, "maxValues": {"a": {"b": "7"}}},
        {"numRecords": 2, "nullCount": {"a": {"b": 2}}},
        {"minValues": {"a": 1, "a.b": 9}, "maxValues": {"a": [2], "a.b": 9}},
        {"minValues": {"a": {"b": {"c": 1}}}, "nullCount": {"a": "x"}},
    ]
    adds = [testing.add(str(n), stats=json.dumps(found)) for n, found in enumerate(stats)]
    testing.write_commit(root, 1, adds)
    table = arrowlog.Table(root)
    assert table.scan("a.b = 6").paths == ["1", "3", "4"]
    assert table.scan("a.b IS NOT NULL").paths == ["0", "1", "3", "4"]


def test_given_bounds_of_struct_fields_are_validated(table):
    with pytest.raises(InvalidRequest, match="not a struct field"):
        table.append([arrowlog.add_file("x", size=1, min_values={"a": {"z": 1}})])
    with pytest.raises(InvalidRequest, match="not a valid int64"):
        table.append([arrowlog.add_file("x", size=1, min_values={"a": {"b": "one"}})])
    given = {"min_values": {"a": {"b": 2}}, "max_values": {"a": {"b": 1}}}
    with pytest.raises(InvalidRequest, match="swapped"):
        table.append([arrowlog.add_file("x", size=1, **given)])
    given = {"min_values": {"a": {"b": 70}}, "max_values": {"a": {"b": "79"}}}
    table.append([arrowlog.add_file("x", size=1, modification_time=1, **given)])
    assert table.scan("a.b = 75").paths == ["x"]


def test_unknown_struct_field_raises_with_its_name(table):
    for where in ("a.z = 1", ("a.z", "=", 1), (("a", "in", "z"), "=", 1)):
        with pytest.raises(InvalidRequest, match="has no field 'z'"):
            table.scan(where)


def test_names_of_statistics_are_unambiguous():
    names = ["a", "a.b", "`a`.`b`"]
    kinds = [pa.struct([("b", pa.int64())]), pa.int64(), pa.int64()]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    assert leaf_name(schema, ("a", "b")) is None
    assert struct_leaves(schema) == {}
    twice = pa.struct([("b", pa.int64()), ("b", pa.int64()), ("c", pa.list_(STRUCT))])
    assert list(struct_leaves(pa.schema([("a", twice)]))) == ["a.c"]


def test_fields_are_read_by_the_paths_of_pyarrow(table):
    """A name that begins with a dot is a path; a dot in a name is escaped."""
    for plan in (table.scan(), table.scan("id <> 30"), table.scan("id % 2 = 1")):
        rows = plan.to_arrow()
        expected = [a and a["in"]["x"] for a in rows["a"].to_pylist()]
        assert plan.to_arrow(columns=[".a.in.x"])["x"].to_pylist() == expected
        found = plan.to_arrow(columns=["id", ".n\\.m", ".a"])
        assert found.column(1).to_pylist() == rows["n.m"].to_pylist()
        assert found["a"].to_pylist() == rows["a"].to_pylist()
