"""Every command, and the run of the command line with its warnings and exit codes.

The commands that only read come first, then those that maintain a table. Those for damaged logs and
those on rows have modules of their own. No module imported here loads an engine, so that help and
shell completion are quick. Commands import what they need when they run.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import TYPE_CHECKING

import click

import arrowlog
from arrowlog.cli import (  # noqa: F401 -- add their commands
    change_commands,
    recovery_commands,
    report_commands,
    row_commands,
)
from arrowlog.cli.app import (
    Count,
    commands,
    output_options,
    version_option,
    with_table,
)
from arrowlog.cli.output import print_cleanup, print_record, print_table
from arrowlog.cli.progress import progress_bar
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.scan import Engine
    from arrowlog.snapshot import CheckpointResult


_COLOURS = {"warning:": "yellow", "log": "green"}
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "adds", "removes", "bytes", "rows")
_SHARE = click.FloatRange(0, 1)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


@commands.command()
@with_table
@output_options
def info(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Summarize TABLE: size, schema, last commits and warnings.

    Start here with a table you do not know. Warnings name what needs attention, such as missing
    commits, an old checkpoint or many small files. Only the log is read: `arrowlog doctor` also
    checks that every data file exists. --limit sets how many of the last commits are shown, 5
    without it.

    \b
    Examples:
      arrowlog info /data/events
      arrowlog info s3://bucket/events --output json
    """
    overview = table.overview(5 if limit is None else limit)
    if output != "text":
        print_record(overview.to_arrow(), output)
        return
    for line in str(overview).splitlines():
        first = line.partition(" ")[0]
        colour = None if line == overview.health and not overview.healthy else _COLOURS.get(first)
        click.secho(line, fg=colour, bold=first in ("version", overview.uri) or None)


@commands.command()
@with_table
@click.option("--where", metavar="PREDICATE", help="List only files that may have matching rows.")
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
        size = format_bytes(plan.size_bytes)
        print(f"{format_items(plan.num_files, 'file')}, {size}, version {plan.version}")
    else:
        print_table(live, output, limit)


