"""Rows through real Spark, with nothing but Python: the Java is that of the `[java]` extra."""

import datetime as dt
import json
import socket
from contextlib import closing
from decimal import Decimal
from functools import reduce

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from pyspark.sql.types import StructType
from support.case_count import cases
from support.random_predicates import predicate
from support.random_rows import build
from support.store_places import S3, Memory

import arrowlog
from arrowlog import testing

SECRET = "hunter2-is-the-secret"
SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())])


def put(root, path, rows):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, root / path)


def write(root, files=3, rows=4):
    """A table of a day a file; each says it has a megabyte."""
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    adds = []
    for number in range(files):
        ids = [number * rows + i for i in range(rows)]
        data = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})
        put(root, f"{number}.parquet", data)
        adds.append(
            testing.add(f"{number}.parquet", {"day": f"2024-01-0{number + 1}"}, size=1 << 20)
        )
    testing.write_commit(root, 1, adds)
    return arrowlog.Table(root)


def shown(rows):
    """Rows as a sorted list of texts, in which NaN equals NaN and zero has a sign."""
    columns = [column.to_pylist() for column in rows.columns]
    return sorted(repr(row) for row in zip(*columns, strict=True))


def ids(frame):
    return sorted(frame.toArrow()["id"].to_pylist())


@pytest.mark.promise("spark.same_rows")
@pytest.mark.parametrize("seed", range(3000, 3000 + cases(3)))
def test_random_plans_equal_duckdb(request, spark, tmp_path, seed):
    print("seed", seed)
    parted = seed % 3 == 0
    if parted:
        request.getfixturevalue("small_parts")
    world = build(tmp_path, seed)
    data = world.rows.drop_columns(["file", *world.partition_columns])
    for name in world.names:
        put(tmp_path, name, data.filter(pc.equal(world.rows["file"], name)))
    table = arrowlog.Table(tmp_path)
    numbered = world.rows.append_column("row", pa.array(range(world.rows.num_rows), pa.int64()))
    frames, expected = [], []
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'").fetchall()
        con.register("given", numbered)
        for _ in range(6 if parted else 15):  # parts make many tasks
            text = predicate(world)
            try:
                found = con.execute(f"SELECT row FROM given WHERE {text}").fetchall()
            except duckdb.Error:
                continue
            question = len(frames)
            frames.append(table.scan(text).to_spark(spark).withColumn("?", F.lit(question)))
            rows = world.rows.drop_columns("file").take(pa.array([n for (n,) in found], pa.int64()))
            asked = pa.repeat(pa.scalar(question, pa.int32()), rows.num_rows)
            expected.append(rows.append_column("?", asked))
    assert len(frames) >= 3
    answer = reduce(lambda one, two: one.unionAll(two), frames).toArrow()
    assert answer.column_names == [*world.schema.names, "?"]
    assert shown(answer) == shown(pa.concat_tables(expected))


ODD = pa.schema(
    [
        ("a b", pa.int64()),
        ("dot.ted", pa.string()),
        ("back`tick", pa.decimal128(38, 10)),
        ("日本 é", pa.decimal128(5, 2)),
        ("quo\"te'", pa.binary()),
        ("part, one", pa.string()),
        ("part.two", pa.timestamp("us", "UTC")),
        ("date", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("single", pa.float32()),
        ("yes", pa.bool_()),
        ("nothing", pa.null()),
        (
            "deep",
            pa.struct(
                [
                    (
                        "x.y",
                        pa.list_(pa.struct([("ä", pa.int32()), ("t", pa.timestamp("us", "UTC"))])),
                    ),
                    ("m", pa.map_(pa.string(), pa.list_(pa.decimal128(10, 2)))),
                ]
            ),
        ),
        ("late", pa.list_(pa.string())),
    ]
)
MOMENT = dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
FULL = {
    "a b": 2**63 - 1,
    "dot.ted": "\0 ' \" ` 😀",
    "back`tick": Decimal("-1234567890123456789012345678.0123456789"),
    "日本 é": Decimal("-999.99"),
    "quo\"te'": b"\xff\0",
    "date": dt.date(1, 1, 1),
    "moment": MOMENT,
    "wall": MOMENT.replace(tzinfo=None),
    "tiny": -128,
    "short": -32768,
    "single": 0.5,
    "yes": False,
    "nothing": None,
    "deep": {
        "x.y": [{"ä": -1, "t": MOMENT}, None, {"ä": None, "t": None}],
        "m": [("k", [Decimal("1.25"), None]), ("", None)],
    },
}


def write_odd(root):
    """A file with everything, one of nulls, one in other spellings of the same types, one empty."""
    parts = ["part, one", "part.two"]
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(ODD, parts)])
    data = pa.schema([item for item in ODD if item.name not in [*parts, "late"]])
    put(root, "full.parquet", pa.Table.from_pylist([FULL], schema=data))
    put(root, "nulls.parquet", pa.Table.from_pylist([{}, {}], schema=data))
    other = {
        "date": pa.array([dt.date(1969, 12, 31)], pa.date32()),
        "late": pa.array([["a", None]], pa.large_list(pa.large_string())),
        "dot.ted": pa.array(["d"]).dictionary_encode(),
        "a b": pa.array([-7], pa.int16()),
        "moment": pa.array([-1], pa.timestamp("ms", "Europe/Zurich")),
        "quo\"te'": pa.array([b"x"], pa.large_binary()),
    }
    put(root, "other.parquet", pa.table(other))
    put(root, "empty.parquet", data.empty_table())
    moment = "1969-12-31T23:59:59.999999Z"
    adds = [
        testing.add("full.parquet", {"part, one": "x=/y%20", "part.two": moment}),
        testing.add("nulls.parquet", {"part, one": None}),
        testing.add("other.parquet", {"part, one": "", "part.two": None}),
        testing.add("empty.parquet", {"part, one": "e", "part.two": moment}),
    ]
    testing.write_commit(root, 1, adds)
    return arrowlog.Table(root)


