"""Cleanup of real logs with an advancing clock: retained versions stay readable."""

import json
import logging
import os
import random
import re
import shutil
import time

import pytest
from support import log_model, small_table, store_places
from support.case_count import cases
from support.faulty_store import FakeClock, outdate
from support.waiting import SECONDS_MAX, wait_until

import arrowlog
from arrowlog import storage as store_module
from arrowlog import testing
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import LAST_CHECKPOINT, classify_names, commit_name
from arrowlog.maintenance import cleanup
from arrowlog.maintenance.retention import RetentionPolicy

FORMATS = ["json"]
HOUR = 3_600_000
DAY = 24 * HOUR


def log_of(root):
    return f"{root}/_transaction_log"


def names(root):
    return set(os.listdir(log_of(root)))


def now_ms():
    return int(time.time() * 1000)


def age(root, name, millis):
    """Make a file older than it is."""
    then = time.time() - millis / 1000
    os.utime(f"{log_of(root)}/{name}", (then, then))


def build(root, versions=12, at=(4, 8, 12), form="json", **properties):
    """A table with checkpoints and without automatic cleanup."""
    properties = {"checkpoint.format": form, "checkpoint.retention": "0", **properties}
    off = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(root, small_table.SCHEMA, ["day"], properties, options=off)
    for version in range(1, versions + 1):
        table.append([arrowlog.add_file(f"f{version}", {"day": None}, size=version)])
        if version in at:
            table.checkpoint()
    return table


def age_all(root, millis):
    for name in names(root):
        age(root, name, millis)


def facts(table, version):
    return table.snapshot(version=version).files.sort_by("path").to_pylist()


def test_cleanup_deletes_only_old_commits_below_a_checkpoint(root):
    table = build(root)
    before = names(root)
    assert table.cleanup().num_files == 0  # nothing is old
    age_all(root, 31 * DAY)
    result = table.cleanup()
    gone = before - names(root)
    assert gone == {commit_name(v) for v in range(1, 12)} | {
        f"{v:020d}.checkpoint.json" for v in (4, 8)
    }
    assert {path.rpartition("/")[2] for path in result.files["path"].to_pylist()} == gone
    assert result.retention.versions == (0, 12)
    assert (result.earliest_version, table.earliest_version) == (12, 12)
    assert arrowlog.Table(root).snapshot().num_files == 12
    assert arrowlog.Table(root).snapshot(version=0).num_files == 0
    with pytest.raises(arrowlog.InvalidRequest, match="cleaned up to version 12"):
        arrowlog.Table(root).snapshot(version=3)
    assert table.append([arrowlog.add_file("x", {"day": None}, size=1)]).version == 13


def test_expired_checkpoints_are_deleted_without_losing_a_version(root):
    table = build(root)
    before = [facts(table, version) for version in range(13)]
    age_all(root, 3 * HOUR)
    result = table.cleanup()
    assert set(result.files["kind"].to_pylist()) == {"checkpoint"}
    assert result.files["version"].to_pylist() == [4, 8]
    assert result.retention.versions == tuple(range(13))
    again = arrowlog.Table(root)
    assert [facts(again, version) for version in range(13)] == before
    assert again.snapshot().report.checkpoint == 12


def test_newest_checkpoint_and_its_parts_are_kept(root):
    table = build(root, **{"checkpoint.maxFileSize": 1})
    age_all(root, 10_000 * DAY)
    table.cleanup()
    left = [name for name in names(root) if ".checkpoint." in name]
    assert {int(name[:20]) for name in left} == {12}
    assert len(left) == 13
    snapshot = arrowlog.Table(root).snapshot()
    assert (snapshot.report.checkpoint, snapshot.num_files) == (12, 12)
    assert snapshot.report.warnings == ()


def test_nothing_is_deleted_without_a_checkpoint(root):
    table = build(root, at=())
    age_all(root, 10_000 * DAY)
    assert table.cleanup().num_files == 0
    assert len([name for name in names(root) if name.endswith(".json")]) == 13


