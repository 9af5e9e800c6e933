"""Doctor, salvage and repair of damaged logs."""

from arrowlog.recovery.data_files import DoctorLimits
from arrowlog.recovery.findings import Finding, Findings
from arrowlog.recovery.log_checks import doctor, examine_table
from arrowlog.recovery.log_repair import RepairLosses, repair, repair_losses, repair_notes

__all__ = [
    "DoctorLimits",
    "Finding",
    "Findings",
    "RepairLosses",
    "doctor",
    "examine_table",
    "repair",
    "repair_losses",
    "repair_notes",
]
