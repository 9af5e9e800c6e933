"""Writes to local disks leave no temporary files, and failures raise clear errors."""

import os
import shutil
import stat
import sys
import tempfile

import pytest

from arrowlog.errors import StoreFull, StoreUnavailable
from arrowlog.storage import LocalStore, PutOutcome, local

LOG = "_transaction_log"
NOBODY = 65_534


@pytest.fixture(params=["nameless", "named"])
def store(request, tmp_path, monkeypatch):
    """A store with and without `O_TMPFILE`."""
    if request.param == "named":
        monkeypatch.setattr(local, "_O_TMPFILE", None)
    elif sys.platform == "linux":
        assert local._O_TMPFILE is not None
    return LocalStore(str(tmp_path / "table"))


def everything(store):
    return sorted(
        os.path.relpath(f"{at}/{n}", store.root) for at, _, ns in os.walk(store.root) for n in ns
    )


def test_writes_leave_no_temporary_files(store):
    assert store.put_if_absent(f"{LOG}/1", b"mine") is PutOutcome.DONE
    assert store.put_if_absent(f"{LOG}/1", b"late") is PutOutcome.EXISTS
    store.replace(f"{LOG}/_last_checkpoint", b"1")
    store.replace(f"{LOG}/_last_checkpoint", b"2")
    assert everything(store) == [f"{LOG}/1", f"{LOG}/_last_checkpoint"]
    assert store.get(f"{LOG}/1") == b"mine"


@pytest.mark.parametrize("call", ["put_if_absent", "replace"])
def test_failed_write_leaves_nothing(store, call, monkeypatch):
    store.put_if_absent(f"{LOG}/0", b"0")
    write, calls = os.write, []

    def full(descriptor, data):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreFull, match="the disk is full"):
        getattr(store, call)(f"{LOG}/1", b"x" * 1000)
    assert calls == [1000, 990]
    assert everything(store) == [f"{LOG}/0"]


def test_short_writes_are_continued(store, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    assert store.put_if_absent("k", bytes(range(250))) is PutOutcome.DONE
    store.replace("r", bytes(range(250)))
    monkeypatch.undo()
    assert store.get("k") == store.get("r") == bytes(range(250))


@pytest.mark.promise("commit.acknowledged_is_durable")
def test_data_is_synced_before_the_name_is_linked(store, monkeypatch):
    """A power cut must not leave a name without its bytes, nor lose an acknowledged name."""
    happened = []
    for name in ("write", "fsync", "link"):
        real = getattr(os, name)

        def noted(*args, _name=name, _real=real, **kwargs):
            kind = (
                "folder" if _name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}") else ""
            )
            happened.append(f"{_name}{kind}")
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, noted)
    os.makedirs(store.root)
    assert store.put_if_absent("k", b"1") is PutOutcome.DONE
    assert happened == ["write", "fsync", "link", "fsyncfolder"]


def test_failed_folder_sync_makes_the_outcome_unknown(store, monkeypatch):
    os.makedirs(store.root)
    monkeypatch.setattr(
        local, "_fsync_folder", lambda folder: (_ for _ in ()).throw(OSError(5, "I/O error"))
    )
    assert store.put_if_absent("k", b"1") is PutOutcome.UNKNOWN
    assert store.get("k") == b"1"


def test_file_modes_follow_the_umask(store):
    before = os.umask(0o027)
    try:
        store.put_if_absent("new", b"1")
        store.replace("replaced", b"1")
    finally:
        os.umask(before)
    for key in ("new", "replaced"):
        assert stat.S_IMODE(os.stat(f"{store.root}/{key}").st_mode) == 0o640


def test_file_in_place_of_a_folder_raises(store):
    store.put_if_absent("file", b"1")
    for call in (store.put_if_absent, store.replace):
        with pytest.raises(StoreUnavailable, match=r"Could not write .*file/below"):
            call("file/below", b"1")
        with pytest.raises(StoreUnavailable, match=r"Could not write .*file/deep/below"):
            call("file/deep/below", b"1")
    store.delete(["file/below"])
    assert everything(store) == ["file"]


def as_nobody(call):
    """The error of a call by an unprivileged user; root has all permissions."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            call()
            said = "nothing was wrong"
        except BaseException as error:  # noqa: BLE001 -- it is the parent that judges
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.fork
@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("write", lambda store: store.put_if_absent(f"{LOG}/2", b"1")),
        ("write", lambda store: store.put_if_absent("new/folder/2", b"1")),
        ("write", lambda store: store.replace(f"{LOG}/1", b"1")),
        ("delete", lambda store: store.delete([f"{LOG}/1"])),
        ("read", lambda store: store.get(f"{LOG}/1")),
        ("list", lambda store: store.list_from("closed")),
        ("stat", lambda store: store.stat("closed/1")),
    ],
)
def test_missing_permission_raises_access_denied(verb, call):
    root = tempfile.mkdtemp()
    store = LocalStore(root)
    try:
        store.put_if_absent(f"{LOG}/1", b"1")
        store.put_if_absent("closed/1", b"1")
        os.chmod(f"{root}/{LOG}/1", 0o000)
        os.chmod(f"{root}/{LOG}", 0o555)
        os.chmod(f"{root}/closed", 0o000)
        os.chmod(root, 0o555)
        said = as_nobody(lambda: call(store))
    finally:
        for folder in (root, f"{root}/{LOG}", f"{root}/closed"):
            os.chmod(folder, 0o755)
        assert store.list_from(LOG) == ["1"]
        shutil.rmtree(root)
    assert said.startswith(f"AccessDenied: Could not {verb} {root}/")
    assert ": permission denied. Check the owner" in said
