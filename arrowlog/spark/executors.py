"""Make sure that Spark's Python workers can import arrowlog, before they get work.

Spark's own readers and writers need nothing on executors. Everything else runs arrowlog in Python
workers. Without arrowlog there, a job fails after several attempts, with a traceback of Spark's. So
the first such job of a session is preceded by a small one that asks workers what they can import.
"""

from __future__ import annotations

import atexit
import importlib.util
import marshal
import os
import shutil
import tempfile
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from arrowlog.errors import InvalidRequest
from arrowlog.spark.local import is_connect, require_pyspark
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

# What arrowlog imports in workers.
REQUIRED_MODULES = ("duckdb", "fsspec", "msgspec", "numpy", "polars", "pyarrow")
# By which Spark finds the data source under its three names.
_SOURCE_MODULES = ("pyspark_arrowlog", "pyspark_indextables", "pyspark_indextables_provider")
_MAX_PROBES = 32
_CONNECT_PROBES = 8  # the number of cores is unknown there
_LOCK = Lock()
_CHECKED: WeakSet[Any] = WeakSet()  # sessions whose workers have all that is needed


def ship(spark: SparkSession) -> None:
    """Send arrowlog itself to the executors of a session, for the rest of the session.

    Its dependencies must be installed there: raises `InvalidRequest` naming those that are missing.
    Call it before `register`. Reads and writes by Spark's own reader and writer do not need it.

    Spark deletes what a Spark Connect session has sent when the session ends. Executors that start
    later fail to fetch it, whichever session they work for: install arrowlog on executors of a
    server with several sessions.
    """
    require_pyspark()
    archive = _archive()
    if is_connect(spark):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)
    with _LOCK:
        _CHECKED.discard(spark)
    require_on_workers(spark)


@cache
def _archive() -> str:
    """Write the modules of arrowlog into a zip file, which is deleted at exit; return its path."""
    folder = tempfile.mkdtemp(prefix="arrowlog-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/arrowlog-{__version__}.zip"
    package = Path(__file__).parents[1]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(package.rglob("*")):
            if each.is_file() and "__pycache__" not in each.parts:
                name = f"arrowlog/{each.relative_to(package).as_posix()}"
                archive.write(each, name)
                if each.suffix == ".py":
                    archive.writestr(f"{name}c", _compiled(each, name))
        for module in _SOURCE_MODULES:
            entry = importlib.util.find_spec(module)
            if entry is not None and entry.origin is not None and os.path.isfile(entry.origin):
                archive.write(entry.origin, f"{module}.py")
    return path


def _compiled(source: Path, name: str) -> bytes:
    """Return a module as Python stores compiled ones, for the version of this process.

    Python compiles the modules of a zip file each time they are imported: a second for every
    worker. It uses these files instead. Another version of Python ignores them.
    """
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    code = SourceFileLoader(module, str(source)).get_code(module)
    # With the hash of the source instead of its time, which a zip file has in local time.
    unchecked_hash = (1).to_bytes(4, "little")
    header = MAGIC_NUMBER + unchecked_hash + source_hash(source.read_bytes())
    return header + marshal.dumps(code)


def require_on_workers(spark: SparkSession) -> None:
    """Raise `InvalidRequest` if Python workers of a session lack arrowlog or a dependency.

    A session is asked once. Local sessions are not asked: their workers have the environment of
    this process. Executors that start later are not seen.
    """
    with _LOCK:
        if spark in _CHECKED:
            return
    if _is_local(spark):
        answers = []
    else:
        answers = _ask_workers(spark, _probe((*REQUIRED_MODULES, "arrowlog")))
    for answer in answers:
        place, _, missing = answer.partition("\t")
        if missing:
            raise _missing_error(place, missing.split())
    with _LOCK:
        _CHECKED.add(spark)


def _is_local(spark: SparkSession) -> bool:
    """Whether workers are children of this process; a Connect server never is."""
    return not is_connect(spark) and str(spark.sparkContext.master).startswith("local")


def _probe(names: Sequence[str]) -> Callable[[int], str]:
    """Return the function that workers run. It must not refer to this module: they may lack it."""

    def arrowlog_probe(_number: int) -> str:
        import socket
        import sys
        from importlib.util import find_spec

        missing = " ".join(name for name in names if find_spec(name) is None)
        return f"{socket.gethostname()} ({sys.executable})\t{missing}"

    return arrowlog_probe


def _ask_workers(spark: SparkSession, probe: Callable[[int], str]) -> list[str]:
    """Return what workers answer, each answer once; as many are asked as run at a time."""
    if is_connect(spark):
        from pyspark.sql.connect.functions import udf

        numbers = spark.range(0, _CONNECT_PROBES, 1, _CONNECT_PROBES)
        asked = numbers.select(udf(probe, "string", useArrow=False)("id").alias("answer"))
        return sorted({row["answer"] for row in asked.collect()})
    context = spark.sparkContext
    count = min(_MAX_PROBES, max(1, int(context.defaultParallelism)))
    return sorted(set(context.parallelize(range(count), count).map(probe).collect()))


def _missing_error(place: str, missing: Sequence[str]) -> InvalidRequest:
    what = f"Python workers of Spark on {place} cannot import {', '.join(missing)}."
    if list(missing) == ["arrowlog"]:
        return InvalidRequest(
            what,
            next=f"Install arrowlog {__version__} there, or call arrowlog.spark.ship(spark), which"
            " sends it.",
        )
    return InvalidRequest(
        what,
        next=f"Install there what arrowlog {__version__} requires: pip install"
        f" {' '.join(missing)}. arrowlog.spark.ship(spark) sends only arrowlog itself.",
    )
