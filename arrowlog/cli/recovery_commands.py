"""Commands for damaged logs: doctor, repair."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.app import commands, output_options, progress_bar, settings_options
from arrowlog.cli.output import print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def _columns(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


@commands.command()
@click.argument("table")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    default="error",
    show_default=True,
    help="Exit with 1 if a finding is at least this severe.",
)
@click.option(
    "--max-commits-since-checkpoint",
    type=click.IntRange(min=0),
    metavar="N",
    help="Report an error if more than N commits follow the checkpoint.",
)
@click.option(
    "--max-small-files",
    type=click.IntRange(min=0),
    metavar="N",
    help="Report an error if more than N small files could be merged.",
)
@click.option(
    "--assert-stats",
    multiple=True,
    metavar="COLUMN[,COLUMN]",
    callback=_columns,
    help="Report an error if a file has no bounds for these columns.",
)
@click.option(
    "--data-files/--no-data-files",
    default=True,
    help="Check whether data files exist.  [default: yes]",
)
@settings_options
@output_options
def doctor(
    table: str,
    fail_on: str,
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
    **asked: Any,
) -> None:
    r"""Check TABLE for damage; show where it is and how to fix it.

    Use it if a table does not open or returns wrong results, or as a gate in a pipeline: it exits
    with 1 if it finds an error (see --fail-on). Reads and compares every commit and checkpoint
    and checks that every data file exists. Works on tables that do not open. Writes nothing.

    \b
    Examples:
      arrowlog doctor /data/events
      arrowlog doctor s3://bucket/events --fail-on warning --output json
      arrowlog doctor /data/events --max-small-files 1000 --assert-stats id,day
      arrowlog doctor /data/events --max-commits-since-checkpoint 20
    """
    findings = arrowlog.doctor(table, storage_options, options=settings, **asked)
    if output == "text":
        shown = list(findings)[:limit]
        print(str(findings).split("\n", 1)[0])
        for finding in shown:
            print(f"\n{finding}")
    else:
        print_table(findings.to_arrow(), output, limit)
    if findings.at_least(fail_on):
        sys.exit(1)


@commands.command()
@click.argument("source")
@click.argument("target")
@settings_options
@output_options
def repair(
    source: str,
    target: str,
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    r"""Write a clean log to TARGET from what is readable in SOURCE.

    Use it if `arrowlog doctor` recommends it. SOURCE and TARGET are log folders; SOURCE is only
    read. The new log ends before the first commit that is missing or damaged, unless a complete
    checkpoint lies beyond it. Data files that do not exist are left out. If the command is
    interrupted, run it again to finish.

    \b
    Examples:
      arrowlog repair /data/t/_transaction_log /data/t/_transaction_log_repaired
      arrowlog repair s3://b/t/_transaction_log s3://b/t/_repaired \
        --set repair.failOnMissing=true
    \b
    Then keep the old log and put the new one in its place:
      mv /data/t/_transaction_log /data/t/_transaction_log_old
      mv /data/t/_transaction_log_repaired /data/t/_transaction_log
    """
    how = {"storage_options": storage_options, "options": settings}
    with _logging_disabled(), progress_bar("checking data files", at_once=True) as progress:
        result = arrowlog.repair(source, target, progress=progress, **how)
    row = result.to_pylist()[0]
    if output == "text":
        _print_result(row, result)
    else:
        print_table(result, output, limit)
    if row["status"] != "SUCCESS":
        sys.exit(1)


def _print_result(row: dict[str, Any], result: pa.Table) -> None:
    if row["status"] != "SUCCESS":
        print(row["status"], file=sys.stderr)
        return
    print(
        f"Version {row['source_version']} of {row['source_path']}: {row['valid_splits']:,} of"
        f" {row['total_splits']:,} files, {row['missing_splits']:,} missing."
    )
    for note in arrowlog.repair_notes(result):
        print(f"  note: {note}")
    print(f"The new log is {row['target_path']}.")


@contextmanager
def _logging_disabled() -> Iterator[None]:
    """Silence arrowlog's logger: the notes of a repair are printed here, not logged as well."""
    logger = logging.getLogger("arrowlog")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
