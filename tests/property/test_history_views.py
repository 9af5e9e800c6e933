"""Random histories as SQL: lifetimes against replay, views against the raw JSON."""

import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import log_model
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import decoder
from arrowlog.history import commit_history

SEEDS = cases(24)
BATCH = 12
VERSIONS = 10


@pytest.fixture(params=[1, 48], ids=["columnar", "mixed"])
def threshold(request, monkeypatch):
    """Small logs are decoded line by line; force them through the columnar decoder as well."""
    monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", request.param)
    monkeypatch.setattr(commit_history, "COMMITS_PER_BLOCK", 3)


def build(root, seed):
    """A log with checkpoints, of which cleanup may have deleted the beginning or a commit."""
    history = log_model.write(root, seed, VERSIONS)
    rng = history.rng
    kept = rng.sample(range(1, VERSIONS), rng.randrange(3))
    for version in kept:
        form = rng.choice(["object", "lines", "actions", "parts"])
        testing.write_checkpoint(root, version, log_model.actions_at(history, version), form=form)
    gone = []
    if kept and rng.random() < 0.7:
        below = min(kept) + rng.randrange(2)  # the commit of the checkpoint's version, or not
        gone = range(1, below) if rng.random() < 0.5 else range(below)
    elif kept:
        gone = [kept[0]]  # a commit in the middle, of which only the checkpoint is left
    for version in gone:
        for digits in (18, 20):
            path = f"{root}/_transaction_log/{version:0{digits}d}.json"
            if os.path.exists(path):
                os.remove(path)
    return history


def rows(table):
    """Rows in a canonical order."""
    return sorted(table.to_pylist(), key=lambda row: row["path"])


def alive(lifetimes, version):
    """The state of a version is a range condition."""
    begin, end = pc.field("begin_version"), pc.field("end_version")
    return lifetimes.filter((begin <= version) & (end.is_null() | (end > version)))


@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_file_lifetimes_give_the_files_of_every_version(batch, tmp_path, threshold):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        build(root, seed)
        table = arrowlog.Table(root)
        if seed % 2:
            table.snapshot()  # a cached snapshot changes how history is read, not its content
        first, last = table.earliest_version, table.version
        seen = table.sql("SELECT first_version, last_version FROM coverage").fetchall()
        assert seen == [(first, last)]
        lifetimes = table.sql("FROM file_lifetimes").to_arrow_table()
        for version in range(first, last + 1):
            files = table.snapshot(version=version).files
            names = files.column_names
            assert rows(alive(lifetimes, version).select(names)) == rows(files.select(names))
        some = (first + last) // 2
        at = table.sql(f"FROM files_at({some})").to_arrow_table()
        assert rows(at.select(names)) == rows(table.snapshot(some).files.select(names))
        now = table.sql("FROM files").to_arrow_table()
        assert rows(now.select(["path"])) == rows(table.snapshot().files.select(["path"]))


