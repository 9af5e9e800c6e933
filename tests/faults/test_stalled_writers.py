"""No schedule of stalls, kills, late puts, truncation, cleanup and restore loses a commit.

See `stall_simulation`. Every guard is shown to be needed: without it, the simulation or a fixed
schedule finds an acknowledged commit that is missing from the log or in it twice, or a reader that
sees data that was never committed.
"""

import os
from contextlib import ExitStack
from unittest import mock

import pyarrow as pa
import pytest
from support import stall_simulation
from support.case_count import cases, first_seed
from support.commit_model import Violation
from support.faulty_store import FakeClock, FaultyStore, Log, frozen_clock, table_on

import arrowlog
from arrowlog import add_file, testing
from arrowlog.errors import CommitConflict, CommitStateUnknown, InvalidRequest
from arrowlog.formats import MAX_RECENT_COMMITS, RecentCommits
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.maintenance import cleanup, procedures
from arrowlog.maintenance.checkpointing import BackgroundCheckpointer
from arrowlog.snapshot import commit_reader, listing, tracker
from arrowlog.transaction import commit_loop

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
STEPS = 40


def run(seeds, **how):
    stall_simulation.SEEN.clear()
    for seed in seeds:
        stall_simulation.simulate(seed, STEPS, **how)
    print(dict(stall_simulation.SEEN))


@pytest.mark.promise("commit.stalled_writers")
def test_acknowledged_commits_are_in_the_log_exactly_once():
    first = first_seed()
    run(range(first, first + cases(16)))
    for what in ("acknowledged", "killed", "stall", "dead put", "CommitConflict"):
        assert stall_simulation.SEEN[what], what


@pytest.mark.promise("commit.stalled_writers")
def test_acknowledged_commits_are_in_the_log_exactly_once_with_avro_states():
    first = first_seed()
    run(range(first, first + cases(4)), protocol=4)
    for what in ("acknowledged", "stall", "truncate"):
        assert stall_simulation.SEEN[what], what


@pytest.mark.slow
@pytest.mark.skipif("ARROWLOG_SLOW" not in os.environ, reason="100,000 steps take 15 minutes")
def test_acknowledged_commits_survive_a_hundred_thousand_steps():
    first = first_seed()
    stall_simulation.SEEN.clear()
    seed = first
    while stall_simulation.SEEN["steps"] < 100_000:
        stall_simulation.simulate(seed, STEPS)
        seed += 1
    print(seed - first, "seeds", dict(stall_simulation.SEEN))


def test_clock_that_misses_stalls_needs_commit_verify_always():
    run(range(cases(6)), options={"commit.verify": "always"}, blind=True)
    with pytest.raises(Violation):
        run(range(0, 400, 2), blind=True)  # over a network: records are read anyway on a disk


def trust_winners(writer, head, taken, read_set):
    if not taken:
        return None
    return commit_loop._decode_winners(writer, head, taken, read_set)


GUARDS = {
    "put acknowledged without verification": [(commit_loop, "_is_effective", lambda *_: True)],
    "winning commits not verified": [(commit_loop, "_read_winners", trust_winners)],
    "read commits not verified": [
        (commit_reader, "check_not_retired", lambda *_: None),
        (tracker, "check_not_retired", lambda *_: None),
    ],
    "listing includes dead commits": [
        (listing, "without_retired", lambda _store, found, _names: found),
        (tracker, "without_retired", lambda _store, found, _names: found),
    ],
    "no retirement record": [(cleanup, "_retire", lambda *_: [])],
    "young commits deleted": [
        (cleanup, "find_young_commits", lambda *_: frozenset()),
        (procedures, "_wait_for_commit_age", lambda *_: None),
    ],
    "deleted commit taken for lost": [(RecentCommits, "txn_id", lambda *_: None)],
    "landed commit not searched": [(RecentCommits, "version_of", lambda *_: None)],
    "next version taken for missing": [(tracker.SnapshotTracker, "overtaken", lambda *_: False)],
}


