"""Filters applied after planning: files that cannot match are not opened by any reader."""

import datetime as dt
import math
import os
import pickle
import shutil
from dataclasses import replace
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import arrowlog
from arrowlog.scan import RowReader

FIELD, COL = pc.field, pl.col
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("x", pa.float64()),
        ("single", pa.float32()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("part", pa.int64()),
    ]
)
FILES, ROWS = 20, 10
MIDNIGHT = dt.datetime(2024, 1, 8, tzinfo=dt.UTC).replace(tzinfo=None)


def rows(number):
    """The rows of a file; no two files have a value in common."""
    ids = [number * ROWS + row for row in range(ROWS)]
    midnight = MIDNIGHT + dt.timedelta(days=number - 7)
    columns = {
        "id": ids,
        "small": ids,
        "x": [float(i) for i in ids],
        "single": [float(i) for i in ids],
        "name": [f"n{i:03}" for i in ids],
        "day": [midnight.date()] * ROWS,
        "moment": [midnight.replace(tzinfo=dt.UTC)] * ROWS,
        "local": [midnight] * ROWS,
        "price": [Decimal(i) for i in ids],
        "part": [number] * ROWS,
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template")
    table = arrowlog.Table.create(root, SCHEMA, partition_columns=["part"])
    for number in range(FILES):
        table.write(rows(number))
    return root


@pytest.fixture
def table(root, template):
    shutil.copytree(template, root, dirs_exist_ok=True)
    return arrowlog.Table(root)


def keep_only(root, table, where):
    """Delete the data files that a predicate excludes."""
    kept = set(table.scan(where).paths)
    for path in table.scan().paths:
        if path not in kept:
            os.remove(root / path)


# Filters for which one file has the given number of rows, by reader.
POLARS = {
    "integer": (COL("id") == 75, 1),
    "32-bit integer": (COL("small") == 75, 1),
    "integer and double": (COL("id") == 75.0, 1),
    "double": (COL("x") == 75, 1),
    "32-bit float": (COL("single") == 75, 1),
    "text": (COL("name") == "n075", 1),
    "prefix": (COL("name").str.starts_with("n07"), 10),
    "date": (COL("day") == MIDNIGHT.date(), 10),
    "date and time": (COL("day") == MIDNIGHT, 10),
    "date of a time": (COL("local").dt.date() == MIDNIGHT.date(), 10),
    "time with a zone": (COL("moment") == MIDNIGHT.replace(tzinfo=dt.UTC), 10),
    "time": (COL("local").is_between(MIDNIGHT, MIDNIGHT), 10),
    "decimal": (COL("price") == Decimal(75), 1),
    "decimal and double": (COL("price").is_between(74.5, 76.5), 2),
    "partition": (COL("part") == 7, 10),
    "list": (COL("id").is_in([71, 72]), 2),
    "negation": (~((COL("id") < 70) | (COL("id") >= 80)), 10),
    "with a function": ((COL("id") == 75) & COL("name").str.contains("7$|5$"), 1),
}
ARROW = {
    "integer": (FIELD("id") == 75, 1),
    "integer and double": (FIELD("id") == 75.0, 1),
    "double": (FIELD("x") == 75.0, 1),
    "32-bit float": (FIELD("single") == pa.scalar(75, pa.float32()), 1),
    "text": (FIELD("name") == "n075", 1),
    "prefix": (pc.starts_with(FIELD("name"), "n07"), 10),
    "date": (FIELD("day") == MIDNIGHT.date(), 10),
    "time with a zone": (FIELD("moment") == MIDNIGHT.replace(tzinfo=dt.UTC), 10),
    "decimal": (FIELD("price") == Decimal("75.00"), 1),
    "partition": (FIELD("part") == 7, 10),
    "list": (FIELD("id").isin([71, 72]), 2),
    "negation": (~((FIELD("id") < 70) | (FIELD("id") >= 80)), 10),
    "with a function": ((FIELD("id") == 75) & pc.match_substring(FIELD("name"), "5"), 1),
}
DUCKDB = {
    "integer": ("id = 75", 1),
    "32-bit integer": ("small = 75", 1),
    "double": ("x = 75", 1),
    "32-bit float": ("single = 75", 1),
    "text": ("name = 'n075'", 1),
    "date": ("day = '2024-01-08'", 10),
    "time with a zone": ("moment = '2024-01-08 00:00:00+00'", 10),
    "time": ("local = '2024-01-08'", 10),
    "decimal": ("price = 75", 1),
    "partition": ("part = 7", 10),
    "list": ("id IN (71, 72, 79)", 3),
    "range": ("id BETWEEN 71 AND 74", 4),
    "choice": ("id > 70 AND id < 75 OR id = 76", 5),
    "with a function": ("id = 75 AND upper(name) = 'N075'", 1),
}


@pytest.mark.promise("scan.later_filters_skip_files")
@pytest.mark.parametrize("case", POLARS)
def test_polars_opens_only_files_that_may_match(root, table, case):
    where, count = POLARS[case]
    before = table.scan().to_polars()
    keep_only(root, table, "part = 7")
    for frame in (before, table.scan().to_polars(), table.scan("id >= 0").to_polars()):
        assert frame.filter(where).collect().height == count
        assert frame.filter(where).select("name").collect(engine="streaming").height == count
        assert frame.filter(where).head(1).collect().height == 1


@pytest.mark.promise("scan.later_filters_skip_files")
@pytest.mark.parametrize("case", ARROW)
def test_arrow_opens_only_files_that_may_match(root, table, case):
    where, count = ARROW[case]
    before = table.scan().to_arrow_dataset()
    keep_only(root, table, "part = 7")
    hard = table.scan("id % 2 = id % 2")  # which Arrow cannot evaluate itself
    for dataset in (before, table.scan().to_arrow_dataset(), hard.to_arrow_dataset()):
        found = dataset.to_table(filter=where)
        assert found.num_rows == count
        assert found.schema.equals(SCHEMA)
        assert dataset.filter(where).to_table(columns=["name"]).column_names == ["name"]
        assert dataset.count_rows(filter=where) == count
        assert sum(batch.num_rows for batch in dataset.to_batches(filter=where)) == count
        assert dataset.head(1, filter=where).num_rows == 1
        assert dataset.filter(where).take([0])["id"].to_pylist() == found["id"].to_pylist()[:1]
        assert dataset.filter(where).filter(FIELD("id") < 0).to_table().num_rows == 0
        doubled = dataset.scanner(columns={"twice": FIELD("id") * 2}, filter=where).to_table()
        assert doubled["twice"].to_pylist() == [2 * i for i in found["id"].to_pylist()]
        assert len(dataset.filter(where).files) == 1


@pytest.mark.promise("scan.later_filters_skip_files")
@pytest.mark.parametrize("case", DUCKDB)
def test_duckdb_opens_only_files_that_may_match(root, table, case):
    where, count = DUCKDB[case]
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'").fetchall()
        before, dataset = table.scan().to_duckdb(con), table.scan().to_arrow_dataset()
        keep_only(root, table, "part = 7")
        for relation in (before, table.scan().to_duckdb(con), table.scan("x >= 0").to_duckdb(con)):
            assert len(relation.filter(where).fetchall()) == count
            assert relation.filter(where).aggregate("count(*)").fetchall() == [(count,)]
        events, plan = table, table.scan("x >= 0")
        for name in ("dataset", "events", "plan"):
            named = con.sql(f"SELECT count(*) FROM {name} WHERE {where}").fetchall()
            assert named == [(count,)]
            found = con.sql(f"FROM {name} WHERE {where}")
            assert len(found.fetchall()) == count
        del dataset, events, plan


def test_table_is_a_dataset_for_duckdb_only(table):
    plan = table.scan("id < 50")
    assert not isinstance(table, ds.Dataset)
    assert not isinstance(plan, ds.Dataset)
    assert table.__class__ is arrowlog.Table
    assert pickle.loads(pickle.dumps(plan)).num_files == replace(plan).num_files == plan.num_files


def test_polars_pushes_filters_into_the_dataset(root, table):
    dataset = table.scan().to_arrow_dataset()
    keep_only(root, table, "part = 7")
    assert pl.scan_pyarrow_dataset(dataset).filter(COL("id") == 75).collect().height == 1


def test_head_reads_only_the_first_files(root, table):
    frame, dataset = table.scan().to_polars(), table.scan().to_arrow_dataset()
    for path in table.scan().paths[1:]:
        os.remove(root / path)
    assert frame.head(ROWS).collect().height == ROWS
    assert frame.head(3).filter(COL("id") >= 0).select("id").collect().height == 3
    assert dataset.head(ROWS).num_rows == ROWS
    assert dataset.head(2, columns=["name"]).column_names == ["name"]
    with pytest.raises(arrowlog.DataFileError, match="missing"):
        dataset.head(ROWS + 1)


def test_no_file_is_opened_before_rows_are_read(root, table):
    plan = table.scan("id >= 0 AND id % 2 = 0")
    for path in table.scan().paths:
        os.remove(root / path)
    frame, dataset = plan.to_polars(), plan.to_arrow_dataset()
    scanner = dataset.filter(FIELD("id") > 3).scanner(columns=["id"])
    with duckdb.connect() as con:
        relation = plan.to_duckdb(con)
        for read in (frame.collect, dataset.to_table, dataset.count_rows, scanner.to_table):
            with pytest.raises(arrowlog.DataFileError, match="the data file is missing"):
                read()
        with pytest.raises(duckdb.Error, match="the data file is missing"):
            relation.fetchall()


@pytest.fixture
def columns_read(monkeypatch):
    """The columns that each read requests."""
    asked = []
    read = RowReader.batches

    def recorded(self, columns=None, **options):
        asked.append(list(columns))
        return read(self, columns, **options)

    monkeypatch.setattr(RowReader, "batches", recorded)
    return asked


def test_only_needed_columns_are_read(table, columns_read):
    table.scan().to_polars().filter(COL("id") == 75).select("x").collect()
    dataset = table.scan().to_arrow_dataset()
    dataset.to_table(columns=["x"], filter=FIELD("id") == 75)
    dataset.to_table(columns={"y": FIELD("x") + 1})
    with duckdb.connect() as con:
        table.scan().to_duckdb(con).filter("id = 75").project("x").fetchall()
    assert [set(names) for names in columns_read] == [{"x", "id"}, {"x", "id"}, {"x"}, {"x", "id"}]


@pytest.mark.parametrize("per_file", [1, 2])
def test_pushed_filters_follow_their_engines_semantics(root, per_file):
    """NaN, both zeros and NULL, compared with the same filter on rows in memory."""
    values = [math.nan, 7.0, 0.0, -0.0, None, math.inf, math.nan, 1.0]
    everything = pa.table({"id": range(len(values)), "x": pa.array(values, pa.float64())})
    table = arrowlog.Table.create(root, everything.schema)
    for start in range(0, len(values), per_file):
        table.write(everything.slice(start, per_file))
    dataset, frame = table.scan().to_arrow_dataset(), table.scan().to_polars()
    x, memory = FIELD("x"), pl.DataFrame(everything)
    for where in (x > 5, ~(x > 5), ~(x <= 5), x == 0.0, x != 0.0, ~(x == -0.0)):
        assert dataset.to_table(filter=where).sort_by("id")["id"] == everything.filter(where)["id"]
    for where in (x.isin([0.0]), ~x.isin([0.0]), ~x.isin([-0.0, 7.0]), x.is_null(), x.is_nan()):
        assert dataset.to_table(filter=where).sort_by("id")["id"] == everything.filter(where)["id"]
    y = COL("x")
    for where in (
        y > 5,
        ~(y > 5),
        ~(y <= 5),
        y == 0.0,
        y != 0.0,
        ~(y == -0.0),
        y == pl.lit(math.nan),
    ):
        assert frame.filter(where).sort("id").collect().equals(memory.filter(where))
    for where in (y.is_in([0.0]), ~y.is_in([0.0]), ~y.is_in([-0.0, 7.0]), y.is_nan(), ~y.is_nan()):
        assert frame.filter(where).sort("id").collect().equals(memory.filter(where))


@pytest.mark.parametrize("partitions", [[], ["single"]])
def test_polars_compares_32_bit_floats_in_32_bits(root, partitions):
    schema = pa.schema([("id", pa.int64()), ("single", pa.float32())])
    target = os.path.join(os.path.dirname(root), f"singles{len(partitions)}")
    made = arrowlog.Table.create(target, schema, partition_columns=partitions)
    for number, value in enumerate([0.1, 0.3, 0.5]):
        made.write(pa.table({"id": [number], "single": pa.array([value], pa.float32())}))
    everything = made.scan().to_polars().collect()
    single = COL("single")
    for value in (0.1, pl.lit(0.1, pl.Float32), pl.lit(0.1, pl.Float64), 0.3):
        for condition in (single == value, single <= value, single > value, single != value):
            for asked in (condition, ~condition):
                found = made.to_polars().filter(asked).collect()
                assert found.equals(everything.filter(asked)), str(asked)
    exact = made.scan(single == pl.lit(0.1, pl.Float32))
    assert exact.to_polars().collect()["id"].to_list() == [0]
    assert made.scan(single == 0.1).to_polars().collect().is_empty()  # a double, as in DuckDB


def test_dataset_works_with_other_libraries(root, table, tmp_path):
    dataset = table.scan("part = 7").to_arrow_dataset()
    again = pickle.loads(pickle.dumps(dataset.filter(FIELD("id") < 75)))
    assert again.to_table()["id"].to_pylist() == [70, 71, 72, 73, 74]
    assert dataset.sort_by([("id", "descending")]).head(1)["id"].to_pylist() == [79]
    names = pa.table({"id": [75], "label": ["seventy-five"]})
    joined = dataset.join(ds.dataset(names), "id", join_type="inner").to_table()
    assert joined["label"].to_pylist() == ["seventy-five"]
    ds.write_dataset(dataset, tmp_path / "copy", format="parquet")
    assert ds.dataset(tmp_path / "copy").to_table().num_rows == 10
    assert dataset.replace_schema(SCHEMA).to_table().num_rows == 10
    assert pl.DataFrame(dataset).height == 10
    assert pa.table(dataset.scanner(columns=["id"])).column_names == ["id"]
    with pytest.raises(ValueError, match="Remove the filtering"):
        dataset.get_fragments()
    fragments = list(table.scan().to_arrow_dataset().get_fragments(FIELD("id") == 75))
    assert [fragment.path for fragment in fragments] == dataset.files
    # Access that bypasses the methods fails instead of returning wrong rows.
    with pytest.raises(FileNotFoundError, match="read this dataset with its own methods"):
        ds.Scanner.from_dataset(dataset).to_table()
    with pytest.raises(pa.ArrowInvalid, match="No match for FieldRef"):
        dataset.to_table(columns=["unknown"])


def test_splits_accept_pushed_filters(table):
    splits = pickle.loads(pickle.dumps(table.scan("part IN (7, 8)").splits(1)))
    found = [split.to_arrow_dataset().to_table(filter=FIELD("id") == 75) for split in splits]
    assert sum(part.num_rows for part in found) == 1
    frames = [split.to_polars().filter(COL("id") == 75).collect() for split in splits]
    assert sum(frame.height for frame in frames) == 1


@pytest.mark.promise("scan.later_filters_skip_files")
def test_table_readers_skip_files_by_later_filters(root, table):
    readers = table.to_polars(), table.to_arrow_dataset(), table.to_duckdb()
    keep_only(root, table, "part = 7")
    again = table.to_polars(), table.to_arrow_dataset(), table.to_duckdb()
    for frame, dataset, relation in (readers, again):
        assert frame.filter(COL("id") == 75).collect().height == 1
        assert dataset.to_table(filter=FIELD("id") == 75).num_rows == 1
        assert len(relation.filter("id = 75").fetchall()) == 1
        assert len(duckdb.sql("FROM relation WHERE id = 75").fetchall()) == 1
        assert len(duckdb.sql("FROM dataset WHERE id = 75").fetchall()) == 1
    lazy = arrowlog.scan_polars(root, version=table.version)
    assert lazy.filter(COL("id") == 75).collect()["name"].to_list() == ["n075"]
    plan = table.scan("id BETWEEN 71 AND 74")
    assert plan.to_arrow()["id"].to_pylist() == [71, 72, 73, 74]
    assert plan.to_arrow("id > 72", ["id"]).to_pydict() == {"id": [73, 74]}
    assert table.to_arrow(COL("id") == 75)["name"].to_pylist() == ["n075"]
    assert table.to_pandas([("id", "=", 75)], ["name"])["name"].to_list() == ["n075"]
    assert plan.to_pandas(columns=["name"]).columns.to_list() == ["name"]
    assert pl.DataFrame(plan).height == len(pa.table(plan)) == 4
    assert duckdb.sql("SELECT count(*) FROM plan WHERE id > 72").fetchall() == [(2,)]
    assert plan.schema.equals(SCHEMA)


def test_table_exports_an_arrow_stream(table):
    assert table.schema.equals(SCHEMA)
    assert table.to_arrow(columns=["id"]).sort_by("id")["id"].to_pylist() == list(
        range(FILES * ROWS)
    )
    assert table.to_pandas().shape == (FILES * ROWS, len(SCHEMA))
    assert pl.DataFrame(table).height == pa.table(table).num_rows == FILES * ROWS
    events = table
    assert duckdb.sql("SELECT max(id) FROM events WHERE part = 7").fetchall() == [(79,)]
    del events
    assert arrowlog.scan_polars(str(table.uri), version=3).collect().height == 3 * ROWS
