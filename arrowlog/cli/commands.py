"""What the commands are called and what they take."""

from __future__ import annotations

import sys

import click

import arrowlog
from arrowlog.cli.demo import run_demo


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `arrowlog demo`: it builds a small table and shows what can be asked of it.",
)
@click.version_option(arrowlog.__version__, prog_name="arrowlog")
def commands() -> None:
    """Look into the transaction log of a table in the lake."""


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Build the table here and keep it. Must be empty. [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Build a small table, open it, travel in time and look at its files.

    Everything shown is what the Python lines above it print; nothing else is installed or changed.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    run_demo(folder)


def cli() -> int:
    """Run a command; an error of ours is one sentence and exit code 1."""
    try:
        commands.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 1
    except arrowlog.ArrowlogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
