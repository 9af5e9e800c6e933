"""The state of a table, rebuilt on a cluster: for logs that are too large for one machine.

Tasks take runs of commits that follow one another, and parts of the checkpoint below them. Each
decodes its run, and keeps of every file what the run says last. What is said of one file comes
together in one bucket, by the hash of its name; there the last run that says anything wins. The
rows are those that a replay in one process gives, in the same order.
"""

from __future__ import annotations

import pickle
import time
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import resolve
from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.log.actions import Protocol
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG
from arrowlog.log.recent import RecentCommits
from arrowlog.log.segment import plan
from arrowlog.log.store import open_store
from arrowlog.spark.local import pyspark_sql
from arrowlog.spark.read import open_table, session_settings
from arrowlog.spark.tasks import (
    AT,
    COMBINED,
    REDUCED,
    RUN,
    SAID,
    Job,
    Run,
    Said,
    combined,
    reduce,
    unpacked,
)
from arrowlog.state.apply import schema_of
from arrowlog.state.listing import list_log, list_retired
from arrowlog.state.parquet import open_checkpoint
from arrowlog.state.parts import Parts
from arrowlog.state.snapshot import Report, Snapshot, State

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.log.names import Listing
    from arrowlog.log.segment import Segment
    from arrowlog.log.store import Store

Done = TypeVar("Done")
RUN_BYTES = 32 << 20  # of commits, unpacked
BUCKET_BYTES = 64 << 20
_DAMAGED_MAX = 100
_LOOKED_AT = 4


def snapshot(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    buckets: int | None = None,
) -> Snapshot:
    """The table at its newest version, or at a version, replayed by Spark's tasks.

    Row for row what `Table.snapshot` gives. The live files come to this process; the log does not.
    """
    started = time.perf_counter()
    given = (spark, uri, version, storage_options, options, buckets)
    try:
        return sound(
            lambda damaged: begun(*given, damaged),
            lambda rebuild: _snapshot(spark, rebuild, started),
        )
    except Unparted:
        return open_table(spark, uri, storage_options, options).snapshot(version)


def _snapshot(spark: SparkSession, rebuild: Rebuild, started: float) -> Snapshot:
    found = rebuild.reduced(spark).toArrow().to_pylist()
    state = rebuild.state(said_in(found))
    tables = [unpacked(row["adds"]) for row in found if row["bucket"] != SAID]
    adds = pa.concat_tables(
        [pa.table({"key": pa.nulls(0, pa.string())}), *tables], promote_options="default"
    )
    if tables:
        adds = adds.sort_by([(RUN, "ascending"), (AT, "ascending")])
        adds = adds.drop_columns([RUN, AT]).combine_chunks()
    whole = State(
        state.version,
        state.protocol,
        state.metadata,
        state.schema,
        adds,
        state.timestamp,
        state.txns,
        state.recent,
    )
    return Snapshot(whole, rebuild.report((time.perf_counter() - started) * 1000))


class Unparted(Exception):
    """There is nothing that tasks could share: no commits, and a checkpoint that is one file."""


class Damaged(Exception):
    """The checkpoint that a rebuild began with cannot be read."""

    def __init__(self, version: int, why: str) -> None:
        """Which one, and why."""
        super().__init__(f"checkpoint {version} was not used: {why}")
        self.version = version


