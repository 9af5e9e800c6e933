"""What the commands are called and what they take."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING

import click
import pyarrow as pa

import arrowlog
from arrowlog.cli.demo import run_demo
from arrowlog.cli.show import FORMS, show
from arrowlog.scan.explain import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.state.checkpoint import CheckpointResult


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `arrowlog demo`: it builds a small table and shows what can be asked of it.",
)
@click.version_option(arrowlog.__version__, prog_name="arrowlog")
def commands() -> None:
    """Look into the transaction log of a table in the lake."""


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Build the table here and keep it. Must be empty. [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Make a small table, write to it, race for it, plan a scan, travel in time, restore.

    The Python lines that are shown are the ones that are run, and what is below them is what they
    give; nothing else is installed or changed.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    run_demo(folder)


def _output_options(command: Callable[..., None]) -> Callable[..., None]:
    """What every command that tells something takes."""
    for option in (
        click.option("--limit", type=click.IntRange(min=0), help="Show at most so many rows."),
        click.option(
            "--output",
            type=click.Choice(FORMS),
            default="text",
            show_default=True,
            help="For eyes, or for the next program.",
        ),
    ):
        command = option(command)
    return command


def _table_options(command: Callable[..., None]) -> Callable[..., None]:
    """What every command that looks at a table takes."""
    version = click.option(
        "--version", type=int, help="The version of the table. [default: newest]"
    )
    return version(_output_options(command))


@commands.command()
@click.argument("table")
@click.argument("predicate")
@_table_options
def scan(table: str, predicate: str, version: int | None, output: str, limit: int | None) -> None:
    r"""List the files of TABLE that may hold rows PREDICATE is true for.

    \b
    Examples:
      arrowlog scan /data/events "day = '2024-01-01' AND id BETWEEN 5 AND 9"
      arrowlog scan /data/events "day >= current_date - 7" --output json
    """
    plan = arrowlog.Table(table).scan(predicate, version)
    names = ["path", "size_bytes", "num_records"]
    names += [f"partition.{name}" for name in plan.snapshot.partition_columns]
    show(plan.files.select(names), output, limit)
    if output == "text":
        print(f"{plan.num_files:,} of {plan.total_files:,} files, {size_text(plan.size_bytes)}")


@commands.command()
@click.argument("table")
@click.argument("predicate")
@click.option(
    "--min-pruning",
    type=click.FloatRange(0, 1),
    help="Exit with 1 if a smaller share of the files is pruned: a gate for tests of pipelines.",
)
@_table_options
def explain(
    table: str,
    predicate: str,
    min_pruning: float | None,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Say why a scan of TABLE reads the files it reads: what each clause of PREDICATE drops.

    As text a line a clause; as json, csv or arrow a row for each file and clause.

    \b
    Examples:
      arrowlog explain /data/events "day = '2024-01-01' AND id > 900"
      arrowlog explain /data/events "id = 7" --min-pruning 0.9
    """
    found = arrowlog.Table(table).scan(predicate, version).explain()
    if output == "text":
        print(found)
    else:
        show(found.to_arrow(), output, limit)
    if min_pruning is not None and found.pruned < min_pruning:
        raise arrowlog.ArrowlogError(
            f"{found.pruned:.1%} of the files are pruned, {min_pruning:.1%} are asked for.",
            next="See which clause prunes nothing, and why.",
        )


@commands.command()
@click.argument("table")
@_output_options
def checkpoint(table: str, output: str, limit: int | None) -> None:
    r"""Write the newest version of TABLE down as a whole, so that opening it replays nothing.

    Writers do this by themselves every `checkpoint.interval` commits.

    \b
    Examples:
      arrowlog checkpoint /data/events
      arrowlog checkpoint s3://bucket/events --output json
    """
    done = arrowlog.Table(table).checkpoint()
    if output != "text":
        show(_row(done), output, limit)
    elif done.names:
        size = size_text(done.size_bytes)
        print(f"Version {done.version}: {done.num_files:,} files in a checkpoint of {size}.")
    else:
        print(f"Version {done.version} has its checkpoint already.")


@commands.command()
@click.argument("table")
@click.option(
    "--dry-run/--no-dry-run",
    default=None,
    help="Say what would go, delete nothing. [default: what `cleanup.dryRun` of the table says]",
)
@_output_options
def cleanup(table: str, dry_run: bool | None, output: str, limit: int | None) -> None:  # noqa: FBT001 -- click gives it by name
    r"""Delete the commits and checkpoints of TABLE that its retention settings let go of.

    Only what is old enough goes, and only below a checkpoint that was read and found whole. Every
    file is listed.

    \b
    Examples:
      arrowlog cleanup /data/events --dry-run
      arrowlog cleanup /data/events --no-dry-run --output json
    """
    done = arrowlog.Table(table).cleanup(dry_run=dry_run)
    if output != "text" or done.num_files:
        show(done.files, output, limit)
    if output == "text":
        verb = "would go" if done.dry_run else "deleted"
        print(
            f"{done.num_files:,} files {verb}, {size_text(done.bytes_freed)};"
            f" versions can be read from {done.earliest_version} on."
        )


def _row(result: CheckpointResult) -> pa.Table:
    """A checkpoint as a table of one row."""
    names = [field.name for field in fields(result)]
    values = {name: [getattr(result, name)] for name in names if name != "names"}
    return pa.table({**values, "names": pa.array([list(result.names)], pa.list_(pa.string()))})


def cli() -> int:
    """Run a command; an error of ours is one sentence and exit code 1."""
    try:
        commands.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 1
    except arrowlog.ArrowlogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
