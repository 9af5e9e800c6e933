"""The modules of arrowlog, what each imports at run time, and the module map of the docs.

`python tests/support/source_tree.py` rewrites the module map in ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "arrowlog"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- module map: generated -->\n", "<!-- end of module map -->\n"

# Packages whose `__init__` is their contract: other packages import from it and from nothing below.
CONTRACTS = (
    "storage",
    "formats",
    "formats.delta",
    "formats.indextables",
    "decode",
    "splits",
    "snapshot",
    "predicate",
    "scan",
    "transaction",
    "maintenance",
    "recovery",
    "history",
    "report",
    "statements",
)


@cache
def modules() -> dict[str, Path]:
    """Return every module of arrowlog by its dotted name, sorted."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return dict(sorted(named.items()))


@cache
def syntax(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(modules()[module].read_text())


def contract_of(module: str) -> str | None:
    """Return the innermost package with a contract that a module belongs to."""
    fitting = [name for name in CONTRACTS if f"{module}.".startswith(f"arrowlog.{name}.")]
    return max(fitting, key=len, default=None)


def exports(package: str, name: str) -> bool:
    """Whether a package lists a name in its `__all__`."""
    for node in syntax(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return name in ast.literal_eval(node.value)
    return False


def _runtime(nodes: list[ast.stmt]):
    """Yield all nested statements except those for type checkers."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _runtime(node.orelse)
            continue
        yield node
        for name in ("body", "orelse", "finalbody", "handlers"):
            yield from _runtime(getattr(node, name, []) or [])


@cache
def imports(module: str, *, types: bool = False) -> set[tuple[str, str]]:
    """Return what a module imports, as (module, name); the name is "" for `import x`."""
    tree = syntax(module)
    nodes = ast.walk(tree) if types else _runtime(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    return found


@cache
def defining(module: str, name: str) -> str:
    """Return the module that defines a name which `module` exports, or the submodule."""
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    for source, imported in imports(module, types=True):
        if imported == name and source in modules() and source != module:
            return defining(source, name)
    return module


@cache
def needed(module: str) -> frozenset[str]:
    """The modules, ours and others', whose names a module imports at run time."""
    return frozenset(
        defining(source, name) if source in modules() else source
        for source, name in imports(module)
    )


def reaches(module: str) -> dict[str, list[str]]:
    """Return every module that is needed to run this one, each with the path of imports to it."""
    ways = {module: [module]}
    waiting = [module]
    while waiting:
        at = waiting.pop()
        if at not in modules():
            continue
        for target in needed(at):
            if target not in ways:
                ways[target] = [*ways[at], target]
                waiting.append(target)
    return ways


def module_map() -> str:
    """Return the packages and modules with the first line of their docstrings, as a code block."""
    lines = ["```", "arrowlog/"]
    names = sorted(modules(), key=_depth_first)
    width = max(4 * name.count(".") + len(name.rpartition(".")[2]) for name in names) + 2
    for name in names:
        if name == "arrowlog":
            continue
        doc = (ast.get_docstring(syntax(name)) or "").split("\n")[0]
        package = modules()[name].name == "__init__.py"
        leaf = "  " * name.count(".") + name.rpartition(".")[2] + ("/" if package else "")
        lines.append(f"{leaf.ljust(width)}{doc}".rstrip())
    return "\n".join([*lines, "```", ""])


def _depth_first(name: str) -> tuple[tuple[bool, str], ...]:
    parts = name.split(".")
    whole = [".".join(parts[: at + 1]) for at in range(len(parts))]
    return tuple((modules()[path].name == "__init__.py", path) for path in whole)


def with_module_map(page: str) -> str:
    """Return the page with an up-to-date module map."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + module_map() + END + after


if __name__ == "__main__":
    ARCHITECTURE.write_text(with_module_map(ARCHITECTURE.read_text()))
