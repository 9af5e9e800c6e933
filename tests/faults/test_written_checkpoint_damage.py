"""Damaged checkpoints: same snapshot from an older one or from the commits, with a warning."""

import json
import os
import random
import shutil

import pyarrow as pa
import pytest
from support import small_table
from support.case_count import cases, first_seed

import arrowlog
from arrowlog import testing
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables.format import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    commit_name,
)
from arrowlog.snapshot import WrittenCheckpoint, read_pointer, write_pointer
from arrowlog.storage import LocalStore

FORMATS = ["json"]
SIZES = [1 << 20, 1500]  # one file, or parts and a manifest
FLIPS = cases(40)


def build(root, form, size, codec="none", versions=4):
    """A table with a checkpoint at 2 and one at the end."""
    options = {
        "checkpoint.format": form,
        "checkpoint.maxFileSize": size,
        "transaction.compression.codec": codec,
    }
    table = arrowlog.Table.create(root, small_table.SCHEMA, ["day"], options=options)
    for version in range(1, versions + 1):
        day = {"day": f"2024-01-0{version}"}
        bounds = {"min_values": {"id": version}, "max_values": {"id": version + 7}}
        adds = [arrowlog.add_file(f"{version}-{n}", day, size=n + 1, **bounds) for n in range(5)]
        table.append(adds, txn=("app", version))
        if version == 2:
            table.checkpoint()
    table.checkpoint()
    return table.snapshot()


def files_of(root, version):
    folder = f"{root}/_transaction_log"
    names = [f"{folder}/{name}" for name in os.listdir(folder)]
    return sorted(name for name in names if f"{version:020d}.checkpoint" in name)


def write(path, data):
    with open(path, "wb") as out:
        out.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def assert_found_out(root, whole, base, what):
    """The newest checkpoint was not used, and the snapshot is unchanged."""
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.report.checkpoint == base, what
    assert any("checkpoint 4 was not used" in text for text in snapshot.report.warnings), what
    assert same(snapshot, whole), what


def same(snapshot, whole):
    mine, other = snapshot.files.sort_by("path"), whole.files.sort_by("path")
    about = lambda found: (found.metadata, found.protocol, found.txns, found.timestamp)  # noqa: E731
    return mine.to_pylist() == other.to_pylist() and about(snapshot.state) == about(whole.state)


