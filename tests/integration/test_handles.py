"""Several handles on one table: unseen commits, repeated transactions, replaced tables."""

import os
import shutil
import warnings

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog import testing
from arrowlog.errors import ArrowlogWarning, InvalidRequest, LogCorrupt, MetadataChanged
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def create(uri, schema=SCHEMA, **properties):
    return arrowlog.Table.create(uri, schema, ["p"], {"checkpoint.enabled": False, **properties})


def file(name, part="x", **fields):
    return arrowlog.add_file(name, {"p": part}, size=1, modification_time=1, **fields)


def paths(snapshot):
    return sorted(snapshot.files["path"].to_pylist())


def recreate(root, schema=SCHEMA):
    shutil.rmtree(root)
    return create(root, schema)


@pytest.fixture(params=["local", "memory"])
def uri(request, root):
    return str(root) if request.param == "local" else f"memory://{request.node.name}"


def test_handle_commits_after_another_handles_checkpoint(uri):
    busy = create(uri)
    late = arrowlog.Table(uri)
    late.snapshot()
    for number in range(3):
        busy.append([file(f"a{number}")])
    busy.checkpoint()
    assert late.append([file("b")]).version == 4
    assert paths(late.snapshot()) == ["a0", "a1", "a2", "b"]


def test_pointer_ahead_of_the_log_raises(root):
    create(root).append([file("a")])
    (root / LOG_FOLDER / "_last_checkpoint").write_text('{"version": 9}')
    with pytest.raises(LogCorrupt, match="pointer names version 9"):
        arrowlog.Table(root).append([file("b")])


@pytest.mark.promise("commit.idempotent_write")
@pytest.mark.parametrize("anew", [False, True])
def test_application_transaction_with_removes_commits_once(root, anew):
    table = create(root)
    table.append([file("a")])
    stale = arrowlog.Table(root)
    stale.snapshot()

    def step(handle):
        return handle.commit([file("b")], ["a"], txn=("app", 1))

    assert step(table).version == 2
    again = step(arrowlog.Table(root) if anew else table)
    assert (again.duplicate, again.version) == (True, 2)
    assert step(stale).duplicate
    assert paths(table.refresh()) == ["b"]


def test_partition_overwrite_with_a_transaction_commits_once(root):
    table = create(root)
    table.append([file("a")])
    stale = arrowlog.Table(root)
    stale.snapshot()
    for handle, duplicate in ((table, False), (table, True), (stale, True)):
        done = handle.overwrite([file("b")], "p = 'x'", txn=("app", 1))
        assert (done.duplicate, done.version) == (duplicate, 2)


def test_write_uses_the_schema_of_a_recreated_table(root):
    table = create(root)
    table.write(pa.table({"p": ["x"], "id": [1]}))
    recreate(root, pa.schema([("p", pa.string()), ("id", pa.string())]))
    table.write(pa.table({"p": ["x"], "id": ["text"]}))
    assert table.scan("id = 'text'").to_polars().collect().height == 1


def test_write_accepts_a_column_added_by_another_handle(root):
    table = create(root)
    table.write(pa.table({"p": ["x"], "id": [1]}))
    arrowlog.Table(root).add_columns({"more": pa.int64()})
    table.write(pa.table({"p": ["x"], "id": [2], "more": [3]}))
    assert table.scan("more = 3").to_polars().collect()["id"].to_list() == [2]


def test_write_to_a_table_replaced_meanwhile_raises(root):
    table = create(root)

    def rows():
        yield pa.record_batch({"p": ["x"], "id": [1]})
        recreate(root, pa.schema([("p", pa.string()), ("id", pa.string())]))

    with pytest.raises(MetadataChanged, match="replaced the table with another"):
        table.write(pa.RecordBatchReader.from_batches(SCHEMA, rows()))


def test_no_version_of_a_dropped_table_is_served(root):
    table = create(root)
    for name in "ab":
        table.append([file(name)])
    reader = arrowlog.Table(root)
    assert paths(reader.snapshot(version=1)) == ["a"]
    assert paths(reader.snapshot(version=2)) == ["a", "b"]
    anew = recreate(root)
    for name in "cd":
        anew.append([file(name)])
    assert paths(reader.snapshot(version=2)) == ["c", "d"]
    assert paths(reader.snapshot(version=1)) == ["c"]


