"""Float statistics: writers record NaN counts, and a maximum is used where there is no NaN."""

import json
import math
import os

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("r", pa.float32())])
COMMITS = {"checkpoint.enabled": False}


def rows(start, *extra):
    values = [float(start + i) for i in range(10)] + list(extra)
    ids = range(start, start + len(values))
    return pa.table({"id": ids, "x": values, "r": values}, schema=SCHEMA)


def write(root):
    """Five files of ten numbers each; the third has a NaN as well, the fourth a NULL."""
    table = arrowlog.Table.create(root, SCHEMA, options=COMMITS)
    for number in range(5):
        extra = {2: [math.nan], 3: [None]}.get(number, [])
        table.write(rows(10 * number, *extra))
    return table


def starts(plan):
    return sorted(plan.files["min.x"].to_pylist())


@pytest.mark.parametrize("column", ["x", "r"])
def test_float_maximum_prunes_where_there_is_no_nan(root, column):
    table = write(root)
    for checkpointed in (False, True):
        if checkpointed:
            table.checkpoint()
            table = arrowlog.Table(root, options=COMMITS)
        assert starts(table.scan(f"{column} > 35")) == [20, 30, 40]
        assert starts(table.scan(f"{column} >= 49.5")) == [20]
        assert starts(table.scan(f"NOT ({column} <= 45)")) == [20, 40]
        assert table.scan(f"{column} > 35").to_arrow().num_rows == 4 + 10 + 1
    assert table.scan("id < 20").max(column) == 19.0
    assert table.scan("id < 40").max(column) is None  # DuckDB says NaN
    reasons = table.scan(f"{column} > 100").explain().clauses[0].kept
    assert reasons == {"NaN possible": 1}


def test_files_that_cannot_match_are_not_opened(root):
    table = write(root)
    frame = table.to_polars()
    kept = table.scan("x > 45").paths
    for path in table.scan().paths:
        if path not in kept:
            os.remove(root / path)
    assert frame.filter(pl.col("x") > 45).collect().height == 5
    assert table.to_polars().filter(pl.col("r") > 45).collect().height == 5


def test_compaction_counts_nans(root):
    table = write(root)
    table.compact(where=None)
    (stats,) = table.snapshot().files["stats"].to_pylist()
    assert json.loads(stats)["nanCount"] == {"x": 1, "r": 1}


def test_updated_statistics_record_nan_counts(root):
    table = arrowlog.Table.create(root, SCHEMA, options=COMMITS)
    for number, extra in enumerate([[], [math.nan]]):
        pq.write_table(rows(10 * number, *extra), root / f"{number}.parquet")
        table.append([arrowlog.add_parquet(table, f"{number}.parquet")])
    assert table.scan("x > 100").num_files == 2  # pyarrow's footers have no NaN count
    table.update_statistics(table.scan().paths)
    assert table.scan("x > 100").paths == ["1.parquet"]
    assert table.scan("r > 100").paths == ["1.parquet"]


def test_given_nan_counts_are_validated(root):
    table = arrowlog.Table.create(root, SCHEMA, options=COMMITS)
    given = {"size": 1, "min_values": {"x": 1.0}, "max_values": {"x": 2.0}}
    table.append([arrowlog.add_file("a", nan_count={"x": 0}, **given)])
    table.append([arrowlog.add_file("b", nan_count={"x": 3}, null_count={"x": 0}, **given)])
    table.append([{"path": "c", "nanCount": {"x": 0}, **given}])
    assert table.scan("x > 5").paths == ["b"]
    with pytest.raises(arrowlog.InvalidRequest, match=r"nan_count\['x'\] is -1"):
        table.append([arrowlog.add_file("d", nan_count={"x": -1}, **given)])
    with pytest.raises(arrowlog.InvalidRequest, match="not a column of the table"):
        table.append([arrowlog.add_file("d", nan_count={"y": 0}, **given)])


@pytest.mark.parametrize("where", ["x = 0", "x IN (0.0, 7)", "x >= 0 AND x <= -0.0", "x = -0.0"])
def test_negative_zero_equals_zero_in_predicates(root, where):
    table = arrowlog.Table.create(root, SCHEMA, partition_columns=["r"], options=COMMITS)
    for number, zero in enumerate([0.0, -0.0, 1.0]):
        values = {"id": [number], "x": [zero], "r": [zero]}
        table.write(pa.table(values, schema=SCHEMA))
    for text in (where, where.replace("x", "r")):
        plan = table.scan(text)
        assert plan.num_files == 2
        assert sorted(plan.to_arrow()["id"].to_pylist()) == [0, 1]
        assert table.scan(f"NOT ({text})").to_arrow()["id"].to_pylist() == [2]
        assert table.scan(f"NOT ({text})").num_files == 1


@pytest.mark.parametrize("where", ["x = 5", "x <= 5", "x < CAST('inf' AS DOUBLE)", "s.x = 5"])
def test_count_excludes_nan_where_the_bounds_satisfy_the_predicate(root, where):
    kind = pa.struct([("x", pa.float64())])
    table = arrowlog.Table.create(root, pa.schema([("x", pa.float64()), ("s", kind)]))
    table.write(pa.table({"x": [5.0, math.nan], "s": pa.array([{"x": 5.0}, {"x": math.nan}])}))
    dataset = table.scan(where).to_arrow_dataset()
    assert dataset.count_rows() == dataset.to_table().num_rows == 1
