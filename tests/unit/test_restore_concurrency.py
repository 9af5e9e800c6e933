"""Restoring a version while other handles commit."""

import pyarrow as pa
import pytest

import arrowlog


def add(name):
    return [arrowlog.add_file(f"{name}.parquet", size=1, modification_time=1)]


@pytest.fixture
def handles(root):
    arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    return [arrowlog.Table(root) for _ in range(2)]


def test_own_version_can_be_restored_after_concurrent_commits(handles):
    one, two = handles
    seen = one.append(add("a")).version
    two.append(add("b"))
    assert one.restore(seen).version == 3
    assert one.snapshot().files["path"].to_pylist() == ["a.parquet"]


def test_restore_without_changes_raises_with_the_read_version(handles):
    one, two = handles
    seen = one.append(add("a")).version
    with pytest.raises(arrowlog.InvalidRequest, match="Version 1 is the same as version 1"):
        one.restore(seen)
    two.append(add("b"))
    one.snapshot()
    one.restore(seen)  # version 3, the same as 1
    two.append(add("c"))
    with pytest.raises(
        arrowlog.InvalidRequest, match=r"Version 3 is .* as version 1.* refresh\(\)"
    ):
        one.restore(seen)
    one.refresh()
    assert one.restore(seen).version == 5


def test_restore_removes_files_of_a_concurrent_compaction(handles):
    one, two = handles
    one.append(add("a"))
    one.append(add("b"))
    one.snapshot()
    two.commit(add("a2"), ["a.parquet"], operation="COMPACT", data_change=False)
    one.restore(1)
    assert one.snapshot().files["path"].to_pylist() == ["a.parquet"]
