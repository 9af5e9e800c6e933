"""Commands that read a table, run in a subprocess: piped, on a terminal, with mistakes."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from typing import get_args

import pyarrow as pa
import pytest
from support import small_table
from support.event_table import build

import arrowlog
from arrowlog import testing

CLI = [sys.executable, "-m", "arrowlog"]


def run(*arguments, **more):
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, check=False, **more)


def on_terminal(*arguments, typed="", columns=80):
    """The output on a terminal of this width, and the exit code."""
    parent, child = pty.openpty()
    settings = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
    with subprocess.Popen(
        [*CLI, *arguments], stdin=child, stdout=child, stderr=child, env=settings
    ) as process:
        os.close(child)
        os.write(parent, typed.encode())
        seen = b""
        while select.select([parent], [], [], 120)[0]:
            try:
                more = os.read(parent, 1 << 16)
            except OSError:  # the other end is closed
                break
            seen += more
            if not more:
                break
    os.close(parent)
    return seen.decode(), process.returncode


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asking") / "events"
    build(str(folder))
    return str(folder)


def test_info_fits_one_screen(events):
    done = run("info", events)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines[1:])  # the first one is where the table is
    assert "files       5 with 30.2 kB" in lines
    assert "rows        5,000" in lines
    assert "partitions  5 by day" in lines
    assert lines[-1] == "log healthy; data files not checked (arrowlog doctor)"
    told = json.loads(run("info", events, "--output", "json").stdout)
    assert (told["version"], told["num_files"], told["healthy"]) == (6, 5, True)
    assert told["columns"][0] == "day: date32[day]"


def test_info_reports_warnings(tmp_path):
    root = small_table.write(tmp_path / "t")
    testing.write_commit(root, 3, [testing.add("later", {"day": None})])
    done = run("info", str(root))
    assert done.returncode == 0
    assert "warning: version 2 is missing although version 3 is there" in done.stdout
    assert "warning: 1 of 1 files have no row count" in done.stdout
    assert done.stdout.endswith("warnings; data files not checked (arrowlog doctor)\n")
    assert done.stderr.startswith("Warning: ")
    assert "Traceback" not in done.stderr


def test_files_and_history_in_every_output_format(events):
    assert "5 files, 30.2 kB, version 6" in run("files", events).stdout
    rows = run("files", events, "--version", "2", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(row)["max.id"] for row in rows] == [999, 1999]
    assert "1 file, " in run("files", events, "--where", "id = 7").stdout
    assert len(run("history", events, "--limit", "2", "--output", "csv").stdout.split("\n")) == 4
    lines = run("history", events, "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["version"] for line in lines] == [6, 5, 4, 3, 2, 1, 0]
    assert json.loads(lines[0])["operation"] == "MERGE"
    command = [*CLI, "history", events, "--output", "arrow"]
    done = subprocess.run(command, capture_output=True, check=True)
    with pa.ipc.open_stream(done.stdout) as reader:
        assert reader.read_all()["adds"].to_pylist() == [1, 1, 1, 1, 1, 1, 0]


def test_history_by_day_and_operation_in_text_and_json(events):
    table = arrowlog.Table(events)
    done = run("history", events, "--by", "day", "--by", "operation")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["day", "operation", "commits", "adds", "removes", "bytes", "rows"]
    assert len(lines) == table.history(by=["day", "operation"]).num_rows
    [row] = json.loads(
        run("history", events, "--by", "month", "--limit", "3", "--output", "json").stdout
    )
    assert (row["month"], row["commits"], row["adds"]) == ("2024-01-01", 3, 3)
    assert (row["first_version"], row["last_version"]) == (4, 6)
    assert run("history", events, "--by", "week").returncode == 2


def test_history_command_offers_every_grouping():
    from arrowlog.cli import commands
    from arrowlog.history.commit_groups import Grouping

    (option,) = (each for each in commands.history.params if each.name == "by")
    assert tuple(option.type.choices) == get_args(Grouping)


def test_history_after_cleanup_names_the_known_versions(tmp_path):
    root = str(tmp_path / "t")
    table = arrowlog.Table.create(
        root, small_table.SCHEMA, ["day"], {"checkpoint.enabled": "false"}
    )
    for number in range(4):
        table.append([arrowlog.add_file(f"f{number}", {"day": None}, size=1)])
    table.checkpoint()
    table.append([arrowlog.add_file("last", {"day": None}, size=1)])
    for version in (1, 2, 3):
        os.remove(f"{root}/_transaction_log/{version:020d}.json")
    for options in ((), ("--by", "operation")):
        assert "History begins with version 4" in run("history", root, *options).stdout
    query = "SELECT path, begin_version, begin_known FROM file_lifetimes ORDER BY ALL"
    rows = run("sql", root, query, "--output", "jsonl").stdout.splitlines()
    found = [tuple(json.loads(row).values()) for row in rows]
    assert found == [
        ("f0", 4, False),
        ("f1", 4, False),
        ("f2", 4, False),
        ("f3", 4, True),
        ("last", 5, True),
    ]
    [note] = json.loads(run("sql", root, "FROM coverage", "--output", "json").stdout)
    assert note["complete"] is False
    assert note["note"].startswith("history begins with version 4")
    gone = run("sql", root, "FROM files_at(2)")
    assert gone.returncode == 1
    assert gone.stderr == "Error: There is no version 2; known are versions 4 to 5.\n"


def test_diff_in_both_directions(events):
    there, back = run("diff", events, "5", "6"), run("diff", events, "6", "5")
    assert "+ day=2024-01-01/merged-00000.parquet" in there.stdout
    assert "- day=2024-01-01/merged-00000.parquet" in back.stdout
    rows = run("diff", events, "5", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(row)["change"] for row in rows] == ["added", "removed"]
    assert "no differences" in run("diff", events, "6").stdout


def test_sql_runs_an_argument_or_standard_input(events):
    query = "SELECT operation, count(*) AS n FROM commits GROUP BY ALL ORDER BY ALL"
    rows = run("sql", events, query, "--output", "jsonl").stdout.splitlines()
    assert [json.loads(row) for row in rows] == [
        {"operation": "MERGE", "n": 1},
        {"operation": "WRITE", "n": 5},
        {"operation": None, "n": 1},
    ]
    piped = run("sql", events, "--output", "csv", input="SELECT max(version) AS v FROM commits;")
    assert piped.stdout == '"v"\n6\n'


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("sql", "SELEC 1"), 1, "The query cannot be answered: Parser Error"),
        (("sql", "FROM nothing"), 1, "The views are commits, actions, adds"),
        (("sql", "FROM files_at(70)"), 1, "There is no version 70; known are versions 0 to 6."),
        (("files", "--version", "70"), 1, "There is no version 70; the newest is 6."),
        (("diff", "3", "70"), 1, "There is no version 70; the newest is 6."),
        (("diff", "x"), 2, "'x' is not a time"),
        (("history", "--limit", "-1"), 2, "'-1' is not a whole number of at least 0"),
    ],
)
def test_mistake_prints_one_sentence(events, arguments, code, words):
    command, *rest = arguments
    done = run(command, events, *rest)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_missing_table_and_damaged_log_print_one_sentence(tmp_path):
    for command in ("info", "files", "history", "sql"):
        done = run(command, str(tmp_path / "nothing"))
        assert done.returncode == 1
        assert done.stderr.startswith("Error: There is no table at ")
    root = small_table.write(tmp_path / "t")
    testing.write_commit(root, 2, b'{"add":{"path":"x"')
    for arguments in (("sql", "FROM commits"), ("sql", "FROM adds"), ("history",)):
        command, *rest = arguments
        done = run(command, str(root), *rest)
        assert done.returncode == 1
        where = "_transaction_log/00000000000000000002.json, line 1"
        assert done.stderr.startswith(f"Error: {where}: not a valid action")
        assert done.stderr.count("\n") == 1


def test_closed_pipe_prints_no_error(events):
    query = "SELECT * FROM range(200000)"
    for form in ("text", "json", "jsonl", "csv", "arrow"):
        with subprocess.Popen(
            [*CLI, "sql", events, query, "--output", form],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout.read(1)
            process.stdout.close()
            assert process.stderr.read() == b""


def test_colors_only_on_a_terminal(events):
    seen, code = on_terminal("history", events)
    assert code == 0
    assert "\x1b[1mversion" in seen
    assert "\x1b[" not in run("history", events).stdout


def test_wide_result_fits_the_terminal(events):
    seen, code = on_terminal("sql", events, "FROM adds")
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).replace("\r", "").splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    assert "columns do not fit" in lines[-1]
    narrow, _ = on_terminal("sql", events, "SELECT path, stats FROM adds", columns=50)
    assert len(re.findall(r"\nday=2024[^ ]*…[^ ]*quet  .*…", narrow)) == 6
    piped = run("sql", events, "FROM adds").stdout
    assert "null_count.city" in piped
    assert "…" not in piped


def test_interactive_prompt_runs_queries_until_exit(events, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = "SELECT max(version) AS newest\nFROM commits;\nSELECT nonsense;\nFROM cov\t\n\nexit\n"
    seen, code = on_terminal("sql", events, typed=typed)
    assert code == 0
    assert "Views: actions, adds, checkpoints, commits" in seen
    assert re.search(r"newest\x1b\[0m\r\n +6\r\n", seen)
    assert "Error: The query cannot be answered: Binder Error" in seen
    assert "first_version" in seen  # the tab key completed cov to coverage
    assert "FROM coverage" in (tmp_path / "arrowlog" / "sql_history").read_text()


def test_control_characters_in_paths_are_escaped_on_a_terminal(tmp_path):
    root = small_table.write(tmp_path / "t")
    bell = testing.add("bell\x07\x1b[31mred\n.parquet", {"day": None})
    testing.write_commit(root, 2, [bell])
    for command in (("files",), ("diff", "1", "2"), ("sql", "FROM files")):
        seen, _ = on_terminal(command[0], str(root), *command[1:])
        assert "\x1b[31m" not in seen
        assert "\\x07" in seen


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    root = tmp_path / "long"
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 2100):
        testing.write_commit(root, version, [testing.add(f"f{version}", {"day": None})])
    query = "SELECT count(*) AS n FROM commits"
    seen, code = on_terminal("sql", str(root), query)
    assert code == 0
    assert "reading commits" in seen
    assert "2100" in seen
    piped = run("sql", str(root), query)
    assert piped.stderr == ""
    assert piped.stdout.split() == ["n", "2100"]


@pytest.mark.parametrize("ask", ["history", "limited", "connect", "sql", "note"])
def test_history_is_read_again_after_a_concurrent_truncation(root, monkeypatch, ask):
    from arrowlog.history import session

    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.write(pa.table({"id": [number]}))
    table.snapshot()
    whole, pending = session.list_log, [True]

    def list_log(store, table_format):
        if pending:
            pending.pop()
            other = arrowlog.Table(root)
            other.write(pa.table({"id": [9]}))
            other.truncate_history()
        return whole(store, table_format)

    monkeypatch.setattr(session, "list_log", list_log)
    if ask in ("history", "limited"):
        found = table.history() if ask == "history" else table.history(2)
        assert found["version"].to_pylist() == [4]
    elif ask == "connect":
        assert table.connect().sql("SELECT version FROM commits").fetchall() == [(4,)]
    elif ask == "sql":
        assert table.sql("SELECT version FROM commits").fetchall() == [(4,)]
    else:
        assert table._history_session.note()
    assert not pending
