"""A table opened with a snapshot disk cache gives the same results as without.

Random histories of commits, removals, checkpoints, cleanups, dropped and recreated tables, and
damaged or lost cache files. After every step, handles with and without the cache must agree.
"""

import os
import random

import pytest
from support.case_count import cases
from support.random_changes import NEVER, SCHEMA, add, said, step

import arrowlog
import arrowlog.testing
from arrowlog.formats.indextables.format import LOG_FOLDER
from arrowlog.snapshot import loader, tracker
from arrowlog.snapshot.disk_cache import SnapshotDiskCache


def opened(root, copies):
    return arrowlog.Table(root, options={"snapshotCache.path": copies})


def harm(rng, copies):
    """Damage or delete cache files."""
    for name in os.listdir(copies) if os.path.exists(copies) else []:
        path = os.path.join(copies, name)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        kind = rng.choice(["none", "none", "flip", "cut", "gone", "empty"]) if data else "gone"
        if kind == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind in ("cut", "empty"):
            data = data[: rng.randrange(len(data)) if kind == "cut" else 0]
        os.unlink(path)
        if kind != "gone":
            with open(path, "wb") as file:
                file.write(data)


@pytest.mark.promise("snapshot.caches_change_nothing")
@pytest.mark.parametrize("seed", range(cases(24)))
def test_disk_cache_never_changes_a_snapshot(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    root, copies = str(tmp_path / "table"), str(tmp_path / "copies")
    monkeypatch.setattr(tracker, "_SAVE_AFTER_COMMITS", rng.choice([1, 3]))
    arrowlog.Table.create(root, SCHEMA, ["day"])
    held = opened(root, copies)
    for number in range(rng.randrange(4, 10)):
        step(rng, root, number)
        if rng.random() < 0.5:  # an old modification time that is never used twice
            old = 1_600_000_000_000_000_000 + rng.randrange(10**15)
            os.utime(os.path.join(root, LOG_FOLDER), ns=(old, old))
        expected = said(arrowlog.Table(root))
        assert said(opened(root, copies)) == expected, (seed, number)
        assert said(opened(root, copies)) == expected, (seed, number)
        assert said(held) == expected, (seed, number)
        harm(rng, copies)


def grown(tmp_path, commits=3):
    root, copies = str(tmp_path / "table"), str(tmp_path / "copies")
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=NEVER)
    rng = random.Random(7)
    for number in range(commits):
        table.append([add(rng, number)])
    os.utime(os.path.join(root, LOG_FOLDER), (1_600_000_000, 1_600_000_000))
    return root, copies


@pytest.fixture
def asked(monkeypatch):
    """The store calls that were made."""
    from arrowlog.storage.local import LocalStore

    calls = []
    for name in ("list_from", "stats_from", "read_into", "get", "get_many", "get_range"):
        real = getattr(LocalStore, name)

        def noted(self, *given, _real=real, _name=name, **named):
            if not str(given[0]).endswith("/_retired"):  # a folder that is usually missing
                calls.append(_name)
            return _real(self, *given, **named)

        monkeypatch.setattr(LocalStore, name, noted)
    return calls


def test_unchanged_log_is_neither_listed_nor_read(tmp_path, asked):
    root, copies = grown(tmp_path)
    opened(root, copies).snapshot()
    assert "read_into" in asked
    asked.clear()
    snap = opened(root, copies).snapshot()
    assert (snap.version, snap.num_files) == (3, 3)
    assert asked == []
    assert snap.report.source == "copy"
    assert "a local copy" in str(snap.report)


def test_only_commits_after_the_cached_snapshot_are_read(tmp_path, asked):
    root, copies = grown(tmp_path)
    opened(root, copies).snapshot()
    arrowlog.Table(root, options=NEVER).append([add(random.Random(1), "new")])
    asked.clear()
    snap = opened(root, copies).snapshot()
    assert (snap.version, snap.num_files, snap.report.commits_read) == (4, 4, 1)
    assert asked.count("read_into") == 1


