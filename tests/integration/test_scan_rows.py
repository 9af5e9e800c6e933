"""Reading the rows of a plan: Parquet files read by every engine with the predicate applied."""

import datetime as dt
import math
import pickle
from functools import partial

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog import testing

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("place", pa.string()),
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("later", pa.int32()),
    ]
)
FILES = {
    "odd % = name/[a]*?.parquet": ({"day": "2024-01-01", "place": "x/y=%20"}, [1, 2, 3]),
    "day=1999-01-01/lying-path.parquet": ({"day": "2024-01-02", "place": None}, [4, 5]),
    "_hidden.parquet": ({"day": None, "place": "é😀"}, [6, None, 8]),
    "with-partition-column.parquet": ({"day": "2024-01-02", "place": "p"}, [9]),
}


def data(path, ids):
    """Rows of a file; one has a NaN, one file has columns that others lack."""
    xs = [None if i is None else math.nan if i == 5 else float(i) for i in ids]
    table = pa.table({"name": [f"n{i}" for i in ids], "x": xs, "id": pa.array(ids, pa.int64())})
    if path.startswith("_"):
        table = table.append_column("later", pa.array(ids, pa.int32()))
        table = table.append_column("unknown", pa.array(["?"] * len(ids)))
    if path.startswith("with"):
        table = table.append_column("day", pa.array([0] * len(ids), pa.date32()))
        table = table.append_column("place", pa.array(["wrong"] * len(ids)))
    return table


def write(commit, put):
    commit(0, [testing.protocol(), testing.metadata(SCHEMA, ["day", "place"])])
    adds = []
    for path, (values, ids) in FILES.items():
        put(path, data(path, ids))
        known = [i for i in ids if i is not None]
        bounds = {"minValues": {"id": str(min(known))}, "maxValues": {"id": str(max(known))}}
        adds.append(testing.add(path, values, numRecords=len(ids), size=len(ids) * 100, **bounds))
    commit(1, adds)


@pytest.fixture
def table(root):
    def put(path, rows):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, root / path)

    write(partial(testing.write_commit, root), put)
    return arrowlog.Table(root)


def expected(where):
    """The rows DuckDB finds in all rows in memory."""
    parts = []
    for path, (values, ids) in FILES.items():
        rows = data(path, ids)
        later = rows["later"] if "later" in rows.column_names else pa.nulls(len(ids), pa.int32())
        day = pa.scalar(values["day"], pa.string()).cast(pa.date32())
        columns = [
            pa.repeat(day, len(ids)),
            pa.repeat(pa.scalar(values["place"], pa.string()), len(ids)),
        ]
        columns += [rows["id"], rows["x"], rows["name"], later]
        parts.append(pa.table(columns, schema=SCHEMA))
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'").fetchall()
        con.register("rows", pa.concat_tables(parts))
        return con.execute(f"SELECT name FROM rows WHERE {where} ORDER BY name").fetchall()


WHERE = [
    "TRUE",
    "FALSE",
    "id >= 4",
    "x > 4",
    "NOT (x <= 4)",
    "x <> 5",
    "day = '2024-01-02'",
    "day IS NULL",
    "place = 'x/y=%20' OR place = 'é😀'",
    "place IS NULL AND id < 5",
    "later IS NULL",
    "later > 6",
    "id NOT IN (1, 9)",
    "id IS DISTINCT FROM 1",
    "name LIKE 'n_'",
    "name LIKE 'n%' AND starts_with(place, 'x')",
    "upper(name) = 'N5' OR id % 2 = 0",
    "(id > 2) IS NOT TRUE",
    "day = '2024-01-02' AND upper(name) >= 'N5' AND x > 1",
    "id = 2.0",
    "id > 1.5 AND id < 7.5",
]


@pytest.mark.parametrize("where", WHERE)
def test_every_engine_returns_the_matching_rows(table, where):
    plan = table.scan(where)
    true = [name for (name,) in expected(where)]
    arrow = plan.to_arrow_dataset().to_table()
    assert arrow.schema.equals(SCHEMA)
    assert sorted(arrow["name"].to_pylist()) == true
    frame = plan.to_polars()
    assert isinstance(frame, pl.LazyFrame)
    assert sorted(frame.collect()["name"].to_list()) == true
    with duckdb.connect() as con:
        found = plan.to_duckdb(con)
        assert found.columns == SCHEMA.names
        assert sorted(row[4] for row in found.fetchall()) == true
    assert plan.count() is None or plan.count() == len(true)


def test_foreign_expressions_are_applied(table):
    for where in (
        pl.col("name").str.contains("[125]"),
        (pl.col("id") > 1) & pl.col("name").str.to_uppercase().is_in(["N1", "N2", "N5"]),
        pc.match_substring_regex(pc.field("name"), "[25]"),
    ):
        names = table.scan(where).to_polars().collect()["name"].to_list()
        assert {"n2", "n5"} <= set(names) <= {"n1", "n2", "n5"}


