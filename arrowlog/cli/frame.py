"""What all commands share: the group, a table on the command line, output, exit codes."""

from __future__ import annotations

import errno
import functools
import os
import sys
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.show import FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[..., None]


class Taught(click.Command):
    """A command whose help keeps the lines of its examples, and names the store's options last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        r"""Docstrings have `\b` as two characters; click knows it as one."""
        super().__init__(*args, **kwargs)
        self.help = self.help and self.help.replace("\\b\n", "\b\n")
        self.params.sort(key=lambda param: param.name in ("settings", "storage_options"))

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence: half of one says nothing."""
        return super().get_short_help_str(max(limit, 120))


class House(click.Group):
    """All commands."""

    command_class = Taught


@click.group(
    cls=House,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `arrowlog demo`: it builds a small table and shows what can be asked of it.",
)
@click.version_option(arrowlog.__version__, prog_name="arrowlog")
def commands() -> None:
    """Look into the transaction log of a table in the lake."""


def output_options(command: Command) -> Command:
    """What every command that tells something takes: `output` and `limit`."""
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


def version_option(command: Command) -> Command:
    """What a command takes that looks at one version of a table: `version`."""
    option = click.option("--version", type=int, help="The version. [default: newest]")
    return option(command)


def settings_options(command: Command) -> Command:
    """What every command takes that reaches for a store: `settings` and `storage_options`."""
    for option in (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_pairs,
            help="A setting such as checkpoint.parallelism=8. May be given again.",
        ),
        click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_pairs,
            help="An option of the store such as endpoint_url=http://… May be given again.",
        ),
    ):
        command = option(command)
    return command


def on_table(command: Command) -> Command:
    """Open the TABLE of the command line and hand it over as `table`.

    A command's own flag `restricted` is a setting of the table, and not handed on.
    """

    @functools.wraps(command)
    def opened(
        table: str, settings: dict[str, str], storage_options: dict[str, str], **rest: Any
    ) -> None:
        if rest.pop("restricted", False):
            settings["history.sandbox"] = "true"
        command(table=arrowlog.Table(table, storage_options, options=settings), **rest)

    return click.argument("table")(settings_options(opened))


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE.", param=option)
        found[key] = text
    return found


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal for work that takes long; None where nobody looks."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with ExitStack() as stack:
        shown: dict[str, Any] = {}

        def told(done: int, total: int) -> None:
            if "bar" not in shown and done < total:  # what is done at once needs no bar
                shown["bar"] = stack.enter_context(Progress(console=console, transient=True))
                shown["task"] = shown["bar"].add_task(what, total=total)
            if "bar" in shown:
                shown["bar"].update(shown["task"], completed=done)

        yield told


def _told(message: Warning | str, *_: object, **__: object) -> None:
    """A warning of ours is a sentence, as an error is."""
    print(f"Warning: {message}", file=sys.stderr)


def run() -> int:
    """Run a command; an error of ours is one sentence and exit code 1, wrong usage is 2."""
    warnings.showwarning = _told
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
        # Whoever read our output has seen enough; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
