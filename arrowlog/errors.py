"""All errors that arrowlog raises. Every message ends with the next step to take.

ArrowlogError
├── TableNotFound          there is no transaction log at the given location
├── TableExists            a table exists at the given location
├── LogCorrupt             a log file is damaged, missing or contradicts another
├── CheckpointError        a checkpoint could not be written or cannot be used
│   ├── CheckpointWriteError       writing one failed (also a StoreUnavailable)
│   ├── CheckpointValidationError  one contradicts the log (also a LogCorrupt)
│   └── CheckpointCorruptionError  one is damaged or incomplete (also a LogCorrupt)
├── DataFileError          a data file is missing, damaged or has incompatible types
├── LogTooLarge            reading the log needs more memory than allowed (also a MemoryError)
├── UnsupportedProtocol    the table requires a newer reader or writer
├── CommitConflict         a concurrent commit conflicts with this one; nothing was committed
│   ├── ConcurrentRemove
│   ├── ConcurrentAppend
│   ├── MetadataChanged
│   └── ProtocolChanged
├── CommitStateUnknown     the commit may or may not be in the log
├── StoreUnavailable       the store failed, for a reason that has no error of its own
│   ├── CredentialsMissing     no credentials were given or found
│   ├── CredentialsRefused     the credentials are wrong or have expired
│   ├── AccessDenied           the credentials or the user lack permission
│   ├── BucketNotFound         the bucket does not exist
│   ├── ReadOnlyStore          the file system is read-only
│   ├── StoreFull              the disk is full or the quota is used up
│   ├── StoreTimeout           the store did not respond in time
│   ├── StoreThrottled         the store limits the rate of requests
│   └── StoreUnreachable       no connection: unknown host, refused or lost
│       └── TlsFailed          no encrypted connection
├── ForkedProcess          an engine's threads were lost when this process was forked
└── InvalidRequest         an argument is invalid (also a ValueError)
    └── UnknownStorageOption   there is no storage option of this name

`ArrowlogWarning` is the only warning category.
Messages contain no credentials: all of them pass through `redact`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from typing import Literal

    # What programs decide by: messages are for people and may change. The doctor reports the same
    # codes.
    ProblemCode = Literal[
        "checkpoint-diverges",  # a checkpoint differs from a replay of its commits
        "checkpoint-partial",  # files that belong to a checkpoint are missing
        "file-unreadable",  # the store cannot read one file of the log; the file may be intact
        "feature-unknown",  # the table requires a feature that this release does not support
        "paths-outside",  # a data file lies outside the table
        "state-misnumbered",  # a table state is in the folder of another version
        "protocol-unknown",  # the table requires a newer reader or writer version
    ]

# A secret can contain slashes, so `user:secret` is removed up to the last @. A port is not a secret
# (`hdfs://host:1/a@b`), and neither is the container in `abfs://container@account`.
_USERINFO = (
    r"(?<=://)[^/\s:@'\"]+:(?!\d+(?:/|$))[^\s'\"]*@|(?<!abfs://)(?<!abfss://)(?<=://)[^/\s@'\"]+@"
)
_QUERY = r"(://[^\s'\"?]*)\?[^\s'\"]*"


def redact(text: str) -> str:
    """Remove user info and query strings, which may be secret, from the URLs in a text.

    >>> redact("s3://key:secret@bucket/t?token=x")
    's3://bucket/t'
    >>> redact("s3://key:sec/ret@bucket/t"), redact("abfs://box@account/t"), redact("hdfs://h:1/a@b")
    ('s3://bucket/t', 'abfs://box@account/t', 'hdfs://h:1/a@b')
    """
    import re  # only here: `import arrowlog` loads this module

    return re.sub(_QUERY, r"\1", re.sub(_USERINFO, "", text))


class ArrowlogWarning(UserWarning):
    """The result is valid, but something about the table needs attention."""


class ArrowlogError(Exception):
    """Base class of all errors.

    Attributes:
        what: what happened.
        next: what to do about it.
        file: the file concerned, if any.
        line: the line in that file, counted from 1.
        version: the table version concerned, if any.
        txn_id: the unique id of the commit concerned, if any.
        code: the kind of problem, where programs have to tell it from others.
    """

    def __init__(
        self,
        what: str,
        *,
        next: str = "",  # noqa: A002 -- raise sites read as a sentence
        file: str | None = None,
        line: int | None = None,
        version: int | None = None,
        txn_id: str | None = None,
        code: ProblemCode | None = None,
    ) -> None:
        """Build the message from its parts, redacted."""
        prefix = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        self.what = redact(what)
        self.next = redact(next)
        self.file = None if file is None else redact(file)
        self.line = line
        self.version = version
        self.txn_id = txn_id
        self.code = code
        super().__init__(redact(f"{prefix}{what}") + (f" {self.next}" if self.next else ""))


class TableNotFound(ArrowlogError):
    """There is no transaction log at the given location."""


class TableExists(ArrowlogError):
    """A table exists at the given location."""


class LogCorrupt(ArrowlogError):
    """A log file is damaged, missing or contradicts another."""


class DataFileError(ArrowlogError):
    """A data file cannot be read as rows of the table.

    `path` is the file, `version` the version that added it; either is None if unknown.
    """

    @property
    def path(self) -> str | None:
        """The path of the file relative to the table, or None if unknown."""
        return self.file


class LogTooLarge(ArrowlogError, MemoryError):
    """Reading the log would exceed the memory limit of this process."""


class UnsupportedProtocol(ArrowlogError):
    """The table requires a protocol version or feature that this release does not support."""


class CommitConflict(ArrowlogError):
    """A concurrent commit conflicts with this one. This commit is not in the log.

    `version` is the version of the concurrent commit.
    """


class ConcurrentRemove(CommitConflict):
    """A concurrent commit removed or replaced a file that this commit removes."""


class ConcurrentAppend(CommitConflict):
    """A concurrent commit added files to what this commit read."""


class MetadataChanged(CommitConflict):
    """A concurrent commit changed the schema, partitioning or properties."""


class ProtocolChanged(CommitConflict):
    """A concurrent commit changed the table's protocol."""


