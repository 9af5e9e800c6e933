"""What all commands share: the command group, common options, progress."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.output import OUTPUT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[..., None]


class DocumentedCommand(click.Command):
    """A command whose help keeps the line breaks of its examples and lists common options last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        r"""Replace the two characters `\b` of a raw docstring by the one that click expects."""
        super().__init__(*args, **kwargs)
        self.help = self.help and self.help.replace("\\b\n", "\b\n")
        self.params.sort(key=lambda param: param.name in ("settings", "storage_options"))

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole first sentence; click would cut it at 45 characters."""
        return super().get_short_help_str(max(limit, 120))


class CommandGroup(click.Group):
    """The group of all commands."""

    command_class = DocumentedCommand


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Start with `arrowlog demo`, which shows the main features on a small table, or with"
        " `arrowlog info TABLE`. Exit codes: 0 success, 1 a check or an operation failed, 2 wrong"
        " usage."
    ),
)
@click.version_option(arrowlog.__version__, prog_name="arrowlog")
def commands() -> None:
    """Inspect, query and maintain tables through their transaction log.

    TABLE is the folder of a table: a local path, or a URL such as s3://bucket/events.
    """


def output_options(command: Command) -> Command:
    """Add the options of every command that prints rows: `output` and `limit`."""
    for option in (
        click.option(
            "--limit", type=click.IntRange(min=0), metavar="N", help="Print at most N rows."
        ),
        click.option(
            "--output",
            type=click.Choice(OUTPUT_FORMATS),
            default="text",
            show_default=True,
            help="Print a text table, one JSON document, JSON lines, CSV or an Arrow IPC stream.",
        ),
    ):
        command = option(command)
    return command


def version_option(command: Command) -> Command:
    """Add the option of a command that reads one version of a table: `version`."""
    option = click.option(
        "--version", type=int, metavar="N", help="Read version N.  [default: newest]"
    )
    return option(command)


def settings_options(command: Command) -> Command:
    """Add the options of every command that opens a store: `settings` and `storage_options`."""
    for option in (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_pairs,
            help="Set an option of arrowlog, such as checkpoint.parallelism=8. Repeatable.",
        ),
        click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_pairs,
            help="Set an option of the store, such as endpoint_url=http://… Repeatable.",
        ),
    ):
        command = option(command)
    return command


def with_table(command: Command) -> Command:
    """Open the TABLE argument and pass it to the command as `table`.

    The flag `restricted` of `sql` sets `history.sandbox` before the table is opened; it is not
    passed on.
    """

    @functools.wraps(command)
    def opened(
        table: str, settings: dict[str, str], storage_options: dict[str, str], **rest: Any
    ) -> None:
        if rest.pop("restricted", False):
            settings["history.sandbox"] = "true"
        handle = arrowlog.Table(table, storage_options, options=settings)
        _print_background_failures()
        command(table=handle, **rest)

    return click.argument("table")(settings_options(opened))


def parse_pairs(
    _: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Turn the values of a repeatable option KEY=VALUE into a map."""
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE.", param=option)
        pairs[key] = text
    return pairs


def read_paths(paths: tuple[str, ...]) -> list[str]:
    """Return the PATH arguments of a command; `-` stands for the lines of standard input."""
    if paths != ("-",):
        return list(paths)
    return [line for line in sys.stdin.read().splitlines() if line]


@contextmanager
def progress_bar(
    label: str, *, at_once: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that draws a progress bar, or None if standard error is no terminal.

    The bar appears with the first call that reports unfinished work, so that quick work shows none.
    With `at_once` it appears before that: for work whose first step may take long.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)
    with ExitStack() as shown:
        if at_once:
            shown.enter_context(bar)

        def report(done: int, total: int) -> None:
            if not bar.live.is_started and done < total:
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total)

        yield report


def _print_background_failures() -> None:
    """Print failures of background work, which are log lines only, to standard error."""
    import logging

    from arrowlog.log_lines import CHECKPOINT_FAILED, CLEANUP_FAILED

    def is_failure(record: logging.LogRecord) -> bool:
        return getattr(record, "event", "") in (CHECKPOINT_FAILED.name, CLEANUP_FAILED.name)

    for event in (CHECKPOINT_FAILED, CLEANUP_FAILED):
        if not event.logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("Warning: %(message)s"))
            handler.addFilter(is_failure)
            event.logger.addHandler(handler)
