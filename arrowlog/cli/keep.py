"""Commands that keep the log short: checkpoint, cleanup."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from arrowlog.cli.frame import commands, on_table, output_options
from arrowlog.cli.show import show
from arrowlog.scan.explain import size_text
from arrowlog.upkeep.cleanup import MIN_COMMIT_AGE_SECONDS

if TYPE_CHECKING:
    import arrowlog
    from arrowlog.state.checkpoint import CheckpointResult


@commands.command()
@on_table
@output_options
def checkpoint(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Write the newest version of TABLE down as a whole, so that opening it replays nothing.

    Writers do this by themselves every `checkpoint.interval` commits.

    \b
    Examples:
      arrowlog checkpoint /data/events
      arrowlog checkpoint s3://bucket/events --output json
    """
    done = table.checkpoint()
    if output != "text":
        show(_row(done), output, limit)
    elif done.names:
        size = size_text(done.size_bytes)
        print(f"Version {done.version}: {done.num_files:,} files in a checkpoint of {size}.")
    else:
        print(f"Version {done.version} has its checkpoint already.")


@commands.command()
@on_table
@click.option(
    "--dry-run/--no-dry-run",
    default=None,
    help="Say what would go, delete nothing. [default: what `cleanup.dryRun` of the table says]",
)
@output_options
def cleanup(table: arrowlog.Table, dry_run: bool | None, output: str, limit: int | None) -> None:  # noqa: FBT001 -- click gives it by name
    r"""Delete the commits and checkpoints of TABLE that its retention settings let go of.

    Only what is old enough goes, and only below a checkpoint that was read and found whole. Every
    file is listed.

    \b
    Examples:
      arrowlog cleanup /data/events --dry-run
      arrowlog cleanup /data/events --no-dry-run --output json
    """
    done = table.cleanup(dry_run=dry_run)
    if output != "text" or done.num_files:
        show(done.files, output, limit)
    if output == "text":
        verb = "would go" if done.dry_run else "deleted"
        print(
            f"{done.num_files:,} files {verb}, {size_text(done.bytes_freed)};"
            f" versions can be read from {done.earliest_version} on."
        )
        if done.num_too_young:
            print(
                f"{done.num_too_young:,} commits stay: over a network, none is deleted before it is"
                f" {MIN_COMMIT_AGE_SECONDS:.0f} seconds old."
            )


def _row(result: CheckpointResult) -> pa.Table:
    """A checkpoint as a table of one row."""
    names = [field.name for field in fields(result)]
    values = {name: [getattr(result, name)] for name in names if name != "names"}
    return pa.table({**values, "names": pa.array([list(result.names)], pa.list_(pa.string()))})
