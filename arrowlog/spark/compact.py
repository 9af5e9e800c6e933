"""Compaction on Spark: groups are rewritten where Spark's workers are, and committed here.

Each group is a row of a small DataFrame; a worker opens the table's store, makes the new file and
sends back what to say of it. Some tasks for each core go at a time, so that what is made is
committed while others wait.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.log.store import open_store
from arrowlog.log.store.remote import secrets_in
from arrowlog.spark.local import check_sendable, pyspark_sql
from arrowlog.upkeep.compact import Attempt, attempt, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from arrowlog.commit.committer import Committer
    from arrowlog.upkeep.rewrite import Task

    Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_TASKS_PER_CORE = 4
_CORES = 8  # where a session does not say how many it has


def runner_on(
    spark: SparkSession, committer: Committer, options: Mapping[str, Any]
) -> Callable[[Sequence[Task]], Iterator[Attempt]]:
    """What rewrites groups on the session's workers."""
    pyspark_sql()
    config = committer.config(committer.head_of(committer.seen()))
    work = _worker(
        committer.store.root,
        options,
        config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
    )

    def run(tasks: Sequence[Task]) -> Iterator[Attempt]:
        step = _TASKS_PER_CORE * _cores(spark)
        for start in range(0, len(tasks), step):
            base = committer.look()  # before the files are read: what happens later is checked
            some = tasks[start : start + step]
            ready = [task for task in some if unchanged(base.state, task.group) is None]
            yield from (Attempt(task, base) for task in some if task not in ready)
            yield from (replace(found, base=base) for found in _on_workers(spark, ready, work))

    return run


def _cores(spark: SparkSession) -> int:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _CORES
    return max(1, int(spark.sparkContext.defaultParallelism))


def _on_workers(spark: SparkSession, tasks: Sequence[Task], work: Work) -> Iterator[Attempt]:
    if not tasks:
        return
    pickled = pa.array([pickle.dumps(task) for task in tasks], pa.binary())
    rows = pa.table({"part": pa.array(range(len(tasks)), pa.int32()), "task": pickled})
    frame = spark.createDataFrame(rows, "part int, task binary")
    frame = frame.repartitionById(len(tasks), "part")
    for row in frame.mapInArrow(work, "found binary").collect():
        yield pickle.loads(bytes(row["found"]))  # noqa: S301 -- ours


def _worker(root: str, options: Mapping[str, Any], seconds: float, *, accelerate: bool) -> Work:
    """What a worker does. It is pickled whole, so it holds no more than it needs."""
    check_sendable(options)

    def arrowlog_compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column("task"):
                task = pickle.loads(packed.as_py())  # noqa: S301 -- ours
                store = open_store(root, options, timeout_seconds=seconds, accelerate=accelerate)
                try:
                    found = attempt(store, task)
                except Exception as error:  # noqa: BLE001 -- one group must not end the others
                    found = Attempt(task, None, failed=_cleared(error, options))
                yield pa.record_batch({"found": pa.array([pickle.dumps(found)], pa.binary())})

    return arrowlog_compact


def _cleared(error: Exception, options: Mapping[str, Any]) -> str:
    reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    for secret in secrets_in(options):
        reason = reason.replace(secret, "***") if len(secret) > 3 else reason
    return reason
