"""The tasks of a distributed replay: decode runs of the log and reconcile their actions."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import Config, resolve
from arrowlog.decode import ActionBatch, LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats import CommitFile, Metadata, Protocol, RecentCommits, no_recent_commits
from arrowlog.snapshot import (
    CheckpointPartReader,
    InMemoryFiles,
    State,
    from_checkpoint_rows,
    open_parquet_checkpoint,
    replay_actions,
    with_checkpoint_keys,
    with_file_keys,
)
from arrowlog.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.snapshot import CheckpointPart
    from arrowlog.storage import Store

_WINDOW_BYTES = 6 << 20  # decompressed bytes of commits that are decoded together
# Columns with the run and the position in it, by which adds are sorted into log order. The prefix
# keeps them from clashing with a field of an add.
RUN_COLUMN, POSITION_COLUMN = "@run", "@at"
TABLE_BUCKET = -1  # the bucket of table-level actions
_EMPTY_METADATA = Metadata(id="", schema_string='{"type":"struct","fields":[]}')
DECODED_SCHEMA = "bucket int, run int, adds binary, touched binary"
RECONCILED_SCHEMA = "bucket int, adds binary"


@dataclass(frozen=True)
class ReplayJob:
    """What every task of a distributed replay needs. It is pickled with the task."""

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    options: Mapping[str, object]
    version: int
    buckets: int

    @property
    def store(self) -> Store:
        """The table's store, opened in the process that asks for it."""
        return open_store(self.uri, self.storage_options)

    @property
    def config(self) -> Config:
        """The settings of the call and of the session, without those of the table."""
        return resolve(self.options)


@dataclass(frozen=True)
class LogRun:
    """Work of one task: consecutive commits, or one part of a checkpoint.

    Numbers follow the log order.
    """

    number: int
    commits: tuple[CommitFile, ...] = ()
    checkpoint: int | None = None
    keys: tuple[str, ...] = ()
    part: CheckpointPart | None = None


@dataclass(frozen=True)
class TableActions:
    """The table-level actions of a run, reconciled."""

    run: int
    protocol: Protocol | None
    metadata: Metadata | None
    timestamp: int | None
    txns: Mapping[str, tuple[int, int]]
    recent: RecentCommits = field(default_factory=RecentCommits)
    damaged: str | None = None  # why the part of the checkpoint could not be read


class DamagedPart(Exception):
    """A part of the checkpoint below the log segment cannot be read."""


@dataclass(frozen=True)
class DecodedRun:
    """The adds that are live after a run, the keys of its other files, and what it says else.

    `others` are the files that the run mentions and that are not live after it; None if there are
    none. A run that is a part of a checkpoint has no table-level actions.
    """

    adds: pa.Table
    others: pa.ChunkedArray | None
    actions: TableActions | None


def read_run(run: LogRun, job: ReplayJob) -> DecodedRun:
    """Decode a run. Raises `DamagedPart` if it is a part of a checkpoint that cannot be read."""
    if run.part is None:
        return _from_commits(run, job)
    try:
        return DecodedRun(read_part_adds(run, job), None, None)
    except (LogCorrupt, FileNotFoundError) as error:
        raise DamagedPart(str(error)) from error


def decode_run(run: LogRun, job: ReplayJob) -> pa.RecordBatch:
    """Decode a run and partition the result by bucket.

    Each row has the adds that are live after the run, and the keys of all files that it mentions.
    If a part of the checkpoint cannot be read, the result says so instead of raising.
    """
    try:
        found = read_run(run, job)
    except DamagedPart as error:
        failure = TableActions(run.number, None, None, None, {}, damaged=str(error))
        return _batch([(TABLE_BUCKET, run.number, pickle.dumps(failure), b"")])
    adds = found.adds
    chunks = adds["key"].chunks + ([] if found.others is None else found.others.chunks)
    touched = pa.table({"key": pa.chunked_array(chunks, pa.string())})
    adds = adds.append_column(
        RUN_COLUMN, pa.repeat(pa.scalar(run.number, pa.int32()), adds.num_rows)
    )
    adds = adds.append_column(POSITION_COLUMN, pa.array(range(adds.num_rows), pa.int64()))
    rows: list[tuple[int, int, bytes, bytes]] = []
    if found.actions is not None:
        rows.append((TABLE_BUCKET, run.number, pickle.dumps(found.actions), b""))
    add_buckets = bucket_numbers(adds["key"], job).to_arrow()
    touched_buckets = bucket_numbers(touched["key"], job).to_arrow()
    for bucket in range(job.buckets):
        bucket_adds = adds.filter(pc.equal(add_buckets, bucket))
        bucket_touched = touched.filter(pc.equal(touched_buckets, bucket))
        if bucket_touched.num_rows:
            rows.append(
                (bucket, run.number, serialize_table(bucket_adds), serialize_table(bucket_touched))
            )
    return _batch(rows)


