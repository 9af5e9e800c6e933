"""The tour of `arrowlog demo`.

The Python lines it prints are the lines it executes, so the tour cannot go stale.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

import arrowlog
from arrowlog import testing

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("city", pa.string())])
CITIES = ("Basel", "Kyoto", "Lagos", "Quito")
ROWS = 1000
INDENT = 3
PIPE_WIDTH = 1000  # wide enough that rich wraps nothing when the output is piped


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A title, lines of Python, and the error that the last line must raise, if any."""

    title: str
    lines: tuple[str, ...]
    refused: type[arrowlog.ArrowlogError] | None = None


STEPS = (
    DemoStep(
        "Create a table and write rows to it, one commit per day",
        (
            "root",
            'table = arrowlog.Table.create(root, schema, partition_columns=["day"])',
            "[table.write(rows(day)).version for day in (1, 2, 3)]",
            'columns = ["partition.day", "num_records", "min.id", "max.id"]',
            "table.snapshot().files.select(columns)",
        ),
    ),
    DemoStep(
        "Add an existing Parquet file: its footer has size, row count and bounds",
        (
            'path = put_parquet("day=2024-01-04/by-hand.parquet")',
            "added = table.append([arrowlog.add_parquet(table, path)])",
            'added.version, added.operation_metrics["numOutputRows"]',
        ),
    ),
    DemoStep(
        "Plan a scan, and explain which files it reads",
        ("""table.scan("day > '2024-01-01' AND id < 1100").explain()""",),
    ),
    DemoStep(
        "Two writers start from the same version: both appends succeed",
        (
            "one, two = arrowlog.Table(root), arrowlog.Table(root)",
            "one.snapshot().version, two.snapshot().version",
            "one.write(rows(5)).version, two.write(rows(6)).version",
        ),
    ),
    DemoStep(
        "Both remove the same day: the first wins, the second gets a conflict",
        (
            """two.remove("day = '2024-01-01'").version""",
            """one.remove("day = '2024-01-01'")""",
        ),
        arrowlog.ConcurrentRemove,
    ),
    DemoStep(
        "Read an old version, by number or by time, and restore it",
        (
            "table.snapshot(version=3)",
            "table.snapshot(timestamp=added.timestamp)",
            "table.restore(added.version).version, table.refresh()",
        ),
    ),
    DemoStep(
        "Write a checkpoint: opening the table then replays no commits",
        (
            "table.checkpoint().names",
            "arrowlog.Table(root).snapshot().report",
        ),
    ),
    DemoStep(
        "Query the log with SQL: every commit, and the lifetime of every file",
        (
            'query = "SELECT operation, sum(adds) AS files, sum(bytes) AS bytes FROM commits"',
            'table.query(query + " WHERE operation IS NOT NULL GROUP BY ALL ORDER BY ALL")',
            "lived = 'SELECT \"partition.day\" AS day, begin_version, end_version'",
            'table.query(lived + " FROM file_lifetimes ORDER BY ALL LIMIT 3")',
            "table.diff(added.version, 7)",
        ),
    ),
    DemoStep(
        "A damaged commit is an error that names the file; it is never skipped",
        ("damage(version=9)", "table.snapshot()"),
        arrowlog.LogCorrupt,
    ),
)


def run_demo(folder: str | None) -> None:
    """Run all steps in `folder`, which is kept, or in a temporary folder.

    Raises `InvalidRequest` if the folder is not empty.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    with _empty_folder(folder) as root:
        stage = DemoRunner(console, root)
        for number, step in enumerate(STEPS, 1):
            stage.play(number, step)
        os.remove(stage.damaged)
    if folder is not None:
        console.print(f"\nThe table is kept in {folder}.", soft_wrap=True)


@contextmanager
def _empty_folder(given: str | None) -> Iterator[str]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="arrowlog-demo-") as made:
            yield f"{made}/events"
        return
    if os.path.exists(given) and os.listdir(given):
        raise arrowlog.InvalidRequest(f"{given} is not empty.", next="Give an empty or new folder.")
    yield given


class DemoRunner:
    """Executes lines as the Python prompt does and prints them with their results."""

    def __init__(self, console: Console, root: str) -> None:
        """`root` is the folder of the table; the lines can use it by this name."""
        self.console = console
        self.root = root
        self.damaged = ""
        self._names = {
            "arrowlog": arrowlog,
            "root": root,
            "schema": SCHEMA,
            "rows": rows,
            "put_parquet": self.put_parquet,
            "damage": self.damage,
        }

    def play(self, number: int, step: DemoStep) -> None:
        """Print the title of a step and run its lines."""
        gap = "" if number == 1 else "\n"
        self.console.print(f"{gap}[bold]{number}. {step.title}[/]")
        for line in step.lines:
            self._print(Text(f">>> {line}", style="cyan"))
            self._run(line, step.refused if line is step.lines[-1] else None)

    def _run(self, line: str, refused: type[arrowlog.ArrowlogError] | None) -> None:
        before, sys.displayhook = sys.displayhook, self.show
        try:
            exec(compile(line, "demo", "single"), self._names)  # noqa: S102 -- the lines above
        except arrowlog.ArrowlogError as error:
            if refused is None or not isinstance(error, refused):
                raise
            self._print(Text.assemble((f"{type(error).__name__}: ", "bold red"), str(error)))
        else:
            if refused is not None:
                raise AssertionError(f"{line} was not refused")
        finally:
            sys.displayhook = before

    def show(self, value: object) -> None:
        """Print the result of a line: Arrow tables as a grid, other values by `repr`."""
        if isinstance(value, pa.Table):
            grid = Grid(*value.column_names, box=None, padding=(0, 3, 0, 0), header_style="bold")
            for row in zip(*(column.to_pylist() for column in value.columns), strict=True):
                grid.add_row(*map(str, row))
            self._print(grid)
        elif value is not None:
            plain = isinstance(value, (arrowlog.Explanation, arrowlog.Report))
            self._print(Text(str(value) if plain else repr(value)))

    def _print(self, what: Text | Grid) -> None:
        self.console.print(Padding(what, (0, 0, 0, INDENT), expand=False))

    def put_parquet(self, path: str) -> str:
        """Write a data file into the table's folder as another program would."""
        os.makedirs(os.path.dirname(f"{self.root}/{path}"), exist_ok=True)
        pq.write_table(rows(4).drop_columns(["day"]), f"{self.root}/{path}")
        return path

    def damage(self, version: int) -> None:
        """Write a truncated commit."""
        data = b'{"add":{"path":"x.parquet","size":1\n'
        self.damaged = testing.write_commit(self.root, version, data)


def rows(day: int) -> pa.Table:
    """Return the events of one day."""
    first = (day - 1) * ROWS
    return pa.table(
        {
            "day": pa.array([date(2024, 1, 1) + timedelta(days=day - 1)] * ROWS),
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "city": pa.array([CITIES[(day + row) % len(CITIES)] for row in range(ROWS)]),
        }
    )
