"""Tables on Spark's own Parquet reader: Spark's filters prune, and no row is lost or invented."""

import datetime as dt
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from support.case_count import cases
from support.random_rows import build

import arrowlog
from arrowlog import testing
from arrowlog.spark import bridge, native

DAYS = [dt.date(2024, 1, n) for n in (1, 2, 3)]
SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())])


def write(root, days=DAYS, rows=10):
    """A file a day, ten rows each, with statistics."""
    table = arrowlog.Table.create(root, SCHEMA, partition_columns=["day"])
    for number, day in enumerate(days):
        ids = list(range(number * rows, (number + 1) * rows))
        names = [f"n{i}" for i in ids]
        table.write(pa.table([[day] * rows, ids, names], schema=SCHEMA))
    return table


def ids(frame):
    return sorted(frame.toArrow()["id"].to_pylist())


def scanned(frame):
    """How many files Spark planned to read."""
    node = frame._jdf.queryExecution().sparkPlan()
    found = []

    def walk(node):
        if node.getClass().getSimpleName() == "FileSourceScanExec":
            index = node.relation().location()
            listed = index.listFiles(node.partitionFilters(), node.dataFilters())
            found.append(sum(listed.apply(n).files().size() for n in range(listed.size())))
        children = node.children()
        for n in range(children.size()):
            walk(children.apply(n))

    walk(node)
    return sum(found)


def is_native(frame):
    return "FileScan parquet" in frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("id = 5", 1),
        ("id = 5 OR id = 25", 2),
        ("id IN (5, 25)", 2),
        (f"id IN ({', '.join(map(str, range(12)))})", 2),
        ("name LIKE 'n2%'", 2),
        ("name = 'n15'", 2),
        ("id > 1000", 0),
        ("NOT (id < 20)", 1),
        ("id <=> 7", 1),
        ("id IS NULL", 0),
        ("abs(id) = 5", 3),
        ("day = '2024-01-02'", 1),
        ("year(day) = 2024 AND dayofmonth(day) > 1", 2),
        ("day = '2024-01-02' OR id = 5", 3),
        ("day > '2024-01-01' AND id < 15", 1),
        ("upper(name) = 'N7' AND id < 10", 1),
    ],
)
def test_spark_filters_prune_files(spark, shared, where, files):
    frame = arrowlog.spark.read(spark, shared)
    assert is_native(frame)
    with duckdb.connect() as con:
        rows = con.from_arrow(arrowlog.Table(shared).scan().to_arrow_dataset().to_table())
        expected = sorted(row[1] for row in rows.filter(where.replace("<=>", "=")).fetchall())
    answer = frame.filter(where)
    assert ids(answer) == expected
    assert scanned(answer) == files


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("shared") / "table"
    write(root)
    return root


def test_frame_reused_in_queries_that_break_push_down(spark, shared):
    base = arrowlog.spark.read(spark, shared)
    one, two = base.filter("id = 5"), base.filter("id = 25")
    assert ids(one.union(two)) == [5, 25]
    assert ids(one) == [5]
    assert base.count() == 30
    assert one.crossJoin(two.selectExpr("id AS other")).collect()[0].asDict()["other"] == 25
    assert base.alias("a").join(base.alias("b"), F.expr("a.id = b.id + 1")).count() == 29
    assert base.filter("id < 3").join(base.filter("id > 1"), "id").count() == 1
    base.createOrReplaceTempView("shared")
    assert spark.sql("SELECT count(*) FROM shared WHERE id = 1").collect() == [(1,)]
    text = "SELECT count(*) FROM shared x, shared y WHERE x.id = 1 AND y.id < 5"
    assert spark.sql(text).collect() == [(5,)]
    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(lambda n: base.filter(f"id < {n}").count(), range(0, 31, 5))
        assert list(counts) == list(range(0, 31, 5))


def test_cached_frame_is_pinned_to_its_version(spark, root):
    table = write(root)
    first = arrowlog.spark.read(spark, root).cache()
    assert first.count() == 30
    table.remove("day = '2024-01-02'")
    assert arrowlog.spark.read(spark, root).count() == 20
    assert arrowlog.spark.read(spark, root, version=1).count() == 10
    again = arrowlog.spark.read(spark, root, version=3)
    assert "InMemoryTableScan" in again._jdf.queryExecution().executedPlan().toString()
    assert first.filter("id = 15").count() == 1
    first.unpersist()


def test_joins_prune_partitions_dynamically(spark, shared):
    base = arrowlog.spark.read(spark, shared)
    few = spark.createDataFrame([("2024-01-02", "x")], "d string, tag string")
    few = few.selectExpr("cast(d AS date) AS day", "tag").filter("tag = 'x'")
    joined = base.join(F.broadcast(few), "day")
    assert "dynamicpruning" in joined._jdf.queryExecution().executedPlan().toString()
    assert ids(joined) == list(range(10, 20))


