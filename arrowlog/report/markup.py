"""Markup from values: texts of a log are escaped and made visible, tables are accessible. Pure.

Whatever a log holds is text here, never markup. Characters that are invisible or change the order
of the text around them are shown as escapes, and every name is isolated from its surroundings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Controls, marks and overrides of the direction of text, lone surrogates, and no characters.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)


def text(value: str) -> str:
    r"""Return a text as HTML, for content and for quoted attributes.

    >>> print(text("<b>\x00"), text("a\u202eb"))
    &lt;b&gt;\x00 a\u202eb
    """
    return escape(_INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], value))


def name(value: str) -> str:
    """Return a name from the log, isolated so that its direction does not spread."""
    return f"<bdi>{text(value)}</bdi>"


def code(value: str) -> str:
    """Return code from the log."""
    return f'<code dir="auto">{text(value)}</code>'


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its markup, and what it is sorted by: a number, or its text.

    An unknown value is None, and sorted last.
    """

    html: str
    value: float | str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column. `order` is the initial order, `ascending` or `descending`, if any."""

    title: str
    numeric: bool = False
    order: str = ""
    hint: str = ""


def data_table(
    ident: str,
    caption: str,
    heads: Sequence[Head],
    rows: Sequence[Sequence[Cell]],
    *,
    search: str = "",
    limit: int = 0,
) -> str:
    """Return a table that can be sorted.

    With `search`, it can be filtered by an input of that label. With `limit`, rows beyond are
    hidden until they are asked for; both need scripts, and without scripts all rows are there.
    """
    head = "".join(_head(each) for each in heads)
    body = "".join(
        f"<tr>{''.join(_cell(cell, heads[n], n == 0) for n, cell in enumerate(row))}</tr>"
        for row in rows
    )
    tools = ""
    if search and len(rows) > 5:
        tools = (
            f'<div class="tools" hidden><label for="{ident}-q">{text(search)}</label>'
            f'<input id="{ident}-q" type="search" data-filter="{ident}" autocomplete="off"'
            f' spellcheck="false"><output for="{ident}-q" id="{ident}-n" aria-live="polite">'
            "</output></div>"
        )
    limited = f' data-limit="{limit}"' if limit and len(rows) > limit else ""
    return (
        f'{tools}<div class="scroll" role="region" aria-labelledby="{ident}-c" tabindex="0">'
        f'<table id="{ident}" data-sortable{limited}><caption id="{ident}-c">'
        f"<span>{text(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(head: Head) -> str:
    kind = ' class="num"' if head.numeric else ""
    order = f' aria-sort="{head.order}"' if head.order else ""
    hint = f' title="{text(head.hint)}"' if head.hint else ""
    return f'<th scope="col"{kind}{order}{hint}>{text(head.title)}</th>'


def _cell(cell: Cell, head: Head, is_head: bool) -> str:  # noqa: FBT001 -- its place in the row
    value = ""
    if not isinstance(cell.value, str):  # scripts sort by the text of a cell that has no value
        value = f' data-v="{"" if cell.value is None else cell.value}"'
    kind = ' class="num"' if head.numeric else ""
    opening = '<th scope="row"' if is_head else "<td"
    return f"{opening}{kind}{value}>{cell.html}{'</th>' if is_head else '</td>'}"


def data_details(summary: str, table: str) -> str:
    """Return the data of a chart as a table that can be opened."""
    return f"<details><summary>{text(summary)}</summary>{table}</details>"
