"""What all commands share: the command group and common options."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import arrowlog
from arrowlog.cli.output import OUTPUT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., None]

_PURPOSES = {
    "Look at a table": ("info", "files", "rows", "history", "diff", "sql", "report"),
    "Plan queries": ("scan", "explain"),
    "Change a table": ("create", "remove", "restore", "set-property", "convert"),
    "Maintain a table": (
        "checkpoint",
        "cleanup",
        "compact",
        "vacuum",
        "skips",
        "update-statistics",
        "truncate-history",
    ),
    "Recover a table": ("doctor", "repair", "adopt", "rebuild"),
}
_HELP_OPTION_NAMES = ("-h", "--help")
_NAME_WIDTH = 17  # the longest name of a command


class DocumentedCommand(click.Command):
    """A command whose help keeps the line breaks of its examples and lists common options last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        r"""Replace the two characters `\b` of a raw docstring by the one that click expects."""
        super().__init__(*args, **kwargs)
        self.help = self.help and self.help.replace("\\b\n", "\b\n")
        self.params.sort(key=lambda param: param.name in ("settings", "storage_options"))

    def get_help_option_names(self, _ctx: click.Context) -> list[str]:
        """Return the names of the help option in any context.

        Click keeps the option that it made for the first context it saw, and a context without the
        group, such as that of a shell's completion, does not have the settings of the group.
        """
        return list(_HELP_OPTION_NAMES)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole first sentence; click would cut it at 45 characters."""
        return super().get_short_help_str(max(limit, 120))


class CommandGroup(click.Group):
    """The group of all commands, listed by purpose."""

    command_class = DocumentedCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under the headings of `_PURPOSES`."""
        listed = {name for names in _PURPOSES.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in listed]
        for purpose, names in {**_PURPOSES, "Other commands": others}.items():
            found = [(name, self.commands[name]) for name in names if name in self.commands]
            if found:
                with formatter.section(purpose):
                    formatter.write_dl(
                        [
                            (name.ljust(_NAME_WIDTH), each.get_short_help_str())
                            for name, each in found
                        ]
                    )


class Count(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A number of things: an integer that is not negative."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or refuse the value as wrong usage."""
        try:
            count = int(value)
        except ValueError:
            count = -1
        if count < 0:
            self.fail(f"{value!r} is not a whole number of at least 0.", param, ctx)
        return count


@click.group(
    cls=CommandGroup,
    context_settings={
        "help_option_names": list(_HELP_OPTION_NAMES),
        "max_content_width": 100,
        # None: colours on a terminal, none in a pipe.
        "color": False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None,
    },
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


def complete_folder(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete an argument as the path of a folder."""
    return [CompletionItem(incomplete, type="dir")]


def _complete_setting(
    _: click.Context, __: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the KEY of `--set KEY=VALUE`."""
    from dataclasses import fields

    from arrowlog.config import PREFIX, Config

    keys = [item.metadata["key"] for item in fields(Config) if "key" in item.metadata]
    names = sorted(key.removeprefix(PREFIX) for key in keys)
    return [CompletionItem(f"{name}=") for name in names if name.startswith(incomplete)]


def output_options(command: Command) -> Command:
    """Add the options of every command that prints rows: `output` and `limit`."""
    for option in (
        click.option("--limit", type=Count(), metavar="N", help="Print at most N rows."),
        click.option(
            "--output",
            type=click.Choice(OUTPUT_FORMATS),
            default="text",
            metavar="FORMAT",
            help="Print text, json (one document), jsonl (one object per line), csv or arrow (an"
            " IPC stream).  [default: text]",
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
            shell_complete=_complete_setting,
            help="Set an option of arrowlog, such as checkpoint.parallelism=8. Repeatable.",
        ),
        click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_pairs,
            help="Set an option of the store, such as anon=true. Repeatable.",
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

    return click.argument("table", shell_complete=complete_folder)(settings_options(opened))


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
