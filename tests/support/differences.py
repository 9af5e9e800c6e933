"""Where arrowlog differs from the IndexTables documents on purpose, and why.

`docs/reference/differences.md` is generated from this table. A proof is a test that shows what
arrowlog does.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """What a document says, what arrowlog does, the reason, and a test of it."""

    topic: str
    says: str
    does: str
    reason: str
    proof: str = ""


DIFFERENCES = [
    Difference(
        "Log",
        "An action of unknown type is an error (section 3), or is ignored (protocol)",
        "They are ignored",
        "A newer writer announces what readers must know by the protocol version",
        "faults/test_damaged_commits.py::test_harmless_deviations_remain_readable",
    ),
    Difference(
        "Log",
        "New tables have protocol 1/2 (protocol) or 2/2 (section 3)",
        "2/2; tables with 1/2 are read and written",
        "Section 3 is newer, and IndexTables writes 2/2",
    ),
    Difference(
        "Log",
        "A schema never changes",
        "`add_columns` adds nullable columns, as a new `metaData` action",
        "Every reader of the protocol takes the newest `metaData`; none knows a"
        " `SchemaEvolutionAction`, which dropping, renaming and retyping columns would need",
    ),
    Difference(
        "Compression",
        "If a file cannot be decompressed, it is read as plain JSON",
        "`LogCorrupt` names the file",
        "A damaged file read as something else would be a wrong table instead of an error",
        "unit/test_compression.py::test_garbage_after_a_known_codec_byte_is_refused",
    ),
    Difference(
        "Compression",
        "Planned: files below 1 kB are not compressed",
        "They are, unless `transaction.compression.minSize` is set",
        "One add shrinks 1.5 times only, but the checksum of gzip covers the whole file; that of a"
        " commit leaves out its first line",
        "unit/test_settings.py::test_changing_a_setting_has_its_documented_effect",
    ),
    Difference(
        "Compression",
        "Planned: large files with gzip level 9 or zstd",
        "One codec and one level for all sizes",
        "Level 9 is several times slower than 6 and saves less than 1 %; zstd would make the log"
        " unreadable for IndexTables. Both can be set",
    ),
    Difference(
        "Compression",
        "`CompressionUtils` with `isCompressed`, `detectCodec`, `readTransactionFile` and others",
        "No public functions on single files; the log line `commit_read` tells codec and sizes",
        "What is public has to stay as it is; users read tables, not files",
        "unit/test_log_lines.py::test_codec_and_sizes_of_commits_are_logged",
    ),
    Difference(
        "Checkpoints",
        "Checkpoints are JSON only (section 3), or Parquet (compaction design)",
        "`checkpoint.format` chooses; both by default",
        "Old readers need JSON; a Parquet checkpoint is read by column and by row group",
        "unit/test_settings.py::test_changing_a_setting_has_its_documented_effect",
    ),
    Difference(
        "Checkpoints",
        "A checkpoint at every version that is a multiple of the interval (section 3)",
        "One as soon as the last one is an interval back (compaction design)",
        "A writer that skips the multiple, or fails there, must not leave the log without",
        "concurrency/test_checkpoint_trigger.py::test_checkpoint_is_due_at_the_interval",
    ),
    Difference(
        "Checkpoints",
        "Parquet checkpoints follow the layout of Delta",
        "Typed columns of their own, and a manifest with checksums and statistics per row group",
        "Typed, sorted columns are what lets a scan read a fraction of a checkpoint",
        "unit/test_parquet_checkpoint.py::test_selective_plan_needs_few_requests",
    ),
    Difference(
        "Checkpoints",
        "`_last_checkpoint` has `numOfAddFiles` and `checkpointSchema` (repair design)",
        "`numFiles`, and no schema",
        "IndexTables itself writes `numFiles` (section 3), and the schema is in the metadata",
    ),
    Difference(
        "Checkpoints",
        "Planned: checkpoints for several tables, and their replication",
        "Neither",
        "A checkpoint is a cache of one log and made anew from it; stores replicate objects",
    ),
    Difference(
        "Checkpoints",
        "A checkpoint makes reading 2.5 to 833 times faster",
        "1.5 times at 50 commits, 12 times at 10,000 on a local disk",
        "Replay is fast: 10,000 commits take 0.4 s without a checkpoint",
    ),
    Difference(
        "Retention",
        "`checkpoint.retention` keeps 30 commits (compaction design), or age decides (section 3)",
        "Both must permit a deletion; the default of 30 yields to a duration that was set",
        "Whoever sets a duration of an hour has not asked for 30 commits to be kept",
        "integration/test_cleanup.py::test_thirty_commits_are_kept_by_default",
    ),
    Difference(
        "Reading",
        "`listFiles` may answer with a state that is 5 s old",
        "0 s by default; `max_staleness` or `transaction.cache.maxStalenessSeconds` allow more",
        "A reader should see a commit that was acknowledged before it asked",
        "unit/test_table.py::test_max_staleness_allows_a_stale_snapshot",
    ),
    Difference(
        "Reading",
        "Three thread pools that live as long as the process",
        "Threads are started for an operation and end with it",
        "Pools do not survive a fork, and a library should leave no threads behind",
    ),
    Difference(
        "Reading",
        "`checkpoint.parallelism` is 4 for every store",
        "4, except that obstore reads up to 512 objects at a time unless the setting is given",
        "its threads only wait; a value that is set is a ceiling on every store",
        "unit/test_settings.py::test_changing_a_setting_has_its_documented_effect",
    ),
    Difference(
        "Reading",
        "A cache of checkpoint locations",
        "None; five hit rates as section 3 has them, and `metrics()`",
        "The location of the newest checkpoint comes with the listing that a refresh needs anyway",
    ),
    Difference(
        "Reading",
        "Files are pruned by DuckDB queries",
        'By Arrow kernels; `scan(…, engine="duckdb")` runs the query of `plan.sql`',
        "The same files in a fraction of the time (decision 4)",
        "unit/test_sql_plan.py::test_sql_query_selects_the_files_of_the_plan",
    ),
    Difference(
        "Reading",
        "Considered: `SELECT * FROM table@v100`",
        "`snapshot(version=100)`, the macro `files_at(100)`, `versionAsOf` in Spark",
        "The syntax of SQL belongs to the engines",
    ),
    Difference(
        "Repair",
        "Temporary files, then a rename",
        "Put-if-absent in a fixed order, the pointer last",
        "Object stores have no rename (decision 10)",
        "faults/test_killed_repair.py::"
        "test_killed_repair_leaves_no_partial_log_and_a_rerun_finishes",
    ),
    Difference(
        "Repair",
        "A repaired log with truncated statistics is over 80 % smaller",
        "For large logs; one of two files becomes larger",
        "Checkpoint, Parquet form and pointer have a fixed size of some kB",
    ),
    Difference(
        "Log lines",
        "INFO for every commit with its sizes",
        "DEBUG (`commit_landed`)",
        "A line per commit at INFO would drown the lines about checkpoints and cleanup",
        "unit/test_log_lines.py::test_codec_and_sizes_of_commits_are_logged",
    ),
    Difference(
        "Log lines",
        "A switch `debugEnabled`",
        "The level of the logger `arrowlog` or of one below it",
        "This is what levels are for",
        "unit/test_log_lines.py::test_disabled_log_levels_create_no_records",
    ),
    Difference(
        "Spark and stores",
        '`format("io.indextables.spark.core.IndexTables4SparkTableProvider")`',
        '`format("arrowlog")`',
        "The name of the original stays its own, so that both can be installed",
    ),
    Difference(
        "Spark and stores",
        "HDFS is a store like the others",
        "Through fsspec, read-only unless `allow_unsafe_commits=True`",
        "fsspec does not promise that only one of two writers creates a file",
    ),
    Difference(
        "Not planned",
        "Column mapping, deletion vectors, a change data feed, liquid clustering",
        "For Delta tables, arrowlog reads the first two; it writes none of them",
        "Other programs that write the same tables would not know them",
    ),
]


def differences_part():
    """Return the differences as a table per topic."""
    lines = []
    for topic in dict.fromkeys(item.topic for item in DIFFERENCES):
        lines += [f"## {topic}", "", "| the documents | arrowlog | reason |", "| --- | --- | --- |"]
        lines += [
            f"| {item.says} | {item.does} | {item.reason} |"
            for item in DIFFERENCES
            if item.topic == topic
        ]
        lines.append("")
    return "\n".join(lines)
