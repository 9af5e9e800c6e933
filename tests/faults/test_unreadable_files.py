"""The doctor continues past an unreadable log file and does not report it as lost."""

import os

import pyarrow as pa
import pytest
from support import faulty_wire
from support.faulty_wire import ALWAYS, Fault

import arrowlog
from arrowlog import errors
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.storage import LocalStore, fsspec_store

QUIET = {"checkpoint.enabled": False}
SCHEMA = pa.schema([("id", pa.int64())])


def build(root, options=None):
    """A table of six versions without a checkpoint."""
    table = arrowlog.Table.create(root, SCHEMA, options=QUIET, storage_options=options)
    for number in range(5):
        table.write(pa.table({"id": [number]}))
    return table


def make_unreadable(path):
    """Make a file that no user can read: opening it fails with ELOOP."""
    os.unlink(path)
    os.symlink(os.path.basename(path), path)


def commit_path(root, version):
    return f"{root}/{LOG_FOLDER}/{version:020d}.json"


@pytest.mark.parametrize("version", range(6))
def test_doctor_continues_after_an_unreadable_commit(root, version):
    build(root)
    make_unreadable(commit_path(root, version))
    found = arrowlog.doctor(root)
    [finding] = [each for each in found if each.code == "commit-unreadable"]
    assert (finding.severity, finding.version) == ("error", version)
    assert "symbolic links" in finding.what
    assert finding.where == f"{LOG_FOLDER}/{version:020d}.json"
    assert "doctor again" in finding.fix
    assert not [each for each in found if "repair" in each.fix], "the commit may be intact"
    assert found.version == (None if version == 0 else version - 1)


def test_unreadable_commits_do_not_suppress_other_findings(root):
    table = build(root)
    os.unlink(f"{root}/{table.snapshot(version=1).files['path'][0].as_py()}")
    make_unreadable(commit_path(root, 4))
    make_unreadable(commit_path(root, 5))
    found = arrowlog.doctor(root)
    assert [each.version for each in found if each.code == "commit-unreadable"] == [4, 5]
    assert "data-missing" in found.codes
    assert not [each for each in found if "repair" in each.fix]


def test_unreadable_commit_below_a_checkpoint_is_a_warning(root):
    table = build(root)
    table.checkpoint()
    table.write(pa.table({"id": [9]}))
    make_unreadable(commit_path(root, 2))
    found = arrowlog.doctor(root)
    [finding] = [each for each in found if each.code == "commit-unreadable"]
    assert finding.severity == "warning"
    assert "does not need it" in finding.what
    assert found.version == 6
    assert found.worst == "warning"


def test_unreadable_checkpoint_and_pointer_are_warnings(root):
    build(root).checkpoint()
    for folder, _, names in os.walk(f"{root}/{LOG_FOLDER}"):
        for name in names:
            if "checkpoint" in name:
                make_unreadable(f"{folder}/{name}")
    found = arrowlog.doctor(root)
    assert {"checkpoint-unreadable", "pointer-unreadable"} <= set(found.codes), found
    assert found.version == 5
    assert found.worst == "warning"


def test_unlistable_data_folder_leaves_the_log_checks(root, monkeypatch):
    build(root)
    make_unreadable(commit_path(root, 5))

    def walk(_):
        raise errors.AccessDenied("Could not list x: permission denied.", next="Check the owner.")

    monkeypatch.setattr(LocalStore, "walk", walk)
    found = arrowlog.doctor(root)
    assert {"commit-unreadable", "data-unchecked"} <= set(found.codes)


def test_repair_refuses_a_log_with_an_unreadable_commit(root, tmp_path):
    build(root)
    make_unreadable(commit_path(root, 3))
    result = arrowlog.repair(f"{root}/{LOG_FOLDER}", str(tmp_path / "repaired"))
    assert result["status"][0].as_py().startswith("ERROR")
    assert not os.path.exists(tmp_path / "repaired")


@pytest.fixture
def one_attempt(monkeypatch):
    """Give up after one attempt: a pause before the second would exceed every limit."""
    monkeypatch.setattr(fsspec_store, "_BACKOFF_SECONDS", 3600.0)


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("accelerate", [True, False], ids=["obstore", "s3fs"])
@pytest.mark.parametrize("status", [403, 500])
def test_one_object_the_server_fails_to_serve_is_a_finding(moto, status, accelerate):
    with faulty_wire.before(moto[0]) as wire:
        options = {**moto[0].options, "endpoint_url": wire.url}
        options |= {} if accelerate else {"requester_pays": False}  # only s3fs knows it
        uri = f"s3://bucket/unreadable-{status}-{accelerate}"
        build(uri, options)
        wire.faults = [Fault(status, "GET", f"{3:020d}.json", times=ALWAYS)]
        found = arrowlog.doctor(uri, options)
    [finding] = [each for each in found if each.code == "commit-unreadable"]
    assert finding.version == 3
    assert str(status) in finding.what
    assert found.version == 2


@pytest.mark.usefixtures("one_attempt")
def test_doctor_raises_when_the_whole_store_fails(moto):
    with faulty_wire.before(moto[0]) as wire:
        options = {**moto[0].options, "endpoint_url": wire.url}
        build("s3://bucket/whole", options)
        wire.faults = [Fault(500, "GET", ".json", times=ALWAYS)]
        with pytest.raises(errors.StoreUnavailable, match="500 InternalError"):
            arrowlog.doctor("s3://bucket/whole", options)
