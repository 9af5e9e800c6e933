"""Listing a log from the pointer gives the same result as listing it from the beginning.

With any pointer and any damage, both give the same version, files and warnings, or the same error.
The local store pretends to be a network store here, so that one table has both.
"""

import json
import os
import random
import warnings
from pathlib import Path

import pytest
from support.case_count import cases
from support.random_changes import NEVER, SCHEMA, add, said, step

import arrowlog
from arrowlog.formats.indextables.format import LAST_CHECKPOINT, LOG_FOLDER
from arrowlog.snapshot.listing import list_log, list_recent
from arrowlog.snapshot.loader import load_snapshot
from arrowlog.storage.local import LocalStore


@pytest.fixture
def far(monkeypatch):
    """Make local stores behave as network stores, or undo that."""

    def switch(there):
        monkeypatch.setattr(LocalStore, "cheap_stat", not there)

    return switch


def answer(root):
    """The snapshot, warnings and gap, or the error."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            table = arrowlog.Table(root)
            found = said(table)
            report = table.snapshot().report
        except arrowlog.ArrowlogError as error:
            return type(error), str(error)
    return found, report.gap, report.warnings, sorted({str(each.message) for each in told})


def harm(rng, root):
    """Damage the pointer, a checkpoint or a commit in half of the cases."""
    log = os.path.join(root, LOG_FOLDER)
    pointer = os.path.join(log, LAST_CHECKPOINT)
    kind = rng.choice(["none", "none", "none", "stale", "ahead", "odd", "gone", "broken", "commit"])
    if kind in ("stale", "ahead") and os.path.exists(pointer):
        with open(pointer, "w") as file:
            json.dump({"version": rng.randrange(50) if kind == "ahead" else 1}, file)
    elif kind == "odd":
        with open(pointer, "w") as file:
            file.write(rng.choice(["", "{", "[]", '{"version":"x"}', '{"version":-5}']))
    elif kind == "gone" and os.path.exists(pointer):
        os.unlink(pointer)
    elif kind == "broken":
        files = sorted(str(path) for path in Path(log).rglob("*.checkpoint.*"))
        for path in rng.sample(files, min(len(files), rng.randrange(3))):
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
    elif kind == "commit":
        names = sorted(name for name in os.listdir(log) if name[:20].isdigit() and len(name) == 25)
        for name in rng.sample(names, min(len(names), 1)):  # other programs may leave none
            os.unlink(os.path.join(log, name))


@pytest.mark.promise("checkpoint.pointer_is_a_hint")
@pytest.mark.parametrize("seed", range(cases(30)))
def test_recent_listing_equals_full_listing(tmp_path, seed, far):
    rng, root = random.Random(seed), str(tmp_path / "table")
    arrowlog.Table.create(root, SCHEMA, ["day"])
    for number in range(rng.randrange(6, 12)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                step(rng, root, number)
            except (arrowlog.ArrowlogError, arrowlog.ArrowlogWarning):
                break  # too damaged to be written
        harm(rng, root)
        expected = answer(root)
        far(True)
        assert answer(root) == expected, (seed, number)
        far(False)


def grown(tmp_path):
    root, rng = str(tmp_path / "table"), random.Random(7)
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=NEVER)
    for number in range(12):
        table.append([add(rng, number)])
        if number in (4, 8):
            table.checkpoint()
    return root


def test_nothing_before_the_checkpoint_is_listed(tmp_path, far):
    root = grown(tmp_path)
    far(True)
    store = LocalStore(root)
    recent = list_recent(store)
    assert recent.start == 9
    assert sorted(recent.commits) == [9, 10, 11, 12]
    found = load_snapshot(store, recent, arrowlog.Table(root)._tracker.read_options)
    assert (found.version, found.report.checkpoint) == (12, 9)


def test_earlier_versions_are_found_with_a_recent_listing(tmp_path, far):
    root = grown(tmp_path)
    far(True)
    table = arrowlog.Table(root)
    assert table.snapshot(version=2).num_files == 2
    assert table.earliest_version == 0
    assert table.snapshot(version=7).num_files == 7
    assert table.snapshot().num_files == 12


def test_pointer_to_a_missing_checkpoint_falls_back_to_full_listing(tmp_path, far):
    root = grown(tmp_path)
    with open(os.path.join(root, LOG_FOLDER, LAST_CHECKPOINT), "w") as file:
        json.dump({"version": 11}, file)
    far(True)
    store = LocalStore(root)
    assert list_recent(store) == list_log(store)
