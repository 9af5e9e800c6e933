"""Checkpoints that are damaged or not confirmed by the store: errors, warnings and rewriting."""

import logging
import os
import warnings
from copy import deepcopy
from pathlib import Path
from typing import ClassVar

import pytest
from support import small_table
from support.logged import SECONDS_MAX, append, create

import arrowlog
from arrowlog import storage as store_module
from arrowlog.config import resolve
from arrowlog.errors import StoreFull, StoreUnavailable
from arrowlog.snapshot import list_log, verify_checkpoint

WRITER = {"checkpoint.interval": 1000}  # no checkpoint becomes due while a test runs


def checkpoint_file(table, version, form="json"):
    folder = "_transaction_log" if form == "json" else "_transaction_log/_checkpoints"
    return Path(table.uri, folder, f"{version:020d}.checkpoint.{form}")


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def problems(table, version, form=None):
    return verify_checkpoint(table._store, list_log(table._store), version, resolve(), form)


def build(root, **settings):
    """A table with a checkpoint of version 3, and one commit after it."""
    table = create(root, **settings)
    for number in range(3):
        append(table, f"f{number}")
    table.checkpoint()
    append(table, "later")
    return table


def test_checkpoint_errors_have_the_documented_names():
    for name in ("Write", "Validation", "Corruption"):
        error = getattr(arrowlog, f"Checkpoint{name}Error")
        assert issubclass(error, arrowlog.CheckpointError)
    assert issubclass(arrowlog.CheckpointWriteError, arrowlog.StoreUnavailable)
    assert issubclass(arrowlog.CheckpointCorruptionError, arrowlog.LogCorrupt)
    assert issubclass(arrowlog.CheckpointValidationError, arrowlog.LogCorrupt)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_damaged_checkpoint_raises_corruption_error(tmp_path, form):
    table = build(tmp_path / "t")
    assert problems(table, 3, form) == []
    damage(checkpoint_file(table, 3, form))
    (problem, *_) = problems(table, 3, form)
    assert isinstance(problem, arrowlog.CheckpointCorruptionError)
    assert problem.file.endswith(f".checkpoint.{form}")
    assert problem.next


def test_checkpoint_that_contradicts_the_commits_raises_validation_error(tmp_path):
    from arrowlog import testing

    table = build(tmp_path / "t", **{"checkpoint.format": "json"})
    os.unlink(checkpoint_file(table, 3))
    opening = deepcopy(small_table.OPENING)
    opening[1]["metaData"]["id"] = table.snapshot().metadata.id
    actions = [*opening, testing.add("other", {"day": None}, size=1)]
    testing.write_checkpoint(tmp_path / "t", 3, actions)
    (problem,) = problems(table, 3)
    assert isinstance(problem, arrowlog.CheckpointValidationError)
    assert problem.code == "checkpoint-diverges"
    (absent,) = problems(table, 2)
    assert isinstance(absent, arrowlog.CheckpointValidationError)


def test_table_that_depends_on_a_damaged_checkpoint_raises(tmp_path):
    table = build(tmp_path / "t", **{"checkpoint.format": "json"})
    table.truncate_history()
    damage(checkpoint_file(table, 4))
    with pytest.raises(arrowlog.CheckpointCorruptionError) as raised:
        arrowlog.Table(tmp_path / "t").snapshot()
    assert isinstance(raised.value.__cause__, arrowlog.LogCorrupt)  # the damage itself


