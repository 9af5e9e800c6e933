"""Arguments as other libraries hand them over: numbers of numpy, timedeltas, schemas of polars."""

import datetime as dt
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog.errors import InvalidRequest

ROWS = pa.table({"day": ["mon", "tue"], "id": [1, 2]})


@pytest.fixture
def table(tmp_path):
    table = arrowlog.Table.create(tmp_path, ROWS.schema, partition_columns=["day"])
    for _ in range(3):
        table.write(ROWS)
    return table


def test_numbers_of_numpy_are_versions_and_times(table):
    versions = table.history().to_pandas()["version"]
    oldest = versions.min()
    assert isinstance(oldest, np.integer)
    assert table.snapshot(version=oldest).version == 0
    assert table.scan(version=versions.max()).num_files == 6
    now = np.int64(dt.datetime.now(dt.UTC).timestamp() * 1000 + 60_000)
    assert table.snapshot(timestamp=now).version == 3
    assert table.diff(np.int64(1), np.int32(3)).added.num_rows == 4
    assert table.diff(np.int64(2)).added.num_rows == 2
    assert table.history(limit=np.int16(2)).num_rows == 2
    new = arrowlog.add_file("day=x/a", partition_values={"day": "x"}, size=1)
    first = table.append([new], txn=("loader", np.int64(7)))
    assert (first.version, first.duplicate) == (4, False)
    assert arrowlog.Table(table.uri).append([new], txn=("loader", 7)).duplicate
    assert table.remove("day = 'x'", read_version=np.int64(4)).version == 5
    assert table.restore(np.uint8(2)).version == 6
    assert table.history(limit=1)["operation_parameters"].to_pylist() == ['{"version":2}']


@pytest.mark.parametrize("wrong", [np.float64(1), np.bool_(True), True, "1", -1, np.int64(-1)])
def test_anything_else_is_no_version(table, wrong):
    with pytest.raises(InvalidRequest, match="is not a version"):
        table.snapshot(version=wrong)
    with pytest.raises(InvalidRequest, match="is not a number of commits"):
        table.history(limit=wrong)


@pytest.mark.parametrize("wrong", [dt.timedelta(seconds=5), "5", True])
def test_max_staleness_is_a_number_of_seconds(table, wrong):
    with pytest.raises(InvalidRequest, match="max_staleness"):
        table.snapshot(max_staleness=wrong)


def test_durations_may_be_timedeltas(table):
    assert table.vacuum(older_than=dt.timedelta(days=7), dry_run=True).num_files == 0
    path = table.snapshot().files["path"][0].as_py()
    table.skips.record(path, reason="damaged", operation="merge", cooldown=dt.timedelta(hours=1))
    skip = table.skips.active().to_pylist()[0]
    assert skip["path"] == path
    with pytest.raises(InvalidRequest, match="older_than"):
        table.vacuum(older_than=dt.timedelta(days=-1), dry_run=True)


def test_schema_of_polars(tmp_path):
    frame = pl.DataFrame(
        {"day": ["mon"], "id": [1], "at": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]}
    )
    table = arrowlog.Table.create(tmp_path, frame.schema, partition_columns=["day"])
    table.write(frame)
    assert table.to_polars().collect().equals(frame)


def test_dict_that_is_no_schema(tmp_path):
    with pytest.raises(InvalidRequest, match="schema"):
        arrowlog.Table.create(tmp_path, {"id": pa.int64()})


def test_rows_with_run_ends(table):
    runs = pa.chunked_array([pc.run_end_encode(pa.array(["wed", "wed", None]))])
    table.write(pa.table({"day": runs, "id": [7, 8, 9]}))
    rows = table.scan("id > 5").to_polars().sort("id").collect()
    assert rows["day"].to_list() == ["wed", "wed", None]


def test_numbers_of_numpy_describe_a_file(table):
    one = np.int64(1)
    new = arrowlog.add_file(
        "day=x/a",
        {"day": "x"},
        size=one,
        modification_time=np.int64(1_700_000_000_000),
        num_records=np.int32(5),
        min_values={"id": one},
        max_values={"id": np.int64(9)},
        null_count={"id": one},
        num_merge_ops=np.uint8(3),
    )
    table.append([new, {"path": "day=x/b", "size": one, "partitionValues": {"day": "x"}}])
    rows = arrowlog.Table(table.uri).scan("day = 'x'").files.sort_by("path").to_pylist()
    assert [row["size_bytes"] for row in rows] == [1, 1]
    added = {name: rows[0][name] for name in ("num_records", "min.id", "max.id", "null_count.id")}
    assert added == {"num_records": 5, "min.id": 1, "max.id": 9, "null_count.id": 1}
    assert rows[0]["num_merge_ops"] == 3
    with pytest.raises(InvalidRequest, match="size"):
        table.append([arrowlog.add_file("c", {"day": "x"}, size=np.bool_(True))])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_integers_fit_decimal_columns(tmp_path, kind):
    for scale, precision in ((2, 10), (0, 3), (30, 38)):
        schema = pa.schema([("x", pa.decimal128(precision, scale))])
        table = arrowlog.Table.create(tmp_path / str(scale), schema)
        table.write(pa.table({"x": pa.array([1, 100, None], kind)}))
        assert table.to_arrow()["x"].to_pylist() == [Decimal(1), Decimal(100), None]
    narrow = arrowlog.Table.create(tmp_path / "t", pa.schema([("x", pa.decimal128(3, 2))]))
    with pytest.raises(InvalidRequest, match="cannot be cast to decimal"):
        narrow.write(pa.table({"x": pa.array([10], kind)}))


def test_dictionary_of_byte_views(tmp_path):
    views = pa.array([b"a", b"b"]).cast(pa.binary_view())
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), views)
    table = arrowlog.Table.create(tmp_path, pa.schema([("x", pa.binary())]))
    table.write(pa.table({"x": column}))
    assert table.to_arrow()["x"].to_pylist() == [b"b", None, b"a"]
