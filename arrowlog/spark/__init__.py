"""Where it runs: Spark, local or a cluster, classic or Connect. Tables read, written, streamed.

Promises: the rows are the table's, at one version; a write is one commit, or nothing; no credential
stands in a plan's text.
The only room that imports pyspark. May import everything but `cli`.
"""

from arrowlog.spark.checkpoints import checkpoint
from arrowlog.spark.explain import explain
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
    "read",
    "register",
    "session",
    "snapshot",
    "sql",
    "write",
]
