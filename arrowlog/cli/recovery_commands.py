"""Commands for damaged tables: doctor, repair, adopt."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.app import (
    Count,
    commands,
    complete_folder,
    output_options,
    parse_pairs,
    read_paths,
    settings_options,
    with_table,
)
from arrowlog.cli.fixes import apply_fix, is_safe, moves_into_place, to_command
from arrowlog.cli.output import print_record, print_table
from arrowlog.cli.progress import progress_bar
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrowlog.recovery import Finding, Findings


def _columns(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


@commands.command()
@click.argument("table", shell_complete=complete_folder)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    default="error",
    show_default=True,
    help="Exit with 1 if a finding is at least this severe.",
)
@click.option(
    "--max-commits-since-checkpoint",
    type=Count(),
    metavar="N",
    help="Report an error if more than N commits follow the checkpoint.",
)
@click.option(
    "--max-small-files",
    type=Count(),
    metavar="N",
    help="Report an error if more than N small files could be merged.",
)
@click.option(
    "--assert-stats",
    multiple=True,
    metavar="COLUMN[,COLUMN]",
    callback=_columns,
    help="Report an error if a file has no bounds for one of these columns. Repeatable.",
)
@click.option(
    "--data-files/--no-data-files",
    default=True,
    help="Check whether data files exist.  [default: yes]",
)
@click.option("--fix", is_flag=True, help="Run the fixes that are safe: those that delete nothing.")
@click.option("--dry-run", is_flag=True, help="With --fix: show what would be run, run nothing.")
@click.option(
    "--paths",
    "paths_of",
    metavar="CODE",
    help="Print only the paths of the files with this finding.",
)
@settings_options
@output_options
def doctor(
    table: str,
    fail_on: str,
    fix: bool,  # noqa: FBT001 -- click gives it by name
    dry_run: bool,  # noqa: FBT001 -- the same
    paths_of: str | None,
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
    **asked: Any,
) -> None:
    r"""Check TABLE for damage, and say how to fix it.

    Use it if a table does not open or returns wrong results, or as a gate in a pipeline: it exits
    with 1 if it finds an error (see --fail-on). Reads and compares every commit and checkpoint
    and checks that every data file exists. Works on tables that do not open. Writes nothing unless
    --fix is given. Each fix is a command that can be pasted.

    \b
    Examples:
      arrowlog doctor /data/events
      arrowlog doctor s3://bucket/events --fail-on warning --output json
      arrowlog doctor /data/events --max-small-files 1000 --assert-stats id,day
      arrowlog doctor /data/events --max-commits-since-checkpoint 20
      arrowlog doctor /data/events --fix --dry-run
      arrowlog doctor /data/events --paths orphans
    """
    if dry_run and not fix:
        raise click.UsageError("--dry-run needs --fix: the doctor itself writes nothing.")
    findings = arrowlog.doctor(table, storage_options, options=settings, **asked)
    if paths_of is not None:
        _print_paths(findings.paths(paths_of)[:limit], output)
        return
    if output == "text":
        _print_findings(findings, table, list(findings)[:limit])
    else:
        print_table(_with_commands(findings, table), output, limit)
    if fix:
        opened = arrowlog.Table(table, storage_options, options=settings)
        _run_fixes(opened, findings, dry_run=dry_run)
        if not dry_run:
            findings = arrowlog.doctor(table, storage_options, options=settings, **asked)
    if findings.at_least(fail_on):
        sys.exit(1)


def _print_findings(findings: Findings, uri: str, shown: Sequence[Finding]) -> None:
    print(str(findings).split("\n", 1)[0])
    if findings.scope:
        print(findings.scope)
    for finding in shown:
        print(f"\n{finding.severity}: {finding.code}: {finding.what}")
        print(f"  where: {finding.where}")
        print(f"  fix:   {to_command(finding.fix, uri)}")


def _print_paths(paths: Sequence[str], output: str) -> None:
    """Print paths, as text one per line, so that other commands can read them."""
    import pyarrow as pa

    if output == "text":
        print("".join(f"{path}\n" for path in paths), end="")
    else:
        print_table(pa.table({"path": pa.array(paths, pa.string())}), output)


def _with_commands(findings: Findings, uri: str) -> pa.Table:
    """Return the findings with a column `command`, the fix as a shell command."""
    import pyarrow as pa

    commands_ = pa.array([to_command(each.fix, uri) for each in findings], pa.string())
    return findings.to_arrow().append_column("command", commands_)


def _run_fixes(table: arrowlog.Table, findings: Findings, *, dry_run: bool) -> None:
    """Run the safe fixes, each once, and say on standard error what was run and what was not."""
    done: set[str] = set()
    for finding in findings:
        command = to_command(finding.fix, table.uri)
        if not is_safe(finding):
            click.echo(f"left to you: {finding.code}", err=True)
        elif finding.fix not in done:
            click.echo(f"{'would run' if dry_run else 'running'}: {command}", err=True)
            if not dry_run:
                try:
                    apply_fix(table, finding)
                except arrowlog.ArrowlogError as error:  # the other fixes are run all the same
                    click.echo(f"failed: {error}", err=True)
            done.add(finding.fix)


@commands.command()
@click.argument("source", shell_complete=complete_folder)
@click.argument("target", shell_complete=complete_folder)
@click.option("--strict", is_flag=True, help="Exit with 1 if anything had to be left out.")
@settings_options
@output_options
def repair(
    source: str,
    target: str,
    strict: bool,  # noqa: FBT001 -- click gives it by name
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    r"""Write a clean log to TARGET from a damaged one.

    Use it if `arrowlog doctor` recommends it. SOURCE and TARGET are log folders; SOURCE is only
    read. The new log ends before the first commit that is missing or damaged, unless a complete
    checkpoint lies beyond it. Data files that do not exist are left out. The output lists what was
    left out: versions, missing files, and stranded files, which only commits after the break name.
    If the command is interrupted, run it again to finish.

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
        print_record(_with_losses(result), output, limit)
    if row["status"] != "SUCCESS" or (strict and arrowlog.repair_losses(result)):
        sys.exit(1)


