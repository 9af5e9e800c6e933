"""Random damage to logs: the doctor never fails, writes, or reports a damaged log as healthy."""

import os
import random
import shutil

import pytest
from support import log_damage
from support.case_count import cases, first_seed
from support.random_history import history

import arrowlog
from arrowlog.formats.indextables.format import LOG_FOLDER


def harm(root, rng):
    """Change, cut or delete some files of the log."""
    whole = log_damage.files_of(root / LOG_FOLDER)
    last = max(name for name in whole if log_damage.kind_of(name) and "checkpoint" not in name)
    for name in rng.sample(sorted(whole), rng.choice([1, 1, 2, 3])):
        how = rng.choice([log_damage.flip, log_damage.cut, None])
        if name == last and how is None:
            continue  # the last commit has left no trace
        if how is None:
            os.unlink(root / LOG_FOLDER / name)
        else:
            (root / LOG_FOLDER / name).write_bytes(how(whole[name], rng))


@pytest.mark.promise("recovery.doctor_is_right")
@pytest.mark.filterwarnings("ignore:.*was not used:arrowlog.ArrowlogWarning")
def test_table_reported_healthy_is_readable_and_writable(tmp_path):
    counts = {"healthy": 0, "damaged": 0}
    first = first_seed()
    for number in range(cases(25)):
        seed = first + number
        print("case", seed)
        rng = random.Random(seed)
        root = tmp_path / str(number)
        states = history(root, rng)
        log_damage.put(root, {key for state in states for key in state})
        assert arrowlog.doctor(root).at_least("error") == []
        harm(root, rng)
        one(root, states, counts)
    assert counts["healthy"]
    assert counts["damaged"]


def one(root, states, counts):
    before = log_damage.fingerprint(root)
    findings = arrowlog.doctor(root)
    assert log_damage.fingerprint(root) == before
    bad = findings.at_least("error")
    counts["damaged" if bad else "healthy"] += 1
    if bad:
        assert all(finding.fix for finding in findings)
        mended(root, states)
        return
    table = arrowlog.Table(root, strict=True)
    assert table.version == len(states) - 1
    assert sorted(table.snapshot().files["path"].to_pylist()) == sorted(states[-1])
    table.append([arrowlog.add_file("one more", {"p": "0"}, size=1)])


def mended(root, states):
    """After a repair the log has no findings, and its content is true."""
    result = arrowlog.repair(root / LOG_FOLDER, root / "mended").to_pylist()[0]
    if result["status"] != "SUCCESS":
        return
    shutil.rmtree(root / LOG_FOLDER)
    os.rename(root / "mended", root / LOG_FOLDER)
    findings = arrowlog.doctor(root)
    assert set(findings.codes) <= {"data-size", "stats-missing"}  # empty files
    found = sorted(arrowlog.Table(root, strict=True).snapshot().files["path"].to_pylist())
    assert found == sorted(states[result["source_version"]])
