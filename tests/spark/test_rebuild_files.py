"""Logs rebuilt with Spark's workers, and from files that Spark has written."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.errors import DataFileError


@pytest.mark.promise("recovery.rebuild_keeps_rows")
def test_workers_read_footers_for_a_rebuild(either, tmp_path, monkeypatch):
    monkeypatch.setattr("arrowlog.recovery.log_rebuild._FILES_PER_CHUNK", 2)
    for number in range(5):
        folder = tmp_path / f"k={number % 2}"
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [number], "s": [str(number)]}), folder / f"{number}.parquet")
    here = arrowlog.rebuild(tmp_path, dry_run=True)
    calls = []
    made = arrowlog.rebuild(tmp_path, spark=either, progress=lambda *done: calls.append(done))
    assert made.files == here.files
    assert made.schema == here.schema
    assert calls == [(5, 5)]
    files = arrowlog.Table(tmp_path).snapshot().files
    assert files["min.id"].to_pylist() == files["max.id"].to_pylist()
    rows = arrowlog.spark.read(either, str(tmp_path)).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(n, str(n), n % 2) for n in range(5)]


def test_damaged_files_on_workers_raise_with_their_path(spark, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "good.parquet")
    with pytest.raises(DataFileError) as raised:
        arrowlog.rebuild(tmp_path, spark=spark)
    assert raised.value.path == "bad.parquet"


def test_rebuild_of_a_folder_written_by_spark(spark, tmp_path):
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    rows = [(n, moment, dt.date(2024, 1, n + 1), None, [f"a{n}"], f"x/{n}") for n in range(3)]
    kind = "id int, at timestamp, day date, nothing short, list array<string>, k string"
    frame = spark.createDataFrame(rows, kind)
    folder = str(tmp_path / "t")
    frame.write.partitionBy("day", "k").parquet(folder)
    result = arrowlog.rebuild(folder)
    assert result.partition_columns == ("day", "k")
    assert result.schema == pa.schema(
        [
            ("id", pa.int32()),
            ("at", pa.timestamp("us", "UTC")),
            ("nothing", pa.int16()),
            ("list", pa.list_(pa.string())),
            ("day", pa.date32()),
            ("k", pa.string()),
        ]
    )
    found = arrowlog.Table(folder).scan().to_polars().collect().sort("id").to_dicts()
    names = ["id", "at", "day", "nothing", "list", "k"]
    assert [tuple(row[name] for name in names) for row in found] == rows
    again = arrowlog.spark.read(spark, folder).select(*names).orderBy("id")
    assert again.exceptAll(spark.read.parquet(folder).select(*names)).count() == 0
    assert again.count() == 3


def test_widened_numbers_are_read_by_spark(either, tmp_path):
    columns = {"n": pa.array([1], pa.int16()), "f": pa.array([0.5], pa.float32())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    wide = {"n": [2**40], "f": [0.1], "u": pa.array([2**32 - 1], pa.uint32())}
    pq.write_table(pa.table(wide), tmp_path / "b.parquet")
    arrowlog.rebuild(tmp_path)
    rows = arrowlog.spark.read(either, str(tmp_path)).orderBy("n").collect()
    assert [tuple(row) for row in rows] == [(1, 0.5, None), (2**40, 0.1, 2**32 - 1)]
