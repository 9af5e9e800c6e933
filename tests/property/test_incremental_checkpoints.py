"""Incremental checkpoints against a naive replay: random histories, plans, damage and cleanup."""

import glob
import json
import os
import random
import shutil
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from support import log_model, parquet_checkpoints
from support.case_count import cases
from support.random_predicates import predicate
from support.random_rows import build

import arrowlog
from arrowlog import testing
from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogWarning, InvalidRequest
from arrowlog.maintenance.checkpointing import make_checkpoint
from arrowlog.snapshot.checkpoint import incremental
from arrowlog.snapshot.listing import list_log

SEEDS, BATCH = cases(24), 8
WORLDS, PREDICATES = cases(16), 30
VERSIONS = 11
SEEN = Counter()
# Of so many batches it is known what they have among them; ARROWLOG_CASES adds others.
KNOWN_BATCHES = {"versions": 3, "cleanup": 4}


def checkpoint(table, version, **options):
    """Write the checkpoint of a version as `Table.checkpoint` does of the latest."""
    config = resolve({key.replace("_", "."): value for key, value in options.items()})
    state = table.snapshot(version=version).state
    return make_checkpoint(table._store, list_log(table._store), state, config, SystemClock())


def note(root, version):
    manifest = parquet_checkpoints.manifest(root, version)
    SEEN["shared"] += bool(manifest.shared_parts)
    SEEN["dead"] += bool(len(manifest.dead))
    SEEN["parts"] = max(SEEN["parts"], len(manifest.parts))
    return manifest


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_incremental_checkpoint_changes_no_version(batch, tmp_path, monkeypatch):
    SEEN.clear()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=VERSIONS)
        rng = history.rng
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 2, 5, 1000]))
        parquet_checkpoints.share_small_parts(monkeypatch, folded=rng.choice([0, 0, 3, 8]))
        monkeypatch.setattr(incremental, "_MANY_KEYS", [1, 1 << 16][seed % 2])
        table = arrowlog.Table(root)
        before = [parquet_checkpoints.said(table.snapshot(version=v)) for v in range(VERSIONS)]
        for version in sorted(rng.sample(range(1, VERSIONS), 4)):
            if rng.random() < 0.7:  # otherwise from the state in memory
                table = arrowlog.Table(root)
            result = checkpoint(
                table,
                version,
                checkpoint_maxFileSize=rng.choice([1, 4000, 10**8]),
                checkpoint_compression=rng.choice(["snappy", "zstd", "none"]),
            )
            assert result.num_files == len(history.states[version])
            assert note(root, version).num_files == result.num_files
            reader = arrowlog.Table(root)
            for number, expected in enumerate(before):
                assert parquet_checkpoints.said(reader.snapshot(version=number)) == expected
                if number >= version:
                    report = reader.snapshot(version=number).report
                    assert (report.checkpoint, report.warnings) == (version, ())
            groups = reader.snapshot(version=version).state.source
            for group in range(groups.rows.parts.manifest.index.num_rows):  # each alone
                some = groups.select_row_groups([group])
                assert some.num_files == some.rows.count
        shutil.rmtree(root)
    print(SEEN)
    if batch < KNOWN_BATCHES["versions"]:
        assert SEEN["shared"] > BATCH // 2
        assert SEEN["dead"]
        assert SEEN["parts"] > 2