def test_commits_needed_because_of_a_damaged_checkpoint_are_kept(root):
    table = build(root)
    path = f"{log_of(root)}/{12:020d}.checkpoint.json"
    with open(path, "r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")
    age_all(root, 31 * DAY)
    result = table.cleanup()
    assert result.retention.checkpoint == 8
    assert {commit_name(v) for v in range(8, 13)} <= names(root)
    assert f"{8:020d}.checkpoint.json" in names(root)
    assert result.retention.versions == (0, 8, 9, 10, 11, 12)
    assert arrowlog.Table(root).snapshot().num_files == 12


def test_retained_versions_do_not_depend_on_a_damaged_checkpoint(root):
    """A kept older checkpoint whose commits are deleted counts only if it is intact."""
    table = build(root)
    with open(f"{log_of(root)}/{8:020d}.checkpoint.json", "wb") as out:
        out.write(b"{")
    for version in range(1, 7):
        age(root, commit_name(version), 31 * DAY)
    result = table.cleanup()
    assert {commit_name(v) for v in range(1, 7)}.isdisjoint(names(root))
    assert result.retention.versions == (0, 4, 12)
    for version in result.retention.versions:
        assert arrowlog.Table(root).snapshot(version=version).num_files == version


def test_truncated_foreign_checkpoint_keeps_its_commits(root):
    """Lines have no checksum: only the commits can show whether some are missing."""
    table = build(root, at=())
    adds = [testing.add(f"f{v}", {"day": None}, size=v) for v in range(1, 12)]  # f12 is missing
    opening = [{"protocol": small_table.OPENING[0]["protocol"]}, metadata_of(root)]
    testing.write_checkpoint(root, 12, [*opening, *adds], form="lines")
    age_all(root, 31 * DAY)
    assert table.cleanup().num_files == 0
    testing.write_checkpoint(
        root, 12, [*opening, *adds, testing.add("f12", {"day": None}, size=12)], form="lines"
    )
    assert table.cleanup().num_files == 11


def metadata_of(root):
    from arrowlog.formats.indextables.compression import decompress

    with open(f"{log_of(root)}/{commit_name(0)}", "rb") as file:
        return json.loads(decompress(file.read(), "", 1 << 20).split(b"\n")[1])


@pytest.mark.filterwarnings("ignore::arrowlog.ArrowlogWarning")
def test_cleanup_of_a_log_with_a_gap_raises(root):
    table = build(root, versions=14)
    os.remove(f"{log_of(root)}/{commit_name(13)}")
    age_all(root, 31 * DAY)
    before = names(root)
    with pytest.raises(arrowlog.LogCorrupt, match="cannot be cleaned up: version 13 is missing"):
        table.cleanup()
    with pytest.raises(arrowlog.LogCorrupt, match="version 13 is missing"):
        table.retention()
    assert names(root) == before


def test_cleanup_of_a_log_without_a_readable_state_raises(root):
    table = build(root)
    for version in (11, 12):
        os.remove(f"{log_of(root)}/{commit_name(version)}")
    with open(f"{log_of(root)}/{12:020d}.checkpoint.json", "wb") as out:
        out.write(b"{")
    age_all(root, 31 * DAY)
    before = names(root)
    with pytest.raises(arrowlog.LogCorrupt, match="checkpoint of version 12 cannot be read"):
        table.retention("1d")
    assert names(root) == before


