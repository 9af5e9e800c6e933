"""Reports of reads: which filters an engine pushed down to a lazy reader, and what that saved.

A lazy reader is made before it is known what will be read. When an engine reads from it, one
`ReadReport` is appended to the `ReadLog` of the plan and of the table that made the reader.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from arrowlog.predicate import Node
    from arrowlog.scan.explain import Explanation

_REPORTS_MAX = 100  # of the newest reads, per plan and per table


@dataclass(slots=True)
class ReadReport:
    """One read from a lazy reader.

    `pushed` is the filter as the engine passed it on, `planned` the part of it by which files were
    skipped; both are empty without one. The plan has `files_planned` files, and the filter left
    `files_selected` of them. `files_opened` and `rows` grow while the engine reads; an engine that
    stops early leaves them lower. `rows` counts the rows that were handed to the engine.
    """

    engine: str
    version: int
    pushed: str
    planned: str
    columns: tuple[str, ...]
    limit: int | None
    files_total: int
    files_planned: int
    files_selected: int
    files_opened: int = 0
    rows: int = 0
    finished: bool = False
    _explain: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)

    def explain(self) -> Explanation | None:
        """Explain what each clause of the plan's predicate and the pushed filter skipped.

        None for a split of a plan, which has no statistics.
        """
        return None if self._explain is None else self._explain()

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches and count their rows."""
        for batch in batches:
            self.rows += batch.num_rows
            yield batch
        self.finished = True

    def note_opened(self, files: int) -> None:
        """Count files whose reading begins."""
        self.files_opened += files

    def __str__(self) -> str:
        """One line: who read, with which filter, and how many files that took."""
        pushed = f"pushed filter {self.pushed}" if self.pushed else "no filter pushed"
        if self.pushed and not self.planned:
            pushed += " (skips no files)"
        limit = "" if self.limit is None else f", first {self.limit:,} rows"
        state = "" if self.finished else ", not read to the end"
        return (
            f"read by {self.engine}: {pushed}{limit}; {self.files_opened:,} of"
            f" {self.files_planned:,} planned files opened ({self.files_total:,} in the table),"
            f" {self.rows:,} row{'' if self.rows == 1 else 's'}{state}"
        )


class ReadLog:
    """The newest reads of a plan or a table; those of a plan are also in the log of its table."""

    def __init__(self, parent: ReadLog | None = None) -> None:
        """`parent` receives every report as well."""
        self._parent = parent
        self._reports: deque[ReadReport] = deque(maxlen=_REPORTS_MAX)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no reports: they tell what happened in this process."""
        return ReadLog, ()

    def add(self, report: ReadReport) -> ReadReport:
        """Append a report and return it."""
        self._reports.append(report)
        if self._parent is not None:
            self._parent.add(report)
        return report

    def reports(self) -> list[ReadReport]:
        """The reports, oldest first."""
        return list(self._reports)


def format_planned(condition: Node) -> str:
    """The text of a pushed-down condition by which files are skipped; empty without one."""
    from arrowlog.predicate import TRUE, format_node  # loads the parsers: not for a table handle

    return "" if condition == TRUE else format_node(condition)
