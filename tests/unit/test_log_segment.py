"""Log segments: the files that make up a version, against an exhaustive model."""

import sys
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import classify_names
from arrowlog.snapshot.log_segment import (
    VersionGap,
    checkpoint_versions,
    earliest_rebuildable_version,
    plan_segment,
)


def listing(commits, checkpoints=(), parquet=()):
    return classify_names(
        [f"{v:020d}.json" for v in commits] + [f"{v:020d}.checkpoint.json" for v in checkpoints],
        [f"{v:020d}.checkpoint.parquet" for v in parquet],
    )


def versions(segment):
    return [version for version, _ in segment.commits]


def test_segment_without_a_checkpoint_has_all_commits_in_order():
    found = plan_segment(listing([2, 0, 1]), None)
    assert (found.version, found.checkpoint, found.gap) == (2, None, None)
    assert found.commits == tuple((v, f"_transaction_log/{v:020d}.json") for v in range(3))


def test_segment_keeps_the_file_names():
    found = plan_segment(classify_names([f"{0:018d}.json", "1.json"]), None)
    assert [commit.name for commit in found.commits] == [f"{0:018d}.json", "1.json"]


def test_commits_are_ordered_numerically():
    found = plan_segment(classify_names([f"{v}.json" for v in range(12)]), None)
    assert versions(found) == list(range(12))


@pytest.mark.parametrize(
    ("commits", "checkpoints", "base", "read"),
    [
        (range(6), [3], 3, [4, 5]),
        (range(6), [5], 5, []),
        (range(6), [1, 3], 3, [4, 5]),
        ([4, 5], [3], 3, [4, 5]),
        ([3, 4, 5], [3], 3, [4, 5]),
        ([], [5], 5, []),
        ([0, 1, 5], [5], 5, []),
        ([0, 1, 5, 6], [4], 4, [5, 6]),
        (range(6), [0], 0, [1, 2, 3, 4, 5]),
    ],
)
def test_segment_starts_at_the_newest_checkpoint(commits, checkpoints, base, read):
    found = plan_segment(listing(commits, checkpoints), None)
    assert (found.checkpoint, versions(found), found.gap) == (base, read, None)
    assert found.version == max([base, *read])


def test_parquet_checkpoint_can_start_a_segment():
    assert plan_segment(listing(range(6), [2], parquet=[4]), None).checkpoint == 4
    assert checkpoint_versions(listing([], [2, 9], parquet=[4, 9])) == [9, 4, 2]


@pytest.mark.parametrize(
    ("commits", "checkpoints", "reached", "gap"),
    [
        ([0, 1, 3], [], 1, VersionGap(2, 3)),
        ([0, 2, 4], [], 0, VersionGap(1, 2)),
        ([0, 1, 9], [], 1, VersionGap(2, 9)),
        ([0, 1, 2, 5], [1], 2, VersionGap(3, 5)),
        ([5, 6], [3], 3, VersionGap(4, 5)),
    ],
)
def test_segment_ends_at_a_gap_and_reports_it(commits, checkpoints, reached, gap):
    found = plan_segment(listing(commits, checkpoints), None)
    assert (found.version, found.gap) == (reached, gap)
    assert f"version {gap.missing} is missing" in str(gap)
    assert f"as of version {reached}" in str(gap)


def test_checkpoint_after_a_gap_bridges_it():
    found = plan_segment(listing([0, 1, 3, 4], [3]), None)
    assert (found.version, found.gap) == (4, None)


@pytest.mark.parametrize(
    ("commits", "version", "missing"), [([], None, 0), ([1, 2], None, 0), ([3], 5, 0)]
)
def test_missing_version_0_without_a_checkpoint_raises(commits, version, missing):
    with pytest.raises(LogCorrupt, match="no checkpoint to start from") as caught:
        plan_segment(listing(commits), version)
    assert caught.value.version == missing
    assert caught.value.file == f"_transaction_log/{missing:020d}.json"


@pytest.mark.parametrize(
    ("version", "base", "read"),
    [(0, None, [0]), (2, None, [0, 1, 2]), (3, 3, []), (5, 3, [4, 5]), (6, 6, []), (8, 6, [7, 8])],
)
def test_time_travel_starts_from_the_checkpoint_below(version, base, read):
    found = plan_segment(listing(range(10), [3, 6]), version)
    assert (found.version, found.checkpoint, versions(found)) == (version, base, read)


def test_gap_after_the_requested_version_is_ignored():
    assert plan_segment(listing([0, 1, 3]), 1).gap is None


def test_version_without_its_commits_raises():
    with pytest.raises(LogCorrupt, match="version 0 is missing"):
        plan_segment(listing([5, 6], [4]), 3)


def test_unusable_checkpoint_is_bypassed_with_commits():
    log = listing(range(8), [2, 5])
    assert plan_segment(log, None, {5}).checkpoint == 2
    assert plan_segment(log, None, {5, 2}).checkpoint is None
    assert plan_segment(log, None, {5, 2}).version == 7
    assert plan_segment(log, 4, {5}).checkpoint == 2