def test_stale_pointer_does_not_limit_cleanup_and_newer_one_is_not_moved_back(root):
    table = build(root, at=(4, 8))
    table.checkpoint()
    pointer = f"{log_of(root)}/{LAST_CHECKPOINT}"
    testing.write_pointer(root, {"version": 4})  # it lags
    age_all(root, 31 * DAY)
    assert table.cleanup().retention.checkpoint == 12
    assert arrowlog.Table(root).snapshot().num_files == 12
    testing.write_pointer(root, {"version": 12, "size": 1})
    os.remove(f"{log_of(root)}/{12:020d}.checkpoint.json")
    testing.write_pointer(root, {"version": 12, "size": 77})
    for version in range(1, 12):
        restore = [testing.add(f"f{version}", {"day": None}, size=version)]
        testing.write_commit(root, version, restore)
    shutil.rmtree(f"{log_of(root)}/_retired")  # otherwise restored files would be ignored
    os.rename(f"{log_of(root)}/{commit_name(12)}", f"{log_of(root)}/away")
    arrowlog.Table(root, options={"checkpoint.format": "json"}).checkpoint()
    assert f"{11:020d}.checkpoint.json" in names(root)
    with open(pointer) as file:
        assert json.load(file) == {"version": 12, "size": 77}


@pytest.mark.promise("cleanup.keeps_what_it_promises")
@pytest.mark.parametrize("form", FORMATS)
def test_cleanup_of_random_logs_keeps_retained_versions(tmp_path, form):
    for seed in range(cases(15)):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=10)
        rng = history.rng
        made = rng.sample(range(10), rng.randrange(4))
        digits = len(min(names(root))) - len(".json")
        for version in sorted(made):
            later = [f"{log_of(root)}/{v:0{digits}d}.json" for v in range(version + 1, 10)]
            for path in later:
                os.rename(path, f"{path}.later")
            size = rng.choice([1, 1000, 1 << 20])
            options = {"checkpoint.format": form, "checkpoint.maxFileSize": size}
            arrowlog.Table(root, options=options).checkpoint()
            for path in later:
                os.rename(f"{path}.later", path)
        for name in sorted(names(root)):
            age(root, name, rng.choice([0, 1, 3, 1000]) * HOUR)
            if ".checkpoint." in name and rng.random() < 0.2:
                with open(f"{log_of(root)}/{name}", "r+b") as file:
                    file.truncate(10)
        check_cleanup(root, rng)


def check_cleanup(root, rng):
    options = {
        "logRetention.duration": f"{rng.choice([0, 2, 720])}h",
        "checkpointRetention.duration": f"{rng.choice([0, 2])}h",
    }
    table = arrowlog.Table(root, options=options)
    before = {version: facts(table, version) for version in range(10)}
    dry = table.cleanup(dry_run=True)
    stood = names(root)
    assert len(stood - {LAST_CHECKPOINT}) >= 10
    assert table.retention().files.equals(dry.files)
    result = table.cleanup(dry_run=False)
    assert result.files.equals(dry.files)
    assert (result.bytes_freed, result.num_files) == (dry.bytes_freed, dry.num_files)
    gone = {path.rpartition("/")[2] for path in result.files["path"].to_pylist()}
    assert stood - names(root) == gone
    again = arrowlog.Table(root)
    assert again.snapshot().version == 9
    for version in result.retention.versions:
        assert facts(arrowlog.Table(root), version) == before[version], version
    for version in set(range(10)) - set(result.retention.versions):
        with pytest.raises((arrowlog.InvalidRequest, arrowlog.LogCorrupt)):
            again.snapshot(version=version)
    first = result.earliest_version
    assert set(range(first, 10)) <= set(result.retention.versions)
    assert first == 0 or first - 1 not in result.retention.versions
    assert again.cleanup(dry_run=True).retention.versions == result.retention.versions


def test_retention_can_be_planned_for_any_time(root):
    table = build(root)
    assert table.retention().num_files == 0
    soon = now_ms() + 3 * HOUR // 2
    assert table.retention("1h", now=soon).files["kind"].to_pylist() == ["commit"] * 11
    both = table.retention("1h", "1h", now=now_ms() + 2 * HOUR)
    assert (both.num_files, both.earliest_version) == (13, 12)
    assert len(names(root)) == 13 + 3 + 1  # nothing was done
    later = table.retention(now="2999-01-01T00:00:00Z")
    assert later.num_files == 13
    with pytest.raises(arrowlog.InvalidRequest, match="log_retention cannot be 'soon'"):
        table.retention("soon")


