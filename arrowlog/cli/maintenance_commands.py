"""Commands that maintain the log: checkpoint, cleanup."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from arrowlog.cli.app import commands, output_options, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes
from arrowlog.maintenance import MIN_COMMIT_AGE_SECONDS

if TYPE_CHECKING:
    import arrowlog
    from arrowlog.snapshot import CheckpointResult


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
            print(
                f"{done.num_too_young:,} expired commits were kept: on a remote store, commits are"
                f" deleted only when they are {MIN_COMMIT_AGE_SECONDS:.0f} seconds old."
            )


def _row(result: CheckpointResult) -> pa.Table:
    """Return a checkpoint as a table of one row."""
    names = [field.name for field in fields(result)]
    values = {name: [getattr(result, name)] for name in names if name != "names"}
    return pa.table({**values, "names": pa.array([list(result.names)], pa.list_(pa.string()))})
