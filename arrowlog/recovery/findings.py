"""Problems of a table: the value that doctor, salvage and repair report, and their collector. Pure.

`ProblemLog` collects `Finding`s while a log is examined; `Findings` presents the result of the
doctor to programs, terminals and notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.arrays import make_array
from arrowlog.formats.indextables import LOG_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEVERITIES = ("info", "warning", "error")  # ascending
_TEXT_COLUMNS = ("code", "severity", "what", "where", "fix")
_COLOURS = {"error": "#b00020", "warning": "#9a6700", "info": "#57606a"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a table and the call that fixes it.

    `code` is stable. `severity` is `error`, `warning` or `info`. `what` describes the problem in a
    sentence, `where` names the file, folder or column, `fix` is the call or command that fixes it,
    `count` is the number of files or versions concerned, and `files` holds the data files among
    them, if any. `version` is the table version concerned, if it is a single one.
    """

    code: str
    severity: str
    what: str
    where: str
    fix: str
    count: int = 1
    files: pa.Array | None = field(default=None, repr=False, compare=False)
    version: int | None = None

    def __str__(self) -> str:
        """Severity, code and description on one line, then the place and the fix."""
        return (
            f"{self.severity}: {self.code}: {self.what}\n  where: {self.where}\n  fix:   {self.fix}"
        )


@dataclass(slots=True)
class ProblemLog:
    """The problems of one table that have been found so far, in the order in which they were.

    `root` is the address of the table, `log_folder` the folder of the log in it. `repaired_folder`
    and `old_folder` are free names for a repaired log and for the log that it replaces.
    """

    root: str
    log_folder: str = LOG_FOLDER
    repaired_folder: str = f"{LOG_FOLDER}_repaired"
    old_folder: str = f"{LOG_FOLDER}_old"
    problems: list[Finding] = field(default_factory=list)

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over the problems."""
        return iter(self.problems)

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.problems)

    def report(
        self,
        code: str,
        severity: str,
        what: str,
        where: str,
        fix: str = "",
        *,
        version: int | None = None,
    ) -> None:
        """Add a problem. Without a `fix`, the fix is to repair the log."""
        problem = Finding(code, severity, what, where, fix or self.repair_call, version=version)
        self.problems.append(problem)

    def extend(self, problems: Iterable[Finding]) -> None:
        """Add problems that others have found."""
        self.problems.extend(problems)

    @property
    def has_error(self) -> bool:
        """Whether one of the problems is an error."""
        return any(problem.severity == "error" for problem in self.problems)

    @property
    def repair_call(self) -> str:
        """The call that writes a clean log next to the damaged one."""
        source, target = (f"{self.root}/{name}" for name in (self.log_folder, self.repaired_folder))
        return (
            f"arrowlog.repair({source!r}, {target!r})"
            f"  # Stop all writers first. Afterwards rename {self.log_folder} to"
            f" {self.old_folder}, keep it, and rename {self.repaired_folder} to"
            f" {self.log_folder}."
        )

    def notes(self) -> tuple[str, ...]:
        """Return the description of every problem, after its place if it concerns one file."""
        return tuple(
            f"{problem.where}: {problem.what}" if problem.where else problem.what
            for problem in self.problems
        )


class Findings:
    """All findings of one examination, most severe first."""

    def __init__(
        self, uri: str, version: int | None, findings: Iterable[Finding], scope: str = ""
    ) -> None:
        """Sort the findings.

        `version` is the latest version that could be read; None if none could. `scope` says what
        was checked and what was not, if that is less than for tables of the own format.
        """
        self.uri = uri
        self.scope = scope
        self.version = version
        self._findings = sorted(findings, key=lambda each: -SEVERITIES.index(each.severity))

    def __len__(self) -> int:
        """Number of findings."""
        return len(self._findings)

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over the findings, most severe first."""
        return iter(self._findings)

    def __getitem__(self, number: int) -> Finding:
        """Return a finding by its position."""
        return self._findings[number]

    def __contains__(self, code: object) -> bool:
        """Whether there is a finding with the code."""
        return any(each.code == code for each in self._findings)

    @property
    def codes(self) -> list[str]:
        """The distinct codes, most severe first."""
        return list(dict.fromkeys(each.code for each in self._findings))

    @property
    def worst(self) -> str | None:
        """The highest severity: `error`, `warning` or `info`; None without findings."""
        return self._findings[0].severity if self._findings else None

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return self.worst in (None, "info")

    def at_least(self, severity: str) -> list[Finding]:
        """Return the findings of this severity or a higher one."""
        lowest = SEVERITIES.index(severity)
        return [each for each in self._findings if SEVERITIES.index(each.severity) >= lowest]

    def paths(self, code: str) -> list[str]:
        """Return the data files that the findings with a code concern."""
        arrays = [each.files for each in self._findings if each.code == code]
        return [path for files in arrays if files is not None for path in files.to_pylist()]

    def to_arrow(self) -> pa.Table:
        """One row per finding: code, severity, what, where, fix, count."""
        columns = {
            name: make_array([getattr(each, name) for each in self._findings], pa.string())
            for name in _TEXT_COLUMNS
        }
        counts = make_array([each.count for each in self._findings], pa.int64())
        return pa.table({**columns, "count": counts})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export `to_arrow` through the Arrow C stream interface (polars, DuckDB, pandas)."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _summary(self) -> str:
        state = "unreadable" if self.version is None else f"version {self.version}"
        counts = [
            f"{n} {name}{'s' if n > 1 and name != 'info' else ''}"
            for name in reversed(SEVERITIES)
            if (n := sum(each.severity == name for each in self._findings))
        ]
        return f"{self.uri}, {state}: {', '.join(counts) or 'no problems found'}"

    def __str__(self) -> str:
        """A summary line, then a paragraph per finding."""
        scope = [self.scope] if self.scope else []
        return "\n".join([self._summary(), *scope, *map(str, self._findings)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="text-align:left;vertical-align:top"'
        rows = "".join(
            f'<tr><td {left}><b style="color:{_COLOURS[each.severity]}">{each.severity}</b></td>'
            f"<td {left}><code>{escape(each.code)}</code><br>{escape(each.what)}"
            f"<br>where: <code>{escape(each.where)}</code>"
            f"<br>fix: <code>{escape(each.fix)}</code></td></tr>"
            for each in self._findings
        )
        table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        scope = f"<p>{escape(self.scope)}</p>" if self.scope else ""
        return f"<p><strong>{escape(self._summary())}</strong></p>{scope}{table}"
