"""Rows of random tables are the same through every way of reading."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.case_count import cases
from support.random_rows import build

import arrowlog


def shown(rows):
    columns = [column.to_pylist() for column in rows.columns]
    return sorted(repr(row) for row in zip(*columns, strict=True))


def natively(spark, path, version):
    return arrowlog.spark.read(spark, path, version)


def by_workers(spark, path, version):
    return arrowlog.spark.read(spark, path, version, native=False)


def by_format(spark, path, version):
    return spark.read.format("arrowlog").option("versionAsOf", version).load(path)


def by_original_name(spark, path, version):
    name = "io.indextables.spark.core.IndexTables4SparkTableProvider"
    return spark.read.format(name).load(path, versionAsOf=version)


def by_view(spark, path, version):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW every_way USING arrowlog"
        f" OPTIONS (path '{path}', versionAsOf '{version}')"
    )
    return spark.table("every_way")


def by_path(spark, path, version):
    text = f"SELECT * FROM indextables.`{path}` VERSION AS OF {version}"
    return arrowlog.spark.sql(spark, text)


CLASSIC = [natively, by_workers, by_format, by_original_name, by_view, by_path]
CONNECT = [by_workers, by_format, by_view, by_path]


@pytest.mark.promise("spark.same_rows")
@pytest.mark.parametrize("seed", range(7000, 7000 + cases(2)))
def test_every_reader_returns_the_same_rows(sessions, tmp_path, seed):
    print("seed", seed)
    world = build(tmp_path, seed)
    data = world.rows.drop_columns(["file", *world.partition_columns])
    for name in world.names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(data.filter(pc.equal(world.rows["file"], name)), tmp_path / name)
    table = arrowlog.Table(tmp_path)
    first = table.version
    table.remove([random.Random(seed).choice(world.names)])
    for spark in sessions.values():
        arrowlog.spark.register(spark)
    for version in (first, table.version):
        plan = table.scan(version=version)
        live = pa.array(plan.paths, pa.string())
        kept = world.rows.filter(pc.is_in(world.rows["file"], live)).drop_columns("file")
        expected = shown(kept.select(world.schema.names))
        for session, ways in (("classic", CLASSIC), ("connect", CONNECT)):
            for read in ways:
                frame = read(sessions[session], str(tmp_path), version)
                assert shown(frame.toArrow()) == expected, (session, read.__name__)
