"""Benchmarks: arithmetic, layout, targets, and one real small run."""

import doctest
import importlib
import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _repository():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOME))
        yield


def figure(engine="arrowlog", runs=(2.0,), case="open", shape="small", **more):
    from benchmarks.figures import Figure

    return Figure(case, shape, engine, tuple(runs), **more)


def test_doctests_of_benchmark_modules_pass():
    tried = 0
    names = ("figures", "fresh", "report", "chart", "formatting", "races", "proxy", "memory_s3")
    for name in names:
        found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
        assert found.failed == 0
        tried += found.attempted
    assert tried > 10


# ---- figures ----


def test_ratio_of_rates_treats_more_as_better():
    from benchmarks.figures import ratio

    rates = [figure(runs=(90, 200, 100), unit="per second")]
    rates += [figure("deltalake", (10, 20, 30), unit="per second")]
    assert (rates[0].median, rates[0].best) == (100, 200)
    assert ratio(rates, "deltalake") == 5
    assert (figure(runs=(90, 200, 100)).median, figure(runs=(90, 200, 100)).best) == (100, 90)


def test_ratio_is_none_for_counts_and_missing_peers():
    from benchmarks.figures import ratio

    failed = [figure(runs=(0,), unit="failed"), figure("deltalake", (7,), unit="failed")]
    assert ratio(failed, "deltalake") is None
    assert ratio([figure()], "deltalake") is None
    assert ratio([figure(runs=(0.0,)), figure("deltalake")], "deltalake") is None


@given(
    power=st.floats(-1, 3),
    factor=st.floats(0.01, 1000),
    xs=st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True),
)
def test_slope_equals_the_exponent(power, factor, xs):
    from benchmarks.figures import slope

    assert slope([(x, factor * x**power) for x in xs]) == pytest.approx(power, abs=1e-6)


def test_slope_of_one_point_is_none():
    from benchmarks.figures import slope

    assert slope([(5, 3), (5, 4)]) is None


def test_json_round_trip_keeps_every_run():
    from benchmarks.figures import from_json, to_json

    some = [
        figure(runs=(1.5, 2.5), mb=100.5),
        figure("deltalake", (3,), x=10.0, note="why", cpu=(1.5,)),
    ]
    text = to_json(some, machine={"cores": 2})
    assert from_json(text) == some
    assert json.loads(text)["machine"] == {"cores": 2}
    assert json.loads(text)["figures"][0]["max"] == 2.5


def test_results_with_former_field_and_unit_names_are_read():
    from benchmarks.figures import from_json, to_json

    rate = figure(runs=(90, 200), unit="per second")
    text = to_json([rate]).replace('"engine"', '"who"').replace('"per second"', '"a second"')
    assert "who" in text
    assert from_json(text) == [rate]


def test_changes_compare_medians_of_arrowlog():
    from benchmarks.figures import changes

    now, then = [figure(runs=(3,)), figure("deltalake", (9,))], [figure(runs=(2,))]
    assert changes(now, then) == {("open", "small", "ms"): 0.5}
    assert changes(now, [figure(shape="another")]) == {}


# ---- printed output ----


def printed(rows, peers=("deltalake", "pyiceberg"), earlier=None, since=None):
    from benchmarks.report import Printer

    lines = []
    printer = Printer({"open": "open: all live files"}, earlier, lines.append)
    for row in rows:
        printer.row(row, peers, since)
    printer.end()
    return "\n".join(lines)


GOLDEN = """
                                              arrowlog                 deltalake                pyiceberg           times better than
open: all live files [ms]                median    least     MB   median    least     MB   median    least     MB deltalake pyiceberg
  1,000 commits x 10 files                 50.1     49.0    140      456      440    127    3,800           1,300      9.1x       76x
  alone                                    2.00

                                              arrowlog                 deltalake                pyiceberg           times better than
growth [ms]                              median    least     MB   median    least     MB   median    least     MB deltalake pyiceberg
  10 commits                               1.00                     2.00                                               2.0x
  1,000 commits                            10.0                      200                                                20x
  exponent of growth                       0.50                     1.00"""  # noqa: E501