def test_failed_checkpoint_write_raises_with_its_cause(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    append(table)

    def refuse(self, key, data):
        raise StoreFull("The disk is full.", next="Delete something.")

    monkeypatch.setattr(store_module.LocalStore, "put_if_absent", refuse)
    with pytest.raises(arrowlog.CheckpointWriteError, match="disk is full") as raised:
        table.checkpoint()
    assert isinstance(raised.value.__cause__, StoreFull)
    assert (raised.value.version, raised.value.next) == (1, "Delete something.")


def test_bypassed_checkpoint_is_logged_and_warns_once(tmp_path, lines):
    table = build(tmp_path / "t", **{"checkpoint.format": "json"})
    damage(checkpoint_file(table, 3))
    reader = arrowlog.Table(tmp_path / "t")
    with pytest.warns(arrowlog.ArrowlogWarning, match="checkpoint 3 was not used") as warned:
        snapshot = reader.snapshot()
    assert len(warned) == 1
    reader.invalidate_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.snapshot()
    (line,) = lines("checkpoint_bypassed")
    assert (line.levelno, line.version) == (logging.WARNING, 3)
    assert [item.version for item in snapshot.report.bypassed] == [3]
    assert line.reason == snapshot.report.bypassed[0].reason
    assert str(snapshot.report.bypassed[0]) in snapshot.report.warnings
    assert snapshot.num_files == 4
    assert reader.metrics()["checkpoints_bypassed"] == 1


def test_damage_found_when_reading_files_is_logged_and_warns(tmp_path, lines):
    table = build(tmp_path / "t")
    damage(checkpoint_file(table, 3, "parquet"))
    reader = arrowlog.Table(tmp_path / "t")
    snapshot = reader.snapshot()
    assert not snapshot.report.bypassed
    with pytest.warns(arrowlog.ArrowlogWarning, match="checkpoint 3 was not used"):
        assert snapshot.files.num_rows == 4
    assert [item.version for item in snapshot.report.bypassed] == [3]
    assert len(lines("checkpoint_bypassed")) == 1
    append(table, "more")
    assert [item.version for item in reader.refresh().report.bypassed] == [3]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_writer_rewrites_a_damaged_checkpoint(tmp_path, form, lines):
    table = build(tmp_path / "t", **{"checkpoint.format": "both" if form == "parquet" else "json"})
    other = None if form == "json" else checkpoint_file(table, 3).read_bytes()
    damage(checkpoint_file(table, 3, form))
    writer = arrowlog.Table(tmp_path / "t", options=WRITER)
    assert writer.snapshot().files.num_rows == 4
    append(writer, "x")
    assert writer.wait_for_checkpoint(SECONDS_MAX)
    assert problems(table, 3, form) == []
    (line,) = lines("checkpoint_mended")
    assert (line.version, line.files) == (3, 3)
    assert writer.metrics()["checkpoints_mended"] == 1
    if other is not None:  # the intact form is unchanged
        assert checkpoint_file(table, 3).read_bytes() == other
    reader = arrowlog.Table(tmp_path / "t")
    assert reader.snapshot().report.checkpoint == 3
    assert reader.snapshot(version=3).files.num_rows == 3
    assert not reader.snapshot().report.warnings
    append(writer, "y")
    append(writer, "z")
    assert writer.wait_for_checkpoint(SECONDS_MAX)
    assert len(lines("checkpoint_mended")) == 1


def test_failed_checkpoint_rewrite_fails_no_commit(tmp_path, monkeypatch, lines):
    table = build(tmp_path / "t", **{"checkpoint.format": "json"})
    damage(checkpoint_file(table, 3))
    writer = arrowlog.Table(tmp_path / "t", options=WRITER)
    writer.snapshot()

    def refuse(self, key, data):
        raise StoreFull("The disk is full.")

    monkeypatch.setattr(store_module.LocalStore, "replace", refuse)
    assert append(writer, "x").version == 5
    assert writer.wait_for_checkpoint(SECONDS_MAX)
    assert append(writer, "y").version == 6  # it is not retried at every commit
    assert writer.wait_for_checkpoint(SECONDS_MAX)
    assert len(lines("checkpoint_failed")) == 1


class Mute(store_module.LocalStore):
    """A store that loses the response to each checkpoint write once."""

    told: ClassVar[set] = set()

    def _answer(self, key):
        if "checkpoint" in key and key not in Mute.told:
            Mute.told.add(key)
            raise StoreUnavailable("The answer was lost.")

    def put_if_absent(self, key, data):
        outcome = super().put_if_absent(key, data)
        self._answer(key)
        return outcome

    def replace(self, key, data):
        super().replace(key, data)
        self._answer(key)


@pytest.mark.parametrize("background", [True, False])
def test_lost_checkpoint_put_response_is_not_a_failure(tmp_path, monkeypatch, lines, background):
    create(tmp_path / "t")
    Mute.told.clear()
    monkeypatch.setattr(store_module, "LocalStore", Mute)
    options = {"checkpoint.interval": 1} if background else {"checkpoint.enabled": False}
    options["checkpoint.format"] = "json"
    table = arrowlog.Table(tmp_path / "t", options=options)
    append(table)
    if background:
        assert table.wait_for_checkpoint(SECONDS_MAX)
    else:
        assert table.checkpoint().version == 1
    assert not lines("checkpoint_failed")
    assert len(lines("checkpoint_read_back")) == len(Mute.told) == 2  # the checkpoint, the pointer
    assert problems(table, 1) == []
    assert table.metrics()["checkpoint_failures"] == 0
    reader = arrowlog.Table(tmp_path / "t")
    assert reader.snapshot().report.checkpoint == 1