@pytest.mark.parametrize("batch", range(SEEDS // BATCH // 2))
def test_history_views_equal_the_raw_lines(batch, tmp_path, threshold):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, VERSIONS)
        lines = [
            (version, number, json.loads(text))
            for version, content in enumerate(history.commits)
            for number, text in enumerate(content.decode().split("\n"), 1)
            if text.strip()
        ]
        table = arrowlog.Table(root)
        told = [
            (version, number, next(iter(line)))
            for version, number, line in lines
            if next(iter(line)) not in ("txn", "cdc", "unknown")
        ]
        found = table.sql("SELECT version, line, action FROM actions ORDER BY ALL").fetchall()
        assert found == sorted((v, n, "mergeskip" if a == "skip" else a) for v, n, a in told)
        assert_adds(table, lines)
        assert_others(table, lines)
        assert_commits(table, lines, last=VERSIONS - 1)


def assert_adds(table, lines):
    adds = [(v, n, line["add"]) for v, n, line in lines if "add" in line]
    query = "SELECT version, line, path, size_bytes, data_change, json FROM adds ORDER BY ALL"
    found = table.sql(query).fetchall()
    assert [row[:5] for row in found] == [
        (v, n, add["path"], add["size"], add.get("dataChange", True)) for v, n, add in adds
    ]
    for (*_, text), (_, _, add) in zip(found, adds, strict=True):
        known = {k: v for k, v in add.items() if v is not None and k != "somethingNew"}
        told = json.loads(text)
        for name in (
            "partitionValues",
            "minValues",
            "maxValues",
        ):  # a null in a map counts as absent
            for each in (known, told):
                if name in each:
                    each[name] = {k: v for k, v in each[name].items() if v is not None}
        assert told == known


def assert_others(table, lines):
    found = table.sql("SELECT version, line, path FROM removes ORDER BY ALL").fetchall()
    assert found == [(v, n, line["remove"]["path"]) for v, n, line in lines if "remove" in line]
    skips = [(v, n, line.get("skip", line.get("mergeskip"))) for v, n, line in lines]
    found = table.sql("SELECT version, line, path, reason, skip_count FROM skips ORDER BY ALL")
    assert found.fetchall() == [
        (v, n, skip["path"], skip["reason"], skip["skipCount"]) for v, n, skip in skips if skip
    ]
    found = table.sql("SELECT version, id, configuration FROM metadata ORDER BY version").fetchall()
    metas = [(v, line["metaData"]) for v, _, line in lines if "metaData" in line]
    assert [(v, i, dict(c)) for v, i, c in found] == [
        (v, meta["id"], meta["configuration"]) for v, meta in metas
    ]


def assert_commits(table, lines, last):
    expected = []
    for version in range(last, -1, -1):
        actions = [line for v, _, line in lines if v == version]
        adds = [line["add"] for line in actions if "add" in line]
        info = next((line["commitInfo"] for line in actions if "commitInfo" in line), {})
        counts = [
            add.get("numRecords", json.loads(add.get("stats") or "{}").get("numRecords"))
            for add in adds
        ]
        rows_added = None if None in counts else sum(counts)
        removes = sum("remove" in line for line in actions)
        size = sum(add["size"] for add in adds)
        expected.append((version, info.get("operation"), len(adds), removes, size, rows_added))
    names = ["version", "operation", "adds", "removes", "bytes", "rows"]
    told = table.history()
    assert [tuple(row.values()) for row in told.select(names).to_pylist()] == expected
    assert table.history(limit=3).equals(told.slice(0, 3)) or times_differ(table, told)
    assert table.sql("FROM commits ORDER BY version DESC").to_arrow_table().num_rows == last + 1


def times_differ(table, told):
    """The time of a commit without a timestamp lies between those of its neighbours."""
    few = table.history(limit=3)
    guessed = pc.equal(few["timestamp_source"], "file")
    names = [name for name in few.column_names if name != "timestamp"]
    return pc.any(guessed).as_py() and few.select(names).equals(told.slice(0, 3).select(names))


def test_query_types_only_the_columns_it_names(tmp_path, monkeypatch):
    from arrowlog.snapshot import file_table

    history = log_model.write(tmp_path / "t", 3, VERSIONS)
    assert history.states
    table = arrowlog.Table(tmp_path / "t")
    table.sql("SELECT count(*) FROM adds").fetchall()  # the schema itself is known

    def never(*_, **__):
        raise AssertionError("a statistic was typed")

    for name in ("cast_text", "cast_integers", "partition_values"):
        monkeypatch.setattr(file_table, name, never)
    table.sql("FROM commits").fetchall()
    table.sql("SELECT path, size_bytes, version FROM adds WHERE version > 2").fetchall()
    table.sql("SELECT path, begin_version, end_version FROM file_lifetimes").fetchall()
    with pytest.raises(Exception, match="a statistic was typed"):
        table.sql('SELECT "min.id" FROM adds').fetchall()


def test_history_spilled_to_disk_gives_the_same_rows(tmp_path):
    root = tmp_path / "t"
    log_model.write(root, 11, VERSIONS)
    usual, tight = arrowlog.Table(root), arrowlog.Table(root, options={"history.maxMemory": 1})
    for view in ("commits", "adds", "removes", "skips", "file_lifetimes"):
        query = f"SELECT * FROM {view} ORDER BY ALL"
        wide = usual.sql(query).to_arrow_table()
        assert isinstance(wide, pa.Table)
        assert tight.sql(query).to_arrow_table().equals(wide)
    folder = tight._history_session.sources().past.folder
    assert usual._history_session.sources().past.folder is None
    assert os.listdir(folder)
    del tight
    import gc

    gc.collect()
    assert not os.path.exists(folder)
