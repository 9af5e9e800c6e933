"""Compaction on Spark: workers rewrite groups of files, the driver commits them.

Each group is a row of a small DataFrame. A worker opens the table's store, writes the new file and
returns its add. Groups are submitted in batches of a few tasks per core, so that finished groups
are committed before the next batch starts.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.maintenance import RewriteAttempt, find_changed_file, try_rewrite
from arrowlog.spark.executors import require_on_workers
from arrowlog.spark.local import check_picklable, is_connect, redact_error, require_pyspark
from arrowlog.spark.versions import frame_from_arrow, repartition_by_id
from arrowlog.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from arrowlog.maintenance import RewriteTask
    from arrowlog.transaction import WriteSession

    Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_TASKS_PER_CORE = 4
_DEFAULT_CORES = 8  # on Spark Connect, which does not expose the number of cores


def make_spark_runner(
    spark: SparkSession, write_session: WriteSession, options: Mapping[str, Any]
) -> Callable[[Sequence[RewriteTask]], Iterator[RewriteAttempt]]:
    """Return a function that rewrites compaction groups on the workers of a session."""
    require_pyspark()
    config = write_session.config(write_session.head_of(write_session.base_snapshot()))
    work = _worker(
        write_session.store.root,
        options,
        config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
    )

    def run(tasks: Sequence[RewriteTask]) -> Iterator[RewriteAttempt]:
        batch_size = _TASKS_PER_CORE * _cores(spark)
        for start in range(0, len(tasks), batch_size):
            # Before files are read: the conflict checker covers every commit after this version.
            base = write_session.read_latest()
            batch = tasks[start : start + batch_size]
            ready = [task for task in batch if find_changed_file(base.state, task.group) is None]
            yield from (RewriteAttempt(task, base) for task in batch if task not in ready)
            yield from (replace(done, base=base) for done in _on_workers(spark, ready, work))

    return run


def _cores(spark: SparkSession) -> int:
    if is_connect(spark):
        return _DEFAULT_CORES
    return max(1, int(spark.sparkContext.defaultParallelism))


def _on_workers(
    spark: SparkSession, tasks: Sequence[RewriteTask], work: Work
) -> Iterator[RewriteAttempt]:
    if not tasks:
        return
    require_on_workers(spark)
    pickled = pa.array([pickle.dumps(task) for task in tasks], pa.binary())
    rows = pa.table({"part": pa.array(range(len(tasks)), pa.int32()), "task": pickled})
    frame = frame_from_arrow(spark, rows, "part int, task binary")
    frame = repartition_by_id(frame, len(tasks), "part")
    for row in frame.mapInArrow(work, "attempt binary").collect():
        yield pickle.loads(bytes(row["attempt"]))  # noqa: S301 -- ours


def _worker(root: str, options: Mapping[str, Any], seconds: float, *, accelerate: bool) -> Work:
    """Return the function that workers run. Its closure is pickled, so it is kept small."""
    check_picklable(options)

    def arrowlog_compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pickled in batch.column("task"):
                task = pickle.loads(pickled.as_py())  # noqa: S301 -- ours
                store = open_store(root, options, timeout_seconds=seconds, accelerate=accelerate)
                try:
                    done = try_rewrite(store, task)
                except Exception as error:  # noqa: BLE001 -- one failed group must not stop the others
                    done = RewriteAttempt(task, None, failed=redact_error(error, options))
                yield pa.record_batch({"attempt": pa.array([pickle.dumps(done)], pa.binary())})

    return arrowlog_compact
