"""The tour of `arrowlog demo`.

The Python lines it prints are the lines it executes, so the tour cannot go stale.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq

import arrowlog
from arrowlog import testing
from arrowlog.display import format_text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("city", pa.string())])
CITIES = ("Basel", "Kyoto", "Lagos", "Quito")
ROWS = 1000
INDENT = "   "


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
    with _empty_folder(folder) as root:
        stage = DemoRunner(root)
        for number, step in enumerate(STEPS, 1):
            stage.play(number, step)
        os.remove(stage.damaged)
    if folder is not None:
        print(f"\nThe table is kept in {folder}.")


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

    def __init__(self, root: str) -> None:
        """`root` is the folder of the table; the lines can use it by this name."""
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
        click.secho(f"{gap}{number}. {step.title}", bold=True)
        for line in step.lines:
            _print_indented(f">>> {line}", fg="cyan")
            self._run(line, step.refused if line is step.lines[-1] else None)

    def _run(self, line: str, refused: type[arrowlog.ArrowlogError] | None) -> None:
        before, sys.displayhook = sys.displayhook, self.show
        try:
            exec(compile(line, "demo", "single"), self._names)  # noqa: S102 -- the lines above
        except arrowlog.ArrowlogError as error:
            if refused is None or not isinstance(error, refused):
                raise
            _print_indented(f"{type(error).__name__}: {error}", fg="red")
        else:
            if refused is not None:
                raise AssertionError(f"{line} was not refused")
        finally:
            sys.displayhook = before

    def show(self, value: object) -> None:
        """Print the result of a line: Arrow tables as a grid, other values by `repr`."""
        if isinstance(value, pa.Table):
            rows_ = zip(*(map(str, column.to_pylist()) for column in value.columns), strict=True)
            _print_indented("\n".join(format_text_table(value.column_names, rows_)))
        elif value is not None:
            plain = isinstance(value, (arrowlog.Explanation, arrowlog.Report))
            _print_indented(str(value) if plain else repr(value))

    def put_parquet(self, path: str) -> str:
        """Write a data file into the table's folder as another program would."""
        os.makedirs(os.path.dirname(f"{self.root}/{path}"), exist_ok=True)
        pq.write_table(rows(4).drop_columns(["day"]), f"{self.root}/{path}")
        return path

    def damage(self, version: int) -> None:
        """Write a truncated commit."""
        data = b'{"add":{"path":"x.parquet","size":1\n'
        self.damaged = testing.write_commit(self.root, version, data)


def _print_indented(text: str, fg: str | None = None) -> None:
    """Print lines with an indent, wrapped to the width of a terminal."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in text.splitlines():
        parts = (
            [line]
            if room is None
            else textwrap.wrap(line, max(room - len(INDENT), 20), drop_whitespace=False)
        )
        for part in parts:
            click.secho(f"{INDENT}{part}", fg=fg)


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