@pytest.mark.parametrize(
    ("commits", "checkpoints", "unusable", "missing"),
    [
        ([6, 7], [5], {5}, 0),
        ([], [5], {5}, 0),
        ([0, 1, 6, 7], [5], {5}, 2),
        ([3, 6, 7], [2, 5], {5}, 4),
        ([6, 7], [2, 5], {5}, 3),
        ([6, 7], [2, 5], {5, 2}, 0),
        ([3, 4], [2, 5], {5}, 5),
        ([*range(6), *range(7, 11)], [10], {10}, 6),
    ],
)
def test_unusable_checkpoint_without_commits_raises(commits, checkpoints, unusable, missing):
    with pytest.raises(LogCorrupt, match=f"version {max(unusable)} cannot be read") as caught:
        plan_segment(listing(commits, checkpoints), None, unusable)
    assert caught.value.version == missing
    assert caught.value.file == f"_transaction_log/{missing:020d}.json"


def test_unusable_checkpoint_after_the_requested_version_is_ignored():
    assert plan_segment(listing([0, 1, 6], [5]), 1, {5}).version == 1


@pytest.mark.parametrize(
    ("commits", "checkpoints", "newest", "first"),
    [
        (range(5), [], 4, 0),
        (range(5), [3], 4, 0),
        ([4, 5, 6], [3, 5], 6, 3),
        ([3, 4, 5, 6], [3, 5], 6, 3),
        ([5, 6], [3, 6], 6, 6),
        ([], [6], 6, 6),
        ([0, 1, 3], [], 1, 0),
        ([0, 1, 6, 7], [5], 7, 5),
        ([0, 1, 2, 4], [3], 4, 0),
    ],
)
def test_earliest_rebuildable_version(commits, checkpoints, newest, first):
    log = listing(commits, checkpoints)
    assert plan_segment(log, None).version == newest
    assert earliest_rebuildable_version(log, newest) == first


HIGH = 9
some = st.frozensets(st.integers(0, HIGH))


def rebuildable(commits, bases, version):
    """Whether some checkpoint, or none, and every commit after it lead to the version."""
    return any(
        all(v in commits for v in range(base + 1, version + 1))
        for base in (-1, *bases)
        if base <= version
    )


def attempt(log, version, unusable=frozenset()):
    try:
        return plan_segment(log, version, unusable)
    except LogCorrupt:
        return None


@settings(deadline=None, max_examples=300)
@given(some, some, some, st.integers(0, HIGH))
def test_version_is_reached_if_and_only_if_it_can_be_rebuilt(
    commits, checkpoints, unusable, version
):
    found = attempt(listing(commits, checkpoints), version, unusable)
    reached = found is not None and found.version == version
    assert reached == rebuildable(commits, checkpoints - unusable, version)
    if found is not None:
        first = -1 if found.checkpoint is None else found.checkpoint
        assert versions(found) == list(range(first + 1, found.version + 1))
        assert found.checkpoint is None or found.checkpoint in checkpoints - unusable
        assert found.version <= version


@settings(deadline=None, max_examples=300)
@given(some, some, some)
def test_latest_version_ends_at_the_first_gap(commits, checkpoints, unusable):
    usable = checkpoints - unusable
    base = max(usable, default=-1)
    reached = base
    while reached + 1 in commits:
        reached += 1
    found = attempt(listing(commits, checkpoints), None, unusable)
    if reached < 0 or max(checkpoints, default=-1) > reached:
        assert found is None
        return
    assert found.version == reached
    later = [v for v in commits if v > reached]
    assert found.gap == (VersionGap(reached + 1, min(later)) if later else None)


@settings(deadline=None, max_examples=300)
@given(some, some)
@example(frozenset({0, 1, 2, 4}), frozenset({3}))
def test_every_version_from_the_earliest_on_can_be_rebuilt(commits, checkpoints):
    log = listing(commits, checkpoints)
    newest = attempt(log, None)
    if newest is None:
        return
    first = earliest_rebuildable_version(log, newest.version)
    can = [rebuildable(commits, checkpoints, v) for v in range(newest.version + 1)]
    assert all(can[first:])
    assert first == 0 or not can[first - 1]


def test_planning_a_segment_makes_no_call_per_commit():
    def num_calls(num_commits):
        listing = classify_names([f"{version:020d}.json" for version in range(num_commits)])
        calls = Counter()
        sys.setprofile(lambda _, event, __: calls.update([event]))
        try:
            segment = plan_segment(listing, None)
        finally:
            sys.setprofile(None)
        assert segment.version == num_commits - 1
        return calls["call"]

    # A generator resumes at most once per commit; scanning the log per commit adds one more.
    assert num_calls(400) - num_calls(200) <= 200
