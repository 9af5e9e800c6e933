"""The generated parts of the documentation: commands, settings, errors, log lines, requirements.

`python tests/support/reference_pages.py` rewrites them. A page has prose of its own around marks:
what is between `<!-- generated: name -->` and `<!-- end -->` is replaced.
"""

import inspect
import logging
import re
import tempfile
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pyarrow as pa
from packaging.requirements import Requirement

import arrowlog
from arrowlog import errors
from arrowlog.cli.commands import commands
from arrowlog.config import PREFIX, Config
from arrowlog.log_lines import EVENTS
from arrowlog.metering import INSTRUMENTS

try:
    from support.differences import differences_part
except ImportError:  # run as a program, from this folder
    from differences import differences_part

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
INSTALL = ROOT / "docs" / "install.md"
# The other extras are for developers and for the site.
USER_EXTRAS = ("s3", "spark", "connect", "java", "splits", "notebook", "otel")
_MARKS = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def cell(text):
    """Return text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", r"\|")


def commands_part():
    """Return every command: purpose, usage, options, examples."""
    lines = ["| command | |", "| --- | --- |"]
    # With the settings of the group: click keeps the help option of the first context it sees.
    context = click.Context(commands, info_name="arrowlog", **commands.context_settings)
    for name in commands.list_commands(context):
        about = commands.get_command(context, name).get_short_help_str(200)
        lines.append(f"| [`{name}`](#arrowlog-{name}) | {cell(about)} |")
    for name in commands.list_commands(context):
        lines += ["", *_command(name, commands.get_command(context, name), context)]
    return "\n".join([*lines, ""])


def _command(name, command, parent):
    context = click.Context(command, info_name=name, parent=parent)
    lines = [f"### arrowlog {name}", "", "```text"]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines += [usage, "```"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            title, *shown = paragraph.removeprefix("\b\n").splitlines()
            lines += ["", title, "", "```text", *(line.removeprefix("  ") for line in shown), "```"]
        else:
            lines += ["", _spell_code(" ".join(paragraph.split()))]
    lines += ["", "| option | |", "| --- | --- |"]
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None and isinstance(option, click.Option):
            about = record[1].replace("  [", " [")
            lines.append(f"| `{cell(record[0])}` | {_spell_code(cell(about))} |")
    return lines


def _spell_code(text):
    """Keep Markdown from reading `<`, `*` and `_` of a help text as markup."""
    return re.sub(r"([<*])", r"\\\1", text)


def settings_part():
    """Return the table of settings: key, default, valid values, meaning."""
    lines = ["| setting | default | valid values | meaning |", "| --- | --- | --- | --- |"]
    for item in fields(Config):
        if "key" not in item.metadata:
            continue
        meta = item.metadata
        about = meta["doc"] + ("" if meta["table"] else "; not as a table property")
        lines.append(
            f"| `{meta['key'].removeprefix(PREFIX)}` | {_default(item)} |"
            f" {cell(_valid_values(item))} | {cell(about)} |"
        )
    return "\n".join([*lines, ""])


def _valid_values(item):
    """Return the valid values, as the error for an invalid one tells them."""
    try:
        item.metadata["parse"](object())
    except ValueError as error:
        return str(error)
    raise AssertionError(item.name)


def _default(item):
    value = item.default
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if item.name.endswith("_ms"):
        return (
            f"`{value // 86_400_000}d`" if value % 86_400_000 == 0 else f"`{value // 3_600_000}h`"
        )
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"`{value >> 20}MB`"
    return f"`{value}`"


def errors_part():
    """Return the errors as a table, with their base classes and first paragraphs."""
    lines = ["| error | is also | meaning |", "| --- | --- | --- |"]
    for error in _subclasses(errors.ArrowlogError):
        bases = [base.__name__ for base in error.__bases__ if base is not errors.ArrowlogError]
        if error is errors.ArrowlogError:
            bases = ["Exception"]
        about = inspect.cleandoc(error.__doc__).split("\n\nAttributes:")[0]
        also = ", ".join(f"`{name}`" for name in bases)
        lines.append(f"| `{error.__name__}` | {also} | {cell(about)} |")
    return "\n".join([*lines, ""])


def _subclasses(error):
    own = [each for each in error.__subclasses__() if each.__module__ == errors.__name__]
    return [error, *(below for each in own for below in _subclasses(each))]


def views_part():
    """Return the columns of every view of a table with columns `day`, `id` and `price`."""
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("price", pa.float64())])
    with tempfile.TemporaryDirectory() as folder:
        table = arrowlog.Table.create(folder, schema, partition_columns=["day"])
        con = table.connect()
        shown = [row[0] for row in con.execute("SHOW TABLES").fetchall()]
        names = [name for name in shown if not name.startswith("_")]  # those of the views
        lines = []
        for view in sorted(names):
            columns = con.execute(f"DESCRIBE {view}").fetchall()
            lines += [f"### {view}", "", "| column | type |", "| --- | --- |"]
            lines += [f"| `{name}` | `{kind}` |" for name, kind, *_ in columns]
            lines.append("")
        con.close()
    return "\n".join(lines)


def requirements_part():
    """Return the packages of the base and of every extra for users, with their ranges."""
    lines = ["| package | versions | part of |", "| --- | --- | --- |"]
    python = _project()["requires-python"].removeprefix(">=")
    lines.append(f"| Python | {python} or newer | |")
    for extra in (None, *USER_EXTRAS):
        for requirement in declared(extra):
            part = "the base" if extra is None else f"`{extra}`"
            lines.append(f"| {requirement.name} | {_spell_range(requirement)} | {part} |")
    return "\n".join([*lines, ""])


def declared(extra=None):
    """Return the requirements that pyproject.toml declares: of the base, or of an extra."""
    project = _project()
    texts = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return [item for item in map(Requirement, texts) if item.name != "arrowlog"]


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _spell_range(requirement):
    """Return the range of a requirement in words: `2.1 or newer, below 3`."""
    parts = {each.operator: each.version for each in requirement.specifier}
    words = [f"{parts['>=']} or newer"] if ">=" in parts else []
    words += [f"below {parts['<']}"] if "<" in parts else []
    words += [f"not {parts['!=']}"] if "!=" in parts else []
    assert len(words) == len(parts), requirement
    return ", ".join(words) or "any"


def log_lines_part():
    """Return every log line: its logger, level and text, and the meaning of its fields."""
    lines = []
    for event in EVENTS.values():
        level = logging.getLevelName(event.level)
        text = re.sub(r"%\((\w+)\)[\w.]+", r"{\1}", event.text)
        lines += [f"### {event.name}", "", f"`{event.logger.name}`, {level}: `{cell(text)}`", ""]
        lines += ["| field | |", "| --- | --- |"]
        lines += [f"| `{name}` | {cell(about)} |" for name, about in event.fields.items()]
        lines.append("")
    return "\n".join(lines)


def metrics_part():
    """Return the table of instruments."""
    lines = ["| metric | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    units = {"1": "", "By": "bytes", "ms": "ms"}
    for name, item in INSTRUMENTS.items():
        labels = ", ".join(f"`{label}`" for label in item.labels)
        lines.append(f"| `{name}` | {item.kind} | {units[item.unit]} | {labels} | {item.doc} |")
    return "\n".join([*lines, ""])


PARTS = {
    "differences": differences_part,
    "log-lines": log_lines_part,
    "metrics": metrics_part,
    "commands": commands_part,
    "settings": settings_part,
    "errors": errors_part,
    "views": views_part,
    "requirements": requirements_part,
}


def pages():
    """Return the text of every page with generated parts, by path."""
    found = {}
    for path in (*sorted(REFERENCE.glob("*.md")), INSTALL):
        text = path.read_text()
        if _MARKS.search(text):
            found[path] = _MARKS.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text)
    return found


if __name__ == "__main__":
    for page, whole in pages().items():
        page.write_text(whole)
