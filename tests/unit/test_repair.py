"""Repair, one case at a time: its uses, refusals and settings."""

import json
import logging
import os
import random
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from support import log_damage, store_places
from support.event_table import build
from support.parquet_checkpoints import without_nulls
from support.small_table import GOOD, OPENING, SCHEMA, paths

import arrowlog
from arrowlog import testing
from arrowlog.formats.indextables.commit_encoder import encode_adds
from arrowlog.formats.indextables.compression import decompress
from arrowlog.formats.indextables.format import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
)
from arrowlog.recovery.log_repair import REPAIR_RESULT_SCHEMA as COLUMNS
from arrowlog.recovery.log_repair import split_log_address

LONG = "x" * 3000


def repair(root, target="repaired", **how):
    """Repair a table's log to a folder beside it, and return the result row."""
    before = log_damage.fingerprint(f"{root}/{LOG_FOLDER}")
    result = arrowlog.repair(f"{root}/{LOG_FOLDER}", f"{root}/{target}", **how)
    assert log_damage.fingerprint(f"{root}/{LOG_FOLDER}") == before
    assert result.schema == COLUMNS
    assert result.num_rows == 1
    return result.to_pylist()[0], arrowlog.repair_notes(result)


def swap(root, target="repaired"):
    """Replace the old log by the repaired one."""
    os.rename(f"{root}/{LOG_FOLDER}", f"{root}/old")
    os.rename(f"{root}/{target}", f"{root}/{LOG_FOLDER}")
    return arrowlog.Table(root, strict=True)


def commit(root, version):
    return f"{root}/{LOG_FOLDER}/{version:020d}.json"


@pytest.fixture
def events(root):
    """Six versions and five files, all of which exist."""
    build(root)
    return root


def test_result_columns_are_those_of_the_protocol(events):
    row, notes = repair(events)
    assert row == {
        "source_path": f"{events}/{LOG_FOLDER}",
        "target_path": f"{events}/repaired",
        "source_version": 6,
        "total_splits": 5,
        "valid_splits": 5,
        "missing_splits": 0,
        "status": "SUCCESS",
    }
    assert notes == []
    assert [str(item.type) for item in COLUMNS] == [
        "string",
        "string",
        "int64",
        "int32",
        "int32",
        "int32",
        "string",
    ]


def test_corrupt_checkpoint_is_rebuilt_from_the_commits(events):
    expected = arrowlog.Table(events).snapshot().files.sort_by("path")
    for name in (f"{6:020d}.checkpoint.json", LAST_CHECKPOINT):
        testing.write_file(events, name, b'{"version": 6, "add": [')
    row, notes = repair(events)
    assert row["status"] == "SUCCESS"
    assert row["source_version"] == 6
    assert any("checkpoint" in note for note in notes)
    table = swap(events)
    assert table.snapshot().files.sort_by("path") == expected
    assert table.snapshot().report.checkpoint == 1


def test_missing_data_files_are_dropped(events, caplog):
    caplog.set_level(logging.WARNING, logger="arrowlog")  # any spelling of the root
    gone = paths(arrowlog.Table(events).snapshot())[0]
    os.unlink(events / gone)
    row, notes = repair(events)
    assert (row["total_splits"], row["valid_splits"], row["missing_splits"]) == (5, 4, 1)
    assert gone in notes[0]
    assert any(gone in record.getMessage() for record in caplog.records)
    table = swap(events)
    assert gone not in paths(table.snapshot())
    assert table.scan().to_polars().collect().height == 4000


def test_fragmented_history_becomes_two_versions(events):
    repair(events)
    log = events / "repaired"
    assert sorted(os.listdir(log)) == [
        f"{0:020d}.json",
        f"{1:020d}.checkpoint.json",
        f"{1:020d}.json",
        CHECKPOINT_FOLDER_NAME,
        LAST_CHECKPOINT,
    ]
    first = decompress((log / f"{0:020d}.json").read_bytes(), "0", 1 << 20).splitlines()
    assert [next(iter(json.loads(line))) for line in first] == ["protocol", "metaData"]
    second = decompress((log / f"{1:020d}.json").read_bytes(), "1", 1 << 20).splitlines()
    assert [next(iter(json.loads(line))) for line in second] == ["commitInfo"] + ["add"] * 5
    info = json.loads(second[0])["commitInfo"]
    assert info["operation"] == "REPAIR"
    assert info["operationParameters"]["sourceVersion"] == 6
    for name in (f"{0:020d}.json", f"{1:020d}.json", f"{1:020d}.checkpoint.json"):
        assert (log / name).read_bytes()[:2] == b"\x01\x01"
    assert json.loads((log / LAST_CHECKPOINT).read_text())["version"] == 1