def test_results_table_layout():
    shape = "1,000 commits x 10 files"
    rows = [
        [
            figure(runs=(50.1, 49, 51), shape=shape, mb=140),
            figure("deltalake", (456, 440, 460), shape=shape, mb=127),
            figure("pyiceberg", (3800,), shape=shape, mb=1300),
        ],
        [figure(shape="alone")],
    ]
    for x, ours, theirs in ((10, 1, 2), (1000, 10, 200)):
        place = {"case": "growth", "shape": f"{x:,} commits", "x": x}
        rows.append([figure(runs=(ours,), **place), figure("deltalake", (theirs,), **place)])
    assert printed(rows) == GOLDEN


def test_change_since_an_earlier_run_is_the_last_column_and_fits():
    from benchmarks.report import WIDTH

    row = [
        figure(runs=(1_234_567.8, 1_234_567.8), shape="w" * 36, mb=99_999),
        figure("deltalake", (9_876_543.2,) * 2, shape="w" * 36, mb=99_999),
        figure("pyiceberg", (9_876_543.2,) * 2, shape="w" * 36, mb=99_999),
    ]
    text = printed([row], earlier=[], since=-0.25)
    assert text.endswith("-25%")
    assert max(map(len, text.split("\n"))) <= WIDTH <= 140


def test_peer_of_another_kind_has_its_own_heading():
    row = [figure(case="spark"), figure("spark", (4,), case="spark")]
    text = printed([[figure()], row], ("spark",))
    assert re.search(r"spark \[ms\].*\n  small +2\.00 +4\.00 +2\.0x$", text)


# ---- targets ----


def test_targets_are_reported_as_reached_or_not():
    from benchmarks.goals import AT_LEAST, AT_MOST, Goal, evaluate, table

    goals = [
        Goal("fast", "ratio", "open", "small", AT_LEAST, 25),
        Goal("fast enough", "ratio", "open", "small", AT_LEAST, 10),
        Goal("short", "value", "open", "small", AT_MOST, 2),
        Goal("light", "mb", "open", "small", AT_MOST, 199),
        Goal("half", "mb ratio", "open", "small", AT_MOST, 0.5),
        Goal("none failed", "value", "commit failures", "small", AT_MOST, 0),
        Goal("before opening", "own ratio", "refresh", "1 new: small", AT_LEAST, 20, "open"),
        Goal("not run", "value", "plan", "small", AT_MOST, 1),
        Goal("no such peer", "ratio", "open", "small", AT_LEAST, 1, "pyiceberg"),
    ]
    figures = [
        figure(runs=(2,), mb=200),
        figure("deltalake", (40,), mb=400),
        # One failure in three runs counts, although the median is none.
        figure(case="commit failures", runs=(0, 0, 1), unit="failed"),
        figure(case="refresh", shape="1 new: small", runs=(0.1,)),
    ]
    found = evaluate(figures, goals)
    assert [(one.goal.label, one.measured, one.reached) for one in found] == [
        ("fast", 20, False),
        ("fast enough", 20, True),
        ("short", 2, True),
        ("light", 200, False),
        ("half", 0.5, True),
        ("none failed", 1, False),
        ("before opening", 20, True),
    ]
    lines = table(found).split("\n")
    assert lines[1].split() == ["fast", "at", "least", "25x", "20x", "NO"]
    assert lines[-1] == "4 of 7 reached."


