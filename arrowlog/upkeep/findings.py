"""What a doctor found: for programs, for prompts, for notebooks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.log.arrays import array_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SEVERITIES = ("info", "warning", "error")
_COLUMNS = ("code", "severity", "what", "where", "fix")
_COLOURS = {"error": "#b00020", "warning": "#9a6700", "info": "#57606a"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a table that somebody should know.

    `code` is stable, `severity` is `error`, `warning` or `info`, `what` says it in words, `where`
    is a file, a folder or a column, `fix` the call or command that mends it, and `count` how many
    files or versions are concerned.
    """

    code: str
    severity: str
    what: str
    where: str
    fix: str
    count: int = 1
    files: pa.Array | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """A paragraph."""
        return (
            f"{self.severity}: {self.code}: {self.what}\n  where: {self.where}\n  fix:   {self.fix}"
        )


class Findings:
    """All findings of one examination, the worst first."""

    def __init__(self, uri: str, version: int | None, found: list[Finding]) -> None:
        """`version` is the newest that could be read; None if none could."""
        self.uri = uri
        self.version = version
        self._found = sorted(found, key=lambda each: -SEVERITIES.index(each.severity))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        """One after the other, the worst first."""
        return iter(self._found)

    def __getitem__(self, number: int) -> Finding:
        """One of them."""
        return self._found[number]

    def __contains__(self, code: object) -> bool:
        """Whether there is a finding with a code."""
        return any(each.code == code for each in self._found)

    @property
    def codes(self) -> list[str]:
        """The codes, each once, the worst first."""
        return list(dict.fromkeys(each.code for each in self._found))

    @property
    def worst(self) -> str | None:
        """`error`, `warning` or `info`; None if there is nothing to say."""
        return self._found[0].severity if self._found else None

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return self.worst in (None, "info")

    def at_least(self, severity: str) -> list[Finding]:
        """The findings that are as bad as that, or worse."""
        lowest = SEVERITIES.index(severity)
        return [each for each in self._found if SEVERITIES.index(each.severity) >= lowest]

    def paths(self, code: str) -> list[str]:
        """The data files that the findings with a code are about."""
        found = [each.files for each in self._found if each.code == code]
        return [path for files in found if files is not None for path in files.to_pylist()]

    def to_arrow(self) -> pa.Table:
        """One row a finding: code, severity, what, where, fix, count."""
        columns = {
            name: array_of([getattr(each, name) for each in self._found], pa.string())
            for name in _COLUMNS
        }
        counts = array_of([each.count for each in self._found], pa.int64())
        return pa.table({**columns, "count": counts})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """What `to_arrow` gives, for polars, DuckDB and pandas to take as it is."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _summary(self) -> str:
        state = "unreadable" if self.version is None else f"version {self.version}"
        counts = [
            f"{n} {name}{'s' if n > 1 and name != 'info' else ''}"
            for name in reversed(SEVERITIES)
            if (n := sum(each.severity == name for each in self._found))
        ]
        return f"{self.uri}, {state}: {', '.join(counts) or 'nothing to mend'}"

    def __str__(self) -> str:
        """A line for the table, a paragraph for each finding."""
        return "\n".join([self._summary(), *map(str, self._found)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="text-align:left;vertical-align:top"'
        rows = "".join(
            f'<tr><td {left}><b style="color:{_COLOURS[each.severity]}">{each.severity}</b></td>'
            f"<td {left}><code>{escape(each.code)}</code><br>{escape(each.what)}"
            f"<br>where: <code>{escape(each.where)}</code>"
            f"<br>fix: <code>{escape(each.fix)}</code></td></tr>"
            for each in self._found
        )
        table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        return f"<p><strong>{escape(self._summary())}</strong></p>{table}"
