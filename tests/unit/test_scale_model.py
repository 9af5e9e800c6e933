"""The scale model: arithmetic, simulated races, and the document it fills."""

import json
from dataclasses import replace

import pytest

from benchmarks import beyond, costs, formatting, races, scale

C = scale.known()


@pytest.mark.thorough
def test_document_tables_match_the_model():
    with open(scale.DOCUMENT) as file:
        text = file.read()
    assert scale.filled(text, C) == text, "run python -m benchmarks.scale --write"


def test_table_without_a_place_in_the_document_raises():
    with pytest.raises(SystemExit, match="no place for the table constants"):
        scale.filled("nothing", C)


def test_constants_are_positive():
    for name, value in C.items():
        if name not in ("machine", "sizes", "checked", "quiet"):
            assert value > 0, name
    assert json.loads(json.dumps(C)) == C


def test_costs_are_linear_in_files():
    for function in (costs.in_process, costs.checkpoint_bytes):
        one, two = function(C, 10**6), function(C, 2 * 10**6)
        if isinstance(one, dict):
            one, two = list(one.values()), list(two.values())
        assert list(two) == pytest.approx([2 * value for value in one])
    few, many = costs.on_spark(C, 10**6, 2), costs.on_spark(C, 10**6, 200)
    assert many < few
    assert costs.on_spark(C, 0, 2) > 0  # a job has a fixed cost


def test_costs_of_small_commits_match_manual_arithmetic():
    c = {"commit_bytes": 400, "commit_bytes_per_add": 60, "commit_bytes_per_remove": 20}
    load = costs.Load(adds=5, merged=10, commits=2, retention_days=3)
    assert costs.commit_size(c, load) == pytest.approx(400 + 5.5 * 60 + 5 * 20)
    assert costs.kept(load) == 2 * 86_400 * 3
    assert costs.listing({"list_s_per_1000_at_20_ms": 0.05}, 5000) == pytest.approx((5, 0.25))
    assert load.tail == 2 * 600


def test_plan_cost_grows_with_row_groups_not_with_the_table():
    small, large = (replace(costs.BASE_LOAD, files=files) for files in (10**6, 10**8))
    before, after = costs.cold_plan(C, small), costs.cold_plan(C, large)
    assert after["tail"] == before["tail"]
    assert after["list"] == before["list"]
    assert after["groups"] < before["groups"] * 10  # of a hundred times the files


def test_one_writer_commits_once_per_round_trip():
    found = races.race(1, 0.02, 0.02, 30)
    assert found["rate"] == pytest.approx(1 / (0.02 * (1 + races.JITTER)), rel=0.05)
    assert found["tries"] == 1


@pytest.mark.parametrize("writers", [2, 4, 16])
def test_concurrent_writers_have_about_the_rate_of_one(writers):
    found = races.race(writers, 0.02, 0.02, 30)
    assert 0.75 / 0.021 < found["rate"] < 1.02 / 0.02
    assert found["tries"] > 1
    assert found["p99"] > found["p50"]


def test_no_writer_starves_beside_one_that_commits_without_a_pause():
    races_of_two = [races.race(2, 0.02, 0.02, 60, seed) for seed in range(7)]
    assert max(found["longest"] for found in races_of_two) < 2500


def test_same_seed_gives_the_same_race():
    assert races.race(4, 0.02, 0.02, 5, seed=3) == races.race(4, 0.02, 0.02, 5, seed=3)
    assert races.race(4, 0.02, 0.02, 5, seed=3) != races.race(4, 0.02, 0.02, 5, seed=4)


def test_batching_committer_keeps_up_with_any_rate():
    for rate in (10, 100, 2000):
        found = races.batched(rate, 0.02, 0.0, 30)
        assert found["rate"] == pytest.approx(rate, rel=0.15)
        assert found["puts"] < 1 / 0.02
        assert found["p99"] < 1000 * 3 * 0.02 * (1 + 5 * races.JITTER)
    patient = races.batched(100, 0.02, 0.5, 30)
    assert patient["puts"] < 2
    assert patient["p50"] > 100


def test_numbers_are_formatted():
    assert formatting.span(59.9) == "60 s"
    assert formatting.span(200_000) == "2.3 days"
    assert formatting.size(5) == "5 B"
    assert formatting.markdown_table(("a", "b"), [(1, 2)]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_built_log_matches_the_counts(tmp_path):
    import arrowlog

    root = beyond.build(str(tmp_path), 1050, 100)
    found = arrowlog.Table(root).snapshot()
    assert found.num_files == beyond.live(1050, 100)
    assert found.version == 11
    assert beyond.build(str(tmp_path), 1050, 100) == root  # it already exists
