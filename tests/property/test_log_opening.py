"""Tables over a network open as a naive replay of their commits says.

The log changes while it is opened: requests are answered in any order, and between any two of them
there may be commits, checkpoints, truncation, another program's cleanup, or another table. What a
listing shows may be gone when it is read. A small page makes every log a long one.
"""

import json
import os
import random
import shutil
import threading
import time
import warnings
from pathlib import Path

import pytest
from support import delta_model
from support.case_count import cases
from support.commit_model import commit_lines
from support.random_changes import NEVER, SCHEMA, add

import arrowlog
from arrowlog.config import Config
from arrowlog.formats.indextables.format import CHECKPOINT_FOLDER_NAME, LAST_CHECKPOINT, LOG_FOLDER
from arrowlog.snapshot import ReadOptions, listing
from arrowlog.snapshot.tracker import SnapshotTracker
from arrowlog.storage.local import LocalStore

PAGE = 10
FORMS = ["parquet", "json", "both", "auto"]


class Remote:
    """A local folder as a network store with pages. `change` is called between requests."""

    cheap_stat = False
    kind = "s3"
    server = ""

    def __init__(self, root, rng, page):
        self.inner, self.rng, self.page = LocalStore(root), rng, page
        self.root, self.metrics = root, self.inner.metrics
        self.lock = threading.Lock()
        self.change = lambda: None

    def _ask(self, request):
        time.sleep(self.rng.random() / 1000)  # concurrent requests are answered in any order
        with self.lock:
            self.change()
            try:
                return request()
            finally:
                self.change()  # an answer may be out of date when it arrives

    def get(self, key):
        return self._ask(lambda: self.inner.get(key))

    def get_range(self, key, start, stop):
        return self._ask(lambda: self.inner.get_range(key, start, stop))

    def get_many(self, keys):
        return [self.get(key) for key in keys]

    def find_many(self, keys):
        return [self._ask(lambda: self.inner.find_many([key])[0]) for key in keys]  # noqa: B023

    def read_into(self, buffer, keys, versions, enough):
        count = min(len(keys), self.rng.randrange(1, 20)) if enough else 0
        raws = self.get_many(keys[:count])
        buffer.fill(keys[:count], versions[:count], raws)
        return count, sum(map(len, raws))

    def list_from(self, folder, start=""):
        return sorted(self.stats_from(folder, start))

    def stats_from(self, folder, start=""):
        return self._ask(lambda: self.inner.stats_from(folder, start))

    def page_from(self, folder, start=""):
        found = self.stats_from(folder, start)
        return {name: found[name] for name in sorted(found)[: self.page]}, len(found) <= self.page

    def stat(self, key):
        return self._ask(lambda: self.inner.stat(key))


