"""Run the `arrowlog` command with `python -m arrowlog.cli`."""

from arrowlog.cli import program

program()
