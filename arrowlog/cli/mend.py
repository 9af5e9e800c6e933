"""Commands for a log that is broken, or may be: doctor, repair."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.files import shown_progress
from arrowlog.cli.frame import commands, output_options, settings_options
from arrowlog.cli.show import show

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
    help="Exit with 1 if there is a finding as bad as this, or worse.",
)
@click.option(
    "--max-commits-since-checkpoint",
    type=click.IntRange(min=0),
    help="More commits to replay than this are an error.",
)
@click.option(
    "--max-small-files",
    type=click.IntRange(min=0),
    help="More small files that could be larger ones are an error.",
)
@click.option(
    "--assert-stats",
    multiple=True,
    metavar="COLUMN[,COLUMN]",
    callback=_columns,
    help="Columns that every file must have bounds of.",
)
@click.option("--data-files/--no-data-files", default=True, help="Whether to look for data files.")
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
    r"""Say what is wrong with TABLE, where, and which call mends it. Writes nothing.

    Looks at every commit and checkpoint, compares them, and looks for every data file. Also for a
    table that does not open. Exits with 1 on errors: a gate for tests and for pipelines.

    \b
    Examples:
      arrowlog doctor /data/events
      arrowlog doctor s3://bucket/events --fail-on warning --output json
      arrowlog doctor /data/events --max-small-files 1000 --assert-stats id,day
      arrowlog doctor /data/events --max-commits-since-checkpoint 20 --no-data-files
    """
    findings = arrowlog.doctor(table, storage_options, options=settings, **asked)
    if output == "text":
        shown = list(findings)[:limit]
        print(str(findings).split("\n", 1)[0])
        for finding in shown:
            print(f"\n{finding}")
    else:
        show(findings.to_arrow(), output, limit)
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
    r"""Write a clean log to TARGET of what can be read of the log SOURCE, which is only read.

    Both are folders of logs. Files that are not there are left out, and so is what lies behind a
    commit that is missing or damaged. A run that was cut short is finished by the same command.

    \b
    Examples:
      arrowlog repair /data/events/_transaction_log /data/events/_transaction_log_repaired
      arrowlog repair s3://b/t/_transaction_log s3://b/t/_repaired --set repair.failOnMissing=true
    \b
    Then keep the old log and put the new one in its place:
      mv /data/events/_transaction_log /data/events/_transaction_log_old
      mv /data/events/_transaction_log_repaired /data/events/_transaction_log
    """
    how = {"storage_options": storage_options, "options": settings}
    with _quiet(), shown_progress("looking for data files") as progress:
        result = arrowlog.repair(source, target, progress=progress, **how)
    row = result.to_pylist()[0]
    if output == "text":
        _print(row, result)
    else:
        show(result, output, limit)
    if row["status"] != "SUCCESS":
        sys.exit(1)


def _print(row: dict[str, Any], result: pa.Table) -> None:
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
def _quiet() -> Iterator[None]:
    """The notes of a repair are printed by us, so the program's log need not repeat them."""
    log = logging.getLogger("arrowlog")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