def test_repaired_log_has_relative_paths(root, tmp_path):
    absolute = testing.add(f"{root}/a b.parquet", {"day": "2024-01-01"})
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [absolute, testing.add(f"file://{root}/c", {"day": None})])
    log_damage.put(root, ["a b.parquet", "c"])
    target = tmp_path / "elsewhere" / "table"
    result = arrowlog.repair(root / LOG_FOLDER, target / LOG_FOLDER).to_pylist()[0]
    assert result["status"] == "SUCCESS"
    shutil.move(root / "a b.parquet", target)
    assert paths(arrowlog.Table(target).snapshot()) == ["a b.parquet", "c"]


def test_repair_reports_problems_and_leaves_the_source_unchanged(events):
    os.unlink(commit(events, 4))
    gone = "day=2024-01-02/part-00001.parquet"
    os.unlink(events / gone)
    row, notes = repair(events, options={"repair.failOnMissing": True})
    assert row["status"].startswith("ERROR: 1 of 3 data files are missing")
    assert gone in row["status"]
    assert not os.path.exists(events / "repaired")
    row, notes = repair(events)
    assert (row["source_version"], row["valid_splits"], row["missing_splits"]) == (3, 2, 1)
    assert "version 4 is missing although version 5 is there" in notes[0]
    assert "versions 4 to 6 are not in it" in notes[1]


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "empty"])
def test_commits_after_a_damaged_commit_are_not_used(root, how):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options={"checkpoint.enabled": False})
    for number in range(6):
        table.append([arrowlog.add_file(f"f{number}", {"day": None}, size=1)])
    log_damage.put(root, [f"f{number}" for number in range(6)])
    data, rng = Path(commit(root, 4)).read_bytes(), random.Random(4)
    if how == "gone":
        os.unlink(commit(root, 4))
    else:
        changed = {"cut": data[:40], "flipped": log_damage.flip(data[12:], rng), "empty": b""}[how]
        Path(commit(root, 4)).write_bytes(data[:12] * (how == "flipped") + changed)
    row, notes = repair(root)
    assert row["source_version"] == 3
    assert paths(swap(root).snapshot()) == ["f0", "f1", "f2"]
    assert any("versions 4 to 6 are not in it" in note for note in notes)
    assert any("stranded (2 files, 0 bytes): f4, f5" in note for note in notes)
    assert any("may belong to one that is lost: f3" in note for note in notes)


def test_checkpoint_after_the_damage_bridges_it(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options={"checkpoint.enabled": False})
    for number in range(6):
        table.append([arrowlog.add_file(f"f{number}", {"day": None}, size=1)])
        if number == 3:
            table.checkpoint()
    log_damage.put(root, [f"f{number}" for number in range(6)])
    os.unlink(commit(root, 0))
    Path(commit(root, 2)).write_bytes(b"{")
    row, _ = repair(root)
    assert (row["source_version"], row["valid_splits"]) == (6, 6)
    Path(commit(root, 5)).write_bytes(b"{")
    assert repair(root, "second")[0]["source_version"] == 4


