"""Delta tables through `Table`: safety, time travel, doctor, conversion, refusals."""

import json
import os
import random
import shutil
import threading
import warnings
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import delta_model
from support.waiting import wait_until

import arrowlog
from arrowlog.decode import StatsMember, lookup_stats
from arrowlog.decode import stats_text as stats_text_module


def made(root, *, seed=3, steps=4, **features):
    table = delta_model.DeltaTable(str(root), random.Random(seed), **features)
    table.create()
    for _ in range(steps):
        table.step()
    return table


def with_vectors(root, seed=3):
    """A table in which rows of at least one file are deleted by a file of deletion vectors."""
    table = made(root, seed=seed, steps=1, vectors=True)
    add = table.write_file()
    table.commit([{"add": add}])
    table.rng.choice = lambda options: "u" if options == "uuip" else options[0]
    gone, new = table.delete_rows(add)
    table.commit([{"remove": gone}, {"add": new}])
    table.live[delta_model.file_key(new)] = new
    return table, new


def naive(root, version):
    state = delta_model.naive_state(str(root), version)
    return delta_model.naive_rows(str(root), state)


def test_missing_or_damaged_deletion_vector_raises(tmp_path):
    table, _ = with_vectors(tmp_path)
    expected = len(naive(tmp_path, table.version))
    plan = arrowlog.Table(tmp_path).scan()
    assert plan.to_arrow_dataset().to_table().num_rows == expected
    assert plan.to_arrow_dataset().count_rows() == expected
    assert sum(len(s.to_polars().collect()) for s in plan.splits()) == expected
    (vector,) = tmp_path.rglob("deletion_vector_*.bin")
    data = vector.read_bytes()
    for broken in (data[:-1], data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], b""):
        vector.write_bytes(broken)
        with pytest.raises(arrowlog.DataFileError, match="deletion vector of"):
            arrowlog.Table(tmp_path).scan().to_arrow_dataset().to_table()
    vector.unlink()
    for read in (
        lambda plan: plan.to_arrow_dataset().to_table(),
        lambda plan: plan.to_arrow_dataset().count_rows(),
        lambda plan: list(plan.splits()[-1].batches()),
    ):
        with pytest.raises(arrowlog.DataFileError, match="is missing"):
            read(arrowlog.Table(tmp_path).scan())
    assert "missing-deletion-vector" in arrowlog.doctor(tmp_path).codes


def test_file_lists_are_refused_for_files_with_deleted_rows(tmp_path):
    with_vectors(tmp_path)
    plan = arrowlog.Table(tmp_path).scan()
    with pytest.raises(arrowlog.InvalidRequest, match="deleted"):
        plan.scanned_files()
    with pytest.raises(arrowlog.InvalidRequest, match="deleted"):
        list(plan.to_arrow_dataset().get_fragments())


def test_count_min_and_max_account_for_deleted_rows(tmp_path):
    table, add = with_vectors(tmp_path)
    rows = naive(tmp_path, table.version)
    plan = arrowlog.Table(tmp_path).scan()
    assert plan.count() in (None, len(rows))
    assert plan.min("id") is None  # the row with the minimum may be deleted
    files = {row["path"]: row for row in plan.files.to_pylist()}
    shown = files[delta_model.file_key(add)[0]]
    deleted = add["deletionVector"]["cardinality"]
    assert shown["num_records"] == json.loads(add["stats"])["numRecords"] - deleted
    assert shown["deletion_vector"].startswith("u")


def test_external_deletion_vector_requires_allow_outside_paths(tmp_path):
    table = made(tmp_path / "t", steps=1, vectors=True)
    add = table.write_file()
    vector = table.write_vector([0])
    elsewhere = {**vector, "storageType": "p", "pathOrInlineDv": "file:/elsewhere/x.bin"}
    table.commit([{"add": {**add, "deletionVector": elsewhere}}])
    with pytest.raises(arrowlog.LogCorrupt, match="allow_outside_paths"):
        arrowlog.Table(tmp_path / "t").snapshot()
    arrowlog.Table(tmp_path / "t", allow_outside_paths=True).snapshot()


