"""Commands that plan: scan, explain."""

from __future__ import annotations

import click

import arrowlog
from arrowlog.cli.frame import commands, on_table, output_options, version_option
from arrowlog.cli.show import show
from arrowlog.scan.explain import size_text


@commands.command()
@on_table
@click.argument("predicate")
@version_option
@output_options
def scan(
    table: arrowlog.Table, predicate: str, version: int | None, output: str, limit: int | None
) -> None:
    r"""List the files of TABLE that may hold rows PREDICATE is true for.

    \b
    Examples:
      arrowlog scan /data/events "day = '2024-01-01' AND id BETWEEN 5 AND 9"
      arrowlog scan /data/events "day >= current_date - 7" --output json
    """
    plan = table.scan(predicate, version)
    names = ["path", "size_bytes", "num_records"]
    names += [f"partition.{name}" for name in plan.snapshot.partition_columns]
    show(plan.files.select(names), output, limit)
    if output == "text":
        print(f"{plan.num_files:,} of {plan.total_files:,} files, {size_text(plan.size_bytes)}")


@commands.command()
@on_table
@click.argument("predicate")
@click.option(
    "--min-pruning",
    type=click.FloatRange(0, 1),
    help="Exit with 1 if a smaller share of the files is pruned: a gate for tests of pipelines.",
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
    r"""Say why a scan of TABLE reads the files it reads: what each clause of PREDICATE drops.

    As text a line a clause; as json, csv or arrow a row for each file and clause.

    \b
    Examples:
      arrowlog explain /data/events "day = '2024-01-01' AND id > 900"
      arrowlog explain /data/events "id = 7" --min-pruning 0.9
    """
    found = table.scan(predicate, version).explain()
    if output == "text":
        print(found)
    else:
        show(found.to_arrow(), output, limit)
    if min_pruning is not None and found.pruned < min_pruning:
        raise arrowlog.ArrowlogError(
            f"{found.pruned:.1%} of the files are pruned, {min_pruning:.1%} are asked for.",
            next="See which clause prunes nothing, and why.",
        )
