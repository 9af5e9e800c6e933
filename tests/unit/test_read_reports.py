"""Filters pushed down to lazy readers, and how many files they opened."""

import datetime as dt
import pickle

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog import testing

FILES = 20


@pytest.fixture
def table(tmp_path):
    table = arrowlog.Table.create(tmp_path, pa.schema([("id", pa.int64())]))
    for number in range(FILES):
        table.write(pa.table({"id": [number * 10, number * 10 + 9]}))
    return table


def test_reads_of_every_engine_are_reported(table):
    table.to_polars().filter(pl.col("id") == 79).collect()
    table.to_arrow_dataset().to_table(filter=pc.field("id") == 79)
    with duckdb.connect() as con:
        table.to_duckdb(con).filter("id = 79").fetchall()
    assert [report.engine for report in table.reads] == ["polars", "arrow", "duckdb"]
    for report in table.reads:
        assert (report.files_opened, report.files_planned, report.files_total) == (1, 20, 20)
        assert report.rows == 1
        assert report.finished
        assert report.planned == "id = 79"
        assert "79" in report.pushed
        assert report.explain().files_kept == 1
        assert str(report).endswith("1 of 20 planned files opened (20 in the table), 1 row")


def test_nothing_is_reported_before_a_read(table):
    table.to_polars().filter(pl.col("id") == 79)
    table.to_arrow_dataset()
    table.to_duckdb()
    assert table.reads == []


def test_limit_opens_only_the_first_files(table):
    table.to_polars().head(3).collect()
    table.to_arrow_dataset().head(1)
    first, second = table.reads
    assert (first.limit, first.files_opened, first.rows) == (3, 3, 3)
    assert second.files_opened == 1
    assert not second.finished


def test_filter_that_skips_nothing_is_reported(table):
    dataset = table.to_arrow_dataset()
    dataset.to_table(filter=pc.bit_wise_and(pc.field("id"), 1) == 1)
    assert dataset.count_rows() == 2 * FILES
    odd, counted = dataset.reads
    assert odd.files_opened == counted.files_opened == FILES
    assert odd.pushed
    assert "no filter pushed" in str(counted)


def test_explanation_includes_reads(table):
    plan = table.scan("id >= 100")
    assert "read by" not in str(plan.explain())
    plan.to_polars().filter(pl.col("id") < 120).collect()
    table.to_arrow("id = 5")
    assert len(plan.reads) == 1
    assert len(table.reads) == 2
    last = str(plan.explain()).splitlines()[-1]
    assert last.startswith("read by polars: pushed filter")
    assert "2 of 10 planned files opened (20 in the table), 4 rows" in last
    assert "read by polars" in plan.explain().to_html()
    both = plan.reads[0].explain()
    assert [clause.text for clause in both.clauses] == ["id >= 100", "id < 120"]


def test_reports_stay_in_the_process_that_read(table):
    plan = table.scan("id >= 100")
    plan.to_arrow_dataset().to_table()
    dataset = pickle.loads(pickle.dumps(plan.to_arrow_dataset()))
    assert dataset.reads == []
    assert dataset.to_table().num_rows == 20
    assert len(dataset.reads) == 1
    assert len(plan.reads) == 1


DAY = dt.datetime(2024, 10, 1, tzinfo=dt.UTC)


@pytest.fixture
def daily(tmp_path):
    """A commit every six hours from the last hours of September."""
    schema = pa.schema([("id", pa.int64())])
    for version in range(12):
        at = DAY + dt.timedelta(hours=6 * version - 6)
        actions = [testing.commit_info(int(at.timestamp() * 1000))]
        opening = [testing.protocol(), testing.metadata(schema)]
        actions += opening if not version else [testing.add(f"{version}.parquet")]
        testing.write_commit(tmp_path, version, actions)
    return arrowlog.Table(tmp_path)


@pytest.mark.parametrize(
    ("given", "versions"),
    [
        (((3, 9), {}), (3, 9)),
        (((9, 3), {}), (9, 3)),
        (((3,), {}), (3, 11)),
        (((DAY.date(),), {}), (0, 4)),  # one day
        ((("2024-10-02",), {}), (4, 8)),
        ((("2024-10-01", "2024-10-02"), {}), (0, 8)),
        (((), {"since": "2024-10-02"}), (4, 11)),
        (((), {"since": DAY, "until": DAY}), (0, 1)),
        (((DAY,), {}), (0, 11)),
        (((), {"since": "2024-10-01T06:00:00Z", "until": "2024-10-01T12:00:00Z"}), (1, 3)),
        (((2,), {"until": "2024-10-01"}), (2, 4)),
        (((), {"since": "2024-10-01", "until": DAY.date()}), (0, 4)),
    ],
    ids=str,
)
def test_diff_between_times(daily, given, versions):
    positional, named = given
    found = daily.diff(*positional, **named)
    assert (found.a, found.b) == versions


def test_diff_relative_to_now(daily, monkeypatch):
    now = DAY + dt.timedelta(days=2, hours=1)
    millis = int(now.timestamp() * 1000)
    monkeypatch.setattr("arrowlog.clock.SystemClock.now_ms", lambda _: millis)
    days = {"yesterday": (4, 8), "today": (8, 11)}
    for word, versions in days.items():
        found = daily.diff(word)
        assert (found.a, found.b) == versions
    for since in ("24h", dt.timedelta(days=1), "yesterday"):
        found = daily.diff(since=since)
        assert (found.a, found.b) == ((5, 11) if since != "yesterday" else (4, 11))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one start"),
        ({"a": 1, "since": "2024-10-02"}, "one start"),
        ({"a": 1, "b": 2, "until": "2024-10-02"}, "at most one end"),
        ({"since": "last week"}, "'last week' is not a time"),
    ],
    ids=str,
)
def test_invalid_diff_times_are_refused(daily, given, message):
    with pytest.raises(arrowlog.InvalidRequest, match=message):
        daily.diff(**given)


def test_diff_since_before_the_table_starts_at_its_creation(daily):
    assert daily.diff(since="2024-09-01").a == 0


def test_diff_since_before_the_history_raises(daily):
    daily.truncate_history()
    with pytest.raises(arrowlog.InvalidRequest, match="history begins with version"):
        daily.diff(since="2024-09-01")


def test_date_means_the_end_of_its_day(daily):
    assert daily.snapshot(timestamp=DAY.date()).version == 4
    assert daily.scan(timestamp=DAY.date()).version == 4
    assert daily.snapshot(timestamp="2024-10-01").version == 1
