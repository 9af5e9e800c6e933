"""The local cache of splits: one build per entry, eviction, remains of killed processes."""

import os
import subprocess
import sys
import threading

import pytest

from arrowlog.errors import InvalidRequest
from arrowlog.splits import SplitCache
from arrowlog.splits.local_cache import default_cache_folder


def writer(size, built=None):
    def build(folder):
        if built is not None:
            built.append(folder)
        with open(os.path.join(folder, "data"), "wb") as out:
            out.write(b"x" * size)

    return build


def entries(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


def test_entry_is_built_once_per_identity_and_kind(tmp_path):
    cache, built = SplitCache(str(tmp_path / "c"), 1 << 20), []
    for identity, kind in [("a", "rows"), ("a", "rows"), ("a", "search"), ("b", "rows")]:
        with cache.entry(identity, kind, writer(10, built)) as folder:
            assert sorted(os.listdir(folder)) == [".sizes.json", "data"]
    assert len(built) == 3
    # Another handle, as in another process.
    with SplitCache(cache.folder, 1 << 20).entry("a", "rows", writer(10, built)):
        assert len(built) == 3
    assert os.stat(cache.folder).st_mode & 0o077 == 0


def test_least_recently_used_unpinned_entries_are_evicted(tmp_path):
    cache = SplitCache(str(tmp_path), 1000)
    with cache.entry("pinned", "rows", writer(300)) as pinned:
        os.utime(pinned, (0, 0))  # the first to be evicted if it were not in use
        for number in range(4):
            with cache.entry(str(number), "rows", writer(300)) as folder:
                os.utime(folder, (number + 1, number + 1))
        cache.evict()
        assert os.path.isdir(pinned)
        with cache.entry("3", "rows", pytest.fail):
            pass
        built = []
        with cache.entry("0", "rows", writer(300, built)):
            assert built
        assert sum(os.path.isdir(os.path.join(tmp_path, name)) for name in entries(tmp_path)) <= 4
    cache.evict()
    assert 300 * len(entries(tmp_path)) <= 1000


def test_eviction_runs_automatically(tmp_path):
    cache = SplitCache(str(tmp_path), 1000)
    for number in range(50):
        with cache.entry(str(number), "rows", writer(100)):
            pass
    assert 100 * len(entries(tmp_path)) <= 1000
    locks = [name for name in os.listdir(tmp_path) if name.endswith(".lock")]
    assert len(locks) == len(entries(tmp_path))


@pytest.mark.parametrize("damage", ["empty", "missing", "no sizes", "empty sizes"])
def test_entry_damaged_by_a_power_loss_is_rebuilt(tmp_path, damage):
    cache, built = SplitCache(str(tmp_path / "c"), 1 << 20), []
    with cache.entry("a", "rows", writer(10, built)) as folder:
        file = os.path.join(folder, ".sizes.json" if "sizes" in damage else "data")
    if damage.startswith("empty"):
        os.truncate(file, 0)
    else:
        os.unlink(file)
    for _ in range(2):
        with cache.entry("a", "rows", writer(10, built)) as folder:
            assert os.path.getsize(os.path.join(folder, "data")) == 10
    assert len(built) == 2


def test_failed_build_leaves_nothing(tmp_path):
    cache = SplitCache(str(tmp_path), 1000)

    def fail(folder):
        writer(10)(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), cache.entry("a", "rows", fail):
        pass
    assert entries(tmp_path) == []
    with cache.entry("a", "rows", writer(10)) as folder:
        assert sorted(os.listdir(folder)) == [".sizes.json", "data"]


def test_unwritable_cache_folder_raises(tmp_path):
    (tmp_path / "file").write_text("")
    cache = SplitCache(str(tmp_path / "file"), 1000)
    with (
        pytest.raises(InvalidRequest, match=r"splits\.cache\.path"),
        cache.entry("a", "rows", writer(1)),
    ):
        pass


def test_remains_of_a_killed_process_are_removed(tmp_path):
    cache = SplitCache(str(tmp_path), 1000)
    with cache.entry("a", "rows", writer(10)) as folder:
        name = os.path.basename(folder)
    cache.evict()
    os.rename(folder, folder + ".building")
    built = []
    with cache.entry("a", "rows", writer(10, built)):
        assert len(built) == 1
    other = os.path.join(tmp_path, name.replace(name[0], "z") + ".building")
    os.mkdir(other)
    cache.evict()
    assert not os.path.exists(other)
    assert entries(tmp_path) == [name]


def test_threads_build_an_entry_once(tmp_path):
    cache, built, together = SplitCache(str(tmp_path), 1 << 20), [], threading.Barrier(8)

    def use():
        together.wait()
        with cache.entry("a", "rows", writer(1000, built)) as folder:
            assert os.path.getsize(os.path.join(folder, "data")) == 1000

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


PROGRAM = """
import os, random, sys
from arrowlog.splits import SplitCache
folder, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
cache = SplitCache(folder, 5000)
def build(size):
    def run(path):
        for number in range(3):
            with open(os.path.join(path, str(number)), "wb") as out:
                out.write(bytes(size))
    return run
for _ in range(300):
    number = chance.randrange(12)
    with cache.entry(f"split {number}", "rows", build(100 + number)) as path:
        assert [os.path.getsize(os.path.join(path, str(n))) for n in range(3)] == [100 + number] * 3
        if chance.random() < 0.1:
            cache.evict()
        assert sorted(os.listdir(path)) == [".sizes.json", "0", "1", "2"]
"""


def test_processes_share_a_cache_without_partial_entries(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    running = [subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE) for seed in range(4)]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    SplitCache(str(tmp_path), 5000).evict()
    size = sum(
        os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(tmp_path)
        for name in names
    )
    assert size <= 5000


def test_default_folder_belongs_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_cache_folder() == str(tmp_path / "cache" / "arrowlog" / "splits")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = default_cache_folder()
    assert folder.startswith(str(tmp_path))
    os.chmod(folder, 0o777)
    with pytest.raises(InvalidRequest, match="belongs to another user"):
        default_cache_folder()
