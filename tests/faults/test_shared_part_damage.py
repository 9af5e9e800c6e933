"""Damaged shared parts: later checkpoints are written in full, and cleanup keeps what they name.

Random histories with incremental checkpoints, of which some parts are damaged or lost. The model is
the set of live files of every version.
"""

import os
import random
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from support import parquet_checkpoints
from support.case_count import cases, first_seed
from support.logged import SECONDS_MAX

import arrowlog
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogWarning, InvalidRequest, LogCorrupt
from arrowlog.maintenance import cleanup
from arrowlog.snapshot import list_log, verify_checkpoint
from arrowlog.snapshot.checkpoint.parquet import find_named_parts

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
ALONE = {"checkpoint.enabled": False, "checkpoint.format": "parquet"}
MENDING = {"checkpoint.format": "parquet", "checkpoint.interval": 1000, "cleanup.enabled": False}
NOW = {"logRetention.duration": "0s", "checkpointRetention.duration": "0s"} | ALONE


class History:
    """A table with incremental checkpoints, and the live files of each of its versions."""

    def __init__(self, root, rng):
        self.root, self.rng = root, rng
        self.table = arrowlog.Table.create(root, SCHEMA, ["p"], options=ALONE)
        self.live = {self.table.version: frozenset()}

    def commit(self, table=None):
        table, rng = table or self.table, self.rng
        before = self.live[max(self.live)]
        if before and rng.random() < 0.3:
            gone = rng.sample(sorted(before), min(len(before), rng.randint(1, 2)))
            version, after = table.remove(gone).version, before - set(gone)
        else:
            new = [f"f{len(self.live)}-{i}" for i in range(rng.randint(1, 4))]
            adds = [
                arrowlog.add_file(name, {"p": rng.choice("xy")}, size=1, num_records=1)
                for name in new
            ]
            version, after = table.append(adds).version, before | set(new)
        self.live[version] = after

    def grow(self):
        for _ in range(self.rng.randint(6, 14)):
            self.commit()
            if self.rng.random() < 0.5:
                self.table.checkpoint()
        self.table.checkpoint()
        self.commit()


def paths(snapshot):
    return frozenset(snapshot.files["path"].to_pylist())


def named_parts(root):
    """The parts that each checkpoint's manifest names, None if it cannot be read."""
    store = arrowlog.Table(root)._store
    listing = list_log(store)
    forms = {v: listing.checkpoint_form(v, "parquet") for v in listing.checkpoints}
    return {v: find_named_parts(store, v, form.keys) for v, form in forms.items() if form}


def damage(history):
    """Damage some parts that at least two checkpoints name, and return their number."""
    named = Counter(part for parts in named_parts(history.root).values() for part in parts or ())
    shared = sorted(part for part, times in named.items() if times > 1)
    rng = history.rng
    chosen = rng.sample(shared, min(len(shared), rng.randint(1, 2)))
    for key in chosen:
        path = f"{history.root}/{key}"
        with open(path, "rb") as file:
            data = bytearray(file.read())
        how = rng.choice(["flipped", "halved", "emptied", "lost"])
        if how == "lost":
            os.remove(path)
            continue
        if how == "flipped":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with open(path, "wb") as file:
            file.write(
                b"" if how == "emptied" else data[: len(data) // 2] if how == "halved" else data
            )
    return len(chosen)


def check(history, *, promised):
    """Every version has its files. One outside the retention may raise, but is never wrong."""
    reader = arrowlog.Table(history.root)
    assert paths(reader.snapshot()) == history.live[max(history.live)]
    for version, expected in history.live.items():
        try:
            assert paths(reader.snapshot(version=version)) == expected, version
        except (InvalidRequest, LogCorrupt):
            assert version < promised, version


def problems(root):
    store = arrowlog.Table(root)._store
    listing = list_log(store)
    return {v: verify_checkpoint(store, listing, v, resolve()) for v in listing.checkpoints}


def mend(history):
    """A new writer finds the damage, commits, and rewrites the newest checkpoint."""
    writer = arrowlog.Table(history.root, options=MENDING)
    bypassed = {item.version for item in writer.snapshot().report.bypassed}
    paths(writer.snapshot())  # parts are read here at the latest
    bypassed |= {item.version for item in writer.snapshot().report.bypassed}
    history.commit(writer)
    assert writer.wait_for_checkpoint(SECONDS_MAX)
    return bypassed


def run(seed, root):
    """Return the number of damaged parts and of rewritten checkpoints."""
    rng = random.Random(seed)
    history = History(root, rng)
    history.grow()
    damaged = damage(history)
    check(history, promised=0)
    mended = mend(history)
    found = problems(root)
    for version in mended:
        assert not found[version], (version, found[version])
    check(history, promised=0)
    history.table.refresh()
    for _ in range(rng.randint(0, 2)):
        history.commit()
    history.table.checkpoint()
    newest = max(problems(root))
    assert not problems(root)[newest]

    before = named_parts(root)
    there = set(os.listdir(parquet_checkpoints.folder(root)))
    arrowlog.Table(root, options=NOW).cleanup()
    left = set(os.listdir(parquet_checkpoints.folder(root)))
    kept = named_parts(root)
    assert newest in kept
    for version, parts in kept.items():
        assert parts == before[version]
        lost = {part.rpartition("/")[2] for part in parts} & (there - left)
        assert not lost, f"{version} names {lost}, which cleanup deleted"
    assert not problems(root)[newest]
    check(history, promised=arrowlog.Table(root).earliest_version)
    history.commit(arrowlog.Table(root, options=ALONE))
    check(history, promised=arrowlog.Table(root).earliest_version)
    return damaged, len(mended)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    parquet_checkpoints.share_small_parts(monkeypatch, folded=2)


@pytest.fixture
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        yield


@pytest.mark.promise("checkpoint.damage_is_found")
@pytest.mark.usefixtures("_quiet")
def test_checkpoints_with_damaged_shared_parts_are_rewritten_without_loss(tmp_path):
    first = first_seed()
    totals = Counter()
    for seed in range(first, first + cases(12)):
        try:
            damaged, mended = run(seed, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        totals += Counter(damaged=damaged, mended=mended)
    print(dict(totals))
    assert totals["damaged"]
    assert totals["mended"]


@pytest.mark.usefixtures("_quiet")
def test_without_the_guard_cleanup_deletes_a_shared_part(tmp_path, monkeypatch):
    monkeypatch.setattr(cleanup, "find_named_parts", lambda *_: frozenset())

    def run_some():
        for seed in range(100):
            run(seed, tmp_path / str(seed))

    with pytest.raises((AssertionError, LogCorrupt)):
        run_some()
