"""Writing rows: every reader gets the rows that were written."""

import datetime as dt
import decimal
import os

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables.format import LOG_FOLDER

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64()), ("f", pa.float64())])
ROWS = pa.table({"p": ["a", "b", "a"], "id": [1, 2, 3], "f": [0.5, None, 1.5]}, schema=SCHEMA)
ODD = [
    "plain",
    "a/b",
    "a=b",
    "100%",
    "quote'd",
    'double"quote',
    "ünïcödé",
    "日本",
    "emoji😀",
    "sp ace",
    "..",
    ".",
    "",
    "new\nline",
    "back\\slash",
    "x" * 500,
    None,
]


class Stream:
    """An object with Arrow's stream protocol."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, schema=None):
        return self.table.__arrow_c_stream__(schema)


class Array:
    def __init__(self, batch):
        self.batch = batch

    def __arrow_c_array__(self, schema=None):
        return self.batch.__arrow_c_array__(schema)


FORMS = {
    "table": lambda rows: rows,
    "batch": lambda rows: rows.to_batches()[0],
    "reader": lambda rows: rows.to_reader(max_chunksize=1),
    "polars": pl.from_arrow,
    "lazy": lambda rows: pl.from_arrow(rows).lazy(),
    "pandas": lambda rows: rows.to_pandas(),
    "pandas with an index": lambda rows: rows.to_pandas().set_index(pd.Index(["x", "y", "z"])),
    "stream": Stream,
    "array": lambda rows: Array(rows.to_batches()[0]),
    "duckdb": lambda rows: duckdb.sql("SELECT * FROM rows"),
}


@pytest.fixture
def table(root):
    return arrowlog.Table.create(root, SCHEMA, ["p"])


def rows_of(table):
    """All rows of the live files read by pyarrow, with partition values from the log."""
    snapshot = table.snapshot()
    parts = []
    for file in snapshot.files.to_pylist():
        found = pq.ParquetFile(f"{table.uri}/{file['path']}").read()
        assert found.num_rows == file["num_records"]
        for name in snapshot.partition_columns:
            kind = snapshot.schema.field(name).type
            column = pa.array([file[f"partition.{name}"]] * found.num_rows, kind)
            found = found.append_column(name, column)
        parts.append(found.select(snapshot.schema.names))
    return pa.concat_tables(parts).sort_by("id") if parts else snapshot.schema.empty_table()


@pytest.mark.parametrize("form", FORMS)
def test_every_input_form_is_written(table, form):
    result = table.write(FORMS[form](ROWS))
    assert result.operation_metrics["numOutputRows"] == 3
    assert rows_of(table).equals(ROWS.cast(SCHEMA).sort_by("id"))


def test_invalid_input_is_refused(table):
    columns = (ROWS["id"], ROWS["id"].combine_chunks(), pl.Series("id", [1]))
    for data in ([1, 2], {"p": ["a"]}, "x", None, 5, *columns):
        with pytest.raises(InvalidRequest, match="cannot be written"):
            table.write(data)


def test_rows_are_read_by_duckdb(table):
    table.write(ROWS)
    paths = [f"{table.uri}/{path}" for path in table.snapshot().files["path"].to_pylist()]
    found = duckdb.read_parquet(paths, hive_partitioning=True).order("id")
    assert found.project("p, id, f").fetchall() == [("a", 1, 0.5), ("b", 2, None), ("a", 3, 1.5)]


def test_unusual_partition_values_round_trip(table):
    rows = pa.table({"p": ODD, "id": range(len(ODD)), "f": [0.0] * len(ODD)}, schema=SCHEMA)
    table.write(rows)
    assert rows_of(table).equals(rows)
    assert rows_of(arrowlog.Table(table.uri)).equals(rows)
    paths = table.snapshot().files["path"].to_pylist()
    assert all(len(part) < 200 for path in paths for part in path.split("/"))
    assert len(paths) == len(ODD)


PARTITIONS = {
    "date": (pa.date32(), [dt.date(2024, 2, 29), dt.date(1, 1, 1), None]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), None],
    ),
    "local": (pa.timestamp("us"), [dt.datetime.fromisoformat("2024-01-01T00:00:00.000001"), None]),
    "integer": (pa.int32(), [-1, 2**31 - 1, None]),
    "long": (pa.int64(), [2**53 + 1, -(2**63)]),
    "float": (pa.float64(), [0.1, 1e300, None]),
    "decimal": (pa.decimal128(20, 4), [decimal.Decimal("1.5000"), None]),
    "boolean": (pa.bool_(), [True, False, None]),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partitions_of_every_type(root, kind):
    type_, values = PARTITIONS[kind]
    schema = pa.schema([("p", type_), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, ["p"])
    rows = pa.table({"p": values, "id": range(len(values))}, schema=schema)
    table.write(rows)
    assert rows_of(table).equals(rows)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.float64(), float("nan"), "not finite"),
        (pa.float64(), float("inf"), "not finite"),
        (pa.string(), "__HIVE_DEFAULT_PARTITION__", "means null in logs"),
        (pa.timestamp("us", "UTC"), 10**18, "cannot be represented"),
        (pa.date32(), 5_000_000, "cannot be represented"),
    ],
)
def test_unrepresentable_partition_values_are_refused(root, kind, value, said):
    schema = pa.schema([("p", kind), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, ["p"])
    stored = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array([value], stored).cast(kind) if isinstance(value, int) else [value]
    with pytest.raises(InvalidRequest, match=said):
        table.write(pa.table({"p": pa.array(column, kind), "id": [1]}))
    assert os.listdir(root) == [LOG_FOLDER]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.table({"p": ["a"], "id": [1], "extra": [1]}), "'extra' that the table does not have"),
        (pa.table([["a"], [1], [2]], ["p", "id", "id"]), "column 'id' twice"),
        (pa.table({"p": ["a"], "id": [1.5]}), "cannot be cast to int64"),
        (pa.table({"p": ["a"], "id": ["x"]}), "cannot be cast to int64"),
        (pa.table({"p": ["a"], "id": [[1]]}), "cannot be cast to int64"),
        (pa.table({"p": ["a"], "id": pa.array([2**63], pa.uint64())}), "cannot be cast to int64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_a_file_is_written(table, rows, said):
    with pytest.raises(InvalidRequest, match=said):
        table.write(rows)
    assert os.listdir(table.uri) == [LOG_FOLDER]
    assert table.version == 0


def test_required_columns_refuse_nulls(root):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])
    table = arrowlog.Table.create(root, schema)
    with pytest.raises(InvalidRequest, match="which is not nullable"):
        table.write(pa.table({"x": [1]}))
    with pytest.raises(InvalidRequest, match="has nulls, but is not nullable"):
        table.write(pa.table({"id": pa.array([None], pa.int64())}))
    table.write(pa.table({"id": [1]}))
    assert rows_of(table).to_pylist() == [{"id": 1, "x": None}]


def test_rows_of_other_types_are_cast_without_loss(root):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("f", pa.float64())])
    table = arrowlog.Table.create(root, schema)
    names = pa.array(["a", "b"], pa.large_string()).dictionary_encode()
    table.write(pa.table({"name": names, "id": pa.array([1, 2], pa.int8()), "f": [1, 2]}))
    assert rows_of(table).equals(
        pa.table({"id": [1, 2], "name": ["a", "b"], "f": [1.0, 2.0]}, schema=schema)
    )


def test_large_streams_are_written_incrementally(table):
    """Files are written before the end of the stream has been read."""
    count, held = 40, []

    def batches():
        for number in range(count):
            held.append(len(list(os.scandir(table.uri))))
            part = [f"{number % 5}"] * 5000
            ids = range(number * 5000, (number + 1) * 5000)
            yield pa.record_batch([part, list(ids), [0.5] * 5000], schema=SCHEMA)

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    result = table.write(reader, target_size="64KB")
    assert held[-1] > 1
    assert result.operation_metrics["numAddedFiles"] > 5
    found = rows_of(table)
    assert found.num_rows == count * 5000
    assert found["id"].to_pylist() == list(range(count * 5000))


def test_many_partitions_stay_within_the_memory_limit(table):
    """Each partition is small; together they exceed the limit."""
    parts = [f"{number}" for number in range(20)]

    def batches():
        for number in range(30):
            ids = list(range(number * 10_000, (number + 1) * 10_000))
            yield pa.record_batch(
                [[parts[i % 20] for i in ids], ids, [0.5] * 10_000], schema=SCHEMA
            )

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    result = table.write(reader, target_size=1 << 18)
    assert result.operation_metrics["numAddedFiles"] > 20
    assert rows_of(table)["id"].to_pylist() == list(range(300_000))


def test_write_modes(table):
    table.write(ROWS)
    table.write(ROWS.slice(0, 1), mode="overwrite", where="p = 'a'")
    assert rows_of(table)["id"].to_pylist() == [1, 2]
    table.write(ROWS.slice(2, 1), mode="overwrite")
    assert rows_of(table)["id"].to_pylist() == [3]
    table.write(ROWS.slice(0, 0), mode="overwrite")
    assert table.snapshot().num_files == 0
    before = sorted(os.listdir(table.uri))
    for how, said in [
        ({"mode": "merge"}, "append or overwrite"),
        ({"where": "p = 'a'"}, "only valid with mode='overwrite'"),
        ({"mode": "overwrite", "where": "id = 1"}, "'id' is not a partition column"),
        ({"target_size": "huge"}, "target_size cannot be 'huge'"),
        ({"txn": "x"}, "txn is 'x'"),
    ]:
        with pytest.raises(InvalidRequest, match=said):
            table.write(ROWS, **how)
    with pytest.raises(InvalidRequest, match="no rows to write"):
        table.write(ROWS.slice(0, 0))
    with pytest.raises(InvalidRequest, match=r"adds\[\d\] .* does not belong"):
        table.write(ROWS, mode="overwrite", where="p = 'b'")
    assert len(before) >= 2


def test_application_transaction_is_written_once(table):
    first = table.write(ROWS, txn=("app", 7))
    files = sum(len(names) for _, _, names in os.walk(table.uri))
    again = arrowlog.Table(table.uri).write(ROWS, txn=("app", 7))
    assert again.duplicate
    assert again.version == first.version
    assert sum(len(names) for _, _, names in os.walk(table.uri)) == files
    assert not table.write(ROWS, txn=("app", 8)).duplicate


def test_statistics_of_written_files_are_exact(table):
    table.write(ROWS)
    files = {file["partition.p"]: file for file in table.snapshot().files.to_pylist()}
    a, b = files["a"], files["b"]
    assert (a["min.id"], a["max.id"], a["null_count.id"]) == (1, 3, 0)
    assert (a["min.f"], a["max.f"], b["null_count.f"], b["min.f"]) == (0.5, 1.5, 1, None)
    assert os.path.getsize(f"{table.uri}/{a['path']}") == a["size_bytes"]


def test_table_settings_truncate_statistics(root):
    schema = pa.schema([("name", pa.string())])
    how = {
        "spark.indextables.stats.truncation.maxLength": 4,
        "spark.indextables.stats.truncation.strategy": "truncate",
    }
    table = arrowlog.Table.create(root, schema, properties=how)
    table.write(pa.table({"name": ["abcdefgh"]}))
    file = table.snapshot().files.to_pylist()[0]
    assert (file["min.name"], file["max.name"]) == ("abcd", "abce")
