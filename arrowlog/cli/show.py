"""Arrow tables on standard output: for eyes, or for the next program."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pv

from arrowlog.log.arrays import python_times
from arrowlog.look import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMS = ("text", "json", "csv", "arrow")
_GAP = 2
_TEXT_MIN = 24  # to what a column of text may be cut before columns are left out
_JSON_ROWS = 1 << 13


def show(table: pa.Table, form: str, limit: int | None = None) -> None:
    """Print a table: `json` is one object a line, `arrow` an IPC stream."""
    table = table if limit is None else table.slice(0, limit)
    if form == "text":
        _text(table)
    elif form == "json":
        for batch in table.to_batches(max_chunksize=_JSON_ROWS):
            for row in python_times(pa.Table.from_batches([batch])).to_pylist():
                print(json.dumps(row, default=str, ensure_ascii=False))
    elif form == "csv":
        sys.stdout.flush()
        pv.write_csv(_flat(table), sys.stdout.buffer)
    else:
        sys.stdout.flush()
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as out:
            out.write_table(table)


def _flat(table: pa.Table) -> pa.Table:
    """CSV has no lists, maps or dictionaries: those become text."""
    columns = [
        pa.array(
            [None if v is None else json.dumps(v, default=str) for v in column.to_pylist()],
            pa.string(),
        )
        if pa.types.is_nested(column.type)
        else column.cast(column.type.value_type)
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _text(table: pa.Table) -> None:
    """As wide as the terminal is; a pipe has no width, there nothing is cut."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    room = console.width if console.is_terminal else None
    table = python_times(table)
    heads = [plain(name) for name in table.column_names]
    cells = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
    right = [_counts(column.type) for column in table.columns]
    widths = [
        max([len(head), *map(len, column)]) for head, column in zip(heads, cells, strict=True)
    ]
    widths = widths if room is None else fitted(widths, right, room)
    shown = len(widths)
    console.print(Text(_line(heads[:shown], widths, right), style="bold"))
    for row in zip(*cells[:shown], strict=True):
        console.print(Text(_line(row, widths, right)))
    if shown < len(heads):
        left = ", ".join(heads[shown : shown + 4]) + (", …" if len(heads) > shown + 4 else "")
        more = f"{len(heads) - shown} columns do not fit: {left}; --output json has them"
        console.print(Text(more, style="dim"))


def fitted(widths: Sequence[int], right: Sequence[bool], room: int) -> list[int]:
    """Widths that fit: text is cut first, the widest most; then columns at the end are left out.

    >>> fitted([50, 5, 30], [False, True, False], 60)
    [25, 5, 26]
    >>> fitted([50, 5, 30], [False, True, False], 40)
    [33, 5]
    """
    found = list(widths)
    while found:
        floor = sum(w if r else min(w, _TEXT_MIN) for w, r in zip(found, right, strict=False))
        if floor + _GAP * (len(found) - 1) <= room or len(found) == 1:
            break
        found.pop()
    over = sum(found) + _GAP * (len(found) - 1) - room
    while over > 0:
        text = [n for n, width in enumerate(found) if not right[n] and width > _TEXT_MIN]
        if not text:
            break
        found[max(text, key=lambda n: found[n])] -= 1
        over -= 1
    return found


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if at_right else _cut(cell, width).ljust(width)
        for cell, width, at_right in zip(cells, widths, right, strict=False)
    ]
    return (" " * _GAP).join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    """A text in the room there is; of a path the end tells more than the middle."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return plain(str(value))


def _counts(kind: pa.DataType) -> bool:
    """Numbers and times are never cut."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )
