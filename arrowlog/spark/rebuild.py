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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import Config, resolve
from arrowlog.errors import ArrowlogWarning, LogCorrupt
from arrowlog.log.actions import Metadata, Protocol
from arrowlog.log.decode import Actions, decode
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG
from arrowlog.log.segment import plan
from arrowlog.log.store import open_store
from arrowlog.log.window import Window
from arrowlog.spark.local import pyspark_sql
from arrowlog.spark.read import open_table, session_settings
from arrowlog.state.apply import apply, keyed, live_keys, schema_of
from arrowlog.state.load import list_log
from arrowlog.state.parquet import open_checkpoint
from arrowlog.state.parts import Parts
from arrowlog.state.snapshot import Report, Snapshot, State
from arrowlog.state.stored import unpack

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.log.names import Listing
    from arrowlog.log.segment import Segment
    from arrowlog.log.store import Store
    from arrowlog.state.manifest import Part

Done = TypeVar("Done")
RUN_BYTES = 32 << 20  # of commits, as they are on the store
BUCKET_BYTES = 64 << 20
_WINDOW_BYTES = 6 << 20
RUN, AT = "@run", "@at"  # no field of an add is called so
_DAMAGED_MAX = 100
SAID = -1  # the bucket of what is said of the table itself
_NOTHING = Metadata(id="", schema_string='{"type":"struct","fields":[]}')
COMBINED = "bucket int, run int, adds binary, touched binary"
REDUCED = "bucket int, adds binary"


@dataclass(frozen=True)
class Job:
    """What every task has to know of a table."""

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    options: Mapping[str, object]
    version: int
    buckets: int

    @property
    def store(self) -> Store:
        """The table's store; made anew where it is needed."""
        return open_store(self.uri, self.storage_options)

    @property
    def config(self) -> Config:
        """The settings of the call and of the session."""
        return resolve(self.options)


@dataclass(frozen=True)
class Run:
    """Commits that follow one another, by version and name; or a part of a checkpoint."""

    number: int
    commits: tuple[tuple[int, str], ...] = ()
    checkpoint: int | None = None
    names: tuple[str, ...] = ()
    part: Part | None = None


