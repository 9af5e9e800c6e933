"""Parts that checkpoints share, under stalls, deaths and clean-ups at any request.

The simulation is that of `test_stalls`, on a table whose only checkpoints are Parquet ones, all of
them incremental if they can be. Each guard is removed in turn, and a reader finds a file missing.
"""

import hashlib
import random
from contextlib import ExitStack
from unittest import mock

import pytest
from support import parquet_checkpoints, stall_simulation
from support.case_count import cases
from support.commit_model import Violation

from arrowlog.maintenance import cleanup, shared_parts
from arrowlog.snapshot.checkpoint import incremental, parquet

STEPS = 60
HOW = {
    "protocol": 3,
    "features": ["parquetCheckpoint"],
    "acts": ["append"] * 6
    + ["remove", "overwrite", "restore", "refresh", "truncate", "truncate"]
    + ["checkpoint"] * 8
    + ["cleanup"] * 6,
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
    own = lambda new_id: hashlib.sha256(new_id.encode()).hexdigest()[:12]  # noqa: E731
    monkeypatch.setattr(parquet, "writer_id", own)


@pytest.mark.promise("checkpoint.changes_nothing")
def test_no_schedule_leaves_a_checkpoint_without_its_parts():
    shared = []
    put = parquet.put_manifest

    def noting(store, manifest, *args, **kwargs):
        shared.append(bool(manifest.shared_parts))
        return put(store, manifest, *args, **kwargs)

    first = random.randrange(1 << 32)
    print("seeds from", first)
    with mock.patch.object(parquet, "put_manifest", noting):
        run(range(first, first + cases(12)))
    print(sum(shared), "of", len(shared), "are incremental")
    assert sum(shared) > len(shared) // 5
    for what in ("acknowledged", "killed", "stall", "cleanup"):
        assert stall_simulation.SEEN[what], what


GUARDS = {
    "shared parts are not kept": [
        (cleanup, "find_all_named_parts", lambda *_: {}),
        (shared_parts, "find_all_named_parts", lambda *_: {}),
    ],
    "manifests are not read again before parts are deleted": [
        (shared_parts, "find_all_named_parts", lambda *_: {}),
    ],
    "nothing is recorded": [(shared_parts, "put_identical", lambda *_: True)],
    "records are not looked for": [
        (parquet, "_retired_parts", lambda *_: []),
        (incremental, "_parts_remain", lambda *_: True),
    ],
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_a_guard_a_reader_finds_a_part_missing(name):
    with ExitStack() as stack:
        for place, attribute, change in GUARDS[name]:
            stack.enter_context(mock.patch.object(place, attribute, change))
        with pytest.raises(Violation):
            run(range(1000, 1400))  # it stops at the first
