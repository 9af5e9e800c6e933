"""Tables written by deltalake, at every version, against the rows deltalake reads."""

import random
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from support.case_count import cases

import arrowlog

deltalake = pytest.importorskip("deltalake")


def rows_of(table):
    return sorted(map(repr, pa.table(table).to_pylist()))


def random_table(rng, size):
    return pa.table(
        {
            "id": [rng.choice([rng.randrange(50), None]) for _ in range(size)],
            "name": [rng.choice(["a b", "x" * 40, "", "ä", None]) for _ in range(size)],
            "part": [rng.choice(["p=1", "q/2", "r%3", "s t"]) for _ in range(size)],
        },
        schema=pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.string())]),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(cases(8)))
def test_every_version_equals_deltalake(tmp_path, seed):
    rng = random.Random(seed)
    root = str(tmp_path / "t")
    partition = rng.choice([None, ["part"]])
    deltalake.write_deltalake(root, random_table(rng, 8), partition_by=partition)
    followed = arrowlog.Table(root)
    for _ in range(rng.randint(3, 8)):
        written = deltalake.DeltaTable(root)
        step = rng.choice(["append", "append", "overwrite", "delete", "checkpoint", "compact"])
        if step in ("append", "overwrite"):
            rows = random_table(rng, rng.randint(1, 9))
            deltalake.write_deltalake(root, rows, mode=step, partition_by=partition)
        elif step == "delete":
            written.delete(f"id < {rng.randrange(50)}")
        elif step == "checkpoint":
            written.create_checkpoint()
        else:
            written.optimize.compact()
        expected = deltalake.DeltaTable(root)
        assert followed.snapshot().version == expected.version()
        found = followed.scan().to_arrow_dataset().to_table()
        assert rows_of(found) == rows_of(expected.to_pyarrow_table())
    opened = arrowlog.Table(root)
    for version in range(opened.version + 1):
        expected = deltalake.DeltaTable(root, version=version).to_pyarrow_table()
        plan = opened.scan(version=version)
        assert rows_of(plan.to_arrow_dataset().to_table()) == rows_of(expected)
        assert plan.count() in (None, expected.num_rows)
        where = f"id >= {rng.randrange(50)}"
        matching = [row for row in expected.to_pylist() if row["id"] is not None]
        limit = int(where.rpartition(" ")[2])
        count = sum(row["id"] >= limit for row in matching)
        found = opened.scan(where, version=version)
        assert found.to_arrow_dataset().to_table().num_rows == count
        assert found.count() in (None, count)
    lifetimes = opened.query("SELECT count(*) AS n FROM file_lifetimes WHERE end_version IS NULL")
    assert lifetimes["n"][0].as_py() == opened.snapshot().num_files


@pytest.mark.parametrize(
    ("precision", "scale", "text"),
    [
        (38, 18, "1.000000000000000001"),
        (38, 18, "-0.100000000000000001"),
        (38, 10, "-9999999999999999999999999999.9999999999"),
        (20, 2, "123456789012345678.91"),
        (16, 2, "99999999999999.99"),
        (38, 0, "12345678901234567890123456789012345678"),
        (38, 0, "-12345678901234567890123456789012345678"),
    ],
)
def test_decimals_rounded_in_deltalake_statistics_are_not_skipped(tmp_path, precision, scale, text):
    root, value = str(tmp_path / "t"), Decimal(text)
    kind = pa.decimal128(precision, scale)
    deltalake.write_deltalake(root, pa.table({"x": pa.array([value], kind)}))
    table = arrowlog.Table(root)
    for operator in ("=", ">=", "<="):
        plan = table.scan([("x", operator, value)])
        assert plan.to_arrow_dataset().to_table()["x"].to_pylist() == [value], operator
    assert table.to_polars().filter(pl.col("x") == value).collect().height == 1
    plan = table.scan()
    assert {plan.min("x"), plan.max("x")} <= {None, value}
    converted = arrowlog.convert(root)
    plan = converted.scan([("x", "=", value)])
    assert plan.to_arrow_dataset().to_table()["x"].to_pylist() == [value]
    assert converted.snapshot().num_records == 1
