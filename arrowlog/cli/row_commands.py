"""Commands on rows: rows, convert."""

from __future__ import annotations

import click

import arrowlog
from arrowlog.cli.app import commands, output_options, version_option, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_count

_ROWS_SHOWN = 20  # without --limit


@commands.command()
@with_table
@click.option("--where", help="Print only rows that match this predicate.")
@click.option("--columns", metavar="NAMES", help="Print only these columns, separated by commas.")
@version_option
@output_options
def rows(
    table: arrowlog.Table,
    where: str | None,
    columns: str | None,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Print rows of TABLE, whatever its data files are: Parquet files or splits.

    Use it to look at the data. The first 20 rows are printed unless --limit says otherwise, in no
    particular order, and no more files are read than that takes. In tables of splits, the predicate
    may search: text indexquery 'spark AND sql'.

    \b
    Examples:
      arrowlog rows /data/events --limit 5
      arrowlog rows /data/events --where "day = '2024-01-01' AND id > 900" --columns id,day
      arrowlog rows /data/documents --where "text indexquery 'spark AND NOT sql'" --output json
    """
    dataset = table.scan(where, version).to_arrow_dataset()
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    for name in names or ():
        if name not in dataset.schema.names:
            raise arrowlog.InvalidRequest(
                f"There is no column {name!r}.",
                next=f"The columns are {', '.join(dataset.schema.names)}.",
            )
    print_table(dataset.head(_ROWS_SHOWN if limit is None else limit, columns=names), output)


@commands.command()
@click.argument("table")
@click.argument("target", required=False)
@click.option("--where", help="Convert only rows that match this predicate.")
@version_option
def convert(table: str, target: str | None, where: str | None, version: int | None) -> None:
    r"""Write the rows of TABLE to a new table of Parquet files at TARGET.

    Use it to leave splits behind, or to copy a part of a table. The new table has the schema and
    the partition columns of TABLE, statistics for every file, and all rows in one commit.

    Without TARGET, a Delta table becomes an arrowlog table in place: it gets a log over the same
    data files, which are neither read nor written.

    \b
    Examples:
      arrowlog convert /data/documents /data/documents_parquet
      arrowlog convert s3://bucket/documents /data/part --where "day >= '2024-01-01'"
    """
    made = arrowlog.convert(table, target, where=where, version=version)
    snapshot = made.snapshot()
    print(
        f"{format_count(snapshot.num_records)} rows in {snapshot.num_files:,} files at {made.uri}"
    )