@pytest.mark.parametrize("batch", range(2))
def test_plans_on_shared_parts_equal_plans_on_commits(batch, tmp_path, monkeypatch):
    narrowed = shared = 0
    for seed in range(batch * WORLDS // 2, (batch + 1) * WORLDS // 2):
        print("seed", seed)
        plain = tmp_path / f"{seed}-plain"
        world = build(plain, seed, files=30)
        rng = world.rng
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 2, 3, 8]))
        parquet_checkpoints.share_small_parts(monkeypatch)
        root = tmp_path / str(seed)
        shutil.copytree(plain, root)
        checkpoint(arrowlog.Table(root), 2)
        gone = rng.sample(world.names, 6)
        values = dict.fromkeys(world.partition_columns)
        for version, names in ((3, gone[:3]), (4, gone[3:])):
            lines = [testing.remove(name) for name in names[:2]]
            again = next(
                line["add"]
                for line in read_lines(plain)
                if line.get("add", {}).get("path") == names[2]
            )
            lines += [{"add": {**again, "size": 7}}, testing.add(f"new{version}", values)]
            for place in (plain, root):
                testing.write_commit(place, version, lines)
            checkpoint(arrowlog.Table(root), version)
        shared += bool(parquet_checkpoints.manifest(root, 4).shared_parts)
        whole = arrowlog.Table(plain)
        table = arrowlog.Table(root)
        for _ in range(PREDICATES):
            text = predicate(world)
            plan, expected = table.scan(text), whole.scan(text, max_staleness=1e9)
            assert plan.snapshot.report.checkpoint == 4
            narrowed += plan.among is not plan.snapshot
            assert sorted(plan.paths) == sorted(expected.paths), text
            assert plan.count() == expected.count(), text
            assert plan.total_files == expected.total_files
    print(shared, narrowed)
    assert shared > WORLDS // 8
    assert narrowed > PREDICATES // 4


def read_lines(root):
    """Return all actions of a plain log, the last commit first."""
    for name in sorted(glob.glob(f"{root}/_transaction_log/*.json"), reverse=True):
        with open(name) as file:
            yield from map(json.loads, file)


SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def grow(table, rng, live, number):
    """Commit random actions, and return the live files afterwards."""
    new = [f"p={rng.choice('ab')}/{number}-{i}" for i in range(rng.randint(0, 4))]
    gone = rng.sample(sorted(live), min(len(live), rng.choice([0, 0, 1, 3])))
    again = rng.sample(sorted(live - set(gone)), min(len(live) - len(gone), rng.choice([0, 1])))
    if not new and not gone and not again:
        new = [f"p=a/{number}"]
    low = rng.randrange(100)
    adds = [
        arrowlog.add_file(
            path,
            {"p": path[2]},
            size=number + 1,
            modification_time=1,
            num_records=9,
            min_values={"id": low},
            max_values={"id": low + 9},
        )
        for path in (*new, *again)
    ]
    table.commit(adds, gone)
    return (live - set(gone)) | set(new)


@pytest.mark.promise("cleanup.keeps_what_it_promises")
@pytest.mark.parametrize("batch", range(cases(4)))
def test_cleanup_keeps_shared_parts(batch, tmp_path, monkeypatch):
    """After any deletion every retained version is readable, and nothing else remains."""
    SEEN.clear()
    for seed in range(batch * 2, batch * 2 + 2):
        print("seed", seed)
        rng = random.Random(seed)
        parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 3, 1000]))
        parquet_checkpoints.share_small_parts(monkeypatch, folded=rng.choice([0, 3, 6]), dead=0.5)
        root = tmp_path / str(seed)
        options = {
            "checkpoint.enabled": False,
            "cleanup.enabled": False,
            "checkpoint.format": rng.choice(["parquet", "auto"]),
            "logRetention.duration": rng.choice(["0s", "30d"]),
            "checkpointRetention.duration": "0s",
        }
        table = arrowlog.Table.create(root, SCHEMA, ["p"], options=options)
        states = {table.version: set()}
        for number in range(30):
            act = rng.choice(["commit"] * 6 + ["checkpoint"] * 5 + ["cleanup"] * 2 + ["truncate"])
            SEEN[act] += 1
            if act == "commit":
                states[table.version] = grow(table, rng, states[table.version], number)
            elif act == "checkpoint":
                live = states[table.version]
                table.checkpoint()
                states[table.version] = live  # the first raises the protocol
                note(root, table.version)
            else:
                plan = table.cleanup() if act == "cleanup" else table.truncate_history()
                SEEN["deleted"] += plan.num_files
                check_versions(root, options, plan.retention.versions, states)
            if rng.random() < 0.3:
                table = arrowlog.Table(root, options=options)
            snapshot = arrowlog.Table(root, options=options).snapshot()
            assert set(snapshot.files["path"].to_pylist()) == states[snapshot.version]
            assert snapshot.report.warnings == ()
        table.truncate_history()
        table.cleanup()
        names = os.listdir(parquet_checkpoints.folder(root))
        parts = [name for name in names if name.endswith(".parquet")]
        named = parquet_checkpoints.manifest(root, table.version).parts
        assert sorted(parts) == sorted(part.name for part in named)
        problems = table.doctor(data_files=False)
        assert [p.code for p in problems if p.severity == "error"] == []
    print(SEEN)
    if batch < KNOWN_BATCHES["cleanup"]:
        assert min(SEEN["shared"], SEEN["deleted"], SEEN["dead"]) > 0