def test_explain_shows_version_and_number_of_files(spark, shared, capsys):
    arrowlog.spark.read(spark, shared).filter("id = 5").explain()
    assert "arrowlog-version-3-of-3-files" in capsys.readouterr().out
    arrowlog.spark.explain(arrowlog.spark.read(spark, shared).filter("id = 5 AND day IS NOT NULL"))
    assert "1 of 3 files to read" in capsys.readouterr().out


def test_spark_cannot_write_around_the_log(spark, shared):
    arrowlog.spark.read(spark, shared).createOrReplaceTempView("locked")
    before = sorted(os.listdir(shared))
    with pytest.raises(PySparkException):
        spark.sql("INSERT INTO locked SELECT * FROM locked")
    assert sorted(os.listdir(shared)) == before


ODD_NAMES = [
    "plain",
    "with space",
    "a=b%20c",
    "100%",
    "_hidden",
    ".dotted",
    "ünï/日本",
    "brackets[1]{2}*?",
    "back\\slash",
    "quote'\"`",
    "plus+&#;,@!$",
]


def test_unusual_names_and_partition_values(spark, root):
    schema = pa.schema([("p", pa.string()), ("q", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, ["p", "q"])])
    adds, want = [], []
    values = [*ODD_NAMES, "", None, "\n\t\x01", "😀"]
    for number, value in enumerate(values):
        name = ODD_NAMES[number % len(ODD_NAMES)]
        path = f"p={name}/{number}{name.replace('/', '')}.parquet"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), root / path)
        moment = dt.datetime(2024, 10, 27, 0, 30 + number, tzinfo=dt.UTC)
        adds.append(testing.add(path, {"p": value, "q": moment.isoformat()}, size=1))
        want.append((value, moment, number))
    testing.write_commit(root, 1, adds)
    frame = arrowlog.spark.read(spark, root)
    assert is_native(frame)
    rows = frame.toArrow().sort_by("id").to_pylist()
    assert [(row["p"], row["q"], row["id"]) for row in rows] == want
    for value, moment, number in want:
        same = F.col("p").eqNullSafe(F.lit(value))
        assert ids(frame.filter(same)) == [number]
        micros = moment.timestamp() * 1_000_000
        assert ids(frame.filter(f"unix_micros(q) = {int(micros)}")) == [number]


def test_paths_invalid_in_hadoop_are_read_by_workers(spark, root):
    table = write(root, DAYS[:1])
    pq.write_table(pa.table({"id": [77], "name": ["x"]}), root / "colon:two.parquet")
    table.append([arrowlog.add_parquet(table, "colon:two.parquet", {"day": None})])
    frame = arrowlog.spark.read(spark, root, where="id > 8")
    assert not is_native(frame)
    assert ids(frame) == [9, 77]


