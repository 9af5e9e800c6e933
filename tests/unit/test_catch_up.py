"""A writer far behind the log tip catches up in few attempts."""

import pyarrow as pa

import arrowlog

BEHIND = 100


def add(name):
    return [arrowlog.add_file(f"{name}.parquet", size=1, modification_time=1)]


def test_stale_handle_commits_after_few_attempts(root):
    arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    plain = {"checkpoint.enabled": False}
    slow, quick = (arrowlog.Table(root, options=plain) for _ in range(2))
    slow.append(add("first"))
    for number in range(BEHIND):
        quick.append(add(number))
    late = slow.append(add("late"))
    assert late.version == BEHIND + 2
    assert late.attempts <= 11  # it requests 1, 2, 3, 4, 5, 7, 11, … commits: 109 after ten
    assert slow.snapshot().num_files == BEHIND + 2