def test_cleanup_uses_the_clock_of_the_session(root):
    table = build(root)
    clock = FakeClock("far", skew_ms=now_ms() - 1_700_000_000_000)
    table._session.clock = clock
    assert table.cleanup().num_files == 0
    clock.skew_ms += 31 * DAY
    assert table.cleanup().num_files == 13


def test_thirty_commits_are_kept_by_default(root):
    table = build(root, 40, (5, 40))
    table.set_properties({"checkpoint.retention": None})
    age_all(root, 31 * DAY)
    kept = arrowlog.Table(root).retention()
    assert set(kept.files["version"].to_pylist()) == {*range(1, 10)}
    assert arrowlog.Table(root).retention("30d").num_files == 40  # a duration was given
    table.refresh()  # the files were touched
    table.set_properties({"checkpoint.retention": "30"})
    assert arrowlog.Table(root).retention().files.equals(kept.files)


def test_checkpoint_retention_keeps_a_number_of_commits(root):
    table = build(root)
    age_all(root, 31 * DAY)
    assert table.retention().num_files == 13
    table.refresh()  # the files were touched
    table.set_properties({"checkpoint.retention": "5"})
    doomed = table.retention().files
    assert set(doomed["version"].to_pylist()) == {*range(1, 7)}  # retained versions depend on 8


@pytest.mark.parametrize("where", ["call", "table"])
def test_dry_run_setting_deletes_nothing(root, where):
    table = build(root, **({"cleanup.dryRun": "true"} if where == "table" else {}))
    age_all(root, 31 * DAY)
    if where == "call":
        table = arrowlog.Table(root, options={"cleanup.dryRun": True})
    before = names(root)
    result = table.cleanup()
    assert (result.dry_run, result.num_files) == (True, 13)
    assert names(root) == before
    assert table.cleanup(dry_run=False).num_files == 13
    assert len(names(root) - {"_retired"}) == len(before) - 13


class Stubborn(store_module.LocalStore):
    """A store on which one file cannot be deleted."""

    def delete(self, keys):
        if any(key.endswith(commit_name(3)) for key in keys):
            raise StoreUnavailable("It is being watched.")
        super().delete(keys)


def test_failed_deletion_does_not_stop_the_others(root, monkeypatch):
    build(root)
    age_all(root, 31 * DAY)
    monkeypatch.setattr(store_module, "LocalStore", Stubborn)
    with pytest.warns(arrowlog.ArrowlogWarning, match="1 deletions failed, the first: It is being"):
        result = arrowlog.Table(root).cleanup()
    assert result.failures == ("It is being watched.",)
    planned = result.retention.files["path"].to_pylist()
    stayed = f"_transaction_log/{commit_name(3)}"
    assert result.files["path"].to_pylist() == [path for path in planned if path != stayed]
    assert result.num_files == len(planned) - 1
    size = os.path.getsize(f"{root}/{stayed}")
    assert result.bytes_freed == result.retention.bytes_freed - size
    assert {name for name in names(root) if len(name) == 25} == {
        commit_name(0),
        commit_name(3),
        commit_name(12),
    }
    assert arrowlog.Table(root).snapshot().num_files == 12
    with pytest.raises(StoreUnavailable, match="being watched"):
        arrowlog.Table(root, options={"cleanup.failurePolicy": "fail"}).cleanup()


class Sealed(store_module.LocalStore):
    """A store without deletions; `at` names the step that fails."""

    at = "delete"

    def delete(self, keys):
        if self.at == "delete" and keys:
            raise StoreUnavailable("It is sealed.")
        super().delete(keys)

    def put_if_absent(self, key, data):
        if self.at == "record":
            raise StoreUnavailable("It is sealed.")
        return super().put_if_absent(key, data)


