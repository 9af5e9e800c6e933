"""The memory limit of the process, and the error when a log exceeds it."""

import ctypes
import platform
from unittest import mock

import pyarrow as pa
import pytest

import arrowlog
from arrowlog import arrays, memory_limit, testing
from arrowlog.arrays import release_unused_memory


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Files of control groups as shown by the kernel."""
    real = open
    shown = {}

    def read(path, *rest, **more):
        if str(path) in shown:
            (tmp_path / "shown").write_text(shown[str(path)])
            return real(tmp_path / "shown", *rest, **more)
        if str(path).startswith(("/sys/fs/cgroup", "/proc/")):
            raise FileNotFoundError(path)
        return real(path, *rest, **more)

    monkeypatch.setattr("builtins.open", read)
    return shown


def test_smallest_limit_applies(groups):
    assert memory_limit.memory_limit_bytes() is None
    groups["/proc/meminfo"] = "MemTotal: 4000 kB\nMemFree: 1 kB\nSwapTotal: 0 kB\n"
    assert memory_limit.memory_limit_bytes() == 4000 << 10
    groups["/proc/self/cgroup"] = "0::/a/b\n"
    groups["/sys/fs/cgroup/a/b/memory.max"] = "max\n"
    assert memory_limit.memory_limit_bytes() == 4000 << 10
    groups["/sys/fs/cgroup/a/memory.max"] = "3000000\n"
    assert memory_limit.memory_limit_bytes() == 3_000_000
    groups["/proc/self/cgroup"] = "4:cpu,cpuacct:/x\n3:memory:/job\n"
    groups["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    groups["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "2000000\n"
    assert memory_limit.memory_limit_bytes() == 2_000_000


def test_unknown_memory_use_refuses_nothing(groups):
    assert memory_limit.used_memory_bytes() == 0
    memory_limit.check_memory("t", 1 << 40, 0)
    memory_limit.check_memory("t", 1 << 40, 1)


def test_small_log_is_never_refused(monkeypatch):
    monkeypatch.setattr(memory_limit, "used_memory_bytes", lambda: 1 << 40)
    memory_limit.check_memory("t", 1000, 1)
    with pytest.raises(arrowlog.LogTooLarge, match="1,048,576 of 100 MB"):
        memory_limit.check_memory("t", 1 << 30, 100 << 20)


def test_reclaimable_memory_is_not_counted(monkeypatch):
    sizes = iter([95, 80])
    monkeypatch.setattr(memory_limit, "used_memory_bytes", lambda: next(sizes))
    memory_limit.check_memory("t", 1 << 30, 100)


@pytest.mark.promise("security.bounded_memory")
def test_too_large_log_raises_log_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_limit, "CHECK_FROM_BYTES", 1)

    testing.write_commit(
        tmp_path,
        0,
        [testing.protocol(), testing.metadata(pa.schema([("id", pa.int64())])), testing.add("a")],
    )
    assert arrowlog.Table(tmp_path).snapshot().num_files == 1
    tight = arrowlog.Table(tmp_path, options={"transaction.maxMemory": "1MB"})
    with pytest.raises(MemoryError, match=r"arrowlog\.spark\.checkpoint") as caught:
        tight.snapshot()
    assert isinstance(caught.value, arrowlog.LogTooLarge)
    assert str(tmp_path) in str(caught.value)


def glibc():
    return platform.libc_ver()[0] == "glibc"


@pytest.mark.skipif(not glibc(), reason="only glibc can be asked to release memory")
def test_memory_between_blocks_in_use_is_released():
    blocks = [b"x" * 100_000 for _ in range(1000)]
    kept = blocks[-1]  # what is freed before it is not at the end of the heap
    del blocks
    before = memory_limit.used_memory_bytes()
    release_unused_memory()
    assert memory_limit.used_memory_bytes() < before - (50 << 20)
    assert len(kept) == 100_000


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_other_c_libraries_are_not_asked_to_release_memory(error, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=error))
    arrays._malloc_trim.cache_clear()
    try:
        release_unused_memory()
        assert arrays._malloc_trim() is None
    finally:
        arrays._malloc_trim.cache_clear()
