"""Doctor, salvage and repair of damaged logs; rebuild of lost ones."""

from arrowlog.recovery.data_files import DoctorLimits
from arrowlog.recovery.findings import Finding, Findings
from arrowlog.recovery.log_checks import doctor, examine_table
from arrowlog.recovery.log_rebuild import rebuild
from arrowlog.recovery.log_repair import RepairLosses, repair, repair_losses, repair_notes
from arrowlog.recovery.rebuild_result import RebuildProblem, RebuildResult

__all__ = [
    "DoctorLimits",
    "Finding",
    "Findings",
    "RebuildProblem",
    "RebuildResult",
    "RepairLosses",
    "doctor",
    "examine_table",
    "rebuild",
    "repair",
    "repair_losses",
    "repair_notes",
]
