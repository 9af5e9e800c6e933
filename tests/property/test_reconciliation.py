"""Action reconciliation is a fold: at once, stepwise and by the fast path it is the same."""

import json

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import small_table
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.snapshot import reconciliation
from arrowlog.snapshot.log_replay import replay_actions
from arrowlog.snapshot.snapshot import _filter_batches

NAMES = st.sampled_from(["a", "b", "c", "d", "é", ""])
ACTIONS = st.lists(st.tuples(NAMES, st.booleans()), max_size=12)


def tail(actions, start=0):
    rows = [(key, start + i, add, start + i) for i, (key, add) in enumerate(actions)]
    schema = {"key": pl.String, "seq": pl.Int64, "add": pl.Boolean, "row": pl.Int64}
    return pl.LazyFrame(rows, schema=schema, orient="row")


def nothing():
    return pl.LazyFrame(schema={"key": pl.String, "row": pl.Int64})


def model(actions, live=None):
    live = dict(live or {})
    for row, (key, add) in enumerate(actions):
        if add:
            live[key] = row
        else:
            live.pop(key, None)
    return live


@settings(max_examples=cases(300))
@given(ACTIONS, ACTIONS)
def test_reconciliation_is_associative(first, second):
    stepwise = reconciliation.reconcile_frames(
        reconciliation.reconcile_frames(nothing(), tail(first)), tail(second, len(first))
    )
    at_once = reconciliation.reconcile_frames(nothing(), tail([*first, *second]))
    found = [frame.select("key", "row").sort("key").collect() for frame in (stepwise, at_once)]
    assert found[0].equals(found[1])
    assert dict(found[0].iter_rows()) == model([*first, *second])


@settings(max_examples=cases(300))
@given(st.lists(NAMES, unique=True), ACTIONS)
def test_fast_path_equals_reconciliation(before, actions):
    frame = tail(actions).collect()
    adds = frame.filter("add").select("key", "seq")
    removes = frame.filter(~pl.col("add")).select("key", "seq")
    kept, live = reconciliation.reconcile(pl.Series(before, dtype=pl.String), adds, removes)
    old = before if kept is None else [k for k, stays in zip(before, kept, strict=True) if stays]
    new = adds if live is None else adds.filter(live)
    expected = model(actions, dict.fromkeys(before))
    assert sorted(old) == sorted(k for k, row in expected.items() if row is None)
    assert dict(new.iter_rows()) == {k: row for k, row in expected.items() if row is not None}


def decoded(versions):
    window = LineBuffer(1 << 20)
    for version, actions in versions:
        window.append(f"{version}.json", version, testing.lines(actions) or b"\n")
    return decode_buffer(window)


def history(actions):
    return [testing.add(k or "x") if add else testing.remove(k or "x") for k, add in actions]


@pytest.mark.promise("snapshot.refresh_equals_open")
@pytest.mark.parametrize("split", [0, 1, 2, 3])
@settings(max_examples=cases(60))
@given(st.lists(ACTIONS, min_size=3, max_size=3))
def test_stepwise_replay_equals_full_replay(split, commits):
    schema = '{"type":"struct","fields":[]}'
    opening = [testing.protocol(), testing.metadata(schema)]
    log = [(0, opening), *((v + 1, history(actions)) for v, actions in enumerate(commits))]
    whole = replay_actions(None, decoded(log), 3, "/t").state
    base = replay_actions(None, decoded(log[: split + 1]), split, "/t").state
    change = replay_actions(base, decoded(log[split + 1 :]), 3, "/t")
    assert sorted(change.state.adds["key"].to_pylist()) == sorted(whole.adds["key"].to_pylist())
    assert change.state.metadata == whole.metadata
    kept = change.kept_mask()
    stayed = base.adds.num_rows if kept is None else sum(kept.to_pylist())
    assert stayed + change.added == whole.adds.num_rows


def test_refresh_equals_open_after_small_and_large_commits(root):
    """Typed files after a mix of decoders, then refreshed: none is lost, none comes back."""
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add(f"small{i}.parquet") for i in range(3)])
    table = arrowlog.Table(root)
    table.snapshot()
    bounds = [{"id": str(i)} for i in range(500)]
    adds = [
        testing.add(f"large{i}.parquet", {"day": "2024-01-01"}, minValues=low, maxValues=low)
        for i, low in enumerate(bounds)
    ]
    testing.write_commit(root, 2, adds)
    assert table.refresh().files.num_rows == 503
    testing.write_commit(root, 3, [testing.remove("small0.parquet")])
    followed, fresh = table.refresh(), arrowlog.Table(root).snapshot()
    assert small_table.paths(followed) == small_table.paths(fresh)
    by_path = [("path", "ascending")]
    columns = ["path", "partition.day", "min.id", "max.id"]
    assert (
        followed.files.select(columns)
        .sort_by(by_path)
        .equals(fresh.files.select(columns).sort_by(by_path))
    )


@pytest.mark.parametrize("spaced", [False, True])
def test_transactions_and_timestamps_from_foreign_commit_infos(root, spaced):
    """commitInfos of other writers, at any position in their commits, are decoded as columns."""
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 61):
        step = {"appId": "app", "version": version}
        info = testing.commit_info(1_700_000_000_000 + version, txn=step)
        text = json.dumps(info, separators=(", ", ": ") if spaced else (",", ":")).encode() + b"\n"
        before, after = (testing.lines([testing.add(f"{version}-{n}")]) for n in range(2))
        testing.write_commit(root, version, before + text + after)
    state = arrowlog.Table(root).snapshot().state
    by_line = arrowlog.Table(root, options={"transaction.useOptimized": False}).snapshot().state
    assert state.timestamp == by_line.timestamp == 1_700_000_000_060
    assert state.txns == by_line.txns == {"app": (60, 60)}


@settings(max_examples=cases(200))
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(1, 12),
)
def test_batches_keep_the_rows_of_a_mask(runs, batch_rows):
    flags = [live for live, length in runs for _ in range(length)]
    numbers = pa.table({"n": pa.array(range(len(flags)), pa.int64())})
    mask = pa.array(flags, pa.bool_())
    kept = _filter_batches(numbers.to_batches(max_chunksize=batch_rows), mask)
    found = pa.Table.from_batches(kept, numbers.schema)
    assert found["n"].to_pylist() == [n for n, live in enumerate(flags) if live]


def test_live_rows_that_are_adjacent_are_not_copied():
    batch = pa.record_batch({"n": pa.array(range(100), pa.int64())})
    memory = batch["n"].buffers()[1].address
    for dead, shared in ((range(20), True), (range(90, 100), True), (range(40, 50), False)):
        mask = pa.array([n not in dead for n in range(100)])
        [kept] = _filter_batches([batch], mask)
        assert (kept["n"].buffers()[1].address == memory) == shared
        assert kept["n"].to_pylist() == [n for n in range(100) if n not in dead]


def test_few_live_rows_do_not_keep_the_dead_ones_in_memory():
    batch = pa.record_batch({"n": pa.array(range(100), pa.int64())})
    [kept] = _filter_batches([batch], pa.array([n < 50 for n in range(100)]))
    assert kept.get_total_buffer_size() < batch.get_total_buffer_size()