@commands.command()
@with_table
@click.argument("predicate")
@click.option(
    "--engine",
    type=click.Choice(["arrow", "duckdb"]),
    default="arrow",
    show_default=True,
    help="What computes the plan; the files are the same.",
)
@version_option
@output_options
def scan(
    table: arrowlog.Table,
    predicate: str,
    engine: Engine,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""List the files that a query with PREDICATE has to read.

    Use it to see how well the partitions and statistics of TABLE prune. PREDICATE is a SQL
    condition on the columns of the table. Files are listed unless the log proves that no row
    matches.

    \b
    Examples:
      arrowlog scan /data/events "day = '2024-01-01' AND id BETWEEN 5 AND 9"
      arrowlog scan /data/events "day >= current_date - 7" --output json
    """
    plan = table.scan(predicate, version, engine=engine)
    names = [f"partition.{name}" for name in plan.snapshot.partition_columns]
    names = ["path", *names, "size_bytes", "num_records"]
    print_table(plan.files.select(names), output, limit)
    if output == "text":
        print(f"{plan.num_files:,} of {plan.total_files:,} files, {format_bytes(plan.size_bytes)}")


@commands.command()
@with_table
@click.argument("predicate")
@click.option(
    "--min-pruning",
    type=_SHARE,
    metavar="SHARE",
    help="Exit with 1 if less than this share of the files, from 0 to 1, is pruned.",
)
@click.option("--sql", "as_sql", is_flag=True, help="Print the plan as a query for arrowlog sql.")
@version_option
@output_options
def explain(
    table: arrowlog.Table,
    predicate: str,
    min_pruning: float | None,
    as_sql: bool,  # noqa: FBT001 -- click gives it by name
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Explain which files each clause of PREDICATE prunes.

    Use it when a query reads more of TABLE than expected. Text output has one line per clause: the
    files it drops, and why it keeps the others (no statistics, truncated bounds, not prunable).
    json, csv and arrow output have one row per file and clause. With --sql, prints the DuckDB query
    that selects the same files from their bounds.

    \b
    Examples:
      arrowlog explain /data/events "day = '2024-01-01' AND id > 900"
      arrowlog explain /data/events "id = 7" --min-pruning 0.9
      arrowlog explain /data/events "id = 7" --sql | arrowlog sql /data/events
    """
    plan = table.scan(predicate, version)
    explanation = plan.explain()
    if as_sql:
        print(plan.sql)
    elif output == "text":
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

    Use it to see what was changed when: time, operation, files added and removed, bytes, rows.
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
    shown = commits.select(list(_COMMIT_COLUMNS))
    print_table(shown.set_column(1, "timestamp", _to_seconds(shown["timestamp"])), output)
    oldest = commits["version"][-1].as_py() if commits.num_rows else 0
    if oldest == table.earliest_version > 0:
        print(f"History begins with version {oldest}: earlier versions were cleaned up.")


def _to_seconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Drop the milliseconds of commit times, so that a line fits a terminal of 80 columns."""
    import pyarrow as pa

    return times.cast(pa.timestamp("s", times.type.tz), safe=False)


@commands.command()
@with_table
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--since", metavar="TIME", help="Show commits from this time or day on.")
@click.option("--until", metavar="TIME", help="Show commits up to this time or day.")
@output_options
def diff(
    table: arrowlog.Table,
    a: str | None,
    b: str | None,
    since: str | None,
    until: str | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Compare two versions of TABLE: files, schema, properties.

    Use it to see what one or more commits changed. Shows what turns version A into version B;
    without B, into the newest version. A may be the newer one, or a day, such as yesterday. A time
    is ISO-8601 text in UTC, a duration before now such as 24h, today or yesterday. json, csv and
    arrow output have one row per file that was added, removed or changed.

    \b
    Examples:
      arrowlog diff /data/events 3 9
      arrowlog diff /data/events yesterday
      arrowlog diff /data/events --since 2024-10-01 --until 2024-10-07
    """
    for text in (a, b, since, until):
        _check_version_or_time(text)
    difference = table.diff(_version_or_time(a), _version_or_time(b), since=since, until=until)
    if output == "text" and limit is None:
        print(difference)
    else:
        print_table(difference.to_arrow(), output, limit)


def _check_version_or_time(text: str | None) -> None:
    """Refuse an argument that is neither a version nor a time, as wrong usage."""
    from arrowlog.snapshot import to_period

    if text is not None and not text.isdecimal():
        try:
            to_period(text, 0)
        except arrowlog.InvalidRequest as error:
            raise click.BadParameter(str(error)) from None


def _version_or_time(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


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
    removes, skips, metadata, protocols, checkpoints, files, file_lifetimes, file_bounds and
    coverage; files_at(N) has the live files of version N, file_bounds_at(N) their bounds. Without
    QUERY, reads the query from standard input, or starts a prompt on a terminal. A query can read
    and write your files, as DuckDB can; with --restricted it sees only the views.

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


@commands.command()
@with_table
@output_options
def checkpoint(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Write a checkpoint of the newest version of TABLE.

    A checkpoint holds the complete state, so that opening the table replays only later commits.
    Writers make one every `checkpoint.interval` commits; use this command if a table opens slowly
    or its writers make none.

    \b
    Examples:
      arrowlog checkpoint /data/events
      arrowlog checkpoint s3://bucket/events --output json
    """
    done = table.checkpoint()
    if output != "text":
        print_record(_row(done), output, limit)
    elif done.names:
        held, size = format_items(done.num_files, "file"), format_bytes(done.size_bytes)
        print(f"Version {done.version}: {held} in a checkpoint of {size}.")
    else:
        print(f"Version {done.version} already has a checkpoint.")


@commands.command()
@with_table
@click.option(
    "--dry-run/--no-dry-run",
    default=None,
    help="List the files, delete nothing.  [default: the table's `cleanup.dryRun`]",
)
@output_options
def cleanup(table: arrowlog.Table, dry_run: bool | None, output: str, limit: int | None) -> None:  # noqa: FBT001 -- click gives it by name
    r"""Delete expired commits and checkpoints of TABLE.

    Use it to shorten a long log; run it with --dry-run first. A file is deleted if it is older than
    the retention settings, and a newer checkpoint, which is verified first, covers it. Their
    versions can no longer be read. Every deleted file is listed. Data files stay until `arrowlog
    vacuum`.

    \b
    Examples:
      arrowlog cleanup /data/events --dry-run
      arrowlog cleanup /data/events --no-dry-run --output json
    """
    print_cleanup(table.cleanup(dry_run=dry_run), output, limit)


@commands.command()
@with_table
@click.option(
    "--target-size",
    default="128MB",
    show_default=True,
    metavar="SIZE",
    help="Size of the new files.",
)
@click.option(
    "--where", metavar="PREDICATE", help="Compact only files that may have matching rows."
)
@click.option("--max-groups", type=Count(), metavar="N", help="Write at most N new files.")
@click.option(
    "--max-files-per-group", type=Count(), metavar="N", help="Merge at most N files into one."
)
@click.option(
    "--include-skipped", is_flag=True, help="Also try files in cooldown (see arrowlog skips)."
)
@_DRY_RUN
@output_options
def compact(
    table: arrowlog.Table,
    target_size: str,
    where: str | None,
    max_groups: int | None,
    max_files_per_group: int | None,
    include_skipped: bool,  # noqa: FBT001 -- click gives it by name
    dry_run: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Merge small Parquet files of TABLE into larger ones.

    Use it when many small files make queries slow. Rows do not change. Each group of files is
    one commit, so other writers can go on. A file that cannot be read is recorded as a skip and
    left out. The small files stay on disk until `arrowlog vacuum`.

    \b
    Examples:
      arrowlog compact /data/events --dry-run
      arrowlog compact /data/events --where "day >= '2024-01-01'"
      arrowlog compact s3://bucket/events --target-size 256MB --max-groups 10
    """
    with progress_bar("compacting", at_once=True) as progress:
        done = table.compact(
            target_size,
            where,
            max_groups=max_groups,
            max_files_per_group=max_files_per_group,
            include_skipped=include_skipped,
            dry_run=dry_run,
            progress=progress,
        )
    groups = done.to_arrow()
    if output != "text":
        print_table(groups, output, limit)
    elif groups.num_rows:
        print_table(_with_partition_text(groups), output, limit)
    if output == "text":
        verb = "would become" if dry_run else "became"
        new = "" if dry_run else f" of {format_bytes(done.bytes_added)}"
        print(
            f"{format_items(done.files_removed, 'file')} of {format_bytes(done.bytes_removed)}"
            f" {verb} {done.files_added:,}{new}."
            if groups.num_rows
            else "There is nothing to compact."
        )
        for path, reason in done.skipped:
            print(f"Skipped {path}: {reason}.")
    if any(group.status in ("failed", "unknown") for group in done.groups):
        raise SystemExit(1)


@commands.command()
@with_table
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    metavar="AGE",
    help="Keep files younger than this.",
)
@click.option(
    "--force", is_flag=True, help="Allow --older-than below 24h. Safe only without active writers."
)
@click.option(
    "--ignore-log",
    "ignore_logs",
    multiple=True,
    metavar="FOLDER",
    help="Also delete files that only this other log in the folder names. Repeatable.",
)
@_DRY_RUN
@output_options
def vacuum(
    table: arrowlog.Table,
    older_than: str,
    force: bool,  # noqa: FBT001 -- click gives it by name
    ignore_logs: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Delete data files that no version of TABLE needs.

    Use it to free space after compact, remove or failed writes; run it with --dry-run first. Every
    version that can be read keeps its files; `arrowlog cleanup` expires versions. Files younger
    than --older-than stay, because they may belong to a commit in progress. Files that another log
    in the folder names, such as one that a repair replaced, stay unless --ignore-log names it.

    \b
    Examples:
      arrowlog vacuum /data/events --dry-run
      arrowlog vacuum s3://bucket/events --older-than 30d
      arrowlog vacuum /data/events --ignore-log _transaction_log_old
    """
    with progress_bar("deleting", at_once=True) as progress:
        done = table.vacuum(
            older_than, dry_run=dry_run, force=force, ignore_logs=ignore_logs, progress=progress
        )
    if output != "text" or done.num_files:
        print_table(done.files, output, limit)
    if output == "text":
        verb = "would be deleted" if dry_run else "deleted"
        print(f"{format_items(done.num_files, 'file')} {verb}, {format_bytes(done.bytes_freed)}.")
        live, history, young = (done.counts[fate] for fate in ("live", "history", "young"))
        history_size = format_bytes(done.sizes["history"])
        print(
            f"Kept: {format_items(live, 'live file')},"
            f" {history:,} ({history_size}) that older versions need (from version"
            f" {done.earliest_version} on), {young:,} too young."
        )
        if done.other_logs:
            print(
                f"Kept for other logs in the folder ({', '.join(done.other_logs)}):"
                f" {format_items(done.counts['other-log'], 'file')},"
                f" {format_bytes(done.sizes['other-log'])}."
                " --ignore-log deletes them."
            )
    if done.failures:
        raise SystemExit(1)


@commands.command()
@with_table
@click.option(
    "--history", is_flag=True, help="List all skips in the log, also those whose cooldown ended."
)
@click.option("--record", metavar="PATH", help="Record a skip of this file; needs --reason.")
@click.option("--reason", help="Why the file is skipped, with --record.")
@click.option(
    "--cooldown",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="How long, with --record.",
)
@output_options
def skips(
    table: arrowlog.Table,
    history: bool,  # noqa: FBT001 -- click gives it by name
    record: str | None,
    reason: str | None,
    cooldown: str,
    output: str,
    limit: int | None,
) -> None:
    r"""List files of TABLE that compaction skips, and why.

    Use it if files stay small although `arrowlog compact` runs. A file that cannot be merged is
    skipped until its cooldown ends, then tried again. Readers are not affected. With --record,
    adds a skip first.

    \b
    Examples:
      arrowlog skips /data/events
      arrowlog skips /data/events --history --output json
      arrowlog skips /data/events --record day=1/a.parquet --reason "unreadable"
    """
    if record is not None:
        if not reason:
            raise click.UsageError("--record needs a --reason.")
        table.skips.record(record, reason, cooldown=cooldown)
    listed = table.skips.history() if history else table.skips.active()
    if output != "text" or listed.num_rows:
        print_table(listed, output, limit)
    if output == "text":
        noun, where = ("skip", "the log") if history else ("file", "cooldown")
        print(f"{format_items(listed.num_rows, noun)} in {where}.")


def _row(result: CheckpointResult) -> pa.Table:
    """Return a checkpoint as a table of one row."""
    from dataclasses import fields

    import pyarrow as pa

    names = [field.name for field in fields(result)]
    values = {name: [getattr(result, name)] for name in names if name != "names"}
    return pa.table({**values, "names": pa.array([list(result.names)], pa.list_(pa.string()))})


def _with_partition_text(groups: pa.Table) -> pa.Table:
    """Return the columns that fit a terminal, with the partition as `column=value`."""
    import pyarrow as pa

    parts = [", ".join(f"{k}={v}" for k, v in row) for row in groups["partition"].to_pylist()]
    named = groups.select(["status", "files", "size_bytes", "new_size_bytes", "reason"])
    return named.add_column(1, "partition", pa.array(parts, pa.string()))


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Build the table in this empty folder and keep it.  [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Build a small table and show what arrowlog does with it.

    Use it as an introduction to the Python API. Creates a table, writes to it, plans a scan, lets
    two writers conflict, reads and restores old versions, writes a checkpoint and queries the log.
    Every Python line is executed as shown, followed by its result. Only the folder of the table is
    written to.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    from arrowlog.cli.demo import run_demo

    run_demo(folder)


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    r"""Print a script for completion in the shell.

    With it, Tab completes commands, options, settings and the paths of tables. Save the script
    where the shell looks for completions, and open a new shell.

    \b
    Examples:
      arrowlog completion bash \
        > ~/.local/share/bash-completion/completions/arrowlog
      arrowlog completion zsh > "${fpath[1]}/_arrowlog"
      arrowlog completion fish > ~/.config/fish/completions/arrowlog.fish
    \b
    Or try it in this shell only:
      eval "$(arrowlog completion bash)"
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(commands, {}, "arrowlog", "_ARROWLOG_COMPLETE").source().rstrip())


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without Python's file name and source line."""
    print(f"Warning: {message}", file=sys.stderr)


def run() -> int:
    """Run the command and return the exit code.

    0 is success, 1 an `ArrowlogError` (printed as one message, without a traceback), an interrupt
    or a closed pipe, 2 wrong usage. Other exceptions are bugs and propagate.
    """
    warnings.showwarning = _print_warning
    try:
        commands.main(prog_name="arrowlog", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 1
    except arrowlog.ArrowlogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader of the pipe has closed it (`| head`). Discard the rest of the buffer, or
        # flushing it at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
