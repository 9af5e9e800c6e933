"""The code blocks of the documentation, and tables for the pages that use existing ones.

Fenced blocks are run by their info string:

- `python`: run in order, one namespace per page.
- `python spark`: run with a Spark session by the tests of Spark, after the page's other blocks.
- `bash`: lines that begin with `arrowlog` run in this process; `mv` and `cp` are done by the
  shell. Other commands must be on the list of those that only set something up.

Other blocks (`text`, `json`, `sql`) show something and are not run.
"""

import ast
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from arrowlog.cli.commands import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = {"text", "json", "sql", ""}
# Commands that install, build or measure; tests of their own run these.
NOT_RUN = ("pip install ", "python3 dev.py ", "python -m benchmarks", "eval ", "jupyter ", "aws ")
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXIT = re.compile(r"#.*\bexits with (\d)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text and the line on which the text begins."""

    info: str
    text: str
    line: int


def pages():
    """Return every page whose blocks are run: the README and all pages of the site."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page):
    """Return the path of a page relative to the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """Return the fenced blocks of a page in order."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1].strip(), match[2], line))
    return found


def run_python(page, block, names):
    """Run a block; errors show the page and the line in it."""
    source = "\n" * (block.line - 1) + block.text
    exec(compile(source, str(page), "exec"), names)


def run_shell(page, block):
    """Run the commands of a block and check their exit codes: 0 unless a comment says otherwise."""
    main = commands
    for line in block.text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        wanted = int(match[1]) if (match := _EXIT.search(line)) else 0
        if line.startswith("arrowlog "):
            code, shown = _run_arrowlog(main, line)
        elif line.startswith(("mv ", "cp ", "rm ")):
            done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
            code, shown = done.returncode, done.stderr
        else:
            assert line.startswith(NOT_RUN), f"{page}: no test runs {line!r}"
            continue
        assert code == wanted, f"{page}: {line}\nexits with {code}\n{shown}"


def _run_arrowlog(main, line):
    """Run a pipeline of `arrowlog` commands; return the exit code of the last and its output."""
    given, code, shown = None, 0, ""
    for command in _pipeline(line):
        result = CliRunner().invoke(main, command, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return 1, f"{type(result.exception).__name__}: {result.exception}"
        given, code, shown = result.stdout, result.exit_code, result.output
    return code, shown


def _pipeline(line):
    """Split a line at its pipes into the arguments of `arrowlog`."""
    words = shlex.split(line, comments=True)
    commands_ = [[]]
    for word in words:
        if word == "|":
            commands_.append([])
        else:
            commands_[-1].append(word)
    assert all(each[0] == "arrowlog" for each in commands_), line
    return [each[1:] for each in commands_]


# Calls that take the code of a finding or a problem first.
_REPORTING = {
    "report",
    "note",
    "Finding",
    "RebuildProblem",
    "_about_files",
    "_fixed_by_statistics",
    "_report_missing",
}


def codes_in_source():
    """Return the codes of findings in the source of `arrowlog.recovery` and `arrowlog.errors`.

    These are all texts of words joined by hyphens, and what calls that report a finding take first.
    """
    found = set()
    package = ROOT / "arrowlog"
    for path in (package / "errors.py", *(package / "recovery").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and _is_code(node.value):
                found.add(node.value)
            if isinstance(node, ast.Call) and node.args and _name_of(node.func) in _REPORTING:
                inside = ast.walk(node.args[0])
                found |= {each.value for each in inside if isinstance(each, ast.Constant)}
    assert "-twice" in found  # of commits and checkpoints
    return (found - {"-twice"}) | {"commit-twice", "checkpoint-twice"}


def _is_code(value):
    return isinstance(value, str) and re.fullmatch(r"[a-z]+(-[a-z]+)+", value) is not None


def _name_of(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
