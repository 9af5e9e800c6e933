"""Checkpoints streamed by backward replay: damage, failures and races publish none of them."""

import errno
import glob
import json
import os
import warnings
from unittest import mock

import pyarrow as pa
import pytest
from support import parquet_checkpoints

import arrowlog
from arrowlog import testing
from arrowlog.errors import (
    ArrowlogWarning,
    CheckpointWriteError,
    LogCorrupt,
    StoreFull,
    StoreUnavailable,
    UnsupportedProtocol,
)
from arrowlog.maintenance import procedures
from arrowlog.snapshot.checkpoint import incremental, parquet, row_spill, streaming
from arrowlog.snapshot.checkpoint import json as json_form
from arrowlog.snapshot.checkpoint_files import CheckpointFiles
from arrowlog.storage.local import LocalStore

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64())])
NEWEST = 12
OPTIONS = {"checkpoint.format": "both", "checkpoint.enabled": False}


@pytest.fixture(autouse=True)
def streamed(monkeypatch):
    """Stream every log, a commit at a time; returns the files that were streamed."""
    monkeypatch.setattr(streaming, "STREAMED_LOG_BYTES_MIN", 0)
    monkeypatch.setattr(streaming, "STREAMED_FILES_MIN", 0)
    monkeypatch.setattr(streaming, "_FRESH_SHARE_MIN", 0)
    monkeypatch.setattr(streaming, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(streaming, "_BLOCK_BYTES_MAX", 1)
    monkeypatch.setattr(parquet, "SHARED_FILES_MIN", 1)
    parquet_checkpoints.small_groups(monkeypatch, 4)
    files, finish = [], streaming.RowStream.finish

    def noting(self):
        files.append(finish(self))
        return files[-1]

    monkeypatch.setattr(streaming.RowStream, "finish", noting)
    return files


@pytest.fixture
def root(tmp_path):
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(SCHEMA, ["day"])])
    for version in range(1, NEWEST + 1):
        actions = [testing.remove(f"{version - 2}-0.parquet")] if version > 2 else []
        for number in range(3):
            add = testing.add(f"{version}-{number}.parquet", {"day": "2024-01-01"})["add"]
            low = 100 * version + number
            add |= {"minValues": {"id": str(low)}, "maxValues": {"id": str(low + 1)}}
            actions.append({"add": add})
        info = testing.commit_info(1_700_000_000_000 + version, numActions=len(actions))
        testing.write_commit(tmp_path, version, [info, *actions])
    return tmp_path


def commit_file(root, version):
    return f"{root}/_transaction_log/{version:020d}.json"


def checkpoint_files(root):
    """Return the files that make a version of the log a checkpoint, or point to one."""
    log = f"{root}/_transaction_log"
    named = glob.glob(f"{log}/*checkpoint*") + glob.glob(f"{log}/_checkpoints/*.json")
    return [name for name in named if not name.endswith("_checkpoints")]


def assert_closed(files):
    assert files
    for each in files:
        assert each.spill._file.closed


def replace_text(path, old, new):
    with open(path) as file:
        text = file.read()
    assert old in text
    with open(path, "w") as file:
        file.write(text.replace(old, new, 1))


@pytest.mark.promise("errors.typed_and_named")
@pytest.mark.parametrize("version", [0, 1, 6, NEWEST])
@pytest.mark.parametrize(("old", "new"), [('"path":"', '"path":'), ("{", "x{"), ('"add', "add")])
def test_damaged_commit_raises_and_writes_no_checkpoint(root, version, old, new):
    if version == 0:
        old, new = '"schemaString":"', '"schemaString":"x'
    replace_text(commit_file(root, version), old, new)
    with pytest.raises(LogCorrupt) as error:
        arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert f"{version:020d}.json" in str(error.value)
    assert not checkpoint_files(root)


def test_commit_with_a_missing_action_raises_and_writes_no_checkpoint(root):
    with open(commit_file(root, 5)) as file:
        lines = file.readlines()
    with open(commit_file(root, 5), "w") as file:
        file.writelines(lines[:-1])
    with pytest.raises(LogCorrupt, match="declares 4 actions but has 3"):
        arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert not checkpoint_files(root)


def test_newer_protocol_is_refused(root):
    newer = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    testing.write_commit(root, NEWEST + 1, [newer])
    with pytest.raises(UnsupportedProtocol):
        arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert not checkpoint_files(root)


def test_external_path_is_refused(root):
    testing.write_commit(root, NEWEST + 1, [testing.add("../x.parquet", {"day": "2024-01-01"})])
    with pytest.raises(LogCorrupt, match="outside the table"):
        arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert not checkpoint_files(root)


