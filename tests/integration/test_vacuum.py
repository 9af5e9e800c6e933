"""Vacuum deletes orphan files and keeps every file of a readable version."""

import os
import shutil
import threading
import time

import pyarrow as pa
import pytest
from support.case_count import cases
from support.waiting import wait_until

import arrowlog
from arrowlog import testing
from arrowlog.errors import InvalidRequest, LogCorrupt, UnsupportedProtocol
from arrowlog.storage import LocalStore

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])
DAY = 86_400
LOG = "_transaction_log"


def make(root, **properties):
    return arrowlog.Table.create(root, SCHEMA, ["day"], properties=properties)


def rows(*ids, day="a"):
    return pa.table({"day": [day] * len(ids), "id": list(ids)}, schema=SCHEMA)


def age(root, days=30, pattern="*"):
    """Make files old."""
    then = time.time() - days * DAY
    for path in root.rglob(pattern):
        if path.is_file():
            os.utime(path, (then, then))


def orphan(root, key, days=30):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"orphan")
    age(root, days, path.name.replace("[", "[[]"))
    return key


def ids(table, version=None):
    found = table.scan(version=version).to_polars().collect()["id"].to_list()
    return sorted(found)


@pytest.mark.promise("vacuum.deletes_only_orphans")
def test_vacuum_deletes_only_orphans(root):
    table = make(root)
    table.write(rows(1, 2))
    table.write(rows(3), mode="overwrite")
    gone = orphan(root, "day=a/left-behind.parquet")
    young = orphan(root, "day=a/just-written.parquet", days=1)
    age(root, pattern="part-*")
    planned = table.vacuum(dry_run=True)
    assert planned.files["path"].to_pylist() == [gone]
    assert (root / gone).exists()
    done = table.vacuum()
    assert done.files.equals(planned.files)
    assert (done.num_files, done.bytes_freed, done.failures) == (1, 6, ())
    assert (done.counts["live"], done.counts["history"]) == (1, 1)
    assert done.counts["young"] == 1
    assert not (root / gone).exists()
    assert (root / young).exists()
    assert (ids(table, 1), ids(table, 2)) == ([1, 2], [3])
    assert table.vacuum().num_files == 0


def test_vacuum_deletes_files_of_truncated_versions(root):
    table = make(root)
    table.write(rows(1, 2))
    table.write(rows(3), mode="overwrite")
    age(root, pattern="part-*")
    planned = table.truncate_history(dry_run=True)
    assert table.vacuum(dry_run=True).num_files == 0
    done = table.truncate_history()
    assert done.files["path"].to_pylist() == planned.files["path"].to_pylist()
    assert done.files["path"].to_pylist() == [f"{LOG}/{1:020d}.json"]
    assert (planned.earliest_version, done.earliest_version, table.earliest_version) == (2, 2, 2)
    # The commit that removed the files is in the log, and younger than the retention.
    assert table.vacuum().num_files == 0
    assert table.vacuum("0s", force=True).num_files == 1
    assert ids(arrowlog.Table(root)) == [3]
    assert (root / LOG / f"{0:020d}.json").exists()


def test_truncation_is_idempotent_and_writers_continue(root):
    table = make(root, **{"spark.indextables.checkpoint.interval": "3"})
    for number in range(8):
        table.write(rows(number))
    table.wait_for_checkpoint()
    other = arrowlog.Table(root)
    other.snapshot()
    done = table.truncate_history()
    assert done.earliest_version == 8
    assert {row["kind"] for row in done.files.to_pylist()} == {"commit", "checkpoint"}
    assert table.truncate_history(dry_run=True).num_files == 0
    other.write(rows(8))
    assert ids(table) == ids(arrowlog.Table(root)) == list(range(9))
    with pytest.raises(InvalidRequest, match="cleaned up"):
        arrowlog.Table(root).snapshot(version=5)


