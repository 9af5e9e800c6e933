"""The outcome of a commit: what its caller gets, and what is logged and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.log_lines import COMMIT_LANDED, compression_ratio
from arrowlog.metering import metrics_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.storage import Store


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a commit that is in the log.

    Attributes:
        version: the version of the commit.
        attempts: number of puts sent to the store.
        operation_metrics: files, bytes and rows added and removed.
        operation: name of the operation.
        timestamp: commit time in milliseconds since the epoch.
        txn_id: the unique id of the commit.
        duplicate: the application transaction given as `txn` was committed before, at `version`.
            Nothing was written; `timestamp` and `txn_id` are None.
        milliseconds: duration of the commit, retries included; files that were written before it
            are not.
        size_bytes: size of the commit in the log, 0 if nothing was written.
        uncompressed_bytes: its size before compression.
    """

    version: int
    attempts: int
    operation_metrics: Mapping[str, int]
    operation: str = ""
    timestamp: int | None = None
    txn_id: str | None = None
    duplicate: bool = False
    milliseconds: float = 0.0
    size_bytes: int = 0
    uncompressed_bytes: int = 0

    @property
    def compression_ratio(self) -> float:
        """Uncompressed size of the commit divided by its size in the log."""
        return compression_ratio(self.uncompressed_bytes, self.size_bytes)


def report_landed(store: Store, result: CommitResult, codec: str) -> None:
    """Log and count a commit that is in the log."""
    metrics = metrics_of(store)
    metrics.add("commit_attempts", result.attempts)
    if result.duplicate:
        metrics.add("duplicates")
        return
    metrics.add("commits")
    if result.attempts > 1:
        metrics.add("commit_retries", result.attempts - 1)
    metrics.observe("commit_ms", result.milliseconds)
    metrics.observe("commit_bytes", result.size_bytes)
    metrics.observe("commit_ratio", result.compression_ratio)
    if COMMIT_LANDED.enabled:
        COMMIT_LANDED.log(
            table=store.root,
            version=result.version,
            operation=result.operation,
            attempts=result.attempts,
            codec=codec,
            bytes=result.size_bytes,
            uncompressed_bytes=result.uncompressed_bytes,
            ratio=result.compression_ratio,
            ms=result.milliseconds,
            txn_id=result.txn_id,
        )
