"""Commands that change or maintain a table: create, restore, compact, vacuum and others."""

from __future__ import annotations

import os
import sys
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
    version_option,
    with_table,
)
from arrowlog.cli.output import (
    print_cleanup,
    print_listing,
    print_record,
    print_table,
    progress_bar,
)
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.snapshot import CheckpointResult

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


@commands.command()
@click.argument("table", shell_complete=complete_folder)
@click.argument("schema")
@click.option(
    "--partition-by", metavar="NAMES", help="Partition by these columns, separated by commas."
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_pairs,
    help="Set a table property. Repeatable.",
)
@click.option("--exist-ok", is_flag=True, help="Succeed if the table exists, whatever its schema.")
@settings_options
@output_options
def create(
    table: str,
    schema: str,
    partition_by: str | None,
    properties: dict[str, str],
    exist_ok: bool,  # noqa: FBT001 -- click gives it by name
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    r"""Create an empty table at TABLE with SCHEMA.

    SCHEMA is a Parquet file whose schema is used, a file with Spark's schema as JSON, or the
    columns themselves with the types of Spark SQL. Data files that are in the folder already do not
    become part of the table. Fails if the table exists, unless --exist-ok is given.

    \b
    Examples:
      arrowlog create /data/events "id bigint, day string" --partition-by day
      arrowlog create s3://bucket/events part-0.parquet
      arrowlog create /data/events schema.json --property checkpoint.interval=20
    """
    columns = [] if not partition_by else [name.strip() for name in partition_by.split(",")]
    made = arrowlog.Table.create(
        table,
        _read_schema(schema),
        columns,
        properties,
        exist_ok=exist_ok,
        storage_options=storage_options,
        options=settings,
    )
    if output == "text":
        print(f"Table {made.uri}, version {made.version}, {len(made.schema)} columns.")
    else:
        print_record(_create_row(made, columns), output, limit)


def _read_schema(text: str) -> object:
    """Return the schema of a Parquet file, the JSON in a file or in the text, or DDL."""
    if text.lstrip().startswith("{"):
        return text
    if text.endswith((".parquet", ".json")) or os.path.isfile(text):
        return _read_schema_file(text)
    from arrowlog.formats import parse_ddl

    return parse_ddl(text)


def _read_schema_file(path: str) -> object:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                return file.read()
        return parquet.read_schema(path)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise arrowlog.InvalidRequest(
            f"The schema cannot be read from {path}: {reason}.",
            next="Give a Parquet file, a JSON file, or columns such as 'id bigint, day string'.",
        ) from None


def _create_row(table: arrowlog.Table, partition_columns: list[str]) -> pa.Table:
    import pyarrow as pa

    names = [f"{item.name}: {item.type}" for item in table.schema]
    return pa.table(
        {
            "uri": [table.uri],
            "version": [table.version],
            "columns": pa.array([names], pa.list_(pa.string())),
            "partition_columns": pa.array([partition_columns], pa.list_(pa.string())),
        }
    )


@commands.command()
@with_table
@click.argument("paths", nargs=-1)
@click.option(
    "--where", metavar="PREDICATE", help="Remove the partitions that this predicate selects."
)
@_DRY_RUN
@output_options
def remove(
    table: arrowlog.Table,
    paths: tuple[str, ...],
    where: str | None,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Remove data files from TABLE, by path or by partition.

    PATHS are paths of live files as `arrowlog files` lists them; - reads them from standard input,
    one per line. The predicate of --where uses partition columns only. The rows are gone from the
    newest version; earlier versions keep them, and the files stay on disk until `arrowlog vacuum`.
    `arrowlog restore` undoes the change.

    \b
    Examples:
      arrowlog remove /data/events --where "day < '2024-01-01'" --dry-run
      arrowlog remove /data/events day=2024-01-01/part-0.parquet
      arrowlog remove /data/events - < paths.txt
    """
    if bool(paths) == (where is not None):
        raise click.UsageError("Give either PATHS or --where.")
    chosen: object = where if where is not None else read_paths(paths)
    if dry_run:
        affected = _select_files(table, where, chosen)
        count = format_items(affected.num_rows, "file")
        summary = f"{count} would be removed, {_size_of(affected)}."
        print_listing(affected, output, limit, summary)
        return
    done = table.remove(chosen)
    removed = done.operation_metrics.get("numRemovedFiles", 0)
    _print_commit(done, output, limit, f"{format_items(removed, 'file')} removed")


def _select_files(table: arrowlog.Table, where: str | None, chosen: object) -> pa.Table:
    """Return the live files that a removal would concern, after the same checks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plan = table.scan(where)
    files = plan.files.select(["path", "size_bytes", "num_records"])
    if where is not None:
        from arrowlog.predicate import parse_predicate

        used = parse_predicate(where, plan.snapshot.schema).columns
        others = sorted(used - set(plan.snapshot.partition_columns))
        if others or not used:
            reason = f"{others[0]!r} is not a partition column" if others else "it uses none"
            raise arrowlog.InvalidRequest(
                f"The predicate cannot select whole files: {reason}.",
                next="Use partition columns, or give the paths of the files.",
            )
        return files
    wanted = pa.array(chosen, pa.string())
    unknown = wanted.filter(pc.invert(pc.is_in(wanted, files["path"].combine_chunks())))
    if len(unknown):
        raise arrowlog.InvalidRequest(
            f"{unknown[0].as_py()!r} is not a live file of version {plan.version}.",
            next="`arrowlog files` lists them.",
        )
    return files.filter(pc.is_in(files["path"], wanted))


def _size_of(files: pa.Table) -> str:
    from arrowlog.arrays import sum_exactly

    return format_bytes(sum_exactly(files["size_bytes"]))


@commands.command()
@with_table
@click.argument("version", type=Count())
@_DRY_RUN
@output_options
def restore(
    table: arrowlog.Table,
    version: int,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Make an earlier VERSION of TABLE current again.

    Use it to undo a change: files, schema and properties become those of VERSION. The restoration
    is a new commit: the versions in between stay readable, and it can be undone the same way. It
    fails if a data file of VERSION was vacuumed.

    \b
    Examples:
      arrowlog history /data/events
      arrowlog restore /data/events 7 --dry-run
      arrowlog restore /data/events 7
    """
    if dry_run:
        difference = table.diff(table.version, version)
        if output == "text" and limit is None:
            print(difference)
        else:
            print_table(difference.to_arrow(), output, limit)
        return
    done = table.restore(version)
    _print_commit(done, output, limit, f"version {version} restored")


@commands.command("set-property")
@with_table
@click.argument("properties", nargs=-1, metavar="[KEY=VALUE]...", callback=parse_pairs)
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a property. Repeatable.")
@output_options
def set_property(
    table: arrowlog.Table,
    properties: dict[str, str],
    unset: tuple[str, ...],
    output: str,
    limit: int | None,
) -> None:
    r"""Set or remove properties of TABLE.

    Properties that are settings of arrowlog, such as checkpoint.interval, apply to every program
    that opens the table, and must have valid values. Without KEY=VALUE and --unset, lists the
    properties.

    \b
    Examples:
      arrowlog set-property /data/events checkpoint.interval=20 owner=team-a
      arrowlog set-property /data/events --unset owner
      arrowlog set-property /data/events
    """
    changes: dict[str, object] = {**properties, **dict.fromkeys(unset)}
    if not changes:
        _print_properties(table, output, limit)
        return
    done = table.set_properties(changes)
    _print_commit(
        done, output, limit, f"{format_items(len(changes), 'property', 'properties')} changed"
    )


def _print_properties(table: arrowlog.Table, output: str, limit: int | None) -> None:
    import pyarrow as pa

    found = sorted(table.snapshot().metadata.configuration.items())
    rows = {"key": [key for key, _ in found], "value": [value for _, value in found]}
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    summary = f"{format_items(len(found), 'property', 'properties')}."
    print_listing(pa.table(rows, schema=schema), output, limit, summary)


@commands.command("truncate-history")
@with_table
@_DRY_RUN
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_options
def truncate_history(
    table: arrowlog.Table,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    yes: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Delete all versions of TABLE before the newest one.

    Use it to get rid of a long or damaged history; run it with --dry-run first. Writes a checkpoint
    of the newest version, then deletes the earlier commits. Earlier versions can no longer be read
    or restored. Data files stay until `arrowlog vacuum`. On a terminal, asks for confirmation.

    \b
    Examples:
      arrowlog truncate-history /data/events --dry-run
      arrowlog truncate-history /data/events --yes
    """
    if not dry_run and not yes and sys.stdin.isatty():
        click.confirm(
            f"Delete all versions of {table.uri} before version {table.version}?", abort=True
        )
    print_cleanup(table.truncate_history(dry_run=dry_run), output, limit)


@commands.command("update-statistics")
@with_table
@click.argument("paths", nargs=-1)
@click.option("--where", metavar="PREDICATE", help="Update the files that may have matching rows.")
@_DRY_RUN
@output_options
def update_statistics(
    table: arrowlog.Table,
    paths: tuple[str, ...],
    where: str | None,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Read missing statistics of TABLE from Parquet footers.

    Use it for files that another program added without row counts and bounds, which no query can
    skip. The statistics are committed; rows do not change. PATHS are paths of live files; - reads
    them from standard input, one per line.

    \b
    Examples:
      arrowlog update-statistics /data/events day=2024-01-01/part-0.parquet
      arrowlog update-statistics /data/events --where "id > 0" --dry-run
    """
    if bool(paths) == (where is not None):
        raise click.UsageError("Give either PATHS or --where.")
    chosen = read_paths(paths) if where is None else table.scan(where).paths
    if dry_run:
        import pyarrow as pa

        listed = pa.table({"path": pa.array(chosen, pa.string())})
        summary = f"Would read the footers of {format_items(listed.num_rows, 'file')}."
        print_listing(listed, output, limit, summary)
        return
    done = table.update_statistics(chosen)
    _print_commit(done, output, limit, f"statistics of {format_items(len(chosen), 'file')} updated")


def _print_commit(done: arrowlog.CommitResult, output: str, limit: int | None, what: str) -> None:
    """Print the result of a commit: a sentence, or one record."""
    if output == "text":
        print(f"Version {done.version}: {what}.")
        return
    import pyarrow as pa

    row: dict[str, Any] = {
        "version": [done.version],
        "operation": [done.operation],
        "timestamp": pa.array([done.timestamp], pa.timestamp("ms", "UTC")),
        "attempts": [done.attempts],
        "txn_id": pa.array([done.txn_id], pa.string()),
        **{name: [count] for name, count in done.operation_metrics.items()},
    }
    print_record(pa.table(row), output, limit)


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
    the retention settings and covered by a newer checkpoint, which is verified first. The versions
    of deleted commits can no longer be read. Every deleted file is listed. Data files stay until
    `arrowlog vacuum`.

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
    noun, where = ("skip", "the log") if history else ("file", "cooldown")
    print_listing(listed, output, limit, f"{format_items(listed.num_rows, noun)} in {where}.")


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
