"""Checkpoints streamed by backward replay, without the files in memory, against a model."""

import glob
import random
import shutil
import warnings
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from support import log_model, parquet_checkpoints
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.maintenance.checkpointing import make_checkpoint
from arrowlog.snapshot.checkpoint import json as json_form
from arrowlog.snapshot.checkpoint import row_spill, streaming
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.seen_keys import KeyHashes, SeenKeys

SEEDS, BATCH = cases(24), 8
VERSIONS = 12
SEEN = Counter()
FORMS = ("parquet", "json", "both")


def stream_small_logs(monkeypatch, rng):
    """Stream every log, in blocks and batches of random sizes, and count what is streamed."""
    sizes = rng.choice([1, 1, 700, 3000, 10**9])
    monkeypatch.setattr(streaming, "STREAMED_LOG_BYTES_MIN", 0)
    monkeypatch.setattr(streaming, "STREAMED_FILES_MIN", 0)
    monkeypatch.setattr(streaming, "_FRESH_SHARE_MIN", 0)
    monkeypatch.setattr(streaming, "_BLOCK_BYTES", sizes)
    monkeypatch.setattr(streaming, "_BLOCK_BYTES_MAX", sizes)
    monkeypatch.setattr(streaming, "_BLOCK_FILES", rng.choice([1, 3, 1 << 15]))
    monkeypatch.setattr(streaming, "_BLOCK_GROUPS", rng.choice([1, 3]))
    monkeypatch.setattr(streaming, "_SAMPLED_SHARE_MAX", rng.choice([0, 1e9]))
    monkeypatch.setattr(row_spill, "_BATCH_ROWS", rng.choice([1, 2, 512]))
    monkeypatch.setattr(row_spill, "_READ_ROWS", rng.choice([1, 7, 1 << 15]))
    monkeypatch.setattr(json_form, "_SPILLED_PART_BYTES_MAX", rng.choice([1, 2000, 8 << 20]))
    monkeypatch.setattr(json_form, "ROW_GROUP_FILES", rng.choice([1, 3, 1 << 14]))
    finish = streaming.RowStream.finish

    def noting(self):
        SEEN["streamed"] += 1
        SEEN["runs"] = max(SEEN["runs"], len(self._spill._runs))
        files = finish(self)
        SEEN["rebuilt"] += bool(files.spill.recipe.rebuilt)
        runs = {name for run in files.spill._runs for name in run.recipe.rebuilt}
        SEEN["kept after all"] += bool(runs - set(files.spill.recipe.rebuilt))
        return files

    monkeypatch.setattr(streaming.RowStream, "finish", noting)


def checkpoint_in_memory(root, version, form="parquet"):
    """Write a checkpoint of a version as a handle does that has its files in memory."""
    table = arrowlog.Table(root)
    snapshot = table.snapshot(version=version)
    adds = snapshot.state.adds
    assert adds.num_rows == snapshot.num_files
    config = resolve({"checkpoint.format": form})
    return make_checkpoint(
        table._store, list_log(table._store), snapshot.state, config, SystemClock()
    )


def read_json_form(root, expected):
    """Compare what the JSON form alone says, without commits; return how many parts it has."""
    alone = root.parent / f"{root.name}-json"
    log = alone / "_transaction_log"
    log.mkdir(parents=True)
    names = glob.glob(f"{root}/_transaction_log/{VERSIONS - 1:020d}.checkpoint*.json")
    assert names
    for name in names:
        shutil.copy(name, log)
    after = arrowlog.Table(alone).snapshot()
    assert (after.report.checkpoint, after.report.warnings) == (VERSIONS - 1, ())
    assert parquet_checkpoints.said(after) == expected
    shutil.rmtree(alone)
    return len(names) - 1


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_streamed_checkpoint_changes_no_version(batch, tmp_path, monkeypatch):
    SEEN.clear()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=VERSIONS)
        rng = random.Random(seed)
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 2, 5, 1000]))
        table = arrowlog.Table(root)
        before = [parquet_checkpoints.said(table.snapshot(version=v)) for v in range(VERSIONS)]
        if rng.random() < 0.6:
            checkpoint_in_memory(root, rng.randrange(1, VERSIONS - 1), rng.choice(FORMS))
        with monkeypatch.context() as patch:
            stream_small_logs(patch, rng)
            patch.setattr(parquet_checkpoints.parquet, "SHARED_FILES_MIN", rng.choice([1, 4096]))
            form = rng.choice(FORMS[1:])
            options = {"checkpoint.format": form, "checkpoint.enabled": False}
            options["checkpoint.maxFileSize"] = rng.choice([1, 4000, 10**8])
            written = arrowlog.Table(root, options=options).checkpoint()
        assert (written.version, written.num_files) == (VERSIONS - 1, len(history.live))
        assert written.names
        reader = arrowlog.Table(root)
        for version, expected in enumerate(before):
            assert parquet_checkpoints.said(reader.snapshot(version=version)) == expected
        report = reader.snapshot().report
        assert (report.checkpoint, report.warnings) == (VERSIONS - 1, ())
        SEEN["JSON parts"] = max(SEEN["JSON parts"], read_json_form(root, before[-1]))
        shutil.rmtree(root)
    print(SEEN)
    assert SEEN["streamed"] > BATCH // 2
    assert SEEN["runs"] > 3
    assert SEEN["rebuilt"]
    assert SEEN["kept after all"]
    assert SEEN["JSON parts"] > 1


SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("size", pa.float64())])


