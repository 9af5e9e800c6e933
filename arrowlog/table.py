"""`Table`: the handle through which users read, change and maintain a table.

Its methods delegate to the packages that implement them. These resolve their names on first use,
so that a handle that only reads loads no writer, no maintenance and no recovery. `scan_polars` and
`add_parquet` are functions, as users of polars and of other table formats expect them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog import history, maintenance, recovery, scan, transaction
from arrowlog.clock import SystemClock
from arrowlog.config import parse_argument, parse_names, parse_seconds, resolve
from arrowlog.display import format_html_card
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.fork_safety import OnFirstUse, require_polars
from arrowlog.metering import metrics_of
from arrowlog.scan import ReadableRows
from arrowlog.snapshot import (
    CACHE_PARTS,
    ReadOptions,
    SnapshotTracker,
    TimestampLike,
    to_epoch_millis,
)
from arrowlog.storage import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    import duckdb
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from arrowlog.formats import Metadata, Protocol
    from arrowlog.history import Diff, Grouping, HistorySession, Overview
    from arrowlog.maintenance import (
        AdoptResult,
        BackgroundCheckpointer,
        CleanupResult,
        CompactResult,
        RetentionPlan,
        Skips,
        VacuumResult,
    )
    from arrowlog.metering import Metrics
    from arrowlog.recovery import Findings
    from arrowlog.report import TableReport
    from arrowlog.scan import Engine, LazyRows, ReadLog, ReadReport, ScanPlan
    from arrowlog.snapshot import CachePart, CacheStats, CheckpointResult, PeriodLike, Snapshot
    from arrowlog.transaction import Add, CommitResult, WriteMode, WriteSession


class Table(ReadableRows):
    """A table on a file system or object store: data files and a transaction log.

    A handle reads lazily, caches the newest snapshot and refreshes it incrementally. It can be
    shared between threads. Every change is one atomic commit and returns a `CommitResult`.

    Changes that depend on what the table contains (`remove`, `drop_partitions`, `overwrite` with
    `where`, `commit` with removes, `restore`) are based on what this handle last showed: the last
    `snapshot()`, `refresh()` or own commit. Commits made by others since then are checked for
    conflicts. If one conflicts, a `CommitConflict` is raised, nothing is written, and the next
    change is based on the newest version.

    Every change can raise:

    - `CommitConflict`: a concurrent commit conflicts, or the commit lost too many races.
    - `CommitStateUnknown`: the store did not tell whether the commit landed. Search `history()`
      for the error's `txn_id` before repeating it.
    - `StoreUnavailable`: the store failed; nothing was committed.
    - `UnsupportedProtocol`: the table requires a newer writer.
    - `InvalidRequest`: an argument is invalid; nothing was written.

    Examples:
        >>> import tempfile
        >>> import arrowlog, pyarrow as pa
        >>> schema = pa.schema([("day", pa.string()), ("id", pa.int64())])
        >>> table = arrowlog.Table.create(tempfile.mkdtemp(), schema, partition_columns=["day"])
        >>> table.write(pa.table({"day": ["mon", "tue"], "id": [1, 2]})).version
        1
        >>> table.scan("day = 'tue'").num_files, table.snapshot().num_files
        (1, 2)
        >>> table.remove("day = 'mon'").operation_metrics["numRemovedFiles"]
        1
        >>> arrowlog.Table("/nowhere")
        Traceback (most recent call last):
        ...
        arrowlog.errors.TableNotFound: There is no table at /nowhere: ...
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, object] | None = None,
        strict: bool = False,
        allow_outside_paths: bool = False,
        allow_unsafe_commits: bool = False,
    ) -> None:
        """Open an existing table.

        Args:
            uri: path or URL of the table's root folder.
            storage_options: credentials and options for the store, as s3fs or fsspec spell them.
            options: settings such as `{"checkpoint.interval": 20}`, with or without the prefix
                `spark.indextables.`. They take precedence over the table's properties.
            strict: raise `LogCorrupt` for a gap in the log instead of warning about it.
            allow_outside_paths: accept logs that refer to data files outside the root folder.
            allow_unsafe_commits: permit commits to a store that is not known to support
                put-if-absent. Safe only for a single writer.

        Raises:
            TableNotFound: there is no transaction log at `uri`.
            InvalidRequest: an option is unknown or has an invalid value.
        """
        config = resolve(options)
        self._store = open_store(
            uri,
            storage_options,
            parallelism=config.request_ceiling,
            timeout_seconds=config.checkpoint_read_timeout_seconds,
            accelerate=config.store_accelerate,
            unsafe=allow_unsafe_commits,
        )
        self._storage_options = dict(storage_options or {})
        self._options = dict(options or {})
        self._tracker = SnapshotTracker(
            self._store,
            ReadOptions(config, allow_external_paths=allow_outside_paths, strict=strict),
            options=self._options,
        )

    @OnFirstUse
    def _read_log(self) -> ReadLog:
        return scan.ReadLog()

    @OnFirstUse
    def _checkpointer(self) -> BackgroundCheckpointer:
        external = self._tracker.read_options.allow_external_paths
        return maintenance.BackgroundCheckpointer(
            self._store, SystemClock(), allow_external_paths=external
        )

    @OnFirstUse
    def _history_session(self) -> HistorySession:
        return history.HistorySession(self._tracker)

    @OnFirstUse
    def _session(self) -> WriteSession:
        """The session of every change and all maintenance; refused for a read-only format."""
        self._tracker.format.require_writable()
        return transaction.WriteSession(
            self._tracker, self._options, on_commit=self._checkpointer.on_commit
        )

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        schema: object,
        partition_columns: Sequence[str] = (),
        properties: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
        name: str | None = None,
        description: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: Mapping[str, object] | None = None,
        allow_unsafe_commits: bool = False,
    ) -> Table:
        """Create a table and open it.

        If several processes create the same table at the same time, exactly one succeeds.

        Args:
            uri: path or URL of the table's root folder.
            schema: a `pyarrow.Schema`, a Spark `StructType` or Spark's schema JSON.
            partition_columns: names of the columns to partition by, in order.
            properties: table properties. Settings among them must have valid values.
            exist_ok: open the table if it exists, whatever its schema.
            name: name of the table, for display.
            description: description of the table, for display.
            storage_options: see `Table`.
            options: see `Table`.
            allow_unsafe_commits: see `Table`.

        Returns:
            The open table, at version 0 if it was created.

        Raises:
            TableExists: there is a transaction log at `uri` and `exist_ok` is false, or the log is
                in another format.
            InvalidRequest: the schema, a partition column or a property is invalid.
        """
        config = resolve(options, table=properties)
        store = open_store(
            uri,
            storage_options,
            parallelism=config.request_ceiling,
            timeout_seconds=config.checkpoint_read_timeout_seconds,
            accelerate=config.store_accelerate,
            unsafe=allow_unsafe_commits,
        )
        transaction.create_table(
            store,
            config,
            transaction.build_metadata(schema, partition_columns, properties, name, description),
            exist_ok=exist_ok,
        )
        return cls(uri, storage_options, options=options, allow_unsafe_commits=allow_unsafe_commits)

    @property
    def uri(self) -> str:
        """Path or URL of the table, without credentials."""
        return self._store.root

    @property
    def format(self) -> str:
        """The format of the table: `indextables`, or another that arrowlog only reads."""
        return self._tracker.format.name

    @property
    def version(self) -> int:
        """The newest version number, read from the log."""
        return self._tracker.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the newest version.

        This and the next three need no snapshot: the log is searched backward for them.
        """
        return self._tracker.describe().schema

    @property
    def metadata(self) -> Metadata:
        """Identity, schema text, partitioning and properties of the newest version."""
        return self._tracker.describe().metadata

    @property
    def protocol(self) -> Protocol:
        """The reader and writer versions and features that the newest version requires."""
        return self._tracker.describe().protocol

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns of the newest version, in order."""
        return self.metadata.partition_columns

    @property
    def earliest_version(self) -> int:
        """The lowest version such that it and every later version can be read."""
        return self._tracker.earliest_version

    def snapshot(
        self,
        version: int | None = None,
        timestamp: TimestampLike | None = None,
        *,
        max_staleness: float | None = None,
        strict: bool | None = None,
    ) -> Snapshot:
        """Return the newest snapshot, or that of an earlier version or time.

        Args:
            version: the version to read.
            timestamp: read the last version committed at or before this time: a `datetime`, an
                ISO-8601 string (UTC if it has no zone), milliseconds since the epoch, or a `date`,
                which means the end of that day in UTC.
            max_staleness: return a cached snapshot without contacting the store if it is at most
                this many seconds old; `transaction.cache.maxStalenessSeconds` by default, which
                is 0.
            strict: override the handle's `strict` for this call.

        Returns:
            An immutable snapshot: files, schema, metadata and protocol of one version.

        Raises:
            InvalidRequest: the version does not exist or was cleaned up, or both `version` and
                `timestamp` are given.
            LogCorrupt: the log is damaged or incomplete.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequest(
                "version and timestamp cannot both be given.", next="Leave one out."
            )
        if timestamp is not None:
            version = self._tracker.version_at(to_epoch_millis(timestamp))
        if version is not None:
            return self._tracker.at_version(version, strict=strict)
        if max_staleness is None:
            max_staleness = self._tracker.config.cache_max_staleness_seconds
        else:
            max_staleness = parse_argument(parse_seconds, max_staleness, "max_staleness")
        return self._tracker.latest(strict=strict, max_staleness=max_staleness)

    def scan(
        self,
        predicate: Any = None,
        version: int | None = None,
        timestamp: TimestampLike | None = None,
        *,
        max_staleness: float | None = None,
        engine: Engine = "arrow",
    ) -> ScanPlan:
        """Plan which files to read for a predicate, by partition pruning and data skipping.

        Args:
            predicate: SQL text such as `"day = '2024-01-01' AND id > 5"`; tuples such as
                `[("day", "=", "2024-01-01")]`, where a list is AND and a list of lists is OR of
                ANDs; a polars or pyarrow expression. None plans every file.
            version: see `snapshot`.
            timestamp: see `snapshot`.
            max_staleness: see `snapshot`.
            engine: what computes the plan: Arrow's kernels, or `"duckdb"`, which runs `plan.sql`.
                The files are the same.

        Returns:
            A plan with the files that may contain matching rows, and methods to read the rows with
            the predicate applied: `to_polars`, `to_duckdb`, `to_arrow_dataset`, `to_spark`.

        Raises:
            InvalidRequest: the predicate cannot be parsed, is not a row predicate or names an
                unknown column.
        """
        snapshot = self.snapshot(version, timestamp, max_staleness=max_staleness)
        config = self._tracker.read_options.config
        cache = scan.SplitCacheOptions(config.splits_cache_path, config.splits_cache_max_size)
        options = self._storage_options
        return scan.plan_scan(
            snapshot,
            predicate,
            self.uri,
            options,
            split_cache=cache,
            engine=engine,
            read_log=self._read_log,
        )

    @property
    def reads(self) -> list[ReadReport]:
        """The newest reads through lazy readers of this handle and its plans, oldest first.

        A report tells which filter an engine pushed down, what it skipped, and how many files were
        opened: `print(table.reads[-1])`, `table.reads[-1].explain()`.
        """
        return self._read_log.reports()

    def _lazy_rows(self, predicate: Any = None) -> LazyRows:
        return self.scan(predicate)._lazy_rows()  # noqa: SLF001 -- of the same base class

    def refresh(self) -> Snapshot:
        """Read the commits that are new since the last snapshot; return the newest snapshot."""
        return self._tracker.latest()

    def history(
        self,
        limit: int | None = None,
        *,
        by: Grouping | Sequence[Grouping] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> pa.Table:
        """Return one row per commit, newest first: time, operation, files, bytes, rows, writer.

        With `by`, one row per group of commits: the keys, the number of `commits`, the sums of
        `adds`, `removes`, `bytes`, `bytes_removed` and `rows`, and `first_version` and
        `last_version`. The group with the newest commit comes first. A sum is null if one of the
        commits does not tell it or it exceeds 64 bits. This needs no SQL engine, unlike `sql`.

        Args:
            limit: read only this many commits.
            by: what to group by: `"hour"`, `"day"`, `"month"` (UTC; the first day stands for the
                month), `"operation"`, `"engine_info"`, `"app_id"`, or a list of them.
            progress: called with the number of commits read and their total.

        Raises:
            InvalidRequest: `limit` is not a non-negative integer, or `by` is unknown.
            LogCorrupt: a commit is damaged.

        Examples:
            >>> import tempfile
            >>> import arrowlog, pyarrow as pa
            >>> table = arrowlog.Table.create(tempfile.mkdtemp(), pa.schema([("id", pa.int64())]))
            >>> table.write(pa.table({"id": [1, 2]})).version
            1
            >>> months = table.history(by=["month", "operation"])
            >>> months.select(["operation", "commits", "adds", "rows"]).to_pylist()[0]
            {'operation': 'WRITE', 'commits': 1, 'adds': 1, 'rows': 2}
        """
        return self._history_session.history(limit, progress, by)

    def diff(
        self,
        a: PeriodLike | None = None,
        b: PeriodLike | None = None,
        *,
        since: PeriodLike | None = None,
        until: PeriodLike | None = None,
    ) -> Diff:
        """Return what turns one version into another: two versions, or the changes of a time.

        `diff(3, 9)` compares versions, in either direction. `diff("yesterday")` and
        `diff(date(2024, 10, 1))` are the commits of a day, in UTC, and `diff(since="24h")` those of
        the last 24 hours.

        Args:
            a: a version, or a time as for `since`. One day alone ends with that day.
            b: a version, or a time as for `until`.
            since: include commits from this time on: a datetime, a date, ISO text, a timedelta or
                duration such as `"24h"` before now, `"today"` or `"yesterday"`. A time before the
                table was created includes all commits after the creation.
            until: include commits up to this time, or to the end of this day; by default all.

        Raises:
            InvalidRequest: a version is not there, or those from before the time were cleaned up.
        """
        now_ms = SystemClock().now_ms()
        first, last = history.choose_diff_versions(
            self._tracker, a, b, since=since, until=until, now_ms=now_ms
        )
        return history.diff_snapshots(
            self._tracker.at_version(first), self._tracker.at_version(last)
        )

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a lazy DuckDB relation over the history of the table.

        The views are `commits`, `actions`, `adds`, `removes`, `skips`, `metadata`, `protocols`,
        `checkpoints`, `files`, `file_lifetimes`, `file_bounds`, `file_bounds_by_version` and
        `coverage`; the table functions `files_at(version)` and `file_bounds_at(version)` return the
        live files of a version, and the bounds over which `ScanPlan.sql` runs.

        A query can do what DuckDB can: read and write any file of this user (`read_csv`, `COPY`,
        `ATTACH`), load extensions and use the network. Open the table with
        `options={"history.sandbox": True}` if queries come from an untrusted source.

        Raises:
            InvalidRequest: the query is invalid. An error in the log is raised when the relation is
                executed, as a DuckDB exception with arrowlog's message; `query` raises arrowlog's.
        """
        return self._history_session.sql(query)

    def query(self, query: str, *, progress: Callable[[int, int], None] | None = None) -> pa.Table:
        """Execute a query over the same views as `sql` and return the result as a table.

        Raises arrowlog's exceptions, never DuckDB's. Like `sql`, a query can access any file unless
        `history.sandbox` is set.

        Raises:
            InvalidRequest: the query is invalid.
            LogCorrupt: the log is damaged.
        """
        return self._history_session.query(query, progress)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a new DuckDB connection with the same views over the current log.

        The caller owns it. It can access any file unless `history.sandbox` is set, and raises
        DuckDB's exceptions.
        """
        return self._history_session.connect()

    def overview(self, commits: int = 5) -> Overview:
        """Summarize the newest version on one screen, with its last commits and warnings."""
        return history.summarize_table(self._history_session, commits)

    def append(
        self,
        adds: Iterable[object],
        *,
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Add existing data files to the table. Never conflicts with other appends or removes.

        Args:
            adds: what `add_file` or `add_parquet` return, or maps of the fields of an `add` action.
                The files must be in the table's folder.
            txn: application id and version of an idempotent write. If the log already has this or
                a higher version of the application, nothing is written and the result has
                `duplicate` set.
            user_metadata: JSON value stored in `commitInfo.userMetadata`, up to 500 levels deep.

        Examples:
            >>> import tempfile
            >>> import arrowlog, pyarrow as pa
            >>> table = arrowlog.Table.create(tempfile.mkdtemp(), pa.schema([("id", pa.int64())]))
            >>> new = arrowlog.add_file("a.parquet", size=10, modification_time=0)
            >>> table.append([new], txn=("loader", 7)).version
            1
            >>> table.append([new], txn=("loader", 7)).duplicate
            True
        """
        return transaction.operations.append(
            self._session, adds, txn=txn, user_metadata=user_metadata
        )

    def overwrite(
        self,
        adds: Iterable[object],
        where: object = None,
        *,
        read_version: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Replace all live files, or those of some partitions, with other data files.

        Args:
            adds: the new files, see `append`. With `where`, they must belong to its partitions.
            where: a predicate on partition columns that selects the partitions to replace. None
                replaces every file that is live when the commit lands.
            read_version: the version the decision was based on, by default what this handle last
                showed. If given, any later change of metadata or protocol conflicts.
            txn: see `append`.
            user_metadata: see `append`.

        Raises:
            ConcurrentAppend: with `where` or `read_version`, other writers added files to what is
                replaced.
            ConcurrentRemove: with `where` or `read_version`, other writers removed or replaced one
                of the same files.
        """
        return transaction.operations.overwrite(
            self._session,
            adds,
            where,
            read_version=read_version,
            txn=txn,
            user_metadata=user_metadata,
        )

    def remove(
        self,
        paths_or_where: object,
        *,
        read_version: int | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Remove files from the table, by path or by partition.

        The data files are not deleted until `vacuum`, so earlier versions remain readable.

        Args:
            paths_or_where: paths (a list, an Arrow array or a series), one path of a live file, or
                a predicate on partition columns in any form that `scan` accepts.
            read_version: see `overwrite`.
            user_metadata: see `append`.

        Raises:
            ConcurrentRemove: other writers removed or replaced one of the files.
            ConcurrentAppend: other writers added files to the partitions of the predicate.
            InvalidRequest: a path is not a live file, or the predicate uses columns that are not
                partition columns.
        """
        return transaction.operations.remove(
            self._session, paths_or_where, read_version=read_version, user_metadata=user_metadata
        )

    def drop_partitions(self, where: object, *, read_version: int | None = None) -> CommitResult:
        """Remove all files of the partitions that a predicate selects. See `remove`."""
        return transaction.operations.drop_partitions(
            self._session, where, read_version=read_version
        )

    def commit(
        self,
        adds: Iterable[object] = (),
        removes: Iterable[str] = (),
        *,
        operation: str = "WRITE",
        data_change: bool = True,
        read_version: int | None = None,
        where: object = None,
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
        parameters: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Add and remove files in one commit, with an explicit read set.

        Args:
            adds: files to add, see `append`.
            removes: paths of live files to remove.
            operation: name of the operation in the history, such as `"MERGE"`.
            data_change: False if the commit only rearranges rows, as a compaction does.
            read_version: the version the decision was based on, by default what this handle last
                showed. If given, any later change of metadata or protocol conflicts.
            where: a predicate on partition columns describing the partitions that were read.
            txn: see `append`.
            user_metadata: see `append`.
            parameters: `operationParameters` for the history.

        Raises:
            ConcurrentRemove: other writers removed or replaced one of `removes`.
            ConcurrentAppend: other writers added files to the partitions of `where`.
        """
        return transaction.operations.commit(
            self._session,
            adds,
            removes,
            operation=operation,
            data_change=data_change,
            read_version=read_version,
            where=where,
            txn=txn,
            user_metadata=user_metadata,
            parameters=parameters,
        )

    def write(
        self,
        data: object,
        mode: WriteMode = "append",
        *,
        where: object = None,
        target_size: str | int = "128MB",
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Write rows to new Parquet files with exact statistics, then commit them.

        Files are partitioned into folders `column=value`. If the write fails, files already
        written are in no commit; `vacuum` deletes them.

        Args:
            data: a pyarrow table, record batch or reader, a polars or pandas frame, or any object
                with `__arrow_c_stream__`. Columns are cast to the table's types if that loses
                nothing; missing nullable columns become null.
            mode: `"append"`, or `"overwrite"` to replace the table's rows.
            where: with `"overwrite"`, replace only the partitions that this predicate selects.
            target_size: approximate size of a file, measured in memory before compression.
            txn: see `append`.
            user_metadata: see `append`.

        Raises:
            MetadataChanged: the schema changed while writing so that the files do not fit it.
            ConcurrentAppend: with `where`, other writers added files to these partitions.
        """
        return transaction.operations.write(
            self._session,
            data,
            mode,
            where=where,
            target_size=target_size,
            txn=txn,
            user_metadata=user_metadata,
        )

    def set_properties(self, properties: Mapping[str, object]) -> CommitResult:
        """Set table properties; a value of None removes the property.

        Properties that are settings must have valid values. Conflicts with any concurrent change
        of metadata.
        """
        return transaction.operations.set_properties(self._session, properties)

    def add_columns(self, columns: object) -> CommitResult:
        """Add nullable columns at the end of the schema; they are null in existing files.

        Args:
            columns: an Arrow schema or field, a list of fields, a map of names to Arrow types, a
                Spark `StructType` or Spark's schema JSON.

        Raises:
            MetadataChanged: other writers changed the metadata concurrently.
        """
        return transaction.operations.add_columns(self._session, columns)

    def upgrade_protocol(
        self,
        reader: int | None = None,
        writer: int | None = None,
        *,
        reader_features: Sequence[str] = (),
        writer_features: Sequence[str] = (),
    ) -> CommitResult:
        """Raise the protocol versions or add table features. This cannot be undone.

        Args:
            reader: the new minimum reader version; None keeps the current one.
            writer: the new minimum writer version; None keeps the current one.
            reader_features: features that readers must support, in addition to the current ones.
            writer_features: features that writers must support, in addition to the current ones.

        Raises:
            UnsupportedProtocol: this release does not support the version or feature.
            ProtocolChanged: other writers changed the protocol concurrently.
        """
        return transaction.operations.upgrade_protocol(
            self._session, reader, writer, reader_features, writer_features
        )

    def restore(self, version: int) -> CommitResult:
        """Restore files, schema and properties of an earlier version, as a new commit.

        The protocol is never lowered.

        Raises:
            InvalidRequest: the version cannot be read, its data files were deleted, or it does not
                differ from the current one.
            CommitConflict: other writers changed the table concurrently.
        """
        return transaction.operations.restore(self._session, version)

    def checkpoint(self) -> CheckpointResult:
        """Write a checkpoint of the newest version, so that readers replay only later commits.

        Writers do this automatically in a background thread every `checkpoint.interval` commits.
        """
        require_polars("A checkpoint")
        return maintenance.procedures.checkpoint(self._session, self._checkpointer)

    def cleanup(self, *, dry_run: bool | None = None) -> CleanupResult:
        """Delete commits and checkpoints that are past their retention.

        This happens automatically after a checkpoint unless `cleanup.enabled` is false.

        Args:
            dry_run: report what would be deleted and delete nothing; `cleanup.dryRun` by default.
        """
        return maintenance.procedures.clean_up(self._session, dry_run=dry_run)

    def retention(
        self,
        log_retention: str | int | None = None,
        checkpoint_retention: str | int | None = None,
        *,
        now: TimestampLike | None = None,
    ) -> RetentionPlan:
        """Preview a retention policy: files and bytes it would delete, versions it would keep.

        Args:
            log_retention: minimum age of deleted commits, such as `"30d"` or milliseconds; the
                table's `logRetention.duration` by default.
            checkpoint_retention: minimum age of deleted checkpoints; the table's
                `checkpointRetention.duration` by default.
            now: the time at which to evaluate the policy.
        """
        return maintenance.procedures.preview_retention(
            self._session, log_retention, checkpoint_retention, now
        )

    def compact(
        self,
        target_size: str | int = "128MB",
        where: Any = None,
        *,
        max_groups: int | None = None,
        max_files_per_group: int | None = None,
        include_skipped: bool = False,
        cooldown: str | int | timedelta = "24h",
        dry_run: bool = False,
        spark: SparkSession | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CompactResult:
        """Rewrite small Parquet files into larger ones, partition by partition.

        Rows do not change. Every group of files is its own commit, so other writers can commit
        in between. The small files are not deleted until `vacuum`.

        Args:
            target_size: size of the files to produce.
            where: compact only files that may contain rows matching this predicate.
            max_groups: stop after this many groups.
            max_files_per_group: maximum number of files rewritten into one.
            include_skipped: retry files that are in `skips` and still in their cooldown.
            cooldown: files that cannot be read are recorded in `skips` and left out for this long.
            dry_run: plan the groups and rewrite nothing.
            spark: a SparkSession whose workers rewrite the files.
            progress: called with the number of groups done and their total.
        """
        require_polars("Compaction")
        wanted = maintenance.procedures.parse_compaction_request(
            target_size,
            where,
            max_groups,
            max_files_per_group,
            include_skipped=include_skipped,
            cooldown=cooldown,
        )
        return maintenance.procedures.compact(
            self._session,
            wanted,
            dry_run=dry_run,
            spark=spark,
            options=self._storage_options,
            progress=progress,
        )

    def truncate_history(self, *, dry_run: bool = False) -> CleanupResult:
        """Write a checkpoint of the newest version and delete all earlier commits.

        This gives up time travel. Version 0 is kept, and so are commits that hold a skip in its
        cooldown. Readers at an earlier version lose it; data files are not deleted until `vacuum`.
        Over a network, the call waits up to 30 seconds until the youngest commit to be deleted is
        old enough that no writer still relies on it.

        Args:
            dry_run: report what would be deleted and delete nothing.
        """
        require_polars("Truncating history")
        return maintenance.procedures.truncate_history(
            self._session, self._checkpointer, dry_run=dry_run
        )

    def vacuum(
        self,
        older_than: str | int | timedelta = "7d",
        *,
        dry_run: bool = False,
        force: bool = False,
        ignore_logs: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> VacuumResult:
        """Delete orphan data files: those that no readable version refers to.

        Every version that can still be read keeps its files. `cleanup` and `truncate_history`
        reduce the readable versions. Files that another log in the table's folder names, such as
        one that a repair replaced, are kept as well.

        Args:
            older_than: delete only files that are at least this old.
            dry_run: report what would be deleted and delete nothing.
            force: permit less than 24 hours. A young file may belong to a commit in progress, so
                this is safe only if no writer is active.
            ignore_logs: folders of other logs, such as `_transaction_log_old`, whose files are not
                kept.
            progress: called with the number of files done and their total.
        """
        require_polars("Vacuum")
        return maintenance.procedures.vacuum(
            self._session,
            older_than,
            dry_run=dry_run,
            force=force,
            ignored_logs=parse_argument(
                parse_names,
                [ignore_logs] if isinstance(ignore_logs, str) else ignore_logs,
                "ignore_logs",
            ),
            progress=progress,
        )

    def adopt(
        self,
        paths: str | Iterable[str],
        *,
        replaces: str | Iterable[str] = (),
        partition_values: Mapping[str, object] | None = None,
        from_log: str | None = None,
        allow_removed: bool = False,
        dry_run: bool = False,
    ) -> AdoptResult:
        """Add data files that lie in the table's folder to the table, in one commit.

        Every Parquet file is read as far as needed to show that it fits the schema; its size, row
        count and bounds come from the footer. Use it for data that a lost commit left behind.

        Args:
            paths: the files, relative to the table or absolute.
            replaces: live files that the new ones replace, removed in the same commit.
            partition_values: partition values of all files, for those that neither a folder named
                `column=value` nor `from_log` tells.
            from_log: folder of another log in the table's folder, such as `_transaction_log_old`,
                whose adds tell the partition values and further fields. Splits need it.
            allow_removed: permit files that a commit of this table has removed.
            dry_run: check the files and commit nothing.

        Raises:
            InvalidRequest: a file is missing, damaged, does not fit, is in the table or was.
        """
        require_polars("Adopting files")
        return maintenance.adopt(
            self._session,
            paths,
            replaces=replaces,
            partition_values=partition_values,
            from_log=from_log,
            allow_removed=allow_removed,
            dry_run=dry_run,
        )

    @property
    def skips(self) -> Skips:
        """Files that compaction skips for a cooldown: `record`, `active`, `filter`, `history`."""
        return maintenance.Skips(self._session)

    def doctor(
        self,
        *,
        max_commits_since_checkpoint: int | None = None,
        max_small_files: int | None = None,
        assert_stats: Sequence[str] = (),
        data_files: bool = True,
    ) -> Findings:
        """Check the log, its checkpoints and data files; report each problem and how to fix it.

        Writes nothing. `arrowlog.doctor(uri)` also examines a log that cannot be opened.

        Args:
            max_commits_since_checkpoint: report an error if there are more commits than this.
            max_small_files: report an error if there are more small files than this.
            assert_stats: columns for which every file must have bounds; otherwise an error.
            data_files: False does not check data files, which saves listing them.
        """
        limits = recovery.DoctorLimits.parse(
            max_commits_since_checkpoint, max_small_files, assert_stats, data_files=data_files
        )
        tracker, now = self._tracker, SystemClock().now_ms()
        return recovery.examine_table(self._store, tracker.read_options, now, limits)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        paths: bool = False,
        data_files: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> TableReport:
        """Report on the table as one HTML page that works offline and can be mailed.

        The page has the findings of the doctor, growth and churn over time, file sizes, skew of
        partitions, statistics and how well each column prunes, checkpoints, retention and the last
        commits. It has names of columns and values of partitions, but no rows and no credentials.
        What a damaged log does not tell is named in the page.

        Args:
            path: write the page to this local file. A report that is there is replaced; any other
                file is refused.
            paths: show the address of the table and paths of files, instead of hashes.
            data_files: False does not check whether data files exist, which saves listing them.
            progress: called with the number of steps done and their total.

        Returns:
            The report: `html` is the page, `save(path)` writes it, `facts` and `to_json()` have the
            numbers. A notebook shows it.

        Raises:
            InvalidRequest: the file cannot be written, or is not a report.
            StoreUnavailable: the store fails as a whole.
        """
        from arrowlog.report import ReportSources, TableReport, check_target, collect_facts

        if path is not None:
            check_target(path)  # before the work, not after it
        sources = ReportSources(self._tracker, self._history_session, lambda: self._session)
        facts = collect_facts(sources, paths=paths, data_files=data_files, progress=progress)
        report = TableReport(facts)
        if path is not None:
            report.save(path)
        return report

    def update_statistics(self, paths: Iterable[str]) -> CommitResult:
        """Read size, row count and bounds of live Parquet files from their footers and commit them.

        Other fields of the files' adds are kept. Rows do not change.

        Args:
            paths: paths of live Parquet files.
        """
        return maintenance.update_statistics(self._session, paths)

    def wait_for_checkpoint(self, seconds: float | None = None) -> bool:
        """Wait for the checkpoint that is being written in the background, if any.

        Args:
            seconds: maximum time to wait; None waits without limit.

        Returns:
            Whether no checkpoint is being written any more.
        """
        if seconds is not None:
            seconds = parse_argument(parse_seconds, seconds, "seconds")
        return self._checkpointer.wait(seconds)

    def cache_stats(self) -> CacheStats:
        """Return the hit rates of the handle's caches, the five that IndexTables reports."""
        return self._tracker.stats

    def metrics(self) -> Metrics:
        """Return what this handle has done: a live view of counters and histograms.

        `arrowlog.metrics` is the same for the whole process. Print it, or use `to_dict`,
        `to_arrow` and `reset`.

        Examples:
            >>> import tempfile
            >>> import arrowlog, pyarrow as pa
            >>> table = arrowlog.Table.create(tempfile.mkdtemp(), pa.schema([("id", pa.int64())]))
            >>> table.checkpoint().version
            0
            >>> table.metrics()["checkpoints"]
            {'call': 1}
        """
        return metrics_of(self._store)

    def invalidate_cache(self, *parts: CachePart) -> None:
        """Drop cached state; the next call that needs it reads it from the store.

        Args:
            parts: what to drop: `"protocol"`, `"metadata"`, `"files"` or `"listing"` drop the
                newest snapshot, of which all four are part; `"versions"` drops the snapshots of
                earlier versions. Without any, everything is dropped.

        Raises:
            InvalidRequest: there is no such part.
        """
        unknown = [part for part in parts if part not in CACHE_PARTS]
        if unknown:
            raise InvalidRequest(
                f"There is no cache {unknown[0]!r}.", next=f"Use one of {', '.join(CACHE_PARTS)}."
            )
        self._tracker.invalidate(parts or CACHE_PARTS)

    def __repr__(self) -> str:
        """Return the location, and the newest version if it was read."""
        latest = self._tracker.last_read
        known = "" if latest is None else f", version={latest.version}"
        return f"Table({self.uri!r}{known})"

    def _repr_html_(self) -> str:
        """Show the newest snapshot in a notebook, or the error if the log cannot be read."""
        try:
            return format_html_card(self.uri, ()) + self.snapshot()._repr_html_()
        except ArrowlogError as error:
            return format_html_card(self.uri, [(type(error).__name__, str(error))])


def scan_polars(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    version: int | None = None,
) -> pl.LazyFrame:
    """The rows of a table as a polars LazyFrame: `scan_polars(uri).filter(pl.col("id") == 7)`.

    Filters on the frame skip files. See `Table` for `uri` and `storage_options`, and
    `Table.snapshot` for `version`.
    """
    return Table(uri, storage_options).scan(version=version).to_polars()


def add_parquet(
    table: Table,
    path: str,
    partition_values: Mapping[str, object] | None = None,
    *,
    verify: bool = True,
    **fields: Any,
) -> Add:
    """Describe a Parquet file in the table's folder for `Table.append`.

    Size, row count, bounds and null counts are taken from the file's footer.

    Args:
        table: the table whose folder contains the file.
        path: path of the file, relative to the table or absolute.
        partition_values: partition values by column; those not given are taken from folders named
            `column=value`.
        verify: read the columns whose values decide whether the file fits: text, which must be
            UTF-8, and columns such as unsigned integers whose values may exceed the table's type.
            False reads only the footer.
        **fields: further fields of the `add` action, such as `tags={"by": "me"}`.

    Returns:
        An `Add`.

    Raises:
        InvalidRequest: the file does not exist or cannot be read as rows of the table. The message
            names the column and the reason: an incompatible type (a list for a number, text for a
            timestamp), a column that appears twice, an unsupported codec.
    """
    session = table._session  # noqa: SLF001 -- effectively a method of Table
    return transaction.operations.add_parquet(
        session, path, partition_values, fields, verify=verify
    )
