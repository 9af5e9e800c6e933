"""Commands that keep the data files well: compact, vacuum, skips."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from arrowlog.cli.frame import commands, on_table, output_options
from arrowlog.cli.show import show
from arrowlog.scan.explain import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import arrowlog

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


@contextmanager
def shown_progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@commands.command()
@on_table
@click.option("--target-size", default="128MB", show_default=True, help="How large files become.")
@click.option("--where", help="Only files that may have matching rows.")
@click.option("--max-groups", type=int, help="Make at most so many new files.")
@click.option("--max-files-per-group", type=int, help="Put at most so many files into one.")
@click.option("--include-skipped", is_flag=True, help="Try files in their cooldown too.")
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
    r"""Make large Parquet files of the small ones of TABLE; its rows stay as they are.

    Each group of files is a commit of its own, so that others may write meanwhile. A file that
    cannot be read is noted as a skip, and the rest goes on. The small files stay until vacuum.

    \b
    Examples:
      arrowlog compact /data/events --dry-run
      arrowlog compact /data/events --where "day >= '2024-01-01'" --target-size 256MB
    """
    with shown_progress("compacting") as progress:
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
        show(groups, output, limit)
    elif groups.num_rows:
        parts = [", ".join(f"{k}={v}" for k, v in row) for row in groups["partition"].to_pylist()]
        named = groups.select(["status", "files", "size_bytes", "new_size_bytes", "reason"])
        show(named.add_column(1, "partition", pa.array(parts, pa.string())), output, limit)
    if output == "text":
        verb = "would become" if dry_run else "became"
        new = "" if dry_run else f" of {size_text(done.bytes_added)}"
        print(
            f"{done.files_removed:,} files of {size_text(done.bytes_removed)} {verb}"
            f" {done.files_added:,}{new}."
        )
        for path, reason in done.skipped:
            print(f"Skipped {path}: {reason}.")
    if any(group.status in ("failed", "unknown") for group in done.groups):
        raise SystemExit(1)


@commands.command()
@on_table
@click.option("--older-than", default="7d", show_default=True, help="Leave what is younger.")
@click.option("--insist", is_flag=True, help="Allow less than 24h: nobody writes to the table.")
@_DRY_RUN
@output_options
def vacuum(
    table: arrowlog.Table,
    older_than: str,
    insist: bool,  # noqa: FBT001 -- click gives it by name
    dry_run: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Delete the data files of TABLE that no version in its log needs any more.

    Every version that can be read keeps its files. What is younger than `--older-than` stays: it
    may belong to a commit that is on its way.

    \b
    Examples:
      arrowlog vacuum /data/events --dry-run
      arrowlog vacuum s3://bucket/events --older-than 30d
    """
    with shown_progress("deleting") as progress:
        done = table.vacuum(older_than, dry_run=dry_run, insist=insist, progress=progress)
    if output != "text" or done.num_files:
        show(done.files, output, limit)
    if output == "text":
        verb = "would go" if dry_run else "deleted"
        print(f"{done.num_files:,} files {verb}, {size_text(done.bytes_freed)}.")
        live, past, young = (done.counts[fate] for fate in ("live", "history", "young"))
        held = size_text(done.sizes["history"])
        print(
            f"{live:,} files are live, {past:,} ({held}) are needed by versions from"
            f" {done.earliest_version} on, {young:,} are young."
        )
    if done.failures:
        raise SystemExit(1)


@commands.command()
@on_table
@click.option("--history", is_flag=True, help="All skips in the log, not only those in cooldown.")
@click.option("--record", metavar="PATH", help="Note that a file cannot be merged.")
@click.option("--reason", help="Why, with --record.")
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
    r"""List the files of TABLE that merges leave alone for a while, and why.

    Readers see those files as before. After the cooldown they are tried again.

    \b
    Examples:
      arrowlog skips /data/events
      arrowlog skips /data/events --history --output json
      arrowlog skips /data/events --record day=1/a.parquet --reason "cannot be read"
    """
    if record is not None:
        if not reason:
            raise click.UsageError("--record needs a --reason.")
        table.skips.record(record, reason, cooldown=cooldown)
    found = table.skips.history() if history else table.skips.active()
    if output != "text" or found.num_rows:
        show(found, output, limit)
    if output == "text":
        what = "skips in the log" if history else "files in their cooldown"
        print(f"{found.num_rows:,} {what}.")