@pytest.mark.parametrize("size", SIZES, ids=["whole", "parts"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_each_file_damaged_in_each_way_is_detected(root, form, size, codec):
    whole = build(root, form, size, codec)
    older = files_of(root, 2)
    for path in files_of(root, 4):
        data = read(path)
        ways = {"emptied": b"", "halved": data[: len(data) // 2], "a byte short": data[:-1]}
        ways |= {"zeros": bytes(len(data)), "older": read(older[-1]), "more": data + b"}"}
        for how, broken in ways.items():
            write(path, broken)
            assert_found_out(root, whole, 2, (path, how))
        os.remove(path)
        if len(files_of(root, 4)) > 0 and path.endswith(".checkpoint.json"):
            assert same(
                arrowlog.Table(root).snapshot(), whole
            )  # parts without a manifest are not a checkpoint
        elif files_of(root, 4):
            assert_found_out(root, whole, 2, "missing")
        write(path, data)
    assert arrowlog.Table(root).snapshot().report.checkpoint == 4


@pytest.mark.promise("checkpoint.damage_is_found")
@pytest.mark.parametrize("size", SIZES, ids=["whole", "parts"])
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd", "snappy"])
@pytest.mark.parametrize("form", FORMATS)
def test_any_flipped_bit_is_detected(root, form, size, codec):
    whole = build(root, form, size, codec)
    seed = first_seed()
    rng = random.Random(seed)
    for number in range(FLIPS):
        path = rng.choice(files_of(root, 4))
        data = read(path)
        place = rng.randrange(len(data)) if number else len(data) - 15  # once in "checksum"
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        write(path, bytes(broken))
        if codec in ("none", "snappy") and path.endswith(".checkpoint.json"):
            assert_found_out(root, whole, 2, (path, place))
        else:  # some bits of gzip and zstd headers have no meaning
            assert same(arrowlog.Table(root).snapshot(), whole), (path, place)
        write(path, data)


def test_swapped_parts_are_detected(root):
    whole = build(root, "json", 1500)
    manifest, *parts = sorted(
        files_of(root, 4), key=lambda path: not path.endswith("checkpoint.json")
    )
    assert len(parts) > 1
    assert manifest.endswith(".checkpoint.json")
    first, second = read(parts[0]), read(parts[1])
    write(parts[0], second)
    write(parts[1], first)
    assert_found_out(root, whole, 2, "swapped")
    write(parts[0], first)
    write(parts[1], first)
    assert_found_out(root, whole, 2, "twice the same")


@pytest.mark.parametrize("size", SIZES, ids=["whole", "parts"])
def test_checkpoint_copied_from_another_version_is_detected(root, size):
    whole = build(root, "json", size)
    folder = f"{root}/_transaction_log"
    shutil.copy(f"{folder}/{2:020d}.checkpoint.json", f"{folder}/{4:020d}.checkpoint.json")
    assert_found_out(root, whole, 2, "version 2 as version 4")


def test_snapshot_replays_commits_when_all_checkpoints_are_damaged(root):
    whole = build(root, "json", 1 << 20)
    for version in (2, 4):
        write(files_of(root, version)[0], b"{")
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.report.checkpoint is None
    assert len(snapshot.report.warnings) == 2
    assert same(snapshot, whole)
    assert arrowlog.Table(root, options={"checkpoint.format": "json"}).checkpoint().names
    again = arrowlog.Table(root).snapshot()  # the damaged one was rewritten
    assert (again.report.checkpoint, again.report.warnings) == (4, ())
    assert same(again, whole)


@pytest.mark.promise("snapshot.never_older")
def test_damaged_checkpoint_without_commits_raises_instead_of_an_older_version(root):
    build(root, "json", 1 << 20)
    for version in (3, 4):
        os.remove(f"{root}/_transaction_log/{commit_name(version)}")
    write(files_of(root, 4)[0], b"{")
    with pytest.raises(
        arrowlog.LogCorrupt, match="checkpoint of version 4 cannot be read"
    ) as raised:
        arrowlog.Table(root).snapshot()
    assert raised.value.version == 3


def test_missing_part_raises_without_waiting(root):
    build(root, "json", 1500)
    for version in (3, 4):
        os.remove(f"{root}/_transaction_log/{commit_name(version)}")
    os.remove(next(path for path in files_of(root, 4) if not path.endswith("checkpoint.json")))
    with pytest.raises(arrowlog.LogCorrupt, match="checkpoint of version 4 cannot be read"):
        arrowlog.Table(root).snapshot()


POINTERS = {
    "missing": None,
    "stale": b'{"version":2,"size":1}',
    "older than any": b'{"version":0}',
    "truncated": b'{"version":4,"siz',
    "empty": b"",
    "not an object": b"[4]",
    "not a number": b'{"version":"4"}',
    "true": b'{"version":true}',
    "no version": b'{"size":1}',
    "not UTF-8": b"\xff\xfe\x00",
    "of a version without a checkpoint": b'{"version":3}',
    "deep": b"[" * 10_000,
    "ahead": b'{"version":9}',
    "far ahead": b'{"version":9223372036854775807}',
}


@pytest.mark.promise("checkpoint.pointer_is_a_hint")
@pytest.mark.parametrize("how", POINTERS)
def test_wrong_pointer_changes_no_snapshot(root, how):
    whole = build(root, "json", 1 << 20)
    path = f"{root}/_transaction_log/{LAST_CHECKPOINT}"
    os.remove(path)
    if POINTERS[how] is not None:
        write(path, POINTERS[how])
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.report.checkpoint, snapshot.report.warnings) == (4, ())
    assert same(snapshot, whole)
    add = arrowlog.add_file("x", {"day": None}, size=1)
    writer = arrowlog.Table(root, options={"checkpoint.format": "json"})
    if "ahead" in how:  # the newest commits may be missing: writing would overwrite their versions
        with pytest.raises(arrowlog.LogCorrupt, match="pointer names version"):
            writer.append([add])
        return
    assert writer.append([add]).version == 5
    writer.checkpoint()
    assert json.loads(read(path))["version"] == 5


def test_stale_pointer_hides_no_newer_checkpoint(root):
    build(root, "json", 1 << 20)
    testing.write_pointer(root, {"version": 2})
    for version in (1, 2, 3):
        os.remove(f"{root}/_transaction_log/{commit_name(version)}")
    assert arrowlog.Table(root).snapshot().num_files == 20


class Racing:
    """A store on which a newer checkpoint and its pointer appear right before a pointer is put."""

    def __init__(self, store, later):
        self._store = store
        self._later = later

    def __getattr__(self, name):
        return getattr(self._store, name)

    def replace(self, key, data):
        if key.endswith(LAST_CHECKPOINT) and self._later is not None:
            later, self._later = self._later, None
            later()
        self._store.replace(key, data)


def test_pointer_is_not_moved_behind_a_concurrent_newer_checkpoint(root):
    build(root, "json", 1 << 20)
    os.remove(f"{root}/_transaction_log/{LAST_CHECKPOINT}")
    table = arrowlog.Table(root, options={"checkpoint.format": "json"})
    state = table.snapshot(3).state
    racing = Racing(table._store, table.checkpoint)
    write_pointer(racing, state, WrittenCheckpoint(("x",), 1), "json", None, 1)
    assert read_pointer(table._store) == table.version


def test_unreadable_pointer_is_not_replaced(root, monkeypatch):
    build(root, "json", 1 << 20)
    table = arrowlog.Table(root)
    before = read_pointer(table._store)

    def fails(keys):
        raise arrowlog.StoreUnavailable(f"{keys} timed out.")

    state = table.snapshot(3).state
    monkeypatch.setattr(table._store, "find_many", fails)
    with pytest.raises(arrowlog.StoreUnavailable):
        write_pointer(table._store, state, WrittenCheckpoint(("x",), 1), "json", None, 1)
    monkeypatch.undo()
    assert read_pointer(table._store) == before


@pytest.mark.parametrize("remains", [True, False])
def test_checkpoint_listed_without_its_manifest_is_listed_again(root, monkeypatch, remains):
    """A cleanup deletes the manifest, and a writer adds a checkpoint, during the listing."""
    options = {"checkpoint.enabled": False, "checkpoint.format": "parquet"}
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]), options=options)
    for number in range(5):
        table.append([arrowlog.add_file(f"f{number}", size=1)])
    table.checkpoint()
    table.truncate_history()
    listed, hidden = LocalStore.list_from, []

    def list_from(self, folder, start=""):
        names = listed(self, folder, start)
        if folder.endswith(CHECKPOINT_FOLDER_NAME) and (not hidden or not remains):
            hidden.append([name for name in names if name.endswith(".checkpoint.json")])
            return [name for name in names if name not in hidden[-1]]
        return names

    monkeypatch.setattr(LocalStore, "list_from", list_from)
    if remains:
        assert arrowlog.Table(root).snapshot().num_files == 5
    else:
        with pytest.raises(LogCorrupt, match="cannot be read, and the commit of version 1"):
            arrowlog.Table(root).snapshot()
    assert hidden[0]