@pytest.mark.parametrize("name", GUARDS)
def test_removing_a_guard_lets_the_simulation_find_a_violation(name):
    with ExitStack() as stack:
        for place, attribute, change in GUARDS[name]:
            stack.enter_context(mock.patch.object(place, attribute, change))
        with pytest.raises(Violation):
            run(range(1000, 1400))  # it stops at the first


# Fixed schedules.


class Stalling(FaultyStore):
    """A store that runs another writer's actions before the next put."""

    def __init__(self, elapsed, *, cheap_stat, protocol=2):
        super().__init__(cheap_stat=cheap_stat)
        self.elapsed = elapsed
        opening = [testing.protocol(protocol, protocol), testing.metadata(SCHEMA, ["p"])]
        self.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(opening)


@pytest.fixture(params=[True, False], ids=["disk", "network"])
def world(request):
    elapsed = [1000.0]
    with frozen_clock(elapsed):
        yield Stalling(elapsed, cheap_stat=request.param)


def open_table(store, name, options=None):
    clock = FakeClock(name, elapsed=store.elapsed)
    table = table_on(store, clock, options)
    table._checkpointer = BackgroundCheckpointer(store, clock, allow_external_paths=False)
    return table


def file(path):
    return add_file(path, {"p": "x"}, size=1, modification_time=1)


def live(store):
    return sorted(open_table(store, "reader").snapshot().files["path"].to_pylist())


def test_put_below_a_truncation_is_withdrawn_and_retried(world):
    writer, other = open_table(world, "w"), open_table(world, "o")
    writer.append([file("first")])

    def meanwhile():
        for number in range(3):
            other.append([file(f"other{number}")])
        other.truncate_history()
        world.elapsed[0] += 60

    world.window = [meanwhile]
    result = writer.append([file("second")])
    assert result.version == 5
    assert live(world) == ["first", "other0", "other1", "other2", "second"]
    assert f"{LOG_FOLDER}/{commit_name(2)}" not in world.objects  # withdrawn


def test_commit_that_was_checkpointed_and_deleted_is_not_repeated(world):
    writer, other = open_table(world, "w"), open_table(world, "o")
    writer.append([file("first")])
    deliver = world._put

    def put(key, data):
        world._put = deliver
        outcome = deliver(key, data)
        for number in range(3):
            other.append([file(f"other{number}")])
        other.truncate_history()
        world.elapsed[0] += 60
        return outcome

    world._put = put
    world.puts = ["lost after"]
    result = writer.append([file("second")])
    assert result.version == 2
    assert live(world) == ["first", "other0", "other1", "other2", "second"]
    assert open_table(world, "r").version == 5


@pytest.mark.promise("commit.outcome_is_true")
def test_outcome_is_unknown_when_the_log_no_longer_has_the_transaction_id(world):
    writer, other = open_table(world, "w"), open_table(world, "o")
    writer.append([file("first")])

    def meanwhile():
        for number in range(3):
            other.append([file(f"other{number}")])
        other.truncate_history()
        world.elapsed[0] += 60

    world.window = [meanwhile]
    with (
        mock.patch.object(RecentCommits, "knows", lambda self, version: version > 4),
        pytest.raises(CommitStateUnknown) as raised,
    ):
        writer.append([file("second")])
    assert (raised.value.version, raised.value.txn_id) == (2, "w-1")
    assert live(world) == ["first", "other0", "other1", "other2"]


def test_commits_deleted_by_another_program_are_detected_after_a_stall(world):
    """Other programs delete commits without a record and checkpoint without transaction ids."""
    writer, other = open_table(world, "w"), open_table(world, "o")
    writer.append([file("first")])

    def meanwhile():
        for number in range(3):
            other.append([file(f"other{number}")])
        other.checkpoint()
        for version in (1, 2, 3):
            del world.objects[f"{LOG_FOLDER}/{commit_name(version)}"]
        world.elapsed[0] += 60

    world.window = [meanwhile]
    assert writer.append([file("second")]).version == 5
    assert live(world) == ["first", "other0", "other1", "other2", "second"]