def test_schema_change_between_commits_is_applied(root, streamed):
    wider = SCHEMA.append(pa.field("name", pa.string()))
    replaced = testing.metadata(wider, ["day"])
    with open(commit_file(root, 6)) as file:
        text = file.read()
    with open(commit_file(root, 6), "w") as file:
        file.write(text.replace('"numActions":4', '"numActions":5') + json.dumps(replaced) + "\n")
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert_closed(streamed)
    after = arrowlog.Table(root).snapshot()
    assert after.schema.names == wider.names
    assert after.report.checkpoint == NEWEST
    assert parquet_checkpoints.said(after) == expected


@pytest.mark.parametrize("at", ["open", "write"])
def test_full_temporary_disk_falls_back_to_memory(root, streamed, at):
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    full = OSError(errno.ENOSPC, "No space left on device")
    if at == "open":
        patch = mock.patch.object(row_spill.tempfile, "TemporaryFile", side_effect=full)
    else:
        file = mock.Mock(write=mock.Mock(side_effect=full))
        patch = mock.patch.object(row_spill.tempfile, "TemporaryFile", return_value=file)
    with patch:
        written = arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert written.num_files == expected["num_files"]
    assert not streamed
    if at == "write":
        assert file.close.called
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected


@pytest.mark.promise("checkpoint.damage_is_found")
def test_damaged_base_checkpoint_is_bypassed(root):
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    parquet_checkpoints.write(root, 5)
    part = max(glob.glob(f"{parquet_checkpoints.folder(root)}/*.parquet"), key=os.path.getsize)
    with open(part, "r+b") as file:
        file.seek(os.path.getsize(part) // 2)
        file.write(b"\xff" * 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        arrowlog.Table(root, options=OPTIONS).checkpoint()
    after = arrowlog.Table(root).snapshot()
    assert after.report.checkpoint == NEWEST
    assert parquet_checkpoints.said(after) == expected


class _Lost(Exception):
    """The process dies."""


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("failure", [StoreUnavailable("no", next=""), _Lost()])
def test_failure_while_writing_parts_publishes_nothing(root, streamed, failure):
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    put, count = parquet.put_identical, []

    def failing(*args):
        count.append(args)
        if len(count) > 1:
            raise failure
        return put(*args)

    kind = CheckpointWriteError if isinstance(failure, StoreUnavailable) else _Lost
    options = OPTIONS | {"checkpoint.maxFileSize": 1}
    with mock.patch.object(parquet, "put_identical", failing), pytest.raises(kind):
        arrowlog.Table(root, options=options).checkpoint()
    assert not checkpoint_files(root)
    assert_closed(streamed)
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected
    arrowlog.Table(root, options=options).checkpoint()
    assert arrowlog.Table(root).snapshot().report.checkpoint == NEWEST
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected


@pytest.mark.promise("checkpoint.changes_nothing")
def test_concurrent_writer_of_the_same_checkpoint_wins(root, streamed):
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    put, others = parquet.put_manifest, []

    def racing(*args, **kwargs):
        if not others:
            others.append(None)
            other = arrowlog.Table(root, options=OPTIONS)
            other.snapshot()
            others[0] = other.checkpoint()
        return put(*args, **kwargs)

    with mock.patch.object(parquet, "put_manifest", racing):
        written = arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert_closed(streamed)
    assert written.num_files == others[0].num_files == expected["num_files"]
    named = {part.name for part in parquet_checkpoints.manifest(root, NEWEST).parts}
    stored = glob.glob(f"{parquet_checkpoints.folder(root)}/*.parquet")
    assert {os.path.basename(name) for name in stored} == named
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected


def test_commit_deleted_meanwhile_is_detected(root, streamed):
    parquet_checkpoints.write(root, 5)
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    decode, done = streaming._BackwardReplay._decode, []

    def deleting(self, commits):
        if not done:
            done.append(True)
            arrowlog.Table(root, options={"checkpoint.format": "both"}).truncate_history()
        return decode(self, commits)

    with mock.patch.object(streaming._BackwardReplay, "_decode", deleting):
        written = arrowlog.Table(root, options=OPTIONS).checkpoint()
    assert written.version == NEWEST
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("failure", [StoreFull("full", next=""), _Lost()])
@pytest.mark.parametrize("written", [0, 1, 5])
def test_failure_while_writing_json_parts_publishes_no_json_form(
    root, streamed, failure, written, monkeypatch
):
    monkeypatch.setattr(json_form, "_SPILLED_PART_BYTES_MAX", 1)
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    options = OPTIONS | {"checkpoint.format": "json"}
    replace, count = LocalStore.replace, []

    def failing(self, key, data):
        if ".checkpoint." in key:
            count.append(key)
            if len(count) > written:
                raise failure
        return replace(self, key, data)

    kind = CheckpointWriteError if isinstance(failure, StoreFull) else _Lost
    with mock.patch.object(LocalStore, "replace", failing), pytest.raises(kind):
        arrowlog.Table(root, options=options).checkpoint()
    assert len(count) == written + 1
    assert_closed(streamed)
    manifests = f"{root}/_transaction_log/{NEWEST:020d}.checkpoint.json"
    assert not os.path.exists(manifests)
    assert parquet_checkpoints.said(arrowlog.Table(root).snapshot()) == expected
    arrowlog.Table(root, options=options).checkpoint()
    assert os.path.exists(manifests)
    after = arrowlog.Table(root).snapshot()
    assert (after.report.checkpoint, after.report.warnings) == (NEWEST, ())
    assert parquet_checkpoints.said(after) == expected


@pytest.mark.promise("checkpoint.changes_nothing")
def test_concurrent_writer_of_the_json_form_wins(root, streamed, monkeypatch):
    monkeypatch.setattr(json_form, "_SPILLED_PART_BYTES_MAX", 1)
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    options = OPTIONS | {"checkpoint.format": "json"}
    put, others = json_form._put, []

    def racing(*args, **kwargs):
        if not others:
            others.append(None)
            other = arrowlog.Table(root, options=options)
            other.snapshot()  # its files are in memory: it writes one object
            others[0] = other.checkpoint()
        return put(*args, **kwargs)

    with mock.patch.object(json_form, "_put", racing):
        written = arrowlog.Table(root, options=options).checkpoint()
    assert_closed(streamed)
    assert written.num_files == others[0].num_files == expected["num_files"]
    after = arrowlog.Table(root).snapshot()
    assert (after.report.checkpoint, after.report.warnings) == (NEWEST, ())
    assert parquet_checkpoints.said(after) == expected


FEATURES = {
    "minReaderVersion": 3,
    "minWriterVersion": 3,
    "readerFeatures": ["parquetCheckpoint"],
    "writerFeatures": ["parquetCheckpoint"],
}


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("shared_min", [1, 1000])
def test_checkpoint_that_upgrades_the_protocol_is_streamed_and_never_read_in_full(
    root, streamed, upgraded, shared_min, monkeypatch
):
    monkeypatch.setattr(parquet, "SHARED_FILES_MIN", shared_min)
    monkeypatch.setattr(incremental, "FOLDED_FILES_MAX", 1)
    if upgraded:
        testing.write_commit(root, NEWEST + 1, [{"protocol": FEATURES}])
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    options = OPTIONS | {"checkpoint.format": "parquet"}
    read_into, read = LocalStore.read_into, []

    def noting(self, buffer, keys, versions, enough):
        found = read_into(self, buffer, keys, versions, enough)
        read.extend(versions[: found[0]])
        return found

    with (
        mock.patch.object(LocalStore, "read_into", noting),
        mock.patch.object(streaming, "_SAMPLED_SHARE_MAX", 0),
        mock.patch.object(CheckpointFiles, "_to_adds", side_effect=AssertionError),
    ):
        result = arrowlog.Table(root, options=options).checkpoint()
    assert_closed(streamed)
    assert sorted(version for version in read if 0 < version <= NEWEST) == [*range(1, NEWEST + 1)]
    after = arrowlog.Table(root).snapshot()
    assert after.protocol.reader_features == ("parquetCheckpoint",)
    assert after.report.checkpoint == result.version == NEWEST + 1
    assert parquet_checkpoints.said(after)["adds"] == expected["adds"]
    assert not glob.glob(f"{root}/_transaction_log/*.checkpoint.json")
    written = glob.glob(f"{root}/_transaction_log/_checkpoints/*")
    assert sorted(os.path.basename(name) for name in result.names) == sorted(
        map(os.path.basename, written)
    )
    assert result.size_bytes == sum(map(os.path.getsize, written))


def test_failed_upgrade_leaves_a_valid_checkpoint_of_the_old_protocol(root, streamed):
    expected = parquet_checkpoints.said(arrowlog.Table(root).snapshot())
    options = OPTIONS | {"checkpoint.format": "parquet"}
    with (
        mock.patch.object(procedures, "upgrade_protocol", side_effect=StoreUnavailable("down")),
        pytest.raises(StoreUnavailable),
    ):
        arrowlog.Table(root, options=options).checkpoint()
    assert_closed(streamed)
    after = arrowlog.Table(root).snapshot()
    assert (after.version, after.report.checkpoint, after.report.warnings) == (NEWEST, NEWEST, ())
    assert parquet_checkpoints.said(after) == expected