class Log:
    """A table in a folder, and the live files of each version by a naive replay of its commits."""

    def __init__(self, root, rng):
        self.root, self.rng, self.number = root, rng, 0
        self.tables = []  # the live files of every version, of one table after the other
        self.create()

    def create(self):
        shutil.rmtree(self.root, ignore_errors=True)
        arrowlog.Table.create(self.root, SCHEMA, ["day"])
        self.tables.append([])
        self.replay()

    def path(self, *names):
        return os.path.join(self.root, LOG_FOLDER, *names)

    @property
    def newest(self):
        return len(self.tables[-1]) - 1

    def replay(self):
        """Read the commits that are new, line by line."""
        versions = self.tables[-1]
        while os.path.exists(name := self.path(f"{len(versions):020d}.json")):
            live = set(versions[-1]) if versions else set()
            for line in commit_lines(Path(name).read_bytes()):
                ((kind, fields),) = json.loads(line).items()
                if kind == "add":
                    live.add(fields["path"])
                elif kind == "remove":
                    live.discard(fields["path"])
            versions.append(live)

    def commit(self):
        self.number += 1
        table = arrowlog.Table(self.root, options=NEVER)
        live = sorted(self.tables[-1][-1])
        if live and self.rng.random() < 0.3:
            table.remove(self.rng.sample(live, 1))
        else:
            count = self.rng.choice([1] * 9 + [200])
            table.append([add(self.rng, f"{self.number}-{i}") for i in range(count)])
        self.replay()

    def checkpoint(self, form=None):
        """Write a checkpoint, by default of any form, in one or several parts."""
        options = {
            **NEVER,
            "checkpoint.format": form or self.rng.choice(FORMS),
            "checkpoint.maxFileSize": self.rng.choice(["4k", "128m"]),
            "cleanup.enabled": False,
        }
        arrowlog.Table(self.root, options=options).checkpoint()
        self.replay()  # the first one in Parquet is preceded by a commit that upgrades the protocol

    def truncate(self):
        self.checkpoint("parquet")
        arrowlog.Table(self.root, options=NEVER).truncate_history()

    def clean_up(self, form=None):
        """Do as programs that do not record what they delete: a checkpoint, then no old commits."""
        self.checkpoint(form)
        names = sorted(os.listdir(self.path()))[1:]  # version 0 stays
        for name in names:
            if name.endswith(".json") and name[:-5].isdigit() and int(name[:-5]) < self.newest:
                os.unlink(self.path(name))

    def spoil_pointer(self, kinds=("gone", "odd", "stale", "ahead")):
        kind = self.rng.choice(kinds)
        pointer = Path(self.path(LAST_CHECKPOINT))
        if kind == "gone":
            pointer.unlink(missing_ok=True)
        elif kind == "odd":
            pointer.write_text(self.rng.choice(["", "{", "[]", '{"version":"x"}']))
        else:
            version = self.rng.randrange(1, self.newest + 9 if kind == "ahead" else 4)
            pointer.write_text(json.dumps({"version": version}))

    def spoil_checkpoint(self):
        """Cut off or delete files of checkpoints."""
        names = sorted(Path(self.path()).rglob("*.checkpoint.*"))
        for path in self.rng.sample(names, min(len(names), self.rng.randrange(1, 3))):
            if self.rng.random() < 0.5:
                path.unlink()
            else:
                os.truncate(path, path.stat().st_size // 2)

    def lose_commit(self):
        names = [name for name in sorted(os.listdir(self.path())) if name[:-5].isdigit()]
        os.unlink(self.path(self.rng.choice(names)))

    def grow(self, rounds):
        for _ in range(rounds):
            kinds = [self.commit] * 6 + [self.checkpoint, self.truncate]
            self.rng.choice(kinds)()


def open_remote(store):
    table = object.__new__(arrowlog.Table)
    table._store = store
    table._tracker = SnapshotTracker(store, ReadOptions(Config()))
    return table._tracker


def answer(opened):
    """The version, the files, the gap and the warnings, or the error."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            snapshot = opened()
            files = sorted(snapshot.files["path"].to_pylist())
        except arrowlog.ArrowlogError as error:
            return type(error), str(error)
    report = snapshot.report
    said = sorted({str(each.message) for each in told})
    return snapshot.version, files, report.gap, report.warnings, said


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(listing, "_SLICE_VERSIONS", PAGE - 1)


@pytest.mark.parametrize("seed", range(cases(15)))
def test_damaged_logs_open_as_on_a_local_disk(tmp_path, seed):
    rng, root = random.Random(seed), str(tmp_path / "table")
    log = Log(root, rng)
    log.grow(rng.choice([4, 15, 30]))
    for spoil in (log.spoil_pointer, log.spoil_checkpoint, log.lose_commit):
        if rng.random() < 0.3:
            spoil()
    expected = answer(lambda: arrowlog.Table(root).snapshot())
    remote = Remote(root, rng, rng.choice([PAGE, 1000]))
    assert answer(lambda: open_remote(remote).latest()) == expected
    if len(expected) > 2:
        assert set(expected[1]) == log.tables[-1][expected[0]]


@pytest.mark.parametrize("seed", range(cases(30)))
def test_logs_that_change_while_they_are_opened(tmp_path, seed):
    rng, root = random.Random(seed), str(tmp_path / "table")
    log = Log(root, rng)
    log.grow(rng.choice([4, 15, 30]))
    if rng.random() < 0.3:
        log.spoil_pointer(["gone", "odd", "stale"])  # no writer commits with one that is ahead
    remote = Remote(root, rng, rng.choice([PAGE, 1000]))
    # One that deletes files: what two of them leave of an opening is an error.
    deletions = [rng.choice([log.truncate, log.clean_up, log.create])]
    often = rng.choice([0.02, 0.1, 0.3])

    def change():
        while rng.random() < often:
            kind = rng.random()
            if kind < 0.6:
                log.commit()
            elif kind < 0.8:
                log.checkpoint()
            elif deletions:
                deletions.pop()()

    with warnings.catch_warnings():
        warnings.simplefilter("error", arrowlog.ArrowlogWarning)
        remote.change = change
        tracker = open_remote(remote)
        table, first = len(log.tables) - 1, log.newest
        snapshot = tracker.latest()
        remote.change = lambda: None
    files = set(snapshot.files["path"].to_pylist())
    seen = [versions[snapshot.version :][:1] for versions in log.tables[table:]]
    assert [files] in seen
    if len(log.tables) == table + 1:
        assert first <= snapshot.version <= log.newest
    assert set(tracker.latest().files["path"].to_pylist()) == log.tables[-1][-1]


@pytest.mark.parametrize("seed", range(cases(12)))
@pytest.mark.filterwarnings("ignore::arrowlog.ArrowlogWarning")
def test_delta_logs_open_as_on_a_local_disk(tmp_path, seed):
    rng, root = random.Random(seed), str(tmp_path)
    log = delta_model.random_table(root, seed)
    for _ in range(rng.randrange(1, 3)):
        log.checkpoint(delta_model.FORMS[seed % len(delta_model.FORMS)])
        for _ in range(rng.choice([0, 1, 15])):
            log.step()
    if rng.random() < 0.3:
        Path(root, "_delta_log", LAST_CHECKPOINT).unlink(missing_ok=True)
    if rng.random() < 0.3:
        path = rng.choice(sorted(Path(root, "_delta_log").rglob("*.checkpoint*")))
        os.truncate(path, path.stat().st_size - rng.randrange(1, 9))
    expected = answer(lambda: arrowlog.Table(root).snapshot())
    remote = Remote(root, rng, rng.choice([PAGE, 1000]))
    assert answer(lambda: open_remote(remote).latest()) == expected


@pytest.mark.parametrize("form", FORMS)
def test_files_that_vanish_between_listing_and_read(tmp_path, form):
    root, rng = str(tmp_path / "table"), random.Random(form)
    log = Log(root, rng)
    for _ in range(6):
        log.commit()
    log.checkpoint(form)
    log.commit()
    remote = Remote(root, rng, 1000)
    tracker = open_remote(remote)
    shutil.rmtree(log.path(CHECKPOINT_FOLDER_NAME), ignore_errors=True)
    for path in Path(log.path()).glob("*.checkpoint.json"):
        path.unlink()
    snapshot = tracker.latest()
    assert snapshot.report.checkpoint is None
    assert set(snapshot.files["path"].to_pylist()) == log.tables[-1][-1]


class CleanedBetween(Remote):
    """The pointer and the checkpoints are read before another program cleans up, the log after."""

    def __init__(self, root, clean_up):
        super().__init__(root, random.Random(1), 1000)
        self.clean_up = clean_up
        self.pointer_read, self.cleaned = threading.Event(), threading.Event()

    def find_many(self, keys):
        found = super().find_many(keys)
        self.pointer_read.set()
        return found

    def stats_from(self, folder, start=""):
        if self.cleaned.is_set():
            return super().stats_from(folder, start)
        if folder.endswith(CHECKPOINT_FOLDER_NAME):
            self.pointer_read.wait(60)
            found = super().stats_from(folder, start)
            self.clean_up("parquet")
            self.cleaned.set()
            return found
        self.cleaned.wait(60)
        return super().stats_from(folder, start)


@pytest.mark.parametrize("pointed", [True, False])
def test_checkpoints_listed_before_a_cleanup_and_commits_after_it(tmp_path, pointed):
    log = Log(str(tmp_path / "table"), random.Random(1))
    log.commit()
    log.checkpoint("parquet")
    for _ in range(4):
        log.commit()
    if not pointed:
        os.unlink(log.path(LAST_CHECKPOINT))
    tracker = open_remote(CleanedBetween(log.root, log.clean_up))
    with warnings.catch_warnings():
        warnings.simplefilter("error", arrowlog.ArrowlogWarning)
        snapshot = tracker.latest()
    assert snapshot.version == log.newest
    assert set(snapshot.files["path"].to_pylist()) == log.tables[-1][-1]
