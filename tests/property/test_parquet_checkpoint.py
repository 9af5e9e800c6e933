"""A Parquet checkpoint changes no snapshot and no plan: random histories, random predicates."""

import shutil

import pytest
from support import log_model, parquet_checkpoints
from support.case_count import cases
from support.random_predicates import predicate
from support.random_rows import build

import arrowlog
from arrowlog import testing
from arrowlog.decode import decoder
from arrowlog.predicate.predicate import parse_predicate
from arrowlog.scan.data_skipping import compute_skip_mask, invert_skip_mask, required_columns
from arrowlog.scan.stats_predicate import StatsPredicateBuilder
from arrowlog.snapshot.checkpoint_files import CheckpointFiles

BATCH = 10
SEEDS = cases(120)
WORLDS, PREDICATES = cases(80), 40


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_parquet_checkpoint_changes_no_version(batch, tmp_path, monkeypatch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=8)
        rng = history.rng
        monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", rng.choice([1, 48]))
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 2, 5, 1000]))
        table = arrowlog.Table(root)
        before = [parquet_checkpoints.said(table.snapshot(version=version)) for version in range(8)]
        for version in sorted(rng.sample(range(8), 2)):  # the second is written from the first
            parquet_checkpoints.write(
                root,
                version,
                checkpoint_maxFileSize=rng.choice([1, 4000, 10**8]),
                checkpoint_compression=rng.choice(["snappy", "zstd", "gzip", "lz4", "none"]),
            )
            if rng.random() < 0.5:
                table = arrowlog.Table(root)
            table.invalidate_cache()  # a snapshot that was read does not change
            for number, expected in enumerate(before):
                assert parquet_checkpoints.said(table.snapshot(version=number)) == expected
                if number >= version:
                    assert table.snapshot(version=number).report.checkpoint == version
        shutil.rmtree(root)


@pytest.mark.parametrize("batch", range(SEEDS // BATCH // 3))
def test_refresh_from_a_checkpoint_equals_open(batch, tmp_path, monkeypatch):
    parquet_checkpoints.small_groups(monkeypatch, 3)
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(tmp_path / f"{seed}-source", seed, versions=1)
        history.root = str(root)
        testing.write_commit(root, 0, history.commits[0])
        for version in range(1, 5):
            content = log_model.random_commit(history, version)
            testing.write_commit(root, version, content)
            log_model.replay(history, content)
        parquet_checkpoints.write(root, 4)
        table = arrowlog.Table(root)
        assert isinstance(table.snapshot().state.source, CheckpointFiles)
        for version in range(5, 12):
            content = log_model.random_commit(history, version)
            testing.write_commit(root, version, content)
            log_model.replay(history, content)
            look = history.rng.random()
            if look < 0.3:
                assert table.refresh().num_files == len(history.live)
            elif look < 0.6:
                seen = table.refresh().files["path"].to_pylist()
                assert {log_model.key_of(p, history.root) for p in seen} == set(history.live)
            elif look < 0.8:
                table.scan("id > 500").paths  # noqa: B018 -- types columns that are followed on
        followed = table.refresh()
        assert isinstance(followed.state.source, CheckpointFiles)
        found = parquet_checkpoints.said(followed)
        shutil.rmtree(f"{root}/_transaction_log/_checkpoints")
        assert found == parquet_checkpoints.said(arrowlog.Table(root).snapshot())


def facts(plan):
    found = {"paths": plan.paths, "files": plan.num_files, "total": plan.total_files}
    return found | {"bytes": plan.size_bytes, "records": plan.num_records, "count": plan.count()}


@pytest.mark.parametrize("batch", range(8))
def test_plans_from_a_checkpoint_equal_plans_from_commits(batch, tmp_path, monkeypatch):
    narrowed = asked = 0
    for seed in range(batch * WORLDS // 8, (batch + 1) * WORLDS // 8):
        print("seed", seed)
        plain = tmp_path / f"{seed}-plain"
        world = build(plain, seed, files=30)
        rng = world.rng
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 2, 3, 8]))
        root = tmp_path / str(seed)
        shutil.copytree(plain, root)
        parquet_checkpoints.write(
            root, rng.choice([1, 2, 2]), checkpoint_maxFileSize=rng.choice([1, 10**8])
        )
        tail(world, plain, root)
        whole = arrowlog.Table(plain)
        for number in range(PREDICATES):
            text = predicate(world)
            table = arrowlog.Table(root) if number % 4 == 0 else table  # noqa: F821
            plan = table.scan(text)
            expected = whole.scan(text, max_staleness=1e9)
            asked += 1
            narrowed += plan.among is not plan.snapshot
            same(plan, expected, text)
            if number % 8 == 0:
                compare_explanations(plan, expected)
                assert plan.files.schema == expected.files.schema
    print(f"{asked} predicates, {narrowed} planned from a part of the checkpoint")
    assert narrowed > asked // 25


def same(plan, expected, text):
    found, wanted = facts(plan), facts(expected)
    assert sorted(found.pop("paths")) == sorted(wanted.pop("paths")), text
    assert found == wanted, text
    rows, others = (
        sorted(each.files.to_pylist(), key=lambda row: row["path"]) for each in (plan, expected)
    )
    assert repr(rows) == repr(others)


def compare_explanations(plan, expected):
    found, wanted = plan.explain(), expected.explain()
    assert found.clauses == wanted.clauses
    assert (found.files_kept, found.bytes_total) == (wanted.files_kept, wanted.bytes_total)


def tail(world, *roots):
    """A commit that replaces one file, removes another and adds one more."""
    old = world.rng.sample(world.names, 2)
    values = dict.fromkeys(world.partition_columns)
    lines = [
        testing.remove(old[0]),
        testing.add(old[1], values, size=5),
        testing.add("new.parquet", values, numRecords=3),
    ]
    for root in roots:
        testing.write_commit(root, 3, lines)


@pytest.mark.parametrize("batch", range(4))
def test_row_group_is_skipped_only_if_all_its_files_are(batch, tmp_path, monkeypatch):
    dropped_groups = 0
    for seed in range(batch * WORLDS // 4, (batch + 1) * WORLDS // 4):
        print("seed", seed)
        root = tmp_path / str(seed)
        world = build(root, seed, files=24)
        parquet_checkpoints.small_groups(monkeypatch, world.rng.choice([2, 3, 5]))
        parquet_checkpoints.write(root, 2)
        snapshot = arrowlog.Table(root).snapshot()
        source = snapshot.state.source
        index = source.row_group_stats(snapshot.schema, snapshot.partition_columns)
        sizes = snapshot.state.source.rows.parts.manifest.index["rows"].to_pylist()
        for _ in range(PREDICATES):
            text = predicate(world)
            tree = parse_predicate(text, world.schema).tree
            test = StatsPredicateBuilder(world.schema, world.partition_columns).rows(tree)
            files = invert_skip_mask(
                compute_skip_mask(test, snapshot.columns), snapshot.num_files
            ).to_pylist()
            index.prepare(required_columns(test))
            groups = invert_skip_mask(
                compute_skip_mask(StatsPredicateBuilder(world.schema, ()).rows(tree), index),
                len(sizes),
            )
            start = 0
            for size, stays in zip(sizes, groups.to_pylist(), strict=True):
                assert stays or not any(files[start : start + size]), text
                dropped_groups += not stays
                start += size
    assert dropped_groups > 100
