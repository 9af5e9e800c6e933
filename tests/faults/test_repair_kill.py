"""A repair that is killed leaves no half log that opens; run again, it finishes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support import kill_repair
from support.event_table import build

import arrowlog


def test_killed_at_any_point_nothing_half_opens_and_the_next_run_finishes(tmp_path):
    build(tmp_path / "t")
    os.unlink(tmp_path / "t" / "_transaction_log" / f"{6:020d}.json")
    path = os.pathsep.join(filter(None, [str(Path(arrowlog.__file__).parents[1]), *sys.path]))
    done = subprocess.run(
        [sys.executable, kill_repair.__file__, str(tmp_path / "t"), str(tmp_path / "new")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["points"] > 10
    assert 0 < found["opened"] < found["points"] - 3