def test_recreated_table_gets_its_own_checkpoints(root):
    table = create(root, **{"checkpoint.enabled": True, "checkpoint.interval": 5})
    for number in range(12):
        table.append([file(f"a{number}")])
        table.wait_for_checkpoint()
    shutil.rmtree(root)
    create(root, **{"checkpoint.enabled": True, "checkpoint.interval": 5})
    for number in range(6):
        table.append([file(f"b{number}")])
        table.wait_for_checkpoint()
    assert (root / LOG_FOLDER / f"{5:020d}.checkpoint.json").exists()


def test_own_commits_are_visible_with_max_staleness(root):
    table = create(root)
    table.snapshot()
    table.append([file("a")])
    assert table.snapshot(max_staleness=60).version == 1
    assert table.scan(max_staleness=60).num_files == 1


def test_gap_warns_in_a_handle_that_has_read_before(root):
    table = create(root)
    table.append([file("a")])
    table.snapshot()
    strict = arrowlog.Table(root, strict=True)
    strict.snapshot()
    testing.write_commit(root, 3, [testing.add("late", {"p": "x"})])
    with pytest.warns(ArrowlogWarning, match="version 2 is missing"):
        assert table.refresh().report.gap is not None
    with pytest.raises(LogCorrupt, match="version 2 is missing"):
        strict.refresh()
    with pytest.raises(LogCorrupt, match="version 2 is missing"):
        table.snapshot(strict=True)
    assert table.refresh().version == 1  # it is reported once


@pytest.mark.parametrize("ahead", [3, 5, 9])
def test_append_before_a_commit_beyond_a_gap_raises(root, ahead):
    table = create(root)
    table.append([file("a")])
    testing.write_commit(root, ahead, [testing.add("late", {"p": "x"})])
    with pytest.raises(LogCorrupt, match="cannot be written"):
        table.append([file("b")])


def test_log_with_other_name_width_gets_no_duplicate_version(root):
    def foreign(version, lines):
        name = f"{LOG_FOLDER}/{version:018d}.json"
        testing.write_commit(root, version, lines)
        os.rename(root / LOG_FOLDER / commit_name(version), root / name)

    foreign(0, [testing.protocol(), testing.metadata(SCHEMA, ["p"])])
    foreign(1, [testing.add("a", {"p": "x"})])
    table = arrowlog.Table(root)
    assert table.append([file("b")]).version == 2
    foreign(3, [testing.add("c", {"p": "x"})])
    assert table.append([file("d")]).version == 4
    done = arrowlog.Table(root).commit([file("e")], ["a"], read_version=1)
    assert done.version == 5
    assert paths(arrowlog.Table(root).snapshot()) == ["b", "c", "d", "e"]


@pytest.mark.parametrize("fields", [{"num_records": 5}, {"tags": {"by": "me"}}])
def test_restore_brings_back_the_fields_of_a_file(root, fields):
    table = create(root)
    table.append([file("a")])
    table.append([file("a", **fields), file("b")])
    table.restore(1)
    assert paths(table.snapshot()) == ["a"]
    assert table.snapshot().files.equals(table.snapshot(version=1).files)
    with pytest.raises(InvalidRequest, match="is the same as version 1"):
        table.restore(1)


@pytest.mark.parametrize("damage", ["manifest", "part"])
def test_damaged_checkpoint_is_rewritten(root, damage):
    table = create(root)
    table.append([file("a")])
    table.checkpoint()
    folder = root / LOG_FOLDER / "_checkpoints"
    name = f"{1:020d}.checkpoint.{'json' if damage == 'manifest' else 'parquet'}"
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    os.remove(root / LOG_FOLDER / f"{1:020d}.checkpoint.json")
    with warnings.catch_warnings(action="ignore"):  # it is reported on the next read
        arrowlog.Table(root).checkpoint()
    os.remove(root / LOG_FOLDER / f"{1:020d}.checkpoint.json")
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.report.checkpoint, snapshot.report.warnings) == (1, ())
    assert paths(snapshot) == ["a"]


