"""The interactive prompt of `arrowlog sql`, with line history and completion.

Uses Python's readline module: no extra dependency, and the key bindings of other shells.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import arrowlog
from arrowlog.cli.output import print_table
from arrowlog.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

# fmt: off
SQL_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "ALL", "LIMIT", "JOIN", "USING", "AS",
    "AND", "OR", "NOT", "NULL", "COUNT", "SUM", "MIN", "MAX", "DESC", "DISTINCT", "HAVING",
    "BETWEEN", "IN", "IS", "WITH",
)
# fmt: on
_LAST_WORD = re.compile(r"[\w.]+$")
_MAX_HISTORY_LINES = 1000
_EXIT_COMMANDS = ("exit", "quit", ".exit", ".quit")


def run_prompt(table: arrowlog.Table, output: str, limit: int | None) -> None:
    """Read queries and print their results until end of input or an exit command."""
    names = _completions(table)
    _enable_line_editing(names)
    print(f"{table.uri}, version {table.version}. A query ends with ; or an empty line.")
    print("Views: " + ", ".join(name for name in names[:12] if "." not in name))
    print("Tab completes, arrow up recalls earlier lines, Ctrl-D exits.")
    query = _read_query()
    while query is not None:
        if query:
            try:
                with progress_bar("reading commits") as report:
                    result = table.query(query, progress=report)
                print_table(result, output, limit)
            except arrowlog.ArrowlogError as error:
                print(f"Error: {error}")
        query = _read_query()


def _read_query() -> str | None:
    """Return the next query, which may span lines; "" after Ctrl-C, None at the end of input."""
    lines: list[str] = []
    try:
        while True:
            line = input("arrowlog> " if not lines else "     ...> ")
            if not lines and line.strip().lower().rstrip(";") in _EXIT_COMMANDS:
                return None
            lines.append(line)
            if not line.strip() or line.rstrip().endswith(";"):
                return "\n".join(lines).strip().rstrip(";").strip()
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        print()
        return "\n".join(lines).strip() or None


def _completions(table: arrowlog.Table) -> list[str]:
    """Return the names to complete: views first, then columns."""
    catalog = table.query(
        "SELECT table_name AS name, column_name AS col FROM information_schema.columns"
        " WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY ALL"
    )
    views = dict.fromkeys(catalog["name"].to_pylist())
    columns = dict.fromkeys(catalog["col"].to_pylist())
    return [*views, "files_at(", *columns]


def complete_line(names: Sequence[str], line: str) -> list[str]:
    """Return the completions of the last word of a line.

    >>> complete_line(["commits", "coverage", "min.id"], "SELECT * FROM co")
    ['commits', 'coverage', 'COUNT']
    >>> complete_line(["min.id"], 'SELECT m')
    ['"min.id"', 'MIN', 'MAX']
    """
    last_word = _LAST_WORD.search(line)
    prefix = last_word[0].lower() if last_word else ""
    quoted = [f'"{name}"' if "." in name or " " in name else name for name in names]
    matching = [name for name in quoted if name.lower().lstrip('"').startswith(prefix)]
    return matching + [word for word in SQL_KEYWORDS if word.lower().startswith(prefix)]


def _enable_line_editing(names: Sequence[str]) -> None:
    """Set up completion and a history file, if this Python has readline."""
    try:
        import readline
    except ImportError:
        return
    import atexit

    def complete(_: str, number: int) -> str | None:
        candidates = complete_line(names, readline.get_line_buffer()[: readline.get_endidx()])
        return candidates[number] if number < len(candidates) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,;()=<>\"'")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = os.path.join(base, "arrowlog", "sql_history")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path):
            readline.read_history_file(path)
        readline.set_history_length(_MAX_HISTORY_LINES)
        atexit.register(readline.write_history_file, path)
    except OSError:  # the history is optional: the home folder may be read-only
        return
