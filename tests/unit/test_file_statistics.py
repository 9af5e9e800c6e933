"""File statistics: true for every reader, or absent."""

import datetime as dt
import decimal
import math
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowlog.snapshot.stats_truncation import StatsTruncation
from arrowlog.transaction.parquet_files import compute_stats, read_footer_stats

CUT = StatsTruncation()


def stats(values, kind, cut=CUT):
    table = pa.table({"x": pa.array(values, kind)})
    found = compute_stats(table, ["x"], cut)
    assert found.num_records == len(values)
    return found.low.get("x"), found.high.get("x"), found.nulls.get("x")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, -1], pa.int64(), ("-1", "3", 1)),
        ([None, None], pa.int64(), (None, None, 2)),
        ([], pa.int64(), (None, None, 0)),
        ([1.0, math.nan], pa.float64(), ("1.0", None, 0)),
        ([math.nan], pa.float64(), (None, None, 0)),
        ([math.inf, 1.0], pa.float64(), ("1.0", None, 0)),
        ([-math.inf, 1.0], pa.float64(), (None, "1.0", 0)),
        ([-0.0], pa.float64(), ("-0.0", "-0.0", 0)),
        (["a", "é"], pa.string(), ("a", "é", 0)),
        (["a", "\ud7ff"], pa.string(), ("a", "\ud7ff", 0)),
        (["a", "\ue000"], pa.string(), ("a", None, 0)),
        (["😀", "a"], pa.string(), ("a", None, 0)),
        (["😀"], pa.string(), (None, None, 0)),
        ([""], pa.string(), ("", "", 0)),
        ([True, False], pa.bool_(), ("false", "true", 0)),
        ([b"x"], pa.binary(), (None, None, None)),
        ([[1]], pa.list_(pa.int64()), (None, None, None)),
        (
            [decimal.Decimal("-1.10"), decimal.Decimal("2.00")],
            pa.decimal128(9, 2),
            ("-1.10", "2.00", 0),
        ),
        ([dt.date(1969, 12, 31)], pa.date32(), ("1969-12-31", "1969-12-31", 0)),
    ],
)
def test_bounds_and_null_counts(values, kind, expected):
    assert stats(values, kind) == expected


def test_timestamps_outside_pythons_range_have_no_bounds():
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        column = pa.array([0, 10**18], pa.int64()).cast(kind)
        found = compute_stats(pa.table({"x": column}), ["x"], CUT)
        assert found.low["x"].startswith("1970-01-01T00:00:00.000000")
        assert "x" not in found.high
    days = pa.array([5_000_000], pa.int32()).cast(pa.date32())
    assert compute_stats(pa.table({"x": days}), ["x"], CUT).high == {}


def test_long_texts_are_dropped_or_truncated():
    long = "b" * 2000
    assert stats(["a", long], pa.string()) == (None, None, 0)
    cut = StatsTruncation(strategy="truncate")
    assert stats(["a", long], pa.string(), cut) == ("a", "b" * 1023 + "c", 0)
    assert stats(["a", long], pa.string(), StatsTruncation(enabled=False)) == ("a", long, 0)
    last = "\ud7ff" * 3
    assert StatsTruncation(max_length=2, strategy="truncate").shorten(last, last) == (
        "\ud7ff" * 2,
        None,
    )
    assert StatsTruncation(max_length=2, strategy="truncate").shorten(None, None) == (None, None)
    assert StatsTruncation(max_length=2, strategy="truncate").shorten("aa", "a\ud7ffz") == (
        "aa",
        "b",
    )


@given(st.text(alphabet="abcz\ud7ff", max_size=6), st.integers(1, 4))
def test_truncated_bounds_still_hold(text, length):
    low, high = StatsTruncation(max_length=length, strategy="truncate").shorten(text, text)
    assert low <= text
    assert len(low) <= max(length, 0) or len(text) <= length
    assert high is None or (high >= text and len(high) <= max(length, len(text)))
    if high is not None and len(text) > length:
        assert len(high) <= length


def footer(path, table, **how):
    pq.write_table(table, path, **how)
    return pq.read_metadata(path)