@pytest.mark.parametrize("at", ["delete", "record"])
def test_files_that_were_not_deleted_are_not_counted(root, monkeypatch, at):
    build(root)
    age_all(root, 31 * DAY)
    before = names(root)
    monkeypatch.setattr(Sealed, "at", at)
    monkeypatch.setattr(store_module, "LocalStore", Sealed)
    with pytest.warns(arrowlog.ArrowlogWarning, match="deletions failed"):
        result = arrowlog.Table(root).cleanup()
    assert before <= names(root)
    assert result.retention.num_files > 0
    assert (result.num_files, result.bytes_freed, result.files.num_rows) == (0, 0, 0)


class Deaf(store_module.LocalStore):
    """A store that deletes but loses the response."""

    def delete(self, keys):
        super().delete(keys)
        if keys:
            raise StoreUnavailable("No answer.")


def test_deletion_with_a_lost_response_is_counted(root, monkeypatch):
    build(root)
    age_all(root, 31 * DAY)
    monkeypatch.setattr(store_module, "LocalStore", Deaf)
    with pytest.warns(arrowlog.ArrowlogWarning, match="deletions failed"):
        result = arrowlog.Table(root).cleanup()
    assert result.num_files == result.retention.num_files > 0


@pytest.mark.parametrize("enabled", [True, False])
def test_checkpoint_runs_cleanup_if_enabled(root, enabled, caplog):
    build(root)
    age_all(root, 31 * DAY)
    options = {"checkpoint.interval": 1, "cleanup.enabled": enabled}
    table = arrowlog.Table(root, options=options)
    table.append([arrowlog.add_file("x", {"day": None}, size=1)])
    assert table.wait_for_checkpoint(SECONDS_MAX)
    assert (commit_name(3) in names(root)) is not enabled
    assert f"{13:020d}.checkpoint.json" in names(root)
    assert caplog.records == []


def test_failed_background_cleanup_is_logged(root, monkeypatch, caplog):
    build(root)
    age_all(root, 31 * DAY)
    monkeypatch.setattr(store_module, "LocalStore", Stubborn)
    for policy, said in (
        ("continue", "a file could not be deleted: It is"),
        ("fail", "the cleanup failed: It is"),
    ):
        table = arrowlog.Table(
            root, options={"checkpoint.interval": 1, "cleanup.failurePolicy": policy}
        )
        with caplog.at_level(logging.WARNING, "arrowlog"):
            table.append([arrowlog.add_file(policy, {"day": None}, size=1)])
            assert table.wait_for_checkpoint(SECONDS_MAX)
        assert said in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


class Overtaken(store_module.LocalStore):
    """A store on which a cleanup runs between listing and reading a log."""

    meanwhile = None

    def list_from(self, folder, start=""):
        found = super().list_from(folder, start)
        if Overtaken.meanwhile is not None and folder.endswith("_transaction_log"):
            act, Overtaken.meanwhile = Overtaken.meanwhile, None
            act()
        return found


@pytest.mark.promise("cleanup.readers_recover")
@pytest.mark.parametrize("earlier", [False, True])
def test_reader_retries_when_cleanup_deletes_listed_files(root, monkeypatch, earlier):
    other = build(root, at=(4, 8))
    if earlier:  # the reader starts from checkpoint 8, which is deleted
        age_all(root, 31 * DAY)
        other.cleanup()
    monkeypatch.setattr(store_module, "LocalStore", Overtaken)

    def act():
        other.checkpoint()
        age_all(root, 31 * DAY)
        assert other.cleanup().num_files > 0

    Overtaken.meanwhile = act
    snapshot = arrowlog.Table(root).snapshot()
    assert Overtaken.meanwhile is None
    assert (snapshot.report.checkpoint, snapshot.num_files) == (12, 12)


