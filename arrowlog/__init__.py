"""arrowlog: an Arrow-native engine for the transaction logs of lake tables.

import arrowlog
table = arrowlog.Table("path/to/table")
table.snapshot().files                      # the live files, a pyarrow.Table
table.snapshot(version=7)                   # time travel
table.scan("day = '2024-01-01'").paths      # the files to read for a predicate
table.append([arrowlog.add_parquet(table, "day=2024-01-01/new.parquet")])
"""

from typing import Any

from arrowlog.commit.adds import Add, add_file
from arrowlog.commit.transaction import CommitResult
from arrowlog.errors import (
    ArrowlogError,
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    ConcurrentAppend,
    ConcurrentRemove,
    DataFileError,
    ForkedProcess,
    InvalidRequest,
    LogCorrupt,
    LogTooLarge,
    MetadataChanged,
    ProtocolChanged,
    StoreUnavailable,
    TableExists,
    TableNotFound,
    UnsupportedProtocol,
)
from arrowlog.log.actions import Metadata, Protocol
from arrowlog.scan.explain import Explanation
from arrowlog.scan.plan import ScanPlan, Split
from arrowlog.state.snapshot import Report, Snapshot
from arrowlog.statements import sql_statement
from arrowlog.table import Table, add_parquet
from arrowlog.upkeep.doctor import doctor
from arrowlog.upkeep.findings import Finding, Findings
from arrowlog.upkeep.repair import repair, repair_notes
from arrowlog.version import __version__

__all__ = [
    "Add",
    "ArrowlogError",
    "ArrowlogWarning",
    "CommitConflict",
    "CommitResult",
    "CommitStateUnknown",
    "ConcurrentAppend",
    "ConcurrentRemove",
    "DataFileError",
    "Explanation",
    "Finding",
    "Findings",
    "ForkedProcess",
    "InvalidRequest",
    "LogCorrupt",
    "LogTooLarge",
    "Metadata",
    "MetadataChanged",
    "Protocol",
    "ProtocolChanged",
    "Report",
    "ScanPlan",
    "Snapshot",
    "Split",
    "StoreUnavailable",
    "Table",
    "TableExists",
    "TableNotFound",
    "UnsupportedProtocol",
    "__version__",
    "add_file",
    "add_parquet",
    "doctor",
    "repair",
    "repair_notes",
    "sql_statement",
]


def __getattr__(name: str) -> Any:
    """Import the submodules `spark` and `plots` on first use: they need optional packages."""
    if name in ("plots", "spark"):
        import importlib

        return importlib.import_module(f"arrowlog.{name}")
    raise AttributeError(f"module 'arrowlog' has no attribute {name!r}")
