"""The progress bar: one line on a terminal, erased at the end, nothing in a pipe."""

import io
from types import SimpleNamespace

import pytest

from arrowlog.cli import output


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv("COLUMNS", "80")
    return stream


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(output, "monotonic", lambda: now[0])
    return now


def lines(terminal):
    return [each for each in terminal.getvalue().split("\r\x1b[K") if each]


def test_progress_is_shown_and_the_line_erased(terminal, clock):
    with output.progress_bar("reading") as report:
        report(1, 4)
        clock[0] += 1
        report(4, 4)
    assert [each.split("]")[1].split() for each in lines(terminal)] == [
        ["25%", "1", "of", "4"],
        ["100%", "4", "of", "4"],
    ]
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_progress_is_redrawn_a_few_times_per_second(terminal, clock):
    with output.progress_bar("reading") as report:
        for done in range(1000):
            report(done, 1000)
            clock[0] += 0.001
    assert 9 <= len(lines(terminal)) <= 11


def test_quick_work_shows_nothing(terminal):
    with output.progress_bar("reading") as report:
        report(3, 3)
    assert terminal.getvalue() == ""


def test_work_with_a_long_first_step_is_shown_at_once(terminal):
    with output.progress_bar("compacting", at_once=True):
        assert lines(terminal) == ["compacting …"]
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_line_is_erased_if_the_work_fails(terminal, clock):
    def work():
        with output.progress_bar("reading") as report:
            report(1, 2)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_line_fits_a_narrow_terminal(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    with output.progress_bar("reading") as report:
        report(1, 2)
    assert max(map(len, lines(terminal))) < 20


def test_pipe_gets_no_progress(monkeypatch):
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=io.StringIO()))
    with output.progress_bar("reading") as report:
        assert report is None


def test_total_of_zero_is_formatted():
    assert output.format_progress("reading", 0, 0).endswith("  0%  0 of 0")
