"""Spark integration: batch and streaming reads and writes, distributed replay and checkpoints.

Works on local sessions and clusters, classic sessions and Spark Connect.

Guarantees:

- A DataFrame has the table's rows at exactly one version.
- A write is one atomic commit.
- No credential appears in the text of a Spark plan.

This is the only package that imports pyspark. It may import every other package except `cli`.
"""

from arrowlog.spark.checkpoints import checkpoint
from arrowlog.spark.executors import ship
from arrowlog.spark.explain import explain
from arrowlog.spark.files import files, plan
from arrowlog.spark.hooks import watch_imports
from arrowlog.spark.local import session
from arrowlog.spark.read import read
from arrowlog.spark.rebuild import snapshot
from arrowlog.spark.register import register
from arrowlog.spark.statements import enable, sql
from arrowlog.spark.write import write

__all__ = [
    "checkpoint",
    "enable",
    "explain",
    "files",
    "plan",
    "read",
    "register",
    "session",
    "ship",
    "snapshot",
    "sql",
    "write",
]

watch_imports()  # pyspark may be imported later, or never
