"""A table built on the spot, and what the library says about it."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as Grid

import arrowlog
from arrowlog import testing

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("city", pa.string())])
CITIES = ("Basel", "Kyoto", "Lagos", "Quito")
START = 1_704_067_200_000  # 2024-01-01, in milliseconds
HOUR = 3_600_000
DAYS, ROWS = 5, 1000


@contextmanager
def _folder(given: str | None) -> Iterator[str]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="arrowlog-demo-") as made:
            yield f"{made}/events"
        return
    if os.path.exists(given) and os.listdir(given):
        raise arrowlog.InvalidRequest(f"{given} is not empty.", next="Give an empty or new folder.")
    yield given


def run_demo(folder: str | None) -> None:
    """Show the main job, step by step."""
    console = Console(highlight=False)
    with _folder(folder) as root:
        console.print(f"[bold]1.[/] A table in {root}", soft_wrap=True)
        build(root)
        _say(console, 'table = arrowlog.Table("events"); snap = table.snapshot()')
        table = arrowlog.Table(root)
        snap = table.snapshot()
        console.print(f"   {snap!r}\n   {snap.report}")
        columns = ["path", "partition.day", "num_records", "min.id", "max.id"]
        _say(console, f"snap.files.select({columns})", "2.", "Its live files, typed")
        _print(console, snap.files.select(columns))
        _say(console, "table.snapshot(version=3)", "3.", "As it was before the merge")
        console.print(f"   {table.snapshot(version=3)!r}")
        _say(console, 'table.snapshot(timestamp="2024-01-01T02:30:00Z")', "4.", "At a moment")
        console.print(f"   {table.snapshot(timestamp='2024-01-01T02:30:00Z')!r}")
        _say(console, "table.refresh()", "5.", "Somebody commits; reading on costs one file")
        _commit(root, DAYS + 2, [_data_file(root, date(2024, 1, 9), 9)], "WRITE")
        console.print(f"   {table.refresh().report}")
        _say(console, "table.snapshot()", "6.", "A damaged commit is never passed over in silence")
        testing.write_commit(root, DAYS + 3, b'{"add":{"path":"x.parquet","size":1\n')
        try:
            table.snapshot()
        except arrowlog.LogCorrupt as error:
            console.print(f"   [red]LogCorrupt:[/] {error}", soft_wrap=True)
        os.remove(f"{root}/_transaction_log/{DAYS + 3:020d}.json")
    if folder is not None:
        console.print(f"\nThe table stays in {folder}.")


def _say(console: Console, code: str, number: str = "", what: str = "") -> None:
    if what:
        console.print(f"\n[bold]{number}[/] {what}")
    console.print(f"   [cyan]>>> {code}[/]", markup=True, soft_wrap=True)


def _print(console: Console, table: pa.Table) -> None:
    grid = Grid(*table.column_names, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        grid.add_row(*(str(value) for value in row))
    console.print(grid)


def build(root: str) -> None:
    """Five days of events, then a merge of the first two, all by hand."""
    os.makedirs(root, exist_ok=True)
    opening = [testing.protocol(), testing.metadata(SCHEMA, ["day"], created=START)]
    testing.write_commit(root, 0, opening, codec="gzip")
    days = [date(2024, 1, 1) + timedelta(days=n) for n in range(DAYS)]
    adds = [_data_file(root, day, number) for number, day in enumerate(days)]
    for number, action in enumerate(adds):
        _commit(root, number + 1, [action], "WRITE")
    merged = _data_file(root, days[0], 0, name="merged")
    _commit(root, DAYS + 1, [testing.remove(adds[0]["add"]["path"]), merged], "MERGE")


def _commit(root: str, version: int, actions: list[testing.Action], operation: str) -> None:
    info = testing.commit_info(START + version * HOUR, operation, numActions=len(actions))
    testing.write_commit(root, version, [info, *actions], codec="gzip")


def _data_file(root: str, day: date, number: int, name: str = "part") -> testing.Action:
    """A real Parquet file, and the add that describes it."""
    ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
    cities = pa.array([CITIES[(number + row) % len(CITIES)] for row in range(ROWS)])
    path = f"day={day}/{name}-{number:05d}.parquet"
    os.makedirs(f"{root}/day={day}", exist_ok=True)
    pq.write_table(pa.table({"id": ids, "city": cities}), f"{root}/{path}")
    bounds: dict[str, Any] = {}
    for column, values in (("id", ids), ("city", cities)):
        bounds[column] = pc.min_max(values).as_py()
    return testing.add(
        path,
        {"day": str(day)},
        size=os.path.getsize(f"{root}/{path}"),
        modificationTime=START,
        stats='{"nullCount":{"id":0,"city":0}}',
        minValues={column: str(found["min"]) for column, found in bounds.items()},
        maxValues={column: str(found["max"]) for column, found in bounds.items()},
        numRecords=ROWS,
    )