def build_sortable(root, commits=24, files=40, seed=0):
    """Write a log whose files can be sorted by their bounds, in no order, some of them replaced."""
    rng = random.Random(seed)
    opening = [testing.protocol(), testing.metadata(SCHEMA, ["day"])]
    testing.write_commit(root, 0, opening)
    live = []
    for version in range(1, commits + 1):
        actions = [testing.remove(path) for path in rng.sample(live, min(len(live), 3))]
        live = [path for path in live if testing.remove(path)["remove"]["path"] not in actions]
        for number in range(files):
            low = rng.randrange(10**6)
            path = f"part-{rng.randrange(10**9)}-{version}-{number}.parquet"
            if live and rng.random() < 0.1:
                path = rng.choice(live)
            add = testing.add(path, {"day": f"2024-01-{rng.randrange(1, 5):02d}"}, size=low)["add"]
            add |= {"minValues": {"id": str(low)}, "maxValues": {"id": str(low + 9)}}
            add["numRecords"] = 10
            actions.append({"add": add})
            live.append(path)
        testing.write_commit(root, version, actions)
    return commits


@pytest.mark.parametrize("based", [False, True])
def test_order_and_index_equal_the_in_memory_checkpoint(based, tmp_path, monkeypatch):
    plain, root = tmp_path / "plain", tmp_path / "streamed"
    newest = build_sortable(plain)
    parquet_checkpoints.small_groups(monkeypatch, 16)
    shutil.copytree(plain, root)
    checkpoint_in_memory(plain, newest)
    rng = random.Random(1)
    with monkeypatch.context() as patch:
        if based:
            checkpoint_in_memory(root, newest // 2)
        stream_small_logs(patch, rng)
        patch.setattr(streaming, "_BLOCK_BYTES", 4000)
        patch.setattr(streaming, "_SAMPLED_SHARE_MAX", 1e9)
        SEEN.clear()
        arrowlog.Table(root, options={"checkpoint.format": "both"}).checkpoint()
        assert SEEN["streamed"] == 1
    one, other = (parquet_checkpoints.manifest(place, newest) for place in (plain, root))
    assert one.columns == other.columns
    assert one.recipe == other.recipe
    assert one.index.drop_columns("sums").equals(other.index.drop_columns("sums"))
    paths = [arrowlog.Table(place).snapshot().state.column("path") for place in (plain, root)]
    assert paths[0].equals(paths[1])


def test_full_checkpoint_on_top_of_a_checkpoint_is_streamed(tmp_path, monkeypatch):
    newest = build_sortable(tmp_path)
    parquet_checkpoints.small_groups(monkeypatch, 16)
    checkpoint_in_memory(tmp_path, newest // 2)
    expected = parquet_checkpoints.said(arrowlog.Table(tmp_path).snapshot())
    table = arrowlog.Table(tmp_path, options={"checkpoint.format": "both"})
    assert not table.snapshot().state.source.in_memory
    with monkeypatch.context() as patch:
        stream_small_logs(patch, random.Random(2))
        SEEN.clear()
        table.checkpoint()
        assert SEEN["streamed"] == 1
    assert not table.snapshot().state.source.in_memory
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = arrowlog.Table(tmp_path).snapshot()
        assert after.report.checkpoint == newest
        assert parquet_checkpoints.said(after) == expected


def test_statistics_are_truncated_like_in_memory(tmp_path, monkeypatch):
    long = "x" * 5000
    opening = [testing.protocol(), testing.metadata(pa.schema([("name", pa.string())]), [])]
    testing.write_commit(tmp_path / "a", 0, opening)
    for version in range(1, 5):
        add = testing.add(f"{version}.parquet", {})["add"]
        bounds = {"minValues": {"name": long}, "maxValues": {"name": f"{long}{version}"}}
        testing.write_commit(tmp_path / "a", version, [{"add": add | bounds}])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    checkpoint_in_memory(tmp_path / "a", 4, "both")
    with monkeypatch.context() as patch:
        stream_small_logs(patch, random.Random(3))
        arrowlog.Table(tmp_path / "b", options={"checkpoint.format": "both"}).checkpoint()
    one, other = (arrowlog.Table(tmp_path / name).snapshot() for name in "ab")
    assert parquet_checkpoints.said(one) == parquet_checkpoints.said(other)
    assert "minValues.name" not in other.state.adds.column_names


def test_seen_keys_are_found():
    rng = random.Random(0)
    for _ in range(cases(20)):
        seen, known = SeenKeys(), set()
        for _ in range(rng.randrange(1, 12)):
            keys = [f"file {rng.randrange(500)}" for _ in range(rng.randrange(1, 200))]
            hashes = seen.hashes(pa.chunked_array([pa.array(keys)]))
            assert hashes.may_repeat == (len(set(keys)) < len(keys))
            found = seen.find(hashes)
            assert (found is None and known.isdisjoint(keys)) or found.tolist() == [
                key in known for key in keys
            ]
            seen.add(hashes)
            known.update(keys)


def test_keys_with_one_equal_hash_are_distinguished():
    seen = SeenKeys()

    def hashes(firsts, seconds):
        return KeyHashes(
            np.array(firsts, np.uint64), np.array(seconds, np.uint64), np.arange(len(firsts))
        )

    last = 2**64 - 1  # in the last division; the others are in the first one
    seen.add(hashes([1, 5, 5, 5, 9, last], [0, 1, 2, 3, 0, 4]))
    assert seen.find(hashes([9, last, last], [1, 3, 4])).tolist() == [False, False, True]
    assert seen.find(hashes([5, 5, 5, 9], [3, 4, 1, 0])).tolist() == [True, False, True, True]
    assert seen.find(hashes([2, 5, 9], [0, 7, 1])) is None
