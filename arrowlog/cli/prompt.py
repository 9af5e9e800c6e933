"""The prompt of `arrowlog sql`: lines with history, completion of names, one answer after another.

Python's own readline does it: no further package, and the keys of every other shell.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import arrowlog
from arrowlog.cli.frame import progress
from arrowlog.cli.show import show

if TYPE_CHECKING:
    from collections.abc import Sequence

# fmt: off
WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "ALL", "LIMIT", "JOIN", "USING", "AS",
    "AND", "OR", "NOT", "NULL", "COUNT", "SUM", "MIN", "MAX", "DESC", "DISTINCT", "HAVING",
    "BETWEEN", "IN", "IS", "WITH",
)
# fmt: on
_NAME = re.compile(r"[\w.]+$")
_HISTORY_MAX = 1000
_LEAVE = ("exit", "quit", ".exit", ".quit")


def converse(table: arrowlog.Table, output: str, limit: int | None) -> None:
    """Ask and answer until the end of the input."""
    names = _names(table)
    _line_editing(names)
    print(f"{table.uri}, version {table.version}. A query ends with ; or an empty line.")
    print("Views: " + ", ".join(name for name in names[:12] if "." not in name))
    print("Tab completes, arrow up brings back, Ctrl-D leaves.")
    query = _ask()
    while query is not None:
        if query:
            try:
                with progress("reading commits") as told:
                    found = table.query(query, progress=told)
                show(found, output, limit)
            except arrowlog.ArrowlogError as error:
                print(f"Error: {error}")
        query = _ask()


def _ask() -> str | None:
    """The next query, over as many lines as it takes; None at the end."""
    lines: list[str] = []
    try:
        while True:
            line = input("arrowlog> " if not lines else "     ...> ")
            if not lines and line.strip().lower().rstrip(";") in _LEAVE:
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


def _names(table: arrowlog.Table) -> list[str]:
    """What can be completed: views first, then columns."""
    found = table.query(
        "SELECT table_name AS name, column_name AS col FROM information_schema.columns"
        " WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY ALL"
    )
    views = dict.fromkeys(found["name"].to_pylist())
    columns = dict.fromkeys(found["col"].to_pylist())
    return [*views, "files_at(", *columns]


def matches(names: Sequence[str], line: str) -> list[str]:
    """What the last word of a line may become.

    >>> matches(["commits", "coverage", "min.id"], "SELECT * FROM co")
    ['commits', 'coverage', 'COUNT']
    >>> matches(["min.id"], 'SELECT m')
    ['"min.id"', 'MIN', 'MAX']
    """
    found = _NAME.search(line)
    start = found[0].lower() if found else ""
    quoted = [f'"{name}"' if "." in name or " " in name else name for name in names]
    known = [name for name in quoted if name.lower().lstrip('"').startswith(start)]
    return known + [word for word in WORDS if word.lower().startswith(start)]


def _line_editing(names: Sequence[str]) -> None:
    """History in a file and completion, where this Python has readline."""
    try:
        import readline
    except ImportError:
        return
    import atexit

    def complete(_: str, number: int) -> str | None:
        found = matches(names, readline.get_line_buffer()[: readline.get_endidx()])
        return found[number] if number < len(found) else None

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
        readline.set_history_length(_HISTORY_MAX)
        atexit.register(readline.write_history_file, path)
    except OSError:  # a home that cannot be written to has no history
        return