def test_invalid_table_property_of_another_program_can_be_corrected(root):
    create(root)
    wrong = {"spark.indextables.checkpoint.interval": "0"}
    metadata = testing.metadata(SCHEMA, ["p"], configuration=wrong)
    testing.write_commit(root, 1, [metadata])
    with pytest.raises(InvalidRequest, match=r"checkpoint.interval' cannot be '0'"):
        arrowlog.Table(root).append([file("a")])
    good = arrowlog.Table(root, options={"checkpoint.interval": 5})
    assert good.append([file("a")]).version == 2
    arrowlog.Table(root).set_properties({"spark.indextables.checkpoint.interval": 7})
    assert arrowlog.Table(root).append([file("b")]).version == 4


def test_invalid_tags_of_another_program_are_null(root):
    lines = [testing.add(name, {"p": "x"}, tags=tags) for name, tags in zip("abc", WRONG, strict=1)]
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["p"])])
    testing.write_commit(root, 1, lines)
    table = arrowlog.Table(root)
    assert table.snapshot().files["tags"].to_pylist() == [None, None, [("k", "1")]]
    table.checkpoint()
    assert arrowlog.Table(root).snapshot().files["tags"].to_pylist()[:2] == [None, None]


WRONG = ("x", [1], {"k": 1})


@pytest.mark.parametrize("name", [5, {"a": 1}, "\ud800"])
@pytest.mark.parametrize("what", ["name", "description"])
def test_table_name_and_description_must_be_text(root, what, name):
    with pytest.raises(InvalidRequest, match=f"{what} is"):
        arrowlog.Table.create(root, SCHEMA, **{what: name})
    assert not root.exists()


def test_property_of_none_is_not_set(root):
    table = arrowlog.Table.create(root, SCHEMA, properties={"a": None, "b": 1})
    assert table.snapshot().metadata.configuration == {"b": "1"}


def test_file_uri_with_one_slash_is_accepted(root):
    create(root)
    assert arrowlog.Table(f"file:{root}").uri == str(root)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["x", "y"])])
def test_categorical_columns_are_written_as_text(root, kind):
    table = create(root)
    table.write(pl.DataFrame({"p": ["x", "y"], "id": [1, 2]}, schema_overrides={"p": kind}))
    assert sorted(table.scan().to_polars().collect()["p"].to_list()) == ["x", "y"]


def test_frame_that_arrow_cannot_convert_is_refused(root):
    table = create(root)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        table.write(pd.DataFrame({"p": ["x", 5.5], "id": [1, object()]}))


def test_large_write_is_split_by_target_size(root):
    table = create(root)
    rows = pa.table({"p": ["x"] * 500_000, "id": range(500_000)})
    table.write(rows, target_size="1MB")
    assert table.snapshot().num_files == 4
    assert table.snapshot().num_records == 500_000
    assert table.scan("id >= 499999").num_files == 1


def test_add_parquet_refuses_values_from_the_footer(root):
    table = create(root)
    pq.write_table(pa.table({"id": [1]}), root / "f.parquet")
    with pytest.raises(InvalidRequest, match="from the file"):
        arrowlog.add_parquet(table, "f.parquet", {"p": "x"}, num_records=77)
    assert arrowlog.add_parquet(table, "f.parquet", {"p": "x"}, tags={"a": "b"}).num_records == 1


def test_parquet_only_checkpoints_raise_the_reader_version(root):
    table = create(root)
    table.append([file("a")])
    done = table.set_properties({"checkpoint.format": "parquet"})
    assert (done.version, table.refresh().version) == (2, 2)
    assert table.snapshot().protocol.min_reader_version == 3
    assert table.snapshot().protocol.reader_features == ("parquetCheckpoint",)
    assert table.checkpoint().format == "parquet"
    assert table.set_properties({"checkpoint.format": "both"}).version == 3
    assert table.snapshot().protocol.min_reader_version == 3  # never lower
