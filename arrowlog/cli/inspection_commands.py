"""Commands that only read: info, files, scan, explain, history, diff, sql."""

from __future__ import annotations

import sys

import click

import arrowlog
from arrowlog.cli.app import commands, output_options, progress_bar, version_option, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes

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
@click.argument("predicate")
@version_option
@output_options
def scan(
    table: arrowlog.Table, predicate: str, version: int | None, output: str, limit: int | None
) -> None:
    r"""List the files of TABLE that a query with PREDICATE has to read.

    Use it to see how well partitions and statistics prune. PREDICATE is a SQL condition on the
    columns of the table. Files are listed unless the log proves that no row matches.

    \b
    Examples:
      arrowlog scan /data/events "day = '2024-01-01' AND id BETWEEN 5 AND 9"
      arrowlog scan /data/events "day >= current_date - 7" --output json
    """
    plan = table.scan(predicate, version)
    names = ["path", "size_bytes", "num_records"]
    names += [f"partition.{name}" for name in plan.snapshot.partition_columns]
    print_table(plan.files.select(names), output, limit)
    if output == "text":
        print(f"{plan.num_files:,} of {plan.total_files:,} files, {format_bytes(plan.size_bytes)}")


@commands.command()
@with_table
@click.argument("predicate")
@click.option(
    "--min-pruning",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Exit with 1 if less than this share of the files is pruned, for use in tests.",
)
@version_option
@output_options
def explain(
    table: arrowlog.Table,
    predicate: str,
    min_pruning: float | None,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Explain how many files each clause of PREDICATE prunes, and why.

    Use it when a query reads more of TABLE than expected. Text output has one line per clause: the
    files it drops, and why it keeps the others (no statistics, truncated bounds, not prunable).
    json, csv and arrow output have one row per file and clause.

    \b
    Examples:
      arrowlog explain /data/events "day = '2024-01-01' AND id > 900"
      arrowlog explain /data/events "id = 7" --min-pruning 0.9
    """
    explanation = table.scan(predicate, version).explain()
    if output == "text":
        print(explanation)
    else:
        print_table(explanation.to_arrow(), output, limit)
    if min_pruning is not None and explanation.pruned < min_pruning:
        raise arrowlog.ArrowlogError(
            f"{explanation.pruned:.1%} of the files are pruned, {min_pruning:.1%} are required.",
            next="The explanation shows which clause prunes nothing, and why.",
        )


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
    with progress_bar("reading commits") as report:
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
    with progress_bar("reading commits") as report:
        result = table.query(sys.stdin.read() if query is None else query, progress=report)
    print_table(result, output, limit)
