"""arrowlog: an Arrow-native engine for transaction logs of tables in the lake.

import arrowlog
table = arrowlog.Table("path/to/table")
table.snapshot().files                      # the live files, a pyarrow.Table
table.snapshot(version=7)                   # as it was
"""

from arrowlog.errors import (
    ArrowlogError,
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    ConcurrentAppend,
    ConcurrentRemove,
    InvalidRequest,
    LogCorrupt,
    MetadataChanged,
    ProtocolChanged,
    StoreUnavailable,
    TableExists,
    TableNotFound,
    UnsupportedProtocol,
)
from arrowlog.log.actions import Metadata, Protocol
from arrowlog.state.snapshot import Report, Snapshot
from arrowlog.table import Table

__version__ = "0.1.0"

__all__ = [
    "ArrowlogError",
    "ArrowlogWarning",
    "CommitConflict",
    "CommitStateUnknown",
    "ConcurrentAppend",
    "ConcurrentRemove",
    "InvalidRequest",
    "LogCorrupt",
    "Metadata",
    "MetadataChanged",
    "Protocol",
    "ProtocolChanged",
    "Report",
    "Snapshot",
    "StoreUnavailable",
    "Table",
    "TableExists",
    "TableNotFound",
    "UnsupportedProtocol",
    "__version__",
]