def test_deleted_conflicting_commit_is_not_hidden_by_a_dead_file(world):
    writer, other = open_table(world, "w"), open_table(world, "o")
    writer.append([file("first")])
    writer.snapshot()
    other.remove(["first"])
    other.append([file("later")])
    other.truncate_history()
    info = testing.commit_info(5, "ZOMBIE", txnId="zombie")
    dead = testing.lines([info, testing.add("dead", {"p": "x"})])
    world.objects[f"{LOG_FOLDER}/{commit_name(2)}"] = dead
    world.elapsed[0] += 60
    with pytest.raises(CommitConflict):
        writer.remove(["first"])
    assert live(world) == ["later"]


def test_without_the_guard_a_dead_file_hides_the_conflict(world, monkeypatch):
    monkeypatch.setattr(commit_loop, "_are_authentic", lambda *_: True)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_deleted_conflicting_commit_is_not_hidden_by_a_dead_file(world)


def test_dead_files_are_excluded_from_history(world):
    table = open_table(world, "t")
    for number in range(4):
        table.append([file(f"f{number}")])
    table.truncate_history()
    for version in (1, 3):
        info = testing.commit_info(5, "ZOMBIE", txnId=f"zombie{version}")
        dead = testing.lines([info, testing.add("dead", {"p": "x"})])
        world.objects[f"{LOG_FOLDER}/{commit_name(version)}"] = dead
    world.elapsed[0] += 60
    reader = open_table(world, "r")
    assert reader.earliest_version == 4
    for version in (1, 3):
        with pytest.raises(InvalidRequest, match=f"Version {version} is no longer available"):
            reader.snapshot(version=version)
    found = reader.cleanup(dry_run=True)
    assert found.files["version"].to_pylist() == [1, 3]
    assert found.retention.versions == (0, 4)
    assert reader.cleanup().num_files == 2
    assert live(world) == ["f0", "f1", "f2", "f3"]


def test_transaction_ids_of_recent_commits_survive_their_deletion(tmp_path):
    table = arrowlog.Table.create(
        tmp_path / "t", SCHEMA, ["p"], options={"checkpoint.enabled": False}
    )
    results = [table.append([file(f"f{number}")]) for number in range(12)]
    for form in ("json", "parquet", "both"):
        other = arrowlog.Table(tmp_path / "t", options={"checkpoint.format": form})
        other.checkpoint()
        other.truncate_history()
        recent = arrowlog.Table(tmp_path / "t").snapshot().state.recent
        for result in results:
            assert recent.txn_id(result.version) == result.txn_id
            assert recent.version_of(result.txn_id) == result.version
        results.append(table.append([file(f"more {form}")]))


def test_recent_commits_are_limited_to_a_window():
    recent = RecentCommits(0).extended([f"t{v}" for v in range(MAX_RECENT_COMMITS + 10)])
    assert (recent.first, recent.last) == (10, MAX_RECENT_COMMITS + 9)
    assert not recent.knows(9)
    assert recent.version_of("t9") is None
    assert recent.txn_id(10) == "t10"
    assert (
        recent.followed_by(RecentCommits(MAX_RECENT_COMMITS + 10, ("x",))).last
        == MAX_RECENT_COMMITS + 10
    )
    assert recent.followed_by(RecentCommits(5000, ("x",))).first == 5000


def test_log_model_agrees_when_nothing_is_deleted(world):
    table = open_table(world, "t")
    for number in range(5):
        table.append([file(f"f{number}")])
    log = Log()
    log.absorb(world.objects)
    assert log.version == 5


def codes(root):
    return {found.code for found in arrowlog.doctor(root, data_files=False)}