def test_application_transactions_survive_a_repair(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"])
    table.append([arrowlog.add_file("a", {"day": None}, size=1)], txn=("loader", 7))
    log_damage.put(root, ["a"])
    repair(root)
    again = swap(root).append([arrowlog.add_file("b", {"day": None}, size=1)], txn=("loader", 7))
    assert again.duplicate
    assert paths(arrowlog.Table(root).snapshot()) == ["a"]


def test_timestamps_increase_after_a_repair(events):
    before = arrowlog.Table(events).snapshot().state.timestamp
    repair(events)
    after = swap(events).snapshot().state.timestamp
    assert after > before


def test_duplicate_commit_is_used_if_identical(events):
    data = Path(commit(events, 3)).read_bytes()
    testing.write_file(events, f"{3:018d}.json", data)
    assert repair(events)[0]["source_version"] == 6
    testing.write_file(events, f"{3:018d}.json", b'{"add":{}}')
    row, notes = repair(events, "second")
    assert row["source_version"] == 2
    assert "both version 3" in notes[0]


def test_diverging_checkpoint_is_reported_and_the_commits_win(events):
    actions = [testing.protocol(), testing.metadata(SCHEMA, ["day"]), GOOD]
    testing.write_checkpoint(events, 6, actions)
    row, notes = repair(events)
    assert (row["source_version"], row["total_splits"]) == (6, 5)
    assert any("the commits" in note for note in notes)


def test_checkpoint_with_checksum_wins_over_commits_without(root):
    testing.write_commit(root, 0, OPENING)
    adds = [testing.add(f"f{n}", {"day": None}) for n in range(3)]
    testing.write_commit(root, 1, adds)
    arrowlog.Table(root).checkpoint()
    testing.write_commit(root, 1, adds[:1])  # truncated at the end of a line, which is undetectable
    log_damage.put(root, ["f0", "f1", "f2"])
    row, notes = repair(root)
    assert row["valid_splits"] == 3
    assert "it has a checksum" in notes[0]


def test_renamed_log_folder_is_repaired(events):
    testing.write_file(events, f"{6:020d}.json", b'{"add":{"path":')
    os.rename(events / LOG_FOLDER, events / "backup")
    result = arrowlog.repair(f"{events}/backup", f"{events}/new")
    notes = arrowlog.repair_notes(result)
    assert result["status"].to_pylist() == ["SUCCESS"]
    assert any(note.startswith(f"backup/{6:020d}.json: ") for note in notes)
    assert not any(LOG_FOLDER in note for note in notes)
    assert LAST_CHECKPOINT in os.listdir(events / "new")
    assert not os.path.exists(events / LOG_FOLDER)
    os.rename(events / "new", events / LOG_FOLDER)
    table = arrowlog.Table(events, strict=True)
    assert table.snapshot().report.checkpoint == 1
    assert table.version == 1


def test_checkpoint_of_another_table_is_reported(events):
    other = testing.metadata(SCHEMA, ["day"], id="11111111-0000-4000-8000-000000000000")
    testing.write_checkpoint(events, 9, [testing.protocol(), other, GOOD])
    row, notes = repair(events)
    assert row["source_version"] == 9
    assert "may be left over from a table that was here before" in notes[0]


def test_pointer_ahead_of_the_log_is_reported(events):
    testing.write_pointer(events, {"version": 9})
    row, notes = repair(events)
    assert row["source_version"] == 6
    assert "names version 9" in notes[0]
    assert "versions 7 to 9 are not in it" in notes[1]


def test_errors_are_reported_in_the_status_and_nothing_is_written(root, events, caplog):
    caplog.set_level(logging.ERROR)
    assert_error(arrowlog.repair(root / "nowhere", root / "new"), "Source transaction log not")
    assert_error(arrowlog.repair(root, f"{root}-new"), f"Did you mean {root}/{LOG_FOLDER}?")
    assert_error(arrowlog.repair("x", root / "new"), "not found")
    assert_error(arrowlog.repair("/", root / "new"), "not the address of a log")
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / LOG_FOLDER), "is not empty")
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / LOG_FOLDER / "in"), "lies in the source")
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / "day=2024-01-01"), "is not empty")
    assert_error(arrowlog.repair(root / LOG_FOLDER, "nosuchstore://x/y"), "cannot be opened")
    assert sorted(os.listdir(root)) == [LOG_FOLDER, *(f"day=2024-01-0{n}" for n in range(1, 6))]


def assert_error(result, words):
    row = result.to_pylist()[0]
    assert row["status"].startswith("ERROR: ")
    assert words in row["status"]
    assert [row[name] for name in list(row)[2:6]] == [-1, 0, 0, 0]


