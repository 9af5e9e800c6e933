"""Format sizes, counts and tables as text, and tables and cards as HTML for notebooks. Pure.

The HTML has no styles except alignment, so that it fits any theme. All values are escaped: they may
come from a log.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LEFT = ' style="text-align:left"'
_RIGHT = ' style="text-align:right"'


def format_bytes(count: int) -> str:
    """Format a number of bytes, in decimal units.

    >>> format_bytes(999), format_bytes(1_500_000)
    ('999 B', '1.5 MB')
    """
    size, unit = float(count), 0
    while abs(size) >= 999.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def escape_control_characters(text: str) -> str:
    r"""Escape control characters, so that text from a log cannot control the terminal.

    >>> print(escape_control_characters("a\nb\x1b[31m"))
    a\nb\x1b[31m
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def format_count(count: int | None) -> str:
    """Format a number with thousands separators; None is unknown.

    >>> format_count(12345), format_count(None)
    ('12,345', 'unknown')
    """
    return "unknown" if count is None else f"{count:,}"


def format_items(count: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things; `plural` is the noun with an s by default.

    >>> format_items(1, "file"), format_items(2000, "file"), format_items(0, "entry", "entries")
    ('1 file', '2,000 files', '0 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_time(value: datetime, *, seconds: bool = False) -> str:
    """Format a time as ISO 8601, in UTC with a Z; `seconds` leaves out fractions.

    >>> from datetime import UTC, datetime
    >>> format_time(datetime(2024, 1, 2, 3, 4, 5, 678000, UTC))
    '2024-01-02T03:04:05.678Z'
    >>> format_time(datetime(2024, 1, 2, 3, 4, 5, 678000, UTC), seconds=True)
    '2024-01-02T03:04:05Z'
    """
    fraction = 0 if seconds else value.microsecond
    precision = "microseconds" if fraction % 1000 else "milliseconds" if fraction else "seconds"
    text = value.isoformat(timespec=precision)
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def format_text_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Format rows as lines of text under a header line; columns in `right` are right-aligned.

    >>> format_text_table(["file", "size"], [["a", "1"], ["bb", "22"]], right=[1])
    ['file  size', 'a        1', 'bb      22']
    """
    table = [tuple(heads), *(tuple(map(escape_control_characters, row)) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def format_html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> str:
    """Format rows as an HTML table; columns in `right` are right-aligned."""
    from html import escape

    aligned = [_RIGHT if number in right else _LEFT for number in range(len(heads))]
    head = "".join(f"<th{how}>{escape(h)}</th>" for h, how in zip(heads, aligned, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{how}>{escape(c)}</td>" for c, how in zip(row, aligned, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def format_html_card(title: str, facts: Iterable[tuple[str, str]], *more: str) -> str:
    """Format a title and name-value pairs as HTML, followed by `more`, which is HTML already."""
    from html import escape

    rows = "".join(
        f"<tr><th{_LEFT}>{escape(name)}</th><td{_LEFT}>{escape(value)}</td></tr>"
        for name, value in facts
    )
    head = f"<strong>{escape(title)}</strong>"
    return f"<div>{head}<table><tbody>{rows}</tbody></table>{''.join(more)}</div>"
