"""Random damage to logs of ours: the doctor never fails, never writes, never says well wrongly."""

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
            continue  # of the last commit nothing is left that could tell of it
        if how is None:
            os.unlink(root / LOG_FOLDER / name)
        else:
            (root / LOG_FOLDER / name).write_bytes(how(whole[name], rng))


@pytest.mark.promise("recovery.doctor_is_right")
@pytest.mark.filterwarnings("ignore:.*was not used:arrowlog.ArrowlogWarning")
def test_who_is_told_that_all_is_well_reads_all_and_can_write(tmp_path):
    told = {"well": 0, "ill": 0}
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
        one(root, states, told)
    assert told["well"]
    assert told["ill"]


def one(root, states, told):
    before = log_damage.fingerprint(root)
    findings = arrowlog.doctor(root)
    assert log_damage.fingerprint(root) == before
    bad = findings.at_least("error")
    told["ill" if bad else "well"] += 1
    if bad:
        assert all(finding.fix for finding in findings)
        mended(root, states)
        return
    table = arrowlog.Table(root, strict=True)
    assert table.version == len(states) - 1
    assert sorted(table.snapshot().files["path"].to_pylist()) == sorted(states[-1])
    table.append([arrowlog.add_file("one more", {"p": "0"}, size=1)])


def mended(root, states):
    """After a repair there is nothing to mend in the log, and what it has is true."""
    result = arrowlog.repair(root / LOG_FOLDER, root / "mended").to_pylist()[0]
    if result["status"] != "SUCCESS":
        return
    shutil.rmtree(root / LOG_FOLDER)
    os.rename(root / "mended", root / LOG_FOLDER)
    findings = arrowlog.doctor(root)
    assert set(findings.codes) <= {"data-size", "stats-missing"}  # files with nothing in them
    found = sorted(arrowlog.Table(root, strict=True).snapshot().files["path"].to_pylist())
    assert found == sorted(states[result["source_version"]])