@dataclass(frozen=True)
class Said:
    """What a run says of the table itself."""

    run: int
    protocol: Protocol | None
    metadata: Metadata | None
    timestamp: int | None
    txns: Mapping[str, tuple[int, int]]
    damaged: str | None = None  # why a part of the checkpoint below could not be read


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
        return sound(given, lambda rebuild: _snapshot(spark, rebuild, started))
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
        wanted = buckets or max(1, -(-self.bytes // BUCKET_BYTES))
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
        room = min(RUN_BYTES, max(1, -(-self.bytes // self.job.buckets)))
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
        for one in said:
            if one.damaged is not None:
                raise Damaged(self.segment.checkpoint or 0, one.damaged)
        base = None if self.base is None else self.base.manifest
        protocol = Protocol() if base is None else base.protocol
        metadata = None if base is None else base.metadata
        times = [] if base is None or base.timestamp is None else [base.timestamp]
        txns = {} if base is None else dict(base.txns)
        for one in said:
            protocol = one.protocol or protocol
            metadata = one.metadata or metadata
            times += [] if one.timestamp is None else [one.timestamp]
            for app, step in one.txns.items():
                if app not in txns or step[0] > txns[app][0]:
                    txns[app] = step
        version = self.segment.version
        if metadata is None:
            raise LogCorrupt(
                f"no metaData in the log up to version {version}.",
                next="Restore version 0 from a backup.",
            )
        empty = pa.table({"key": pa.nulls(0, pa.string())})
        schema = schema_of(metadata, version)
        return State(version, protocol, metadata, schema, empty, max(times, default=None), txns)

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


def sound(given: tuple[Any, ...], work: Callable[[Rebuild], Done]) -> Done:
    """The work done on a rebuild; again without a checkpoint that turns out to be damaged.

    Whether a part is as it was written, only the tasks find out that read it.
    """
    damaged: dict[int, str] = {}
    for _ in range(_DAMAGED_MAX):
        try:
            return work(begun(*given, damaged=damaged))
        except Damaged as error:
            damaged[error.version] = str(error)
            warnings.warn(f"{given[1]}: {error}", ArrowlogWarning, stacklevel=3)
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


# What tasks do.


def combined(run: Run, job: Job) -> pa.RecordBatch:
    """A run by bucket: adds that are live behind it, and every file it says anything about."""
    if run.part is not None:
        try:
            adds, said = _from_part(run, job), None
        except (LogCorrupt, FileNotFoundError) as error:
            why = Said(run.number, None, None, None, {}, str(error))
            return _batch([(SAID, run.number, pickle.dumps(why), b"")])
        touched = adds.select(["key"])
    else:
        adds, touched, said = _from_commits(run, job)
    adds = adds.append_column(RUN, pa.repeat(pa.scalar(run.number, pa.int32()), adds.num_rows))
    adds = adds.append_column(AT, pa.array(range(adds.num_rows), pa.int64()))
    rows: list[tuple[int, int, bytes, bytes]] = []
    if said is not None:
        rows.append((SAID, run.number, pickle.dumps(said), b""))
    of_adds, of_touched = _bucket(adds["key"], job), _bucket(touched["key"], job)
    for bucket in range(job.buckets):
        some = adds.filter(pc.equal(of_adds, bucket))
        named = touched.filter(pc.equal(of_touched, bucket))
        if named.num_rows:
            rows.append((bucket, run.number, packed(some), packed(named)))
    return _batch(rows)


def _batch(rows: list[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = (pa.int32(), pa.int32(), pa.binary(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names=["bucket", "run", "adds", "touched"])


def _bucket(keys: pa.ChunkedArray, job: Job) -> pa.Array:
    texts = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    return pa.array((texts.hash(0) % job.buckets).cast(pl.Int32).to_arrow())


def _from_part(run: Run, job: Job) -> pa.Table:
    store = job.store
    assert run.checkpoint is not None
    assert run.part is not None
    found = open_checkpoint(store, run.checkpoint, run.names, lambda _: None)
    assert isinstance(found, Parts)
    adds = unpack(found.check(run.part), found.manifest.recipe)
    return live_keys(adds.drop_columns("key"), store.root, run.checkpoint, outside=False)


def _from_commits(run: Run, job: Job) -> tuple[pa.Table, pa.Table, Said]:
    store, actions = job.store, Actions()
    limit = job.config.max_decompressed_bytes
    window, size = Window(limit), 0
    for version, name in run.commits:
        file = f"{LOG}/{name}"
        plain = unwrap(store.get(file), file, limit)
        window.append(file, version, plain)
        size += len(plain)
        if size >= _WINDOW_BYTES:
            actions.extend(decode(window))
            window, size = Window(limit), 0
    if size:
        actions.extend(decode(window))
    last = run.commits[-1][0]
    nothing = pa.table({"key": pa.nulls(0, pa.string())})
    base = State(-1, Protocol(), _NOTHING, pa.schema([]), nothing)
    state = apply(base, actions, last, store.root).state
    both = [keyed(actions, action, store.root)[0]["key"] for action in ("add", "remove")]
    touched = pa.chunked_array([chunk for keys in both for chunk in keys.chunks], pa.string())
    said = Said(
        run.number,
        state.protocol if actions.protocols else None,
        state.metadata if actions.metadata else None,
        state.timestamp,
        state.txns,
    )
    adds = state.adds
    adds = adds.drop_columns("seq") if "seq" in adds.column_names else adds
    return adds, pa.table({"key": touched}), said


def reduce(rows: pa.Table) -> pa.Table:
    """One bucket: of every file what the last run says that says anything of it."""
    bucket = rows["bucket"][0].as_py()
    rows = rows.sort_by("run")  # the same rows in the same order, however often it is done
    payloads = rows["adds"].to_pylist()
    if bucket == SAID:
        said = pickle.dumps([pickle.loads(payload) for payload in payloads])  # noqa: S301 -- ours
        return _one(bucket, said)
    adds = pa.concat_tables([unpacked(each) for each in payloads], promote_options="default")
    named = []
    for payload, run in zip(rows["touched"].to_pylist(), rows["run"], strict=True):
        keys = unpacked(payload)
        named.append(keys.append_column(RUN, pa.repeat(run, keys.num_rows)))
    touched = pl.DataFrame(pl.from_arrow(pa.concat_tables(named)))
    last = touched.group_by("key").agg(pl.col(RUN).max().alias("last"))
    slim = pl.DataFrame(pl.from_arrow(adds.select(["key", RUN])))
    live = slim.join(last, on="key", how="left", maintain_order="left")
    keep = (live[RUN] == live["last"]).to_arrow()
    return _one(bucket, packed(adds.filter(keep)))


def _one(bucket: int, payload: bytes) -> pa.Table:
    arrays = [pa.array([bucket], pa.int32()), pa.array([payload], pa.binary())]
    return pa.table(arrays, names=["bucket", "adds"])


def packed(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    how = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=how) as out:
        out.write_table(table.combine_chunks())
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> pa.Table:
    """The table again."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def said_in(rows: Iterable[Mapping[str, Any]]) -> list[Said]:
    """What is said of the table, from the rows of `Rebuild.reduced`."""
    lists = [pickle.loads(row["adds"]) for row in rows if row["bucket"] == SAID]  # noqa: S301
    return [one for each in lists for one in each]
