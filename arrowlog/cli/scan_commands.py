"""Commands that plan a scan: scan, explain."""

from __future__ import annotations

import click

import arrowlog
from arrowlog.cli.app import commands, output_options, version_option, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes


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
