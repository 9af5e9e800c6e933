"""The command line `arrowlog COMMAND`: it calls the library and prints, without logic of its own.

May import everything. Uses click and no other package for the terminal.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process. The entry point of the `arrowlog` command."""
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 -- printed as Python would print it
        sys.excepthook(*sys.exc_info())
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End the process in order, but without finalizing the interpreter.

    Threads of Arrow and DuckDB may still be releasing Python objects. Interpreter finalization
    stops them while they wait for the GIL, which aborts the process: `terminate called without an
    active exception`, exit code 134 after correct output. So this function joins non-daemon threads
    (such as the one that writes checkpoints), runs exit hooks, flushes the output and then calls
    `os._exit`.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 -- as multiprocessing does
    atexit._run_exitfuncs()  # noqa: SLF001 -- the same
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or a broken pipe
            stream.flush()
    os._exit(code)


def main() -> int:
    """Run a command and return the exit code."""
    from arrowlog.cli.commands import run

    return run()
