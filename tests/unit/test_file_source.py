"""The `FileSource` contract: every implementation gives the same results as adds in memory."""

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import parquet_checkpoints

import arrowlog
from arrowlog import testing
from arrowlog.snapshot.checkpoint_files import CheckpointFiles
from arrowlog.snapshot.snapshot import InMemoryFiles

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
PARTITIONS = ("p",)


def add(number):
    value = {"id": str(number)}
    return testing.add(f"f{number}", {"p": "ab"[number % 2]}, minValues=value, maxValues=value)


@pytest.fixture(params=[InMemoryFiles, CheckpointFiles])
def open_source(request, root, monkeypatch):
    """Open files 0 to 9, of which 3 was removed and 4 added again, without reading them yet."""
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, PARTITIONS)])
    testing.write_commit(root, 1, [add(number) for number in range(8)])
    if request.param is CheckpointFiles:
        parquet_checkpoints.small_groups(monkeypatch, 2)
        parquet_checkpoints.write(root, 1)
    testing.write_commit(root, 2, [testing.remove("f3"), add(4), add(8), add(9)])

    def opened():
        source = arrowlog.Table(root).snapshot().state.source
        assert type(source) is request.param
        return source

    return opened


def in_memory(source):
    return InMemoryFiles(source.adds())


def changed(open_source):
    """Commits as replay gives them to a source: the adds and removes, with keys."""
    columns = open_source().adds().select(["path", "key"])
    adds = columns.slice(0, 2).append_column("seq", pa.array([0, 1], pa.int64()))
    removes = columns.slice(2, 1).append_column("seq", pa.array([2], pa.int64()))
    return adds, removes


def test_live_files_are_the_same_in_one_order(open_source):
    source = open_source()
    keys = source.column("key").to_pylist()
    assert sorted(keys) == [f"f{number}" for number in range(10) if number != 3]
    assert source.num_files == len(keys) <= source.max_files
    assert source.adds()["key"].to_pylist() == keys == source.column("path").to_pylist()
    assert not source.warnings


@pytest.mark.parametrize("masked", [False, True])
def test_typed_files_equal_the_adds(open_source, masked):
    expected = in_memory(open_source())
    source = open_source()
    mask = None
    if masked:
        mask = pa.array([number % 3 == 0 for number in range(source.num_files)])
    files = source.files(SCHEMA, PARTITIONS, mask)
    assert files.to_pylist() == expected.files(SCHEMA, PARTITIONS, mask).to_pylist()


def test_statistics_equal_the_adds(open_source):
    stats, expected = (
        s.stats(SCHEMA, PARTITIONS) for s in (open_source(), in_memory(open_source()))
    )
    assert stats.num_rows == expected.num_rows
    assert stats.low("id").to_pylist() == expected.low("id").to_pylist()
    assert stats.partition("p").to_pylist() == expected.partition("p").to_pylist()


def test_newer_schema_is_typed_from_the_adds(open_source):
    newer = pa.schema([("p", pa.string()), ("id", pa.int32())])
    source = open_source()
    assert not source.is_typed(newer, PARTITIONS)
    assert source.row_group_stats(newer, PARTITIONS) is None
    assert source.files(newer, PARTITIONS)["min.id"].type == pa.int32()


def test_row_groups_cover_all_files(open_source):
    source = open_source()
    groups = source.row_group_stats(SCHEMA, PARTITIONS)
    assert (groups is not None) == source.is_typed(SCHEMA, PARTITIONS)
    number = 0 if groups is None else groups.num_rows
    whole = source.select_row_groups(range(number))
    assert sorted(whole.column("key").to_pylist()) == sorted(source.column("key").to_pylist())
    none = set(source.select_row_groups([]).column("key").to_pylist())
    assert none >= {"f4", "f8", "f9"}  # in no row group: added later
    for group in range(number):
        assert none <= set(source.select_row_groups([group]).column("key").to_pylist())


@pytest.mark.parametrize("read", [False, True])
def test_with_commits_keeps_the_order_and_the_source(open_source, read):
    adds, removes = changed(open_source)
    source = open_source()
    if read:
        source.adds()
    before = open_source().column("key").to_pylist()
    change = source.with_commits(3, adds, removes)
    gone = {*adds["key"].to_pylist(), *removes["key"].to_pylist()}
    assert change.fresh["key"].to_pylist() == adds["key"].to_pylist()
    after = [key for key in before if key not in gone] + adds["key"].to_pylist()
    assert change.source.column("key").to_pylist() == after
    assert change.kept_mask().to_pylist() == [key not in gone for key in before]
    assert source.column("key").to_pylist() == before


def test_with_empty_commits_changes_nothing(open_source):
    adds, removes = (table.slice(0, 0) for table in changed(open_source))
    change = open_source().with_commits(2, adds, removes)
    assert change.kept_mask() is None
    assert change.source.num_files == open_source().num_files


def test_pickled_source_needs_no_store(open_source, root):
    source, expected = open_source(), open_source().adds()
    data = pickle.dumps(source)
    root.rename(root.with_name("gone"))
    copy = pickle.loads(data)
    assert copy.checkpoint is None
    assert copy.adds().equals(expected)
    assert pc.sum(copy.column("size")).as_py() == pc.sum(expected["size"]).as_py()


def test_columns_of_an_empty_source_are_typed(root):
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    state = table.snapshot().state
    assert {name: str(state.column(name).type) for name in ("key", "path", "size")} == {
        "key": "string",
        "path": "string",
        "size": "int64",
    }
    table.write(pa.table({"id": [1]}))
    table.remove(table.snapshot().files["path"].to_pylist())
    assert str(table.snapshot().state.column("size").type) == "int64"
    table.checkpoint()
    assert str(arrowlog.Table(root).snapshot().state.column("size").type) == "int64"