def test_every_target_and_headline_figure_is_measured(monkeypatch, tmp_path):
    from benchmarks import cases, checkpoints, commits, spark, splits
    from benchmarks.goals import GOALS
    from benchmarks.headline import HEADLINE

    def row(case, shape, jobs, *_, **__):
        return [figure(engine, case=case, shape=shape) for engine in jobs]

    def over_wire(_, server, engines, words, __):
        return [row("slow wire", f"{words}, + {trip} ms", engines) for trip in checkpoints.TRIPS]

    summary = {"rate": 1, "p50": 1, "p99": 1, "failed": 0, "errors": [], "ghosts": 0, "requests": 1}
    quiet = {"requests": 1}
    monkeypatch.setattr(cases, "in_turn", row)
    monkeypatch.setattr(cases, "table", lambda *_: "")
    monkeypatch.setattr(cases, "measure", lambda *_, **__: None)
    monkeypatch.setattr("benchmarks.peers.ours.knows_cache", lambda: True)
    monkeypatch.setattr(commits, "compare", lambda *_: {key: [summary] for key in commits.ENGINES})
    monkeypatch.setattr(commits, "_quiet", lambda *_: quiet)
    setting = cases.Setting(str(tmp_path), 1, large=True)
    jobs = (cases.opening, cases.planning, cases.refreshing, cases.travelling, cases.history)
    jobs += (cases.diff, cases.checkpoint, cases.importing, cases.cached, cases.growth)
    jobs += (checkpoints.again, commits.run, checkpoints.wire)
    monkeypatch.setattr(checkpoints, "_over_wire", over_wire)
    made = {
        (one.case, one.shape, one.engine) for job in jobs for row in job(setting) for one in row
    }
    made |= {("spark", text, "spark") for text in spark.labels(spark.FULL).values()}
    monkeypatch.setattr(splits, "in_turn", row)
    monkeypatch.setattr(splits, "python", lambda *_: os.mkdir(tmp_path / "splits-1000000.part"))
    made |= {(one.case, one.shape, one.engine) for one in splits.run(str(tmp_path), 1, quick=False)}
    measured = {(case, shape) for case, shape, _ in made}
    assert {(one.case, one.shape) for one in GOALS} <= measured
    assert set(HEADLINE) <= measured
    compared = {(one.case, one.shape, one.peer) for one in GOALS if one.kind == "ratio"}
    assert compared <= made
    assert len({one.label for one in GOALS}) == len(GOALS)


# ---- stored results ----


def test_only_the_marked_block_of_the_readme_is_replaced():
    from benchmarks.headline import END, START, markdown, replace_block

    rows = [figure(runs=(50.1,), mb=140), figure("deltalake", (456,), mb=127)]
    block = markdown(rows, {"open": "open: all"}, "do it", "a machine\nversions", "the table")
    text = replace_block(f"before\n{START}\nold\n{END}\nafter\n", block)
    assert text == replace_block(text, block)
    assert text.startswith(f"before\n{START}\n|")
    assert text.endswith(f"</details>\n{END}\nafter\n")
    assert "| open: small | 50.1 (140 MB) | 456 (127 MB) | **9.1\N{MULTIPLICATION SIGN}** |" in text
    assert "Measured by `do it` on:  \na machine  \nversions\n" in text
    assert "old" not in text
    with pytest.raises(ValueError, match="there is no <!-- benchmark:start -->"):
        replace_block("no marks", block)


def test_benchmarks_page_has_the_markers():
    from benchmarks.headline import replace_block

    replace_block((HOME / "docs" / "benchmarks.md").read_text(), "")


def test_chart_is_svg_with_all_labels():
    from benchmarks.chart import chart

    rows = [figure(shape="a < b & c"), figure("deltalake", (40,), shape="a < b & c")]
    rows += [figure(case="growth", shape=str(x), runs=(x,), x=x) for x in (10, 100)]
    drawn = ET.fromstring(chart(rows, {"open": "open: all"}, "a machine"))
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"open: a < b & c", "arrowlog 1.00", "a machine", "10 ms"} <= set(words)
    assert "20\N{MULTIPLICATION SIGN}" in words


