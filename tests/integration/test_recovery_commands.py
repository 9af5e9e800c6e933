"""The commands `arrowlog doctor` and `arrowlog repair`, run in a subprocess."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from support.event_table import build

import arrowlog
from arrowlog.formats.indextables.format import LOG_FOLDER


def run(*arguments):
    command = [sys.executable, "-m", "arrowlog", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def events(root):
    build(root)
    return root


def test_doctor_fail_on_sets_the_exit_code(events):
    done = run("doctor", events, "--fail-on", "info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"{events}, version 6: no problems found\n"
    done = run("doctor", events, "--max-commits-since-checkpoint", 5, "--assert-stats", "id,city")
    assert done.returncode == 1
    assert b"error: checkpoint-behind" in done.stdout
    assert f"fix:   arrowlog checkpoint {events}  # ".encode() in done.stdout
    assert done.stderr == b""
    done = run("doctor", events, "--assert-stats", "nothing")
    assert done.returncode == 1
    assert done.stderr == b"Error: There is no column 'nothing'. The columns are: day, id, city.\n"
    assert run("doctor", events, "--fail-on", "fatal").returncode == 2


def test_doctor_options_select_checks_and_severity(events):
    os.unlink(events / "day=2024-01-02/part-00001.parquet")
    assert run("doctor", events, "--no-data-files").returncode == 0
    done = run("doctor", events, "--output", "json", "--limit", 5)
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert [(row["code"], row["severity"]) for row in rows] == [("data-missing", "error")]
    with pa.ipc.open_stream(run("doctor", events, "--output", "arrow").stdout) as stream:
        assert stream.read_all().column_names == [
            "code",
            "severity",
            "what",
            "where",
            "fix",
            "count",
            "command",
        ]


def test_doctor_and_repair_recover_a_log_with_a_gap(events):
    os.unlink(events / LOG_FOLDER / f"{4:020d}.json")
    done = run("doctor", events)
    assert done.returncode == 1
    assert b"error: gap: version 4 is missing although version 5 is there" in done.stdout
    new = events / "_transaction_log_repaired"
    done = run("repair", events / LOG_FOLDER, new)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert f"Version 3 of {events / LOG_FOLDER}: 3 of 3 files, 0 missing.\n" in text
    note = "the new log contains version 3 of the source; versions 4 to 6 are not in it"
    assert f"note: {note}" in text
    assert done.stderr == b""
    again = run("repair", events / LOG_FOLDER, new, "--output", "json")
    assert again.returncode == 1
    assert json.loads(again.stdout)["status"].startswith("ERROR: Target location already exists")
    os.rename(events / LOG_FOLDER, events / "old")
    os.rename(new, events / LOG_FOLDER)
    done = run("doctor", events, "--fail-on", "warning")
    assert done.returncode == 1
    assert b"warning: stranded" in done.stdout
    assert run("doctor", events).returncode == 0
    assert arrowlog.Table(events, strict=True).snapshot().num_files == 3


def test_repair_settings_from_the_command_line(events):
    os.unlink(events / "day=2024-01-02/part-00001.parquet")
    done = run("repair", events / LOG_FOLDER, events / "new", "--set", "repair.failOnMissing=true")
    assert done.returncode == 1
    assert done.stderr.startswith(b"ERROR: 1 of 5 data files are missing")
    assert not os.path.exists(events / "new")
