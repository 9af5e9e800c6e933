"""The modules of the core and its engines, imported before a process forks children.

`import arrowlog` loads next to nothing. A child that is killed within milliseconds would spend them
on imports, and each of a thousand children would repeat them. Importing starts no engine.
"""

import importlib
from pathlib import Path

import arrowlog

_ENGINES = ("polars", "duckdb", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")
_OPTIONAL = {"spark", "cli", "report", "splits", "plots"}  # not needed, or not always installed


def core_modules():
    """Return the names of the modules."""
    root = Path(arrowlog.__file__).parent
    paths = [path.relative_to(root).with_suffix("") for path in sorted(root.rglob("*.py"))]
    modules = [
        ".".join(("arrowlog", *path.parts))
        for path in paths
        if path.parts[0] not in _OPTIONAL and not path.name.startswith("__")
    ]
    return [*_ENGINES, *modules]


def import_core():
    """Import them."""
    for name in core_modules():
        importlib.import_module(name)