def test_unsupported_protocol_is_not_repaired(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.protocol(9, 9)])
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / "new"), "needs reader version 9")
    testing.write_commit(root, 1, [testing.protocol(2, 9)])
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / "new"), "needs writer version 9")


def test_log_without_version_0_is_an_error(root):
    testing.write_commit(root, 1, [GOOD])
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / "new"), "no version can be read")


def test_unknown_option_raises_invalid_request(events):
    with pytest.raises(arrowlog.InvalidRequest, match="paralelism"):
        arrowlog.repair(events / LOG_FOLDER, events / "new", options={"repair.paralelism": 2})


def test_external_files_are_not_checked(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.add("s3://other/x", {"day": None})])
    assert_error(arrowlog.repair(root / LOG_FOLDER, root / "new"), "lies outside the table")
    row, _ = repair(root, options={"repair.validateSplits": "false"})
    assert row["valid_splits"] == 1


def test_disabled_validation_reports_no_missing_file(events):
    os.unlink(events / "day=2024-01-02/part-00001.parquet")
    row, _ = repair(events, options={"spark.indextables.repair.validateSplits": "false"})
    assert (row["valid_splits"], row["missing_splits"]) == (5, 0)


def test_statistics_can_be_dropped(events):
    repair(events, options={"repair.preserveStats": False})
    snapshot = swap(events).snapshot()
    assert snapshot.files["min.id"].null_count == 5
    assert snapshot.files["stats"].null_count == 5
    assert snapshot.num_records == 5000


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({}, None, None),
        (
            {"stats.truncation.strategy": "truncate", "stats.truncation.maxLength": 5},
            "xxxxx",
            "xxxxy",
        ),
        ({"stats.truncation.enabled": False}, LONG, LONG),
    ],
)
def test_long_statistics_are_truncated_by_the_settings(root, options, low, high):
    schema = pa.schema([("text", pa.string())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    add = testing.add("a", minValues={"text": LONG}, maxValues={"text": LONG})
    testing.write_commit(root, 1, [add])
    log_damage.put(root, ["a"])
    repair(root, options=options)
    files = swap(root).snapshot().files
    assert files["min.text"][0].as_py() == low
    assert files["max.text"][0].as_py() == high


def test_log_with_long_statistics_becomes_much_smaller(root):
    schema = pa.schema([("text", pa.string())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema)])
    rng = random.Random(7)
    texts = ["".join(rng.choices("abcdefgh", k=5000)) for _ in range(40)]
    adds = [
        testing.add(f"f{n}", minValues={"text": t}, maxValues={"text": t})
        for n, t in enumerate(texts)
    ]
    testing.write_commit(root, 1, adds)
    log_damage.put(root, [f"f{n}" for n in range(40)])
    repair(root)
    size = {
        name: sum(map(len, log_damage.files_of(root / name).values()))
        for name in (LOG_FOLDER, "repaired")
    }
    assert size["repaired"] < size[LOG_FOLDER] / 10


def test_every_add_field_survives_a_repair(root):
    full = testing.add(
        "a/b=1/c.split",
        {"day": "2024-01-01"},
        stats='{"numRecords": 3, "nullCount": {"id": 0}}',
        tags={"a": 'b "c"'},
        minValues={"id": "1", "strange": "kept"},
        maxValues={"id": "2"},
        numRecords=3,
        footerStartOffset=1,
        footerEndOffset=2,
        hotcacheStartOffset=3,
        hotcacheLength=4,
        hasFooterOffsets=True,
        timeRangeStart="2024",
        timeRangeEnd="2025",
        splitTags=["x", "y"],
        deleteOpstamp=5,
        numMergeOps=6,
        docMappingJson='{"f":[1]}',
        uncompressedSizeBytes=7,
        docMappingRef="ref",
        companionSourceFiles=["s"],
        companionDeltaVersion=8,
        companionFastFieldMode="HYBRID",
    )
    meta = testing.metadata(SCHEMA, ["day"], configuration={"a": "b"})
    meta["metaData"] |= {"name": "n", "description": "d"}
    features = {"readerFeatures": ["skippedFiles"], "writerFeatures": ["skippedFiles"]}
    testing.write_commit(root, 0, [testing.protocol(3, 3, **features), meta])
    testing.write_commit(root, 1, [full | {"add": full["add"] | {"dataChange": False}}])
    log_damage.put(root, ["a/b=1/c.split"])
    before = arrowlog.Table(root).snapshot()
    repair(root)
    after = swap(root).snapshot()
    assert (after.metadata, after.protocol) == (before.metadata, before.protocol)
    assert json.loads(encode_adds(after.state.adds)[0])["add"] == without_nulls(full["add"])


def test_unfinished_repair_of_another_state_is_refused(events):
    repair(events)
    for name in (LAST_CHECKPOINT, f"{1:020d}.checkpoint.json"):
        os.unlink(events / "repaired" / name)
    os.unlink(commit(events, 6))
    before = log_damage.fingerprint(events / "repaired")
    assert_error(arrowlog.repair(events / LOG_FOLDER, events / "repaired"), "from another repair")
    assert log_damage.fingerprint(events / "repaired") == before


def test_many_files_are_checked_by_listing_with_progress(root):
    keys = [f"day=2024-01-0{n % 4 + 1}/f{n}" for n in range(200)] + ["alone", "far/away"]
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.add(key, {"day": None}) for key in keys])
    log_damage.put(root, keys[:150] + keys[-2:])
    told = []
    row, _ = repair(root, progress=lambda done, total: told.append((done, total)))
    assert (row["valid_splits"], row["missing_splits"]) == (152, 50)
    assert told[-1] == (202, 202)
    assert told == sorted(told)


