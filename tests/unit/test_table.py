"""The table handle: opening, time travel, refreshing, and reports."""

import json
import os
import shutil
import threading
from datetime import UTC, datetime

import fsspec
import pyarrow as pa
import pytest
from support import small_table
from support.small_table import paths

import arrowlog
from arrowlog import storage as store_module
from arrowlog import testing
from arrowlog.formats.indextables.format import commit_name
from arrowlog.snapshot import file_table


def append(root, version, name, timestamp=None, **options):
    actions = [testing.add(name, {"day": "2024-01-02"}, size=10)]
    if timestamp is not None:
        actions.insert(0, testing.commit_info(timestamp, numActions=1))
    testing.write_commit(root, version, actions, **options)


def test_snapshot_describes_the_table(table):
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.version == 1
    assert snapshot.schema == small_table.SCHEMA
    assert snapshot.partition_columns == ("day",)
    assert snapshot.num_files == 1
    assert snapshot.size_bytes == 1
    assert snapshot.num_records is None
    assert snapshot.protocol == arrowlog.Protocol(2, 2)
    assert snapshot.metadata.id == "00000000-0000-4000-8000-000000000000"
    assert snapshot.report.commits_read == 2
    assert snapshot.report.source == "commits"
    assert "no checkpoint + 2 commits" in str(snapshot.report)
    assert repr(snapshot) == "Snapshot(version=1, files=1, bytes=1)"


def test_refresh_report_counts_what_was_in_memory(table):
    handle = arrowlog.Table(table)
    handle.snapshot()
    testing.write_commit(table, 2, [testing.add("later", {"day": "2024-01-01"})])
    assert "version 2 from version 1 in memory + 1 commit (1 file," in str(handle.refresh().report)


def test_num_records_is_known_if_every_file_has_a_count(root):
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add("a", numRecords=3), testing.add("b", numRecords=4)])
    assert arrowlog.Table(root).snapshot().num_records == 7


def test_empty_table_opens_with_its_columns(root):
    testing.write_commit(root, 0, small_table.OPENING)
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.num_files, snapshot.size_bytes, snapshot.num_records) == (0, 0, 0)
    assert snapshot.files.schema.field("partition.day").type == pa.date32()
    assert snapshot.files.num_rows == 0


def test_table_uri_in_every_spelling(table):
    for uri in (table, str(table), f"file://{table}", f"{table}/", os.path.relpath(table)):
        assert arrowlog.Table(uri).snapshot().num_files == 1


def test_table_in_an_fsspec_store_is_read(table):
    memory = fsspec.filesystem("memory")
    memory.put(str(table), "/bucket/table", recursive=True)
    opened = arrowlog.Table("memory://bucket/table")
    assert paths(opened.snapshot()) == ["good.parquet"]
    memory.pipe_file(
        f"/bucket/table/_transaction_log/{commit_name(2)}",
        testing.lines(
            [testing.add("memory://bucket/table/new", {"day": None}), testing.remove("new")]
        ),
    )
    assert paths(opened.refresh()) == ["good.parquet"]
    memory.rm("/bucket", recursive=True)


def test_missing_table_and_unknown_option_raise(tmp_path):
    with pytest.raises(arrowlog.TableNotFound, match="no table at"):
        arrowlog.Table(tmp_path)
    with pytest.raises(arrowlog.InvalidRequest, match="empty"):
        arrowlog.Table("")
    with pytest.raises(arrowlog.InvalidRequest, match="nosuchstore"):
        arrowlog.Table("nosuchstore://x/y")
    with pytest.raises(arrowlog.InvalidRequest, match="Did you mean"):
        arrowlog.Table(tmp_path, options={"checkpoint.intervall": 5})


def test_every_version_can_be_read_again(table):
    append(table, 2, "b")
    testing.write_commit(table, 3, [testing.remove("good.parquet")])
    opened = arrowlog.Table(table)
    found = [paths(opened.snapshot(version=v)) for v in range(4)]
    assert found == [[], ["good.parquet"], ["b", "good.parquet"], ["b"]]
    assert (opened.version, opened.earliest_version) == (3, 0)