def test_one_file_with_two_deletion_vectors_is_refused(tmp_path):
    table = made(tmp_path, steps=0, vectors=True)
    add = table.write_file()
    vectors = [table.write_vector([0]), table.write_vector([0])]
    table.commit([{"add": {**add, "deletionVector": vector}} for vector in vectors])
    with pytest.raises(arrowlog.LogCorrupt, match="two deletion vectors"):
        arrowlog.Table(tmp_path, allow_outside_paths=True).scan().to_arrow_dataset().to_table()


def test_writes_and_maintenance_are_refused_with_the_format_name(tmp_path):
    made(tmp_path)
    table = arrowlog.Table(tmp_path, allow_outside_paths=True)
    assert table.format == "delta"
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for change in (
        lambda: table.append([]),
        lambda: table.write(pa.table({"id": [1]})),
        lambda: table.remove("id = 1"),
        table.checkpoint,
        table.cleanup,
        table.compact,
        table.vacuum,
        table.truncate_history,
        lambda: table.set_properties({"a": "b"}),
        lambda: table.restore(0),
    ):
        with pytest.raises(arrowlog.InvalidRequest, match="delta format"):
            change()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_gap_raises(tmp_path):
    table = made(tmp_path, steps=4)
    (table.log / f"{2:020d}.json").unlink()
    with pytest.raises(arrowlog.LogCorrupt, match="version 2 is missing"):
        arrowlog.Table(tmp_path, allow_outside_paths=True).snapshot()
    assert "unreadable" in arrowlog.doctor(tmp_path).codes


def test_time_travel_by_monotonic_file_times_and_in_commit_timestamps(tmp_path):
    table = made(tmp_path, steps=5)
    for version in range(6):
        seconds = 900 if version == 3 else 1000 + 10 * version
        os.utime(table.log / f"{version:020d}.json", (seconds, seconds))
    opened = arrowlog.Table(tmp_path, allow_outside_paths=True)
    expected = {1_000_000: 0, 1_019_999: 1, 1_020_000: 2, 1_020_001: 3, 1_040_000: 4, 10**13: 5}
    assert {ms: opened.snapshot(timestamp=ms).version for ms in expected} == expected
    with pytest.raises(arrowlog.InvalidRequest, match="begins with version 0"):
        opened.snapshot(timestamp=999_999)
    for version in range(4, 6):
        path = table.log / f"{version:020d}.json"
        lines = [json.loads(line) for line in path.read_text().split("\n") if line]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["inCommitTimestamp"] = 5_000_000 + version
        if version == 4:
            enabled = {"delta.enableInCommitTimestamps": "true"}
            enabled["delta.inCommitTimestampEnablementVersion"] = "4"
            lines.append({"metaData": {**table.metadata, "configuration": enabled}})
        path.write_text("\n".join(map(json.dumps, lines)))
    expected = {1_020_001: 3, 5_000_003: 3, 5_000_004: 4, 5_000_005: 5}
    reopened = arrowlog.Table(tmp_path, allow_outside_paths=True)
    assert {ms: reopened.snapshot(timestamp=ms).version for ms in expected} == expected


@pytest.mark.parametrize("form", delta_model.FORMS)
def test_damaged_checkpoint_warns_or_raises(tmp_path, form):
    table = made(tmp_path, seed=5, steps=5, vectors=True, partitioned=True)
    truth = sorted(map(str, naive(tmp_path, table.version)))
    table.checkpoint(form)
    table.step()
    files = [
        path
        for path in table.log.rglob("*")
        if "checkpoint" in path.name or path.parent.name == "_sidecars"
    ]
    rng = random.Random(7)
    for number in range(12):
        path = rng.choice([path for path in files if path.exists()])
        intact = path.read_bytes()
        damaged = bytearray(intact)
        if number % 3 == 0:
            damaged = damaged[: rng.randrange(len(damaged))]
        else:
            for _ in range(rng.choice([1, 20, 300])):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        with _ignored_warnings():
            try:
                opened = arrowlog.Table(tmp_path, allow_outside_paths=True)
                rows = opened.scan(version=table.version - 1).to_arrow_dataset().to_table()
            except arrowlog.ArrowlogError:
                rows = None
        if rows is not None and number % 3 == 0:  # a truncated file is always detected
            assert sorted(map(str, rows.to_pylist())) == truth
        path.write_bytes(intact)


