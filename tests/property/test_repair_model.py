"""Random damage to random logs: repair keeps everything provably intact, and nothing else."""

import json
import os
import random
import shutil

import pytest
from support import log_damage, log_model
from support.case_count import cases, first_seed
from support.random_history import history

import arrowlog
from arrowlog import testing
from arrowlog.formats.indextables.commit_encoder import encode_adds
from arrowlog.formats.indextables.format import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
)


def said(root):
    """The adds of a table's latest version by key, and the version."""
    snapshot = arrowlog.Table(root).snapshot()
    adds = [json.loads(line)["add"] for line in encode_adds(snapshot.state.adds)]
    return {add["path"]: log_damage.known(add, add["path"]) for add in adds}, snapshot


def repaired(source, target, **options):
    """Repair a table's log to another folder. The source does not change."""
    before = log_damage.fingerprint(source)
    result = arrowlog.repair(
        f"{source}/{LOG_FOLDER}", f"{target}/{LOG_FOLDER}", options=options
    ).to_pylist()[0]
    assert log_damage.fingerprint(source) == before
    return result


def assert_both_ways(target, expected):
    """The new log gives the same state from its checkpoint and from its commits."""
    found, snapshot = said(target)
    assert found == expected
    assert snapshot.version == 1
    assert snapshot.report.checkpoint == 1
    assert not snapshot.report.warnings
    shutil.rmtree(f"{target}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}")
    os.unlink(f"{target}/{LOG_FOLDER}/{1:020d}.checkpoint.json")
    os.unlink(f"{target}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
    found, plain = said(target)
    assert found == expected
    assert plain.metadata == snapshot.metadata
    return snapshot


@pytest.mark.promise("recovery.repair_keeps_what_can_be_read")
def test_repair_keeps_what_the_model_keeps(tmp_path):
    for seed in range(cases(60)):
        print("seed", seed)
        one_of_the_model(tmp_path / str(seed), seed)


def one_of_the_model(root, seed):
    history = log_model.write(root / "t", seed, versions=2 + seed % 9)
    rng = random.Random(seed)
    newest = len(history.commits) - 1
    checkpoints = rng.sample(range(newest + 1), rng.choice([0, 0, 1, 2]))
    for version in checkpoints:
        form = rng.choice(["object", "lines", "actions"])
        actions = log_model.actions_at(history, version)
        testing.write_checkpoint(root / "t", version, actions, form=form, codec="gzip")
    damaged = harm(root / "t", rng)
    gone = [kind for kind, how in damaged.items() if how == "gone"]
    commits = {v for v in range(newest + 1) if ("commit", v) not in gone}
    left = {v for v in checkpoints if ("checkpoint", v) not in gone}
    version = log_damage.reachable(commits, left, damaged)
    live = {} if version < 0 else history.states[version]
    there = {key for key in live if rng.random() < 0.8}
    log_damage.put(root / "t", there)
    result = repaired(root / "t", root / "new")
    if version < 0:
        assert result["status"].startswith("ERROR: ")
        assert [result[name] for name in list(result)[2:6]] == [-1, 0, 0, 0]
        assert not os.path.exists(root / "new")
        return
    assert result["status"] == "SUCCESS"
    assert result["source_version"] == version
    assert result["total_splits"] == len(live)
    assert result["valid_splits"] == len(there)
    assert result["missing_splits"] == len(live) - len(there)
    expected = {key: log_damage.known(live[key], key) for key in there}
    snapshot = assert_both_ways(root / "new", expected)
    meta = log_model._metadata_until(history, version)[-1]
    assert dict(snapshot.metadata.configuration) == meta["configuration"]


def harm(root, rng):
    """Damage some files detectably, and return the damage to each."""
    log = log_damage.log_of(root)
    done = {}
    for name in sorted(os.listdir(log)):
        if rng.random() < 0.85:
            continue
        path, how = f"{log}/{name}", rng.choice(["gone", "cut", "empty"])
        done[log_damage.kind_of(name)] = how
        with open(path, "rb") as file:
            data = file.read()
        if how == "gone":
            os.unlink(path)
            continue
        with open(path, "wb") as out:
            out.write(b"" if how == "empty" else log_damage.cut(data, rng))
    if rng.random() < 0.3:
        testing.write_pointer(root, rng.choice([b"", b"{", b'{"version":0}', b"\xff"]))
    return done


@pytest.mark.promise("recovery.repair_keeps_what_can_be_read")
def test_repair_after_bit_flips_keeps_only_true_actions(tmp_path):
    first = first_seed()
    for number in range(cases(12)):
        seed = first + number
        print("case", seed)
        one_of_ours(tmp_path / str(number), random.Random(seed))


def one_of_ours(root, rng):
    """A table with checksums in commits and checkpoints; one bit after the other is flipped."""
    states = history(root / "t", rng)
    log_damage.put(root / "t", {key for state in states for key in state})
    whole = log_damage.files_of(root / "t" / LOG_FOLDER)
    for attempt in range(8):
        names = rng.sample(sorted(whole), rng.choice([1, 1, 2, 3]))
        for name in names:
            with open(f"{root}/t/{LOG_FOLDER}/{name}", "wb") as out:
                out.write(rng.choice([log_damage.flip, log_damage.cut])(whole[name], rng))
        result = repaired(root / "t", root / f"new{attempt}")
        harmed = {(log_damage.kind_of(name) or ("pointer", 0))[0] for name in names}
        if result["status"] == "SUCCESS":
            found = sorted(said(root / f"new{attempt}")[0])
            assert found == sorted(states[result["source_version"]]), names
        else:
            assert "commit" in harmed
        if "commit" not in harmed:  # the source was not changed
            assert result["source_version"] == len(states) - 1, names
        for name in names:
            with open(f"{root}/t/{LOG_FOLDER}/{name}", "wb") as out:
                out.write(whole[name])
