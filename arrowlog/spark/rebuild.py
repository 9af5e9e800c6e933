"""Distributed log replay, for logs that are too large for one machine.

The log segment is cut into runs: consecutive commits, or one part of the checkpoint below them.
Each task decodes a run and reconciles its actions, keeping the last action on every file. A shuffle
by the hash of the file key brings all actions on a file into one bucket, where the latest run that
mentions the file wins. The rows and their order are those of a replay in one process.
"""

from __future__ import annotations

import pickle
import time
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import resolve
from arrowlog.errors import ArrowlogWarning, InvalidRequest, LogCorrupt, TableNotFound
from arrowlog.formats import Protocol, RecentCommits
from arrowlog.formats.indextables import LOG_FOLDER, decompress
from arrowlog.snapshot import (
    CheckpointPartReader,
    InMemoryFiles,
    Report,
    Snapshot,
    State,
    list_log,
    list_retired,
    open_log,
    open_parquet_checkpoint,
    parse_table_schema,
    plan_segment,
)
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.local import require_pyspark
from arrowlog.spark.read import open_table
from arrowlog.spark.settings import session_settings
from arrowlog.spark.tasks import (
    DECODED_SCHEMA,
    POSITION_COLUMN,
    RECONCILED_SCHEMA,
    RUN_COLUMN,
    TABLE_BUCKET,
    LogRun,
    ReplayJob,
    TableActions,
    decode_run,
    deserialize_table,
    reconcile_bucket,
)
from arrowlog.spark.versions import frame_from_arrow, frame_to_arrow, repartition_by_id
from arrowlog.storage import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.formats import CommitFile, LogListing
    from arrowlog.snapshot import LogSegment
    from arrowlog.storage import Store

WorkResult = TypeVar("WorkResult")
RUN_BYTES = 32 << 20  # decompressed bytes of commits per run
BUCKET_BYTES = 64 << 20  # decompressed bytes of commits per bucket
_MAX_DAMAGED_CHECKPOINTS = 100
_SAMPLED_COMMITS = 4  # to estimate the compression ratio


def snapshot(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    buckets: int | None = None,
) -> Snapshot:
    """Return the latest snapshot of a table, or that of `version`, replayed by Spark tasks.

    The result equals that of `Table.snapshot`, row by row. This process receives the live files but
    never reads the log itself. `buckets` is the number of shuffle partitions; by default it follows
    from the size of the log. A log without anything to distribute is replayed in this process.
    """
    started = time.perf_counter()
    arguments = (spark, uri, version, storage_options, options, buckets)
    try:
        return retry_without_damaged(
            lambda damaged: start_replay(*arguments, damaged),
            lambda rebuild: _snapshot(spark, rebuild, started),
        )
    except NotDistributable:
        return open_table(spark, uri, storage_options, options).snapshot(version)


def _snapshot(spark: SparkSession, rebuild: DistributedReplay, started: float) -> Snapshot:
    rows = frame_to_arrow(rebuild.reconciled_adds(spark)).to_pylist()
    state = rebuild.state(collect_table_actions(rows))
    tables = [deserialize_table(row["adds"]) for row in rows if row["bucket"] != TABLE_BUCKET]
    adds = pa.concat_tables(
        [pa.table({"key": pa.nulls(0, pa.string())}), *tables], promote_options="default"
    )
    if tables:
        adds = adds.sort_by([(RUN_COLUMN, "ascending"), (POSITION_COLUMN, "ascending")])
        adds = adds.drop_columns([RUN_COLUMN, POSITION_COLUMN]).combine_chunks()
    complete = State(
        state.version,
        state.protocol,
        state.metadata,
        state.schema,
        InMemoryFiles(adds),
        state.timestamp,
        state.txns,
        state.recent,
    )
    return Snapshot(complete, rebuild.report((time.perf_counter() - started) * 1000))


class NotDistributable(Exception):
    """The log cannot be distributed; the caller must replay it in this process.

    No log segment can be built without the checkpoints that tasks cannot read in parts, or the log
    has another format.
    """


