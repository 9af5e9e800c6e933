"""Every promise has a test, every marker names a promise, and docs/promises.md is up to date."""

from support import promises


def test_every_promise_has_a_test_and_every_marker_names_a_promise():
    assert {promise for promise, _, _ in promises.marked_tests()} == set(promises.PROMISES)


def test_every_group_of_promises_has_a_title():
    groups = {promise.partition(".")[0] for promise in promises.PROMISES}
    assert groups == set(promises.TITLES)


def test_promises_page_is_up_to_date():
    assert promises.PAGE.read_text() == promises.page(), "run python tests/support/promises.py"