@pytest.mark.parametrize(
    "key",
    [
        f"{LOG}/notes.parquet",
        f"{LOG}_repaired/{0:020d}.json",
        f"{LOG}_repaired/_checkpoints/{0:020d}.checkpoint.parquet",
        f"fixed/{1:020d}.json",
        f"fixed/{1:020d}.checkpoint.parquet",
        "_delta_log/00.parquet",
        ".hidden/x.parquet",
        "day=a/_temporary/0/x.parquet",
        "day=a/.x.parquet.crc",
        "_SUCCESS",
        "README.md",
        f"inner/{LOG}/{0:020d}.json",
        "inner/day=a/x.parquet",
    ],
)
def test_files_outside_the_tables_data_are_kept(root, key):
    table = make(root)
    table.write(rows(1))
    orphan(root, key)
    if key.startswith("inner"):
        orphan(root, f"inner/{LOG}/{0:020d}.json")
    if key.startswith("fixed"):
        orphan(root, f"fixed/{1:020d}.json")
    age(root, pattern="*")
    assert table.vacuum("0s", force=True).num_files == 0
    assert (root / key).exists()


@pytest.mark.parametrize(
    "key",
    [
        "x.split",
        "x.parquet",
        "day=b%2Fc/x y.parquet",
        "day=ü/[1]*?.parquet",
        "_col=1/x.parquet",
        "day=a/.part-1.parquet.0123456789abcdef0123456789abcdef.tmp",
        "deep/er/and/deeper/x.parquet",
    ],
)
def test_orphans_with_unusual_names_are_deleted(root, key):
    schema = pa.schema([("_col", pa.int64()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, ["_col"])
    table.write(pa.table({"_col": [1], "id": [1]}, schema=schema))
    orphan(root, key)
    age(root, pattern="part-*")
    done = table.vacuum()
    assert done.files["path"].to_pylist() == [key]
    assert not (root / key).exists()
    assert ids(table) == [1]


def test_encoded_paths_of_other_programs_count_as_live(root):
    keys = [
        "a b.parquet",
        "p=ü/x.parquet",
        "c.parquet",
        "d.parquet",
        "e%20f.parquet",
        "g/h.parquet",
    ]
    for key in keys:
        orphan(root, key)
    spelled = ["a%20b.parquet", "p=%C3%BC/x.parquet", f"{root}/c.parquet", f"file:{root}/d.parquet"]
    spelled += ["e%20f.parquet", "g//h.parquet"]
    plain = pa.schema([("id", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(plain)])
    testing.write_commit(root, 1, [testing.add(path) for path in spelled])
    done = arrowlog.Table(root).vacuum()
    assert (done.num_files, done.counts["live"]) == (0, len(keys))


def test_vacuum_works_on_every_store(place):
    how = {"storage_options": place.options}
    if hasattr(place, "accelerate"):
        how["options"] = {"store.accelerate": place.accelerate}
    table = arrowlog.Table.create(place.uri, SCHEMA, ["day"], **how)
    table.write(rows(1, 2, day="a b/ü%"))
    left = {f"day=a b%2F/{n}.parquet": b"1" for n in range(1_010)}
    place.put_many(left)
    done = table.vacuum("0s", force=True)
    assert set(done.files["path"].to_pylist()) == set(left)
    assert done.bytes_freed == len(left)
    assert place.store.walk()["key"].to_pylist() != []
    assert table.vacuum("0s", force=True).num_files == 0
    assert done.counts["live"] == 1


@pytest.mark.parametrize("older", ["23h", 0, "1s"])
def test_retention_below_a_day_requires_force(root, older):
    table = make(root)
    with pytest.raises(InvalidRequest, match="force"):
        table.vacuum(older)
    with pytest.raises(InvalidRequest, match="force"):
        table.vacuum(older, dry_run=True)
    assert table.vacuum(older, force=True).num_files == 0
    with pytest.raises(InvalidRequest, match="older_than"):
        table.vacuum("soon")


def test_log_with_a_gap_or_unknown_feature_is_not_vacuumed(root):
    table = make(root)
    for number in range(3):
        table.write(rows(number))
    orphan(root, "x.parquet")
    (root / LOG / f"{2:020d}.json").rename(root / "away")
    with pytest.warns(arrowlog.ArrowlogWarning), pytest.raises(LogCorrupt, match="vacuumed"):
        arrowlog.Table(root).vacuum()
    (root / "away").rename(root / LOG / f"{2:020d}.json")
    need = testing.protocol(3, 3, readerFeatures=[], writerFeatures=["deletionVectors"])
    testing.write_commit(root, 4, [need])
    with pytest.raises(UnsupportedProtocol, match="deletionVectors"):
        arrowlog.Table(root).vacuum()
    assert (root / "x.parquet").exists()


def test_damaged_commit_stops_vacuum(root):
    table = make(root)
    table.write(rows(1))
    table.checkpoint()
    orphan(root, "x.parquet")
    path = root / LOG / f"{1:020d}.json"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogCorrupt):
        arrowlog.Table(root).vacuum()
    assert (root / "x.parquet").exists()


def test_file_replaced_since_the_walk_is_kept(root, monkeypatch):
    table = make(root)
    table.write(rows(1))
    key = orphan(root, "day=a/x.parquet")
    whole = LocalStore.walk

    def walk(store):
        found = whole(store)
        (root / key).write_bytes(b"somebody is at it")
        return found

    monkeypatch.setattr(LocalStore, "walk", walk)
    assert table.vacuum().num_files == 0
    assert (root / key).exists()


def test_file_committed_before_the_deletion_is_kept(root, monkeypatch):
    """A concurrent writer commits an old file after vacuum has read the log."""
    from arrowlog.maintenance import vacuum as room

    table = make(root)
    table.write(rows(1))
    key = orphan(root, "day=a/x.parquet")
    other = arrowlog.Table(root)
    whole = room.classify_files

    def sort_out(*args, **others):
        other.append([arrowlog.add_file(key, {"day": "a"})])
        return whole(*args, **others)

    monkeypatch.setattr(room, "classify_files", sort_out)
    assert table.vacuum().num_files == 0
    assert (root / key).exists()


@pytest.mark.parametrize("how", ["truncated", "dropped"])
def test_file_committed_and_truncated_before_the_deletion_is_kept(root, monkeypatch, how):
    """The commit that needs the file is deleted before vacuum reads the log again."""
    from arrowlog.maintenance import vacuum as room

    table = make(root)
    for number in range(3):
        table.write(rows(number))
    key = orphan(root, "day=a/x.parquet")
    whole = room.classify_files

    def classify(*args, **others):
        if how == "dropped":
            shutil.rmtree(root / LOG)
            make(root)
        other = arrowlog.Table(root)
        other.append([arrowlog.add_file(key, {"day": "a"})])
        if how == "truncated":
            other.write(rows(9))
            other.truncate_history()
        return whole(*args, **others)

    monkeypatch.setattr(room, "classify_files", classify)
    assert table.vacuum().num_files == 0
    assert (root / key).exists()


def test_failed_deletions_are_reported_and_stop_nothing_else(root, monkeypatch):
    table = make(root)
    table.write(rows(1))
    keys = [orphan(root, f"day=a/{n}.parquet") for n in range(4)]
    whole = os.unlink

    def unlink(path, *args):
        if str(path).endswith("1.parquet"):
            raise PermissionError(13, "no", path)
        return whole(path, *args)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.warns(arrowlog.ArrowlogWarning, match="1 deletions failed"):
        done = table.vacuum()
    assert done.files["path"].to_pylist() == [keys[0], keys[2], keys[3]]
    assert len(done.failures) == 1


@pytest.mark.promise("vacuum.beside_writers")
def test_vacuum_keeps_files_of_a_concurrent_writer(root):
    """A table is vacuumed while it is written to. Every row is kept."""
    table = make(root)
    table.write(rows(-1))
    stop = threading.Event()
    written, errors = [-1], []

    def write():
        mine = arrowlog.Table(root)
        try:
            while not stop.is_set():
                number = len(written)
                mine.write(rows(number, day=str(number % 3)))
                written.append(number)
        except BaseException as error:  # noqa: BLE001 -- the test says what it was
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    deleted = 0
    try:
        for number in range(cases(12)):
            orphan(root, f"day=0/left-{number}.parquet")
            # What is written now is younger than this by the clock of the disk.
            deleted += table.vacuum("1d").num_files
    finally:
        stop.set()
        writer.join()
    assert errors == []
    assert deleted == cases(12)
    assert ids(arrowlog.Table(root)) == sorted(written)


def test_progress_is_reported(root):
    table = make(root)
    for number in range(5):
        orphan(root, f"{number}.parquet")
    told = []
    table.vacuum(progress=lambda done, total: told.append((done, total)))
    assert told == [(5, 5)]


def test_handles_at_version_0_refresh_after_a_truncation(root):
    """Version 0 is never deleted, so it alone does not show that later commits are gone."""
    table = make(root)
    reader, writer = arrowlog.Table(root), arrowlog.Table(root)
    assert (reader.snapshot().version, writer.snapshot().version) == (0, 0)
    for number in range(4):
        table.write(rows(number))
    table.truncate_history()
    assert writer.write(rows(9)).version == 5
    assert ids(reader) == ids(arrowlog.Table(root)) == [0, 1, 2, 3, 9]


def test_handles_at_a_commit_kept_for_its_skip_refresh_after_a_truncation(root):
    table = make(root)
    table.write(rows(0))
    table.skips.record("x.parquet", "broken")
    reader, writer = arrowlog.Table(root), arrowlog.Table(root)
    assert (reader.snapshot().version, writer.snapshot().version) == (2, 2)
    for number in range(1, 4):
        table.write(rows(number))
    table.truncate_history()
    assert writer.write(rows(9)).version == 6
    assert ids(reader) == ids(arrowlog.Table(root)) == [0, 1, 2, 3, 9]


def test_truncation_waits_for_stalled_writers(place, monkeypatch):
    waited = []
    monkeypatch.setattr("arrowlog.clock.SystemClock.sleep", lambda _, s: waited.append(s))
    how = {"storage_options": place.options}
    if hasattr(place, "accelerate"):
        how["options"] = {"store.accelerate": place.accelerate}
    table = arrowlog.Table.create(place.uri, SCHEMA, ["day"], **how)
    for number in range(3):
        table.write(rows(number))
    done = table.truncate_history()
    assert (done.num_files, table.earliest_version) == (2, 3)
    if place.store.cheap_stat:
        assert waited == []  # writers verify each put
    else:
        assert 25 < sum(waited) < 35


@pytest.mark.promise("vacuum.beside_writers")
def test_truncation_with_concurrent_writers_loses_no_commit(root):
    """Writers fall behind now and then while the commits they have not read are deleted."""
    make(root)
    stop = threading.Event()
    told, errors = [], []

    def write(name, pause):
        table = arrowlog.Table(root)
        try:
            for number in range(100_000):
                if stop.is_set():
                    return
                path = f"{name}-{number}.parquet"
                table.append([arrowlog.add_file(path, {"day": "a"}, size=1, modification_time=1)])
                told.append(path)
                stop.wait(pause)
        except BaseException as error:  # noqa: BLE001 -- the test says what it was
            errors.append(error)

    writers = [threading.Thread(target=write, args=(f"w{n}", n * 0.15)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        table = arrowlog.Table(root)
        for _ in range(cases(3)):
            enough = len(told) + 5
            wait_until(lambda least=enough: len(told) >= least or errors, "commits of the writers")
            assert table.truncate_history().num_files
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert errors == []
    live = arrowlog.Table(root, strict=True).snapshot().files["path"].to_pylist()
    assert sorted(live) == sorted(told)