def _with_losses(result: pa.Table) -> pa.Table:
    """Return the seven columns of a repair, and beside them what it left out."""
    import pyarrow as pa

    losses = arrowlog.repair_losses(result)
    names = pa.list_(pa.string())
    versions = range(losses.versions[0], losses.versions[1] + 1) if losses.versions else ()
    for name, value, kind in (
        ("notes", arrowlog.repair_notes(result), names),
        ("versions_left_out", list(versions), pa.list_(pa.int64())),
        ("missing_files", losses.missing_files, names),
        ("stranded_files", losses.stranded_files, names),
        ("stranded_rows", losses.stranded_rows, pa.int64()),
        ("stranded_bytes", losses.stranded_bytes, pa.int64()),
        ("unclaimed_files", losses.unclaimed_files, names),
    ):
        result = result.append_column(name, pa.array([value], kind))
    return result


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
    if "://" not in row["source_path"]:
        print("Stop all writers, then put it in the place of the old log, which stays:")
        for command in moves_into_place(row["source_path"], row["target_path"]):
            print(f"  {command}")


@commands.command()
@with_table
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--from-log",
    metavar="FOLDER",
    help="Another log in the folder, such as _transaction_log_old, that describes the files.",
)
@click.option(
    "--replace",
    "replaces",
    multiple=True,
    metavar="PATH",
    help="Remove this live file in the same commit. Repeatable.",
)
@click.option(
    "--partition",
    "partition_values",
    multiple=True,
    metavar="COLUMN=VALUE",
    callback=parse_pairs,
    help="The partition of the files, if their folders do not tell it. Repeatable.",
)
@click.option("--allow-removed", is_flag=True, help="Also add files that a commit has removed.")
@click.option("--dry-run", is_flag=True, help="Check the files, commit nothing.")
@output_options
def adopt(
    table: arrowlog.Table,
    paths: tuple[str, ...],
    output: str,
    limit: int | None,
    **how: Any,
) -> None:
    r"""Add data files that the log of TABLE does not know.

    Use it for files that `arrowlog doctor` reports as stranded: their rows were in commits that a
    damaged log has lost. Each file is checked against the schema and the partition columns; all of
    them are added by one commit. PATH is relative to the table; - reads paths from standard input,
    one per line.

    \b
    Examples:
      arrowlog adopt /data/events day=1/part-7.parquet --dry-run
      arrowlog adopt /data/events day=1/part-7.parquet --from-log _old_log
      arrowlog doctor /data/t --paths stranded | arrowlog adopt /data/t -
    """
    done = table.adopt(read_paths(paths), **how)
    print_table(done.files, output, limit)
    if output == "text":
        verb = "would be added" if done.dry_run else f"added in version {done.version}"
        size = format_bytes(sum(done.files["size_bytes"].to_pylist()))
        print(
            f"{format_items(done.num_files, 'file')}, {format_items(done.num_records, 'row')},"
            f" {size}: {verb}."
        )


@contextmanager
def _logging_disabled() -> Iterator[None]:
    """Silence the log lines of a repair: they are printed here, not logged as well."""
    import logging

    logger = logging.getLogger("arrowlog.repair")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
