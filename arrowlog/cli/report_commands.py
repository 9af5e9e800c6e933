"""The command that reports on a table as one HTML page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from arrowlog.cli.app import commands, with_table
from arrowlog.cli.progress import progress_bar
from arrowlog.display import format_bytes

if TYPE_CHECKING:
    import arrowlog

_DEFAULT_FILE = "report.html"


@commands.command()
@with_table
@click.option(
    "-o",
    "--file",
    "file",
    metavar="FILE",
    help=f"Write the page to this file; - is standard output.  [default: {_DEFAULT_FILE}]",
)
@click.option("--paths", is_flag=True, help="Show the address of the table and paths of files.")
@click.option(
    "--data-files/--no-data-files",
    default=True,
    help="Check whether data files exist.  [default: yes]",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print where the page is, or its numbers as one JSON document; then -o is optional.",
)
def report(
    table: arrowlog.Table,
    file: str | None,
    paths: bool,  # noqa: FBT001 -- click gives it by name
    data_files: bool,  # noqa: FBT001 -- the same
    output: str,
) -> None:
    r"""Write a report on TABLE as one HTML page.

    Use it to show the state of a table to others: the page works offline and can be mailed. It has
    the findings of the doctor with their fixes, growth and churn over time, file sizes, skew of
    partitions, statistics, which columns prune, checkpoints, retention and the last commits. It
    shows names of columns and values of partitions; it has no rows, no credentials and, without
    --paths, no paths. A damaged table gets a page, too, which says what could not be computed. A
    report in FILE is replaced, any other file is refused. Exits with 0 whatever the findings are:
    use `arrowlog doctor` as a gate.

    \b
    Examples:
      arrowlog report /data/events
      arrowlog report s3://bucket/events -o events.html --no-data-files
      arrowlog report /data/events --output json
    """
    target = file or (_DEFAULT_FILE if output == "text" else None)
    path = None if target == "-" else target
    with progress_bar("building the report", at_once=True) as progress:
        made = table.report(path, paths=paths, data_files=data_files, progress=progress)
    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made.html.encode("utf-8", "replace"))
    elif output == "json":
        print(made.to_json())
    else:
        health = made.facts.health
        found = f"{health.errors:,} errors, {health.warnings:,} warnings, {health.infos:,} notes"
        size = format_bytes(len(made.html.encode("utf-8", "replace")))
        print(f"{target}: {size}; version {health.version}, {found}.")
        for section in made.facts.unavailable:
            print(f"not computed: {section.replace('_', ' ')}")