def test_partition_columns_come_from_the_log(table):
    rows = table.scan("id IN (4, 9)").to_arrow_dataset().to_table().sort_by("id").to_pylist()
    assert [str(row["day"]) for row in rows] == ["2024-01-02", "2024-01-02"]
    assert [row["place"] for row in rows] == [None, "p"]


def test_lazy_frame_reads_only_requested_columns_and_rows(table):
    frame = table.scan("id >= 1").to_polars()
    assert frame.select("id").collect().columns == ["id"]
    assert frame.filter(pl.col("x") > 4).select("name").collect().height == 4  # with a NaN
    assert frame.head(2).collect().height == 2
    assert frame.select(pl.len()).collect().item() == 8


def test_splits_cover_the_plan_and_contain_no_secret(table):
    plan = arrowlog.Table(table.uri, {"secret": "hunter2"}).scan("id >= 1 AND lower(name) <> 'n9'")
    parts = plan.splits(target_size=300)
    assert sorted(path for part in parts for path in part.paths) == sorted(plan.paths)
    assert sum(part.size_bytes for part in parts) == plan.size_bytes
    assert {part.version for part in parts} == {1}
    assert len(parts) == 3
    names = []
    for part in parts:
        pickled = pickle.dumps(part)
        assert len(pickled) < 4000
        assert b"hunter2" not in pickled
        again = pickle.loads(pickled)
        names += again.to_arrow_dataset().to_table()["name"].to_pylist()
        assert sorted(again.to_polars().collect()["name"]) == sorted(
            names[-len(again.to_arrow_dataset().to_table()) :]
        )
    assert sorted(names) == [f"n{i}" for i in (1, 2, 3, 4, 5, 6, 8)]
    assert b"hunter2" not in pickle.dumps(plan)
    assert table.scan("FALSE").splits() == []
    assert len(table.scan().splits("1GB")) == 1
    with pytest.raises(arrowlog.InvalidRequest, match="not a size"):
        plan.splits("big")


def test_splits_stream_batches(root):
    ids = pa.array(range(400_000), pa.int64())
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    table.write(pa.table({"id": ids}))
    for where in (None, "id >= 0", "id % 2 = 0 OR id % 2 = 1"):
        (split,) = table.scan(where).splits()
        sizes = [batch.num_rows for batch in pickle.loads(pickle.dumps(split)).batches()]
        assert sum(sizes) == 400_000
        assert max(sizes) <= 1 << 17
        batches = split.batches()
        assert next(batches)["id"][0].as_py() == 0  # before the rest is read
        batches.close()


def test_splits_have_similar_sizes(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA)])
    testing.write_commit(root, 1, [testing.add(f"{i}", size=10 + i % 3) for i in range(1000)])
    parts = arrowlog.Table(root).scan().splits(target_size=1000)
    sizes = [part.size_bytes for part in parts]
    assert len(parts) == 11
    assert max(sizes) < 1000 + 12
    assert max(sizes) - min(sizes) < 30


def test_rows_are_read_from_every_store(place):
    def put(path, rows):
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        place.put(path, sink.getvalue().to_pybytes())

    def commit(version, actions):
        place.put(f"_transaction_log/{version:020d}.json", testing.lines(actions))

    write(commit, put)
    table = arrowlog.Table(place.uri, place.options)
    plan = table.scan("x > 4 AND day IS NULL OR id = 5")
    assert sorted(plan.to_polars().collect()["name"]) == ["n5", "n6", "n8"]
    split = pickle.loads(pickle.dumps(plan.splits()[0]))
    rows = split.to_arrow_dataset(place.options).to_table()
    assert sorted(rows["name"].to_pylist()) == ["n5", "n6", "n8"]


def test_unparsable_partition_value_is_not_null(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    testing.write_commit(root, 1, [testing.add("odd.parquet", {"day": "yesterday"})])
    plan = arrowlog.Table(root).scan("day IS NULL")
    assert plan.paths == ["odd.parquet"]
    with pytest.raises(arrowlog.LogCorrupt, match=r"odd\.parquet"):
        plan.to_arrow_dataset()


def test_unknown_function_is_planned_but_refused_when_reading(table):
    plan = table.scan("soundex(name) = 'x' AND id = 1")
    assert plan.num_files == 1
    with pytest.raises(arrowlog.InvalidRequest, match="soundex"):
        plan.to_arrow_dataset()


def test_timestamps_with_a_zone_in_duckdb(root):
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    rows = pa.table({"at": pa.array([moment], pa.timestamp("us", tz="UTC"))})
    table = arrowlog.Table.create(root, rows.schema)
    table.write(rows)
    connection = duckdb.connect()  # relations of DuckDB 1 do not keep it
    [(found,)] = table.scan("at >= '2024-01-01'").to_duckdb(connection).fetchall()
    assert found == moment
