"""Plots: correct, and small for any table."""

import itertools
import re
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from support.event_table import build

import arrowlog
from arrowlog import plots, testing

pytestmark = pytest.mark.thorough  # altair validates every chart


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots") / "events"
    build(str(folder))
    return arrowlog.Table(folder)


def rows(chart):
    found = chart.to_dict()
    return [row for data in found["datasets"].values() for row in data]


def test_every_chart_is_valid_vega_lite(table):
    for chart in (
        plots.file_sizes(table),
        plots.partition_skew(table),
        plots.growth(table),
        plots.churn(table),
        plots.lifetimes(table),
        plots.statistics_coverage(table),
        plots.pruning(table.scan("day = '2024-01-03' AND id > 5")),
    ):
        assert chart.to_dict()["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
        assert rows(chart)


def test_chart_values_equal_the_log(table):
    snapshot = table.snapshot()
    assert sum(row["files"] for row in rows(plots.file_sizes(table))) == snapshot.num_files
    skew = rows(plots.partition_skew(table))
    assert sum(row["bytes"] for row in skew) == snapshot.size_bytes
    assert [row["bytes"] for row in skew] == sorted((row["bytes"] for row in skew), reverse=True)
    last = max(rows(plots.growth(table)), key=lambda row: row["version"])
    assert (last["files"], last["bytes"]) == (snapshot.num_files, snapshot.size_bytes)
    moved = rows(plots.churn(table))
    assert sum(row["bytes"] for row in moved) == snapshot.size_bytes
    assert {row["operation"] for row in moved if row["way"] == "removed"} == {"MERGE"}
    lived = rows(plots.lifetimes(table))
    assert sum(row["files"] for row in lived if row["now"] == "live") == 5
    assert sum(row["files"] for row in lived if row["now"] == "removed") == 1
    known = {(r["col"], r["statistic"]): r["share"] for r in rows(plots.statistics_coverage(table))}
    assert known == {(c, s): 1.0 for c in ("id", "city") for s in ("min", "max", "null_count")}
    plan = table.scan("day = '2024-01-03'")
    whole = {r["what"]: r["files"] for r in rows(plots.pruning(plan)) if "whole" in r["clause"]}
    assert whole == {"kept by it": 1, "dropped by it alone": 4}


def test_growth_starts_at_zero_and_ends_at_the_current_files(table):
    points = rows(plots.growth(table))
    assert [row["files"] for row in points] == [0, 1, 2, 3, 4, 5, 5]
    times = [datetime.fromisoformat(row["time"]) for row in points]
    assert times[0] == datetime(2024, 1, 1, tzinfo=UTC)
    assert times[-1] == datetime(2024, 1, 1, 6, tzinfo=UTC)


def test_chart_times_are_monotonic(tmp_path):
    schema = pa.schema([("id", pa.int64())])
    start = [testing.protocol(), testing.metadata(schema, created=5_000)]
    testing.write_commit(tmp_path, 0, start)
    for version, time in ((1, 9_000), (2, 7_000), (3, 11_000)):
        told = testing.commit_info(time, "WRITE")
        testing.write_commit(tmp_path, version, [told, testing.add(f"f{version}", size=10)])
    points = rows(plots.growth(arrowlog.Table(tmp_path)))
    seconds = [datetime.fromisoformat(row["time"]).timestamp() for row in points]
    assert seconds == [5, 9, 11]  # version 2 counts at the time of version 1
    assert [row["files"] for row in points] == [0, 2, 3]


@pytest.mark.parametrize(
    ("hours", "period", "bars"),
    [(0, "second", 1), (9, "10 minutes", 4), (200, "6 hours", 4), (24 * 300, "week", 4)],
)
def test_churn_chooses_a_fitting_period(tmp_path, hours, period, bars):
    schema = pa.schema([("id", pa.int64())])
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(schema, created=0)])
    for version in range(1, 5):
        told = testing.commit_info(version * hours * 3_600_000 // 4, "WRITE")
        testing.write_commit(tmp_path, version, [told, testing.add(f"f{version}", size=10)])
    chart = plots.churn(arrowlog.Table(tmp_path))
    assert chart.title == f"Bytes added (up) and removed (down) per {period}"
    drawn = rows(chart)
    assert len({row["start"] for row in drawn}) == bars
    assert all(row["start"] < row["end"] for row in drawn)
    assert sum(row["top"] - row["base"] for row in drawn) == 40


def test_bars_of_one_period_are_stacked_and_do_not_overlap(table):
    drawn = rows(plots.churn(table))
    for way in ("added", "removed"):
        spans = sorted(
            (row["start"], *sorted((row["base"], row["top"]))) for row in drawn if row["way"] == way
        )
        for one, two in itertools.pairwise(spans):
            assert one[0] != two[0] or one[2] <= two[1]


def test_statistics_are_shown_as_numbers(table, tmp_path):
    chart = plots.statistics_coverage(table).to_dict()
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["rect", "text"]
    assert {row["label"] for row in rows(plots.statistics_coverage(table))} == {"100%"}
    schema = pa.schema([("id", pa.int64())])
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(schema)])
    adds = [
        testing.add(f"f{n}", size=1, **({"minValues": {"id": "1"}} if n else {})) for n in (0, 1, 2)
    ]
    testing.write_commit(tmp_path, 1, adds)
    drawn = rows(plots.statistics_coverage(arrowlog.Table(tmp_path)))
    assert {row["statistic"]: row["label"] for row in drawn} == {
        "min": "66.7%",
        "max": "0%",
        "null_count": "0%",
    }


@pytest.mark.parametrize("ending", ["html", "svg", "png", "pdf", "json"])
def test_saved_chart_needs_no_network(table, tmp_path, ending):
    path = tmp_path / f"growth.{ending}"
    plots.save(plots.growth(table), path)
    data = path.read_bytes()
    assert len(data) < 2_000_000
    if ending == "html":
        assert not re.search(rb"<(script|link)\b[^>]*\b(src|href)=", data)
        assert b"jsdelivr" not in data
        assert b"vega" in data
    if ending == "svg":
        assert b"Live files and bytes over time" in data


def test_saving_a_chart_in_an_unknown_format_is_refused(table, tmp_path, monkeypatch):
    with pytest.raises(arrowlog.InvalidRequest, match=r"Choose one of the endings \.html"):
        plots.save(plots.growth(table), tmp_path / "growth.doc")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(arrowlog.InvalidRequest, match=r"pip install 'arrowlog\[notebook\]'"):
        plots.save(plots.growth(table), tmp_path / "growth.svg")


def test_charts_stay_small(tmp_path):
    schema = pa.schema([("part", pa.int64()), ("id", pa.int64())])
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(schema, ["part"])])
    for version in range(1, 900):
        adds = [testing.add(f"{version}-{n}", {"part": str(version)}, size=version) for n in (1, 2)]
        testing.write_commit(tmp_path, version, adds)
    table = arrowlog.Table(tmp_path)
    skew = rows(plots.partition_skew(table))
    assert len(skew) == 61
    assert skew[-1]["part"] == "all others"
    assert sum(row["bytes"] for row in skew) == table.snapshot().size_bytes
    assert len(rows(plots.growth(table))) <= 400
    assert len(rows(plots.churn(table))) <= 200


def test_missing_altair_raises_with_the_package_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(arrowlog.InvalidRequest, match=r"pip install 'arrowlog\[notebook\]'"):
        plots.file_sizes(table)


def test_partition_skew_of_a_non_partition_column_is_refused(table):
    with pytest.raises(arrowlog.InvalidRequest, match="'id' is not a partition column"):
        plots.partition_skew(table, "id")
