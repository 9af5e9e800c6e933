"""What recovery reports: findings of doctor, salvage and repair, results of a rebuild. Pure.

`ProblemLog` collects `Finding`s while a log is examined; `Findings` presents the result of the
doctor to programs, terminals and notebooks. `RebuildResult` says what a rebuild has done, would do
or is refused for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import int64_or_none, make_array, sum_exactly
from arrowlog.display import escape_control_characters, format_bytes, format_html_card
from arrowlog.formats import format_spark_schema
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


_MAX_NAMED_FILES = 5  # files of each kind that the text names
_COMES_BACK = (
    "Rows that were deleted, overwritten or compacted come back if their files are still there."
)


@dataclass(frozen=True, slots=True)
class RebuildProblem:
    """Why a rebuild is refused.

    Attributes:
        code: the kind of problem, for programs: `other-logs`, `links`, `damaged`, `unsupported`,
            `schema-conflict`, `schema-nulls`, `schema-invalid`, `partition-layout`,
            `partition-unknown` or `partition-type`.
        what: what is wrong.
        next: what to do about it.
        files: the paths of the files concerned.
    """

    code: str
    what: str
    next: str
    files: pa.Array = field(repr=False)

    def __str__(self) -> str:
        """The problem and the next step in one line."""
        return f"{self.code}: {self.what} {self.next}"


@dataclass(frozen=True, slots=True, repr=False)
class RebuildResult:
    """The table that a rebuild has made or, with `dry_run`, would make.

    Attributes:
        uri: path or URL of the table.
        schema: the schema of the table; None if no file could be read.
        partition_columns: names of the partition columns.
        files: the data files: path, size_bytes, modification_time, num_records.
        left_out: all other files: path, size_bytes, reason.
        problems: why a rebuild is refused; empty if it is not.
        notes: what is worth knowing about the files.
        ignored_logs: other logs in the folder.
        dry_run: whether nothing was written on purpose.
        version: the version that was written; None if nothing was written.
        milliseconds: the duration.

    Examples:
        >>> import tempfile
        >>> import arrowlog, pyarrow as pa, pyarrow.parquet as pq
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"id": [1, 2]}), f"{folder}/a.parquet")
        >>> arrowlog.rebuild(folder, dry_run=True).num_records
        2
        >>> arrowlog.rebuild(folder).version, arrowlog.Table(folder).snapshot().num_files
        (0, 1)
    """

    uri: str
    schema: pa.Schema | None
    partition_columns: tuple[str, ...]
    files: pa.Table
    left_out: pa.Table
    problems: tuple[RebuildProblem, ...] = ()
    notes: tuple[str, ...] = ()
    ignored_logs: tuple[str, ...] = ()
    dry_run: bool = False
    version: int | None = None
    milliseconds: float = 0.0

    @property
    def num_files(self) -> int:
        """Number of data files."""
        return int(self.files.num_rows)

    @property
    def num_records(self) -> int:
        """Number of rows in the data files."""
        return sum_exactly(self.files["num_records"])

    @property
    def size_bytes(self) -> int:
        """Total size of the data files."""
        return sum_exactly(self.files["size_bytes"])

    def to_arrow(self) -> pa.Table:
        """One row: what was done, files, rows, bytes, schema, problems and files left out."""
        problems = [
            {"code": p.code, "what": p.what, "next": p.next, "files": p.files.to_pylist()}
            for p in self.problems
        ]
        kinds = {
            "problems": pa.list_(
                pa.struct(
                    [
                        ("code", pa.string()),
                        ("what", pa.string()),
                        ("next", pa.string()),
                        ("files", pa.list_(pa.string())),
                    ]
                )
            ),
            "left_out": pa.list_(pa.struct(list(self.left_out.schema))),
            "notes": pa.list_(pa.string()),
            "partition_columns": pa.list_(pa.string()),
        }
        return pa.table(
            {
                "path": make_array([self.uri], pa.string()),
                "status": make_array([self.status], pa.string()),
                "version": make_array([self.version], pa.int64()),
                "num_files": make_array([self.num_files], pa.int64()),
                "num_records": make_array([int64_or_none(self.num_records)], pa.int64()),
                "size_bytes": make_array([int64_or_none(self.size_bytes)], pa.int64()),
                "schema": make_array(
                    [None if self.schema is None else format_spark_schema(self.schema)], pa.string()
                ),
                "partition_columns": pa.array(
                    [list(self.partition_columns)], kinds["partition_columns"]
                ),
                "problems": pa.array([problems], kinds["problems"]),
                "left_out": pa.array([self.left_out.to_pylist()], kinds["left_out"]),
                "notes": pa.array([list(self.notes)], kinds["notes"]),
            }
        )

    @property
    def status(self) -> str:
        """`rebuilt`, `would be rebuilt`, or `refused` if there are problems."""
        if self.version is not None:
            return "rebuilt"
        return "refused" if self.problems else "would be rebuilt"

    def __str__(self) -> str:
        """What was done, the schema, what was left out, problems and notes."""
        counts = f"{self.num_files:,} files, {self.num_records:,} rows"
        lines = [f"{self.uri}: {self.status}; {counts}, {format_bytes(self.size_bytes)}"]
        for item in self.schema or ():
            marks = " (partition)" * (item.name in self.partition_columns)
            marks += " not null" * (not item.nullable)
            lines.append(f"  {escape_control_characters(item.name)}: {item.type}{marks}")
        lines += self._left_out_lines()
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append(f"note: {_COMES_BACK}")
        return "\n".join(lines)

    __repr__ = __str__

    def _left_out_lines(self) -> list[str]:
        counts = Counter(self.left_out["reason"].to_pylist())
        lines = []
        for reason, count in sorted(counts.items()):
            mask = pc.equal(self.left_out["reason"], reason)
            paths = self.left_out.filter(mask)["path"].slice(0, _MAX_NAMED_FILES).to_pylist()
            names = ", ".join(map(escape_control_characters, paths))
            more = f" and {count - len(paths):,} more" if count > len(paths) else ""
            lines.append(f"left out, {reason}: {names}{more}")
        if counts["damaged"]:
            lines.append("note: vacuum deletes damaged files later; move them away to keep them")
        return lines

    def _repr_html_(self) -> str:
        facts = [tuple(line.strip().split(": ", 1)) for line in str(self).splitlines()[1:]]
        return format_html_card(
            str(self).splitlines()[0], [(f[0], f[-1]) for f in facts if len(f) == 2]
        )
