"""Plots: small whatever the table is, and true."""

import sys

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


def test_every_chart_is_one_vega_lite_takes(table):
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


def test_charts_say_what_the_log_says(table):
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
    assert whole == {"kept by it": 1, "dropped": 4}


def test_charts_stay_small(tmp_path):
    import pyarrow as pa

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


def test_without_altair_one_sentence(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(arrowlog.InvalidRequest, match=r"pip install 'arrowlog\[notebook\]'"):
        plots.file_sizes(table)


def test_a_column_that_is_no_partition_is_refused(table):
    with pytest.raises(arrowlog.InvalidRequest, match="'id' is not a partition column"):
        plots.partition_skew(table, "id")