class DamagedCheckpoint(Exception):
    """The checkpoint at the start of a distributed replay cannot be read."""

    def __init__(self, version: int, why: str) -> None:
        """`version` is that of the checkpoint."""
        super().__init__(f"checkpoint {version} was not used: {why}")
        self.version = version


class DistributedReplay:
    """A distributed replay: its log segment, cut into runs, and the DataFrames that execute it."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | None,
        storage_options: Mapping[str, Any] | None,
        settings: Mapping[str, object],
        buckets: int | None,
        damaged: Mapping[int, str] | None = None,
    ) -> None:
        """List the log, read the manifest of its checkpoint, and cut the log segment into runs.

        A few commits are read to estimate the compression ratio. `damaged` are the versions of
        checkpoints to skip, with the reasons. Raises `InvalidRequest` if there is no such version,
        `LogCorrupt` if it cannot be rebuilt, and `NotDistributable` if the log cannot be
        distributed.
        """
        self.damaged = dict(damaged or {})
        storage = dict(storage_options or {})
        self.store = open_store(uri, storage)
        try:
            self.listing: LogListing = list_log(self.store)
        except TableNotFound:
            open_log(self.store)  # raises if there is no log of another format either
            raise NotDistributable from None
        self.base, self.segment = _base(self.store, self.listing, version, set(self.damaged))
        if self.segment.gap is not None:
            warnings.warn(f"{self.store.root}: {self.segment.gap}", ArrowlogWarning, stacklevel=4)
        if version is not None and self.segment.version != version:
            newest = self.segment.version
            if self.segment.gap is None and version > self.listing.newest:
                said = f"There is no version {version}; the newest is {newest}."
                raise InvalidRequest(said, next="", version=version)
            raise LogCorrupt(
                f"version {version} cannot be rebuilt: {self.segment.gap or 'its commit is gone'}.",
                next=f"The latest version that can be rebuilt is {newest}.",
                version=version,
            )
        sizes = {name: stat.size for name, stat in self.store.stats_from(LOG_FOLDER).items()}
        self.bytes = sum(sizes.get(commit.name, 0) for commit in self.segment.commits)
        limit = resolve(settings).max_decompressed_bytes
        self.plain = int(
            self.bytes * _compression_ratio(self.store, self.segment.commits, sizes, limit)
        )
        wanted = buckets or max(1, -(-self.plain // BUCKET_BYTES))
        # Workers have another working directory, so they get the absolute root.
        self.job = ReplayJob(self.store.root, storage, settings, self.segment.version, wanted)
        self.runs = self._cut(sizes)

    def _cut(self, sizes: Mapping[str, int]) -> list[LogRun]:
        """Cut the segment into runs in log order: the parts of the checkpoint, then commits.

        Runs of commits have about the same size.
        """
        runs: list[LogRun] = []
        checkpoint = self.segment.checkpoint
        if self.base is not None and checkpoint is not None:
            form = self.listing.checkpoint_form(checkpoint, "parquet")
            assert form is not None
            for part in self.base.manifest.parts:
                runs.append(LogRun(len(runs), (), checkpoint, form.keys, part))
        commits: list[CommitFile] = []
        run_bytes = min(RUN_BYTES, max(1, -(-self.plain // self.job.buckets)))
        run_bytes = run_bytes * self.bytes // max(self.plain, 1)  # compressed, as in the store
        total = 0
        for commit in self.segment.commits:
            commits.append(commit)
            total += sizes.get(commit.name, 0)
            if total >= run_bytes:
                runs.append(LogRun(len(runs), tuple(commits)))
                commits, total = [], 0
        return [*runs, LogRun(len(runs), tuple(commits))] if commits else runs

    def reconciled_adds(self, spark: SparkSession) -> DataFrame:
        """Return a lazy DataFrame of the live adds, one row per bucket.

        The bucket `TABLE_BUCKET` has the table-level actions of all runs; `collect_table_actions`
        reads them.
        """
        job = self.job
        decoded = self.map_runs(spark, lambda run: decode_run(run, job), DECODED_SCHEMA)
        return shuffle_by_number(
            decoded, "bucket", job.buckets, reconcile_bucket, RECONCILED_SCHEMA
        )

    def map_runs(
        self,
        spark: SparkSession,
        work: Callable[[LogRun], pa.RecordBatch],
        schema: str,
        runs: Sequence[LogRun] | None = None,
    ) -> DataFrame:
        """Return a lazy DataFrame of what `work` returns for each run, by default of all runs.

        Each run is a task. `schema` is that of the rows.
        """
        require_on_workers(spark)
        runs = self.runs if runs is None else runs
        pickled = pa.array([pickle.dumps(run) for run in runs], pa.binary())
        rows = pa.table({"part": pa.array(range(len(runs)), pa.int32()), "run": pickled})
        tasks = frame_from_arrow(spark, rows, "part int, run binary")
        tasks = repartition_by_id(tasks, max(1, len(runs)), "part")

        def arrowlog_decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for run in batch.column("run"):
                    yield work(pickle.loads(run.as_py()))  # noqa: S301 -- ours

        return tasks.mapInArrow(arrowlog_decode, schema)

    def state(self, said: Iterable[TableActions]) -> State:
        """Reconcile the table-level actions of all runs; the state has no files.

        Raises `DamagedCheckpoint` if a task could not read its part of the checkpoint, and
        `LogCorrupt` if the log has no metadata or was cleaned up meanwhile.
        """
        said = sorted(said, key=lambda one: one.run)
        self._check_not_retired()
        for one in said:
            if one.damaged is not None:
                raise DamagedCheckpoint(self.segment.checkpoint or 0, one.damaged)
        base = None if self.base is None else self.base.manifest
        protocol = Protocol() if base is None else base.protocol
        metadata = None if base is None else base.metadata
        times = [] if base is None or base.timestamp is None else [base.timestamp]
        txns = {} if base is None else dict(base.txns)
        recent = RecentCommits() if base is None else base.recent
        for one in said:
            protocol = one.protocol or protocol
            metadata = one.metadata or metadata
            times += [] if one.timestamp is None else [one.timestamp]
            for app, txn in one.txns.items():
                if app not in txns or txn[0] > txns[app][0]:
                    txns[app] = txn
            recent = recent.followed_by(one.recent)
        version = self.segment.version
        if metadata is None:
            raise LogCorrupt(
                f"no metaData in the log up to version {version}.",
                next="Restore version 0 from a backup.",
            )
        empty = InMemoryFiles(pa.table({"key": pa.nulls(0, pa.string())}))
        schema = parse_table_schema(metadata, version)
        time = max(times, default=None)
        return State(version, protocol, metadata, schema, empty, time, txns, recent)

    def _check_not_retired(self) -> None:
        """Raise `LogCorrupt` if commits of the segment were retired while tasks read them.

        A stalled writer may have put another commit under the name of a deleted one.
        """
        commits = self.segment.commits
        if not commits:
            return
        first, last = commits[0].version, commits[-1].version
        if list_retired(self.store).overlaps(first, last):
            raise LogCorrupt(
                f"versions {first} to {last} were cleaned up while Spark tasks read them.",
                next="Try again.",
            )

    def report(self, millis: float) -> Report:
        """Return the report of a replay that took `millis`."""
        segment = self.segment
        messages = (*self.damaged.values(), *([] if segment.gap is None else [str(segment.gap)]))
        commits = len(segment.commits)
        return Report(
            segment.version,
            "cluster",
            segment.checkpoint,
            commits,
            commits,
            self.bytes,
            millis,
            messages,
            segment.gap,
        )


def start_replay(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, object] | None,
    buckets: int | None,
    damaged: Mapping[int, str] | None = None,
) -> DistributedReplay:
    """Start a distributed replay. `options` override the settings of the session."""
    require_pyspark()
    settings = {**session_settings(spark), **(options or {})}
    return DistributedReplay(uri, version, storage_options, settings, buckets, damaged)


def retry_without_damaged(
    begin: Callable[[Mapping[int, str]], DistributedReplay],
    work: Callable[[DistributedReplay], WorkResult],
) -> WorkResult:
    """Run `work` on a replay, and repeat it without each checkpoint that proves damaged.

    Only the tasks that read a part of a checkpoint can verify it. Each damaged checkpoint is
    reported as an `ArrowlogWarning`. Raises `LogCorrupt` after `_MAX_DAMAGED_CHECKPOINTS`.
    """
    damaged: dict[int, str] = {}
    for _ in range(_MAX_DAMAGED_CHECKPOINTS):
        rebuild = begin(damaged)
        try:
            return work(rebuild)
        except DamagedCheckpoint as error:
            damaged[error.version] = str(error)
            warnings.warn(f"{rebuild.store.root}: {error}", ArrowlogWarning, stacklevel=3)
    raise LogCorrupt(
        f"{_MAX_DAMAGED_CHECKPOINTS} checkpoints are damaged.", next="Delete them and try again."
    )


def shuffle_by_number(
    frame: DataFrame, name: str, count: int, work: Callable[[pa.Table], pa.Table], schema: str
) -> DataFrame:
    """Shuffle rows by the integer column `name` and run `work` once per number, a task for each.

    Numbers range from -1 to `count` - 1. `schema` is that of the rows that `work` returns. A
    `groupBy` would always make `spark.sql.shuffle.partitions` tasks, 200 by default.
    """

    def arrowlog_gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = list(batches)
        if not received:
            return
        rows = pa.Table.from_batches(received)
        for number in sorted(pc.unique(rows[name]).to_pylist()):
            yield from work(rows.filter(pc.equal(rows[name], number))).to_batches()

    numbered = frame.selectExpr("*", f"{name} + 1 AS place")  # partition ids begin at 0
    return repartition_by_id(numbered, count + 1, "place").mapInArrow(arrowlog_gather, schema)


def _compression_ratio(
    store: Store, commits: Sequence[CommitFile], sizes: Mapping[str, int], limit: int
) -> float:
    """Estimate the compression ratio of commits, at least 1, from a few of them."""
    step = max(1, len(commits) // _SAMPLED_COMMITS)
    sample = [commit.key for commit in commits[::step] if sizes.get(commit.name)]
    stored = plain = 0
    for key in sample[-_SAMPLED_COMMITS:]:  # one at a time: a commit may be large
        try:
            data = store.get(key)
            plain += len(decompress(data, key, limit))
            stored += len(data)
        except (LogCorrupt, FileNotFoundError):
            return 1.0  # the task that decodes the commit raises the error
    return max(1.0, plain / max(1, stored))


def _base(
    store: Store, listing: LogListing, version: int | None, unusable: set[int]
) -> tuple[CheckpointPartReader | None, LogSegment]:
    """Find the latest checkpoint that tasks can read in parts; without one, all commits.

    Adds every other checkpoint to `unusable`. Raises `NotDistributable` if the commits that are
    left do not reach back far enough.
    """
    for _ in range(len(listing.checkpoints) + 1):
        try:
            segment = plan_segment(listing, version, unusable)
        except LogCorrupt as error:
            raise NotDistributable from error
        checkpoint = segment.checkpoint
        if checkpoint is None:
            break
        form = listing.checkpoint_form(checkpoint, "parquet")
        try:
            base = form and open_parquet_checkpoint(store, checkpoint, form.keys, lambda _: None)
        except (LogCorrupt, FileNotFoundError):
            base = None
        if isinstance(base, CheckpointPartReader):
            return base, segment
        unusable.add(checkpoint)
    return None, segment


def collect_table_actions(rows: Iterable[Mapping[str, Any]]) -> list[TableActions]:
    """Extract the table-level actions of all runs from the reconciled rows."""
    lists = [pickle.loads(row["adds"]) for row in rows if row["bucket"] == TABLE_BUCKET]  # noqa: S301
    return [one for each in lists for one in each]
