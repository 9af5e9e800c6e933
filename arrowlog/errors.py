"""Every error arrowlog raises, one tree, each with the next step in its words.

ArrowlogError
├── TableNotFound          there is no log where you pointed
├── TableExists            a table is already there
├── LogCorrupt             a file of the log says what it must not, or nothing at all
├── DataFileError          a data file of the table is missing, damaged or of other types
├── LogTooLarge            this process may not have the memory that it takes (also a MemoryError)
├── UnsupportedProtocol    the table needs a newer reader or writer
├── CommitConflict         somebody else's commit does not go together with yours
│   ├── ConcurrentRemove
│   ├── ConcurrentAppend
│   ├── MetadataChanged
│   └── ProtocolChanged
├── CommitStateUnknown     nobody can tell yet whether the commit is in the log
├── StoreUnavailable       the store did not answer, or not in time
├── ForkedProcess          this process was forked, and an engine's threads stayed with its parent
└── InvalidRequest         the call asks for what cannot be (also a ValueError)

`ArrowlogWarning` is the one warning category: state was read, and something about it needs eyes.
No message shows a credential: every address passes through `redact`.
"""

from __future__ import annotations

import re

# A secret may have slashes in it, so what begins like user:secret goes up to the last @. A port is
# no secret, and abfs://container@account no user.
_USERINFO = re.compile(
    r"(?<=://)[^/\s:@'\"]+:(?!\d+(?:/|$))[^\s'\"]*@|(?<!abfs://)(?<!abfss://)(?<=://)[^/\s@'\"]+@"
)
_QUERY = re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")


def redact(text: str) -> str:
    """Remove what may be secret from an address or a message: user info and query strings.

    >>> redact("s3://key:secret@bucket/t?token=x")
    's3://bucket/t'
    >>> redact("s3://key:sec/ret@bucket/t"), redact("abfs://box@account/t"), redact("hdfs://h:1/a@b")
    ('s3://bucket/t', 'abfs://box@account/t', 'hdfs://h:1/a@b')
    """
    return _QUERY.sub(r"\1", _USERINFO.sub("", text))


class ArrowlogWarning(UserWarning):
    """The answer stands, and there is something to look at."""


class ArrowlogError(Exception):
    """Base of all: `what` happened, what to do `next`, and where."""

    def __init__(
        self,
        what: str,
        *,
        next: str = "",  # noqa: A002 -- reads as a sentence where it is raised
        file: str | None = None,
        line: int | None = None,
        version: int | None = None,
        txn_id: str | None = None,
    ) -> None:
        """Put the parts together into one message; keep them as attributes."""
        place = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        self.what = redact(what)
        self.next = redact(next)
        self.file = None if file is None else redact(file)
        self.line = line
        self.version = version
        self.txn_id = txn_id
        super().__init__(redact(f"{place}{what}") + (f" {self.next}" if self.next else ""))


class TableNotFound(ArrowlogError):
    """No transaction log at the given place."""


class TableExists(ArrowlogError):
    """A table is already at the given place."""


class LogCorrupt(ArrowlogError):
    """A log file is damaged, missing or contradicts another."""


class DataFileError(ArrowlogError):
    """A data file cannot be read as the table's rows.

    `path` is the file relative to the table, `version` the version that added it; either is None
    if it is not known.
    """

    @property
    def path(self) -> str | None:
        """The file, relative to the table."""
        return self.file


class LogTooLarge(ArrowlogError, MemoryError):
    """Reading on would take more memory than this process may have."""


class UnsupportedProtocol(ArrowlogError):
    """The table asks for a protocol version or feature this arrowlog does not have."""


class CommitConflict(ArrowlogError):
    """A concurrent commit cannot be reconciled with this one."""


class ConcurrentRemove(CommitConflict):
    """A file this commit relies on was removed or replaced meanwhile."""


class ConcurrentAppend(CommitConflict):
    """Files were added meanwhile that this commit should have seen."""


class MetadataChanged(CommitConflict):
    """Schema, partitioning or properties were changed meanwhile."""


class ProtocolChanged(CommitConflict):
    """The table's protocol was changed meanwhile."""


class CommitStateUnknown(ArrowlogError):
    """The store did not say whether the commit landed; nothing was deleted."""


class StoreUnavailable(ArrowlogError):
    """The store failed or ran out of time."""


class ForkedProcess(ArrowlogError):
    """The call needs threads of an engine that the parent process had started before the fork."""


class InvalidRequest(ArrowlogError, ValueError):
    """The arguments of a call do not make sense for this table."""
