"""The one handle a user holds. Each method is a few lines that call a room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.clock import SystemClock
from arrowlog.commit import creation, operations
from arrowlog.commit.committer import Committer
from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import require_polars
from arrowlog.log.store import open_store
from arrowlog.scan.plan import scan
from arrowlog.sql.ask import Asking
from arrowlog.sql.questions import Questions
from arrowlog.state.follow import Follower
from arrowlog.state.travel import Moment, to_millis
from arrowlog.upkeep import actions as upkeep
from arrowlog.upkeep.checkpoints import Keeper
from arrowlog.upkeep.checkup import Limits
from arrowlog.upkeep.doctor import examine
from arrowlog.upkeep.skips import Skips
from arrowlog.upkeep.statistics import update_statistics

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.commit.transaction import CommitResult
    from arrowlog.scan.plan import ScanPlan
    from arrowlog.state.cache import CacheStats
    from arrowlog.state.checkpoint import CheckpointResult
    from arrowlog.state.snapshot import Snapshot
    from arrowlog.upkeep.cleanup import CleanupResult
    from arrowlog.upkeep.compact import CompactResult
    from arrowlog.upkeep.findings import Findings
    from arrowlog.upkeep.retention import Retention
    from arrowlog.upkeep.vacuum import VacuumResult


class Table(Questions):
    """A table in the lake: a folder of data files and its transaction log.

    >>> import arrowlog
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
        """Open a table; `TableNotFound` if there is no log.

        `storage_options` go to the store. `options` are settings such as `checkpoint.parallelism`,
        with or without `spark.indextables.`. `strict` makes a gap in the log an error instead of a
        warning. `allow_outside_paths` accepts logs whose data files lie outside the table's folder.
        `allow_unsafe_commits` commits to a store nobody knows to be atomic.
        """
        config = resolve(options)
        self._store = open_store(
            uri,
            storage_options,
            parallelism=config.checkpoint_parallelism,
            timeout_seconds=config.checkpoint_read_timeout_seconds,
            accelerate=config.store_accelerate,
            unsafe=allow_unsafe_commits,
        )
        self._storage_options = dict(storage_options or {})
        self._follower = Follower(
            self._store,
            config,
            strict=strict,
            outside=allow_outside_paths,
            options=dict(options or {}),
        )
        self._keeper = Keeper(self._store, SystemClock(), outside=allow_outside_paths)
        self._committer = Committer(self._follower, options, landed=self._keeper.committed)
        self._asking = Asking(self._follower)

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
        """Make a table; `TableExists` if there is one, unless `exist_ok`, which opens it.

        `schema` is a `pyarrow.Schema`, a Spark `StructType` or Spark's schema JSON. Of many that
        create the same table at the same time, one does.
        """
        config = resolve(options, table=properties)
        store = open_store(
            uri,
            storage_options,
            parallelism=config.checkpoint_parallelism,
            timeout_seconds=config.checkpoint_read_timeout_seconds,
            accelerate=config.store_accelerate,
            unsafe=allow_unsafe_commits,
        )
        creation.create(
            store,
            config,
            creation.new_metadata(schema, partition_columns, properties, name, description),
            exist_ok=exist_ok,
        )
        return cls(uri, storage_options, options=options, allow_unsafe_commits=allow_unsafe_commits)

    @property
    def uri(self) -> str:
        """Where the table is, without anything secret."""
        return self._store.root

    @property
    def version(self) -> int:
        """The newest version."""
        return self._follower.version

    @property
    def earliest_version(self) -> int:
        """The lowest version from which on every version can be read."""
        return self._follower.earliest_version

    def snapshot(
        self,
        version: int | None = None,
        timestamp: Moment | None = None,
        *,
        max_staleness: float | None = None,
        strict: bool | None = None,
    ) -> Snapshot:
        """The table at its newest version, at a version, or as it was at a moment.

        With `max_staleness` in seconds, an answer not older than that may be given again without
        asking the store.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequest(
                "version and timestamp cannot both be given.", next="Leave one out."
            )
        if timestamp is not None:
            version = self._follower.version_at(to_millis(timestamp))
        if version is not None:
            return self._follower.at(version, strict=strict)
        return self._follower.newest(strict=strict, max_staleness=max_staleness)

    def scan(
        self,
        predicate: Any = None,
        version: int | None = None,
        timestamp: Moment | None = None,
        *,
        max_staleness: float | None = None,
    ) -> ScanPlan:
        """The files that may hold rows the predicate is true for, and how to read them.

        The predicate is SQL text, tuples (a list is AND, a list of lists OR of ANDs), a polars or a
        pyarrow expression; without one every file is planned.
        """
        snapshot = self.snapshot(version, timestamp, max_staleness=max_staleness)
        return scan(snapshot, predicate, self.uri, self._storage_options)

    def refresh(self) -> Snapshot:
        """Look for new commits, read only those, and give the newest snapshot."""
        return self._follower.newest()

    def append(
        self,
        adds: Iterable[object],
        *,
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Add data files to the table: those of `add_file`, `add_parquet`, or fields of an add.

        `txn=("app", n)` makes it a step of an application that is taken once: a second commit with
        the same or a lower number is a no-op, and its result says `duplicate`.
        """
        return operations.append(self._committer, adds, txn=txn, user_metadata=user_metadata)

    def overwrite(
        self,
        adds: Iterable[object],
        where: object = None,
        *,
        read_version: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Put data files in the place of all that are live, or of the partitions `where` picks.

        Without `where` it replaces whatever is there when it lands. With `where`, a predicate on
        partition columns, it replaces what this handle has last seen: files that others added to
        those partitions since are `ConcurrentAppend`.
        """
        return operations.overwrite(
            self._committer,
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
        """Take files out of the table: a list of paths, or a predicate on partition columns.

        The data files stay until vacuum, so earlier versions can still be read.
        """
        return operations.remove(
            self._committer, paths_or_where, read_version=read_version, user_metadata=user_metadata
        )

    def drop_partitions(self, where: object, *, read_version: int | None = None) -> CommitResult:
        """Take every file of the partitions that a predicate picks out of the table."""
        return operations.drop_partitions(self._committer, where, read_version=read_version)

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
        """The general form: add and remove files in one commit.

        `read_version` is the version the decision was made on: what others did since is checked
        against it. `where` is a predicate on the partitions that were read for it: files that
        others added to them since are `ConcurrentAppend`. `data_change=False` says that the rows
        are the same as before, as in a compaction.
        """
        return operations.commit(
            self._committer,
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
        mode: str = "append",
        *,
        where: object = None,
        target_size: str | int = "128MB",
        txn: tuple[str, int] | None = None,
        user_metadata: object = None,
    ) -> CommitResult:
        """Write rows: an Arrow table or reader, a polars or pandas frame, any Arrow stream.

        They become Parquet files with exact statistics, in folders by partition, then one commit.
        `mode="overwrite"` replaces the table, or the partitions that `where` picks.
        """
        return operations.write(
            self._committer,
            data,
            mode,
            where=where,
            target_size=target_size,
            txn=txn,
            user_metadata=user_metadata,
        )

    def set_properties(self, properties: Mapping[str, object]) -> CommitResult:
        """Change properties of the table; None takes one away. Settings need allowed values."""
        return operations.set_properties(self._committer, properties)

    def add_columns(self, columns: object) -> CommitResult:
        """Add columns at the end of the schema: an Arrow schema, a list of fields, or a map.

        They must be nullable: they are null in the files that are there.
        """
        return operations.add_columns(self._committer, columns)

    def upgrade_protocol(
        self,
        reader: int | None = None,
        writer: int | None = None,
        *,
        reader_features: Sequence[str] = (),
        writer_features: Sequence[str] = (),
    ) -> CommitResult:
        """Ask for newer readers and writers, or for features of them. There is no way back."""
        return operations.upgrade_protocol(
            self._committer, reader, writer, reader_features, writer_features
        )

    def restore(self, version: int) -> CommitResult:
        """Make the table what it was at a version, as a new commit: files, schema, properties."""
        return operations.restore(self._committer, version)

    def checkpoint(self) -> CheckpointResult:
        """Write the newest version down as a whole, so that opening it need not replay the log.

        By itself this happens every `checkpoint.interval` commits, behind the writer's back.
        """
        require_polars("A checkpoint")
        return upkeep.checkpoint(self._committer, self._keeper)

    def cleanup(self, *, dry_run: bool | None = None) -> CleanupResult:
        """Delete commits and checkpoints that the retention settings let go of.

        With `dry_run`, say exactly what would be deleted. By itself this happens after a
        checkpoint, unless `cleanup.enabled` is false.
        """
        return upkeep.clean(self._committer, dry_run=dry_run)

    def retention(
        self,
        log_retention: str | int | None = None,
        checkpoint_retention: str | int | None = None,
        *,
        now: Moment | None = None,
    ) -> Retention:
        """Ask beforehand: which files a policy lets go of, how many bytes, which versions stay.

        Durations are text such as `30d`, or milliseconds; without them the table's settings.
        """
        return upkeep.foretell(self._committer, log_retention, checkpoint_retention, now)

    def compact(
        self,
        target_size: str | int = "128MB",
        where: Any = None,
        *,
        max_groups: int | None = None,
        max_files_per_group: int | None = None,
        include_skipped: bool = False,
        cooldown: str | int = "24h",
        dry_run: bool = False,
        spark: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CompactResult:
        """Make large Parquet files of small ones, partition by partition; rows stay as they are.

        Each group of files is one commit, so that others may write meanwhile. A file that cannot
        be read is noted in `skips` for `cooldown` and left out; `include_skipped` tries those in
        their cooldown too. `where` picks the files that may have matching rows. With `spark`, the
        files are rewritten by its workers. The small files stay until `vacuum`.
        """
        require_polars("Compaction")
        wanted = upkeep.wish(
            target_size,
            where,
            max_groups,
            max_files_per_group,
            include_skipped=include_skipped,
            cooldown=cooldown,
        )
        return upkeep.compact(
            self._committer,
            wanted,
            dry_run=dry_run,
            spark=spark,
            options=self._storage_options,
            progress=progress,
        )

    def truncate_history(self, *, dry_run: bool = False) -> CleanupResult:
        """Give up time travel: make a checkpoint of the newest version, delete what came before.

        Version 0 stays, and commits that hold a skip in its cooldown. Readers that are at an
        earlier version lose it; the data files stay until `vacuum`. It waits until no writer relies
        any more on a version that goes: a second on a disk, over a network up to half a minute.
        """
        require_polars("Truncating history")
        return upkeep.truncate_history(self._committer, self._keeper, dry_run=dry_run)

    def vacuum(
        self,
        older_than: str | int = "7d",
        *,
        dry_run: bool = False,
        insist: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> VacuumResult:
        """Delete data files that no version in the log needs and that are older than `older_than`.

        Every version that can be read keeps its files; `cleanup` and `truncate_history` let go of
        versions. Less than 24 hours must be insisted on: a young file may belong to a commit that
        is on its way. `progress` is told how many files are done, and of how many.
        """
        require_polars("Vacuum")
        return upkeep.vacuum(
            self._committer, older_than, dry_run=dry_run, insist=insist, progress=progress
        )

    @property
    def skips(self) -> Skips:
        """Files that merges leave alone for a while: record, active, filter, history."""
        return Skips(self._committer)

    def doctor(
        self,
        *,
        max_commits_since_checkpoint: int | None = None,
        max_small_files: int | None = None,
        assert_stats: Sequence[str] = (),
        data_files: bool = True,
    ) -> Findings:
        """Look at everything about the table and say what is wrong, where, and which call mends it.

        Writes nothing. What is asked for with `max_…` and `assert_stats` (columns that every file
        must have bounds of) is an error when it does not hold; `data_files=False` leaves data files
        alone, which spares listing them. `arrowlog.doctor(uri)` examines a log that does not open.
        """
        limits = Limits(
            max_commits_since_checkpoint,
            max_small_files,
            tuple(assert_stats),
            data_files=data_files,
        )
        follower, now = self._follower, SystemClock().now_ms()
        return examine(self._store, follower.config, now, limits, outside=follower.outside)

    def update_statistics(self, paths: Iterable[str]) -> CommitResult:
        """Read size, rows and bounds of live Parquet files again from their footers, as a commit.

        Everything else that the log says of them stays; no row changes.
        """
        return update_statistics(self._committer, paths)

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until a checkpoint that is being made after a commit is done; whether it is."""
        return self._keeper.wait(seconds)

    def cache_stats(self) -> CacheStats:
        """How often answers came from memory: five hit rates, as the original has them."""
        return self._follower.stats

    def invalidate_cache(self) -> None:
        """Forget everything that was read; the next question reads it anew."""
        self._follower.forget()

    def __repr__(self) -> str:
        """Where it is, and its newest version if that is known."""
        latest = self._follower.latest
        known = "" if latest is None else f", version={latest.version}"
        return f"Table({self.uri!r}{known})"


def add_parquet(
    table: Table,
    path: str,
    partition_values: Mapping[str, object] | None = None,
    *,
    verify: bool = True,
    **fields: Any,
) -> Any:
    """An add for a Parquet file in the table's folder: size, rows, bounds, nulls from its footer.

    Partition values that are not given are taken from folders named `column=value`. A file that
    cannot be read as rows of the table raises `InvalidRequest` with the column and the reason: a
    column of another kind (a list for a number, text for a time), a column that is there twice, a
    codec no reader has. Text columns are read and checked to be UTF-8, and so are columns whose
    values may not fit, such as unsigned integers; `verify=False` leaves that out and reads the
    footer alone.
    """
    committer = table._committer  # noqa: SLF001 -- a method in all but name
    return operations.add_parquet(committer, path, partition_values, fields, verify=verify)
