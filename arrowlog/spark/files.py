"""The live files of a table as a DataFrame that tasks compute: no process has all of them.

Tasks replay the log as `rebuild` describes; here the files stay where they are. Tables whose log
cannot be cut into runs (Delta tables, table states, a checkpoint that is one JSON document without
the commits before it) are read by one task.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import decompress
from arrowlog.predicate import TRUE, parse_predicate
from arrowlog.scan import plan_scan
from arrowlog.snapshot import (
    InMemoryFiles,
    Report,
    Snapshot,
    State,
    check_readable,
    is_state_table,
    list_retired,
)
from arrowlog.spark.local import check_picklable, require_pyspark, sentence_first
from arrowlog.spark.rebuild import (
    DistributedReplay,
    NotDistributable,
    shuffle_by_number,
    start_replay,
)
from arrowlog.spark.settings import session_settings
from arrowlog.spark.sql_tables import spark_type
from arrowlog.spark.tasks import (
    DECODED_SCHEMA,
    POSITION_COLUMN,
    RECONCILED_SCHEMA,
    RUN_COLUMN,
    TABLE_BUCKET,
    TableActions,
    decode_run,
    deserialize_table,
    reconcile_bucket,
)
from arrowlog.spark.types import cast_batch, to_spark_arrow_schema
from arrowlog.spark.versions import frame_from_arrow, frame_to_arrow, repartition_by_id
from arrowlog.storage import open_store
from arrowlog.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrowlog.predicate import Predicate
    from arrowlog.spark.tasks import LogRun, ReplayJob

_RESULT_SCHEMA = "result binary"
# What the text of a commit with table-level actions contains; an escape may spell them otherwise.
_TABLE_ACTION_TEXTS = (b'"metaData"', b'"protocol"', b"\\u00")


@dataclass(frozen=True)
class FileQuestion:
    """What tasks have to answer: which files, of which table, in which columns. It is pickled."""

    root: str
    state: State  # without files
    predicate: Predicate | None
    target: pa.Schema
    storage_options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def rows_of(self, adds: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of live adds that may have matching rows, as Spark expects them."""
        source = InMemoryFiles(adds, self.state.format)
        snapshot = Snapshot(
            replace(self.state, source=source), Report(self.state.version, "cluster")
        )
        yield from self.rows(plan_scan(snapshot, self.predicate, self.root).files)

    def rows(self, files: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield a table of files as Spark expects it."""
        for batch in files.select(self.target.names).combine_chunks().to_batches():
            yield from cast_batch(_cast(batch, self.target), self.target)


def files(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None = None,
    where: Any = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Return the live files of a table as a lazy DataFrame, computed by Spark tasks.

    It has the rows and columns of `Snapshot.files`, in no particular order; a type that Spark lacks
    becomes text. With `where`, it has the files that may contain matching rows, as
    `Table.scan(where).files`. The version is fixed when this function is called; `buckets` is the
    number of shuffle partitions.
    """
    require_pyspark()
    storage = dict(storage_options or {})
    settings = {**session_settings(spark), **(options or {})}
    check_picklable(storage)
    try:
        replay = start_replay(spark, uri, version, storage, options, buckets)
    except NotDistributable:
        return _by_one_task(spark, uri, version, where, storage, settings)
    state = replay.state(_table_actions(spark, replay))
    check_readable(state.protocol, replay.store.root)
    if is_state_table(state):  # its states count, not the commits below them
        return _by_one_task(spark, uri, version, where, storage, settings)
    question = _question(replay.store.root, state, where, storage)
    work = replay.job

    def arrowlog_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                if row["bucket"] != TABLE_BUCKET:
                    adds = deserialize_table(row["adds"])
                    yield from question.rows_of(adds.drop_columns([RUN_COLUMN, POSITION_COLUMN]))

    def arrowlog_decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pickled in batch.column("run"):
                with sentence_first():
                    yield _decode_strictly(pickle.loads(pickled.as_py()), work)  # noqa: S301 -- ours

    decoded = _runs(spark, replay).mapInArrow(arrowlog_decode, DECODED_SCHEMA)
    reconciled = shuffle_by_number(
        decoded, "bucket", work.buckets, reconcile_bucket, RECONCILED_SCHEMA
    )
    return reconciled.mapInArrow(arrowlog_files, _spark_schema(question.target))


def plan(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    where: Any,
    version: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Return the files that may contain rows matching `where`, pruned by Spark tasks.

    The rows are those of `Table.scan(where).files`; see `files`.
    """
    return files(
        spark,
        uri,
        version,
        where,
        storage_options=storage_options,
        options=options,
        buckets=buckets,
    )


def _runs(spark: SparkSession, replay: DistributedReplay) -> DataFrame:
    """Return a DataFrame of the runs of the log, a task for each."""
    numbers = pa.array(range(len(replay.runs)), pa.int32())
    pickled = pa.array([pickle.dumps(run) for run in replay.runs], pa.binary())
    rows = pa.table({"part": numbers, "run": pickled})
    tasks = frame_from_arrow(spark, rows, "part int, run binary")
    return repartition_by_id(tasks, max(1, len(replay.runs)), "part")


def _table_actions(spark: SparkSession, replay: DistributedReplay) -> list[TableActions]:
    """Return the protocol and metadata of all runs; tasks decode only the commits with some."""
    work = replay.job

    def arrowlog_schema(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pickled in batch.column("run"):
                with sentence_first():
                    said = _read_table_actions(pickle.loads(pickled.as_py()), work)  # noqa: S301 -- ours
                result = pa.array([pickle.dumps(said)], pa.binary())
                yield pa.record_batch([result], names=["result"])

    rows = frame_to_arrow(_runs(spark, replay).mapInArrow(arrowlog_schema, _RESULT_SCHEMA))
    said = [pickle.loads(row) for row in rows["result"].to_pylist()]  # noqa: S301 -- ours
    return [each for each in said if each is not None]


def _read_table_actions(run: LogRun, job: ReplayJob) -> TableActions | None:
    """Return the last protocol and metadata of a run of commits; None if it has none."""
    limit = job.config.max_decompressed_bytes
    protocol = metadata = None
    store = job.store
    for commit in run.commits:  # one at a time: a commit may be large
        plain = decompress(store.get(commit.key), commit.key, limit)
        if not any(text in plain for text in _TABLE_ACTION_TEXTS):
            continue
        window = LineBuffer(limit)
        window.append(commit.key, commit.version, plain)
        actions = decode_buffer(window)
        protocol = max(actions.protocols, key=itemgetter(0))[1] if actions.protocols else protocol
        metadata = max(actions.metadata, key=itemgetter(0))[1] if actions.metadata else metadata
    if protocol is None and metadata is None:
        return None
    return TableActions(run.number, protocol, metadata, None, {})


def _decode_strictly(run: LogRun, job: ReplayJob) -> pa.RecordBatch:
    """Decode a run. Raises `LogCorrupt` if not all of it can be read.

    A part of a checkpoint may be damaged, and commits may be cleaned up meanwhile.
    """
    decoded = decode_run(run, job)
    for bucket, payload in zip(decoded["bucket"], decoded["adds"], strict=True):
        if bucket.as_py() == TABLE_BUCKET:
            said: TableActions = pickle.loads(payload.as_py())  # noqa: S301 -- ours
            if said.damaged is not None:
                raise LogCorrupt(
                    f"checkpoint {run.checkpoint} cannot be read: {said.damaged}",
                    next="arrowlog.spark.snapshot does without it.",
                )
    versions = [commit.version for commit in run.commits]
    if versions and list_retired(job.store).overlaps(versions[0], versions[-1]):
        raise LogCorrupt(
            f"versions {versions[0]} to {versions[-1]} were cleaned up while Spark read them.",
            next="Call the function again.",
        )
    return decoded


def _question(root: str, state: State, where: Any, storage: Mapping[str, Any]) -> FileQuestion:
    """Return the question for the files of a state; parses the predicate."""
    empty = Snapshot(replace(state, source=_no_files(state)), Report(state.version, "cluster"))
    predicate = None if where is None else parse_predicate(where, empty.columns.schema)
    if predicate is not None and predicate.tree == TRUE:
        predicate = None
    stateless = replace(state, source=_no_files(state), txns={})
    return FileQuestion(root, stateless, predicate, _target_schema(empty.files.schema), storage)


def _no_files(state: State) -> InMemoryFiles:
    return InMemoryFiles(pa.table({"key": pa.nulls(0, pa.string())}), state.format)


def _by_one_task(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    version: int | None,
    where: Any,
    storage: Mapping[str, Any],
    settings: Mapping[str, object],
) -> DataFrame:
    """Have one task read the log: once for the schema, and again when the DataFrame is executed."""
    root = open_store(uri, storage).root

    def arrowlog_describe(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with sentence_first():
                state = Table(root, storage, options=settings).snapshot(version).state
                slim = State(
                    state.version,
                    state.protocol,
                    state.metadata,
                    state.schema,
                    _no_files(state),
                    format=state.format,
                )
            result = pa.array([pickle.dumps(slim)], pa.binary())
            yield pa.record_batch([result], names=["result"])

    one = spark.range(1, numPartitions=1)
    rows = frame_to_arrow(one.mapInArrow(arrowlog_describe, _RESULT_SCHEMA))
    state = pickle.loads(rows["result"][0].as_py())  # noqa: S301 -- ours
    question = _question(root, state, where, storage)

    def arrowlog_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with sentence_first():
                table = Table(root, question.storage_options, options=settings)
                snapshot = table.snapshot(question.state.version)
                found = plan_scan(snapshot, question.predicate, root).files
                yield from question.rows(found)

    return one.mapInArrow(arrowlog_files, _spark_schema(question.target))


def _target_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of files in types that Spark has; text in place of others."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    fields = []
    for item in schema:
        kind = spark_type(item.type)
        try:
            from_arrow_type(kind, prefer_timestamp_ntz=True)
        except PySparkException:
            kind = pa.string()
        fields.append(pa.field(item.name, kind))
    return to_spark_arrow_schema(_spark_schema(pa.schema(fields)))


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _cast(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Cast the columns that have another type."""
    arrays = []
    for column, item in zip(batch.columns, target, strict=True):
        arrays.append(column if column.type == item.type else column.cast(item.type))
    return pa.record_batch(arrays, schema=target)