def check_versions(root, options, promised, states):
    reader = arrowlog.Table(root, options=options)
    for version, live in states.items():
        if version in promised:
            shown = reader.snapshot(version=version).files["path"].to_pylist()
            assert set(shown) == live
        elif version < reader.earliest_version:
            with pytest.raises(InvalidRequest):
                reader.snapshot(version=version)


@pytest.mark.promise("checkpoint.damage_is_found")
@pytest.mark.parametrize("seed", range(cases(8)))
def test_damaged_shared_part_never_loses_files(seed, tmp_path, monkeypatch):
    rng = random.Random(seed)
    parquet_checkpoints.small_groups(monkeypatch, rng.choice([1, 3]))
    parquet_checkpoints.share_small_parts(monkeypatch)
    options = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(tmp_path, SCHEMA, ["p"], options=options)
    live = set()
    for number in range(4):
        live = grow(table, rng, live, number) | set()
    for number in range(4, 9):
        table.checkpoint()
        live = grow(table, rng, live, number)
    table.checkpoint()
    manifest = parquet_checkpoints.manifest(tmp_path, table.version)
    assert manifest.shared_parts or seed >= 8
    part = rng.choice(manifest.shared_parts or manifest.parts)
    path = f"{parquet_checkpoints.folder(tmp_path)}/{part.name}"
    if rng.random() < 0.3:
        os.remove(path)
    else:
        with open(path, "r+b") as file:
            at = rng.randrange(os.path.getsize(path))
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown = arrowlog.Table(tmp_path).snapshot().files["path"].to_pylist()
    assert set(shown) == live
    assert caught or not os.path.exists(path)  # missing parts show when it is opened
    # The next checkpoint does not build on the damage.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        writer = arrowlog.Table(tmp_path, options=options)
        assert len(writer.doctor(data_files=False))
        live = grow(writer, rng, live, 10)
        writer.checkpoint()
        writer.truncate_history()
    shown = arrowlog.Table(tmp_path).snapshot()
    assert set(shown.files["path"].to_pylist()) == live
    assert shown.report.checkpoint == shown.version


def test_background_checkpoints_are_incremental(tmp_path, monkeypatch):
    """A handle that followed the log has the files in memory. The commits tell what changed."""
    parquet_checkpoints.share_small_parts(monkeypatch)
    options = {"checkpoint.interval": 3, "cleanup.enabled": False}
    table = arrowlog.Table.create(tmp_path, SCHEMA, ["p"], options=options)
    rng, live, shared = random.Random(7), set(), 0
    for number in range(20):
        live = grow(table, rng, live, number)
        assert table.wait_for_checkpoint(60)
    for name in glob.glob(f"{parquet_checkpoints.folder(tmp_path)}/*.checkpoint.json"):
        version = int(os.path.basename(name)[:20])
        shared += bool(parquet_checkpoints.manifest(tmp_path, version).shared_parts)
    assert shared > 3
    shown = arrowlog.Table(tmp_path).snapshot()
    assert shown.report.checkpoint is not None
    assert set(shown.files["path"].to_pylist()) == live


def test_older_releases_refuse_checkpoints_with_dead_rows(tmp_path, monkeypatch):
    """They accept only the format `parquet`, and only parts of the manifest's own version."""
    parquet_checkpoints.share_small_parts(monkeypatch)
    table = arrowlog.Table.create(tmp_path, SCHEMA, ["p"], options={"checkpoint.enabled": False})
    for number in range(3):
        table.append([arrowlog.add_file(f"p=a/{number}", {"p": "a"}, size=1)])
    table.checkpoint()
    table.remove(["p=a/0"])
    table.checkpoint()
    name = f"{parquet_checkpoints.folder(tmp_path)}/{table.version:020d}.checkpoint.json"
    with open(name) as file:
        document = json.load(file)
    assert document["format"] != "parquet"
    assert document["dead"]
    assert {int(part["name"][:20]) for part in document["parts"]} == {table.version - 1}
