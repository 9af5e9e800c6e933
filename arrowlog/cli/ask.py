"""Commands that ask: info, files, history, diff, sql."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from arrowlog.cli.frame import commands, on_table, output_options, progress, version_option
from arrowlog.cli.show import show
from arrowlog.look import size_text

if TYPE_CHECKING:
    import arrowlog

_COLOURS = {"warning:": "yellow", "healthy:": "green"}
_COMMIT = ("version", "timestamp", "operation", "adds", "removes", "bytes", "rows")


@commands.command()
@on_table
@output_options
def info(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Say whether TABLE is healthy and what is in it, on one screen.

    `--limit` is how many of the last commits are shown.

    \b
    Examples:
      arrowlog info /data/events
      arrowlog info s3://bucket/events --output json
    """
    found = table.overview(5 if limit is None else limit)
    if output != "text":
        show(found.to_arrow(), output)
        return
    for line in str(found).splitlines():
        first = line.partition(" ")[0]
        click.secho(line, fg=_COLOURS.get(first), bold=first in ("version", found.uri) or None)


@commands.command()
@on_table
@click.option("--where", help="Only files that may hold rows this predicate is true for.")
@version_option
@output_options
def files(
    table: arrowlog.Table, where: str | None, version: int | None, output: str, limit: int | None
) -> None:
    r"""List the live files of TABLE.

    As text the columns that matter most; as json, csv or arrow all of them, statistics included.

    \b
    Examples:
      arrowlog files /data/events --limit 20
      arrowlog files /data/events --version 7 --output csv
      arrowlog files /data/events --where "day = '2024-01-01'"
    """
    plan = table.scan(where, version)
    found = plan.files
    if output == "text":
        names = [f"partition.{name}" for name in plan.snapshot.partition_columns]
        names = ["path", *names, "size_bytes", "num_records"]
        show(found.select(names), output, limit)
        print(f"{plan.num_files:,} files, {size_text(plan.size_bytes)}, version {plan.version}")
    else:
        show(found, output, limit)


@commands.command()
@on_table
@output_options
def history(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""List the commits of TABLE, newest first: when, what, how much.

    With `--limit` only so many commits are read. As text the columns that matter most; as json, csv
    or arrow all of them.

    \b
    Examples:
      arrowlog history /data/events --limit 10
      arrowlog history /data/events --output json
    """
    with progress("reading commits") as told:
        found = table.history(limit, progress=told)
    if output != "text":
        show(found, output)
        return
    show(found.select(list(_COMMIT)), output)
    oldest = found["version"][-1].as_py() if found.num_rows else 0
    if oldest == table.earliest_version > 0:
        print(f"History begins with version {oldest}: what came before was cleaned up.")


@commands.command()
@on_table
@click.argument("a", type=int)
@click.argument("b", type=int, required=False)
@output_options
def diff(table: arrowlog.Table, a: int, b: int | None, output: str, limit: int | None) -> None:
    r"""Say what is different at version B of TABLE from version A. Without B: at the newest.

    As json, csv or arrow one row for each file that was added, removed or changed.

    \b
    Examples:
      arrowlog diff /data/events 3 9
      arrowlog diff /data/events 9 3 --output json
    """
    found = table.diff(a, table.version if b is None else b)
    if output == "text" and limit is None:
        print(found)
    else:
        show(found.to_arrow(), output, limit)


@commands.command()
@on_table
@click.argument("query", required=False)
@click.option("--restricted", is_flag=True, help="No files, network, extensions or settings.")
@output_options
def sql(table: arrowlog.Table, query: str | None, output: str, limit: int | None) -> None:
    r"""Ask the log of TABLE in SQL. Without QUERY: a prompt, or what is piped in.

    Views: commits, actions, adds, removes, skips, metadata, protocols, checkpoints, files,
    file_lifetimes, coverage; and files_at(version). A query can read and write your files, as
    DuckDB can; with `--restricted` it sees the views alone.

    \b
    Examples:
      arrowlog sql /data/events "SELECT operation, sum(bytes) FROM commits GROUP BY ALL"
      arrowlog sql /data/events "FROM files_at(3)" --output csv
      arrowlog sql /data/events
      echo "FROM commits" | arrowlog sql /data/events
    """
    if query is None and sys.stdin.isatty():
        from arrowlog.cli.prompt import converse

        converse(table, output, limit)
        return
    with progress("reading commits") as told:
        found = table.query(sys.stdin.read() if query is None else query, progress=told)
    show(found, output, limit)
