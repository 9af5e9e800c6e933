"""Commands that maintain a table: checkpoint, cleanup, compact, vacuum, skips."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click

from arrowlog.cli.app import commands, output_options, progress_bar, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    import arrowlog
    from arrowlog.snapshot import CheckpointResult

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


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
        print_table(_row(done), output, limit)
    elif done.names:
        size = format_bytes(done.size_bytes)
        print(f"Version {done.version}: {done.num_files:,} files in a checkpoint of {size}.")
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
    r"""Delete commits and checkpoints of TABLE that have expired.

    Use it to shorten a long log; run it with --dry-run first. Files go when they are older than
    the retention settings and a newer checkpoint, verified beforehand, covers them. Their versions
    can no longer be read. Every deleted file is listed. Data files stay until `arrowlog vacuum`.

    \b
    Examples:
      arrowlog cleanup /data/events --dry-run
      arrowlog cleanup /data/events --no-dry-run --output json
    """
    done = table.cleanup(dry_run=dry_run)
    if output != "text" or done.num_files:
        print_table(done.files, output, limit)
    if output == "text":
        verb = "would be deleted" if done.dry_run else "deleted"
        print(
            f"{done.num_files:,} files {verb}, {format_bytes(done.bytes_freed)};"
            f" the earliest readable version is {done.earliest_version}."
        )
        if done.num_too_young:
            from arrowlog.maintenance import MIN_COMMIT_AGE_SECONDS

            print(
                f"{done.num_too_young:,} expired commits were kept: on a remote store, commits are"
                f" deleted only when they are {MIN_COMMIT_AGE_SECONDS:.0f} seconds old."
            )


@commands.command()
@with_table
@click.option("--target-size", default="128MB", show_default=True, help="Size of the new files.")
@click.option("--where", help="Compact only files that may have rows matching this predicate.")
@click.option("--max-groups", type=int, metavar="N", help="Write at most N new files.")
@click.option(
    "--max-files-per-group", type=int, metavar="N", help="Merge at most N files into one."
)
@click.option(
    "--include-skipped", is_flag=True, help="Also try files in cooldown (see `arrowlog skips`)."
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
            f"{done.files_removed:,} files of {format_bytes(done.bytes_removed)} {verb}"
            f" {done.files_added:,}{new}."
        )
        for path, reason in done.skipped:
            print(f"Skipped {path}: {reason}.")
    if any(group.status in ("failed", "unknown") for group in done.groups):
        raise SystemExit(1)


@commands.command()
@with_table
@click.option("--older-than", default="7d", show_default=True, help="Keep files younger than this.")
@click.option(
    "--force", is_flag=True, help="Allow --older-than below 24h. Safe only without active writers."
)
@_DRY_RUN
@output_options
def vacuum(
    table: arrowlog.Table,
    older_than: str,
    force: bool,  # noqa: FBT001 -- click gives it by name
    dry_run: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Delete data files that no readable version of TABLE needs.

    Use it to free space after compact, remove or failed writes; run it with --dry-run first. Every
    version that can be read keeps its files; `arrowlog cleanup` expires versions. Files younger
    than --older-than stay, because they may belong to a commit in progress.

    \b
    Examples:
      arrowlog vacuum /data/events --dry-run
      arrowlog vacuum s3://bucket/events --older-than 30d
    """
    with progress_bar("deleting", at_once=True) as progress:
        done = table.vacuum(older_than, dry_run=dry_run, force=force, progress=progress)
    if output != "text" or done.num_files:
        print_table(done.files, output, limit)
    if output == "text":
        verb = "would be deleted" if dry_run else "deleted"
        print(f"{done.num_files:,} files {verb}, {format_bytes(done.bytes_freed)}.")
        live, history, young = (done.counts[fate] for fate in ("live", "history", "young"))
        history_size = format_bytes(done.sizes["history"])
        print(
            f"Kept: {live:,} live files, {history:,} ({history_size}) that older versions need"
            f" (from version {done.earliest_version} on), {young:,} too young."
        )
    if done.failures:
        raise SystemExit(1)


@commands.command()
@with_table
@click.option(
    "--history", is_flag=True, help="List all skips in the log, also after their cooldown."
)
@click.option("--record", metavar="PATH", help="Record a skip of this file; needs --reason.")
@click.option("--reason", help="Why the file is skipped, with --record.")
@click.option("--cooldown", default="24h", show_default=True, help="How long, with --record.")
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
        what = "skips in the log" if history else "files in cooldown"
        print(f"{listed.num_rows:,} {what}.")


def _row(result: CheckpointResult) -> pa.Table:
    """Return a checkpoint as a table of one row."""
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
