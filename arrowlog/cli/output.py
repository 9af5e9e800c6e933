"""What commands print: Arrow tables in several formats, and a progress bar.

Tables go to standard output as text, JSON, JSON lines, CSV or an Arrow IPC stream. The progress bar
is one line on a terminal, redrawn in place and erased at the end.
"""

from __future__ import annotations

import math
import shutil
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, date, datetime, time  # noqa: F401 -- UTC is for the doctest
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from arrowlog.display import escape_control_characters, format_bytes, format_items, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from arrowlog.maintenance import CleanupResult

OUTPUT_FORMATS = ("text", "json", "jsonl", "csv", "arrow")
_COLUMN_GAP = 2  # spaces
_MIN_TEXT_WIDTH = 24  # text columns are cut to this width before whole columns are left out
_JSON_BATCH_ROWS = 1 << 13  # bounds the Python objects alive at a time


def print_table(table: pa.Table, form: str, limit: int | None = None) -> None:
    """Print a table in an output format.

    `json` is one document, an array with an object per row; `jsonl` is one object per line; `arrow`
    is an IPC stream.
    """
    import pyarrow as pa

    table = table if limit is None else table.slice(0, limit)
    if form == "text":
        _print_text(table)
    elif form == "json":
        before = "["
        for text in _json_rows(table):
            print(before, text, sep="\n", end="")
            before = ","
        print("[]" if before == "[" else "\n]")
    elif form == "jsonl":
        for text in _json_rows(table):
            print(text)
    elif form == "csv":
        from pyarrow import csv

        sys.stdout.flush()
        csv.write_csv(_for_csv(table), sys.stdout.buffer)
    else:
        sys.stdout.flush()
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
            writer.write_table(table)


def print_record(table: pa.Table, form: str, limit: int | None = None) -> None:
    """Print a table of one row: in `json`, the document is the object itself."""
    print_table(table, "jsonl" if form == "json" else form, limit)


def print_listing(table: pa.Table, form: str, limit: int | None, summary: str) -> None:
    """Print a table; as text, only if it has rows, and followed by a line that sums it up."""
    if form != "text" or table.num_rows:
        print_table(table, form, limit)
    if form == "text":
        print(summary)


def _json_rows(table: pa.Table) -> Iterator[str]:
    """Yield every row as a JSON object on one line."""
    import json

    import pyarrow as pa

    from arrowlog.arrays import clip_to_datetime_range

    for batch in table.to_batches(max_chunksize=_JSON_BATCH_ROWS):
        for row in clip_to_datetime_range(pa.Table.from_batches([batch])).to_pylist():
            try:
                yield json.dumps(row, default=_to_json, ensure_ascii=False, allow_nan=False)
            except ValueError:  # NaN and the infinities are not JSON
                yield json.dumps(_without_nan(row), default=_to_json, ensure_ascii=False)