def test_time_travel_reader_retries_when_cleanup_deletes_listed_files(root, monkeypatch):
    other = build(root)
    stamp = other.snapshot().state.timestamp
    monkeypatch.setattr(store_module, "LocalStore", Overtaken)
    reader = arrowlog.Table(root)

    def act():
        age_all(root, 31 * DAY)
        assert other.cleanup().num_files > 0

    Overtaken.meanwhile = act
    assert reader.snapshot(timestamp=stamp + HOUR).version == 12


@pytest.mark.promise("cleanup.readers_recover")
@pytest.mark.parametrize("base", [0, 3])
@pytest.mark.parametrize("where", ["table", "call"])
def test_handle_catches_up_after_its_base_version_was_deleted(root, base, where):
    """Also with zero retention: version 0 is kept but does not show that later commits existed."""
    none = {"logRetention.duration": "0ms", "checkpointRetention.duration": "0ms"}
    properties = none if where == "table" else {}
    table = build(root, versions=base, at=(), **properties)
    reader, writer, decider = (arrowlog.Table(root) for _ in range(3))
    for handle in (reader, writer, decider):
        assert handle.snapshot().version == base
    for number in range(5):
        table.append([arrowlog.add_file(f"new{number}", {"day": None}, size=1)])
    table.checkpoint()
    newest = max(os.stat(f"{log_of(root)}/{name}").st_mtime_ns for name in names(root))
    wait_until(lambda: now_ms() > newest / 1e6 + 1, "an age above none")
    cleaner = arrowlog.Table(root, options=none)
    if where == "table":
        assert cleaner.cleanup().num_files == base + 4
    else:
        age_all(root, 31 * DAY)
        for handle in (reader, writer, decider):  # longer than the window without a request
            outdate(handle, forget_head=True)
        assert cleaner.cleanup().num_files == base + 4
    assert reader.refresh().version == base + 5
    assert writer.append([arrowlog.add_file("late", {"day": None}, size=1)]).version == base + 6
    assert "late" in small_table.paths(arrowlog.Table(root).snapshot())
    with pytest.raises(arrowlog.CommitConflict):  # possible conflicts are unknown
        decider.overwrite(
            [arrowlog.add_file("y", {"day": "2024-01-01"}, size=1)], where="day = '2024-01-01'"
        )
    assert arrowlog.Table(root).snapshot().version == base + 6


def test_retention_policy_from_settings(root):
    from arrowlog.config import resolve
    from arrowlog.maintenance.cleanup import configured_retention

    assert configured_retention(resolve()) == RetentionPolicy(30 * DAY, 2 * HOUR, 30)
    both = {"checkpoint.retention": 7, "logRetention.duration": "0s"}
    assert configured_retention(resolve(both)) == RetentionPolicy(0, 2 * HOUR, 7)
    rng = random.Random(1)
    millis = rng.randrange(DAY)
    given = resolve(
        {"logRetention.duration": str(millis)}, table={"checkpointRetention.duration": "1h"}
    )
    assert configured_retention(given) == RetentionPolicy(millis, HOUR, 0)


def test_unknown_files_in_the_log_folder_are_kept(root):
    table = build(root)
    strange = ["notes.txt", ".00000000000000000001.json.tmp", "1.json.bak", "x.checkpoint.json"]
    for name in strange:
        testing.write_file(root, name, b"mine")
    age_all(root, 10_000 * DAY)
    table.cleanup()
    assert set(strange) <= names(root)
    assert classify_names(sorted(names(root))).checkpoints.keys() == {12}