@contextmanager
def _ignored_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", arrowlog.ArrowlogWarning)
        yield


def test_conversion_in_place_keeps_the_rows_and_reads_no_data_file(tmp_path):
    table = made(tmp_path, seed=11, steps=5, partitioned=True)
    expected = sorted(map(str, naive(tmp_path, table.version)))
    converted = arrowlog.convert(tmp_path)
    assert converted.format == "indextables"
    assert sorted(map(str, converted.scan().to_arrow_dataset().to_table().to_pylist())) == expected
    with pytest.warns(arrowlog.ArrowlogWarning, match="_delta_log"):
        assert arrowlog.Table(tmp_path).format == "indextables"
    with pytest.raises(arrowlog.InvalidRequest, match="already"), _ignored_warnings():
        arrowlog.convert(tmp_path)


@pytest.mark.parametrize("features", [{"vectors": True}, {"mapping": "name"}, {"mapping": "id"}])
def test_conversion_in_place_is_refused_where_files_lack_information(tmp_path, features):
    if "vectors" in features:
        table, _ = with_vectors(tmp_path / "t")
    else:
        table = made(tmp_path / "t", seed=11, steps=5, **features)
    with pytest.raises(arrowlog.InvalidRequest, match="cannot be converted in place"):
        arrowlog.convert(tmp_path / "t")
    assert not (tmp_path / "t" / "_transaction_log").exists()
    copied = arrowlog.convert(tmp_path / "t", tmp_path / "copy")
    rows = copied.scan().to_arrow_dataset().to_table().to_pylist()
    expected = naive(tmp_path / "t", table.version)
    assert sorted(map(str, rows)) == sorted(map(str, expected))


def test_doctor_finds_missing_files_wrong_checksums_and_damaged_checkpoints(tmp_path):
    table = made(tmp_path, seed=11, steps=5)
    assert arrowlog.doctor(tmp_path).healthy
    told = str(arrowlog.doctor(tmp_path))
    assert "Checked: the newest checkpoint" in told
    assert "Not checked: earlier commits" in told
    without = arrowlog.doctor(tmp_path, data_files=False)
    assert "Not checked: whether data files exist" in without.scope
    table.checkpoint("classic")
    sums = {"numFiles": len(table.live) + 1, "tableSizeBytes": 0}
    (table.log / f"{table.version:020d}.crc").write_text(json.dumps(sums))
    assert arrowlog.doctor(tmp_path).codes == ["checksum-differs"]
    (table.log / f"{table.version:020d}.crc").write_text("{")
    assert arrowlog.doctor(tmp_path).codes == ["checksum-unreadable"]
    path = table.log / f"{table.version:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    gone = next(iter(table.live))[0]
    (tmp_path / gone).unlink()
    found = arrowlog.doctor(tmp_path)
    assert {"checkpoint-damaged", "missing-file"} <= set(found.codes)
    assert found.paths("missing-file") == [gone]


def test_tables_on_an_fsspec_store_are_opened(tmp_path):
    import fsspec

    table = made(tmp_path, seed=5, steps=5, vectors=True, partitioned=True)
    table.checkpoint("sidecars-parquet")
    pointer = {"version": table.version, "size": 1}
    (table.log / "_last_checkpoint").write_text(json.dumps(pointer))
    table.step()
    expected = sorted(map(str, naive(tmp_path, table.version)))
    local = arrowlog.Table(tmp_path, allow_outside_paths=True)
    assert sorted(map(str, local.scan().to_arrow_dataset().to_table().to_pylist())) == expected
    target = fsspec.filesystem("memory")
    root = f"/delta-{os.getpid()}"
    for path in tmp_path.rglob("*"):
        if path.is_file():
            target.pipe(f"{root}/{path.relative_to(tmp_path)}", path.read_bytes())
    remote = arrowlog.Table(f"memory:/{root}", allow_outside_paths=True)
    assert remote.snapshot().report.checkpoint == pointer["version"]
    assert remote.snapshot().files["path"].to_pylist() == local.snapshot().files["path"].to_pylist()
    assert remote.snapshot(0).num_files == 0
    target.rm(root, recursive=True)