def test_footer_statistics_of_several_row_groups(tmp_path):
    table = pa.table(
        {
            "id": pa.array([5, 1, None, 9], pa.int64()),
            "f": [1.0, 2.0, 0.5, 3.0],
            "name": ["b", "a", None, "c"],
            "price": pa.array([decimal.Decimal("1.00"), decimal.Decimal("-2.50"), None, None]),
            "nested": [{"id": 1}] * 4,
            "at": pa.array([0, 1, 2, 3], pa.timestamp("us", "UTC")),
            "day": pa.array([0, 1, 2, 3], pa.int32()).cast(pa.date32()),
        }
    )
    found = read_footer_stats(footer(tmp_path / "a", table, row_group_size=2), table.schema, CUT)
    assert found.num_records == 4
    assert found.nulls["id"] == 1
    assert found.nulls["price"] == 2
    assert (found.low["id"], found.high["id"]) == ("1", "9")
    assert (found.low["name"], found.high["name"]) == ("a", "c")
    assert (found.low["price"], found.high["price"]) == ("-2.50", "1.00")
    assert (found.low["at"], found.high["at"]) == (
        "1970-01-01T00:00:00.000000Z",
        "1970-01-01T00:00:00.000003Z",
    )
    assert (found.low["day"], found.high["day"]) == ("1970-01-01", "1970-01-04")
    assert found.low["f"] == "0.5"
    assert "f" not in found.high  # whether there are NaNs is unknown
    assert found.low["nested"] == {"id": "1"}


def test_footer_statistics_of_columns_with_other_types_are_ignored(tmp_path):
    stored = pa.table({"id": ["10", "9"], "n": pa.array([1, 2], pa.int32()), "gone": [1, 2]})
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("new", pa.int64())])
    found = read_footer_stats(footer(tmp_path / "a", stored), schema, CUT)
    assert found.low == {"n": "1"}
    assert found.high == {"n": "2"}
    assert found.nulls == {"id": 0, "n": 0}


def test_footer_without_statistics(tmp_path):
    table = pa.table({"id": [1, 2]})
    assert (
        read_footer_stats(
            footer(tmp_path / "a", table, write_statistics=False), table.schema, CUT
        ).low
        == {}
    )
    empty = table.slice(0, 0)
    assert read_footer_stats(footer(tmp_path / "b", empty), table.schema, CUT).num_records == 0
    nulls = pa.table({"id": pa.array([None, None], pa.int64())})
    found = read_footer_stats(footer(tmp_path / "c", nulls), table.schema, CUT)
    assert (found.low, found.nulls) == ({}, {"id": 2})
    far = pa.table({"at": pa.array([10**18], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    assert read_footer_stats(footer(tmp_path / "d", far), far.schema, CUT).high == {}
    mixed = pa.table({"id": pa.array([None, None, 5, 6], pa.int64())})
    found = read_footer_stats(footer(tmp_path / "e", mixed, row_group_size=2), table.schema, CUT)
    assert (found.low, found.high) == ({"id": "5"}, {"id": "6"})


def test_nans_are_counted_in_float_columns_only():
    rows = pa.table({"x": [math.nan, 1.0, None, math.nan], "n": [1, 2, 3, 4], "s": ["nan"] * 4})
    rows = rows.append_column("r", pa.array([None, None, 1, 2], pa.float32()))
    assert compute_stats(rows, rows.column_names, CUT).nans == {"x": 2, "r": 0}


@pytest.mark.parametrize(
    ("writer", "covers"),
    [
        ("parquet-mr version 1.8.1 (build 4aba4da)", True),
        ("parquet-mr version 1.17.0 (build 0)", True),
        ("parquet-mr version 1.18.0 (build 0)", False),
        ("parquet-mr version 2.0.0", False),
        ("parquet-cpp-arrow version 26.0.1", False),
        ("None", False),
    ],
)
def test_finite_maximum_proves_no_nan_for_some_writers(writer, covers):
    chunk = SimpleNamespace(has_null_count=True, null_count=0, has_min_max=True, min=1.0, max=3.0)
    chunks = [chunk]
    columns = SimpleNamespace(
        column=lambda _: SimpleNamespace(path="x"),
        to_arrow_schema=lambda: pa.schema([("x", pa.float64())]),
    )
    footer = SimpleNamespace(
        created_by=writer,
        num_rows=2,
        num_columns=1,
        num_row_groups=1,
        schema=columns,
        row_group=lambda number: SimpleNamespace(
            num_rows=2, column=lambda _: SimpleNamespace(statistics=chunks[number])
        ),
    )
    found = read_footer_stats(footer, pa.schema([("x", pa.float64())]), CUT)
    assert (found.high, found.nans) == (({"x": "3.0"}, {"x": 0}) if covers else ({}, {}))
    with_nan = SimpleNamespace(**{**vars(chunk), "max": math.nan})
    footer.num_row_groups = 2
    for chunks[:] in ([chunk, with_nan], [with_nan, chunk]):
        found = read_footer_stats(footer, pa.schema([("x", pa.float64())]), CUT)
        assert (found.low, found.high, found.nans) == ({"x": "1.0"}, {}, {})