# ---- command line ----


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "open,spead"], "--only spead: cases are open, cached, plan"),
        (["--only", ","], "--only nothing: cases are"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--against", "nowhere.json"], "not the results of an earlier run"),
        (["--against", "README.md"], "not the results of an earlier run"),
        (["--again", "README.md"], "--again README.md: not the results of an earlier run"),
        (["--readme", "ARCHITECTURE.md"], "there is no <!-- benchmark:start -->"),
    ],
)
def test_wrong_usage_is_reported_before_measuring(given, said, capsys, monkeypatch):
    from benchmarks.__main__ import main

    monkeypatch.chdir(HOME)
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_help_names_every_case(capsys):
    from benchmarks.__main__ import JOBS, main

    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text and job.description in text for name, job in JOBS.items())


def test_missing_peers_and_a_busy_machine_are_reported(tmp_path):
    from benchmarks import machine

    seen, found = machine.machine(tmp_path), machine.versions()
    assert found["deltalake"]
    assert seen["cores"] == os.cpu_count()
    text = machine.describe({**seen, "busy": True}, {**found, "pyiceberg": None, "commit": "abc+"})
    assert "arrowlog" in text
    assert "(abc+)" in text
    assert "not installed: pyiceberg" in text
    assert ".[dev,bench]" in text
    assert "The machine is busy" in text
    assert "busy" not in machine.describe({**seen, "busy": False}, found)


# ---- runs ----


def test_peers_alternate_and_slow_ones_run_fewer_rounds():
    from benchmarks.fresh import in_turn

    seen = []

    def job(engine):
        seen.append(engine)
        return {"ms": 1.0, "cpu": 0.5, "mb": float(len(seen)), "answer": 3}

    jobs = {engine: lambda engine=engine: job(engine) for engine in ("arrowlog", "deltalake")}
    ours, theirs = in_turn("open", "small", jobs, 3)
    assert seen == ["arrowlog", "deltalake"] * 3
    assert (ours.runs, ours.mb, theirs.mb) == ((1.0,) * 3, 5, 6)
    assert [one.runs for one in in_turn("open", "small", jobs, 3, slow={2: -1})] == [(1.0,)] * 2


@pytest.fixture
def toy(monkeypatch):
    """Tables of a few files, with deltalake as the only peer."""
    from benchmarks import cases
    from benchmarks.tables import Shape

    monkeypatch.setattr(cases, "COMMITS", [Shape(3, 4)])
    monkeypatch.setattr(cases, "STOCKED", [Shape(2, 3, 2)])
    monkeypatch.setattr(cases, "VARIED", [Shape(2, 3, varied=True)])
    monkeypatch.setattr(cases, "REMOVED", [Shape(3, 10, columns=6, removed=20)])
    monkeypatch.setattr(cases, "installed", lambda: ("deltalake",))
    return cases


def test_small_run_gives_equal_answers_and_writes_its_files(toy, tmp_path, capsys):
    from benchmarks.__main__ import main
    from benchmarks.figures import from_json

    readme = tmp_path / "README.md"
    readme.write_text("<!-- benchmark:start --><!-- benchmark:end -->\n")
    given = ["--only", "open", "--rounds", "1", "--folder", str(tmp_path / "out")]
    assert main([*given, "--readme", str(readme)]) == 0
    told = capsys.readouterr()
    assert "3 commits x 4 files" in told.out
    assert "open checkpoint of 6, 2 commits: round 1 of 1" in told.err
    results = tmp_path / "out" / "results.json"
    figures = from_json(results.read_text())
    assert [(one.shape, one.engine) for one in figures] == [
        ("3 commits x 4 files", "arrowlog"),
        ("3 commits x 4 files", "deltalake"),
        ("checkpoint of 6, 2 commits", "arrowlog"),
        ("checkpoint of 6, 2 commits", "deltalake"),
        ("2 commits x 3 files, fields in any order", "arrowlog"),
        ("2 commits x 3 files, fields in any order", "deltalake"),
        ("3 commits x 10 files, 6 columns, 20 % removed", "arrowlog"),
        ("3 commits x 10 files, 6 columns, 20 % removed", "deltalake"),
    ]
    assert all(one.runs[0] > 0 and one.mb > 1 for one in figures)
    kept = json.loads(results.read_text())
    assert {"machine", "versions", "rounds", "seconds", "goals"} <= kept.keys()
    assert kept["command"] == "python3 dev.py bench --rounds 1 --only open"
    table = told.out[told.out.index("\n\n") : told.out.index("Medians")]
    assert main(["--again", str(results), "--folder", str(tmp_path / "other")]) == 0
    assert table in capsys.readouterr().out
    ET.parse(tmp_path / "out" / "benchmark.svg")
    assert "3 commits \N{MULTIPLICATION SIGN} 4 files" in readme.read_text()