@pytest.fixture
def cleaned_up(tmp_path):
    """A snapshot of version 3, whose checkpoint a truncation deleted, and the files it had."""
    root = tmp_path / "cleaned up"
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    folder = root / "_transaction_log" / "_checkpoints"
    for number in range(6):
        table.append([arrowlog.add_file(f"f{number}", {}, size=1, modification_time=1)])
        if number == 2:
            table.checkpoint()
            held = arrowlog.Table(root).snapshot(version=3)
            files = {path: path.read_bytes() for path in folder.iterdir()}
    table.truncate_history()
    return held, files


def test_snapshot_whose_checkpoint_is_being_deleted_is_no_longer_available(cleaned_up):
    held, files = cleaned_up
    for path, data in files.items():
        if path.suffix == ".json":  # the manifest, of which no part is left
            path.write_bytes(data)
    with pytest.raises(arrowlog.InvalidRequest, match=r"3 is no longer available.*to version 6"):
        _ = held.files


def test_damage_is_named_even_if_the_commits_were_cleaned_up(cleaned_up):
    held, files = cleaned_up
    for path, data in files.items():
        path.write_bytes(data if path.suffix == ".json" else bytes(len(data)))
    with pytest.raises(arrowlog.LogCorrupt, match="the checkpoint of version 3 cannot be read"):
        _ = held.files
