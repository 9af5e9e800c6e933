"""All commands, by the modules that have them. Importing this makes the command line whole."""

from __future__ import annotations

import click

from arrowlog.cli import ask, files, keep, mend, plan
from arrowlog.cli.demo import run_demo
from arrowlog.cli.frame import commands, run

__all__ = ["ask", "files", "keep", "mend", "plan", "run"]


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Build the table here and keep it. Must be empty. [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Make a small table, write to it, race for it, plan a scan, travel in time, restore.

    The Python lines that are shown are the ones that are run, and what is below them is what they
    give; nothing else is installed or changed.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    run_demo(folder)
