"""Commands that read state and history: info, files, history, diff, sql."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from arrowlog.cli.app import commands, commit_progress, output_options, version_option, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes

if TYPE_CHECKING:
    import arrowlog

_COLOURS = {"warning:": "yellow", "healthy:": "green"}
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "adds", "removes", "bytes", "rows")


@commands.command()
@with_table
@output_options
def info(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Summarize TABLE: size, schema, last commits and warnings.

    Start here with a table you do not know. Warnings name what needs attention, such as missing
    commits, an old checkpoint or many small files; `arrowlog doctor` looks deeper. --limit sets
    how many of the last commits are shown, 5 without it.

    \b
    Examples:
      arrowlog info /data/events
      arrowlog info s3://bucket/events --output json
    """
    overview = table.overview(5 if limit is None else limit)
    if output != "text":
        print_table(overview.to_arrow(), output)
        return
    for line in str(overview).splitlines():
        first = line.partition(" ")[0]
        click.secho(line, fg=_COLOURS.get(first), bold=first in ("version", overview.uri) or None)


@commands.command()
@with_table
@click.option("--where", help="List only files that may have rows matching this predicate.")
@version_option
@output_options
def files(
    table: arrowlog.Table, where: str | None, version: int | None, output: str, limit: int | None
) -> None:
    r"""List the live data files of TABLE.

    Use it to see the size, row count and partition of each file, now or at an earlier version.
    Text output has the main columns; json, csv and arrow have all of them, including statistics.

    \b
    Examples:
      arrowlog files /data/events --limit 20
      arrowlog files /data/events --version 7 --output csv
      arrowlog files /data/events --where "day = '2024-01-01'"
    """
    plan = table.scan(where, version)
    live = plan.files
    if output == "text":
        names = [f"partition.{name}" for name in plan.snapshot.partition_columns]
        names = ["path", *names, "size_bytes", "num_records"]
        print_table(live.select(names), output, limit)
        print(f"{plan.num_files:,} files, {format_bytes(plan.size_bytes)}, version {plan.version}")
    else:
        print_table(live, output, limit)


@commands.command()
@with_table
@output_options
def history(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""List the commits of TABLE, newest first.

    Use it to see who changed what, when: time, operation, files added and removed, bytes, rows.
    With --limit, only that many commits are read. Text output has the main columns; json, csv and
    arrow have all of them.

    \b
    Examples:
      arrowlog history /data/events --limit 10
      arrowlog history /data/events --output json
    """
    with commit_progress("reading commits") as report:
        commits = table.history(limit, progress=report)
    if output != "text":
        print_table(commits, output)
        return
    print_table(commits.select(list(_COMMIT_COLUMNS)), output)
    oldest = commits["version"][-1].as_py() if commits.num_rows else 0
    if oldest == table.earliest_version > 0:
        print(f"History begins with version {oldest}: earlier versions were cleaned up.")


@commands.command()
@with_table
@click.argument("a", type=int)
@click.argument("b", type=int, required=False)
@output_options
def diff(table: arrowlog.Table, a: int, b: int | None, output: str, limit: int | None) -> None:
    r"""Compare two versions of TABLE: files, schema, properties.

    Use it to see what one or more commits changed. Shows what turns version A into version B;
    without B, into the newest version. A may be the newer one. json, csv and arrow output have one
    row per file that was added, removed or changed.

    \b
    Examples:
      arrowlog diff /data/events 3 9
      arrowlog diff /data/events 9 3 --output json
    """
    difference = table.diff(a, table.version if b is None else b)
    if output == "text" and limit is None:
        print(difference)
    else:
        print_table(difference.to_arrow(), output, limit)


@commands.command()
@with_table
@click.argument("query", required=False)
@click.option(
    "--restricted",
    is_flag=True,
    help="Deny queries access to files, network, extensions and settings.",
)
@output_options
def sql(table: arrowlog.Table, query: str | None, output: str, limit: int | None) -> None:
    r"""Query the history of TABLE with SQL (DuckDB).

    Use it for questions that history and diff do not answer. The views are commits, actions, adds,
    removes, skips, metadata, protocols, checkpoints, files, file_lifetimes and coverage;
    files_at(N) has the live files of version N. Without QUERY, reads the query from standard input,
    or starts a prompt on a terminal. A query can read and write your files, as DuckDB can; with
    --restricted it sees only the views.

    \b
    Examples:
      arrowlog sql /data/events "SELECT version, operation, bytes FROM commits"
      arrowlog sql /data/events "FROM files_at(3)" --output csv
      arrowlog sql /data/events
      echo "FROM commits" | arrowlog sql /data/events
    """
    if query is None and sys.stdin.isatty():
        from arrowlog.cli.prompt import run_prompt

        run_prompt(table, output, limit)
        return
    with commit_progress("reading commits") as report:
        result = table.query(sys.stdin.read() if query is None else query, progress=report)
    print_table(result, output, limit)
