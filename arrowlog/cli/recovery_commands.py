"""Commands for damaged tables: doctor, repair, adopt, rebuild.

A finding's `fix` is Python that can be executed as it stands. On the command line it is shown as
the command that does the same, so that it can be pasted where it is read; `doctor --fix` runs the
safe ones.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

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
from arrowlog.cli.output import print_record, print_table, progress_bar
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.recovery import Finding, Findings

# Calls that delete nothing and can be repeated: `arrowlog doctor --fix` runs these and no others.
SAFE_CALLS = ("checkpoint", "set_properties", "update_statistics")
_FLAGS = {"include_skipped": "--include-skipped", "dry_run": "--dry-run"}
_OPTIONS = {
    "older_than": "--older-than",
    "ignore_logs": "--ignore-log",
    "from_log": "--from-log",
    "replaces": "--replace",
}
_REMOTE = "://"


@dataclass(frozen=True, slots=True)
class PathsOfFinding:
    """The argument `table.doctor().paths(code)`, perhaps without splits."""

    code: str
    without_splits: bool = False


@dataclass(frozen=True, slots=True)
class FixCall:
    """One call of a fix: `table.name(…)`, or `arrowlog.name(…)`."""

    owner: str
    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_fix(fix: str) -> tuple[list[FixCall], str] | None:
    """Return the calls of a fix and its comment; None if it is a sentence or another command.

    >>> parse_fix("table.checkpoint()  # Writes it.")
    ([FixCall(owner='table', name='checkpoint', arguments=(), options={})], 'Writes it.')
    >>> parse_fix("pip install --upgrade arrowlog")
    """
    code, _, comment = fix.partition("  # ")
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return None
    calls = []
    for statement in statements:
        node = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        if not isinstance(node.func.value, ast.Name):
            return None
        try:
            arguments = tuple(_value(argument) for argument in node.args)
            options = {str(item.arg): _value(item.value) for item in node.keywords}
        except ValueError:
            return None
        calls.append(FixCall(node.func.value.id, node.func.attr, arguments, options))
    return (calls, comment) if calls else None


def _value(node: ast.expr) -> Any:
    """Evaluate an argument: a literal, `table.uri`, a placeholder, or the paths of a finding."""
    if isinstance(node, ast.ListComp):  # [p for p in <paths> if not p.endswith('.split')]
        paths = _value(node.generators[0].iter)
        if isinstance(paths, PathsOfFinding):
            return PathsOfFinding(paths.code, without_splits=True)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "paths"
    ):
        return PathsOfFinding(str(_value(node.args[0])))
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    return ast.literal_eval(node)


def to_command(fix: str, uri: str) -> str:
    """Return the shell command that does what a fix does for the table at `uri`.

    A fix that is a sentence or a command is returned as it is.

    >>> to_command("table.compact(include_skipped=True)  # Tries them again.", "/data/my events")
    "arrowlog compact '/data/my events' --include-skipped  # Tries them again."
    >>> to_command("table.checkpoint()  # Then table.vacuum(ignore_logs=['old']).", "t")
    'arrowlog checkpoint t  # Then arrowlog vacuum t --ignore-log old.'
    """
    parsed = parse_fix(fix)
    if parsed is None:
        return fix
    calls, comment = parsed
    lines = [_command(call, uri) for call in calls]
    if None in lines:
        return f"In Python: {fix}"
    text = " && ".join(line for line in lines if line is not None)
    if " && mv " in text:
        comment = "Stop all writers first. The old log is kept under its new name."
    return f"{text}  # {_in_commands(comment, uri)}" if comment else text


def _in_commands(comment: str, uri: str) -> str:
    """Replace the calls and arguments that a comment mentions by those of the command line."""
    call = re.search(r"table\.vacuum\(ignore_logs=(\[.*?\])\)", comment)
    if call is not None:
        names = [f"--ignore-log {shlex.quote(name)}" for name in ast.literal_eval(call[1])]
        command = f"arrowlog vacuum {shlex.quote(uri)} {' '.join(names)}"
        comment = comment.replace(call[0], command)
    return comment.replace("ithout dry_run", "ithout --dry-run")


def _command(call: FixCall, uri: str) -> str | None:
    if call.owner == "arrowlog":
        return _module_command(call, uri)
    words = ["arrowlog", call.name.replace("_", "-"), uri]
    if call.name == "set_properties":
        words[1] = "set-property"
        words += [f"{name}={value}" for name, value in call.arguments[0].items()]
        return shlex.join(words)
    piped = next((a for a in call.arguments if isinstance(a, PathsOfFinding)), None)
    if piped is not None:
        listing = shlex.join(["arrowlog", "doctor", uri, "--paths", piped.code])
        without_splits = " | grep -v '\\.split$'" if piped.without_splits else ""
        return f"{listing}{without_splits} | {shlex.join([*words, *_options(call), '-'])}"
    paths = [str(path) for argument in call.arguments for path in _as_list(argument)]
    words += _options(call)
    words += ["--", *paths] if any(path.startswith("-") for path in paths) else paths
    return shlex.join(words)


def _options(call: FixCall) -> list[str]:
    words = []
    for name, value in call.options.items():
        if name in _FLAGS:
            words += [_FLAGS[name]] if value else []
        else:
            for each in _as_list(value):
                words += [_OPTIONS[name], str(each)]
    return words


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _module_command(call: FixCall, uri: str) -> str | None:
    """Return the command for a function of the package; None if there is none."""
    arguments = [uri if value == "table.uri" else str(value) for value in call.arguments]
    if call.name == "repair":
        source, target = arguments
        command = shlex.join(["arrowlog", "repair", source, target])
        if _REMOTE in source:
            return command
        return " && ".join([command, *moves_into_place(source, target)])
    if call.name in ("convert", "rebuild"):
        words = [uri if word == "uri" else word.upper() for word in arguments[1:]]
        return shlex.join(["arrowlog", call.name, uri, *words])
    return None


def moves_into_place(source: str, target: str) -> list[str]:
    """Return the commands that put a repaired log in the place of the old one, which stays.

    The old log gets a name that is free: `mv` would move it into a folder that exists.
    """
    old, number = f"{source.rstrip('/')}_old", 2
    while os.path.lexists(old):
        old, number = f"{source.rstrip('/')}_old{number}", number + 1
    return [shlex.join(["mv", source, old]), shlex.join(["mv", target, source])]


def apply_fix(table: arrowlog.Table, finding: Finding) -> bool:
    """Run the fix of a finding if all of its calls are safe; return whether it was run."""
    parsed = parse_fix(finding.fix)
    if parsed is None or not all(_is_safe(call) for call in parsed[0]):
        return False
    for call in parsed[0]:
        arguments = [
            _paths(finding, value) if isinstance(value, PathsOfFinding) else value
            for value in call.arguments
        ]
        getattr(table, call.name)(*arguments, **call.options)
    return True


def is_safe(finding: Finding) -> bool:
    """Return whether `apply_fix` would run the fix of a finding."""
    parsed = parse_fix(finding.fix)
    return parsed is not None and all(_is_safe(call) for call in parsed[0])


def _is_safe(call: FixCall) -> bool:
    return call.owner == "table" and call.name in SAFE_CALLS


def _paths(finding: Finding, wanted: PathsOfFinding) -> list[str]:
    paths = [] if finding.files is None else finding.files.to_pylist()
    return [p for p in paths if not (wanted.without_splits and p.endswith(".split"))]


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