TEXTS = [
    '{"numRecords":3,"minValues":{"a":"x\\"y","b.c":1,"d/e":-2.5,"s":{"t":7}},"nullCount":{"a":0}}',
    '{"numRecords":4,"minValues":{"a":null,"b.c":true}}',
    "not json",
    None,
    "[]",
    '{"minValues":5}',
]
MEMBERS = [
    StatsMember(("numRecords",)),
    StatsMember(("minValues", "a")),
    StatsMember(("minValues", "b.c")),
    StatsMember(("minValues", "d/e")),
    StatsMember(("minValues", "s", "t")),
    StatsMember(("minValues", "s")),
    StatsMember(("nullCount", "a")),
]


@pytest.mark.parametrize("count", [1, pytest.param(8000, marks=pytest.mark.thorough)])
def test_stats_members_by_duckdb_equal_parsing_one_by_one(count):
    valid = [text for text in TEXTS if text != "not json"]
    for texts in (TEXTS, valid):
        column = pa.chunked_array([pa.array(texts * count)])
        found = lookup_stats(column, MEMBERS)
        each = stats_text_module._lookup_each(column, MEMBERS)
        assert {m: c.to_pylist() for m, c in found.items()} == {
            m: c.to_pylist() for m, c in each.items()
        }


def test_decimal_bounds_keep_every_digit():
    text = '{"minValues":{"p":12345678901234567.123456789}}'
    column = pa.chunked_array([pa.array([text] * 40_000)])
    member = StatsMember(("minValues", "p"), exact=True)
    assert Decimal(lookup_stats(column, [member])[member][0].as_py()) == Decimal(
        "12345678901234567.123456789"
    )


def test_disk_cache_does_not_store_delta_tables(tmp_path):
    table = made(tmp_path / "t", seed=11, steps=3, mapping="name")
    expected = sorted(map(str, naive(tmp_path / "t", table.version)))
    options = {"snapshotCache.path": str(tmp_path / "copies")}
    for _ in range(2):
        opened = arrowlog.Table(tmp_path / "t", options=options, allow_outside_paths=True)
        rows = opened.scan().to_arrow_dataset().to_table().to_pylist()
        assert sorted(map(str, rows)) == expected
    assert not list(tmp_path.glob("copies/*.arrow"))


def test_both_logs_in_one_folder_are_reported(tmp_path):
    made(tmp_path / "a", steps=1)
    arrowlog.Table.create(tmp_path / "b", pa.schema([("id", pa.int64())]))
    shutil.copytree(tmp_path / "a" / "_delta_log", tmp_path / "b" / "_delta_log")
    with pytest.warns(arrowlog.ArrowlogWarning, match="several logs"):
        assert arrowlog.Table(tmp_path / "b").format == "indextables"
    with pytest.raises(arrowlog.TableExists):
        arrowlog.Table.create(tmp_path / "a", pa.schema([("id", pa.int64())]))
    assert not Path(tmp_path / "a" / "_transaction_log").exists()


def many_row_groups(root, rows=40, size=10, files=5):
    """A table whose files have deleted rows and several row groups; returns the live ids."""
    table = delta_model.DeltaTable(str(root), random.Random(1), vectors=True)
    table.create()
    adds, live = [], []
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        path = root / f"f{number}.parquet"
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path, row_group_size=size)
        deleted = [3, size, rows - 1]
        live += [i for i in ids if i - number * rows not in deleted]
        data = delta_model.serialize_bitmap(deleted)
        vector = {"storageType": "i", "pathOrInlineDv": delta_model.encode_z85(data)}
        vector |= {"sizeInBytes": len(data), "cardinality": len(deleted)}
        add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size}
        add |= {"modificationTime": 1, "dataChange": True, "deletionVector": vector}
        adds.append({"add": add})
    table.commit(adds)
    return live


