"""State transitions of a snapshot tracker: each returns a new value and changes nothing else."""

from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import pytest

from arrowlog.snapshot.tracked_state import LogTip, ReadBase
from arrowlog.storage import ObjectStat

STAT = ObjectStat(10, 1, "tag")


def snapshot(version, *, gap=None, warnings=()):
    return SimpleNamespace(
        version=version, report=SimpleNamespace(gap=gap, warnings=tuple(warnings))
    )


def tip(version):
    return LogTip(version, f"{version:020d}.json", STAT)


OLD, NEW = snapshot(3), snapshot(5)
READ = ReadBase(
    OLD,
    tip(3),
    observed_at=100.0,
    generation=2,
    own_commits=4,
    covered_commits=4,
    stale_pointer=STAT,
    unsaved_commits=7,
    folder_tag="folder",
)
TRANSITIONS = {
    "after_restore": (
        READ.after_restore(NEW, tip(5), "other"),
        {"snapshot": NEW, "tip": tip(5), "folder_tag": "other"},
    ),
    "after_load": (
        READ.after_load(
            NEW, None, 120.0, folder_tag=None, has_nonstandard_names=True, unsaved_commits=64
        ),
        {
            "snapshot": NEW,
            "tip": None,
            "observed_at": 120.0,
            "folder_tag": None,
            "has_nonstandard_names": True,
            "unsaved_commits": 64,
        },
    ),
    "after_commits": (
        READ.after_commits(NEW, tip(5), 2),
        {"snapshot": NEW, "tip": tip(5), "unsaved_commits": 9},
    ),
    "with_own_commits": (READ.with_own_commits(NEW), {"snapshot": NEW}),
    "after_own_commit": (READ.after_own_commit(), {"own_commits": 5}),
    "after_confirmation": (READ.after_confirmation(130.0), {"observed_at": 130.0}),
    "after_refresh": (
        READ.after_refresh(130.0, 3),
        {"observed_at": 130.0, "generation": 3, "covered_commits": 3},
    ),
    "with_tip": (READ.with_tip(tip(1)), {}),
    "with_stale_pointer": (READ.with_stale_pointer(None), {"stale_pointer": None}),
    "after_save": (READ.after_save(), {"unsaved_commits": 0}),
    "invalidated": (READ.invalidated(), {"snapshot": None, "tip": None}),
    "after_torn_fork": (
        READ.after_torn_fork(),
        {"snapshot": None, "tip": None, "stale_pointer": None},
    ),
}


@pytest.mark.parametrize("name", TRANSITIONS)
def test_transition_changes_only_its_fields(name):
    after, changed = TRANSITIONS[name]
    before = {item.name: getattr(READ, item.name) for item in fields(ReadBase)}
    assert {item.name: getattr(after, item.name) for item in fields(ReadBase)} == before | changed


def test_every_transition_is_in_the_table():
    public = {name for name, item in vars(ReadBase).items() if callable(item) and name[0] != "_"}
    decisions = {"may_be_served", "may_be_refreshed", "is_worth_saving"}
    assert public == set(TRANSITIONS) | decisions


def test_read_base_is_immutable():
    with pytest.raises(FrozenInstanceError):
        READ.snapshot = NEW


def test_tip_is_kept_without_a_snapshot():
    assert ReadBase().with_tip(tip(1)).tip == tip(1)


@pytest.mark.parametrize(
    ("base", "now", "max_age", "served"),
    [
        (READ, 105.0, 10.0, True),
        (READ, 110.0, 10.0, True),
        (READ, 110.1, 10.0, False),
        (READ, 100.0, 0.0, False),
        (READ.invalidated(), 105.0, 10.0, False),
        (ReadBase(), 105.0, 10.0, False),
        (READ.after_own_commit(), 105.0, 10.0, False),
        (READ.after_own_commit().after_refresh(105.0, 5), 105.0, 10.0, True),
        # The commit was made while the refresh ran, and may not be in its result.
        (READ.after_own_commit().after_refresh(105.0, 4), 105.0, 10.0, False),
    ],
)
def test_snapshot_is_served_while_recent_and_with_all_own_commits(base, now, max_age, served):
    assert base.may_be_served(now, max_age) is served


@pytest.mark.parametrize(
    ("known", "strict", "may"),
    [
        (None, False, False),
        (snapshot(3), True, True),
        (snapshot(3, gap="4"), False, True),
        (snapshot(3, gap="4"), True, False),
    ],
)
def test_snapshot_ending_at_a_gap_is_not_refreshed_in_strict_mode(known, strict, may):
    assert ReadBase(known).may_be_refreshed(strict=strict) is may


@pytest.mark.parametrize(
    ("base", "worth"),
    [
        (ReadBase(OLD, tip(3), unsaved_commits=64), True),
        (ReadBase(OLD, tip(3), unsaved_commits=63), False),
        (ReadBase(OLD, tip(2), unsaved_commits=64), False),  # the tip is not its last commit
        (ReadBase(OLD, None, unsaved_commits=64), False),
        (ReadBase(None, tip(3), unsaved_commits=64), False),
        (ReadBase(snapshot(3, warnings=["gap"]), tip(3), unsaved_commits=64), False),
    ],
)
def test_snapshots_worth_saving_to_disk(base, worth):
    assert base.is_worth_saving(64) is worth
