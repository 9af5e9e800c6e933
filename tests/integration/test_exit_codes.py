"""Exit codes of every command: 0 success, 1 the check or operation failed, 2 wrong usage."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.cli.app import commands
from arrowlog.cli.commands import run
from arrowlog.formats.indextables import LOG_FOLDER

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
# Arguments that succeed, that fail and that are wrong usage. {t} is a table of three versions, {d}
# a damaged one, {p} a folder with a Parquet file, {n} a folder that does
# not exist. None: there is no such outcome.
CASES = {
    "adopt": ("{t} day=a/orphan.parquet", "{t} no-such-file.parquet", "{t}"),
    "checkpoint": ("{t}", "{n}", "{t} --output xml"),
    "cleanup": ("{t} --dry-run", "{n}", "{t} --older"),
    "compact": ("{t} --dry-run", "{t} --target-size much", "{t} --max-groups many"),
    "completion": ("bash", None, "tcsh"),
    "convert": ("{t} {n}", "{n}", ""),
    "create": ("{n} id:bigint", "{t} id:bigint", "{n}"),
    "demo": (None, "--folder {t}", "--no-such-option"),
    "diff": ("{t} 1 2", "{t} 1 99", "{t} 1 2 3"),
    "doctor": ("{t}", "{d}", "{t} --fail-on never"),
    "explain": ("{t} id=1", "{t} no_such_column=1", "{t}"),
    "files": ("{t}", "{t} --version 99", "{t} --version one"),
    "history": ("{t}", "{n}", "{t} --limit -1"),
    "info": ("{t}", "{n}", ""),
    "rebuild": ("{p}", "{t}", ""),
    "remove": ("{t} --where day='a'", "{t} no-such-file", "{t}"),
    "repair": ("{t}/" + LOG_FOLDER + " {n}", "{n} {n}-2", "{t}"),
    "report": ("{t} -o {n}", "{t} -o {p}", "{t} --output csv"),
    "restore": ("{t} 1", "{t} 99", "{t}"),
    "rows": ("{t}", "{t} --where nothing", "{t} --limit x"),
    "scan": ("{t} id=1", "{t} id=", "{t}"),
    "set-property": ("{t} a=b", "{t} checkpoint.interval=soon", "{t} a"),
    "skips": ("{t}", "{n}", "{t} --record x"),
    "sql": ("{t} FROM(commits)", "{t} nonsense", "{t} --output xml FROM(commits)"),
    "truncate-history": ("{t} --dry-run", "{n}", "{t} 5"),
    "update-statistics": ("{t} --where day='a'", "{t} no-such-file", "{t}"),
    "vacuum": ("{t} --dry-run", "{t} --older-than soon", "{t} --older"),
}
OUTCOMES = ("success", "failure", "usage")


@pytest.fixture
def places(tmp_path):
    """The folders that the arguments name."""
    for name in ("table", "damaged"):
        table = arrowlog.Table.create(tmp_path / name, SCHEMA, ["day"])
        for day in ("a", "b"):
            table.write(pa.table({"id": [1], "day": [day]}, schema=SCHEMA))
    (tmp_path / "damaged" / LOG_FOLDER / f"{1:020d}.json").write_bytes(b"{")
    (tmp_path / "plain").mkdir()
    rows = pa.table({"id": [1]})
    pq.write_table(rows, tmp_path / "table" / "day=a" / "orphan.parquet")
    pq.write_table(rows, tmp_path / "plain" / "part.parquet")
    return {
        "p": tmp_path / "plain",
        "t": tmp_path / "table",
        "d": tmp_path / "damaged",
        "n": tmp_path / "none",
    }


def call(monkeypatch, *arguments):
    """Run a command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["arrowlog", *map(str, arguments)])
    try:
        return run()
    except SystemExit as exit_:
        return exit_.code


def test_every_command_has_exit_code_cases():
    assert set(CASES) == set(commands.commands)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (command, outcome)
        for command, arguments in CASES.items()
        for outcome, text in zip(OUTCOMES, arguments, strict=True)
        if text is not None
    ],
)
def test_exit_code_of_every_command(places, monkeypatch, capsys, command, outcome):
    text = CASES[command][OUTCOMES.index(outcome)]
    arguments = [word.format(**places) for word in text.split()]
    code = call(monkeypatch, command, *arguments)
    told = capsys.readouterr()
    assert code == OUTCOMES.index(outcome), told
    assert "Traceback" not in told.err
    if outcome == "usage":
        assert told.err.startswith("Usage: ")
        assert told.out == ""
    if outcome == "failure":
        assert told.err.startswith(("Error: ", "ERROR")) or command == "doctor", told
    for option in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            commands.main([command, option], prog_name="arrowlog")
        assert ended.value.code == 0
        assert "Examples:" in capsys.readouterr().out


def test_json_is_one_document_and_jsonl_is_lines(places, monkeypatch, capsys):
    for command in ("files", "history", "doctor", "skips"):
        assert call(monkeypatch, command, places["t"], "--output", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert isinstance(document, list)
        assert call(monkeypatch, command, places["t"], "--output", "jsonl") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines == document
    call(monkeypatch, "history", places["t"], "--output", "json")
    [newest, *_] = json.loads(capsys.readouterr().out)
    written = arrowlog.Table(places["t"]).history(1)["timestamp"][0].as_py()
    assert newest["timestamp"].endswith("Z")
    assert newest["timestamp"][:19] == f"{written:%Y-%m-%dT%H:%M:%S}"


def test_json_output_of_values_without_a_json_form(places, monkeypatch, capsys):
    query = (
        "SELECT 'nan'::DOUBLE AS a, DATE '2024-01-02' AS b, 'x'::BLOB AS c, ['inf'::DOUBLE] AS d"
    )
    assert call(monkeypatch, "sql", places["t"], query, "--output", "json") == 0
    text = capsys.readouterr().out
    [row] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (row["a"], row["b"], row["c"]) == ("nan", "2024-01-02", "78")