@pytest.mark.parametrize("most", [10, 1000])
def test_benchmark_table_with_a_checkpoint_has_all_files_in_either_form(
    most, tmp_path, monkeypatch
):
    import arrowlog
    from benchmarks import tables
    from benchmarks.peers import ours
    from benchmarks.tables import Shape

    monkeypatch.setattr(ours, "FILES_JSON_MAX", most)
    shape = Shape(2, 10, 3)
    assert Shape.named(shape.name) == shape
    tables.build(str(tmp_path), "arrowlog", shape)
    snapshot = arrowlog.Table(tables.place(tmp_path, "arrowlog", shape)).snapshot()
    assert (snapshot.version, snapshot.num_files) == (5, 50)
    assert snapshot.report.checkpoint == 2


def test_benchmark_table_with_removes_lacks_the_removed_files(tmp_path):
    import arrowlog
    from benchmarks import tables
    from benchmarks.tables import Shape

    shape = Shape(4, 10, columns=6, removed=20)
    assert Shape.named(shape.name) == shape
    tables.build(str(tmp_path), "arrowlog", shape)
    table = arrowlog.Table(tables.place(tmp_path, "arrowlog", shape))
    assert [table.snapshot(version=version).num_files for version in range(5)] == [
        0,
        10,
        18,
        26,
        34,
    ]


def damaged(folder, shape):
    """Both tables of a shape; deltalake's lacks its last commit."""
    from benchmarks import tables

    for engine in ("arrowlog", "deltalake"):
        tables.build(str(folder), engine, shape)
    log = os.path.join(tables.place(str(folder), "deltalake", shape), "_delta_log")
    os.remove(os.path.join(log, f"{shape.versions:020d}.json"))


def test_run_with_differing_answers_fails(toy, tmp_path, capsys):
    from benchmarks.__main__ import main

    damaged(tmp_path, toy.COMMITS[0])
    assert main(["--only", "open", "--rounds", "1", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "open 3 commits x 4 files: the answers differ" in told
    assert "arrowlog: [12]" in told
    assert "deltalake: [8]" in told
    assert not (tmp_path / "results.json").exists()


def test_results_before_a_failed_run_are_kept(toy, tmp_path, capsys):
    from benchmarks.__main__ import main
    from benchmarks.figures import from_json

    damaged(tmp_path, toy.STOCKED[0])
    assert main(["--only", "open", "--rounds", "1", "--folder", str(tmp_path)]) == 1
    assert "Results so far" in capsys.readouterr().err
    kept = (tmp_path / "results.json").read_text()
    assert {one.shape for one in from_json(kept)} == {"3 commits x 4 files"}
    assert "the answers differ" in json.loads(kept)["stopped"]


def test_failed_process_is_reported_with_its_last_output(tmp_path):
    from benchmarks.fresh import Failed, measure

    with pytest.raises(Failed, match=r"(?s)arrowlog open .*TableNotFound"):
        measure("arrowlog", "open", str(tmp_path))