class CommitStateUnknown(ArrowlogError):
    """It is unknown whether the commit landed, so its data files were not deleted.

    `version` and `txn_id` identify it: search the history for them before committing again.
    """


class StoreUnavailable(ArrowlogError):
    """The store failed. Subclasses tell why, where the store says it."""


class CredentialsMissing(StoreUnavailable):
    """The store needs credentials, and none were given or found in the environment."""


class CredentialsRefused(StoreUnavailable):
    """The store refused the credentials: they are wrong, have expired or lack a token."""


class AccessDenied(StoreUnavailable):
    """The credentials, or the user of this process, do not permit the operation."""


class BucketNotFound(StoreUnavailable):
    """The bucket does not exist."""


class ReadOnlyStore(StoreUnavailable):
    """The file system is read-only."""


class StoreFull(StoreUnavailable):
    """The disk is full, the quota is used up, or a file would be too large."""


class StoreTimeout(StoreUnavailable):
    """The store did not respond in time."""


class StoreThrottled(StoreUnavailable):
    """The store limits the rate of requests."""


class StoreUnreachable(StoreUnavailable):
    """There is no connection to the server: unknown host, connection refused or lost."""


class TlsFailed(StoreUnreachable):
    """No encrypted connection could be made, or the server's certificate is not trusted."""


class CheckpointError(ArrowlogError):
    """A checkpoint could not be written, or cannot be used. Commits are never affected.

    `version` is the version of the checkpoint. Readers bypass a checkpoint that cannot be used
    with a warning; the error is raised only if the table cannot be read without it.
    """


class CheckpointWriteError(CheckpointError, StoreUnavailable):
    """The store failed while a checkpoint was written; `__cause__` is its error.

    What was written is either complete or ignored by readers.
    """


class CheckpointValidationError(CheckpointError, LogCorrupt):
    """A checkpoint contradicts the commits, or belongs to another version; its files are intact."""


class CheckpointCorruptionError(CheckpointError, LogCorrupt):
    """A file of a checkpoint is damaged, incomplete or missing."""


class ForkedProcess(ArrowlogError):
    """The call needs an engine whose threads the parent process had started before the fork."""


class InvalidRequest(ArrowlogError, ValueError):
    """An argument is invalid, in general or for this table."""


class UnknownStorageOption(InvalidRequest):
    """There is no storage option of this name."""
