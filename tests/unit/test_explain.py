"""Explanations: what each clause skipped, and why the other files were kept."""

import json

import polars as pl
import pyarrow as pa
import pytest

import arrowlog
from arrowlog import testing

SCHEMA = pa.schema(
    [("day", pa.date32()), ("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())]
)


def add(number, day, **bounds):
    low = {key: pair[0] for key, pair in bounds.items()}
    high = {key: pair[1] for key, pair in bounds.items()}
    size = 10**number
    return testing.add(str(number), {"day": day}, size=size, minValues=low, maxValues=high)


@pytest.fixture
def table(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    adds = [
        add(0, "2024-01-01", id=("0", "9"), name=("a", "abc"), x=("1", "2")),
        add(1, "2024-01-02", id=("10", "19"), name=("a", "b"), x=("1", "9")),
        add(2, "2024-01-02", id=("20", "29"), name=("x", "z"), x=("5", "9")),
        add(3, "never", name=("a", "zz")),
    ]
    testing.write_commit(root, 1, adds)
    return arrowlog.Table(root)


UNORDERED = "not prunable: expression keeps no order"


def clauses(table, where):
    return table.scan(where).explain().clauses


def test_clauses_count_the_files_they_skip(table):
    found = table.scan("day = '2024-01-02' AND id < 20 AND length(name) = 1").explain()
    day, identity, length = found.clauses
    assert (day.text, day.files_dropped, day.bytes_dropped) == ("day = '2024-01-02'", 1, 1)
    assert (identity.files_dropped, identity.bytes_dropped) == (1, 100)
    assert (day.only_files, identity.only_files) == (1, 1)
    assert (length.files_dropped, length.kept) == (0, {UNORDERED: 2})
    assert day.kept == {"partition value matches": 1, "partition value unreadable": 1}
    assert identity.kept == {"in range": 1, "no statistics": 1}
    assert (found.files_kept, found.files_total) == (2, 4)
    assert (found.bytes_kept, found.bytes_total) == (1010, 1111)
    assert found.pruned == 0.5


def test_clause_that_skips_no_further_file_is_redundant(table):
    wide, narrow = clauses(table, "id < 20 AND id < 10")
    assert wide.redundant
    assert not narrow.redundant
    assert narrow.only_files == 1


REASONS = [
    ("name = 'abcd'", {"truncated bound": 1, "in range": 2}),
    ("id = 'abc'", {"type not comparable": 4}),
    ("x > 20", {"NaN possible": 3, "no statistics": 1}),
    ("x > 20 AND x < 30", {"no statistics": 1}),
    ("id IS NULL", {"no statistics": 4}),
    ("id = 5 OR length(name) = 1", {UNORDERED: 3, "no statistics": 1}),
    ("id BETWEEN 5 AND 12", {"in range": 2, "no statistics": 1}),
    ("name LIKE 'x%'", {"in range": 2}),
]


@pytest.mark.parametrize(("where", "kept"), REASONS)
def test_reasons_for_kept_files(table, where, kept):
    assert clauses(table, where)[0].kept == kept


def test_one_row_per_file_and_clause(table):
    plan = table.scan("day = '2024-01-02' AND id < 20")
    rows = plan.explain().to_arrow()
    assert rows.column_names == ["path", "clause", "kept", "reason"]
    assert rows.num_rows == 8
    found = {}
    for row in rows.to_pylist():
        found.setdefault(row["path"], []).append(row["kept"])
        assert (row["reason"] == "dropped") is not row["kept"]
    assert [path for path, kept in found.items() if all(kept)] == plan.paths


def test_explanation_as_text_and_html(table):
    found = table.scan("day = '2024-01-02' AND name <> '<b>'").explain()
    text = str(found)
    assert "3 of 4 files to read (25.0% pruned)" in text
    assert "kept because" in text
    html = found._repr_html_()
    assert html == found.to_html()
    assert pl.DataFrame(found).height == 8
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_explanation_without_a_predicate_is_empty(table):
    found = table.scan().explain()
    assert found.clauses == ()
    assert found.pruned == 0
    assert found.to_arrow().num_rows == 0
    assert "4 of 4 files" in str(found)


def test_empty_table_has_a_plan(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    plan = arrowlog.Table(root).scan("day = '2024-01-01' AND id > 5 AND year(day) = 2024")
    assert (plan.num_files, plan.total_files, plan.size_bytes, plan.num_records) == (0, 0, 0, 0)
    assert plan.paths == []
    assert plan.files.num_rows == 0
    assert plan.count() == 0
    assert plan.min("id") is None
    assert plan.to_polars().collect().height == 0
    assert plan.to_arrow_dataset().count_rows() == 0
    assert plan.explain().pruned == 0
    assert plan.splits() == []


def test_count_min_and_max_are_exact_or_none(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    stats = json.dumps({"nullCount": {"id": 0, "x": 0, "name": 0}})
    fields = {"stats": stats, "numRecords": 10}
    first = add(0, "2024-01-01", id=("0", "9"), name=("a", "b"), x=("1", "2"))["add"] | fields
    second = add(1, "2024-01-02", id=("10", "19"), name=("c", "d"), x=("1", "9"))["add"] | fields
    testing.write_commit(root, 1, [{"add": first}, {"add": second}])
    table = arrowlog.Table(root)
    assert table.scan().count() == 20
    assert table.scan("day = '2024-01-02'").count() == 10
    assert table.scan("id >= 10").count() == 10
    assert table.scan("id >= 5").count() is None
    assert table.scan("id >= 10 OR day = '2024-01-01'").count() == 20
    whole = table.scan()
    assert (whole.min("id"), whole.max("id")) == (0, 19)
    assert whole.min("x") == 1.0
    assert whole.max("x") is None  # NaN may be above it
    assert whole.min("name") is None  # it may be truncated
    assert str(whole.max("day")) == "2024-01-02"
    assert table.scan("id >= 5").min("id") is None
    with pytest.raises(arrowlog.InvalidRequest, match="no column 'nope'"):
        whole.min("nope")
    assert whole.num_records == 20
    assert "files=2 of 2" in repr(whole)


def test_possibly_truncated_timestamps_give_no_min_or_max(root):
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    day = "2024-01-01T00:00:00"
    pairs = [(f"{day}.000001Z", f"{day}.123456Z"), (f"{day}.005001Z", f"{day}.100001Z")]
    pairs += [(f"{day}.007Z", f"{day}.123Z")]
    for version, (low, high) in enumerate(pairs, 1):
        bounds = {"minValues": {"at": low}, "maxValues": {"at": high}}
        testing.write_commit(root, version, [testing.add(str(version), **bounds)])
    table = arrowlog.Table(root)
    assert table.scan(version=2).max("at").microsecond == 123456
    assert table.scan(version=3).max("at") is None  # the third may be as late as .123999
    assert table.scan(version=3).min("at").microsecond == 1
    testing.write_commit(root, 4, [testing.remove("1"), testing.remove("2")])
    assert table.scan().min("at") is None


def test_expression_shows_the_derived_condition(table):
    found = table.scan("id * 2 < 30 AND upper(name) = 'X' AND id + 0 < id").explain()
    product, upper, other = found.clauses
    assert (product.tested, product.files_dropped) == ("id <= 14", 1)
    assert upper.tested == "(starts_with(name, 'X')) OR (starts_with(name, 'x'))"
    assert (other.tested, other.kept) == ("", {"not prunable": 1})
    assert "(id * 2) < 30: files are skipped by id <= 14" in str(found)
    assert "files are skipped by id &lt;= 14" in found.to_html()
    (plain,) = clauses(table, "id < 20")
    assert plain.tested == ""
    (two,) = clauses(table, "name < name")
    assert two.tested == ""