def _to_json(value: object) -> object:
    """Convert a value that JSON does not have to text: times in ISO 8601, binary as hexadecimal.

    >>> _to_json(datetime(2024, 1, 2, 3, tzinfo=UTC)), _to_json(b"az")
    ('2024-01-02T03:00:00Z', '617a')
    """
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _without_nan(value: object) -> object:
    """Replace NaN and the infinities by their names.

    >>> _without_nan({"a": [float("nan"), 1.5, float("-inf")]})
    {'a': ['nan', 1.5, '-inf']}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return value


def print_cleanup(done: CleanupResult, form: str, limit: int | None) -> None:
    """Print the files of the log that a cleanup or truncation deleted, and what stays readable."""
    if form != "text" or done.num_files:
        print_table(done.files, form, limit)
    if form != "text":
        return
    verb = "would be deleted" if done.dry_run else "deleted"
    print(
        f"{format_items(done.num_files, 'file')} {verb}, {format_bytes(done.bytes_freed)};"
        f" the earliest readable version is {done.earliest_version}."
    )
    if done.num_too_young:
        from arrowlog.maintenance import MIN_COMMIT_AGE_SECONDS

        print(
            f"{format_items(done.num_too_young, 'expired commit')} kept: on a remote store, commits"
            f" are deleted only when they are {MIN_COMMIT_AGE_SECONDS:.0f} seconds old."
        )


def _for_csv(table: pa.Table) -> pa.Table:
    """Write times as ISO 8601, and lists, structs and maps as JSON; decode dictionaries."""
    return type(table).from_arrays(list(map(_csv_column, table.columns)), table.column_names)


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    import json

    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        texts = [None if v is None else json.dumps(v, default=_to_json) for v in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(column.type):  # Arrow writes a space between date and time
        return pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    return column


def _print_text(table: pa.Table) -> None:
    """Print aligned columns, cut to the width of the terminal; a pipe gets everything."""
    import click

    from arrowlog.arrays import clip_to_datetime_range

    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = clip_to_datetime_range(table)
    heads = [escape_control_characters(name) for name in table.column_names]
    cells = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
    right = [_is_right_aligned(column.type) for column in table.columns]
    widths = [
        max([len(head), *map(len, column)]) for head, column in zip(heads, cells, strict=True)
    ]
    widths = widths if room is None else fit_column_widths(widths, right, room)
    shown = len(widths)
    click.secho(_line(heads[:shown], widths, right), bold=True)
    for row in zip(*cells[:shown], strict=True):
        print(_line(row, widths, right))
    if shown < len(heads):
        omitted = ", ".join(heads[shown : shown + 4]) + (", …" if len(heads) > shown + 4 else "")
        note = f"{len(heads) - shown} columns do not fit: {omitted}; --output json has them"
        click.secho(note, dim=True)


def fit_column_widths(widths: Sequence[int], right: Sequence[bool], room: int) -> list[int]:
    """Return column widths that fit into `room` characters.

    Drops columns from the end until the others fit with their text cut to a minimum, then cuts the
    widest text columns. Right-aligned columns are never cut.

    >>> fit_column_widths([50, 5, 30], [False, True, False], 60)
    [25, 5, 26]
    >>> fit_column_widths([50, 5, 30], [False, True, False], 40)
    [33, 5]
    """
    fitting = list(widths)
    while fitting:
        minimum = sum(
            width if at_right else min(width, _MIN_TEXT_WIDTH)
            for width, at_right in zip(fitting, right, strict=False)
        )
        if minimum + _COLUMN_GAP * (len(fitting) - 1) <= room or len(fitting) == 1:
            break
        fitting.pop()
    excess = sum(fitting) + _COLUMN_GAP * (len(fitting) - 1) - room
    while excess > 0:
        text = [n for n, width in enumerate(fitting) if not right[n] and width > _MIN_TEXT_WIDTH]
        if not text:
            break
        fitting[max(text, key=lambda n: fitting[n])] -= 1
        excess -= 1
    return fitting


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if at_right else _cut(cell, width).ljust(width)
        for cell, width, at_right in zip(cells, widths, right, strict=False)
    ]
    return (" " * _COLUMN_GAP).join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    """Shorten a text in the middle: beginning and end of a path tell most."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return format_time(value)
    return escape_control_characters(str(value))


def _is_right_aligned(kind: pa.DataType) -> bool:
    """Return whether a column holds numbers or times."""
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 30  # characters
_ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_bar(
    label: str, *, at_once: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that draws a progress bar, or None if standard error is no terminal.

    The bar appears with the first call that reports unfinished work, so that quick work shows none.
    With `at_once` it appears before that: for work whose first step may take long. The callback may
    be called by several threads.
    """
    if not sys.stderr.isatty():
        yield None
        return
    line = _ProgressLine(label, sys.stderr)
    if at_once:
        line.draw(f"{label} …")
    try:
        yield line.report
    finally:
        line.erase()


class _ProgressLine:
    """The line of one bar. It is redrawn a few times per second, however often work reports."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._lock = threading.Lock()
        self._drawn_at = float("-inf")
        self._visible = False

    def report(self, done: int, total: int) -> None:
        """Show that `done` of `total` units are finished."""
        with self._lock:
            now = monotonic()
            if (done >= total and not self._visible) or now < self._drawn_at + _REDRAW_SECONDS:
                return
            self._drawn_at = now
            self.draw(format_progress(self._label, done, total))

    def draw(self, text: str) -> None:
        """Replace the line by a text, cut to the width of the terminal."""
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"{_ERASE_LINE}{text[:room]}")
        self._stream.flush()
        self._visible = True

    def erase(self) -> None:
        """Remove the line, if it was drawn."""
        with self._lock:
            if self._visible:
                self._stream.write(_ERASE_LINE)
                self._stream.flush()


def format_progress(label: str, done: int, total: int) -> str:
    """Format the state of some work as a line.

    >>> format_progress("compacting", 3, 12)
    'compacting [#######.......................]  25%  3 of 12'
    """
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    filled = int(share * _BAR_WIDTH)
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    return f"{label} [{bar}] {int(share * 100):3d}%  {done:,} of {total:,}"
