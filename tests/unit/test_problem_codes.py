"""Errors carry problem codes: the doctor does not depend on message texts."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from support.event_table import build
from support.small_table import GOOD, OPENING, SCHEMA

import arrowlog
from arrowlog import errors, testing
from arrowlog.config import resolve
from arrowlog.formats.indextables.format import CHECKPOINT_FOLDER_NAME, LOG_FOLDER
from arrowlog.recovery.findings import Finding, ProblemLog
from arrowlog.recovery.salvage import salvage
from arrowlog.storage import open_store

QUIET = {"checkpoint.enabled": False}


def with_checkpoint(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=QUIET)
    for number in range(3):
        table.write(pa.table({"day": [None], "id": [number]}, schema=SCHEMA))
    table.checkpoint()
    return Path(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{3:020d}.checkpoint")


def parquet_part_missing(root):
    os.unlink(f"{with_checkpoint(root)}.parquet")


def parquet_part_changed(root):
    path = Path(f"{with_checkpoint(root)}.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])


def manifest_without_checksum(root):
    path = Path(f"{with_checkpoint(root)}.json")
    path.write_bytes(path.read_bytes().replace(b'"checksum":"crc32:', b'"checksum":"'))


def json_part_missing(root):
    build(root)
    path = testing.write_checkpoint(root, 6, [*OPENING, GOOD], form="parts")
    os.unlink(path.replace("checkpoint.json", "checkpoint.0123456789ab.00002.json"))


def checkpoint_diverges(root):
    build(root)
    testing.write_checkpoint(root, 6, [*OPENING, GOOD])


def checkpoint_broken(root):
    build(root)
    testing.write_file(root, f"{6:020d}.checkpoint.json", b"{")


def path_outside(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.add("/elsewhere/x", {"day": None})])


def writer_feature_unknown(root):
    protocol = testing.protocol(2, 3, writerFeatures=["deletionVectors"])
    testing.write_commit(root, 0, [protocol, OPENING[1]])


def reader_feature_unknown(root):
    protocol = testing.protocol(3, 3, readerFeatures=["deletionVectors"])
    testing.write_commit(root, 0, [protocol, OPENING[1]])


def protocol_unknown(root):
    testing.write_commit(root, 0, [testing.protocol(9, 9), OPENING[1]])


def commit_broken(root):
    build(root)
    testing.write_file(root, f"{3:020d}.json", b"{")


DAMAGES = {
    parquet_part_missing: "checkpoint-partial",
    parquet_part_changed: "checkpoint-broken",
    manifest_without_checksum: "checkpoint-partial",
    json_part_missing: "checkpoint-partial",
    checkpoint_diverges: "checkpoint-diverges",
    checkpoint_broken: "checkpoint-broken",
    path_outside: "paths-outside",
    writer_feature_unknown: "feature-unknown",
    reader_feature_unknown: "feature-unknown",
    protocol_unknown: "protocol-unknown",
    commit_broken: "commit-broken",
}


@pytest.fixture
def reworded(monkeypatch):
    """Every arrowlog error has another, unrelated message."""
    whole = errors.ArrowlogError.__init__

    def initialize(self, what, **parts):
        whole(self, f"Q{len(what)}", **{**parts, "next": "Z"})

    def reword():
        monkeypatch.setattr(errors.ArrowlogError, "__init__", initialize)

    return reword


def judged(root):
    return [(each.code, each.severity, each.version) for each in arrowlog.doctor(root)]


@pytest.mark.filterwarnings("ignore:.*was not used:arrowlog.ArrowlogWarning")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_doctor_depends_on_codes_not_on_texts(root, damage, reworded):
    damage(root)
    usual = judged(root)
    assert DAMAGES[damage] in [code for code, _, _ in usual]
    reworded()
    assert judged(root) == usual


@pytest.mark.parametrize(
    "damage", [parquet_part_missing, json_part_missing, checkpoint_diverges, commit_broken]
)
def test_salvage_depends_on_codes_not_on_texts(root, damage, reworded):
    damage(root)
    store = open_store(root)
    usual = [(each.code, each.where, each.version) for each in salvage(store, resolve()).problems]
    assert DAMAGES[damage] in [code for code, _, _ in usual]
    reworded()
    again = [(each.code, each.where, each.version) for each in salvage(store, resolve()).problems]
    assert again == usual


def test_error_code_survives_pickling():
    error = errors.LogCorrupt("it is gone.", file="x", code="checkpoint-partial")
    assert pickle.loads(pickle.dumps(error)).code == "checkpoint-partial"
    assert errors.LogCorrupt("it is torn.").code is None


def test_problem_without_a_fix_suggests_repair():
    problems = ProblemLog("/data/t")
    problems.report("gap", "error", "version 3 is missing.", "f", version=3)
    problems.report("data-missing", "warning", "two files are left out", "", "restore them")
    assert list(problems) == [
        Finding("gap", "error", "version 3 is missing.", "f", problems.repair_call, version=3),
        Finding("data-missing", "warning", "two files are left out", "", "restore them"),
    ]
    assert "arrowlog.repair('/data/t/_transaction_log'" in problems.repair_call
    assert problems.notes() == ("f: version 3 is missing.", "two files are left out")
    assert problems.has_error
