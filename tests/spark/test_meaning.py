"""One predicate, one meaning: Spark finds the rows that every other reader finds."""

import functools
import random

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from support import predicate_meaning
from support.case_count import cases

import arrowlog

AT_ONCE = 20
NAN, INF = float("nan"), float("inf")
# A file each: zeros of both signs alone and beside others, NaN alone and in no maximum.
FILES = [[-0.0], [0.0], [NAN], [NAN, 1.0], [-0.0, 1.0], [0.0, -1.0], [INF, None], [-INF], [3.0]]
POINT = pa.struct([("x", pa.float64())])
SCHEMA = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("g", pa.float32()), ("p", POINT)])
MANY = [float(number) for number in range(100, 112)]  # so many become a set in Spark


def found(frames):
    """The ids of the rows of each frame; several frames are asked for in one query."""
    ids = [[] for _ in frames]
    for start in range(0, len(frames), AT_ONCE):
        some = [
            frame.select(F.lit(start + at).alias("frame"), "id")
            for at, frame in enumerate(frames[start : start + AT_ONCE])
        ]
        rows = functools.reduce(lambda one, other: one.union(other), some).toArrow()
        for row in rows.to_pylist():
            ids[row["frame"]].append(row["id"])
    return [sorted(each) for each in ids]


def write_with(writer, rows, path):
    """A Parquet file of one of the writers, with a bloom filter where there is an option for it."""
    if writer == "pyarrow":
        pq.write_table(rows, path, bloom_filter_options={"f": True, "g": True})
    elif writer == "plain":
        pq.write_table(rows, path, use_dictionary=False, write_page_index=True)
    elif writer == "polars":
        pl.DataFrame(pl.from_arrow(rows)).write_parquet(path)
    else:
        with duckdb.connect() as con:
            con.from_arrow(rows).write_parquet(str(path))


def write_with_spark(spark, parts, folder, *, dictionary):
    """A file of Spark's for each part, with bloom filters; their paths in the order of parts."""
    marked = [part.append_column("part", pa.array([at] * len(part))) for at, part in parts]
    out = spark.createDataFrame(pa.concat_tables(marked)).coalesce(1).write.partitionBy("part")
    for column in ("f", "g", "p.x"):
        out = out.option(f"parquet.bloom.filter.enabled#{column}", "true")
    out.option("parquet.enable.dictionary", str(dictionary).lower()).parquet(str(folder))
    return [next(folder.glob(f"part={at}/*.parquet")) for at, _ in parts]


@pytest.fixture(scope="module")
def floats(sessions, tmp_path_factory):
    """A table of files by every writer, and its rows."""
    root = tmp_path_factory.mktemp("floats")
    table = arrowlog.Table.create(root, SCHEMA)
    every, paths = [], []
    for writer in ("pyarrow", "plain", "polars", "duckdb", "spark", "spark-plain"):
        parts = []
        for number, values in enumerate(FILES):
            rows = [
                {"id": len(every) + at, "f": value, "g": value, "p": {"x": value}}
                for at, value in enumerate(values)
            ]
            parts.append((number, pa.Table.from_pylist(rows, SCHEMA)))
            every += rows
        if writer.startswith("spark"):
            plain = writer == "spark-plain"
            paths += write_with_spark(
                sessions["classic"], parts, root / writer, dictionary=not plain
            )
            continue
        for number, part in parts:
            paths.append(root / f"{writer}-{number}.parquet")
            write_with(writer, part, paths[-1])
    names = [str(path.relative_to(root)) for path in paths]
    table.append([arrowlog.add_parquet(table, name) for name in names])
    return root, every


def float_predicates():
    """Every comparison of a float, near every odd value, and its NOT."""
    nodes = [
        ("compare", name, sign, value)
        for name in ("f", "g")
        for sign in predicate_meaning.SIGNS
        for value in (0.0, -0.0, 1.0, NAN)
    ]
    nodes += [("in", "f", values) for values in ([0.0, 5.0], [-0.0, *MANY], [NAN, *MANY])]
    return nodes + [("not", node) for node in nodes]


