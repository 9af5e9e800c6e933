"""Where it runs: Spark, local or a cluster, classic or Connect. Rows of a plan as a DataFrame.

Promises: the rows are the plan's, at its version; no credential stands in a plan's text.
The only room that imports pyspark. May import everything but `cli`.
"""

from arrowlog.spark.checkpoints import checkpoint
from arrowlog.spark.explain import explain
from arrowlog.spark.local import session
from arrowlog.spark.read import read
from arrowlog.spark.rebuild import snapshot
from arrowlog.spark.register import register
from arrowlog.spark.write import write

__all__ = ["checkpoint", "explain", "read", "register", "session", "snapshot", "write"]
