"""Parquet files that `add_parquet` accepts: those that all readers can read as table rows."""

import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog import testing

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.decimal128(10, 2)),
        ("l", pa.list_(pa.int64())),
        ("st", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("b", pa.binary()),
    ]
)
OFFSETS, OCTETS = pa.py_buffer(b"\0\0\0\0\x02\0\0\0"), pa.py_buffer(b"\xff\xfe")
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, OFFSETS, OCTETS])
REFUSED = {
    "a list for a number": ({"id": [[1]]}, "'id' has type list<.*> *, the table's int64"),
    "a struct for text": ({"s": [{"a": 1}]}, "'s' has type struct<a: int64>"),
    "text for a number": ({"id": ["1"]}, "'id' has type string"),
    "a fraction for an integer": ({"id": [1.5]}, "'id' has type double"),
    "a double for a float": ({"g": [0.1]}, "'g' has type double"),
    "a date for a time": ({"t": pa.array([1], pa.date32())}, "'t' has type date32"),
    "a time for a date": ({"d": pa.array([1], pa.timestamp("us"))}, "'d' has type timestamp"),
    "a list of text for a list of numbers": ({"l": [["a"]]}, "'l' has type list"),
    "a struct of text for one of numbers": ({"st": [{"a": "x", "b": "y"}]}, "'st' has type struct"),
    "a struct whose member is spelled in another case": (
        {"st": [{"A": 1, "b": "y"}]},
        "the member 'a' of the column 'st'",
    ),
    "a map by numbers for one by text": (
        {"m": pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64()))},
        "'m' has type map",
    ),
    "an unsigned integer above 2^63": (
        {"id": pa.array([1 << 63], pa.uint64())},
        "'id' has values from 9223372036854775808 to",
    ),
    "an integer above 2^31": ({"i": [1 << 40]}, "'i' has values from 1099511627776 to"),
}
BY_VALUES = {
    "text that is not UTF-8": ({"s": NOT_UTF8}, "'s'.*UTF"),
    "bytes that are not UTF-8": ({"s": pa.array([b"\xff"])}, "'s'.*UTF"),
    "text in a struct that is not UTF-8": (
        {"st": pa.StructArray.from_arrays([pa.array([1]), NOT_UTF8], ["a", "b"])},
        "'st'.*UTF",
    ),
    "an integer that no double has": ({"f": [(1 << 60) + 1]}, "'f'.*fit double"),
    "too many digits": ({"n": pa.array([Decimal("1.234")], pa.decimal128(9, 3))}, "'n'.*data loss"),
    "a time too far away": ({"t": pa.array([1 << 60], pa.timestamp("ms"))}, "'t'.*out of bounds"),
}
TAKEN = {
    "narrower integers": {
        "id": pa.array([1], pa.int8()),
        "l": pa.array([[1]], pa.list_(pa.int16())),
    },
    "wider integers that fit": {"i": pa.array([-5, 7], pa.int64())},
    "unsigned integers that fit": {"id": pa.array([5, None], pa.uint64())},
    "integers for fractions": {"f": [1, 2], "g": pa.array([1, 2], pa.int8())},
    "a float for a double": {"f": pa.array([0.5], pa.float32())},
    "bytes that are UTF-8": {"s": pa.array(["é".encode()])},
    "text of other forms": {"s": pa.array(["x"], pa.large_string())},
    "dictionaries": {"s": pa.array(["x", None, "x"]).dictionary_encode()},
    "text for bytes": {"b": ["x"]},
    "nothing but nulls": {"id": pa.nulls(3), "s": pa.nulls(3)},
    "fewer digits": {"n": pa.array([Decimal("1.2")], pa.decimal128(5, 1))},
    "times of another unit": {"t": pa.array([1000], pa.timestamp("ns", "UTC"))},
    "a struct with fewer fields": {"st": [{"a": 1}]},
    "no row": {"id": pa.array([], pa.int64())},
    "other columns": {"unknown": [[1]]},
}


