"""Log lines: logger, level, text and structured fields of each, declared in one place.

Lines go to the standard `logging` module, below the logger `arrowlog`. The fields are attributes of
the `LogRecord` (`extra`), so that a JSON formatter or a log shipper gets them without parsing text;
`event` names the line. `docs/reference/log-lines.md` is generated from `EVENTS`.

A line that is not enabled costs one call of `isEnabledFor`. Where collecting the fields costs more,
callers ask `Event.enabled` first. No field contains a credential: addresses of tables have none,
and messages of errors are redacted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# A library does not print: without this, Python writes warnings to stderr if the application has
# not configured logging.
logging.getLogger("arrowlog").addHandler(logging.NullHandler())


class Event:
    """A kind of log line: where it goes, at which level, and what it says."""

    __slots__ = ("fields", "level", "logger", "name", "text")

    def __init__(
        self, topic: str, level: int, name: str, text: str, fields: Mapping[str, str]
    ) -> None:
        """Declare a line. `text` is a %-format of the fields; `fields` says what each one means."""
        self.logger = logging.getLogger(f"arrowlog.{topic}")
        self.level = level
        self.name = name
        self.text = text
        self.fields = dict(fields)

    @property
    def enabled(self) -> bool:
        """Whether the line would be logged."""
        return self.logger.isEnabledFor(self.level)

    def log(self, **fields: Any) -> None:
        """Log the line with these fields, which must be those that were declared."""
        if self.logger.isEnabledFor(self.level):
            # One dict as the only argument: `logging` then formats the text by name.
            self.logger.log(
                self.level, self.text, fields, extra={"event": self.name, **fields}, stacklevel=2
            )


def compression_ratio(uncompressed: int, stored: int) -> float:
    """Return how many times smaller the stored bytes are; 1.0 if either number is unknown.

    >>> compression_ratio(300, 100), compression_ratio(0, 100)
    (3.0, 1.0)
    """
    return round(uncompressed / stored, 2) if uncompressed > 0 and stored > 0 else 1.0


_TABLE = {"table": "address of the table, without credentials"}
_VERSION = {"version": "version of the table"}
_SIZES = {
    "bytes": "size as stored",
    "uncompressed_bytes": "size before compression",
    "ratio": "uncompressed size divided by stored size",
}
_MS = {"ms": "duration in milliseconds"}

CHECKPOINT_CREATED = Event(
    "checkpoint",
    logging.INFO,
    "checkpoint_created",
    "%(table)s: created checkpoint at version %(version)d with %(files)d active files"
    " (%(bytes)d bytes, %(ratio).1fx compressed, %(ms).0f ms)",
    {
        **_TABLE,
        **_VERSION,
        "files": "live files in the checkpoint",
        **_SIZES,
        **_MS,
        "format": "forms that were written: `json`, `parquet`, `both` or `avro-state`",
        "background": "whether a commit triggered it, rather than a call",
    },
)
CHECKPOINT_FAILED = Event(
    "checkpoint",
    logging.WARNING,
    "checkpoint_failed",
    "%(table)s: the checkpoint of version %(version)d failed: %(reason)s",
    {**_TABLE, **_VERSION, "reason": "the error", "error": "class of the error"},
)
CHECKPOINT_READ_BACK = Event(
    "checkpoint",
    logging.INFO,
    "checkpoint_read_back",
    "%(table)s: the store did not confirm the checkpoint of version %(version)d; reading back"
    " what was written (attempt %(attempt)d): %(reason)s",
    {**_TABLE, **_VERSION, "attempt": "failed attempts so far", "reason": "the store's error"},
)
CHECKPOINT_BYPASSED = Event(
    "checkpoint",
    logging.WARNING,
    "checkpoint_bypassed",
    "%(table)s: checkpoint %(version)d was not used: %(reason)s",
    {**_TABLE, "version": "version of the checkpoint", "reason": "what is wrong with it"},
)
CHECKPOINT_MENDED = Event(
    "checkpoint",
    logging.INFO,
    "checkpoint_mended",
    "%(table)s: damaged checkpoint %(version)d was made anew with %(files)d active files"
    " (%(ms).0f ms)",
    {
        **_TABLE,
        "version": "version of the checkpoint",
        "files": "live files in the checkpoint",
        **_MS,
    },
)
CHECKPOINTS_STOPPED = Event(
    "checkpoint",
    logging.WARNING,
    "checkpoints_stopped",
    "%(table)s: no checkpoints are made in this process: it was forked after polars had started its"
    " threads",
    _TABLE,
)
CLEANUP_DONE = Event(
    "cleanup",
    logging.INFO,
    "cleanup_done",
    "%(table)s: cleaned up %(files)d log files before version %(earliest_version)d"
    " (%(bytes)d bytes, %(ms).0f ms)",
    {
        **_TABLE,
        "files": "files that were deleted, above 0",
        "bytes": "their size",
        "failures": "deletions that failed",
        "earliest_version": "version from which on every version can be read",
        **_MS,
    },
)
CLEANUP_IDLE = Event(
    "cleanup",
    logging.DEBUG,
    "cleanup_idle",
    "%(table)s: cleanup found nothing to delete (%(ms).0f ms)",
    {**_TABLE, **_MS},
)
CLEANUP_FAILED = Event(
    "cleanup",
    logging.WARNING,
    "cleanup_failed",
    "%(table)s: the cleanup failed: %(reason)s",
    {**_TABLE, "reason": "the error"},
)
CLEANUP_DEFERRED = Event(
    "cleanup",
    logging.INFO,
    "cleanup_deferred",
    "%(table)s: %(commits)d commits are kept until they are %(seconds).0f s old",
    {**_TABLE, "commits": "commits that are kept", "seconds": "minimum age of a commit"},
)
TRUNCATION_WAITS = Event(
    "cleanup",
    logging.INFO,
    "truncation_waits",
    "%(table)s: truncation waits %(wait_seconds).0f s, until the commits to delete are"
    " %(seconds).0f s old",
    {**_TABLE, "wait_seconds": "how long it waits", "seconds": "minimum age of a commit"},
)
LOG_FILE_DELETED = Event(
    "cleanup",
    logging.DEBUG,
    "log_file_deleted",
    "%(table)s: deleted old log file %(path)s",
    {
        **_TABLE,
        "path": "the file, relative to the table",
        "kind": "`commit`, `checkpoint`, `state` or `manifest`",
        "version": "version of the file; -1 for a manifest",
        "bytes": "its size",
    },
)
DELETION_FAILED = Event(
    "cleanup",
    logging.WARNING,
    "deletion_failed",
    "%(table)s: a file could not be deleted: %(reason)s",
    {**_TABLE, "reason": "the error"},
)
VACUUM_DONE = Event(
    "vacuum",
    logging.INFO,
    "vacuum_done",
    "%(table)s: vacuum deleted %(files)d data files (%(bytes)d bytes, %(ms).0f ms)",
    {
        **_TABLE,
        "files": "data files that were deleted",
        "bytes": "their size",
        "failures": "deletions that failed",
        **_MS,
    },
)
COMPACTION_DONE = Event(
    "compaction",
    logging.INFO,
    "compaction_done",
    "%(table)s: compacted %(files_removed)d files into %(files_added)d (%(conflicts)d conflicts,"
    " %(skipped)d files skipped, %(ms).0f ms)",
    {
        **_TABLE,
        "files_removed": "small files that were replaced",
        "files_added": "files that replace them",
        "conflicts": "groups given up because another commit changed a file",
        "skipped": "files that could not be read",
        **_MS,
    },
)
MERGE_SKIPPED = Event(
    "compaction",
    logging.WARNING,
    "merge_skipped",
    "%(table)s: the merge left out %(path)s: %(reason)s",
    {**_TABLE, "path": "the data file", "reason": "why it could not be read"},
)
SKIP_RECORDED = Event(
    "skips",
    logging.INFO,
    "skip_recorded",
    "%(table)s: recorded skipped file %(path)s (skip count: %(skip_count)d, retry after:"
    " %(retry_after)s)",
    {
        **_TABLE,
        "path": "the data file",
        "reason": "why it is skipped",
        "operation": "operation that skips it",
        "skip_count": "how often it was skipped so far",
        "retry_after": "end of the cooldown, ISO 8601 in UTC",
        **_VERSION,
    },
)
COOLDOWN_FILTERED = Event(
    "skips",
    logging.INFO,
    "cooldown_filtered",
    "%(table)s: filtered out %(files)d files in their cooldown",
    {**_TABLE, "files": "number of files, above 0"},
)
FILE_IN_COOLDOWN = Event(
    "skips",
    logging.DEBUG,
    "file_in_cooldown",
    "%(table)s: file in cooldown: %(path)s (retry after: %(retry_after)s)",
    {**_TABLE, "path": "the data file", "retry_after": "end of the cooldown, ISO 8601 in UTC"},
)
STATE_LOADED = Event(
    "read",
    logging.DEBUG,
    "state_loaded",
    "%(table)s: loaded version %(version)d from %(source)s in %(ms).1f ms (%(commits)d commits,"
    " %(bytes)d bytes)",
    {
        **_TABLE,
        **_VERSION,
        "source": "`commits`, `checkpoint`, or `copy` for the local disk cache",
        "checkpoint": "version of the checkpoint that was used, or None",
        "commits": "commits that were read",
        "bytes": "bytes that were read",
        **_MS,
    },
)
REFRESHED = Event(
    "read",
    logging.DEBUG,
    "refreshed",
    "%(table)s: refreshed to version %(version)d (%(commits)d new commits, %(ms).1f ms)",
    {**_TABLE, **_VERSION, "commits": "commits that were new", **_MS},
)
COMMIT_READ = Event(
    "codec",
    logging.DEBUG,
    "commit_read",
    "%(table)s: reading %(path)s (codec=%(codec)s, %(bytes)d bytes, %(uncompressed_bytes)d"
    " uncompressed)",
    {
        **_TABLE,
        "path": "the log file",
        **_VERSION,
        "codec": "`gzip`, `zstd`, `lz4`, `snappy` or `none`",
        **_SIZES,
    },
)
UNSUPPORTED_CODEC = Event(
    "codec",
    logging.ERROR,
    "unsupported_codec",
    "unsupported compression codec %(codec)s in %(path)s",
    {"path": "the log file, relative to the table", "codec": "the codec byte"},
)
COMMIT_ATTEMPT = Event(
    "commit",
    logging.DEBUG,
    "commit_attempt",
    "%(table)s: attempt %(attempt)d to commit %(operation)s as version %(version)d",
    {
        **_TABLE,
        **_VERSION,
        "operation": "name of the operation",
        "attempt": "number of the put, from 1",
        "txn_id": "unique id of the commit",
    },
)
COMMIT_LOST_RACE = Event(
    "commit",
    logging.DEBUG,
    "commit_lost_race",
    "%(table)s: another commit won version %(version)d; rebasing %(operation)s",
    {
        **_TABLE,
        "version": "version that was lost",
        "operation": "name of the operation",
        "losses": "races lost so far",
        "txn_id": "unique id of the commit",
    },
)
COMMIT_LANDED = Event(
    "commit",
    logging.DEBUG,
    "commit_landed",
    "%(table)s: committed %(operation)s as version %(version)d (codec=%(codec)s, %(bytes)d bytes,"
    " %(ratio).1fx compressed, %(attempts)d attempts, %(ms).1f ms)",
    {
        **_TABLE,
        **_VERSION,
        "operation": "name of the operation",
        "attempts": "puts that were sent",
        "codec": "`gzip`, `zstd`, `lz4`, `snappy` or `none`",
        **_SIZES,
        **_MS,
        "txn_id": "unique id of the commit",
    },
)
COMMIT_CONFLICT = Event(
    "commit",
    logging.INFO,
    "commit_conflict",
    "%(table)s: the commit is not in the log: %(reason)s",
    {
        **_TABLE,
        "version": "version of the concurrent commit, or None",
        "error": "class of the error that is raised",
        "reason": "the error",
        **_MS,
    },
)
COMMIT_UNKNOWN = Event(
    "commit",
    logging.WARNING,
    "commit_unknown",
    "%(table)s: %(reason)s",
    {
        **_TABLE,
        "version": "version that the commit may have, or None",
        "txn_id": "unique id of the commit",
        "reason": "the error that is raised",
    },
)
STORE_RETRY = Event(
    "store",
    logging.DEBUG,
    "store_retry",
    "%(table)s: repeating a request (%(operation)s) after %(reason)s",
    {
        **_TABLE,
        "operation": "`read`, `list`, `stat`, `write` or `delete`",
        "reason": "the error, without credentials",
    },
)
REPAIR_DONE = Event(
    "repair",
    logging.INFO,
    "repair_done",
    "repair of %(table)s: version %(version)d with %(files)d files was written to %(target)s"
    " (%(missing)d missing, %(ms).0f ms)",
    {
        "table": "address of the damaged log, without credentials",
        "target": "address of the new log",
        "version": "newest version that could be salvaged",
        "files": "data files in the new log",
        "missing": "data files that were left out",
        **_MS,
    },
)
REPAIR_FAILED = Event(
    "repair",
    logging.ERROR,
    "repair_failed",
    "repair of %(table)s failed: %(reason)s",
    {**_TABLE, "reason": "the error"},
)
REPAIR_NOTE = Event(
    "repair",
    logging.WARNING,
    "repair_note",
    "repair of %(table)s: %(note)s",
    {**_TABLE, "note": "what the repair could not keep, such as a missing data file"},
)

EVENTS: dict[str, Event] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Event)
}
