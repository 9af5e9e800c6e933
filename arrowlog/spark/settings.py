"""The names of the data source, and the settings of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.config import PREFIX, select_settings
from arrowlog.spark.versions import all_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The names that `format()` accepts: ours, and those of the original data source.
FORMAT_NAMES = (
    "arrowlog",
    "indextables",
    "io.indextables.spark.core.IndexTables4SparkTableProvider",
)
SESSION_PREFIX = "session."  # of options that come from the session and not from the user
# An option that says that those are all settings of the session, whatever was registered.
SESSION_KNOWN = "session.known"


def session_settings(spark: SparkSession) -> dict[str, object]:
    """Return the session's `spark.indextables.*` settings that arrowlog knows."""
    settings = {key: value for key, value in all_settings(spark).items() if key.startswith(PREFIX)}
    return select_settings(settings)


def session_options(spark: SparkSession) -> dict[str, str]:
    """Return the session's settings as options of the data source, which other options override."""
    settings = session_settings(spark).items()
    return {SESSION_KNOWN: "true", **{f"{SESSION_PREFIX}{key}": str(v) for key, v in settings}}