def _batch(rows: list[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = (pa.int32(), pa.int32(), pa.binary(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names=["bucket", "run", "adds", "touched"])


def bucket_numbers(keys: pa.ChunkedArray, job: ReplayJob) -> pl.Series:
    """Return the bucket of each key, by its hash."""
    texts = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    return (texts.hash(0) % job.buckets).cast(pl.Int32)


def read_part_adds(run: LogRun, job: ReplayJob) -> pa.Table:
    """Read the adds of a run that is a part of a checkpoint."""
    store = job.store
    assert run.checkpoint is not None
    assert run.part is not None
    checkpoint = open_parquet_checkpoint(store, run.checkpoint, run.keys, lambda _: None)
    assert isinstance(checkpoint, CheckpointPartReader)
    adds = from_checkpoint_rows(checkpoint.read_part(run.part), checkpoint.manifest.recipe)
    return with_checkpoint_keys(
        adds.drop_columns("key"), store.root, run.checkpoint, allow_external_paths=False
    )


def _from_commits(run: LogRun, job: ReplayJob) -> DecodedRun:
    """Replay the commits of a run on an empty state."""
    store, actions = job.store, ActionBatch()
    window = LineBuffer(job.config.max_decompressed_bytes)
    keys = [commit.key for commit in run.commits]
    versions = [commit.version for commit in run.commits]
    first = 0
    while first < len(keys):
        count, _ = store.read_into(window, keys[first:], versions[first:], _WINDOW_BYTES)
        actions.extend(decode_buffer(window))
        window.clear()
        first += count
    no_files = InMemoryFiles(pa.table({"key": pa.nulls(0, pa.string())}))
    before, last = versions[0] - 1, versions[-1]
    recent = no_recent_commits(before)
    base = State(before, Protocol(), _EMPTY_METADATA, pa.schema([]), no_files, recent=recent)
    state = replay_actions(base, actions, last, store.root).state
    adds = state.adds
    adds = adds.drop_columns("seq") if "seq" in adds.column_names else adds
    columns = [
        with_file_keys(actions, action, store.root)[0]["key"] for action in ("add", "remove")
    ]
    mentioned = pa.chunked_array([chunk for keys in columns for chunk in keys.chunks], pa.string())
    others = None
    if len(mentioned) > adds.num_rows:
        live = pc.is_in(mentioned, value_set=adds["key"].combine_chunks())
        others = mentioned.filter(pc.invert(live))
    said = TableActions(
        run.number,
        state.protocol if actions.protocols else None,
        state.metadata if actions.metadata else None,
        state.timestamp,
        state.txns,
        state.recent,
    )
    return DecodedRun(adds, others, said)


def reconcile_bucket(rows: pa.Table) -> pa.Table:
    """Reconcile one bucket: an add is live if no later run mentions its file."""
    bucket = rows["bucket"][0].as_py()
    rows = rows.sort_by("run")  # deterministic, also if Spark retries the task
    payloads = rows["adds"].to_pylist()
    if bucket == TABLE_BUCKET:
        said = pickle.dumps([pickle.loads(payload) for payload in payloads])  # noqa: S301 -- ours
        return _result(bucket, said)
    adds = pa.concat_tables(
        [deserialize_table(each) for each in payloads], promote_options="default"
    )
    tables = []
    for payload, run in zip(rows["touched"].to_pylist(), rows["run"], strict=True):
        keys = deserialize_table(payload)
        tables.append(keys.append_column(RUN_COLUMN, pa.repeat(run, keys.num_rows)))
    touched = pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))
    last = touched.group_by("key").agg(pl.col(RUN_COLUMN).max().alias("last"))
    slim = pl.DataFrame(pl.from_arrow(adds.select(["key", RUN_COLUMN])))
    live = slim.join(last, on="key", how="left", maintain_order="left")
    keep = (live[RUN_COLUMN] == live["last"]).to_arrow()
    return _result(bucket, serialize_table(adds.filter(keep)))


def _result(bucket: int, payload: bytes) -> pa.Table:
    arrays = [pa.array([bucket], pa.int32()), pa.array([payload], pa.binary())]
    return pa.table(arrays, names=["bucket", "adds"])


def serialize_table(table: pa.Table) -> bytes:
    """Serialize a table as a compressed Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as out:
        out.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def deserialize_table(data: bytes) -> pa.Table:
    """Deserialize a table that `serialize_table` serialized."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
