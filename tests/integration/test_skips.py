"""Skips: log entries that exclude files from compaction but not from reads."""

import json
import os
import time

import pyarrow as pa
import pytest
from support.faulty_store import FakeClock, FaultyStore, table_on

import arrowlog
from arrowlog import testing
from arrowlog.config import Config
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables.compression import decompress
from arrowlog.transaction.table_metadata import build_metadata, create_table

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])
HOUR = 3_600_000
LOG = "_transaction_log"


def make(root, **properties):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], properties=properties)
    names = ["a.parquet", "b.parquet", "c.parquet"]
    table.append([arrowlog.add_file(name, {"day": "x"}, size=7) for name in names])
    return table


def actions(root, version):
    data = decompress((root / LOG / f"{version:020d}.json").read_bytes(), "", 1 << 20)
    return [json.loads(text) for text in data.splitlines()]


def test_skip_is_written_as_in_the_protocol(root):
    table = make(root)
    before = int(time.time() * 1000)
    done = table.skips.record("a.parquet", reason="cannot be read", cooldown="2h")
    info, skip = actions(root, done.version)
    assert info["commitInfo"]["operation"] == "SKIP"
    skip = skip["mergeskip"]
    assert before <= skip["skipTimestamp"] <= int(time.time() * 1000)
    assert skip["retryAfter"] == skip["skipTimestamp"] + 2 * HOUR
    told = {"path": "a.parquet", "reason": "cannot be read", "operation": "merge", "size": 7}
    assert skip.items() >= (told | {"skipCount": 1, "partitionValues": {"day": "x"}}).items()


def test_skip_counts_increase_and_the_longest_cooldown_wins(root):
    table = make(root)
    for cooldown in ("1h", "9h", "3h"):
        arrowlog.Table(root).skips.record("a.parquet", "again", cooldown=cooldown)
    table.skips.record(f"{root}/b.parquet", "once", operation="delete")
    history = table.skips.history()
    assert history["skip_count"].to_pylist() == [1, 2, 3, 1]
    assert history["path"].to_pylist() == ["a.parquet"] * 3 + ["b.parquet"]
    active = table.skips.active()
    assert active["path"].to_pylist() == ["a.parquet", "b.parquet"]
    assert active["skip_count"].to_pylist() == [2, 1]
    assert table.skips.active(operation="delete")["path"].to_pylist() == ["b.parquet"]


def test_skipped_files_are_read_but_not_merged(root):
    table = make(root)
    table.skips.record("b.parquet", "broken")
    snapshot = table.refresh()
    assert snapshot.num_files == 3
    kept = table.skips.filter(snapshot.files)
    assert kept["path"].to_pylist() == ["a.parquet", "c.parquet"]
    assert kept.schema == snapshot.files.schema
    assert table.skips.filter(table.scan())["path"].to_pylist() == ["a.parquet", "c.parquet"]
    paths = [f"{root}/b.parquet", f"file:{root}/a.parquet", "c.parquet"]
    assert table.skips.filter(paths) == paths[1:]
    with pytest.raises(InvalidRequest, match="snapshot"):
        table.skips.filter("b.parquet")


def test_skip_below_a_checkpoint_is_found_and_kept_by_cleanup(root):
    soon = {"spark.indextables.logRetention.duration": "0s"}
    table = make(root, **soon, **{"spark.indextables.checkpointRetention.duration": "0s"})
    table.skips.record("a.parquet", "broken", cooldown="30d")
    table.skips.record("b.parquet", "broken", cooldown="0s")
    for number in range(3):
        table.append([arrowlog.add_file(f"{number}.parquet", {"day": "x"}, size=1)])
    table.checkpoint()
    for path in (root / LOG).rglob("*.json"):
        os.utime(path, (1, 1))
    planned = table.cleanup(dry_run=True)
    done = table.cleanup()
    gone = done.files["path"].to_pylist()
    assert planned.files["path"].to_pylist() == gone
    assert f"{LOG}/{2:020d}.json" not in gone
    assert f"{LOG}/{3:020d}.json" in gone
    fresh = arrowlog.Table(root)
    assert fresh.skips.active()["path"].to_pylist() == ["a.parquet"]
    assert fresh.earliest_version == 6
    fresh.truncate_history()
    assert fresh.skips.active()["path"].to_pylist() == ["a.parquet"]
    done = fresh.skips.record("a.parquet", "still broken")
    assert actions(root, done.version)[1]["mergeskip"]["skipCount"] == 2


def test_skips_of_other_programs_are_used(root):
    table = make(root)
    now = int(time.time() * 1000)
    skip = {"path": f"{root}/a.parquet", "skipTimestamp": 1, "reason": "r", "operation": "merge"}
    later = {**skip, "retryAfter": now + HOUR, "skipCount": 7}
    bare = {**skip, "path": "c.parquet"}
    testing.write_commit(root, 2, [{"mergeskip": later}, {"skip": bare}])
    assert table.skips.active()["path"].to_pylist() == ["a.parquet"]
    assert table.skips.history()["path"].to_pylist() == ["a.parquet", "c.parquet"]
    done = table.skips.record("a.parquet", "again")
    assert actions(root, done.version)[1]["mergeskip"]["skipCount"] == 8
    done = table.skips.record("c.parquet", "again")
    assert actions(root, done.version)[1]["mergeskip"]["skipCount"] == 2


def test_recreated_table_has_no_old_skips(root):
    import shutil

    table = make(root)
    table.skips.record("a.parquet", "broken")
    assert table.skips.active().num_rows == 1
    shutil.rmtree(root)
    make(root)
    table.refresh()
    assert table.skips.active().num_rows == 0


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"path": "../x", "reason": "r"}, "outside"),
        ({"path": "a", "reason": ""}, "reason"),
        ({"path": "a", "reason": "r", "operation": " "}, "operation"),
        ({"path": "a", "reason": "r", "cooldown": "soon"}, "cooldown"),
    ],
)
def test_wrong_requests_are_refused(root, given, match):
    table = make(root)
    with pytest.raises(InvalidRequest, match=match):
        table.skips.record(**given)
    assert table.refresh().version == 1


def test_concurrent_skips_of_one_file_are_both_counted():
    """The second skip is recounted when the first one is committed before it."""
    store = FaultyStore()
    create_table(store, Config(), build_metadata(SCHEMA, [], None, None, None), exist_ok=False)
    clocks = [FakeClock(name) for name in "ab"]
    one, two = (table_on(store, clock) for clock in clocks)
    two.snapshot()
    store.window = [lambda: two.skips.record("a", "second")]
    done = one.skips.record("a", "first")
    assert done.attempts == 2
    skips = one.skips.history()
    assert skips["skip_count"].to_pylist() == [1, 2]
    assert skips["reason"].to_pylist() == ["second", "first"]


def test_cooldown_ends_by_the_clock():
    store = FaultyStore()
    create_table(store, Config(), build_metadata(SCHEMA, [], None, None, None), exist_ok=False)
    clock = FakeClock("a")
    table = table_on(store, clock)
    table.skips.record("a", "broken", cooldown="24h")
    clock.skew_ms = 24 * HOUR - 1
    assert table.skips.filter(["a", "b"]) == ["b"]
    clock.skew_ms = 24 * HOUR
    assert table.skips.filter(["a", "b"]) == ["a", "b"]
    assert table.skips.history().num_rows == 1
