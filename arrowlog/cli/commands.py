"""The complete command line: importing this module registers all commands."""

from __future__ import annotations

import click

from arrowlog.cli import (
    file_commands,
    maintenance_commands,
    query_commands,
    recovery_commands,
    scan_commands,
)
from arrowlog.cli.app import commands, run
from arrowlog.cli.demo import run_demo

__all__ = [
    "file_commands",
    "maintenance_commands",
    "query_commands",
    "recovery_commands",
    "run",
    "scan_commands",
]


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
    run_demo(folder)
