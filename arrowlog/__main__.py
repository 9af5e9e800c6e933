"""Run the `arrowlog` command with `python -m arrowlog`."""

from arrowlog.cli import program

program()
