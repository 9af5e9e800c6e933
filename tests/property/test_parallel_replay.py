"""Replaying a log in many parallel segments gives the same result as in one."""

import random

import pytest
from support import small_table
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.formats.indextables.format import LOG_FOLDER
from arrowlog.snapshot import commit_reader


def write_log(rng, root):
    """Commits of very different sizes, compressed or not."""
    testing.write_commit(root, 0, small_table.OPENING)
    live = []
    for version in range(1, rng.randrange(20, 120)):
        count = rng.choice([1, 1, 2, 3, 60, 900]) if rng.random() < 0.3 else 1
        lines = [testing.add(f"{version}-{n}", {"day": "x"}, size=n) for n in range(count)]
        if live and rng.random() < 0.3:
            lines.append({"remove": {"path": live.pop(rng.randrange(len(live)))}})
        live += [f"{version}-{n}" for n in range(count)]
        testing.write_commit(root, version, lines, codec=rng.choice(["none", "none", "gzip"]))
    return live


def cut_small(monkeypatch, rng):
    limit = rng.choice([500, 3000, 40_000])
    monkeypatch.setattr(commit_reader, "_RUN_BYTES_MAX", limit)
    monkeypatch.setattr(commit_reader, "_SINGLE_RUN_BYTES_MAX", limit)
    monkeypatch.setattr(commit_reader, "_RUN_BYTES_MIN", 300)
    monkeypatch.setattr(commit_reader, "_LONG_LINES_RUN_BYTES_MAX", 500)


@pytest.mark.parametrize("seed", range(cases(25)))
def test_parallel_replay_equals_sequential_replay(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    live = write_log(rng, tmp_path)
    one = arrowlog.Table(tmp_path).snapshot()
    assert sorted(one.files["path"].to_pylist()) == sorted(live)
    cut_small(monkeypatch, rng)
    many = arrowlog.Table(tmp_path).snapshot()
    assert many.version == one.version
    assert many.files.sort_by("path").equals(one.files.sort_by("path"))
    for said in ("commits_read", "files_read", "bytes_read"):
        assert getattr(many.report, said) == getattr(one.report, said)
    middle = one.version // 2
    history = arrowlog.Table(tmp_path).history()
    assert history.num_rows == one.version + 1
    assert arrowlog.Table(tmp_path).snapshot(version=middle).version == middle


@pytest.mark.parametrize("seed", range(cases(15)))
def test_first_of_several_corrupt_commits_is_reported(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    write_log(rng, tmp_path)
    newest = arrowlog.Table(tmp_path).version
    broken = sorted(rng.sample(range(1, newest + 1), 3))
    for version in broken:
        (tmp_path / LOG_FOLDER / f"{version:020d}.json").write_bytes(
            b'{"add":{"path":"a"}}\nno JSON\n'
        )
    cut_small(monkeypatch, rng)
    with pytest.raises(arrowlog.LogCorrupt) as caught:
        arrowlog.Table(tmp_path).snapshot()
    assert caught.value.file == f"{LOG_FOLDER}/{broken[0]:020d}.json"