def test_unusual_names_and_every_type(either, root):
    table = write_odd(root)
    frame = table.scan().to_spark(either)
    stored = json.loads(table.snapshot().metadata.schema_string)
    assert frame.schema == StructType.fromJson(stored)
    rows = frame.toArrow()
    assert rows.column_names == ODD.names
    assert shown(rows) == shown(table.scan().to_arrow_dataset().to_table())
    found = {row["a b"]: row for row in rows.to_pylist()}
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    full = {**FULL, "part, one": "x=/y%20", "part.two": before, "late": None}
    assert found[2**63 - 1] == full
    assert found[-7]["late"] == ["a", None]
    assert found[-7]["part, one"] == ""
    assert found[None] == dict.fromkeys(ODD.names)
    assert frame.filter("`dot.ted` = 'd'").select("`part, one`", "date").collect() == [
        ("", dt.date(1969, 12, 31))
    ]
    again = table.scan('"a b" < 0 OR "日本 é" = -999.99').to_spark(either)
    assert sorted(again.toArrow()["a b"].to_pylist()) == [-7, 2**63 - 1]


def test_required_columns_missing_from_files_are_null(spark, root):
    """A file from before the column was added has no values for it; Spark must not invent any."""
    fields = [
        {"name": "id", "type": "bigint", "nullable": False, "metadata": {"comment": "the id"}},
        {"name": "code", "type": "varchar(3)", "nullable": False, "metadata": {}},
        {"name": "n", "type": "int", "nullable": False, "metadata": {}},
    ]
    meta = testing.metadata(pa.schema([("id", pa.int64())]))
    meta["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    put(root, "a.parquet", pa.table({"id": [1, 2]}))
    testing.write_commit(root, 0, [testing.protocol(), meta])
    testing.write_commit(root, 1, [testing.add("a.parquet")])
    frame = arrowlog.Table(root).scan().to_spark(spark)
    assert frame.schema.simpleString() == "struct<id:bigint,code:string,n:int>"
    assert frame.schema["id"].metadata == {"comment": "the id"}
    assert frame.filter("n IS NULL AND code IS NULL").count() == 2


def test_timestamps_do_not_depend_on_the_session_time_zone(spark, root):
    table = write_odd(root)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = table.scan('"a b" > 0').to_spark(spark)
        micros = frame.selectExpr("unix_micros(moment)", "unix_micros(`part.two`)", "wall")
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        want = (MOMENT - epoch) // dt.timedelta(microseconds=1)
        assert micros.collect() == [(want, -1, MOMENT.replace(tzinfo=None))]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_empty_plan_has_the_schema(either, root):
    table = write(root)
    for where in ("FALSE", "day = '1999-01-01'", "id = 1000"):
        frame = table.scan(where).to_spark(either)
        assert frame.schema.simpleString() == "struct<day:date,id:bigint,name:string>"
        assert frame.toArrow().num_rows == 0
        assert frame.count() == 0


def test_frame_can_be_used_twice_in_a_query(either, root):
    base = write(root).scan("id < 10").to_spark(either)
    one, two = base.filter("id = 5"), base.filter("id = 9")
    assert ids(one.union(two)) == [5, 9]
    assert ids(base) == list(range(10))
    assert base.join(base.selectExpr("id + 1 AS id"), "id").count() == 9
    assert base.join(base.filter("id > 7"), "id").count() == 2
    base.createOrReplaceTempView("base")
    found = either.sql("SELECT count(*) FROM base x JOIN base y USING (day) WHERE x.id = 0")
    assert found.collect() == [(4,)]


def test_each_split_is_a_task(spark, small_parts, root):
    plan = write(root, files=5).scan()
    frame = plan.to_spark(spark)
    used = frame.select("day", F.spark_partition_id().alias("part")).distinct().collect()
    assert len(plan.splits("1MB")) == 5
    assert sorted(row.part for row in used) == [0, 1, 2, 3, 4]


def test_frame_is_pinned_to_its_version(spark, root):
    table = write(root)
    frame = table.scan("id >= 4").to_spark(spark)
    table.remove(["1.parquet"])
    assert ids(table.scan("id >= 4").to_spark(spark)) == [8, 9, 10, 11]
    assert ids(frame) == list(range(4, 12))
    assert ids(table.scan("id >= 4", version=1).to_spark(spark)) == list(range(4, 12))


def test_foreign_expressions_are_applied(spark, root):
    table = write(root)
    assert ids(table.scan(pl.col("name").str.contains("[13]$")).to_spark(spark)) == [1, 3, 11]
    where = pc.match_substring_regex(pc.field("name"), "[13]$")
    assert ids(table.scan(where).to_spark(spark)) == [1, 3, 11]
    assert ids(table.scan("upper(name) = 'N7'").to_spark(spark)) == [7]


def plans_of(frame):
    """Everything Spark says of a frame."""
    query = frame._jdf.queryExecution()
    texts = [query.toString(), query.logical().toJSON(), query.executedPlan().toString()]
    return "\n".join([*texts, query.optimizedPlan().numberedTreeString(), repr(frame)])


@pytest.mark.promise("security.no_credentials")
def test_credentials_reach_workers_but_not_the_plan(sessions, root, moto, capfd):
    server, client = moto
    options = {**server.options, "secret": SECRET}
    place = S3(server, accelerate=True, writer=client)
    write(root)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        place.put(str(path.relative_to(root)), path.read_bytes())
    plan = arrowlog.Table(place.uri, options).scan("id > 2 AND lower(name) <> 'n5'")
    for kind, spark in sessions.items():
        frame = plan.to_spark(spark)
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
        assert ids(frame) == [3, 4, *range(6, 12)]
        if kind == "classic":
            assert SECRET not in plans_of(frame)
    said = capfd.readouterr()
    assert "arrowlog_rows" in said.out
    assert SECRET not in said.out + said.err


def test_memory_store_tables_are_sent_as_rows(either):
    place = Memory()
    table = arrowlog.Table.create(place.uri, SCHEMA, partition_columns=["day"])
    table.write(pa.table([[dt.date(1960, 1, 1), None], [1, 2], ["a", None]], schema=SCHEMA))
    assert table.scan("id > 1").to_spark(either).collect() == [(None, 2, None)]
    assert table.scan("id > 5").to_spark(either).collect() == []
    assert table.scan().to_spark(either).schema.simpleString().startswith("struct<day:date")


def test_unpicklable_storage_options_are_refused(spark, root):
    write(root)
    plan = arrowlog.Table(root, {"secret": SECRET, "client": socket.socket}).scan()
    assert plan.to_spark(spark).count() == 12
    with closing(socket.socket()) as unpicklable:
        plan = arrowlog.Table(root, {"secret": SECRET, "client": unpicklable}).scan()
        with pytest.raises(arrowlog.InvalidRequest, match="plain values") as caught:
            plan.to_spark(spark, native=False)
    assert SECRET not in str(caught.value)


def test_unreadable_plans_are_refused_before_execution(spark, root):
    table = write(root)
    with pytest.raises(arrowlog.InvalidRequest, match="soundex"):
        table.scan("soundex(name) = 'x'").to_spark(spark)
    testing.write_commit(root, 2, [testing.add("odd.parquet", {"day": "yesterday"})])
    with pytest.raises(arrowlog.LogCorrupt, match=r"odd\.parquet"):
        arrowlog.Table(root).scan().to_spark(spark)


@pytest.mark.parametrize("kind", ["interval day to second", "variant"])
def test_unsupported_type_raises_with_its_column(spark, root, kind):
    inner = {"name": "in", "type": kind, "nullable": True, "metadata": {}}
    fields = [{"name": "out", "type": {"type": "struct", "fields": [inner]}, "nullable": True}]
    meta = testing.metadata(pa.schema([("id", pa.int64())]))
    meta["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    testing.write_commit(root, 0, [testing.protocol(), meta])
    with pytest.raises(arrowlog.InvalidRequest, match=rf"'out\.in' has type {kind}"):
        arrowlog.Table(root).scan().to_spark(spark)


def test_damaged_file_raises_with_its_path_without_secrets(either, root):
    """A folder called like a secret makes every message of the reader one that has it."""
    write(root / SECRET)
    plan = arrowlog.Table(root / SECRET, {"secret": SECRET}).scan()
    frame = plan.to_spark(either, native=False)
    bad = root / SECRET / "1.parquet"
    named = r"DataFileError: 1\.parquet: .*added by version 1"
    for damage in (lambda: bad.write_bytes(b"PAR1 no longer"), bad.unlink):
        damage()
        with pytest.raises(PySparkException, match=named) as caught:
            frame.count()
        assert SECRET not in str(caught.value)


def test_running_session_is_reused(spark):
    again = arrowlog.spark.session(**{"spark.sql.shuffle.partitions": 3})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"
    assert again.conf.get("spark.sql.session.timeZone") == "UTC"
    assert again.sparkContext.uiWebUrl is None
    assert again.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    with pytest.raises(arrowlog.InvalidRequest, match=r"driver_memory.*spark\.driver\.memory"):
        arrowlog.spark.session(driver_memory="4g")


def test_workers_check_the_data_files_of_a_repair(either, tmp_path):
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    table = arrowlog.Table.create(tmp_path / "t", schema, ["p"])
    keys = [f"p={n % 3}/f{n}" for n in range(40)] + ["p=x/alone"]
    table.append([arrowlog.add_file(key, {"p": key[2]}, size=1) for key in keys])
    for key in keys[5:]:
        (tmp_path / "t" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / key).write_bytes(b"1")
    told = []
    log = tmp_path / "t" / "_transaction_log"
    how = {"spark": either, "progress": lambda *done: told.append(done)}
    row = arrowlog.repair(log, tmp_path / "new" / "_transaction_log", **how).to_pylist()[0]
    assert row["status"] == "SUCCESS"
    assert (row["valid_splits"], row["missing_splits"]) == (36, 5)
    assert sorted(arrowlog.Table(tmp_path / "new").snapshot().files["path"].to_pylist()) == sorted(
        keys[5:]
    )
    assert told == [(41, 41)]


def test_session_settings_apply_to_a_repair(spark, tmp_path):
    schema = pa.schema([("id", pa.int64())])
    arrowlog.Table.create(tmp_path / "t", schema).append([arrowlog.add_file("gone", {}, size=1)])
    log = tmp_path / "t" / "_transaction_log"
    spark.conf.set("spark.indextables.repair.failOnMissing", "true")
    try:
        row = arrowlog.repair(log, tmp_path / "new", spark=spark).to_pylist()[0]
    finally:
        spark.conf.unset("spark.indextables.repair.failOnMissing")
    assert row["status"].startswith("ERROR: 1 of 1 data files are missing")


def small_files(root, days=3, files=4):
    table = arrowlog.Table.create(root, SCHEMA, ["day"])
    for number in range(files):
        rows = [
            {"day": dt.date(2024, 1, day + 1), "id": 10 * number + day, "name": f"n{number}"}
            for day in range(days)
        ]
        table.write(pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


def test_workers_compact_files(either, root):
    table = small_files(root)
    before = shown(table.scan().to_arrow_dataset().to_table())
    broken = table.snapshot().files["path"][0].as_py()
    (root / broken).write_bytes(b"no parquet")
    done = table.compact(spark=either)
    assert [path for path, _ in done.skipped] == [broken]
    assert (done.num_groups, done.files_removed) == (3, 11)
    after = table.refresh()
    assert after.num_files == 4
    assert table.skips.active()["path"].to_pylist() == [broken]
    kept = [path for path in after.files["path"].to_pylist() if path != broken]
    found = pa.concat_tables([pq.read_table(root / path, partitioning=None) for path in kept])
    assert len(before) == found.num_rows + 1
    assert sorted(found["id"].to_pylist()) == sorted(
        {10 * number + day for number in range(4) for day in range(3)} - {0}
    )
    assert table.compact(spark=either).num_groups == 0


def test_concurrent_removal_aborts_only_its_compaction_group(spark, root, monkeypatch):
    from arrowlog.spark import compact

    table = small_files(root)
    other = arrowlog.Table(root)
    whole = compact._on_workers

    def on_workers(*args):
        found = list(whole(*args))
        if table.refresh().version == 4:
            other.drop_partitions("day = DATE '2024-01-02'")
        yield from found

    monkeypatch.setattr(compact, "_on_workers", on_workers)
    done = table.compact(spark=spark)
    assert sorted(found.status for found in done.groups) == ["compacted", "compacted", "conflict"]
    days = table.scan().to_arrow_dataset().to_table()["day"].to_pylist()
    assert {day.day for day in days} == {1, 3}
