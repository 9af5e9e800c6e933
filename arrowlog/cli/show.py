"""Arrow tables on standard output: for eyes, or for the next program."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pv

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMS = ("text", "json", "csv", "arrow")


def show(table: pa.Table, form: str, limit: int | None = None) -> None:
    """Print a table: `json` is one object a line, `arrow` an IPC stream."""
    table = table if limit is None else table.slice(0, limit)
    if form == "text":
        _text(table)
    elif form == "json":
        for row in table.to_pylist():
            print(json.dumps(row, default=str, ensure_ascii=False))
    elif form == "csv":
        pv.write_csv(_flat(table), sys.stdout.buffer)
    else:
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as out:
            out.write_table(table)


def _flat(table: pa.Table) -> pa.Table:
    """CSV has no lists, maps or dictionaries: those become text."""
    columns = [
        pa.array([None if v is None else json.dumps(v, default=str) for v in column.to_pylist()])
        if pa.types.is_nested(column.type)
        else column.cast(column.type.value_type)
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _text(table: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(*table.column_names, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        grid.add_row(*_cells(row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a pipe has no width: nothing is cut
        console.width = 1_000
    console.print(grid)


def _cells(row: Sequence[object]) -> list[str]:
    return ["" if value is None else str(value) for value in row]
