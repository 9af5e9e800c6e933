"""Parquet files of other writers: unusual names, old timestamps, and equal values."""

import datetime as dt
import math

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog import InvalidRequest, testing

MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("t", MOMENT), ("p", pa.float64())])


@pytest.fixture
def table(root):
    """A table of files, each given as its rows, its partition value and options to write it."""

    def make(*files):
        opening = [testing.protocol(), testing.metadata(SCHEMA, ["p"])]
        testing.write_commit(root, 0, opening)
        adds = []
        for number, (rows, value, options) in enumerate(files):
            pq.write_table(rows, root / f"{number}.parquet", **options)
            adds.append(testing.add(f"{number}.parquet", {"p": value}))
        testing.write_commit(root, 1, adds)
        return arrowlog.Table(root)

    return make


def every_way(plan):
    """The rows of a plan by each engine, sorted by id."""
    yield plan.to_arrow_dataset().to_table().sort_by("id").to_pylist()
    yield plan.to_polars().sort("id").collect().to_dicts()
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'").fetchall()
        relation = plan.to_duckdb(con)
        for _ in range(2):  # a relation can be queried again
            yield relation.order("id").to_arrow_table().to_pylist()
    batches = [batch for split in plan.splits(1) for batch in split.batches()]
    yield pa.Table.from_batches(batches, SCHEMA).sort_by("id").to_pylist()


LETTERS = [
    (None, [1, 2, 3, 4]),
    ("id = 3", [3]),
    ("id >= 2 AND name IS NOT NULL", [2, 3, 4]),
    ("upper(name) = 'C'", [3]),
    ("name IS NULL", [1]),
    ("p = 2", [3, 4]),
    (pl.col("name").str.contains("[bd]"), [2, 4]),
]


@pytest.mark.parametrize(("where", "ids"), LETTERS, ids=range(len(LETTERS)))
def test_columns_with_different_case_are_read(table, where, ids):
    right = pa.table({"id": [1, 2], "name": [None, "b"]})
    other = pa.table({"NAME": ["c", "d"], "extra": [0, 0], "Id": [3, 4], "P": [9.0, 9.0]})
    plan = table((right, "1", {}), (other, "2", {})).scan(where)
    for rows in every_way(plan):
        assert [row["id"] for row in rows] == ids
        assert all(row["p"] == (1 if row["id"] < 3 else 2) for row in rows)
        assert all(row["name"] == " bcd"[row["id"] - 1] for row in rows if row["id"] > 1)
    assert plan.to_polars().select("name").collect().height == len(ids)


def test_ambiguous_column_case_is_refused(table):
    plan = table((pa.table({"ID": [1], "Id": [2]}), "1", {})).scan("name IS NULL")
    for way in (plan.to_arrow_dataset().to_table, plan.to_polars().collect):
        with pytest.raises(InvalidRequest, match=r"0\.parquet: the column 'id' .* any of ID, Id"):
            way()


def test_zero_and_negative_zero_are_distinct_partition_values(table):
    files = [(pa.table({"id": [number]}), text, {}) for number, text in enumerate(["0.0", "-0.0"])]
    for rows in every_way(table(*files).scan("p = 0")):
        assert [math.copysign(1, row["p"]) for row in rows] == [1, -1]


def test_int96_timestamps_of_any_year_are_read(table):
    times = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)]
    rows = pa.table({"id": [1, 2], "t": pa.array(times, MOMENT)})
    built = table((rows, "1", {"use_deprecated_int96_timestamps": True}))
    for found in every_way(built.scan()):
        assert [row["t"] for row in found] == times
    for found in every_way(built.scan("t > '2500-01-01'")):
        assert [row["id"] for row in found] == [2]


def test_unrepresentable_timestamps_raise_with_file_and_column(table):
    nanos = pa.array([1_704_067_200_000_000_001], pa.timestamp("ns", "UTC"))
    built = table(
        (pa.table({"id": [1]}), "1", {}),
        (pa.table({"id": [2], "t": nanos}), "1", {}),
    )
    with pytest.raises(
        arrowlog.DataFileError, match=r"1\.parquet: the column 't' has nanosecond values"
    ):
        list(built.scan().splits("1GB")[0].batches())
    with pytest.raises(InvalidRequest, match=r"1\.parquet: t has timestamps with nanoseconds"):
        arrowlog.add_parquet(built, "1.parquet")


def test_add_parquet_refuses_columns_with_different_case(table):
    built = table((pa.table({"ID": [1]}), "1", {}))
    with pytest.raises(InvalidRequest, match=r"0\.parquet spells the column 'id' as 'ID'"):
        arrowlog.add_parquet(built, "0.parquet")


def test_duckdb_streams_rows_that_arrow_cannot_filter(table):
    rows = pa.table({"id": range(10), "name": ["x"] * 10})
    plan = table((rows, "1", {})).scan("id % 2 = 1")
    with duckdb.connect() as con:
        relation = plan.to_duckdb(con)
        assert relation.aggregate("count(*)").fetchall() == [(5,)]
        assert con.sql(
            "SELECT sum(a.id) FROM relation a JOIN relation b USING (id)"
        ).fetchall() == [(25,)]


def test_intervals_have_no_bounds_and_polars_refuses_them(root):
    span = '{"name":"v","type":"interval day to second","nullable":true,"metadata":{}}'
    number = '{"name":"id","type":"long","nullable":true,"metadata":{}}'
    schema = f'{{"type":"struct","fields":[{number},{span}]}}'
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    pq.write_table(pa.table({"id": [1]}), root / "a.parquet")
    bounds = {"minValues": {"id": "1", "v": "PT1H"}, "maxValues": {"id": "1", "v": "PT2H"}}
    testing.write_commit(root, 1, [testing.add("a.parquet", **bounds)])
    built = arrowlog.Table(root)
    assert "min.v" not in built.snapshot().files.column_names
    plan = built.scan("id = 1 AND v IS NULL")
    assert plan.to_arrow_dataset().to_table()["id"].to_pylist() == [1]
    with pytest.raises(InvalidRequest, match="'v' has type month_day_nano_interval"):
        plan.to_polars()