def test_doctor_reports_dead_files_and_how_to_restore_commits(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", SCHEMA, ["p"])
    for number in range(4):
        table.append([file(f"f{number}")])
    log = tmp_path / "t" / LOG_FOLDER
    backup = {path.name: path.read_bytes() for path in log.glob("*.json")}
    table.truncate_history()
    assert codes(tmp_path / "t") == {"stats-missing"}
    for name, data in backup.items():
        (log / name).write_bytes(data)
    assert codes(tmp_path / "t") == {"stats-missing", "commit-dead"}
    for path in (*log.glob("*.checkpoint.json"), *log.glob("_checkpoints/*")):
        path.unlink()
    (log / "_last_checkpoint").unlink()
    with pytest.raises(arrowlog.LogCorrupt, match="_retired is deleted as well"):
        arrowlog.Table(tmp_path / "t").snapshot()
    for path in (log / "_retired").iterdir():
        path.unlink()
    assert arrowlog.Table(tmp_path / "t").snapshot().num_files == 4


def test_cleanup_over_a_network_keeps_and_counts_young_commits(world):
    table = open_table(world, "t")
    for number in range(4):
        table.append([file(f"f{number}")])
    table.checkpoint()
    done = open_table(world, "c", {"logRetention.duration": "0s"}).cleanup()
    gone = [1, 2, 3] if world.cheap_stat else []
    assert [v for v in done.files["version"].to_pylist() if v] == gone
    assert done.num_too_young == 3 - len(gone)


def test_commit_file_with_an_unlisted_transaction_id_is_ignored(world):
    """Another program deleted a commit without a record, and a late put took its version."""
    other = open_table(world, "o")
    for name in ("first", "victim", "later"):
        other.append([file(name)])
    other.checkpoint()
    info = testing.commit_info(5, "ZOMBIE", txnId="zombie")
    info["commitInfo"]["txn"] = {"appId": "app", "version": 7}
    dead = testing.lines([info, testing.add("dead", {"p": "y"})])
    world.objects[f"{LOG_FOLDER}/{commit_name(2)}"] = dead
    world.elapsed[0] += 60
    writer = open_table(world, "w")  # it starts from the checkpoint, with read version 1
    with pytest.raises(CommitConflict):
        writer.commit([file("mine")], where="p = 'x'", read_version=1, txn=("app", 7))
    assert live(world) == ["first", "later", "victim"]


def test_commit_kept_for_its_skip_does_not_corrupt_the_log(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", SCHEMA, ["p"])
    for number in range(3):
        table.append([file(f"f{number}")])
    table.checkpoint()
    table.append([file("f3")])
    table.skips.record("f0", "broken", cooldown="1h")
    for number in range(4, 6):
        table.append([file(f"f{number}")])
    table.truncate_history()
    reader = arrowlog.Table(tmp_path / "t")
    assert reader.snapshot().num_files == 6
    for version in (4, 5, 6):
        with pytest.raises(InvalidRequest, match=f"Version {version} is no longer available"):
            reader.snapshot(version=version)


def test_refresh_during_a_truncation_never_returns_an_older_version():
    """Found by this seed: a listing shows commits that are retired before the records are read."""
    stall_simulation.simulate(6000096, STEPS)


# The same schedules with an Avro state after each commit.

SCHEDULES = [
    test_put_below_a_truncation_is_withdrawn_and_retried,
    test_commit_that_was_checkpointed_and_deleted_is_not_repeated,
    test_deleted_conflicting_commit_is_not_hidden_by_a_dead_file,
]


@pytest.fixture(params=[True, False], ids=["disk", "network"])
def world_of_states(request):
    elapsed = [1000.0]
    with frozen_clock(elapsed):
        yield Stalling(elapsed, cheap_stat=request.param, protocol=4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_hold_with_avro_states(world_of_states, schedule):
    schedule(world_of_states)
    assert any("/state-v" in key for key in world_of_states.objects)


@pytest.mark.parametrize(
    ("guard", "schedule"),
    [
        ((commit_loop, "_is_effective"), SCHEDULES[0]),
        ((commit_loop, "_are_authentic"), SCHEDULES[2]),
    ],
)
def test_removing_a_guard_fails_the_schedules_with_avro_states(
    world_of_states, monkeypatch, guard, schedule
):
    monkeypatch.setattr(*guard, lambda *_: True)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        schedule(world_of_states)
