"""Fixes of findings as shell commands, and the safe ones among them as calls.

A finding's `fix` is Python that can be executed as it stands. On the command line it is shown as
the command that does the same, so that it can be pasted where it is read.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import arrowlog
    from arrowlog.recovery import Finding

# Calls that delete nothing and can be repeated: `arrowlog doctor --fix` runs these and no others.
SAFE_CALLS = ("checkpoint", "set_properties", "update_statistics")
_FLAGS = {"include_skipped": "--include-skipped", "dry_run": "--dry-run"}
_OPTIONS = {
    "older_than": "--older-than",
    "ignore_logs": "--ignore-log",
    "from_log": "--from-log",
    "replaces": "--replace",
}
_REMOTE = "://"


@dataclass(frozen=True, slots=True)
class PathsOfFinding:
    """The argument `table.doctor().paths(code)`, perhaps without splits."""

    code: str
    without_splits: bool = False


@dataclass(frozen=True, slots=True)
class FixCall:
    """One call of a fix: `table.name(…)`, or `arrowlog.name(…)`."""

    owner: str
    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_fix(fix: str) -> tuple[list[FixCall], str] | None:
    """Return the calls of a fix and its comment; None if it is a sentence or another command.

    >>> parse_fix("table.checkpoint()  # Writes it.")
    ([FixCall(owner='table', name='checkpoint', arguments=(), options={})], 'Writes it.')
    >>> parse_fix("pip install --upgrade arrowlog")
    """
    code, _, comment = fix.partition("  # ")
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return None
    calls = []
    for statement in statements:
        node = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        if not isinstance(node.func.value, ast.Name):
            return None
        try:
            arguments = tuple(_value(argument) for argument in node.args)
            options = {str(item.arg): _value(item.value) for item in node.keywords}
        except ValueError:
            return None
        calls.append(FixCall(node.func.value.id, node.func.attr, arguments, options))
    return (calls, comment) if calls else None


def _value(node: ast.expr) -> Any:
    """Evaluate an argument: a literal, `table.uri`, a placeholder, or the paths of a finding."""
    if isinstance(node, ast.ListComp):  # [p for p in <paths> if not p.endswith('.split')]
        paths = _value(node.generators[0].iter)
        if isinstance(paths, PathsOfFinding):
            return PathsOfFinding(paths.code, without_splits=True)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "paths"
    ):
        return PathsOfFinding(str(_value(node.args[0])))
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    return ast.literal_eval(node)


def to_command(fix: str, uri: str) -> str:
    """Return the shell command that does what a fix does for the table at `uri`.

    A fix that is a sentence or a command is returned as it is.

    >>> to_command("table.compact(include_skipped=True)  # Tries them again.", "/data/my events")
    "arrowlog compact '/data/my events' --include-skipped  # Tries them again."
    >>> to_command("table.checkpoint()  # Then table.vacuum(ignore_logs=['old']).", "t")
    'arrowlog checkpoint t  # Then arrowlog vacuum t --ignore-log old.'
    """
    parsed = parse_fix(fix)
    if parsed is None:
        return fix
    calls, comment = parsed
    lines = [_command(call, uri) for call in calls]
    if None in lines:
        return f"In Python: {fix}"
    text = " && ".join(line for line in lines if line is not None)
    if " && mv " in text:
        comment = "Stop all writers first. The old log is kept under its new name."
    return f"{text}  # {_in_commands(comment, uri)}" if comment else text


def _in_commands(comment: str, uri: str) -> str:
    """Replace the calls and arguments that a comment mentions by those of the command line."""
    call = re.search(r"table\.vacuum\(ignore_logs=(\[.*?\])\)", comment)
    if call is not None:
        names = [f"--ignore-log {shlex.quote(name)}" for name in ast.literal_eval(call[1])]
        command = f"arrowlog vacuum {shlex.quote(uri)} {' '.join(names)}"
        comment = comment.replace(call[0], command)
    return comment.replace("ithout dry_run", "ithout --dry-run")


def _command(call: FixCall, uri: str) -> str | None:
    if call.owner == "arrowlog":
        return _module_command(call, uri)
    words = ["arrowlog", call.name.replace("_", "-"), uri]
    if call.name == "set_properties":
        words[1] = "set-property"
        words += [f"{name}={value}" for name, value in call.arguments[0].items()]
        return shlex.join(words)
    piped = next((a for a in call.arguments if isinstance(a, PathsOfFinding)), None)
    if piped is not None:
        listing = shlex.join(["arrowlog", "doctor", uri, "--paths", piped.code])
        without_splits = " | grep -v '\\.split$'" if piped.without_splits else ""
        return f"{listing}{without_splits} | {shlex.join([*words, *_options(call), '-'])}"
    paths = [str(path) for argument in call.arguments for path in _as_list(argument)]
    words += _options(call)
    words += ["--", *paths] if any(path.startswith("-") for path in paths) else paths
    return shlex.join(words)


def _options(call: FixCall) -> list[str]:
    words = []
    for name, value in call.options.items():
        if name in _FLAGS:
            words += [_FLAGS[name]] if value else []
        else:
            for each in _as_list(value):
                words += [_OPTIONS[name], str(each)]
    return words


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _module_command(call: FixCall, uri: str) -> str | None:
    """Return the command for a function of the package; None if there is none."""
    arguments = [uri if value == "table.uri" else str(value) for value in call.arguments]
    if call.name == "repair":
        source, target = arguments
        command = shlex.join(["arrowlog", "repair", source, target])
        if _REMOTE in source:
            return command
        return " && ".join([command, *moves_into_place(source, target)])
    if call.name in ("convert", "rebuild"):
        words = [uri if word == "uri" else word.upper() for word in arguments[1:]]
        return shlex.join(["arrowlog", call.name, uri, *words])
    return None


def moves_into_place(source: str, target: str) -> list[str]:
    """Return the commands that put a repaired log in the place of the old one, which stays.

    The old log gets a name that is free: `mv` would move it into a folder that exists.
    """
    old, number = f"{source.rstrip('/')}_old", 2
    while os.path.lexists(old):
        old, number = f"{source.rstrip('/')}_old{number}", number + 1
    return [shlex.join(["mv", source, old]), shlex.join(["mv", target, source])]


def apply_fix(table: arrowlog.Table, finding: Finding) -> bool:
    """Run the fix of a finding if all of its calls are safe; return whether it was run."""
    parsed = parse_fix(finding.fix)
    if parsed is None or not all(_is_safe(call) for call in parsed[0]):
        return False
    for call in parsed[0]:
        arguments = [
            _paths(finding, value) if isinstance(value, PathsOfFinding) else value
            for value in call.arguments
        ]
        getattr(table, call.name)(*arguments, **call.options)
    return True


def is_safe(finding: Finding) -> bool:
    """Return whether `apply_fix` would run the fix of a finding."""
    parsed = parse_fix(finding.fix)
    return parsed is not None and all(_is_safe(call) for call in parsed[0])


def _is_safe(call: FixCall) -> bool:
    return call.owner == "table" and call.name in SAFE_CALLS


def _paths(finding: Finding, wanted: PathsOfFinding) -> list[str]:
    paths = [] if finding.files is None else finding.files.to_pylist()
    return [p for p in paths if not (wanted.without_splits and p.endswith(".split"))]
