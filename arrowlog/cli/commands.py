"""The complete command line: every command, warnings and exit codes.

No module imported here loads an engine, so that help and shell completion are quick. Commands
import what they need when they run.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings

import click

import arrowlog
from arrowlog.cli import (  # noqa: F401 -- importing them adds their commands to the group
    inspection_commands,
    maintenance_commands,
    recovery_commands,
    row_commands,
)
from arrowlog.cli.app import commands


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Build the table in this empty folder and keep it.  [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Build a small table and show what arrowlog does with it.

    Use it as an introduction to the Python API. Creates a table, writes to it, plans a scan, lets
    two writers conflict, reads and restores old versions, writes a checkpoint and queries the log.
    Every Python line is executed as shown, followed by its result. Only the folder of the table is
    written to.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    from arrowlog.cli.demo import run_demo

    run_demo(folder)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without Python's file name and source line."""
    print(f"Warning: {message}", file=sys.stderr)


def run() -> int:
    """Run the command and return the exit code.

    0 is success, 1 an `ArrowlogError` (printed as one message, without a traceback), an interrupt
    or a closed pipe, 2 wrong usage. Other exceptions are bugs and propagate.
    """
    warnings.showwarning = _print_warning
    try:
        commands.main(prog_name="arrowlog", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 1
    except arrowlog.ArrowlogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader of the pipe has closed it (`| head`). Discard the rest of the buffer, or
        # flushing it at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
