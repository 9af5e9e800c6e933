"""Parts shared by checkpoints, under stalls, kills and cleanups at any request.

Runs the simulation of `test_stalled_writers` on a table that has only Parquet checkpoints, all
incremental where possible. Each guard is removed in turn, which corrupts the table.
"""

import hashlib
import warnings
from contextlib import ExitStack
from unittest import mock

import pyarrow as pa
import pytest
from support import parquet_checkpoints, stall_simulation
from support.case_count import cases, first_seed
from support.commit_model import Violation

import arrowlog
from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.maintenance import cleanup
from arrowlog.maintenance.checkpointing import make_checkpoint
from arrowlog.snapshot import ReadOptions, load_snapshot
from arrowlog.snapshot.checkpoint import incremental, parquet
from arrowlog.snapshot.listing import list_log

STEPS = 60
HOW = {
    "protocol": 3,
    "features": ["parquetCheckpoint"],
    "acts": ["append"] * 6
    + ["remove", "overwrite", "restore", "refresh", "truncate", "truncate"]
    + ["checkpoint"] * 8
    + ["cleanup"] * 6
    + ["zombie"] * 2,
    "check_every": 2,
}


def run(seeds):
    stall_simulation.SEEN.clear()
    for seed in seeds:
        stall_simulation.simulate(seed, STEPS, **HOW)
    print(dict(stall_simulation.SEEN))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    parquet_checkpoints.share_small_parts(monkeypatch, folded=2)
    # The simulation's ids are not hexadecimal.
    monkeypatch.setattr(
        parquet, "writer_id", lambda new_id: hashlib.sha256(new_id.encode()).hexdigest()[:12]
    )


@pytest.mark.promise("checkpoint.changes_nothing")
def test_no_schedule_leaves_a_checkpoint_without_its_parts():
    shared = []
    put = parquet.put_manifest

    def noting(store, manifest, *args, **kwargs):
        shared.append(bool(manifest.shared_parts))
        return put(store, manifest, *args, **kwargs)

    first = first_seed()
    with mock.patch.object(parquet, "put_manifest", noting):
        run(range(first, first + cases(12)))
    print(sum(shared), "of", len(shared), "are incremental")
    assert sum(shared) > len(shared) // 5
    for what in ("acknowledged", "killed", "stall", "cleanup"):
        assert stall_simulation.SEEN[what], what


# Fixed schedules: a cleanup is suspended just before it deletes a part, a writer with a stale
# listing names that part in a new manifest, and another cleanup relies on the manifest.

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
ALONE = {"checkpoint.enabled": False, "checkpoint.format": "parquet"}
NOW = {"logRetention.duration": "0s", "checkpointRetention.duration": "0s"} | ALONE


def add(number):
    return arrowlog.add_file(f"f{number}", {"p": "x"}, size=1, num_records=1)


def race(root, moment):
    """Run the schedule; `moment` is the function of `cleanup` during which others work."""
    table = arrowlog.Table.create(root, SCHEMA, ["p"], options=ALONE)
    for number in range(4):
        table.append([add(number)])
    table.checkpoint()
    stale = list_log(table._store)
    table.append([add(4)])
    config, store = resolve(ALONE), table._store
    listing = list_log(store)
    make_checkpoint(
        store, listing, table.snapshot().state, config, SystemClock(), for_all_readers=True
    )
    table.append([add(5)])
    commits = list_log(store).commits
    behind = stale.only(commits, stale.checkpoints)  # the second checkpoint is not in it
    options = ReadOptions(config)
    state = load_snapshot(store, behind, options, table.version).state
    called = []

    def writer():
        if called:
            return
        called.append(True)
        make_checkpoint(store, behind, state, config, SystemClock())
        arrowlog.Table(root, options=NOW).cleanup()

    real = getattr(cleanup, moment)

    def suspended(*args, **kwargs):
        if moment == "_record_retired_parts":
            writer()
            return real(*args, **kwargs)
        found = real(*args, **kwargs)
        writer()
        return found

    with mock.patch.object(cleanup, moment, suspended):
        arrowlog.Table(root, options=NOW).cleanup()
    assert called
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        shown = arrowlog.Table(root).snapshot().files["path"].to_pylist()
    assert sorted(shown) == [f"f{number}" for number in range(6)]


MOMENTS = ["_record_retired_parts", "_find_needed_parts"]


@pytest.mark.promise("checkpoint.changes_nothing")
@pytest.mark.parametrize("moment", MOMENTS)
def test_part_being_deleted_is_not_shared(tmp_path, moment):
    race(tmp_path, moment)


GUARDS = {
    "no retirement record": (
        "_find_needed_parts",
        [(cleanup, "_record_retired_parts", lambda *_: None)],
    ),
    "records are not read": (
        "_find_needed_parts",
        [
            (parquet, "_retired_parts", lambda *_: []),
            (incremental, "_parts_remain", lambda *_: True),
        ],
    ),
}


@pytest.mark.parametrize("name", GUARDS)
def test_removing_a_guard_corrupts_the_table(tmp_path, name):
    moment, changes = GUARDS[name]
    with ExitStack() as stack:
        for place, attribute, change in changes:
            stack.enter_context(mock.patch.object(place, attribute, change))
        with pytest.raises(LogCorrupt):
            race(tmp_path, moment)


def test_without_rereading_manifests_cleanup_corrupts_the_table(tmp_path):
    with (
        mock.patch.object(cleanup, "find_named_parts", return_value=frozenset()),
        pytest.raises(LogCorrupt),
    ):
        race(tmp_path, "_record_retired_parts")


def test_without_keeping_shared_parts_the_simulation_finds_a_violation():
    with (
        mock.patch.object(cleanup, "find_named_parts", return_value=frozenset()),
        pytest.raises((Violation, LogCorrupt)),
    ):
        run(range(1000, 1200))  # it stops at the first
