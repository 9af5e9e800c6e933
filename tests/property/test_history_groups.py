"""Groups of commits against the same question in SQL, on random histories."""

import json
import os
import random

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import log_model, small_table
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import decoder
from arrowlog.history import commit_history
from arrowlog.history.commit_groups import columns_to_group, group_commits
from arrowlog.history.view_columns import COMMITS_SCHEMA

BATCH = 8
KEYS = {
    "hour": "date_trunc('hour', timestamp)",
    "day": "timestamp::DATE",
    "month": "date_trunc('month', timestamp)::DATE",
    "operation": "operation",
    "engine_info": "engine_info",
    "app_id": "app_id",
}
SUMS = ["adds", "removes", "bytes", "bytes_removed", "rows"]
HOUR = 3_600_000


def random_keys(rng):
    return rng.sample(list(KEYS), rng.randrange(1, 4))


def question(keys, source="commits"):
    """SQL's sum leaves out what is unknown; the sum of a group is unknown then."""
    named = [f"{KEYS[key]} AS {key}" for key in keys]
    sums = [f"CASE WHEN count({n}) = count(*) THEN sum({n})::BIGINT END AS {n}" for n in SUMS]
    ends = ["min(version) AS first_version", "max(version) AS last_version"]
    chosen = ", ".join([*named, "count(*) AS commits", *sums, *ends])
    groups = ", ".join(str(number) for number in range(1, len(keys) + 1))
    return f"SELECT {chosen} FROM {source} GROUP BY {groups} ORDER BY last_version DESC"


def assert_same(found, expected):
    assert found.column_names == expected.column_names
    numbers = [pc.cast(expected[n], found[n].type) for n in expected.column_names]
    assert found.to_pydict() == pa.table(numbers, names=expected.column_names).to_pydict()


def write(root, rng, table_format="indextables"):
    """Write a log over some months: unknown times, writers, sizes and row counts among it."""
    delta = table_format == "delta"
    folder = root / ("_delta_log" if delta else "_transaction_log")
    os.makedirs(folder)
    ms = 1_700_000_000_000
    for version in range(rng.randrange(1, 40)):
        ms += rng.choice([0, 1, HOUR // 3, HOUR, 20 * HOUR, 900 * HOUR])
        info = {"timestamp": ms, "operation": rng.choice(["WRITE", "MERGE", "DELETE"])}
        info["engineInfo"] = rng.choice(["one", "two"])
        lines = [{"commitInfo": {k: v for k, v in info.items() if rng.random() < 0.9}}]
        if version == 0:
            lines += small_table.OPENING
        if not delta and rng.random() < 0.3:
            lines[0]["commitInfo"]["txn"] = {"appId": rng.choice("ab"), "version": version}
        if delta and rng.random() < 0.3:
            lines.append({"txn": {"appId": rng.choice("ab"), "version": version}})
        for number in range(rng.randrange(4)):
            records = {"numRecords": rng.randrange(100)} if rng.random() < 0.8 else {}
            add = testing.add(f"v{version}-{number}", {"day": None}, size=rng.randrange(1 << 40))
            add["add"] |= {"stats": json.dumps(records)} if delta else records
            lines.append(add)
        for number in range(rng.randrange(3)):
            remove = testing.remove(f"v{version - 1}-{number}")
            remove["remove"] |= {"size": rng.randrange(1 << 40)} if rng.random() < 0.8 else {}
            lines.append(remove)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / f"{version:020d}.json").write_text(text)
        os.utime(folder / f"{version:020d}.json", (ms / 1000, ms / 1000))


@pytest.mark.parametrize("table_format", ["indextables", "delta"])
@pytest.mark.parametrize("seed", range(cases(10)))
def test_groups_equal_the_same_question_in_sql(tmp_path, monkeypatch, table_format, seed):
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(commit_history, "COMMITS_PER_BLOCK", rng.choice([3, 2048]))
    monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", rng.choice([1, 48]))
    write(tmp_path / "t", rng, table_format)
    table = arrowlog.Table(tmp_path / "t")
    assert table.format == table_format
    for keys in ["day"], ["day", "operation"], random_keys(rng), random_keys(rng):
        assert_same(table.history(by=keys), table.query(question(keys)))
    limit = rng.randrange(1, 9)
    newest = f"(FROM commits ORDER BY version DESC LIMIT {limit})"
    names = ["operation", "engine_info"]  # a guessed time depends on the commits that are read
    assert_same(table.history(limit, by=names), table.query(question(names, newest)))


@pytest.mark.parametrize("seed", range(cases(12)))
def test_groups_of_odd_logs_equal_the_same_question_in_sql(tmp_path, seed):
    """Several codecs, line styles and actions, and a checkpoint below which commits are gone."""
    print("seed", seed)
    history = log_model.write(tmp_path, seed, 10)
    if seed % 2:
        testing.write_checkpoint(tmp_path, 4, log_model.actions_at(history, 4))
        for path in (tmp_path / "_transaction_log").glob("*[0-3].json"):
            if path.stem.isdigit():
                path.unlink()
    table = arrowlog.Table(tmp_path)
    for keys in ["month", "operation"], random_keys(history.rng):
        assert_same(table.history(by=keys), table.query(question(keys)))


@pytest.mark.parametrize("batch", range(cases(4)))
def test_groups_of_any_commits_equal_those_of_duckdb(batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        rng = random.Random(seed)
        count = rng.choice([0, 1, 2, 50, 3000])
        span = rng.choice([HOUR, 10**9, 10**12, 5 * 10**13])
        columns = {"version": rng.sample(range(count * 2), count)}
        times = [rng.choice([rng.randrange(-span, span), None]) for _ in range(count)]
        for name in ("operation", "engine_info", "app_id"):
            columns[name] = [rng.choice(["", "a", "b", "é", None]) for _ in range(count)]
        share = rng.choice([0, 0.01, 0.5, 1])
        for name in SUMS:
            values = [rng.choice([0, 1, 1 << 33, rng.randrange(1 << 50)]) for _ in range(count)]
            columns[name] = [None if rng.random() < share else value for value in values]
        columns["timestamp"] = pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC"))
        arrays = {n: pa.array(v, COMMITS_SCHEMA.field(n).type) for n, v in columns.items()}
        keys = random_keys(rng)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("commits", pa.table(arrays))
            expected = connection.sql(question(keys)).to_arrow_table()
        commits = pa.table(arrays).select(columns_to_group(keys))
        found = group_commits(commits, keys)
        assert found.column_names == expected.column_names
        for name in expected.column_names:
            assert found[name].cast(expected[name].type).equals(expected[name]), name


def test_sum_beyond_64_bits_is_unknown():
    large = [(1 << 63) - 1, 1, 5]
    columns = {name: pa.array(large, pa.int64()) for name in SUMS}
    commits = pa.table({"version": [0, 1, 2], "operation": ["a", "a", "b"], **columns})
    found = group_commits(commits, ["operation"])
    assert found["bytes"].to_pylist() == [5, None]
    assert found["commits"].to_pylist() == [1, 2]
