"""arrowlog: an Arrow-native columnar state engine for the transaction logs of lake tables.

    import arrowlog

    table = arrowlog.Table("path/to/table")
    table.snapshot().files                      # the live files, a pyarrow.Table
    table.snapshot(version=7)                   # time travel
    table.scan("day = '2024-01-01'").paths      # the files that may hold matching rows

Public names are resolved on first use (PEP 562), so that `import arrowlog` loads no engine.
"""

from __future__ import annotations

from arrowlog import fork_safety as _fork_safety  # noqa: F401 -- registers the fork hooks
from arrowlog.lazy_names import import_on_first_use
from arrowlog.version import __version__

TYPE_CHECKING = False  # importing typing takes longer than the rest
if TYPE_CHECKING:  # type checkers see the same names as `_HOMES` lists; a test compares the two
    from arrowlog import plots as plots
    from arrowlog import spark as spark
    from arrowlog import testing as testing
    from arrowlog.conversion import convert as convert
    from arrowlog.errors import AccessDenied as AccessDenied
    from arrowlog.errors import ArrowlogError as ArrowlogError
    from arrowlog.errors import ArrowlogWarning as ArrowlogWarning
    from arrowlog.errors import BucketNotFound as BucketNotFound
    from arrowlog.errors import CheckpointCorruptionError as CheckpointCorruptionError
    from arrowlog.errors import CheckpointError as CheckpointError
    from arrowlog.errors import CheckpointValidationError as CheckpointValidationError
    from arrowlog.errors import CheckpointWriteError as CheckpointWriteError
    from arrowlog.errors import CommitConflict as CommitConflict
    from arrowlog.errors import CommitStateUnknown as CommitStateUnknown
    from arrowlog.errors import ConcurrentAppend as ConcurrentAppend
    from arrowlog.errors import ConcurrentRemove as ConcurrentRemove
    from arrowlog.errors import CredentialsMissing as CredentialsMissing
    from arrowlog.errors import CredentialsRefused as CredentialsRefused
    from arrowlog.errors import DataFileError as DataFileError
    from arrowlog.errors import ForkedProcess as ForkedProcess
    from arrowlog.errors import InvalidRequest as InvalidRequest
    from arrowlog.errors import LogCorrupt as LogCorrupt
    from arrowlog.errors import LogTooLarge as LogTooLarge
    from arrowlog.errors import MetadataChanged as MetadataChanged
    from arrowlog.errors import ProtocolChanged as ProtocolChanged
    from arrowlog.errors import ReadOnlyStore as ReadOnlyStore
    from arrowlog.errors import StoreFull as StoreFull
    from arrowlog.errors import StoreThrottled as StoreThrottled
    from arrowlog.errors import StoreTimeout as StoreTimeout
    from arrowlog.errors import StoreUnavailable as StoreUnavailable
    from arrowlog.errors import StoreUnreachable as StoreUnreachable
    from arrowlog.errors import TableExists as TableExists
    from arrowlog.errors import TableNotFound as TableNotFound
    from arrowlog.errors import TlsFailed as TlsFailed
    from arrowlog.errors import UnknownStorageOption as UnknownStorageOption
    from arrowlog.errors import UnsupportedProtocol as UnsupportedProtocol
    from arrowlog.formats import Metadata as Metadata
    from arrowlog.formats import Protocol as Protocol
    from arrowlog.metering import metrics as metrics
    from arrowlog.predicate import indexquery as indexquery
    from arrowlog.recovery import Finding as Finding
    from arrowlog.recovery import Findings as Findings
    from arrowlog.recovery import RebuildProblem as RebuildProblem
    from arrowlog.recovery import RebuildResult as RebuildResult
    from arrowlog.recovery import doctor as doctor
    from arrowlog.recovery import rebuild as rebuild
    from arrowlog.recovery import repair as repair
    from arrowlog.recovery import repair_losses as repair_losses
    from arrowlog.recovery import repair_notes as repair_notes
    from arrowlog.scan import Explanation as Explanation
    from arrowlog.scan import ScanPlan as ScanPlan
    from arrowlog.scan import Split as Split
    from arrowlog.snapshot import Report as Report
    from arrowlog.snapshot import Snapshot as Snapshot
    from arrowlog.statements import sql_statement as sql_statement
    from arrowlog.table import Table as Table
    from arrowlog.table import add_parquet as add_parquet
    from arrowlog.table import scan_polars as scan_polars
    from arrowlog.transaction import Add as Add
    from arrowlog.transaction import CommitResult as CommitResult
    from arrowlog.transaction import add_file as add_file

# Where each public name is defined; a name without a module is a module itself.
_HOMES = {
    "": ("plots", "spark", "testing"),
    "conversion": ("convert",),
    "errors": (
        "AccessDenied",
        "ArrowlogError",
        "ArrowlogWarning",
        "BucketNotFound",
        "CheckpointCorruptionError",
        "CheckpointError",
        "CheckpointValidationError",
        "CheckpointWriteError",
        "CommitConflict",
        "CommitStateUnknown",
        "ConcurrentAppend",
        "ConcurrentRemove",
        "CredentialsMissing",
        "CredentialsRefused",
        "DataFileError",
        "ForkedProcess",
        "InvalidRequest",
        "LogCorrupt",
        "LogTooLarge",
        "MetadataChanged",
        "ProtocolChanged",
        "ReadOnlyStore",
        "StoreFull",
        "StoreThrottled",
        "StoreTimeout",
        "StoreUnavailable",
        "StoreUnreachable",
        "TableExists",
        "TableNotFound",
        "TlsFailed",
        "UnknownStorageOption",
        "UnsupportedProtocol",
    ),
    "formats": ("Metadata", "Protocol"),
    "metering": ("metrics",),
    "predicate": ("indexquery",),
    "recovery": (
        "Finding",
        "Findings",
        "RebuildProblem",
        "RebuildResult",
        "doctor",
        "rebuild",
        "repair",
        "repair_losses",
        "repair_notes",
    ),
    "scan": ("Explanation", "ScanPlan", "Split"),
    "snapshot": ("Report", "Snapshot"),
    "statements": ("sql_statement",),
    "table": ("Table", "add_parquet", "scan_polars"),
    "transaction": ("Add", "CommitResult", "add_file"),
}

__all__ = [
    "AccessDenied",
    "Add",
    "ArrowlogError",
    "ArrowlogWarning",
    "BucketNotFound",
    "CheckpointCorruptionError",
    "CheckpointError",
    "CheckpointValidationError",
    "CheckpointWriteError",
    "CommitConflict",
    "CommitResult",
    "CommitStateUnknown",
    "ConcurrentAppend",
    "ConcurrentRemove",
    "CredentialsMissing",
    "CredentialsRefused",
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
    "ReadOnlyStore",
    "RebuildProblem",
    "RebuildResult",
    "Report",
    "ScanPlan",
    "Snapshot",
    "Split",
    "StoreFull",
    "StoreThrottled",
    "StoreTimeout",
    "StoreUnavailable",
    "StoreUnreachable",
    "Table",
    "TableExists",
    "TableNotFound",
    "TlsFailed",
    "UnknownStorageOption",
    "UnsupportedProtocol",
    "__version__",
    "add_file",
    "add_parquet",
    "convert",
    "doctor",
    "indexquery",
    "metrics",
    "plots",
    "rebuild",
    "repair",
    "repair_losses",
    "repair_notes",
    "scan_polars",
    "spark",
    "sql_statement",
    "testing",
]


def __dir__() -> list[str]:
    """List the public names and nothing else."""
    return list(__all__)


if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
