"""A killed repair leaves no partial log that opens. Running it again finishes."""

import json
import os

import pytest
from support import kill_repair, programs
from support.event_table import build


@pytest.mark.promise("recovery.repair_is_restartable")
@pytest.mark.fork
def test_killed_repair_leaves_no_partial_log_and_a_rerun_finishes(tmp_path):
    build(tmp_path / "t")
    os.unlink(tmp_path / "t" / "_transaction_log" / f"{6:020d}.json")
    found = json.loads(programs.run(kill_repair.__file__, tmp_path / "t", tmp_path / "new"))
    print(found)
    assert found["points"] > 10
    assert 0 < found["opened"] < found["points"] - 3