def test_recently_modified_folder_is_listed_again(tmp_path, asked):
    """Its modification time may be the same after another change."""
    root, copies = grown(tmp_path)
    os.utime(os.path.join(root, LOG_FOLDER))
    opened(root, copies).snapshot()
    asked.clear()
    assert opened(root, copies).snapshot().version == 3
    assert asked == ["list_from"]


def test_cache_file_is_private_and_of_limited_size(tmp_path):
    root, copies = grown(tmp_path)
    opened(root, copies).snapshot()
    (name,) = os.listdir(copies)
    assert os.stat(os.path.join(copies, name)).st_mode & 0o077 == 0
    small = {"snapshotCache.path": str(tmp_path / "small"), "snapshotCache.maxSize": 10}
    arrowlog.Table(root, options=small).snapshot()
    assert not os.path.exists(tmp_path / "small")


def test_unwritable_cache_folder_does_not_prevent_reading(tmp_path):
    root, _ = grown(tmp_path)
    (tmp_path / "file").write_text("in the way")
    assert opened(root, str(tmp_path / "file" / "below")).snapshot().version == 3


def test_table_property_cannot_enable_the_disk_cache(tmp_path):
    root, copies = str(tmp_path / "table"), tmp_path / "copies"
    arrowlog.Table.create(root, SCHEMA, properties={"snapshotCache.path": str(copies)})
    arrowlog.Table(root).snapshot()
    assert not copies.exists()


def test_invalidate_cache_deletes_the_cache_file(tmp_path):
    root, copies = grown(tmp_path)
    table = opened(root, copies)
    table.snapshot()
    table.invalidate_cache()
    assert os.listdir(copies) == []


def test_cache_file_of_another_table_is_ignored(tmp_path):
    root, copies = grown(tmp_path)
    opened(root, copies).snapshot()
    known = SnapshotDiskCache(copies, 1 << 20)
    os.rename(
        known.path(root, allow_external_paths=False),
        known.path("/other", allow_external_paths=False),
    )
    assert known.read_copy("/other", allow_external_paths=False) is None


def test_gap_warns_at_every_open(tmp_path):
    root, copies = grown(tmp_path, 4)
    os.unlink(os.path.join(root, LOG_FOLDER, f"{2:020d}.json"))
    for _ in range(2):
        with pytest.warns(arrowlog.ArrowlogWarning, match="version 2 is missing"):
            assert opened(root, copies).snapshot().version == 1


def test_cache_file_with_a_flipped_bit_is_ignored(tmp_path):
    root, copies = grown(tmp_path)
    opened(root, copies).snapshot()
    known = SnapshotDiskCache(copies, 1 << 20)
    path = known.path(root, allow_external_paths=False)
    assert known.read_copy(root, allow_external_paths=False) is not None
    with open(path, "rb") as file:
        whole = file.read()
    rng = random.Random(3)
    for position in [*range(64), *rng.sample(range(len(whole)), cases(300))]:
        wrong = bytearray(whole)
        wrong[position] ^= 1 << rng.randrange(8)
        with open(path, "wb") as file:
            file.write(wrong)
        assert known.read_copy(root, allow_external_paths=False) is None, position


def test_snapshot_with_a_commit_replaced_meanwhile_is_not_cached(tmp_path, monkeypatch):
    """The bytes that were read differ from the object the store now has under that name."""
    root, copies = grown(tmp_path)
    last = os.path.join(root, LOG_FOLDER, f"{3:020d}.json")
    real = loader.load_snapshot

    def meanwhile(*given, **named):
        found = real(*given, **named)
        data = arrowlog.testing.lines([arrowlog.testing.add("other", {"day": "d1"})])
        os.unlink(last)
        with open(last, "wb") as file:
            file.write(data)
        return found

    monkeypatch.setattr(loader, "load_snapshot", meanwhile)
    opened(root, copies).snapshot()
    monkeypatch.setattr(loader, "load_snapshot", real)
    found = opened(root, copies).snapshot().files["path"].to_pylist()
    assert "other" in found
    assert sorted(found) == sorted(arrowlog.Table(root).snapshot().files["path"].to_pylist())