def test_row_groups_without_a_matching_row_are_not_read(tmp_path):
    live = many_row_groups(tmp_path, files=1)
    plan = arrowlog.Table(tmp_path).scan("id BETWEEN 25 AND 31")
    expected = [i for i in live if 25 <= i <= 31]
    assert plan.to_arrow_dataset().to_table()["id"].to_pylist() == expected
    path = tmp_path / "f0.parquet"
    group = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    path.write_bytes(data)
    assert plan.to_arrow_dataset().to_table()["id"].to_pylist() == expected
    with pytest.raises(arrowlog.DataFileError):
        arrowlog.Table(tmp_path).scan("id < 25").to_arrow_dataset().to_table()


def test_files_with_deleted_rows_keep_their_order_and_stream(tmp_path):
    live = many_row_groups(tmp_path, rows=400, size=7, files=12)
    plan = arrowlog.Table(tmp_path).scan()
    order = {path: number for number, path in enumerate(plan.paths)}
    live.sort(key=lambda i: order[f"f{i // 400}.parquet"])
    assert plan.to_arrow_dataset().to_table()["id"].to_pylist() == live
    batches = plan.row_reader.batches(["id"], batch_size=5)
    assert next(batches)["id"].to_pylist() == live[:4]
    before = threading.active_count()
    batches.close()
    wait_until(lambda: threading.active_count() < before, "the readers ahead end")
    (tmp_path / "f7.parquet").unlink()
    with pytest.raises(arrowlog.DataFileError, match="f7"):
        plan.to_arrow_dataset().to_table()


@pytest.mark.parametrize("structs", [None, "text", "struct", "both"])
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_struct_fields_skip_files_by_nested_statistics(tmp_path, structs, mapping):
    table = delta_model.DeltaTable(str(tmp_path), random.Random(4), mapping=mapping)
    table.create()
    nested = table.columns[4]
    dotted = [] if mapping == "none" else [table.column("nested.x", "long")]
    table.columns += dotted
    table.commit([table.metadata_action()])
    for low in (0, 100):
        add = {"path": f"f{low}.parquet", "partitionValues": {}, "size": 1, "dataChange": True}
        add["modificationTime"] = 1
        stats = {"numRecords": 5}
        x = delta_model.physical(nested["type"]["fields"][0])
        for what, shift in (("minValues", 0), ("maxValues", 50), ("nullCount", -low)):
            stats[what] = {delta_model.physical(nested): {x: low + shift}}
            stats[what] |= {delta_model.physical(c): 7000 + shift for c in dotted}
        add["stats"] = json.dumps(stats)
        table.commit([{"add": add}])
        table.live[delta_model.file_key(add)] = add
    if structs is not None:
        table.rng.choice = lambda options: structs if "both" in options else options[0]
        table.checkpoint("classic")
    opened = arrowlog.Table(tmp_path)
    assert opened.scan("nested.x = 120").paths == ["f100.parquet"]
    assert opened.scan(("nested.x", "=", 20)).paths == (["f0.parquet"] if not dotted else [])
    assert not dotted or opened.scan('"nested.x" = 7010').num_files == 2
    assert opened.scan("nested.x > 1000").num_files == 0
    assert opened.scan("nested.x IS NULL").num_files == 0


def test_checkpoint_with_damaged_column_names_raises(tmp_path):
    table = made(tmp_path, steps=3)
    table.checkpoint("classic")
    for version in range(table.version + 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    (path,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    data = path.read_bytes()
    for name in (b"schemaString", b"deletionTimestamp"):
        path.write_bytes(data.replace(name, b"\xff" + name[1:]))
        with pytest.raises(arrowlog.LogCorrupt, match="checkpoint"):
            arrowlog.Table(tmp_path).snapshot()