@pytest.fixture
def table(root):
    return arrowlog.Table.create(root, SCHEMA)


def put(table, rows, name="f.parquet", **options):
    pq.write_table(
        rows if isinstance(rows, pa.Table) else pa.table(rows), f"{table.uri}/{name}", **options
    )


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("verify", [True, False])
def test_unreadable_column_types_are_refused_by_the_footer(table, case, verify):
    rows, reason = REFUSED[case]
    put(table, rows)
    with pytest.raises(arrowlog.InvalidRequest, match=rf"f\.parquet cannot be read.*{reason}"):
        arrowlog.add_parquet(table, "f.parquet", verify=verify)


@pytest.mark.parametrize("case", BY_VALUES)
def test_unreadable_values_are_refused_when_verified(table, case):
    rows, reason = BY_VALUES[case]
    put(table, rows)
    with pytest.raises(arrowlog.InvalidRequest, match=rf"f\.parquet cannot be read.*{reason}"):
        arrowlog.add_parquet(table, "f.parquet")
    assert arrowlog.add_parquet(table, "f.parquet", verify=False).num_records == 1


def test_integers_without_statistics_are_verified_by_reading(table):
    put(table, {"id": pa.array([1 << 63], pa.uint64())}, write_statistics=False)
    with pytest.raises(
        arrowlog.InvalidRequest, match=r"'id' \(uint64\) has values that do not fit"
    ):
        arrowlog.add_parquet(table, "f.parquet")


def test_duplicate_column_is_refused(table):
    for names in (["id", "id"], ["id", "ID"]):
        put(table, pa.Table.from_arrays([pa.array([1]), pa.array([2])], names))
        with pytest.raises(arrowlog.InvalidRequest, match="the column 'id' twice"):
            arrowlog.add_parquet(table, "f.parquet")


def test_table_columns_that_differ_by_case_are_distinct(root):
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    table = arrowlog.Table(root)
    put(table, pa.table([[1], [2]], schema=schema))
    assert arrowlog.add_parquet(table, "f.parquet").num_records == 1


def test_damaged_string_page_is_refused(table):
    put(table, {"s": [f"{i:04}" for i in range(5000)]}, use_dictionary=False, data_page_size=4000)
    with open(f"{table.uri}/f.parquet", "r+b") as file:
        file.seek(20_000)  # not in the first page
        file.write(b"\xff" * 40)
    with pytest.raises(arrowlog.InvalidRequest, match=r"f\.parquet cannot be read.*'s'"):
        arrowlog.add_parquet(table, "f.parquet")


@pytest.mark.parametrize("case", TAKEN)
def test_accepted_files_are_read_by_every_reader(table, case):
    rows = pa.table(TAKEN[case])
    put(table, rows)
    table.append([arrowlog.add_parquet(table, "f.parquet")])
    assert table.scan().to_arrow_dataset().to_table().num_rows == rows.num_rows
    assert table.scan().to_polars().collect().height == rows.num_rows
    table.update_statistics(["f.parquet"])


FOOTERS = """
import sys, pyarrow as pa, pyarrow.parquet as pq, arrowlog
root = sys.argv[1]
table = arrowlog.Table.create(root, pa.schema([("id", pa.int64()), ("s", pa.string())]))
path = f"{root}/f.parquet"
pq.write_table(pa.table({"id": [1, 2, None], "s": ["a", "b", None]}), path)
data = open(path, "rb").read()
start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
refused = 0
for at in range(start, len(data)):
    for change in (1, 16, 255):
        with open(path, "wb") as file:
            file.write(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
        try:
            arrowlog.add_parquet(table, "f.parquet")
        except arrowlog.InvalidRequest as error:
            assert "f.parquet" in str(error)
            refused += 1
print("refused", refused)
"""


@pytest.mark.thorough
def test_damaged_footer_does_not_abort_the_process(root):
    """pyarrow aborts when statistics in a damaged part of the footer are read."""
    done = subprocess.run(
        [sys.executable, "-c", FOOTERS, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    assert int(done.stdout.split()[1]) > 100
