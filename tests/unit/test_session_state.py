"""State transitions of a write session: each returns a new value."""

from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import pytest

from arrowlog.snapshot.tracked_state import LogTip, ReadBase
from arrowlog.transaction import write_session
from arrowlog.transaction.write_session import OwnCommits, SessionState


def tip(version):
    return LogTip(version, f"{version:020d}.json", None)


def head(version, observed=100.0):
    return SimpleNamespace(version=version, observed=observed)


def snapshot(version):
    state = SimpleNamespace(
        version=version, protocol=None, metadata=None, schema=None, timestamp=None, txns={}
    )
    return SimpleNamespace(version=version, state=state)


SHOWN, READ = snapshot(3), snapshot(5)
HEAD = head(7)
STATE = SessionState(HEAD, tip(6), SHOWN, 2, 1, is_checked=True)
BASE = ReadBase(READ, tip(5), observed_at=90.0, generation=2)
TRANSITIONS = {
    "after_reading_on": (
        STATE.after_reading_on(READ, 4),
        {"shown": READ, "shown_generation": 4},
    ),
    "after_showing": (STATE.after_showing(), {"shown": None}),
    "without_head": (STATE.without_head(), {"head": None, "head_tip": None}),
    "with_head": (STATE.with_head(None), {"head": None}),
    "after_check": (SessionState().after_check(HEAD), None),
    "after_commit": (STATE.after_commit(None, tip(8)), {"head": None, "head_tip": tip(8)}),
    "after_conflict": (STATE.after_conflict(2), {"refused_generation": 2}),
    "after_torn_fork": (
        STATE.after_torn_fork(),
        {"head": None, "head_tip": None, "shown": None, "is_checked": False},
    ),
}


def values(state):
    return {item.name: getattr(state, item.name) for item in fields(SessionState)}


@pytest.mark.parametrize("name", TRANSITIONS)
def test_transition_changes_only_its_fields(name):
    after, changed = TRANSITIONS[name]
    if changed is None:
        assert values(after) == values(SessionState()) | {"head": HEAD, "is_checked": True}
    else:
        assert values(after) == values(STATE) | changed


def test_every_transition_is_in_the_table():
    public = {
        name for name, item in vars(SessionState).items() if callable(item) and name[0] != "_"
    }
    decisions = {"last_shown", "is_refused", "has_committed_after", "known_version", "newest_head"}
    assert public == set(TRANSITIONS) | decisions | {"observed_at", "tip"}


def test_session_state_is_immutable():
    with pytest.raises(FrozenInstanceError):
        STATE.head = None


def test_unobserved_commit_is_not_used_as_head():
    assert STATE.after_commit(head(8), None) == STATE.without_head()


@pytest.mark.parametrize(
    ("state", "base", "shown"),
    [
        (STATE, BASE, SHOWN),
        (STATE, BASE.after_refresh(91.0, 0), READ),  # a later snapshot was shown
        (STATE.after_showing(), BASE, READ),
        (SessionState(), BASE, READ),
        (SessionState(), ReadBase(), None),
    ],
)
def test_internal_reads_do_not_count_as_shown(state, base, shown):
    assert state.last_shown(base) is shown


def test_conflict_refuses_commits_until_the_next_refresh():
    assert not SessionState().is_refused(ReadBase())
    refused = STATE.after_conflict(BASE.generation)
    assert refused.is_refused(BASE)
    assert not refused.is_refused(BASE.after_refresh(91.0, 0))


@pytest.mark.parametrize(
    ("known", "read", "newest", "observed_at"),
    [(None, 5, 5, 90.0), (HEAD, 5, 7, 100.0), (HEAD, 7, 7, 100.0), (HEAD, 9, 9, 100.0)],
)
def test_newest_head_is_the_newer_of_session_and_tracker(known, read, newest, observed_at):
    base = ReadBase(snapshot(read), tip(read), observed_at=90.0)
    state = SessionState(known)
    assert state.newest_head(base).version == state.known_version(base) == newest
    assert (state.newest_head(base) is known) is (known is not None and read < 7)
    assert state.observed_at(base) == observed_at


def test_initial_session_state_is_empty():
    assert SessionState().known_version(ReadBase()) == -1
    assert SessionState().tip(ReadBase()) is None


def test_tip_of_an_own_commit_precedes_the_trackers():
    assert STATE.tip(BASE) == tip(6)
    assert STATE.without_head().tip(BASE) == tip(5)


@pytest.mark.parametrize(
    ("state", "shown", "after"),
    [
        (STATE, READ, True),
        (STATE, SHOWN, False),  # the tracker has already read further
        (SessionState(head(5)), READ, False),
        (SessionState(), READ, False),
    ],
)
def test_own_commits_after_the_shown_version(state, shown, after):
    assert state.has_committed_after(shown, BASE) is after


@pytest.mark.parametrize(
    ("made", "first", "last", "ids"),
    [
        ([4, 5, 6], 5, 6, {5: "t5", 6: "t6"}),
        ([4, 5, 6], 4, 6, {4: "t4", 5: "t5", 6: "t6"}),
        ([4, 6], 4, 6, {}),  # another writer committed 5
        ([4, 5], 4, 6, {}),
        ([5, 6], 4, 6, {}),
        ([4, 5, 6], 4, 5, {}),  # not the last ones
        ([4, 5, 6], 7, 6, {}),
        ([], 1, 2, {}),
    ],
)
def test_own_commits_between_versions(made, first, last, ids):
    own = OwnCommits()
    for version in made:
        own.record(f"t{version}", version)
    assert own.between(first, last) == ids


def test_own_commits_are_bounded(monkeypatch):
    monkeypatch.setattr(write_session, "_OWN_COMMITS_MAX", 2)
    own = OwnCommits()
    for version in range(4):
        own.record(f"t{version}", version)
    assert [f"t{version}" in own for version in range(4)] == [False, False, True, True]