def test_unknown_version_raises(table):
    opened = arrowlog.Table(table)
    with pytest.raises(arrowlog.InvalidRequest, match=r"no version 9; the newest is 1"):
        opened.snapshot(version=9)
    for nonsense in (-1, True, "1", 1.5):
        with pytest.raises(arrowlog.InvalidRequest, match="not a version"):
            opened.snapshot(version=nonsense)
    with pytest.raises(arrowlog.InvalidRequest, match="both"):
        opened.snapshot(version=1, timestamp=5)


def test_time_travel_by_timestamp(root):
    testing.write_commit(root, 0, small_table.OPENING)
    start = 1_700_000_000_000
    for version in range(1, 30):
        append(root, version, f"f{version}", start + version * 1000)
    opened = arrowlog.Table(root)
    assert opened.snapshot(timestamp=start + 7_999).version == 7
    assert opened.snapshot(timestamp=datetime.fromtimestamp(start / 1000 + 8, UTC)).version == 8
    assert opened.snapshot(timestamp="2033-01-01").version == 29
    assert opened.snapshot(timestamp=start).version == 0
    with pytest.raises(arrowlog.InvalidRequest, match="history begins with version 0"):
        opened.snapshot(timestamp=start - 1)


def test_copied_table_travels_by_commit_timestamps(root):
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 5):
        append(root, version, f"f{version}", 1_700_000_000_000 + version)
        os.utime(root / "_transaction_log" / commit_name(version), (0, 0))
    assert arrowlog.Table(root).snapshot(timestamp=1_700_000_000_002).version == 2


def test_deleted_versions_raise(table):
    for version in range(2, 7):
        append(table, version, f"f{version}", 1_700_000_000_000 + version)
    state = arrowlog.Table(table).snapshot(version=4)
    adds = [testing.add(path, {"day": None}) for path in paths(state)]
    testing.write_checkpoint(table, 4, [*small_table.OPENING, *adds])
    for version in (1, 2, 3):
        os.remove(table / "_transaction_log" / commit_name(version))
    opened = arrowlog.Table(table)
    assert opened.earliest_version == 4
    assert opened.snapshot(version=5).num_files == 5
    with pytest.raises(arrowlog.InvalidRequest, match="cleaned up to version 4"):
        opened.snapshot(version=2)


class Counting(store_module.LocalStore):
    reads: list[str] = []  # noqa: RUF012 -- emptied by the test

    def read_into(self, window, keys, versions, enough):
        count, size = super().read_into(window, keys, versions, enough)
        self.reads.extend(keys[:count])
        return count, size


def test_refresh_reads_only_new_commits(table, monkeypatch):
    monkeypatch.setattr(store_module, "LocalStore", Counting)
    Counting.reads.clear()
    opened = arrowlog.Table(table)
    first = opened.snapshot()
    assert len(Counting.reads) == 2
    assert opened.snapshot() is first
    append(table, 2, "b")
    second = opened.refresh()
    assert len(Counting.reads) == 3
    assert Counting.reads[-1].endswith(commit_name(2))
    assert (first.version, second.version) == (1, 2)
    assert paths(first) == ["good.parquet"]
    assert second.report.commits_read == 1
    for version in range(3, 60):
        append(table, version, f"f{version}")
    assert opened.refresh().num_files == 59
    assert len(Counting.reads) == 60


@pytest.mark.parametrize("digits", [18, 20])
def test_refresh_finds_commits_of_either_width(root, digits):
    testing.write_commit(root, 0, small_table.OPENING, digits=digits)
    opened = arrowlog.Table(root)
    assert opened.snapshot().version == 0
    for version in range(1, 25):
        append(root, version, f"f{version}", digits=digits)
        if version % 5 == 0:
            assert opened.refresh().num_files == version
    assert opened.snapshot().num_files == 24


def test_log_with_narrow_names_may_continue_with_wide_ones(root, monkeypatch):
    monkeypatch.setattr(store_module, "LocalStore", Counting)
    testing.write_commit(root, 0, small_table.OPENING, digits=18)
    append(root, 1, "a", digits=18)
    Counting.reads.clear()
    opened = arrowlog.Table(root)
    opened.snapshot()
    append(root, 2, "b")
    append(root, 3, "c")
    assert opened.refresh().num_files == 3
    assert len(Counting.reads) == 4


class Vanishing(store_module.LocalStore):
    def read_into(self, window, keys, versions, enough):
        raise FileNotFoundError(keys[-1])


