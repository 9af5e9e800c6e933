"""The command line: `arrowlog COMMAND`. No logic of its own; it calls the library and prints.

Needs the `[cli]` extra. May import everything.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process; the entry point of the `arrowlog` command."""
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 -- told as Python would tell it
        sys.excepthook(*sys.exc_info())
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End the process as Python does, but leave the interpreter as it is.

    Threads of Arrow and DuckDB may still be about to give something of Python's back. An
    interpreter that is being taken down stops them in the middle of that, which aborts the process:
    `terminate called without an active exception`, exit code 134 after correct output. So
    everything that waits for the end is done (threads that make checkpoints, exit hooks, buffered
    output), and then the process ends at once.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 -- as multiprocessing does
    atexit._run_exitfuncs()  # noqa: SLF001 -- the same
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or its reader has seen enough
            stream.flush()
    os._exit(code)


def main() -> int:
    """Run a command and say with which exit code to end."""
    try:
        from arrowlog.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print("The command line needs its extra: pip install 'arrowlog[cli]'", file=sys.stderr)
        return 2
    return run()