@pytest.mark.parametrize("kind", ["memory", "s3fs-moto", "obstore-moto"])
def test_repair_works_on_every_store(kind, request, monkeypatch):
    place = store_places.make(kind, request)
    options = {"store.accelerate": kind != "s3fs-moto"}
    for version, actions in enumerate([OPENING, [GOOD, testing.add("gone", {"day": None})]]):
        place.put(f"{LOG_FOLDER}/{version:020d}.json", testing.lines(actions))
    place.put(f"{LOG_FOLDER}/{2:020d}.json", b"{")
    place.put("good.parquet", b"1")
    before = place.store.stats_from(LOG_FOLDER)
    how = {"storage_options": place.options, "options": options}
    row = arrowlog.repair(
        f"{place.uri}/{LOG_FOLDER}", f"{place.uri}/mended/{LOG_FOLDER}", **how
    ).to_pylist()[0]
    assert row["status"] == "SUCCESS"
    assert (row["source_version"], row["valid_splits"], row["missing_splits"]) == (1, 1, 1)
    assert place.store.stats_from(LOG_FOLDER) == before
    table = arrowlog.Table(f"{place.uri}/mended", place.options, options=options)
    assert paths(table.snapshot()) == ["good.parquet"]
    again = arrowlog.repair(f"{place.uri}/{LOG_FOLDER}", f"{place.uri}/mended/{LOG_FOLDER}", **how)
    assert_error(again, "is not empty")


def test_many_existence_checks_become_one_walk(monkeypatch):
    from arrowlog.recovery import data_files

    place = store_places.Memory()
    monkeypatch.setattr(type(place.store), "cheap_stat", False)
    monkeypatch.setattr(data_files, "_MAX_REQUESTS", 3)
    monkeypatch.setattr(type(place.store), "stat", None)
    keys = [f"day={n}/f" for n in range(10)]
    for key in keys[:4]:
        place.put(key, b"1")
    found = data_files.check_files_exist(place.store, pa.chunked_array([keys]))
    assert found.to_pylist() == [True] * 4 + [False] * 6


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("s3://b/t/_transaction_log", ("s3://b/t", "_transaction_log")),
        ("s3://b/_transaction_log/", ("s3://b", "_transaction_log")),
        ("/data/log", ("/data", "log")),
        ("memory://x/y", ("memory://x", "y")),
        ("/log", ("/", "log")),
    ],
)
def test_log_uri_is_split_into_table_and_folder(uri, found):
    assert split_log_address(uri) == found


def test_repair_raises_no_python_warning(events):
    os.unlink(commit(events, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repair(events)[0]["status"] == "SUCCESS"
