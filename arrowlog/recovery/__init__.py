"""Doctor, salvage and repair of damaged logs; rebuild of lost ones."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.recovery.data_files import (
        DoctorLimits,
    )
    from arrowlog.recovery.findings import (
        Finding,
        Findings,
        RebuildProblem,
        RebuildResult,
    )
    from arrowlog.recovery.log_checks import (
        doctor,
        examine_table,
    )
    from arrowlog.recovery.log_rebuild import (
        rebuild,
    )
    from arrowlog.recovery.log_repair import (
        RepairLosses,
        repair,
        repair_losses,
        repair_notes,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "data_files": ("DoctorLimits",),
    "findings": ("Finding", "Findings", "RebuildProblem", "RebuildResult"),
    "log_checks": ("doctor", "examine_table"),
    "log_rebuild": ("rebuild",),
    "log_repair": ("RepairLosses", "repair", "repair_losses", "repair_notes"),
}

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

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
