"""Parquet checkpoints with each file damaged in each way: same snapshot, damage reported."""

import os
import random
import warnings

import pyarrow as pa
import pytest
from support import log_model, parquet_checkpoints
from support.case_count import cases
from support.small_table import GOOD, OPENING

import arrowlog
from arrowlog import testing
from arrowlog.config import resolve
from arrowlog.snapshot.checkpoint import parquet
from arrowlog.snapshot.listing import list_log

FLIPS = cases(60)


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """A log with a multi-part Parquet checkpoint, and its content."""
    parquet_checkpoints.small_groups(monkeypatch, 4)
    root = tmp_path / "table"
    log_model.write(root, 3, versions=9)
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    parquet_checkpoints.write(root, 7, checkpoint_maxFileSize=1)
    names = sorted(os.listdir(parquet_checkpoints.folder(root)))
    assert len(names) > 3
    return root, names, expected


def look(root):
    """The full snapshot, its warnings, and whether the checkpoint was used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = arrowlog.Table(root)
        snapshot = table.snapshot()
        plan = table.scan("id >= 0 AND day = '2024-01-01'")
        planned = sorted(plan.paths)
        files = plan.files.num_rows
        found = parquet_checkpoints.said(snapshot)
    assert files == len(planned)
    told = [str(warning.message) for warning in caught] + list(snapshot.report.warnings)
    return found, planned, told


def check(root, expected, *, told=True):
    found, planned, words = look(root)
    assert found == expected
    if told:
        assert any("checkpoint 7 was not used" in text for text in words), words
    else:
        assert not words
    return planned


def damages(data, rng):
    yield b""
    yield data[: len(data) // 2]
    yield data[:-1]
    yield data + b"x"
    yield b"\0" * len(data)
    for _ in range(FLIPS):
        at = rng.randrange(len(data))
        yield data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def test_damaged_file_changes_no_snapshot_and_is_reported(damaged):
    root, names, expected = damaged
    rng = random.Random(5)
    whole_plan = check(root, expected, told=False)
    damaged_files = 0
    for name in names:
        path = f"{parquet_checkpoints.folder(root)}/{name}"
        with open(path, "rb") as source:
            whole = source.read()
        for broken in damages(whole, rng):
            with open(path, "wb") as out:
                out.write(broken)
            assert check(root, expected) == whole_plan
            damaged_files += 1
        os.remove(path)
        assert check(root, expected, told=not name.endswith(".json")) == whole_plan
        with open(path, "wb") as out:
            out.write(whole)
    assert damaged_files == len(names) * (5 + FLIPS)
    check(root, expected, told=False)


@pytest.mark.promise("checkpoint.damage_is_found")
def test_verify_detects_every_damage(damaged):
    root, names, _ = damaged
    store, keys = arrowlog.Table(root)._store, parquet_checkpoints.keys(names)
    rng = random.Random(6)
    assert parquet.verify_parquet_checkpoint(store, 7, keys) == []
    for name in names:
        path = f"{parquet_checkpoints.folder(root)}/{name}"
        with open(path, "rb") as source:
            whole = source.read()
        for broken in damages(whole, rng):
            with open(path, "wb") as out:
                out.write(broken)
            assert parquet.verify_parquet_checkpoint(store, 7, keys)
        os.remove(path)
        there = list_log(store).checkpoint_form(7, "parquet")
        assert parquet.verify_parquet_checkpoint(store, 7, there.keys)
        assert parquet.verify_parquet_checkpoint(store, 7, keys)
        with open(path, "wb") as out:
            out.write(whole)
    assert parquet.verify_parquet_checkpoint(store, 7, keys) == []


def test_checkpoint_files_of_another_version_are_refused(damaged):
    """A checkpoint labelled newer than its content would resurrect removed files."""
    root, names, expected = damaged
    folder = parquet_checkpoints.folder(root)
    parquet_checkpoints.write(root, 6, checkpoint_maxFileSize=1)
    others = {}
    for name in set(os.listdir(folder)) - set(names):
        with open(f"{folder}/{name}", "rb") as source:
            others[name.replace("6.checkpoint", "7.checkpoint")] = source.read()
        os.remove(f"{folder}/{name}")
    assert set(others) & set(names)
    for name in sorted(set(others) & set(names)):
        with open(f"{folder}/{name}", "r+b") as file:
            whole = file.read()
            file.seek(0)
            file.truncate()
            file.write(others[name])
        check(root, expected)
        with open(f"{folder}/{name}", "wb") as out:
            out.write(whole)
    for name in names:  # all of another version, under the names of this one
        os.remove(f"{folder}/{name}")
    for name, data in others.items():
        with open(f"{folder}/{name}", "wb") as out:
            out.write(data)
    check(root, expected)


def test_parts_without_a_manifest_are_ignored_silently(damaged):
    """A writer is still writing the checkpoint, or was killed. Neither is worth a warning."""
    root, names, expected = damaged
    manifest = next(name for name in names if name.endswith(".json"))
    os.remove(f"{parquet_checkpoints.folder(root)}/{manifest}")
    check(root, expected, told=False)
    assert arrowlog.Table(root).snapshot().report.checkpoint is None
    store = arrowlog.Table(root)._store
    form = list_log(store).checkpoint_form(7, "parquet")
    assert parquet.verify_parquet_checkpoint(store, 7, form.keys)
    parts = [name for name in names if name != manifest]
    os.truncate(f"{parquet_checkpoints.folder(root)}/{parts[-1]}", 5)
    check(root, expected, told=False)
    os.truncate(
        f"{parquet_checkpoints.folder(root)}/{parts[0]}", 5
    )  # its version cannot be determined
    check(root, expected)


def test_json_checkpoint_replaces_a_damaged_parquet_checkpoint(table):
    testing.write_checkpoint(table, 1, [*OPENING, GOOD])
    written = parquet_checkpoints.write(table, 1)
    os.remove(
        f"{table}/_transaction_log/00000000000000000001.json"
    )  # the checkpoint is now required
    for name in written.names:
        path = f"{parquet_checkpoints.folder(table)}/{name}"
        with open(path, "r+b") as out:
            out.truncate(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        snapshot = arrowlog.Table(table).snapshot()
        assert snapshot.files["path"].to_pylist() == ["good.parquet"]
    assert any("was not used" in text for text in snapshot.report.warnings)
    assert snapshot.report.checkpoint == 1


def test_damage_without_a_fallback_raises_with_the_file(table):
    written = parquet_checkpoints.write(table, 1)
    os.remove(f"{table}/_transaction_log/00000000000000000000.json")
    path = f"{parquet_checkpoints.folder(table)}/{written.names[0]}"
    with open(path, "r+b") as out:
        out.seek(20)
        out.write(b"\xff\xff\xff")
    snapshot = arrowlog.Table(table).snapshot()
    with pytest.raises(arrowlog.LogCorrupt, match="checkpoint of version 1 cannot be read"):
        _ = snapshot.files


def test_damage_in_columns_read_later_leaves_the_plan_unchanged(tmp_path, monkeypatch):
    """The columns read first are intact, those read later are damaged. The plan does not change."""
    parquet_checkpoints.small_groups(monkeypatch, 4)
    root = tmp_path / "table"
    stats = [f'{{"x":{i}}}' for i in range(40)]
    lines = [
        testing.add(f"f{i:02d}", {"day": f"2024-01-{1 + i // 4:02d}"}, stats=stats[i])
        for i in range(40)
    ]
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, lines)
    written = parquet_checkpoints.write(root, 1, checkpoint_compression="none")
    plan = arrowlog.Table(root).scan("day = '2024-01-03'")
    assert plan.among is not plan.snapshot
    path = f"{parquet_checkpoints.folder(root)}/{written.names[0]}"
    with open(path, "rb") as source:
        data = source.read()
    with open(path, "wb") as out:
        out.write(data.replace(b'{"x":9}', b'{"x":8}').replace(b'{"x":35}', b'{"x":34}'))
    with pytest.warns(arrowlog.ArrowlogWarning, match="a checksum does not match"):
        files = plan.files
    assert files["path"].to_pylist() == plan.paths == ["f08", "f09", "f10", "f11"]
    assert files["stats"].to_pylist() == stats[8:12]
    assert any("checksum" in text for text in plan.snapshot.report.warnings)


@pytest.mark.promise("security.paths_stay_inside")
def test_external_path_in_a_checkpoint_is_refused(table):
    testing.write_commit(table, 2, [testing.add("/etc/passwd", {"day": None})])
    outside = arrowlog.Table(table, allow_outside_paths=True)
    parquet.write_parquet_form(
        outside._store, outside.snapshot().state, resolve(), now_ms=1, new_id="0123456789ab"
    )
    again = arrowlog.Table(table, allow_outside_paths=True).snapshot()
    assert again.report.checkpoint == 2
    assert "/etc/passwd" in again.files["path"].to_pylist()
    with pytest.raises(arrowlog.LogCorrupt, match="outside the table"):
        _ = arrowlog.Table(table).snapshot().files


def test_table_without_files_has_a_checkpoint(root):
    testing.write_commit(root, 0, OPENING)
    parquet_checkpoints.write(root, 0)
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.report.checkpoint == 0
    assert snapshot.files.num_rows == snapshot.num_files == snapshot.size_bytes == 0
    assert isinstance(snapshot.files, pa.Table)
    assert arrowlog.Table(root).scan("id = 5").paths == []
