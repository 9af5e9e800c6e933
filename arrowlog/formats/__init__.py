"""What is on disk: file names, action fields, features and encodings, one format per package.

`Format` is the seam: everything above this package asks it and knows no format by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.formats.base import (
    MAX_RECENT_COMMITS,
    MAX_VERSION,
    RETIRED_FOLDER,
    STATS_COUNTS,
    STATS_MAPS,
    UPGRADE,
    ActionFields,
    CheckpointForm,
    Checkpoints,
    CommitFile,
    FieldKind,
    Format,
    LogListing,
    Metadata,
    Protocol,
    RecentCommits,
    RetiredVersions,
    no_recent_commits,
    parse_retired_records,
    retired_record_name,
    superseded_records,
)
from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.formats.avro import (
        MAX_VALUE_DEPTH,
        AvroField,
        AvroType,
        Container,
        SchemaError,
        ValueDamaged,
        damaged,
        encode_bytes,
        encode_long,
        parse_schema,
        read_container,
        read_value,
        unsupported,
        write_container,
    )
    from arrowlog.formats.table_schema import (
        PHYSICAL_NAME_KEY,
        StructLeaf,
        find_field_type,
        format_spark_schema,
        leaf_name,
        parse_ddl,
        parse_spark_schema,
        physical_name,
        stats_keys,
        stats_type,
        struct_leaves,
    )

# Loaded on first use: listing a log needs no schema and no pyarrow, most tables have no Avro files,
# and few schemas are given as text.
_ON_FIRST_USE = {
    "avro": (
        "MAX_VALUE_DEPTH",
        "AvroField",
        "AvroType",
        "Container",
        "SchemaError",
        "ValueDamaged",
        "damaged",
        "encode_bytes",
        "encode_long",
        "parse_schema",
        "read_container",
        "read_value",
        "unsupported",
        "write_container",
    ),
    "table_schema": (
        "PHYSICAL_NAME_KEY",
        "StructLeaf",
        "find_field_type",
        "format_spark_schema",
        "leaf_name",
        "parse_ddl",
        "parse_spark_schema",
        "physical_name",
        "stats_keys",
        "stats_type",
        "struct_leaves",
    ),
}

__all__ = [
    "MAX_RECENT_COMMITS",
    "MAX_VALUE_DEPTH",
    "MAX_VERSION",
    "PHYSICAL_NAME_KEY",
    "RETIRED_FOLDER",
    "STATS_COUNTS",
    "STATS_MAPS",
    "UPGRADE",
    "ActionFields",
    "AvroField",
    "AvroType",
    "CheckpointForm",
    "Checkpoints",
    "CommitFile",
    "Container",
    "FieldKind",
    "Format",
    "LogListing",
    "Metadata",
    "Protocol",
    "RecentCommits",
    "RetiredVersions",
    "SchemaError",
    "StructLeaf",
    "ValueDamaged",
    "damaged",
    "encode_bytes",
    "encode_long",
    "find_field_type",
    "format_spark_schema",
    "leaf_name",
    "no_recent_commits",
    "parse_ddl",
    "parse_retired_records",
    "parse_schema",
    "parse_spark_schema",
    "physical_name",
    "read_container",
    "read_value",
    "retired_record_name",
    "stats_keys",
    "stats_type",
    "struct_leaves",
    "superseded_records",
    "unsupported",
    "write_container",
]


if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _ON_FIRST_USE)