class Rebuild:
    """A replay on the cluster: what there is to read, and the frames that do it."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | None,
        storage_options: Mapping[str, Any] | None,
        settings: Mapping[str, object],
        buckets: int | None,
        damaged: Mapping[int, str] | None = None,
    ) -> None:
        """List the log; nothing of it is read yet, but for a checkpoint's manifest.

        `damaged` are checkpoints to pass over, and why.
        """
        self.damaged = dict(damaged or {})
        storage = dict(storage_options or {})
        self.store = open_store(uri, storage)
        self.listing: Listing = list_log(self.store)
        self.base, self.segment = _base(self.store, self.listing, version, set(self.damaged))
        if self.segment.gap is not None:
            warnings.warn(f"{self.store.root}: {self.segment.gap}", ArrowlogWarning, stacklevel=4)
        if version is not None and self.segment.version != version:
            raise LogCorrupt(
                f"version {version} cannot be rebuilt: {self.segment.gap or 'it is not there'}.",
                next=f"The newest that can is {self.segment.version}.",
                version=version,
            )
        sizes = {name: stat.size for name, stat in self.store.stats_from(LOG).items()}
        self.bytes = sum(sizes.get(name, 0) for _, name in self.segment.commits)
        limit = resolve(settings).max_decompressed_bytes
        self.plain = int(self.bytes * _swelling(self.store, self.segment.commits, sizes, limit))
        wanted = buckets or max(1, -(-self.plain // BUCKET_BYTES))
        # Workers have another working directory, so the address is the whole one.
        self.job = Job(self.store.root, storage, settings, self.segment.version, wanted)
        self.runs = self._cut(sizes)

    def _cut(self, sizes: Mapping[str, int]) -> list[Run]:
        """Runs of about the same size, in order; first the parts of the checkpoint."""
        found: list[Run] = []
        checkpoint = self.segment.checkpoint
        if self.base is not None and checkpoint is not None:
            names = tuple(self.listing.parquet_checkpoints[checkpoint])
            for part in self.base.manifest.parts:
                found.append(Run(len(found), (), checkpoint, names, part))
        some: list[tuple[int, str]] = []
        room = min(RUN_BYTES, max(1, -(-self.plain // self.job.buckets)))
        room = room * self.bytes // max(self.plain, 1)  # as they are on the store
        total = 0
        for version, name in self.segment.commits:
            some.append((version, name))
            total += sizes.get(name, 0)
            if total >= room:
                found.append(Run(len(found), tuple(some)))
                some, total = [], 0
        return [*found, Run(len(found), tuple(some))] if some else found

    def reduced(self, spark: SparkSession) -> DataFrame:
        """Live adds by bucket; in a bucket of its own what is said of the table."""
        job = self.job
        work = pa.table(
            {
                "part": pa.array(range(len(self.runs)), pa.int32()),
                "run": pa.array([pickle.dumps(run) for run in self.runs], pa.binary()),
            }
        )
        tasks = spark.createDataFrame(work, "part int, run binary")
        tasks = tasks.repartitionById(max(1, len(self.runs)), "part")

        def arrowlog_decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for run in batch.column("run"):
                    yield combined(pickle.loads(run.as_py()), job)  # noqa: S301 -- ours

        found = tasks.mapInArrow(arrowlog_decode, COMBINED)
        return gathered(found, "bucket", job.buckets, reduce, REDUCED)

    def state(self, said: Iterable[Said]) -> State:
        """All of the state but its files. `Damaged` if what it rests on cannot be read."""
        said = sorted(said, key=lambda one: one.run)
        self._check_current()
        for one in said:
            if one.damaged is not None:
                raise Damaged(self.segment.checkpoint or 0, one.damaged)
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
            for app, step in one.txns.items():
                if app not in txns or step[0] > txns[app][0]:
                    txns[app] = step
            recent = recent.followed_by(one.recent)
        version = self.segment.version
        if metadata is None:
            raise LogCorrupt(
                f"no metaData in the log up to version {version}.",
                next="Restore version 0 from a backup.",
            )
        empty = pa.table({"key": pa.nulls(0, pa.string())})
        schema = schema_of(metadata, version)
        time = max(times, default=None)
        return State(version, protocol, metadata, schema, empty, time, txns, recent)

    def _check_current(self) -> None:
        """Refuse what tasks may have read after the commits were deleted and their names reused."""
        commits = self.segment.commits
        if commits and list_retired(self.store).overlaps(commits[0][0], commits[-1][0]):
            raise LogCorrupt(
                f"versions {commits[0][0]} to {commits[-1][0]} were cleaned up while the cluster"
                " read them.",
                next="Try again.",
            )

    def report(self, millis: float) -> Report:
        """What it took."""
        segment = self.segment
        told = (*self.damaged.values(), *([] if segment.gap is None else [str(segment.gap)]))
        commits = len(segment.commits)
        return Report(
            segment.version,
            "cluster",
            segment.checkpoint,
            commits,
            commits,
            self.bytes,
            millis,
            told,
            segment.gap,
        )


def begun(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, object] | None,
    buckets: int | None,
    damaged: Mapping[int, str] | None = None,
) -> Rebuild:
    """A rebuild with the settings of the call, and below them those of the session."""
    pyspark_sql()
    settings = {**session_settings(spark), **(options or {})}
    return Rebuild(uri, version, storage_options, settings, buckets, damaged)


def sound(begin: Callable[[Mapping[int, str]], Rebuild], work: Callable[[Rebuild], Done]) -> Done:
    """The work done on a rebuild; again without a checkpoint that turns out to be damaged.

    Whether a part is as it was written, only the tasks find out that read it.
    """
    damaged: dict[int, str] = {}
    for _ in range(_DAMAGED_MAX):
        rebuild = begin(damaged)
        try:
            return work(rebuild)
        except Damaged as error:
            damaged[error.version] = str(error)
            warnings.warn(f"{rebuild.store.root}: {error}", ArrowlogWarning, stacklevel=3)
    raise LogCorrupt(f"{_DAMAGED_MAX} checkpoints are damaged.", next="Delete them and try again.")


def gathered(
    frame: DataFrame, name: str, count: int, work: Callable[[pa.Table], pa.Table], schema: str
) -> DataFrame:
    """Rows that have the same number, from -1 to count - 1, brought together in a task of theirs.

    Grouping would make as many tasks as Spark shuffles by default, 200, for whatever there is.
    """

    def arrowlog_gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if not found:
            return
        rows = pa.Table.from_batches(found)
        for number in sorted(pc.unique(rows[name]).to_pylist()):
            yield from work(rows.filter(pc.equal(rows[name], number))).to_batches()

    placed = frame.selectExpr("*", f"{name} + 1 AS place")
    return placed.repartitionById(count + 1, "place").mapInArrow(arrowlog_gather, schema)


def _swelling(
    store: Store, commits: Sequence[tuple[int, str]], sizes: Mapping[str, int], limit: int
) -> float:
    """How many times larger commits are when they are unpacked, by looking at some."""
    some = [name for _, name in commits[:: max(1, len(commits) // _LOOKED_AT)] if sizes.get(name)]
    stored = plain = 0
    for name in some[-_LOOKED_AT:]:  # one at a time: a commit may be large
        key = f"{LOG}/{name}"
        try:
            data = store.get(key)
            plain += len(unwrap(data, key, limit))
            stored += len(data)
        except (LogCorrupt, FileNotFoundError):
            return 1.0  # whoever reads them for good will say what is wrong
    return max(1.0, plain / max(1, stored))


def _base(
    store: Store, listing: Listing, version: int | None, unusable: set[int]
) -> tuple[Parts | None, Segment]:
    """The newest checkpoint that tasks can read in parts; else all commits."""
    for _ in range(len(listing.json_checkpoints) + len(listing.parquet_checkpoints) + 1):
        try:
            segment = plan(listing, version, unusable)
        except LogCorrupt as error:
            raise Unparted from error
        checkpoint = segment.checkpoint
        if checkpoint is None:
            break
        names = listing.parquet_checkpoints.get(checkpoint)
        try:
            found = names and open_checkpoint(store, checkpoint, names, lambda _: None)
        except (LogCorrupt, FileNotFoundError):
            found = None
        if isinstance(found, Parts):
            return found, segment
        unusable.add(checkpoint)
    return None, segment


def said_in(rows: Iterable[Mapping[str, Any]]) -> list[Said]:
    """What is said of the table, from the rows of `Rebuild.reduced`."""
    lists = [pickle.loads(row["adds"]) for row in rows if row["bucket"] == SAID]  # noqa: S301
    return [one for each in lists for one in each]
