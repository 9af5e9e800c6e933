"""What is on disk: file names, action fields, features and encodings, one format per package.

`Format` is the seam: everything above this package asks it and knows no format by name.
"""

from arrowlog.formats.base import (
    MAX_VERSION,
    PHYSICAL_NAME_KEY,
    STATS_MAPS,
    ActionFields,
    CheckpointForm,
    Checkpoints,
    CommitFile,
    FieldKind,
    Format,
    LogListing,
    Metadata,
    Protocol,
    physical_name,
)
from arrowlog.formats.log_versions import (
    MAX_RECENT_COMMITS,
    RETIRED_FOLDER,
    RecentCommits,
    RetiredVersions,
    no_recent_commits,
    parse_retired_records,
    retired_record_name,
    superseded_records,
)
from arrowlog.formats.spark_schema import format_spark_schema, parse_spark_schema

__all__ = [
    "MAX_RECENT_COMMITS",
    "MAX_VERSION",
    "PHYSICAL_NAME_KEY",
    "RETIRED_FOLDER",
    "STATS_MAPS",
    "ActionFields",
    "CheckpointForm",
    "Checkpoints",
    "CommitFile",
    "FieldKind",
    "Format",
    "LogListing",
    "Metadata",
    "Protocol",
    "RecentCommits",
    "RetiredVersions",
    "format_spark_schema",
    "no_recent_commits",
    "parse_retired_records",
    "parse_spark_schema",
    "physical_name",
    "retired_record_name",
    "superseded_records",
]
