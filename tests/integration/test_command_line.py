"""The command line, run in a subprocess."""

import json
import os
import pty
import re
import subprocess
import sys

import click
import pyarrow as pa
import pytest
from support import small_table
from support.case_count import cases
from support.event_table import build
from support.waiting import SECONDS_MAX

import arrowlog
from arrowlog.cli.commands import commands


def run(*arguments):
    command = [sys.executable, "-m", "arrowlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_demo_prints_the_main_features():
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "[1, 2, 3]" in done.stdout
    assert "1 of 4 files to read" in done.stdout
    assert "(4, 4)" in done.stdout  # the snapshot of both writers
    assert "(5, 6)" in done.stdout  # and the result of their appends
    assert "ConcurrentRemove: Version 7 (DELETE) removed 'day=2024-01-01/part-" in done.stdout
    assert "Snapshot(version=3, files=3" in done.stdout
    assert "(8, Snapshot(version=8, files=4" in done.stdout
    assert re.search(r"DELETE +0 +0 *\n +RESTORE +1 ", done.stdout)  # the result of a query
    assert "Diff(4 → 7, added=2, removed=1, changed=0, changes=0)" in done.stdout
    assert "LogCorrupt: _transaction_log/00000000000000000009.json, line 1" in done.stdout
    assert "\x1b[" not in done.stdout  # no colours when piped


def test_demo_keeps_its_table_in_the_given_folder(tmp_path):
    folder = tmp_path / "events"
    assert run("demo", "--folder", str(folder)).returncode == 0
    assert arrowlog.Table(folder).version == 8  # the damage is repaired
    again = run("demo", "--folder", str(folder))
    assert again.returncode == 1
    assert again.stderr.startswith("Error: ")
    assert "is not empty" in again.stderr
    assert "Traceback" not in again.stderr


def test_wrong_usage_exits_with_code_2():
    done = run("nonsense")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_help_shows_examples():
    assert "arrowlog demo" in run("--help").stdout
    text = run("scan", "--help").stdout
    assert "\n  Examples:\n    arrowlog scan /data/events" in text  # one line each, not escaped
    assert "\\b" not in text


def test_shell_completes_commands_and_options():
    asked = {"_ARROWLOG_COMPLETE": "bash_source"}
    command = [sys.executable, "-m", "arrowlog"]
    script = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert "_arrowlog_completion" in script.stdout
    asked = {"_ARROWLOG_COMPLETE": "bash_complete", "COMP_WORDS": "arrowlog hi", "COMP_CWORD": "1"}
    found = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert found.stdout == "plain,history\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shell_script(shell):
    asked = {**os.environ, "_ARROWLOG_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-m", "arrowlog"]
    script = subprocess.run(command, env=asked, capture_output=True, text=True, check=False)
    done = run("completion", shell)
    assert done.returncode == 0
    assert done.stdout.split() == script.stdout.split()
    assert f"{shell}_complete" in done.stdout


def complete(words):
    """The completions of the last word."""
    asked = {"_ARROWLOG_COMPLETE": "bash_complete", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - (not words.endswith(" ")))
    done = subprocess.run(
        [sys.executable, "-m", "arrowlog"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def test_shell_completes_folders_settings_and_choices():
    assert complete("arrowlog info la") == ["dir,la"]
    assert complete("arrowlog repair a b") == ["dir,b"]
    assert "plain,checkpoint.interval=" in complete("arrowlog info t --set checkpoint.i")
    assert complete("arrowlog info t --output js") == ["plain,json", "plain,jsonl"]
    assert complete("arrowlog completion f") == ["plain,fish"]


def test_help_fits_a_terminal_of_80_columns():
    context = click.Context(commands, info_name="arrowlog", terminal_width=80)
    listing = commands.get_help(context)
    for name in commands.list_commands(context):
        about = commands.get_command(context, name).get_short_help_str()
        assert f"  {name:17}  {about}\n" in listing  # on one line
        below = click.Context(
            commands.get_command(context, name), parent=context, info_name=name, terminal_width=80
        )
        text = below.command.get_help(below)
        assert "Examples:\n" in text
        assert max(map(len, text.splitlines())) <= 80, name


def test_colors_respect_no_color_and_dumb_terminals(events):
    def header(**settings):
        parent, child = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "arrowlog", "history", events],
            env={**os.environ, "TERM": "xterm", **settings},
            stdout=child,
            check=True,
        )
        os.close(child)
        shown = os.read(parent, 10_000).decode()
        os.close(parent)
        assert done.returncode == 0
        return shown.splitlines()[0]

    assert "\x1b[1m" in header()
    assert "\x1b" not in header(NO_COLOR="1")
    assert "\x1b" not in header(TERM="dumb")


def test_times_are_iso_8601_in_every_format(events):
    assert "2024-01-01T06:00:00Z" in run("history", events, "--limit", "1").stdout
    assert "2024-01-01T06:00:00Z" in run("info", events).stdout
    (row,) = json.loads(run("history", events, "--limit", "1", "--output", "json").stdout)
    assert row["timestamp"] == "2024-01-01T06:00:00Z"
    query = "SELECT timestamp FROM commits WHERE version = 6"
    assert run("sql", events, query).stdout.split() == ["timestamp", "2024-01-01T06:00:00Z"]
    csv = run("sql", events, query, "--output", "csv").stdout
    assert re.fullmatch(r'"timestamp"\n"?2024-01-01T06:00:00(\.0+)?Z"?\n', csv)


def test_invalid_settings_and_storage_options_are_refused(events):
    done = run("scan", events, "id = 7", "--set", "checkpoint.parallelism=x")
    assert done.returncode == 1
    assert "Option 'checkpoint.parallelism' cannot be 'x'" in done.stderr
    assert run("scan", events, "id = 7", "--storage-option", "nonsense").returncode == 2


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "events"
    build(str(folder))
    return str(folder)


def test_scan_lists_the_files_to_read(events):
    done = run("scan", events, "day = '2024-01-03'")
    assert done.returncode == 0, done.stderr
    assert "part-00002.parquet" in done.stdout
    assert "1 of 5 files" in done.stdout
    lines = run("scan", events, "id >= 3000", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["num_records"] for line in lines] == [1000, 1000]
    assert len(run("scan", events, "TRUE", "--output", "csv", "--limit", "2").stdout.split()) == 3
    assert "3 of 3 files" in run("scan", events, "TRUE", "--version", "3").stdout


def test_scan_writes_an_arrow_stream(events):
    command = [sys.executable, "-m", "arrowlog", "scan", events, "id < 5", "--output", "arrow"]
    done = subprocess.run(command, capture_output=True, check=True)
    with pa.ipc.open_stream(done.stdout) as reader:
        assert reader.read_all().num_rows == 1


def test_explain_sql_prints_a_runnable_query(events):
    shown = run("explain", str(events), "id < 0", "--sql").stdout
    assert "FROM file_bounds_at(" in shown
    assert json.loads(run("sql", str(events), shown, "--output", "json").stdout or "[]") == []
    planned = run("scan", str(events), "id >= 0", "--engine", "duckdb")
    assert planned.stdout == run("scan", str(events), "id >= 0").stdout
    every = run("diff", str(events), "--since", "0001-01-02")
    assert every.returncode == 0
    assert every.stdout == run("diff", str(events), "0").stdout


def test_explain_min_pruning_sets_the_exit_code(events):
    done = run("explain", events, "day = '2024-01-03' AND length(city) = 1")
    assert done.returncode == 0, done.stderr
    assert "1 of 5 files to read (80.0% pruned)" in done.stdout
    assert "not prunable" in done.stdout
    assert run("explain", events, "id = 7", "--min-pruning", "0.8").returncode == 0
    gate = run("explain", events, "id >= 0", "--min-pruning", "0.9")
    assert gate.returncode == 1
    assert "0.0% of the files are pruned" in gate.stderr
    rows = run("explain", events, "id = 7", "--output", "jsonl").stdout.splitlines()
    assert sorted(json.loads(row)["reason"] for row in rows) == ["dropped"] * 4 + ["in range"]


def test_invalid_predicate_prints_one_sentence(events):
    done = run("scan", events, "id = ")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The predicate, at character 6")
    assert run("explain", events, "id = 1", "--min-pruning", "2").returncode == 2


@pytest.fixture
def long(tmp_path):
    """Ten days of commits, all of them old."""
    folder = tmp_path / "long"
    properties = {"checkpoint.format": "json", "checkpoint.enabled": "false"}
    properties["logRetention.duration"] = "1d"  # otherwise the last 30 commits stay
    table = arrowlog.Table.create(folder, small_table.SCHEMA, ["day"], properties)
    for number in range(10):
        table.append([arrowlog.add_file(f"f{number}", {"day": None}, size=1)])
    for name in os.listdir(folder / "_transaction_log"):
        os.utime(folder / "_transaction_log" / name, (0, 0))
    return str(folder)


def test_checkpoint_and_cleanup_shorten_a_log(long):
    assert "0 files would be deleted" in run("cleanup", long, "--dry-run").stdout
    done = run("checkpoint", long)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Version 10: 10 files in a checkpoint of ")
    told = json.loads(run("checkpoint", long, "--output", "json").stdout)
    assert told.pop("milliseconds") >= 0
    nothing = {"size_bytes": 0, "uncompressed_bytes": 0, "names": []}
    assert told == {"version": 10, "num_files": 10, "format": "json", **nothing}
    dry = run("cleanup", long, "--dry-run")
    assert "9 files would be deleted" in dry.stdout
    assert "the earliest readable version is 10" in dry.stdout
    assert len(os.listdir(f"{long}/_transaction_log")) == 13
    rows = run("cleanup", long, "--dry-run", "--output", "csv").stdout.splitlines()
    assert rows[0] == '"path","kind","version","size_bytes","modification_time"'
    lines = run("cleanup", long, "--no-dry-run", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["version"] for line in lines] == list(range(1, 10))
    assert len(set(os.listdir(f"{long}/_transaction_log")) - {"_retired"}) == 4
    assert "0 files deleted" in run("cleanup", long).stdout
    assert arrowlog.Table(long).snapshot().num_files == 10


def test_failed_maintenance_prints_one_sentence(long, tmp_path):
    for command in ("checkpoint", "cleanup"):
        assert "Examples:" in run(command, "--help").stdout
        missing = run(command, str(tmp_path / "nothing"))
        assert missing.returncode == 1
        assert missing.stderr.startswith("Error: There is no table at ")
        assert run(command).returncode == 2
    os.remove(f"{long}/_transaction_log/{5:020d}.json")
    refused = run("cleanup", long)
    assert refused.returncode == 1
    assert "cannot be cleaned up: version 5 is missing" in refused.stderr
    assert "Traceback" not in refused.stderr


ENDING = """
import atexit, os, sys, threading
import arrowlog.cli
class Bomb:
    def __del__(self, write=os.write, abort=os.abort):
        write(2, b"the interpreter was taken down")
        abort()
bomb = Bomb()
atexit.register(print, "hook")
# The main thread counts as ended once it waits for the other threads.
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
sys.argv = ["arrowlog", *sys.argv[1:]]
arrowlog.cli.program()
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["files", "TABLE"], 0),
        (["--version"], 0),
        (["--help"], 0),
        (["files", "/nowhere"], 1),
        (["scan", "TABLE", "nothing = 5"], 1),
        (["files"], 2),
        (["nonsense"], 2),
    ],
)
def test_command_exits_without_finalizing_the_interpreter(events, arguments, code):
    """Engine threads that release objects during finalization would abort the process."""
    arguments = [events if argument == "TABLE" else argument for argument in arguments]
    command = [sys.executable, "-c", ENDING, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith("thread\nhook\n")  # exit handlers have run before
    assert "taken down" not in done.stderr


def test_unexpected_error_prints_a_traceback():
    code = (
        "import arrowlog.cli\n"
        "def fail(): raise KeyError('unforeseen')\n"
        "arrowlog.cli.main = fail\n"
        "arrowlog.cli.program()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError: 'unforeseen'" in done.stderr
    assert "Traceback" in done.stderr


def test_broken_pipe_prints_no_error(events):
    """As in `arrowlog files TABLE | head -1`."""
    command = [sys.executable, "-m", "arrowlog", "files", str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        told = running.stderr.read()
        running.wait(SECONDS_MAX)
    assert told == b""


def test_commands_under_load_exit_with_the_right_code(tmp_path):
    """Set ARROWLOG_CASES to 100 for 1,000 runs."""
    table = arrowlog.Table.create(tmp_path / "table", small_table.SCHEMA, ["day"])
    for _ in range(3):
        table.write(pa.table({"day": pa.array([1, 2, 3], pa.date32()), "id": [1, 2, 3]}))
    table.checkpoint()
    commands = [["files"], ["scan", "id = 2"], ["explain", "id BETWEEN 2 AND 9"]]
    first = [run(name, table.uri, *rest).stdout for name, *rest in commands]
    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for number in range(cases(10)):
            name, *rest = commands[number % 3]
            done = run(name, table.uri, *rest)
            assert (done.returncode, done.stdout) == (0, first[number % 3]), done.stderr
    finally:
        load.kill()
        load.wait()
