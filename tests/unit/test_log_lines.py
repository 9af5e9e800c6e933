"""Every log record: at its level, once, with exactly the documented fields."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from support import small_table
from support.logged import SECONDS_MAX, append, create

import arrowlog
from arrowlog import log_lines
from arrowlog import storage as store_module
from arrowlog.errors import StoreUnavailable
from arrowlog.log_lines import EVENTS
from arrowlog.storage import PutOutcome
from arrowlog.storage.fsspec_store import MemoryStore

INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR


def test_checkpoint_is_logged_once(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table)
    result = table.checkpoint()
    (line,) = lines("checkpoint_created")
    assert (line.levelno, line.version, line.files, line.background) == (INFO, 1, 1, False)
    assert (line.bytes, line.uncompressed_bytes) == (result.size_bytes, result.uncompressed_bytes)
    assert (line.ratio, line.ms) == (result.compression_ratio, result.milliseconds)
    assert "created checkpoint at version 1 with 1 active files" in line.getMessage()
    table.checkpoint()  # it exists already
    assert len(lines("checkpoint_created")) == 1


def test_background_checkpoint_and_its_cleanup_are_logged(tmp_path, lines):
    table = create(tmp_path / "t", **{"checkpoint.enabled": True, "checkpoint.interval": 1})
    append(table)
    assert table.wait_for_checkpoint(SECONDS_MAX)
    (line,) = lines("checkpoint_created")
    assert (line.version, line.background) == (1, True)
    assert len(lines("cleanup_idle")) == 1
    assert not lines("cleanup_done")


def test_cleanup_logs_deleted_files(tmp_path, lines):
    soon = {"logRetention.duration": "0s", "checkpointRetention.duration": "0s"}
    table = create(tmp_path / "t", **soon)
    for number in range(3):
        append(table, f"f{number}")
    table.checkpoint()
    result = table.cleanup()
    (line,) = lines("cleanup_done")
    assert (line.files, line.bytes, line.failures) == (2, result.bytes_freed, 0)
    assert (line.earliest_version, line.ms) == (3, result.milliseconds)
    deleted = lines("log_file_deleted")
    assert {(each.kind, each.version) for each in deleted} == {("commit", 1), ("commit", 2)}
    assert sum(each.bytes for each in deleted) == line.bytes


class Stubborn(store_module.LocalStore):
    """A store without deletions."""

    def delete(self, keys):
        raise StoreUnavailable("It is nailed down.")


def test_failed_deletion_is_logged_as_a_warning(tmp_path, lines, monkeypatch):
    table = create(tmp_path / "t")
    append(table)
    append(table, "b")
    table.checkpoint()
    monkeypatch.setattr(store_module, "LocalStore", Stubborn)
    again = arrowlog.Table(tmp_path / "t", options={"logRetention.duration": "0s"})
    with pytest.warns(arrowlog.ArrowlogWarning, match="deletions failed"):
        again.cleanup()
    assert "It is nailed down" in lines("deletion_failed")[0].reason
    strict = {"cleanup.failurePolicy": "fail", "checkpoint.interval": 1}
    third = arrowlog.Table(tmp_path / "t", options={"logRetention.duration": "0s", **strict})
    append(third, "c")
    assert third.wait_for_checkpoint(SECONDS_MAX)
    assert "It is nailed down" in lines("cleanup_failed")[0].reason


def test_young_commits_and_the_wait_for_them_are_logged(lines, monkeypatch, tmp_path):
    monkeypatch.setattr(MemoryStore, "cheap_stat", False)  # as over a network
    table = create(f"memory://{tmp_path.name}", **{"logRetention.duration": "0s"})
    append(table)
    append(table, "b")
    table.checkpoint()
    table.cleanup()
    assert [(line.commits, line.seconds) for line in lines("cleanup_deferred")] == [(1, 30.0)]
    monkeypatch.setattr(table._session.clock, "sleep", lambda seconds: None, raising=False)
    table.truncate_history()
    (line,) = lines("truncation_waits")
    assert 0 < line.wait_seconds <= line.seconds == 30


def test_skips_and_cooldowns_are_logged(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table, "bad.parquet")
    table.skips.record("bad.parquet", "torn")
    (line,) = lines("skip_recorded")
    assert (line.path, line.skip_count, line.reason) == ("bad.parquet", 1, "torn")
    assert line.retry_after.endswith("+00:00")
    assert (line.operation, line.version) == ("merge", 2)
    assert table.skips.is_active("bad.parquet")
    assert table.skips.is_active(f"{table.uri}/bad.parquet")
    assert not table.skips.is_active("good.parquet")
    assert not lines("cooldown_filtered")  # nothing was left out so far
    assert table.skips.filter(["bad.parquet", "good.parquet"]) == ["good.parquet"]
    assert table.skips.filter(table.snapshot()).num_rows == 0
    table.compact()
    assert [each.files for each in lines("cooldown_filtered")] == [1, 1, 1]
    assert {each.path for each in lines("file_in_cooldown")} == {"bad.parquet"}


def test_file_skipped_by_compaction_is_logged_as_a_warning(tmp_path, lines):
    table = create(tmp_path / "t")
    for day in range(3):
        table.write(pa.table({"day": [None], "id": [day]}).cast(small_table.SCHEMA))
    (torn, *_) = table.snapshot().files["path"].to_pylist()
    Path(table.uri, torn).write_bytes(b"PAR1")
    result = table.compact()
    (line,) = lines("merge_skipped")
    assert (line.levelno, line.path) == (WARNING, torn)
    assert line.reason == result.skipped[0][1]
    (done,) = lines("compaction_done")
    assert (done.files_removed, done.files_added, done.skipped) == (2, 1, 1)
    assert done.ms == result.milliseconds > 0
    assert result.size_ratio == log_lines.compression_ratio(
        result.bytes_removed, result.bytes_added
    )


def test_vacuum_is_logged(tmp_path, lines):
    table = create(tmp_path / "t")
    Path(table.uri, "orphan.parquet").write_bytes(b"x" * 7)
    result = table.vacuum("0s", force=True)
    (line,) = lines("vacuum_done")
    assert (line.files, line.bytes, line.failures, line.ms) == (1, 7, 0, result.milliseconds)
    table.vacuum("0s", force=True, dry_run=True)
    assert len(lines("vacuum_done")) == 1


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy", "none"])
def test_codec_and_sizes_of_commits_are_logged(tmp_path, lines, codec):
    table = create(tmp_path / "t", **{"transaction.compression.codec": codec})
    result = append(table, "x", "y" * 2000)
    (written,) = lines("commit_landed")
    assert (written.codec, written.version, written.attempts) == (codec, 1, 1)
    size = os.path.getsize(f"{table.uri}/_transaction_log/{1:020d}.json")
    assert written.bytes == result.size_bytes == size
    assert (written.uncompressed_bytes, written.ratio) == (
        result.uncompressed_bytes,
        result.compression_ratio,
    )
    assert (written.uncompressed_bytes == size) == (codec == "none")
    assert written.txn_id == result.txn_id
    arrowlog.Table(tmp_path / "t").snapshot()
    read = {line.version: line for line in lines("commit_read")}
    assert (read[1].codec, read[1].bytes) == (codec, size)
    assert read[1].uncompressed_bytes == written.uncompressed_bytes
    assert read[1].path == f"_transaction_log/{1:020d}.json"


@pytest.mark.parametrize("commits", [1, 200])
@pytest.mark.parametrize("size", [10, 200_000])
def test_every_commit_read_is_logged(tmp_path, lines, commits, size):
    """Small files are read in batches, large ones alone, over a network several at a time."""
    if size > 10 and commits > 1:
        commits = 3
    for kind in ("t", f"memory://{tmp_path.name}{commits}-{size}"):
        root = kind if ":" in kind else tmp_path / kind
        table = create(root, **{"transaction.compression.codec": "none"})
        for number in range(commits):
            append(table, f"{number}", "x" * size)
        before = len(lines("commit_read"))
        assert arrowlog.Table(root).snapshot().num_files == commits
        read = lines("commit_read")[before:]
        assert [line.version for line in read] == list(range(commits + 1))
        assert all(line.bytes == line.uncompressed_bytes for line in read)


def test_unknown_codec_is_logged_as_an_error(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table)
    Path(table.uri, "_transaction_log", f"{1:020d}.json").write_bytes(b"\x01\x09abc")
    with pytest.raises(arrowlog.LogCorrupt, match="codec"):
        arrowlog.Table(tmp_path / "t").snapshot()
    line = lines("unsupported_codec")[0]
    assert (line.levelno, line.codec) == (ERROR, "0x09")
    assert line.path == f"_transaction_log/{1:020d}.json"


def test_loads_and_refreshes_are_logged(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table)
    reader = arrowlog.Table(tmp_path / "t")
    before = len(lines("state_loaded"))
    report = reader.snapshot().report
    (line,) = lines("state_loaded")[before:]
    assert (line.source, line.checkpoint, line.commits, line.version) == ("commits", None, 2, 1)
    assert (line.ms, line.bytes) == (report.milliseconds, report.bytes_read)
    append(table, "b")
    reader.refresh()
    assert (lines("refreshed")[-1].version, lines("refreshed")[-1].commits) == (2, 1)
    table.checkpoint()
    arrowlog.Table(tmp_path / "t").snapshot()
    line = lines("state_loaded")[-1]
    assert (line.source, line.checkpoint, line.commits) == ("checkpoint", 2, 0)


def test_commit_attempts_and_conflicts_are_logged(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table, "a")
    other = arrowlog.Table(tmp_path / "t", options={"checkpoint.enabled": False})
    other.snapshot()
    table.remove(["a"])
    with pytest.raises(arrowlog.ConcurrentRemove) as raised:
        other.remove(["a"])
    (line,) = lines("commit_conflict")
    assert (line.levelno, line.error, line.version) == (INFO, "ConcurrentRemove", 2)
    assert line.reason == str(raised.value)
    assert [each.attempt for each in lines("commit_attempt")] == [1, 1, 1]
    assert {each.operation for each in lines("commit_attempt")} == {"WRITE", "DELETE"}


def test_lost_race_is_logged(tmp_path, lines, monkeypatch):
    table = create(tmp_path / "t")
    append(table, "a")
    usual = store_module.LocalStore.put_if_absent

    def late(self, key, data):
        monkeypatch.setattr(store_module.LocalStore, "put_if_absent", usual)
        append(arrowlog.Table(tmp_path / "t"), "winner")
        return usual(self, key, data)

    monkeypatch.setattr(store_module.LocalStore, "put_if_absent", late)
    assert append(table, "b").version == 3
    (line,) = lines("commit_lost_race")
    assert (line.version, line.losses) == (2, 1)
    assert lines("commit_landed")[-1].attempts == 2


@pytest.mark.thorough
def test_commit_of_unknown_outcome_is_logged_as_a_warning(tmp_path, lines, monkeypatch):
    table = create(tmp_path / "t", **{"commit.timeoutSeconds": 1})
    append(table)
    monkeypatch.setattr(
        store_module.LocalStore, "put_if_absent", lambda self, key, data: PutOutcome.UNKNOWN
    )
    with pytest.raises(arrowlog.CommitStateUnknown) as raised:
        append(table, "b")
    (line,) = lines("commit_unknown")
    assert (line.version, line.txn_id) == (2, raised.value.txn_id)


def test_failed_checkpoint_is_logged_as_a_warning(tmp_path, lines, monkeypatch):
    table = create(tmp_path / "t", **{"checkpoint.enabled": True, "checkpoint.interval": 1})
    usual = store_module.LocalStore.put_if_absent

    def refuse(self, key, data):
        if "checkpoint" in key:
            raise StoreUnavailable("It burns.")
        return usual(self, key, data)

    monkeypatch.setattr(store_module.LocalStore, "put_if_absent", refuse)
    append(table)
    assert table.wait_for_checkpoint(SECONDS_MAX)
    (line,) = lines("checkpoint_failed")
    assert (line.version, line.error) == (1, "StoreUnavailable")
    assert "It burns." in line.reason
    assert [each.attempt for each in lines("checkpoint_read_back")] == [1, 2]
    assert table.metrics()["checkpoint_failures"] == 1


def test_repair_is_logged(tmp_path, lines):
    table = create(tmp_path / "t")
    append(table, "gone.parquet")
    log = f"{table.uri}/_transaction_log"
    arrowlog.repair(log, f"{table.uri}/_repaired")
    (line,) = lines("repair_done")
    assert (line.version, line.files, line.missing) == (1, 0, 1)
    assert "gone.parquet" in lines("repair_note")[0].note
    arrowlog.repair(tmp_path / "nowhere", tmp_path / "new")
    assert lines("repair_failed")[0].levelno == ERROR


def test_every_log_event_has_a_test():
    text = (
        Path(__file__).read_text()
        + Path(__file__).with_name("test_checkpoint_errors.py").read_text()
    )
    assert not [name for name in EVENTS if f'lines("{name}")' not in text]


def test_retried_request_is_logged_without_secrets(lines, tmp_path):
    store = MemoryStore(f"memory://{tmp_path.name}", {"secret": "hunter2hunter2"}, None, 5)
    failures = [OSError("no hunter2hunter2 here"), None]

    def call():
        failure = failures.pop(0)
        if failure:
            raise failure
        return b"x"

    assert store.with_retries("read", "where", call) == b"x"
    (line,) = lines("store_retry")
    assert (line.operation, line.reason) == ("read", "OSError: no *** here")
    assert store.metrics["store_retries"] == {"memory": {"read": 1}}


def test_checkpoints_stopped_by_a_fork_are_logged_once(tmp_path, lines, monkeypatch):
    from arrowlog.maintenance import checkpointing

    table = create(tmp_path / "t", **{"checkpoint.enabled": True, "checkpoint.interval": 1})
    table.snapshot()
    monkeypatch.setattr(checkpointing, "polars_is_stranded", lambda: True)
    append(table)
    append(table, "b")
    (line,) = lines("checkpoints_stopped")
    assert line.levelno == WARNING


SILENT = """
import sys, logging, arrowlog, pyarrow as pa
table = arrowlog.Table.create(sys.argv[1], pa.schema([("id", pa.int64())]))
logging.getLogger("arrowlog.checkpoint").warning("nobody listens")
assert not logging.getLogger("arrowlog").isEnabledFor(logging.INFO)
"""


def test_nothing_is_printed_without_logging_configuration(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SILENT, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_disabled_log_levels_create_no_records(tmp_path, monkeypatch, caplog):
    caplog.set_level(WARNING, logger="arrowlog")
    monkeypatch.setattr(
        logging.Logger, "makeRecord", lambda *_, **__: pytest.fail("a record was made")
    )
    table = create(tmp_path / "t")
    append(table)
    table.checkpoint()
    assert arrowlog.Table(tmp_path / "t").snapshot().files.num_rows == 1


@pytest.mark.s3
@pytest.mark.parametrize("accelerate", [True, False])
def test_no_log_record_or_metric_has_a_credential(moto, caplog, accelerate):
    caplog.set_level(logging.DEBUG, logger="arrowlog")
    server, client = moto
    bucket = f"logged-{accelerate}".lower()
    client.create_bucket(Bucket=bucket)
    secrets = {"key": "AKIAKEYKEYKEYKEY", "secret": "s3cr3t/s3cr3t+s3cr3t"}
    storage = {**server.options, **secrets, "token": "t0k3n-t0k3n-t0k3n"}
    options = {"store.accelerate": accelerate, "checkpoint.interval": 2}
    how = {"storage_options": storage, "options": options}
    table = arrowlog.Table.create(f"s3://{bucket}/t", small_table.SCHEMA, ["day"], **how)
    for number in range(4):
        append(table, f"f{number}")
    assert table.wait_for_checkpoint(SECONDS_MAX)
    table.skips.record("f1", "torn")
    table.vacuum("0s", force=True)
    arrowlog.Table(f"s3://{bucket}/t", **how).snapshot()
    with pytest.raises(arrowlog.ArrowlogError):
        arrowlog.Table(f"s3://{bucket}-missing/t", **how).snapshot()
    said = "".join(f"{vars(record)} {record.getMessage()}" for record in caplog.records)
    shown = f"{said} {table.metrics()!r} {arrowlog.metrics.to_dict()}"
    assert "checkpoint_created" in said
    assert not [text for text in (*secrets.values(), storage["token"]) if text in shown]
    assert list(table.metrics()["store_requests"]) == ["s3"]
    assert table.metrics()["store_bytes_written"]["s3"] > 1000
    assert table.metrics()["store_bytes_read"]["s3"] > 1000


COMMAND = """
import sys
from arrowlog import storage
from arrowlog.errors import StoreFull

def refuse(self, key, data, usual=storage.LocalStore.put_if_absent):
    if "checkpoint" in key:
        raise StoreFull("The disk is full.")
    return usual(self, key, data)

storage.LocalStore.put_if_absent = refuse
import arrowlog.cli
sys.argv = ["arrowlog", "set-property", sys.argv[1], "a=b", "--set", "checkpoint.interval=1"]
raise SystemExit(arrowlog.cli.main())
"""


def test_command_line_prints_a_failed_background_checkpoint(tmp_path):
    create(tmp_path / "t")
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning: ") == 1
    assert "the checkpoint of version 1 failed: The disk is full." in done.stderr