def test_log_deleted_during_the_read_raises(table, monkeypatch):
    monkeypatch.setattr(store_module, "LocalStore", Vanishing)
    with pytest.raises(arrowlog.LogCorrupt, match="was listed, but it is gone") as caught:
        arrowlog.Table(table).snapshot()
    assert caught.value.file.endswith(commit_name(1))


def test_max_staleness_allows_a_stale_snapshot(table):
    opened = arrowlog.Table(table)
    opened.snapshot()
    append(table, 2, "b")
    assert opened.snapshot(max_staleness=3600).version == 1
    assert opened.snapshot(max_staleness=0).version == 2


def test_recreated_table_is_not_mistaken_for_the_old_one(table):
    append(table, 2, "b")
    opened = arrowlog.Table(table)
    opened.snapshot()
    shutil.rmtree(table)
    for version, other in ((0, None), (1, "x"), (2, "y")):
        if other is None:
            testing.write_commit(table, 0, small_table.OPENING)
        else:
            append(table, version, other)
    assert paths(opened.snapshot()) == ["x", "y"]
    shutil.rmtree(table)
    testing.write_commit(table, 0, small_table.OPENING)
    assert opened.snapshot().version == 0


def test_threads_share_a_table(table):
    opened = arrowlog.Table(table)
    seen: list[int] = []

    def look():
        seen.extend(opened.snapshot().num_files for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2, 10):
        append(table, version, f"f{version}")
    for thread in threads:
        thread.join()
    assert opened.snapshot().num_files == 9
    assert len(seen) == 80


def test_schema_changes_show_in_new_snapshots(table):
    wider = small_table.SCHEMA.append(pa.field("extra", pa.string()))
    opened = arrowlog.Table(table)
    opened.snapshot().files  # noqa: B018 -- typed now, to be followed on
    bounds = {"minValues": {"extra": "a"}, "maxValues": {"extra": "b"}}
    testing.write_commit(
        table, 2, [testing.metadata(wider, ["day"]), testing.add("c", {"day": None}, **bounds)]
    )
    files = opened.refresh().files
    assert files["min.extra"].to_pylist() == [None, "a"]
    assert opened.snapshot(version=1).schema == small_table.SCHEMA


def test_row_decoder_can_be_selected(table):
    testing.write_commit(
        table, 2, [testing.add(f"f{i}", {"day": "2024-01-02"}) for i in range(100)]
    )
    slow = arrowlog.Table(table, options={"spark.indextables.transaction.useOptimized": "false"})
    key = [("path", "ascending")]
    assert slow.snapshot().files.sort_by(key) == arrowlog.Table(table).snapshot().files.sort_by(key)


def test_repr(table):
    opened = arrowlog.Table(table)
    assert repr(opened) == f"Table({str(table)!r})"
    opened.snapshot()
    assert repr(opened).endswith("version=1)")


def test_integer_bounds_of_few_files_are_those_cast_column_by_column(root, monkeypatch):
    kinds = [pa.int8(), pa.int64(), pa.string(), pa.int64(), pa.int8(), pa.date32(), pa.int64()]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    odd = {1: "12x", 3: "0x10", 5: "2024-01-01", 6: "9223372036854775807"}
    for version in range(1, 4):
        low = {f"c{number}": str(version * number) for number in range(6)}
        high = {f"c{number}": odd.get(number, str(90 + version)) for number in range(7)}
        stats = json.dumps({"numRecords": 1, "minValues": {"c6": version}})
        add = testing.add(f"{version}", minValues=low, maxValues=high, stats=stats)
        testing.write_commit(root, version, [add])
    snapshot = arrowlog.Table(root).snapshot()
    expected = snapshot.files
    assert expected["max.c6"].to_pylist() == [2**63 - 1] * 3
    assert expected["max.c3"].to_pylist() == [None] * 3
    adds, partitions = snapshot.state.adds, snapshot.metadata.partition_columns
    for rows, values in ((0, 1), (4096, 3), (4096, 6), (4096, 1 << 18)):
        monkeypatch.setattr(file_table, "_TOGETHER_ROWS_MAX", rows)
        monkeypatch.setattr(file_table, "_TOGETHER_VALUES", values)
        assert file_table.files_table(adds, schema, partitions).equals(expected)
        some = file_table.files_table(adds, schema, partitions, {"max.c6", "min.c1", "path"})
        assert some.equals(expected.select(some.column_names))
        assert some.column_names == ["path", "min.c1", "max.c6"]
