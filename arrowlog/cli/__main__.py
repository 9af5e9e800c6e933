"""`python -m arrowlog.cli` does what the `arrowlog` command does."""

from arrowlog.cli import program

program()
