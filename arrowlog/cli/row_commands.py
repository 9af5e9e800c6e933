"""Commands on rows and data files: rows, convert, rebuild."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import click

import arrowlog
from arrowlog.cli.app import (
    commands,
    complete_folder,
    output_options,
    settings_options,
    version_option,
    with_table,
)
from arrowlog.cli.output import print_record, print_table
from arrowlog.cli.progress import progress_bar
from arrowlog.display import format_items

_ROWS_SHOWN = 20  # without --limit


@commands.command()
@with_table
@click.option("--where", metavar="PREDICATE", help="Print only rows that match.")
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
    r"""Print rows of TABLE.

    Use it to look at the data, in Parquet files or in splits. The first 20 rows are printed unless
    --limit says otherwise, in no particular order, and no more files are read than that takes. In
    tables of splits, the predicate may search: text indexquery 'spark AND sql'.

    \b
    Examples:
      arrowlog rows /data/events --limit 5
      arrowlog rows /data/events --where "id > 900" --columns id,day
      arrowlog rows /data/documents --where "text indexquery 'spark AND NOT sql'"
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
@click.argument("table", shell_complete=complete_folder)
@click.argument("target", required=False, shell_complete=complete_folder)
@click.option("--where", metavar="PREDICATE", help="Convert only rows that match.")
@version_option
@settings_options
@output_options
def convert(
    table: str,
    target: str | None,
    where: str | None,
    version: int | None,
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    r"""Write the rows of TABLE to a new table at TARGET.

    Use it to turn splits into Parquet files, or to copy a part of a table. The new table has the
    schema and the partition columns of TABLE, statistics for every file, and all rows in one
    commit.

    Without TARGET, a Delta table becomes an arrowlog table in place: it gets a log over the same
    data files, which are neither read nor written. So does a folder of Parquet files without a log;
    `arrowlog rebuild --dry-run` shows its schema and problems first.

    \b
    Examples:
      arrowlog convert /data/folder_of_parquet_files
      arrowlog convert /data/documents /data/documents_parquet
      arrowlog convert s3://bucket/documents /data/part --where "id < 1000"
    """
    made = arrowlog.convert(
        table,
        target,
        where=where,
        version=version,
        storage_options=storage_options,
        options=settings,
    )
    snapshot = made.snapshot()
    rows, files = snapshot.num_records, snapshot.num_files
    if output == "text":
        held = "an unknown number of rows" if rows is None else format_items(rows, "row")
        print(f"{held} in {format_items(files, 'file')} at {made.uri}")
        return
    import pyarrow as pa

    row = {"uri": [made.uri], "version": [made.version], "files": [files]}
    print_record(pa.table({**row, "rows": pa.array([rows], pa.int64())}), output, limit)


def _names(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


@commands.command()
@click.argument("table", shell_complete=complete_folder)
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
@click.option(
    "--partition-columns",
    metavar="NAMES",
    callback=_names,
    help="Partition columns, separated by commas; '' for none.  [default: those in the paths]",
)
@click.option(
    "--schema",
    "schema_file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Take the schema from this file, as Spark's schema JSON.  [default: that of the files]",
)
@click.option("--skip-damaged", is_flag=True, help="Leave out files that cannot be opened.")
@click.option("--ignore-logs", is_flag=True, help="Rebuild although the folder has other logs.")
@settings_options
@output_options
def rebuild(
    table: str,
    dry_run: bool,  # noqa: FBT001 -- click passes options by name
    schema_file: TextIO | None,
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
    **given: Any,
) -> None:
    r"""Write a new log for Parquet files whose log is lost.

    TABLE is the folder of the files. Also makes a table of a plain folder of Parquet files. Run it
    with --dry-run first: it shows files, rows, schema, partition columns and problems. Never
    replaces a log; if there is a damaged one, use `arrowlog doctor`. Rows that were deleted,
    overwritten or compacted come back if their files are still there. Exits with 1 if it is refused
    or, with --dry-run, would be.

    \b
    Examples:
      arrowlog rebuild /data/events --dry-run
      arrowlog rebuild /data/events
      arrowlog rebuild s3://bucket/events --partition-columns day,hour
    """
    schema = None if schema_file is None else schema_file.read()
    how = {"storage_options": storage_options, "options": settings, **given}
    with progress_bar("reading footers", at_once=True) as progress:
        result = arrowlog.rebuild(table, dry_run=dry_run, schema=schema, progress=progress, **how)
    if output == "text":
        print(result)
    else:
        print_table(result.to_arrow(), output, limit)
    if result.problems:
        sys.exit(1)
