"""Commands that maintain the data files: compact, vacuum, skips."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from arrowlog.cli.app import commands, output_options, with_table
from arrowlog.cli.output import print_table
from arrowlog.display import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import arrowlog

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that draws a progress bar, or None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
    with progress_bar("compacting") as progress:
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
        parts = [", ".join(f"{k}={v}" for k, v in row) for row in groups["partition"].to_pylist()]
        named = groups.select(["status", "files", "size_bytes", "new_size_bytes", "reason"])
        print_table(named.add_column(1, "partition", pa.array(parts, pa.string())), output, limit)
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
    with progress_bar("deleting") as progress:
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
