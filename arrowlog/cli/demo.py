"""A table made on the spot, changed, raced for and looked at. What is shown is what is run."""

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
PIPE_WIDTH = 1000  # a pipe has no width: nothing is cut


@dataclass(frozen=True, slots=True)
class Step:
    """What is shown: a title, lines of Python, and whether the last of them is refused."""

    title: str
    lines: tuple[str, ...]
    refused: type[arrowlog.ArrowlogError] | None = None


STEPS = (
    Step(
        "Create a table and write rows to it, a commit a day",
        (
            "root",
            'table = arrowlog.Table.create(root, schema, partition_columns=["day"])',
            "[table.write(rows(day)).version for day in (1, 2, 3)]",
            'columns = ["partition.day", "num_records", "min.id", "max.id"]',
            "table.snapshot().files.select(columns)",
        ),
    ),
    Step(
        "Add a file that is there already: its footer has size, rows and bounds",
        (
            'path = put_parquet("day=2024-01-04/by-hand.parquet")',
            "added = table.append([arrowlog.add_parquet(table, path)])",
            'added.version, added.operation_metrics["numOutputRows"]',
        ),
    ),
    Step(
        "Which files may hold these rows, and why",
        ("""table.scan("day > '2024-01-01' AND id < 1100").explain()""",),
    ),
    Step(
        "Two writers have seen the same version: their appends go together",
        (
            "one, two = arrowlog.Table(root), arrowlog.Table(root)",
            "one.snapshot().version, two.snapshot().version",
            "one.write(rows(5)).version, two.write(rows(6)).version",
        ),
    ),
    Step(
        "Both remove the same day: one does, the other is told so",
        (
            """two.remove("day = '2024-01-01'").version""",
            """one.remove("day = '2024-01-01'")""",
        ),
        arrowlog.ConcurrentRemove,
    ),
    Step(
        "Nothing is gone: go back by version or by time, or bring a version back",
        (
            "table.snapshot(version=3)",
            "table.snapshot(timestamp=added.timestamp)",
            "table.restore(added.version).version, table.refresh()",
        ),
    ),
    Step(
        "Write the newest version down as a whole: who opens the table replays nothing",
        (
            "table.checkpoint().names",
            "arrowlog.Table(root).snapshot().report",
        ),
    ),
    Step(
        "Ask the log: every commit and every file it ever had, in SQL",
        (
            'query = "SELECT operation, sum(adds) AS files, sum(bytes) AS bytes FROM commits"',
            'table.query(query + " WHERE operation IS NOT NULL GROUP BY ALL ORDER BY ALL")',
            "lived = 'SELECT \"partition.day\" AS day, begin_version, end_version'",
            'table.query(lived + " FROM file_lifetimes ORDER BY ALL LIMIT 3")',
            "table.diff(added.version, 7)",
        ),
    ),
    Step(
        "A damaged commit is never passed over in silence",
        ("damage(version=9)", "table.snapshot()"),
        arrowlog.LogCorrupt,
    ),
)


def run_demo(folder: str | None) -> None:
    """Show the main job, step by step."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    with _folder(folder) as root:
        stage = Stage(console, root)
        for number, step in enumerate(STEPS, 1):
            stage.play(number, step)
        os.remove(stage.damaged)
    if folder is not None:
        console.print(f"\nThe table stays in {folder}.", soft_wrap=True)


@contextmanager
def _folder(given: str | None) -> Iterator[str]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="arrowlog-demo-") as made:
            yield f"{made}/events"
        return
    if os.path.exists(given) and os.listdir(given):
        raise arrowlog.InvalidRequest(f"{given} is not empty.", next="Give an empty or new folder.")
    yield given


class Stage:
    """Runs lines as a prompt does, and shows them with what they give."""

    def __init__(self, console: Console, root: str) -> None:
        """`root` is where the table will be; the lines may use it, and a few more names."""
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

    def play(self, number: int, step: Step) -> None:
        """Show one step."""
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
        """What a line gives: a table as one, everything else as it prints."""
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
        """A file that another program has put into the table's folder."""
        os.makedirs(os.path.dirname(f"{self.root}/{path}"), exist_ok=True)
        pq.write_table(rows(4).drop_columns(["day"]), f"{self.root}/{path}")
        return path

    def damage(self, version: int) -> None:
        """A commit that somebody has cut off."""
        data = b'{"add":{"path":"x.parquet","size":1\n'
        self.damaged = testing.write_commit(self.root, version, data)


def rows(day: int) -> pa.Table:
    """A day of events."""
    first = (day - 1) * ROWS
    return pa.table(
        {
            "day": pa.array([date(2024, 1, 1) + timedelta(days=day - 1)] * ROWS),
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "city": pa.array([CITIES[(day + row) % len(CITIES)] for row in range(ROWS)]),
        }
    )
