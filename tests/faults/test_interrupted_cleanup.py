"""A cleanup that is interrupted after any deletion leaves a log that is read and vacuumed."""

import itertools
import shutil

import pyarrow as pa
import pytest

import arrowlog
from arrowlog.errors import LogCorrupt
from arrowlog.maintenance import cleanup
from arrowlog.storage.local import LocalStore

SCHEMA = pa.schema([("id", pa.int64())])
OPTIONS = {"checkpoint.enabled": False}


class InterruptionError(BaseException):
    """Not an `Exception`, so that nothing handles it: the process ends here."""


def open_table(root):
    return arrowlog.Table(root, options=OPTIONS)


def write(table, number):
    table.write(pa.table({"id": [number]}, schema=SCHEMA))


def interrupt_after(monkeypatch, count):
    """Let the store delete so many files one by one, and then end the process."""
    delete, left = LocalStore.delete, itertools.count(count, -1)

    def delete_some(self, keys):
        for key in keys:
            if next(left) <= 0:
                raise InterruptionError
            delete(self, [key])

    monkeypatch.setattr(LocalStore, "delete", delete_some)


@pytest.fixture
def original(tmp_path):
    """A table that was truncated to version 2 and has two commits since."""
    root = tmp_path / "original"
    table = arrowlog.Table.create(root, SCHEMA, options=OPTIONS)
    for number in range(2):
        write(table, number)
    table.truncate_history()
    for number in range(2, 4):
        write(table, number)
    return root


@pytest.mark.parametrize("form", ["auto", "json", "parquet"])
@pytest.mark.promise("maintenance.no_row_is_lost")
def test_log_is_intact_after_any_deletion_of_an_interrupted_truncation(original, monkeypatch, form):
    for count in itertools.count():
        root = original.with_name(f"interrupted after {count}")
        shutil.copytree(original, root)
        table = arrowlog.Table(root, options={**OPTIONS, "checkpoint.format": form})
        finished = False
        with monkeypatch.context() as patch:
            interrupt_after(patch, count)
            try:
                table.truncate_history()
                finished = True
            except InterruptionError:
                pass
        check_intact(root)
        if finished:
            break
    assert count > 3


def check_intact(root):
    table = open_table(root)
    newest = table.scan().to_arrow()
    assert sorted(newest["id"].to_pylist()) == [0, 1, 2, 3]
    versions = range(table.earliest_version, table.version + 1)
    rows = {version: sorted_rows(table, version) for version in versions}
    table.vacuum("0s", force=True)
    assert open_table(root).earliest_version == table.earliest_version
    for version in versions:
        assert sorted_rows(open_table(root), version) == rows[version]
    table.truncate_history()
    assert open_table(root).earliest_version == table.version
    names = [path.name for path in (root / "_transaction_log").rglob("*") if path.is_file()]
    newest = f"{table.version:020d}"
    assert not [n for n in names if "checkpoint." in n and not n.startswith(newest)]


def sorted_rows(table, version):
    return sorted(table.scan(version=version).to_arrow()["id"].to_pylist())


def test_log_opens_while_a_cleanup_deletes_what_another_has_left(tmp_path, monkeypatch):
    """A part is listed, and gone when it is read."""
    options = {**OPTIONS, "checkpoint.format": "parquet"}
    table = arrowlog.Table.create(tmp_path, SCHEMA, options=options)
    for number in range(2):
        write(table, number)
    table.truncate_history()
    left = table.version
    write(table, 2)
    table.checkpoint()
    folder = tmp_path / "_transaction_log" / "_checkpoints"
    (folder / f"{left:020d}.checkpoint.json").unlink()
    part = folder / f"{left:020d}.checkpoint.parquet"
    read = LocalStore.get_range

    def read_after_deletion(self, key, start, stop):
        if key.endswith(part.name):
            part.unlink(missing_ok=True)
        return read(self, key, start, stop)

    monkeypatch.setattr(LocalStore, "get_range", read_after_deletion)
    reader = open_table(tmp_path)
    assert not part.exists()
    assert sorted_rows(reader, reader.version) == [0, 1, 2]
    assert reader.earliest_version == left + 1


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_cleanup_survives_a_truncation_while_it_verifies_a_checkpoint(tmp_path, monkeypatch, form):
    """The checkpoint was listed, and another process has deleted it with the commits below."""
    options = {**OPTIONS, "checkpoint.format": form}
    table = arrowlog.Table.create(tmp_path, SCHEMA, options=options)
    for number in range(2):
        write(table, number)
    table.truncate_history()
    write(table, 2)
    other, verify = open_table(tmp_path), cleanup.verify_checkpoint
    truncated = []

    def truncate_first(*args):
        if not truncated:
            truncated.append(other.version)
            other.truncate_history()
        return verify(*args)

    monkeypatch.setattr(cleanup, "verify_checkpoint", truncate_first)
    assert table.cleanup().earliest_version == truncated[0]
    assert sorted_rows(open_table(tmp_path), truncated[0]) == [0, 1, 2]


def test_manifests_are_deleted_before_parts_in_a_request_of_their_own(original, monkeypatch):
    """A store deletes the files of one request in any order."""
    requests, delete = [], LocalStore.delete

    def delete_and_record(self, keys):
        requests.append([key.rpartition("/")[2] for key in keys])
        delete(self, keys)

    monkeypatch.setattr(LocalStore, "delete", delete_and_record)
    table = open_table(original)
    first = f"{table.earliest_version:020d}.checkpoint"
    table.truncate_history()
    (manifest,) = [n for n, names in enumerate(requests) if f"{first}.json" in names]
    (part,) = [n for n, names in enumerate(requests) if f"{first}.parquet" in names]
    assert manifest < part


def test_vacuum_beside_an_incomplete_checkpoint_says_what_to_do(original):
    folder = original / "_transaction_log" / "_checkpoints"
    (manifest,) = folder.glob("*.json")
    kept = manifest.read_bytes()
    open_table(original).truncate_history()
    manifest.write_bytes(kept)  # a manifest whose part is gone: it may be restored
    before = sorted(original.rglob("*.parquet"))
    with pytest.raises(LogCorrupt, match=r"version 2 is incomplete.*truncate_history"):
        open_table(original).vacuum("0s", force=True)
    assert sorted(original.rglob("*.parquet")) == before
    open_table(original).truncate_history()
    check_intact(original)
