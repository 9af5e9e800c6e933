"""Live files as a DataFrame: the rows of `Snapshot.files` and of plans, computed by tasks."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support import delta_model, log_model, parquet_checkpoints
from support.case_count import cases

import arrowlog
from arrowlog.spark.files import _question, _read_table_actions, _target_schema
from arrowlog.spark.rebuild import DistributedReplay
from arrowlog.spark.tasks import TABLE_BUCKET, decode_run, deserialize_table, reconcile_bucket

SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("id", pa.int64()),
        ("moment", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("cents", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("odd.name", pa.float64()),
    ]
)


def shown(files):
    return sorted(repr(row) for row in files.to_pylist())


def as_spark_sees(files):
    """A table of files in the types that Spark has."""
    target = _target_schema(files.schema)
    columns = [
        files[name].cast(kind) for name, kind in zip(target.names, target.types, strict=True)
    ]
    return pa.table(columns, schema=target)


def rows(number):
    moment = dt.datetime(2024, 1, 1 + number % 20, tzinfo=dt.UTC)
    day = moment.replace(tzinfo=None)
    return pa.table(
        {
            "p": [f"p{number % 3}"] * 5,
            "id": list(range(5 * number, 5 * number + 5)),
            "moment": [moment] * 5,
            "wall": [day] * 5,
            "cents": [Decimal(number)] * 5,
            "day": [day.date()] * 5,
            "odd.name": [number / 2] * 5,
        },
        SCHEMA,
    )


def build(root, kind):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    if kind == "state":
        table.upgrade_protocol(reader=4, writer=4)
    for number in range(9):
        table.write(rows(number))
        if number == 5 and kind != "commits":
            options = {"checkpoint.format": kind} if kind in ("json", "parquet") else {}
            arrowlog.Table(root, options=options).checkpoint()
    table.remove([table.snapshot().files["path"][0].as_py()])
    return table


@pytest.mark.parametrize("kind", ["commits", "json", "parquet", "state"])
def test_files_of_every_kind_of_log(either, root, kind):
    table = build(root, kind)
    for where in (None, "id > 30", "p = 'p1' AND id < 30", "cents = 3 OR day = '2024-01-08'"):
        found = arrowlog.spark.files(either, root, where=where).toArrow()
        expected = as_spark_sees(table.scan(where).files)
        assert found.schema.names == expected.schema.names
        assert shown(found.cast(expected.schema)) == shown(expected)
    assert 0 < found.num_rows < table.snapshot().num_files
    old = arrowlog.spark.files(either, root, 4).toArrow()
    assert shown(old.cast(expected.schema)) == shown(as_spark_sees(table.snapshot(4).files))
    planned = arrowlog.spark.plan(either, root, "id = 7", 5)
    assert [row.path for row in planned.collect()] == table.scan("id = 7", 5).paths


def test_truncated_log_is_read_by_a_task(spark, root):
    for kind in ("json", "state"):
        place = root / kind
        table = build(place, kind)
        arrowlog.spark.sql(spark, f"TRUNCATE INDEXTABLES TIME TRAVEL '{place}'")
        found = arrowlog.spark.files(spark, place, where="id > 20").toArrow()
        expected = as_spark_sees(table.scan("id > 20").files)
        assert shown(found.cast(expected.schema)) == shown(expected)


def test_files_of_a_delta_table(spark, tmp_path):
    root = str(tmp_path / "table")
    table = delta_model.DeltaTable(root, random.Random(8), partitioned=True)
    table.create()
    for _ in range(3):
        table.commit([{"add": table.write_file()}])
    expected = as_spark_sees(arrowlog.Table(root).snapshot().files)
    found = arrowlog.spark.files(spark, root).toArrow()
    assert found.schema.names == expected.schema.names
    assert shown(found.cast(expected.schema)) == shown(expected)
    assert arrowlog.spark.files(spark, root, 0).count() == 0


def test_files_frame_is_pinned_to_its_version(spark, root):
    table = build(root, "parquet")
    before = table.snapshot().num_files
    frame = arrowlog.spark.files(spark, root)
    table.write(rows(11))
    assert frame.count() == before
    assert frame.select("path").distinct().count() == before
    assert arrowlog.spark.files(spark, root).count() == before + 1
    joined = frame.alias("x").join(frame.alias("y"), "path")
    assert joined.count() == before


def test_driver_does_not_read_the_files(spark, root, monkeypatch):
    build(root, "parquet")

    def refuse(*_):
        raise AssertionError("the driver read files")

    for name in ("deserialize_table", "decode_run", "reconcile_bucket"):
        monkeypatch.setattr(f"arrowlog.spark.tasks.{name}", refuse)
    monkeypatch.setattr("arrowlog.table.Table.snapshot", refuse)
    frame = arrowlog.spark.files(spark, root)
    assert frame.columns[0] == "path"


def test_damaged_checkpoint_raises(spark, root):
    build(root, "parquet")
    (part,) = [
        path for path in (root / "_transaction_log").rglob("*.parquet") if path.stat().st_size > 500
    ]
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 0xFF
    part.write_bytes(bytes(data))
    with pytest.raises(PySparkException, match=r"checkpoint \d+ cannot be read"):
        arrowlog.spark.files(spark, root).count()
    with pytest.warns(arrowlog.ArrowlogWarning):
        assert arrowlog.spark.snapshot(spark, root).num_files == 8


def test_invalid_requests_raise(spark, root):
    build(root, "commits")
    with pytest.raises(arrowlog.InvalidRequest, match="nothing"):
        arrowlog.spark.files(spark, root, where="nothing = 1")
    with pytest.raises(arrowlog.InvalidRequest, match="There is no version 99"):
        arrowlog.spark.files(spark, root, 99)
    with pytest.raises(arrowlog.TableNotFound):
        arrowlog.spark.files(spark, root / "nowhere")


@pytest.mark.parametrize("seed", range(cases(12)))
def test_random_histories_without_a_session(seed, tmp_path):
    """What the tasks do, one after the other: every file is in exactly one bucket."""
    history = log_model.write(tmp_path, seed, versions=8)
    rng = history.rng
    if rng.random() < 0.5:
        parquet_checkpoints.write(tmp_path, rng.randrange(7), checkpoint_maxFileSize=4000)
    table = arrowlog.Table(tmp_path)
    version = rng.randrange(8)
    replay = DistributedReplay(tmp_path, version, None, {}, rng.choice([1, 3]))
    said = [_read_table_actions(run, replay.job) for run in replay.runs]
    state = replay.state([each for each in said if each is not None])
    expected = table.snapshot(version)
    assert state.metadata == expected.metadata
    assert state.protocol == expected.protocol
    question = _question(str(tmp_path), state, None, {})
    decoded = pa.concat_tables(
        [pa.Table.from_batches([decode_run(run, replay.job)]) for run in replay.runs]
    )
    batches = []
    for bucket in sorted(set(decoded["bucket"].to_pylist()) - {TABLE_BUCKET}):
        some = decoded.filter(pa.compute.equal(decoded["bucket"], bucket))
        (row,) = reconcile_bucket(some).to_pylist()
        adds = deserialize_table(row["adds"]).drop_columns(["@run", "@at"])
        batches += question.rows_of(adds)
    found = pa.Table.from_batches(batches, question.target)
    assert shown(found) == shown(as_spark_sees(expected.files))
