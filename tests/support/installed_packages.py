"""What an installation of arrowlog consists of: packages, and their sizes on disk."""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(requirements):
    """Return the installed distributions that requirements need, directly or through others.

    Raises `PackageNotFoundError` if one of them is not installed.
    """
    found = {}
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        found[name] = distribution = metadata.distribution(requirement.name)
        wanted = ["", *requirement.extras]
        for text in distribution.requires or ():
            below = Requirement(text)
            if below.marker is None or any(below.marker.evaluate({"extra": e}) for e in wanted):
                waiting.append(below)
    return found


def size_of(distributions):
    """Return the size on disk of distributions in bytes, without compiled Python."""
    paths = {
        path
        for each in distributions
        for file in each.files or ()
        if file.suffix != ".pyc" and (path := file.locate()).is_file()
    }
    return sum(path.stat().st_size for path in paths)


def link_into(distributions, folder):
    """Make installed distributions importable from another folder of packages, by links."""
    for each in distributions:
        for top in {file.parts[0] for file in each.files or ()}:
            source = Path(each.locate_file(top))
            if re.fullmatch(r"\.\.|bin|share|etc|__pycache__", top) or not source.exists():
                continue
            target = folder / top
            if not target.exists():
                target.symlink_to(source)
