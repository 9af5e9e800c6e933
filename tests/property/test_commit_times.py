"""Time travel with wrong clocks, against a naive model that tries every choice."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.case_count import cases

import arrowlog
import arrowlog.clock
from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.time_travel import CLOCK_TOLERANCE_MS, find_version_at
from arrowlog.storage import LocalStore
from arrowlog.testing import add, commit_info, metadata, protocol, write_commit

SCHEMA = pa.schema([("id", pa.int64())])
T0 = 1_700_000_000_000
STEP = 1_000_000
NOW = T0 + 100 * STEP
FUTURE = NOW + 1_000 * STEP


def naive_times(declared, files, now):
    """The time of every version by definition: try every set of timestamps to keep."""
    possible = [
        at
        for at, time in enumerate(declared)
        if time is not None and time <= now + CLOCK_TOLERANCE_MS
    ]
    choices = [
        chosen
        for size in range(len(possible) + 1)
        for chosen in itertools.combinations(possible, size)
        if all(declared[a] <= declared[b] for a, b in itertools.pairwise(chosen))
    ]
    longest = max(map(len, choices))
    # Of several choices, the one with the earliest timestamps, compared from the end.
    kept = min(
        (chosen for chosen in choices if len(chosen) == longest),
        key=lambda chosen: [declared[at] for at in reversed(chosen)],
    )
    times, latest = [], None
    for at, file_time in enumerate(files):
        if at in kept:
            time = declared[at]
        else:
            time = min([file_time, now, *(declared[later] for later in kept if later > at)])
        latest = time if latest is None else max(latest, time)
        times.append(latest)
    return times


def write_table(folder, declared, files):
    for version, (time, file_time) in enumerate(zip(declared, files, strict=True)):
        actions = [add(f"f{version}")]
        if version == 0:
            actions = [protocol(), metadata(SCHEMA, created=None), *actions]
        if time is not None:
            actions.insert(0, commit_info(time))
        write_commit(folder, version, actions)
        path = f"{folder}/{LOG_FOLDER}/{version:020d}.json"
        os.utime(path, ns=(file_time * 1_000_000, file_time * 1_000_000))


def version_at(store, listing, newest, millis):
    try:
        return find_version_at(store, listing, resolve(), 0, newest, millis, now_ms=NOW)
    except InvalidRequest:
        return -1


@st.composite
def clocks(draw):
    """True times and the writers' timestamps; one writer's clock may be wrong."""
    size = draw(st.integers(1, 9))
    steps = draw(st.lists(st.integers(1, 8), min_size=size, max_size=size))
    true = [T0 + STEP * total for total in itertools.accumulate(steps)]
    declared = list(true)
    at = draw(st.integers(0, size - 1))
    wrong = draw(st.sampled_from(["none", "future", "late", "early", "run", "missing"]))
    if wrong == "future":
        declared[at] = FUTURE
    elif wrong == "late":
        declared[at] += draw(st.integers(1, 40)) * STEP + 1
    elif wrong == "early":
        declared[at] -= draw(st.integers(1, 40)) * STEP + 1
    elif wrong == "run":  # monotonic writers continue after a commit from the future
        declared[at:] = [FUTURE + number for number in range(size - at)]
    elif wrong == "missing":
        declared[at] = None
    return true, declared


@pytest.mark.promise("snapshot.time_travel")
@settings(max_examples=cases(150))
@given(clocks())
@example(([T0, T0 + STEP, T0 + 2 * STEP], [T0, FUTURE, T0 + 2 * STEP]))
def test_time_travel_with_a_wrong_clock_equals_the_model(case):
    true, declared = case
    if declared[0] is None:
        declared = [true[0], *declared[1:]]  # without one, it is the creation time of the table
    folder = Path(tempfile.mkdtemp())
    try:
        write_table(folder, declared, true)
        store = LocalStore(str(folder))
        listing = list_log(store)
        times = naive_times(declared, true, NOW)
        moments = {time + delta for time in [*times, *true, NOW, FUTURE] for delta in (-1, 0, 1)}
        for millis in sorted(moments):
            expected = sum(time <= millis for time in times) - 1
            assert version_at(store, listing, len(true) - 1, millis) == expected, millis
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("at", range(6))
def test_commit_from_the_future_hides_no_later_commit(tmp_path, at):
    true = [T0 + number * STEP for number in range(6)]
    declared = [*true[:at], FUTURE, *true[at + 1 :]]
    write_table(tmp_path, declared, true)
    store = LocalStore(str(tmp_path))
    listing = list_log(store)
    for version, millis in enumerate(true):
        assert version_at(store, listing, 5, millis) == version
    assert version_at(store, listing, 5, NOW) == 5


def test_commits_after_one_from_the_future_are_found_by_time(tmp_path, monkeypatch):
    table = arrowlog.Table.create(tmp_path / "t", SCHEMA, options={"checkpoint.enabled": False})
    table.write(pa.table({"id": [1]}))
    real = arrowlog.clock.SystemClock.now_ms
    day = 24 * 3600 * 1000
    monkeypatch.setattr(arrowlog.clock.SystemClock, "now_ms", lambda self: real(self) + day)
    table.write(pa.table({"id": [2]}))
    monkeypatch.undo()
    other = arrowlog.Table(tmp_path / "t")
    for number in range(3):
        other.write(pa.table({"id": [number]}))
    now = real(arrowlog.clock.SystemClock()) + 1000
    assert other.snapshot(timestamp=now).version == 5
    [finding] = [each for each in other.doctor() if each.code == "commit-in-future"]
    assert finding.severity == "warning"
    assert finding.count == 4
    assert "versions 2 to 5" in finding.what
    assert "23 hours" in finding.what or "24 hours" in finding.what or "1 day" in finding.what