def test_spark_filters_find_zeros_and_nan_of_every_writer(spark, floats):
    root, rows = floats
    frame = arrowlog.spark.read(spark, root, native=True)
    nodes = float_predicates()
    texts = [predicate_meaning.as_sql(node).replace("e0", "D") for node in nodes]
    wanted = [[row["id"] for row in rows if predicate_meaning.answer(node, row)] for node in nodes]
    assert dict(zip(texts, found([frame.filter(text) for text in texts]), strict=True)) == dict(
        zip(texts, wanted, strict=True)
    )
    pairs = list(zip(texts, wanted, strict=True))[: len(texts) // 2]
    pairs = [(text.replace("f ", "p.x ", 1), ids) for text, ids in pairs if text.startswith("f ")]
    assert found([frame.filter(text) for text, _ in pairs]) == [ids for _, ids in pairs]


def test_native_plans_find_zeros_and_nan(spark, floats):
    root, rows = floats
    table = arrowlog.Table(root)
    nodes = [node for node in float_predicates() if "nan" not in str(node)]  # those go to workers
    frames = [
        table.scan(predicate_meaning.as_sql(node)).to_spark(spark, native=True) for node in nodes
    ]
    wanted = [[row["id"] for row in rows if predicate_meaning.answer(node, row)] for node in nodes]
    assert found(frames) == wanted


def test_join_on_floats_finds_zeros_of_both_signs(spark, floats):
    root, rows = floats
    frame = arrowlog.spark.read(spark, root, native=True)
    keys = spark.createDataFrame(pa.table({"k": [0.0, NAN]}))
    joined = frame.join(F.broadcast(keys), frame["f"] == keys["k"])
    wanted = [row["id"] for row in rows if row["f"] == 0 or str(row["f"]) == "nan"]
    assert found([joined]) == [wanted]


def test_filters_on_other_columns_are_still_pushed_into_parquet(spark, root):
    """A table with a float column skips row groups by its other columns."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    table = arrowlog.Table.create(root, schema)
    rows = pa.table([list(range(20_000)), [0.5] * 20_000], schema=schema)
    pq.write_table(rows, root / "a.parquet", row_group_size=1000)
    table.append([arrowlog.add_parquet(table, "a.parquet")])
    frame = arrowlog.spark.read(spark, root, native=True)

    def read(where):
        """How many rows Spark has taken from Parquet."""
        plan = frame.filter(where)._jdf.queryExecution().executedPlan()
        plan.execute().count()
        while plan.children().size():
            plan = plan.children().apply(0)
        return plan.metrics().apply("numOutputRows").value()

    assert read("id = 7") == 1000
    assert read("f = 0.25D") == 0  # by the log, which knows the bounds of the file
    assert read("f = 0.5D") == 20_000
    assert read("f = 0.5D AND id < 1500") == 2000


@pytest.mark.promise("spark.same_rows")
@pytest.mark.parametrize("layout", ["a file per row", "plain, small row groups"])
def test_random_predicates_equal_the_model(layout, spark, tmp_path):
    rows = predicate_meaning.rows(seed=11)
    table = predicate_meaning.LAYOUTS[layout](tmp_path / "table", rows)
    nodes, frames, ways = [], [], set()
    for seed in range(5000, 5000 + cases(20)):
        print("seed", seed)
        node = predicate_meaning.generate(random.Random(seed))
        for form, where in predicate_meaning.forms(node).items():
            nodes.append((node, form))
            frames.append(table.scan(where, max_staleness=1e9).to_spark(spark))
            plan = frames[-1]._jdf.queryExecution().executedPlan().toString()
            ways.add("FileScan parquet" in plan)
    model = rows.to_pylist()
    for (node, form), ids in zip(nodes, found(frames), strict=True):
        wanted = [row["id"] for row in model if predicate_meaning.answer(node, row) is True]
        assert ids == wanted, f"{node} as {form}"
    assert ways == {True, False}  # by Spark's own reader, and by Python workers
