"""The command line: `arrowlog COMMAND`. No logic of its own; it calls the library and prints.

Needs the `[cli]` extra. May import everything.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the entry point of the `arrowlog` command."""
    try:
        from arrowlog.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print("The command line needs its extra: pip install 'arrowlog[cli]'", file=sys.stderr)
        return 2
    return run()
