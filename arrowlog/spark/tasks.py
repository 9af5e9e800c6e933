"""What the tasks of a rebuild do: decode runs of the log, and settle what they say of each file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import Config, resolve
from arrowlog.errors import LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.log.actions import Metadata, Protocol
from arrowlog.log.decode import Actions, decode
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG
from arrowlog.log.recent import RecentCommits, unknown_before
from arrowlog.log.store import open_store
from arrowlog.log.window import Window
from arrowlog.state.apply import apply, keyed, live_keys
from arrowlog.state.parquet import open_checkpoint
from arrowlog.state.parts import Parts
from arrowlog.state.snapshot import State
from arrowlog.state.stored import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.log.store import Store
    from arrowlog.state.manifest import Part

_WINDOW_BYTES = 6 << 20
RUN, AT = "@run", "@at"  # no field of an add is called so
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
    recent: RecentCommits = field(default_factory=RecentCommits)
    damaged: str | None = None  # why a part of the checkpoint below could not be read


def combined(run: Run, job: Job) -> pa.RecordBatch:
    """A run by bucket: adds that are live behind it, and every file it says anything about."""
    if run.part is not None:
        try:
            adds, said = _from_part(run, job), None
        except (LogCorrupt, FileNotFoundError) as error:
            why = Said(run.number, None, None, None, {}, damaged=str(error))
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
    before = run.commits[0][0] - 1
    recent = unknown_before(before)
    base = State(before, Protocol(), _NOTHING, pa.schema([]), nothing, recent=recent)
    state = apply(base, actions, last, store.root).state
    both = [keyed(actions, action, store.root)[0]["key"] for action in ("add", "remove")]
    touched = pa.chunked_array([chunk for keys in both for chunk in keys.chunks], pa.string())
    said = Said(
        run.number,
        state.protocol if actions.protocols else None,
        state.metadata if actions.metadata else None,
        state.timestamp,
        state.txns,
        state.recent,
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
