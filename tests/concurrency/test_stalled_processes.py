"""Processes stopped and killed at random during truncation and restore lose nothing."""

import json
import os

import pytest
from support import programs, stopped_processes
from support.case_count import first_seed


def stress(root, seconds):
    seed = first_seed()
    done = programs.run(stopped_processes.__file__, "stress", root, seed, seconds)
    found = json.loads(done)
    print({**found, "errors": len(found["errors"])})
    return found


def check(found):
    assert found["lost"] == []
    assert found["differ"] == []
    assert found["version"] == found["versions"]
    alarming = {"LogCorrupt", "TableNotFound", "UnsupportedProtocol"}
    assert not [line for line in found["errors"] if line[1] in alarming]


@pytest.mark.promise("commit.stalled_writers")
def test_stopped_writers_lose_nothing_during_truncation(root):
    check(stress(root, 15))


@pytest.mark.slow
@pytest.mark.skipif("ARROWLOG_SLOW" not in os.environ, reason="runs for five minutes")
def test_stopped_writers_lose_nothing_over_minutes(root):
    check(stress(root, float(os.environ.get("ARROWLOG_SLOW_SECONDS", "300"))))