@pytest.mark.parametrize("kind", ["memory", "s3fs-moto", "obstore-moto"])
def test_cleanup_works_on_every_store(kind, request, monkeypatch):
    """Modification times are the store's own here, so our clock is advanced."""
    monkeypatch.setattr(cleanup, "MIN_COMMIT_AGE_SECONDS", 0)
    place = store_places.make(kind, request)
    options = {
        "checkpoint.format": "json",
        "checkpoint.maxFileSize": 1,
        "checkpoint.enabled": False,
        "checkpoint.retention": 0,
    }
    options["store.accelerate"] = kind.startswith("obstore")
    table = arrowlog.Table.create(
        place.uri, small_table.SCHEMA, storage_options=place.options, options=options
    )
    for version in range(1, 5):
        table.append([arrowlog.add_file(f"f{version}", size=version)])
        if version in (2, 4):
            table.checkpoint()
    table._session.clock = FakeClock("later", skew_ms=now_ms() - 1_700_000_000_000)
    assert table.cleanup().num_files == 0
    table._session.clock.skew_ms += 31 * DAY
    dry = table.cleanup(dry_run=True)
    assert table.cleanup().files.equals(dry.files)
    assert dry.num_files == 3 + 1 + 2  # commits, an old manifest, its parts
    left = place.store.list_from("_transaction_log")
    assert [name for name in left if len(name) == 25] == [commit_name(0), commit_name(4)]
    again = arrowlog.Table(place.uri, place.options, options=options)
    assert small_table.paths(again.snapshot()) == ["f1", "f2", "f3", "f4"]
    assert again.snapshot().report.warnings == ()
    assert again.append([arrowlog.add_file("f5", size=1)]).version == 5
    assert table.refresh().version == 5


def test_multi_part_checkpoint_is_deleted_whole_or_kept(root):
    table = build(root, **{"checkpoint.maxFileSize": 1})
    for version in range(1, 4):
        age(root, commit_name(version), 31 * DAY)
    parts = sorted(name for name in names(root) if f"{4:020d}.checkpoint." in name)
    for name in parts[:2]:  # a slow writer: the first parts are old, the manifest is not
        age(root, name, 3 * HOUR)
    result = table.cleanup()
    assert result.files["version"].to_pylist() == [1, 2, 3]
    assert 4 in result.retention.versions
    assert arrowlog.Table(root).snapshot(version=4).num_files == 4
    for name in parts:
        age(root, name, 3 * HOUR)
    assert table.cleanup().num_files == 0  # the retained commits depend on it
    for version in range(4, 9):
        age(root, commit_name(version), 31 * DAY)
    assert set(table.cleanup().files["version"].to_pylist()) == {4, 5, 6, 7, 8}
    assert names(root).isdisjoint(parts)
    assert arrowlog.Table(root).earliest_version == 8


def test_commits_within_log_retention_stay_readable(root):
    """One commit per day, a checkpoint every ten: versions within the retention can be rebuilt."""
    table = build(root, 60, at=range(10, 61, 10))
    for version in range(61):
        for name in (commit_name(version), f"{version:020d}.checkpoint.json"):
            if name in names(root):
                age(root, name, (60 - version) * DAY + HOUR)
    before = {version: facts(table, version) for version in range(30, 61)}
    result = table.cleanup()
    assert result.earliest_version == arrowlog.Table(root).earliest_version == 30
    again = arrowlog.Table(root)
    assert {version: facts(again, version) for version in range(30, 61)} == before
    with pytest.raises(arrowlog.InvalidRequest, match="cleaned up to version 30"):
        again.snapshot(version=15)


def test_results_of_checkpoint_and_cleanup_say_what_was_done(root):
    table = build(root, versions=3, at=())
    assert re.fullmatch(
        r"CheckpointResult\(version 3, 3 live files; json: [0-9.,]+ k?B in 1 file, [0-9,]+ ms\)",
        repr(table.checkpoint()),
    )
    again = "CheckpointResult(version 3, 3 live files; it existed already)"
    assert repr(table.checkpoint()) == again
    planned, done = repr(table.truncate_history(dry_run=True)), repr(table.truncate_history())
    said = r"CleanupResult\(2 files {}, [0-9.,]+ k?B; version 3 stays readable\)"
    assert re.fullmatch(said.format("would be deleted"), planned)
    assert re.fullmatch(said.format("deleted"), done)
