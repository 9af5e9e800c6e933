"""Commits by optimistic concurrency: each lands in the log exactly once or not at all."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.transaction import (
        operations,
    )
    from arrowlog.transaction.add_files import (
        Add,
        add_file,
        parse_add,
        relative_data_path,
        validate_adds,
    )
    from arrowlog.transaction.commit_loop import (
        PreparedCommit,
    )
    from arrowlog.transaction.commit_result import (
        CommitResult,
    )
    from arrowlog.transaction.conflict_checker import (
        ReadSet,
        TableHead,
    )
    from arrowlog.transaction.data_writer import (
        WriteTarget,
        is_shortened_folder,
        write_rows,
    )
    from arrowlog.transaction.operations import (
        WriteMode,
        check_write_mode,
        upgrade_protocol,
    )
    from arrowlog.transaction.parquet_files import (
        DataFileStats,
        InspectedFile,
        compute_stats,
        describe_parquet_file,
        inspect_parquet_file,
        struct_columns,
    )
    from arrowlog.transaction.prepared_commits import (
        CommitOptions,
        PrepareContext,
        parse_partition_predicate,
        prepare_file_changes,
        select_files_by_path,
    )
    from arrowlog.transaction.table_metadata import (
        build_metadata,
        check_no_remains,
        check_partitions,
        check_schema,
        create_table,
        to_schema_json,
    )
    from arrowlog.transaction.version_race import (
        UNREADABLE_PARTITION,
        Clock,
        read_txn_id,
        typed_partition_values,
    )
    from arrowlog.transaction.write_session import (
        WriteSession,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "": ("operations",),
    "add_files": (
        "Add",
        "add_file",
        "parse_add",
        "relative_data_path",
        "validate_adds",
    ),
    "commit_loop": ("PreparedCommit",),
    "commit_result": ("CommitResult",),
    "conflict_checker": (
        "ReadSet",
        "TableHead",
    ),
    "data_writer": (
        "WriteTarget",
        "is_shortened_folder",
        "write_rows",
    ),
    "operations": (
        "WriteMode",
        "check_write_mode",
        "upgrade_protocol",
    ),
    "parquet_files": (
        "DataFileStats",
        "InspectedFile",
        "compute_stats",
        "describe_parquet_file",
        "inspect_parquet_file",
        "struct_columns",
    ),
    "prepared_commits": (
        "CommitOptions",
        "PrepareContext",
        "parse_partition_predicate",
        "prepare_file_changes",
        "select_files_by_path",
    ),
    "table_metadata": (
        "build_metadata",
        "check_no_remains",
        "check_partitions",
        "check_schema",
        "create_table",
        "to_schema_json",
    ),
    "version_race": (
        "UNREADABLE_PARTITION",
        "Clock",
        "read_txn_id",
        "typed_partition_values",
    ),
    "write_session": ("WriteSession",),
}

__all__ = [
    "UNREADABLE_PARTITION",
    "Add",
    "Clock",
    "CommitOptions",
    "CommitResult",
    "DataFileStats",
    "InspectedFile",
    "PrepareContext",
    "PreparedCommit",
    "ReadSet",
    "TableHead",
    "WriteMode",
    "WriteSession",
    "WriteTarget",
    "add_file",
    "build_metadata",
    "check_no_remains",
    "check_partitions",
    "check_schema",
    "check_write_mode",
    "compute_stats",
    "create_table",
    "describe_parquet_file",
    "inspect_parquet_file",
    "is_shortened_folder",
    "operations",
    "parse_add",
    "parse_partition_predicate",
    "prepare_file_changes",
    "read_txn_id",
    "relative_data_path",
    "select_files_by_path",
    "struct_columns",
    "to_schema_json",
    "typed_partition_values",
    "upgrade_protocol",
    "validate_adds",
    "write_rows",
]

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