def test_wrong_file_sizes_in_the_log_lose_no_row(spark, root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    sizes = [1, 10**9, 0]
    for number, size in enumerate(sizes):
        data = pa.table({"id": pa.array(range(number * 10, number * 10 + 10), pa.int64())})
        pq.write_table(data, root / f"{number}.parquet")
        add = testing.add(f"{number}.parquet", {"day": "2024-01-01"}, size=size)
        testing.write_commit(root, number + 1, [add])
    assert ids(arrowlog.spark.read(spark, root)) == list(range(30))


def test_filters_that_match_nan_keep_its_rows(spark, root):
    """Spark by itself loses them: it trusts bounds in which there is no NaN."""
    table = arrowlog.Table.create(root, pa.schema([("x", pa.float64())]))
    table.write(pa.table({"x": [1.0, float("nan"), None]}))
    frame = arrowlog.spark.read(spark, root)
    (path,) = table.scan().paths
    assert spark.read.parquet(f"{root}/{path}").filter("x > 5").count() == 0
    for where in ("x > 5", "x >= 5", "x = double('NaN')", "NOT (x < 5)", "x IN (double('NaN'), 7)"):
        assert frame.filter(where).count() == 1, where
    assert table.scan("x > 5").to_spark(spark).count() == 1


@pytest.mark.parametrize("seed", range(7000, 7000 + cases(2)))
def test_spark_filters_on_random_tables_are_exact(spark, tmp_path, seed):
    print("seed", seed)
    world = build(tmp_path, seed)
    data = world.rows.drop_columns(["file", *world.partition_columns])
    for name in world.names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(data.filter(pc.equal(world.rows["file"], name)), tmp_path / name)
    frame = arrowlog.spark.read(spark, tmp_path)
    assert is_native(frame)
    plain = spark.createDataFrame(world.rows.drop_columns("file"), frame.schema)
    questions, answers = [], []
    for number in range(12):
        where = condition(world)
        questions.append(frame.filter(where).withColumn("?", F.lit(number)))
        answers.append(plain.filter(where).withColumn("?", F.lit(number)))
    found, expected = (
        reduce(lambda a, b: a.unionAll(b), frames).toArrow() for frames in (questions, answers)
    )
    assert shown(found) == shown(expected)


def shown(rows):
    columns = [column.to_pylist() for column in rows.columns]
    return sorted(repr(row) for row in zip(*columns, strict=True))


def _is_date(value):
    # `F.lit` of a date formats the year without padding, which Java rejects below 1000.
    return isinstance(value, dt.date) and not isinstance(value, dt.datetime)


def condition(world, depth=2):
    """A condition of Spark's with values that are in the table."""
    rng = world.rng
    if depth and rng.random() < 0.6:
        left, right = condition(world, depth - 1), condition(world, depth - 1)
        return rng.choice([left & right, left | right, ~left])
    item = rng.choice(list(world.schema))
    column = F.col(item.name)
    value = rng.choice(world.rows[item.name].to_pylist())
    if value is None or rng.random() < 0.1:
        return rng.choice([column.isNull(), column.isNotNull(), column.eqNullSafe(F.lit(None))])
    literal = F.lit(value) if not _is_date(value) else F.lit(value.isoformat()).cast("date")
    if pa.types.is_timestamp(item.type) and item.type.tz is None:
        literal = F.lit(value.isoformat()).cast("timestamp_ntz")
    if isinstance(value, str) and rng.random() < 0.4:
        return column.startswith(value[: rng.choice([1, 2, 40])])
    signs = [column == literal, column != literal, column < literal, column <= literal]
    signs += [column > literal, column >= literal, column.eqNullSafe(literal)]
    return rng.choice([*signs, column.isin(literal, literal)])


def test_chosen_reader_is_logged_once(sessions, root, caplog, monkeypatch):
    write(root)
    monkeypatch.setattr(native, "_LOGGED", set())
    with caplog.at_level(logging.INFO, "arrowlog"):
        for _ in range(2):
            arrowlog.spark.read(sessions["classic"], root).count()
            assert arrowlog.spark.read(sessions["connect"], root, where="id < 15").count() == 15
    said = [record.getMessage() for record in caplog.records if record.name == "arrowlog.spark"]
    assert len(said) == 2
    assert "Spark's own Parquet reader" in said[0]
    assert "Connect" in said[1]


def test_unknown_spark_internals_fall_back_to_workers(spark, root, caplog, monkeypatch):
    write(root)
    monkeypatch.setattr(native, "_PROBE_RESULTS", {})
    monkeypatch.setattr(native, "_LOGGED", set())
    monkeypatch.setattr(bridge, "_BRIDGES", {})
    monkeypatch.setattr(bridge, "_JAVA_SOURCE", bridge._JAVA_SOURCE.replace("inputFiles", "files"))
    frame = arrowlog.spark.read(spark, root, where="id >= 15")
    assert not is_native(frame)
    assert ids(frame) == list(range(15, 30))
    assert "internals of this version of Spark are not supported" in caplog.text
    with pytest.raises(arrowlog.InvalidRequest, match="internals of this version"):
        arrowlog.spark.read(spark, root, native=True)


def test_settings_are_read_from_the_session(spark, root):
    write(root)
    spark.conf.set("spark.indextables.checkpoint.interval", "many")
    try:
        with pytest.raises(arrowlog.InvalidRequest, match=r"checkpoint\.interval.*many"):
            arrowlog.spark.read(spark, root)
        options = {"checkpoint.interval": 5}  # comes first, so the other is not in force
        assert arrowlog.spark.read(spark, root, options=options).count() == 30
    finally:
        spark.conf.unset("spark.indextables.checkpoint.interval")
    assert arrowlog.spark.read(spark, root).count() == 30


def test_added_columns_are_null_in_older_files(spark, root):
    table = write(root, DAYS[:1])
    table.add_columns({"score": pa.float64(), "tags": pa.list_(pa.string())})
    row = {"day": DAYS[1], "id": 99, "name": "x", "score": 0.5, "tags": ["a"]}
    table.write(pa.Table.from_pylist([row], schema=table.snapshot().schema))
    frame = arrowlog.spark.read(spark, root)
    assert frame.filter("score IS NULL AND tags IS NULL").count() == 10
    assert frame.filter("score = 0.5").select("id", "tags").collect() == [(99, ["a"])]
    old = arrowlog.spark.read(spark, root, version=1)
    assert old.columns == ["day", "id", "name"]
    assert json.loads(table.snapshot().metadata.schema_string)["fields"][-1]["name"] == "tags"
