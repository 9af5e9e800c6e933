"""The command line, run as a person runs it."""

import subprocess
import sys


def run(*arguments):
    command = [sys.executable, "-m", "arrowlog.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_shows_the_main_job():
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "Snapshot(version=6, files=5" in done.stdout
    assert "Snapshot(version=3, files=3" in done.stdout
    assert "Snapshot(version=2, files=2" in done.stdout
    assert "version 7 from no checkpoint + 1 commits" in done.stdout
    assert "LogCorrupt: _transaction_log/00000000000000000008.json, line 1" in done.stdout
    assert "\x1b[" not in done.stdout  # no colours when piped


def test_the_demo_keeps_its_table_where_told(tmp_path):
    folder = tmp_path / "events"
    assert run("demo", "--folder", str(folder)).returncode == 0
    assert (folder / "_transaction_log").is_dir()
    again = run("demo", "--folder", str(folder))
    assert again.returncode == 1
    assert again.stderr.startswith("Error: ")
    assert "is not empty" in again.stderr
    assert "Traceback" not in again.stderr


def test_wrong_usage_is_exit_code_two():
    done = run("nonsense")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_help_teaches():
    assert "arrowlog demo" in run("--help").stdout
    assert "Examples:" in run("demo", "--help").stdout
