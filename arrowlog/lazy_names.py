"""Names of a package that are imported on first use (PEP 562)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


def import_on_first_use(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Define it for the interpreter alone, under `if not TYPE_CHECKING`: to a type checker, it would
    turn every misspelt name into Any.

    Args:
        package: the `__name__` of the package.
        homes: names by the module that defines them, relative to the package. Names without a
            module are modules themselves.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        if not home:
            return import_module(f"{package}.{name}")  # the import sets the attribute
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return find
